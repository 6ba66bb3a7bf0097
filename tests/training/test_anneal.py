"""Annealed env_params."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Bumps, BumpsParams, Corridor

import marljax
from marljax import registry
from marljax.testing import check_env

OWN = {  # settings of each algorithm's own
    **{name: {"num_epochs": 1, "num_minibatches": 1} for name in ("ppo", "ippo", "mappo")},
    "pqn": {"num_epochs": 1, "num_minibatches": 1, "core": "mlp"},
    "ospo": {"num_epochs": 1, "num_minibatches": 1, "normalize": "buffer"},
    "qmix": {"learning_starts": 0, "buffer_size": 64, "core": "mlp"},
}


@pytest.mark.parametrize("name", OWN)
def test_every_algorithm_trains_with_annealed_params_and_keeps_its_own(name):
    algorithm = registry.algorithm(name)
    updates, envs, steps = 4, 4, 4  # an episode of 3 steps, and the step that starts the next, fill a rollout
    options = {"num_envs": envs, "rollout_length": steps, "hidden": (4,), **OWN[name]}
    config = algorithm.Config(total_steps=updates * envs * steps, **options)
    train = jax.jit(jax.vmap(marljax.make_train(algorithm, Bumps(), config, BumpsParams(limit=3)), (None, 0)))
    result = train(jax.random.key(0), {"env.pay": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(result.metrics["episodes"], envs)
    pay = np.outer([1, 2], np.arange(updates) / updates)
    np.testing.assert_allclose(result.metrics["sum_return"] / envs, 3 * pay, rtol=1e-6)
    np.testing.assert_array_equal(result.state.learner.env_params.pay, [1, 2])


def test_the_costs_of_contacts_grow_over_their_share_of_a_run():
    from marljax.envs.swarm import Swarm

    env = Swarm()
    env_params = env.default_params.replace(collision_anneal=0.5)
    for progress, grown in ((0.0, 0.0), (0.125, 0.25), (0.5, 1.0), (0.75, 1.0)):
        weights, usual = env.anneal(env_params, jnp.float32(progress)).weights, env_params.weights
        assert (weights.collision, weights.near, weights.obstacle) == (5 * grown, 10 * grown, 5 * grown)
        assert weights.replace(collision=5.0, near=10.0, obstacle=5.0) == usual
    assert env.anneal(env.default_params, jnp.float32(0.0)).weights.collision == 5.0


def test_without_annealing_the_params_are_the_same_object():
    env_params = Corridor().default_params
    assert Corridor().anneal(env_params, jnp.float32(0.3)) is env_params
    assert marljax.joint(Bumps()).anneal(BumpsParams(), 0.5).pay == 0.5


class Reshaped(Bumps):
    def anneal(self, env_params, progress):
        return env_params.replace(pay=env_params.pay * jnp.ones(2))


def test_check_env_refuses_params_of_another_shape():
    with pytest.raises(AssertionError, match=r"anneal .*pay is float32\[2\]"):
        check_env(Reshaped())
