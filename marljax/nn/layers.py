"""Layers that networks are made of."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.core.spaces import Part


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


def dense(width: int, scale: float = 2.0**0.5, name: str | None = None, use_bias: bool = True, bias: float = 0.0) -> nn.Dense:
    """A linear layer with orthogonal weights, and ``bias`` at first."""
    start = nn.initializers.constant(bias)
    return nn.Dense(width, use_bias=use_bias, kernel_init=orthogonal(scale), bias_init=start, name=name, dot_general=matmul)


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """tanh, relu, silu or gelu."""
    return {"tanh": jnp.tanh, "relu": nn.relu, "silu": nn.silu, "gelu": nn.gelu}[name]


ACTIVATIONS = ("tanh", "relu", "silu", "gelu")


class EncoderSizes(NamedTuple):
    """Of an encoder of entities."""

    kinds: tuple[Part, ...]  # of entities, as ``layout.kinds`` gives them
    width: int  # of every embedding; H in ``Encoder``
    heads: int  # of the attention


class Sizes(NamedTuple):
    """Of every network of an algorithm."""

    core: str  # "mlp" or "gru"
    hidden: tuple[int, ...]  # widths of the layers of the core
    head: tuple[int, ...]  # widths of the layers between it and the outputs
    activation: str
    encoder: EncoderSizes | None = None  # of what stands before the core; None: nothing


def tower(x: jax.Array, sizes: Sizes, name: str) -> jax.Array:
    """Hidden layers, […, F] → […, H]. For use inside a compact method."""
    for number, width in enumerate(sizes.hidden):
        x = activation(sizes.activation)(dense(width, name=f"{name}_{number}")(x))
    return x


def agent_ids(num_agents: int) -> jax.Array:
    """[A, A] one-hot ids up to 64 agents; beyond, [A, 0]: an id per agent would outweigh everything else."""
    return jnp.eye(num_agents) if num_agents <= 64 else jnp.zeros((num_agents, 0))
