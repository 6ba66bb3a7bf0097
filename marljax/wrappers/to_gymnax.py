"""gymnax's API for environments of one agent: ``marljax.to_gymnax(marljax.joint(env))``, for loops and wrappers written for it.

Axis letters: A agents, O observation, K parts of a multi-discrete action, n actions.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from marljax.core.environment import Environment, allowed_actions
from marljax.core.spaces import Box, Discrete, MultiDiscrete, num_actions
from marljax.core.types import EnvParams, TimeStep, View, flat_observation
from marljax.core.vector import NO_LIMIT
from marljax.errors import UserError, short_repr, unknown


@struct.dataclass
class ApiParams(environment.EnvParams):
    """gymnax's ``params``: ``params.replace(env_params=…)`` changes those of the environment, also under ``jax.vmap``.

    ``max_steps_in_episode`` is the length of the longest episode, which gymnax's rollouts read, or 2³¹ − 1 if it is unknown. A
    smaller number truncates episodes; for longer ones change ``env_params``.
    """

    env_params: Any = ()  # the environment's own


@struct.dataclass
class ApiState(environment.EnvState):
    """The state that gymnax's loops carry."""

    env: Any  # the environment's own state
    terminated: jax.Array  # bool
    truncated: jax.Array  # bool: by the environment's own limits


class MultiDiscreteBox(spaces.Box):
    """[K] integers below ``nvec``, as a ``Box`` of integers, since gymnax has no such space."""

    def __init__(self, nvec: tuple[int, ...]) -> None:
        equal = len(set(nvec)) == 1
        low, high = (0, nvec[0] - 1) if equal else (np.zeros(len(nvec), np.int32), np.array(nvec, np.int32) - 1)
        super().__init__(low, high, (len(nvec),), jnp.int32)
        self.nvec = nvec

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.array(self.nvec))


class ToGymnax(environment.Environment):
    """An environment of one agent as gymnax's ``Environment``; created by ``to_gymnax``.

    Observations are a flat vector [O], rewards scalars. Actions are an integer, [K] integers (of the agents of a joint
    environment in order), or real numbers in [−1, 1]. Loops such as PureJaxRL's, which read ``action_space(…).n``, cannot take
    [K]: give them ``marljax.joint(env, flat=True)`` if n to the power of A is small.

    ``step`` returns six values, as in gymnax 1.x: gymnax's own method restarts a finished episode at once, by ``reset_env``, and
    puts its last observation into ``info["final_observation"]``; ``step_env`` does not restart. An episode is either terminated
    or truncated, never both. ``info`` has the environment's metrics and ``discount``. gymnax has no masks: call
    ``action_mask(state)``, where ``state`` is ``log_state.env_state`` with gymnax's ``LogWrapper``. All wrappers of gymnax 1.x
    are supported; for loops that unpack five values see ``ToLegacyGymnax``.
    """

    def __init__(self, env: Environment, env_params: EnvParams) -> None:
        self.env = env
        longest = env.max_episode_steps(env_params)
        self._longest = NO_LIMIT if longest is None else int(longest)
        self._params = ApiParams(max_steps_in_episode=self._longest, env_params=env_params)
        self._obs_shape = jax.eval_shape(self.reset_env, jax.random.key(0), self._params)[0].shape

    @property
    def default_params(self) -> ApiParams:
        return self._params

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @property
    def num_actions(self) -> int:
        """n; of K parts, the sum of theirs; of a continuous action, its size."""
        space = self.env.action_space
        return math.prod(space.shape) if isinstance(space, Box) else num_actions(space)

    def reset_env(self, key: jax.Array, params: ApiParams) -> tuple[jax.Array, ApiState]:
        """The first observation and state of an episode; uses ``key`` like ``env.reset``."""
        state, timestep = self.env.reset(key, self._env_params(params))
        return _observation(timestep), ApiState(jnp.zeros((), jnp.int32), state, timestep.terminated, timestep.truncated)

    def step_env(
        self, key: jax.Array, state: ApiState, action: Any, params: ApiParams
    ) -> tuple[jax.Array, ApiState, jax.Array, jax.Array, dict[str, jax.Array]]:
        """One decision, without auto-reset; uses ``key`` like ``env.step``."""
        action = jnp.asarray(action)
        if isinstance(self.env.action_space, MultiDiscrete) and not jnp.issubdtype(action.dtype, jnp.integer):
            advice = "for a loop without such actions give marljax.joint(env, flat=True)"
            raise UserError(f"{self.name} got actions of {action.dtype} and takes integers, one for each agent; {advice}")
        env_state, timestep = self.env.step(key, state.env, action[None], self._env_params(params))
        state = ApiState(state.time + 1, env_state, timestep.terminated, timestep.truncated)
        info = timestep.metrics | {"discount": self.discount(state, params)}
        return _observation(timestep), state, timestep.reward[0], timestep.terminated, info

    def observe(self, key: jax.Array, state: ApiState, action: Any, params: ApiParams) -> jax.Array:
        """[O], the observation of a state."""
        del key, action
        return _observation(self.env.observe(state.env, self._env_params(params)))

    def action_mask(self, state: ApiState, params: ApiParams | None = None) -> jax.Array:
        """[n] bool, the available actions of a state, those of K parts concatenated; for continuous ones [1] true, or [n] false
        for padding."""
        view = self.env.observe(state.env, self._env_params(self.default_params if params is None else params))
        return allowed_actions(self.env, view)[0]

    def is_terminated(self, state: ApiState, params: ApiParams) -> jax.Array:
        del params
        return state.terminated

    def is_truncated(self, state: ApiState, params: ApiParams) -> jax.Array:
        limit = params.max_steps_in_episode
        at_limit = (limit < self._longest) & (state.time >= limit)
        return (state.truncated | at_limit) & ~state.terminated

    def action_space(self, params: ApiParams | None = None) -> spaces.Space:
        del params
        match self.env.action_space:
            case Discrete(n=n):
                return spaces.Discrete(n)
            case MultiDiscrete(nvec=nvec):
                return MultiDiscreteBox(nvec)
            case Box(shape=shape, low=low, high=high):
                return spaces.Box(low, high, shape)

    def observation_space(self, params: ApiParams | None = None) -> spaces.Box:
        del params
        space = self.env.observation_space
        low, high = (space.low, space.high) if isinstance(space, Box) else (-math.inf, math.inf)
        return spaces.Box(low, high, self._obs_shape)

    def _env_params(self, params: Any) -> EnvParams:
        if not isinstance(params, ApiParams):
            raise UserError(f"params are {type(params).__name__}; give env.default_params.replace(env_params=…)")
        return self.env.resolve_params(params.env_params)


class ToLegacyGymnax(ToGymnax):
    """``ToGymnax`` as gymnax 0.x's ``Environment``; created by ``to_gymnax(env, api="0.x")``.

    ``step`` and ``step_env`` return (obs, state, reward, done, info), where ``done`` is terminated or truncated, as are
    ``is_terminal`` and a ``discount`` of 0. ``step`` restarts a finished episode at once, with the same random numbers as in
    gymnax 1.x, and drops its last observation; ``info`` has ``terminated`` and ``truncated`` besides the metrics. This is what
    rejax 0.1, PureJaxRL with its wrappers, and gymnax 0.x's wrappers expect; those of gymnax 1.x expect six values.
    """

    @functools.partial(jax.jit, static_argnames=("self",))
    def step(  # type: ignore[override]
        self, key: jax.Array, state: ApiState, action: Any, params: ApiParams | None = None
    ) -> tuple[jax.Array, ApiState, jax.Array, jax.Array, dict[str, jax.Array]]:
        params = self.default_params if params is None else params
        key_step, key_reset = jax.random.split(key)
        obs, state, reward, done, info = self.step_env(key_step, state, action, params)
        fresh = self.reset_env(key_reset, params)
        obs, state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, (obs, state))
        return obs, state, reward, done, info

    def step_env(
        self, key: jax.Array, state: ApiState, action: Any, params: ApiParams
    ) -> tuple[jax.Array, ApiState, jax.Array, jax.Array, dict[str, jax.Array]]:
        """One decision, without auto-reset; uses ``key`` like ``env.step``."""
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        truncated = self.is_truncated(state, params)
        return obs, state, reward, terminated | truncated, info | {"terminated": terminated, "truncated": truncated}

    def is_terminal(self, state: ApiState, params: ApiParams) -> jax.Array:
        return self.is_terminated(state, params) | self.is_truncated(state, params)

    def discount(self, state: ApiState, params: ApiParams) -> jax.Array:
        return 1.0 - self.is_terminal(state, params)

    def get_obs(self, state: ApiState, params: ApiParams | None = None, key: Any = None) -> jax.Array:
        """[O], the observation of a state."""
        return self.observe(key, state, None, self.default_params if params is None else params)


APIS = {"1.x": ToGymnax, "0.x": ToLegacyGymnax}


def _observation(view: TimeStep | View) -> jax.Array:
    return flat_observation(view.obs, (1,))[0]


def to_gymnax(env: Environment, env_params: EnvParams | None = None, api: str = "1.x") -> ToGymnax:
    """An environment of one agent with gymnax's API.

    Args:
        env: if it has several agents, use ``marljax.joint(env)``, or ``joint(env, flat=True)`` for loops that take one integer.
        env_params: its params; default: ``env.default_params``.
        api: ``1.x``: ``step`` returns six values, see ``ToGymnax``; ``0.x``: five, for rejax and PureJaxRL, see
            ``ToLegacyGymnax``.

    Example:
        env = LogWrapper(marljax.to_gymnax(marljax.joint(marljax.make("merge"))))
        obs, state = env.reset(key, env.default_params)
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, env.default_params)

    Raises:
        UserError: if ``env`` is not an environment or has several agents, for invalid params, and for an unknown ``api``.
    """
    if not isinstance(env, Environment):
        raise UserError(f"to_gymnax got {short_repr(env)}; give an environment, such as marljax.joint(marljax.make('merge'))")
    if env.num_agents != 1:
        raise UserError(f"{type(env).__name__} has {env.num_agents} agents and gymnax's have one; give marljax.joint(env)")
    env_params = env.resolve_params(env_params)
    env.check_params(jax.device_get(env_params))
    if api not in APIS:
        raise unknown("api", str(api), APIS)
    return APIS[api](env, env_params)
