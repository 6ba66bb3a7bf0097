"""What value functions and policies are trained towards."""

import jax
import jax.numpy as jnp

from marljax.config import Scalar
from marljax.rollout import Step


def gae(
    step: Step, values: jax.Array, last_value: jax.Array, gamma: Scalar, gae_lambda: Scalar, death: str = "terminal"
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) over a rollout.

    values [T, E, A] of the timesteps in which decisions were taken, last_value [E, A] of the timestep after the last →
    (advantages, returns), both [T, E, A]. A terminated agent's next value counts as 0, a truncated one's is the value of its
    final observation; both cut the sum. An agent that dies ends its own episode (``death="terminal"``) or keeps a value
    (``"continue"``). Entries of timesteps in which nobody acts are meaningless: mask them.
    """
    next_values = jnp.concatenate([values[1:], last_value[None]])
    continues = ~step.terminated[..., None] & (step.alive | (death == "continue"))
    delta = step.reward + gamma * continues * next_values - values
    decay = gamma * gae_lambda * (continues & ~step.cut[..., None])

    def backward(advantage: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = now[0] + now[1] * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(last_value), (delta, decay), reverse=True)
    return advantages, advantages + values
