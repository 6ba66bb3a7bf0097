"""Contacts of drones with one another, with obstacles and walls, and downwash.

Vectors are ``[3, N, …]``: components, drones, any trailing axes (see ``marljax.utils.batching``); obstacles are M upright
cylinders ``[M, …]``. Pairs are resolved in one simultaneous pass: two drones bounce if each is the nearest of those that the
other has just touched. Random draws belong to drones, so permuting drones changes nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.fields import param
from marljax.envs.swarm.quadrotor import LARGE, Body, Room, dot, norm, to_body, unit
from marljax.utils.random import flat

TRIES = 3  # draws per collision, of which the first that separates the two drones is taken


class Obstacles(struct.PyTreeNode):
    """Cylinders from the floor to the ceiling; an empty slot has radius 0."""

    x: jax.Array  # [M] m
    y: jax.Array  # [M]
    radius: jax.Array  # [M]


class Bounces(struct.PyTreeNode):
    """Velocities and spins after contacts."""

    apart: Any = param(0.8, low=0.0, high=LARGE, unit="m/s", help="standard deviation of the opposite velocities of a pair")
    own: Any = param(0.15, low=0.0, high=LARGE, unit="m/s", help="standard deviation of each drone's additional velocity")
    off_obstacle: Any = param(0.1118, low=0.0, high=LARGE, unit="m/s", help="standard deviation after an obstacle")
    low: Any = param(0.2, low=0.0, high=LARGE, help="share of the speed that is kept, uniform: lower bound")
    high: Any = param(0.8, help="upper bound")
    spin_low: Any = param(31.41593, unit="rad/s", help="spin added to each of a pair, uniform: lower bound")
    spin_high: Any = param(62.83185, unit="rad/s", help="upper bound")
    obstacle_spin_low: Any = param(1.570796, unit="rad/s", help="spin added by an obstacle, uniform: lower bound")
    obstacle_spin_high: Any = param(3.141593, unit="rad/s", help="upper bound")
    slowest: Any = param(0.1, low=0.0, high=LARGE, unit="m/s", help="lower bound of the speed after a wall")
    fastest: Any = param(6.0, unit="m/s", help="upper bound")


class Draws(NamedTuple):
    """Random numbers of a control step; a drone with several contacts at once reuses its own."""

    opposite: jax.Array  # [TRIES, 3, N] normal: opposite velocities of a pair
    own: jax.Array  # [TRIES, 3, N] normal: additional velocity, also after obstacles and walls
    axis: jax.Array  # [3, N] normal, of the spin
    kept: jax.Array  # [N] uniform: share of the speed
    spin: jax.Array  # [N] uniform


def draw(drones: int, key: jax.Array) -> Draws:
    """The draws of one instance."""
    key_normal, key_uniform = jax.random.split(key)
    normal = flat(jax.random.normal, key_normal, (2 * TRIES + 1, 3, drones))
    return Draws(normal[:TRIES], normal[TRIES:-1], normal[-1], *flat(jax.random.uniform, key_uniform, (2, drones)))


def distances(position: jax.Array) -> jax.Array:
    """[N, N] m between drones, infinite on the diagonal."""
    offset = position[:, :, None] - position[:, None]
    index = jnp.arange(position.shape[1])
    own = (index[:, None] == index).reshape(*(position.shape[1],) * 2, *[1] * (position.ndim - 2))
    return jnp.where(own, jnp.inf, norm(offset))


def partners(new: jax.Array, distance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[N] index of the nearest drone in a ``new`` contact [N, N] with each, and whether that is mutual."""
    chosen = jnp.argmin(jnp.where(new, distance, jnp.inf), axis=1)
    index = jnp.arange(len(chosen)).reshape(-1, *[1] * (chosen.ndim - 1))
    picks = chosen[:, None] == index[None]
    mutual = jnp.any(picks & jnp.swapaxes(picks, 0, 1), axis=1) & jnp.any(new, axis=1)
    return chosen, mutual


def bounce(body: Body, chosen: jax.Array, meets: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Pairs exchange their velocities along the line between them, and are separated and spun at random."""

    def of_partner(part: jax.Array) -> jax.Array:
        """[…, N] values of each drone's partner."""
        lead = part.ndim - chosen.ndim
        return jnp.take_along_axis(part, chosen.reshape(*[1] * lead, *chosen.shape), axis=lead, mode="promise_in_bounds")

    position, velocity = of_partner(body.position), of_partner(body.velocity)
    normal = unit(body.position - position)
    exchange = dot(velocity - body.velocity, normal) * normal
    opposite = (draws.opposite - of_partner(draws.opposite)) * (bounces.apart / jnp.sqrt(2.0))
    mine = body.velocity + exchange + opposite + bounces.own * draws.own
    theirs = velocity - exchange - opposite + bounces.own * of_partner(draws.own)
    separates = dot(jnp.swapaxes(mine - theirs, 0, 1), normal[:, None]) > 0  # [TRIES, N]
    after = mine[TRIES - 1]
    for attempt in reversed(range(TRIES - 1)):
        after = jnp.where(separates[attempt], mine[attempt], after)
    fastest = jnp.maximum(norm(body.velocity), norm(velocity))
    after = after * _uniform(draws.kept, bounces.low, bounces.high)
    after = after * jnp.minimum(1.0, fastest / jnp.maximum(norm(after), 1e-9))
    shared = (draws.spin + of_partner(draws.spin)) % 1.0  # uniform, and the same for both
    axis = unit(draws.axis - of_partner(draws.axis))
    spin = body.spin + axis * _uniform(shared, bounces.spin_low, bounces.spin_high)
    return body.replace(velocity=jnp.where(meets, after, body.velocity), spin=jnp.where(meets, spin, body.spin))


def off_obstacle(body: Body, normal: jax.Array, crashed: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Drones that have ``crashed`` [N] into a cylinder fly off along its ``normal`` [3, N]."""
    speed = norm(body.velocity)
    after = (speed * normal + bounces.off_obstacle * draws.own[0]) * _uniform(draws.kept, bounces.low, bounces.high)
    spun = unit(draws.own[1]) * _uniform(draws.spin, bounces.obstacle_spin_low, bounces.obstacle_spin_high)
    return body.replace(velocity=jnp.where(crashed, after, body.velocity), spin=jnp.where(crashed, body.spin + spun, body.spin))


def off_wall(body: Body, hits: tuple[jax.Array, ...], draws: Draws, bounces: Bounces) -> Body:
    """Drones that hit a wall along x, along y, or the ceiling go back inside and down, in a random direction."""
    inwards = [
        jnp.where(hits[axis], -jnp.sign(body.position[axis]) * jnp.abs(draws.own[2, axis]), draws.own[2, axis]) for axis in (0, 1)
    ]
    direction = unit(jnp.stack([*inwards, -0.5 - 0.5 * draws.spin]))
    speed = norm(body.velocity) * _uniform(draws.kept, bounces.low, bounces.high)
    after = direction * jnp.clip(speed, bounces.slowest, bounces.fastest)
    return body.replace(velocity=jnp.where(hits[0] | hits[1] | hits[2], after, body.velocity))


class Downwash(struct.PyTreeNode):
    """Effect per control step on drones below others; d is the distance in m."""

    reach: Any = param(0.7, unit="m", help="height of the downwash")
    width: Any = param(0.1, unit="m", help="radius of the downwash")
    push: Any = param(0.01 * 6 / 17, unit="m/s", help="per (7 - 10 d)")
    push_noise: Any = param(0.001, low=0.0, high=LARGE, unit="m/s", help="either way")
    twist: Any = param(0.003, unit="rad/s", help="per (1 - d)²")
    twist_noise: Any = param(0.0001, low=0.0, high=LARGE, unit="rad/s", help="either way")


def in_downwash(body: Body, distance: jax.Array, downwash: Downwash) -> jax.Array:
    """[N, N] bool: the second drone is in the downwash of the first; ``distance`` [N, N] m."""
    x, y, z = to_body(body.rotation[:, :, :, None], body.position[:, None] - body.position[:, :, None])
    near = jnp.sqrt(x**2 + y**2) < downwash.width
    return (z < 0) & (z > -downwash.reach) & near & (distance < jnp.inf)


def blow(body: Body, below: jax.Array, distance: jax.Array, draws: Draws, downwash: Downwash) -> Body:
    """Drones ``below`` others are pushed along the others' thrust axes and twisted about a random one."""
    push = downwash.push * (7.0 - 10.0 * distance) + downwash.push_noise * (2.0 * draws.kept - 1.0)
    twist = downwash.twist * (distance - 1.0) ** 2 + downwash.twist_noise * (2.0 * draws.spin - 1.0)
    push, twist = (jnp.where(below, jnp.maximum(part, 0.0), 0.0) for part in (push, twist))
    down = jnp.sum(-body.rotation[:, 2][:, :, None] * push, axis=1)
    return body.replace(velocity=body.velocity + down, spin=body.spin + unit(draws.axis) * jnp.sum(twist, axis=0))


class Contacts(NamedTuple):
    """Contacts of a step."""

    new: jax.Array  # [N, N] bool: pairs that have just touched
    distance: jax.Array  # [N, N] m between drones
    crashed: jax.Array  # [N] bool: has just touched an obstacle
    normal: jax.Array  # [3, N] of that obstacle
    below: jax.Array  # [N, N] bool: the second is in the downwash of the first


def respond(body: Body, met: Contacts, draw: Callable[[], Draws], room: Room, bounces: Bounces, downwash: Downwash) -> Body:
    """Bodies after contacts with drones, obstacles, downwash and walls; ``draw`` is called if there are any."""
    x, y, z = body.position
    hits = jnp.abs(x) >= room.half, jnp.abs(y) >= room.half, z >= room.height

    def apply(body: Body) -> Body:
        draws = draw()
        body = bounce(body, *partners(met.new, met.distance), draws, bounces)
        body = off_obstacle(body, met.normal, met.crashed, draws, bounces)
        body = blow(body, met.below, met.distance, draws, downwash)
        return off_wall(body, hits, draws, bounces)

    # This sees a whole batch (see ``marljax.utils.batching``): a step without any contact in the batch costs nothing.
    anything = jnp.any(met.new | met.below) | jnp.any(met.crashed | hits[0] | hits[1] | hits[2])
    return jax.lax.cond(anything, apply, lambda body: body, body)


def nearest_obstacle(position: jax.Array, obstacles: Obstacles) -> tuple[jax.Array, jax.Array]:
    """[N] m to the surface of the nearest cylinder, and [3, N] its normal there."""
    x, y = position[0][:, None] - obstacles.x, position[1][:, None] - obstacles.y
    distance = jnp.sqrt(x * x + y * y)
    gap = jnp.where(obstacles.radius > 0, distance - obstacles.radius, jnp.inf)
    nearest = jnp.min(gap, axis=1)
    first = (jnp.cumsum(gap == nearest[:, None], axis=1) == 1) & (gap == nearest[:, None])
    away = [jnp.sum(jnp.where(first, part / jnp.maximum(distance, 1e-9), 0.0), axis=1) for part in (x, y)]
    return nearest, jnp.stack([*away, jnp.zeros_like(nearest)])


def _uniform(draws: jax.Array, low: Any, high: Any) -> jax.Array:
    return low + (high - low) * draws
