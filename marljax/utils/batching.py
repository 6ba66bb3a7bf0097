"""Moving the axis of ``jax.vmap`` last instead of first for a hot function.

On a CPU the innermost axis fills the vector units. Six units of a battle leave most of them idle, a thousand environments do not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.layout import Layout, with_layout_constraint

Function = Callable[..., Any]
Tree = TypeVar("Tree")
# On accelerators: loops with more iterations are unrolled in part, and more terms are reduced instead of added one by one.
MAX_UNROLLED, MAX_ELEMENTWISE = 16, 8


def batch_last(function: Function) -> Function:
    """``function`` with every ``jax.vmap`` around it turned into a trailing axis.

    ``function`` takes and returns pytrees of arrays and is written for ``[N, …]`` with any number of trailing axes: every
    argument has as many of them as there are vmaps around the call, and results need them too. Where the first arguments are
    mapped and the last (params that all instances share) are not, the axis of the latter has size 1; in all other cases every
    leaf has it whole, mapped or not, so that leaves of one argument always agree. Under nested vmaps the innermost axis (the
    instances of a batch) comes last, outer ones (seeds) before. Without vmap it is ``function`` itself.

    Reductions and indices count axes from the left; random numbers are drawn outside. Inputs have to be finite, because they pass
    through a product with zeros.
    """

    @functools.cache
    def under(vmaps: int) -> Function:
        @custom_vmap
        def call(*args: Any) -> Any:
            return function(*args)

        @call.def_vmap
        def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
            size = 1 if _params_last(in_batched) else axis_size
            moved = jax.tree.map(functools.partial(_move_batch_last, vmaps, size), list(args), list(in_batched))
            results = jax.tree.map(functools.partial(_move_batch_first, vmaps, axis_size), under(vmaps + 1)(*moved))
            return results, jax.tree.map(lambda _: True, results)

        return call

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return under(0)(*jax.tree.map(jnp.asarray, args))

    return wrapped


def loop(count: int, body: Callable[[Any, Tree], Tree], start: Tree, unroll: int = 1) -> Tree:
    """``jax.lax.fori_loop(0, count, body, start)`` for a small ``count``: unrolled, except on a CPU.

    An iteration of a loop is a kernel or more on an accelerator, where starting a kernel takes longer than what it does here;
    unrolled, it is fused with the others. A CPU runs the loop as fast, ``unroll`` iterations at a time, and compiles it faster.
    """

    def on_cpu(start: Tree) -> Tree:
        return jax.lax.fori_loop(0, count, body, start, unroll=unroll)

    def elsewhere(start: Tree) -> Tree:
        return jax.lax.fori_loop(0, count, body, start, unroll=True if count <= MAX_UNROLLED else MAX_UNROLLED)

    return jax.lax.platform_dependent(start, cpu=on_cpu, default=elsewhere)


def fold(combine: Callable[[Any, Any], Any], term: Callable[..., Any], others: Sequence[Any], init: Any, unroll: int = 1) -> Any:
    """``combine`` of ``init`` and ``term(*other)`` for every row of ``others``: a sum over the other side of all pairs, say.

    A ``loop``, except that accelerators reduce more than a few rows at once, without storing the terms.

    Args:
        combine: elementwise, associative and commutative.
        term: elementwise in the rows.
        others: arrays [K, …].
        init: a number for each result, with which ``combine`` changes nothing.
        unroll: iterations of the loop at a time, on a CPU.
    """
    others = [jnp.asarray(other) for other in others]
    shapes = jax.eval_shape(term, *(other[0] for other in others))
    start = jax.tree.map(lambda shape, value: jnp.full(shape.shape, value, shape.dtype), shapes, init)

    def reduce(others: list[jax.Array]) -> Any:
        inits = jax.tree.map(lambda shape, value: jnp.asarray(value, shape.dtype), shapes, init)
        return jax.lax.reduce(jax.vmap(term)(*others), inits, combine, (0,))

    def iterate(others: list[jax.Array]) -> Any:
        return loop(count, lambda row, result: combine(result, term(*(other[row] for other in others))), start, unroll)

    count = others[0].shape[0]
    if count <= MAX_ELEMENTWISE:
        return iterate(others)
    return jax.lax.platform_dependent(others, cpu=iterate, default=reduce)


def cond_any(predicate: jax.Array, then: Function, otherwise: Function, *operands: Any) -> Any:
    """``jax.lax.cond`` that remains one under ``jax.vmap``: if any predicate of a batch holds, ``then`` is computed for all and
    selected where it holds; otherwise it is not computed.

    ``then`` and ``otherwise`` depend on the operands only, and return trees of equal shapes.
    """

    @custom_vmap
    def alone(predicate: jax.Array, *operands: Any) -> Any:
        return jax.lax.cond(predicate, then, otherwise, *operands)

    @alone.def_vmap
    def _(axis_size: int, in_batched: list, predicate: jax.Array, *operands: Any) -> tuple[Any, Any]:
        axes = tuple(jax.tree.map(lambda batched: 0 if batched else None, given) for given in in_batched[1:])
        predicates = jnp.broadcast_to(predicate, (axis_size,))

        def selected(*operands: Any) -> Any:
            def one(predicate: jax.Array, *operands: Any) -> Any:
                return select(predicate, then(*operands), otherwise(*operands))

            return jax.vmap(one, in_axes=(0, *axes), axis_size=axis_size)(predicates, *operands)

        result = jax.lax.cond(jnp.any(predicates), selected, jax.vmap(otherwise, in_axes=axes, axis_size=axis_size), *operands)
        return result, jax.tree.map(lambda _: True, result)

    return alone(predicate, *operands)


def expand_trailing_dims(values: np.ndarray, like: jax.Array) -> np.ndarray:
    """Static values with as many trailing axes of size 1 as ``like`` [N, …] has after its first."""
    return values.reshape(*values.shape, *[1] * (like.ndim - 1))


def select(condition: jax.Array, new: Tree, old: Tree) -> Tree:
    """``new`` where ``condition`` holds, else ``old``; trees of arrays [N, …], the condition broadcasts to them."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), new, old)


def row_major_on_gpu(x: jax.Array) -> jax.Array:
    """``x``, on a GPU laid out in memory as the inputs of programs are; XLA chooses a layout for what it computes in a loop."""

    def pinned(x: jax.Array) -> jax.Array:
        return with_layout_constraint(x, Layout(tuple(range(x.ndim))))

    return jax.lax.platform_dependent(x, cuda=pinned, default=lambda x: x)


def first_axis_minor(x: jax.Array) -> jax.Array:
    """``x`` [E, …] with its first axis last in memory. Only for what a loop carries: a result of a program has to be laid out as
    usual, or JAX 0.10 misreads it when it becomes an input again."""
    return with_layout_constraint(x, Layout((*range(1, x.ndim), 0)))


def add_trees(one: Tree, other: Tree) -> Tree:
    """The sum of two trees, leaf by leaf."""
    return jax.tree.map(jnp.add, one, other)


def _params_last(in_batched: Sequence[Any]) -> bool:
    """Whether every argument is mapped as a whole or not at all, mapped ones first."""
    arguments = [leaves for leaves in map(jax.tree.leaves, in_batched) if leaves]
    mapped = [all(leaves) for leaves in arguments]
    return mapped == [any(leaves) for leaves in arguments] and mapped == sorted(mapped, reverse=True)


def _move_batch_last(vmaps: int, size: int, leaf: jax.Array, batched: bool) -> jax.Array:
    """The mapped axis before the ``vmaps`` last ones; where the leaf is not mapped, one of that size."""
    if batched and not vmaps and leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.lax.platform_dependent(leaf, cpu=_transpose_by_product, default=jnp.transpose)
    return jnp.moveaxis(leaf if batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), 0, -1 - vmaps)


def _transpose_by_product(leaf: jax.Array) -> jax.Array:
    """A transposition that XLA does not fuse into the loops that read it, which on a CPU would then read with a stride."""
    return jnp.matmul(jnp.eye(leaf.shape[1], dtype=leaf.dtype), leaf.T, precision=jax.lax.Precision.HIGHEST)


def _move_batch_first(vmaps: int, axis_size: int, leaf: jax.Array) -> jax.Array:
    moved = jnp.moveaxis(leaf, -1 - vmaps, 0)
    return jnp.broadcast_to(moved, (axis_size, *moved.shape[1:]))
