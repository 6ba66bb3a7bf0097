"""Observations of the drones of ``swarm``. Vectors are ``[D, N, …]`` as in ``quadrotor``."""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.swarm.contacts import Obstacles
from marljax.envs.swarm.quadrotor import dot, norm
from marljax.utils.batching import expand_trailing_dims

# Columns of a quadrotor's own part after its position and velocity, its motors', and those of the distance field.
ATTITUDE = (*(f"rotation {row}{column}" for row in "xyz" for column in "xyz"), "spin x", "spin y", "spin z", "height")
MOTORS = tuple(f"motor {place}" for place in ("front right", "back right", "back left", "front left"))
FIELD = tuple(f"{dx:+d} {dy:+d}" for dx in (-1, 0, 1) for dy in (-1, 0, 1))
FARTHEST, FASTEST = 10.0, 6.0  # m and m/s, bounds of observed differences
SPACING = 0.1  # m between the points of the distance field


def neighbours(position: jax.Array, velocity: jax.Array, count: int) -> jax.Array:
    """[2 D count, N] relative positions and velocities of the ``count`` drones of lowest rank, in order of rank.

    The rank of a neighbour at distance d is d + r̂ · v, r̂ the direction to it and v its relative velocity: the sooner it comes
    closest, the lower.
    """
    offset, relative = position[:, None] - position[:, :, None], velocity[:, None] - velocity[:, :, None]
    distance = norm(offset)
    rank = distance + dot(offset, relative) / jnp.maximum(distance, 1e-6)
    rank = jnp.where(expand_trailing_dims(np.eye(position.shape[1], dtype=bool), position[0]), jnp.inf, rank)
    features = jnp.concatenate([jnp.clip(offset, -FARTHEST, FARTHEST), jnp.clip(relative, -FASTEST, FASTEST)])
    return _lowest(features, rank, count)


def landmarks(position: jax.Array, marks: jax.Array, count: int) -> jax.Array:
    """[(D + 1) count, N] relative positions of the ``count`` landmarks [D, L] nearest to each drone, nearest first, each with its
    distance to the nearest other drone."""
    offset = marks[:, None] - position[:, :, None]  # [D, N, L]
    distance, drones = norm(offset), position.shape[1]
    own = expand_trailing_dims(np.eye(drones, dtype=bool), position[0])[:, :, None]
    others = jnp.min(jnp.where(own, jnp.inf, distance[None]), axis=1) if drones > 1 else jnp.full_like(distance, FARTHEST)
    return _lowest(jnp.concatenate([offset, jnp.minimum(others, FARTHEST)[None]]), distance, count)


def _lowest(features: jax.Array, rank: jax.Array, count: int) -> jax.Array:
    """[F count, N] of ``features`` [F, N, M] the ``count`` of lowest ``rank`` [N, M], in order of rank."""
    index, chosen = np.arange(rank.shape[1]), []
    for _ in range(count):
        is_best = jnp.argmin(rank, axis=1)[:, None] == expand_trailing_dims(index[None], rank[0])
        chosen.append(jnp.sum(jnp.where(is_best, features, 0.0), axis=2))
        rank = jnp.where(is_best, jnp.inf, rank)
    return jnp.concatenate(chosen)


def field(position: jax.Array, obstacles: Obstacles) -> jax.Array:
    """[9, N] m to the nearest obstacle from 3 × 3 points around each drone, 0.1 m apart, x-major."""
    gaps = []
    for dx in (-SPACING, 0.0, SPACING):
        for dy in (-SPACING, 0.0, SPACING):
            x, y = position[0][:, None] + dx - obstacles.x, position[1][:, None] + dy - obstacles.y
            gap = jnp.sqrt(x * x + y * y) - obstacles.radius
            gaps.append(jnp.min(jnp.where(obstacles.radius > 0, gap, FARTHEST), axis=1))
    return jnp.stack(gaps)
