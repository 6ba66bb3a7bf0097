"""JaxMARL's environments as ours: ``marljax.make("jaxmarl/MPE_simple_spread_v3")``, ``env=jaxmarl env.name=overcooked``.

Their dictionaries become arrays with a leading [A], in the order of their ``agents``. Where agents' spaces differ, observations
are padded with zeros and actions with ones that are never available, and a one-hot agent id is appended to the observation.
Images are flattened. Continuous actions in [−1, 1] are stretched to the agent's own bounds. Only ``step_env`` is called, never
the ``step`` that restarts an episode by itself.

Axis letters: A agents, O observation, n actions.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import inspect
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.environment import Environment, Outcome, View
from marljax.errors import UserError, unknown
from marljax.spaces import Box, Discrete, Space
from marljax.trees import strong

PLAIN = (bool, int, float, str, type(None))  # options of these types can be given; arrays and records cannot
NOT_PLAIN = ("agents", "landmarks", "action_spaces", "observation_spaces", "color_map", "num_moves", "initial_state_buffer")
RIVALS = ("adversary", "leadadversary", "eve", "enemy")  # how agents of the other team are called, where there is one


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallows what JaxMARL prints and warns of when it is imported, and when an environment is made or traced.

    Its import points ``sys.stdout`` and ``sys.stderr`` to the process's own streams, whatever they were before; here it finds
    a sink in their place, and they are put back.
    """
    streams = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # type: ignore[misc]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = streams  # type: ignore[misc]


class Family(NamedTuple):
    """What JaxMARL's API does not say of an environment."""

    limit: str | None = None  # attribute of the environment with the step limit; None: episodes have none
    counter: str = "step"  # path to the count of steps in its state
    limit_first: bool = False  # the limit is tested before the step is counted: an episode lasts one step longer
    over: Callable[[Any, jax.Array], jax.Array] | None = None  # (state, reward [A]) → an end at the limit is not for the limit
    noop: Callable[[Any], int] = lambda env: 0  # the action that does the least
    dead_stay: bool = False  # an agent that is done before the episode stays in it, and shares rewards
    inherits: tuple[str, ...] = ()  # options passed on to the class named by ``base``
    base: str = ""
    fixed: bool = False  # its constructor takes no options
    named: Mapping[str, str] = {}  # option → default, of options given as a name here and as an object to JaxMARL
    metrics: Callable[[Any], dict[str, jax.Array]] = lambda state: {}


def _battle(state: Any) -> Any:
    return getattr(state, "state", state)  # under a scripted enemy, the battle is a part of the state


def _sides_alive(state: Any) -> tuple[jax.Array, jax.Array]:
    battle = _battle(state)
    team = battle.unit_teams == 0
    return jnp.any(battle.unit_alive & team), jnp.any(battle.unit_alive & ~team)


def _team_dead(state: Any, reward: jax.Array) -> jax.Array:
    del reward
    ally, enemy = _sides_alive(state)
    return ~(ally & enemy)


def _battle_metrics(state: Any) -> dict[str, jax.Array]:
    ally, enemy = _sides_alive(state)
    return {"won": (ally & ~enemy).astype(jnp.float32), "lost": (enemy & ~ally).astype(jnp.float32)}


_MPE = Family(limit="max_steps", limit_first=True, base="SimpleMPE", inherits=("max_steps", "dt"))
_SMAX = Family(
    limit="max_steps",
    limit_first=True,
    over=_team_dead,
    noop=lambda env: env.num_movement_actions - 1,
    dead_stay=True,
    named={"scenario": ""},
    metrics=_battle_metrics,
)
# By the beginning of a name; the longest that fits counts. Other environments keep to ``max_steps``, if they have it.
FAMILIES: dict[str, Family] = {
    "": Family(limit="max_steps"),
    "MPE_": _MPE,
    **{f"MPE_simple_facmac_{size}a_v1": _MPE._replace(fixed=True) for size in (3, 6, 9)},
    "SMAX": _SMAX,
    "HeuristicEnemySMAX": _SMAX._replace(
        counter="state.step",
        base="SMAX",
        inherits=("scenario", "max_steps", "observation_type", "action_type", "see_enemy_actions", "won_battle_bonus",
                  "walls_cause_death", "num_allies", "num_enemies", "smacv2_position_generation",
                  "smacv2_unit_type_generation", "world_steps_per_env_step", "time_per_step"),
    ),
    "switch_riddle": Family(limit="max_steps", over=lambda state, reward: jnp.any(reward != 0)),
    "overcooked": Family(limit="max_steps", noop=lambda env: 4, named={"layout": "cramped_room"}),
    "overcooked_v2": Family(limit="max_steps", noop=lambda env: 4),
    "coin_game": Family(limit="num_outer_steps", counter="outer_t", noop=lambda env: 4),
    "hanabi": Family(noop=lambda env: int(env.num_moves) - 1),
}  # fmt: skip


def family(name: str) -> Family:
    """The entry of ``FAMILIES`` for an environment."""
    return FAMILIES[max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len)]


def names() -> list[str]:
    """What ``make("jaxmarl/<name>")`` takes; some need further packages of JaxMARL's."""
    with quiet():
        from jaxmarl.registration import registered_envs
    return sorted(registered_envs)


@functools.cache
def environment_class(name: str) -> type["JaxMARL"]:
    """The class of one of JaxMARL's environments, whose fields are the plain options of its constructor."""
    if name not in names():
        raise unknown("environment of jaxmarl", name, names())
    options = _options(name)
    fields = [(key, _hint(default), dataclasses.field(default=default)) for key, default in options.items()]
    version = f"{JaxMARL.version} of jaxmarl {importlib.metadata.version('jaxmarl')}"
    namespace = {"member": name, "version": version, "__doc__": f"JaxMARL's {name}.", "__module__": __name__}
    return dataclasses.make_dataclass(_identifier(name), fields, bases=(JaxMARL,), frozen=True, namespace=namespace)


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _hint(default: Any) -> Any:
    return Any if default is None else type(default)


def _options(name: str) -> dict[str, Any]:
    """Option → default, read off the constructor's signature."""
    import jaxmarl.environments

    kind = family(name)
    made = _make(name, ())
    if kind.fixed:
        return {}
    own = inspect.signature(type(made)).parameters
    found = {key: parameter.default for key, parameter in own.items()}
    if kind.inherits:
        passed = inspect.signature(getattr(jaxmarl.environments, kind.base)).parameters
        found = {key: passed[key].default for key in kind.inherits if key in passed} | found
    found |= {key: default or None for key, default in kind.named.items()}
    return {key: value for key, value in found.items() if isinstance(value, PLAIN) and key not in NOT_PLAIN}


@functools.cache
def _make(name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """JaxMARL's own object, one for equal options: its methods are compiled for each object anew."""
    with quiet():
        import jaxmarl

        given = {key: _named(name, key, value) for key, value in options}
        try:
            return jaxmarl.make(name, **given)
        except Exception as error:  # whatever a constructor raises for what it does not take
            reason = " ".join(str(error).split()) or type(error).__name__
            asked = ", ".join(f"{key}={value}" for key, value in options)
            what = f"{asked} does not suit jaxmarl's {name}" if asked else f"jaxmarl's {name} cannot be made"
            raise UserError(f"{what}: {reason}") from error


def _named(name: str, option: str, value: Any) -> Any:
    """The object that JaxMARL takes where users give a name."""
    if option not in family(name).named or value is None:
        return value
    if option == "layout":
        from flax.core import FrozenDict
        from jaxmarl.environments import overcooked_layouts

        if value not in overcooked_layouts:
            raise unknown(f"{option} of {name}", str(value), overcooked_layouts)
        return FrozenDict(overcooked_layouts[value])
    from jaxmarl.environments.smax import map_name_to_scenario

    try:
        return map_name_to_scenario(value)
    except KeyError as error:
        raise UserError(f"{option}={value} of {name} is not known; give one of SMAX's, such as 3m or 2s3z") from error


@dataclasses.dataclass(frozen=True, eq=False)
class Theirs:
    """One of JaxMARL's environments, and the shapes that its arrays have here."""

    env: Any
    family: Family
    agents: tuple[str, ...]
    obs_sizes: tuple[int, ...]  # of each agent, flat
    spaces: tuple[Any, ...]  # the agents' own action spaces
    state: Any  # shapes and dtypes of its state
    shaped: bool  # its info holds a shaped reward

    @property
    def differ(self) -> bool:
        """Whether agents have observations or actions of different sizes."""
        return len(set(self.obs_sizes)) > 1 or len({_width(space) for space in self.spaces}) > 1

    @property
    def discrete(self) -> bool:
        return hasattr(self.spaces[0], "n")


def _width(space: Any) -> int:
    """n of a discrete space, the number of entries of a continuous one."""
    return int(space.n) if hasattr(space, "n") else math.prod(space.shape)


@functools.cache
def theirs(name: str, options: tuple[tuple[str, Any], ...]) -> Theirs:
    """The environment with these options; traces its reset and one step."""
    env = _make(name, options)
    agents = tuple(env.agents)
    refusal = f"jaxmarl's {name} does not keep JaxMARL's own API"
    try:
        with quiet():
            spaces = tuple(env.action_space(agent) for agent in agents)
            obs, state = jax.eval_shape(env.reset, jax.random.key(0))
            sizes = tuple(math.prod(obs[agent].shape) for agent in agents)
            actions = {agent: jnp.zeros(space.shape, int) for agent, space in zip(agents, spaces, strict=True)}
            _, _, reward, done, info = jax.eval_shape(env.step_env, jax.random.key(0), state, actions)
        missing = [agent for agent in agents if agent not in reward]
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise UserError(f"{refusal} (dictionaries by agent), so it cannot be used here") from error
    if missing or "__all__" not in done:
        raise UserError(f"{refusal} (dictionaries by agent), so it cannot be used here")
    kinds = {"discrete" if hasattr(space, "n") else "box" if hasattr(space, "low") else "other" for space in spaces}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(f"jaxmarl's {name}: its agents' actions have to be all discrete or all continuous")
    return Theirs(env, family(name), agents, sizes, spaces, state, "shaped_reward" in info)


class JaxMARLState(struct.PyTreeNode):
    """JaxMARL's state and what its last step showed."""

    inner: Any  # JaxMARL's own
    obs: jax.Array  # [A, O] padded, without ids
    alive: jax.Array  # [A] bool


@struct.dataclass
class ShapedParams:
    """Numbers of environments that report a shaped reward."""

    shaped_reward: Any = 0.0  # how much of the shaped reward is added to the reward


@dataclasses.dataclass(frozen=True)
class JaxMARL(Environment):
    """One of JaxMARL's environments; ``environment_class`` derives a class with its options from it.

    - ``agent_id``: append a one-hot agent id to the observation; null: where agents' spaces differ.

    Global state: JaxMARL's ``get_world_state`` where there is one, flattened, else all agents' observations. An episode that
    ends at the step limit is truncated, any other terminated (``FAMILIES`` says where the limit is). An agent that is done
    before its episode is no longer alive, but in SMAX, where the dead stay and share rewards. An unavailable action acts as the
    noop, or as the first available action where the noop itself is not. Metrics: ``won`` and ``lost`` in SMAX.
    """

    member: ClassVar[str] = ""  # the name within the suite
    agent_id: bool | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, PLAIN):
                raise UserError(f"{field.name}={value} of {self.member} is not a number, a name, true or false")
        theirs(self.member, self._given)  # refuses what JaxMARL does

    @property
    def _given(self) -> tuple[tuple[str, Any], ...]:
        """The options of JaxMARL's constructor that are not at their default."""
        own = {field.name for field in dataclasses.fields(JaxMARL)}
        fields = [field for field in dataclasses.fields(self) if field.name not in own]
        pairs = [(field, getattr(self, field.name)) for field in fields]
        return tuple((field.name, value) for field, value in pairs if value != field.default)

    @property
    def _theirs(self) -> Theirs:
        return theirs(self.member, self._given)

    @property
    def num_agents(self) -> int:
        return len(self._theirs.agents)

    @property
    def action_space(self) -> Space:
        width = max(_width(space) for space in self._theirs.spaces)
        return Discrete(width) if self._theirs.discrete else Box((width,), -1.0, 1.0)

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
        return JaxMARLState(self._cast(inner), self._padded(obs), jnp.ones(self.num_agents, bool))

    def transition(self, key: jax.Array, state: JaxMARLState, action: jax.Array, env_params: Any) -> tuple[JaxMARLState, Outcome]:
        own, kind = self._theirs, self._theirs.family
        with quiet():
            obs, inner, rewards, dones, info = own.env.step_env(key, state.inner, self._their_actions(state, action))
        inner = self._cast(inner)
        reward = self._by_agent(rewards)
        ended = jnp.asarray(dones["__all__"], bool)
        at_limit = self._at_limit(state.inner, inner)
        if kind.over is not None:
            at_limit &= ~kind.over(inner, reward)
        if own.shaped:
            reward += env_params.shaped_reward * self._by_agent(info["shaped_reward"])
        alive = state.alive
        if not kind.dead_stay:
            done = jnp.stack([jnp.asarray(dones.get(agent, False), bool) for agent in own.agents])
            # Where an episode ends, every agent is done, whether or not it had died.
            alive = jnp.where(ended, alive, alive & ~done)
        outcome = Outcome(jnp.where(state.alive, reward, 0.0), ended & ~at_limit, ended & at_limit)
        return JaxMARLState(inner, self._padded(obs), alive), outcome

    def observe(self, state: JaxMARLState, env_params: Any) -> View:
        del env_params
        obs = state.obs
        if self._with_id:
            obs = jnp.concatenate([obs, jnp.eye(self.num_agents)], axis=-1)
        return View(obs, self._mask(state), state.alive, self._theirs.family.metrics(state.inner))

    def global_state(self, state: JaxMARLState, env_params: Any) -> jax.Array:
        del env_params
        world = getattr(self._theirs.env, "get_world_state", None)
        if world is None:
            return state.obs.reshape(-1)
        with quiet():
            leaves = jax.tree.leaves(world(state.inner))
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])

    def _cast(self, inner: Any) -> Any:
        """JaxMARL's state in the dtypes of its reset; Python numbers as arrays."""
        return strong(jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), inner, self._theirs.state))

    def _by_agent(self, values: Mapping[str, Any]) -> jax.Array:
        """[A] float32."""
        return jnp.stack([jnp.asarray(values[agent], jnp.float32).reshape(()) for agent in self._theirs.agents])

    def _padded(self, obs: Mapping[str, jax.Array]) -> jax.Array:
        """[A, O] float32: flat, zeros behind."""
        return _rows([obs[agent].astype(jnp.float32) for agent in self._theirs.agents], max(self._theirs.obs_sizes))

    def _mask(self, state: JaxMARLState) -> jax.Array:
        """[A, n] bool; all of an agent's own actions where JaxMARL says nothing."""
        own = self._theirs
        if not own.discrete:
            return jnp.ones((self.num_agents, 1), bool)
        masks = _available(own.env, state.inner) or {}
        rows = [masks.get(agent, jnp.ones(_width(space))) for agent, space in zip(own.agents, own.spaces, strict=True)]
        return _rows([jnp.asarray(row) != 0 for row in rows], self.action_space.n)  # type: ignore[union-attr]

    def _their_actions(self, state: JaxMARLState, action: jax.Array) -> dict[str, jax.Array]:
        own = self._theirs
        if own.discrete:
            allowed = self._mask(state)
            instead = jnp.where(allowed[:, self.noop], self.noop, jnp.argmax(allowed, axis=-1))
            free = jnp.take_along_axis(allowed, action[:, None], axis=-1)[:, 0] & state.alive
            action = jnp.where(free, action, instead)
            return {agent: action[index] for index, agent in enumerate(own.agents)}
        action = jnp.where(state.alive[:, None], action, 0.0)
        return {
            agent: _stretched(action[index, : _width(space)], space)
            for index, (agent, space) in enumerate(zip(own.agents, own.spaces, strict=True))
        }

    def _at_limit(self, before: Any, after: Any) -> jax.Array:
        kind, env = self._theirs.family, self._theirs.env
        limit = None if kind.limit is None else getattr(env, kind.limit, None)
        if limit is None:
            return jnp.array(False)
        count = functools.reduce(getattr, kind.counter.split("."), before if kind.limit_first else after)
        return count >= limit


def _rows(rows: Sequence[jax.Array], width: int) -> jax.Array:
    """Arrays of any shape, flat and padded with zeros, as [A, width]."""
    flat = [jnp.ravel(row) for row in rows]
    return jnp.stack([jnp.pad(row, (0, width - row.size)) for row in flat])


def _stretched(action: jax.Array, space: Any) -> jax.Array:
    """[−1, 1] → the space's own bounds and shape."""
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return low + (high - low) * (jnp.clip(action.reshape(space.shape), -1.0, 1.0) + 1.0) / 2.0


def _available(env: Any, inner: Any) -> Any:
    """JaxMARL's masks by agent, or None where the environment has none."""
    from jaxmarl.environments import MultiAgentEnv

    if hasattr(env, "get_legal_moves"):  # Hanabi
        return env.get_legal_moves(inner)
    if type(env).get_avail_actions is MultiAgentEnv.get_avail_actions:
        return None
    return env.get_avail_actions(inner)
