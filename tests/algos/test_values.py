"""Values of afterstates: what an agent adds on problems with known answers, λ-returns by hand, and dispatch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import marljax
from marljax.algos import ippo, ospo, qmix, values
from marljax.baselines.policies.ride_dispatch import PRICED, scripted_policy
from marljax.config.compose import tuned
from marljax.errors import UserError
from marljax.learning.rollout import Step
from marljax.testing import check_env
from marljax.training.evaluation import Evaluator
from marljax.training.trainer import make_train
from marljax.utils.assignment import match

SMALL = {"num_envs": 4, "rollout_length": 5, "hidden": (8,), "total_steps": 1_200, "num_epochs": 20, "batch_size": 32}


def test_a_matching_that_is_not_optimal_has_no_prices():
    with pytest.raises(UserError, match="learn_from=own"):
        values.Config(matching="greedy")
    assert values.Config(matching="greedy", learn_from="own").matching == "greedy"


@dataclasses.dataclass(frozen=True)
class Mislabelled(probes.Depot):
    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(obs={name: view.obs[name] for name in ("reward", "decisions")} | {"feature": view.obs["features"]})

    @property
    def observation_space(self):
        spaces = super().observation_space
        return {"feature": spaces["features"], "reward": spaces["reward"], "decisions": spaces["decisions"]}


def test_afterstates_of_other_names_are_reported():
    with pytest.raises(AssertionError, match="reward and decisions"):
        check_env(Mislabelled())


@dataclasses.dataclass(frozen=True)
class Underpaid(probes.Depot):
    def transition(self, key, state, action, env_params):
        state, outcome = super().transition(key, state, action, env_params)
        return state, outcome._replace(reward=0.5 * outcome.reward)


def test_rewards_other_than_announced_are_reported():
    with pytest.raises(AssertionError, match="earned another reward than it observed"):
        check_env(Underpaid(agents=2, orders=3))


def test_other_algorithms_refuse_afterstates():
    env = marljax.make("ride_dispatch", preset="demo", view="afterstates")
    for algorithm, says in ((ippo, "env.view=candidates"), (qmix, "env.view=candidates"), (ospo, "env.view=pairs")):
        with pytest.raises(UserError, match=says):
            jax.eval_shape(make_train(algorithm, env, algorithm.Config()), jax.random.key(0))


def learnt_rate(env, **settings):
    """The value per decision that is left."""
    config = values.Config(**SMALL | settings)
    check_env(env)
    result = jax.jit(make_train(values, env, config))(jax.random.key(0))
    assert int(result.diverged_at) == -1
    networks = values.make_networks(config)
    return float(networks.value(result.state.learner.params, jnp.ones(1), jnp.ones(())))


def test_an_agent_that_is_needed_is_worth_what_it_earns():
    rate = learnt_rate(probes.Depot(agents=1, orders=2), gamma=1.0)
    assert rate == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("learn_from", ["marginal", "own"])
def test_only_own_rewards_make_an_agent_valuable_that_nobody_needs(learn_from):
    """Eight agents and one order at a time: without one of them all would earn as much, though each earns an eighth."""
    env = probes.Depot(agents=8, orders=1)
    if learn_from == "marginal":  # the price of an order is its reward
        assert abs(learnt_rate(env, gamma=1.0, learn_from=learn_from, noise=0.0)) < 1e-3
    else:
        assert learnt_rate(env, gamma=1.0, learn_from=learn_from) == pytest.approx(1 / 8, abs=0.04)


@pytest.mark.parametrize("learn_from", ["marginal", "own"])
def test_targets_are_lambda_returns_of_the_afterstates(learn_from):
    draw, (steps, envs, agents) = np.random.default_rng(0), (7, 3, 2)
    config = values.Config(gamma=0.9, td_lambda=0.6, learn_from=learn_from)
    reward, price, value = draw.normal(size=(3, steps, envs, agents)).astype(np.float32)
    cut = np.zeros((steps, envs), bool)
    cut[[2, 4], [0, 1]] = True
    last = np.concatenate([np.zeros((1, envs), bool), cut[:-1]])  # the timestep after is final, and nobody acts in it
    present = np.broadcast_to(~last[..., None], reward.shape)
    decisions = draw.integers(0, 3, reward.shape).astype(np.float32)
    rollout = values.Transition(np.zeros((*reward.shape, 1)), decisions, present, reward != 0, reward, price, value)
    found = jax.jit(functools.partial(values.make_samples, config))(rollout, Step(reward, present, cut, cut))

    earned = reward - price if learn_from == "marginal" else reward
    expected = np.zeros((steps - 1, envs, agents))
    for env in range(envs):
        following = value[-1, env]
        for time in reversed(range(steps - 1)):
            bootstrapped = 0.4 * value[time + 1, env] + 0.6 * following
            following = np.zeros(agents) if last[time + 1, env] else earned[time + 1, env] + 0.9 * bootstrapped
            expected[time, env] = following
    mask = present[:-1] & (decisions[:-1] > 0)
    np.testing.assert_array_equal(found.mask, mask)
    np.testing.assert_allclose(np.asarray(found.target)[mask], expected[mask], rtol=1e-5, atol=1e-6)


def test_samples_are_of_filled_slots():
    slots = jnp.broadcast_to(jnp.arange(4)[:, None, None], (2, 4, 3, 5))
    for filled in (1, 3):
        batch = values.draw(values.Samples(slots, slots, slots, slots > 0), jnp.array(filled), 200, jax.random.key(0))
        assert set(np.unique(batch.target)) == set(range(filled))


@pytest.fixture(scope="module")
def city():
    """A small city, some minutes into an episode."""
    env = marljax.make("ride_dispatch", preset="demo", vehicles=12, orders=24, view="afterstates")
    params = env.default_params.replace(demand_scale=0.05, capacity=2)
    state, timestep = env.reset(jax.random.key(0), params)
    for minute in range(6):
        action = match(timestep.obs["reward"][:, :-1], timestep.action_mask[:, :-1])
        state, timestep = env.step(jax.random.key(minute), state, action, params)
    return env, params, state, timestep


def test_an_untrained_network_matches_by_the_reward_of_the_step(city):
    env, _, _, timestep = city
    config = values.Config()
    params = values.make_networks(config).init(jax.random.key(0), timestep.obs["features"][:, 0])
    action, _ = values.act(env, config, params, timestep, (), jax.random.key(1), True)
    expected = match(timestep.obs["reward"][:, :-1], timestep.action_mask[:, :-1])
    np.testing.assert_array_equal(action, expected)
    assert (np.asarray(action) < env.noop).any()
    noisy, _ = values.act(env, config.replace(noise=50.0), params, timestep, (), jax.random.key(1), False)
    assert (np.asarray(noisy) != np.asarray(action)).any()


def test_absent_agents_get_no_items(city):
    """Whatever their masks say, which the contract leaves open."""
    env, _, _, timestep = city
    params = values.make_networks(values.Config()).init(jax.random.key(0), timestep.obs["features"][:, 0])
    alive, mask = jnp.arange(12) % 3 != 0, jnp.ones_like(timestep.action_mask)
    obs = timestep.obs | {"reward": jnp.ones_like(timestep.obs["reward"]).at[:, -1].set(0.0)}
    action, _ = values.act(
        env, values.Config(), params, timestep.replace(obs=obs, alive=alive, action_mask=mask), (), jax.random.key(1), True
    )
    assert (np.asarray(action)[~alive] == env.noop).all()
    assert (np.asarray(action)[alive] < env.noop).all(), "there are enough orders"


def test_values_of_pairs_are_those_of_the_network(city, monkeypatch):
    """Though only agents that may choose are computed, a few at a time."""
    _, _, _, timestep = city
    monkeypatch.setattr(values, "BLOCK", 3)
    obs, can_act = timestep.obs, jnp.arange(12) % 3 != 0

    def value(features, decisions):
        return decisions * jnp.sum(features, axis=-1)

    found = np.asarray(values.value_items(value, obs, can_act))
    expected = np.asarray(value(obs["features"], obs["decisions"]))[:, :-1]
    np.testing.assert_allclose(found[can_act], expected[can_act], rtol=1e-6)


def test_explained_values_are_those_that_are_matched(city):
    env, params, state, timestep = city
    config = values.Config(gamma=0.9)
    network = values.make_networks(config)
    weights = network.init(jax.random.key(0), timestep.obs["features"][:, 0])
    weights = jax.tree.map(lambda leaf: leaf + 0.01, weights)
    episode = jax.tree.map(lambda leaf: leaf[None, None], timestep)
    found = values.explain(env, config, weights, params, state, episode)["action_value"][0, 0]
    after = network.value(weights, timestep.obs["features"], timestep.obs["decisions"])
    expected = np.where(timestep.action_mask, timestep.obs["reward"] + 0.9 * after, np.nan)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    gains = np.nan_to_num(found - found[:, -1:])[:, :-1]
    action, _ = values.act(env, config, weights, timestep, (), jax.random.key(0), True)
    np.testing.assert_array_equal(action, match(gains, timestep.action_mask[:, :-1]))


@pytest.mark.slow
def test_values_earn_more_than_the_tuned_price():
    """In the small city, after 15 seconds of training."""
    run = tuned("values", "ride_dispatch", "env.preset=demo")
    result = jax.jit(make_train(values, run.env, run.config, run.env_params))(jax.random.key(0))
    evaluator, key = Evaluator(run.env, 16), jax.random.key(1)
    params = jax.tree.map(lambda leaf: leaf[None], result.state.learner.params)
    learnt = evaluator.learned(values, run.config, params, run.env_params, key)["reward"].mean()
    rule = scripted_policy(run.env, run.env_params, PRICED)
    priced = Evaluator(rule.env, 16).scripted(rule.policy, rule.env_params, key, rule.carry)["reward"].mean()
    assert learnt > 1.06 * priced
