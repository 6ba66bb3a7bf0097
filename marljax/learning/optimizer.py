"""Adam at an annealed learning rate."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from marljax.config.hyperparameters import Scalar
from marljax.learning.config import LearningConfig

SCALED = {"adam": optax.scale_by_adam, "radam": optax.scale_by_radam}


def optimizer(
    config: LearningConfig, updates: jax.Array, rates: Mapping[str, Scalar] | None = None, clip_apart: bool = False
) -> optax.GradientTransformation:
    """Adam or RAdam at this update's learning rate.

    ``rates`` gives the parts of the parameters, by name, learning rates of their own. Gradients are clipped to a global norm of
    ``max_grad_norm``, of all together or with ``clip_apart`` of each part.
    """
    left = jnp.maximum(1.0 - updates / config.num_updates, 0.0) if config.anneal_learning_rate else 1.0
    clip, adam = optax.clip_by_global_norm(config.max_grad_norm), SCALED[config.optimizer](eps=config.adam_eps)
    # flattened to one vector instead of many arrays: a fraction of the kernels, to compile and to run
    if not rates:
        return optax.flatten(optax.chain(clip, adam, optax.scale_by_learning_rate(config.learning_rate * left)))
    labels = {part: part for part in rates}
    scale = optax.partition({part: optax.scale_by_learning_rate(rate * left) for part, rate in rates.items()}, labels)
    if not clip_apart:
        return optax.chain(optax.flatten(optax.chain(clip, adam)), scale)
    return optax.chain(optax.partition(dict.fromkeys(rates, clip), labels), optax.flatten(adam), scale)
