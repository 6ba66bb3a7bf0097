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
    has to have them too. Under nested vmaps the outermost axis comes last. Without vmap it is ``function`` itself.

    Reductions and indices count axes from the left; anything that draws random numbers stays outside. Numbers have to be finite.
    """

    @custom_vmap
    def call(*args: Any) -> Any:
        return function(*args)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        moved = jax.tree.map(_to_last, list(args), list(in_batched))
        results = call(*moved)
        results = jax.tree.map(functools.partial(_to_first, axis_size), results)
        return results, jax.tree.map(lambda _: True, results)

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return call(*jax.tree.map(jnp.asarray, args))

    return wrapped


def _to_last(leaf: jax.Array, batched: bool) -> jax.Array:
    if batched and leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating):
        # XLA fuses a plain transposition into the loops that read it, which then read with a stride; a product it does not
        return jnp.matmul(jnp.eye(leaf.shape[1], dtype=leaf.dtype), leaf.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(leaf, 0, -1) if batched else jnp.asarray(leaf)[..., None]


def _to_first(axis_size: int, leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(jnp.broadcast_to(leaf, (*leaf.shape[:-1], axis_size)), -1, 0)
