"""From observations to the inputs of networks: normalisation, agent ids, attention over the entities in an observation."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.layout import OWN, Layout, fault, kinds, present, split
from marljax.core.spaces import Part
from marljax.errors import UserError
from marljax.nn.layers import EncoderSizes, Sizes, agent_ids, dense, tower
from marljax.nn.running_stats import RunningStats

ObservationStats = RunningStats | dict[str, RunningStats]  # [O]; with attention [width] by kind of entity


@dataclasses.dataclass(frozen=True)
class ObservationEncoder:
    """Turns observations into network inputs: normalised, arranged by entity for ``Encoder``, with an agent id behind them."""

    layout: Layout  # of the observation, for attention over its entities; () for networks that take it as one vector
    agent_id: bool
    normalize: bool

    @classmethod
    def create(cls, env: Environment, encoder: str, agent_id: bool, normalize: bool) -> "ObservationEncoder":
        """For ``encoder="flat"`` or ``"attention"``; raises ``UserError`` where there are no entities to attend to."""
        if encoder == "flat":
            return cls((), agent_id, normalize)
        name, wrong = type(env).__name__, fault(env)
        if wrong:
            raise UserError(f"encoder=attention cannot read {name}: {wrong}")
        if not kinds(env.obs_layout):
            raise UserError(f"encoder=attention needs entities, and {name} as chosen names none in its layout; take encoder=flat")
        return cls(env.obs_layout, agent_id, normalize)

    def sizes(self, width: int, heads: int) -> EncoderSizes | None:
        """Of the attention over entities; None without any."""
        return EncoderSizes(kinds(self.layout), width, heads) if self.layout else None

    def init_stats(self, obs: jax.Array) -> ObservationStats:
        """Statistics before the first of observations [..., O]."""
        return create_stats(self.layout) if self.layout else RunningStats.create(obs.shape[-1:])

    def update_stats(self, stats: ObservationStats, obs: jax.Array, mask: jax.Array) -> ObservationStats:
        """Joins observations [T, E, A, O] of which ``mask`` [T, E, A] counts."""
        if isinstance(stats, RunningStats):
            return stats.updated(obs, mask)
        return updated_stats(stats, self.layout, obs, mask)

    def __call__(self, stats: ObservationStats, obs: jax.Array) -> jax.Array:
        """Observations [T, E, A, O] → network inputs [T, E, A, F]."""
        if isinstance(stats, RunningStats):
            obs = stats.normalize(obs) if self.normalize else obs
        else:
            obs = arrange(self.layout, obs, stats if self.normalize else None)
        if not self.agent_id:
            return obs
        ids = agent_ids(obs.shape[2])
        return jnp.concatenate([obs, jnp.broadcast_to(ids, (*obs.shape[:2], *ids.shape))], -1)


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
        """x […, F] as ``arrange`` gives it, with anything behind the own → features […, …]."""
        kinds, width, heads = self.sizes
        layers = Sizes("mlp", (width, width), (), self.activation)
        rows, there, own = taken_apart(kinds, x)
        tokens = [tower(row, layers, kind.name) for kind, row in zip(kinds, rows, strict=True)]
        together = jnp.concatenate(tokens, axis=-2)
        query, key, value = (dense(width, 1.0, name, use_bias=False)(together) for name in ("query", "key", "value"))
        attended = attend(query, key, value, jnp.concatenate(there, axis=-1), heads)
        heard = jnp.split(attended, np.cumsum([kind.count for kind in kinds])[:-1], axis=-2)
        # The projection is linear and has no bias: it may follow the mean, and where nobody is present nothing is heard.
        left, told = (jnp.concatenate([*map(remaining, kinds, parts, there)], axis=-2) for parts in (tokens, heard))
        summary = left + dense(width, 1.0, "heard", use_bias=False)(told)
        shares = [bits if kind.ordered else jnp.mean(bits, -1, keepdims=True) for kind, bits in zip(kinds, there, strict=True)]
        me = [tower(own, layers, OWN)] if own.shape[-1] else []
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


def create_stats(layout: Layout) -> dict[str, RunningStats]:
    """Statistics of every column of the own and of each kind, [width], for all entities of the kind together."""
    widths = {part.name: part.width for part in kinds(layout)}
    widths[OWN] = sum(part.width for part in layout if part.name == OWN)
    return {name: RunningStats.create((width,)) for name, width in widths.items()}


def updated_stats(stats: dict[str, RunningStats], layout: Layout, obs: jax.Array, mask: jax.Array) -> dict[str, RunningStats]:
    """Joins the present entities in observations [..., O] of which ``mask`` [...] counts."""
    mask, found = mask[..., None], split(layout, obs)
    counts = {name: mask if name == OWN else mask & present(rows) for name, rows in found.items()}
    return {name: stats[name].updated(rows, counts[name]) for name, rows in found.items()}


def arrange(layout: Layout, obs: jax.Array, stats: dict[str, RunningStats] | None) -> jax.Array:
    """Observations [..., O] as ``taken_apart`` expects them: the entities of every kind, which are present (1 or 0), the own.

    They are normalised where there are ``stats``; who is absent is seen before that.
    """
    found = split(layout, obs)
    shown = {name: stats[name].normalize(rows) for name, rows in found.items()} if stats is not None else found
    names = [kind.name for kind in kinds(layout)]
    rows = [shown[name].reshape(*obs.shape[:-1], -1) for name in names]
    there = [present(found[name]).astype(obs.dtype) for name in names]
    return jnp.concatenate([*rows, *there, shown[OWN][..., 0, :]], axis=-1)


def taken_apart(kinds: Layout, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """What ``arrange`` joined: entities [..., count, width] and presence [..., count] per kind, and all that follows."""
    sizes = [kind.count * kind.width for kind in kinds] + [kind.count for kind in kinds]
    *columns, own = jnp.split(x, np.cumsum(sizes), axis=-1)
    rows = [part.reshape(*x.shape[:-1], kind.count, kind.width) for kind, part in zip(kinds, columns, strict=False)]
    return rows, columns[len(kinds) :], own
