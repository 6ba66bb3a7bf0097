"""Letting a hot function see the axis of ``jax.vmap`` last instead of first.

On a CPU the innermost axis fills the vector units. Six units of a battle leave most of them idle, a thousand environments do not.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
        leaves, treedef = jax.tree.flatten(list(args))
        moved = jax.tree.unflatten(treedef, _all_to_last(leaves, jax.tree.leaves(list(in_batched))))
        results = call(*moved)
        results = jax.tree.map(functools.partial(_to_first, axis_size), results)
        return results, jax.tree.map(lambda _: True, results)

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return call(*jax.tree.map(jnp.asarray, args))

    return wrapped


def _all_to_last(leaves: list[jax.Array], batched: list[bool]) -> list[jax.Array]:
    """The leaves with the mapped axis last, of size 1 where one is not mapped."""
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    moved = [jnp.moveaxis(x, 0, -1) if mapped else x[..., None] for x, mapped in zip(leaves, batched, strict=True)]
    # XLA fuses a plain transposition into the loops that read it, which then read with a stride; a product it does not. One for
    # all is faster to compile than one each.
    rows = [i for i, x in enumerate(leaves) if batched[i] and x.ndim == 2 and x.dtype == jnp.float32]
    if rows:
        wide = jnp.concatenate([leaves[i] for i in rows], axis=1)
        turned = jnp.matmul(jnp.eye(wide.shape[1]), wide.T, precision=jax.lax.Precision.HIGHEST)
        ends = np.cumsum([leaves[i].shape[1] for i in rows])[:-1]
        for i, part in zip(rows, jnp.split(turned, ends), strict=True):
            moved[i] = part
    return moved


def _to_first(axis_size: int, leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(jnp.broadcast_to(leaf, (*leaf.shape[:-1], axis_size)), -1, 0)
