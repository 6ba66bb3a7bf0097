"""Task ``aggregation`` of ``collective``: particles gather at any common position.

Single integrators of limited speed in a square, judged by their distance from their common centre; the task is set in "Learning
Decentralized Partially Observable Mean Field Control for Artificial Collective Behavior" (Cui et al. 2024). Its constants were
not available, so results are not comparable with those of the paper.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.fields import param
from marljax.core.scene import Circles, Scene, Segments
from marljax.envs.collective import population
from marljax.envs.collective import scene as shapes
from marljax.envs.collective.neighbours import Search, materialize
from marljax.envs.collective.task import LARGE, Task
from marljax.utils.random import flat

FINER = 2  # centres of positions for each of ``grid``: the global state holds nothing but positions


class AggregationParams(struct.PyTreeNode):
    """Parameters of task ``aggregation``: change those of ``default_params`` with ``.replace(…)``, which recompiles nothing."""

    half: Any = param(2.0, above=0.0, high=LARGE, help="half the side of the square")
    radius: Any = param(0.5, above=0.0, high=LARGE, help="distance within which particles are neighbours")
    max_speed: Any = param(0.2, low=0.0, high=LARGE, help="per step")
    cost: Any = param(0.0, low=0.0, high=LARGE, help="price of a squared speed")
    duration: Any = param(100, low=2, integer=True, help="steps per episode")


class AggregationParticles(struct.PyTreeNode):
    """Particles and means over their neighbours, [N] each."""

    x: jax.Array
    y: jax.Array
    step_x: jax.Array  # last step
    step_y: jax.Array
    near: jax.Array  # neighbours, itself included
    mean_x: jax.Array  # of the neighbours, relative to the particle
    mean_y: jax.Array


class Gathered(NamedTuple):
    """Status line of the scene."""

    distance: jax.Array


@dataclasses.dataclass(frozen=True)
class Aggregation(Task):
    """See ``Collective``."""

    search: Search

    action_size: ClassVar[int] = 2
    own: ClassVar = ("x", "y")
    relative: ClassVar = ("mean x", "mean y", "neighbours")
    directions: ClassVar = ("going right", "up", "left", "down")
    other_colours: ClassVar = (("common centre", shapes.INK),)
    default_params: ClassVar[AggregationParams] = AggregationParams()

    def start(self, key: jax.Array, params: AggregationParams) -> AggregationParticles:
        x, y = params.half * flat(lambda key, shape: jax.random.uniform(key, shape, minval=-1.0), key, (2, self.agents))
        return self._with_neighbours(x, y, jnp.zeros_like(x), jnp.zeros_like(y), params)

    def _with_neighbours(
        self, x: jax.Array, y: jax.Array, step_x: jax.Array, step_y: jax.Array, params: AggregationParams
    ) -> AggregationParticles:
        x, y = materialize(x, y)
        near, sum_x, sum_y = self.search.sums(x, y, jnp.stack([jnp.ones_like(x), x, y]), params.radius).total
        near = jnp.maximum(near, 1.0)
        return AggregationParticles(x, y, step_x, step_y, near, sum_x / near - x, sum_y / near - y)

    def move(
        self, key: jax.Array, particles: AggregationParticles, action: jax.Array, params: AggregationParams
    ) -> AggregationParticles:
        del key
        step = params.max_speed * clip_norm(action)
        x = jnp.clip(particles.x + step[0], -params.half, params.half)
        y = jnp.clip(particles.y + step[1], -params.half, params.half)
        return self._with_neighbours(x, y, x - particles.x, y - particles.y, params)

    def evaluate(
        self, particles: AggregationParticles, params: AggregationParams
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        distance = jnp.hypot(particles.x - jnp.mean(particles.x), particles.y - jnp.mean(particles.y))
        mean = jnp.mean(distance)
        return -distance, -mean, {"distance": mean}

    def squared_control(self, action: jax.Array, params: AggregationParams) -> jax.Array:
        return jnp.sum(jnp.square(params.max_speed * clip_norm(action)), axis=0)

    def observations(self, particles: AggregationParticles, params: AggregationParams) -> jax.Array:
        even = self.agents * math.pi * params.radius**2 / (2.0 * params.half) ** 2
        near = [particles.mean_x / params.radius, particles.mean_y / params.radius, particles.near / even]
        own = [particles.x / params.half, particles.y / params.half]
        return jnp.stack([*own, *near] if self.absolute else near)

    def density(self, particles: AggregationParticles, params: AggregationParams) -> jax.Array:
        return population.joint(
            population.on_line(particles.x, params.half, FINER * self.grid),
            population.on_line(particles.y, params.half, FINER * self.grid),
        )

    def scene(self, particles: AggregationParticles, params: AggregationParams, time: jax.Array) -> Scene:
        """Particles as arrows along their last step, in the colour of its direction, or at rest; a cross at the common centre."""
        step_x, step_y = particles.step_x, particles.step_y
        length = jnp.hypot(step_x, step_y)
        moves = length > 1e-6
        cos, sin = (jnp.where(moves, step / jnp.where(moves, length, 1.0), 0.0) for step in (step_x, step_y))
        position, spacing = jnp.stack([particles.x, particles.y], axis=1), 2.0 * params.half / math.sqrt(self.agents)
        polygons = shapes.arrows(position, cos, sin, spacing, jnp.where(moves[:, None], shapes.hue(cos, sin), 0.0))
        resting = jnp.where(moves[:, None], 0.0, jnp.array(shapes.FAINT))
        centre, arm = jnp.mean(position, axis=0), 0.05 * params.half * jnp.array([[-1.0, 0.0], [0.0, -1.0]])
        cross = Segments(centre + arm, centre - arm, jnp.full(2, 3.0), jnp.array([shapes.INK] * 2))
        return shapes.compose(
            params.half * jnp.array([-1.0, 1.0, -1.0, 1.0]),
            time,
            Gathered(jnp.round(-self.evaluate(particles, params)[1], 2)),
            position,
            cross,
            Circles(position, jnp.broadcast_to(shapes.HEAD * spacing, (self.agents,)), resting),
            polygons,
        )


def clip_norm(action: jax.Array) -> jax.Array:
    """[2, N] vectors scaled down to a length of at most 1."""
    return action / jnp.maximum(jnp.hypot(action[0], action[1]), 1.0)
