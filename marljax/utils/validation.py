"""Checks of numbers."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from marljax.errors import UserError, short_repr
from marljax.utils.pytrees import named_leaves


def divide(total: int, parts: int, what: str, into: str) -> int:
    """``total / parts``, or an error that names both where they do not divide."""
    if total % parts:
        raise UserError(f"{total} {what} do not divide into {parts} {into}; change one of the two")
    return total // parts


def is_integer(value: object) -> bool:
    """Whether a value is an integer, Python's or NumPy's; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


SHOWN = 30  # numbers of an array that a message quotes whole
POSITIVE = 1e-12  # the least of what has to be above 0


def check_numbers(given: Any, usual: Any, where: str) -> None:
    """Raises ``UserError`` for a number in ``given`` that cannot stand where ``usual`` has one: of another shape, not finite, or
    not an integer where an integer is usual. Both are concrete; ``where`` names them in the message."""
    if str(jax.tree.structure(given)) != str(jax.tree.structure(usual)):
        raise UserError(f"the numbers of {where} have another structure than usual; give numbers and arrays")
    for (name, leaf), (_, wanted) in zip(named_leaves(given), named_leaves(usual), strict=True):
        array, kind = np.asarray(leaf), np.asarray(wanted).dtype.kind
        shown = f"{name}={short_repr(leaf) if np.size(leaf) > SHOWN else ' '.join(str(leaf).split())} of {where}"
        if array.shape != np.shape(wanted):
            takes = f"{np.size(wanted)} numbers" if np.ndim(wanted) else "one number"
            raise UserError(f"{shown} has shape {list(array.shape)}; give {takes}")
        if array.dtype.kind not in "biuf" or not (np.abs(array.astype(np.float64)) <= np.finfo(np.float32).max).all():
            raise UserError(f"{shown} is out of range; it takes {'true or false' if kind == 'b' else 'finite numbers'}")
        if kind in "iu" and not ((array % 1 == 0) & (np.abs(array.astype(np.float64)) < 2**31)).all():
            raise UserError(f"{shown} is out of range; it takes an integer")
        if kind == "b" and not ((array == 0) | (array == 1)).all():
            raise UserError(f"{shown} is out of range; it takes true or false")


def check_ranges(given: Any, ranges: Mapping[str, tuple[float, float]], where: str) -> None:
    """Raises ``UserError`` for a concrete number in ``given`` outside of its range: dotted name → least, most; ``POSITIVE`` and
    infinity stand for no bound but 0 and for none. Arrays have to lie in it with every entry. All are compared as float32, which
    programs compute with."""
    for name, (least, most) in ranges.items():
        values = np.asarray(operator.attrgetter(name)(given), np.float32)
        wrong = np.argwhere(~((np.float32(least) <= values) & (values <= np.float32(most))))
        if len(wrong):
            entry = f"[{', '.join(map(str, wrong[0]))}]" if values.ndim else ""
            shown = f"{name}{entry}={values[tuple(wrong[0])]:g} of {where}"
            raise UserError(f"{shown} is out of range; it takes {_range_in_words(least, most)}")


def check_order(given: Any, pairs: Iterable[tuple[str, str]], where: str) -> None:
    """Raises ``UserError`` for the first pair of dotted names whose first concrete number lies above the second."""
    for low, high in pairs:
        least, most = (float(operator.attrgetter(name)(given)) for name in (low, high))
        if not least <= most:
            raise UserError(f"{low}={least:g} of {where} lies above {high}={most:g}; give one that does not")


def _range_in_words(least: float, most: float) -> str:
    if np.isinf(most):
        return "a number above 0" if least == POSITIVE else f"{least:g} or more"
    up_to = f"{rounded_down(most):g}"
    return f"a number above 0, up to {up_to}" if least == POSITIVE else f"a number from {least:g} to {up_to}"


def rounded_down(bound: float) -> float:
    """A bound that a message can show with four digits behind the point, and that is allowed."""
    return float(np.floor(bound * 1e4) / 1e4)
