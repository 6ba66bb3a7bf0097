"""The scene of ``pathfinding``: walls as squares, agents as discs in colours of their own, their goals as small squares."""

import colorsys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty
from marljax.envs.pathfinding.tables import Shape

WALL: Colour = (0.25, 0.27, 0.30, 1.0)
FLOOR: Colour = (0.93, 0.94, 0.95, 1.0)
COLOURS: tuple[Colour, ...] = tuple(  # neighbouring indices far apart in hue
    (*colorsys.hsv_to_rgb((0.58 + 0.381966 * k) % 1.0, 0.75, 0.85 - 0.25 * (k % 2)), 1.0) for k in range(32)
)
LEGEND = (("wall", WALL), ("an agent (disc) and its goal (square)", COLOURS[0]))
RADIUS, GOAL = 0.36, 0.42  # of a disc, and edge of a goal, in cells


class Progress(NamedTuple):
    """Written next to the time."""

    reached: jax.Array


def draw(
    shape: Shape,
    blocked: jax.Array,
    cell: jax.Array,
    goal: jax.Array,
    alive: jax.Array,
    step: jax.Array,
    reached: jax.Array,
) -> Scene:
    """The scene of agents in the cells [A] with goals [A] on a map [C]; x is the column, y minus the row of the raster."""

    def place(cells: jax.Array) -> jax.Array:
        return jnp.stack([cells % shape.width, -(cells // shape.width)], axis=1).astype(float)

    colour = jnp.where(alive[:, None], jnp.array(COLOURS)[jnp.arange(len(cell)) % len(COLOURS)], 0.0)
    at, to, grid = place(cell), place(goal), place(jnp.arange(shape.cells))
    # the view is the smallest rectangle with all free cells
    low = jnp.min(jnp.where(blocked[:, None], jnp.inf, grid), axis=0) - 0.5
    high = jnp.max(jnp.where(blocked[:, None], -jnp.inf, grid), axis=0) + 0.5
    seen = jnp.all((grid > low) & (grid < high), axis=1)
    walls = jnp.where((seen & blocked)[:, None], jnp.array(WALL), 0.0)
    return Scene(
        segments=empty(Segments),
        boxes=Boxes(
            centre=jnp.concatenate([(low + high)[None] / 2, grid, to]),
            size=jnp.concatenate([(high - low)[None], jnp.ones_like(grid), jnp.full_like(to, GOAL)]),
            heading=jnp.zeros(1 + shape.cells + len(cell)),
            colour=jnp.concatenate([jnp.array([FLOOR]), walls, colour]),
        ),
        circles=Circles(at, jnp.full(len(cell), RADIUS), colour),
        labels=empty(Labels),
        bounds=jnp.stack([low, high], axis=1).reshape(-1),
        time=step.astype(float),
        status=Progress(reached),
        agents=at,
        axis=jnp.array(False),
    )
