"""Point masses of ``swarm``: double integrators in two or three dimensions that repel one another where they overlap.

The contact force is that of CAMAR (Pshenitsyn et al. 2025), a softplus of the overlap. Vectors are ``[3, N, …]`` as in
``quadrotor``; in two dimensions the third component stays 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.fields import param
from marljax.envs.swarm.contacts import Obstacles, distances
from marljax.envs.swarm.quadrotor import LARGE, LONGEST_STEP, Room

SUBSTEPS = 5  # per control step


class Point(struct.PyTreeNode):
    """State of the masses."""

    position: jax.Array  # [3, N] m
    velocity: jax.Array  # [3, N] m/s


class PointMass(struct.PyTreeNode):
    """Parameters of a point mass of 1 kg."""

    push: Any = param(5.0, above=0.0, high=LARGE, unit="m/s²", help="acceleration of a full action along an axis")
    damping: Any = param(1.0, low=0.0, high=LARGE, unit="1/s", help="of the velocity")
    arm: Any = param(0.1, above=0.0, high=LARGE, unit="m", help="radius")
    stiffness: Any = param(500.0, low=0.0, high=LARGE, unit="N/m", help="of contacts, per overlap")
    margin: Any = param(0.001, above=0.0, high=LARGE, unit="m", help="width of the smooth onset of a contact")
    timestep: Any = param(0.01, above=0.0, high=LONGEST_STEP, unit="s", help="a fifth of a control step")

    @property
    def period(self) -> Any:
        """Control step in s."""
        return SUBSTEPS * self.timestep


def step(point: Point, action: jax.Array, obstacles: Obstacles | None, mass: PointMass, room: Room) -> Point:
    """Advances the masses by one control step of five substeps, velocities first.

    Args:
        point: state of the masses.
        action: [D, N] forces from −1 to 1.
        obstacles: repel the masses, too.
        mass: their parameters.
        room: bounds of the positions; a wall takes the velocity against it.
    """
    push = mass.push * action
    push = jnp.concatenate([push, jnp.zeros_like(push[:1])]) if len(action) == 2 else push
    low = jnp.stack([-room.half, -room.half, jnp.zeros_like(room.half)])[:, None]
    high = jnp.stack([room.half, room.half, room.height])[:, None]
    for _ in range(SUBSTEPS):
        force = push + contact_force(point.position, obstacles, mass)
        velocity = point.velocity + mass.timestep * (force - mass.damping * point.velocity)
        position = point.position + mass.timestep * velocity
        held = jnp.clip(position, low, high)
        point = Point(held, jnp.where(held == position, velocity, 0.0))
    return point


def contact_force(position: jax.Array, obstacles: Obstacles | None, mass: PointMass) -> jax.Array:
    """[3, N] N/kg from other masses and from obstacles."""

    def overlap(depth: jax.Array) -> jax.Array:
        return mass.margin * jnp.logaddexp(depth / mass.margin, 0.0)

    distance = distances(position)
    away = position[:, :, None] - position[:, None]  # [3, N, N] from the second to the first
    pair = overlap(2.0 * mass.arm - distance) / jnp.maximum(distance, 1e-6)
    force = jnp.sum(mass.stiffness * pair * away, axis=2)
    if obstacles is None:
        return force
    x, y = position[0][:, None] - obstacles.x, position[1][:, None] - obstacles.y
    gap = jnp.sqrt(x * x + y * y)
    push = jnp.where(obstacles.radius > 0, overlap(obstacles.radius + mass.arm - gap), 0.0) / jnp.maximum(gap, 1e-6)
    fx, fy = (jnp.sum(mass.stiffness * push * part, axis=1) for part in (x, y))
    return force + jnp.stack([fx, fy, jnp.zeros_like(fx)])
