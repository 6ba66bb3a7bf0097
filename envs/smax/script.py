"""The scripted team of ``smax``: shoots at opponents in range, else walks towards one in sight, else across the map.

Axis letters: M units of the scripted team, K opponents; trailing axes are free.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.envs.smax.actions import DOWN, FIRST_ATTACK, LEFT, RIGHT, STOP, UP
from marljax.envs.smax.battle import Stats, Units
from marljax.envs.smax.units import SmaxParams
from marljax.utils.batching import expand_trailing_dims

TARGETS = ("closest", "random")


class Memory(struct.PyTreeNode):
    """Memory of the scripted units, [M] each."""

    home_x: jax.Array  # map units, destination without an opponent in sight
    home_y: jax.Array
    target: jax.Array  # int32 opponent shot at last, -1 for none


def remember(x: jax.Array, y: jax.Array, env_params: SmaxParams) -> Memory:
    """The memory at the start of an episode: home is the start, rotated by 180° about the centre of the map."""
    return Memory(env_params.map_width - x, env_params.map_height - y, jnp.full(x.shape, -1, jnp.int32))


def act(
    own: Units, stats: Stats, opponents: Units, memory: Memory, draws: jax.Array, shoots: bool, targets: str
) -> tuple[jax.Array, Memory]:
    """[M, …] actions int32, and the memory for the next decision.

    A unit keeps shooting at its last target while that one is in sight and in range. The opponent in sight to walk towards is
    drawn at every decision.

    Args:
        own: [M, …] units of the scripted team.
        stats: [M, …] of them.
        opponents: [K, …] in the order in which the team numbers them.
        memory: [M, …].
        draws: [2, M, …] uniform in [0, 1): whom to walk to, whom to shoot at; one row with ``targets="closest"``.
        shoots: False for a team that only walks.
        targets: a new target is the ``closest`` opponent in range or a ``random`` one.
    """
    x, y = opponents.x[:, None], opponents.y[:, None]
    squared = (x - own.x) ** 2 + (y - own.y) ** 2
    in_sight = opponents.alive[:, None] & own.alive & (squared < stats.sight**2)
    in_range = in_sight & (squared < stats.range**2)
    number = expand_trailing_dims(np.arange(x.shape[0], dtype=np.int32), x)

    if targets == "closest":
        distance = jnp.where(in_range, squared, jnp.inf)
        closest = in_range & (distance == jnp.min(distance, axis=0))
        new = closest & (_cumulative_count(closest) == 1)  # the first of several
    else:
        new = _sample(in_range, draws[1])
    kept = jnp.any(in_range & (memory.target == number), axis=0)
    target = jnp.where(kept, memory.target, jnp.max(jnp.where(new, number, -1), axis=0))

    goal, any_in_sight = _sample(in_sight, draws[0]), jnp.any(in_sight, axis=0)
    goal_x, goal_y = (jnp.sum(jnp.where(goal, position, 0.0), axis=0) for position in (x, y))
    dx = jnp.where(any_in_sight, goal_x, memory.home_x) - own.x
    dy = jnp.where(any_in_sight, goal_y, memory.home_y) - own.y
    action, furthest = jnp.full(dx.shape, UP, jnp.int32), dy
    for move, distance in ((RIGHT, dx), (DOWN, -dy), (LEFT, -dx)):
        action, furthest = jnp.where(distance > furthest, move, action), jnp.maximum(distance, furthest)
    if shoots:
        action = jnp.where(target >= 0, FIRST_ATTACK + target, action)
    return jnp.where(own.alive, action, STOP), memory.replace(target=target)


def _sample(mask: jax.Array, draw: jax.Array) -> jax.Array:
    """[K, M, …] bool: one entry of ``mask``, uniformly; ``draw`` [M, …] is uniform in [0, 1)."""
    count = jnp.sum(mask, axis=0).astype(draw.dtype)
    index = jnp.minimum(jnp.floor(draw * count), count - 1)
    return mask & (_cumulative_count(mask) == index + 1)


def _cumulative_count(mask: jax.Array) -> jax.Array:
    """[K, M, …] cumulative sum along the first axis; a product with a triangle is the fastest way."""
    triangle = jnp.tri(mask.shape[0])
    return jnp.tensordot(triangle, mask.astype(triangle.dtype), axes=1)
