"""The device mesh ("seed", "data") and the collectives over its data axis.

Every training program runs inside a mesh, (1, 1) on a laptop: the runs of a batch of seeds are spread over "seed", the
environments of a run over "data". Learners are replicated over data, actors are sharded.
"""

from typing import Any

import jax

SEED, DATA = "seed", "data"


def mean(tree: Any) -> Any:
    """Mean over the data axis.

    Over a single shard nothing is communicated, here and below: a run on its own device has the bits of a single run, and runs do
    not wait for each other.
    """
    return tree if data_size() == 1 else jax.lax.pmean(tree, DATA)


def total(tree: Any) -> Any:
    """Sum over the data axis."""
    return tree if data_size() == 1 else jax.lax.psum(tree, DATA)


def largest(tree: Any) -> Any:
    """Maximum over the data axis."""
    return tree if data_size() == 1 else jax.lax.pmax(tree, DATA)


def gather(x: jax.Array, axis: int) -> jax.Array:
    """The parts of all shards, concatenated along ``axis``."""
    return x if data_size() == 1 else jax.lax.all_gather(x, DATA, axis=axis, tiled=True)


def data_size() -> int:
    """Number of shards along the data axis."""
    return jax.lax.axis_size(DATA)


def fold_data(key: jax.Array) -> jax.Array:
    """A key of this shard, for environments and actions (never for initialisation, which must agree everywhere)."""
    return jax.random.fold_in(key, jax.lax.axis_index(DATA))


def masked_mean(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Sum of ``x`` where ``mask`` over the *average* count per shard, so that ``mean`` of it is the exact global masked mean."""
    count = mean(mask.astype(x.dtype).sum(axis))
    return (x * mask).sum(axis) / jax.numpy.maximum(count, 1e-8)
