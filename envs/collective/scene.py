"""How ``collective`` is drawn: particles as short headings in the colour of their direction, oscillators on a circle."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty

INK: Colour = (0.15, 0.15, 0.15, 1.0)
FAINT: Colour = (0.8, 0.8, 0.8, 1.0)
RIM = 96  # segments of a drawn circle
HEAD = 0.1  # radius of a particle's head, in spacings
SPREAD = 0.3  # how far an oscillator of the highest rank lies outside of the unit circle


class Polarised(NamedTuple):
    """Written beside the time."""

    polarisation: jax.Array


class Ordered(NamedTuple):
    """Written beside the time."""

    order: jax.Array


class Gathered(NamedTuple):
    """Written beside the time."""

    distance: jax.Array


def hue(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[…, 4] colour of a direction: three cosines a third of a turn apart, so that it closes without a seam."""
    lag = 2.0 * math.pi / 3.0 * np.arange(3)
    tint = 0.5 + 0.42 * (cos[..., None] * np.cos(lag) + sin[..., None] * np.sin(lag))
    return jnp.concatenate([tint, jnp.ones_like(tint[..., :1])], axis=-1)


def legend(*names: str) -> tuple[tuple[str, Colour], ...]:
    """Names of four directions, a quarter of a turn apart, with their colours."""
    angle = 0.5 * math.pi * np.arange(4)
    colours = np.asarray(hue(np.cos(angle), np.sin(angle))).tolist()
    return tuple((name, (red, green, blue, alpha)) for name, (red, green, blue, alpha) in zip(names, colours, strict=True))


def headings(
    x: jax.Array,
    y: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    spacing: jax.Array,
    bounds: jax.Array,
    time: jax.Array,
    status: NamedTuple,
) -> Scene:
    """Particles [N] as lines along their headings, with a head; ``spacing`` is how far apart they would lie on a grid."""
    colour, place = hue(cos, sin), jnp.stack([x, y], axis=1)
    along = 0.55 * spacing * jnp.stack([cos, sin], axis=1)
    width = float(np.clip(28.0 / math.sqrt(x.shape[0]), 0.7, 2.6))
    return Scene(
        segments=Segments(place - along, place, jnp.full(x.shape, width), colour),
        boxes=empty(Boxes),
        circles=Circles(place, jnp.broadcast_to(HEAD * spacing, x.shape), colour),
        labels=empty(Labels),
        bounds=bounds,
        time=time,
        status=status,
    )


def phases(phase: jax.Array, rank: jax.Array, time: jax.Array) -> Scene:
    """Oscillators [N] at their phases, further out the higher their natural frequencies' ``rank`` in (−1, 1) is."""
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    mean = jnp.stack([jnp.mean(cos), jnp.mean(sin)])
    rim = 2.0 * math.pi * np.arange(RIM + 1) / RIM
    circle = np.stack([np.cos(rim), np.sin(rim)], axis=1)
    start = jnp.concatenate([circle[:-1], jnp.zeros((1, 2))])
    end = jnp.concatenate([circle[1:], mean[None]])
    width = np.array([1.0] * RIM + [5.0])
    colour = np.array([FAINT] * RIM + [INK])
    away = 1.0 + SPREAD * rank
    size = float(np.clip(0.4 / math.sqrt(phase.shape[0]), 0.008, 0.03))
    most = 1.1 + SPREAD
    return Scene(
        segments=Segments(start, end, jnp.array(width), jnp.array(colour)),
        boxes=empty(Boxes),
        circles=Circles(away[:, None] * jnp.stack([cos, sin], axis=1), jnp.full(phase.shape, size), hue(cos, sin)),
        labels=empty(Labels),
        bounds=jnp.array([-most, most, -most, most]),
        time=time,
        status=Ordered(jnp.round(jnp.hypot(mean[0], mean[1]), 2)),
    )


def gathering(
    x: jax.Array, y: jax.Array, step_x: jax.Array, step_y: jax.Array, half: jax.Array, distance: jax.Array, time: jax.Array
) -> Scene:
    """Particles [N] in a square of ±``half``, in the colour of their last step, which is drawn behind them; a cross in the
    middle of all."""
    length = jnp.hypot(step_x, step_y)
    moves = length > 1e-6
    scale = jnp.where(moves, 1.0 / jnp.where(moves, length, 1.0), 0.0)
    colour = jnp.where(moves[:, None], hue(step_x * scale, step_y * scale), jnp.array(FAINT))
    place = jnp.stack([x, y], axis=1)
    spacing = 2.0 * half / math.sqrt(x.shape[0])
    centre, arm = jnp.mean(place, axis=0), 0.05 * half
    cross = np.array([[-1.0, 0.0], [0.0, -1.0]])
    start = jnp.concatenate([place - jnp.stack([step_x, step_y], axis=1), centre + arm * cross])
    end = jnp.concatenate([place, centre - arm * cross])
    width = float(np.clip(28.0 / math.sqrt(x.shape[0]), 0.7, 2.6))
    return Scene(
        segments=Segments(
            start,
            end,
            jnp.array([width] * x.shape[0] + [3.0] * 2),
            jnp.concatenate([colour, jnp.array([INK] * 2)]),
        ),
        boxes=empty(Boxes),
        circles=Circles(place, jnp.broadcast_to(HEAD * spacing, x.shape), colour),
        labels=empty(Labels),
        bounds=half * jnp.array([-1.0, 1.0, -1.0, 1.0]),
        time=time,
        status=Gathered(jnp.round(distance, 2)),
    )
