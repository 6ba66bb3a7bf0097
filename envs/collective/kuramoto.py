"""Task ``kuramoto`` of ``collective``: oscillators that pull one another towards a common phase.

θ̇_i = ω_i + (K/N) Σ_j sin(θ_j − θ_i) + a_i (Kuramoto 1984, with a control a). With r e^{iψ} the mean of e^{iθ} the sum is
K r sin(ψ − θ_i): all pairs at the price of one mean. For Lorentzian frequencies of width γ and no control, order sets in at
K = 2γ, with r = √(1 − 2γ/K) beyond (Strogatz 2000, "From Kuramoto to Crawford", eq. 4.7).
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
from marljax.envs.collective.task import LARGE, Task
from marljax.envs.collective.vicsek import polarisation
from marljax.utils.random import flat
from marljax.utils.validation import POSITIVE

FREQUENCIES = ("lorentzian", "normal")
RAREST = 1e-5  # ranks closer than this to 0 or 1 are not drawn: a Lorentzian has no largest frequency
PHASES = 4  # centres of phases for each of the global state's centres of ranks


class KuramotoParams(struct.PyTreeNode):
    """The numbers of task ``kuramoto``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    coupling: Any = 1.5  # K, rad per unit of time
    width: Any = 1.0  # of the natural frequencies: γ of a Lorentzian, deviation of a normal distribution
    timestep: Any = 0.1  # units of time
    max_rate: Any = 2.0  # rad per unit of time that an action of 1 adds
    cost: Any = 0.05  # price of a squared rate, per (rad per unit of time)²
    duration: Any = 200  # steps


class KuramotoParticles(struct.PyTreeNode):
    """Oscillators, [N] each."""

    phase: jax.Array  # rad, in [-π, π]
    rank: jax.Array  # of the natural frequency among all that can be drawn, in (-1, 1)


@dataclasses.dataclass(frozen=True)
class Kuramoto(Task):
    """See ``Collective``."""

    frequencies: str

    components: ClassVar[int] = 1
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "coupling": (0.0, LARGE),
        "width": (0.0, LARGE),
        "timestep": (POSITIVE, LARGE),
        "max_rate": (0.0, LARGE),
        "cost": (0.0, LARGE),
    }

    @property
    def numbers(self) -> KuramotoParams:
        return KuramotoParams()

    @property
    def seen(self) -> int:
        return 2 * self.absolute + 3

    @property
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        return (
            *pictures.legend("phase 0", "π/2", "π", "3π/2"),
            ("mean field", pictures.INK),
            ("rim: median frequency; outside: faster", pictures.FAINT),
        )

    def start(self, key: jax.Array, numbers: KuramotoParams) -> KuramotoParticles:
        phase, rank = flat(jax.random.uniform, key, (2, self.agents))
        rank = jnp.clip(rank, RAREST, 1.0 - RAREST)
        return KuramotoParticles(math.pi * (2.0 * phase - 1.0), 2.0 * rank - 1.0)

    def move(self, key: jax.Array, particles: KuramotoParticles, action: jax.Array, numbers: KuramotoParams) -> KuramotoParticles:
        """One step of Heun's method."""
        del key
        own = natural(particles.rank, self.frequencies, numbers.width) + action[0] * numbers.max_rate
        first = own + numbers.coupling * _pull(particles.phase)
        second = own + numbers.coupling * _pull(particles.phase + numbers.timestep * first)
        phase = particles.phase + 0.5 * numbers.timestep * (first + second)
        return particles.replace(phase=phase - 2.0 * math.pi * jnp.round(phase / (2.0 * math.pi)))

    def value(self, particles: KuramotoParticles, numbers: KuramotoParams) -> tuple[jax.Array, jax.Array]:
        cos, sin = jnp.cos(particles.phase), jnp.sin(particles.phase)
        whole = polarisation(cos, sin)
        return (cos * jnp.mean(cos) + sin * jnp.mean(sin)) / jnp.maximum(whole, 1e-6), whole

    def control(self, action: jax.Array, numbers: KuramotoParams) -> jax.Array:
        return jnp.square(action[0] * numbers.max_rate)

    def figures(self, particles: KuramotoParticles, numbers: KuramotoParams) -> dict[str, jax.Array]:
        return {"order": self.value(particles, numbers)[1]}

    def view(self, particles: KuramotoParticles, numbers: KuramotoParams) -> jax.Array:
        cos, sin = jnp.cos(particles.phase), jnp.sin(particles.phase)
        mean_cos, mean_sin = jnp.mean(cos), jnp.mean(sin)
        relative = [mean_cos * cos + mean_sin * sin, mean_sin * cos - mean_cos * sin, particles.rank]
        return jnp.stack([cos, sin, *relative] if self.absolute else relative)

    def density(self, particles: KuramotoParticles, numbers: KuramotoParams) -> jax.Array:
        phases = population.on_circle(jnp.cos(particles.phase), jnp.sin(particles.phase), PHASES * self.grid)
        return population.joint(phases, population.on_line(particles.rank, jnp.ones(()), self.grid))

    def draw(self, particles: KuramotoParticles, numbers: KuramotoParams, time: jax.Array) -> Scene:
        return pictures.phases(particles.phase, particles.rank, time)


def natural(rank: jax.Array, frequencies: str, width: jax.Array) -> jax.Array:
    """[N] natural frequencies, rad per unit of time: a distribution's quantiles at ranks in (−1, 1)."""
    if frequencies == "normal":
        return width * jax.scipy.special.ndtri(0.5 * (rank + 1.0))
    return width * jnp.tan(0.5 * math.pi * rank)


def _pull(phase: jax.Array) -> jax.Array:
    """[N] r sin(ψ − θ): the mean over all oscillators of sin(θ_j − θ)."""
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    return jnp.mean(sin) * cos - jnp.mean(cos) * sin
