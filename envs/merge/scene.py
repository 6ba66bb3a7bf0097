"""Pictures of ``merge``: the road, the end of the ramp, vehicles coloured by their drivers, and a count of the CAVs.

On the closed road the view moves along with the CAVs, and holds the last one; with an inflow it is the whole road.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty
from marljax.envs.merge import road
from marljax.envs.merge.spawn import is_cav
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
STYLES = (NORMAL, AGGRESSIVE, DEFENSIVE)
STYLE_OF_DRIVER = (0, 0, 1, 2, 1, 2)
BEGIN, LOW, HIGH = -5.0, -13.5, 5.5  # m, left, lower and upper end of the view
FARTHEST = 820.0  # m: from the last slot, 20 s at 30 m/s
SPAN, BEHIND = 270.0, 15.0  # m, length of a view that moves, and of its part behind the last CAV where it cannot hold all
ARROWS = [(x, road.THROUGH_Y) for x in np.arange(30.0, FARTHEST, 70.0) if not road.START[road.BC0] < x < road.END[road.BC0]]
ARROWS += [(x, road.RAMP_Y) for x in np.arange(30.0, road.END[road.JK], 70.0)]


class Status(NamedTuple):
    """Number of CAVs so far and where they are, [] each; the parts add up to the total."""

    CAVs: jax.Array
    on_the_ramp: jax.Array
    merged: jax.Array  # from the ramp
    on_the_through_lane: jax.Array  # from the start
    crashed: jax.Array
    out_of_view: jax.Array


def road_lines(end: float) -> Segments:
    """Lane edges and markings, up to x = ``end``."""
    half = road.LANE_WIDTH / 2
    edges = [
        (0.0, -half, end, -half),
        (0.0, half, road.START[road.BC0], half),
        (road.END[road.BC0], half, end, half),
        (road.START[road.BC1], road.MERGE_Y + half, road.END[road.BC1], road.MERGE_Y + half),
        (road.END[road.BC1], half, road.END[road.BC1], road.MERGE_Y + half),
    ]
    xs = np.linspace(road.START[road.KB], road.END[road.KB], 21)
    for side in (-half, half):
        ys = road.CURVE_Y + road.AMPLITUDE * np.cos(road.PULSATION * (xs - xs[0])) + side
        edges.append((0.0, road.RAMP_Y + side, road.END[road.JK], road.RAMP_Y + side))
        edges += zip(xs, ys, xs[1:], ys[1:], strict=False)
    strokes = ((-4.0, 0.0, 4.0, 0.0), (1.5, -1.0, 4.0, 0.0), (1.5, 1.0, 4.0, 0.0))
    marks = [(start, half, start + 5.0, half) for start in np.arange(road.START[road.BC0], road.END[road.BC0], 10.0)]
    marks += [(x + x0, y + y0, x + x1, y + y1) for x, y in ARROWS if x < end for x0, y0, x1, y1 in strokes]
    lines = np.array(edges + marks) * np.array([1.0, -1.0, 1.0, -1.0])
    widths = np.array([1.5] * len(edges) + [1.0] * len(marks))
    colours = np.array([EDGE] * len(edges) + [DASH] * len(marks))
    return Segments(jnp.array(lines[:, :2]), jnp.array(lines[:, 2:]), jnp.array(widths), jnp.array(colours))


def draw(vehicles: Vehicles, merged: jax.Array, cavs: jax.Array, follows: bool, seconds: jax.Array) -> Scene:
    """The scene in metres, with y to the left, so that the ramp comes in from below.

    Args:
        vehicles: [V] each, the A CAVs first.
        merged: [A] bool, CAVs that entered on the ramp and are on the through lane, not crashed.
        cavs: [] number of CAVs so far, including those that have left.
        follows: whether the view moves along with the CAVs, rather than showing the whole road.
        seconds: s since the episode began.
    """
    x, lane, alive, crashed = (leaf[: merged.shape[0]] for leaf in (vehicles.x, vehicles.lane, vehicles.alive, vehicles.crashed))
    if follows:
        first, last = jnp.min(jnp.where(alive, x, road.FAR_AWAY)), jnp.max(jnp.where(alive, x, 0.0))
        left = jnp.clip(jnp.minimum((first + last - SPAN) / 2, first - BEHIND), BEGIN, FARTHEST - SPAN)
        right = left + SPAN
    else:
        left, right = jnp.array(BEGIN), jnp.array(road.ROAD_END)
    in_view = alive & (left <= x) & (x <= right)
    through = road.contains(road.segments(road.AB, road.BC0, road.CD), lane)
    parts = (~crashed & ~through, merged, ~crashed & through & ~merged, crashed)
    on_ramp, joined, on_through, wrecks = (jnp.sum(part & in_view) for part in parts)
    status = Status(cavs, on_ramp, joined, on_through, wrecks, cavs - jnp.sum(in_view))

    style = jnp.array(STYLE_OF_DRIVER)[vehicles.driver]
    colour = jnp.where(is_cav()[:, None], jnp.array(CAV), jnp.array(STYLES)[style])
    colour = jnp.where(vehicles.crashed[:, None], jnp.array(CRASHED), colour)
    colour = jnp.where(vehicles.alive[:, None], colour, 0.0)
    centre = jnp.stack([vehicles.x, -vehicles.y], axis=1)
    obstacle = jnp.array([[road.OBSTACLE_X, -road.OBSTACLE_Y]])
    size = jnp.tile(jnp.array([[road.VEHICLE_LENGTH, road.VEHICLE_WIDTH]]), (centre.shape[0], 1))
    labelled = is_cav() & vehicles.alive
    occurs = [jnp.any(~is_cav() & vehicles.alive & (style == kind)) for kind in range(len(STYLES))]
    always = jnp.array(True)
    return Scene(
        segments=road_lines(FARTHEST if follows else road.ROAD_END),
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
        bounds=jnp.stack([left, right, jnp.array(LOW), jnp.array(HIGH)]),
        time=seconds,
        status=status,
        agents=centre[: merged.shape[0]],
        listed=jnp.stack([always, *occurs, always, always]),
    )
