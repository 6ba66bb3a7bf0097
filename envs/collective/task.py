"""The interface of a task of ``collective``: a population of particles, its dynamics, observations and rewards.

Axis letters: N particles, C components of an action, O observation, G global state.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax

from marljax.core.scene import Colour, Scene

Particles = Any  # a task's own record of arrays [N]
Params = Any  # a task's own record of parameters, with ``cost`` and ``duration``
LARGE = 1e6  # upper bound of parameters


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """The dynamics of a population; fields are shapes and options."""

    agents: int  # N
    absolute: bool  # observations include absolute headings, phases or positions
    grid: int  # centres per axis of the global state

    action_size: ClassVar[int]  # C
    own: ClassVar[tuple[str, str]]  # names of the two columns of an observation that ``absolute`` adds
    relative: ClassVar[tuple[str, str, str]]  # and of the three others
    directions: ClassVar[tuple[str, str, str, str]]  # names of four directions, a quarter of a turn apart, for the legend
    other_colours: ClassVar[tuple[tuple[str, Colour], ...]] = ()  # of the legend

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the O columns of an observation."""
        return (*self.own, *self.relative) if self.absolute else self.relative

    @property
    @abc.abstractmethod
    def default_params(self) -> Params:
        """The default parameters."""

    @abc.abstractmethod
    def start(self, key: jax.Array, params: Params) -> Particles:
        """Particles at the start of an episode."""

    @abc.abstractmethod
    def move(self, key: jax.Array, particles: Particles, action: jax.Array, params: Params) -> Particles:
        """Particles a step later; ``action`` is [C, N] in [-1, 1]."""

    @abc.abstractmethod
    def evaluate(self, particles: Particles, params: Params) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Local rewards [N] and the global reward [] without the cost of control; metrics [], the first measures success."""

    @abc.abstractmethod
    def squared_control(self, action: jax.Array, params: Params) -> jax.Array:
        """[N] the square of the control that an action [C, N] exerts, in the task's units; ``cost`` is its price."""

    @abc.abstractmethod
    def observations(self, particles: Particles, params: Params) -> jax.Array:
        """[O, N]."""

    @abc.abstractmethod
    def density(self, particles: Particles, params: Params) -> jax.Array:
        """[G] the population's density on a fixed grid, relative to an even spread."""

    @abc.abstractmethod
    def scene(self, particles: Particles, params: Params, time: jax.Array) -> Scene:
        """The shapes to draw."""
