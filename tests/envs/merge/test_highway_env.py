"""Whole scenes of ``merge`` against the ``highway-env`` package, 1.12.1, on the same road, in float64.

The package is given this road, a search for neighbours over connected lanes, five target speeds and no speed limit; for the
``marl_cavs`` preset also that simulator's steering law and driver. Its vehicles act one after the other, and one rule (giving
up a lane change to a rival ahead) reads decisions already taken: with vehicles listed from the rearmost to the foremost that
is the simultaneous update of ``merge``.

A scene is followed until contact (the package's collision impulse comes one sub-step later) or until a vehicle all but
stands: from there on a driver may roll backwards, where the steering law is unstable and doubles the last bit's rounding
every sub-step. With MARL_CAVs' rules for collisions and for the end of an episode, written down here, episodes of the
``marl_cavs`` preset are followed through their crash or their last decision, rewards included.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.baselines.rivals.highway_env import NODES, HighwayMerge, Spawn, random_spawns
from marljax.envs.merge import Merge, road, traffic
from marljax.envs.merge.actions import IDLE, LEFT
from marljax.envs.merge.params import NUM_CAVS
from marljax.envs.merge.spawn import settle

LANE_OF = {NODES[name]: number for number, name in enumerate(road.NAMES)}
SLOW = 1.0  # m/s


def make_rival(env, spawns) -> HighwayMerge:
    """highway-env set up like ``env``."""
    connected = env.connected_lanes
    return HighwayMerge(config={"spawns": spawns, "physics": env.physics, "neighbour_vehicles_connected_lanes": connected})


def initial_state(env, env_params, spawns):
    """A state of ``merge`` with exactly these vehicles."""
    filled = {spawn.slot: spawn for spawn in spawns}

    def column(field: str) -> jax.Array:
        return jnp.array([float(getattr(filled[slot], field)) if slot in filled else 0.0 for slot in range(12)])

    alive = jnp.array([slot in filled for slot in range(12)])
    ramp = column("ramp") > 0
    kinds = [traffic.DRIVERS.index(filled[slot].driver) if slot in filled else 0 for slot in range(12)]
    drivers = jnp.array(kinds, jnp.int32)
    vehicles = settle(column("x"), column("speed"), ramp, drivers, jnp.zeros(12), alive, env_params)
    state = env.initial(jax.random.key(0), env_params)
    return state.replace(vehicles=vehicles, on_ramp=ramp[:NUM_CAVS])


@dataclasses.dataclass(frozen=True)
class Followed:
    """How long the two agreed, and how many vehicles had changed from the ramp to the through lane (0 after contact)."""

    decisions: int
    merged: int


def follow_scene(env, spawns, choose, rng) -> Followed:
    """Runs both side by side and holds every vehicle, observation and set of actions to each other after every decision."""
    env_params = env.default_params.replace(speed_lowest=10.0, speed_levels=5, duration=1000)
    state = initial_state(env, env_params, spawns)
    step, look = jax.jit(env.transition), jax.jit(env.observe)
    rival = make_rival(env, spawns)
    seen, _ = rival.reset()
    cavs = [slot for slot in sorted(rival.placed) if slot < NUM_CAVS]
    ramp = np.array([spawn.ramp for spawn in sorted(spawns, key=lambda spawn: spawn.slot)])
    for decision in range(101):
        vehicles = rival.placed.values()
        if any(other.crashed or other.impact is not None for other in vehicles):
            return Followed(decision, 0)
        view = look(state, env_params)
        assert_same_vehicles(state.vehicles, rival.placed, f"decision {decision}")
        assert_same_views(view, cavs, seen, rival, f"decision {decision}")
        if decision == 100 or any(other.speed < SLOW for other in vehicles):
            lanes = np.asarray(state.vehicles.lane)[sorted(rival.placed)]
            return Followed(decision, int(np.sum(ramp & ((lanes == road.BC0) | (lanes == road.CD)))))
        action = np.array([choose(rng, np.flatnonzero(row)) for row in np.asarray(view.action_mask)])
        state, _ = step(jax.random.key(0), state, jnp.asarray(action), env_params)
        seen, *_ = rival.step(tuple(int(action[slot]) for slot in cavs))
    raise AssertionError("a scene ends within 100 decisions")


def assert_same_vehicles(vehicles, placed, when) -> None:
    for slot, other in placed.items():
        ours = [vehicles.x[slot], vehicles.y[slot], vehicles.heading[slot], vehicles.speed[slot], vehicles.target_speed[slot]]
        theirs = [*other.position, other.heading, other.speed, other.target_speed]
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0, err_msg=f"vehicle {slot} at {when}")
        lanes = (int(vehicles.lane[slot]), int(vehicles.target_lane[slot]))
        assert lanes == (LANE_OF[other.lane_index], LANE_OF[other.target_lane_index]), f"vehicle {slot} at {when}"


def assert_same_views(view, cavs, seen, rival, when) -> None:
    for slot, other, acting in zip(cavs, seen, rival.action_type.agents_action_types, strict=True):
        np.testing.assert_allclose(view.obs[slot], np.ravel(other), atol=1e-6, err_msg=f"observation {slot} at {when}")
        assert np.flatnonzero(view.action_mask[slot]).tolist() == sorted(acting.get_available_actions()), f"{slot} at {when}"


def merge_left(rng, available) -> int:
    return LEFT if LEFT in available else IDLE


def restless(rng, available) -> int:
    """Left when possible, otherwise now and then a random speed."""
    if LEFT in available:
        return LEFT
    return int(rng.choice(available)) if rng.random() < 0.3 else IDLE


@pytest.mark.parametrize(
    ("physics", "connected"),
    [("highway_env", True), pytest.param("highway_env", False, marks=pytest.mark.slow), ("marl_cavs", True)],
)
def test_whole_scenes(physics, connected):
    """Spawns and action sequences of all sizes, through lane and ramp."""
    scenes = ((1, 1, merge_left), (1, 3, merge_left), (2, 2, restless), (2, 4, merge_left), (5, 5, restless))
    with jax.enable_x64(True):
        env, rng = Merge(physics=physics, connected_lanes=connected), np.random.default_rng(12)
        followed = [follow_scene(env, random_spawns(rng, cavs, hdvs), choose, rng) for cavs, hdvs, choose in scenes]
    complete = [scene for scene in followed if scene.decisions == 100]
    assert len(complete) >= 4, followed
    assert sum(scene.merged for scene in complete) >= 8, followed
    assert all(scene.decisions > 20 for scene in followed), followed


@pytest.mark.parametrize("physics", ["highway_env", "marl_cavs"])
def test_whole_scenes_with_linear_drivers(physics):
    """Linear drivers only, behind CAVs that merge or keep changing their speed, and MAPPO-PIS' pair among base drivers."""
    kinds = ("linear_aggressive", "linear_defensive")
    pair = (Spawn(10, True, 100.7, 25.6, kinds[0]), Spawn(11, False, 119.5, 26.2, kinds[1]))
    followed = []
    with jax.enable_x64(True):
        env = Merge(physics=physics)
        for seed, cavs, hdvs, choose, mixed in (
            (0, 1, 4, merge_left, False),
            (2, 2, 3, restless, False),
            (1, 2, 2, merge_left, True),
        ):
            rng = np.random.default_rng(seed)
            spawns = random_spawns(rng, cavs, hdvs)
            humans = (
                spawns[cavs:] if mixed else [dataclasses.replace(spawn, driver=kinds[spawn.slot % 2]) for spawn in spawns[cavs:]]
            )
            followed.append(follow_scene(env, (*spawns[:cavs], *humans, *(pair if mixed else ())), choose, rng))
    assert [scene.decisions for scene in followed[:2]] == [100, 100], followed
    assert followed[2].decisions > 80, followed
    assert all(scene.merged >= 2 for scene in followed), followed


def test_through_lane_alone():
    """A platoon behind a CAV that keeps changing its speed: car following under changing load."""
    platoon = (
        Spawn(0, False, 210.0, 25.5),
        *(Spawn(6 + n, False, x, 26.0) for n, x in enumerate((10.2, 50.3, 90.7, 130.1, 170.9))),
    )
    with jax.enable_x64(True):
        assert follow_scene(Merge(physics="highway_env"), platoon, restless, np.random.default_rng(1)) == Followed(100, 0)


def test_ramp_alone():
    """One CAV and two human drivers on the ramp, who all merge."""
    ramp = (Spawn(0, True, 45.0, 25.2), Spawn(6, True, 5.5, 26.1), Spawn(7, True, 85.4, 25.9))
    with jax.enable_x64(True):
        assert follow_scene(Merge(physics="highway_env"), ramp, merge_left, np.random.default_rng(0)) == Followed(100, 3)


class MarlCavsMerge(HighwayMerge):
    """MARL_CAVs' collisions and clock: physics stops after the sub-step in which a CAV crashes, or the limit is reached.

    In its hundredth decision the limit is reached before the first sub-step is over.
    """

    decisions = substeps = 0

    def _simulate(self, action) -> None:
        self.decisions += 1
        for substep in range(3):
            if substep == 0:
                self.action_type.act(action)
            self.road.act()
            for vehicle in self.road.vehicles:
                vehicle.step(1 / 15)
            self.collide()
            self.substeps += 1
            if any(vehicle.crashed for vehicle in self.controlled_vehicles) or self.decisions >= 100:
                break

    def collide(self) -> None:
        """Boxes of 0.9 of the size overlap, centres at most 5 m apart: both crash, at the smaller speed; an obstacle has none."""
        for vehicle in self.road.vehicles:
            for other in (*self.road.vehicles, *self.road.objects):
                if vehicle.crashed or other is vehicle or not touching(vehicle, other):
                    continue
                slowest = min(vehicle.speed, other.speed, key=abs)
                vehicle.crashed, vehicle.speed = True, slowest
                if other in self.road.vehicles:
                    other.crashed, other.speed = True, slowest


def touching(one, other) -> bool:
    corners = []
    for item in (one, other):
        ahead = np.array([np.cos(item.heading), np.sin(item.heading)])
        along, across = 0.45 * item.LENGTH * ahead, 0.45 * item.WIDTH * np.array([-ahead[1], ahead[0]])
        corners.append(item.position + np.array([along + across, along - across, -along - across, across - along]))
    if np.linalg.norm(one.position - other.position) > 5:
        return False
    for heading in (one.heading, other.heading):
        for angle in (heading, heading + np.pi / 2):
            first, second = (points @ [np.cos(angle), np.sin(angle)] for points in corners)
            if first.max() < second.min() or second.max() < first.min():
                return False
    return True


FOLLOWING = {"ab": ("bc0",), "bc0": ("cd",), "bc1": (), "cd": (), "jk": ("kb",), "kb": ("bc1",)}
LEADING = {"ab": (), "bc0": ("ab",), "bc1": ("kb",), "cd": ("bc0", "bc1"), "jk": (), "kb": ("jk",)}
BESIDE = {"ab": "kb", "bc0": "bc1", "bc1": "bc0", "kb": "ab"}


def nearest(vehicle, others, lane):
    """The vehicles in front of and behind ``vehicle`` on ``lane``, or None."""
    ahead = [o for o in others if o.segment in (lane, *FOLLOWING[lane]) and o.position[0] > vehicle.position[0]]
    behind = [o for o in others if o.segment in (lane, *LEADING[lane]) and o.position[0] <= vehicle.position[0]]
    front = min(ahead, key=lambda other: other.position[0], default=None)
    return front, max(behind, key=lambda other: other.position[0], default=None)


def own_reward(vehicle, others) -> float:
    x, speed = vehicle.position[0], vehicle.speed
    front, _ = nearest(vehicle, others, vehicle.segment)
    headway = 60.0 if front is None else min(front.position[0] - x, 60.0)
    close = min(np.log(headway / (1.2 * speed)), 0.0) if speed > 0 else 0.0
    merging = np.exp(-((x - 420) ** 2) / 1000) if vehicle.segment == "bc1" else 0.0
    return -200.0 * vehicle.crashed + np.clip((speed - 10) / 20, 0, 1) - 4 * merging + 4 * close


def regional_rewards(rival) -> dict[int, float]:
    """By slot of a CAV: the mean over itself and those CAVs among the four neighbours in its own lane and the one beside."""
    vehicles = list(rival.placed.values())
    for vehicle in vehicles:
        vehicle.segment = road.NAMES[LANE_OF[vehicle.lane_index]]
    for vehicle in vehicles:
        vehicle.own_reward = own_reward(vehicle, [other for other in vehicles if other is not vehicle])
    rewards = {}
    for slot, vehicle in rival.placed.items():
        if slot < NUM_CAVS:
            others = [other for other in vehicles if other is not vehicle]
            members = [vehicle, *nearest(vehicle, others, vehicle.segment)]
            if vehicle.segment in BESIDE and (vehicle.segment != "ab" or vehicle.position[0] > 220):
                members += nearest(vehicle, others, BESIDE[vehicle.segment])
            shared = [member.own_reward for member in members if member in rival.controlled_vehicles]
            rewards[slot] = float(np.mean(shared))
    return rewards


def reckless(rng, available) -> int:
    return int(rng.choice(available))


def follow_episode(env, spawns, choose, rng):
    """Runs an episode of both side by side to its end: (decisions, sub-steps, whether a CAV crashed)."""
    env_params = env.default_params
    state, look = initial_state(env, env_params, spawns), jax.jit(env.observe)
    rival = MarlCavsMerge(config={"spawns": spawns, "physics": env.physics})
    cavs = [slot for slot in sorted(rival.placed) if slot < NUM_CAVS]
    for decision in range(1, 101):
        mask = np.asarray(look(state, env_params).action_mask)
        action = np.array([choose(rng, np.flatnonzero(row)) for row in mask])
        state, timestep = env.step(jax.random.key(0), state, jnp.asarray(action), env_params)
        seen, *_ = rival.step(tuple(int(action[slot]) for slot in cavs))
        when = f"decision {decision}"
        assert_same_vehicles(state.vehicles, rival.placed, when)
        assert_same_views(timestep, cavs, seen, rival, when)
        crashes = [vehicle.crashed for vehicle in rival.placed.values()]
        assert np.asarray(state.vehicles.crashed)[list(rival.placed)].tolist() == crashes, when
        for slot, reward in regional_rewards(rival).items():
            np.testing.assert_allclose(timestep.reward[slot], reward, atol=1e-6, err_msg=f"reward {slot} at {when}")
        crashed = any(vehicle.crashed for vehicle in rival.controlled_vehicles)
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (crashed, decision == 100 and not crashed), when
        crossings = float(timestep.metrics["throughput"]) * rival.substeps / 15
        assert crossings == pytest.approx(round(crossings), abs=1e-6), when
        if timestep.last:
            return decision, rival.substeps, crashed
    raise AssertionError("an episode ends within 100 decisions")


def test_marl_cavs_episodes_to_their_end():
    """Crashes in each of the three sub-steps of a decision, and a last decision of one sub-step."""
    cases = ((1, 4, 3, reckless), (12, 6, 3, reckless), (22, 6, 3, reckless), (10, 5, 4, reckless), (3, 1, 1, merge_left))
    ends = []
    with jax.enable_x64(True):
        for seed, cavs, hdvs, choose in cases:
            rng = np.random.default_rng(seed)
            ends.append(follow_episode(Merge(), random_spawns(rng, cavs, hdvs), choose, rng))
    left_out = [(3 * decisions - substeps, crashed) for decisions, substeps, crashed in ends]
    assert left_out == [(1, True), (2, True), (2, True), (0, True), (2, False)]
