"""Result tables: cells kept in files, pages, measuring."""
