"""Parameters of ``swarm`` and its presets."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from marljax.core.fields import check_order, param
from marljax.envs.swarm.contacts import Bounces, Downwash
from marljax.envs.swarm.point_mass import PointMass
from marljax.envs.swarm.quadrotor import LARGE, Quadrotor, Room
from marljax.envs.swarm.scenarios import (
    AMONG_OBSTACLES,
    CELLS,
    HIGHEST,
    MAX_DENSITY,
    OPEN,
    SCENARIOS,
    WALL,
    Ranges,
    obstacle_count,
)
from marljax.errors import UserError

WINDOW = 5  # steps over which the distance to the goal is averaged to decide whether a drone has arrived
MARGIN = 0.05  # m of clearance in the smallest room
AWAY, UP = {"lissajous": 1.0, "bezier": 2.0}, {"lissajous": 0.5, "bezier": 2.0}  # maximum motion in m of the goals' centre


class RewardWeights(struct.PyTreeNode):
    """Costs of a control step, as published: the first five are costs per 2 s, of which 10 ms are 1/200."""

    distance: Any = param(1.0, low=0.0, high=LARGE, help="per m to the goal")
    effort: Any = param(0.05, low=0.0, high=LARGE, help="of the norm of the action")
    floor: Any = param(1.0, low=0.0, high=LARGE, help="while on the floor")
    upright: Any = param(1.0, low=0.0, high=LARGE, help="of minus the vertical component of the thrust axis")
    spin: Any = param(0.1, low=0.0, high=LARGE, help="per rad/s")
    collision: Any = param(5.0, low=0.0, high=LARGE, help="per new contact of two drones")
    near: Any = param(10.0, low=0.0, high=LARGE, help="per s that two drones are closer than two diameters")
    obstacle: Any = param(5.0, low=0.0, high=LARGE, help="per new contact with an obstacle")


def shares(names: Sequence[str]) -> np.ndarray:
    """[len(SCENARIOS)] equal shares of these scenarios."""
    return np.array([name in names for name in SCENARIOS], np.float32) / len(names)


class SwarmParams(struct.PyTreeNode):
    """Parameters of ``swarm``: change ``default_params`` with ``.replace(…)``, nothing is compiled again."""

    drone: Any = dataclasses.field(default_factory=Quadrotor)  # or a PointMass
    room: Room = dataclasses.field(default_factory=Room)
    ranges: Ranges = dataclasses.field(default_factory=Ranges)
    bounces: Bounces = dataclasses.field(default_factory=Bounces)
    downwash: Downwash = dataclasses.field(default_factory=Downwash)
    weights: RewardWeights = dataclasses.field(default_factory=RewardWeights)
    collision_anneal: Any = param(0.0, low=0.0, high=1.0, help="share of a training run over which contact costs grow from 0")
    mix: Any = param(lambda: shares(SCENARIOS[:1]), low=0.0, high=LARGE, help="shares of the scenarios, any sum")
    duration: Any = param(1500, low=WINDOW, integer=True, help="control steps of 10 ms (point masses: 50 ms)")
    density: Any = param(0.2, low=0.0, high=MAX_DENSITY, help="share of the central cells of 1 m with an obstacle")
    obstacle_size: Any = param(0.6, low=0.0, high=LARGE, unit="m", help="diameter")
    position_noise: Any = param(0.005, low=0.0, high=LARGE, unit="m", help="standard deviation of the position sensor")
    velocity_noise: Any = param(0.01, low=0.0, high=LARGE, unit="m/s", help="standard deviation of the velocity sensor")
    gyro_noise: Any = param(1.75e-4, low=0.0, high=LARGE, unit="rad/s", help="standard deviation of the gyroscope")
    spread: Any = param(2.0, low=0.0, high=LARGE, unit="m", help="of starts about their middle, either way")
    start_near: Any = param(0.0, low=0.0, high=1.0, help="share of drones that start near their goals, in training only")
    near_spread: Any = param(
        0.2,
        low=0.0,
        high=LARGE,
        unit="m",
        help="of these starts about the goals, either way; drones with the same goal may overlap",
    )
    near_share: Any = param(0.0, low=0.0, high=1.0, help="share of drones that start near their goals, in evaluation as well")
    grace: Any = param(1.5, low=0.0, high=LARGE, unit="s", help="initial period in which metrics ignore contacts")
    arrived: Any = param(0.5, above=0.0, high=LARGE, unit="m", help="distance within which a goal of one drone is reached")
    arrived_together: Any = param(1.0, above=0.0, high=LARGE, unit="m", help="distance within which a shared goal is reached")

    @property
    def period(self) -> Any:
        """Control step in s."""
        return self.drone.period


class Preset(NamedTuple):
    """Defaults of options and parameters."""

    mix: Sequence[str]  # scenarios, in equal shares
    obstacles: int = 0
    dynamics: str = "quadrotor"
    task: str = "goals"
    params: Mapping[str, Any] = {}
    drones: int = 8
    seconds: float = 15.0
    neighbours: int = 2
    limit: str = "truncate"


_AMONG = {"spread": 0.1, "weights": RewardWeights(near=4.0)}
# A contact costs as much as 1 m for a fifth of a second, so that covering all landmarks comes first.
_COVERAGE = {"spread": 0.1, "weights": RewardWeights(effort=0.0, collision=0.1, near=0.5)}
PRESETS = {
    **{name: Preset((name,)) for name in OPEN},
    "open": Preset(OPEN),
    "obstacles": Preset(AMONG_OBSTACLES, 16, params=_AMONG),
    "obstacles_random": Preset(("obstacles_random",), 16, params=_AMONG),
    "obstacles_same": Preset(("obstacles_same",), 16, params=_AMONG),
    "coverage": Preset(("obstacles_random",), 0, "point2d", "landmarks", _COVERAGE, 5, 5.0, 4, "end"),
}


def preset_params(name: str, dynamics: str) -> SwarmParams:
    """The parameters of a preset for these dynamics."""
    preset = PRESETS[name]
    drone = Quadrotor() if dynamics == "quadrotor" else PointMass()
    return SwarmParams(drone=drone, mix=shares(preset.mix), duration=round(preset.seconds / drone.period), **preset.params)


def check_consistency(env_params: SwarmParams, obstacles: int, dynamics: str, task: str) -> None:
    """Raises ``UserError`` for parameters that contradict one another; ``obstacles`` is the number of slots, M."""
    check_order(
        env_params,
        *((f"ranges.{name}_low", f"ranges.{name}_high") for name in ("spacing", "swap", "drift", "versus", "change")),
        ("ranges.low", "ranges.high"),
        ("bounces.low", "bounces.high"),
        ("bounces.spin_low", "bounces.spin_high"),
        ("bounces.obstacle_spin_low", "bounces.obstacle_spin_high"),
        ("bounces.slowest", "bounces.fastest"),
    )
    room, ranges, arm = env_params.room, env_params.ranges, float(env_params.drone.arm)
    if not arm < WALL:
        raise UserError(f"the drones have a radius of {arm:g} m; make them smaller than {WALL:g} m")
    drawn = {name for name, share in zip(SCENARIOS, np.asarray(env_params.mix), strict=True) if share > 0}
    if not drawn:
        raise UserError("mix is all 0; make at least one share positive")
    among = bool(drawn & {*AMONG_OBSTACLES})

    wide = ranges.centre + max(AWAY.get(name, 0.0) for name in drawn)
    wide += 0.5 * ranges.versus_high if "swarm_versus_swarm" in drawn else 0.0
    least = MARGIN + max(WALL + wide, CELLS / 2 if among else 0.0)
    if not room.half >= least:
        raise UserError(f"room.half={room.half:g} is too small for the goals; give at least {least:g}")
    high = ranges.high + max(UP.get(name, 0.0) for name in drawn)
    high = 0.0 if dynamics == "point2d" else max(high, HIGHEST if among else 0.0)
    least = MARGIN + WALL + max(WALL, high)
    if not room.height >= least:
        raise UserError(f"room.height={room.height:g} is too low for the goals; give at least {least:g}")

    if task == "landmarks" and max(float(env_params.start_near), float(env_params.near_share)) > 0:
        raise UserError(
            "drones that start near landmarks have covered them already; with task=landmarks set start_near and near_share to 0"
        )
    if among and not obstacles and task == "goals":
        raise UserError(f"mix includes {' or '.join(AMONG_OBSTACLES)}, but there are no obstacles; give obstacles=16")
    if not obstacles:
        return
    density, name = max((float(env_params.density), "density"), (float(ranges.density_high), "ranges.density_high"))
    needed = int(obstacle_count(density))
    if needed > obstacles:
        raise UserError(f"{name}={density:g} needs {needed} obstacles, but there are {obstacles}; give obstacles={needed}")
    size, name = max((float(env_params.obstacle_size), "obstacle_size"), (float(ranges.size_high), "ranges.size_high"))
    if not size <= 1.0 - 2.0 * arm + 1e-6:
        largest = np.floor(1e4 * (1.0 - 2.0 * arm)) / 1e4
        advice = f"give at most {largest:g}" if largest > 0 else "make the drones smaller"
        raise UserError(f"{name}={size:g} leaves no room for a drone of radius {arm:.3g} between cells of 1 m; {advice}")
