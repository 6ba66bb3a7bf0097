"""Checks of integers."""

import numpy as np

from marljax.errors import UserError


def divide(total: int, parts: int, what: str, into: str) -> int:
    """``total / parts``, or an error that names both where they do not divide."""
    if total % parts:
        raise UserError(f"{total} {what} do not divide into {parts} {into}; change one of the two")
    return total // parts


def is_integer(value: object) -> bool:
    """Whether a value is an integer, Python's or NumPy's; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
