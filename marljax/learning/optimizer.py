"""Adam with gradient clipping and an annealed learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from marljax.config.hyperparameters import Scalar


def make_optimizer(config: Any, updates: jax.Array, name: str = "adam") -> optax.GradientTransformation:
    """``adam`` or ``radam`` (rectified) at the learning rate of this update, on gradients clipped to a global norm.

    ``config`` has ``learning_rate``, ``anneal_learning_rate``, ``adam_eps``, ``max_grad_norm`` and ``num_updates``. Adam works on
    one vector instead of many arrays, so that far fewer kernels are compiled and launched.
    """
    scale = {"adam": optax.scale_by_adam, "radam": optax.scale_by_radam}[name](eps=config.adam_eps)
    rate = optax.scale_by_learning_rate(config.learning_rate * _annealing(config, updates))
    return optax.flatten(optax.chain(optax.clip_by_global_norm(config.max_grad_norm), scale, rate))


def make_actor_critic_optimizer(config: Any, updates: jax.Array) -> optax.GradientTransformation:
    """Adam for parameters {"actor": …, "critic": …}, with ``critic_learning_rate`` for the critic unless that is 0, and
    gradients clipped together or, with ``clip_actor_critic_separately``, each part by its own norm."""
    critic_rate = jnp.asarray(config.critic_learning_rate)
    rates = {"actor": config.learning_rate, "critic": jnp.where(critic_rate > 0.0, critic_rate, config.learning_rate)}
    labels = {part: part for part in rates}
    annealing = _annealing(config, updates)
    scale = optax.partition({part: optax.scale_by_learning_rate(rate * annealing) for part, rate in rates.items()}, labels)
    clip, adam = optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps)
    if not config.clip_actor_critic_separately:
        return optax.chain(optax.flatten(optax.chain(clip, adam)), scale)
    return optax.chain(optax.partition(dict.fromkeys(rates, clip), labels), optax.flatten(adam), scale)


def _annealing(config: Any, updates: jax.Array) -> Scalar:
    """Factor of the learning rate: from 1 linearly to 0 over all updates."""
    return jnp.maximum(1.0 - updates / config.num_updates, 0.0) if config.anneal_learning_rate else 1.0
