"""The numbers of ``swarm`` and its presets."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from marljax.envs.swarm_body import Quadrotor, Room
from marljax.envs.swarm_contacts import Bounces, Downwash
from marljax.envs.swarm_point import PointMass
from marljax.envs.swarm_scenarios import AMONG_OBSTACLES, OPEN, SCENARIOS, Ranges, obstacle_count
from marljax.errors import UserError


class RewardWeights(struct.PyTreeNode):
    """Of the costs of a control step, as published: the first five count for 2 s of simulated time each."""

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


_BETWEEN = {"spread": 0.1, "weights": RewardWeights(near=4.0)}
# a contact costs what 1 m costs in a fifth of a second, so that being everywhere is what counts
_COVERAGE = {"spread": 0.1, "weights": RewardWeights(effort=0.0, collision=0.1, near=0.5)}
PRESETS = {
    **{name: Preset((name,)) for name in OPEN},
    "open": Preset(OPEN),
    "obstacles": Preset(AMONG_OBSTACLES, 16, numbers=_BETWEEN),
    "obstacles_random": Preset(("obstacles_random",), 16, numbers=_BETWEEN),
    "obstacles_same": Preset(("obstacles_same",), 16, numbers=_BETWEEN),
    "coverage": Preset(("obstacles_random",), 0, "point2d", "landmarks", _COVERAGE, 5, 5.0, 4),
}


def preset_params(name: str, dynamics: str) -> SwarmParams:
    """The numbers of a preset for these dynamics."""
    preset = PRESETS[name]
    drone = Quadrotor() if dynamics == "quadrotor" else PointMass()
    return SwarmParams(drone=drone, mix=shares(preset.mix), duration=round(preset.seconds / drone.period), **preset.numbers)


def check(env_params: SwarmParams, obstacles: int, dynamics: str, task: str) -> None:
    """Raises ``UserError`` for numbers that no episode can have; ``obstacles`` is how many the arrays hold."""
    mix = np.asarray(env_params.mix)
    if mix.shape != (len(SCENARIOS),) or (mix < 0).any() or not mix.sum() > 0:
        raise UserError(f"mix of swarm is {mix.tolist()}; give {len(SCENARIOS)} shares, at least one of them above 0")
    among = mix[[SCENARIOS.index(name) for name in AMONG_OBSTACLES]].any()
    if among and not obstacles and task == "goals":
        raise UserError(f"mix of swarm has {' or '.join(AMONG_OBSTACLES)}, but there are no obstacles; give obstacles=16")
    density = float(np.max(env_params.density))
    if not 0 <= float(np.min(env_params.density)) <= density < 1:
        raise UserError(f"density of swarm is {density:g}; give a share of cells from 0 to below 1")
    needed = int(obstacle_count(density))
    if obstacles and needed > obstacles:
        raise UserError(
            f"density={density:g} of swarm is {needed} obstacles, but there is room for {obstacles}; give obstacles={needed}"
        )
    if float(np.max(env_params.obstacle_size)) > 1.0 - 2.0 * float(np.max(env_params.drone.arm)):
        size = f"obstacle_size of swarm is {float(np.max(env_params.obstacle_size)):g}"
        raise UserError(f"{size} m; cells are 1 m wide and a drone has to fit between two, so give at most 0.9")
    if dynamics == "quadrotor" and float(np.min(env_params.drone.thrust_to_weight)) <= 1:
        raise UserError("drone.thrust_to_weight of swarm has to be above 1; such a drone could not take off")
    for name, least in (("duration", 1), ("grace", 0), ("spread", 0), ("arrived", 0), ("obstacle_size", 0)):
        if not all(value >= least for value in np.ravel(jax.device_get(getattr(env_params, name)))):
            raise UserError(f"{name} of swarm is {np.min(getattr(env_params, name)):g}; give at least {least}")
