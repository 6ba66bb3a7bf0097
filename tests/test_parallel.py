"""Two devices do what one does: the learner's step on a sharded batch, and whole runs of seeds side by side."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from jax.sharding import PartitionSpec

from marljax import parallel, ppo
from marljax.algos import mappo, qmix
from marljax.rollout import collect
from marljax.train import Trainer
from marljax.vector import vectorize

# One minibatch: shards shuffle on their own, so only whole-batch steps can agree.
CONFIG = mappo.Config(
    total_steps=1_024, num_envs=8, rollout_length=16, num_epochs=3, num_minibatches=1, hidden=(16,), normalize_observations=True
)
ENV, ENV_PARAMS = probes.Probe(), probes.ProbeParams(variant=probes.ABSENT)


def on_mesh(data, function, *specs_and_values):
    specs, values = zip(*specs_and_values, strict=True)
    mesh = parallel.make_mesh(1, data)
    program = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return jax.device_get(jax.jit(program)(*values))


def rolled_out(key):
    """A learner and one rollout of it, with advantages that are anything."""
    state = mappo.init(ENV, ENV_PARAMS, CONFIG, key)
    vec = vectorize(ENV, CONFIG.num_envs)
    decide = functools.partial(mappo.rollout_policy, ENV, CONFIG, state.learner.params, ENV_PARAMS)
    _, records, _, _ = collect(vec, ENV_PARAMS, decide, state.actors, key, CONFIG.rollout_length)
    inputs, last, sample, log_prob, value = records
    decides, valued = ppo.masks(CONFIG, ENV, inputs.local, last)
    advantage = jax.random.normal(key, value.shape)
    return state.learner, ppo.Batch(inputs, sample, log_prob, value, decides, valued, advantage, value + advantage)


def fitted(learner, batch, key):
    evaluate = functools.partial(mappo.evaluate_batch, ENV, CONFIG)
    learner, terms = ppo.fit(CONFIG, learner, batch, ppo.Carry((), ()), evaluate, key)
    return learner.params, terms


def check_sharded_batch():
    """Parameters and loss terms after gradient steps on a batch whose environments lie on two devices."""
    everywhere = PartitionSpec()
    learner, batch = on_mesh(1, rolled_out, (everywhere, jax.random.key(0)))
    parts = ((everywhere, learner), (PartitionSpec(None, parallel.DATA), batch), (everywhere, jax.random.key(1)))
    (params, terms), (same, likewise) = (on_mesh(data, fitted, *parts) for data in (1, 2))
    chex.assert_trees_all_close(params, same, atol=1e-5)
    chex.assert_trees_all_close(terms, likewise, rtol=1e-3, atol=1e-5)
    moved = jax.tree.map(lambda old, new: float(jnp.abs(old - new).max()), learner.params.actor, params.actor)
    assert max(jax.tree.leaves(moved)) > 1e-4


def check_seeds_side_by_side():
    keys = jax.random.split(jax.random.key(0), 2)
    ends = []
    for seed in (1, 2):
        trainer = Trainer(mappo, ENV, CONFIG, parallel.make_mesh(seed, 1))
        members, metrics = trainer.run(trainer.init(keys, ENV_PARAMS), 3)
        ends.append(jax.device_get((members.state.learner.params, metrics)))
    chex.assert_trees_all_close(*ends, rtol=1e-3, atol=1e-4)


def check_sharded_runs():
    """A run over two devices learns, and every device holds the same parameters."""
    config = CONFIG.replace(total_steps=24_000, num_envs=32, num_minibatches=2, learning_rate=5e-3)
    trainer = Trainer(mappo, ENV, config, parallel.make_mesh(1, 2))
    members = trainer.init(jax.random.split(jax.random.key(0), 1), probes.ProbeParams(variant=probes.CHOICE))
    members, metrics = trainer.run(members, trainer.num_updates)
    for leaf in jax.tree.leaves(members.state.learner.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)
    returns = metrics["sum_return"].sum(0) / metrics["episodes"].sum(0)
    assert returns[-5:].mean() > 0.9 > 0.7 > returns[0]


def check_sharded_replay():
    """QMIX over two devices learns; each holds the replay of its environments, and both hold the same networks."""
    config = qmix.Config(
        total_steps=12_000,
        num_envs=16,
        rollout_length=8,
        buffer_size=4_096,
        learning_starts=512,
        hidden=(32, 32),
        learning_rate=3e-3,
    )
    trainer = Trainer(qmix, ENV, config, parallel.make_mesh(1, 2))
    members = trainer.init(jax.random.split(jax.random.key(0), 1), probes.ProbeParams(variant=probes.CHOICE))
    members, metrics = trainer.run(members, trainer.num_updates)
    for leaf in jax.tree.leaves((members.state.learner.params, members.state.learner.opt_state)):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)
    first, second = (np.asarray(shard.data) for shard in members.state.actors.carry.replay.value.action.addressable_shards)
    assert first.shape == second.shape == (1, 8, config.capacity, 8, 2)
    assert (first != second).any()
    returns = metrics["sum_return"].sum(0) / metrics["episodes"].sum(0)
    assert returns[-5:].mean() > 0.9 > 0.7 > returns[0]


@pytest.mark.slow
def test_two_devices_do_what_one_does():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    assert jax.device_count() == 2
    check_sharded_batch()
    check_seeds_side_by_side()
    check_sharded_runs()
    check_sharded_replay()
