"""The priority-based safety supervisor of ``merge``, and the intents that its forecasts provide.

The supervisor is that of MARL_CAVs (Chen et al., 2023, section "Priority-Based Safety Supervisor"), which MAPPO-PIS (2024)
uses as its safety enhancement module. It looks a few decisions ahead, with every connected autonomous vehicle ("CAV") held to
its decision and every human driver to the present controls, and replaces a decision that leads to a collision by the one with
most room. CAVs are treated in order of priority, so that those treated later see what was decided for those before.

Axis letters: A CAVs (the first slots), V vehicles, T sub-steps, n actions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marljax.envs.merge import reward as rewards
from marljax.envs.merge import road, traffic
from marljax.envs.merge.actions import LEFT, NUM_ACTIONS, RIGHT, command
from marljax.envs.merge.params import NUM_CAVS, MergeParams
from marljax.envs.merge.spawn import ranks
from marljax.envs.merge.traffic import DriverTable, Physics, Vehicles
from marljax.utils.random import flat

ROOM_OFF_RAMP = 100.0  # m, "distance to the end of the merging lane" for vehicles that are not on it
TIE_NOISE = 1e-3


class Forecast(NamedTuple):
    """Where vehicles will be, arrays of one shape."""

    x: jax.Array
    y: jax.Array
    cos: jax.Array  # of the heading
    sin: jax.Array
    lane: jax.Array

    def boxes(self, physics: Physics) -> traffic.Boxes:
        """As they would collide."""
        return traffic.box(self.x, self.y, self.cos, self.sin, physics)


class Held(NamedTuple):
    """Controls that stay as they are during a forecast; ``steered`` vehicles use their own controllers instead."""

    steered: jax.Array  # bool
    tangent: jax.Array  # of the steering angle
    acceleration: jax.Array  # m/s²


def roll_out(vehicles: Vehicles, held: Held, physics: Physics, count: int) -> Forecast:
    """``count`` sub-steps of vehicles that do not react to each other; ``vehicles`` and ``held`` have one shape, any.

    Returns:
        A forecast with a leading axis [count].
    """

    def body(moving: Vehicles, _: None) -> tuple[Vehicles, Forecast]:
        moving = moving.replace(target_lane=road.follow(moving.x, moving.target_lane))
        tangent = jnp.where(held.steered, traffic.tan_steering(moving, physics), held.tangent)
        moving = traffic.move(moving, tangent, jnp.where(held.steered, traffic.cruise(moving), held.acceleration))
        return moving, Forecast(moving.x, moving.y, jnp.cos(moving.heading), jnp.sin(moving.heading), moving.lane)

    return jax.lax.scan(body, vehicles, length=count)[1]


def intents(vehicles: Vehicles, physics: Physics, horizon: int) -> tuple[jax.Array, jax.Array]:
    """Where each CAV will be after 1 … ``horizon`` decisions if it keeps its target lane and speed: x and y, [horizon, A]
    each."""
    cavs = jax.tree.map(lambda leaf: leaf[:NUM_CAVS], vehicles)
    steered = Held(jnp.ones(NUM_CAVS, bool), jnp.zeros_like(cavs.x), jnp.zeros_like(cavs.x))
    forecast = roll_out(cavs, steered, physics, traffic.SUBSTEPS * horizon)
    decisions = slice(traffic.SUBSTEPS - 1, None, traffic.SUBSTEPS)
    return forecast.x[decisions], forecast.y[decisions]


def priority(vehicles: Vehicles, ties: jax.Array, env_params: MergeParams) -> jax.Array:
    """[A] lowest first: the merging lane before the others, there the nearest to its end; then the least time headway.

    On the merging lane −0.5 − (100 − distance to its end)/100 + 0.5 ln(h/(1.2 v)), elsewhere the last term; ``ties`` [A] in
    [0, 1).
    """
    x, speed, lane = (leaf[:NUM_CAVS] for leaf in (vehicles.x, vehicles.speed, vehicles.lane))
    front = jnp.minimum(rewards.neighbours(vehicles, lane, NUM_CAVS).front, rewards.HEADWAY_CAP)
    headway = jnp.log(rewards.headway_ratio(front, speed, env_params.headway_time))
    ending = -0.5 - (ROOM_OFF_RAMP - (road.OBSTACLE_X - x)) / ROOM_OFF_RAMP
    return jnp.where(lane == road.BC1, ending, 0.0) + 0.5 * headway + TIE_NOISE * ties


def safety_room(own: Forecast, others: Forecast, present: jax.Array, changes_lane: jax.Array) -> jax.Array:
    """[n] m: the least room over the forecast for each action.

    On the merging lane the distance to its end, elsewhere 100; for a lane change at most the distance |Δx| to the nearest
    vehicle in front or behind, in the own lane or beside; otherwise at most the headway in the own lane.

    Args:
        own: [n, T], the CAV under each action.
        others: [T, K].
        present: [K] bool, which of the others count.
        changes_lane: [n] bool.
    """
    beside = rewards.lane_beside(own.lane, own.x)[:, :, None]
    dx = others.x - own.x[:, :, None]
    lane, ahead, behind = own.lane[:, :, None], (dx > 0) & present, (dx <= 0) & present
    front = ahead & rewards.in_front(lane, others.lane)
    around = front | (behind & rewards.in_rear(lane, others.lane))
    around = around | (ahead & rewards.in_front(beside, others.lane)) | (behind & rewards.in_rear(beside, others.lane))
    counted = jnp.where(changes_lane[:, None, None], around, front)
    nearest = jnp.min(jnp.where(counted, jnp.abs(dx), rewards.NOBODY), axis=(1, 2))
    nearest = jnp.where(changes_lane, nearest, jnp.minimum(nearest, rewards.HEADWAY_CAP))
    ending = jnp.where(own.lane == road.BC1, road.OBSTACLE_X - own.x, ROOM_OFF_RAMP)
    return jnp.minimum(jnp.min(ending, axis=1), nearest)


def collision_ahead(own: Forecast, others: Forecast, present: jax.Array, physics: Physics) -> jax.Array:
    """[n] bool: the action leads to a collision with another vehicle or the obstacle; arguments as for ``safety_room``."""
    mine = Forecast(*(leaf[:, :, None] for leaf in own))
    hits = traffic.overlap(mine.boxes(physics), others.boxes(physics), physics) & present
    blocked = traffic.overlap(own.boxes(physics), traffic.obstacle(physics), physics)
    return jnp.any(hits, axis=(1, 2)) | jnp.any(blocked, axis=1)


class Prospect(NamedTuple):
    """The forecasts of one decision."""

    cavs: Forecast  # [T, A, n], each CAV under each of its actions
    humans: Forecast  # [T, V - A]


def look_ahead(
    noise: jax.Array,
    vehicles: Vehicles,
    drivers: DriverTable,
    human: jax.Array,
    physics: Physics,
    env_params: MergeParams,
    horizon: int,
) -> Prospect:
    """All CAVs under all actions and all human drivers, in one rollout.

    Args:
        noise: [2, V - A] in [0, 1), for the steering and the acceleration of the human drivers.
        vehicles: [V].
        drivers: [V].
        human: [V] bool.
        physics: the rules.
        env_params: the numbers.
        horizon: decisions to look ahead.
    """
    cavs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:NUM_CAVS, None], (NUM_CAVS, NUM_ACTIONS)), vehicles)
    cavs = command(cavs, jnp.broadcast_to(jnp.arange(NUM_ACTIONS), (NUM_CAVS, NUM_ACTIONS)), env_params)
    _, tangent, acceleration = traffic.controls(vehicles, drivers, human, physics)
    error = 1 + env_params.forecast_noise * (2 * noise - 1)
    tangent = jnp.tan(jnp.arctan(tangent[NUM_CAVS:]) * error[0])
    count = NUM_CAVS * NUM_ACTIONS

    def both(cav: jax.Array, others: jax.Array) -> jax.Array:
        return jnp.concatenate([cav.reshape(count), others])

    everyone = jax.tree.map(lambda cav, leaf: both(cav, leaf[NUM_CAVS:]), cavs, vehicles)
    zeros = jnp.zeros_like(cavs.x)
    held = Held(
        steered=jnp.arange(everyone.x.shape[0]) < count,
        tangent=both(zeros, tangent),
        acceleration=both(zeros, acceleration[NUM_CAVS:] * error[1]),
    )
    forecast = roll_out(everyone, held, physics, traffic.SUBSTEPS * horizon)
    split = (leaf[:, :count].reshape(-1, NUM_CAVS, NUM_ACTIONS) for leaf in forecast)
    return Prospect(Forecast(*split), Forecast(*(leaf[:, count:] for leaf in forecast)))


def supervise(
    key: jax.Array,
    vehicles: Vehicles,
    action: jax.Array,
    mask: jax.Array,
    drivers: DriverTable,
    human: jax.Array,
    physics: Physics,
    env_params: MergeParams,
    horizon: int,
) -> jax.Array:
    """The CAVs' decisions, the dangerous ones replaced.

    Args:
        key: consumed.
        vehicles: [V].
        action: [A] int, decisions; the unavailable ones have become IDLE.
        mask: [A, n] bool, available actions.
        drivers: [V].
        human: [V] bool.
        physics: the rules.
        env_params: the numbers.
        horizon: decisions to look ahead.

    Returns:
        [A] int, decisions to take.
    """
    draws = flat(jax.random.uniform, key, (NUM_CAVS + 2 * (vehicles.x.shape[0] - NUM_CAVS),))
    ties, noise = draws[:NUM_CAVS], draws[NUM_CAVS:].reshape(2, -1)
    prospect = look_ahead(noise, vehicles, drivers, human, physics, env_params, horizon)
    return resolve(priority(vehicles, ties, env_params), prospect, action, mask, vehicles.alive, physics, env_params)


def resolve(
    order: jax.Array,
    prospect: Prospect,
    action: jax.Array,
    mask: jax.Array,
    alive: jax.Array,
    physics: Physics,
    env_params: MergeParams,
) -> jax.Array:
    """One CAV after the other, lowest ``order`` [A] first: keeps a decision without a collision ahead, else takes the
    roomiest.

    The forecasts are put in the order of treatment once, so that each turn finds its own as the next element of a scan.
    """
    slots = jnp.arange(NUM_CAVS)
    turn = ranks(order)
    agent = jnp.sum(jnp.where(turn[None, :] == slots[:, None], slots[None, :], 0), axis=1)
    options = Forecast(*(jnp.moveaxis(leaf, 0, 2)[agent] for leaf in prospect.cavs))  # [A, n, T]
    action, mask, present = action[agent], mask[agent], alive[:NUM_CAVS][agent]
    changes_lane = (jnp.arange(NUM_ACTIONS) == LEFT) | (jnp.arange(NUM_ACTIONS) == RIGHT)
    course = Forecast(*(jnp.take_along_axis(leaf, action[:, None, None], axis=1)[:, 0] for leaf in options))  # [A, T]

    def treat(course: Forecast, each) -> tuple[Forecast, jax.Array]:
        number, own, planned, available = each
        others = Forecast(
            *(jnp.concatenate([cavs.T, humans], axis=1) for cavs, humans in zip(course, prospect.humans, strict=True))
        )
        counted = jnp.concatenate([present & (slots != number), alive[NUM_CAVS:]])
        collides = collision_ahead(own, others, counted, physics)
        room = safety_room(own, others, counted, changes_lane) - env_params.collision_room * collides
        roomiest = jnp.argmax(jnp.where(available, room, -jnp.inf)).astype(planned.dtype)
        decided = jnp.where(collides[planned] & present[number], roomiest, planned)
        taken = Forecast(*(leaf[decided] for leaf in own))
        course = Forecast(*(jnp.where((slots == number)[:, None], new, old) for new, old in zip(taken, course, strict=True)))
        return course, decided

    decided = jax.lax.scan(treat, course, (slots, options, action, mask))[1]
    return decided[turn]
