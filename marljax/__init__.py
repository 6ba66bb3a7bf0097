"""JAX-native multi-agent reinforcement learning: environments as pure functions, training loops that compile end to end."""

import importlib
from typing import TYPE_CHECKING, Any

from marljax.errors import UserError
from marljax.version import __version__ as __version__

if TYPE_CHECKING:
    from marljax import testing as testing
    from marljax.cli.from_python import train
    from marljax.config.compose import tuned
    from marljax.core.environment import Environment
    from marljax.core.types import Outcome, TimeStep, View
    from marljax.core.vector import vectorize
    from marljax.registry import make, register, register_algorithm
    from marljax.reporting.episodes import play, show
    from marljax.training.load import load
    from marljax.training.trainer import make_train
    from marljax.viz.animation import render
    from marljax.wrappers.joint import joint
    from marljax.wrappers.to_gymnax import to_gymnax
    from marljax.wrappers.to_jaxmarl import to_jaxmarl

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
    "play",
    "register",
    "register_algorithm",
    "render",
    "show",
    "to_gymnax",
    "to_jaxmarl",
    "train",
    "tuned",
    "vectorize",
]

# Imported on first use: JAX takes a second, of which a typo on the command line needs nothing.
_MODULES = {
    "Environment": "marljax.core.environment",
    "Outcome": "marljax.core.types",
    "TimeStep": "marljax.core.types",
    "View": "marljax.core.types",
    "joint": "marljax.wrappers.joint",
    "load": "marljax.training.load",
    "make": "marljax.registry",
    "make_train": "marljax.training.trainer",
    "play": "marljax.reporting.episodes",
    "register": "marljax.registry",
    "register_algorithm": "marljax.registry",
    "render": "marljax.viz.animation",
    "show": "marljax.reporting.episodes",
    "to_gymnax": "marljax.wrappers.to_gymnax",
    "to_jaxmarl": "marljax.wrappers.to_jaxmarl",
    "train": "marljax.cli.from_python",
    "tuned": "marljax.config.compose",
    "vectorize": "marljax.core.vector",
}
_SUBPACKAGES = ("algos", "config", "core", "envs", "learning", "nn", "testing", "training", "utils", "viz", "wrappers")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name in (*_SUBPACKAGES, "registry"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    dunders = [name for name in globals() if name.startswith("__") and name.endswith("__")]
    return sorted({*__all__, *_SUBPACKAGES, *dunders})
