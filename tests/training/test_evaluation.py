"""Policies on frozen episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from marljax.algos import mappo, ospo, ppo, pqn, qmix
from marljax.learning.rollout import Inputs
from marljax.training.evaluation import Evaluator, LearnedPolicy, play, record
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer
from marljax.wrappers.joint import joint

CHOICE = probes.ProbeParams(variant=probes.CHOICE)
MEMORY = probes.ProbeParams(variant=probes.MEMORY)


def untrained(algorithm, env, config):
    replicas = Trainer(algorithm, env, config, make_mesh()).init(jax.random.split(jax.random.key(3), 1), MEMORY)
    return LearnedPolicy(algorithm, env, config, jax.tree.map(lambda leaf: leaf[0], replicas.state.learner.params))


def oracle(key, state, timestep, carry):
    """Reads the cue from the state, as only scripted policies may."""
    del key, timestep
    return (state.cue > 0).astype(jnp.int32), carry


def coin(key, state, timestep, carry):
    del state
    return jax.random.randint(key, timestep.alive.shape, 0, 2), carry


@pytest.mark.parametrize("env_params", [CHOICE, MEMORY], ids=["one step", "four steps"])
def test_a_scripted_policy_plays_every_episode_to_its_end(env_params):
    metrics = Evaluator(probes.Probe(), 32).scripted(oracle, env_params, jax.random.key(0))
    np.testing.assert_array_equal(metrics["return"], 1.0)
    np.testing.assert_array_equal(metrics["finished"], 1.0)
    np.testing.assert_array_equal(metrics["length"], probes.STEPS[env_params.variant])


def test_the_same_key_gives_every_policy_the_same_scenarios_and_the_same_metrics():
    evaluator = Evaluator(probes.Probe(), 64)
    cue = probes.ProbeParams(variant=probes.TRACKING)
    metrics = [evaluator.scripted(policy, cue, jax.random.key(3))["return"] for policy in (oracle, coin, oracle)]
    np.testing.assert_array_equal(metrics[0], metrics[1])  # the reward is the cue, whatever is done
    np.testing.assert_array_equal(metrics[0], metrics[2])
    other = evaluator.scripted(oracle, cue, jax.random.key(4))["return"]
    assert not np.array_equal(metrics[0], other)


def test_an_episode_that_does_not_end_in_time_counts_as_unfinished():
    metrics = Evaluator(probes.Probe(), 8, max_steps=2).scripted(oracle, MEMORY, jax.random.key(0))
    np.testing.assert_array_equal(metrics["finished"], 0.0)
    np.testing.assert_array_equal(metrics["length"], 2)


def test_replicas_are_evaluated_each_with_their_own_parameters():
    config = mappo.Config(core="gru", hidden=(16, 16), num_envs=16, rollout_length=16, total_steps=256)
    trainer = Trainer(mappo, probes.Probe(), config, make_mesh())
    params = trainer.init(jax.random.split(jax.random.key(0), 2), MEMORY).state.learner.params
    metrics = Evaluator(probes.Probe(), 40).learned(mappo, config, params, MEMORY, jax.random.key(1))
    assert metrics["return"].shape == (2, 40)

    @jax.jit
    def alone(params):
        policy = LearnedPolicy(mappo, probes.Probe(), config, params)
        return play(probes.Probe(), MEMORY, policy, policy.initial_carry(), jax.random.key(1), 40, 100)

    for replica in range(2):
        own = jax.tree.map(lambda leaf, replica=replica: leaf[replica], params)
        np.testing.assert_array_equal(metrics["return"][replica], alone(own)["return"])


def test_a_recorded_episode_has_every_state():
    (whole,) = record(probes.Probe(), MEMORY, oracle, (), jax.random.key(0))
    assert whole.states.time.tolist() == [0, 1, 2, 3, 4]
    assert (whole.metrics["return"], whole.metrics["finished"]) == (1.0, 1.0)
    assert whole.timesteps.last.tolist() == [False] * 4 + [True]
    assert whole.timesteps.reward.sum(axis=0).mean() == 1.0
    assert len(whole.actions) == 4
    (cut,) = record(probes.Probe(), MEMORY, oracle, (), jax.random.key(0), max_steps=2)
    assert (cut.states.time.tolist(), cut.metrics["finished"]) == ([0, 1, 2], 0.0)


def test_fewer_episodes_are_the_first_of_many_and_the_recorded_one_is_the_first_of_all():
    """Of an oracle that errs by chance, so that scenarios and the policy's own draws both count."""

    def errs(key, state, timestep, carry):
        wrong = jax.random.bernoulli(key, 0.4, timestep.alive.shape)
        return oracle(key, state, timestep, carry)[0] ^ wrong.astype(jnp.int32), carry

    for env_params in (probes.ProbeParams(variant=probes.TRACKING), CHOICE):
        many, few = (Evaluator(probes.Probe(), count).scripted(errs, env_params, jax.random.key(5)) for count in (32, 5))
        np.testing.assert_array_equal(many["return"][:5], few["return"])
        assert len(np.unique(many["return"])) > 1
        for seed in range(2):
            played = Evaluator(probes.Probe(), 5).scripted(errs, env_params, jax.random.key(seed))["return"]
            for episodes, indices in ((1, [0]), (3, [0, 1, 2]), ([4, 2], [4, 2])):
                recorded = record(probes.Probe(), env_params, errs, (), jax.random.key(seed), episodes=episodes)
                assert [each.metrics["return"] for each in recorded] == np.asarray(played)[indices].tolist()


@pytest.mark.parametrize("algorithm", [ppo, mappo, qmix, pqn, ospo], ids=lambda algorithm: algorithm.__name__.split(".")[-1])
def test_a_recorded_episode_explains_the_actions_that_were_taken(algorithm):
    config = algorithm.Config(hidden=(16, 16), **({} if algorithm is ospo else {"core": "gru"}))
    policy = untrained(algorithm, joint(probes.Probe()) if algorithm is ppo else probes.Probe(), config)
    env = policy.env
    for episode in record(env, MEMORY, policy, policy.initial_carry(), jax.random.key(0), episodes=[3, 1]):
        chances = episode.explanation["action_value" if algorithm in (qmix, pqn) else "probability"]
        chances = chances.reshape(*chances.shape[:2], -1, 2)  # of the actions of each agent that a controller has
        np.testing.assert_array_equal(np.argmax(chances[:-1], -1).reshape(4, 2), episode.actions.reshape(4, 2))
        if algorithm not in (qmix, pqn):
            np.testing.assert_allclose(chances.sum(-1), 1.0, rtol=1e-5)
        assert ("value" in episode.explanation) == (algorithm in (ppo, mappo))


@pytest.mark.parametrize("algorithm", [qmix, pqn], ids=["qmix", "pqn"])
@pytest.mark.parametrize("mixer", ["vdn", "none"])
def test_explained_action_values_are_in_reward_units_unless_they_are_mixed(algorithm, mixer):
    policy = untrained(algorithm, probes.Probe(), algorithm.Config(hidden=(16, 16), mixer=mixer))
    params, (mean, std, scale) = policy.params, (0.0, 1.0, 0.5)
    if algorithm is pqn:
        mean, std = 4.0, 3.0
        params = params._replace(value_stats=params.value_stats._replace(mean=jnp.float32(mean), var=jnp.float32(std**2)))
    scaled = LearnedPolicy(algorithm, policy.env, policy.config.replace(reward_scale=scale), params)
    plain, found = (
        record(policy.env, MEMORY, each, each.initial_carry(), jax.random.key(0))[0].explanation["action_value"]
        for each in (policy, scaled)
    )
    np.testing.assert_allclose(found, (plain * std + mean) / scale if mixer == "none" else plain, rtol=1e-4)


def test_the_explained_value_is_in_reward_units_and_that_of_a_critic_that_remembers():
    env, config = probes.Probe(), mappo.Config(hidden=(16, 16), core="gru", reward_scale=0.5)
    params = untrained(mappo, env, config).params
    params = params._replace(value_stats=params.value_stats._replace(mean=jnp.float32(4.0)))
    policy = LearnedPolicy(mappo, env, config, params)
    (episode,) = record(env, MEMORY, policy, policy.initial_carry(), jax.random.key(0))
    carry = mappo.initial_carry(env, config, 1)
    for time, value in enumerate(episode.explanation["value"]):
        state, timestep = jax.tree.map(lambda leaf, time=time: leaf[time : time + 1], (episode.states, episode.timesteps))
        inputs = Inputs.of(timestep)._replace(state=jax.vmap(env.global_state, in_axes=(0, None))(state, MEMORY)[None])
        inputs = inputs.with_time(env, MEMORY, timestep)
        carry, normalized = mappo.make_networks(env, config).value(params, inputs, carry)
        np.testing.assert_allclose(value, 2.0 * (4.0 + normalized[0, 0]), rtol=1e-4)
