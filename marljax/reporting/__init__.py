"""What a run reports at its end: tables, comparison, ranking."""
