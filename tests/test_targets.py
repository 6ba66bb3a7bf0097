import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.rollout import Step
from marljax.targets import gae


def brute_force(step, values, last_value, gamma, gae_lambda, death):
    """The definition: a sum over future temporal-difference errors, each agent and environment on its own."""
    num_steps = len(values)
    following = np.concatenate([values[1:], last_value[None]])
    advantages = np.zeros_like(values)
    for t, e, a in np.ndindex(values.shape):
        weight = 1.0
        for later in range(t, num_steps):
            lives = not step.terminated[later, e] and (step.alive[later, e, a] or death == "continue")
            error = step.reward[later, e, a] + gamma * lives * following[later, e, a] - values[later, e, a]
            advantages[t, e, a] += weight * error
            weight *= gamma * gae_lambda
            if not lives or step.cut[later, e]:
                break
    return advantages


@pytest.mark.parametrize("death", ["terminal", "continue"])
def test_gae_equals_the_sum_over_future_errors(death):
    rng = np.random.default_rng(0)
    shape = (12, 5, 3)
    terminated = rng.random(shape[:2]) < 0.15
    truncated = rng.random(shape[:2]) < 0.15
    step = Step(rng.normal(size=shape), rng.random(shape) < 0.7, terminated, terminated | truncated)
    values, last_value = rng.normal(size=shape), rng.normal(size=shape[1:])
    arrays = jax.tree.map(lambda x: jnp.asarray(x, x.dtype if x.dtype == bool else jnp.float32), (step, values, last_value))
    advantages, returns = gae(*arrays, 0.9, 0.8, death)
    np.testing.assert_allclose(advantages, brute_force(step, values, last_value, 0.9, 0.8, death), atol=1e-5)
    np.testing.assert_allclose(returns, advantages + values, atol=1e-6)
