"""Random numbers in the shape that a CPU draws fastest."""

import math
from collections.abc import Callable

import jax

LANES = 8  # a short innermost axis that is no multiple of it makes the generator several times slower, to compile and to run


def flat(draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``draw(key, shape)`` of ``jax.random``, such as ``jax.random.uniform``: the same numbers, drawn as one long row."""
    size = math.prod(shape)
    return draw(key, (-(-size // LANES) * LANES,))[:size].reshape(shape)
