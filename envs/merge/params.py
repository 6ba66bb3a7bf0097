"""Parameters of ``merge``: densities, driver mixes, physics presets, reward weights."""

import dataclasses
from typing import Any

import numpy as np
from flax import struct

from marljax.core.fields import check_order, param
from marljax.envs.merge import road
from marljax.envs.merge.traffic import MAX_SPEED, DriverTable, Physics
from marljax.errors import UserError

NUM_CAVS = 6
NUM_VEHICLES = 12
NUM_HDVS = NUM_VEHICLES - NUM_CAVS
MAX_HDVS_WITH_PAIR = NUM_HDVS - 2
MAIN_SLOTS = (10.0, 50.0, 90.0, 130.0, 170.0, 210.0)
RAMP_SLOTS = (5.0, 45.0, 85.0, 125.0, 165.0, 205.0)
PAIR_X = (100.0, 120.0)  # MAPPO-PIS' pair of linear drivers: aggressive on the ramp, defensive on the through lane

# cavs_min, cavs_max, hdvs_min, hdvs_max, linear_pair
DENSITIES: dict[str, tuple[int, int, int, int, bool]] = {
    "easy": (1, 3, 1, 3, False),
    "medium": (2, 4, 2, 4, False),
    "hard": (4, 6, 3, 5, False),
    "pis_hard": (3, 6, 3, 6, False),
    "pis_mixed_easy": (1, 3, 0, 1, True),
    "pis_mixed_medium": (2, 4, 2, 4, True),
    "pis_mixed_hard": (3, 6, 1, 4, True),
}
# shares of the driver types, in the order of ``traffic.DRIVERS``
MIXES: dict[str, tuple[float, ...]] = {
    "homogeneous": (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "mild": (0.0, 0.8, 0.1, 0.1, 0.0, 0.0),
    "chaotic": (0.0, 0.4, 0.3, 0.3, 0.0, 0.0),
    "very_hard": (0.0, 0.5, 0.5, 0.0, 0.0, 0.0),
    "linear": (0.0, 0.0, 0.0, 0.0, 0.5, 0.5),
}
CRASH_PENALTY = 200.0  # as published; the metric ``return`` uses it whatever the penalty in training
PHYSICS = {
    "marl_cavs": Physics(slip_correction=False, full_boxes=False, heed_target_lane=False, stops_at_end=True),
    "highway_env": Physics(slip_correction=True, full_boxes=True, heed_target_lane=True, stops_at_end=False),
}
REWARDS = ("local", "regional", "global")
REWARD_KINDS = ("published", "progress")


class MergeParams(struct.PyTreeNode):
    """Parameters of ``merge``. Changing those of ``default_params`` with ``.replace(…)`` needs no recompilation."""

    driver_shares: Any = param(low=0.0, help="shares of base, normal, aggressive, defensive and the two linear drivers")
    drivers: DriverTable = dataclasses.field(default_factory=DriverTable)  # [6] each
    cavs_min: Any = param(4, low=1, high=NUM_CAVS, integer=True, help="CAVs per episode, uniform: lower bound")
    cavs_max: Any = param(6, low=1, high=NUM_CAVS, integer=True, help="upper bound")
    hdvs_min: Any = param(3, low=0, high=NUM_HDVS, integer=True, help="human-driven vehicles per episode, uniform: lower bound")
    hdvs_max: Any = param(5, low=0, high=NUM_HDVS, integer=True, help="upper bound")
    linear_pair: Any = param(False, help="adds MAPPO-PIS' aggressive and defensive driver; hdvs_max is then at most 4")
    cavs_drive_as_humans: Any = param(False, help="CAVs ignore their actions and drive as base drivers, by IDM and MOBIL")
    spawn_speed_min: Any = param(25.0, low=0.0, high=MAX_SPEED, unit="m/s", help="initial speed of all vehicles: lower bound")
    spawn_speed_max: Any = param(27.0, high=MAX_SPEED, unit="m/s", help="upper bound")
    position_noise: Any = param(1.5, low=0.0, unit="m", help="maximum deviation of initial positions")
    cav_target_speed: Any = param(25.0, low=0.0, high=MAX_SPEED, unit="m/s", help="initial target speed of CAVs")
    speed_lowest: Any = param(10.0, low=0.0, unit="m/s", help="lowest of the CAVs' target speeds")
    speed_interval: Any = param(5.0, above=0.0, unit="m/s", help="step between target speeds")
    speed_levels: Any = param(5, low=1, help="number of target speeds")
    duration: Any = param(100, above=0, help="episode length in decisions of 0.2 s")
    crash_penalty: Any = param(CRASH_PENALTY, low=0.0, help="cost of a crash (reward_kind=published)")
    speed_weight: Any = param(1.0, help="reward for reward_speed_high")
    merging_weight: Any = param(4.0, help="cost of being at the ramp's end")
    headway_weight: Any = param(4.0, help="weight of min(0, ln(headway / (headway_time · speed)))")
    headway_time: Any = param(1.2, above=0.0, unit="s", help="time headway below which the headway term is negative")
    reward_speed_low: Any = param(10.0, unit="m/s", help="speed at which the speed term is 0")
    reward_speed_high: Any = param(30.0, unit="m/s", help="speed at which it is 1")
    merging_scale: Any = param(1000.0, above=0.0, unit="m²", help="scale of the squared distance to the ramp's end in its cost")
    crash_hint: Any = param(1.0, low=0.0, help="cost of a crash, besides the rest of the road (reward_kind=progress)")
    progress_headway: Any = param(
        1.0, low=0.0, high=1.0, help="share of progress lost as the headway shrinks to 0 (reward_kind=progress)"
    )
    forecast_noise: Any = param(0.05, low=0.0, high=1.0, help="relative error of the supervisor's forecast of human drivers")
    collision_room: Any = param(
        0.0, low=0.0, unit="m", help="subtracted by the supervisor from the room of actions that collide too; published: 0"
    )
    inflow_probability: Any = param(0.6, low=0.0, high=1.0, help="probability of a vehicle per entry and decision (open_inflow)")
    inflow_cav_share: Any = param(0.5, low=0.0, high=1.0, help="share of CAVs among entering vehicles")
    inflow_speed: Any = param(26.0, low=0.0, high=MAX_SPEED, unit="m/s", help="mean speed of entering vehicles")
    inflow_speed_noise: Any = param(1.5, low=0.0, unit="m/s", help="maximum deviation of their speed")
    inflow_clearance: Any = param(15.0, low=0.0, unit="m", help="free distance that an entering vehicle needs")


def check_consistency(env_params: MergeParams) -> None:
    """Raises ``UserError`` for parameters that contradict each other."""
    check_order(env_params, ("cavs_min", "cavs_max"), ("hdvs_min", "hdvs_max"), ("spawn_speed_min", "spawn_speed_max"))
    low, high, noise = env_params.reward_speed_low, env_params.reward_speed_high, env_params.position_noise
    if not low < high:
        raise UserError(f"reward_speed_low={low:g} must be less than reward_speed_high={high:g}")
    levels, lowest, interval = env_params.speed_levels, env_params.speed_lowest, env_params.speed_interval
    if lowest + (levels - 1) * interval > MAX_SPEED:
        raise UserError(
            f"the highest of speed_levels={levels:g} target speeds is above {MAX_SPEED:g} m/s; take at most "
            f"{max((MAX_SPEED - lowest) // interval + 1, 1):g}, or less of speed_lowest and speed_interval"
        )
    slots = [(*lane, x) if env_params.linear_pair else lane for lane, x in zip((RAMP_SLOTS, MAIN_SLOTS), PAIR_X, strict=True)]
    room = (min(np.diff(np.sort(lane)).min() for lane in slots) - road.VEHICLE_LENGTH) / 2
    if noise > room:
        raise UserError(f"position_noise={noise:g} lets vehicles overlap; set it to at most {room:g}")
    if env_params.linear_pair and env_params.hdvs_max > MAX_HDVS_WITH_PAIR:
        raise UserError(f"hdvs_max={env_params.hdvs_max:g} exceeds {MAX_HDVS_WITH_PAIR}, the maximum with linear_pair")
    if not np.sum(env_params.driver_shares) > 0:
        raise UserError("driver_shares are all 0; set at least one above 0")


def preset_params(density: str, drivers: str, physics: str) -> MergeParams:
    """Parameters of a density, a driver mix and a physics preset."""
    names = ("cavs_min", "cavs_max", "hdvs_min", "hdvs_max", "linear_pair")
    counts: dict[str, Any] = dict(zip(names, DENSITIES[density], strict=True))
    params = MergeParams(driver_shares=np.array(MIXES[drivers]), **counts)
    if physics == "marl_cavs":
        return params
    gain, imposed_braking = np.array([0.2, 0.2, 0.1, 0.3, 1.0, 1.0]), np.array([2.0, 2.0, 9.0, 2.0, 2.0, 2.0])
    table = DriverTable(gain=gain, imposed_braking=imposed_braking, change_speed=np.ones(6))
    return params.replace(drivers=table, speed_lowest=20.0, speed_levels=3)
