"""The environment interface: pure functions over a state, and what tables and renderers need to present it.

Axis letters: A agents, E environments, O observation, n actions.
"""

import abc
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from marljax.core import fields
from marljax.core.scene import Colour, Scene
from marljax.core.spaces import Box, MultiDiscrete, Part, Space
from marljax.core.types import EnvParams, Outcome, State, TimeStep, View, timestep
from marljax.errors import UserError, unknown

# policy(key, state, timestep, carry) -> (action [A, …], carry) for a single environment; learned policies ignore the state.
Policy = Callable[[jax.Array, Any, TimeStep, Any], tuple[jax.Array, Any]]
LIMITS = ("end", "truncate")  # of an option ``limit``: an episode at its step limit is terminated, or truncated


@dataclasses.dataclass(frozen=True)
class Display:
    """How tables, progress lines and renderers present an environment; it does not affect episodes."""

    metrics: tuple[str, ...] = ()  # metrics that tables show first, most informative first
    meanings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # metric → what it measures, in a line
    lowest: tuple[str, ...] = ()  # metrics of which less is better
    actions: tuple[str, ...] = ()  # names of discrete actions
    warnings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # metric → what it means if it is not 0
    # of metrics, and of a scene's "time" and "distance"; "%": a rate
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    legend: tuple[tuple[str, Colour], ...] = ()  # (name, RGBA) of a scene's colours
    frames_per_second: float = 0.0  # of a real-time animation, if a scene's time is in seconds; 0: one frame per decision
    decisions_per_second: float = 10.0  # of an animation that is not in real time
    # (state, next state, share of the way) → state that an animation draws between two decisions
    between: Callable[[State, State, Any], State] | None = None
    charts: Callable[[State, EnvParams], Any] | None = None  # (host states [T + 1], env_params) → matplotlib figure of an episode


@dataclasses.dataclass(frozen=True)
class Environment(abc.ABC):
    """Base of every environment: fields are options (they shape the program), numbers are ``env_params``.

    A subclass is a frozen dataclass with fields declared by ``marljax.core.fields.option``, and ``preset=True`` for those that
    only choose ``env_params``: environments of equal structure are equal, hash alike and share one compiled program. It
    implements ``initial``, ``transition`` and ``observe``, from which ``reset`` and ``step`` follow. ``vectorize`` calls these
    three directly, so that an observation is computed once per step even where an episode restarts.
    """

    version: ClassVar[str] = "1"  # increased when the same actions no longer give the same episode; kept in checkpoints
    presets: ClassVar[tuple[str, ...]] = ()  # names that ``preset_params`` takes
    instances_last: ClassVar[bool] = False  # computes under ``utils.batching.batch_last``: see ``VecEnv.carried``

    def __post_init__(self) -> None:
        fields.check_options(self)

    @property
    @abc.abstractmethod
    def num_agents(self) -> int:
        """A, the number of agent slots."""

    @property
    @abc.abstractmethod
    def action_space(self) -> Space:
        """Of one agent: ``Discrete``, or ``Box`` in [-1, 1]."""

    @property
    @abc.abstractmethod
    def observation_space(self) -> Any:
        """Of one agent: a ``Box``, or a pytree of them."""

    @property
    @abc.abstractmethod
    def default_params(self) -> EnvParams:
        """The params of the environment's own preset."""

    @abc.abstractmethod
    def initial(self, key: jax.Array, env_params: EnvParams) -> State:
        """The state in which an episode starts; consumes ``key``."""

    def restart(self, key: jax.Array, state: State, env_params: EnvParams) -> State:
        """The state in which the next episode starts, given the last state of the previous one; consumes ``key``.

        Defaults to ``initial``. ``vectorize`` calls it for all instances whenever an episode of any of them has ended, and uses
        the result for those. Override it to carry something across episodes, such as a curriculum or states to start from again;
        for large parts of a state see ``PersistentState``.
        """
        return self.initial(key, env_params)

    def reset_episode_counters(self, state: State, env_params: EnvParams) -> State:
        """Makes a state from the middle of an episode the first state of another, for wrappers such as ``FailureReplay``.

        Resets the tallies behind the metrics, failures above all, and keeps what drives the dynamics: positions, velocities, and
        a clock that a schedule or the time limit depends on. Returns the state unchanged by default.
        """
        return state

    def check_backend(self, backend: str) -> None:  # noqa: B027
        """Raises ``UserError`` where the environment does not run on ``"cpu"``, ``"gpu"`` or ``"tpu"``; a training asks first."""

    def max_episode_steps(self, env_params: EnvParams) -> Any:
        """Steps of the longest episode, ``env_params.duration`` by default; None if there is no such number."""
        return getattr(env_params, "duration", None)

    @property
    def limit_ends(self) -> bool:
        """Whether an episode at its step limit is terminated, because the task is that long, rather than truncated."""
        return False

    def anneal(self, env_params: EnvParams, progress: jax.Array) -> EnvParams:
        """The params to train with at ``progress``, the share of a run's updates that are done; unchanged by default.

        ``env_params`` are always those that the run started with, so changes do not accumulate; tree, shapes and dtypes must
        stay. Evaluation uses the run's own params.
        """
        return env_params

    @abc.abstractmethod
    def transition(self, key: jax.Array, state: State, action: jax.Array, env_params: EnvParams) -> tuple[State, Outcome]:
        """One decision: ``action`` is [A] (discrete) or [A, …] (continuous); consumes ``key``."""

    @abc.abstractmethod
    def observe(self, state: State, env_params: EnvParams) -> View:
        """Observations, masks and metrics of ``state``."""

    @abc.abstractmethod
    def global_state(self, state: State, env_params: EnvParams) -> jax.Array:
        """[G], the input of a centralised critic."""

    def scene(self, state: State, env_params: EnvParams) -> Scene:
        """The shapes that a renderer draws."""
        raise UserError(f"{type(self).__name__} has no scene to render; implement scene(state, env_params)")

    def render(self, state: State, env_params: EnvParams | None = None) -> Any:
        """A picture of ``state``, a ``PIL.Image`` that a notebook shows; see ``marljax.render``."""
        # The renderer stands above the environments, which do not import it: this is the call of ``marljax.render``, no more.
        return importlib.import_module("marljax").render(self, state, env_params)

    def scripted_policies(self, env_params: EnvParams) -> Mapping[str, Any]:
        """Scripted policies by name, which every final table compares a learned one with; none by default.

        Each is ``policy(key, state, timestep, carry) -> (action [A, …], carry)`` for a single environment; it may read the whole
        state and starts with the carry ``()``. Use a ``jax.tree_util.Partial`` if it depends on numbers, and a
        ``ScriptedPolicy`` if it has another carry or plays in another environment. Random actions are always compared with.
        """
        return {}

    @property
    def display(self) -> Display:
        """How tables, progress lines and renderers present this environment."""
        return Display()

    def preset_params(self, preset: str) -> EnvParams:
        """The params of another preset, of the same shapes."""
        if preset not in self.presets:
            raise unknown("preset", preset, self.presets)
        raise UserError(f"{type(self).__name__} lists presets but does not implement preset_params")

    def resolve_params(self, env_params: EnvParams | None) -> EnvParams:
        """``env_params``, or the default ones for None; raises ``UserError`` for another kind of record."""
        default = self.default_params
        if env_params is not None and not isinstance(env_params, type(default)):
            given, expected = type(env_params).__name__, type(default).__name__
            raise UserError(f"env_params are {given}; give {expected}, such as env.default_params with changes")
        return default if env_params is None else env_params

    def check_params(self, env_params: EnvParams) -> None:
        """Checks concrete ``env_params`` before a run starts; extend it for conditions between several params.

        Raises:
            UserError: for a number of another shape or type than in ``default_params``, not finite, or out of the range that
                ``param`` declares.
        """
        fields.check_params(env_params, self.default_params)

    @property
    def teams(self) -> tuple[int, ...]:
        """Team of each agent; all 0 unless agents compete."""
        return (0,) * self.num_agents

    @property
    def competitive(self) -> bool:
        """Whether there are several teams."""
        return len(set(self.teams)) > 1

    @property
    def one_team(self) -> "Environment":
        """The environment in which a policy acts when it controls one of two teams and not both; this one by default."""
        return self

    @property
    def policy_options(self) -> tuple[str, ...]:
        """Options that change what a policy observes or how it acts, and not the game: policies that differ in them can meet in
        the environment's ``against``."""
        return ()

    def against(self, opponent: Any) -> "Environment | None":
        """This game for the first team alone, the other controlled by an ``Opponent``, whose weights are ``env_params.opponent``;
        None where the wrapper ``Against`` does it."""
        del opponent
        return None

    @property
    def noop(self) -> int:
        """The action of agents that have no choice (discrete actions only)."""
        return 0

    @property
    def items(self) -> str | None:
        """Where every action assigns one item to one agent: the name of the items' part of the observation.

        ``obs.shared`` then holds that part, [M, F], and ``open`` [M], the items that can be assigned; ``obs.own`` [A, O]
        describes the agents. Actions 0 … M − 1 request an item, M is the noop, and an agent's mask is either all open items or
        none; that of an agent that is not alive is none, so that nothing is kept for it. None where actions mean something else.
        """
        return None

    @property
    def afterstates(self) -> bool:
        """Whether agents observe their afterstates (Sutton & Barto 2018, section 6.8), which an algorithm can value.

        The observation is then ``{"reward", "decisions", "features"}``: by action [A, n] what the agent earns by it and how many
        decisions it still has afterwards, and [A, n, F] its state then, before time moves. The reward of the step is the observed
        one, unless another agent gets the item. Each of the actions 0 … n − 2 takes
        an item, which serves one agent only; n − 1 is the noop, to wait. False where observations are anything else.
        """
        return False

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        """The parts of the flat observation [A, O] in the order of its columns, for encoders that attend to entities; () if none.

        ``own`` (count 1) is the agent itself. Any other part holds ``count`` entities of one kind, one after the other; parts of
        the same name and count are further columns of the same entities. An entity whose columns are all exactly 0 is absent. A
        structured observation is flattened leaf by leaf, in the order of ``jax.tree.leaves``.
        """
        return ()

    def reset(self, key: jax.Array, env_params: EnvParams | None = None) -> tuple[State, TimeStep]:
        """The first state and timestep of an episode; compiled once for all environments of equal structure."""
        return self._reset(key, self.resolve_params(env_params))

    def step(
        self, key: jax.Array, state: State, action: jax.Array, env_params: EnvParams | None = None
    ) -> tuple[State, TimeStep]:
        """One decision of every agent, compiled like ``reset``; does not restart the episode, unlike ``vectorize``.

        Raises:
            UserError: for actions that are not [A] integers (discrete) or [A, …] numbers (continuous).
        """
        return self._step(key, state, checked_action(self, action), self.resolve_params(env_params))

    @functools.partial(jax.jit, static_argnums=0)
    def _reset(self, key: jax.Array, env_params: EnvParams) -> tuple[State, TimeStep]:
        state = self.initial(key, env_params)
        outcome = Outcome(jnp.zeros(self.num_agents), jnp.array(False), jnp.array(False))
        return state, timestep(self.observe(state, env_params), outcome, first=jnp.array(True))

    @functools.partial(jax.jit, static_argnums=0)
    def _step(self, key: jax.Array, state: State, action: jax.Array, env_params: EnvParams) -> tuple[State, TimeStep]:
        state, outcome = self.transition(key, state, action, env_params)
        return state, timestep(self.observe(state, env_params), outcome, first=jnp.array(False))


class ScriptedPolicy(NamedTuple):
    """A scripted policy and the environment that it plays in."""

    env: Environment
    env_params: EnvParams
    policy: Policy  # a ``jax.tree_util.Partial`` if it depends on numbers
    carry: Any = ()  # its memory at the start of an episode


def checked_action(env: Environment, action: Any, *batch: int) -> jax.Array:
    """[*batch, A, …] actions as an array; raises ``UserError`` for a mismatched shape, which XLA might silently broadcast or
    clip, and for fractions where actions are discrete."""
    action, space = jnp.asarray(action), env.action_space
    expected = (*batch, env.num_agents, *space.shape)
    if action.shape != expected:
        given = f"actions of shape {list(action.shape)}"
        raise UserError(f"{type(env).__name__} got {given}; give {list(expected)}, one for each agent")
    if not isinstance(space, Box) and not jnp.issubdtype(action.dtype, jnp.integer):
        raise UserError(f"{type(env).__name__} got actions of {action.dtype}; give integers, such as int32")
    return action


def without_padding(space: Box, mask: jax.Array, action: jax.Array) -> jax.Array:
    """Continuous actions […, *shape] with 0 in the padding that ``mask`` […, d] excludes; a mask […, 1] excludes nothing."""
    if mask.shape[-1] != math.prod(space.shape):
        return action
    return jnp.where(mask.reshape(action.shape), action, 0.0)


def allowed_actions(env: Environment, view: View | TimeStep) -> jax.Array:
    """[A, n] bool: the action mask, only the noop for agents that are not alive; the view's own mask for continuous actions."""
    space = env.action_space
    if isinstance(space, Box):
        return view.action_mask
    sizes = space.nvec if isinstance(space, MultiDiscrete) else (space.n,)
    noop = jnp.concatenate([jnp.arange(size) == env.noop for size in sizes])
    return jnp.where(view.alive[:, None], view.action_mask, noop)
