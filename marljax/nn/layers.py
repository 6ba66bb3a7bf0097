"""The layers of which networks are built."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.core.spaces import Part

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
}

DTYPES = ("float32", "bfloat16")  # of hidden layers


class EncoderSizes(NamedTuple):
    """Sizes of an attention encoder."""

    kinds: tuple[Part, ...]  # of entities, from ``layout.kinds``
    width: int  # H of every embedding
    heads: int  # of the attention


class Sizes(NamedTuple):
    """Sizes of an algorithm's networks."""

    core: str  # "mlp" or "gru"
    hidden: tuple[int, ...]  # widths of the core's layers
    head: tuple[int, ...]  # widths of the layers between the core and the outputs
    activation: str
    encoder: EncoderSizes | None = None  # before the core; None for flat inputs
    dtype: str = "float32"  # of hidden layers; parameters and outputs are float32
    layer_norm: bool = False  # in the core: after each dense layer, before its activation (Ba et al. 2016)


def orthogonal(scale: float) -> Callable[..., jax.Array]:
    """Orthogonal initialisation (Saxe et al. 2014) that may be vmapped over seeds.

    Several batched QR decompositions in one program hang JAX 0.10 on CPU, so the keys of a batch are processed one by one.
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


def layer_dtype(dtype: str) -> Any:
    """The ``dtype`` of a flax layer; None leaves it to inputs and parameters, which may have 64 bits with JAX_ENABLE_X64."""
    return None if dtype == "float32" else jnp.dtype(dtype)


def widened(x: jax.Array) -> jax.Array:
    """``x`` with at least 32 bits."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def dense(
    width: int,
    scale: float = 2.0**0.5,
    name: str | None = None,
    use_bias: bool = True,
    bias: float = 0.0,
    dtype: str = "float32",
) -> nn.Dense:
    """A linear layer with orthogonal initial weights and the initial ``bias``, computed in ``dtype``."""
    start = nn.initializers.constant(bias)
    return nn.Dense(
        width,
        use_bias=use_bias,
        dtype=layer_dtype(dtype),
        kernel_init=orthogonal(scale),
        bias_init=start,
        name=name,
        dot_general=matmul,
    )


def tower(x: jax.Array, sizes: Sizes, name: str) -> jax.Array:
    """Hidden layers, […, F] → […, H]. For use inside a compact method."""
    for number, width in enumerate(sizes.hidden):
        x = ACTIVATIONS[sizes.activation](dense(width, name=f"{name}_{number}", dtype=sizes.dtype)(x))
    return x


def agent_ids(shape: tuple[int, ...]) -> jax.Array:
    """One-hot ids of agents […, A] → […, A, A]; beyond 64 agents […, A, 0]: they would outweigh all other inputs."""
    num_agents = shape[-1]
    ids = jnp.eye(num_agents) if num_agents <= 64 else jnp.zeros((num_agents, 0))
    return jnp.broadcast_to(ids, (*shape, ids.shape[-1]))
