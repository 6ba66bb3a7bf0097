"""Unit types of ``smax`` and their parameters, and the registry of scenarios.

Axis letters: N units of both teams.
"""

import dataclasses
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flax import struct

from marljax.core.fields import check_options, option, param
from marljax.errors import UserError, short_repr, unknown

MARINE, MARAUDER, STALKER, ZEALOT, ZERGLING, HYDRALISK = range(6)
UNIT_NAMES = ("marine", "marauder", "stalker", "zealot", "zergling", "hydralisk")
NUM_KINDS = len(UNIT_NAMES)
SUBSTEPS = 8  # world steps per decision
MAX_TIME_STEP = 1.0  # s; in a longer one units pass through what they should hit


def _per_type(*values: float, **metadata: Any) -> Any:
    return param(lambda: np.array(values, np.float32), **metadata)


class SmaxParams(struct.PyTreeNode):
    """Parameters of ``smax``: change those of ``default_params`` with ``.replace(…)``, which recompiles nothing.

    The first seven are arrays [6], one entry per unit type: marine, marauder, stalker, zealot, zergling, hydralisk.
    """

    speed: Any = _per_type(3.15, 2.25, 4.13, 3.15, 4.13, 3.15, low=0.0, unit="map units/s", help="per unit type")
    attack: Any = _per_type(9.0, 10.0, 13.0, 8.0, 5.0, 12.0, low=0.0, help="health that a hit takes, per unit type")
    range: Any = _per_type(5.0, 6.0, 6.0, 2.0, 2.0, 5.0, low=0.0, unit="map units", help="of shots, per unit type")
    sight: Any = _per_type(9.0, 10.0, 10.0, 9.0, 8.0, 9.0, above=0.0, unit="map units", help="per unit type")
    radius: Any = _per_type(0.375, 0.5625, 0.625, 0.5, 0.375, 0.625, above=0.0, unit="map units", help="per unit type")
    health: Any = _per_type(45.0, 125.0, 160.0, 150.0, 35.0, 80.0, above=0.0, help="initial, per unit type")
    cooldown: Any = _per_type(0.61, 1.07, 1.87, 0.86, 0.5, 0.59, above=0.0, unit="s", help="between shots, per unit type")
    cooldown_noise_low: Any = param(-1.0, unit="time_step", help="added to a cooldown, uniform: lower bound")
    cooldown_noise_high: Any = param(2.0, unit="time_step", help="upper bound")
    time_step: Any = param(1 / 16, above=0.0, high=MAX_TIME_STEP, unit="s", help=f"of the world; a decision takes {SUBSTEPS}")
    map_width: Any = param(32.0, above=0.0, unit="map units")
    map_height: Any = param(32.0, above=0.0, unit="map units")
    spawn_noise: Any = param(2.0, low=0.0, unit="map units", help="of initial positions, either way, up to a quarter of the map")
    walls_kill: Any = param(True, help="a unit that reaches the edge of the map dies instead of stopping there")
    see_opponents_actions: Any = param(True, help="observations include the other team's last actions")
    win_bonus: Any = param(1.0, help="reward for a win, on top of that for damage; the only reward in self-play")
    duration: Any = param(100, low=1, integer=True, help="decisions per episode")
    opponent: Any = dataclasses.field(default=(), metadata={"help": "weights of the learned enemy (mode=learned)"})


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The units of both teams.

    Args:
        unit_types: names (``"marine"``) or numbers (``MARINE``) of the unit types, allies first, then enemies; ignored with
            ``random_types``. Stored as numbers.
        num_allies: units controlled by agents.
        num_enemies: units of the other team.
        random_types: both teams get the same types, drawn at reset; surplus enemies are drawn independently.
        random_positions: units start reflected or surrounded (SMACv2) instead of face to face.

    Raises:
        UserError: for team sizes or types that do not fit.
    """

    unit_types: Sequence[int | str]
    num_allies: int = option(low=1)
    num_enemies: int = option(low=1)
    random_types: bool = option(False)
    random_positions: bool = option(False)

    def __post_init__(self) -> None:
        types = self.unit_types
        if isinstance(types, str) or not isinstance(types, Iterable):
            raise UserError(f"unit_types={short_repr(types)} is not a list; give one type per unit, such as ('marine', 'zealot')")
        object.__setattr__(self, "unit_types", tuple(map(_unit_type, types)))
        for name in ("num_allies", "num_enemies"):
            if isinstance(size := getattr(self, name), np.integer):
                object.__setattr__(self, name, int(size))
        check_options(self)
        if len(self.unit_types) != self.num_units:
            teams = f"{self.num_allies} allies and {self.num_enemies} enemies"
            raise UserError(f"unit_types has {len(self.unit_types)} entries for {teams}; give {self.num_units}, allies first")

    @property
    def num_units(self) -> int:
        """N."""
        return self.num_allies + self.num_enemies

    @property
    def mirrored(self) -> "Scenario":
        """The same battle with the teams swapped."""
        types = (*self.unit_types[self.num_allies :], *self.unit_types[: self.num_allies])
        return dataclasses.replace(self, unit_types=types, num_allies=self.num_enemies, num_enemies=self.num_allies)


def _unit_type(value: Any) -> int:
    """A unit type's number, from its name or number."""
    if isinstance(value, str):
        if value not in UNIT_NAMES:
            raise unknown("unit type", value, UNIT_NAMES)
        return UNIT_NAMES.index(value)
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < NUM_KINDS:
        choices = ", ".join(f"{index} ({name})" for index, name in enumerate(UNIT_NAMES))
        raise UserError(f"unit_types contains {short_repr(value)}; choose from {choices}")
    return number


def _parse(name: str) -> Scenario:
    """The scenario of a name such as ``3s5z_vs_3s6z``, or ``3m`` for equal teams."""
    letters = {"m": MARINE, "s": STALKER, "z": ZEALOT, "h": HYDRALISK}
    teams = [
        [letters[letter] for count, letter in re.findall(r"(\d+)([a-z])", team) for _ in range(int(count))]
        for team in name.split("_vs_")
    ]
    allies, enemies = teams[0], teams[-1]
    return Scenario(allies + enemies, len(allies), len(enemies))


_NAMES = ("3m", "8m", "25m", "5m_vs_6m", "10m_vs_11m", "27m_vs_30m", "2s3z", "3s5z", "3s5z_vs_3s6z", "3s_vs_5z", "6h_vs_8z")
_SCENARIOS = {name: _parse(name) for name in _NAMES} | {
    f"smacv2_{size}_units": Scenario((MARINE,) * 2 * size, size, size, random_types=True, random_positions=True)
    for size in (5, 10, 20)
}
PUBLISHED = tuple(_SCENARIOS)  # JaxMARL's


def scenario_names() -> tuple[str, ...]:
    """Every scenario that ``Smax(scenario=…)`` takes, registered ones included."""
    return tuple(_SCENARIOS)


def register_scenario(name: str, scenario: Scenario) -> None:
    """Adds a scenario: ``register_scenario("2m_vs_1z", Scenario(("marine", "marine", "zealot"), 2, 1))``.

    On the command line use a module of your own, say ``my_battles.py``, that imports ``Smax`` and registers:
    ``env=custom env.target=my_battles:Smax env.scenario=2m_vs_1z``.

    Raises:
        UserError: for a name that is taken by another scenario: environments of equal name share compiled programs.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"name={name!r} is not a valid scenario name; give a non-empty text")
    if not isinstance(scenario, Scenario):
        raise UserError(f"scenario '{name}' is a {type(scenario).__name__}; give a marljax.envs.smax.Scenario")
    if _SCENARIOS.setdefault(name, scenario) != scenario:
        raise UserError(f"scenario '{name}' is already registered with other units; choose another name")


def find_scenario(name: str) -> Scenario:
    """The scenario of this name; raises ``UserError`` for an unknown one."""
    if name not in _SCENARIOS:
        add = "add your own with marljax.envs.smax.register_scenario (its help covers the command line)"
        raise UserError(f"{unknown('scenario', name, _SCENARIOS)} Or {add}")
    return _SCENARIOS[name]
