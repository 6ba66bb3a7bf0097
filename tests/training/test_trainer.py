"""Whole runs as functions: overrides, sweeps, tracing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from marljax import UserError
from marljax.algos import ippo, mappo
from marljax.training.trainer import make_train

CONFIG = ippo.Config(total_steps=1_000, num_envs=16, rollout_length=16, num_minibatches=2, hidden=(16,))


@pytest.fixture(scope="module")
def train():
    return make_train(ippo, probes.Probe(), CONFIG)


def test_a_sweep_is_one_program_and_equals_single_runs(train):
    traces = chex.assert_max_traces(n=1)(lambda key, overrides: train(key, overrides))
    swept = jax.jit(jax.vmap(traces))
    keys = jax.random.split(jax.random.key(0), 4)
    grid = {"learning_rate": jnp.array([1e-3, 1e-2, 1e-3, 1e-2]), "env.variant": jnp.array([3, 3, 5, 5])}
    together = swept(keys, grid)
    for i in (0, 3):
        overrides = {"learning_rate": float(grid["learning_rate"][i]), "env.variant": int(grid["env.variant"][i])}
        alone = jax.jit(train)(keys[i], overrides)
        chex.assert_trees_all_close(together.metrics["sum_return"][i], alone.metrics["sum_return"], rtol=1e-4)
    again = swept(keys, grid | {"learning_rate": grid["learning_rate"] / 2})
    assert not np.allclose(again.metrics["policy_loss"], together.metrics["policy_loss"])


def test_total_steps_are_rounded_up_to_whole_updates(train):
    result = jax.jit(train)(jax.random.key(0))
    assert CONFIG.num_updates == 4
    assert result.metrics["policy_loss"].shape == (4,)
    assert int(result.state.learner.updates) == 4
    assert int(result.diverged_at) == -1


@pytest.mark.slow
def test_only_the_member_that_diverges_says_so(train):
    rates = {"learning_rate": jnp.array([1e-3, jnp.inf])}
    result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2), rates)
    assert result.diverged_at.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"learning_rat": 1e-3}, "learning_rate"),
        ({"num_envs": 8}, "shapes the program"),
        ({"env.varient": 1}, "variant"),
        ({"env.variant": 1, "gama": 0.9}, "gamma"),
        ({"learning_rate": jnp.array([1e-3, 2e-3])}, r"'learning_rate' is of shape \[2\]; it takes one number"),
        ({"gamma": None}, "gamma=null has the wrong type"),
        ({"gamma": jnp.float32(2.0)}, "gamma=2.0 is out of range"),
        ({"env.variant": None}, "'env.variant' differs from the environment's own: value is missing"),
        ({"env.variant": "truncated"}, "'env.variant' is 'truncated'; give numbers or arrays"),
        ({"env.variant": jnp.ones(2)}, r"'env.variant' is of shape \[2\]; it takes shape \[\]"),
        ({"env.garbage": float("nan")}, "env_params hold NaN in garbage"),
        ([("gamma", 0.9)], "overrides are .*give numbers by name"),
        ({3: 0.9}, "overrides are .*give numbers by name"),
    ],
)
def test_impossible_overrides_say_why(train, overrides, words):
    with pytest.raises(UserError, match=words):
        train(jax.random.key(0), overrides)


@pytest.mark.parametrize(
    ("key", "given"),
    [(0, "0"), (None, "None"), (jax.random.split(jax.random.key(0), 2), r"key<fry>\[2\]"), (jnp.zeros(2), "float32")],
)
def test_what_is_no_single_key_is_refused(train, key, given):
    with pytest.raises(UserError, match=rf"train got {given}.*; give one key, .*jax.vmap\(train\) for several"):
        train(key)


class Branching(probes.Probe):
    def transition(self, key, state, action, env_params):
        if env_params.variant == probes.CONSTANT:
            action = 0 * action
        return super().transition(key, state, action, env_params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mappo", probes.Probe(), CONFIG), "'mappo' is no algorithm; give its module"),
        ((ippo, "merge", CONFIG), "'merge' is no environment; make one"),
        ((mappo, probes.Probe(), CONFIG), r"config is a marljax.algos.ippo.Config; give a marljax.algos.mappo.Config"),
        ((ippo, probes.Probe(), ippo.Config), r"config is a builtins.type; give a marljax.algos.ippo.Config"),
        ((ippo, probes.Probe(), CONFIG.replace(gamma=np.array([0.9, 0.8]))), r"'gamma' is of shape \[2\]"),
        ((ippo, probes.Probe(), CONFIG, {"variant": 1}), "env_params are dict; give ProbeParams"),
        ((ippo, probes.Probe(), CONFIG, probes.ProbeParams(garbage=float("nan"))), "env_params hold NaN in garbage"),
        ((ippo, Branching(), CONFIG), "^Branching: step cannot be compiled: .*boolean.* of test_trainer.py"),
    ],
)
def test_arguments_that_are_something_else_say_what_to_give(arguments, message):
    with pytest.raises(UserError, match=message):
        make_train(*arguments)
