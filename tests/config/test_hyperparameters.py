"""A ``Config`` refuses what cannot be, takes what a command line gives, and is a pytree of its traced fields."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.algos import ippo, mappo, ospo, ppo, qmix
from marljax.config.hyperparameters import traced_names
from marljax.errors import UserError


@pytest.mark.parametrize(
    ("changes", "setting", "suggestion"),
    [
        ({"num_envs": 6, "rollout_length": 5, "num_minibatches": 4}, "num_envs × rollout_length", "change one"),
        ({"core": "gru", "num_envs": 6, "num_minibatches": 4}, "num_envs", "change one"),
        ({"gamma": 1.5}, "gamma=1.5", "from 0 to 1"),
        ({"num_envs": 0}, "num_envs=0", "at least 1"),
        ({"core": "lstm"}, "core=", "'mlp' or 'gru'"),
        ({"hidden": (64,), "core": "gru"}, "hidden=[64]", "at least two"),
        ({"hidden": ()}, "hidden=[]", "such as [64, 64]"),
        ({"num_epochs": 2.5}, "num_epochs=2.5", "an integer"),
        ({"gama": 1.0}, "'gama'", "gamma"),
        ({"gamma": None}, "gamma", "a number"),
        ({"gamma": "high"}, "gamma=high", "a number"),
        ({"gamma": True}, "gamma=true", "a number"),
        ({"gamma": [0.9, 0.99]}, "gamma", "a number"),
        ({"gamma": jax.random.key(0)}, "gamma", "a number"),
        ({"gamma": np.float32(2)}, "gamma=2.0", "from 0 to 1"),
        ({"gamma": np.array(2.0)}, "gamma=2.0", "from 0 to 1"),
        ({"gamma": jnp.array([0.9, 2.0])}, "gamma", "from 0 to 1"),
        ({"learning_rate": np.nan}, "learning_rate=nan", "finite"),
        ({"learning_rate": 10**400}, "learning_rate", "finite"),
        ({"num_envs": 2**31}, "num_envs", "up to 2147483647"),
        ({"num_envs": jnp.arange(3)}, "num_envs=[0,1,2]", "an integer"),
        ({"num_envs": 2**30, "rollout_length": 8}, "environments", "shorter rollouts"),
        ({"total_steps": 1e15}, "total_steps", "lower"),
        ({"hidden": 64}, "hidden=64", "a list"),
    ],
)
def test_impossible_configs_say_why(changes, setting, suggestion):
    with pytest.raises(UserError) as error:
        ppo.Config(**changes)
    assert setting in str(error.value)
    assert suggestion in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algorithm", [ppo, ippo, mappo, ospo, qmix], ids=lambda module: module.__name__.split(".")[-1])
def test_every_algorithm_needs_a_hidden_layer(algorithm):
    with pytest.raises(UserError, match=r"hidden=\[\]"):
        algorithm.Config(hidden=())


@pytest.mark.parametrize("algorithm", [ppo, ippo, mappo, ospo], ids=lambda module: module.__name__.split(".")[-1])
def test_every_rollout_divides_into_minibatches(algorithm):
    with pytest.raises(UserError, match="num_minibatches"):
        algorithm.Config(num_envs=6, rollout_length=5, num_minibatches=4)


def test_a_config_takes_what_the_command_line_takes_and_stays_a_pytree_of_its_traced_fields():
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
