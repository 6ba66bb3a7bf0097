"""Random numbers in the shape that a CPU draws fastest."""

import math
from collections.abc import Callable

import jax

LANES = 8  # a short innermost axis that is no multiple of it makes the generator several times slower, to compile and to run


def row(draw: Callable[..., jax.Array], key: jax.Array, size: int) -> jax.Array:
    """At least ``size`` numbers of ``draw(key, shape)`` in one row; the first are those of ``draw(key, (size,))``."""
    return draw(key, (-(-size // LANES) * LANES,))


def flat(draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``draw(key, shape)`` of ``jax.random``, such as ``jax.random.uniform``: the same numbers, drawn as one long row."""
    size = math.prod(shape)
    return row(draw, key, size)[:size].reshape(shape)
