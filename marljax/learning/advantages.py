"""What value functions and policies are trained towards."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import Scalar
from marljax.learning.rollout import Step


def gae(
    step: Step, values: jax.Array, last_value: jax.Array, gamma: Scalar, gae_lambda: Scalar, bootstrap_limit: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) over a rollout.

    values [T, E, A] of the timesteps in which decisions were taken, last_value [E, A] of the timestep after the last →
    (advantages, returns), both [T, E, A]. A terminated agent's next value counts as 0, a truncated one's is the value of its
    final observation, or 0 without ``bootstrap_limit``; both cut the sum. An agent that dies ends its own episode; see
    ``with_death_masking``. Entries of timesteps in which nobody acts are meaningless: mask them.
    """
    next_values = jnp.concatenate([values[1:], last_value[None]])
    ended = step.terminated if bootstrap_limit else step.cut
    continues = ~ended[..., None] & step.alive
    delta = step.reward + gamma * continues * next_values - values
    decay = gamma * gae_lambda * (continues & ~step.cut[..., None])

    def backward(advantage: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = now[0] + now[1] * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(last_value), (delta, decay), reverse=True)
    return advantages, advantages + values


def with_death_masking(step: Step, alive: jax.Array, teams: Sequence[int]) -> Step:
    """``step`` as Yu et al. (2022) learn from it: agents that have died stay in the episode and share what their team earns.

    alive [T, E, A] says who was alive when decisions were taken. The others earn the mean reward of their living team-mates, and
    their values go on beyond their death; only where a slot is taken by a new agent does nothing follow.
    """
    team = jnp.array(teams)
    together = (team[:, None] == team).astype(step.reward.dtype)
    earned, living = (step.reward * alive) @ together, alive @ together
    reward = jnp.where(alive, step.reward, earned / jnp.maximum(living, 1.0))
    return step._replace(reward=reward, alive=alive | ~step.alive)
