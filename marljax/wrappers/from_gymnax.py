"""The suite of gymnax's environments: ``marljax.make("gymnax/CartPole-v1")``, ``env=gymnax env.name=CartPole-v1``.

Each has one agent. Observations are flattened, except that an integer below n (FrozenLake's cell) becomes one-hot. Continuous
actions in [−1, 1] are rescaled to the environment's bounds. ``env_params`` are gymnax's own record. Only ``step_env`` and
``is_truncated`` are called, never the ``step`` with its auto-reset.

Axis letters: O observation.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import types
import typing
from typing import Any, ClassVar

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces

from marljax.core.environment import Environment
from marljax.core.spaces import Box, Discrete, num_actions
from marljax.core.types import EnvParams, Outcome, View
from marljax.errors import UserError, unknown
from marljax.wrappers import suite

LIMIT = "max_steps_in_episode"  # the episode length among gymnax's params


def names() -> list[str]:
    """Names for ``make("gymnax/<name>")``, also those added with ``gymnax.register``; MNISTBandit downloads MNIST."""
    return sorted(gymnax.registered_envs)


@functools.cache
def environment_class(name: str) -> type["Gymnax"]:
    """The class of one of gymnax's environments; its fields are the plain options of the constructor."""
    if name not in names():
        raise unknown("environment of gymnax", name, names())
    return suite.member_class(Gymnax, "gymnax", name, options_of(name))


def options_of(name: str) -> dict[str, tuple[Any, Any]]:
    """Option → (type, default) from the signature of the constructor; lists of plain values become tuples."""
    cls = type(_make(name, ()))
    try:
        parameters = inspect.signature(cls, eval_str=True).parameters
    except NameError:  # annotated with names that only type checkers know
        parameters = inspect.signature(cls).parameters
    options = {}
    for key, parameter in parameters.items():
        hint, default = _option_type(parameter), parameter.default
        if hint is not None and default is not inspect.Parameter.empty and not hasattr(Gymnax, key):
            options[key] = (hint, tuple(default) if isinstance(default, list) else default)
    return options


def _option_type(parameter: inspect.Parameter) -> Any:
    """The type of an option, with tuples for sequences; None for what a command line cannot express, such as an array."""
    stated = parameter.annotation
    if stated is inspect.Parameter.empty or isinstance(stated, str):
        stated = type(parameter.default)
    union = typing.get_origin(stated) in (typing.Union, types.UnionType)
    kinds = []
    for kind in typing.get_args(stated) if union else (stated,):
        entry = (*typing.get_args(kind), None)[0]
        if kind in suite.PLAIN:
            kinds.append(kind)
        elif typing.get_origin(kind) in (list, tuple, collections.abc.Sequence) and entry in suite.PLAIN:
            kinds.append(types.GenericAlias(tuple, (entry, ...)))
        else:
            return None
    return typing.Union[tuple(kinds)]  # noqa: UP007


class GymnaxState(struct.PyTreeNode):
    """gymnax's state and the observation of its last step."""

    inner: Any  # gymnax's own
    obs: jax.Array  # [O]


@dataclasses.dataclass(frozen=True)
class Gymnax(Environment):
    """One of gymnax's environments, with one agent; ``environment_class`` derives a class with its options.

    Global state: the observation. An episode that ends by itself in the step of its limit is terminated. What gymnax's ``step``
    carries across episodes, DeepSea's counts, is reset. An action outside the space acts as action 0.
    """

    member: ClassVar[str] = ""  # the name within the suite
    num_agents = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._wrapped  # raises what gymnax does not accept

    @property
    def _wrapped(self) -> "WrappedEnv":
        return wrapped_env(self.member, suite.given(self, Gymnax))

    @property
    def action_space(self) -> Discrete | Box:
        return self._wrapped.action_space

    @property
    def observation_space(self) -> Box:
        return Box((self._wrapped.obs_size,))

    @property
    def default_params(self) -> EnvParams:
        return self._wrapped.env_params

    def max_episode_steps(self, env_params: EnvParams) -> Any:
        return getattr(env_params, LIMIT, None)

    def check_params(self, env_params: EnvParams) -> None:
        super().check_params(env_params)
        if (limit := self.max_episode_steps(env_params)) is not None and limit < 1:
            raise UserError(f"{LIMIT}={limit} is out of range; it takes a number of at least 1")

    def initial(self, key: jax.Array, env_params: EnvParams) -> GymnaxState:
        obs, inner = self._wrapped.env.reset_env(key, env_params)
        return GymnaxState(suite.cast(inner, self._wrapped.state), self._wrapped.flatten(obs))

    def transition(
        self, key: jax.Array, state: GymnaxState, action: jax.Array, env_params: EnvParams
    ) -> tuple[GymnaxState, Outcome]:
        wrapped = self._wrapped
        space = wrapped.env.action_space(env_params)  # its bounds may depend on the params
        if isinstance(self.action_space, Discrete):
            inner_action = jnp.where(self.action_space.contains(action[0]), action[0], self.noop)
        else:
            inner_action = suite.rescale_action(action[0], space)
        obs, inner, reward, terminated, _ = wrapped.env.step_env(key, state.inner, inner_action.astype(space.dtype), env_params)
        inner = suite.cast(inner, wrapped.state)
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = jnp.asarray(wrapped.env.is_truncated(inner, env_params), bool).reshape(()) & ~terminated
        outcome = Outcome(jnp.asarray(reward, jnp.float32).reshape(1), terminated, truncated)
        return GymnaxState(inner, wrapped.flatten(obs)), outcome

    def observe(self, state: GymnaxState, env_params: EnvParams) -> View:
        del env_params
        action_mask = jnp.ones((1, num_actions(self.action_space)), bool)
        return View(state.obs[None], action_mask, jnp.ones(1, bool), {})

    def global_state(self, state: GymnaxState, env_params: EnvParams) -> jax.Array:
        del env_params
        return state.obs


@dataclasses.dataclass(frozen=True, eq=False)
class WrappedEnv:
    """One of gymnax's environments and the shapes of its arrays."""

    env: Any
    env_params: EnvParams  # the default ones
    action_space: Discrete | Box  # as marljax's
    categories: int | None  # n, if an observation is an integer below n
    obs_size: int  # flattened
    state: Any  # shapes and dtypes of its state

    def flatten(self, obs: Any) -> jax.Array:
        """[O] float32."""
        if self.categories is not None:
            return jax.nn.one_hot(obs, self.categories)
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(obs)])


@functools.cache
def wrapped_env(name: str, options: suite.Options) -> WrappedEnv:
    """The environment with these options; traces its reset and one step."""
    env = _make(name, options)
    try:
        with jax.ensure_compile_time_eval():  # gymnax creates arrays in every call; they stay concrete, whatever is being traced
            env_params = env.default_params
            obs_space, env_action_space = env.observation_space(env_params), env.action_space(env_params)
        action_space = _convert_action_space(name, env_action_space)
        obs, state = jax.eval_shape(env.reset_env, jax.random.key(0), env_params)
        action = jnp.zeros(env_action_space.shape, env_action_space.dtype)
        jax.eval_shape(env.step_env, jax.random.key(0), state, action, env_params)
    except UserError:
        raise
    except Exception as error:  # code may raise anything for options that its constructor accepted
        raise suite.construction_error("gymnax", name, options, error) from error
    categories = int(obs_space.n) if isinstance(obs_space, spaces.Discrete) else None
    size = categories or sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(obs))
    return WrappedEnv(env, env_params, action_space, categories, size, state)


def _make(name: str, options: suite.Options) -> Any:
    try:
        with jax.ensure_compile_time_eval():  # its tables stay concrete, whatever is being traced
            return gymnax.make(name, **dict(options))[0]
    except Exception as error:  # a constructor may raise anything
        raise suite.construction_error("gymnax", name, options, error) from error


def _convert_action_space(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(f"gymnax's {name}: its actions are {space}; only Discrete and a Box of real numbers are supported")
    bounds = np.abs(np.asarray([np.min(space.low), np.max(space.high)], np.float64))
    if not (bounds < np.finfo(np.float32).max).all():  # gymnax writes the largest number for no bound
        raise UserError(f"gymnax's {name}: its actions have no bounds, so [−1, 1] cannot be rescaled to them")
    return Box(tuple(space.shape), -1.0, 1.0)
