"""Environments, a package each."""
