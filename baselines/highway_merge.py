"""The road of ``merge`` in the highway-env package (1.12.1, ``pip install marljax[dev]``): the rival in parity and speed.

Same road, clock, spawns and actions: 15 Hz physics, 5 decisions per second, CAVs with five target speeds, human drivers by IDM
and MOBIL, a search for neighbours over connected lanes, no speed limit.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from highway_env.envs.common.abstract import AbstractEnv
from highway_env.road.lane import SineLane, StraightLane
from highway_env.road.road import Road, RoadNetwork
from highway_env.vehicle.behavior import IDMVehicle
from highway_env.vehicle.objects import Obstacle

from marljax.envs import merge
from marljax.envs import merge_road as road

SPEEDS = [10, 15, 20, 25, 30]
NODES = {
    "ab": ("a", "b", 0),
    "bc0": ("b", "c", 0),
    "bc1": ("b", "c", 1),
    "cd": ("c", "d", 0),
    "jk": ("j", "k", 0),
    "kb": ("k", "b", 0),
}


@dataclasses.dataclass(frozen=True)
class Spawn:
    """One vehicle at the start."""

    slot: int  # 0–5 for CAVs, 6–11 for human drivers
    ramp: bool
    x: float  # m
    speed: float  # m/s


def random_spawns(rng: np.random.Generator, cavs: int, hdvs: int) -> tuple[Spawn, ...]:
    """As ``merge`` starts an episode: half of each kind (rounded down) on the through lane, the others on the ramp."""
    free = {False: list(rng.permutation(merge.MAIN_SLOTS)), True: list(rng.permutation(merge.RAMP_SLOTS))}
    slots = [(slot, slot >= cavs // 2) for slot in range(cavs)] + [(6 + slot, slot >= hdvs // 2) for slot in range(hdvs)]
    return tuple(Spawn(slot, ramp, free[ramp].pop() + rng.uniform(-1.5, 1.5), rng.uniform(25, 27)) for slot, ramp in slots)


class HighwayMerge(AbstractEnv):
    """``HighwayMerge(config={"spawns": …, "neighbour_vehicles_connected_lanes": …})`` is one episode's start."""

    PERCEPTION_DISTANCE = 180.0

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        limits = {"x": [-150, 150], "y": [-12, 12], "vx": [-45, 45], "vy": [-45, 45]}
        seen = {"type": "Kinematics", "features_range": limits, "clip": False, "see_behind": True, "include_obstacles": False}
        acting = {"type": "DiscreteMetaAction", "target_speeds": SPEEDS}
        return super().default_config() | {
            "observation": {"type": "MultiAgentObservation", "observation_config": seen},
            "action": {"type": "MultiAgentAction", "action_config": acting},
            "policy_frequency": 5,
            "neighbour_vehicles_connected_lanes": True,
            "spawns": (),
        }

    def _reset(self) -> None:
        """Builds the road and places the vehicles, the rearmost first.

        highway-env's vehicles decide one after the other, and one rule (giving up a lane change to a rival ahead) reads decisions
        already taken; in this order that is the simultaneous update of ``merge``.
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
        placed = {}
        for spawn in sorted(self.config["spawns"], key=lambda spawn: spawn.x):
            position = [spawn.x, road.RAMP_Y if spawn.ramp else 0.0]
            if spawn.slot < merge.NUM_CAVS:
                placed[spawn.slot] = self.action_type.vehicle_class(self.road, position, speed=spawn.speed, target_speed=25.0)
            else:
                placed[spawn.slot] = IDMVehicle(self.road, position, speed=spawn.speed)
            self.road.vehicles.append(placed[spawn.slot])
        self.placed = placed
        self.controlled_vehicles = [placed[slot] for slot in sorted(placed) if slot < merge.NUM_CAVS]

    def _reward(self, action: Any) -> float:
        del action
        return 0.0

    def _is_terminated(self) -> bool:
        return any(vehicle.crashed for vehicle in self.road.vehicles)

    def _is_truncated(self) -> bool:
        return False


def random_episode(env_params: merge.MergeParams, rng: np.random.Generator) -> int:
    """Plays one episode of up to 100 decisions with random available actions; the number of decisions."""
    cavs = int(rng.integers(env_params.cavs_min, env_params.cavs_max + 1))
    hdvs = int(rng.integers(env_params.hdvs_min, env_params.hdvs_max + 1))
    env = HighwayMerge(config={"spawns": random_spawns(rng, cavs, hdvs)})
    for decision in range(100):
        available = [agent.get_available_actions() for agent in env.action_type.agents_action_types]
        *_, terminated, _, _ = env.step(tuple(int(rng.choice(choices)) for choices in available))
        if terminated:
            return decision + 1
    return 100
