"""Pytrees compared leaf by leaf, with readable names: ``timestep.obs``, ``metrics.crash``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def strongly_typed(tree: Any) -> Any:
    """Numbers as arrays of their own dtype: Python numbers are weakly typed and would be traced separately."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """(name, leaf) pairs; a tree that is one leaf has the name ``value``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "value", leaf) for path, leaf in leaves]


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, or an array of them."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_host(leaf: Any) -> np.ndarray:
    """A leaf as a NumPy array; a random key as its integers."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def first_nan(tree: Any) -> str:
    """Name of the first leaf with a NaN, or an empty string."""
    return next((name for name, leaf in _floats(tree) if np.isnan(leaf).any()), "")


def first_infinite(tree: Any) -> str:
    """Name of the first leaf with a NaN or an infinity, or an empty string."""
    return next((name for name, leaf in _floats(tree) if not np.isfinite(leaf).all()), "")


def first_unlike(one: Any, other: Any, tolerance: float = 0.0) -> str:
    """Name of the first leaf whose values differ by more than a relative or absolute tolerance, or an empty string."""
    for (name, leaf), twin in zip(named_leaves(one), jax.tree.leaves(other), strict=True):
        left, right = to_host(leaf), to_host(twin)
        if not np.array_equal(left, right) and not (tolerance and np.allclose(left, right, rtol=tolerance, atol=tolerance)):
            return name
    return ""


def shape_difference(one: Any, other: Any) -> str:
    """How the leaves of two trees differ in name, shape or dtype: ``obs is float32[3], not float32[2]``; empty if they agree."""
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
