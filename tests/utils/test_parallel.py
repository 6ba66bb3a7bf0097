"""Eight devices compute what one does: runs on devices of their own to the bit, sharded environments up to rounding.

In processes of their own: the number of devices is fixed when JAX starts.
"""

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from jax.sharding import PartitionSpec

from marljax.algos import ippo, mappo, ospo, ppo, pqn, qmix, values
from marljax.envs.ride_dispatch import RideDispatch
from marljax.learning.rollout import TrainState, collect
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
    pqn: pqn.Config(**SMALL, **EPOCHS, core="mlp", optimizer="adam", normalize_values=False),
    ospo: ospo.Config(**SMALL, **EPOCHS, normalize_observations=False),
    values: values.Config(**SMALL, batch_size=64),
}
CITY = RideDispatch("demo", vehicles=4, orders=8, view="afterstates")
# One minibatch: shards shuffle on their own, so only whole-batch steps can agree.
WHOLE = {"num_epochs": 3, "num_minibatches": 1, "normalize_observations": True}
EVERYWHERE, ENVS, STEPS = PartitionSpec(), PartitionSpec(collectives.DATA), PartitionSpec(None, collectives.DATA)


def env_of(algorithm):
    return {ppo: joint(ENV), values: CITY}.get(algorithm, ENV)


def params_of(algorithm):
    return CITY.default_params if algorithm is values else ENV_PARAMS


def keys_of(count):
    return jax.vmap(jax.random.key)(np.arange(count, dtype=np.uint32))


def advanced(algorithm, seed, data, keys, updates=3):
    """The replicas of a mesh after some updates, and their metrics."""
    trainer = Trainer(algorithm, env_of(algorithm), CONFIGS[algorithm], make_mesh(seed, data))
    return trainer.run(trainer.init(keys, params_of(algorithm)), updates)


def numbers(tree):
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf), tree
    )


def replica(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def check_replicas_on_devices_of_their_own(algorithm):
    """(8, 1): every run has the bits of the single run of its seed, with environments and replay.

    Not with ``normalize_observations``, PQN's ``normalize_values`` and ``optimizer=radam``, or the values of afterstates: XLA
    compiles these differently for one device, and results differ in the last bit.
    """
    keys = keys_of(8)
    together = numbers(advanced(algorithm, 8, 1, keys))
    for index in range(8):
        alone = numbers(advanced(algorithm, 1, 1, keys[index : index + 1]))
        chex.assert_trees_all_equal(replica(together, index), replica(alone, 0))


def check_replicas_and_environments(algorithm):
    """(4, 2): two runs on each pair of devices have the bits of a (1, 2) mesh."""
    keys = keys_of(8)
    together, pair = numbers(advanced(algorithm, 4, 2, keys)), numbers(advanced(algorithm, 1, 2, keys[2:4]))
    for index in range(2):
        chex.assert_trees_all_equal(replica(together, 2 + index), replica(pair, index))


def check_shards_agree(algorithm):
    """(1, 8): every device has the same learner, and its own environments."""
    replicas, _ = advanced(algorithm, 1, 8, keys_of(1))
    for leaf in jax.tree.leaves((replicas.state.learner.params, replicas.state.learner.opt_state)):
        first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        for other in others:
            np.testing.assert_array_equal(first, other)
    for leaf in jax.tree.leaves((replicas.state.actors.timestep.obs, replicas.state.actors.carry)):
        assert len(leaf.addressable_shards) == 8
        assert leaf.addressable_shards[0].data.shape[1] * 8 == leaf.shape[1]
    obs = jax.tree.leaves(replicas.state.actors.timestep.obs)[0]
    assert len(np.unique(np.asarray(obs).reshape(8, -1), axis=0)) > 2


def on_mesh(data, function, *specs_and_values):
    specs, values = zip(*specs_and_values, strict=True)
    mesh = make_mesh(1, data)
    program = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False)
    return jax.device_get(jax.jit(program)(*values))


def rollout_of(algorithm, config, key):
    """A state after its first update, and the results of ``collect`` in the next one, with arbitrary rewards."""
    env = env_of(algorithm)
    state, _ = algorithm.update(env, config, algorithm.init(env, params_of(algorithm), config, key))
    found = []

    def recorded(*arguments):
        found.append(collect(*arguments))
        return found[0]

    with mock.patch.object(algorithm, "collect", recorded):
        algorithm.update(env, config, state)
    actors, rollout, steps, episodes = found[0]
    return state, (actors, rollout, steps._replace(reward=jax.random.normal(key, steps.reward.shape)), episodes)


def whole_buffer(buffer, *_):
    return jax.tree.map(lambda leaf: leaf[:, :2].reshape(-1, *leaf.shape[4:]), buffer)


def updated(algorithm, config, state, collected):
    """The learner after an update from that rollout, and its metrics; QMIX replays it instead of a random sample, and
    values of afterstates are learnt from it and the one before."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(algorithm, "collect", return_value=collected))
        if algorithm is qmix:
            add = patches.enter_context(mock.patch.object(qmix, "add_to_replay", wraps=qmix.add_to_replay))
            patches.enter_context(mock.patch.object(qmix, "sample_replay", side_effect=lambda *_: add.call_args.args[-1]))
        if algorithm is values:  # all samples of both rollouts
            patches.enter_context(mock.patch.object(values, "draw", whole_buffer))
        state, metrics = algorithm.update(env_of(algorithm), config, state)
    return state.learner.replace(key=()), metrics


def check_updates(algorithm, config):
    """(1, 8): an update from the same rollout equals that on (1, 1) up to rounding."""
    state, collected = on_mesh(1, functools.partial(rollout_of, algorithm, config), (EVERYWHERE, jax.random.key(0)))
    parts = (TrainState(EVERYWHERE, ENVS), state), ((ENVS, STEPS, STEPS, EVERYWHERE), collected)
    one, eight = (on_mesh(data, functools.partial(updated, algorithm, config), *parts) for data in (1, 8))
    chex.assert_trees_all_close(one[0], eight[0], atol=1e-5)
    chex.assert_trees_all_close(one[1], eight[1], rtol=1e-3, atol=1e-5)
    moved = jax.tree.map(lambda old, new: np.abs(new - old).max(initial=0.0), state.learner.params, one[0].params)
    assert max(jax.tree.leaves(moved)) > 1e-3


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
    for algorithm in (algorithm for algorithm in CONFIGS if algorithm is not values):
        check_replicas_on_devices_of_their_own(algorithm)
    for algorithm in (mappo, qmix, pqn, ospo, values):  # ppo, ippo and mappo share their learner
        check_shards_agree(algorithm)
    for algorithm in (mappo, qmix):
        check_replicas_and_environments(algorithm)
    check_updates(mappo, CONFIGS[mappo].replace(**WHOLE))
    check_updates(ospo, CONFIGS[ospo].replace(**WHOLE))
    check_updates(qmix, CONFIGS[qmix])
    check_updates(pqn, CONFIGS[pqn].replace(**WHOLE, optimizer="radam", normalize_values=True))
    check_updates(values, CONFIGS[values])
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
