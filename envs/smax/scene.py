"""The scene of ``smax``: a disc per unit, sized by type and coloured by team, its health as a bar, its shot as a line; a small
grey disc where a unit died. The view holds all units, dead ones too, and so closes in without jumps as the teams meet.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments
from marljax.envs.smax.actions import FIRST_ATTACK
from marljax.envs.smax.battle import Kinds, Stats, Units
from marljax.envs.smax.units import UNIT_NAMES

# one shade per unit type, from light to dark blue and red
ALLIES: tuple[Colour, ...] = tuple((0.45 - 0.08 * k, 0.75 - 0.09 * k, 1.0 - 0.06 * k, 1.0) for k in range(6))
ENEMIES: tuple[Colour, ...] = tuple((1.0 - 0.08 * k, 0.50 - 0.09 * k, 0.45 - 0.08 * k, 1.0) for k in range(6))
HEALTH: Colour = (0.20, 0.70, 0.25, 1.0)
LOST: Colour = (0.85, 0.85, 0.85, 1.0)
SHOTS: tuple[Colour, Colour] = ((0.10, 0.35, 0.75, 0.9), (0.75, 0.10, 0.10, 0.9))  # of allies and of enemies
LABELS: tuple[Colour, Colour] = ((0.05, 0.05, 0.05, 1.0), (1.0, 1.0, 1.0, 1.0))  # on light and on dark shades
WALL: Colour = (0.2, 0.2, 0.2, 1.0)
FLOOR: Colour = (0.92, 0.92, 0.92, 1.0)
DEAD: Colour = (0.55, 0.55, 0.55, 0.5)
LEGEND = (*zip(UNIT_NAMES, ALLIES, strict=True), ("enemies in red", ENEMIES[0]), ("dead", DEAD))
BAR_HEIGHT, BAR_GAP, MARGIN = 0.18, 0.2, 1.0  # map units
DEAD_SIZE = 0.5  # of the radius
LEAST_VIEW, ASPECT = 12.0, 1.6  # width of the closest view in map units; width by height of every view
TILES = 8  # of the floor along each side of the map
ACROSS = [(tile / TILES, 0.0, tile / TILES, 1.0) for tile in range(1, TILES)]
WALLS = [(0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 1.0, 1.0), (1.0, 1.0, 0.0, 1.0), (0.0, 1.0, 0.0, 0.0)]
# [L, 4] lines of the floor, then the walls: from x, y to x, y, in fractions of the map
EDGES = np.array([*ACROSS, *((y0, x0, y1, x1) for x0, y0, x1, y1 in ACROSS), *WALLS])


class Battle(NamedTuple):
    """Units left in each team, and the result once there is one."""

    allies: jax.Array
    enemies: jax.Array
    won: jax.Array  # [] bool
    lost: jax.Array


def view(units: Units, radius: jax.Array, width: jax.Array, height: jax.Array) -> jax.Array:
    """[4] bounds around all units, of one proportion, and on the map where it is large enough."""

    def reach(position: jax.Array, beyond: float) -> tuple[jax.Array, jax.Array]:
        low, high = jnp.min(position - radius) - MARGIN, jnp.max(position + radius) + MARGIN + beyond
        return (low + high) / 2, high - low

    (x, wide), (y, high) = reach(units.x, 0.0), reach(units.y, BAR_GAP + BAR_HEIGHT)
    half = jnp.maximum(jnp.maximum(wide, ASPECT * high), LEAST_VIEW) / 2 * jnp.array([1.0, 1 / ASPECT])
    most = jnp.stack([width, height]) / 2 + MARGIN  # from the middle of the map to the edge of the largest view
    shift = jnp.clip(jnp.stack([x, y]) - most + MARGIN, -jnp.maximum(most - half, 0.0), jnp.maximum(most - half, 0.0))
    middle = most - MARGIN + shift
    return jnp.stack([middle - half, middle + half], axis=1).reshape(-1)


def between(units: Units, after: Units, share: Any) -> Units:
    """The units at a share of the way from one decision to the next, with the shots fired on it."""
    moved = {name: (1 - share) * getattr(units, name) + share * getattr(after, name) for name in ("x", "y", "health")}
    return after.replace(**moved)


def draw(units: Units, stats: Stats, kind: Kinds, step: jax.Array, num_allies: int, env_params: Any) -> Scene:
    """The scene of units [N] with types ``kind`` [N], allies first, in map units; its time is in decisions."""
    size = units.x.shape[0]
    is_ally = np.arange(size) < num_allies
    alive = units.alive[:, None]
    centre = jnp.stack([units.x, units.y], axis=1)
    colour = jnp.where(is_ally[:, None], jnp.array(ALLIES)[kind], jnp.array(ENEMIES)[kind])
    shots = jnp.where(is_ally[:, None], jnp.array(SHOTS[0]), jnp.array(SHOTS[1]))
    number = units.shot - FIRST_ATTACK
    target = jnp.clip(jnp.where(is_ally, num_allies + number, num_allies - 1 - number), 0, size - 1)

    # a grey bar above every living unit, and a green one over its left part, as long as there is health
    length, thickness = 2 * stats.radius, jnp.full_like(units.x, BAR_HEIGHT)
    green_length = length * jnp.clip(units.health / stats.health, 0.0, 1.0)
    bar_y = units.y + stats.radius + BAR_GAP
    grey, green = (jnp.stack([x, bar_y], axis=1) for x in (units.x, units.x - stats.radius + green_length / 2))
    bars = Boxes(
        centre=jnp.concatenate([grey, green]),
        size=jnp.concatenate([jnp.stack([part, thickness], axis=1) for part in (length, green_length)]),
        heading=jnp.zeros(2 * size),
        colour=jnp.concatenate([jnp.where(alive, jnp.array(part), 0.0) for part in (LOST, HEALTH)]),
    )

    width, height = jnp.asarray(env_params.map_width, float), jnp.asarray(env_params.map_height, float)
    start, end = (edge * jnp.stack([width, height]) for edge in (EDGES[:, :2], EDGES[:, 2:]))
    is_wall = np.arange(len(EDGES)) >= len(EDGES) - 4
    ally, enemy = jnp.any(units.alive[:num_allies]), jnp.any(units.alive[num_allies:])
    return Scene(
        segments=Segments(
            start=jnp.concatenate([start, centre]),
            end=jnp.concatenate([end, centre[target]]),
            width=jnp.concatenate([jnp.where(is_wall, 2.0, 1.0), jnp.full(size, 1.6)]),
            colour=jnp.concatenate(
                [jnp.where(is_wall[:, None], jnp.array(WALL), jnp.array(FLOOR)), jnp.where(units.fired[:, None], shots, 0.0)]
            ),
        ),
        boxes=bars,
        circles=Circles(  # the dead below the living
            centre=jnp.concatenate([centre, centre]),
            radius=jnp.concatenate([DEAD_SIZE * stats.radius, stats.radius]),
            colour=jnp.concatenate([jnp.where(alive, 0.0, jnp.array(DEAD)), jnp.where(alive, colour, 0.0)]),
        ),
        labels=Labels(
            position=centre,
            value=jnp.where(is_ally, jnp.arange(size), jnp.arange(size) - num_allies),
            colour=jnp.where(alive, jnp.array(LABELS)[(kind >= len(UNIT_NAMES) // 2).astype(int)], 0.0),
        ),
        bounds=view(units, stats.radius, width, height),
        time=step.astype(float),
        agents=centre,
        status=Battle(units.alive[:num_allies].sum(), units.alive[num_allies:].sum(), ally & ~enemy, enemy & ~ally),
        listed=jnp.concatenate([jnp.any(kind == jnp.arange(len(UNIT_NAMES))[:, None], axis=1), jnp.ones(2, bool)]),
        axis=jnp.array(False),
    )
