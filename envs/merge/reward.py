"""Rewards of ``merge``, how agents share them, and the statistics of an episode.

Agents A are the connected autonomous vehicles ("CAVs") in the first A of V vehicle slots. Front and rear vehicles are determined
by segments alone: a vehicle is in front if it is on the same segment or the next one, at greater x.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.merge import road
from marljax.envs.merge.params import MergeParams
from marljax.envs.merge.road import FAR_AWAY
from marljax.envs.merge.traffic import Vehicles, slots_like
from marljax.utils.batching import loop

HEADWAY_CAP = 60.0  # m
TTC_CAP = 10.0  # s, also the value without a predicted collision
NO_LANE = NOBODY = -1

# Segments searched for the front and the rear vehicle. The ramp's last segment ends at an obstacle: no segment follows it.
_FOLLOWING = ((road.BC0,), (road.CD,), (), (), (road.KB,), (road.BC1,))
_LEADING = ((), (road.AB,), (road.KB,), (road.BC0, road.BC1), (), (road.JK,))
_FRONT = tuple(road.segments(lane, *others) for lane, others in enumerate(_FOLLOWING))
_REAR = tuple(road.segments(lane, *others) for lane, others in enumerate(_LEADING))
_ADJACENT = (road.KB, road.BC1, road.BC0, NO_LANE, NO_LANE, road.AB)


def in_front(lane: jax.Array, other: jax.Array) -> jax.Array:
    """Whether a vehicle on segment ``other`` can be the front vehicle on ``lane``; false on ``NO_LANE``."""
    return road.contains(road.pick(lane, _FRONT), other) & (lane != NO_LANE)


def in_rear(lane: jax.Array, other: jax.Array) -> jax.Array:
    """Whether a vehicle on segment ``other`` can be the rear vehicle on ``lane``; false on ``NO_LANE``."""
    return road.contains(road.pick(lane, _REAR), other) & (lane != NO_LANE)


def adjacent_lane(lane: jax.Array, x: jax.Array) -> jax.Array:
    """The segment next to a CAV, or ``NO_LANE``. The ramp is adjacent to ``ab`` only where it converges with it."""
    adjacent = road.pick(lane, _ADJACENT)
    return jnp.where((lane == road.AB) & (x <= road.START[road.KB]), NO_LANE, adjacent)


class Neighbours(NamedTuple):
    """The nearest vehicles in front of and behind each CAV, [A] each; an absent one is ``FAR_AWAY`` and has index ``NOBODY``."""

    front: jax.Array  # m
    front_index: jax.Array  # int32
    front_speed: jax.Array  # m/s
    rear: jax.Array  # m
    rear_index: jax.Array  # int32


def neighbours(vehicles: Vehicles, lane: jax.Array) -> Neighbours:
    """The nearest vehicles in front of and behind each CAV, along ``lane`` ([A], may be ``NO_LANE``)."""
    num_agents = lane.shape[0]
    x, agents = vehicles.x[:num_agents], slots_like(lane)
    front_segments, rear_segments = (jnp.where(lane != NO_LANE, road.pick(lane, masks), 0) for masks in (_FRONT, _REAR))

    def compare(other: jax.Array, nearest: Neighbours) -> Neighbours:
        dx, visible = vehicles.x[other] - x, vehicles.alive[other] & (agents != other)
        leads = visible & road.contains(front_segments, vehicles.lane[other]) & (dx > 0) & (dx < nearest.front)
        follows = visible & road.contains(rear_segments, vehicles.lane[other]) & (dx <= 0) & (-dx < nearest.rear)
        return Neighbours(
            jnp.where(leads, dx, nearest.front),
            jnp.where(leads, other, nearest.front_index),
            jnp.where(leads, vehicles.speed[other], nearest.front_speed),
            jnp.where(follows, -dx, nearest.rear),
            jnp.where(follows, other, nearest.rear_index),
        )

    absent, nobody = jnp.full_like(x, FAR_AWAY), jnp.full(x.shape, NOBODY, jnp.int32)
    start = Neighbours(absent, nobody, jnp.zeros_like(x), absent, nobody)
    return loop(vehicles.x.shape[0], compare, start)


def headway_ratio(headway: jax.Array, speed: jax.Array, headway_time: jax.Array) -> jax.Array:
    """h / (t v), kept above 0."""
    return jnp.maximum(headway, 0.01) / (headway_time * jnp.maximum(speed, 0.01))


def local_reward(vehicles: Vehicles, own: Neighbours, env_params: MergeParams) -> jax.Array:
    """[A] reward of each CAV before sharing (MARL_CAVs, section "Reward Function").

    −w_c·crash + clip((v − 10)/20, 0, 1) − w_m·exp(−(x − 420)²/1000) on the merging lane + w_h·min(0, ln(h/(1.2 v))), the last
    term only while the CAV moves.
    """
    num_agents = own.front.shape[0]
    x, speed, lane, crashed = (leaf[:num_agents] for leaf in (vehicles.x, vehicles.speed, vehicles.lane, vehicles.crashed))
    span = env_params.reward_speed_high - env_params.reward_speed_low
    pace = jnp.clip((speed - env_params.reward_speed_low) / span, 0.0, 1.0)
    merging = jnp.where(lane == road.BC1, jnp.exp(-((x - road.OBSTACLE_X) ** 2) / env_params.merging_scale), 0.0)
    ratio = headway_ratio(jnp.minimum(own.front, HEADWAY_CAP), speed, env_params.headway_time)
    close = jnp.where(speed > 0, jnp.minimum(jnp.log(ratio), 0.0), 0.0)
    return (
        env_params.speed_weight * pace
        - env_params.crash_penalty * crashed
        - env_params.merging_weight * merging
        + env_params.headway_weight * close
    )


def progress_reward(before: Vehicles, after: Vehicles, own: Neighbours, env_params: MergeParams) -> jax.Array:
    """[A] reward of each CAV before sharing, one product instead of a sum of terms, as in CaRL (Jaeger et al. 2025).

    100 · max(Δx, 0)/520 · (1 − w (1 − min(h/(1.2 v), 1))) − c·crash: the distance driven in % of the road, less where the headway
    h is short. So a crash costs the rest of the road.
    """
    num_agents = own.front.shape[0]
    x, speed, crashed = (leaf[:num_agents] for leaf in (after.x, after.speed, after.crashed))
    distance = jnp.minimum(x, road.ROAD_END) - jnp.minimum(before.x[:num_agents], road.ROAD_END)
    safe = jnp.minimum(headway_ratio(own.front, speed, env_params.headway_time), 1.0)
    factor = 1.0 - env_params.progress_headway * (1.0 - safe)
    return 100.0 * jnp.maximum(distance, 0.0) / road.ROAD_END * factor - env_params.crash_hint * crashed


def share(reward: jax.Array, mode: str, vehicles: Vehicles, own: Neighbours, sharing: jax.Array) -> jax.Array:
    """[A] rewards after sharing among the CAVs in ``sharing`` ([A] bool); 0 for the others.

    ``local``: each CAV keeps its own. ``global``: mean over all. ``regional``: mean over the CAV itself and the CAVs among the
    front and rear vehicles of its own and the adjacent lane.
    """
    reward = jnp.where(sharing, reward, 0.0)
    if mode == "local":
        return reward
    if mode == "global":
        mean = jnp.sum(reward, axis=0) / jnp.maximum(jnp.sum(sharing, axis=0), 1)
        return jnp.where(sharing, mean, 0.0)
    num_agents, agents = reward.shape[0], slots_like(reward)
    lane = vehicles.lane[:num_agents]
    adjacent = neighbours(vehicles, adjacent_lane(lane, vehicles.x[:num_agents]))
    nearby = (own.front_index, own.rear_index, adjacent.front_index, adjacent.rear_index)

    def add(other: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        is_near = functools.reduce(jnp.logical_or, [index == other for index in nearby])
        member = (is_near & sharing[other]) | (agents == other)
        return sums[0] + jnp.where(member, reward[other], 0.0), sums[1] + member

    total, count = loop(num_agents, add, (jnp.zeros_like(reward), jnp.zeros_like(reward)))
    return jnp.where(sharing, total / count, 0.0)


class EpisodeStats(struct.PyTreeNode):
    """Running statistics of an episode, scalars."""

    cavs: jax.Array  # CAVs that took part
    cavs_crashed: jax.Array
    ramp_cavs: jax.Array  # CAVs that entered on the ramp
    ramp_merged: jax.Array  # of these, CAVs that have left the road after merging (open inflow)
    decisions: jax.Array  # decisions taken by CAVs
    speed_sum: jax.Array  # m/s, over CAVs and decisions
    crossings: jax.Array  # vehicles that passed x = 420
    intervened: jax.Array  # CAV decisions that the supervisor replaced
    min_ttc: jax.Array  # s
    skipped: jax.Array  # sub-steps left out of the last decision
    mean_return: jax.Array  # sum over decisions of the CAVs' mean published reward before sharing, with a crash penalty of 200


def update_stats(
    stats: EpisodeStats,
    before: Vehicles,
    after: Vehicles,
    own: Neighbours,
    own_reward: jax.Array,
    acting: jax.Array,
    replaced: jax.Array,
) -> EpisodeStats:
    """Adds one decision; ``own`` and ``own_reward`` [A] belong to ``after``, ``acting`` and ``replaced`` are [A] bool."""
    num_agents = acting.shape[0]
    speed = after.speed[:num_agents]
    crossed = after.alive & (before.x <= road.OBSTACLE_X) & (after.x > road.OBSTACLE_X)
    newly_crashed = after.crashed[:num_agents] & ~before.crashed[:num_agents] & acting
    # time until a CAV would touch the front vehicle at constant speeds
    closing = speed - own.front_speed
    gap = jnp.maximum(own.front - road.VEHICLE_LENGTH, 0.0)
    meets = (own.front < FAR_AWAY) & (closing > 0)
    ttc = jnp.minimum(jnp.where(meets, gap / jnp.maximum(closing, 1e-3), TTC_CAP), TTC_CAP)
    return stats.replace(
        cavs_crashed=stats.cavs_crashed + jnp.sum(newly_crashed, axis=0),
        decisions=stats.decisions + jnp.sum(acting, axis=0),
        speed_sum=stats.speed_sum + jnp.sum(jnp.where(acting, speed, 0.0), axis=0),
        crossings=stats.crossings + jnp.sum(crossed, axis=0),
        intervened=stats.intervened + jnp.sum(replaced & acting, axis=0),
        min_ttc=jnp.minimum(stats.min_ttc, jnp.min(jnp.where(acting, ttc, TTC_CAP), axis=0)),
        mean_return=stats.mean_return + jnp.sum(own_reward * acting, axis=0) / jnp.maximum(jnp.sum(acting, axis=0), 1),
    )


MEANINGS = {
    "return": "sum over decisions of the CAVs' mean published reward before sharing, a crash penalty of 200 included (MARL_CAVs)",
    "crash": "episodes in which a CAV crashed",
    "crashed_cavs": "CAVs that crashed",
    "speed": "mean over CAVs and decisions",
    "throughput": "vehicles of any kind per second that passed the ramp's end (x = 420 m)",
    "merged": "CAVs from the ramp that reached the highway, or left the road that way, without a crash",
    "min_ttc": "least time to collision of a CAV with the vehicle in front at constant speeds, at most 10 s",
    "intervened": "decisions of CAVs that the supervisor replaced",
    "reward_sum": "sum of a CAV's rewards as shared and trained on, mean over CAVs",
}


def metrics(stats: EpisodeStats, merged_now: jax.Array, seconds: jax.Array) -> dict[str, jax.Array]:
    """Scalars of the episode so far: see ``MEANINGS``."""
    decisions = jnp.maximum(stats.decisions, 1.0)
    return {
        "crash": (stats.cavs_crashed > 0).astype(stats.speed_sum.dtype),
        "crashed_cavs": stats.cavs_crashed / jnp.maximum(stats.cavs, 1.0),
        "speed": stats.speed_sum / decisions,
        "throughput": stats.crossings / jnp.maximum(seconds, 0.2),
        "merged": (stats.ramp_merged + merged_now) / jnp.maximum(stats.ramp_cavs, 1.0),
        "min_ttc": stats.min_ttc,
        "intervened": stats.intervened / decisions,
        "return": stats.mean_return,
    }
