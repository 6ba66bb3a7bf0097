"""Episodes that start shortly before an earlier failure: the collision replay of quadrotor swarms, for any environment.

After "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep Reinforcement Learning" (Huang et al. 2023):
failures of a good policy are rare, so training meets the moments before them again and again.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.scene import Scene
from marljax.core.types import REPLAYED, EnvParams, Outcome, PersistentState, State, View
from marljax.errors import UserError, unknown
from marljax.wrappers.base import Wrapper

NONE = -1  # no snapshot


class ReplayParams(struct.PyTreeNode):
    """The numbers of ``FailureReplay``; steps are those of the environment."""

    env: EnvParams  # of the environment inside
    replay_grace: Any  # steps at the start of an episode in which no failure counts
    replay_back: Any  # steps before a failure: the state stored is the last snapshot at least as old
    replay_probability: Any = 0.75  # that an episode starts from a stored state, where there is one
    replay_times: Any = 10  # how often a state is played again before it is dropped
    replay_below: Any = 1.0  # the gate opens while the mean of its metric over the last episodes lies below


class Shelf(struct.PyTreeNode):
    """Where an instance's snapshots lie in its store [R + B]: the ring's R first, then those of the B stored states."""

    rows: jax.Array  # [R + B] int32, a permutation of the rows of the store
    order: jax.Array  # [B] int32 the states stored so far when this one was, itself included; 0: there is none
    played: jax.Array  # [B] int32 how often it was played again
    stored: jax.Array  # int32 states stored so far


class ReplayState(struct.PyTreeNode):
    """The state of the environment inside, and what its instance remembers of earlier episodes."""

    env: State
    store: PersistentState  # of snapshots: leaves [R + B, …]
    shelf: Shelf
    past: jax.Array  # [W] float32 the gate's metric in the last episodes; W = 0 without a gate
    episodes: jax.Array  # int32 that have ended
    clock: jax.Array  # int32 steps since the start of the episode, fresh or not
    newest: jax.Array  # int32 the last snapshot of this episode that was stored; NONE
    replayed: jax.Array  # bool: the episode started from a stored state
    ended: jax.Array  # bool: the episode has ended here


@dataclasses.dataclass(frozen=True)
class FailureReplay(Wrapper):
    """``env``, but episodes may start from a state shortly before an earlier failure in the same instance.

    A failure is the moment when one of the metrics ``failures`` of the current episode grows. Every ``spacing`` steps a fresh
    episode takes a snapshot, from its first state on, and keeps the last ``ring`` of them. At a failure more than
    ``replay_grace`` steps into the episode, the newest snapshot at least ``replay_back`` steps old is stored, each at most once;
    among ``size`` of them it takes a free place, or else that of the oldest. After an episode the next one starts from one of the
    stored states, all equally likely, with ``replay_probability``; a state that was started from ``replay_times`` times is
    dropped. With a ``gate``, the name of a metric, this happens only while its mean over the instance's last ``window`` episodes,
    or all if they are fewer, lies below ``replay_below``. Episodes that start from a stored state take no snapshots and store
    nothing: otherwise one failure would fill all places with itself.

    Such an episode starts as ``env.resumed`` says: with tallies of its own, but with the clock where it was, so that it ends
    when the first one would have. The metric ``replayed`` is 1 in it, and training reports the other metrics over fresh episodes
    only: those that start before a failure say nothing of how often there is one. Nothing is replayed in ``reset`` and ``step``
    by themselves; it is ``vectorize`` that starts next episodes.

    Numbers are those of ``env`` and the replay's own: ``ReplayParams``. An instance holds ``ring`` + ``size`` states.

    Example:
        env = FailureReplay(marljax.make("swarm"))
        train = marljax.make_train(ippo, env, ippo.Config())

    Raises:
        UserError: for a metric that ``env`` does not have, sizes that make no sense, or an environment whose states outlive
            episodes themselves.
    """

    failures: tuple[str, ...] = ("collision", "crash")
    gate: str = ""  # "": replays start as soon as there is a stored state
    size: int = 20  # B, states stored
    ring: int = 6  # R, snapshots of the current episode
    spacing: int = 50  # steps between snapshots
    window: int = 100  # W, episodes that the gate looks at

    def __post_init__(self) -> None:
        if isinstance(self.failures, str):
            raise UserError(f"failures={self.failures} is one name; give a list of metrics, such as [{self.failures}]")
        object.__setattr__(self, "failures", tuple(self.failures))
        for name in ("size", "ring", "spacing", "window"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} is out of range; it takes integers of at least 1")
        if not self.failures:
            raise UserError("failures=[] is empty; name the metrics whose growth is a failure")
        known, lasting = described(self.env)
        for name in (*self.failures, *([self.gate] if self.gate else [])):
            if name not in known:
                raise unknown(f"metric of {type(self.env).__name__}", name, known)
        if lasting:
            raise UserError(f"states of {type(self.env).__name__} outlive their episodes; give the environment inside of it")

    # --- what is that of the environment inside ---

    @property
    def display(self) -> Display:
        inside = self.env.display
        units = {**inside.units, REPLAYED: "%"}
        if (draw := inside.charts) is None:
            return dataclasses.replace(inside, units=units)
        return dataclasses.replace(inside, units=units, charts=lambda states, env_params: draw(states.env, env_params.env))

    def global_state(self, state: ReplayState, env_params: ReplayParams) -> jax.Array:
        return self.env.global_state(state.env, env_params.env)

    def scene(self, state: ReplayState, env_params: ReplayParams) -> Scene:
        return self.env.scene(state.env, env_params.env)

    @property
    def limit_ends(self) -> bool:
        return False  # an episode that starts from a stored state has only what is left of the first one's time

    # --- numbers ---

    @property
    def default_params(self) -> ReplayParams:
        return self.around(self.env.default_params)

    def preset_params(self, preset: str) -> ReplayParams:
        return self.around(self.env.preset_params(preset))

    def around(self, env_params: EnvParams) -> ReplayParams:
        """The default numbers around those of the environment inside: a tenth of an episode for 150 steps, as published, and
        no further back than the ring is sure to go."""
        longest = self.env.max_episode_steps(env_params)
        tenth = 150 if longest is None else max(1, int(longest) // 10)
        return ReplayParams(env_params, replay_grace=tenth, replay_back=min(tenth, self._kept))

    @property
    def _kept(self) -> int:
        """Steps that the ring is sure to go back."""
        return (self.ring - 1) * self.spacing + 1

    def max_episode_steps(self, env_params: ReplayParams) -> Any:
        return self.env.max_episode_steps(env_params.env)

    def resolve_params(self, env_params: EnvParams | None) -> ReplayParams:
        given = super().resolve_params(env_params)
        return given.replace(env=self.env.resolve_params(given.env))

    def check_params(self, env_params: ReplayParams) -> None:
        self.env.check_params(env_params.env)
        if not 0 <= env_params.replay_probability <= 1:
            raise UserError(f"replay_probability={env_params.replay_probability} is out of range; it lies between 0 and 1")
        for name, least in (("replay_grace", 0), ("replay_back", 1), ("replay_times", 1)):
            if not getattr(env_params, name) >= least:
                raise UserError(f"{name}={getattr(env_params, name)} is out of range; it takes numbers of at least {least}")
        duration = self.max_episode_steps(env_params)
        for name in ("replay_grace", "replay_back"):
            if duration is not None and getattr(env_params, name) >= duration:
                steps = f"{name}={getattr(env_params, name)}"
                raise UserError(f"{steps} leaves nothing to replay of episodes of {duration} steps; lower it below that")
        if env_params.replay_back > self._kept:
            advice = "raise ring or spacing, or lower it"
            raise UserError(f"replay_back={env_params.replay_back}: the ring goes {self._kept} steps back for certain; {advice}")

    def anneal(self, env_params: ReplayParams, progress: jax.Array) -> ReplayParams:
        return env_params.replace(env=self.env.anneal(env_params.env, progress))

    # --- episodes ---

    def initial(self, key: jax.Array, env_params: ReplayParams) -> ReplayState:
        env = self.env.initial(key, env_params.env)
        total, zero, no = self.ring + self.size, jnp.zeros((), jnp.int32), jnp.array(False)
        store = PersistentState(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (total, *jnp.shape(leaf))), env))
        none = jnp.zeros(self.size, jnp.int32)
        past = jnp.zeros(self.window if self.gate else 0)
        shelf = Shelf(jnp.arange(total, dtype=jnp.int32), none, none, zero)
        return ReplayState(env, store, shelf, past, zero, zero, zero + NONE, no, no)

    def transition(
        self, key: jax.Array, state: ReplayState, action: jax.Array, env_params: ReplayParams
    ) -> tuple[ReplayState, Outcome]:
        moved, outcome = self.env.transition(key, state.env, action, env_params.env)
        before = self.env.observe(state.env, env_params.env).metrics  # the compiler drops the rest of the view
        after = self.env.observe(moved, env_params.env).metrics
        running = ~state.ended
        takes = running & ~state.replayed & (state.clock % self.spacing == 0)
        place = state.shelf.rows[state.clock // self.spacing % self.ring]
        store = PersistentState(_written(takes, place, state.store.value, state.env))
        failed = functools.reduce(jnp.logical_or, [after[name] > before[name] for name in self.failures])
        ended = state.ended | outcome.terminated | outcome.truncated
        ends = running & ended
        state = state.replace(env=moved, store=store, clock=state.clock + running, ended=ended)
        state = self._stored(state, failed & running, env_params)
        if self.gate:
            here = ends & (jnp.arange(self.window) == state.episodes % self.window)
            state = state.replace(past=jnp.where(here, after[self.gate].astype(state.past.dtype), state.past))
        return state.replace(episodes=state.episodes + ends), outcome

    def _stored(self, state: ReplayState, failed: jax.Array, env_params: ReplayParams) -> ReplayState:
        """The state after a step; where it ``failed``, an earlier snapshot has moved from the ring to the stored ones."""
        shelf, ring = state.shelf, self.ring
        wanted = jnp.floor((state.clock - env_params.replay_back) / self.spacing).astype(jnp.int32)
        there = (wanted >= 0) & (wanted > (state.clock - 1) // self.spacing - ring)
        stores = failed & ~state.replayed & (state.clock > env_params.replay_grace) & there & (wanted > state.newest)
        free_or_oldest = jnp.argmin(shelf.order)  # a free one has order 0
        taken, freed = jnp.where(there, wanted % ring, 0), ring + free_or_oldest
        at = jnp.arange(ring + self.size)
        swapped = jnp.where(at == taken, shelf.rows[freed], jnp.where(at == freed, shelf.rows[taken], shelf.rows))
        entry = stores & (jnp.arange(self.size) == free_or_oldest)
        shelf = Shelf(
            rows=jnp.where(stores, swapped, shelf.rows),
            order=jnp.where(entry, shelf.stored + 1, shelf.order),
            played=jnp.where(entry, 0, shelf.played),
            stored=shelf.stored + stores,
        )
        return state.replace(shelf=shelf, newest=jnp.where(stores, wanted, state.newest))

    def restart(self, key: jax.Array, state: ReplayState, env_params: ReplayParams) -> ReplayState:
        key_fresh, key_choice = jax.random.split(key)
        fresh = self.env.restart(key_fresh, state.env, env_params.env)
        lot = jax.random.uniform(key_choice, (2,))
        shelf = state.shelf
        held = shelf.order > 0
        count = jnp.sum(held, dtype=jnp.int32)
        replays = state.ended & (count > 0) & (lot[0] < env_params.replay_probability) & self._is_open(state, env_params)
        rank = jnp.minimum((lot[1] * count).astype(jnp.int32), count - 1)
        chosen = held & (jnp.cumsum(held) - 1 == rank)
        place = shelf.rows[self.ring + jnp.argmax(chosen)]
        started = jax.tree.map(lambda kept, new: jnp.where(replays, kept[place], new), state.store.value, fresh)
        resumed = self.env.reset_episode_counters(started, env_params.env)
        played = shelf.played + (chosen & replays)
        dropped = played >= env_params.replay_times
        return state.replace(
            env=jax.tree.map(lambda new, old: old if new is old else jnp.where(replays, new, old), resumed, started),
            shelf=shelf.replace(order=jnp.where(dropped, 0, shelf.order), played=played),
            clock=jnp.zeros((), jnp.int32),
            newest=jnp.full((), NONE, jnp.int32),
            replayed=replays,
            ended=jnp.array(False),
        )

    def _is_open(self, state: ReplayState, env_params: ReplayParams) -> jax.Array:
        if not self.gate:
            return jnp.array(True)
        known = jnp.minimum(state.episodes, self.window)
        return (known > 0) & (jnp.sum(state.past) < env_params.replay_below * known)

    def reset_episode_counters(self, state: ReplayState, env_params: ReplayParams) -> ReplayState:
        return state.replace(env=self.env.reset_episode_counters(state.env, env_params.env))

    def observe(self, state: ReplayState, env_params: ReplayParams) -> View:
        view = self.env.observe(state.env, env_params.env)
        return view._replace(metrics=view.metrics | {REPLAYED: state.replayed.astype(jnp.float32)})


def _written(takes: jax.Array, place: jax.Array, store: Any, entry: Any) -> Any:
    """``store`` [K, …] with ``entry`` at ``place`` where ``takes``; in place, because nothing else is left of the store."""

    def put(kept: jax.Array, new: jax.Array) -> jax.Array:
        return kept.at[jnp.where(takes, place, kept.shape[0])].set(new, mode="drop")

    return jax.tree.map(put, store, entry)


@functools.lru_cache(maxsize=64)
def described(env: Environment) -> tuple[tuple[str, ...], bool]:
    """The names of an environment's metrics, and whether parts of its states outlive episodes."""

    def first(key: jax.Array) -> Any:
        env_params = env.default_params
        state = env.initial(key, env_params)
        return state, env.observe(state, env_params).metrics

    state, metrics = jax.eval_shape(first, jax.random.key(0))
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, PersistentState))
    return tuple(metrics), any(isinstance(part, PersistentState) for part in parts)
