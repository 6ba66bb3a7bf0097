"""Point masses of ``swarm``: double integrators in two or three dimensions that push one another away where they overlap.

The contact force is that of CAMAR (Pshenitsyn et al. 2025), a softplus of the overlap. Vectors are ``[3, N, …]`` as in
``swarm_body``; in two dimensions the third component stays 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.swarm.contacts import Obstacles, distances
from marljax.envs.swarm.quadrotor import Room

SUBSTEPS = 5  # of a control step


class Point(struct.PyTreeNode):
    """Where the masses are and how they move."""

    position: jax.Array  # [3, N] m
    velocity: jax.Array  # [3, N] m/s


class PointMass(struct.PyTreeNode):
    """A point mass's numbers, per kg of it."""

    push: Any = 5.0  # m/s² of a full action along an axis
    damping: Any = 1.0  # 1/s of the velocity that is lost
    arm: Any = 0.1  # m, radius
    stiffness: Any = 500.0  # N/m of overlap
    margin: Any = 0.001  # m over which a contact begins
    timestep: Any = 0.01  # s

    @property
    def period(self) -> Any:
        """s of a control step."""
        return SUBSTEPS * self.timestep


def glide(point: Point, action: jax.Array, obstacles: Obstacles | None, mass: PointMass, room: Room) -> Point:
    """A control step of five sub-steps, velocities first.

    Args:
        point: where they are.
        action: [D, N] forces from −1 to 1.
        obstacles: that push them off, too.
        mass: its numbers.
        room: that they stay in; a wall takes the velocity against it.
    """
    flat = len(action) == 2
    push = mass.push * action
    push = jnp.concatenate([push, jnp.zeros_like(push[:1])]) if flat else push
    low = jnp.stack([-room.half, -room.half, jnp.zeros_like(room.half)])[:, None]
    high = jnp.stack([room.half, room.half, room.height])[:, None]
    for _ in range(SUBSTEPS):
        force = push + contact_force(point.position, obstacles, mass)
        velocity = point.velocity + mass.timestep * (force - mass.damping * point.velocity)
        place = point.position + mass.timestep * velocity
        held = jnp.clip(place, low, high)
        point = Point(held, jnp.where(held == place, velocity, 0.0))
    return point


def contact_force(position: jax.Array, obstacles: Obstacles | None, mass: PointMass) -> jax.Array:
    """[3, N] N/kg from other masses and from obstacles."""
    apart = distances(position)
    away = position[:, :, None] - position[:, None]  # [3, N, N] from the second to the first
    pair = _overlap(2.0 * mass.arm - apart, mass) / jnp.maximum(apart, 1e-6)
    force = jnp.sum(mass.stiffness * pair * away, axis=2)
    if obstacles is None:
        return force
    x, y = position[0][:, None] - obstacles.x, position[1][:, None] - obstacles.y
    gap = jnp.sqrt(x * x + y * y)
    push = jnp.where(obstacles.radius > 0, _overlap(obstacles.radius + mass.arm - gap, mass), 0.0) / jnp.maximum(gap, 1e-6)
    along, aside = (jnp.sum(mass.stiffness * push * part, axis=1) for part in (x, y))
    return force + jnp.stack([along, aside, jnp.zeros_like(along)])


def _overlap(depth: jax.Array, mass: PointMass) -> jax.Array:
    """m: ``depth`` where it is positive, 0 where it is negative, and smooth in between."""
    return mass.margin * jnp.logaddexp(depth / mass.margin, 0.0)
