"""How ``merge`` is drawn: the whole road, the end of the ramp, vehicles coloured by who drives them, and a count of the CAVs."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty
from marljax.envs.merge import road
from marljax.envs.merge.traffic import Vehicles

CAV: Colour = (0.12, 0.45, 0.90, 1.0)
CRASHED: Colour = (0.90, 0.05, 0.10, 1.0)
OBSTACLE: Colour = (0.15, 0.15, 0.15, 1.0)
NORMAL: Colour = (0.55, 0.55, 0.58, 1.0)
AGGRESSIVE: Colour = (0.95, 0.55, 0.10, 1.0)
DEFENSIVE: Colour = (0.20, 0.65, 0.40, 1.0)
EDGE: Colour = (0.35, 0.35, 0.35, 1.0)
DASH: Colour = (0.65, 0.65, 0.65, 1.0)
LABEL: Colour = (0.05, 0.05, 0.05, 1.0)
LEGEND = (
    ("connected autonomous vehicle (CAV), with its speed in m/s", CAV),
    ("human driver", NORMAL),
    ("aggressive human driver", AGGRESSIVE),
    ("defensive human driver", DEFENSIVE),
    ("crashed", CRASHED),
    ("end of ramp", OBSTACLE),
)
MANNERS = (NORMAL, AGGRESSIVE, DEFENSIVE)
MANNER = (0, 0, 1, 2, 1, 2)  # of each driver type
BEGIN = -5.0  # m, where the view begins
FARTHEST = 820.0  # m: from the last slot, 20 s at 30 m/s
ARROWS = (*((x, road.THROUGH_Y) for x in (30.0, 170.0, 480.0, 620.0, 760.0)), (30.0, road.RAMP_Y), (170.0, road.RAMP_Y))


class Status(NamedTuple):
    """How many CAVs there have been and where they are, [] each; the parts add up to the whole."""

    CAVs: jax.Array
    on_the_ramp: jax.Array
    merged: jax.Array  # from the ramp
    on_the_through_lane: jax.Array  # from the start
    crashed: jax.Array
    out_of_view: jax.Array


def _curve(offset: float) -> list[tuple[float, float, float, float]]:
    xs = np.linspace(road.START[road.KB], road.END[road.KB], 21)
    ys = road.CURVE_Y + road.AMPLITUDE * np.cos(math.pi / 100 * (xs - xs[0])) + offset
    return [(*start, *end) for start, end in zip(zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False)]


def _arrows(end: float) -> list[tuple[float, float, float, float]]:
    """Arrows on the road, in the direction of travel."""
    places = [(x, y) for x, y in ARROWS if x < end]
    strokes = ((-4.0, 0.0, 4.0, 0.0), (1.5, -1.0, 4.0, 0.0), (1.5, 1.0, 4.0, 0.0))
    return [(x + x0, y + y0, x + x1, y + y1) for x, y in places for x0, y0, x1, y1 in strokes]


def _lines(end: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lane edges and marks ([K, 4]: x, y of both ends), widths in points and colours; y points left, as in the picture."""
    half = road.LANE_WIDTH / 2
    edges = [
        (0.0, -half, end, -half),
        (0.0, half, road.START[road.BC0], half),
        (road.END[road.BC0], half, end, half),
        (road.START[road.BC1], road.MERGE_Y + half, road.END[road.BC1], road.MERGE_Y + half),
        (road.END[road.BC1], half, road.END[road.BC1], road.MERGE_Y + half),
    ]
    for side in (-half, half):
        edges += [(0.0, road.RAMP_Y + side, road.END[road.JK], road.RAMP_Y + side), *_curve(side)]
    starts = np.arange(road.START[road.BC0], road.END[road.BC0], 10.0)
    marks = [(start, half, start + 5.0, half) for start in starts] + _arrows(end)
    lines = np.array(edges + marks) * np.array([1.0, -1.0, 1.0, -1.0])
    widths = np.array([1.5] * len(edges) + [1.0] * len(marks))
    return lines, widths, np.array([EDGE] * len(edges) + [DASH] * len(marks))


def count(vehicles: Vehicles, merged: jax.Array, cavs: jax.Array, end: float) -> Status:
    """Where the CAVs are.

    Args:
        vehicles: [V] each, the A CAVs first.
        merged: [A] bool, entered on the ramp and now uncrashed on the through lane.
        cavs: [] how many took part so far, those that are gone included.
        end: m, where the view ends.
    """
    x, lane, alive, crashed = (leaf[: merged.shape[0]] for leaf in (vehicles.x, vehicles.lane, vehicles.alive, vehicles.crashed))
    seen = alive & (x <= end)
    through = road.contains(road.segments(road.AB, road.BC0, road.CD), lane)
    parts = (~crashed & ~through, merged, ~crashed & through & ~merged, crashed)
    on_ramp, merged, on_through, crashed = (jnp.sum(part & seen) for part in parts)
    return Status(cavs, on_ramp, merged, on_through, crashed, cavs - jnp.sum(seen))


def draw(vehicles: Vehicles, is_cav: jax.Array, counted: Status, end: float, seconds: jax.Array) -> Scene:
    """The scene, in metres: the road as far as ``end``. Drawn with y to the left, so that the ramp comes in from below.

    Args:
        vehicles: [V] each.
        is_cav: [V] bool.
        counted: the CAVs.
        end: m, where the view ends.
        seconds: since the episode began.
    """
    lines, widths, line_colours = _lines(end)
    manner = jnp.array(MANNER)[vehicles.driver]
    colour = jnp.where(is_cav[:, None], jnp.array(CAV), jnp.array(MANNERS)[manner])
    colour = jnp.where(vehicles.crashed[:, None], jnp.array(CRASHED), colour)
    colour = jnp.where(vehicles.alive[:, None], colour, 0.0)
    centre = jnp.stack([vehicles.x, -vehicles.y], axis=1)
    obstacle = jnp.array([[road.OBSTACLE_X, -road.OBSTACLE_Y]])
    size = jnp.tile(jnp.array([[road.VEHICLE_LENGTH, road.VEHICLE_WIDTH]]), (centre.shape[0], 1))
    labelled = is_cav & vehicles.alive
    occurs = [jnp.any(~is_cav & vehicles.alive & (manner == kind)) for kind in range(len(MANNERS))]
    always = jnp.array(True)
    return Scene(
        segments=Segments(jnp.array(lines[:, :2]), jnp.array(lines[:, 2:]), jnp.array(widths), jnp.array(line_colours)),
        boxes=Boxes(
            centre=jnp.concatenate([obstacle, centre]),
            size=jnp.concatenate([jnp.full((1, 2), road.OBSTACLE_SIZE), size]),
            heading=jnp.concatenate([jnp.zeros(1), -vehicles.heading]),
            colour=jnp.concatenate([jnp.array([OBSTACLE]), colour]),
        ),
        circles=empty(Circles),
        labels=Labels(
            position=centre + jnp.array([0.0, 3.4]),
            value=jnp.round(vehicles.speed).astype(jnp.int32),
            colour=jnp.where(labelled[:, None], jnp.array(LABEL), 0.0),
        ),
        bounds=jnp.array([BEGIN, end, -14.0, 6.0]),
        time=seconds,
        status=counted,
        listed=jnp.stack([always, *occurs, always, always]),
    )
