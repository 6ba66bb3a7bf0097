"""``smax``: micromanagement battles in the manner of StarCraft II, after JaxMARL's SMAX (Rutherford et al. 2023)."""

from marljax.core.opponent import Opponent
from marljax.envs.smax.actions import DOWN, FIRST_ATTACK, LEFT, RIGHT, STOP, UP
from marljax.envs.smax.env import Smax, SmaxState
from marljax.envs.smax.units import MARINE, Scenario, SmaxParams, register_scenario, scenario_names

__all__ = [
    "DOWN",
    "FIRST_ATTACK",
    "LEFT",
    "MARINE",
    "RIGHT",
    "STOP",
    "UP",
    "Opponent",
    "Scenario",
    "Smax",
    "SmaxParams",
    "SmaxState",
    "register_scenario",
    "scenario_names",
]
