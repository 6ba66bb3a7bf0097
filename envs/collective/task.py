"""What the tasks of ``collective`` have in common: a population of particles, how it moves, what it sees and what it is for.

Axis letters: N particles, C components of an action, O observation, G global state.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from marljax.core.scene import Colour, Scene
from marljax.errors import UserError
from marljax.utils.validation import check_numbers, check_ranges

Particles = Any  # a task's own record of arrays [N]
Numbers = Any  # a task's own record of numbers, with ``cost`` and ``duration``


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """One way for a population to move; its fields are shapes and options."""

    agents: int  # N
    absolute: bool  # particles know the world's directions and places
    grid: int  # centres per axis of the global state

    components: ClassVar[int]  # C
    # What a number may be, where it is bounded: name → least, most.
    ranges: ClassVar[Mapping[str, tuple[float, float]]]

    @property
    @abc.abstractmethod
    def numbers(self) -> Numbers:
        """The default ones."""

    @property
    @abc.abstractmethod
    def seen(self) -> int:
        """O."""

    @property
    @abc.abstractmethod
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        """Of the scene's colours."""

    @abc.abstractmethod
    def start(self, key: jax.Array, numbers: Numbers) -> Particles:
        """Particles at the start of an episode."""

    @abc.abstractmethod
    def move(self, key: jax.Array, particles: Particles, action: jax.Array, numbers: Numbers) -> Particles:
        """Particles a step later; ``action`` is [C, N] in [-1, 1]."""

    @abc.abstractmethod
    def value(self, particles: Particles, numbers: Numbers) -> tuple[jax.Array, jax.Array]:
        """What the population is for: each particle's share of it [N], and all in all []."""

    @abc.abstractmethod
    def control(self, action: jax.Array, numbers: Numbers) -> jax.Array:
        """[N] the square of what an action [C, N] does, in the task's units: what ``cost`` is the price of."""

    @abc.abstractmethod
    def figures(self, particles: Particles, numbers: Numbers) -> dict[str, jax.Array]:
        """Scalars of the moment; the first is what the task is judged by."""

    @abc.abstractmethod
    def view(self, particles: Particles, numbers: Numbers) -> jax.Array:
        """[O, N] observations."""

    @abc.abstractmethod
    def density(self, particles: Particles, numbers: Numbers) -> jax.Array:
        """[G] the population on a fixed grid, relative to an even spread."""

    @abc.abstractmethod
    def draw(self, particles: Particles, numbers: Numbers, time: jax.Array) -> Scene:
        """The scene."""

    def missed(self, particles: Particles) -> jax.Array:
        """[] particles that may have been denied neighbours."""
        del particles
        return jnp.zeros(())

    def check(self, numbers: Numbers) -> None:
        """Raises ``UserError`` for concrete numbers that no episode can have."""
        check_numbers(numbers, self.numbers, "collective")
        check_ranges(numbers, self.ranges, "collective")
        if not numbers.duration >= 2 or numbers.duration % 1:
            raise UserError(f"duration={numbers.duration:g} of collective is out of range; it takes an integer of at least 2")


LARGE = 1e6
