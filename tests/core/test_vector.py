import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import marljax
from marljax import UserError
from marljax.learning.rollout import episode_figures


def play(variant, steps, num_envs=4, stagger=0):
    env_params = probes.ProbeParams(variant=variant)
    vec = marljax.vectorize(probes.Probe(), num_envs)
    step = jax.jit(functools.partial(vec.step, env_params=env_params))
    state, timestep = vec.reset(jax.random.key(0), env_params)
    state = vec.staggered(jax.random.key(1), state, stagger) if stagger else state
    states, timesteps = [state], [timestep]
    for t in range(steps):
        action = jax.random.randint(jax.random.key(t), (num_envs, 2), 0, 2)
        state, timestep = step(jax.random.key(1000 + t), state, action)
        states.append(state)
        timesteps.append(timestep)
    return states, timesteps


@pytest.mark.parametrize(
    ("env", "count", "message"),
    [(3, 3, "got 3; give an environment"), *((probes.Probe(), count, "num_envs=") for count in (0, "a", 2.0, True, None))],
)
def test_what_makes_no_instances_is_refused(env, count, message):
    with pytest.raises(UserError, match=f"vectorize .*{message}"):
        marljax.vectorize(env, count)


@pytest.mark.parametrize("variant", [probes.DELAYED, probes.TRUNCATED, probes.MEMORY])
def test_an_episode_restarts_on_the_step_after_its_last(variant):
    length = int(probes.STEPS[variant])
    _, timesteps = play(variant, 3 * (length + 1))
    for t, timestep in enumerate(timesteps):
        place = t % (length + 1)
        assert bool(timestep.first.all()) == (place == 0)
        assert bool(timestep.last.all()) == (place == length)
        assert bool(timestep.truncated.any()) == (place == length and variant == probes.TRUNCATED)
        np.testing.assert_array_equal(timestep.metrics["length"], place)
        if place == 0:
            np.testing.assert_array_equal(timestep.reward, 0.0)
        np.testing.assert_array_equal(timestep.acting, timestep.alive & (place != length))


def test_staggered_first_episodes_are_cut_off_and_count_nowhere():
    length = int(probes.STEPS[probes.MEMORY])
    states, timesteps = play(probes.MEMORY, 3 * (length + 1), num_envs=32, stagger=length)
    last = np.array([timestep.last for timestep in timesteps])
    cut_at = np.asarray(states[0].limit)
    assert set(cut_at) == set(range(1, length + 1))
    np.testing.assert_array_equal(last.argmax(axis=0), cut_at)
    truncated = np.array([timestep.truncated for timestep in timesteps])
    terminated = np.array([timestep.terminated for timestep in timesteps])
    assert (truncated.sum(axis=0) == (cut_at < length)).all()  # those that end by themselves are not cut off as well
    assert not (truncated & terminated).any()
    for instance, ends in enumerate(last.T):
        assert set(np.diff(np.flatnonzero(ends))) == {length + 1}  # later episodes are whole
        assert cut_at[instance] == np.flatnonzero(ends)[0]
    counted = sum(float(episode_figures(timestep, state)[0]) for state, timestep in zip(states, timesteps, strict=True))
    assert counted == last.sum() - 32


def test_the_final_observation_belongs_to_the_episode_that_ended():
    states, timesteps = play(probes.MEMORY, 10)
    np.testing.assert_array_equal(timesteps[4].obs[..., 1], 1.0)  # the clock at its end, not a new episode's 0
    np.testing.assert_array_equal(states[4].env.cue, states[0].env.cue)
    np.testing.assert_array_equal(timesteps[5].obs[..., 0], states[5].env.cue)


def test_returns_sum_the_rewards_of_agents_that_were_present():
    _, timesteps = play(probes.ABSENT, 40, num_envs=16)
    for timestep in timesteps[1::2]:
        present = np.asarray(timestep.alive)
        mean = (np.asarray(timestep.reward) * present).sum(1) / present.sum(1)
        np.testing.assert_allclose(timestep.metrics["return"], mean, rtol=1e-6)
    assert any(not timestep.alive.all() for timestep in timesteps)


def test_instances_differ_and_keys_repeat():
    _, once = play(probes.CHOICE, 6, num_envs=32)
    _, twice = play(probes.CHOICE, 6, num_envs=32)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a.obs, b.obs)
    assert 0 < int((once[0].obs[:, 0, 0] > 0).sum()) < 32


def test_env_params_may_be_vmapped():
    vec = marljax.vectorize(probes.Probe(), 2)
    values = jnp.array([probes.CONSTANT, probes.TRUNCATED])

    def rewards(variant):
        env_params = probes.ProbeParams(variant=variant)
        state, _ = vec.reset(jax.random.key(0), env_params)
        return vec.step(jax.random.key(1), state, jnp.zeros((2, 2), int), env_params)[1].last

    np.testing.assert_array_equal(jax.vmap(rewards)(values)[:, 0], [True, False])


@pytest.mark.parametrize("shape", [(2,), (4, 1), (2, 4), (4, 2, 1)])
def test_actions_of_another_shape_are_refused(shape):
    vec = marljax.vectorize(probes.Probe(), 4)
    state, _ = jax.eval_shape(vec.reset, jax.random.key(0))
    with pytest.raises(marljax.UserError, match=r"Probe got actions of shape .*; give \[4, 2\], one for each agent"):
        jax.eval_shape(vec.step, jax.random.key(1), state, jnp.zeros(shape, int))


def test_a_step_alone_takes_one_action_for_each_agent():
    env = probes.Probe()
    state, _ = env.reset(jax.random.key(0))
    with pytest.raises(marljax.UserError, match=r"got actions of shape \[\]; give \[2\]"):
        env.step(jax.random.key(1), state, jnp.zeros((), int))
    with pytest.raises(marljax.UserError, match="got actions of float32; give integers"):
        env.step(jax.random.key(1), state, jnp.zeros(2))
    one, other = (env.step(jax.random.key(1), state, action) for action in ([1, 0], jnp.array([1, 0])))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    with pytest.raises(marljax.UserError, match="env_params are str; give ProbeParams"):
        env.reset(jax.random.key(0), "hard")
