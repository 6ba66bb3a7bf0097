"""Metrics of an update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from marljax.utils import collectives


def scan_means(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any) -> tuple[Any, Any]:
    """``jax.lax.scan`` of gradient steps, whose metrics, scalars, come back as means.

    They are stored as one vector: on an accelerator each array that a scan stores is a kernel more per step.
    """
    structure = None

    def stored(carry: Any, x: Any) -> tuple[Any, jax.Array]:
        nonlocal structure
        carry, metrics = step(carry, x)
        leaves, structure = jax.tree.flatten(metrics)
        return carry, jnp.stack(leaves)

    carry, vectors = jax.lax.scan(stored, carry, xs)
    return carry, jax.tree.unflatten(structure, jnp.mean(vectors, axis=0))


def value_metrics(target: jax.Array, advantage: jax.Array, mask: jax.Array, reward: jax.Array) -> dict[str, jax.Array]:
    """How well a critic fits its targets [T, E, A], with ``advantage`` = target − value, over the samples in ``mask``.

    ``explained_variance`` is 1 − Var(target − value) / Var(target): 1 for a perfect critic, 0 for a constant one. ``max_value``
    and ``max_reward`` are the largest absolute value and reward: no policy is worth more than max |r| / (1 − γ).
    """

    def variance(x: jax.Array) -> jax.Array:
        mean = collectives.mean(collectives.masked_mean(x, mask))
        return collectives.mean(collectives.masked_mean(jnp.square(x - mean), mask))

    total = variance(target)
    explained = jnp.where(total > 0.0, 1.0 - variance(advantage) / jnp.maximum(total, 1e-8), 0.0)
    max_value = jnp.max(jnp.abs(jnp.where(mask, target - advantage, 0.0)))
    largest = collectives.largest({"max_value": max_value, "max_reward": jnp.max(jnp.abs(reward))})
    return {"explained_variance": explained, **largest}
