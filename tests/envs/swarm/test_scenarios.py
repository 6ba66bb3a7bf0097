"""Where drones start and shall go: each scenario by its own words, formations, obstacles and free cells."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.swarm import Swarm, scenarios
from marljax.envs.swarm.params import SwarmParams, shares
from marljax.errors import UserError

N, EPISODES = 8, 40
TIMES = np.arange(0, 15, 0.1)


@functools.cache
def goals_of(name, dimensions=3):
    """[EPISODES, T, 3, N] goals, and the formations' phases."""

    def one(key):
        key_goals, key_free = jax.random.split(key)
        free = scenarios.draw_obstacles(key_free, SwarmParams(), 16, N)[4]
        goals = scenarios.draw_goals(key_goals, SwarmParams(mix=shares((name,))), N, dimensions, free)
        return jax.vmap(lambda time: scenarios.goals_at(goals, time))(jnp.asarray(TIMES)), goals

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), EPISODES)))


def spacing(goals):
    """[...] m between the two nearest of goals [..., 3, N]."""
    apart = np.linalg.norm(goals[..., :, None] - goals[..., None, :], axis=-3)
    return (apart + 9 * np.eye(goals.shape[-1])).min(axis=(-1, -2))


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


def test_all_kinds_are_drawn_by_their_shares():
    mix = np.arange(len(scenarios.SCENARIOS), dtype=np.float32)
    draws = np.linspace(0, 1, 5501, endpoint=False)
    kinds = np.asarray(jax.vmap(scenarios.draw_kind, (0, None))(jnp.asarray(draws), jnp.asarray(mix)))
    np.testing.assert_allclose(np.bincount(kinds, minlength=11) / 5501, mix / mix.sum(), atol=1e-3)


@pytest.mark.parametrize("drones", [N, 32, 128])
@pytest.mark.parametrize("name", scenarios.OPEN)
def test_goals_lie_in_the_room_and_apart(name, drones):
    """Whatever the number of drones: formations too wide for the room are drawn closer, not pressed flat against its walls."""
    times = jnp.linspace(0.0, 15.0, 16)

    def one(key):
        goals = scenarios.draw_goals(key, SwarmParams(mix=shares((name,))), drones, 3, jnp.zeros((3, drones)))
        places = jax.vmap(lambda time: scenarios.goals_at(goals, time))(times)
        first = jnp.linalg.norm(places[0, :, :, None] - places[0, :, None], axis=0) + 9 * jnp.eye(drones)
        return places.min(axis=(0, 2)), places.max(axis=(0, 2)), first.min(), goals.kind

    low, high, nearest, kind = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 300))
    assert low[:, :2].min() > -5
    assert high[:, :2].max() < 5
    assert low[:, 2].min() > 0.05
    assert high[:, 2].max() < 10
    assert (kind == scenarios.SCENARIOS.index(name)).all()
    if name in ("static_different", "swap") and drones <= 32:
        assert nearest.min() > 0.24


def test_static_goals_stay_and_are_one_or_a_formation():
    same, different = goals_of("static_same")[0], goals_of("static_different")[0]
    for goals in (same, different):
        np.testing.assert_array_equal(goals, np.broadcast_to(goals[:, :1], goals.shape))
    assert np.ptp(same, axis=3).max() == 0
    found = spacing(different[:, 0])
    assert 0.249 < found.min() < 0.3
    assert 0.45 < found.max() < 0.501


@pytest.mark.parametrize("name", ["dynamic_same", "dynamic_different", "swap", "swarm_versus_swarm"])
def test_goals_change_every_four_to_six_seconds(name):
    goals, _ = goals_of(name)
    times = [np.append(0.0, found) for found in changes(goals)]
    waits = np.concatenate([np.diff(found) for found in times])
    assert ((waits > 3.85) & (waits < 6.15)).all()
    assert min(len(found) for found in times) >= 3  # the start and at least two changes


def test_swaps_exchange_the_places_of_one_formation():
    goals, _ = goals_of("swap")
    rows = np.ascontiguousarray(np.round(goals, 3).transpose(0, 1, 3, 2))
    places = np.sort(rows.view([("", rows.dtype)] * 3)[..., 0], axis=-1)
    assert (places == places[:, :1]).all()
    found = spacing(goals[:, 0])
    assert found.min() > 0.399
    assert found.max() < 0.801


def test_two_swarms_change_sides():
    goals, _ = goals_of("swarm_versus_swarm")
    halves = goals[..., : N // 2].mean(axis=3), goals[..., N // 2 :].mean(axis=3)
    apart = np.linalg.norm((halves[1] - halves[0])[..., :2], axis=2)
    assert apart.min() > 0.999
    assert apart.max() < 2.001
    assert np.ptp(apart[:, 0]) > 0.5
    for half in (goals[:, 0, :, : N // 2], goals[:, 0, :, N // 2 :]):
        assert ((spacing(half) > 0.249) & (spacing(half) < 0.501)).all()
    for episode, times in enumerate(changes(goals)):
        before, after = (np.searchsorted(TIMES, times[0]) + offset for offset in (-1, 0))
        way = [half[episode, after] - half[episode, before] for half in halves]
        np.testing.assert_allclose(way[0], -way[1], atol=1e-4)


def test_a_dynamic_formation_grows_and_shrinks_between_nothing_and_a_metre():
    goals, drawn = goals_of("dynamic_formation")
    size = spacing(goals)
    assert (size < 1.0005).all()
    assert size.max() > 0.9
    assert size.min() < 0.1
    np.testing.assert_allclose(size[:, 0], drawn.size, rtol=1e-3)
    growth = np.abs(np.diff(size, axis=1)) / 0.1
    np.testing.assert_allclose(np.median(growth, axis=1), np.abs(drawn.drift), atol=2e-3)
    assert (growth <= np.abs(drawn.drift)[:, None] + 2e-3).all()
    assert np.abs(drawn.drift).min() > 0.099
    assert (drawn.widest == 1).all()
    assert np.abs(drawn.drift).max() < 0.301
    assert 0.2 < np.mean(drawn.drift > 0) < 0.8


@pytest.mark.parametrize(("name", "fastest"), [("lissajous", 1.2), ("bezier", 2.5)])
def test_pursuits_are_smooth_and_of_one_goal(name, fastest):
    goals, _ = goals_of(name)
    assert np.ptp(goals, axis=3).max() < 1e-6
    speed = np.linalg.norm(np.diff(goals[..., 0], axis=1), axis=2) / 0.1
    assert speed.max() < fastest
    assert speed.max(axis=1).min() > 0.05
    if name == "lissajous":
        way = goals[0, :, :, 0] - goals[0, 0, :, 0]
        turn = 2 * np.pi * TIMES / 15
        np.testing.assert_allclose(way, np.stack([np.sin(turn), np.sin(2 * turn), 0.5 * np.sin(3 * turn)], axis=1), atol=1e-5)


@pytest.mark.parametrize("drones", [8, 32])
def test_obstacles_stand_in_cells_of_their_own_and_leave_starts_and_goals_free(drones):
    for seed in range(20):
        density = [0.05, 0.2, 0.8][seed % 3]
        drawn = scenarios.draw_obstacles(jax.random.key(seed), SwarmParams(density=density), 52, drones)
        x, y, radius, start, goal = (np.asarray(part) for part in drawn)
        there = radius > 0
        assert there.sum() == {0.05: 3, 0.2: 12, 0.8: 51}[density]  # 12 at a fifth, as published
        cells = {(a, b) for a, b in zip(x[there], y[there], strict=True)}
        assert len(cells) == there.sum()
        assert all(abs(a) <= 3.5 and (a - 0.5) % 1 == 0 for cell in cells for a in cell)
        for place in (start, goal):
            assert not {(a, b) for a, b in place[:2].T} & cells
            assert (place[2] >= 1).all()
            assert (place[2] <= 3).all()
        if drones <= 64 - there.sum():
            assert len({tuple(a) for a in start[:2].T}) == drones


def test_obstacles_can_be_as_many_and_as_large_as_each_episode_draws():
    ranges = scenarios.Ranges(density_high=0.15, size_high=0.5)
    env_params = SwarmParams(density=0.05, obstacle_size=0.3, ranges=ranges)
    draw = jax.jit(lambda key: scenarios.draw_obstacles(key, env_params, 12, N)[2])
    radius = np.stack([draw(jax.random.key(seed)) for seed in range(300)])
    count, size = (radius > 0).sum(axis=1), 2 * radius.max(axis=1)
    assert set(count) == set(range(3, 10))  # 5 to 15 % of 64 cells
    np.testing.assert_allclose([size.min(), size.mean(), size.max()], [0.3, 0.4, 0.5], atol=0.01)
    assert (np.where(radius > 0, 2 * radius, size[:, None]) == size[:, None]).all()
    assert abs(np.corrcoef(count, size)[0, 1]) < 0.15


def test_drones_start_level_at_rest_near_the_middle_of_their_goals():
    for preset, wide in (("static_different", 2.0), ("obstacles_random", 0.1)):
        env = Swarm(preset=preset)
        state = jax.vmap(env.initial, (0, None))(jax.random.split(jax.random.key(0), 50), env.default_params)
        body = state.body
        assert (body.velocity == 0).all()
        assert (body.spin == 0).all()
        np.testing.assert_allclose(body.rotation[:, 2, 2], 1.0)
        assert (body.position[:, 2] >= 0.75).all()
        if preset == "static_different":
            away = np.abs(body.position - state.goal.mean(axis=2, keepdims=True))[:, :2]
            assert 0.9 * wide < away.max() <= wide + 1e-5
        else:
            cell = np.abs((np.asarray(body.position)[:, :2] - 0.5 + 0.5) % 1 - 0.5)
            assert cell.max() <= wide + 1e-5


def smallest(env, env_params, name):
    """The numbers with the least room along ``name`` that is accepted, as the message about a smaller one says."""
    small = env_params.room.replace(**{name: 0.1})
    with pytest.raises(UserError) as caught:
        env.check_params(env_params.replace(room=small))
    least = float(re.search(r"at least ([\d.]+)", str(caught.value))[1])
    return env_params.replace(room=env_params.room.replace(**{name: least}))


@pytest.mark.parametrize("preset", [*scenarios.OPEN, "obstacles", "coverage"])
def test_goals_and_starts_lie_in_the_smallest_room_that_is_accepted(preset):
    env = Swarm(preset=preset)
    env_params = smallest(env, smallest(env, env.default_params, "half"), "height")
    env.check_params(env_params)

    @jax.jit
    @jax.vmap
    def places(key):
        state = env.initial(key, env_params)
        return state.body.position, jax.vmap(lambda time: scenarios.goals_at(state.goals, time))(jnp.arange(0.0, 15.0, 0.5))

    room = env_params.room
    start, goals = places(jax.random.split(jax.random.key(0), 50))
    for found in (np.asarray(start), np.asarray(goals)):
        assert np.isfinite(found).all()
        x, y, z = np.moveaxis(found, -2, 0)
        assert max(np.abs(x).max(), np.abs(y).max()) <= room.half + 1e-5
        if env.dimensions == 3:
            assert z.max() <= room.height + 1e-5
            assert z.min() >= 0
