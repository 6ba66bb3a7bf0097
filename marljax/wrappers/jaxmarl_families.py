"""What ``jaxmarl_suite`` knows of JaxMARL: how its environments are made, and what its API does not say of them."""

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
from marljax.wrappers.suite import PLAIN, Options, refusal

NOT_PLAIN = ("agents", "landmarks", "action_spaces", "observation_spaces", "color_map", "num_moves", "initial_state_buffer")
RIVALS = ("adversary", "leadadversary", "eve", "enemy")  # how agents of the other team are called, where there is one


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallows what JaxMARL prints and warns of when it is imported, and when an environment is made or traced.

    Its import points ``sys.stdout`` and ``sys.stderr`` to the process's own streams, whatever they were before; here it finds
    a sink in their place, and they are put back.
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
    """What JaxMARL's API does not say of an environment."""

    limit: str | None = None  # attribute of the environment with the step limit; None: episodes have none
    counter: str = "step"  # path to the count of steps in its state
    unit: str = ""  # attribute with how many steps the counter takes for one, where it does
    limit_first: bool = False  # the limit is tested before the step is counted: an episode lasts one step longer
    over: Callable[[Any, jax.Array], jax.Array] | None = None  # (state, reward [A]) → an end at the limit is not for the limit
    noop: Callable[[Any], int] = lambda env: 0  # the action that does the least
    dead_stay: bool = False  # an agent that is done before the episode stays in it, and shares rewards
    inherits: tuple[str, ...] = ()  # options passed on to the class named by ``base``
    base: str = ""
    fixed: bool = False  # its constructor takes no options
    named: Mapping[str, str] = {}  # option → default, of options given as a name here and as an object to JaxMARL
    metrics: Callable[[Any], dict[str, jax.Array]] = lambda state: {}
    first_metrics: tuple[str, ...] = ()  # those that a table shows first


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
    first_metrics=("won", "lost"),
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
    "coin_game": Family(limit="num_outer_steps", counter="outer_t", unit="num_inner_steps", noop=lambda env: 4),
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


def options_of(name: str) -> dict[str, Any]:
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
    found = {key: value.value if isinstance(value, enum.Enum) else value for key, value in found.items()}
    return {key: value for key, value in found.items() if isinstance(value, PLAIN) and key not in NOT_PLAIN}


@functools.cache
def _make(name: str, options: Options) -> Any:
    """JaxMARL's own object, one for equal options: its methods are compiled for each object anew."""
    with quiet():
        import jaxmarl

        given = {key: _named(name, key, value) for key, value in options}
        try:
            return jaxmarl.make(name, **given)
        except Exception as error:  # whatever a constructor raises for what it does not take
            raise refusal("jaxmarl", name, options, error) from error


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
        return len(set(self.obs_sizes)) > 1 or self.padded

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
def theirs(name: str, options: Options) -> Theirs:
    """The environment with these options; traces its reset and one step."""
    env = _make(name, options)
    if getattr(env, "auto_reset", False):  # MABrax
        raise UserError(f"jaxmarl's {name} restarts episodes inside their last step, so their ends cannot be seen here")
    agents = tuple(env.agents)
    if not agents:
        raise refusal("jaxmarl", name, options, ValueError("there would be no agents; give one or more"))
    own_api = f"jaxmarl's {name} does not keep JaxMARL's own API"
    try:
        with quiet():
            spaces = tuple(env.action_space(agent) for agent in agents)
            obs, state = jax.eval_shape(env.reset, jax.random.key(0))
            sizes = tuple(math.prod(obs[agent].shape) for agent in agents)
            actions = {agent: jnp.zeros(space.shape, int) for agent, space in zip(agents, spaces, strict=True)}
            _, _, reward, done, info = jax.eval_shape(env.step_env, jax.random.key(0), state, actions)
        missing = [agent for agent in agents if agent not in reward]
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise UserError(f"{own_api} (dictionaries by agent), so it cannot be used here") from error
    if missing or "__all__" not in done:
        raise UserError(f"{own_api} (dictionaries by agent), so it cannot be used here")
    kinds = {"discrete" if hasattr(space, "n") else "box" if hasattr(space, "low") else "other" for space in spaces}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(f"jaxmarl's {name}: its agents' actions have to be all discrete or all continuous")
    return Theirs(env, family(name), agents, sizes, spaces, state, "shaped_reward" in info)
