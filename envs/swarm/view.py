"""What the drones of ``swarm`` see. Vectors are ``[D, N, …]`` as in ``swarm_body``."""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.swarm.contacts import Obstacles
from marljax.envs.swarm.quadrotor import dot, norm
from marljax.utils.batching import expand_trailing_dims

OWN, FIELD = 19, 9  # numbers of a quadrotor's own part, and of the distance field
FARTHEST, FASTEST = 10.0, 6.0  # m and m/s, of what is seen of a neighbour
SPACING = 0.1  # m between the points of the distance field


def neighbours(place: jax.Array, velocity: jax.Array, most: int) -> jax.Array:
    """[2 D most, N] relative places and velocities of the other drones with the least rank, that first.

    The rank of a neighbour at distance d is d + r̂ · v, r̂ the direction to it and v its relative velocity: the sooner it comes
    closest, the less.
    """
    apart, faster = place[:, None] - place[:, :, None], velocity[:, None] - velocity[:, :, None]
    distance = norm(apart)
    rank = distance + dot(apart, faster) / jnp.maximum(distance, 1e-6)
    rank = jnp.where(expand_trailing_dims(np.eye(place.shape[1], dtype=bool), place[0]), jnp.inf, rank)
    seen = jnp.concatenate([jnp.clip(apart, -FARTHEST, FARTHEST), jnp.clip(faster, -FASTEST, FASTEST)])
    return _first(seen, rank, most)


def landmarks(place: jax.Array, marks: jax.Array, most: int) -> jax.Array:
    """[(D + 1) most, N] relative places of the landmarks [D, L] nearest to a drone, and how far each is from the nearest other
    drone, the nearest landmark first."""
    apart = marks[:, None] - place[:, :, None]  # [D, N, L]
    distance = norm(apart)
    own = expand_trailing_dims(np.eye(place.shape[1], dtype=bool), place[0])[:, :, None]
    others = jnp.min(jnp.where(own, jnp.inf, distance[None]), axis=1) if place.shape[1] > 1 else jnp.full_like(distance, FARTHEST)
    return _first(jnp.concatenate([apart, jnp.minimum(others, FARTHEST)[None]]), distance, most)


def _first(seen: jax.Array, rank: jax.Array, most: int) -> jax.Array:
    """[F most, N] of ``seen`` [F, N, M] those of least ``rank`` [N, M], that first."""
    number, chosen = np.arange(rank.shape[1]), []
    for _ in range(most):
        is_best = jnp.argmin(rank, axis=1)[:, None] == expand_trailing_dims(number[None], rank[0])
        chosen.append(jnp.sum(jnp.where(is_best, seen, 0.0), axis=2))
        rank = jnp.where(is_best, jnp.inf, rank)
    return jnp.concatenate(chosen)


def field(place: jax.Array, obstacles: Obstacles) -> jax.Array:
    """[9, N] m to the nearest obstacle, from a drone's place and those 0.1 m around it, x first."""
    steps = (-SPACING, 0.0, SPACING)
    gaps = []
    for along in steps:
        for aside in steps:
            x, y = place[0][:, None] + along - obstacles.x, place[1][:, None] + aside - obstacles.y
            gap = jnp.sqrt(x * x + y * y) - obstacles.radius
            gaps.append(jnp.min(jnp.where(obstacles.radius > 0, gap, FARTHEST), axis=1))
    return jnp.stack(gaps)
