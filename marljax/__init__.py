"""JAX-native multi-agent reinforcement learning: environments as pure functions, training loops that compile end to end."""

import importlib
from typing import TYPE_CHECKING, Any

from marljax.environment import Environment, Outcome, TimeStep, View
from marljax.errors import UserError
from marljax.joint import joint
from marljax.registry import make, register
from marljax.vector import vectorize

if TYPE_CHECKING:
    from marljax import testing as testing
    from marljax.gymnax_api import to_gymnax
    from marljax.jaxmarl_api import to_jaxmarl
    from marljax.settings import tuned
    from marljax.train import make_train
    from marljax.trained import load

__version__ = "0.1.0"

__all__ = [
    "Environment",
    "Outcome",
    "TimeStep",
    "UserError",
    "View",
    "joint",
    "load",
    "make",
    "make_train",
    "register",
    "to_gymnax",
    "to_jaxmarl",
    "tuned",
    "vectorize",
]

# Imported when asked for: the package stays light.
_LATER = {
    "load": "marljax.trained",
    "make_train": "marljax.train",
    "to_gymnax": "marljax.gymnax_api",
    "to_jaxmarl": "marljax.jaxmarl_api",
    "tuned": "marljax.settings",
}
_LATER_MODULES = ("testing",)


def __getattr__(name: str) -> Any:
    if name in _LATER_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER_MODULES})
