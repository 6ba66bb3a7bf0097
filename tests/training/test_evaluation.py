"""Policies on frozen episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from marljax.algos import mappo
from marljax.training.evaluation import Evaluator, LearnedPolicy, play, record
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer

CHOICE = probes.ProbeParams(variant=probes.CHOICE)
MEMORY = probes.ProbeParams(variant=probes.MEMORY)


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
            for episodes in (1, 3):
                recorded = record(probes.Probe(), env_params, errs, (), jax.random.key(seed), episodes=episodes)
                assert [each.metrics["return"] for each in recorded] == played[:episodes].tolist()
