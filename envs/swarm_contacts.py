"""What the drones of ``swarm`` do to one another, and what obstacles and walls do to them.

Vectors are ``[3, N, …]``: components, drones, any trailing axes (see ``marljax.batch``); obstacles are M upright cylinders
``[M, …]``. Pairs of drones are met in one simultaneous pass: each new contact is between two drones that are nearest to each
other among those that each has just come to touch. Draws belong to drones, so that drones that change places change nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.swarm_body import Body, Room

TRIES = 3  # draws of a bounce, of which the first that parts the two is taken
NORMALS, UNIFORMS = 3 * (2 * TRIES + 4), 5  # of a drone and control step


class Contacts(struct.PyTreeNode):
    """Who touches what."""

    drones: jax.Array  # [N, N] bool
    obstacle: jax.Array  # [N] bool
    wall: jax.Array  # [N] bool, or the ceiling


class Obstacles(struct.PyTreeNode):
    """Cylinders from the floor to the ceiling; a slot without one has radius 0."""

    x: jax.Array  # [M] m
    y: jax.Array  # [M]
    radius: jax.Array  # [M]


class Bounces(struct.PyTreeNode):
    """How contacts end: speeds in m/s, spins in rad/s."""

    apart: Any = 0.8  # standard deviation of what two drones get in opposite directions
    own: Any = 0.15  # and of what each gets besides
    off_obstacle: Any = 0.1118  # of what is added after an obstacle
    low: Any = 0.2  # share of the speed that is kept, uniform
    high: Any = 0.8
    spin_low: Any = 31.41593  # of two drones, uniform
    spin_high: Any = 62.83185
    obstacle_spin_low: Any = 1.570796
    obstacle_spin_high: Any = 3.141593
    slowest: Any = 0.1  # after a wall
    fastest: Any = 6.0


class Draws(NamedTuple):
    """Random numbers of a control step, all of a drone's own."""

    apart: jax.Array  # [TRIES, 3, N] normal
    own: jax.Array  # [TRIES, 3, N] normal
    axis: jax.Array  # [3, N] normal
    other: jax.Array  # [3, 3, N] normal: velocity and axis after an obstacle, direction off a wall
    kept: jax.Array  # [N] uniform
    spin: jax.Array  # [N] uniform
    obstacle_kept: jax.Array  # [N] uniform
    obstacle_spin: jax.Array  # [N] uniform
    dive: jax.Array  # [N] uniform


def distances(position: jax.Array) -> jax.Array:
    """[N, N] m between drones, infinite from each to itself."""
    apart = position[:, :, None] - position[:, None]
    number = jnp.arange(position.shape[1])
    own = (number[:, None] == number).reshape(*(position.shape[1],) * 2, *[1] * (position.ndim - 2))
    return jnp.where(own, jnp.inf, jnp.sqrt(jnp.sum(apart**2, axis=0)))


def partners(fresh: jax.Array, apart: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[N] the nearest drone that each has just come to touch, and whether that is mutual."""
    near = jnp.where(fresh, apart, jnp.inf)
    chosen = jnp.argmin(near, axis=1)
    number = jnp.arange(len(chosen)).reshape(-1, *[1] * (chosen.ndim - 1))
    picks = chosen[:, None] == number[None]
    mutual = jnp.any(picks & jnp.swapaxes(picks, 0, 1), axis=1) & jnp.any(fresh, axis=1)
    return chosen, mutual


def of_partner(chosen: jax.Array, part: jax.Array) -> jax.Array:
    """[…, N] what each drone's partner has of ``part`` […, N], whose drones stand where they do in ``chosen`` [N, …]."""
    number = jnp.arange(len(chosen)).reshape(-1, *[1] * (chosen.ndim - 1))
    lead = part.ndim - chosen.ndim
    picks = (chosen[:, None] == number[None]).astype(part.dtype)
    return jnp.sum(picks * jnp.expand_dims(part, lead), axis=lead + 1)


def bounce(body: Body, chosen: jax.Array, meets: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Two drones swap what of their velocities lies along the line between them, and are thrown apart and spun at random."""
    place, velocity = (of_partner(chosen, part) for part in (body.position, body.velocity))
    normal = _unit(body.position - place)
    exchange = jnp.sum((velocity - body.velocity) * normal, axis=0) * normal
    opposite = (draws.apart - of_partner(chosen, draws.apart)) * (bounces.apart / jnp.sqrt(2.0))
    mine = body.velocity + exchange + opposite + bounces.own * draws.own
    theirs = velocity - exchange - opposite + bounces.own * of_partner(chosen, draws.own)
    parts = jnp.sum((mine - theirs) * normal, axis=1) > 0  # [TRIES, N]
    after = mine[TRIES - 1]
    for attempt in reversed(range(TRIES - 1)):
        after = jnp.where(parts[attempt], mine[attempt], after)
    fastest = jnp.sqrt(jnp.maximum(jnp.sum(body.velocity**2, axis=0), jnp.sum(velocity**2, axis=0)))
    after = _capped(after * _between(draws.kept, bounces.low, bounces.high), fastest)
    together = (draws.spin + of_partner(chosen, draws.spin)) % 1.0  # uniform, and the same for both
    axis = _unit(draws.axis - of_partner(chosen, draws.axis))
    spin = body.spin + axis * _between(together, bounces.spin_low, bounces.spin_high)
    return body.replace(velocity=jnp.where(meets, after, body.velocity), spin=jnp.where(meets, spin, body.spin))


def off_obstacle(body: Body, normal: jax.Array, meets: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Whoever has just hit a cylinder flies off along its ``normal`` [3, N]."""
    speed = jnp.sqrt(jnp.sum(body.velocity**2, axis=0))
    after = (speed * normal + bounces.off_obstacle * draws.other[0]) * _between(draws.obstacle_kept, bounces.low, bounces.high)
    spun = _unit(draws.other[1]) * _between(draws.obstacle_spin, bounces.obstacle_spin_low, bounces.obstacle_spin_high)
    return body.replace(velocity=jnp.where(meets, after, body.velocity), spin=jnp.where(meets, body.spin + spun, body.spin))


def off_wall(body: Body, room: Room, draws: Draws, bounces: Bounces) -> tuple[Body, jax.Array]:
    """Whoever has reached a wall or the ceiling goes back inside and down, in a random direction; and who has, [N] bool."""
    x, y, z = body.position
    hits = jnp.abs(x) >= room.half, jnp.abs(y) >= room.half, z >= room.height

    def inwards(hit: jax.Array, place: jax.Array, way: jax.Array) -> jax.Array:
        return jnp.where(hit, -jnp.sign(place) * jnp.abs(way), way)

    along, aside = inwards(hits[0], x, draws.other[2, 0]), inwards(hits[1], y, draws.other[2, 1])
    direction = _unit(jnp.stack([along, aside, -0.5 - 0.5 * draws.dive]))
    speed = jnp.sqrt(jnp.sum(body.velocity**2, axis=0)) * _between(draws.kept, bounces.low, bounces.high)
    meets = hits[0] | hits[1] | hits[2]
    after = direction * jnp.clip(speed, bounces.slowest, bounces.fastest)
    return body.replace(velocity=jnp.where(meets, after, body.velocity)), meets


class Downwash(struct.PyTreeNode):
    """The air that a drone throws down, on others, per control step; d is the distance in m."""

    reach: Any = 0.7  # m below it
    width: Any = 0.1  # m from its axis
    push: Any = 0.01 * 6 / 17  # m/s per (7 - 10 d)
    push_noise: Any = 0.001  # either way
    twist: Any = 0.003  # rad/s per (1 - d)²
    twist_noise: Any = 0.0001


def blow(body: Body, draws: Draws, downwash: Downwash) -> Body:
    """Whoever flies close below others is pushed along their axes of thrust and twisted about a random one."""
    apart = body.position[:, None] - body.position[:, :, None]  # [3, N, N] from the upper to the lower
    seen = jnp.einsum("bai...,bij...->aij...", body.rotation, apart)
    across, distance = jnp.sqrt(seen[0] ** 2 + seen[1] ** 2), jnp.sqrt(jnp.sum(seen**2, axis=0))
    below = (seen[2] < 0) & (seen[2] > -downwash.reach) & (across < downwash.width)
    push = downwash.push * (7.0 - 10.0 * distance) + downwash.push_noise * (2.0 * draws.kept - 1.0)
    twist = downwash.twist * (distance - 1.0) ** 2 + downwash.twist_noise * (2.0 * draws.spin - 1.0)
    push, twist = (jnp.where(below, jnp.maximum(part, 0.0), 0.0) for part in (push, twist))
    down = jnp.sum(-body.rotation[:, 2][:, :, None] * push, axis=1)
    return body.replace(velocity=body.velocity + down, spin=body.spin + _unit(draws.axis) * jnp.sum(twist, axis=0))


def nearest_obstacle(position: jax.Array, obstacles: Obstacles) -> tuple[jax.Array, jax.Array]:
    """[N] m from the surface of the nearest cylinder, and [3, N] its normal there."""
    x, y = position[0][:, None] - obstacles.x, position[1][:, None] - obstacles.y
    flat = jnp.sqrt(x * x + y * y)
    gap = jnp.where(obstacles.radius > 0, flat - obstacles.radius, jnp.inf)
    nearest = jnp.min(gap, axis=1)
    first = jnp.cumsum(gap == nearest[:, None], axis=1) == 1
    is_it = first & (gap == nearest[:, None])
    away = [jnp.sum(jnp.where(is_it, part / jnp.maximum(flat, 1e-9), 0.0), axis=1) for part in (x, y)]
    return nearest, jnp.stack([*away, jnp.zeros_like(nearest)])


def _between(draws: jax.Array, low: Any, high: Any) -> jax.Array:
    return low + (high - low) * draws


def _capped(velocity: jax.Array, most: jax.Array) -> jax.Array:
    speed = jnp.sqrt(jnp.sum(velocity**2, axis=0))
    return velocity * jnp.minimum(1.0, most / jnp.maximum(speed, 1e-9))


def _unit(vector: jax.Array) -> jax.Array:
    return vector / jnp.maximum(jnp.sqrt(jnp.sum(vector**2, axis=0)), 1e-9)
