"""Shapes and colours that the scenes of ``collective`` share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Polygons, Scene, Segments, empty

INK: Colour = (0.15, 0.15, 0.15, 1.0)
FAINT: Colour = (0.8, 0.8, 0.8, 1.0)
HEAD = 0.12  # radius of a particle at rest, in spacings
ARROW = 0.38 * np.array([[1.0, 0.0], [-0.8, 0.65], [-0.4, 0.0], [-0.8, -0.65]])  # corners, in spacings ahead and to the left


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


def arrows(position: jax.Array, cos: jax.Array, sin: jax.Array, spacing: jax.Array, colour: jax.Array) -> Polygons:
    """Particles at ``position`` [N, 2] as arrowheads along their directions; ``spacing`` is their distance on an even grid."""
    ahead, aside = jnp.stack([cos, sin], axis=1), jnp.stack([-sin, cos], axis=1)
    offsets = ARROW[:, :1] * ahead[:, None] + ARROW[:, 1:] * aside[:, None]
    return Polygons(position[:, None] + spacing * offsets, colour)


def compose(
    bounds: jax.Array, time: jax.Array, status: Any, agents: jax.Array, lines: Segments, discs: Circles, polygons: Any = ()
) -> Scene:
    """A scene of these shapes only."""
    return Scene(lines, empty(Boxes), discs, empty(Labels), bounds, time, status, polygons=polygons, agents=agents)
