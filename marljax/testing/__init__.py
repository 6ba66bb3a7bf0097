"""Conformance checks for environments: ``check_env`` for users' tests, the abstract part of it before every training."""

from marljax.testing.conformance import check_env

__all__ = ["check_env"]
