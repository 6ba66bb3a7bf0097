"""The numbers of ``merge``: densities, driver mixes, physics presets, reward weights."""

import dataclasses
from typing import Any

import numpy as np
from flax import struct

from marljax.core.fields import check_order, param
from marljax.envs.merge import road, traffic
from marljax.envs.merge.traffic import MAX_SPEED, Physics
from marljax.errors import UserError

NUM_CAVS = 6
NUM_VEHICLES = 12
NUM_HDVS = NUM_VEHICLES - NUM_CAVS
MAX_HDVS_WITH_PAIR = 4  # besides MAPPO-PIS' pair
MAIN_SLOTS = (10.0, 50.0, 90.0, 130.0, 170.0, 210.0)
RAMP_SLOTS = (5.0, 45.0, 85.0, 125.0, 165.0, 205.0)
PAIR_X = (100.0, 120.0)  # the linear drivers of MAPPO-PIS: aggressive on the ramp, defensive on the through lane

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
# shares of the driver types, in the order of merge_traffic.DRIVERS
MIXES: dict[str, tuple[float, ...]] = {
    "homogeneous": (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "mild": (0.0, 0.8, 0.1, 0.1, 0.0, 0.0),
    "chaotic": (0.0, 0.4, 0.3, 0.3, 0.0, 0.0),
    "very_hard": (0.0, 0.5, 0.5, 0.0, 0.0, 0.0),
    "linear": (0.0, 0.0, 0.0, 0.0, 0.5, 0.5),
}
CRASH_PENALTY = 200.0  # as published; the metric ``return`` counts crashes so, whatever a run trains with
PHYSICS = ("marl_cavs", "highway_env")
REWARDS = ("local", "regional", "global")


class MergeParams(struct.PyTreeNode):
    """The numbers of ``merge``: take ``default_params`` and change them with ``.replace(…)``, nothing is compiled again."""

    # [6], of the types base, normal, aggressive, defensive, linear_aggressive, linear_defensive
    driver_shares: Any = param(low=0.0, help="shares of the driver types; any sum")
    drivers: Any = dataclasses.field()  # DriverTable, [6] per quantity
    cavs_min: Any = param(4, low=1, high=NUM_CAVS, integer=True, help="CAVs per episode, uniform: lower bound")
    cavs_max: Any = param(6, low=1, high=NUM_CAVS, integer=True, help="upper bound")
    hdvs_min: Any = param(3, low=0, high=NUM_HDVS, integer=True, help="human-driven vehicles per episode, uniform: lower bound")
    hdvs_max: Any = param(5, low=0, high=NUM_HDVS, integer=True, help="upper bound")
    linear_pair: Any = param(False, help="adds MAPPO-PIS' aggressive and defensive driver, which leaves room for 4 other drivers")
    cavs_drive_as_humans: Any = param(False, help="CAVs ignore their actions and drive by IDM and MOBIL, as the base driver")
    spawn_speed_min: Any = param(25.0, low=0.0, high=MAX_SPEED, unit="m/s", help="initial speed of all vehicles: lower bound")
    spawn_speed_max: Any = param(27.0, high=MAX_SPEED, unit="m/s", help="upper bound")
    position_noise: Any = param(1.5, low=0.0, unit="m", help="of initial positions, either way")
    cav_target_speed: Any = param(25.0, low=0.0, high=MAX_SPEED, unit="m/s", help="initial target speed of CAVs")
    speed_lowest: Any = param(10.0, low=0.0, unit="m/s", help="lowest of the CAVs' target speeds")
    speed_interval: Any = param(5.0, above=0.0, unit="m/s", help="between target speeds")
    speed_levels: Any = param(5, low=1, help="number of target speeds")
    duration: Any = param(100, above=0, help="decisions of 0.2 s")
    crash_penalty: Any = param(CRASH_PENALTY, low=0.0, help="of a CAV that crashes")
    speed_weight: Any = param(1.0, help="reward at reward_speed_high")
    merging_weight: Any = param(4.0, help="cost of standing at the ramp's end")
    headway_weight: Any = param(4.0, help="of ln(headway / (headway_time · speed)) where it is negative")
    headway_time: Any = param(1.2, above=0.0, unit="s")
    reward_speed_low: Any = param(10.0, unit="m/s", help="at which the speed term is 0")
    reward_speed_high: Any = param(30.0, unit="m/s", help="at which it is 1")
    merging_scale: Any = param(1000.0, above=0.0, unit="m²", help="of the cost near the ramp's end")
    forecast_noise: Any = param(0.05, low=0.0, high=1.0, help="relative error of the supervisor's forecast of human drivers")
    collision_room: Any = param(
        0.0,
        low=0.0,
        unit="m",
        help="subtracted by the supervisor from the room of a replacement that collides too; 0 as published",
    )
    inflow_probability: Any = param(0.6, low=0.0, high=1.0, help="open inflow: per entry and decision")
    inflow_cav_share: Any = param(0.5, low=0.0, high=1.0, help="CAVs among entering vehicles")
    inflow_speed: Any = param(26.0, low=0.0, high=MAX_SPEED, unit="m/s", help="of entering vehicles")
    inflow_speed_noise: Any = param(1.5, low=0.0, unit="m/s", help="either way")
    inflow_clearance: Any = param(15.0, low=0.0, unit="m", help="free road that an entering vehicle needs")


def physics_of(preset: str, connected_lanes: bool) -> Physics:
    """The rules of a physics preset."""
    highway_env = preset == "highway_env"
    return Physics(
        slip_correction=highway_env,
        full_boxes=highway_env,
        heed_target_lane=highway_env,
        connected_lanes=connected_lanes,
        stops_at_end=not highway_env,
    )


def check_consistency(env_params: MergeParams) -> None:
    """Raises ``UserError`` for numbers that do not fit together."""
    check_order(env_params, ("cavs_min", "cavs_max"), ("hdvs_min", "hdvs_max"), ("spawn_speed_min", "spawn_speed_max"))
    low, high = env_params.reward_speed_low, env_params.reward_speed_high
    if not low < high:
        raise UserError(f"reward_speed_low={low:g} must be less than reward_speed_high={high:g}")
    room = spawn_room(bool(env_params.linear_pair))
    if env_params.position_noise > room:
        raise UserError(f"position_noise={env_params.position_noise:g} lets vehicles overlap; give at most {room:g}")
    if env_params.linear_pair and env_params.hdvs_max > MAX_HDVS_WITH_PAIR:
        raise UserError(f"hdvs_max={env_params.hdvs_max:g} leaves no room for linear_pair; give at most {MAX_HDVS_WITH_PAIR}")
    for name in ("acceleration", "braking", "delay"):
        if not (np.asarray(getattr(env_params.drivers, name)) > 0).all():
            raise UserError(f"drivers.{name} has an entry that is not positive")
    if not np.sum(env_params.driver_shares) > 0:
        raise UserError("driver_shares are all 0; make at least one positive")


def spawn_room(linear_pair: bool) -> float:
    """How far a vehicle may start from its place, in m, so that no two can overlap."""
    lanes = [(*slots, pair_x) if linear_pair else slots for slots, pair_x in zip((RAMP_SLOTS, MAIN_SLOTS), PAIR_X, strict=True)]
    gap = min(np.diff(np.sort(places)).min() for places in lanes)
    return float(gap - road.VEHICLE_LENGTH) / 2


def preset_params(density: str, drivers: str, physics: str) -> MergeParams:
    """The numbers of a density, a driver mix and a physics preset."""
    cavs_min, cavs_max, hdvs_min, hdvs_max, linear_pair = DENSITIES[density]
    params = MergeParams(
        cavs_min=cavs_min,
        cavs_max=cavs_max,
        hdvs_min=hdvs_min,
        hdvs_max=hdvs_max,
        linear_pair=linear_pair,
        driver_shares=np.array(MIXES[drivers]),
        drivers=traffic.driver_table(imposed_braking=9.0, gain=0.1, change_speed=0.0),
    )
    if physics == "marl_cavs":
        return params
    table = traffic.driver_table(imposed_braking=2.0, gain=0.2, change_speed=1.0)
    return params.replace(drivers=table, speed_lowest=20.0, speed_levels=3)
