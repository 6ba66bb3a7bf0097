"""The scene of ``smax``: a disc per unit, sized by type and coloured by team, its health as a bar, its shot as a line; a small
grey disc where a unit died.
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
DEAD: Colour = (0.55, 0.55, 0.55, 0.5)
LEGEND = (*zip(UNIT_NAMES, ALLIES, strict=True), ("enemies in red", ENEMIES[0]), ("dead", DEAD))
BAR_HEIGHT, BAR_GAP, MARGIN = 0.18, 0.2, 1.0  # map units
DEAD_SIZE = 0.5  # of the radius


class Living(NamedTuple):
    """Units left in each team."""

    allies: jax.Array
    enemies: jax.Array


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
    corners = jnp.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * jnp.stack([width, height])
    return Scene(
        segments=Segments(
            start=jnp.concatenate([corners, centre]),
            end=jnp.concatenate([jnp.roll(corners, -1, axis=0), centre[target]]),
            width=jnp.concatenate([jnp.full(4, 2.0), jnp.full(size, 1.2)]),
            colour=jnp.concatenate([jnp.tile(jnp.array([WALL]), (4, 1)), jnp.where(units.fired[:, None], shots, 0.0)]),
        ),
        boxes=bars,
        circles=Circles(centre, jnp.where(units.alive, 1.0, DEAD_SIZE) * stats.radius, jnp.where(alive, colour, jnp.array(DEAD))),
        labels=Labels(
            position=centre,
            value=jnp.where(is_ally, jnp.arange(size), jnp.arange(size) - num_allies),
            colour=jnp.where(alive, jnp.array(LABELS)[(kind >= len(UNIT_NAMES) // 2).astype(int)], 0.0),
        ),
        bounds=jnp.stack([-MARGIN + 0 * width, width + MARGIN, -MARGIN + 0 * height, height + MARGIN]),
        time=step.astype(float),
        agents=centre,
        status=Living(units.alive[:num_allies].sum(), units.alive[num_allies:].sum()),
        listed=jnp.concatenate([jnp.any(kind == jnp.arange(len(UNIT_NAMES))[:, None], axis=1), jnp.ones(2, bool)]),
    )
