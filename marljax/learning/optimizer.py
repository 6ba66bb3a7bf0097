"""Adam with gradient clipping and an annealed learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from marljax.config.hyperparameters import Scalar


def make_optimizer(config: Any, updates: jax.Array, name: str = "adam") -> optax.GradientTransformation:
    """``adam`` or ``radam`` (rectified) at the learning rate of this update, on gradients clipped to a global norm.

    ``config`` has ``learning_rate``, ``anneal_learning_rate``, ``adam_eps``, ``max_grad_norm`` and ``num_updates``. Adam works on
    one vector instead of many arrays, so that far fewer kernels are compiled and launched.
    """
    scale = {"adam": optax.scale_by_adam, "radam": optax.scale_by_radam}[name](eps=config.adam_eps)
    rate = optax.scale_by_learning_rate(config.learning_rate * _annealing(config, updates))
    return optax.flatten(optax.chain(optax.clip_by_global_norm(config.max_grad_norm), scale, rate))


def make_actor_critic_optimizer(config: Any, updates: jax.Array, share_body: bool = False) -> optax.GradientTransformation:
    """Adam for parameters {"actor": …, "critic": …}, with ``critic_learning_rate`` for the critic unless that is 0, and
    gradients clipped together or, with ``clip_actor_critic_separately``, each part by its own norm.

    ``share_body``: the actor's parameters are all there are.
    """
    critic_rate = jnp.asarray(config.critic_learning_rate)
    rates = {"actor": config.learning_rate, "critic": jnp.where(critic_rate > 0.0, critic_rate, config.learning_rate)}
    labels = {part: "actor" if share_body else part for part in rates}
    clip, annealing = optax.clip_by_global_norm(config.max_grad_norm), _annealing(config, updates)
    separate = [clip] if config.clip_actor_critic_separately else []

    def of_part(rate: Scalar) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(eps=config.adam_eps)
        return optax.flatten(optax.chain(*separate, adam, optax.scale_by_learning_rate(rate * annealing)))

    parts = optax.partition({part: of_part(rates[part]) for part in sorted(set(labels.values()))}, labels)
    return parts if separate else optax.chain(optax.flatten(clip), parts)


def gradient_norm(grads: Any) -> jax.Array:
    """The global norm of gradients, of one vector instead of many arrays."""
    return jnp.linalg.norm(ravel_pytree(grads)[0])


def _annealing(config: Any, updates: jax.Array) -> Scalar:
    """Factor of the learning rate: from 1 linearly to 0 over all updates."""
    return jnp.maximum(1.0 - updates / config.num_updates, 0.0) if config.anneal_learning_rate else 1.0
