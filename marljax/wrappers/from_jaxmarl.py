"""The suite of JaxMARL's environments: ``marljax.make("jaxmarl/MPE_simple_spread_v3")``, ``env=jaxmarl env.name=overcooked``.

Dictionaries by agent become arrays with a leading [A], in the order of JaxMARL's ``agents``. Where agents' spaces differ,
observations are padded with zeros, actions with unavailable ones, and a one-hot agent id is appended to the observation. Images
are flattened. Continuous actions in [−1, 1] are rescaled to the agent's bounds. Only ``step_env`` is called, never the ``step``
with its auto-reset.

A step limit terminates an episode (``limit=end``), as JaxMARL's ``done`` and all published results have it. With
``limit=truncate`` the value of the final observation is bootstrapped, although no critic is ever trained on a final observation:
where agents reach states only at the end, such as far out on the unbounded plane of MPE, that value is extrapolated, and values
and policies diverge.

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
from marljax.core.fields import option, param
from marljax.core.spaces import Box, Discrete, Space, available
from marljax.core.types import Outcome, View
from marljax.errors import unknown
from marljax.wrappers import suite
from marljax.wrappers.jaxmarl_families import OPPONENTS, WrappedEnv, family, names, options_of, quiet, width, wrapped_env

__all__ = ["JaxMARL", "JaxMARLState", "ShapedParams", "environment_class", "names"]


@functools.cache
def environment_class(name: str) -> type["JaxMARL"]:
    """The class of one of JaxMARL's environments; its fields are the plain options of the constructor."""
    if name not in names():
        raise unknown("environment of jaxmarl", name, names())
    options = {key: (Any if default is None else type(default), default) for key, default in options_of(name).items()}
    return suite.member_class(JaxMARL, "jaxmarl", name, options)


class JaxMARLState(struct.PyTreeNode):
    """JaxMARL's state and the observations of its last step."""

    inner: Any  # JaxMARL's own
    obs: jax.Array  # [A, O] padded, without ids
    alive: jax.Array  # [A] bool
    returns: Any  # [A] without the shaped reward; None if there is none


@struct.dataclass
class ShapedParams:
    """Params of environments that report a shaped reward."""

    shaped_reward: Any = param(1.0, help="weight of the shaped reward when training starts")
    shaped_until: Any = param(0.5, low=0.0, high=1.0, help="share of a run over which it falls to 0, linearly; 0: it stays")


@dataclasses.dataclass(frozen=True)
class JaxMARL(Environment):
    """One of JaxMARL's environments; ``environment_class`` derives a class with its options.

    Global state: JaxMARL's ``get_world_state`` if there is one, flattened, else all agents' observations. An agent that is done
    before its episode is not alive, except in SMAX, where the dead stay and share rewards. An unavailable action acts as the
    noop, or as the first available action if the noop is unavailable too; the padding of continuous actions is masked. Metrics:
    ``won`` and ``lost`` in SMAX. A shaped reward is added to the reward (``ShapedParams``), but not to the metric ``return``.
    """

    version: ClassVar[str] = "2"
    member: ClassVar[str] = ""  # the name within the suite
    agent_id: bool | None = option(None, help="one-hot agent id in the observation; null: where agents' spaces differ")
    limit: str = option("end", choices=LIMITS, help="whether an episode at its step limit is terminated or truncated")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._wrapped  # raises what JaxMARL does not accept

    @property
    def _wrapped(self) -> WrappedEnv:
        return wrapped_env(self.member, suite.given(self, JaxMARL))

    @property
    def num_agents(self) -> int:
        return len(self._wrapped.agents)

    @property
    def action_space(self) -> Space:
        widest = max(width(space) for space in self._wrapped.spaces)
        return Discrete(widest) if self._wrapped.discrete else Box((widest,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((max(self._wrapped.obs_sizes) + (self.num_agents if self._with_id else 0),))

    @property
    def _with_id(self) -> bool:
        differ = len(set(self._wrapped.obs_sizes)) > 1 or self._wrapped.padded
        return differ if self.agent_id is None else self.agent_id

    @property
    def default_params(self) -> Any:
        return ShapedParams() if self._wrapped.shaped else ()

    @property
    def display(self) -> Display:
        return Display(metrics=family(self.member).first_metrics)

    def anneal(self, env_params: Any, progress: jax.Array) -> Any:
        """The shaped reward falls to 0 over the first ``shaped_until`` of a training run."""
        if not self._wrapped.shaped:
            return env_params
        share = env_params.shaped_until
        decay = jnp.where(share > 0.0, jnp.clip(1.0 - progress / jnp.maximum(share, 1e-6), 0.0, 1.0), 1.0)
        return env_params.replace(shaped_reward=env_params.shaped_reward * decay)

    def max_episode_steps(self, env_params: Any) -> int | None:
        del env_params
        kind, limit = self._wrapped.family, self._limit
        if limit is None:
            return None
        return int(limit * (getattr(self._wrapped.env, kind.unit) if kind.unit else 1) + kind.limit_first)

    @property
    def teams(self) -> tuple[int, ...]:
        """Adversaries and the others compete; the first agent's team is 0."""
        opponent = [agent.rpartition("_")[0] in OPPONENTS for agent in self._wrapped.agents]
        return tuple(int(team != opponent[0]) for team in opponent)

    @property
    def noop(self) -> int:
        return self._wrapped.family.noop(self._wrapped.env) if self._wrapped.discrete else 0

    def initial(self, key: jax.Array, env_params: Any) -> JaxMARLState:
        del env_params
        wrapped = self._wrapped
        with quiet():
            obs, inner = wrapped.env.reset(key)
        returns = jnp.zeros(self.num_agents) if wrapped.shaped else None
        return JaxMARLState(suite.cast(inner, wrapped.state), self._pad_obs(obs), jnp.ones(self.num_agents, bool), returns)

    def reset_episode_counters(self, state: JaxMARLState, env_params: Any) -> JaxMARLState:
        del env_params
        return state.replace(returns=jax.tree.map(jnp.zeros_like, state.returns))

    def transition(self, key: jax.Array, state: JaxMARLState, action: jax.Array, env_params: Any) -> tuple[JaxMARLState, Outcome]:
        wrapped, kind = self._wrapped, self._wrapped.family
        with quiet():
            actions = self._actions_by_agent(state, action)
            obs, inner, rewards, dones, info = wrapped.env.step_env(key, state.inner, actions)
        inner = suite.cast(inner, wrapped.state)
        reward = self._stack(rewards)
        ended = jnp.asarray(dones["__all__"], bool)

        at_limit = jnp.array(False)
        if self._limit is not None:
            counter = functools.reduce(getattr, kind.counter.split("."), state.inner if kind.limit_first else inner)
            at_limit = counter >= self._limit
        truncated = at_limit & (self.limit == "truncate")
        if kind.over is not None:
            truncated &= ~kind.over(inner, reward)

        returns = state.returns
        if wrapped.shaped:
            returns += jnp.where(state.alive, reward, 0.0)
            reward += env_params.shaped_reward * self._stack(info["shaped_reward"])
        alive = state.alive
        if not kind.dead_stay:
            done = jnp.stack([jnp.asarray(dones.get(agent, False), bool) for agent in wrapped.agents])
            # Where an episode ends every agent is done, whether or not it has died.
            alive = jnp.where(ended, alive, alive & ~done)
        outcome = Outcome(jnp.where(state.alive, reward, 0.0), ended & ~truncated, ended & truncated)
        return JaxMARLState(inner, self._pad_obs(obs), alive, returns), outcome

    def observe(self, state: JaxMARLState, env_params: Any) -> View:
        del env_params
        obs = state.obs
        if self._with_id:
            obs = jnp.concatenate([obs, jnp.eye(self.num_agents)], axis=-1)
        metrics = self._wrapped.family.metrics(state.inner)
        if self._wrapped.shaped:
            metrics = metrics | {"return": jnp.mean(state.returns)}
        return View(obs, self._mask(state), state.alive, metrics)

    def global_state(self, state: JaxMARLState, env_params: Any) -> jax.Array:
        del env_params
        world = getattr(self._wrapped.env, "get_world_state", None)
        if world is None:
            return state.obs.reshape(-1)
        with quiet():
            leaves = jax.tree.leaves(world(state.inner))
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end" and self._limit is not None

    @property
    def _limit(self) -> int | None:
        kind = self._wrapped.family
        return None if kind.limit is None else getattr(self._wrapped.env, kind.limit, None)

    def _stack(self, values: Mapping[str, Any]) -> jax.Array:
        """[A] float32 from scalars by agent."""
        return jnp.stack([jnp.asarray(values[agent], jnp.float32).reshape(()) for agent in self._wrapped.agents])

    def _pad_obs(self, obs: Mapping[str, jax.Array]) -> jax.Array:
        """[A, O] float32, flattened and padded with zeros."""
        return _stack_padded([obs[agent].astype(jnp.float32) for agent in self._wrapped.agents], max(self._wrapped.obs_sizes))

    def _mask(self, state: JaxMARLState) -> jax.Array:
        """[A, n] bool, all true where JaxMARL has no mask; for continuous actions [A, d] if some agents' are padded, else
        [A, 1]."""
        wrapped = self._wrapped
        if not wrapped.discrete:
            widths = jnp.array([width(space) for space in wrapped.spaces])[:, None]
            return jnp.arange(math.prod(self.action_space.shape)) < widths if wrapped.padded else jnp.ones(widths.shape, bool)
        masks = _available_actions(wrapped.env, state.inner) or {}
        rows = [masks.get(agent, jnp.ones(width(space))) for agent, space in zip(wrapped.agents, wrapped.spaces, strict=True)]
        return _stack_padded([jnp.asarray(row) != 0 for row in rows], self.action_space.n)  # type: ignore[union-attr]

    def _actions_by_agent(self, state: JaxMARLState, action: jax.Array) -> dict[str, jax.Array]:
        wrapped = self._wrapped
        if wrapped.discrete:
            mask = self._mask(state)
            fallback = jnp.where(mask[:, self.noop], self.noop, jnp.argmax(mask, axis=-1))
            action = jnp.where(available(mask, action) & state.alive, action, fallback)
            return {agent: action[index] for index, agent in enumerate(wrapped.agents)}
        action = jnp.where(state.alive[:, None], action, 0.0)
        return {
            agent: suite.rescale_action(action[index, : width(space)], space)
            for index, (agent, space) in enumerate(zip(wrapped.agents, wrapped.spaces, strict=True))
        }


def _stack_padded(rows: Sequence[jax.Array], size: int) -> jax.Array:
    """[A, size] from arrays of any shape, flattened and padded with zeros."""
    flat = [jnp.ravel(row) for row in rows]
    return jnp.stack([jnp.pad(row, (0, size - row.size)) for row in flat])


def _available_actions(env: Any, inner: Any) -> Any:
    """JaxMARL's masks by agent, or None if the environment has none."""
    from jaxmarl.environments import MultiAgentEnv

    if hasattr(env, "get_legal_moves"):  # Hanabi
        return env.get_legal_moves(inner)
    if type(env).get_avail_actions is MultiAgentEnv.get_avail_actions:
        return None
    return env.get_avail_actions(inner)
