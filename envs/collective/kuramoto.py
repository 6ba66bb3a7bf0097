"""Task ``kuramoto`` of ``collective``: oscillators that pull one another towards a common phase.

θ̇_i = ω_i + (K/N) Σ_j sin(θ_j − θ_i) + a_i (Kuramoto 1984, with a control a). With r e^{iψ} the mean of e^{iθ} the sum is
K r sin(ψ − θ_i): all pairs at the price of one mean. For Lorentzian frequencies of width γ and no control, order sets in at
K = 2γ, with r = √(1 − 2γ/K) beyond (Strogatz 2000, "From Kuramoto to Crawford", eq. 4.7).
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.core.scene import Circles, Scene, Segments
from marljax.envs.collective import population
from marljax.envs.collective import scene as shapes
from marljax.envs.collective.task import LARGE, Task
from marljax.utils.random import flat

FREQUENCIES = ("lorentzian", "normal")
RAREST = 1e-5  # distance of ranks from 0 and 1: a Lorentzian has no largest frequency
PHASES = 4  # centres of phases for each of the global state's centres of ranks
RIM = 96  # segments of a drawn circle
SPREAD = 0.3  # how far outside the unit circle an oscillator of the highest rank is drawn


class KuramotoParams(struct.PyTreeNode):
    """Parameters of task ``kuramoto``: change those of ``default_params`` with ``.replace(…)``, which recompiles nothing."""

    coupling: Any = param(1.5, low=0.0, high=LARGE, unit="rad/time", help="K")
    width: Any = param(
        1.0,
        low=0.0,
        high=LARGE,
        unit="rad/time",
        help="of natural frequencies: γ of a Lorentzian, σ of a normal distribution",
    )
    timestep: Any = param(0.1, above=0.0, high=LARGE, unit="time")
    max_rate: Any = param(2.0, low=0.0, high=LARGE, unit="rad/time", help="added by an action of 1")
    cost: Any = param(0.05, low=0.0, high=LARGE, help="price of a squared rate, per (rad/time)²")
    duration: Any = param(200, low=2, integer=True, help="steps per episode")


class KuramotoParticles(struct.PyTreeNode):
    """Oscillators, [N] each."""

    phase: jax.Array  # rad, in [-π, π]
    rank: jax.Array  # of the natural frequency within its distribution, in (-1, 1)


class Ordered(NamedTuple):
    """Status line of the scene."""

    order: jax.Array


@dataclasses.dataclass(frozen=True)
class Kuramoto(Task):
    """See ``Collective``."""

    frequencies: str

    action_size: ClassVar[int] = 1
    own: ClassVar = ("cos", "sin")
    relative: ClassVar = ("mean field cos", "mean field sin", "frequency rank")
    directions: ClassVar = ("phase 0", "π/2", "π", "3π/2")
    other_colours: ClassVar = (("mean field", shapes.INK), ("rim: median frequency; outside: faster", shapes.FAINT))
    default_params: ClassVar[KuramotoParams] = KuramotoParams()

    def start(self, key: jax.Array, params: KuramotoParams) -> KuramotoParticles:
        phase, rank = flat(jax.random.uniform, key, (2, self.agents))
        rank = jnp.clip(rank, RAREST, 1.0 - RAREST)
        return KuramotoParticles(math.pi * (2.0 * phase - 1.0), 2.0 * rank - 1.0)

    def move(self, key: jax.Array, particles: KuramotoParticles, action: jax.Array, params: KuramotoParams) -> KuramotoParticles:
        """One step of Heun's method."""
        del key
        own = natural_frequency(particles.rank, self.frequencies, params.width) + action[0] * params.max_rate

        def rate(phase: jax.Array) -> jax.Array:
            cos, sin = jnp.cos(phase), jnp.sin(phase)
            return own + params.coupling * (jnp.mean(sin) * cos - jnp.mean(cos) * sin)

        first = rate(particles.phase)
        second = rate(particles.phase + params.timestep * first)
        phase = particles.phase + 0.5 * params.timestep * (first + second)
        return particles.replace(phase=phase - 2.0 * math.pi * jnp.round(phase / (2.0 * math.pi)))

    def evaluate(self, particles: KuramotoParticles, params: KuramotoParams) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        cos, sin = jnp.cos(particles.phase), jnp.sin(particles.phase)
        order = population.polarisation(cos, sin)
        return (cos * jnp.mean(cos) + sin * jnp.mean(sin)) / jnp.maximum(order, 1e-6), order, {"order": order}

    def squared_control(self, action: jax.Array, params: KuramotoParams) -> jax.Array:
        return jnp.square(action[0] * params.max_rate)

    def observations(self, particles: KuramotoParticles, params: KuramotoParams) -> jax.Array:
        cos, sin = jnp.cos(particles.phase), jnp.sin(particles.phase)
        mean_cos, mean_sin = jnp.mean(cos), jnp.mean(sin)
        relative = [mean_cos * cos + mean_sin * sin, mean_sin * cos - mean_cos * sin, particles.rank]
        return jnp.stack([cos, sin, *relative] if self.absolute else relative)

    def density(self, particles: KuramotoParticles, params: KuramotoParams) -> jax.Array:
        phases = population.on_circle(jnp.cos(particles.phase), jnp.sin(particles.phase), PHASES * self.grid)
        return population.joint(phases, population.on_line(particles.rank, jnp.ones(()), self.grid))

    def scene(self, particles: KuramotoParticles, params: KuramotoParams, time: jax.Array) -> Scene:
        """Oscillators around a circle, further out the higher their rank, and a line from the centre to their mean."""
        cos, sin = jnp.cos(particles.phase), jnp.sin(particles.phase)
        mean = jnp.stack([jnp.mean(cos), jnp.mean(sin)])
        angle = 2.0 * math.pi * np.arange(RIM + 1) / RIM
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        lines = Segments(
            start=jnp.concatenate([circle[:-1], jnp.zeros((1, 2))]),
            end=jnp.concatenate([circle[1:], mean[None]]),
            width=jnp.array([1.0] * RIM + [5.0]),
            colour=jnp.array([shapes.FAINT] * RIM + [shapes.INK]),
        )
        radius = float(np.clip(0.4 / math.sqrt(self.agents), 0.008, 0.03))
        centre = (1.0 + SPREAD * particles.rank)[:, None] * jnp.stack([cos, sin], axis=1)
        edge = 1.1 + SPREAD
        return shapes.compose(
            jnp.array([-edge, edge, -edge, edge]),
            time,
            Ordered(jnp.round(jnp.hypot(mean[0], mean[1]), 2)),
            centre,
            lines,
            Circles(centre, jnp.full(self.agents, radius), shapes.hue(cos, sin)),
        )


def natural_frequency(rank: jax.Array, frequencies: str, width: jax.Array) -> jax.Array:
    """[N] natural frequencies in rad/time: a distribution's quantiles at ranks in (−1, 1)."""
    if frequencies == "normal":
        return width * jax.scipy.special.ndtri(0.5 * (rank + 1.0))
    return width * jnp.tan(0.5 * math.pi * rank)
