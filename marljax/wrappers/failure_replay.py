"""Episodes that start shortly before an earlier failure: the collision replay of quadrotor swarms, for any environment.

Follows "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep Reinforcement Learning" (Huang et al.
2023): a good policy fails rarely, so training returns to the timesteps before its failures.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core import fields
from marljax.core.environment import Display, Environment
from marljax.core.fields import option, param
from marljax.core.types import REPLAYED, EnvParams, Outcome, PersistentState, State, View, persistent_parts
from marljax.errors import UserError, unknown
from marljax.wrappers.base import Wrapper

NONE = -1  # no snapshot


class ReplayParams(struct.PyTreeNode):
    """Params of ``FailureReplay``; steps are those of the environment."""

    env: EnvParams  # of the wrapped environment
    replay_grace: Any = param(low=0, integer=True, help="steps at the start of an episode in which failures are ignored")
    replay_back: Any = param(low=1, integer=True, help="minimum age in steps of the snapshot that is stored at a failure")
    replay_probability: Any = param(0.75, low=0.0, high=1.0, help="of starting an episode from a stored state, if there is one")
    replay_times: Any = param(10, low=1, integer=True, help="episodes to start from a stored state before it is dropped")
    replay_below: Any = param(1.0, help="the gate opens while the mean of its metric is below")


class SnapshotIndex(struct.PyTreeNode):
    """Where the snapshots of an instance are in its store [R + B]: the ring's R first, then the B stored states."""

    rows: jax.Array  # [R + B] int32, a permutation of the store's rows
    order: jax.Array  # [B] int32, ``stored`` when this state was stored; 0: free
    replays: jax.Array  # [B] int32 episodes started from this state
    stored: jax.Array  # int32 states stored so far


class ReplayState(struct.PyTreeNode):
    """The state of the wrapped environment, and what its instance remembers of earlier episodes."""

    env: State
    store: PersistentState  # of snapshots: leaves [R + B, …]
    index: SnapshotIndex
    gate_history: jax.Array  # [W] float32 the gate's metric in the last episodes; W = 0 without a gate
    episodes: jax.Array  # int32 that have ended
    clock: jax.Array  # int32 steps of this episode, fresh or not
    newest: jax.Array  # int32 the last snapshot of this episode that was stored, or NONE
    replayed: jax.Array  # bool: the episode started from a stored state
    ended: jax.Array  # bool: the episode has ended


@dataclasses.dataclass(frozen=True)
class FailureReplay(Wrapper):
    """``env``, with episodes that may start from a state shortly before an earlier failure of the same instance.

    A failure is a step in which one of the metrics ``failures`` of the current episode grows. A fresh episode takes a snapshot
    every ``spacing`` steps, from its first state on, and keeps the last ``ring`` of them. At a failure more than
    ``replay_grace`` steps into the episode, the newest snapshot at least ``replay_back`` steps old is stored, each at most once;
    if all ``size`` slots are taken it replaces the oldest. The next episode starts from a stored state, chosen uniformly, with
    ``replay_probability``; after ``replay_times`` such starts a state is dropped. With a ``gate`` this happens only while the
    mean of that metric over the instance's last ``window`` episodes, or all if there are fewer, is below ``replay_below``.
    Episodes that start from a stored state neither take nor store snapshots; otherwise one failure would fill all slots.

    Such an episode starts with ``env.reset_episode_counters``: with new tallies, but with the clock of the first one, so that it
    ends when that one would have. Its metric ``replayed`` is 1, and training reports the other metrics over fresh episodes only.
    ``reset`` and ``step`` alone replay nothing: ``vectorize`` starts the next episodes.

    An instance holds ``ring`` + ``size`` states.

    Example:
        env = FailureReplay(marljax.make("swarm"))
        train = marljax.make_train(ippo, env, ippo.Config())

    Raises:
        UserError: for a metric that ``env`` does not have, an option out of range, or an environment with persistent state.
    """

    failures: tuple[str, ...] = option(("collision", "crash"), help="metrics whose growth is a failure")
    gate: str = option("", help="metric that has to fall below replay_below before anything is replayed; empty: none")
    size: int = option(20, low=1, help="states stored (B)")
    ring: int = option(6, low=1, help="snapshots kept of the current episode (R)")
    spacing: int = option(50, low=1, help="steps between snapshots")
    window: int = option(100, low=1, help="episodes that the gate averages over (W)")

    def __post_init__(self) -> None:
        if isinstance(self.failures, str):
            raise UserError(f"failures={self.failures} is one name; give a list of metrics, such as [{self.failures}]")
        object.__setattr__(self, "failures", tuple(self.failures))
        super().__post_init__()
        if not self.failures:
            raise UserError("failures=[] is empty; name the metrics whose growth is a failure")
        metrics, is_persistent = describe(self.env)
        for name in (*self.failures, *([self.gate] if self.gate else [])):
            if name not in metrics:
                raise unknown(f"metric of {type(self.env).__name__}", name, metrics)
        if is_persistent:
            raise UserError(f"{type(self.env).__name__} has persistent state; give the environment that it wraps")

    @property
    def display(self) -> Display:
        return dataclasses.replace(super().display, units={**self.env.display.units, REPLAYED: "%"})

    @property
    def limit_ends(self) -> bool:
        return False  # an episode from a stored state has only the rest of the first one's time

    def wrap_params(self, env_params: EnvParams) -> ReplayParams:
        """Default params around those of the wrapped environment: ``replay_grace`` and ``replay_back`` are a tenth of an episode,
        150 steps as published where its length is unknown, limited to the steps that the ring always covers."""
        longest = self.env.max_episode_steps(env_params)
        tenth = 150 if longest is None else max(1, int(longest) // 10)
        return ReplayParams(env_params, replay_grace=tenth, replay_back=min(tenth, self._covered_steps))

    def inner_params(self, env_params: ReplayParams) -> EnvParams:
        return env_params.env

    @property
    def _covered_steps(self) -> int:
        """Steps that the ring always goes back."""
        return (self.ring - 1) * self.spacing + 1

    def resolve_params(self, env_params: EnvParams | None) -> ReplayParams:
        resolved = super().resolve_params(env_params)
        return resolved.replace(env=self.env.resolve_params(resolved.env))

    def check_params(self, env_params: ReplayParams) -> None:
        super().check_params(env_params)
        fields.check_params(env_params.replace(env=()), self.default_params.replace(env=()))
        duration = self.max_episode_steps(env_params)
        for name in ("replay_grace", "replay_back"):
            if duration is not None and getattr(env_params, name) >= duration:
                steps = f"{name}={getattr(env_params, name)}"
                raise UserError(f"{steps} leaves nothing to replay of episodes of {duration} steps; lower it below that")
        if env_params.replay_back > self._covered_steps:
            advice = "raise ring or spacing, or lower it"
            raise UserError(f"replay_back={env_params.replay_back} exceeds the {self._covered_steps} steps of the ring; {advice}")

    def anneal(self, env_params: ReplayParams, progress: jax.Array) -> ReplayParams:
        return env_params.replace(env=self.env.anneal(env_params.env, progress))

    def initial(self, key: jax.Array, env_params: ReplayParams) -> ReplayState:
        env = self.env.initial(key, env_params.env)
        rows, zero, false = self.ring + self.size, jnp.zeros((), jnp.int32), jnp.array(False)
        free = jnp.zeros(self.size, jnp.int32)
        return ReplayState(
            env=env,
            store=PersistentState(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *jnp.shape(leaf))), env)),
            index=SnapshotIndex(jnp.arange(rows, dtype=jnp.int32), order=free, replays=free, stored=zero),
            gate_history=jnp.zeros(self.window if self.gate else 0),
            episodes=zero,
            clock=zero,
            newest=zero + NONE,
            replayed=false,
            ended=false,
        )

    def transition(
        self, key: jax.Array, state: ReplayState, action: jax.Array, env_params: ReplayParams
    ) -> tuple[ReplayState, Outcome]:
        next_env, outcome = self.env.transition(key, state.env, action, env_params.env)
        before = self.env.observe(state.env, env_params.env).metrics  # the compiler drops the rest of the view
        after = self.env.observe(next_env, env_params.env).metrics
        running = ~state.ended

        takes = running & ~state.replayed & (state.clock % self.spacing == 0)
        row = state.index.rows[state.clock // self.spacing % self.ring]

        def write(stored: jax.Array, new: jax.Array) -> jax.Array:  # in place, since nothing else uses the old store
            return stored.at[jnp.where(takes, row, stored.shape[0])].set(new, mode="drop")

        store = PersistentState(jax.tree.map(write, state.store.value, state.env))
        failed = functools.reduce(jnp.logical_or, [after[name] > before[name] for name in self.failures])
        ended = state.ended | outcome.terminated | outcome.truncated
        state = state.replace(env=next_env, store=store, clock=state.clock + running, ended=ended)
        state = self._store_snapshot(state, failed & running, env_params)
        ends = running & ended
        if self.gate:
            here = ends & (jnp.arange(self.window) == state.episodes % self.window)
            value = after[self.gate].astype(state.gate_history.dtype)
            state = state.replace(gate_history=jnp.where(here, value, state.gate_history))
        return state.replace(episodes=state.episodes + ends), outcome

    def _store_snapshot(self, state: ReplayState, failed: jax.Array, env_params: ReplayParams) -> ReplayState:
        """Where the step ``failed``, moves an earlier snapshot from the ring to the stored states: the two swap rows."""
        index, ring = state.index, self.ring
        snapshot = jnp.floor((state.clock - env_params.replay_back) / self.spacing).astype(jnp.int32)
        in_ring = (snapshot >= 0) & (snapshot > (state.clock - 1) // self.spacing - ring)
        stores = failed & ~state.replayed & (state.clock > env_params.replay_grace) & in_ring & (snapshot > state.newest)
        slot = jnp.argmin(index.order)  # a free one, whose order is 0, or the oldest
        taken, freed = jnp.where(in_ring, snapshot % ring, 0), ring + slot
        position = jnp.arange(ring + self.size)
        swapped = jnp.where(position == taken, index.rows[freed], jnp.where(position == freed, index.rows[taken], index.rows))
        entry = stores & (jnp.arange(self.size) == slot)
        index = SnapshotIndex(
            rows=jnp.where(stores, swapped, index.rows),
            order=jnp.where(entry, index.stored + 1, index.order),
            replays=jnp.where(entry, 0, index.replays),
            stored=index.stored + stores,
        )
        return state.replace(index=index, newest=jnp.where(stores, snapshot, state.newest))

    def restart(self, key: jax.Array, state: ReplayState, env_params: ReplayParams) -> ReplayState:
        key_fresh, key_choice = jax.random.split(key)
        fresh = self.env.restart(key_fresh, state.env, env_params.env)
        draw = jax.random.uniform(key_choice, (2,))
        index = state.index
        occupied = index.order > 0
        count = jnp.sum(occupied, dtype=jnp.int32)
        is_open = jnp.array(True)
        if self.gate:
            num_known = jnp.minimum(state.episodes, self.window)
            is_open = (num_known > 0) & (jnp.sum(state.gate_history) < env_params.replay_below * num_known)
        replayed = state.ended & (count > 0) & (draw[0] < env_params.replay_probability) & is_open
        rank = jnp.minimum((draw[1] * count).astype(jnp.int32), count - 1)
        chosen = occupied & (jnp.cumsum(occupied) - 1 == rank)
        row = index.rows[self.ring + jnp.argmax(chosen)]
        start = jax.tree.map(lambda stored, new: jnp.where(replayed, stored[row], new), state.store.value, fresh)
        with_counters_reset = self.env.reset_episode_counters(start, env_params.env)
        replays = index.replays + (chosen & replayed)
        return state.replace(
            env=jax.tree.map(lambda new, old: old if new is old else jnp.where(replayed, new, old), with_counters_reset, start),
            index=index.replace(order=jnp.where(replays >= env_params.replay_times, 0, index.order), replays=replays),
            clock=jnp.zeros((), jnp.int32),
            newest=jnp.full((), NONE, jnp.int32),
            replayed=replayed,
            ended=jnp.array(False),
        )

    def reset_episode_counters(self, state: ReplayState, env_params: ReplayParams) -> ReplayState:
        return state.replace(env=self.env.reset_episode_counters(state.env, env_params.env))

    def observe(self, state: ReplayState, env_params: ReplayParams) -> View:
        view = self.env.observe(state.env, env_params.env)
        return view._replace(metrics=view.metrics | {REPLAYED: state.replayed.astype(jnp.float32)})


@functools.lru_cache(maxsize=64)
def describe(env: Environment) -> tuple[tuple[str, ...], bool]:
    """The names of an environment's metrics, and whether its states have persistent parts."""

    def first(key: jax.Array) -> Any:
        env_params = env.default_params
        state = env.initial(key, env_params)
        return state, env.observe(state, env_params).metrics

    state, metrics = jax.eval_shape(first, jax.random.key(0))
    return tuple(metrics), bool(persistent_parts(state))
