"""JaxMARL's API for any environment: ``marljax.to_jaxmarl(env)``, for loops and wrappers written for it.

Axis letters: A agents, O observation, n actions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Environment, allowed_actions, without_padding
from marljax.core.spaces import Box, Discrete, MultiDiscrete, num_actions
from marljax.core.types import EnvParams, TimeStep, View, flat_observation
from marljax.errors import UserError, short_repr
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    from jaxmarl.environments import MultiAgentEnv, spaces

ByAgent = dict[str, Any]


class ApiState(struct.PyTreeNode):
    """The state that JaxMARL's loops carry."""

    env: Any  # the environment's own state
    done: jax.Array  # bool: the episode has ended
    step: jax.Array  # int32 steps of the episode


class ToJaxMARL(MultiAgentEnv):
    """An environment as JaxMARL's ``MultiAgentEnv``; created by ``to_jaxmarl``.

    Agents are ``agent_0`` …. ``step`` restarts a finished episode at once and returns the observation of the new one, as in
    JaxMARL; ``step_env`` does not restart. An agent is done when the episode is, or when it is not alive: the dead of ``smax``
    with ``dead=leave``, who get no further rewards. (The dead of JaxMARL's SMAX are done and still share the team's reward.)
    Observations are a flat vector per agent, shared parts included, plus ``world_state``, the global state, as in SMAX.
    ``info`` has the environment's metrics, ``terminated`` and ``truncated``, all [A], the shape that JaxMARL's loops expect.

    JaxMARL's training scripts run unchanged on it if actions are ``Discrete``: replace the environment that they create by
    ``to_jaxmarl(env)``. ``state_size`` and ``num_allies`` (agents of the first team) are for the world-state wrapper of
    ``mappo_rnn_smax.py``, with any environment. How other wrappers treat an environment depends on its ``name``:

    - ``smax``: ``CTRolloutManager``, and so every Q-learning script, uses masks, ``world_state``, and the first agent's reward as
      the team's; ``SMAXLogWrapper`` counts a final reward of 1 or more as a win. Both need ``dead=stay``, the default: with
      ``dead=leave`` the dead get no reward, nor does the team once its first agent is dead.
    - others: ``CTRolloutManager`` uses all observations concatenated as the state, the sum of the rewards as the team's, and
      treats every action as available; an unavailable one acts as the noop. To use masks set
      ``manager.get_valid_actions = jax.vmap(env.get_avail_actions)``.
    """

    def __init__(self, env: Environment, env_params: EnvParams) -> None:
        super().__init__(env.num_agents)
        self.env, self.env_params = env, env_params
        obs, _ = jax.eval_shape(self.reset, jax.random.key(0))
        observation = spaces.Box(-jnp.inf, jnp.inf, obs[self.agents[0]].shape)
        self.observation_spaces = dict.fromkeys(self.agents, observation)
        action_space: Any
        match env.action_space:
            case Discrete(n=n):
                action_space = spaces.Discrete(n)
            case MultiDiscrete(nvec=nvec):
                action_space = spaces.MultiDiscrete(nvec)
            case Box(shape=shape, low=low, high=high):
                action_space = spaces.Box(low, high, shape)
        self.action_spaces = dict.fromkeys(self.agents, action_space)
        self.world_state_size: int = obs["world_state"].size
        self.state_size = self.world_state_size  # SMAX's name for it
        self.num_allies = env.teams.count(env.teams[0])

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """Agents by team."""
        classes: dict[str, list[str]] = {f"team_{team}": [] for team in sorted(set(self.env.teams))}
        for agent, team in zip(self.agents, self.env.teams, strict=True):
            classes[f"team_{team}"].append(agent)
        return classes

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[ByAgent, ApiState]:
        """The first observations and state of an episode; uses ``key`` like ``env.reset``."""
        state, timestep = self.env.reset(key, self.env_params)
        return self._observations(state, timestep), ApiState(state, jnp.array(False), jnp.zeros((), jnp.int32))

    @functools.partial(jax.jit, static_argnums=0)
    def step_env(self, key: jax.Array, state: ApiState, actions: ByAgent) -> tuple[ByAgent, ApiState, ByAgent, ByAgent, ByAgent]:
        """One decision, without auto-reset; uses ``key`` like ``env.step``."""
        action = jnp.stack([jnp.asarray(actions[agent]) for agent in self.agents])
        action = action.reshape(self.num_agents, *self.env.action_space.shape)
        env_state, timestep = self.env.step(key, state.env, action, self.env_params)
        state = ApiState(env_state, timestep.last, state.step + 1)
        scalars = timestep.metrics | {"terminated": timestep.terminated, "truncated": timestep.truncated}
        info = {name: jnp.broadcast_to(value, (self.num_agents,)) for name, value in scalars.items()}
        dones = self._by_agent(timestep.last | ~timestep.alive) | {"__all__": timestep.last}
        return self._observations(env_state, timestep), state, self._by_agent(timestep.reward), dones, info

    @functools.partial(jax.jit, static_argnums=0)
    def get_obs(self, state: ApiState) -> ByAgent:
        """The observations of a state, and ``world_state``."""
        return self._observations(state.env, self.env.observe(state.env, self.env_params))

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: ApiState) -> ByAgent:
        """[n] bool per agent, the masks of a ``MultiDiscrete`` action concatenated; only the noop for absent agents. For
        continuous actions an array of their shape, false for padding."""
        view = self.env.observe(state.env, self.env_params)
        space = self.env.action_space
        mask = allowed_actions(self.env, view)
        if isinstance(space, Box):
            mask = without_padding(space, mask, jnp.ones((self.num_agents, *space.shape))) > 0
        return self._by_agent(mask)

    @functools.partial(jax.jit, static_argnums=0)
    def get_world_state(self, state: ApiState) -> jax.Array:
        """[G], the input of a centralised critic."""
        return self.env.global_state(state.env, self.env_params)

    @property
    def num_actions(self) -> int:
        """Width of a discrete action's mask; of a continuous action, 1."""
        return num_actions(self.env.action_space)

    def _observations(self, state: Any, view: TimeStep | View) -> ByAgent:
        flat = flat_observation(view.obs, (self.num_agents,))
        return self._by_agent(flat) | {"world_state": self.env.global_state(state, self.env_params)}

    def _by_agent(self, values: jax.Array) -> ByAgent:
        return {agent: values[index] for index, agent in enumerate(self.agents)}


def to_jaxmarl(env: Environment, env_params: EnvParams | None = None) -> ToJaxMARL:
    """``env`` with JaxMARL's API: see ``ToJaxMARL``.

    Example:
        env = LogWrapper(marljax.to_jaxmarl(marljax.make("smax", scenario="3m")))
        obs, state = env.reset(key)
        obs, state, reward, done, info = env.step(key, state, {agent: … for agent in env.agents})

    Raises:
        UserError: if ``env`` is not an environment, and for invalid params.
    """
    if not isinstance(env, Environment):
        raise UserError(f"to_jaxmarl got {short_repr(env)}; give an environment, such as marljax.make('smax')")
    env_params = env.resolve_params(env_params)
    env.check_params(jax.device_get(env_params))
    return ToJaxMARL(env, env_params)
