"""Layouts of observations against the columns that environments fill; statistics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import on_one_device

import marljax
from marljax.core import layout as entities
from marljax.core.spaces import Part
from marljax.envs.merge import NUM_CAVS
from marljax.envs.swarm import Swarm
from marljax.nn import encoder

LAYOUT = (Part("rocks", 3, 2), Part("own", 1, 4), Part("rocks", 3, 1), Part("map", 1, 5))


def test_parts_of_one_name_are_joined():
    assert entities.kinds(LAYOUT) == (Part("rocks", 3, 3), Part("map", 1, 5))
    found = entities.split(LAYOUT, jnp.arange(18.0))
    np.testing.assert_array_equal(found["rocks"], [[0, 1, 10], [2, 3, 11], [4, 5, 12]])
    np.testing.assert_array_equal(found["own"], [[6, 7, 8, 9]])
    np.testing.assert_array_equal(found["map"], [[13, 14, 15, 16, 17]])


def test_arranged_entities_can_be_unpacked():
    obs = jnp.arange(1.0, 37.0).reshape(2, 18).at[1, jnp.array([2, 3, 11])].set(0.0)
    rows, there, own = encoder.split_columns(entities.kinds(LAYOUT), encoder.arrange(LAYOUT, obs, None))
    found = entities.split(LAYOUT, obs)
    np.testing.assert_array_equal(rows[0], found["rocks"])
    np.testing.assert_array_equal(rows[1], found["map"])
    np.testing.assert_array_equal(there[0], [[1, 1, 1], [1, 0, 1]])
    np.testing.assert_array_equal(own, found["own"][:, 0])


def test_statistics_are_those_of_all_present_entities_of_a_kind():
    rng = np.random.default_rng(0)
    layout = (Part("own", 1, 2), Part("rocks", 3, 2))
    batches = rng.normal(2.0, 3.0, (3, 40, 8)).astype(np.float32)
    masks = rng.random((3, 40)) < 0.7
    batches[..., 2:].reshape(3, 40, 3, 2)[rng.random((3, 40, 3)) < 0.4] = 0.0
    inputs = encoder.ObservationEncoder(layout, False, True)
    stats = inputs.init_stats(batches[0])
    for batch, mask in zip(batches, masks, strict=True):
        stats = on_one_device(inputs.update_stats, stats, batch, mask)
    kept = batches[masks]
    rocks = kept[:, 2:].reshape(-1, 2)
    rocks = rocks[(rocks != 0.0).any(axis=1)]
    for found, samples in ((stats["own"], kept[:, :2]), (stats["rocks"], rocks)):
        np.testing.assert_allclose(found.mean, samples.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(found.var, samples.var(axis=0), rtol=1e-3)
    expected = stats["rocks"].normalize(entities.split(layout, jnp.asarray(kept))["rocks"])
    np.testing.assert_allclose(inputs(stats, kept)[:, :6].reshape(-1, 3, 2), expected)


def first_columns(env, **changes):
    """Columns by name, and the state, at the start of an episode."""
    state, timestep = env.reset(jax.random.key(0), env.default_params.replace(**changes))
    return {name: np.asarray(rows) for name, rows in entities.split(env.obs_layout, timestep.obs).items()}, state


def test_neighbours_of_merge():
    """An intended course starts at its vehicle and continues with its speed."""
    found, _ = first_columns(marljax.make("merge", intents=True))
    rows = found["neighbours"]
    assert rows.shape == (NUM_CAVS, 4, 15)
    np.testing.assert_array_equal(entities.present(rows), rows[..., 0] == 1.0)
    cavs = np.any(rows[..., 5:], axis=-1)
    assert cavs.sum() >= 3
    moves = (rows[..., 3] + found["own"][..., 3]) * 45.0 * 0.2 / 150.0
    np.testing.assert_allclose(rows[cavs][:, 5], (rows[..., 1] + moves)[cavs], atol=0.02)


def test_neighbours_of_swarm():
    env = Swarm(preset="obstacles")
    found, state = first_columns(env, position_noise=0.0, velocity_noise=0.0)
    position, rows = np.asarray(state.body.position).T, found["neighbours"]
    assert rows.shape == (8, 2, 6)
    assert found["field"].shape == (8, 1, 9)
    offsets = (position[None] - position[:, None])[:, None]
    error = np.linalg.norm(rows[..., None, :3] - offsets, axis=-1)  # [8, 2, 8]
    np.testing.assert_allclose(error.min(axis=-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(found["own"][:, 0, 18], position[:, 2], atol=1e-6)


def test_units_of_smax():
    env = marljax.make("smax", scenario="2s3z")
    found, _ = first_columns(env)
    types = np.asarray(env.battle.unit_types)
    assert [rows.shape for rows in (found["allies"], found["enemies"], found["own"])] == [(5, 4, 13), (5, 5, 13), (5, 1, 10)]
    assert env.obs_layout[1].ordered
    np.testing.assert_array_equal(found["own"][:, 0, 4:].argmax(axis=-1), types[:5])
    present = np.asarray(entities.present(found["allies"]))
    assert present.any()
    expected = np.stack([np.delete(types[:5], ally) for ally in range(5)])
    np.testing.assert_array_equal(found["allies"][..., 7:].argmax(axis=-1)[present], expected[present])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"observation": "conic"}, {"units": False, "own": False}),
        ({"mode": "self_play"}, {"allies": False, "enemies": True, "own": False}),
        ({"mode": "self_play", "scenario": "5m_vs_6m"}, {}),
    ],
    ids=str,
)
def test_layouts_of_smax(options, names):
    env = marljax.make("smax", **options)
    assert {part.name: part.ordered for part in env.obs_layout} == names
    entities.validate_layout(env)
