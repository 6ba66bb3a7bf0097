"""From observations to network inputs: normalisation, agent ids, attention over the entities in an observation."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.layout import OWN, Layout, kinds, present, split, validate_layout
from marljax.errors import UserError
from marljax.nn.layers import EncoderSizes, Sizes, agent_ids, dense, tower, widened
from marljax.nn.running_stats import RunningStats

ObservationStats = RunningStats | dict[str, RunningStats]  # [O]; with attention [width] by kind of entity


def check_no_items(env: Environment) -> None:
    """Raises ``UserError`` where agents choose among shared items, or observe the afterstates of all actions: a flat observation
    would hold all of them for every agent."""
    if env.items:
        raise UserError(
            f"agents of {type(env).__name__} choose among shared {env.items}, which only ospo scores one by one; "
            "on ride_dispatch set env.view=candidates, elsewhere use ospo"
        )
    if env.afterstates:
        raise UserError(
            f"agents of {type(env).__name__} observe the afterstates of all actions, which only values compares; "
            "on ride_dispatch set env.view=candidates, elsewhere use values"
        )


@dataclasses.dataclass(frozen=True)
class ObservationEncoder:
    """Turns observations into network inputs: normalised, arranged by entity for ``Encoder``, followed by an agent id."""

    layout: Layout  # of the observation, for attention over its entities; () for flat inputs
    agent_id: bool
    normalize: bool

    @classmethod
    def create(cls, env: Environment, encoder: str, agent_id: bool, normalize: bool) -> "ObservationEncoder":
        """For ``encoder="flat"`` or ``"attention"``; raises ``UserError`` where there are no entities to attend to."""
        if encoder == "flat":
            return cls((), agent_id, normalize)
        name = type(env).__name__
        try:
            validate_layout(env)
        except UserError as error:
            raise UserError(f"encoder=attention cannot read {name}: {error}") from error
        if not kinds(env.obs_layout):
            raise UserError(f"encoder=attention needs entities, and the layout of {name} names none; choose encoder=flat")
        return cls(env.obs_layout, agent_id, normalize)

    def sizes(self, width: int, heads: int) -> EncoderSizes | None:
        """Sizes of the attention encoder; None for flat inputs."""
        return EncoderSizes(kinds(self.layout), width, heads) if self.layout else None

    def init_stats(self, obs: jax.Array) -> ObservationStats:
        """Statistics before any observation; shapes are those of ``obs`` [..., O].

        With a layout they are those of each kind's columns, over all its entities, and of the agent's own columns.
        """
        if not self.layout:
            return RunningStats.create(obs.shape[-1:])
        widths = {part.name: part.width for part in kinds(self.layout)}
        widths[OWN] = sum(part.width for part in self.layout if part.name == OWN)
        return {name: RunningStats.create((width,)) for name, width in widths.items()}

    def update_stats(self, stats: ObservationStats, obs: jax.Array, mask: jax.Array) -> ObservationStats:
        """Adds the observations [T, E, A, O] in ``mask`` [T, E, A]; with a layout their present entities."""
        if isinstance(stats, RunningStats):
            return stats.updated(obs, mask)
        mask, parts = mask[..., None], split(self.layout, obs)
        masks = {name: mask if name == OWN else mask & present(rows) for name, rows in parts.items()}
        return {name: stats[name].updated(rows, masks[name]) for name, rows in parts.items()}

    def __call__(self, stats: ObservationStats, obs: jax.Array) -> jax.Array:
        """Observations [T, E, A, O] → network inputs [T, E, A, F]."""
        if not isinstance(stats, RunningStats):
            obs = arrange(self.layout, obs, stats if self.normalize else None)
        elif self.normalize:
            obs = stats.normalize(obs)
        return jnp.concatenate([obs, agent_ids(obs.shape[:-1])], -1) if self.agent_id else obs


class Encoder(nn.Module):
    """Attention over the entities in an observation, in the manner of "Collision Avoidance and Navigation for a Quadrotor Swarm
    Using End-to-end Deep Reinforcement Learning" (Huang et al. 2023).

    Two layers embed every entity, with weights shared by its kind, and two others embed the agent's own columns. All present
    entities attend to one another; the attention output is projected and added (residual). A kind is reduced to the mean over its
    present entities and their share of the slots, which makes it permutation-invariant; an ordered kind keeps every entity in its
    slot, with 0 for absent ones. The published network uses two tokens, all neighbours in one and the distance field in
    the other; here every neighbour is a token.
    """

    sizes: EncoderSizes
    activation: str
    dtype: str = "float32"  # of its layers and the attention, softmax excepted

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x […, F] from ``arrange``, with any further columns at the end → features […, …]."""
        kinds, width, heads = self.sizes
        layers = Sizes("mlp", (width, width), (), self.activation, dtype=self.dtype)
        linear = functools.partial(dense, width, 1.0, use_bias=False, dtype=self.dtype)
        rows, presence, own = split_columns(kinds, x)
        tokens = [tower(row, layers, kind.name) for kind, row in zip(kinds, rows, strict=True)]
        entities = jnp.concatenate(tokens, axis=-2)
        query, key, value = (linear(name)(entities) for name in ("query", "key", "value"))
        attended = attend(query, key, value, jnp.concatenate(presence, axis=-1), heads)
        messages = jnp.split(attended, np.cumsum([kind.count for kind in kinds])[:-1], axis=-2)

        def pool(parts: list[jax.Array]) -> jax.Array:
            """[…, count, H] per kind → […, slots, H]: one slot per kind, or one per entity of an ordered kind."""
            pooled = []
            for kind, part, mask in zip(kinds, parts, presence, strict=True):
                part = part * mask[..., None]
                if not kind.ordered:
                    count = jnp.maximum(jnp.sum(mask, axis=-1), 1.0)[..., None, None]
                    part = jnp.sum(part, axis=-2, keepdims=True) / count
                pooled.append(part)
            return jnp.concatenate(pooled, axis=-2)

        # The projection is linear without a bias: it may follow the mean, and without entities its output is 0.
        summary = pool(tokens) + linear("heard")(pool(messages))
        shares = [mask if kind.ordered else jnp.mean(mask, -1, keepdims=True) for kind, mask in zip(kinds, presence, strict=True)]
        embedded = [tower(own, layers, OWN)] if own.shape[-1] else []
        return jnp.concatenate([*embedded, summary.reshape(*x.shape[:-1], -1), *shares], axis=-1)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, present: jax.Array, heads: int) -> jax.Array:
    """Scaled dot-product attention (Vaswani et al. 2017): three times […, N, H] and presence […, N], 1 or 0 → […, N, H].

    Head by head: up to twice as fast on a CPU as all at once. Where nothing is present the result is meaningless, but finite.
    """
    outputs = []
    for q, k, v in zip(*(jnp.split(part, heads, axis=-1) for part in (query, key, value)), strict=True):
        scores = jnp.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
        scores = widened(scores)
        scores = jnp.where(present[..., None, :] > 0.0, scores, jnp.finfo(scores.dtype).min)
        outputs.append(jnp.einsum("...ij,...jd->...id", nn.softmax(scores, axis=-1).astype(v.dtype), v))
    return jnp.concatenate(outputs, axis=-1)


def arrange(layout: Layout, obs: jax.Array, stats: dict[str, RunningStats] | None) -> jax.Array:
    """Observations [..., O] → columns of all entities by kind, their presence (1 or 0), the agent's own columns.

    ``stats`` normalise them; presence is determined before that.
    """
    parts = split(layout, obs)
    shown = {name: stats[name].normalize(rows) for name, rows in parts.items()} if stats is not None else parts
    names = [kind.name for kind in kinds(layout)]
    rows = [shown[name].reshape(*obs.shape[:-1], -1) for name in names]
    presence = [present(parts[name]).astype(obs.dtype) for name in names]
    return jnp.concatenate([*rows, *presence, shown[OWN][..., 0, :]], axis=-1)


def split_columns(kinds: Layout, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """The inverse of ``arrange``: entities [..., count, width] and presence [..., count] per kind, and all further columns."""
    sizes = [kind.count * kind.width for kind in kinds] + [kind.count for kind in kinds]
    *columns, own = jnp.split(x, np.cumsum(sizes), axis=-1)
    rows = [part.reshape(*x.shape[:-1], kind.count, kind.width) for kind, part in zip(kinds, columns, strict=False)]
    return rows, columns[len(kinds) :], own
