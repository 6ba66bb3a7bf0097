"""gymnax's environments as ours: ``marljax.make("gymnax/CartPole-v1")``, ``env=gymnax env.name=CartPole-v1``.

Each has one agent. Observations of any shape are flat, but a whole number below n (FrozenLake's place) is one-hot over n.
Continuous actions in [−1, 1] are stretched to the environment's bounds. The numbers, ``env_params``, are gymnax's own record.
Only ``step_env`` and ``is_truncated`` are called, never the ``step`` that restarts an episode by itself.

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
from marljax.core.spaces import Box, Discrete, available
from marljax.core.types import EnvParams, Outcome, View
from marljax.errors import UserError, unknown
from marljax.utils.validation import check_numbers, check_ranges
from marljax.wrappers import suite

LIMIT = "max_steps_in_episode"  # the number of gymnax's that says how long an episode may last


def names() -> list[str]:
    """What ``make("gymnax/<name>")`` takes, environments given to ``gymnax.register`` included; MNISTBandit downloads MNIST."""
    return sorted(gymnax.registered_envs)


@functools.cache
def environment_class(name: str) -> type["Gymnax"]:
    """The class of one of gymnax's environments, whose fields are the plain options of its constructor."""
    if name not in names():
        raise unknown("environment of gymnax", name, names())
    return suite.member_class(Gymnax, "gymnax", name, options_of(name))


def options_of(name: str) -> dict[str, tuple[Any, Any]]:
    """Option → (type, default), read off the constructor's signature; lists of plain values are tuples here."""
    made = type(_made(name, ()))
    try:
        parameters = inspect.signature(made, eval_str=True).parameters
    except NameError:  # annotated with names that exist for type checkers only
        parameters = inspect.signature(made).parameters
    found = {key: (_hint(option), option.default) for key, option in parameters.items() if not hasattr(Gymnax, key)}
    return {
        key: (hint, tuple(default) if isinstance(default, list) else default)
        for key, (hint, default) in found.items()
        if hint is not None and default is not inspect.Parameter.empty
    }


def _hint(option: inspect.Parameter) -> Any:
    """The type that an option has here; None for what cannot be written on a command line, such as an array."""
    stated = option.annotation
    if stated is inspect.Parameter.empty or isinstance(stated, str):
        stated = type(option.default)
    union = typing.get_origin(stated) in (typing.Union, types.UnionType)
    kinds = [_plain(kind) for kind in (typing.get_args(stated) if union else (stated,))]
    return None if None in kinds else typing.Union[tuple(kinds)]  # noqa: UP007


def _plain(kind: Any) -> Any:
    """A plain type as it is, a sequence of one as a tuple, None for others."""
    if kind in suite.PLAIN:
        return kind
    entry = (*typing.get_args(kind), None)[0]
    sequence = typing.get_origin(kind) in (list, tuple, collections.abc.Sequence) and entry in suite.PLAIN
    return types.GenericAlias(tuple, (entry, ...)) if sequence else None


class GymnaxState(struct.PyTreeNode):
    """gymnax's state and what its last step showed."""

    inner: Any  # gymnax's own
    obs: jax.Array  # [O]


@dataclasses.dataclass(frozen=True)
class Gymnax(Environment):
    """One of gymnax's environments, with one agent; ``environment_class`` derives a class with its options from it.

    Global state: the observation. An episode that ends by itself in the step of its limit is terminated. What gymnax's own
    ``step`` keeps from one episode to the next, DeepSea's counts, begins anew. An action outside of the space acts as action 0.
    """

    member: ClassVar[str] = ""  # the name within the suite

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            entries = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(entry, suite.PLAIN) for entry in entries):
                raise UserError(
                    f"{field.name}={value} of {self.member} is not a number, a name, true or false, or a tuple of them"
                )
        theirs(self.member, suite.given(self, Gymnax))  # refuses what gymnax does

    @property
    def _theirs(self) -> "Theirs":
        return theirs(self.member, suite.given(self, Gymnax))

    @property
    def num_agents(self) -> int:
        return 1

    @property
    def action_space(self) -> Discrete | Box:
        return self._theirs.action_space

    @property
    def observation_space(self) -> Box:
        return Box((self._theirs.obs_size,))

    @property
    def default_params(self) -> EnvParams:
        return self._theirs.env_params

    def max_episode_steps(self, env_params: EnvParams) -> Any:
        return getattr(env_params, LIMIT, None)

    def check_params(self, env_params: EnvParams) -> None:
        check_numbers(env_params, self.default_params, self.member)
        if hasattr(env_params, LIMIT):
            check_ranges(env_params, {LIMIT: (1.0, math.inf)}, self.member)

    def initial(self, key: jax.Array, env_params: EnvParams) -> GymnaxState:
        obs, inner = self._theirs.env.reset_env(key, env_params)
        return GymnaxState(suite.cast(inner, self._theirs.state), self._theirs.flat(obs))

    def transition(
        self, key: jax.Array, state: GymnaxState, action: jax.Array, env_params: EnvParams
    ) -> tuple[GymnaxState, Outcome]:
        own = self._theirs
        theirs_action = self._their_action(action[0], env_params)
        obs, inner, reward, terminated, _ = own.env.step_env(key, state.inner, theirs_action, env_params)
        inner = suite.cast(inner, own.state)
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = jnp.asarray(own.env.is_truncated(inner, env_params), bool).reshape(()) & ~terminated
        outcome = Outcome(jnp.asarray(reward, jnp.float32).reshape(1), terminated, truncated)
        return GymnaxState(inner, own.flat(obs)), outcome

    def observe(self, state: GymnaxState, env_params: EnvParams) -> View:
        del env_params
        return View(state.obs[None], self._mask, jnp.ones(1, bool), {})

    def global_state(self, state: GymnaxState, env_params: EnvParams) -> jax.Array:
        del env_params
        return state.obs

    @property
    def _mask(self) -> jax.Array:
        """[1, n] all true."""
        space = self.action_space
        return jnp.ones((1, space.n if isinstance(space, Discrete) else 1), bool)

    def _their_action(self, action: jax.Array, env_params: EnvParams) -> jax.Array:
        """An action of ours in the space that gymnax has with these numbers; its bounds may be among them."""
        space = self._theirs.env.action_space(env_params)
        if isinstance(self.action_space, Discrete):
            return jnp.where(available(self._mask[0], action), action, self.noop).astype(space.dtype)
        return suite.stretched(action, space).astype(space.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Theirs:
    """One of gymnax's environments, and the shapes that its arrays have here."""

    env: Any
    env_params: EnvParams  # the default ones
    action_space: Discrete | Box  # ours
    categories: int | None  # n, where an observation is a whole number below n
    obs_size: int  # flat
    state: Any  # shapes and dtypes of its state

    def flat(self, obs: Any) -> jax.Array:
        """[O] float32."""
        if self.categories is not None:
            return jax.nn.one_hot(obs, self.categories)
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(obs)])


@functools.cache
def theirs(name: str, options: suite.Options) -> Theirs:
    """The environment with these options, one for equal options; traces its reset and one step."""
    env = _made(name, options)
    try:
        with jax.ensure_compile_time_eval():  # gymnax makes new arrays at each call; they stay arrays, whatever is being traced
            env_params = env.default_params
            obs_space, their_space = env.observation_space(env_params), env.action_space(env_params)
        action_space = _action_space(name, their_space)
        obs, state = jax.eval_shape(env.reset_env, jax.random.key(0), env_params)
        action = jnp.zeros(their_space.shape, their_space.dtype)
        jax.eval_shape(env.step_env, jax.random.key(0), state, action, env_params)
    except UserError:
        raise
    except Exception as error:  # whatever code raises for options that its constructor let pass
        raise suite.refusal("gymnax", name, options, error) from error
    categories = int(obs_space.n) if isinstance(obs_space, spaces.Discrete) else None
    size = categories or sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(obs))
    return Theirs(env, env_params, action_space, categories, size, state)


def _made(name: str, options: suite.Options) -> Any:
    try:
        with jax.ensure_compile_time_eval():  # its tables stay arrays, whatever is being traced
            return gymnax.make(name, **dict(options))[0]
    except Exception as error:  # whatever a constructor raises for what it does not take
        raise suite.refusal("gymnax", name, options, error) from error


def _action_space(name: str, space: Any) -> Discrete | Box:
    """Our space for one of gymnax's."""
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(f"gymnax's {name}: its actions are {space}; here they have to be Discrete, or a Box of real numbers")
    bounds = np.abs(np.asarray([np.min(space.low), np.max(space.high)], np.float64))
    if not (bounds < np.finfo(np.float32).max).all():  # gymnax writes the largest number for no bound
        raise UserError(f"gymnax's {name}: its actions have no bounds, so [−1, 1] cannot be stretched to them")
    return Box(tuple(space.shape), -1.0, 1.0)
