"""The priority-based safety supervisor of ``merge``, and the intents that its forecasts provide.

The supervisor is that of MARL_CAVs (Chen et al., 2023, section "Priority-Based Safety Supervisor"), which MAPPO-PIS (2024)
uses as its safety enhancement module. It predicts a few decisions ahead, with the action of every connected autonomous vehicle
("CAV") and the current controls of every human driver held constant, and replaces an action that leads to a collision by the one
with the most room. CAVs are treated in order of priority, so later ones take earlier replacements into account.

Axis letters: A CAVs (the first slots), V vehicles, T sub-steps, n actions.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marljax.envs.merge import reward as rewards
from marljax.envs.merge import road, traffic
from marljax.envs.merge.actions import LEFT, NUM_ACTIONS, RIGHT, command
from marljax.envs.merge.params import NUM_CAVS, MergeParams
from marljax.envs.merge.spawn import is_human
from marljax.envs.merge.traffic import Physics, Pose, Vehicles
from marljax.utils.batching import batch_last
from marljax.utils.random import flat, ranks

ROOM_OFF_RAMP = 100.0  # m, replaces the distance to the end of the merging lane on other lanes
TIE_NOISE = 1e-3


class Forecast(NamedTuple):
    """Predicted poses and segments, arrays of one shape; the first four fields are a ``traffic.Pose``."""

    x: jax.Array
    y: jax.Array
    cos: jax.Array  # of the heading
    sin: jax.Array
    lane: jax.Array


class Prediction(NamedTuple):
    """The forecasts for one decision."""

    cavs: Forecast  # [T, A, n], each CAV under each of its actions
    humans: Forecast  # [T, V - A]


class HeldControls(NamedTuple):
    """Controls that stay constant during a forecast; ``steered`` vehicles use their own controllers instead."""

    steered: jax.Array  # bool
    tangent: jax.Array  # of the steering angle
    acceleration: jax.Array  # m/s²


def roll_out(vehicles: Vehicles, held: HeldControls, physics: Physics, length: int) -> Forecast:
    """[length, …] forecast of vehicles that do not react to each other; ``vehicles`` and ``held`` have the same shape, any."""

    def body(moving: Vehicles, _: None) -> tuple[Vehicles, Forecast]:
        moving = moving.replace(target_lane=road.follow(moving.x, moving.target_lane))
        tangent = jnp.where(held.steered, traffic.tan_steering(moving, physics), held.tangent)
        moving = traffic.move(moving, tangent, jnp.where(held.steered, traffic.cruise(moving), held.acceleration))
        return moving, Forecast(moving.x, moving.y, jnp.cos(moving.heading), jnp.sin(moving.heading), moving.lane)

    return jax.lax.scan(body, vehicles, length=length)[1]


def intents(vehicles: Vehicles, physics: Physics, horizon: int) -> tuple[jax.Array, jax.Array]:
    """x and y of the CAVs after 1 … ``horizon`` decisions if they keep their target lane and speed, [horizon, A] each."""
    cavs = jax.tree.map(lambda leaf: leaf[:NUM_CAVS], vehicles)
    held = HeldControls(jnp.ones(cavs.x.shape, bool), jnp.zeros_like(cavs.x), jnp.zeros_like(cavs.x))
    forecast = roll_out(cavs, held, physics, traffic.SUBSTEPS * horizon)
    decisions = slice(traffic.SUBSTEPS - 1, None, traffic.SUBSTEPS)
    return forecast.x[decisions], forecast.y[decisions]


def priority(vehicles: Vehicles, ties: jax.Array, env_params: MergeParams) -> jax.Array:
    """[A] priorities, lowest first: the merging lane, in order of distance to its end, before the others; then time headway.

    −0.5 − (100 − distance to the end)/100 on the merging lane only, + 0.5 ln(h/(1.2 v)) everywhere. ``ties`` [A] in [0, 1)
    break ties.
    """
    x, speed, lane = (leaf[:NUM_CAVS] for leaf in (vehicles.x, vehicles.speed, vehicles.lane))
    front = jnp.minimum(rewards.neighbours(vehicles, lane).front, rewards.HEADWAY_CAP)
    headway = jnp.log(rewards.headway_ratio(front, speed, env_params.headway_time))
    ending = -0.5 - (ROOM_OFF_RAMP - (road.OBSTACLE_X - x)) / ROOM_OFF_RAMP
    return jnp.where(lane == road.BC1, ending, 0.0) + 0.5 * headway + TIE_NOISE * ties


def safety_room(own: Forecast, others: Forecast, present: jax.Array, changes_lane: jax.Array) -> jax.Array:
    """[n] m: the minimum room over the forecast for each action.

    The distance to the end of the merging lane, or 100 elsewhere. A lane change limits it to |Δx| of the nearest front and rear
    vehicles in the own and the adjacent lane, any other action to the headway in the own lane.

    Args:
        own: [n, T], the CAV under each action.
        others: [T, K].
        present: [K] bool, which of the others to consider.
        changes_lane: [n] bool.
    """
    adjacent = rewards.adjacent_lane(own.lane, own.x)[:, :, None]
    dx = others.x - own.x[:, :, None]
    lane, ahead, behind = own.lane[:, :, None], (dx > 0) & present, (dx <= 0) & present
    front = ahead & rewards.in_front(lane, others.lane)
    around = front | (behind & rewards.in_rear(lane, others.lane))
    around = around | (ahead & rewards.in_front(adjacent, others.lane)) | (behind & rewards.in_rear(adjacent, others.lane))
    relevant = jnp.where(changes_lane[:, None, None], around, front)
    nearest = jnp.min(jnp.where(relevant, jnp.abs(dx), road.FAR_AWAY), axis=(1, 2))
    nearest = jnp.where(changes_lane, nearest, jnp.minimum(nearest, rewards.HEADWAY_CAP))
    ending = jnp.where(own.lane == road.BC1, road.OBSTACLE_X - own.x, ROOM_OFF_RAMP)
    return jnp.minimum(jnp.min(ending, axis=1), nearest)


def collision_ahead(own: Forecast, others: Forecast, present: jax.Array, physics: Physics) -> jax.Array:
    """[n] bool: the action leads to a collision with another vehicle or the obstacle; arguments as for ``safety_room``."""
    ego = Pose(*(leaf[:, :, None] for leaf in own[:4]))
    hits = traffic.overlap(ego, Pose(*others[:4]), physics) & present
    blocked = traffic.overlap(Pose(*own[:4]), traffic.OBSTACLE, physics, traffic.OBSTACLE_SIZE)
    return jnp.any(hits, axis=(1, 2)) | jnp.any(blocked, axis=1)


def look_ahead(noise: jax.Array, vehicles: Vehicles, physics: Physics, env_params: MergeParams, horizon: int) -> Prediction:
    """All CAVs under all actions and all human drivers, in one rollout of ``horizon`` decisions.

    ``noise`` [2, V - A] in [0, 1) perturbs the human drivers' steering and acceleration.
    """
    drivers, human = traffic.drivers_of(env_params.drivers, vehicles.driver), is_human(env_params, vehicles.x)
    cavs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:NUM_CAVS, None], (NUM_CAVS, NUM_ACTIONS)), vehicles)
    cavs = command(cavs, jnp.broadcast_to(jnp.arange(NUM_ACTIONS), (NUM_CAVS, NUM_ACTIONS)), env_params)
    _, tangent, acceleration = batch_last(functools.partial(traffic.controls, physics=physics))(vehicles, drivers, human)
    error = 1 + env_params.forecast_noise * (2 * noise - 1)
    tangent = jnp.tan(jnp.arctan(tangent[NUM_CAVS:]) * error[0])
    count = NUM_CAVS * NUM_ACTIONS

    def join(cavs: jax.Array, humans: jax.Array) -> jax.Array:
        return jnp.concatenate([cavs.reshape(count), humans])

    everyone = jax.tree.map(lambda cav, leaf: join(cav, leaf[NUM_CAVS:]), cavs, vehicles)
    zeros = jnp.zeros_like(cavs.x)
    held = HeldControls(
        steered=jnp.arange(everyone.x.shape[0]) < count,
        tangent=join(zeros, tangent),
        acceleration=join(zeros, acceleration[NUM_CAVS:] * error[1]),
    )
    forecast = roll_out(everyone, held, physics, traffic.SUBSTEPS * horizon)
    split = (leaf[:, :count].reshape(-1, NUM_CAVS, NUM_ACTIONS) for leaf in forecast)
    return Prediction(Forecast(*split), Forecast(*(leaf[:, count:] for leaf in forecast)))


def supervise(
    key: jax.Array,
    vehicles: Vehicles,
    action: jax.Array,
    mask: jax.Array,
    physics: Physics,
    env_params: MergeParams,
    horizon: int,
) -> jax.Array:
    """[A] int, the CAVs' actions with dangerous ones replaced, from ``action`` ([A] int), available by ``mask`` ([A, n] bool).

    ``horizon`` is the number of decisions to predict.
    """
    draws = flat(jax.random.uniform, key, (NUM_CAVS + 2 * (vehicles.x.shape[0] - NUM_CAVS),))
    ties, noise = draws[:NUM_CAVS], draws[NUM_CAVS:].reshape(2, -1)
    prediction = look_ahead(noise, vehicles, physics, env_params, horizon)
    return resolve(priority(vehicles, ties, env_params), prediction, action, mask, vehicles.alive, physics, env_params)


def resolve(
    order: jax.Array,
    prediction: Prediction,
    action: jax.Array,
    mask: jax.Array,
    alive: jax.Array,
    physics: Physics,
    env_params: MergeParams,
) -> jax.Array:
    """[A] int: one CAV at a time, lowest ``order`` [A] first, keeps an action without a collision ahead, else takes the
    available one with the most room.

    The forecasts are sorted once, so that each CAV's own is the next element of the scan.
    """
    slots = jnp.arange(NUM_CAVS)
    turn = ranks(order)
    agent = jnp.sum(jnp.where(turn[None, :] == slots[:, None], slots[None, :], 0), axis=1)
    options = Forecast(*(jnp.moveaxis(leaf, 0, 2)[agent] for leaf in prediction.cavs))  # [A, n, T]
    action, mask, present = action[agent], mask[agent], alive[:NUM_CAVS][agent]
    changes_lane = (jnp.arange(NUM_ACTIONS) == LEFT) | (jnp.arange(NUM_ACTIONS) == RIGHT)
    courses = Forecast(*(jnp.take_along_axis(leaf, action[:, None, None], axis=1)[:, 0] for leaf in options))  # [A, T]

    def treat(courses: Forecast, x: Any) -> tuple[Forecast, jax.Array]:
        index, own, planned, available = x
        pairs = zip(courses, prediction.humans, strict=True)
        others = Forecast(*(jnp.concatenate([cavs.T, humans], axis=1) for cavs, humans in pairs))
        considered = jnp.concatenate([present & (slots != index), alive[NUM_CAVS:]])
        collides = collision_ahead(own, others, considered, physics)
        room = safety_room(own, others, considered, changes_lane) - env_params.collision_room * collides
        roomiest = jnp.argmax(jnp.where(available, room, -jnp.inf)).astype(planned.dtype)
        decided = jnp.where(collides[planned] & present[index], roomiest, planned)
        pairs = zip((leaf[decided] for leaf in own), courses, strict=True)
        return Forecast(*(jnp.where((slots == index)[:, None], new, old) for new, old in pairs)), decided

    decided = jax.lax.scan(treat, courses, (slots, options, action, mask))[1]
    return decided[turn]
