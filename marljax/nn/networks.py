"""The algorithms' networks, in flax.linen.

All inputs have time first, [T, E, A, …], and a single step is T = 1, so that rollouts and updates run the same code.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.nn.encoder import Encoder
from marljax.nn.gru import GRU
from marljax.nn.layers import ACTIVATIONS, Sizes, dense, layer_dtype

Carry = Any  # () for MLP cores, [E, A, H] for GRU cores


class Core(nn.Module):
    """Hidden layers, after an ``Encoder`` if ``sizes`` has one; with ``core="gru"`` the last of them is a GRU over time."""

    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Carry, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """x [T, …, F], first and alive [T, …] → (carry after the last step, features [T, …, H])."""
        recurrent = self.sizes.core == "gru"
        if self.sizes.encoder:
            x = Encoder(self.sizes.encoder, self.sizes.activation, self.sizes.dtype)(x)
        for width in self.sizes.hidden[:-1] if recurrent else self.sizes.hidden:
            x = dense(width, dtype=self.sizes.dtype)(x)
            x = nn.LayerNorm(dtype=layer_dtype(self.sizes.dtype))(x) if self.sizes.layer_norm else x
            x = ACTIVATIONS[self.sizes.activation](x)
        return GRU(self.sizes.hidden[-1], self.sizes.dtype)(carry, x, first, alive) if recurrent else (carry, x)


def mlp_head(x: jax.Array, sizes: Sizes, outputs: int, scale: float, name: str | None = None) -> jax.Array:
    """The layers after the core: x […, H] → […, outputs]. For use inside a compact method."""
    for number, width in enumerate(sizes.head):
        x = ACTIVATIONS[sizes.activation](dense(width, name=name and f"{name}_{number}", dtype=sizes.dtype)(x))
    return dense(outputs, scale, name=name)(x)


class Actor(nn.Module):
    """Distribution parameters, or action values, from local observations."""

    num_outputs: int
    sizes: Sizes
    scale: float = 0.01  # of the output layer's initial weights

    @nn.compact
    def __call__(self, carry: Carry, obs: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """obs [T, …, O] → outputs [T, …, num_outputs]."""
        carry, x = Core(self.sizes)(carry, obs, first, alive)
        return carry, mlp_head(x, self.sizes, self.num_outputs, self.scale)


class Critic(nn.Module):
    """State values from an agent's own inputs."""

    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Carry, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """x [T, …, F] → values [T, …]."""
        carry, x = Core(self.sizes)(carry, x, first, alive)
        return carry, mlp_head(x, self.sizes, 1, 1.0)[..., 0]


class ActorCritic(nn.Module):
    """Actor and critic with a shared body; an ``Actor`` of the same sizes takes these parameters, too."""

    num_outputs: int
    sizes: Sizes

    @nn.compact
    def __call__(
        self, carry: Carry, obs: jax.Array, first: jax.Array, alive: jax.Array
    ) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        """obs [T, …, O] → (outputs [T, …, num_outputs], values [T, …])."""
        carry, x = Core(self.sizes)(carry, obs, first, alive)
        outputs = mlp_head(x, self.sizes, self.num_outputs, 0.01)
        return carry, (outputs, mlp_head(x, self.sizes, 1, 1.0, name="value")[..., 0])


class CentralCritic(nn.Module):
    """State values from the global state and each agent's own features.

    The first layer is W·state, computed once per environment, plus V·features, per agent: equivalent to a layer on the
    two concatenated, without the state tiled A times. An encoder, if there is one, precedes V.
    """

    sizes: Sizes

    @nn.compact
    def __call__(
        self, carry: Carry, state: jax.Array, features: jax.Array, first: jax.Array, alive: jax.Array
    ) -> tuple[Carry, jax.Array]:
        """state [T, E, G], features [T, E, A, F], first and alive [T, E, A] → values [T, E, A]."""
        width, *rest = self.sizes.hidden
        if self.sizes.encoder:
            features = Encoder(self.sizes.encoder, self.sizes.activation, self.sizes.dtype)(features)
        x = dense(width, name="state", dtype=self.sizes.dtype)(state)[..., None, :]
        if features.shape[-1]:
            x = x + dense(width, name="features", use_bias=False, dtype=self.sizes.dtype)(features)
        # Without features of their own, all agents have the same value.
        x = ACTIVATIONS[self.sizes.activation](jnp.broadcast_to(x, (*features.shape[:-1], width)))
        if rest:
            carry, x = Core(self.sizes._replace(hidden=tuple(rest), encoder=None))(carry, x, first, alive)
        return carry, mlp_head(x, self.sizes, 1, 1.0)[..., 0]


def initial_carry(core: str, width: int, shape: tuple[int, ...]) -> Carry:
    """A core's recurrent state before an episode: () for MLP, zeros [*shape, width] for GRU."""
    return () if core == "mlp" else jnp.zeros((*shape, width))


@dataclasses.dataclass(frozen=True)
class PerAgent:
    """A module for every agent, with one set of parameters ``shared`` by all, or one each, leading [A].

    Inputs and outputs are [T, E, A, …]; ``common`` inputs are without the axis of agents.
    """

    module: nn.Module
    num_agents: int
    shared: bool

    def init(self, key: jax.Array, carry: Carry, *inputs: jax.Array, common: tuple = ()) -> Any:
        """Initial parameters."""
        if self.shared:
            return self.module.init(key, carry, *common, *inputs)
        keys = jax.random.split(key, self.num_agents)
        return jax.lax.map(lambda key: self.module.init(key, carry, *common, *inputs), keys)  # not vmap: see ``orthogonal``

    def __call__(self, params: Any, carry: Carry, *inputs: jax.Array, common: tuple = ()) -> tuple[Carry, Any]:
        """Applies the module; carry is [E, A, H] or ()."""
        if self.shared:
            return self.module.apply(params, carry, *common, *inputs)  # type: ignore[return-value]

        def one_agent(params: Any, carry: Carry, *inputs: jax.Array) -> tuple[Carry, Any]:
            carry = jax.tree.map(lambda x: x[:, None], carry)
            outputs: Any = self.module.apply(params, carry, *common, *(x[:, :, None] for x in inputs))
            return jax.tree.map(lambda x: x[:, 0], outputs[0]), jax.tree.map(lambda x: x[:, :, 0], outputs[1])

        return jax.vmap(one_agent, in_axes=(0, 1, *(2 for _ in inputs)), out_axes=(1, 2))(params, carry, *inputs)
