"""Metrics of an update that are no loss terms."""

import jax
import jax.numpy as jnp

from marljax.utils import collectives


def explained_variance(target: jax.Array, advantage: jax.Array, mask: jax.Array) -> jax.Array:
    """1 − Var(target − value) / Var(target) over the samples in ``mask``: 1 for a perfect critic, 0 for a constant one.

    ``advantage`` = target − value.
    """

    def variance(x: jax.Array) -> jax.Array:
        mean = collectives.mean(collectives.masked_mean(x, mask))
        return collectives.mean(collectives.masked_mean(jnp.square(x - mean), mask))

    spread = variance(target)
    return jnp.where(spread > 0.0, 1.0 - variance(advantage) / jnp.maximum(spread, 1e-8), 0.0)


def largest(value: jax.Array, mask: jax.Array, reward: jax.Array) -> dict[str, jax.Array]:
    """The largest absolute value, of those in ``mask``, and reward: no policy is worth more than max |r| / (1 − γ)."""
    found = {"max_value": jnp.max(jnp.abs(jnp.where(mask, value, 0.0))), "max_reward": jnp.max(jnp.abs(reward))}
    return collectives.largest(found)
