"""Task ``vicsek`` of ``collective``: particles of constant speed that turn with their neighbours.

The model is that of Vicsek et al. (1995), "Novel Type of Phase Transition in a System of Self-Driven Particles", updated in
parallel: θ ← arg Σ_near e^{iθ} + turn + noise, then a step along the new heading.
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
from marljax.utils.random import flat, row
from marljax.utils.validation import POSITIVE

DENSITY = 4.0  # particles per unit of area, where the box is left as it is
CONTROLS = ("add", "replace")


class VicsekParams(struct.PyTreeNode):
    """The numbers of task ``vicsek``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    box: Any = 5.0  # length of the periodic square; by default 4 particles per unit of area
    speed: Any = 0.03  # per step
    radius: Any = 1.0  # within which particles are neighbours
    noise: Any = 4.0  # rad: a heading is off by up to half of it either way, uniformly
    max_turn: Any = math.pi / 4  # rad per step, of an action of 1; π where actions replace the neighbours' mean
    cost: Any = 0.0  # price of a squared turn, per rad²
    duration: Any = 200  # steps


class VicsekParticles(struct.PyTreeNode):
    """Where particles are and what they see, [N] each."""

    x: jax.Array
    y: jax.Array
    cos: jax.Array  # of the heading
    sin: jax.Array
    near: jax.Array  # neighbours, itself included
    mean_cos: jax.Array  # [H, N] of k times the neighbours' headings, k = 1 … H
    mean_sin: jax.Array  # [H, N]
    missed: jax.Array  # [] see ``Sums``


@dataclasses.dataclass(frozen=True)
class Vicsek(Task):
    """See ``Collective``."""

    replaces: bool  # an action turns a particle from its own heading, not from its neighbours'
    bins: int  # B
    search: Search

    components: ClassVar[int] = 1
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "box": (POSITIVE, LARGE),
        "speed": (0.0, LARGE),
        "radius": (POSITIVE, LARGE),
        "noise": (0.0, 2.0 * math.pi),
        "max_turn": (0.0, math.pi),
        "cost": (0.0, LARGE),
    }

    @property
    def numbers(self) -> VicsekParams:
        most = {"max_turn": math.pi} if self.replaces else {}
        return VicsekParams(box=math.sqrt(self.agents / DENSITY), **most)

    @property
    def seen(self) -> int:
        return 2 * self.absolute + 3 + self.bins

    @property
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        return pictures.legend("heading right", "up", "left", "down")

    def start(self, key: jax.Array, numbers: VicsekParams) -> VicsekParticles:
        x, y, turn = flat(jax.random.uniform, key, (3, self.agents))
        angle = 2.0 * math.pi * turn
        return self.look(x * numbers.box, y * numbers.box, jnp.cos(angle), jnp.sin(angle), numbers)

    def look(self, x: jax.Array, y: jax.Array, cos: jax.Array, sin: jax.Array, numbers: VicsekParams) -> VicsekParticles:
        """Particles at these places and headings, with what they see."""
        x, y, cos, sin = settled(x, y, cos, sin)
        cosines, sines = population.powers(cos, sin, max(self.bins - 1, 1))
        values = jnp.concatenate([jnp.ones_like(x)[None], cosines, sines])
        total, missed = self.search.sums(x, y, values, numbers.radius, numbers.box)
        near = jnp.maximum(total[0], 1.0)
        mean_cos, mean_sin = jnp.split(total[1:] / near, 2)
        return VicsekParticles(x, y, cos, sin, near, mean_cos, mean_sin, missed)

    def move(self, key: jax.Array, particles: VicsekParticles, action: jax.Array, numbers: VicsekParams) -> VicsekParticles:
        noise = row(jax.random.uniform, key, self.agents)[: self.agents] - 0.5
        return self.moved(noise * numbers.noise, particles, action, numbers)

    def moved(self, noise: jax.Array, particles: VicsekParticles, action: jax.Array, numbers: VicsekParams) -> VicsekParticles:
        """``move`` with the noise [N] rad given."""
        turn = action[0] * numbers.max_turn + noise
        cos, sin = (particles.cos, particles.sin) if self.replaces else _direction(particles)
        turn_cos, turn_sin = jnp.cos(turn), jnp.sin(turn)
        cos, sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
        length = jax.lax.rsqrt(cos * cos + sin * sin)  # rounding would let it drift
        cos, sin = cos * length, sin * length
        x, y = (_wrapped(place + numbers.speed * part, numbers.box) for place, part in ((particles.x, cos), (particles.y, sin)))
        return self.look(x, y, cos, sin, numbers)

    def value(self, particles: VicsekParticles, numbers: VicsekParams) -> tuple[jax.Array, jax.Array]:
        return jnp.hypot(particles.mean_cos[0], particles.mean_sin[0]), polarisation(particles.cos, particles.sin)

    def control(self, action: jax.Array, numbers: VicsekParams) -> jax.Array:
        return jnp.square(action[0] * numbers.max_turn)

    def figures(self, particles: VicsekParticles, numbers: VicsekParams) -> dict[str, jax.Array]:
        local, whole = self.value(particles, numbers)
        return {"polarisation": whole, "local_polarisation": jnp.mean(local)}

    def view(self, particles: VicsekParticles, numbers: VicsekParams) -> jax.Array:
        cos, sin, mean_cos, mean_sin = particles.cos, particles.sin, particles.mean_cos, particles.mean_sin
        turned_cos, turned_sin = population.powers(cos, sin, mean_cos.shape[0])
        relative_cos = mean_cos * turned_cos + mean_sin * turned_sin
        relative_sin = mean_sin * turned_cos - mean_cos * turned_sin
        even = self.agents * math.pi * numbers.radius**2 / numbers.box**2
        seen = [cos, sin, mean_cos[0], mean_sin[0]] if self.absolute else [relative_cos[0], relative_sin[0]]
        parts = [jnp.stack([*seen, particles.near / even])]
        if self.bins:
            parts.append(population.shares(relative_cos, relative_sin, self.bins))
        return jnp.concatenate(parts)

    def density(self, particles: VicsekParticles, numbers: VicsekParams) -> jax.Array:
        angles = [2.0 * math.pi * place / numbers.box for place in (particles.x, particles.y)]
        places = [population.on_circle(jnp.cos(angle), jnp.sin(angle), self.grid) for angle in angles]
        return population.joint(*places, population.on_circle(particles.cos, particles.sin, self.grid))

    def missed(self, particles: VicsekParticles) -> jax.Array:
        return particles.missed

    def draw(self, particles: VicsekParticles, numbers: VicsekParams, time: jax.Array) -> Scene:
        bounds = jnp.stack([jnp.zeros(()), numbers.box, jnp.zeros(()), numbers.box])
        spacing = numbers.box / math.sqrt(self.agents)
        status = pictures.Polarised(jnp.round(polarisation(particles.cos, particles.sin), 2))
        return pictures.headings(particles.x, particles.y, particles.cos, particles.sin, spacing, bounds, time, status)


def polarisation(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[] length of the mean heading: 0 without order, 1 where all headings agree. Also Kuramoto's order parameter r."""
    return jnp.hypot(jnp.mean(cos, axis=0), jnp.mean(sin, axis=0))


def _direction(particles: VicsekParticles) -> tuple[jax.Array, jax.Array]:
    """Where the neighbours go on average, as cos and sin; a particle whose neighbours cancel keeps its own heading."""
    cos, sin = particles.mean_cos[0], particles.mean_sin[0]
    length = jnp.hypot(cos, sin)
    clear = length > 1e-6
    scale = 1.0 / jnp.where(clear, length, 1.0)
    return jnp.where(clear, cos * scale, particles.cos), jnp.where(clear, sin * scale, particles.sin)


def _wrapped(place: jax.Array, box: jax.Array) -> jax.Array:
    """In [0, box); a remainder may round up to the box itself."""
    place = place - box * jnp.floor(place / box)
    return jnp.where(place >= box, 0.0, place)
