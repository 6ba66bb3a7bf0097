"""Letting a hot function see the axis of ``jax.vmap`` last instead of first.

On a CPU the innermost axis fills the vector units. Six units of a battle leave most of them idle, a thousand environments do not.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

Function = Callable[..., Any]


def batch_last(function: Function) -> Function:
    """``function`` with every ``jax.vmap`` around it turned into a trailing axis.

    ``function`` takes and returns pytrees of arrays and is written for ``[N, …]`` with any number of trailing axes: every
    argument has as many of them as there are vmaps around the call, of size 1 where the argument is not mapped. What it returns
    has to have them too. Under nested vmaps the axis of the innermost, the instances of a batch, comes last, whatever goes around
    it (seeds) before. Without vmap it is ``function`` itself.

    Reductions and indices count axes from the left; anything that draws random numbers stays outside. Numbers have to be finite,
    because they pass through a product with zeros.
    """

    @functools.cache
    def under(vmaps: int) -> Function:
        @custom_vmap
        def call(*args: Any) -> Any:
            return function(*args)

        @call.def_vmap
        def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
            moved = jax.tree.map(functools.partial(_inwards, vmaps), list(args), list(in_batched))
            results = jax.tree.map(functools.partial(_outwards, vmaps, axis_size), under(vmaps + 1)(*moved))
            return results, jax.tree.map(lambda _: True, results)

        return call

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return under(0)(*jax.tree.map(jnp.asarray, args))

    return wrapped


def _inwards(vmaps: int, leaf: jax.Array, batched: bool) -> jax.Array:
    """The mapped axis before the ``vmaps`` last ones, of size 1 where the leaf is not mapped."""
    if batched and not vmaps and leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating):
        # XLA fuses a plain transposition into the loops that read it, which then read with a stride; a product it does not
        return jnp.matmul(jnp.eye(leaf.shape[1], dtype=leaf.dtype), leaf.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(leaf, 0, -1 - vmaps) if batched else jnp.expand_dims(leaf, -1 - vmaps)


def _outwards(vmaps: int, axis_size: int, leaf: jax.Array) -> jax.Array:
    moved = jnp.moveaxis(leaf, -1 - vmaps, 0)
    return jnp.broadcast_to(moved, (axis_size, *moved.shape[1:]))
