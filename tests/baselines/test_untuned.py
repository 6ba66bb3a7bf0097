"""The defaults on problems without tuned values: both libraries play the same ones, and nothing else is set."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.baselines import untuned
from marljax.baselines.harness.loops import Plan
from marljax.baselines.rivals.flat_env import FlatEnv
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    import jaxmarl


def test_twelve_problems_half_of_them_held_out():
    assert len(untuned.PROBLEMS) == 12
    assert sum(problem.chosen_on for problem in untuned.PROBLEMS.values()) == 6


@pytest.mark.parametrize("name", ["simple_speaker_listener", "cramped_room", "coin_game"])
def test_both_libraries_observe_the_same(name):
    """The rival's environment, flat and padded, and ours through the adapter."""
    ours = untuned.PROBLEMS[name].make()
    settings = {"cramped_room": ("overcooked", {}, 100), "coin_game": ("coin_game", {"shared_rewards": True}, 0)}
    given, options, shaped_steps = settings.get(name, ("MPE_simple_speaker_listener_v4", {}, 0))
    with quiet():
        theirs = FlatEnv(jaxmarl.make(given, **options), shaped_steps)
    assert (theirs.num_agents, theirs.action_space("").n) == (ours.num_agents, ours.action_space.n)
    obs, state = jax.jit(theirs.reset)(jax.random.key(0))
    assert jnp.stack([obs[agent] for agent in theirs.agents]).shape == (ours.num_agents, *ours.observation_space.shape)

    own, timestep = ours.reset(jax.random.key(0))
    own = own.replace(inner=state.inner.env_state)
    step, own_step = jax.jit(theirs.step), jax.jit(ours.step)
    for number in range(5):
        action = jax.random.randint(jax.random.key(number), (ours.num_agents,), 0, ours.action_space.n)
        actions = dict(zip(theirs.agents, action, strict=True))
        obs, state, reward, _, _ = step(jax.random.key(number), state, actions)
        own, timestep = own_step(jax.random.key(number), own, action)
        if name != "coin_game":  # which draws new coins
            np.testing.assert_allclose(timestep.obs, jnp.stack([obs[agent] for agent in theirs.agents]), atol=1e-6)
            np.testing.assert_allclose(timestep.reward, jnp.stack([reward[agent] for agent in theirs.agents]), atol=1e-5)


def test_the_shaped_reward_falls_to_nothing():
    class Shaped:
        agents, num_agents = ("one",), 1

        def reset(self, key):
            return {"one": jnp.zeros((2, 2))}, jnp.zeros(())

        def step(self, key, state, actions):
            info = {"shaped_reward": {"one": jnp.float32(8.0)}}
            return {"one": jnp.zeros((2, 2))}, state, {"one": jnp.float32(1.0)}, {"one": False, "__all__": False}, info

        def action_space(self, agent):
            return SimpleNamespace(n=2)

    env = FlatEnv(Shaped(), shaped_steps=4)
    obs, state = env.reset(jax.random.key(0))
    assert obs["one"].shape == (4,)
    rewards = []
    for _ in range(6):
        _, state, reward, _, _ = env.step(jax.random.key(0), state, {"one": jnp.array(0)})
        rewards.append(float(reward["one"]))
    assert rewards == [9.0, 7.0, 5.0, 3.0, 1.0, 1.0]


def test_rivals_take_as_many_steps_and_their_own_settings():
    for name, problem in untuned.PROBLEMS.items():
        settings = dataclasses.asdict(problem.rival_config(untuned.PLAN))
        total = settings.get("total_timesteps", settings.get("total_steps"))
        assert total == untuned.PLAN.total_steps, name
    assert untuned.PROBLEMS["5m_vs_6m"].rival_config(Plan()).learning_rate == 4e-3
    assert untuned.PROBLEMS["Breakout"].rival_config(Plan()).activation == "relu"
    assert untuned.PROBLEMS["cramped_room"].rival_config(Plan()).shaped


def test_a_verdict_counts_what_is_not_clearly_below(monkeypatch):
    def found(cache, plan, name, trained):
        gap = {"CartPole": 5.0, "Acrobot": -5.0}.get(name, 0.0) * (trained != untuned.RIVAL)
        return {
            kind: {"mean": [10.0 + gap, 10.5 + gap, 11.0 + gap], "std": [0.0] * 3, "count": 9} for kind in ("training", "greedy")
        }

    monkeypatch.setattr(untuned, "result", found)
    plan = dataclasses.replace(untuned.PLAN, seeds=3)
    text = untuned.compared_table(("ppo", "ippo"), None, plan)
    assert "4 of 5 not held out are within or above; below: Acrobot-v1." in text, "Pendulum is not compared"
    assert "6 of 6 held out are within or above." in text
    assert text.count("\n| ") == 13
    assert "| CartPole-v1 | 15.5 ± 1.2 | 10.5 ± 1.2 | +5.00 [+3.87, +6.13] |" in text
    assert "| Coin Game, shared rewards, held out | 10.5 ± 1.2 |" in text
    text = untuned.compared_table(("pqn",), None, plan)
    assert "8 of 9 not held out are within or above; below: Acrobot-v1." in text
    assert "2 of 2 held out are within or above." in text
    assert "| Overcooked asymm_advantages | " in text, "another layout was used"
