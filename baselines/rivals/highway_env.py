"""The road of ``merge`` in the highway-env package (1.12.1, ``pip install -e ".[dev]"``): the baseline for parity and speed.

Same road, clock, spawns and actions: 15 Hz physics, 5 decisions per second, CAVs with five target speeds, human drivers by IDM
and MOBIL, no speed limit. ``physics`` selects the package's own steering and drivers or those of MARL_CAVs.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from highway_env.envs.common.abstract import AbstractEnv
from highway_env.road.lane import SineLane, StraightLane
from highway_env.road.road import Road, RoadNetwork
from highway_env.utils import wrap_to_pi
from highway_env.vehicle.behavior import AggressiveVehicle, DefensiveVehicle, IDMVehicle
from highway_env.vehicle.controller import MDPVehicle
from highway_env.vehicle.kinematics import Vehicle
from highway_env.vehicle.objects import Obstacle

from marljax.envs.merge import road
from marljax.envs.merge.params import MAIN_SLOTS, NUM_CAVS, RAMP_SLOTS, MergeParams

SPEEDS = [10, 15, 20, 25, 30]
# highway-env's lane index of each segment
NODES = {name: (name[0], name[1], int(name[2:] or 0)) for name in road.NAMES}


@dataclasses.dataclass(frozen=True)
class Spawn:
    """One vehicle at the start."""

    slot: int  # 0–5 for CAVs, 6–11 for human drivers
    ramp: bool
    x: float  # m
    speed: float  # m/s
    driver: str = "base"  # a type in ``DRIVERS``; CAVs are always base drivers


def random_spawns(rng: np.random.Generator, cavs: int, hdvs: int) -> tuple[Spawn, ...]:
    """Vehicles at the start of an episode: half of each kind (rounded down) on the through lane, the others on the ramp."""
    free = {False: list(rng.permutation(MAIN_SLOTS)), True: list(rng.permutation(RAMP_SLOTS))}
    slots = [(slot, slot >= cavs // 2) for slot in range(cavs)] + [(6 + slot, slot >= hdvs // 2) for slot in range(hdvs)]
    return tuple(Spawn(slot, ramp, free[ramp].pop() + rng.uniform(-1.5, 1.5), rng.uniform(25, 27)) for slot, ramp in slots)


class SlipSteering:
    """MARL_CAVs' steering: the slip angle is used as the steering angle."""

    def steering_control(self: Any, target_lane_index: Any) -> float:
        lane = self.road.network.get_lane(target_lane_index)
        along, offset = lane.local_coordinates(self.position)
        turn = np.arcsin(np.clip(-self.KP_LATERAL * offset / self.speed, -1, 1))
        heading = lane.heading_at(along + self.speed * self.TAU_PURSUIT) + np.clip(turn, -np.pi / 4, np.pi / 4)
        rate = self.KP_HEADING * wrap_to_pi(heading - self.heading)
        slip = np.arcsin(np.clip(self.LENGTH / 2 / self.speed * rate, -1, 1))
        return float(np.clip(slip, -self.MAX_STEERING_ANGLE, self.MAX_STEERING_ANGLE))


class SlipCar(SlipSteering, MDPVehicle):
    """CAV of the ``marl_cavs`` preset."""


class CurrentLaneFollowing:
    """MARL_CAVs' human drivers follow the leader in the current lane only."""

    LANE_CHANGE_MAX_BRAKING_IMPOSED = 9.0

    def act(self: Any, action: Any = None) -> None:
        del action  # drivers decide for themselves
        self.follow_road()
        self.change_lane_policy()
        front, _ = self.road.neighbour_vehicles(self, self.lane_index)
        follow = np.clip(self.acceleration(self, front), -self.ACC_MAX, self.ACC_MAX)
        steering = np.clip(self.steering_control(self.target_lane_index), -self.MAX_STEERING_ANGLE, self.MAX_STEERING_ANGLE)
        Vehicle.act(self, {"steering": steering, "acceleration": follow})


class SlipDriver(CurrentLaneFollowing, SlipSteering, IDMVehicle):
    """Human driver of the ``marl_cavs`` preset."""

    LANE_CHANGE_MIN_ACC_GAIN = 0.1


class CurrentLaneAggressive(CurrentLaneFollowing, AggressiveVehicle):
    """Linear driver of the ``marl_cavs`` preset."""


class CurrentLaneDefensive(CurrentLaneFollowing, DefensiveVehicle):
    """Linear driver of the ``marl_cavs`` preset."""


# Vehicle classes of each physics preset of ``merge``: CAVs, and human drivers by type.
CAVS = {"highway_env": MDPVehicle, "marl_cavs": SlipCar}
DRIVERS: dict[str, dict[str, type[IDMVehicle]]] = {
    "highway_env": {"base": IDMVehicle, "linear_aggressive": AggressiveVehicle, "linear_defensive": DefensiveVehicle},
    "marl_cavs": {
        "base": SlipDriver,
        "linear_aggressive": CurrentLaneAggressive,
        "linear_defensive": CurrentLaneDefensive,
    },
}


class HighwayMerge(AbstractEnv):
    """One episode: ``HighwayMerge(config={"spawns": …, "physics": …, "neighbour_vehicles_connected_lanes": …})``."""

    PERCEPTION_DISTANCE = 180.0

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        limits = {"x": [-150, 150], "y": [-12, 12], "vx": [-45, 45], "vy": [-45, 45]}
        view = {"type": "Kinematics", "features_range": limits, "clip": False, "see_behind": True, "include_obstacles": False}
        actions = {"type": "DiscreteMetaAction", "target_speeds": SPEEDS}
        return super().default_config() | {
            "observation": {"type": "MultiAgentObservation", "observation_config": view},
            "action": {"type": "MultiAgentAction", "action_config": actions},
            "policy_frequency": 5,
            "neighbour_vehicles_connected_lanes": True,
            "physics": "highway_env",
            "spawns": (),
        }

    def _reset(self) -> None:
        """Builds the road and adds the vehicles, the rearmost first.

        highway-env's vehicles act sequentially, and one rule (aborting a lane change for a vehicle ahead) reads decisions already
        taken; in this order the result equals the simultaneous update of ``merge``.
        """
        network = RoadNetwork()
        for name in ("ab", "bc0", "bc1", "cd", "jk"):
            lane = road.NAMES.index(name)
            y = float(road.centre_y(jnp.array([lane]), jnp.zeros(1))[0])
            start, end = [road.START[lane], y], [road.END[lane], y]
            straight = StraightLane(start, end, forbidden=name in ("bc1", "jk"), speed_limit=None)
            network.add_lane(*NODES[name][:2], straight)
        curve = SineLane([220, 7.25], [320, 7.25], 3.25, np.pi / 100, np.pi / 2, forbidden=True, speed_limit=None)
        network.add_lane("k", "b", curve)
        self.road = Road(network=network, np_random=self.np_random)
        self.road.objects.append(Obstacle(self.road, [road.OBSTACLE_X, road.OBSTACLE_Y]))
        car, drivers = CAVS[self.config["physics"]], DRIVERS[self.config["physics"]]
        placed = {}
        for spawn in sorted(self.config["spawns"], key=lambda spawn: spawn.x):
            position = [spawn.x, road.RAMP_Y if spawn.ramp else 0.0]
            if spawn.slot < NUM_CAVS:
                placed[spawn.slot] = car(self.road, position, speed=spawn.speed, target_speed=25.0, target_speeds=SPEEDS)
            else:
                placed[spawn.slot] = drivers[spawn.driver](self.road, position, speed=spawn.speed)
            self.road.vehicles.append(placed[spawn.slot])
        self.placed = placed
        self.controlled_vehicles = [placed[slot] for slot in sorted(placed) if slot < NUM_CAVS]

    def _reward(self, action: Any) -> float:
        del action
        return 0.0

    def _is_terminated(self) -> bool:
        return any(vehicle.crashed for vehicle in self.road.vehicles)

    def _is_truncated(self) -> bool:
        return False


def random_episode(physics: str, env_params: MergeParams, rng: np.random.Generator) -> int:
    """Plays an episode with random available actions and returns its length, at most 100 decisions."""
    cavs = int(rng.integers(env_params.cavs_min, env_params.cavs_max + 1))
    hdvs = int(rng.integers(env_params.hdvs_min, env_params.hdvs_max + 1))
    env = HighwayMerge(config={"spawns": random_spawns(rng, cavs, hdvs), "physics": physics})
    length, terminated = 0, False
    while length < 100 and not terminated:
        available = [agent.get_available_actions() for agent in env.action_type.agents_action_types]
        *_, terminated, _, _ = env.step(tuple(int(rng.choice(choices)) for choices in available))
        length += 1
    return length
