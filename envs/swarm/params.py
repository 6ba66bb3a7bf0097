"""The numbers of ``swarm`` and its presets."""

import dataclasses
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from marljax.envs.swarm.contacts import Bounces, Downwash
from marljax.envs.swarm.point_mass import PointMass
from marljax.envs.swarm.quadrotor import Quadrotor, Room
from marljax.envs.swarm.scenarios import AMONG_OBSTACLES, CELLS, HIGHEST, OPEN, SCENARIOS, WALL, Ranges, obstacle_count
from marljax.errors import UserError
from marljax.utils.validation import POSITIVE, check_numbers, check_order, check_ranges, rounded_down


class RewardWeights(struct.PyTreeNode):
    """Of the costs of a control step, as published: the first five are costs per 2 s: 10 ms count 1/200 of them."""

    distance: Any = 1.0  # per m
    effort: Any = 0.05  # of the length of the action
    floor: Any = 1.0  # while on it
    upright: Any = 1.0  # how far the axis of thrust is from the vertical
    spin: Any = 0.1  # per rad/s
    collision: Any = 5.0  # per new contact of two drones
    near: Any = 10.0  # per s, of two drones closer than two diameters
    obstacle: Any = 5.0  # per new contact with an obstacle


def shares(names: Sequence[str]) -> np.ndarray:
    """[len(SCENARIOS)] equal shares of these scenarios."""
    return np.array([name in names for name in SCENARIOS], np.float32) / len(names)


class SwarmParams(struct.PyTreeNode):
    """The numbers of ``swarm``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    drone: Any = dataclasses.field(default_factory=Quadrotor)  # or a PointMass
    room: Room = dataclasses.field(default_factory=Room)
    ranges: Ranges = dataclasses.field(default_factory=Ranges)
    bounces: Bounces = dataclasses.field(default_factory=Bounces)
    downwash: Downwash = dataclasses.field(default_factory=Downwash)
    weights: RewardWeights = dataclasses.field(default_factory=RewardWeights)
    collision_anneal: Any = 0.0  # share of a training run in which the costs of contacts grow from 0; 0: they stay what they are
    mix: Any = dataclasses.field(default_factory=lambda: shares(SCENARIOS[:1]))  # shares of the scenarios
    duration: Any = 1500  # control steps of 10 ms; those of point masses take 50 ms
    density: Any = 0.2  # share of the cells of 1 m in the middle with an obstacle
    obstacle_size: Any = 0.6  # m, diameter
    position_noise: Any = 0.005  # m, of the sensors
    velocity_noise: Any = 0.01  # m/s
    gyro_noise: Any = 1.75e-4  # rad/s
    spread: Any = 2.0  # m that a drone starts from the middle, either way
    grace: Any = 1.5  # s in which contacts do not count for the metrics
    arrived: Any = 0.5  # m from a goal of one's own
    arrived_together: Any = 1.0  # m from the goal of all

    @property
    def period(self) -> Any:
        """s of a control step."""
        return self.drone.period


class Preset(NamedTuple):
    """Sizes, kind and numbers."""

    mix: Sequence[str]  # scenarios, in equal shares
    obstacles: int = 0
    dynamics: str = "quadrotor"
    task: str = "goals"
    numbers: Any = {}  # noqa: RUF012 - read only
    drones: int = 8
    seconds: float = 15.0
    neighbours: int = 2
    limit: str = "truncate"


_BETWEEN = {"spread": 0.1, "weights": RewardWeights(near=4.0)}
# a contact costs what 1 m costs in a fifth of a second, so that being everywhere is what counts
_COVERAGE = {"spread": 0.1, "weights": RewardWeights(effort=0.0, collision=0.1, near=0.5)}
PRESETS = {
    **{name: Preset((name,)) for name in OPEN},
    "open": Preset(OPEN),
    "obstacles": Preset(AMONG_OBSTACLES, 16, numbers=_BETWEEN),
    "obstacles_random": Preset(("obstacles_random",), 16, numbers=_BETWEEN),
    "obstacles_same": Preset(("obstacles_same",), 16, numbers=_BETWEEN),
    "coverage": Preset(("obstacles_random",), 0, "point2d", "landmarks", _COVERAGE, 5, 5.0, 4, "end"),
}


def preset_params(name: str, dynamics: str) -> SwarmParams:
    """The numbers of a preset for these dynamics."""
    preset = PRESETS[name]
    drone = Quadrotor() if dynamics == "quadrotor" else PointMass()
    return SwarmParams(drone=drone, mix=shares(preset.mix), duration=round(preset.seconds / drone.period), **preset.numbers)


LARGE = 1e6
_ABOVE, _NOT_BELOW = (POSITIVE, LARGE), (0.0, LARGE)
MARGIN = 0.05  # m that are left of a room beside what has to fit in
AWAY, UP = {"lissajous": 1.0, "bezier": 2.0}, {"lissajous": 0.5, "bezier": 2.0}  # m that the centre of the goals moves at most
WINDOW = 5  # steps over which the mean distance says that a drone has arrived
LONGEST_STEP = 0.05  # s of the physics; in a longer one drones fly through one another
_RANGES = {
    **dict.fromkeys(("room.half", "room.height", "arrived", "arrived_together"), _ABOVE),
    **dict.fromkeys((f"weights.{field.name}" for field in dataclasses.fields(RewardWeights)), _NOT_BELOW),
    **dict.fromkeys(("obstacle_size", "spread", "grace", "position_noise", "velocity_noise", "gyro_noise"), _NOT_BELOW),
    **dict.fromkeys(("bounces.apart", "bounces.own", "bounces.off_obstacle", "bounces.low", "bounces.slowest"), _NOT_BELOW),
    **dict.fromkeys(("downwash.push_noise", "downwash.twist_noise", "ranges.change_low"), _NOT_BELOW),
    **dict.fromkeys(("ranges.centre", "ranges.low", "ranges.spacing_low", "ranges.swap_low", "ranges.drift_low"), _NOT_BELOW),
    "ranges.versus_low": _NOT_BELOW,
    "mix": _NOT_BELOW,
    "collision_anneal": (0.0, 1.0),
    "density": (0.0, (CELLS**2 - 1) / CELLS**2),
    "ranges.density_high": (0.0, (CELLS**2 - 1) / CELLS**2),
    "drone.timestep": (POSITIVE, LONGEST_STEP),
}
_QUADROTOR = {
    **dict.fromkeys((f"drone.{name}" for name in ("mass", "inertia_x", "inertia_y", "inertia_z", "offset", "gravity")), _ABOVE),
    **dict.fromkeys((f"drone.{name}" for name in ("torque_to_thrust", "lag", "noise", "friction", "fastest_spin")), _NOT_BELOW),
}
_POINT = {
    **dict.fromkeys(("drone.push", "drone.arm", "drone.margin"), _ABOVE),
    **dict.fromkeys(("drone.damping", "drone.stiffness"), _NOT_BELOW),
}
_ORDERED = (
    *((f"ranges.{name}_low", f"ranges.{name}_high") for name in ("spacing", "swap", "drift", "versus", "change")),
    ("ranges.low", "ranges.high"),
    ("bounces.low", "bounces.high"),
    ("bounces.spin_low", "bounces.spin_high"),
    ("bounces.obstacle_spin_low", "bounces.obstacle_spin_high"),
    ("bounces.slowest", "bounces.fastest"),
)


def check(env_params: SwarmParams, obstacles: int, dynamics: str, task: str) -> None:
    """Raises ``UserError`` for numbers that no episode can have; ``obstacles`` is how many the arrays hold."""
    check_numbers(env_params, preset_params("static_same", dynamics), "swarm")
    flies = dynamics == "quadrotor"
    check_ranges(env_params, _RANGES | (_QUADROTOR if flies else _POINT), "swarm")
    check_order(env_params, _ORDERED, "swarm")
    if not env_params.duration >= WINDOW or env_params.duration % 1:
        raise UserError(f"duration={env_params.duration:g} of swarm is out of range; it takes an integer of at least {WINDOW}")
    if flies and not 1 < env_params.drone.thrust_to_weight <= 100:
        lift = f"drone.thrust_to_weight={env_params.drone.thrust_to_weight:g} of swarm is out of range"
        raise UserError(f"{lift}; it takes a number above 1, or the drone could not take off, up to 100")
    if not env_params.drone.arm < WALL:
        raise UserError(f"drones of swarm have a radius of {env_params.drone.arm:g} m; make them smaller than {WALL:g} m")
    drawn = {name for name, share in zip(SCENARIOS, np.asarray(env_params.mix), strict=True) if share > 0}
    if not drawn:
        raise UserError("mix of swarm has no share above 0; give one to a scenario at least")
    among = bool(drawn & {*AMONG_OBSTACLES})
    _check_places(env_params, drawn, among, dynamics)
    _check_obstacles(env_params, obstacles)
    if among and not obstacles and task == "goals":
        raise UserError(f"mix of swarm has {' or '.join(AMONG_OBSTACLES)}, but there are no obstacles; give obstacles=16")


def _check_places(env_params: SwarmParams, drawn: Set[str], among: bool, dynamics: str) -> None:
    """Raises ``UserError`` where the goals of the scenarios ``drawn`` do not fit into the room; ``among`` obstacles are any."""
    room, ranges = env_params.room, env_params.ranges
    wide = ranges.centre + max(AWAY.get(name, 0.0) for name in drawn)
    wide += 0.5 * ranges.versus_high if "swarm_versus_swarm" in drawn else 0.0
    least = MARGIN + max(WALL + wide, CELLS / 2 if among else 0.0)
    if not room.half >= least:
        raise UserError(f"room.half={room.half:g} of swarm is too small for the goals; give at least {least:g}")
    high = ranges.high + max(UP.get(name, 0.0) for name in drawn)
    high = 0.0 if dynamics == "point2d" else max(high, HIGHEST if among else 0.0)
    least = MARGIN + WALL + max(WALL, high)
    if not room.height >= least:
        raise UserError(f"room.height={room.height:g} of swarm is too low for the goals; give at least {least:g}")


def _check_obstacles(env_params: SwarmParams, obstacles: int) -> None:
    """Raises ``UserError`` for more obstacles than the arrays hold, and for those that drones cannot pass between."""
    if not obstacles:
        return
    ranges, arm = env_params.ranges, float(env_params.drone.arm)
    density, name = max((float(env_params.density), "density"), (float(ranges.density_high), "ranges.density_high"))
    needed = int(obstacle_count(density))
    if needed > obstacles:
        told = f"{name}={density:g} of swarm is {needed} obstacles, but there is room for {obstacles}"
        raise UserError(f"{told}; give obstacles={needed}")
    size, name = max((float(env_params.obstacle_size), "obstacle_size"), (float(ranges.size_high), "ranges.size_high"))
    most = 1.0 - 2.0 * arm
    if not size <= most + 1e-6:
        why = f"cells are 1 m wide and a drone of radius {arm:.3g} has to fit between two"
        advice = f"give at most {rounded_down(most):g}" if most > 0 else "give smaller drones"
        raise UserError(f"{name}={size:g} of swarm is out of range; {why}: {advice}")
