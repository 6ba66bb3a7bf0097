"""What fights in ``smax``: unit types and their numbers, scenarios and the registry of them.

Axis letters: K unit types, N units of both teams.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import struct

from marljax.errors import UserError, unknown
from marljax.utils.validation import POSITIVE, check_numbers, check_order, check_ranges

MARINE, MARAUDER, STALKER, ZEALOT, ZERGLING, HYDRALISK = range(6)
UNIT_NAMES = ("marine", "marauder", "stalker", "zealot", "zergling", "hydralisk")
NUM_KINDS = len(UNIT_NAMES)
SUBSTEPS = 8  # world steps per decision


def _table(*values: float) -> Any:
    return dataclasses.field(default_factory=lambda: np.array(values, np.float32))


class SmaxParams(struct.PyTreeNode):
    """The numbers of ``smax``: take ``default_params`` and change them with ``.replace(…)``, nothing is compiled again.

    The first seven are tables, one entry per unit type: marine, marauder, stalker, zealot, zergling, hydralisk.
    """

    speed: Any = _table(3.15, 2.25, 4.13, 3.15, 4.13, 3.15)  # map units/s; marine, marauder, stalker, zealot, zergling, hydralisk
    attack: Any = _table(9.0, 10.0, 13.0, 8.0, 5.0, 12.0)  # health taken by a hit
    range: Any = _table(5.0, 6.0, 6.0, 2.0, 2.0, 5.0)  # map units, centre to centre
    sight: Any = _table(9.0, 10.0, 10.0, 9.0, 8.0, 9.0)  # map units, centre to centre
    radius: Any = _table(0.375, 0.5625, 0.625, 0.5, 0.375, 0.625)  # map units
    health: Any = _table(45.0, 125.0, 160.0, 150.0, 35.0, 80.0)  # at the start
    cooldown: Any = _table(0.61, 1.07, 1.87, 0.86, 0.5, 0.59)  # s between shots
    cooldown_noise_low: Any = -1.0  # added to a cooldown, uniform, in multiples of time_step: at least
    cooldown_noise_high: Any = 2.0  # the same, at most
    time_step: Any = 1 / 16  # s of one world step; a decision lasts eight
    map_width: Any = 32.0  # map units
    map_height: Any = 32.0  # map units
    spawn_noise: Any = 2.0  # map units either way, up to a quarter of the map
    walls_kill: Any = True  # a unit that reaches the edge of the map dies; False: it stops there
    see_opponents_actions: Any = True  # observations show what the other team did last
    win_bonus: Any = 1.0  # reward of a win, beside the damage done; in self-play all there is
    duration: Any = 100  # decisions
    opponent: Any = ()  # weights of a learned enemy


LONGEST_STEP = 1.0  # s of a world step; in a longer one units run past what they should meet
_RANGES = (
    dict.fromkeys(("speed", "attack", "range"), (0.0, math.inf))
    | dict.fromkeys(("sight", "radius", "health", "cooldown", "map_width", "map_height", "duration"), (POSITIVE, math.inf))
    | {"time_step": (POSITIVE, LONGEST_STEP)}
)


def check(env_params: SmaxParams) -> None:
    """Raises ``UserError`` for concrete numbers that no battle can have; the weights of a learned enemy are left alone."""
    check_numbers(env_params.replace(opponent=()), SmaxParams(), "smax")
    check_ranges(env_params, _RANGES, "smax")
    noise, most = float(env_params.spawn_noise), min(float(env_params.map_width), float(env_params.map_height)) / 4
    if not 0 <= noise <= most:
        raise UserError(f"spawn_noise={noise:g} of smax is out of range; it takes 0 to {most:g}, a quarter of the map")
    check_order(env_params, [("cooldown_noise_low", "cooldown_noise_high")], "smax")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Who fights whom.

    Args:
        unit_types: names (``"marine"``) or numbers (``MARINE``) of the unit types, allies first, then enemies; ignored with
            ``random_types``.
        num_allies: units that are agents.
        num_enemies: units of the other team.
        random_types: both teams get the same types, drawn at reset; enemies in surplus get their own draw.
        random_positions: units start reflected or surrounded (SMACv2) instead of face to face.

    Raises:
        UserError: for team sizes or types that do not fit.
    """

    unit_types: Sequence[int | str]  # kept as numbers
    num_allies: int
    num_enemies: int
    random_types: bool = False
    random_positions: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit_types", _kinds(self.unit_types))
        for team in ("num_allies", "num_enemies"):
            object.__setattr__(self, team, _size(team, getattr(self, team)))
        for option in ("random_types", "random_positions"):
            if not isinstance(getattr(self, option), bool):
                raise UserError(f"{option} of a scenario is {getattr(self, option)!r}; give True or False")
        if len(self.unit_types) != self.num_units:
            raise UserError(
                f"a scenario of {self.num_allies} allies and {self.num_enemies} enemies has {len(self.unit_types)} unit_types; "
                f"give {self.num_units}, allies first"
            )

    @property
    def num_units(self) -> int:
        """N."""
        return self.num_allies + self.num_enemies

    @property
    def mirrored(self) -> "Scenario":
        """The same battle with the teams' parts exchanged."""
        kinds = (*self.unit_types[self.num_allies :], *self.unit_types[: self.num_allies])
        return dataclasses.replace(self, unit_types=kinds, num_allies=self.num_enemies, num_enemies=self.num_allies)


def _size(team: str, given: Any) -> int:
    """A team's size as an integer."""
    try:
        size = 0 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        size = 0
    if size < 1:
        raise UserError(f"{team} of a scenario is {given!r}; give an integer of at least 1")
    return size


def _kinds(given: Any) -> tuple[int, ...]:
    """Unit types as integers; anything else is one line that says which types there are."""
    if isinstance(given, str):
        raise UserError(f"unit_types of a scenario is {given!r}; give one type per unit, such as ({given!r},)")
    try:
        given = tuple(given)
    except TypeError as error:
        raise UserError(f"unit_types of a scenario is {given!r}; give one type per unit") from error
    return tuple(_kind(kind) for kind in given)


def _kind(kind: Any) -> int:
    if isinstance(kind, str):
        if kind not in UNIT_NAMES:
            raise unknown("unit type of a scenario", kind, UNIT_NAMES)
        return UNIT_NAMES.index(kind)
    known = ", ".join(f"{number} ({name})" for number, name in enumerate(UNIT_NAMES))
    try:
        number = operator.index(kind)
    except TypeError as error:
        raise UserError(f"a scenario has unit type {kind!r}; there are {known}") from error
    if not 0 <= number < NUM_KINDS:
        raise UserError(f"a scenario has unit type {number}; there are {known}")
    return number


def _versus(allies: tuple[int, ...], enemies: tuple[int, ...]) -> Scenario:
    return Scenario(allies + enemies, len(allies), len(enemies))


def _drawn(size: int) -> Scenario:
    return Scenario((MARINE,) * (2 * size), size, size, random_types=True, random_positions=True)


_M, _S, _Z, _H = (MARINE,), (STALKER,), (ZEALOT,), (HYDRALISK,)
_SCENARIOS: dict[str, Scenario] = {
    "3m": _versus(3 * _M, 3 * _M),
    "8m": _versus(8 * _M, 8 * _M),
    "25m": _versus(25 * _M, 25 * _M),
    "5m_vs_6m": _versus(5 * _M, 6 * _M),
    "10m_vs_11m": _versus(10 * _M, 11 * _M),
    "27m_vs_30m": _versus(27 * _M, 30 * _M),
    "2s3z": _versus(2 * _S + 3 * _Z, 2 * _S + 3 * _Z),
    "3s5z": _versus(3 * _S + 5 * _Z, 3 * _S + 5 * _Z),
    "3s5z_vs_3s6z": _versus(3 * _S + 5 * _Z, 3 * _S + 6 * _Z),
    "3s_vs_5z": _versus(3 * _S, 5 * _Z),
    "6h_vs_8z": _versus(6 * _H, 8 * _Z),
    "smacv2_5_units": _drawn(5),
    "smacv2_10_units": _drawn(10),
    "smacv2_20_units": _drawn(20),
}
PUBLISHED = tuple(_SCENARIOS)  # JaxMARL's


def scenario_names() -> tuple[str, ...]:
    """Every scenario that ``Smax(scenario=…)`` takes, the user's own included."""
    return tuple(_SCENARIOS)


def register_scenario(name: str, scenario: Scenario) -> None:
    """Makes a scenario known by a name: ``register_scenario("2m_vs_1z", Scenario(("marine", "marine", "zealot"), 2, 1))``.

    A name keeps its meaning, because environments of equal name share compiled programs: registering another scenario by a
    known name raises ``UserError``. The command line learns of it by a module of yours, say ``my_battles.py``, that imports
    ``Smax`` and registers: ``env=custom env.target=my_battles:Smax env.scenario=2m_vs_1z``.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"a scenario is registered as {name!r}; give a text as its name")
    if not isinstance(scenario, Scenario):
        raise UserError(f"'{name}' is registered with a {type(scenario).__name__}; give a marljax.envs.smax.Scenario")
    if _SCENARIOS.setdefault(name, scenario) != scenario:
        raise UserError(f"scenario '{name}' stands for other units already; choose another name")


def find_scenario(name: str) -> Scenario:
    """The scenario of a name; an unknown one raises ``UserError`` with the nearest and how to add one."""
    if not isinstance(name, str) or name not in _SCENARIOS:
        error = unknown("scenario of smax", str(name), _SCENARIOS)
        how = "register_scenario(name, Scenario(...)) of marljax.envs.smax"
        raise UserError(f"{error} add your own with {how}; help(register_scenario) says how the command line learns of it")
    return _SCENARIOS[name]
