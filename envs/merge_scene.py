"""How ``merge`` is drawn: the road, the end of the ramp, and vehicles coloured by who drives them."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs import merge_road as road
from marljax.envs.merge_traffic import Vehicles
from marljax.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty

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
    ("CAV", CAV),
    ("human driver", NORMAL),
    ("aggressive", AGGRESSIVE),
    ("defensive", DEFENSIVE),
    ("crashed", CRASHED),
    ("end of ramp", OBSTACLE),
)
DRIVER_COLOURS = (NORMAL, NORMAL, AGGRESSIVE, DEFENSIVE, AGGRESSIVE, DEFENSIVE)
WINDOW = 300.0  # m of road in view
ROAD_VIEW = (-10.0, 560.0)  # the view stays within


def _curve(offset: float) -> list[tuple[float, float, float, float]]:
    xs = np.linspace(road.START[road.KB], road.END[road.KB], 21)
    ys = road.CURVE_Y + road.AMPLITUDE * np.cos(math.pi / 100 * (xs - xs[0])) + offset
    return [(*start, *end) for start, end in zip(zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False)]


def _lines() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lane edges ([K, 4]: x, y of both ends), their widths in points and colours; y points left, as in the picture."""
    half = road.LANE_WIDTH / 2
    edges = [
        (0.0, -half, ROAD_VIEW[1], -half),
        (0.0, half, road.START[road.BC0], half),
        (road.END[road.BC0], half, ROAD_VIEW[1], half),
        (road.START[road.BC1], road.MERGE_Y + half, road.END[road.BC1], road.MERGE_Y + half),
        (road.END[road.BC1], half, road.END[road.BC1], road.MERGE_Y + half),
    ]
    for side in (-half, half):
        edges += [(0.0, road.RAMP_Y + side, road.END[road.JK], road.RAMP_Y + side), *_curve(side)]
    starts = np.arange(road.START[road.BC0], road.END[road.BC0], 10.0)
    dashes = [(start, half, start + 5.0, half) for start in starts]
    lines = np.array(edges + dashes) * np.array([1.0, -1.0, 1.0, -1.0])
    widths = np.array([1.5] * len(edges) + [1.0] * len(dashes))
    return lines, widths, np.array([EDGE] * len(edges) + [DASH] * len(dashes))


def draw(vehicles: Vehicles, is_cav: jax.Array, seconds: jax.Array) -> Scene:
    """The scene, in metres; the view follows the CAVs. Drawn with y to the left, so that the ramp comes in from below.

    Args:
        vehicles: [V] each.
        is_cav: [V] bool.
        seconds: since the episode began.
    """
    lines, widths, line_colours = _lines()
    colour = jnp.where(is_cav[:, None], jnp.array(CAV), jnp.array(DRIVER_COLOURS)[vehicles.driver])
    colour = jnp.where(vehicles.crashed[:, None], jnp.array(CRASHED), colour)
    colour = jnp.where(vehicles.alive[:, None], colour, 0.0)
    centre = jnp.stack([vehicles.x, -vehicles.y], axis=1)
    obstacle = jnp.array([[road.OBSTACLE_X, -road.OBSTACLE_Y]])
    size = jnp.tile(jnp.array([[road.VEHICLE_LENGTH, road.VEHICLE_WIDTH]]), (centre.shape[0], 1))
    labelled = is_cav & vehicles.alive
    followed = jnp.sum(jnp.where(labelled, vehicles.x, 0.0)) / jnp.maximum(jnp.sum(labelled), 1)
    left = jnp.clip(followed - WINDOW / 2, ROAD_VIEW[0], ROAD_VIEW[1] - WINDOW)
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
            position=centre + jnp.array([0.0, 2.5]),
            value=jnp.arange(centre.shape[0]),
            colour=jnp.where(labelled[:, None], jnp.array(LABEL), 0.0),
        ),
        bounds=jnp.stack([left, left + WINDOW, jnp.full_like(left, -15.0), jnp.full_like(left, 6.0)]),
        time=seconds,
    )
