"""The defaults on MPE beside JaxMARL's loops: the same prey for both, what both cells hold, and the measure of collapse."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from marljax.baselines import mpe
from marljax.baselines.harness.result_cache import Cells
from marljax.baselines.harness.versus import Plan
from marljax.baselines.rivals import rnn_ppo, simple_tag
from marljax.testing import check_env

QUIET = Console(quiet=True)
TINY = Plan(total_steps=12_480, seeds=2, tail=0.5, episodes=16)


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


def test_both_libraries_chase_the_same_prey():
    """Step by step: our adapter shows what JaxMARL's API does, and touches are rewarded alike for all predators."""
    ours, theirs = simple_tag.Chase(), simple_tag.Predators()
    assert ours.num_agents == theirs.num_agents == 3
    assert ours.teams == (0, 0, 0)
    assert ours.observation_space.shape == theirs.observation_space("adversary_0").shape
    state, _ = ours.reset(jax.random.key(0))
    state = state.replace(inner=state.inner.replace(p_pos=state.inner.p_pos.at[0].set(state.inner.p_pos[3] + 0.05)))  # touching
    key, action = jax.random.key(1), jnp.array([1, 2, 3])
    obs, inner, reward, done, _ = theirs.step_env(key, state.inner, dict(zip(theirs.agents, action, strict=True)))
    state, outcome = ours.transition(key, state, action, ours.default_params)
    np.testing.assert_allclose(ours.observe(state, ours.default_params).obs, jnp.stack(list(obs.values())), atol=1e-6)
    np.testing.assert_allclose(state.inner.p_pos, inner.p_pos, atol=1e-6)
    np.testing.assert_array_equal(outcome.reward, jnp.stack(list(reward.values())))
    assert set(done) == {*theirs.agents, "__all__"}
    assert outcome.reward[0] == outcome.reward[1] == outcome.reward[2] >= 10.0


def test_the_chase_keeps_the_contract():
    check_env(simple_tag.Chase())


def test_their_mappo_sees_everybody_and_acts_as_it_was_trained():
    """The critic's world is all observations in the agents' order, and the policy in our evaluation is that of the rollout."""
    settings = rnn_ppo.Settings(num_envs=2, rollout_length=4, width=8, num_minibatches=1, central=True)
    env = mpe.rival_env("simple_reference")
    trainer = rnn_ppo.MpeTrainer(settings, env)
    state = rnn_ppo.init(env, settings, jax.random.key(0))
    moment = trainer.see(state.obs, state.env, state.done)
    both = [state.obs[agent] for agent in env.agents]
    np.testing.assert_array_equal(moment.world, jnp.tile(jnp.concatenate(both, -1), (2, 1)))
    _, logits, _ = trainer.apply(state.params, state.carry, jax.tree.map(lambda x: x[None], moment))

    own = mpe.our_env("simple_reference")
    _, timestep = own.reset(jax.random.key(1))
    timestep = timestep.replace(obs=jnp.stack([obs[0] for obs in both]), first=jnp.array(False))
    carry = rnn_ppo.initial_carry(own, settings)
    action, _ = rnn_ppo.act(own, settings, state.params, timestep, carry, jax.random.key(2), True)
    np.testing.assert_array_equal(action, jnp.argmax(logits[0, jnp.array([0, 2])], -1))  # of the first of two environments


def test_a_curve_has_the_means_of_its_parts(monkeypatch):
    monkeypatch.setattr(mpe, "POINTS", 3)
    episodes = np.array([[1.0, 3.0, 0.0, 0.0, 2.0, 0.0]])
    total = np.array([[-1.0, -7.0, 0.0, 0.0, -8.0, 0.0]])
    np.testing.assert_allclose(mpe.curve(episodes, total), [[-2.0, -2.0, -4.0]])


def test_a_collapse_is_seen():
    """Of the worst seed, though the mean hardly shows it and the end is well again."""
    steady = [[-26.0, -22.0, -21.0, -20.0]] * 4
    assert mpe.steadiness(steady, -26.0)[-1] == "83%"
    assert mpe.steadiness([*steady, [-26.0, -20.0, -47.0, -20.0]], -26.0)[-1] == "-350%"
    assert mpe.steadiness([[-26.0, -27.0, -68.0, -68.0]], -26.0)[-1] == "nothing gained"


def test_a_page_says_what_is_missing(tmp_path):
    cells = Cells(tmp_path, QUIET, compute_missing=False)
    text = mpe.page({part: fill(cells) for part, fill in mpe.PARTS.items()})
    assert "Not computed yet: simple_spread, IPPO; simple_spread, MAPPO" in text
    assert "1,000,000 steps" in text


@pytest.mark.slow
@pytest.mark.parametrize("algo", list(mpe.PAIRS))
def test_both_trainings_fill_their_cells_and_are_found_again(tmp_path, algo, monkeypatch):
    monkeypatch.setattr(mpe, "PAIRS", {algo: mpe.PAIRS[algo]})
    monkeypatch.setattr(mpe, "ENVS", {"simple_tag": mpe.ENVS["simple_tag"]})
    again = Cells(tmp_path, QUIET, compute_missing=False)
    for part, fill in mpe.PARTS.items():
        text = fill(Cells(tmp_path, QUIET), TINY)
        assert fill(again, TINY) == text, part
        assert text.count("\n") >= 2
        assert "Not computed yet" not in text
