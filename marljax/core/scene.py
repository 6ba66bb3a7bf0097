"""What an environment hands to a renderer: arrays of simple shapes, in the environment's own units.

A scene is a pytree of fixed shapes, so ``jax.vmap(env.scene)`` draws a whole episode in one call; the renderer turns the stacked
scenes into a picture or an animation. Colours are RGBA in [0, 1]; a shape with alpha 0 is absent.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Colour = tuple[float, float, float, float]  # RGBA in [0, 1]


class Circles(NamedTuple):
    """Filled discs."""

    centre: jax.Array  # [K, 2]
    radius: jax.Array  # [K]
    colour: jax.Array  # [K, 4]


class Boxes(NamedTuple):
    """Filled oriented rectangles."""

    centre: jax.Array  # [K, 2]
    size: jax.Array  # [K, 2]: length along the heading, width
    heading: jax.Array  # [K] radians, counter-clockwise from +x
    colour: jax.Array  # [K, 4]


class Segments(NamedTuple):
    """Straight lines."""

    start: jax.Array  # [K, 2]
    end: jax.Array  # [K, 2]
    width: jax.Array  # [K], points
    colour: jax.Array  # [K, 4]


class Labels(NamedTuple):
    """Numbers written at a place (an agent's index, a count)."""

    position: jax.Array  # [K, 2]
    value: jax.Array  # [K] int
    colour: jax.Array  # [K, 4]


class Polygons(NamedTuple):
    """Filled polygons with V corners each, painted one after the other: what is farther away comes before what hides it."""

    corners: jax.Array  # [K, V, 2]
    colour: jax.Array  # [K, 4]


class Trails(NamedTuple):
    """Points whose ways of late an animation draws as fading lines; the picture of a single scene has none."""

    position: jax.Array  # [K, 2]
    width: jax.Array  # [K], points
    lasts: jax.Array  # [K] in the unit of the scene's time: how long a line stays
    colour: jax.Array  # [K, 4]; a way is interrupted where its point was absent


class Scene(NamedTuple):
    """Everything drawn for one state, in drawing order: trails, segments, boxes, polygons, circles, labels."""

    segments: Segments
    boxes: Boxes
    circles: Circles
    labels: Labels
    bounds: jax.Array  # [4]: x_min, x_max, y_min, y_max of the view
    time: jax.Array  # [] seconds (or steps) since the episode began
    status: Any = ()  # numbers [] to be written beside the time: a NamedTuple, whose field names say what they are
    listed: Any = ()  # [L] bool: what of the environment's legend of L entries this scene needs; () for all of it
    polygons: Any = ()  # Polygons
    trails: Any = ()  # Trails
    axis: Any = ()  # [] bool: whether lengths stand below the picture, which has none in perspective; () for yes


def kinds(scene: Scene) -> tuple[Any, ...]:
    """All of the scene's shapes, a record for each kind that it has; what they share is ``colour``."""
    shapes = (scene.segments, scene.boxes, scene.circles, scene.labels, scene.polygons, scene.trails)
    return tuple(kind for kind in shapes if hasattr(kind, "colour"))


def empty(kind: Any) -> Any:
    """No shapes of a kind, for scenes that need none."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("centre", "position", "start", "end", "size"), (0, 2))
    shapes |= {"colour": (0, 4), "corners": (0, 3, 2)}
    return kind(*(jnp.zeros(shapes.get(field, (0,))) for field in kind._fields))
