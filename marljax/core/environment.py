"""What an environment is: three pure functions over a state, and the record that a policy sees.

Axis letters: A agents, E environments, O observation, n actions.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from marljax.core import fields
from marljax.core.scene import Colour, Scene
from marljax.core.spaces import Box, Discrete, MultiDiscrete, Part, Space
from marljax.core.types import EnvParams, Outcome, State, TimeStep, View, timestep
from marljax.errors import UserError, unknown

# policy(key, state, timestep, carry) -> (action [A, …], carry) for one environment; learned policies ignore the state.
Policy = Callable[[jax.Array, Any, TimeStep, Any], tuple[jax.Array, Any]]
LIMITS = ("end", "truncate")  # what an option ``limit`` makes of a step limit: the task ends there, or is only cut off


@dataclasses.dataclass(frozen=True)
class Display:
    """How an environment is presented; nothing in it changes an episode."""

    metrics: tuple[str, ...] = ()  # metrics that tables show first, the most informative one before the others
    warnings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # metric → what it means where it is not 0
    units: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # of metrics, of a scene's "time" and "distance"; "%": a rate
    legend: tuple[tuple[str, Colour], ...] = ()  # (name, RGBA) of a scene's colours
    frames_per_second: float = 0.0  # of an animation in real time, where a scene's time is in seconds; 0: a frame per decision
    # a matplotlib figure of an episode, from its states [T + 1] on the host and env_params
    charts: Callable[[State, EnvParams], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Environment(abc.ABC):
    """Base of every environment: its fields are structure (shapes, options), its numbers are ``env_params``.

    A subclass is a frozen dataclass. Fields that only choose numbers (a preset) are declared with ``compare=False``, so that
    environments of equal structure are equal, hash alike and share one compiled program. It implements ``initial``,
    ``transition`` and ``observe``; ``reset`` and ``step`` follow from them. ``vectorize`` calls the three itself, so that the
    observation is computed once per step even where an episode restarts.
    """

    version: ClassVar[str] = "1"  # raised when the same actions no longer give the same episode; stands in checkpoints
    presets: ClassVar[tuple[str, ...]] = ()  # names that ``preset_params`` takes

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
        """The numbers of the preset that the environment was made with."""

    @abc.abstractmethod
    def initial(self, key: jax.Array, env_params: EnvParams) -> State:
        """The state in which an episode starts; consumes ``key``."""

    def restart(self, key: jax.Array, state: State, env_params: EnvParams) -> State:
        """The state in which the next episode starts, given the last one of the episode before; consumes ``key``.

        ``vectorize`` calls it for all instances once the episode of any has ended, and takes its result for those whose has; by
        default it is ``initial``. What has to outlive episodes is handed over here: a difficulty that follows from how the last
        ones went, states worth playing again (for big parts see ``PersistentState``).
        """
        del state
        return self.initial(key, env_params)

    def reset_episode_counters(self, state: State, env_params: EnvParams) -> State:
        """A state from the middle of an episode as the first of another, for wrappers that start episodes from earlier states.

        Whatever says how the episode has gone so far begins anew: tallies behind the metrics, above all of failures. What drives
        the episode stays: where things are and how they move, and a clock that a schedule or the time limit hangs on. By default
        the state as it is.
        """
        del env_params
        return state

    def max_episode_steps(self, env_params: EnvParams) -> Any:
        """Steps of the longest episode: ``env_params.duration``; None where there is no such number."""
        return getattr(env_params, "duration", None)

    @property
    def limit_ends(self) -> bool:
        """Whether an episode is over after its longest time because the task is that long, and not cut off there."""
        return False

    def anneal(self, env_params: EnvParams, progress: jax.Array) -> EnvParams:
        """The numbers to train with at ``progress``, the share of a run's updates that are done; the same by default.

        ``env_params`` are always the run's own, so nothing adds up over updates; tree, shapes and dtypes stay. Evaluation plays
        with the run's own numbers.
        """
        del progress
        return env_params

    @abc.abstractmethod
    def transition(self, key: jax.Array, state: State, action: jax.Array, env_params: EnvParams) -> tuple[State, Outcome]:
        """One decision: ``action`` is [A] (discrete) or [A, …] (continuous); consumes ``key``."""

    @abc.abstractmethod
    def observe(self, state: State, env_params: EnvParams) -> View:
        """Everything a policy may see in ``state``."""

    @abc.abstractmethod
    def global_state(self, state: State, env_params: EnvParams) -> jax.Array:
        """A vector of fixed size for centralised critics."""

    def scene(self, state: State, env_params: EnvParams) -> Scene:
        """The shapes that a renderer draws."""
        raise UserError(f"{type(self).__name__} has no scene to render; implement scene(state, env_params)")

    def scripted_policies(self, env_params: EnvParams) -> Mapping[str, Any]:
        """Scripted policies that a learned one is compared with in every final table, by name; none by default.

        Each is ``policy(key, state, timestep, carry) -> (action [A, …], carry)`` for one environment, which may read the whole
        state and begins with the carry ``()``; a ``jax.tree_util.Partial`` where it depends on numbers. One that remembers, or
        plays in another environment, is a ``ScriptedPolicy`` instead. Random actions are always compared with.
        """
        del env_params
        return {}

    @property
    def display(self) -> Display:
        """How tables, progress and pictures present this environment."""
        return Display()

    def preset_params(self, preset: str) -> EnvParams:
        """The numbers of another preset, for the same shapes."""
        if preset not in self.presets:
            raise unknown("preset", preset, self.presets)
        raise UserError(f"{type(self).__name__} lists presets but does not implement preset_params")

    def resolve_params(self, env_params: EnvParams | None) -> EnvParams:
        """``env_params``, or the default ones for None; raises ``UserError`` for another kind of record."""
        usual = self.default_params
        if env_params is not None and not isinstance(env_params, type(usual)):
            given, kind = type(env_params).__name__, type(usual).__name__
            raise UserError(f"env_params are {given}; give {kind}, such as env.default_params with changes")
        return usual if env_params is None else env_params

    def check_params(self, env_params: EnvParams) -> None:
        """Checks concrete ``env_params`` before a run starts; extend it where numbers depend on each other.

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
    def noop(self) -> int:
        """The action of an agent that has nothing to decide (discrete actions only)."""
        return 0

    @property
    def items(self) -> str | None:
        """What agents choose among, one item for one agent, where actions mean just that.

        The name of a part of ``obs.shared``, [M, F], beside which ``obs.shared.open`` [M] says which items there are and
        ``obs.own`` [A, O] what each agent is; actions 0 … M − 1 ask for an item, M is the noop, and an agent's mask is all open
        items or none. None: actions are otherwise.
        """
        return None

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        """Whose columns those of the flat observation [A, O] are, from the first to the last; () where nothing is known.

        The part ``own`` (count 1) is the agent itself. Any other holds ``count`` entities of one kind, those of the first entity
        first; a single thing, such as a map, is a kind of one. Parts of the same name and count are further columns of the same
        entities. An entity whose columns are all exactly 0 is absent. A structured observation is flat leaf by leaf, in the order
        of ``jax.tree.leaves``. Encoders that treat the entities of a kind alike go by it.
        """
        return ()

    def reset(self, key: jax.Array, env_params: EnvParams | None = None) -> tuple[State, TimeStep]:
        """The first state of an episode and what is seen in it; compiled once for environments of equal structure."""
        return self._reset(key, self.resolve_params(env_params))

    def step(
        self, key: jax.Array, state: State, action: jax.Array, env_params: EnvParams | None = None
    ) -> tuple[State, TimeStep]:
        """One decision of every agent, compiled like ``reset``. The episode is not restarted: see ``vectorize``.

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
    """A scripted policy and what it plays in: what a learned one is measured beside."""

    env: Environment
    env_params: EnvParams
    policy: Policy  # a ``jax.tree_util.Partial`` where it depends on numbers
    carry: Any = ()  # what it remembers at the start of a run


def checked_action(env: Environment, action: Any, *batch: int) -> jax.Array:
    """[*batch, A, …] actions as an array; raises ``UserError`` for another shape, which XLA might stretch or cut off, and for
    fractions where actions are discrete."""
    action, space = jnp.asarray(action), env.action_space
    wanted = (*batch, env.num_agents, *space.shape)
    if action.shape != wanted:
        given = f"actions of shape {list(action.shape)}"
        raise UserError(f"{type(env).__name__} got {given}; give {list(wanted)}, one for each agent")
    if not isinstance(space, Box) and not jnp.issubdtype(action.dtype, jnp.integer):
        raise UserError(f"{type(env).__name__} got actions of {action.dtype}; give integers, such as int32")
    return action


def without_padding(space: Box, mask: jax.Array, action: jax.Array) -> jax.Array:
    """Continuous actions […, *shape] with 0 for the numbers that ``mask`` […, d] leaves out; a mask […, 1] leaves out none."""
    if mask.shape[-1] != math.prod(space.shape):
        return action
    return jnp.where(mask.reshape(action.shape), action, 0.0)


def allowed_actions(env: Environment, view: View | TimeStep) -> jax.Array:
    """[A, n] bool: the action mask, of an agent that is not alive the noop only; of continuous actions as the view has it."""
    match env.action_space:
        case Box():
            return view.action_mask
        case Discrete(n=n):
            sizes: tuple[int, ...] = (n,)
        case MultiDiscrete(nvec=nvec):
            sizes = nvec
    noop = jnp.concatenate([jnp.arange(size) == env.noop for size in sizes])
    return jnp.where(view.alive[:, None], view.action_mask, noop)
