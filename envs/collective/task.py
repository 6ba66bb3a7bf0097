"""The interface of a task of ``collective``: a population of particles, its dynamics, observations and rewards.

Axis letters: N particles, C components of an action, O observation, G global state.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

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

    @property
    def obs_size(self) -> int:
        """O."""
        return 2 * self.absolute + 3

    @property
    @abc.abstractmethod
    def default_params(self) -> Params:
        """The default parameters."""

    @property
    @abc.abstractmethod
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        """The scene's colours by name."""

    @abc.abstractmethod
    def start(self, key: jax.Array, params: Params) -> Particles:
        """Particles at the start of an episode."""

    @abc.abstractmethod
    def move(self, key: jax.Array, particles: Particles, action: jax.Array, params: Params) -> Particles:
        """Particles a step later; ``action`` is [C, N] in [-1, 1]."""

    @abc.abstractmethod
    def rewards(self, particles: Particles, params: Params) -> tuple[jax.Array, jax.Array]:
        """Local rewards [N] and the global reward [], without the cost of control."""

    @abc.abstractmethod
    def squared_control(self, action: jax.Array, params: Params) -> jax.Array:
        """[N] the square of the control that an action [C, N] exerts, in the task's units; ``cost`` is its price."""

    @abc.abstractmethod
    def metrics(self, particles: Particles, params: Params) -> dict[str, jax.Array]:
        """Scalars of the current step; the first measures success."""

    @abc.abstractmethod
    def observations(self, particles: Particles, params: Params) -> jax.Array:
        """[O, N]."""

    @abc.abstractmethod
    def density(self, particles: Particles, params: Params) -> jax.Array:
        """[G] the population's density on a fixed grid, relative to an even spread."""

    @abc.abstractmethod
    def scene(self, particles: Particles, params: Params, time: jax.Array) -> Scene:
        """The shapes to draw."""

    def overflow(self, particles: Particles) -> jax.Array:
        """[] particles that may be missing neighbours."""
        del particles
        return jnp.zeros(())
