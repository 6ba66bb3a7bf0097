"""Networks of the algorithms, in flax.linen. All inputs carry time first: [T, E, A, …]; a single step is T = 1, so that a rollout
and the replay of it in an update run the very same code.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from marljax import entities
from marljax.gru import GRU
from marljax.products import matmul, orthogonal
from marljax.spaces import Part

Carry = Any  # () for MLP cores, [E, A, H] for GRU cores


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

    kinds: tuple[Part, ...]  # of entities, as ``entities.kinds`` gives them
    width: int  # of every embedding; H in ``Encoder``
    heads: int  # of the attention


class Sizes(NamedTuple):
    """Of every network of an algorithm."""

    core: str  # "mlp" or "gru"
    hidden: tuple[int, ...]  # widths of the layers of the core
    head: tuple[int, ...]  # widths of the layers between it and the outputs
    activation: str
    encoder: EncoderSizes | None = None  # of what stands before the core; None: nothing


class Core(nn.Module):
    """Hidden layers, behind an ``Encoder`` where there is one; with ``core="gru"`` the last of them is a GRU over time."""

    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Carry, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """x [T, …, F], first and alive [T, …] → (carry after the last step, features [T, …, H])."""
        remembers = self.sizes.core == "gru"
        if self.sizes.encoder:
            x = Encoder(self.sizes.encoder, self.sizes.activation)(x)
        for width in self.sizes.hidden[:-1] if remembers else self.sizes.hidden:
            x = activation(self.sizes.activation)(dense(width)(x))
        return GRU(self.sizes.hidden[-1])(carry, x, first, alive) if remembers else (carry, x)


class Encoder(nn.Module):
    """Attention over the entities that an agent sees, in the manner of "Collision Avoidance and Navigation for a Quadrotor Swarm
    Using End-to-end Deep Reinforcement Learning" (Huang et al. 2023).

    Two layers embed every entity, with weights that its kind shares, and two others what is the agent's own. All entities present
    attend to one another; what an entity hears is projected and added to its embedding. Of a kind remain the mean over those
    present and their share of the places, so that any order gives the same; of an ordered kind every entity in its place, with 0
    for the absent. These stand behind the embedding of the own, and a ``Core`` follows. Published are two tokens, all neighbours
    in one and the distance field in the other; here each neighbour is one, which is what makes their order not matter.
    """

    sizes: EncoderSizes
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x […, F] as ``entities.arrange`` gives it, with anything behind the own → features […, …]."""
        kinds, width, heads = self.sizes
        layers = Sizes("mlp", (width, width), (), self.activation)
        rows, there, own = entities.taken_apart(kinds, x)
        tokens = [tower(row, layers, kind.name) for kind, row in zip(kinds, rows, strict=True)]
        together = jnp.concatenate(tokens, axis=-2)
        query, key, value = (dense(width, 1.0, name, use_bias=False)(together) for name in ("query", "key", "value"))
        attended = attend(query, key, value, jnp.concatenate(there, axis=-1), heads)
        heard = jnp.split(attended, np.cumsum([kind.count for kind in kinds])[:-1], axis=-2)
        # The projection is linear and has no bias: it may follow the mean, and where nobody is present nothing is heard.
        left, told = (jnp.concatenate([*map(remaining, kinds, parts, there)], axis=-2) for parts in (tokens, heard))
        summary = left + dense(width, 1.0, "heard", use_bias=False)(told)
        shares = [bits if kind.ordered else jnp.mean(bits, -1, keepdims=True) for kind, bits in zip(kinds, there, strict=True)]
        me = [tower(own, layers, entities.OWN)] if own.shape[-1] else []
        return jnp.concatenate([*me, summary.reshape(*x.shape[:-1], -1), *shares], axis=-1)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, present: jax.Array, heads: int) -> jax.Array:
    """Scaled dot-product attention (Vaswani et al. 2017): three times […, N, H] and who is present […, N], 1 or 0 → […, N, H].

    Head by head: up to twice as fast on a CPU as all at once. Where nobody is present the result means nothing, but is finite.
    """
    outputs = []
    for q, k, v in zip(*(jnp.split(part, heads, axis=-1) for part in (query, key, value)), strict=True):
        scores = jnp.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(present[..., None, :] > 0.0, scores, jnp.finfo(scores.dtype).min)
        outputs.append(jnp.einsum("...ij,...jd->...id", nn.softmax(scores, axis=-1), v))
    return jnp.concatenate(outputs, axis=-1)


def remaining(kind: Part, rows: jax.Array, present: jax.Array) -> jax.Array:
    """Of entities […, count, H] of a kind: the mean over those ``present`` […, count], […, 1, H]; of an ordered kind all, with 0
    for the absent."""
    rows = rows * present[..., None]
    if kind.ordered:
        return rows
    return jnp.sum(rows, axis=-2, keepdims=True) / jnp.maximum(jnp.sum(present, axis=-1), 1.0)[..., None, None]


def read_out(x: jax.Array, sizes: Sizes, outputs: int, scale: float, name: str | None = None) -> jax.Array:
    """The layers of a head: x […, H] → […, outputs]. For use inside a compact method."""
    for number, width in enumerate(sizes.head):
        x = activation(sizes.activation)(dense(width, name=name and f"{name}_{number}")(x))
    return dense(outputs, scale, name=name)(x)


class Actor(nn.Module):
    """Distribution parameters from local observations."""

    num_outputs: int
    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Carry, obs: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """obs [T, …, O] → outputs [T, …, num_outputs]."""
        carry, x = Core(self.sizes)(carry, obs, first, alive)
        return carry, read_out(x, self.sizes, self.num_outputs, 0.01)


class ActorCritic(nn.Module):
    """Both from one body; its parameters serve an ``Actor`` of the same sizes, too."""

    num_outputs: int
    sizes: Sizes

    @nn.compact
    def __call__(
        self, carry: Carry, obs: jax.Array, first: jax.Array, alive: jax.Array
    ) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        """obs [T, …, O] → (outputs [T, …, num_outputs], values [T, …])."""
        carry, x = Core(self.sizes)(carry, obs, first, alive)
        outputs = read_out(x, self.sizes, self.num_outputs, 0.01)
        return carry, (outputs, read_out(x, self.sizes, 1, 1.0, name="value")[..., 0])


class Critic(nn.Module):
    """State values from an agent's own inputs."""

    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Carry, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Carry, jax.Array]:
        """x [T, …, F] → values [T, …]."""
        carry, x = Core(self.sizes)(carry, x, first, alive)
        return carry, read_out(x, self.sizes, 1, 1.0)[..., 0]


class CentralCritic(nn.Module):
    """State values from the global state and each agent's own features.

    The first layer is W·state, computed once per environment, plus V·features, per agent: the same mathematics as a layer on the
    two concatenated, without the state tiled A times. An encoder, where there is one, stands before V.
    """

    sizes: Sizes

    @nn.compact
    def __call__(
        self, carry: Carry, state: jax.Array, features: jax.Array, first: jax.Array, alive: jax.Array
    ) -> tuple[Carry, jax.Array]:
        """state [T, E, G], features [T, E, A, F], first and alive [T, E, A] → values [T, E, A]."""
        width, *rest = self.sizes.hidden
        if self.sizes.encoder:
            features = Encoder(self.sizes.encoder, self.sizes.activation)(features)
        shared = dense(width, name="state")(state)[..., None, :]
        if features.shape[-1]:
            shared = shared + dense(width, name="features", use_bias=False)(features)
        # Without features of their own, every agent has the same value.
        x = activation(self.sizes.activation)(jnp.broadcast_to(shared, (*features.shape[:-1], width)))
        if rest:
            carry, x = Core(self.sizes._replace(hidden=tuple(rest), encoder=None))(carry, x, first, alive)
        return carry, read_out(x, self.sizes, 1, 1.0)[..., 0]


class TwoTowers(nn.Module):
    """Scores of every agent with every item as products of embeddings, and each agent's score for taking none."""

    sizes: Sizes
    embedding: int

    @nn.compact
    def __call__(self, own: jax.Array, items: jax.Array) -> tuple[jax.Array, jax.Array]:
        """own […, A, O], items […, M, F] → (scores […, A, M], of the noop […, A])."""
        agents, things = (tower(x, self.sizes, name) for x, name in ((own, "agent"), (items, "item")))
        embedded = [dense(self.embedding, 1.0, f"{name}_out")(x) for x, name in ((agents, "agent"), (things, "item"))]
        scores = jnp.einsum("...ad,...md->...am", *embedded) / self.embedding
        return scores + dense(1, 0.01, "item_score")(things)[..., 0][..., None, :], dense(1, 0.01, "noop")(agents)[..., 0]


class PairScorer(nn.Module):
    """Scores of every agent with every item by one MLP that sees both, and each agent's score for taking none.

    The first layer is W·agent + V·item, computed once per agent and once per item: the same mathematics as a layer on the two
    concatenated, without an input per pair.
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, own: jax.Array, items: jax.Array) -> tuple[jax.Array, jax.Array]:
        """own […, A, O], items […, M, F] → (scores […, A, M], of the noop […, A])."""
        width, *rest = self.sizes.hidden
        agents, things = dense(width, name="agent")(own), dense(width, name="item", use_bias=False)(items)
        act = activation(self.sizes.activation)
        noop = dense(1, 0.01, "noop")(tower(own, self.sizes, "waiting"))[..., 0]
        if not rest:
            weights = self.param("score", orthogonal(0.01), (width, 1))[:, 0]
            return sum_of_pairs(act, weights, agents, things), noop
        x = act(agents[..., :, None, :] + things[..., None, :, :])
        for wide in rest:
            x = act(dense(wide)(x))
        return dense(1, 0.01, "score")(x)[..., 0], noop


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sum_of_pairs(act: Callable[[jax.Array], jax.Array], weights: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Σ_h weights[h] · act(rows[…, R, h] + columns[…, C, h]), […, R, C], in one pass that keeps nothing of size R · C · H.

    Its gradient takes the hidden units one by one, too: seven times faster on a CPU than what differentiation makes of the sum.
    """
    terms = (weights[h] * act(rows[..., :, None, h] + columns[..., None, :, h]) for h in range(weights.shape[0]))
    return functools.reduce(jnp.add, terms)


def _pairs_forward(act: Callable[[jax.Array], jax.Array], *inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return sum_of_pairs(act, *inputs), inputs


def _pairs_backward(
    act: Callable[[jax.Array], jax.Array], inputs: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, ...]:
    def unit(given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        weight, row, column = given
        value, pull = jax.vjp(act, row[..., :, None] + column[..., None, :])
        (inner,) = pull(weight * cotangent)
        return jnp.sum(value * cotangent), jnp.sum(inner, axis=-1), jnp.sum(inner, axis=-2)

    weights, rows, columns = inputs
    grads = jax.lax.map(unit, (weights, jnp.moveaxis(rows, -1, 0), jnp.moveaxis(columns, -1, 0)))
    return grads[0], jnp.moveaxis(grads[1], 0, -1), jnp.moveaxis(grads[2], 0, -1)


sum_of_pairs.defvjp(_pairs_forward, _pairs_backward)


def tower(x: jax.Array, sizes: Sizes, name: str) -> jax.Array:
    """Hidden layers, […, F] → […, H]. For use inside a compact method."""
    for number, width in enumerate(sizes.hidden):
        x = activation(sizes.activation)(dense(width, name=f"{name}_{number}")(x))
    return x


def initial_carry(core: str, width: int, shape: tuple[int, ...]) -> Carry:
    """What a core remembers before an episode: () for MLP, zeros [*shape, width] for GRU."""
    return () if core == "mlp" else jnp.zeros((*shape, width))


def agent_ids(num_agents: int) -> jax.Array:
    """[A, A] one-hot ids up to 64 agents; beyond, [A, 0]: an id per agent would outweigh everything else."""
    return jnp.eye(num_agents) if num_agents <= 64 else jnp.zeros((num_agents, 0))


def init_per_agent(module: nn.Module, key: jax.Array, num_agents: int | None, *inputs: Any) -> Any:
    """Parameters of a module; with ``num_agents`` one set per agent, leading [A], instead of one shared by all."""
    if num_agents is None:
        return module.init(key, *inputs)
    # lax.map rather than vmap: see ``orthogonal``.
    return jax.lax.map(lambda key: module.init(key, *inputs), jax.random.split(key, num_agents))


def apply_per_agent(
    module: nn.Module, params: Any, shared: bool, carry: Carry, common: tuple, *inputs: jax.Array
) -> tuple[Carry, Any]:
    """Applies a module to ``inputs`` [T, E, A, …] (and ``common`` inputs without an agent axis) with shared or per-agent
    parameters.

    carry is [E, A, H] or (); outputs are [T, E, A, …], one array or several.
    """
    if shared:
        together: Any = module.apply(params, carry, *common, *inputs)
        return together

    def one_agent(params: Any, carry: Carry, *inputs: jax.Array) -> tuple[Carry, Any]:
        carry = jax.tree.map(lambda x: x[:, None], carry)
        outputs: Any = module.apply(params, carry, *common, *(x[:, :, None] for x in inputs))
        return jax.tree.map(lambda x: x[:, 0], outputs[0]), jax.tree.map(lambda x: x[:, :, 0], outputs[1])

    return jax.vmap(one_agent, in_axes=(0, 1, *(2 for _ in inputs)), out_axes=(1, 2))(params, carry, *inputs)
