"""What the agents of ``merge`` are rewarded for, how they share it, and what is counted over an episode.

Agents A are the connected autonomous vehicles ("CAVs"), which sit in the first A of V vehicle slots. Who is in front is
decided here by segments alone: a vehicle is in front when it is on the same segment or the next one, at greater x.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.merge import road
from marljax.envs.merge.params import MergeParams
from marljax.envs.merge.traffic import Vehicles

HEADWAY_CAP = 60.0  # m
TTC_CAP = 10.0  # s, the value of "no collision in sight"
NOBODY = 1e4  # m
NO_LANE = -1

# Segments on which the vehicle in front, or behind, is sought. The ramp's last segment ends at an obstacle: nothing follows it.
_FOLLOWING = ((road.BC0,), (road.CD,), (), (), (road.KB,), (road.BC1,))
_LEADING = ((), (road.AB,), (road.KB,), (road.BC0, road.BC1), (), (road.JK,))
_FRONT = tuple(road.segments(lane, *others) for lane, others in enumerate(_FOLLOWING))
_REAR = tuple(road.segments(lane, *others) for lane, others in enumerate(_LEADING))
_BESIDE = (road.KB, road.BC1, road.BC0, NO_LANE, NO_LANE, road.AB)  # the segment next to each


def in_front(lane: jax.Array, other: jax.Array) -> jax.Array:
    """Whether a vehicle on segment ``other`` may be the one in front on ``lane``; never on ``NO_LANE``."""
    return road.contains(road.pick(lane, _FRONT), other) & (lane != NO_LANE)


def in_rear(lane: jax.Array, other: jax.Array) -> jax.Array:
    """Whether a vehicle on segment ``other`` may be the one behind on ``lane``; never on ``NO_LANE``."""
    return road.contains(road.pick(lane, _REAR), other) & (lane != NO_LANE)


class Neighbours(NamedTuple):
    """Distances and identities of the nearest vehicles, [A] and [A, V]; an absent one is ``NOBODY`` away and nobody."""

    front: jax.Array  # [A] m
    is_front: jax.Array  # [A, V] bool, one-hot
    rear: jax.Array
    is_rear: jax.Array


def neighbours(vehicles: Vehicles, lane: jax.Array, num_agents: int) -> Neighbours:
    """The nearest vehicles in front of and behind each CAV, along ``lane`` ([A], may be ``NO_LANE``)."""
    dx = vehicles.x[None, :] - vehicles.x[:num_agents, None]
    other = vehicles.alive[None, :] & ~jnp.eye(num_agents, dx.shape[1], dtype=bool)
    ahead = other & in_front(lane[:, None], vehicles.lane[None, :]) & (dx > 0)
    behind = other & in_rear(lane[:, None], vehicles.lane[None, :]) & (dx <= 0)
    front = jnp.min(jnp.where(ahead, dx, NOBODY), axis=1)
    rear = jnp.min(jnp.where(behind, -dx, NOBODY), axis=1)
    return Neighbours(front, ahead & (dx <= front[:, None]), rear, behind & (-dx <= rear[:, None]))


def lane_beside(lane: jax.Array, x: jax.Array) -> jax.Array:
    """The segment beside a CAV, or ``NO_LANE``. The ramp counts as beside ``ab`` only from where it begins to converge."""
    beside = road.pick(lane, _BESIDE)
    return jnp.where((lane == road.AB) & (x <= road.START[road.KB]), NO_LANE, beside)


def headway_ratio(headway: jax.Array, speed: jax.Array, headway_time: jax.Array) -> jax.Array:
    """h / (t v), kept above 0."""
    return jnp.maximum(headway, 0.01) / (headway_time * jnp.maximum(speed, 0.01))


def headway_cost(headway: jax.Array, speed: jax.Array, headway_time: jax.Array) -> jax.Array:
    """min(0, ln(h / (t v))), 0 for vehicles that stand."""
    return jnp.where(speed > 0, jnp.minimum(jnp.log(headway_ratio(headway, speed, headway_time)), 0.0), 0.0)


def local_reward(vehicles: Vehicles, own: Neighbours, env_params: MergeParams) -> jax.Array:
    """[A] reward of each CAV for itself (MARL_CAVs, equation of section "Reward Function"):

    −w_c·crash + clip((v − 10)/20, 0, 1) − w_m·exp(−(x − 420)²/1000) on the merging lane + w_h·min(0, ln(h/(1.2 v))).
    """
    num_agents = own.front.shape[0]
    x, speed, lane, crashed = (leaf[:num_agents] for leaf in (vehicles.x, vehicles.speed, vehicles.lane, vehicles.crashed))
    span = env_params.reward_speed_high - env_params.reward_speed_low
    pace = jnp.clip((speed - env_params.reward_speed_low) / span, 0.0, 1.0)
    merging = jnp.where(lane == road.BC1, jnp.exp(-((x - road.OBSTACLE_X) ** 2) / env_params.merging_scale), 0.0)
    close = headway_cost(jnp.minimum(own.front, HEADWAY_CAP), speed, env_params.headway_time)
    return (
        env_params.speed_weight * pace
        - env_params.crash_penalty * crashed
        - env_params.merging_weight * merging
        + env_params.headway_weight * close
    )


def share(reward: jax.Array, mode: str, vehicles: Vehicles, own: Neighbours, sharing: jax.Array) -> jax.Array:
    """[A] rewards after sharing among the CAVs in ``sharing`` ([A] bool); 0 for the others.

    ``local``: one's own. ``regional``: mean over oneself and those of the nearest vehicles, in front and behind in one's own
    lane and in the lane beside, that are CAVs. ``global``: mean over all.
    """
    num_agents = reward.shape[0]
    own_reward = jnp.where(sharing, reward, 0.0)
    if mode == "local":
        return own_reward
    if mode == "global":
        mean = jnp.sum(own_reward) / jnp.maximum(jnp.sum(sharing), 1)
        return jnp.where(sharing, mean, 0.0)
    x, lane = vehicles.x[:num_agents], vehicles.lane[:num_agents]
    beside = neighbours(vehicles, lane_beside(lane, x), num_agents)
    members = own.is_front | own.is_rear | beside.is_front | beside.is_rear
    members = (members[:, :num_agents] & sharing[None, :]) | jnp.eye(num_agents, dtype=bool)
    mean = jnp.sum(jnp.where(members, own_reward[None, :], 0.0), axis=1) / jnp.sum(members, axis=1)
    return jnp.where(sharing, mean, 0.0)


def time_to_collision(vehicles: Vehicles, own: Neighbours) -> jax.Array:
    """[A] s until a CAV would touch the vehicle in front if both held their speeds, at most ``TTC_CAP``."""
    speed = vehicles.speed[: own.front.shape[0]]
    front_speed = jnp.max(jnp.where(own.is_front, vehicles.speed[None, :], -NOBODY), axis=1)
    closing = speed - front_speed
    gap = jnp.maximum(own.front - road.VEHICLE_LENGTH, 0.0)
    meets = (own.front < NOBODY) & (closing > 0)
    return jnp.minimum(jnp.where(meets, gap / jnp.maximum(closing, 1e-3), TTC_CAP), TTC_CAP)


class Tally(struct.PyTreeNode):
    """Running figures of an episode."""

    cavs: jax.Array  # CAVs that took part
    cavs_crashed: jax.Array
    ramp_cavs: jax.Array  # CAVs that entered on the ramp
    ramp_merged: jax.Array  # of these, those that have left the road as merged (open inflow)
    decisions: jax.Array  # CAV decisions taken
    speed_sum: jax.Array  # m/s, over CAVs and decisions
    crossings: jax.Array  # vehicles that passed x = 420
    intervened: jax.Array  # CAV decisions that the supervisor replaced
    min_ttc: jax.Array  # s
    skipped: jax.Array  # sub-steps that the decision at the episode's end left out
    own_return: jax.Array  # sum over decisions of the mean over CAVs of their rewards before sharing, a crash costing 200


def count(
    tally: Tally,
    before: Vehicles,
    after: Vehicles,
    own: Neighbours,
    own_reward: jax.Array,
    acting: jax.Array,
    replaced: jax.Array,
) -> Tally:
    """Adds one decision to the figures of the episode.

    ``own`` and ``own_reward`` [A] belong to ``after``; ``acting`` and ``replaced`` are [A] bool.
    """
    num_agents = acting.shape[0]
    crossed = after.alive & (before.x <= road.OBSTACLE_X) & (after.x > road.OBSTACLE_X)
    newly_crashed = after.crashed[:num_agents] & ~before.crashed[:num_agents] & acting
    ttc = jnp.where(acting, time_to_collision(after, own), TTC_CAP)
    return tally.replace(
        cavs_crashed=tally.cavs_crashed + jnp.sum(newly_crashed),
        decisions=tally.decisions + jnp.sum(acting),
        speed_sum=tally.speed_sum + jnp.sum(jnp.where(acting, after.speed[:num_agents], 0.0)),
        crossings=tally.crossings + jnp.sum(crossed),
        intervened=tally.intervened + jnp.sum(replaced & acting),
        min_ttc=jnp.minimum(tally.min_ttc, jnp.min(ttc)),
        own_return=tally.own_return + jnp.sum(own_reward * acting) / jnp.maximum(jnp.sum(acting), 1),
    )


def metrics(tally: Tally, merged_now: jax.Array, seconds: jax.Array) -> dict[str, jax.Array]:
    """Scalars of the episode so far.

    ``crash``: 1 if any CAV has crashed. ``crashed_cavs``: fraction of CAVs crashed. ``speed``: m/s, mean over CAVs and
    decisions. ``throughput``: vehicles of any kind past the ramp's end (x = 420), per second. ``merged``: fraction of the
    CAVs that entered on the ramp which are now uncrashed on ``bc0`` or ``cd``, or left the road so. ``min_ttc``: s, least
    time to collision of a CAV with the vehicle in front at constant speeds, at most 10. ``intervened``: fraction of CAV
    decisions that the supervisor replaced. ``return``: sum over decisions of the mean over CAVs of their own rewards, with
    the published penalty of 200 for a crash; it compares ways of sharing and penalties, and is the episode reward that
    MARL_CAVs reports.
    """
    decisions = jnp.maximum(tally.decisions, 1.0)
    return {
        "crash": (tally.cavs_crashed > 0).astype(tally.speed_sum.dtype),
        "crashed_cavs": tally.cavs_crashed / jnp.maximum(tally.cavs, 1.0),
        "speed": tally.speed_sum / decisions,
        "throughput": tally.crossings / jnp.maximum(seconds, 0.2),
        "merged": (tally.ramp_merged + merged_now) / jnp.maximum(tally.ramp_cavs, 1.0),
        "min_ttc": tally.min_ttc,
        "intervened": tally.intervened / decisions,
        "return": tally.own_return,
    }
