"""Task ``aggregation`` of ``collective``: particles gather, wherever that is.

Single integrators in a square, of limited speed, judged by their distance from their common centre; the task is set in "Learning
Decentralized Partially Observable Mean Field Control for Artificial Collective Behavior" (Cui et al. 2024). That paper's own
constants were not available, so results are not comparable with its.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.scene import Colour, Scene
from marljax.envs.collective import population
from marljax.envs.collective import scene as pictures
from marljax.envs.collective.neighbours import Search, settled
from marljax.envs.collective.task import LARGE, Task
from marljax.utils.random import flat
from marljax.utils.validation import POSITIVE

FINER = 2  # centres of places for each of ``grid``: nothing but places is to be seen


class AggregationParams(struct.PyTreeNode):
    """The numbers of task ``aggregation``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    half: Any = 2.0  # the square reaches so far from its middle
    radius: Any = 0.5  # within which particles are neighbours
    max_speed: Any = 0.2  # per step
    cost: Any = 0.0  # price of a squared speed
    duration: Any = 100  # steps


class AggregationParticles(struct.PyTreeNode):
    """Where particles are and what they see, [N] each."""

    x: jax.Array
    y: jax.Array
    step_x: jax.Array  # last step
    step_y: jax.Array
    near: jax.Array  # neighbours, itself included
    mean_x: jax.Array  # of the neighbours, less the own
    mean_y: jax.Array


@dataclasses.dataclass(frozen=True)
class Aggregation(Task):
    """See ``Collective``."""

    search: Search

    components: ClassVar[int] = 2
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "half": (POSITIVE, LARGE),
        "radius": (POSITIVE, LARGE),
        "max_speed": (0.0, LARGE),
        "cost": (0.0, LARGE),
    }

    @property
    def numbers(self) -> AggregationParams:
        return AggregationParams()

    @property
    def seen(self) -> int:
        return 2 * self.absolute + 3

    @property
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        return (*pictures.legend("going right", "up", "left", "down"), ("common centre", pictures.INK))

    def start(self, key: jax.Array, numbers: AggregationParams) -> AggregationParticles:
        x, y = numbers.half * flat(lambda key, shape: jax.random.uniform(key, shape, minval=-1.0), key, (2, self.agents))
        return self.look(x, y, jnp.zeros_like(x), jnp.zeros_like(y), numbers)

    def look(
        self, x: jax.Array, y: jax.Array, step_x: jax.Array, step_y: jax.Array, numbers: AggregationParams
    ) -> AggregationParticles:
        """Particles at these places, with what they see."""
        x, y = settled(x, y)
        near, sum_x, sum_y = self.search.sums(x, y, jnp.stack([jnp.ones_like(x), x, y]), numbers.radius).total
        near = jnp.maximum(near, 1.0)
        return AggregationParticles(x, y, step_x, step_y, near, sum_x / near - x, sum_y / near - y)

    def move(
        self, key: jax.Array, particles: AggregationParticles, action: jax.Array, numbers: AggregationParams
    ) -> AggregationParticles:
        del key
        speed = numbers.max_speed * _within(action)
        x = jnp.clip(particles.x + speed[0], -numbers.half, numbers.half)
        y = jnp.clip(particles.y + speed[1], -numbers.half, numbers.half)
        return self.look(x, y, x - particles.x, y - particles.y, numbers)

    def value(self, particles: AggregationParticles, numbers: AggregationParams) -> tuple[jax.Array, jax.Array]:
        away = jnp.hypot(particles.x - jnp.mean(particles.x), particles.y - jnp.mean(particles.y))
        return -away, -jnp.mean(away)

    def control(self, action: jax.Array, numbers: AggregationParams) -> jax.Array:
        return jnp.sum(jnp.square(numbers.max_speed * _within(action)), axis=0)

    def figures(self, particles: AggregationParticles, numbers: AggregationParams) -> dict[str, jax.Array]:
        return {"distance": -self.value(particles, numbers)[1]}

    def view(self, particles: AggregationParticles, numbers: AggregationParams) -> jax.Array:
        even = self.agents * math.pi * numbers.radius**2 / (2.0 * numbers.half) ** 2
        seen = [particles.mean_x / numbers.radius, particles.mean_y / numbers.radius, particles.near / even]
        own = [particles.x / numbers.half, particles.y / numbers.half]
        return jnp.stack([*own, *seen] if self.absolute else seen)

    def density(self, particles: AggregationParticles, numbers: AggregationParams) -> jax.Array:
        places = (population.on_line(place, numbers.half, FINER * self.grid) for place in (particles.x, particles.y))
        return population.joint(*places)

    def draw(self, particles: AggregationParticles, numbers: AggregationParams, time: jax.Array) -> Scene:
        return pictures.gathering(
            particles.x, particles.y, particles.step_x, particles.step_y, numbers.half, -self.value(particles, numbers)[1], time
        )


def _within(action: jax.Array) -> jax.Array:
    """[2, N] no longer than 1."""
    return action / jnp.maximum(jnp.hypot(action[0], action[1]), 1.0)
