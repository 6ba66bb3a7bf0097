"""What the drones of ``swarm`` do to one another, and what obstacles and walls do to them.

Vectors are ``[3, N, …]``: components, drones, any trailing axes (see ``utils.batching``); obstacles are M upright cylinders
``[M, …]``. Pairs of drones are met in one simultaneous pass: each new contact is between two drones that are nearest to each
other among those that each has just come to touch. Draws belong to drones, so that drones that change places change nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.swarm.quadrotor import Body, Room, dot, norm, to_drone, unit
from marljax.utils.random import flat

TRIES = 3  # draws of a bounce, of which the first that parts the two is taken


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
    """Random numbers of a control step, all of a drone's own; one that meets several things at once uses them for each."""

    opposite: jax.Array  # [TRIES, 3, N] normal: what two drones get in opposite directions
    own: jax.Array  # [TRIES, 3, N] normal: what each drone gets besides, and what it gets off an obstacle and a wall
    axis: jax.Array  # [3, N] normal, of the spin
    kept: jax.Array  # [N] uniform: share of the speed
    spin: jax.Array  # [N] uniform


def draw(drones: int, key: jax.Array) -> Draws:
    """For one instance."""
    key_normal, key_uniform = jax.random.split(key)
    normal = flat(jax.random.normal, key_normal, (2 * TRIES + 1, 3, drones))
    return Draws(normal[:TRIES], normal[TRIES:-1], normal[-1], *flat(jax.random.uniform, key_uniform, (2, drones)))


def distances(position: jax.Array) -> jax.Array:
    """[N, N] m between drones, infinite from each to itself."""
    apart = position[:, :, None] - position[:, None]
    number = jnp.arange(position.shape[1])
    own = (number[:, None] == number).reshape(*(position.shape[1],) * 2, *[1] * (position.ndim - 2))
    return jnp.where(own, jnp.inf, norm(apart))


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
    lead = part.ndim - chosen.ndim
    return jnp.take_along_axis(part, chosen.reshape(*[1] * lead, *chosen.shape), axis=lead, mode="promise_in_bounds")


def bounce(body: Body, chosen: jax.Array, meets: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Two drones swap what of their velocities lies along the line between them, and are thrown apart and spun at random."""
    place, velocity = (of_partner(chosen, part) for part in (body.position, body.velocity))
    normal = unit(body.position - place)
    exchange = dot(velocity - body.velocity, normal) * normal
    opposite = (draws.opposite - of_partner(chosen, draws.opposite)) * (bounces.apart / jnp.sqrt(2.0))
    mine = body.velocity + exchange + opposite + bounces.own * draws.own
    theirs = velocity - exchange - opposite + bounces.own * of_partner(chosen, draws.own)
    parts = dot(jnp.swapaxes(mine - theirs, 0, 1), normal[:, None]) > 0  # [TRIES, N]
    after = mine[TRIES - 1]
    for attempt in reversed(range(TRIES - 1)):
        after = jnp.where(parts[attempt], mine[attempt], after)
    fastest = jnp.maximum(norm(body.velocity), norm(velocity))
    after = _capped(after * _between(draws.kept, bounces.low, bounces.high), fastest)
    together = (draws.spin + of_partner(chosen, draws.spin)) % 1.0  # uniform, and the same for both
    axis = unit(draws.axis - of_partner(chosen, draws.axis))
    spin = body.spin + axis * _between(together, bounces.spin_low, bounces.spin_high)
    return body.replace(velocity=jnp.where(meets, after, body.velocity), spin=jnp.where(meets, spin, body.spin))


def off_obstacle(body: Body, normal: jax.Array, meets: jax.Array, draws: Draws, bounces: Bounces) -> Body:
    """Whoever has just hit a cylinder flies off along its ``normal`` [3, N]."""
    speed = norm(body.velocity)
    after = (speed * normal + bounces.off_obstacle * draws.own[0]) * _between(draws.kept, bounces.low, bounces.high)
    spun = unit(draws.own[1]) * _between(draws.spin, bounces.obstacle_spin_low, bounces.obstacle_spin_high)
    return body.replace(velocity=jnp.where(meets, after, body.velocity), spin=jnp.where(meets, body.spin + spun, body.spin))


def off_wall(body: Body, hits: tuple[jax.Array, ...], draws: Draws, bounces: Bounces) -> Body:
    """Whoever ``hits`` a wall along x, along y, or the ceiling, goes back inside and down, in a random direction."""
    x, y, _ = body.position

    def inwards(hit: jax.Array, place: jax.Array, way: jax.Array) -> jax.Array:
        return jnp.where(hit, -jnp.sign(place) * jnp.abs(way), way)

    along, aside = inwards(hits[0], x, draws.own[2, 0]), inwards(hits[1], y, draws.own[2, 1])
    direction = unit(jnp.stack([along, aside, -0.5 - 0.5 * draws.spin]))
    speed = norm(body.velocity) * _between(draws.kept, bounces.low, bounces.high)
    after = direction * jnp.clip(speed, bounces.slowest, bounces.fastest)
    return body.replace(velocity=jnp.where(hits[0] | hits[1] | hits[2], after, body.velocity))


class Downwash(struct.PyTreeNode):
    """The air that a drone throws down, on others, per control step; d is the distance in m."""

    reach: Any = 0.7  # m below it
    width: Any = 0.1  # m from its axis
    push: Any = 0.01 * 6 / 17  # m/s per (7 - 10 d)
    push_noise: Any = 0.001  # either way
    twist: Any = 0.003  # rad/s per (1 - d)²
    twist_noise: Any = 0.0001


def in_downwash(body: Body, apart: jax.Array, downwash: Downwash) -> jax.Array:
    """[N, N] bool: whether the second flies close below the first, as the first sees it; ``apart`` [N, N] m."""
    seen = to_drone(body.rotation[:, :, :, None], body.position[:, None] - body.position[:, :, None])
    near = jnp.sqrt(seen[0] ** 2 + seen[1] ** 2) < downwash.width
    return (seen[2] < 0) & (seen[2] > -downwash.reach) & near & (apart < jnp.inf)


def blow(body: Body, below: jax.Array, apart: jax.Array, draws: Draws, downwash: Downwash) -> Body:
    """Whoever is ``below`` others is pushed along their axes of thrust and twisted about a random one."""
    push = downwash.push * (7.0 - 10.0 * apart) + downwash.push_noise * (2.0 * draws.kept - 1.0)
    twist = downwash.twist * (apart - 1.0) ** 2 + downwash.twist_noise * (2.0 * draws.spin - 1.0)
    push, twist = (jnp.where(below, jnp.maximum(part, 0.0), 0.0) for part in (push, twist))
    down = jnp.sum(-body.rotation[:, 2][:, :, None] * push, axis=1)
    return body.replace(velocity=body.velocity + down, spin=body.spin + unit(draws.axis) * jnp.sum(twist, axis=0))


class Met(NamedTuple):
    """What drones have come to touch in a step."""

    new: jax.Array  # [N, N] bool pairs that have begun to touch
    apart: jax.Array  # [N, N] m between drones
    crashed: jax.Array  # [N] bool: into an obstacle
    normal: jax.Array  # [3, N] of that obstacle
    below: jax.Array  # [N, N] bool: the second is in the downwash of the first


def respond(body: Body, met: Met, draw: Callable[[], Draws], room: Room, bounces: Bounces, downwash: Downwash) -> Body:
    """Bodies after drones, obstacles, the air below others and walls; ``draw`` is called if any of it happens."""
    x, y, z = body.position
    hits = jnp.abs(x) >= room.half, jnp.abs(y) >= room.half, z >= room.height

    def all_of_it(body: Body) -> Body:
        draws = draw()
        body = bounce(body, *partners(met.new, met.apart), draws, bounces)
        body = off_obstacle(body, met.normal, met.crashed, draws, bounces)
        body = blow(body, met.below, met.apart, draws, downwash)
        return off_wall(body, hits, draws, bounces)

    # This sees a whole batch (see ``marljax.utils.batching``): a step in which nothing happens to any drone of it costs nothing.
    anything = jnp.any(met.new | met.below) | jnp.any(met.crashed | hits[0] | hits[1] | hits[2])
    return jax.lax.cond(anything, all_of_it, lambda body: body, body)


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
    speed = norm(velocity)
    return velocity * jnp.minimum(1.0, most / jnp.maximum(speed, 1e-9))
