"""Checks of environments: ``check_env`` for users' tests, its static part before every training."""

from marljax.testing.conformance import check_env

__all__ = ["check_env"]
