"""The defaults and JaxMARL's loops on MPE: the same prey for both, and the central critic's inputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from marljax.baselines import mpe
from marljax.baselines.rivals import rnn_ppo, simple_tag
from marljax.testing import check_env


def test_nothing_but_the_number_of_steps_is_set():
    for pair in mpe.PAIRS.values():
        ours, usual = pair.config(1_000_000), pair.module.Config(total_steps=1_000_000)
        changed = {name for name, value in dataclasses.asdict(ours).items() if value != getattr(usual, name)}
        assert changed <= {"mixer"}


def test_the_prey_flees_inside_the_arena(monkeypatch):
    monkeypatch.setattr(simple_tag, "RANDOM", 0.0)
    play = functools.partial(simple_tag.play_prey, jax.random.key(0))
    far = jnp.array([[5.0, 5.0], [-5.0, 5.0]])
    one_left = jnp.concatenate([far, jnp.array([[-0.2, 0.0]])])
    assert simple_tag.DIRECTIONS[int(play(one_left, jnp.zeros(2)))] == (1.0, 0.0)
    corner = jnp.array([0.9, 0.0])
    assert simple_tag.DIRECTIONS[int(play(one_left + corner, corner))] in ((0.0, 1.0), (0.0, -1.0)), "not over the edge"


def test_both_libraries_have_the_same_prey():
    """Our adapter and JaxMARL's API give the same step, and touches are rewarded alike for all predators."""
    ours, theirs = simple_tag.Chase(), simple_tag.Predators()
    assert ours.num_agents == theirs.num_agents == 3
    assert ours.teams == (0, 0, 0)
    assert ours.observation_space.shape == theirs.observation_space("adversary_0").shape
    state, _ = ours.reset(jax.random.key(0))
    state = state.replace(inner=state.inner.replace(p_pos=state.inner.p_pos.at[0].set(state.inner.p_pos[3] + 0.05)))  # touching
    key, action = jax.random.key(1), jnp.array([1, 2, 3])
    obs, inner, reward, done, _ = jax.jit(theirs.step_env)(key, state.inner, dict(zip(theirs.agents, action, strict=True)))
    state, outcome = jax.jit(ours.transition)(key, state, action, ours.default_params)
    np.testing.assert_allclose(ours.observe(state, ours.default_params).obs, jnp.stack(list(obs.values())), atol=1e-6)
    np.testing.assert_allclose(state.inner.p_pos, inner.p_pos, atol=1e-6)
    np.testing.assert_array_equal(outcome.reward, jnp.stack(list(reward.values())))
    assert set(done) == {*theirs.agents, "__all__"}
    assert outcome.reward[0] == outcome.reward[1] == outcome.reward[2] >= 10.0
    check_env(ours)


def test_their_mappo_acts_as_in_training():
    """The critic observes all observations in the agents' order; our evaluation plays the policy of the rollout."""
    settings = rnn_ppo.Settings(num_envs=2, rollout_length=4, width=8, num_minibatches=1, central=True)
    env = mpe.jaxmarl_env("simple_reference")
    trainer = rnn_ppo.MpeTrainer(settings, env)
    state = jax.jit(trainer.init)(jax.random.key(0))
    inputs = trainer.get_inputs(state.obs, state.env, state.done)
    both = [state.obs[agent] for agent in env.agents]
    np.testing.assert_array_equal(inputs.world, jnp.tile(jnp.concatenate(both, -1), (2, 1)))
    _, logits, _ = jax.jit(trainer.apply)(state.params, state.carry, jax.tree.map(lambda x: x[None], inputs))

    own = mpe.our_env("simple_reference")
    _, timestep = own.reset(jax.random.key(1))
    timestep = timestep.replace(obs=jnp.stack([obs[0] for obs in both]), first=jnp.array(False))
    carry = rnn_ppo.initial_carry(own, settings)
    action, _ = rnn_ppo.act(own, settings, state.params, timestep, carry, jax.random.key(2), True)
    np.testing.assert_array_equal(action, jnp.argmax(logits[0, jnp.array([0, 2])], -1))  # of the first of two environments
