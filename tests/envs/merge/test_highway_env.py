"""Whole scenes of ``merge`` against the ``highway-env`` package, 1.12.1, on the same road, in float64.

The reference is configured with this road, neighbour search over connected lanes, five target speeds and no speed limit; for
``marl_cavs`` also with that simulator's steering law and driver. Its vehicles act sequentially, and one rule (aborting a lane
change for a vehicle ahead) reads decisions already taken: with vehicles ordered from rearmost to foremost this equals the
simultaneous update of ``merge``.

A scene is followed until contact (the package applies collision impulses one sub-step later) or until a vehicle nearly stops:
from then on a driver may roll backwards, where the steering law is unstable and doubles rounding errors every sub-step. With
MARL_CAVs' rules for collisions and episode ends, reimplemented here, episodes of ``marl_cavs`` are followed to their end,
rewards included.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from merge_reference import adjacent, boxes_overlap, is_front, is_rear

from marljax.baselines.rivals.highway_env import NODES, HighwayMerge, Spawn, random_spawns
from marljax.envs.merge import Merge, road, traffic
from marljax.envs.merge.actions import IDLE, LEFT
from marljax.envs.merge.params import NUM_CAVS
from marljax.envs.merge.spawn import enter

LANE_OF = {NODES[name]: number for number, name in enumerate(road.NAMES)}
LINEAR = ("linear_aggressive", "linear_defensive")
MIN_SPEED = 1.0  # m/s


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnums=0)
def initial(env, env_params, x, speed, ramp, driver, alive):
    state = env.initial(jax.random.key(0), env_params)
    vehicles = enter(x, speed, ramp, driver, jnp.zeros(12), alive, env_params)
    state = state.replace(vehicles=vehicles, on_ramp=ramp[:NUM_CAVS])
    return state, env.observe(state, env_params)


def play(env, env_params, reference, choose, rng):
    """Takes the same actions in both; yields (decision, our state, our view), the initial ones first."""
    reference.reset()
    reference.observe = reference.observation_type.observe
    reference.observation_type.observe = lambda: None  # called in every step, where it takes 80 % of the time
    spawns = {spawn.slot: spawn for spawn in reference.config["spawns"]}
    rows = [spawns.get(slot, Spawn(slot, False, 0.0, 0.0)) for slot in range(12)]
    x, speed, ramp = (np.array([getattr(row, name) for row in rows]) for name in ("x", "speed", "ramp"))
    driver = np.array([traffic.DRIVERS.index(row.driver) for row in rows], np.int32)
    state, view = initial(env, env_params, x, speed, ramp, driver, np.array([slot in spawns for slot in range(12)]))
    for decision in range(101):
        yield decision, state, view
        action = np.array([choose(rng, np.flatnonzero(row)) for row in np.asarray(view.action_mask)])
        state, view = env.step(jax.random.key(0), state, action, env_params)
        reference.step(tuple(int(action[slot]) for slot in sorted(spawns) if slot < NUM_CAVS))


def assert_same(decision, state, view, reference, observations):
    """Vehicles and available actions agree, and the ``observations`` if requested."""
    when = f"decision {decision}"
    vehicles, obs, mask = jax.device_get((state.vehicles, view.obs, view.action_mask))
    slots, others = list(reference.placed), list(reference.placed.values())
    ours = np.stack([vehicles.x, vehicles.y, vehicles.heading, vehicles.speed, vehicles.target_speed], axis=1)[slots]
    expected = [[*other.position, other.heading, other.speed, other.target_speed] for other in others]
    np.testing.assert_allclose(ours, expected, atol=1e-6, rtol=0, err_msg=f"vehicles {slots} at {when}")
    lanes = [(LANE_OF[other.lane_index], LANE_OF[other.target_lane_index]) for other in others]
    assert list(zip(vehicles.lane[slots], vehicles.target_lane[slots], strict=True)) == lanes, f"vehicles {slots} at {when}"
    cavs = sorted(slot for slot in slots if slot < NUM_CAVS)
    if observations:
        np.testing.assert_allclose(obs[cavs], [np.ravel(other) for other in reference.observe()], atol=1e-6, err_msg=when)
    available = [sorted(agent.get_available_actions()) for agent in reference.action_type.agents_action_types]
    assert [np.flatnonzero(row).tolist() for row in mask[cavs]] == available, when


def follow(env, spawns, choose, rng) -> tuple[int, int]:
    """(decisions until contact, standstill or 100; vehicles that changed from the ramp to the through lane, 0 after contact)."""
    env_params = env.default_params.replace(speed_lowest=10.0, speed_levels=5, duration=1000)
    config = {"spawns": spawns, "physics": env.physics, "neighbour_vehicles_connected_lanes": env.connected_lanes}
    reference = HighwayMerge(config=config)
    for decision, state, view in play(env, env_params, reference, choose, rng):
        vehicles = reference.placed.values()
        if any(other.crashed or other.impact is not None for other in vehicles):
            return decision, 0
        assert_same(decision, state, view, reference, observations=decision % 5 == 0)
        if decision == 100 or any(other.speed < MIN_SPEED for other in vehicles):
            break
    lanes = np.asarray(state.vehicles.lane)
    return decision, sum(spawn.ramp and int(lanes[spawn.slot]) in (road.BC0, road.CD) for spawn in spawns)


def merge_left(rng, available) -> int:
    return LEFT if LEFT in available else IDLE


def restless(rng, available) -> int:
    """Left when possible, otherwise occasionally a random speed."""
    if LEFT in available:
        return LEFT
    return int(rng.choice(available)) if rng.random() < 0.3 else IDLE


def reckless(rng, available) -> int:
    return int(rng.choice(available))


@pytest.mark.parametrize(
    ("physics", "connected"),
    [("highway_env", True), pytest.param("highway_env", False, marks=pytest.mark.slow), ("marl_cavs", True)],
)
def test_whole_scenes(physics, connected):
    """Spawns and action sequences of all sizes, on the through lane and the ramp."""
    scenes = ((1, 1, merge_left), (1, 3, merge_left), (2, 2, restless), (2, 4, merge_left), (5, 5, restless))
    env, rng = Merge(physics=physics, connected_lanes=connected), np.random.default_rng(12)
    followed = [follow(env, random_spawns(rng, cavs, hdvs), choose, rng) for cavs, hdvs, choose in scenes]
    complete = [merged for decisions, merged in followed if decisions == 100]
    assert len(complete) >= 4, followed
    assert sum(complete) >= 8, followed
    assert all(decisions > 20 for decisions, _ in followed), followed


@pytest.mark.parametrize("physics", ["highway_env", "marl_cavs"])
def test_whole_scenes_with_linear_drivers(physics):
    """Linear drivers only, behind CAVs that merge or keep changing their speed, and MAPPO-PIS' pair among base drivers."""
    pair = (Spawn(10, True, 100.7, 25.6, LINEAR[0]), Spawn(11, False, 119.5, 26.2, LINEAR[1]))
    followed = []
    cases = ((0, 1, 4, merge_left, False), (2, 2, 3, restless, False), (1, 2, 2, merge_left, True))
    for seed, cavs, hdvs, choose, mixed in cases:
        rng = np.random.default_rng(seed)
        spawns = random_spawns(rng, cavs, hdvs)
        linear = (*spawns[:cavs], *(dataclasses.replace(spawn, driver=LINEAR[spawn.slot % 2]) for spawn in spawns[cavs:]))
        followed.append(follow(Merge(physics=physics), (*spawns, *pair) if mixed else linear, choose, rng))
    assert [decisions for decisions, _ in followed[:2]] == [100, 100], followed
    assert followed[2][0] > 80, followed
    assert all(merged >= 2 for _, merged in followed), followed


PLATOON = [Spawn(6 + n, False, x, 26.0) for n, x in enumerate((10.2, 50.3, 90.7, 130.1, 170.9))]


@pytest.mark.parametrize(
    ("spawns", "choose", "seed", "merged"),
    [
        ((Spawn(0, False, 210.0, 25.5), *PLATOON), restless, 1, 0),
        ((Spawn(0, True, 45.0, 25.2), Spawn(6, True, 5.5, 26.1), Spawn(7, True, 85.4, 25.9)), merge_left, 0, 3),
    ],
    ids=["platoon behind a CAV that keeps changing its speed", "ramp only"],
)
def test_one_road_only(spawns, choose, seed, merged):
    assert follow(Merge(physics="highway_env"), spawns, choose, np.random.default_rng(seed)) == (100, merged)


class MarlCavsMerge(HighwayMerge):
    """MARL_CAVs' collisions and clock: physics stops after the sub-step in which a CAV crashes or the limit is reached, which
    is the first one of the hundredth decision."""

    decisions = substeps = 0

    def _simulate(self, action) -> None:
        self.decisions += 1
        self.action_type.act(action)
        for _ in range(3):
            self.road.act()
            for vehicle in self.road.vehicles:
                vehicle.step(1 / 15)
            self.collide()
            self.substeps += 1
            if any(vehicle.crashed for vehicle in self.controlled_vehicles) or self.decisions >= 100:
                break

    def collide(self) -> None:
        """Boxes of 0.9 the size overlap, centres at most 5 m apart: both crash, at the smaller speed; an obstacle's is 0."""
        for vehicle in self.road.vehicles:
            for other in (*self.road.vehicles, *self.road.objects):
                if vehicle.crashed or other is vehicle or np.linalg.norm(vehicle.position - other.position) > 5:
                    continue
                if boxes_overlap(*((o.position, 0.9 * o.LENGTH, 0.9 * o.WIDTH, o.heading) for o in (vehicle, other))):
                    slowest = min(vehicle.speed, other.speed, key=abs)
                    vehicle.crashed, vehicle.speed = True, slowest
                    if other in self.road.vehicles:
                        other.crashed, other.speed = True, slowest


def nearest(vehicle, others, lane):
    """The front and the rear vehicle on ``lane``, or None."""
    x = vehicle.position[0]
    ahead = [other for other in others if is_front(lane, x, other.segment, other.position[0])]
    behind = [other for other in others if is_rear(lane, x, other.segment, other.position[0])]
    front = min(ahead, key=lambda other: other.position[0], default=None)
    return front, max(behind, key=lambda other: other.position[0], default=None)


def regional_rewards(reference) -> dict[int, float]:
    """By slot of a CAV: the mean over itself and the CAVs among the four neighbours in its own and the adjacent lane."""
    vehicles = list(reference.placed.values())
    groups = {}
    for vehicle in vehicles:
        vehicle.segment = road.NAMES[LANE_OF[vehicle.lane_index]]
    for slot, vehicle in reference.placed.items():
        x, speed, lane = vehicle.position[0], vehicle.speed, vehicle.segment
        others = [other for other in vehicles if other is not vehicle]
        front, rear = nearest(vehicle, others, lane)
        headway = 60.0 if front is None else min(front.position[0] - x, 60.0)
        close = min(np.log(headway / (1.2 * speed)), 0.0) if speed > 0 else 0.0
        merging = np.exp(-((x - 420) ** 2) / 1000) if lane == "bc1" else 0.0
        vehicle.own_reward = -200.0 * vehicle.crashed + np.clip((speed - 10) / 20, 0, 1) - 4 * merging + 4 * close
        groups[slot] = [vehicle, front, rear, *nearest(vehicle, others, adjacent(lane, x))]
    return {
        slot: float(np.mean([member.own_reward for member in group if member in reference.controlled_vehicles]))
        for slot, group in groups.items()
        if slot < NUM_CAVS
    }


def follow_to_the_end(env, spawns, choose, rng):
    """(sub-steps left out of the last decision, whether a CAV crashed) of an episode."""
    reference = MarlCavsMerge(config={"spawns": spawns, "physics": env.physics})
    slots = [spawn.slot for spawn in spawns]
    for decision, state, timestep in play(env, env.default_params, reference, choose, rng):
        if decision == 0:
            continue
        when = f"decision {decision}"
        assert_same(decision, state, timestep, reference, observations=decision % 5 == 0 or bool(timestep.last))
        crashes = [reference.placed[slot].crashed for slot in slots]
        assert np.asarray(state.vehicles.crashed)[slots].tolist() == crashes, when
        rewards = regional_rewards(reference)
        np.testing.assert_allclose(np.asarray(timestep.reward)[list(rewards)], list(rewards.values()), atol=1e-6, err_msg=when)
        crashed = any(vehicle.crashed for vehicle in reference.controlled_vehicles)
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (crashed, decision == 100 and not crashed), when
        crossings = float(timestep.metrics["throughput"]) * reference.substeps / 15
        assert crossings == pytest.approx(round(crossings), abs=1e-6), when
        if timestep.last:
            return 3 * decision - reference.substeps, crashed
    raise AssertionError("an episode ends within 100 decisions")


def test_marl_cavs_episodes_to_their_end():
    """Crashes in each of the three sub-steps of a decision, and a last decision of one sub-step."""
    cases = ((1, 4, 3, reckless), (12, 6, 3, reckless), (22, 6, 3, reckless), (10, 5, 4, reckless), (3, 1, 1, merge_left))
    ends = []
    for seed, cavs, hdvs, choose in cases:
        rng = np.random.default_rng(seed)
        ends.append(follow_to_the_end(Merge(), random_spawns(rng, cavs, hdvs), choose, rng))
    assert ends == [(1, True), (2, True), (2, True), (0, True), (2, False)]
