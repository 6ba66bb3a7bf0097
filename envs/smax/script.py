"""The scripted team of ``smax``: shoots whom it can reach, else walks towards whom it sees, else across the map.

Axis letters: M units of the scripted team, K of its opponents; trailing axes are free.
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
    """What the scripted units remember, [M] each."""

    home_x: jax.Array  # map units, where to go without an opponent in sight
    home_y: jax.Array
    target: jax.Array  # int32 opponent shot at last, -1 for none


def remember(x: jax.Array, y: jax.Array, env_params: SmaxParams) -> Memory:
    """At the start of an episode: home is the start, turned by 180° about the centre of the map."""
    return Memory(env_params.map_width - x, env_params.map_height - y, jnp.full(x.shape, -1, jnp.int32))


def act(
    own: Units, stats: Stats, opponents: Units, memory: Memory, draws: jax.Array, shoots: bool, targets: str
) -> tuple[jax.Array, Memory]:
    """[M, …] actions int32, and what is remembered for the next decision.

    A unit keeps shooting at its last target while that one is seen and in range. It walks towards an opponent in sight,
    drawn anew each time.

    Args:
        own: [M, …] units of the scripted team.
        stats: [M, …] of them.
        opponents: [K, …] in the order in which the team counts them.
        memory: [M, …].
        draws: [2, M, …] uniform in [0, 1): whom to walk to, whom to shoot at; one row where the closest is shot at.
        shoots: False for a team that only walks.
        targets: a new target is the ``closest`` opponent in range or a ``random`` one.
    """
    x, y = opponents.x[:, None], opponents.y[:, None]
    squared = (x - own.x) ** 2 + (y - own.y) ** 2
    seen = opponents.alive[:, None] & own.alive & (squared < stats.sight**2)
    reached = seen & (squared < stats.range**2)
    number = expand_trailing_dims(np.arange(x.shape[0], dtype=np.int32), x)

    new = _closest(reached, squared) if targets == "closest" else _drawn(reached, draws[1])
    kept = jnp.any(reached & (memory.target == number), axis=0)
    target = jnp.where(kept, memory.target, jnp.max(jnp.where(new, number, -1), axis=0))
    goal, any_seen = _drawn(seen, draws[0]), jnp.any(seen, axis=0)
    goal_x, goal_y = (jnp.sum(jnp.where(goal, place, 0.0), axis=0) for place in (x, y))
    goal_x, goal_y = jnp.where(any_seen, goal_x, memory.home_x), jnp.where(any_seen, goal_y, memory.home_y)
    walk = _towards(goal_x - own.x, goal_y - own.y)
    action = jnp.where(target >= 0, FIRST_ATTACK + target, walk) if shoots else walk
    return jnp.where(own.alive, action, STOP), memory.replace(target=target)


def _closest(among: jax.Array, squared: jax.Array) -> jax.Array:
    """[K, M, …] bool: the closest of ``among``, the first of equals."""
    squared = jnp.where(among, squared, jnp.inf)
    closest = among & (squared == jnp.min(squared, axis=0))
    return closest & (_count_up_to(closest) == 1)


def _drawn(among: jax.Array, draw: jax.Array) -> jax.Array:
    """[K, M, …] bool: one of ``among``, all alike probable; ``draw`` [M, …] is uniform in [0, 1)."""
    count = jnp.sum(among, axis=0).astype(draw.dtype)
    place = jnp.minimum(jnp.floor(draw * count), count - 1)
    return among & (_count_up_to(among) == place + 1)


def _count_up_to(among: jax.Array) -> jax.Array:
    """[K, M, …] how many of ``among`` are at most that far down the first axis; a product with a triangle is the fastest way."""
    triangle = jnp.tri(among.shape[0])
    return jnp.tensordot(triangle, among.astype(triangle.dtype), axes=1)


def _towards(x: jax.Array, y: jax.Array) -> jax.Array:
    """The movement with the largest component along (x, y); the first of equals."""
    action, best = jnp.full(x.shape, UP, jnp.int32), y
    for move, along in ((RIGHT, x), (DOWN, -y), (LEFT, -x)):
        action, best = jnp.where(along > best, move, action), jnp.maximum(along, best)
    return action
