"""JaxMARL's environments: how to construct them, and properties that its API does not expose."""

import contextlib
import dataclasses
import enum
import functools
import inspect
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marljax.errors import UserError, unknown
from marljax.wrappers.suite import PLAIN, Options, construction_error

NOT_PLAIN = ("agents", "landmarks", "action_spaces", "observation_spaces", "color_map", "num_moves", "initial_state_buffer")
OPPONENTS = ("adversary", "leadadversary", "eve", "enemy")  # prefixes of the names of agents in the other team


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences what JaxMARL prints and warns when it is imported, and when an environment is constructed or traced.

    Its import also resets ``sys.stdout`` and ``sys.stderr`` to the process's own streams; they are restored.
    """
    streams = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # type: ignore[assignment,misc]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = streams  # type: ignore[misc]


class Family(NamedTuple):
    """Properties that JaxMARL's API does not expose, of environments whose names start alike."""

    limit: str | None = None  # attribute of the environment with the step limit; None: no limit
    counter: str = "step"  # path to the step counter in its state
    unit: str = ""  # attribute with the number of steps that the counter counts as one, if any
    limit_first: bool = False  # the limit is tested before the step is counted: an episode lasts one step longer
    over: Callable[[Any, jax.Array], jax.Array] | None = None  # (state, reward [A]) → an end at the limit has another reason
    noop: Callable[[Any], int] = lambda env: 0  # the action that does the least
    dead_stay: bool = False  # an agent that is done before the episode remains alive and shares rewards
    inherits: tuple[str, ...] = ()  # options passed on to the class named by ``base``
    base: str = ""
    fixed: bool = False  # its constructor takes no options
    named: Mapping[str, str] = {}  # option → default, of options that are a name here and an object in JaxMARL
    metrics: Callable[[Any], dict[str, jax.Array]] = lambda state: {}
    first_metrics: tuple[str, ...] = ()  # those that a table shows first


def _sides_alive(state: Any) -> tuple[jax.Array, jax.Array]:
    battle = getattr(state, "state", state)  # with a scripted enemy, the battle is a part of the state
    team = battle.unit_teams == 0
    return jnp.any(battle.unit_alive & team), jnp.any(battle.unit_alive & ~team)


def _battle_metrics(state: Any) -> dict[str, jax.Array]:
    ally, enemy = _sides_alive(state)
    return {"won": (ally & ~enemy).astype(jnp.float32), "lost": (enemy & ~ally).astype(jnp.float32)}


_MPE = Family(limit="max_steps", limit_first=True, base="SimpleMPE", inherits=("max_steps", "dt"))
_SMAX = Family(
    limit="max_steps",
    limit_first=True,
    over=lambda state, reward: ~jnp.logical_and(*_sides_alive(state)),
    noop=lambda env: env.num_movement_actions - 1,
    dead_stay=True,
    named={"scenario": ""},
    metrics=_battle_metrics,
    first_metrics=("won", "lost"),
)
# By the prefix of a name; the longest match counts. Other environments have a limit ``max_steps``, if any.
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
    "coin_game": Family(limit="num_outer_steps", counter="outer_t", unit="num_inner_steps", noop=lambda env: 4),
    "hanabi": Family(noop=lambda env: int(env.num_moves) - 1),
}  # fmt: skip


def family(name: str) -> Family:
    """The entry of ``FAMILIES`` for an environment."""
    return FAMILIES[max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len)]


def names() -> list[str]:
    """Names for ``make("jaxmarl/<name>")``; some need optional dependencies of JaxMARL."""
    with quiet():
        from jaxmarl.registration import registered_envs
    return sorted(registered_envs)


def options_of(name: str) -> dict[str, Any]:
    """Option → default, from the signature of the constructor."""
    import jaxmarl.environments

    kind = family(name)
    env = _make(name, ())
    if kind.fixed:
        return {}
    found = {key: parameter.default for key, parameter in inspect.signature(type(env)).parameters.items()}
    if kind.inherits:
        passed = inspect.signature(getattr(jaxmarl.environments, kind.base)).parameters
        found = {key: passed[key].default for key in kind.inherits if key in passed} | found
    found |= {key: default or None for key, default in kind.named.items()}
    found = {key: value.value if isinstance(value, enum.Enum) else value for key, value in found.items()}
    return {key: value for key, value in found.items() if isinstance(value, PLAIN) and key not in NOT_PLAIN}


@functools.cache
def _make(name: str, options: Options) -> Any:
    """JaxMARL's own object, cached by options, since its methods are compiled once per object."""
    with quiet():
        import jaxmarl

        given = {key: _named(name, key, value) for key, value in options}
        try:
            return jaxmarl.make(name, **given)
        except Exception as error:  # a constructor may raise anything
            raise construction_error("jaxmarl", name, options, error) from error


def _named(name: str, option: str, value: Any) -> Any:
    """The object that JaxMARL takes for a named option."""
    if option not in family(name).named or value is None:
        return value
    if option == "layout":
        from flax.core import FrozenDict
        from jaxmarl.environments import overcooked_layouts

        if value not in overcooked_layouts:
            raise unknown(option, str(value), overcooked_layouts)
        return FrozenDict(overcooked_layouts[value])
    from jaxmarl.environments.smax import map_name_to_scenario

    try:
        return map_name_to_scenario(value)
    except KeyError as error:
        raise UserError(f"{option}={value} is not known; give one of SMAX's, such as 3m or 2s3z") from error


@dataclasses.dataclass(frozen=True, eq=False)
class WrappedEnv:
    """One of JaxMARL's environments and the shapes of its arrays."""

    env: Any
    family: Family
    agents: tuple[str, ...]
    obs_sizes: tuple[int, ...]  # of each agent, flattened
    spaces: tuple[Any, ...]  # the agents' own action spaces
    state: Any  # shapes and dtypes of its state
    shaped: bool  # its info includes a shaped reward

    @property
    def padded(self) -> bool:
        """Whether agents have actions of different sizes."""
        return len({width(space) for space in self.spaces}) > 1

    @property
    def discrete(self) -> bool:
        return hasattr(self.spaces[0], "n")


def width(space: Any) -> int:
    """n of a discrete space, the number of entries of a continuous one."""
    return int(space.n) if hasattr(space, "n") else math.prod(space.shape)


@functools.cache
def wrapped_env(name: str, options: Options) -> WrappedEnv:
    """The environment with these options; traces its reset and one step."""
    env = _make(name, options)
    if getattr(env, "auto_reset", False):  # MABrax
        raise UserError(f"jaxmarl's {name} restarts episodes within their last step; it is not supported")
    agents = tuple(env.agents)
    if not agents:
        raise construction_error("jaxmarl", name, options, ValueError("there would be no agents; give one or more"))
    unsupported = f"jaxmarl's {name} does not follow JaxMARL's API (dictionaries by agent); it is not supported"
    try:
        with quiet():
            spaces = tuple(env.action_space(agent) for agent in agents)
            obs, state = jax.eval_shape(env.reset, jax.random.key(0))
            sizes = tuple(math.prod(obs[agent].shape) for agent in agents)
            actions = {agent: jnp.zeros(space.shape, int) for agent, space in zip(agents, spaces, strict=True)}
            _, _, reward, done, info = jax.eval_shape(env.step_env, jax.random.key(0), state, actions)
        missing = [agent for agent in agents if agent not in reward]
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise UserError(unsupported) from error
    if missing or "__all__" not in done:
        raise UserError(unsupported)
    kinds = {"discrete" if hasattr(space, "n") else "box" if hasattr(space, "low") else "other" for space in spaces}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(f"jaxmarl's {name}: its agents' actions have to be all discrete or all continuous")
    return WrappedEnv(env, family(name), agents, sizes, spaces, state, "shaped_reward" in info)
