"""Random numbers in the shape that a CPU draws fastest."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

LANES = 8  # a short innermost axis that is not a multiple of it makes the generator several times slower, to compile and to run


def row(draw: Callable[..., jax.Array], key: jax.Array, size: int) -> jax.Array:
    """At least ``size`` numbers of ``draw(key, shape)`` in one row; the first are those of ``draw(key, (size,))``."""
    return draw(key, (-(-size // LANES) * LANES,))


def flat(draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``draw(key, shape)`` of ``jax.random``, such as ``jax.random.uniform``: the same numbers, drawn as one long row."""
    size = math.prod(shape)
    return row(draw, key, size)[:size].reshape(shape)


def named(key: jax.Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    """Independent uniform numbers from 0 to 1 of several shapes, from one draw: one kernel on an accelerator, one to compile."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    parts = jnp.split(row(jax.random.uniform, key, ends[-1])[: ends[-1]], ends[:-1])
    return {name: part.reshape(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}


def normal(uniform: jax.Array) -> jax.Array:
    """Standard normal numbers from uniform ones from 0 to 1, as ``jax.random.normal`` makes them."""
    symmetric = jnp.maximum(2.0 * uniform - 1.0, jnp.nextafter(jnp.array(-1.0, uniform.dtype), 0.0))
    return math.sqrt(2.0) * jax.lax.erf_inv(symmetric)


def ranks(values: jax.Array) -> jax.Array:
    """int32 [..., K] rank of each value in ascending order, a random permutation if they are random; for a K of a few dozen."""
    index = jnp.arange(values.shape[-1])
    below = values[..., None, :] < values[..., None]
    earlier = (values[..., None, :] == values[..., None]) & (index < index[:, None])
    return jnp.sum(below | earlier, axis=-1, dtype=jnp.int32)


def batch_last(draw: Callable[[jax.Array], Any], data: jax.Array, impl: Any) -> Any:
    """``draw(key)`` for every key of a batch, inside a function under ``marljax.utils.batching.batch_last``.

    Drawing there pays in a ``jax.lax.cond`` that is rarely entered.

    Args:
        draw: takes one key, returns a pytree of arrays.
        data: [W, …] ``jax.random.key_data`` of the keys, trailing axes last.
        impl: their ``jax.random.key_impl``.

    Returns:
        The results of ``draw``, the trailing axes last.
    """
    keys = jax.random.wrap_key_data(jnp.moveaxis(data, 0, -1), impl=impl)
    drawn = jax.vmap(draw, out_axes=-1)(keys.reshape(-1))
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:-1], *keys.shape), drawn)
