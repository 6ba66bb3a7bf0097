"""Our environments through JaxMARL's API: ``marljax.to_jaxmarl(env)``, for loops and wrappers written against it.

Axis letters: A agents, O observation, n actions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Environment, allowed_actions, without_padding
from marljax.core.spaces import Box, Discrete, MultiDiscrete, Space, num_actions
from marljax.core.types import EnvParams, TimeStep, View, flat_observation
from marljax.errors import UserError, short_repr
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    from jaxmarl.environments import MultiAgentEnv, spaces

ByAgent = dict[str, Any]


class ApiState(struct.PyTreeNode):
    """What JaxMARL's loops pass from step to step."""

    env: Any  # the environment's own state
    done: jax.Array  # bool: the episode has ended
    step: jax.Array  # int32 decisions taken in it


class ToJaxMARL(MultiAgentEnv):
    """An environment as JaxMARL's ``MultiAgentEnv``; made by ``to_jaxmarl``.

    Agents are ``agent_0`` …; ``step`` restarts a finished episode at once and then returns the observation of the new one, as
    all of JaxMARL's environments do, ``step_env`` does not. An agent is done when the episode is, or when it is alive no more:
    the dead of ``smax`` with ``dead=leave``, who get no more rewards then. (The dead of JaxMARL's SMAX are done and share the
    team's reward on.) Observations are one flat vector per agent, what the agents share included, and the dictionary holds
    ``world_state``, the global state, as SMAX's does. ``info`` has the environment's metrics, ``terminated`` and ``truncated``,
    all [A], since JaxMARL's loops expect that shape.

    JaxMARL's training scripts run on it as they are where actions are ``Discrete``: put ``to_jaxmarl(env)`` in the place of the
    environment that they make. ``state_size`` and ``num_allies`` (agents of the first team) are there for the world-state wrapper
    of ``mappo_rnn_smax.py``, with any of our environments. What the wrappers make of an environment hangs on its ``name``:

    - of ``smax`` ``CTRolloutManager``, and so every Q-learning script, takes masks, ``world_state``, and the first agent's reward
      as the team's; ``SMAXLogWrapper`` takes a reward of 1 or more at the end for a win. Both want ``dead=stay``, the default:
      with ``dead=leave`` the dead are not paid, nor is the team once its first agent is dead.
    - of others ``CTRolloutManager`` takes all observations side by side as the state, the sum of the rewards as the team's, and
      every action as available; an unavailable one acts as the noop. Masks are used once
      ``manager.get_valid_actions = jax.vmap(env.get_avail_actions)`` is set.
    """

    def __init__(self, env: Environment, env_params: EnvParams) -> None:
        super().__init__(env.num_agents)
        self.env, self.env_params = env, env_params
        shapes = jax.eval_shape(self._first, jax.random.key(0))
        observation = spaces.Box(-jnp.inf, jnp.inf, shapes[0][self.agents[0]].shape)
        self.observation_spaces = dict.fromkeys(self.agents, observation)
        self.action_spaces = {agent: _space(env.action_space) for agent in self.agents}
        self.world_state_size: int = shapes[0]["world_state"].size
        self.state_size = self.world_state_size  # SMAX's name for it
        self.num_allies = env.teams.count(env.teams[0])

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """Agents by team."""
        teams = list(zip(self.agents, self.env.teams, strict=True))
        return {f"team_{team}": [agent for agent, own in teams if own == team] for team in sorted(set(self.env.teams))}

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[ByAgent, ApiState]:
        """The first observations and state of an episode; consumes ``key`` as ``env.reset`` does."""
        return self._first(key)

    @functools.partial(jax.jit, static_argnums=0)
    def step_env(self, key: jax.Array, state: ApiState, actions: ByAgent) -> tuple[ByAgent, ApiState, ByAgent, ByAgent, ByAgent]:
        """One decision, without a restart; consumes ``key`` as ``env.step`` does."""
        action = jnp.stack([jnp.asarray(actions[agent]) for agent in self.agents])
        action = action.reshape(self.num_agents, *self.env.action_space.shape)
        after, timestep = self.env.step(key, state.env, action, self.env_params)
        state = ApiState(after, timestep.last, state.step + 1)
        done = timestep.last | ~timestep.alive
        shown = timestep.metrics | {"terminated": timestep.terminated, "truncated": timestep.truncated}
        info = {name: jnp.broadcast_to(value, (self.num_agents,)) for name, value in shown.items()}
        dones = self._by_agent(done) | {"__all__": timestep.last}
        return self._observations(after, timestep), state, self._by_agent(timestep.reward), dones, info

    @functools.partial(jax.jit, static_argnums=0)
    def get_obs(self, state: ApiState) -> ByAgent:
        """What the agents see in a state, and ``world_state``."""
        return self._observations(state.env, self.env.observe(state.env, self.env_params))

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: ApiState) -> ByAgent:
        """[n] bool per agent, of a ``MultiDiscrete`` action its parts' masks side by side; an absent agent has the noop only. Of
        a continuous action an array of its shape, false where it is padding."""
        view = self.env.observe(state.env, self.env_params)
        space = self.env.action_space
        mask = allowed_actions(self.env, view)
        if isinstance(space, Box):
            mask = without_padding(space, mask, jnp.ones((self.num_agents, *space.shape))) > 0
        return self._by_agent(mask)

    @functools.partial(jax.jit, static_argnums=0)
    def get_world_state(self, state: ApiState) -> jax.Array:
        """[G], the state that a centralised critic sees."""
        return self.env.global_state(state.env, self.env_params)

    @property
    def num_actions(self) -> int:
        """Width of a discrete action's mask; of a continuous action, 1."""
        return num_actions(self.env.action_space)

    def _first(self, key: jax.Array) -> tuple[ByAgent, ApiState]:
        state, timestep = self.env.reset(key, self.env_params)
        return self._observations(state, timestep), ApiState(state, jnp.array(False), jnp.zeros((), jnp.int32))

    def _observations(self, state: Any, seen: TimeStep | View) -> ByAgent:
        flat = flat_observation(seen.obs, (self.num_agents,))
        return self._by_agent(flat) | {"world_state": self.env.global_state(state, self.env_params)}

    def _by_agent(self, values: jax.Array) -> ByAgent:
        return {agent: values[index] for index, agent in enumerate(self.agents)}


def _space(space: Space) -> Any:
    match space:
        case Discrete(n=n):
            return spaces.Discrete(n)
        case MultiDiscrete(nvec=nvec):
            return spaces.MultiDiscrete(nvec)
        case Box(shape=shape, low=low, high=high):
            return spaces.Box(low, high, shape)


def to_jaxmarl(env: Environment, env_params: EnvParams | None = None) -> ToJaxMARL:
    """``env`` through JaxMARL's API: see ``ToJaxMARL``.

    Example:
        env = LogWrapper(marljax.to_jaxmarl(marljax.make("smax", scenario="3m")))
        obs, state = env.reset(key)
        obs, state, reward, done, info = env.step(key, state, {agent: … for agent in env.agents})

    Raises:
        UserError: for what is no environment, and for numbers that it cannot have.
    """
    if not isinstance(env, Environment):
        raise UserError(f"to_jaxmarl got {short_repr(env)}; give an environment, such as marljax.make('smax')")
    env_params = env.resolve_params(env_params)
    env.check_params(jax.device_get(env_params))
    return ToJaxMARL(env, env_params)
