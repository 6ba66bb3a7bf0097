"""Starts and goals: each scenario as described, formations, obstacles and free cells."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.swarm import Swarm, scenarios
from marljax.envs.swarm.env import SENSORS
from marljax.envs.swarm.params import SwarmParams, shares
from marljax.errors import UserError

N, EPISODES = 8, 40
TIMES = np.arange(0, 15, 0.1)


@functools.partial(jax.jit, static_argnums=(2, 3))
def draw(keys, mix, drones, num_times):
    """Goals [E, T, 3, N] at equal intervals in 15 s, and what they were drawn as."""

    def one(key):
        draws = scenarios.draw(key, drones, SENSORS)
        free = scenarios.place_obstacles(draws, SwarmParams(), 16)[4]
        goals = scenarios.choose_goals(draws, SwarmParams(mix=mix), 3, free)
        return jax.vmap(lambda time: scenarios.goals_at(goals, time))(jnp.arange(num_times) * (15 / num_times)), goals

    return jax.vmap(one)(keys)


@functools.cache
def goals_of(name):
    """[EPISODES, T, 3, N] goals, and what they were drawn as."""
    found = draw(jax.random.split(jax.random.key(0), EPISODES), shares((name,)), N, len(TIMES))
    return jax.tree.map(np.asarray, found)


def spacing(goals):
    """[...] m between the two nearest of goals [..., 3, N]."""
    distance = np.linalg.norm(goals[..., :, None] - goals[..., None, :], axis=-3)
    return (distance + 9 * np.eye(goals.shape[-1])).min(axis=(-1, -2))


def changes(goals):
    """[EPISODES][…] s at which goals jump by more than motion explains."""
    jumps = np.linalg.norm(np.diff(goals, axis=1), axis=2).max(axis=2) > 0.25
    return [TIMES[1:][jump] for jump in jumps]


@pytest.mark.parametrize("drones", [2, 5, 8, 27])
def test_neighbours_in_a_formation_are_one_apart(drones):
    found = scenarios.formations(drones)
    assert found.shape == (len(scenarios.SHAPES), 3, drones)
    np.testing.assert_allclose(spacing(found), 1.0, rtol=1e-4)
    np.testing.assert_allclose(found.mean(axis=2), 0.0, atol=1e-5)
    assert (found[: scenarios.FLAT, 2] == 0).all()


def test_scenarios_are_drawn_by_their_shares():
    mix = np.arange(len(scenarios.SCENARIOS), dtype=np.float32)
    draws = np.linspace(0, 1, 5501, endpoint=False)
    kinds = np.asarray(jax.vmap(scenarios.draw_kind, (0, None))(jnp.asarray(draws), jnp.asarray(mix)))
    np.testing.assert_allclose(np.bincount(kinds, minlength=11) / 5501, mix / mix.sum(), atol=1e-3)


@pytest.mark.parametrize("drones", [N, 128])
def test_goals_are_in_the_room_and_apart(drones):
    """For any number of drones: formations too wide for the room are shrunk, not flattened against its walls."""
    for name in scenarios.OPEN:
        goals, drawn = draw(jax.random.split(jax.random.key(1), 50), shares((name,)), drones, 15)
        goals = np.asarray(goals)
        assert np.abs(goals[:, :, :2]).max() < 5, name
        assert 0.05 < goals[:, :, 2].min() < goals[:, :, 2].max() < 10, name
        assert (drawn.kind == scenarios.SCENARIOS.index(name)).all()
        if name in ("static_different", "swap") and drones == N:
            assert spacing(goals[:, 0]).min() > 0.24


def test_static_goals_are_constant_and_one_or_a_formation():
    same, different = goals_of("static_same")[0], goals_of("static_different")[0]
    for goals in (same, different):
        np.testing.assert_array_equal(goals, np.broadcast_to(goals[:, :1], goals.shape))
    assert np.ptp(same, axis=3).max() == 0
    found = spacing(different[:, 0])
    assert 0.249 < found.min() < 0.3
    assert 0.45 < found.max() < 0.501


@pytest.mark.parametrize("name", ["dynamic_same", "dynamic_different", "swap", "swarm_versus_swarm"])
def test_goals_change_every_four_to_six_seconds(name):
    times = [np.append(0.0, found) for found in changes(goals_of(name)[0])]
    waits = np.concatenate([np.diff(found) for found in times])
    assert ((waits > 3.85) & (waits < 6.15)).all()
    assert min(len(found) for found in times) >= 3  # the start and at least two changes


def test_swaps_permute_the_positions_of_one_formation():
    goals, _ = goals_of("swap")
    rows = np.ascontiguousarray(np.round(goals, 3).transpose(0, 1, 3, 2))
    positions = np.sort(rows.view([("", rows.dtype)] * 3)[..., 0], axis=-1)
    assert (positions == positions[:, :1]).all()
    found = spacing(goals[:, 0])
    assert 0.399 < found.min() < found.max() < 0.801


def test_two_swarms_change_sides():
    goals, _ = goals_of("swarm_versus_swarm")
    halves = goals[..., : N // 2].mean(axis=3), goals[..., N // 2 :].mean(axis=3)
    distance = np.linalg.norm((halves[1] - halves[0])[..., :2], axis=2)
    assert 0.999 < distance.min() < distance.max() < 2.001
    assert np.ptp(distance[:, 0]) > 0.5
    for half in (goals[:, 0, :, : N // 2], goals[:, 0, :, N // 2 :]):
        assert ((spacing(half) > 0.249) & (spacing(half) < 0.501)).all()
    for episode, times in enumerate(changes(goals)):
        before, after = (np.searchsorted(TIMES, times[0]) + offset for offset in (-1, 0))
        moved = [half[episode, after] - half[episode, before] for half in halves]
        np.testing.assert_allclose(moved[0], -moved[1], atol=1e-4)


def test_a_dynamic_formation_grows_and_shrinks_between_zero_and_a_metre():
    goals, drawn = goals_of("dynamic_formation")
    size, drift = spacing(goals), np.abs(drawn.drift)
    assert size.min() < 0.1
    assert 0.9 < size.max() < 1.0005
    np.testing.assert_allclose(size[:, 0], drawn.size, rtol=1e-3)
    growth = np.abs(np.diff(size, axis=1)) / 0.1
    np.testing.assert_allclose(np.median(growth, axis=1), drift, atol=2e-3)
    assert (growth <= drift[:, None] + 2e-3).all()
    assert 0.099 < drift.min() < drift.max() < 0.301
    assert (drawn.widest == 1).all()
    assert 0.2 < np.mean(drawn.drift > 0) < 0.8


@pytest.mark.parametrize(("name", "fastest"), [("lissajous", 1.2), ("bezier", 2.5)])
def test_pursuits_are_smooth_and_of_one_goal(name, fastest):
    goals, _ = goals_of(name)
    assert np.ptp(goals, axis=3).max() < 1e-6
    speed = np.linalg.norm(np.diff(goals[..., 0], axis=1), axis=2) / 0.1
    assert speed.max() < fastest
    assert speed.max(axis=1).min() > 0.05
    if name == "lissajous":
        moved, turn = goals[0, :, :, 0] - goals[0, 0, :, 0], 2 * np.pi * TIMES / 15
        np.testing.assert_allclose(moved, np.stack([np.sin(turn), np.sin(2 * turn), 0.5 * np.sin(3 * turn)], axis=1), atol=1e-5)


@pytest.mark.parametrize("drones", [8, 32])
def test_obstacles_are_in_cells_of_their_own_and_leave_starts_and_goals_free(drones):

    @jax.jit
    def sample(key, density):
        return scenarios.place_obstacles(scenarios.draw(key, drones, SENSORS), SwarmParams(density=density), 52)

    for seed in range(9):
        density, number = [(0.05, 3), (0.2, 12), (0.8, 51)][seed % 3]  # 12 at a fifth, as published
        x, y, radius, start, goal = (np.asarray(part) for part in sample(jax.random.key(seed), density))
        used = radius > 0
        cells = {*zip(x[used], y[used], strict=True)}
        assert used.sum() == len(cells) == number
        assert all(abs(a) <= 3.5 and (a - 0.5) % 1 == 0 for cell in cells for a in cell)
        for position in (start, goal):
            assert not {(a, b) for a, b in position[:2].T} & cells
            assert ((position[2] >= 1) & (position[2] <= 3)).all()
        if drones <= 64 - number:
            assert len({tuple(a) for a in start[:2].T}) == drones


def test_each_episode_can_draw_number_and_size_of_obstacles():
    ranges = scenarios.Ranges(density_high=0.15, size_high=0.5)
    env_params = SwarmParams(density=0.05, obstacle_size=0.3, ranges=ranges)
    sample = jax.jit(jax.vmap(lambda key: scenarios.place_obstacles(scenarios.draw(key, N, SENSORS), env_params, 12)[2]))
    radius = np.asarray(sample(jax.random.split(jax.random.key(0), 300)))
    count, size = (radius > 0).sum(axis=1), 2 * radius.max(axis=1)
    assert set(count) == set(range(3, 10))  # 5 to 15 % of 64 cells
    np.testing.assert_allclose([size.min(), size.mean(), size.max()], [0.3, 0.4, 0.5], atol=0.01)
    assert (np.where(radius > 0, 2 * radius, size[:, None]) == size[:, None]).all()
    assert abs(np.corrcoef(count, size)[0, 1]) < 0.15


@functools.partial(jax.jit, static_argnums=0)
def starts(env, keys, env_params):
    """[E] initial states, and their goals at every half second."""
    states = jax.vmap(env.initial, (0, None))(keys, env_params)
    return states, jax.vmap(jax.vmap(scenarios.goals_at, (None, 0)), (0, None))(states.goals, jnp.arange(0.0, 15.0, 0.5))


@pytest.mark.parametrize(("preset", "spread"), [("static_different", 2.0), ("obstacles_random", 0.1)])
def test_drones_start_level_at_rest_near_the_middle_of_their_goals(preset, spread):
    env = Swarm(preset=preset)
    state, _ = starts(env, jax.random.split(jax.random.key(0), 50), env.default_params)
    body = state.body
    assert (body.velocity == 0).all()
    assert (body.spin == 0).all()
    np.testing.assert_allclose(body.rotation[:, 2, 2], 1.0)
    assert (body.position[:, 2] >= 0.75).all()
    if preset == "static_different":
        away = np.abs(body.position - state.goal.mean(axis=2, keepdims=True))[:, :2]
        assert 0.9 * spread < away.max() <= spread + 1e-5
    else:
        assert np.abs(np.asarray(body.position)[:, :2] % 1 - 0.5).max() <= spread + 1e-5


def test_a_share_of_the_drones_starts_near_their_goals_in_training():
    env = Swarm(preset="static_different")
    env_params = env.default_params.replace(start_near=0.25)
    keys = jax.random.split(jax.random.key(0), 200)
    usual, training = (starts(env, keys, given)[0] for given in (env_params, env.anneal(env_params, jnp.zeros(()))))
    moved = (np.asarray(usual.body.position) != np.asarray(training.body.position)).any(axis=1)
    assert 0.2 < moved.mean() < 0.3
    away = np.abs(training.body.position - training.goal).max(axis=1)
    assert 0.19 < away[moved].max() <= 0.2 + 1e-5


@pytest.mark.parametrize("preset", [*scenarios.OPEN, "obstacles", "coverage"])
def test_goals_and_starts_are_in_the_smallest_room_that_is_accepted(preset):
    env = Swarm(preset=preset)
    env_params = env.default_params
    for name in ("half", "height"):  # the message about a smaller one gives the minimum
        with pytest.raises(UserError) as caught:
            env.check_params(env_params.replace(room=env_params.room.replace(**{name: 0.1})))
        least = float(re.search(r"at least ([\d.]+)", str(caught.value))[1])
        env_params = env_params.replace(room=env_params.room.replace(**{name: least}))
    env.check_params(env_params)
    room = env_params.room
    state, goals = starts(env, jax.random.split(jax.random.key(0), 50), env_params)
    for found in (np.asarray(state.body.position), np.asarray(goals)):
        assert np.isfinite(found).all()
        x, y, z = np.moveaxis(found, -2, 0)
        assert max(np.abs(x).max(), np.abs(y).max()) <= room.half + 1e-5
        if env.dimensions == 3:
            assert 0 <= z.min() <= z.max() <= room.height + 1e-5
