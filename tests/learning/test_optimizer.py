"""Learning rates and gradient clipping, by the size of Adam's first step: rate · g / (|g| + eps), with g as it was clipped."""

import jax.numpy as jnp
import numpy as np
import pytest

from marljax.algos import ippo
from marljax.learning import make_actor_critic_optimizer, make_optimizer


@pytest.mark.parametrize(("separately", "critic_rate"), [(True, 0.0), (True, 0.3), (False, 0.0), (False, 0.3)])
def test_a_steep_actor_leaves_the_critics_gradient_alone_unless_they_are_clipped_together(separately, critic_rate):
    rates = {"learning_rate": 0.1, "critic_learning_rate": critic_rate, "anneal_learning_rate": False}
    config = ippo.Config(max_grad_norm=0.5, adam_eps=1.0, clip_actor_critic_separately=separately, **rates)
    optimizer = make_actor_critic_optimizer(config, jnp.zeros((), jnp.int32))
    gradients = {"actor": {"w": jnp.array([30.0])}, "critic": {"w": jnp.array([0.1])}}
    steps, _ = optimizer.update(gradients, optimizer.init(gradients))
    actor, critic = 0.5, 0.1 if separately else 0.1 * 0.5 / 30
    np.testing.assert_allclose(steps["actor"]["w"], -0.1 * actor / (actor + 1), rtol=1e-4)
    np.testing.assert_allclose(steps["critic"]["w"], -(critic_rate or 0.1) * critic / (critic + 1), rtol=1e-4)


@pytest.mark.parametrize("make", [make_optimizer, make_actor_critic_optimizer])
def test_learning_rates_fall_linearly_to_0(make):
    config = ippo.Config(learning_rate=0.1, adam_eps=1.0, max_grad_norm=10.0, num_envs=4, rollout_length=4, total_steps=160)
    gradients = {part: {"w": jnp.array([1.0])} for part in ("actor", "critic")}
    for updates, remaining in ((0, 1.0), (5, 0.5), (10, 0.0), (11, 0.0)):
        optimizer = make(config, jnp.array(updates))
        steps, _ = optimizer.update(gradients, optimizer.init(gradients))
        for part in steps.values():
            np.testing.assert_allclose(part["w"], -0.1 * remaining / 2, rtol=1e-5)
