"""Shapes and colours that the scenes of ``collective`` share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty

INK: Colour = (0.15, 0.15, 0.15, 1.0)
FAINT: Colour = (0.8, 0.8, 0.8, 1.0)
HEAD = 0.1  # radius of a particle's head, in spacings


def hue(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[…, 4] colour of a direction: three cosines a third of a turn apart, which close without a seam."""
    lag = 2.0 * math.pi / 3.0 * np.arange(3)
    tint = 0.5 + 0.42 * (cos[..., None] * np.cos(lag) + sin[..., None] * np.sin(lag))
    return jnp.concatenate([tint, jnp.ones_like(tint[..., :1])], axis=-1)


def legend(*names: str) -> tuple[tuple[str, Colour], ...]:
    """Names of four directions, a quarter of a turn apart, with their colours."""
    angle = 0.5 * math.pi * np.arange(4)
    colours = np.asarray(hue(np.cos(angle), np.sin(angle))).tolist()
    return tuple((name, (red, green, blue, alpha)) for name, (red, green, blue, alpha) in zip(names, colours, strict=True))


def particles(tail: jax.Array, head: jax.Array, spacing: jax.Array, colour: jax.Array) -> tuple[Segments, Circles]:
    """Particles as lines from ``tail`` to ``head`` [N, 2] that end in a disc; ``spacing`` is their distance on an even grid."""
    size = head.shape[0]
    width = float(np.clip(28.0 / math.sqrt(size), 0.7, 2.6))
    return Segments(tail, head, jnp.full(size, width), colour), Circles(head, jnp.broadcast_to(HEAD * spacing, (size,)), colour)


def compose(segments: Segments, circles: Circles, bounds: jax.Array, time: jax.Array, status: Any) -> Scene:
    """A scene of lines and discs only, a disc for each particle."""
    return Scene(segments, empty(Boxes), circles, empty(Labels), bounds, time, status, agents=circles.centre)
