"""Return and advantage estimators."""

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import Scalar
from marljax.learning.rollout import Step


def gae(
    step: Step, values: jax.Array, last_value: jax.Array, gamma: Scalar, gae_lambda: Scalar, bootstrap_limit: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) over a rollout.

    A terminated agent's next value counts as 0; a truncated one's is the value of its final observation, or 0 without
    ``bootstrap_limit``. Both cut the sum. An agent that dies ends its own episode; see ``Step.with_death_masking``. Entries of
    final timesteps, in which nobody acts, are meaningless: mask them.

    Args:
        step: the outputs of each step, [T, E, …].
        values: [T, E, A] of the timesteps in which actions were taken.
        last_value: [E, A] of the timestep after the last.
        gamma: discount per step.
        gae_lambda: 0 for one-step targets, 1 for whole returns.
        bootstrap_limit: whether truncated episodes are bootstrapped.

    Returns:
        Advantages and returns, [T, E, A] each.
    """
    next_values = jnp.concatenate([values[1:], last_value[None]])
    ended = step.terminated if bootstrap_limit else step.cut
    continues = ~ended[..., None] & step.alive
    delta = step.reward + gamma * continues * next_values - values
    decay = gamma * gae_lambda * (continues & ~step.cut[..., None])

    def backward(advantage: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = inputs
        advantage = delta + decay * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(last_value), (delta, decay), reverse=True)
    return advantages, advantages + values
