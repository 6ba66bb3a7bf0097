"""JaxMARL's environments as ours: ``marljax.make("jaxmarl/MPE_simple_spread_v3")``, ``env=jaxmarl env.name=overcooked``.

Their dictionaries become arrays with a leading [A], in the order of their ``agents``. Where agents' spaces differ, observations
are padded with zeros and actions with ones that are never available, and a one-hot agent id is appended to the observation.
Images are flattened. Continuous actions in [−1, 1] are stretched to the agent's own bounds. Only ``step_env`` is called, never
the ``step`` that restarts an episode by itself.

A step limit ends an episode (``limit=end``), as JaxMARL's ``done`` and all published figures take it. With ``limit=truncate``
the value of the final observation is bootstrapped, but no regression ever sees a final observation: where agents reach states
at the end that they do not pass in the middle, such as far out on the unbounded plane of MPE, that value is extrapolated, and
values and policies diverge.

Axis letters: A agents, O observation, n actions.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import LIMITS, Display, Environment
from marljax.core.spaces import Box, Discrete, Space, available
from marljax.core.types import Outcome, View
from marljax.errors import UserError, unknown
from marljax.utils.validation import check_numbers, check_ranges
from marljax.wrappers import suite
from marljax.wrappers.jaxmarl_families import RIVALS, Theirs, family, names, options_of, quiet, theirs, width

__all__ = ["JaxMARL", "JaxMARLState", "ShapedParams", "environment_class", "names"]


@functools.cache
def environment_class(name: str) -> type["JaxMARL"]:
    """The class of one of JaxMARL's environments, whose fields are the plain options of its constructor."""
    if name not in names():
        raise unknown("environment of jaxmarl", name, names())
    options = {key: (_hint(default), default) for key, default in options_of(name).items()}
    return suite.member_class(JaxMARL, "jaxmarl", name, options)


def _hint(default: Any) -> Any:
    return Any if default is None else type(default)


class JaxMARLState(struct.PyTreeNode):
    """JaxMARL's state and what its last step showed."""

    inner: Any  # JaxMARL's own
    obs: jax.Array  # [A, O] padded, without ids
    alive: jax.Array  # [A] bool
    earned: Any  # [A] sum of the rewards without the shaped one; None where there is none


@struct.dataclass
class ShapedParams:
    """Numbers of environments that report a shaped reward."""

    shaped_reward: Any = 1.0  # how much of the shaped reward is added to the reward when training begins
    shaped_until: Any = 0.5  # share of a training run over which that falls to 0, linearly; 0: it stays what it is


@dataclasses.dataclass(frozen=True)
class JaxMARL(Environment):
    """One of JaxMARL's environments; ``environment_class`` derives a class with its options from it.

    - ``agent_id``: append a one-hot agent id to the observation; null: where agents' spaces differ.
    - ``limit``: an episode that ends at the step limit is terminated (end) or truncated (truncate); any other is terminated
      (``FAMILIES`` says where the limit is).

    Global state: JaxMARL's ``get_world_state`` where there is one, flattened, else all agents' observations. An agent that is
    done before its episode is no longer alive, but in SMAX, where the dead stay and share rewards. An unavailable action acts as
    the noop, or as the first available action where the noop itself is not; of continuous actions that are padded, the padding
    is masked. Metrics: ``won`` and ``lost`` in SMAX. Where JaxMARL reports a shaped reward it is added to the reward
    (``ShapedParams``), and the metric ``return`` is that of the task, without it.
    """

    version: ClassVar[str] = "2"
    member: ClassVar[str] = ""  # the name within the suite
    agent_id: bool | None = None
    limit: str = "end"

    def __post_init__(self) -> None:
        if self.limit not in LIMITS:
            raise unknown(f"limit of {self.member}", str(self.limit), LIMITS)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, suite.PLAIN):
                raise UserError(f"{field.name}={value} of {self.member} is not a number, a name, true or false")
        theirs(self.member, self._given)  # refuses what JaxMARL does

    @property
    def _given(self) -> suite.Options:
        return suite.given(self, JaxMARL)

    @property
    def _theirs(self) -> Theirs:
        return theirs(self.member, self._given)

    @property
    def num_agents(self) -> int:
        return len(self._theirs.agents)

    @property
    def action_space(self) -> Space:
        widest = max(width(space) for space in self._theirs.spaces)
        return Discrete(widest) if self._theirs.discrete else Box((widest,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((max(self._theirs.obs_sizes) + (self.num_agents if self._with_id else 0),))

    @property
    def _with_id(self) -> bool:
        return self._theirs.differ if self.agent_id is None else self.agent_id

    @property
    def default_params(self) -> Any:
        return ShapedParams() if self._theirs.shaped else ()

    @property
    def display(self) -> Display:
        return Display(metrics=family(self.member).first_metrics)

    def check_params(self, env_params: Any) -> None:
        if self._theirs.shaped:
            check_numbers(env_params, self.default_params, self.member)
            check_ranges(env_params, {"shaped_until": (0.0, 1.0)}, self.member)

    def anneal(self, env_params: Any, progress: jax.Array) -> Any:
        """The shaped reward falls to 0 over the first ``shaped_until`` of a training run."""
        if not self._theirs.shaped:
            return env_params
        share = env_params.shaped_until
        left = jnp.where(share > 0.0, jnp.clip(1.0 - progress / jnp.maximum(share, 1e-6), 0.0, 1.0), 1.0)
        return env_params.replace(shaped_reward=env_params.shaped_reward * left)

    def max_episode_steps(self, env_params: Any) -> int | None:
        del env_params
        kind, limit = self._theirs.family, self._limit
        if limit is None:
            return None
        return int(limit * (getattr(self._theirs.env, kind.unit) if kind.unit else 1) + kind.limit_first)

    @property
    def teams(self) -> tuple[int, ...]:
        """Adversaries and the others compete; the first agent's team is 0."""
        rival = [agent.rpartition("_")[0] in RIVALS for agent in self._theirs.agents]
        return tuple(int(one != rival[0]) for one in rival)

    @property
    def noop(self) -> int:
        return self._theirs.family.noop(self._theirs.env) if self._theirs.discrete else 0

    def initial(self, key: jax.Array, env_params: Any) -> JaxMARLState:
        del env_params
        with quiet():
            obs, inner = self._theirs.env.reset(key)
        own = self._theirs
        earned = jnp.zeros(self.num_agents) if own.shaped else None
        return JaxMARLState(suite.cast(inner, own.state), self._padded(obs), jnp.ones(self.num_agents, bool), earned)

    def reset_episode_counters(self, state: JaxMARLState, env_params: Any) -> JaxMARLState:
        del env_params
        return state.replace(earned=jax.tree.map(jnp.zeros_like, state.earned))

    def transition(self, key: jax.Array, state: JaxMARLState, action: jax.Array, env_params: Any) -> tuple[JaxMARLState, Outcome]:
        own, kind = self._theirs, self._theirs.family
        with quiet():
            obs, inner, rewards, dones, info = own.env.step_env(key, state.inner, self._their_actions(state, action))
        inner = suite.cast(inner, own.state)
        reward = self._by_agent(rewards)
        ended = jnp.asarray(dones["__all__"], bool)
        cut = self._at_limit(state.inner, inner) & (self.limit == "truncate")
        if kind.over is not None:
            cut &= ~kind.over(inner, reward)
        earned = state.earned
        if own.shaped:
            earned += jnp.where(state.alive, reward, 0.0)
            reward += env_params.shaped_reward * self._by_agent(info["shaped_reward"])
        alive = state.alive
        if not kind.dead_stay:
            done = jnp.stack([jnp.asarray(dones.get(agent, False), bool) for agent in own.agents])
            # Where an episode ends, every agent is done, whether or not it had died.
            alive = jnp.where(ended, alive, alive & ~done)
        outcome = Outcome(jnp.where(state.alive, reward, 0.0), ended & ~cut, ended & cut)
        return JaxMARLState(inner, self._padded(obs), alive, earned), outcome

    def observe(self, state: JaxMARLState, env_params: Any) -> View:
        del env_params
        obs = state.obs
        if self._with_id:
            obs = jnp.concatenate([obs, jnp.eye(self.num_agents)], axis=-1)
        metrics = self._theirs.family.metrics(state.inner)
        if self._theirs.shaped:
            metrics = metrics | {"return": jnp.mean(state.earned)}
        return View(obs, self._mask(state), state.alive, metrics)

    def global_state(self, state: JaxMARLState, env_params: Any) -> jax.Array:
        del env_params
        world = getattr(self._theirs.env, "get_world_state", None)
        if world is None:
            return state.obs.reshape(-1)
        with quiet():
            leaves = jax.tree.leaves(world(state.inner))
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])

    def _by_agent(self, values: Mapping[str, Any]) -> jax.Array:
        """[A] float32."""
        return jnp.stack([jnp.asarray(values[agent], jnp.float32).reshape(()) for agent in self._theirs.agents])

    def _padded(self, obs: Mapping[str, jax.Array]) -> jax.Array:
        """[A, O] float32: flat, zeros behind."""
        return _rows([obs[agent].astype(jnp.float32) for agent in self._theirs.agents], max(self._theirs.obs_sizes))

    def _mask(self, state: JaxMARLState) -> jax.Array:
        """[A, n] bool; all of an agent's own actions where JaxMARL says nothing. Of continuous actions [A, d] where those of some
        agents are padded, else [A, 1]."""
        own = self._theirs
        if not own.discrete:
            widths = jnp.array([width(space) for space in own.spaces])[:, None]
            return jnp.arange(math.prod(self.action_space.shape)) < widths if own.padded else jnp.ones(widths.shape, bool)
        masks = _available(own.env, state.inner) or {}
        rows = [masks.get(agent, jnp.ones(width(space))) for agent, space in zip(own.agents, own.spaces, strict=True)]
        return _rows([jnp.asarray(row) != 0 for row in rows], self.action_space.n)  # type: ignore[union-attr]

    def _their_actions(self, state: JaxMARLState, action: jax.Array) -> dict[str, jax.Array]:
        own = self._theirs
        if own.discrete:
            allowed = self._mask(state)
            instead = jnp.where(allowed[:, self.noop], self.noop, jnp.argmax(allowed, axis=-1))
            free = available(allowed, action) & state.alive
            action = jnp.where(free, action, instead)
            return {agent: action[index] for index, agent in enumerate(own.agents)}
        action = jnp.where(state.alive[:, None], action, 0.0)
        return {
            agent: suite.stretched(action[index, : width(space)], space)
            for index, (agent, space) in enumerate(zip(own.agents, own.spaces, strict=True))
        }

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end" and self._limit is not None

    @property
    def _limit(self) -> int | None:
        kind = self._theirs.family
        return None if kind.limit is None else getattr(self._theirs.env, kind.limit, None)

    def _at_limit(self, before: Any, after: Any) -> jax.Array:
        kind, limit = self._theirs.family, self._limit
        if limit is None:
            return jnp.array(False)
        count = functools.reduce(getattr, kind.counter.split("."), before if kind.limit_first else after)
        return count >= limit


def _rows(rows: Sequence[jax.Array], size: int) -> jax.Array:
    """Arrays of any shape, flat and padded with zeros, as [A, size]."""
    flat = [jnp.ravel(row) for row in rows]
    return jnp.stack([jnp.pad(row, (0, size - row.size)) for row in flat])


def _available(env: Any, inner: Any) -> Any:
    """JaxMARL's masks by agent, or None where the environment has none."""
    from jaxmarl.environments import MultiAgentEnv

    if hasattr(env, "get_legal_moves"):  # Hanabi
        return env.get_legal_moves(inner)
    if type(env).get_avail_actions is MultiAgentEnv.get_avail_actions:
        return None
    return env.get_avail_actions(inner)
