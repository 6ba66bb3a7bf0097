"""Vectorised environments: automatic resets, episode metrics, checks of actions and params."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import marljax
from marljax import UserError
from marljax.learning.rollout import episode_metrics


def play(variant, steps, num_envs=4, stagger=0):
    """States and timesteps, leading [T + 1, E]."""
    env_params = probes.ProbeParams(variant=variant)
    vec = marljax.vectorize(probes.Probe(), num_envs)

    def step(carry, key):
        key_action, key_step = jax.random.split(key)
        action = jax.random.randint(key_action, (num_envs, 2), 0, 2)
        carry = vec.step(key_step, carry[0], action, env_params)
        return carry, carry

    state, timestep = vec.reset(jax.random.key(0), env_params)
    start = vec.staggered(jax.random.key(1), state, stagger) if stagger else state, timestep
    _, rest = jax.jit(functools.partial(jax.lax.scan, step))(start, jax.random.split(jax.random.key(2), steps))
    return jax.device_get(jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), start, rest))


@pytest.mark.parametrize(
    ("env", "count", "message"),
    [(3, 3, "got 3; "), *((probes.Probe(), count, "num_envs=") for count in (0, 2.0, True))],
)
def test_vectorize_refuses_other_objects_and_counts(env, count, message):
    with pytest.raises(UserError, match=f"vectorize .*{message}"):
        marljax.vectorize(env, count)


@pytest.mark.parametrize("variant", [probes.DELAYED, probes.TRUNCATED, probes.MEMORY])
def test_an_episode_restarts_on_the_step_after_its_last(variant):
    length = int(probes.STEPS[variant])
    states, timestep = play(variant, 3 * (length + 1))
    step = np.broadcast_to((np.arange(3 * (length + 1) + 1) % (length + 1))[:, None], timestep.first.shape)
    np.testing.assert_array_equal(timestep.first, step == 0)
    np.testing.assert_array_equal(timestep.last, step == length)
    np.testing.assert_array_equal(timestep.truncated, (step == length) & (variant == probes.TRUNCATED))
    np.testing.assert_array_equal(timestep.metrics["length"], step)
    np.testing.assert_array_equal(timestep.reward[step == 0], 0.0)
    np.testing.assert_array_equal(timestep.acting, timestep.alive & (step != length)[..., None])
    if variant == probes.MEMORY:  # the final observation belongs to the episode that ended
        np.testing.assert_array_equal(timestep.obs[length, ..., 1], 1.0)  # the clock at its end
        np.testing.assert_array_equal(states.env.cue[length], states.env.cue[0])
        np.testing.assert_array_equal(timestep.obs[length + 1, ..., 0], states.env.cue[length + 1])


def test_staggered_first_episodes_are_truncated_and_not_reported():
    length = int(probes.STEPS[probes.MEMORY])
    states, timestep = play(probes.MEMORY, 3 * (length + 1), num_envs=32, stagger=length)
    limit, last = states.limit[0], timestep.last
    assert set(limit) == set(range(1, length + 1))
    np.testing.assert_array_equal(last.argmax(axis=0), limit)
    assert (timestep.truncated.sum(axis=0) == (limit < length)).all()  # those that end by themselves are not truncated
    assert not (timestep.truncated & timestep.terminated).any()
    for ends in last.T:
        assert set(np.diff(np.flatnonzero(ends))) == {length + 1}  # later episodes are whole
    counted = jax.vmap(lambda state, timestep: episode_metrics(timestep, state)[0])(states, timestep)
    assert counted.sum() == last.sum() - 32


def test_returns_sum_the_rewards_of_agents_that_were_present():
    _, timestep = play(probes.ABSENT, 40, num_envs=16)
    reward, present = timestep.reward[1::2], timestep.alive[1::2]
    mean = (reward * present).sum(-1) / present.sum(-1)
    np.testing.assert_allclose(timestep.metrics["return"][1::2], mean, rtol=1e-6)
    assert not timestep.alive.all()


def test_instances_differ_and_keys_repeat():
    (_, one), (_, two) = (play(probes.CHOICE, 6, num_envs=32) for _ in range(2))
    np.testing.assert_array_equal(one.obs, two.obs)
    assert 0 < int((one.obs[0, :, 0, 0] > 0).sum()) < 32


def test_actions_and_params_are_checked():
    env, key = probes.Probe(), jax.random.key(0)
    vec = marljax.vectorize(env, 4)
    states, _ = jax.eval_shape(vec.reset, key)
    for shape in ((2,), (4, 1), (2, 4), (4, 2, 1)):
        with pytest.raises(UserError, match=r"Probe .*give \[4, 2\]"):
            jax.eval_shape(vec.step, key, states, jnp.zeros(shape, int))
    state, _ = env.reset(key)
    for action, message in ((jnp.zeros((), int), r"give \[2\]"), (jnp.zeros(2), "float32; give integers")):
        with pytest.raises(UserError, match=message):
            env.step(key, state, action)
    with pytest.raises(UserError, match="give ProbeParams"):
        env.reset(key, "hard")
    jax.tree.map(np.testing.assert_array_equal, env.step(key, state, [1, 0]), env.step(key, state, jnp.array([1, 0])))


@pytest.mark.parametrize("length", [1, 3])
def test_a_loop_may_carry_states_as_the_environment_lays_them_out(length):
    """Its results are ordinary inputs of other programs, also where XLA inlines a loop of one iteration."""
    env = marljax.make("smax")
    vec, params = marljax.vectorize(env, 4), env.default_params
    action = jnp.full((4, env.num_agents), env.noop)

    def advance(carried, state):
        def step(state, key):
            state, _ = vec.step(key, state, action, params)
            return vec.carried(state) if carried else state, None

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), length))[0]

    start, _ = jax.jit(vec.reset)(jax.random.key(0), params)
    plain, pinned = (jax.jit(functools.partial(advance, carried))(start) for carried in (False, True))
    assert env.instances_last
    copy = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 0, state.env))
    for read in (copy, jax.jit(functools.partial(advance, True))):
        jax.tree.map(np.testing.assert_array_equal, read(plain), read(pinned))
