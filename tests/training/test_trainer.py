"""Whole runs as functions: overrides, sweeps, tracing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import tiny

import marljax
from marljax import UserError
from marljax.algos import ippo, mappo
from marljax.training import mesh
from marljax.training.trainer import Trainer, make_train
from marljax.utils import memory

CONFIG = ippo.Config(total_steps=1_000, num_envs=16, rollout_length=16, num_minibatches=2, hidden=(16,))


@pytest.fixture(scope="module")
def train():
    return make_train(ippo, probes.Probe(), CONFIG)


GRID = {"learning_rate": jnp.array([1e-3, 1e-2, 1e-3, 1e-2]), "env.variant": jnp.array([3, 3, 5, 5])}
KEYS = jax.random.split(jax.random.key(0), 4)


@pytest.fixture(scope="module")
def sweep(train):
    """A program for several runs, and its results for ``GRID``."""
    swept = jax.jit(jax.vmap(chex.assert_max_traces(n=1)(lambda key, overrides: train(key, overrides))))
    return swept, swept(KEYS, GRID)


def test_a_sweep_is_one_program_and_equals_single_runs(train, sweep):
    """Of 1,000 steps, rounded up to four whole updates."""
    swept, together = sweep
    for i in (0, 3):
        overrides = {"learning_rate": float(GRID["learning_rate"][i]), "env.variant": int(GRID["env.variant"][i])}
        alone = jax.jit(train)(KEYS[i], overrides)
        chex.assert_trees_all_close(together.metrics["sum_return"][i], alone.metrics["sum_return"], rtol=1e-4)
        chex.assert_trees_all_close(together.policy(i).params, alone.policy().params, rtol=1e-3, atol=1e-4)
        assert CONFIG.num_updates == int(alone.state.learner.updates) == len(alone.metrics["policy_loss"]) == 4
        assert int(alone.diverged_at) == -1
    with pytest.raises(UserError, match=r"policy\(0\) .* a single run; give policy\(\)"):
        alone.policy(0)
    again = swept(KEYS, GRID | {"learning_rate": GRID["learning_rate"] / 2})
    assert not np.allclose(again.metrics["policy_loss"], together.metrics["policy_loss"])


def test_results_have_curves(sweep):
    _, results = sweep
    steps, returns = results.curve("return")
    assert steps.tolist() == [256, 512, 768, 1024]
    episodes = np.asarray(results.metrics["episodes"])
    np.testing.assert_allclose(returns, np.asarray(results.metrics["sum_return"]) / episodes, rtol=1e-6)
    np.testing.assert_array_equal(results.curve("policy_loss").values, results.metrics["policy_loss"])
    nothing = results.replace(metrics=results.metrics | {"episodes": jnp.zeros((4, 4))})
    assert np.isnan(nothing.curve("return").values).all()
    replayed = results.replace(metrics=results.metrics | {"sum_replayed": jnp.full((4, 4), 3.0)})
    np.testing.assert_allclose(replayed.curve("replayed").values, 3 / (episodes + 3), rtol=1e-6)
    with pytest.raises(UserError, match="unknown metric 'retrun'; did you mean return"):
        results.curve("retrun")


def test_results_have_policies_with_the_config_and_params_of_their_run(sweep):
    _, results = sweep
    policies = [results.policy(i) for i in range(4)]
    np.testing.assert_allclose([policy.config.learning_rate for policy in policies], GRID["learning_rate"])
    assert [int(policy.env_params.variant) for policy in policies] == [3, 3, 5, 5]
    assert jax.tree.structure(policies[0].params) == jax.tree.structure(results.state.learner.params)
    env, key = policies[1].env, jax.random.key(1)
    state, timestep = env.reset(key, policies[1].env_params)
    action, _ = jax.jit(policies[1])(key, state, timestep, policies[1].initial_carry())
    assert action.shape == (env.num_agents,)
    np.testing.assert_array_equal(action, results.policy(-3)(key, None, timestep)[0])
    for index in [(), (4,), (0, 0), (0.0,)]:
        with pytest.raises(UserError, match=r"there are 4 runs; give policy\(0\)"):
            results.policy(*index)


@pytest.mark.slow
def test_tables_are_held_once_for_all_runs():
    """Unless the runs differ in them; and either way each run is what it is alone."""
    env = marljax.make("pathfinding", maps="small", num_maps=2, agents=2)
    trainer = Trainer(tiny, env, tiny.Config(), mesh.make_mesh())
    env_params, keys = env.default_params, jax.random.split(jax.random.key(0), 3)
    closer = jnp.array([0.0, 0.1, 0.2])
    together = trainer.init(keys, env_params, {"env.weights.closer": closer})
    distance, own = env_params.tables.distance, together.state.learner.env_params
    assert together.shared.tables.distance.shape == distance.shape
    assert own.tables.distance is None
    assert together.shared.weights.closer is None
    np.testing.assert_array_equal(own.weights.closer, closer)

    apart = trainer.init(keys, env_params, {"env.weights.closer": closer, "env.tables.distance": np.stack([distance] * 3)})
    assert apart.shared.tables.distance is None
    assert apart.state.learner.env_params.tables.distance.shape == (3, *distance.shape)
    assert trainer.bytes_of(apart) - trainer.bytes_of(together) == 2 * memory.size(distance)

    together, metrics = trainer.run(together, 9)
    assert together.shared.tables.distance.shape == distance.shape
    np.testing.assert_array_equal(metrics["sum_return"], trainer.run(apart, 9)[1]["sum_return"])
    alone = trainer.init(keys[1:2], env_params, {"env.weights.closer": closer[1:2]})
    np.testing.assert_allclose(metrics["sum_return"][1], trainer.run(alone, 9)[1]["sum_return"][0], rtol=1e-6)


def test_divergence_is_reported_per_replica(train):
    rates = {"learning_rate": jnp.array([1e-3, jnp.inf])}
    result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2), rates)
    assert result.diverged_at.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"num_envs": 8}, "num_envs"),
        ({"env.varient": 1}, "variant"),
        ({"env.variant": 1, "gama": 0.9}, "gamma"),
        ({"learning_rate": jnp.array([1e-3, 2e-3])}, "learning_rate"),
        ({"gamma": None}, "gamma"),
        ({"gamma": jnp.float32(2.0)}, "gamma"),
        ({"env.variant": None}, "env.variant"),
        ({"env.variant": jnp.ones(2)}, "env.variant"),
        ({"env.garbage": float("nan")}, "garbage"),
        ([("gamma", 0.9)], "by name"),
    ],
)
def test_impossible_overrides_are_refused(train, overrides, match):
    with pytest.raises(UserError, match=match):
        train(jax.random.key(0), overrides)


@pytest.mark.parametrize("key", [0, None, jax.random.split(jax.random.key(0), 2), jnp.zeros(2)])
def test_anything_but_a_single_key_is_refused(train, key):
    with pytest.raises(UserError, match=r"give one key, .*jax.vmap\(train\) for several"):
        train(key)


class Branching(probes.Probe):
    def transition(self, key, state, action, env_params):
        if env_params.variant == probes.CONSTANT:
            action = 0 * action
        return super().transition(key, state, action, env_params)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("mappo", probes.Probe(), CONFIG), "'mappo' .* give its module"),
        ((ippo, "merge", CONFIG), r"'merge' .* marljax.make\('merge'\)"),
        ((mappo, probes.Probe(), CONFIG), r"marljax.algos.ippo.Config; give a marljax.algos.mappo.Config"),
        ((ippo, probes.Probe(), ippo.Config), r"give a marljax.algos.ippo.Config"),
        ((ippo, probes.Probe(), CONFIG.replace(gamma=np.array([0.9, 0.8]))), "gamma"),
        ((ippo, probes.Probe(), CONFIG, {"variant": 1}), "ProbeParams"),
        ((ippo, probes.Probe(), CONFIG, probes.ProbeParams(garbage=float("nan"))), "garbage"),
        ((ippo, Branching(), CONFIG), "^Branching: .*boolean.* of test_trainer.py"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments, match):
    with pytest.raises(UserError, match=match):
        make_train(*arguments)
