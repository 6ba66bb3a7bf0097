"""JAX-native multi-agent reinforcement learning: environments as pure functions, training loops that compile end to end."""

from marljax.environment import Environment, Outcome, TimeStep, View
from marljax.errors import UserError
from marljax.registry import make, register
from marljax.vector import vectorize

__version__ = "0.1.0"

__all__ = ["Environment", "Outcome", "TimeStep", "UserError", "View", "make", "register", "vectorize"]
