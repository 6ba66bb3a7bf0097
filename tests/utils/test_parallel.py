"""Eight devices do what one does: members side by side to the bit, the environments of one run to rounding and in what is learnt.

In processes of their own: the number of devices is fixed when JAX starts.
"""

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

from marljax.algos import ippo, mappo, ospo, ppo, qmix
from marljax.core.vector import vectorize
from marljax.learning import ppo as shared
from marljax.learning.rollout import collect
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer
from marljax.utils import collectives, stats
from marljax.wrappers.joint import joint

SUPPORT = Path(__file__).parents[1] / "support"
ENV, ENV_PARAMS = probes.Probe(), probes.ProbeParams(variant=probes.ABSENT)
CHOICE = probes.ProbeParams(variant=probes.CHOICE)
SMALL = {"total_steps": 1_024, "num_envs": 8, "rollout_length": 16, "hidden": (16,)}
EPOCHS = {"num_epochs": 2, "num_minibatches": 2}
CONFIGS = {
    ppo: ppo.Config(**SMALL, **EPOCHS),
    ippo: ippo.Config(**SMALL, **EPOCHS),
    mappo: mappo.Config(**SMALL, **EPOCHS),
    qmix: qmix.Config(**SMALL, core="mlp", gradient_steps=1, buffer_size=512, batch_size=8, learning_starts=0),
    ospo: ospo.Config(**SMALL, **EPOCHS, normalize_observations=False),
}
# One minibatch: shards shuffle on their own, so only whole-batch steps can agree.
WHOLE = {"num_epochs": 3, "num_minibatches": 1, "normalize_observations": True}
WHOLE_MAPPO, WHOLE_OSPO = CONFIGS[mappo].replace(**WHOLE), CONFIGS[ospo].replace(**WHOLE)
EVERYWHERE = PartitionSpec()


def env_of(algorithm):
    return joint(ENV) if algorithm is ppo else ENV


def keys_of(count):
    return jax.vmap(jax.random.key)(np.arange(count, dtype=np.uint32))


def advanced(algorithm, seed, data, keys, updates=3):
    """Members after some updates on a mesh, and their metrics."""
    trainer = Trainer(algorithm, env_of(algorithm), CONFIGS[algorithm], make_mesh(seed, data))
    return trainer.run(trainer.init(keys, ENV_PARAMS), updates)


def numbers(tree):
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf), tree
    )


def member(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def check_members_on_devices_of_their_own(algorithm):
    """(8, 1): every member has the bits of the single run of its seed, environments and replay included.

    Not so with ``normalize_observations``: XLA compiles the moments of one device's program in another way, and they differ by a
    last bit.
    """
    keys = keys_of(8)
    together = numbers(advanced(algorithm, 8, 1, keys))
    for index in range(8):
        alone = numbers(advanced(algorithm, 1, 1, keys[index : index + 1]))
        chex.assert_trees_all_equal(member(together, index), member(alone, 0))


def check_members_and_environments(algorithm):
    """(4, 2): two members on each pair of devices have the bits that they have on a (1, 2) mesh."""
    keys = keys_of(8)
    together, pair = numbers(advanced(algorithm, 4, 2, keys)), numbers(advanced(algorithm, 1, 2, keys[2:4]))
    for index in range(2):
        chex.assert_trees_all_equal(member(together, 2 + index), member(pair, index))


def check_shards_agree(algorithm):
    """(1, 8): every device holds the same learner, and environments of its own."""
    members, _ = advanced(algorithm, 1, 8, keys_of(1))
    for leaf in jax.tree.leaves((members.state.learner.params, members.state.learner.opt_state)):
        first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        for other in others:
            np.testing.assert_array_equal(first, other)
    for leaf in jax.tree.leaves((members.state.actors.timestep.obs, members.state.actors.carry)):
        assert len(leaf.addressable_shards) == 8
        assert leaf.addressable_shards[0].data.shape[1] * 8 == leaf.shape[1]
    obs = jax.tree.leaves(members.state.actors.timestep.obs)[0]
    assert len(np.unique(np.asarray(obs).reshape(8, -1), axis=0)) > 2


def on_mesh(data, function, *specs_and_values):
    specs, values = zip(*specs_and_values, strict=True)
    mesh = make_mesh(1, data)
    program = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False)
    return jax.device_get(jax.jit(program)(*values))


def rollout_of_mappo(key):
    """A learner and one rollout of it, with advantages that are anything."""
    config = WHOLE_MAPPO
    state = mappo.init(ENV, ENV_PARAMS, config, key)
    decide = functools.partial(mappo.rollout_policy, ENV, config, state.learner.params, ENV_PARAMS)
    _, records, _, _ = collect(vectorize(ENV, 8), ENV_PARAMS, decide, state.actors, key, config.rollout_length)
    inputs, last, sample, log_prob, value = records
    decides, valued = shared.masks(config, ENV, inputs.local, last)
    advantage = jax.random.normal(key, value.shape)
    return state.learner, shared.Batch(inputs, sample, log_prob, value, decides, valued, advantage, value + advantage)


def fitted_by_mappo(learner, batch, key):
    evaluate = functools.partial(mappo.evaluate_batch, ENV, WHOLE_MAPPO)
    learner, terms = shared.fit(WHOLE_MAPPO, learner, batch, shared.Carry((), ()), evaluate, key)
    return learner.params, terms


def rollout_of_ospo(key):
    config = WHOLE_OSPO
    state = ospo.init(ENV, ENV_PARAMS, config, key)
    decide = functools.partial(ospo.rollout_policy, ENV, config, state.learner.params)
    _, records, _, _ = collect(vectorize(ENV, 8), ENV_PARAMS, decide, state.actors, key, config.rollout_length)
    inputs, sample, log_prob, _, takes, _, _ = records
    return state.learner, ospo.Batch(inputs, sample, log_prob, takes, jax.random.normal(key, takes.shape))


def fitted_by_ospo(learner, batch, key):
    learner, terms = ospo.fit(ENV, WHOLE_OSPO, learner, batch, key)
    return learner.params, terms


def rollout_of_qmix(key):
    """A learner and whole rollouts as they are replayed, rewards and ends at random."""
    config, key_reward = CONFIGS[qmix], jax.random.fold_in(key, 1)
    state = qmix.init(ENV, ENV_PARAMS, config, key)
    decide = functools.partial(qmix.rollout_policy, ENV, config, state.learner.params, ENV_PARAMS, jnp.ones(()))
    actors = state.actors.replace(carry=state.actors.carry.recurrent)
    actors, (seen, last, action), steps, _ = collect(vectorize(ENV, 8), ENV_PARAMS, decide, actors, key, config.rollout_length)
    behind = qmix.see(ENV, config, ENV_PARAMS, actors.env_state, actors.timestep)
    whole = jax.tree.map(lambda rows, row: jnp.concatenate([rows, row]), seen, behind)
    reward = jax.random.normal(key_reward, steps.reward.shape)
    return state.learner, qmix.Sequence(whole, last, action, reward, steps.terminated, steps.cut, ())


def fitted_by_qmix(learner, batch, key):
    del key
    trained = {"agent": learner.params.agent, "mixer": learner.params.mixer}
    loss = functools.partial(qmix.td_loss, ENV, CONFIGS[qmix], learner.params)
    (_, terms), grads = jax.value_and_grad(loss, has_aux=True)(trained, learner.opt_state.target, batch)
    return collectives.mean((grads, terms))


def check_gradients(rollout, fitted):
    """(1, 8): a learner's steps, or gradients, on a batch are those of (1, 1)."""
    learner, batch = on_mesh(1, rollout, (EVERYWHERE, jax.random.key(0)))
    parts = ((EVERYWHERE, learner), (PartitionSpec(None, collectives.DATA), batch), (EVERYWHERE, jax.random.key(1)))
    (params, terms), (same, likewise) = (on_mesh(data, fitted, *parts) for data in (1, 8))
    chex.assert_trees_all_close(params, same, atol=1e-5)
    chex.assert_trees_all_close(terms, likewise, rtol=1e-3, atol=1e-5)
    assert max(float(np.abs(leaf).max(initial=0.0)) for leaf in jax.tree.leaves(params)) > 1e-3


def check_learning(algorithm, config):
    """(1, 8) and (1, 1) learn the same over 16 seeds: halfway and at last their returns differ by no more than seeds do."""
    returns = []
    for data in (1, 8):
        trainer = Trainer(algorithm, ENV, config, make_mesh(1, data))
        metrics = jax.device_get(trainer.run(trainer.init(keys_of(16), CHOICE), trainer.num_updates)[1])
        parts = np.array_split(np.arange(trainer.num_updates), 4)
        returns.append([metrics["sum_return"][:, part].sum(-1) / metrics["episodes"][:, part].sum(-1) for part in parts])
    for place in (1, 3):
        one, eight = (side[place] for side in returns)
        gap = stats.mean(np.subtract(eight, one))
        assert gap.low < 0.01, (place, gap)
        assert gap.high > -0.01, (place, gap)
    for side in returns:
        assert side[3].mean() > 0.9 > side[0].mean() + 0.1


LEARNER = mappo.Config(total_steps=16_000, num_envs=32, rollout_length=16, hidden=(16,), num_minibatches=2, learning_rate=5e-3)


def run_checks():
    assert jax.device_count() == 8
    for algorithm in CONFIGS:
        check_members_on_devices_of_their_own(algorithm)
    for algorithm in (mappo, qmix, ospo):  # ppo, ippo and mappo share their learner
        check_shards_agree(algorithm)
    for algorithm in (mappo, qmix):
        check_members_and_environments(algorithm)
    check_gradients(rollout_of_mappo, fitted_by_mappo)
    check_gradients(rollout_of_ospo, fitted_by_ospo)
    check_gradients(rollout_of_qmix, fitted_by_qmix)
    check_learning(mappo, LEARNER)


@pytest.mark.slow
def test_eight_devices_do_what_one_does():
    # XLA's standard flags, as users have them: with those of conftest.py it rounds programs of one and of several devices apart.
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    run_checks()
