"""Rewards of ``merge``, how agents share them, and the statistics of an episode.

Agents A are the connected autonomous vehicles ("CAVs") in the first A of V vehicle slots. Front and rear vehicles are determined
by segments alone: a vehicle is in front if it is on the same segment or the next one, at greater x.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.merge import road
from marljax.envs.merge.params import MergeParams
from marljax.envs.merge.road import FAR_AWAY
from marljax.envs.merge.traffic import Vehicles

HEADWAY_CAP = 60.0  # m
TTC_CAP = 10.0  # s, also the value without a predicted collision
NO_LANE = -1

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
    """The nearest vehicles in front of and behind each CAV; an absent one is ``FAR_AWAY`` and has no index."""

    front: jax.Array  # [A] m
    is_front: jax.Array  # [A, V] bool, one-hot
    rear: jax.Array  # [A] m
    is_rear: jax.Array  # [A, V] bool, one-hot


def neighbours(vehicles: Vehicles, lane: jax.Array, num_agents: int) -> Neighbours:
    """The nearest vehicles in front of and behind each CAV, along ``lane`` ([A], may be ``NO_LANE``)."""
    dx = vehicles.x[None, :] - vehicles.x[:num_agents, None]
    other = vehicles.alive[None, :] & ~jnp.eye(num_agents, dx.shape[1], dtype=bool)
    ahead = other & in_front(lane[:, None], vehicles.lane[None, :]) & (dx > 0)
    behind = other & in_rear(lane[:, None], vehicles.lane[None, :]) & (dx <= 0)
    front = jnp.min(jnp.where(ahead, dx, FAR_AWAY), axis=1)
    rear = jnp.min(jnp.where(behind, -dx, FAR_AWAY), axis=1)
    return Neighbours(front, ahead & (dx <= front[:, None]), rear, behind & (-dx <= rear[:, None]))


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


def share(reward: jax.Array, mode: str, vehicles: Vehicles, own: Neighbours, sharing: jax.Array) -> jax.Array:
    """[A] rewards after sharing among the CAVs in ``sharing`` ([A] bool); 0 for the others.

    ``local``: each CAV keeps its own. ``global``: mean over all. ``regional``: mean over the CAV itself and the CAVs among the
    front and rear vehicles of its own and the adjacent lane.
    """
    num_agents = reward.shape[0]
    own_reward = jnp.where(sharing, reward, 0.0)
    if mode == "local":
        return own_reward
    if mode == "global":
        mean = jnp.sum(own_reward) / jnp.maximum(jnp.sum(sharing), 1)
        return jnp.where(sharing, mean, 0.0)
    x, lane = vehicles.x[:num_agents], vehicles.lane[:num_agents]
    adjacent = neighbours(vehicles, adjacent_lane(lane, x), num_agents)
    group = own.is_front | own.is_rear | adjacent.is_front | adjacent.is_rear
    group = (group[:, :num_agents] & sharing[None, :]) | jnp.eye(num_agents, dtype=bool)
    mean = jnp.sum(jnp.where(group, own_reward[None, :], 0.0), axis=1) / jnp.sum(group, axis=1)
    return jnp.where(sharing, mean, 0.0)


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
    mean_return: jax.Array  # sum over decisions of the mean local reward of the CAVs, with a crash penalty of 200


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
    closing = speed - jnp.max(jnp.where(own.is_front, after.speed[None, :], -FAR_AWAY), axis=1)
    gap = jnp.maximum(own.front - road.VEHICLE_LENGTH, 0.0)
    meets = (own.front < FAR_AWAY) & (closing > 0)
    ttc = jnp.minimum(jnp.where(meets, gap / jnp.maximum(closing, 1e-3), TTC_CAP), TTC_CAP)
    return stats.replace(
        cavs_crashed=stats.cavs_crashed + jnp.sum(newly_crashed),
        decisions=stats.decisions + jnp.sum(acting),
        speed_sum=stats.speed_sum + jnp.sum(jnp.where(acting, speed, 0.0)),
        crossings=stats.crossings + jnp.sum(crossed),
        intervened=stats.intervened + jnp.sum(replaced & acting),
        min_ttc=jnp.minimum(stats.min_ttc, jnp.min(jnp.where(acting, ttc, TTC_CAP))),
        mean_return=stats.mean_return + jnp.sum(own_reward * acting) / jnp.maximum(jnp.sum(acting), 1),
    )


def metrics(stats: EpisodeStats, merged_now: jax.Array, seconds: jax.Array) -> dict[str, jax.Array]:
    """Scalars of the episode so far.

    ``crash``: 1 if any CAV has crashed. ``crashed_cavs``: fraction of CAVs that crashed. ``speed``: m/s, mean over CAVs and
    decisions. ``throughput``: vehicles of any kind per second that passed the ramp's end (x = 420). ``merged``: fraction of the
    CAVs from the ramp that are on ``bc0`` or ``cd`` without a crash, or left the road that way. ``min_ttc``: s, minimum time to
    collision of a CAV with its front vehicle at constant speeds, at most 10. ``intervened``: fraction of CAV decisions replaced
    by the supervisor. ``return``: sum over decisions of the CAVs' mean reward before sharing, with the published crash penalty
    of 200. It is the episode reward that MARL_CAVs reports, and comparable across sharing modes and penalties.
    """
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
