"""Pytrees compared leaf by leaf, with names that a person can read: ``timestep.obs``, ``metrics.crash``."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.errors import UserError, in_short

SHOWN = 30  # numbers of an array that a message quotes whole
ABOVE_0 = 1e-12  # the least of what has to be above 0


def strong(tree: Any) -> Any:
    """Numbers as arrays of their own dtype: Python numbers are weakly typed and would be traced apart."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """(name, leaf) pairs; a tree that is one leaf has the name ``value``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "value", leaf) for path, leaf in leaves]


def check_numbers(given: Any, usual: Any, where: str) -> None:
    """Raises ``UserError`` for a number in ``given`` that cannot stand where ``usual`` has one: of another shape, not finite, or
    not an integer where an integer is usual. Both are concrete; ``where`` names them in the message."""
    if str(jax.tree.structure(given)) != str(jax.tree.structure(usual)):
        raise UserError(f"the numbers of {where} have another structure than usual; give numbers and arrays")
    for (name, leaf), (_, wanted) in zip(named_leaves(given), named_leaves(usual), strict=True):
        array, kind = np.asarray(leaf), np.asarray(wanted).dtype.kind
        shown = f"{name}={in_short(leaf) if np.size(leaf) > SHOWN else ' '.join(str(leaf).split())} of {where}"
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
    """Raises ``UserError`` for a concrete number in ``given`` outside of its range: dotted name → least, most; ``ABOVE_0`` and
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
        return "a number above 0" if least == ABOVE_0 else f"{least:g} or more"
    up_to = f"{rounded_down(most):g}"
    return f"a number above 0, up to {up_to}" if least == ABOVE_0 else f"a number from {least:g} to {up_to}"


def rounded_down(bound: float) -> float:
    """A bound that a message can show with four digits behind the point, and that is allowed."""
    return float(np.floor(bound * 1e4) / 1e4)


def to_host(leaf: Any) -> np.ndarray:
    """A leaf as a NumPy array; a random key as its integers."""
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def first_nan(tree: Any) -> str:
    """Name of the first leaf that holds NaN, or nothing."""
    return next((name for name, leaf in _floats(tree) if np.isnan(leaf).any()), "")


def first_infinite(tree: Any) -> str:
    """Name of the first leaf that holds NaN or an infinity, or nothing."""
    return next((name for name, leaf in _floats(tree) if not np.isfinite(leaf).all()), "")


def first_unlike(one: Any, other: Any, tolerance: float = 0.0) -> str:
    """Name of the first leaf whose values differ by more than a relative or absolute tolerance, or nothing."""
    for (name, leaf), twin in zip(named_leaves(one), jax.tree.leaves(other), strict=True):
        left, right = to_host(leaf), to_host(twin)
        if not np.array_equal(left, right) and not (tolerance and np.allclose(left, right, rtol=tolerance, atol=tolerance)):
            return name
    return ""


def shape_difference(one: Any, other: Any) -> str:
    """How the leaves of two trees differ in name, shape or dtype, or nothing: ``obs is float32[3], not float32[2]``."""
    left, right = named_leaves(one), named_leaves(other)
    extra = [name for name, _ in right if name not in dict(left)]
    missing = [name for name, _ in left if name not in dict(right)]
    if extra or missing:
        return " and ".join([f"{name} is new" for name in extra] + [f"{name} is missing" for name in missing])
    trees = str(jax.tree.structure(one)), str(jax.tree.structure(other))
    if trees[0] != trees[1]:
        return f"its tree is {trees[1]}, not {trees[0]}"
    for (name, before), (_, after) in zip(left, right, strict=True):
        if _kind(before) != _kind(after):
            hint = " (weak types come from Python numbers: name a dtype)" if "weak" in _kind(before) + _kind(after) else ""
            return f"{name} is {_kind(after)}, not {_kind(before)}{hint}"
    return ""


def _kind(leaf: Any) -> str:
    return f"{'weak ' * getattr(leaf, 'weak_type', False)}{leaf.dtype}{list(leaf.shape)}"


def _floats(tree: Any) -> list[tuple[str, np.ndarray]]:
    leaves = [(name, to_host(leaf)) for name, leaf in named_leaves(tree)]
    return [(name, leaf) for name, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
