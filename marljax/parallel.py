"""The device mesh ("seed", "data") and the collectives over its data axis.

Every training program runs inside a mesh, (1, 1) on a laptop: members of a batch of seeds lie along "seed", the environments of
one run along "data". Learners are replicated over data, actors are sharded.
"""

import math
from typing import Any

import jax

from marljax.config import divide
from marljax.errors import UserError

SEED, DATA = "seed", "data"


def make_mesh(seed: int = 1, data: int = 1) -> jax.sharding.Mesh:
    """A mesh of ``seed × data`` devices."""
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh((seed, data), (SEED, DATA), axis_types=(auto, auto), devices=jax.devices()[: seed * data])


def layout(devices: int | None, seed: int | None, data: int | None, members: int) -> tuple[int, int]:
    """How so many devices are spread over the members of a batch and, what is left, over the environments of each.

    Args:
        devices: how many; None for those that ``seed`` and ``data`` say.
        seed: devices along the axis of members; None for as many as divide them.
        data: along the axis of environments; None for the rest.
        members: S.
    """
    if devices is None:
        seed, data = seed or 1, data or 1
    elif seed is None:
        seed = divide(devices, data, "devices", "parts of mesh.data") if data else math.gcd(devices, members)
    if data is None:
        data = divide(devices or seed, seed, "devices", "parts of mesh.seed")
    if devices is not None and seed * data != devices:
        raise UserError(f"mesh.seed={seed} × mesh.data={data} are not devices={devices}; leave one of the three out")
    divide(members, seed, "members" if members > 1 else "member", "parts of mesh.seed")
    return seed, data


def mean(tree: Any) -> Any:
    """Mean over the data axis.

    Over a single shard nothing is communicated, here and below: a member on a device of its own has the bits of a single run, and
    members do not wait for each other.
    """
    return tree if data_size() == 1 else jax.lax.pmean(tree, DATA)


def total(tree: Any) -> Any:
    """Sum over the data axis."""
    return tree if data_size() == 1 else jax.lax.psum(tree, DATA)


def largest(tree: Any) -> Any:
    """Maximum over the data axis."""
    return tree if data_size() == 1 else jax.lax.pmax(tree, DATA)


def gather(x: jax.Array, axis: int) -> jax.Array:
    """The parts of all shards side by side along ``axis``."""
    return x if data_size() == 1 else jax.lax.all_gather(x, DATA, axis=axis, tiled=True)


def data_size() -> int:
    """Number of shards along the data axis."""
    return jax.lax.axis_size(DATA)


def fold_data(key: jax.Array) -> jax.Array:
    """A key of this shard's own, for environments and actions (never for initialisation, which must agree everywhere)."""
    return jax.random.fold_in(key, jax.lax.axis_index(DATA))


def masked_mean(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Sum of ``x`` where ``mask`` over the *average* count per shard, so that ``mean`` of it is the exact global masked mean."""
    count = mean(mask.astype(x.dtype).sum(axis))
    return (x * mask).sum(axis) / jax.numpy.maximum(count, 1e-8)
