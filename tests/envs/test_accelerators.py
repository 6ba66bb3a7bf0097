"""What environments compute on accelerators, with loops unrolled and no reset skipped, against a CPU's way; both run here."""

import functools

import jax
import numpy as np
import pytest

import marljax
from marljax.core.vector import vectorize
from marljax.training.evaluation import RandomPolicy
from marljax.utils.one_kernel import GPU, in_one_kernel

SETTINGS = {
    "merge": ("merge", {}),
    "merge, supervised": ("merge", {"safety": True, "intents": True, "horizon": 2}),
    "smax 3m": ("smax", {"scenario": "3m"}),
    "smax 5m_vs_6m": ("smax", {"scenario": "5m_vs_6m"}),
}


def rollout(env):
    """Timesteps of random play [T, E, …], with episodes that end on the way."""
    vec, policy, params = vectorize(env, 3), RandomPolicy(env), env.default_params

    def step(carry, key):
        (state, timestep), (key_action, key_step) = carry, jax.random.split(key)
        action, _ = policy(key_action, state, timestep, ())
        carry = vec.step(key_step, state, action, params)
        return carry, (carry[1], vec.global_state(carry[0], params))

    def run(key):
        state, timestep = vec.reset(key, params)
        state = vec.staggered(key, state, 6)
        return jax.lax.scan(step, (state, timestep), jax.random.split(key, 12))[1]

    return jax.device_get(jax.jit(run)(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_accelerators_compute_what_a_cpu_does(name, monkeypatch):
    env_name, options = SETTINGS[name]
    env = marljax.make(env_name, **options)
    expected = rollout(env)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, default, **branches: default(*args))
    found = rollout(env)
    assert expected[0].first.sum() > 0
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"mode": "self_play"}, {"enemy_target": "random", "dead": "leave"}], ids=str)
def test_a_decision_in_one_kernel_equals_the_plain_one(options):
    """Bit for bit, in Pallas's interpreter."""
    env = marljax.make("smax", scenario="3m", **options)
    params, policy = jax.tree.map(jax.numpy.asarray, env.default_params), RandomPolicy(env)
    vec = vectorize(env, GPU.block)
    state, timestep = vec.reset(jax.random.key(0), params)

    def decide(draws, state, action, env_params):
        return env._transition(draws, state, action, None, env_params)

    mapped = (True, jax.tree.map(lambda _: True, state.env), True, jax.tree.map(lambda _: False, params))
    kernel = jax.jit(functools.partial(in_one_kernel, decide, GPU, mapped, interpret=True))
    plain = jax.jit(jax.vmap(decide, (0, 0, 0, None)))
    hit = 0
    for key in jax.random.split(jax.random.key(1), 20):
        action, _ = policy(key, state, timestep, ())
        inputs = (jax.random.uniform(key, (GPU.block, sum(env._num_draws))), state.env, action, params)
        found, expected = kernel(*inputs), plain(*inputs)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        hit += int((expected[0].units.health < state.env.units.health).sum())
        state, timestep = vec.step(key, state, action, params)
    assert hit > 0
