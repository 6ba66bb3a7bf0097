"""Task ``vicsek`` of ``collective``: particles of constant speed that align with their neighbours.

The model is that of Vicsek et al. (1995), "Novel Type of Phase Transition in a System of Self-Driven Particles", updated in
parallel: θ ← arg Σ_near e^{iθ} + turn + noise, then a step along the new heading.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.fields import param
from marljax.core.scene import Circles, Scene, Segments, empty
from marljax.envs.collective import population
from marljax.envs.collective import scene as shapes
from marljax.envs.collective.neighbours import Search, materialize
from marljax.envs.collective.task import LARGE, Task
from marljax.utils.random import flat, row

DENSITY = 4.0  # particles per unit of area in the default box
CONTROLS = ("add", "replace")


class VicsekParams(struct.PyTreeNode):
    """Parameters of task ``vicsek``: change those of ``default_params`` with ``.replace(…)``, which recompiles nothing."""

    box: Any = param(5.0, above=0.0, high=LARGE, help="length of the periodic square; default: 4 particles per unit of area")
    speed: Any = param(0.03, low=0.0, high=LARGE, help="per step")
    radius: Any = param(1.0, above=0.0, high=LARGE, help="distance within which particles are neighbours")
    noise: Any = param(4.0, low=0.0, high=2.0 * math.pi, unit="rad", help="width of the uniform noise of headings, centred on 0")
    max_turn: Any = param(math.pi / 4, low=0.0, high=math.pi, unit="rad/step", help="of an action of 1; π with control=replace")
    cost: Any = param(0.0, low=0.0, high=LARGE, help="price of a squared turn, per rad²")
    duration: Any = param(200, low=2, integer=True, help="steps per episode")


class VicsekParticles(struct.PyTreeNode):
    """Particles and sums over their neighbours, [N] each."""

    x: jax.Array
    y: jax.Array
    cos: jax.Array  # of the heading
    sin: jax.Array
    near: jax.Array  # neighbours, itself included
    mean_cos: jax.Array  # [H, N] of k times the neighbours' headings, k = 1 … H
    mean_sin: jax.Array  # [H, N]
    missed: jax.Array  # [] see ``Sums``


class Polarised(NamedTuple):
    """Status line of the scene."""

    polarisation: jax.Array


@dataclasses.dataclass(frozen=True)
class Vicsek(Task):
    """See ``Collective``."""

    replaces: bool  # an action turns a particle from its own heading, not from its neighbours'
    bins: int  # B
    search: Search

    action_size: ClassVar[int] = 1
    own: ClassVar = ("cos", "sin")
    relative: ClassVar = ("mean cos", "mean sin", "neighbours")
    directions: ClassVar = ("heading right", "up", "left", "down")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*super().columns, *(f"share {number}" for number in range(self.bins)))

    @property
    def default_params(self) -> VicsekParams:
        params = VicsekParams(box=math.sqrt(self.agents / DENSITY))
        return params.replace(max_turn=math.pi) if self.replaces else params

    def start(self, key: jax.Array, params: VicsekParams) -> VicsekParticles:
        x, y, turn = flat(jax.random.uniform, key, (3, self.agents))
        angle = 2.0 * math.pi * turn
        return self.with_neighbours(x * params.box, y * params.box, jnp.cos(angle), jnp.sin(angle), params)

    def with_neighbours(
        self, x: jax.Array, y: jax.Array, cos: jax.Array, sin: jax.Array, params: VicsekParams
    ) -> VicsekParticles:
        """Particles at these positions and headings, with the sums over their neighbours."""
        x, y, cos, sin = materialize(x, y, cos, sin)
        cosines, sines = population.powers(cos, sin, max(self.bins - 1, 1))
        values = jnp.concatenate([jnp.ones_like(x)[None], cosines, sines])
        total, missed = self.search.sums(x, y, values, params.radius, params.box)
        near = jnp.maximum(total[0], 1.0)
        mean_cos, mean_sin = jnp.split(total[1:] / near, 2)
        return VicsekParticles(x, y, cos, sin, near, mean_cos, mean_sin, missed)

    def move(self, key: jax.Array, particles: VicsekParticles, action: jax.Array, params: VicsekParams) -> VicsekParticles:
        noise = row(jax.random.uniform, key, self.agents)[: self.agents] - 0.5
        return self.move_with_noise(noise * params.noise, particles, action, params)

    def move_with_noise(
        self, noise: jax.Array, particles: VicsekParticles, action: jax.Array, params: VicsekParams
    ) -> VicsekParticles:
        """``move`` with noise [N] in rad."""
        cos, sin = particles.cos, particles.sin
        if not self.replaces:  # start from the neighbours' mean heading; where that vanishes, from one's own
            mean_cos, mean_sin = particles.mean_cos[0], particles.mean_sin[0]
            length = jnp.hypot(mean_cos, mean_sin)
            defined = length > 1e-6
            scale = 1.0 / jnp.where(defined, length, 1.0)
            cos, sin = jnp.where(defined, mean_cos * scale, cos), jnp.where(defined, mean_sin * scale, sin)
        turn = action[0] * params.max_turn + noise
        turn_cos, turn_sin = jnp.cos(turn), jnp.sin(turn)
        cos, sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
        length = jax.lax.rsqrt(cos * cos + sin * sin)  # against drift by rounding
        cos, sin = cos * length, sin * length

        def wrap(position: jax.Array) -> jax.Array:
            position = position - params.box * jnp.floor(position / params.box)
            return jnp.where(position >= params.box, 0.0, position)  # the difference may round up to the box itself

        x, y = wrap(particles.x + params.speed * cos), wrap(particles.y + params.speed * sin)
        return self.with_neighbours(x, y, cos, sin, params)

    def evaluate(self, particles: VicsekParticles, params: VicsekParams) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        local = jnp.hypot(particles.mean_cos[0], particles.mean_sin[0])
        polarisation = population.polarisation(particles.cos, particles.sin)
        return local, polarisation, {"polarisation": polarisation, "local_polarisation": jnp.mean(local)}

    def squared_control(self, action: jax.Array, params: VicsekParams) -> jax.Array:
        return jnp.square(action[0] * params.max_turn)

    def observations(self, particles: VicsekParticles, params: VicsekParams) -> jax.Array:
        cos, sin, mean_cos, mean_sin = particles.cos, particles.sin, particles.mean_cos, particles.mean_sin
        own_cos, own_sin = population.powers(cos, sin, mean_cos.shape[0])
        relative_cos = mean_cos * own_cos + mean_sin * own_sin
        relative_sin = mean_sin * own_cos - mean_cos * own_sin
        even = self.agents * math.pi * params.radius**2 / params.box**2
        headings = [cos, sin, mean_cos[0], mean_sin[0]] if self.absolute else [relative_cos[0], relative_sin[0]]
        parts = [jnp.stack([*headings, particles.near / even])]
        if self.bins:
            parts.append(population.shares(relative_cos, relative_sin, self.bins))
        return jnp.concatenate(parts)

    def density(self, particles: VicsekParticles, params: VicsekParams) -> jax.Array:
        angles = [2.0 * math.pi * position / params.box for position in (particles.x, particles.y)]
        positions = [population.on_circle(jnp.cos(angle), jnp.sin(angle), self.grid) for angle in angles]
        return population.joint(*positions, population.on_circle(particles.cos, particles.sin, self.grid))

    def scene(self, particles: VicsekParticles, params: VicsekParams, time: jax.Array) -> Scene:
        """Particles as arrows, in the colour of their direction."""
        cos, sin = particles.cos, particles.sin
        position = jnp.stack([particles.x, particles.y], axis=1)
        polygons = shapes.arrows(position, cos, sin, params.box / math.sqrt(self.agents), shapes.hue(cos, sin))
        bounds = params.box * jnp.array([0.0, 1.0, 0.0, 1.0])
        status = Polarised(jnp.round(population.polarisation(cos, sin), 2))
        return shapes.compose(bounds, time, status, position, empty(Segments), empty(Circles), polygons)
