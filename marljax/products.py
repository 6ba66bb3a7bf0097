"""Matrix products and initial weights that are fast, and safe, under ``jax.vmap`` over seeds."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def orthogonal(scale: float) -> Callable[..., jax.Array]:
    """Orthogonal initialisation (Saxe et al. 2014) that may be vmapped over seeds.

    Several batched QR decompositions in one program hang JAX 0.10 on CPU, so a batch of keys is taken one by one.
    """
    base = nn.initializers.orthogonal(scale)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: base(key, shape, dtype))(key)

    return init


def matmul(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """x [..., F] times kernel [F, H] as one product of two matrices; ``nn.Dense`` calls it in place of ``jax.lax.dot_general``.

    With several row axes XLA copies and transposes more than it must in the gradient, above all under ``jax.vmap`` over seeds.
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)
