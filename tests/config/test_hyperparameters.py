"""A ``Config`` rejects impossible values, takes those of a command line, and is a pytree of its traced fields."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.algos import ippo, mappo, ospo, ppo, pqn, qmix, values
from marljax.config.hyperparameters import traced_names
from marljax.errors import UserError


@pytest.mark.parametrize(
    ("changes", "setting", "suggestion"),
    [
        ({"num_envs": 6, "rollout_length": 5, "num_minibatches": 4}, "num_envs", "change one"),
        ({"core": "gru", "num_envs": 6, "num_minibatches": 4}, "num_envs", "change one"),
        ({"gamma": 1.5}, "gamma=1.5", "from 0 to 1"),
        ({"num_envs": 0}, "num_envs=0", "at least 1"),
        ({"core": "lstm"}, "lstm", "gru"),
        ({"hidden": (64,), "core": "gru"}, "hidden=[64]", "at least two"),
        ({"num_epochs": 2.5}, "num_epochs=2.5", "an integer"),
        ({"gama": 1.0}, "'gama'", "gamma"),
        ({"gamma": "high"}, "gamma=high", "a number"),
        ({"gamma": True}, "gamma=true", "a number"),
        ({"gamma": [0.9, 0.99]}, "gamma", "a number"),
        ({"gamma": jax.random.key(0)}, "gamma", "a number"),
        ({"gamma": np.float32(2)}, "gamma=2", "from 0 to 1"),
        ({"gamma": jnp.array([0.9, 2.0])}, "gamma", "from 0 to 1"),
        ({"learning_rate": np.nan}, "learning_rate=nan", "finite"),
        ({"learning_rate": 10**400}, "learning_rate", "finite"),
        ({"num_envs": 2**31}, "num_envs", "an integer"),
        ({"num_envs": jnp.arange(3)}, "num_envs=[0,1,2]", "an integer"),
        ({"num_envs": 2**30, "rollout_length": 8}, "environments", "shorter rollouts"),
        ({"total_steps": 1e15}, "total_steps", "lower"),
        ({"hidden": 64}, "hidden=64", "a list"),
    ],
)
def test_an_impossible_config_is_one_line(changes, setting, suggestion):
    with pytest.raises(UserError) as error:
        ppo.Config(**changes)
    (line,) = str(error.value).splitlines()
    assert setting in line
    assert suggestion in line


def test_every_algorithm_checks_its_layers_and_minibatches():
    for algorithm in (ppo, ippo, mappo, ospo, qmix, pqn, values):
        with pytest.raises(UserError, match=r"hidden=\[\]"):
            algorithm.Config(hidden=())
    for algorithm in (ppo, ippo, mappo, ospo, pqn):
        with pytest.raises(UserError, match="num_minibatches"):
            algorithm.Config(num_envs=6, rollout_length=5, num_minibatches=4)


def test_a_config_normalises_values_and_is_a_pytree_of_its_traced_fields():
    given = ippo.Config(hidden=[64, 32], total_steps=1e6, num_envs=np.int64(8), agent_id=np.bool_(True), gamma=np.float32(0.5))
    same = ippo.Config(hidden=(64, 32), total_steps=1_000_000, num_envs=8, agent_id=True, gamma=0.5)
    assert given == same
    assert hash(given) == hash(same)
    assert pickle.loads(pickle.dumps(given)) == given
    leaves, structure = jax.tree.flatten(given)
    assert jax.tree.unflatten(structure, leaves) == given
    assert jax.tree.map(lambda leaf: None, given).gamma is None  # JAX may put anything there
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(given)]
    names = [jax.tree_util.keystr(path, simple=True) for path in paths]  # the names in checkpoints
    assert names == traced_names(ippo.Config)
    assert "learning_rate" in names
    assert given.replace(gamma=jnp.float32(0.25)).gamma == 0.25
