import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.learning import Step, gae


def brute_force(step, values, last_value, gamma, gae_lambda, bootstrap_limit):
    """The definition: a sum over future temporal-difference errors, each agent and environment on its own."""
    num_steps = len(values)
    following = np.concatenate([values[1:], last_value[None]])
    advantages = np.zeros_like(values)
    for t, e, a in np.ndindex(values.shape):
        weight = 1.0
        for later in range(t, num_steps):
            ended = step.terminated[later, e] or (step.cut[later, e] and not bootstrap_limit)
            lives = not ended and step.alive[later, e, a]
            error = step.reward[later, e, a] + gamma * lives * following[later, e, a] - values[later, e, a]
            advantages[t, e, a] += weight * error
            weight *= gamma * gae_lambda
            if not lives or step.cut[later, e]:
                break
    return advantages


@pytest.mark.parametrize("bootstrap_limit", [True, False])
def test_gae_equals_the_sum_over_future_errors(bootstrap_limit):
    rng = np.random.default_rng(0)
    shape = (12, 5, 3)
    terminated = rng.random(shape[:2]) < 0.15
    truncated = rng.random(shape[:2]) < 0.15
    step = Step(rng.normal(size=shape), rng.random(shape) < 0.7, terminated, terminated | truncated)
    values, last_value = rng.normal(size=shape), rng.normal(size=shape[1:])
    arrays = jax.tree.map(lambda x: jnp.asarray(x, x.dtype if x.dtype == bool else jnp.float32), (step, values, last_value))
    advantages, returns = gae(*arrays, 0.9, 0.8, bootstrap_limit)
    np.testing.assert_allclose(advantages, brute_force(step, values, last_value, 0.9, 0.8, bootstrap_limit), atol=1e-5)
    np.testing.assert_allclose(returns, advantages + values, atol=1e-6)


def test_the_dead_share_team_rewards_until_their_slot_is_taken():
    """Agents 0 and 1 are one team, 2 is another: 0 dies in the second of five steps, and a new agent takes it over in the fourth.
    Values are 0 and λ is 1, so that advantages are discounted sums of rewards."""
    alive = jnp.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]], bool)[:, None]
    reward = jnp.array([[1, 2, 100], [3, 4, 100], [0, 5, 100], [0, 6, 100], [7, 8, 100]], jnp.float32)[:, None]
    never = jnp.zeros((5, 1), bool)
    masked = Step(reward, alive[1:], never, never).with_death_masking(alive[:-1], (0, 0, 1))
    np.testing.assert_array_equal(masked.reward[:, 0, 0], [1, 3, 5, 6, 7])
    np.testing.assert_array_equal(masked.reward[..., 1:], reward[..., 1:])
    sums, _ = gae(masked, jnp.zeros((5, 1, 3)), jnp.zeros((1, 3)), 0.5, 1.0)
    np.testing.assert_allclose(sums[:, 0, 0], [1 + 3 / 2 + 5 / 4 + 6 / 8, 3 + 5 / 2 + 6 / 4, 5 + 6 / 2, 6, 7])
