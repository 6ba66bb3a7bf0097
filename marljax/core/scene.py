"""Scenes: what an environment gives a renderer, as arrays of simple shapes in the environment's own units.

A scene is a pytree of fixed shapes, so ``jax.vmap(env.scene)`` yields those of a whole episode, which the renderer turns into a
picture or an animation. Colours are RGBA in [0, 1]; a shape with alpha 0 is absent.
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
    """Numbers written at a position, such as an agent's index or a count."""

    position: jax.Array  # [K, 2]
    value: jax.Array  # [K] int
    colour: jax.Array  # [K, 4]


class Polygons(NamedTuple):
    """Filled polygons with V corners each, painted in order: farther ones first."""

    corners: jax.Array  # [K, V, 2]
    colour: jax.Array  # [K, 4]


class Trails(NamedTuple):
    """Points whose recent paths an animation draws as fading lines; a single picture has none."""

    position: jax.Array  # [K, 2]
    width: jax.Array  # [K], points
    lasts: jax.Array  # [K] how long a line stays, in the unit of the scene's time
    colour: jax.Array  # [K, 4]; a path is interrupted where its point was absent


class Lines3D(NamedTuple):
    """Straight lines in space; only one on the floor lies below all other shapes."""

    start: jax.Array  # [K, 3]
    end: jax.Array  # [K, 3]
    colour: jax.Array  # [K, 4]


class Discs3D(NamedTuple):
    """Filled discs in space, such as rotors."""

    centre: jax.Array  # [K, 3]
    normal: jax.Array  # [K, 3] of length 1
    radius: jax.Array  # [K]
    colour: jax.Array  # [K, 4]


class Balls3D(NamedTuple):
    """Balls."""

    centre: jax.Array  # [K, 3]
    radius: jax.Array  # [K]
    colour: jax.Array  # [K, 4]


class Rings3D(NamedTuple):
    """Open rings that face the viewer, such as goals."""

    centre: jax.Array  # [K, 3]
    radius: jax.Array  # [K]
    colour: jax.Array  # [K, 4]


class Columns3D(NamedTuple):
    """Upright cylinders on the floor."""

    foot: jax.Array  # [K, 2]
    radius: jax.Array  # [K]
    height: jax.Array  # [K]
    colour: jax.Array  # [K, 4]


class Space(NamedTuple):
    """The same in three dimensions, z upwards from the floor, for viewers that turn it."""

    size: jax.Array  # [2]: half width around x = y = 0, and height, of what is in view
    agents: jax.Array  # [A, 3]
    lines: Lines3D
    discs: Discs3D
    balls: Balls3D
    rings: Rings3D
    columns: Columns3D


class Scene(NamedTuple):
    """Everything drawn for one state, in drawing order: trails, segments, boxes, polygons, circles, labels."""

    segments: Segments
    boxes: Boxes
    circles: Circles
    labels: Labels
    bounds: jax.Array  # [4]: x_min, x_max, y_min, y_max of the view
    time: jax.Array  # [] seconds (or steps) since the episode began
    status: Any = ()  # a NamedTuple of numbers [], written next to the time with their field names; of bools the true ones' names
    listed: Any = ()  # [L] bool: the entries of the environment's legend that this scene needs; () for all
    polygons: Any = ()  # Polygons
    trails: Any = ()  # Trails
    agents: Any = ()  # [≥ A, 2] where each agent is drawn, absent ones anywhere; () if no agent can be pointed at
    axis: Any = ()  # [] bool: whether to draw a length axis, which a perspective view has not; () for yes
    space: Any = ()  # Space, of a world in three dimensions


def kinds(scene: Scene) -> tuple[Any, ...]:
    """The scene's shapes, one record for each kind that it has; all have a ``colour``."""
    shapes = (scene.segments, scene.boxes, scene.circles, scene.labels, scene.polygons, scene.trails)
    return tuple(kind for kind in shapes if hasattr(kind, "colour"))


def empty(kind: Any) -> Any:
    """An empty record of a kind of shapes."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("centre", "position", "start", "end", "size"), (0, 2))
    shapes |= {"colour": (0, 4), "corners": (0, 3, 2)}
    return kind(*(jnp.zeros(shapes.get(field, (0,))) for field in kind._fields))
