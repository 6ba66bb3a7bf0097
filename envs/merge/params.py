"""The numbers of ``merge``: densities, driver mixes, physics presets, reward weights."""

import math
from typing import Any

import numpy as np
from flax import struct

from marljax.envs.merge import road, traffic
from marljax.envs.merge.traffic import Physics
from marljax.errors import UserError
from marljax.utils.validation import ABOVE_0, check_numbers, check_order, check_ranges

NUM_CAVS = 6
NUM_VEHICLES = 12
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
CRASH_PENALTY = 200.0  # as published; ``own_return`` counts crashes so whatever a run trains with
PHYSICS = ("marl_cavs", "highway_env")
REWARDS = ("local", "regional", "global")


class MergeParams(struct.PyTreeNode):
    """The numbers of ``merge``: take ``default_params`` and change them with ``.replace(…)``, nothing is compiled again."""

    driver_shares: Any  # [6] of the types base, normal, aggressive, defensive, linear_aggressive, linear_defensive; any sum
    drivers: Any  # DriverTable, [6] per quantity
    cavs_min: Any = 4  # CAVs per episode, uniform; at most 6
    cavs_max: Any = 6  # at most so many
    hdvs_min: Any = 3  # human-driven vehicles per episode, uniform; at most 6
    hdvs_max: Any = 5  # at most so many
    linear_pair: Any = False  # adds MAPPO-PIS' aggressive and defensive driver; leaves room for 4 other human drivers
    cavs_drive_as_humans: Any = False  # CAVs ignore their actions and drive by IDM and MOBIL, as the base driver
    spawn_speed_min: Any = 25.0  # m/s, of all vehicles
    spawn_speed_max: Any = 27.0  # m/s
    position_noise: Any = 1.5  # m either way
    cav_target_speed: Any = 25.0  # m/s, at the start
    speed_lowest: Any = 10.0  # m/s, first of the CAVs' target speeds
    speed_interval: Any = 5.0  # m/s between them
    speed_levels: Any = 5  # how many
    duration: Any = 100  # decisions of 0.2 s
    crash_penalty: Any = CRASH_PENALTY  # reward of a crash, negated
    speed_weight: Any = 1.0  # reward at reward_speed_high
    merging_weight: Any = 4.0  # cost of standing at the ramp's end
    headway_weight: Any = 4.0  # of ln(headway / (headway_time · speed)) where it is negative
    headway_time: Any = 1.2  # s
    reward_speed_low: Any = 10.0  # m/s, where the speed term is 0
    reward_speed_high: Any = 30.0  # m/s, where it is 1
    merging_scale: Any = 1000.0  # m², of the cost near the ramp's end
    forecast_noise: Any = 0.05  # the supervisor's: relative error of its forecast of human drivers, either way
    collision_room: Any = 0.0  # m, the supervisor's: taken off the room of a replacement that collides too; 0 as published
    inflow_probability: Any = 0.6  # open inflow: per entry and decision
    inflow_cav_share: Any = 0.5  # of the vehicles that enter
    inflow_speed: Any = 26.0  # m/s
    inflow_speed_noise: Any = 1.5  # m/s either way
    inflow_clearance: Any = 15.0  # m from the entry without a vehicle


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


# What each number may be, where it is bounded.
_COUNTS = {"cavs_min": 1, "cavs_max": 1, "hdvs_min": 0, "hdvs_max": 0}  # the least; at most 6
_POSITIVE = ("speed_interval", "speed_levels", "duration", "headway_time", "merging_scale")
_NOT_NEGATIVE = (
    "position_noise",
    "speed_lowest",
    "spawn_speed_min",
    "cav_target_speed",
    "crash_penalty",
    "collision_room",
    "inflow_speed",
    "inflow_speed_noise",
    "inflow_clearance",
)
_SPEEDS = ("spawn_speed_min", "spawn_speed_max", "cav_target_speed", "inflow_speed")
_SHARES = ("forecast_noise", "inflow_probability", "inflow_cav_share")
_RANGES = (
    dict.fromkeys(_POSITIVE, (ABOVE_0, math.inf))
    | dict.fromkeys(_NOT_NEGATIVE, (0.0, math.inf))
    | dict.fromkeys(_SHARES, (0.0, 1.0))
)
_ORDERED = (
    ("cavs_min", "cavs_max"),
    ("hdvs_min", "hdvs_max"),
    ("spawn_speed_min", "spawn_speed_max"),
)
PAIR_ROOM = 4  # human drivers beside MAPPO-PIS' pair


def check(env_params: MergeParams) -> None:
    """Raises ``UserError`` for concrete numbers that no episode can have."""
    check_numbers(env_params, preset_params("hard", "homogeneous", "marl_cavs"), "merge")
    check_ranges(env_params, _RANGES, "merge")
    number = {name: float(getattr(env_params, name)) for name in (*_COUNTS, *_SPEEDS, "position_noise")}
    for name, least in _COUNTS.items():
        if not least <= number[name] <= NUM_CAVS or number[name] % 1:
            raise UserError(f"{name}={number[name]:g} of merge is out of range; it takes an integer from {least} to {NUM_CAVS}")
    room = spawn_room(bool(env_params.linear_pair))
    for names, allowed, fits in (
        (_SPEEDS, f"m/s up to {traffic.MAX_SPEED:g}, which no vehicle exceeds", lambda x: x <= traffic.MAX_SPEED),
        (("position_noise",), f"m up to {room:g}, or vehicles start in one another", lambda x: x <= room),
    ):
        wrong = [name for name in names if not fits(number[name])]
        if wrong:
            raise UserError(f"{wrong[0]}={number[wrong[0]]:g} of merge is out of range; it takes {allowed}")
    check_order(env_params, _ORDERED, "merge")
    low, high = env_params.reward_speed_low, env_params.reward_speed_high
    if not low < high:
        raise UserError(f"reward_speed_low={low:g} of merge must lie below reward_speed_high={high:g}")
    if env_params.linear_pair and env_params.hdvs_max > PAIR_ROOM:
        raise UserError(f"hdvs_max={env_params.hdvs_max:g} of merge leaves no room for linear_pair; give at most {PAIR_ROOM}")
    for name in ("acceleration", "braking", "delay"):
        if not (np.asarray(getattr(env_params.drivers, name)) > 0).all():
            raise UserError(f"drivers.{name} of merge has an entry that is not above 0")
    shares = np.asarray(env_params.driver_shares)
    if (shares < 0).any() or not shares.sum() > 0:
        raise UserError(f"driver_shares={shares.tolist()} of merge are no shares; give six numbers of at least 0, not all 0")


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
