"""Where the drones of ``swarm`` start and shall go.

The goals of an episode are drawn at its reset as a few phases, between which they jump; within a phase a formation may grow and
its centre may follow a curve. Vectors are ``[3, N]``: components, drones. Axis letters: N drones, P phases, M obstacles.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

SCENARIOS = (
    "static_same",
    "static_different",
    "dynamic_same",
    "dynamic_different",
    "swap",
    "dynamic_formation",
    "swarm_versus_swarm",
    "lissajous",
    "bezier",
    "obstacles_random",
    "obstacles_same",
)
OPEN = SCENARIOS[:9]  # those that need no obstacles
AMONG_OBSTACLES = SCENARIOS[9:]
TOGETHER = ("static_same", "dynamic_same", "lissajous", "bezier", "obstacles_same")  # one goal for all
CELLS = 8  # along each side of the area with obstacles
PHASES = 4  # of an episode's goals: the three changes that fit into 15 s
WIDEST = 1.0  # m between neighbours in a formation that grows and shrinks
LOWEST, HIGHEST = 1.0, 3.0  # m above the floor of starts and goals among obstacles
WALL = 0.5  # m that goals keep from walls, floor and ceiling
LAP = 15.0  # s of a Lissajous figure, and of a Bézier curve
SHAPES = ("circle", "grid", "circle_xz", "circle_yz", "grid_xz", "grid_yz", "sphere", "cube")
FLAT = 2  # those that need no height


class Goals(struct.PyTreeNode):
    """The goals of an episode."""

    phases: jax.Array  # [P, 3, N] m, centres and offsets together
    starts: jax.Array  # [P] s at which each phase begins
    offset: jax.Array  # [3, N] places in the formation of the first phase, neighbours 1 apart
    size: jax.Array  # m between neighbours at first
    widest: jax.Array  # m between neighbours at most
    drift: jax.Array  # m/s that the size grows by, and shrinks by once it is the widest; 0 where it stays
    curve: jax.Array  # [3, 4] control points of the centre's way
    kind: jax.Array  # int32 scenario


class Ranges(struct.PyTreeNode):
    """What scenarios are drawn from, in m and s.

    Obstacles are as many and as large as ``density`` and ``obstacle_size`` of the environment say, or, where ``density_high`` or
    ``size_high`` lie above those, each episode draws from between: domain randomisation. Published: 0.05 to 0.15, 0.3 to 0.5 m.
    """

    density_high: Any = 0.0
    size_high: Any = 0.0
    centre: Any = 1.0  # of a formation, either way from the middle of the room, in x and y
    low: Any = 1.5  # its height
    high: Any = 3.0
    spacing_low: Any = 0.25  # between neighbours in a formation
    spacing_high: Any = 0.5
    swap_low: Any = 0.4
    swap_high: Any = 0.8
    drift_low: Any = 0.1  # m/s that the spacing of a dynamic formation grows or shrinks by
    drift_high: Any = 0.3
    versus_low: Any = 1.0  # between the centres of two swarms, on the level
    versus_high: Any = 2.0
    change_low: Any = 4.0  # s between changes of goals, of which an episode has three at most
    change_high: Any = 6.0


def formations(drones: int) -> np.ndarray:
    """[len(SHAPES), 3, N] offsets from the centre, neighbours 1 m apart."""
    count = np.arange(drones)
    angle = 2 * math.pi * count / drones
    radius = 0.5 / math.sin(math.pi / drones) if drones > 1 else 0.0
    circle = radius * np.stack([np.cos(angle), np.sin(angle), 0 * angle])
    side, edge = math.ceil(math.sqrt(drones) - 1e-9), math.ceil(drones ** (1 / 3) - 1e-9)
    grid = np.stack([count % side, count // side, 0 * count]).astype(float)
    cube = np.stack([count % edge, count // edge % edge, count // edge**2]).astype(float)
    height = 1 - 2 * (count + 0.5) / drones
    golden = math.pi * (3 - math.sqrt(5)) * count
    across = np.sqrt(1 - height**2)
    sphere = np.stack([across * np.cos(golden), across * np.sin(golden), height])
    if drones > 1:
        apart = np.sqrt(((sphere[:, :, None] - sphere[:, None]) ** 2).sum(axis=0)) + 9 * np.eye(drones)
        sphere /= apart.min()
    upright, sideways = [0, 2, 1], [2, 0, 1]
    shapes = [circle, grid, circle[upright], circle[sideways], grid[upright], grid[sideways], sphere, cube]
    centred = [shape - shape.mean(axis=1, keepdims=True) for shape in shapes]
    return np.stack(centred).astype(np.float32)


def _first_half(drones: int) -> int:
    """How many drones the first of two swarms has."""
    return (drones + 1) // 2


def _two_formations(drones: int) -> np.ndarray:
    """As ``formations``, with each half of the drones in one of its own, both around the same centre."""
    first = _first_half(drones)
    return np.concatenate([formations(count) for count in (first, drones - first) if count], axis=2)


def draw_kind(draw: jax.Array, mix: jax.Array) -> jax.Array:
    """int32 scenario by its share of ``mix`` [len(SCENARIOS)]."""
    share = jnp.cumsum(mix) / jnp.sum(mix)
    return jnp.minimum(jnp.sum(draw >= share), len(SCENARIOS) - 1).astype(jnp.int32)


def goals_at(goals: Goals, time: jax.Array) -> jax.Array:
    """[3, N] m."""
    phase = jnp.sum(time >= goals.starts) - 1
    now = jnp.sum(jnp.where((jnp.arange(PHASES) == phase)[:, None, None], goals.phases, 0.0), axis=0)
    size = goals.size + goals.drift * time + goals.widest
    size = jnp.abs(size % (2.0 * goals.widest) - goals.widest)  # to and fro between 0 and the widest
    grown = jnp.where(goals.drift == 0, 0.0, size - goals.size)
    return now + _curve(goals, time)[:, None] + grown * goals.offset


def _curve(goals: Goals, time: jax.Array) -> jax.Array:
    """[3] m that the centre has moved along a Lissajous figure or a Bézier curve; 0 for other scenarios."""
    lissajous, bezier = (goals.kind == SCENARIOS.index(name) for name in ("lissajous", "bezier"))
    turn = 2 * jnp.pi * time / LAP
    figure = jnp.stack([jnp.sin(turn), jnp.sin(2 * turn), 0.5 * jnp.sin(3 * turn)])
    share = jnp.clip(time / LAP, 0.0, 1.0)
    weights = jnp.stack([(1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3])
    along = jnp.sum(goals.curve * weights, axis=1)
    return jnp.where(lissajous, figure, jnp.where(bezier, along, 0.0))


def either_way(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform from −1 to 1."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)


def draw_goals(key: jax.Array, env_params: Any, drones: int, dimensions: int, free: jax.Array) -> Goals:
    """The goals of an episode.

    Args:
        key: consumed.
        env_params: its ``mix`` [len(SCENARIOS)], ``room`` and ``ranges``.
        drones: N.
        dimensions: 2 where formations have to be flat.
        free: [3, N] places between obstacles, for the scenarios among them.
    """
    mix, ranges, room = env_params.mix, env_params.ranges, env_params.room
    key_kind, key_offset, key_centre, key_starts, key_drift, key_curve = jax.random.split(key, 6)
    kind = draw_kind(jax.random.uniform(key_kind), mix)
    offset, size = _offsets(key_offset, kind, drones, FLAT if dimensions == 2 else len(SHAPES), ranges)
    # formations that would not fit into the room are drawn closer, and stand as high as they need to
    aside = jnp.maximum(jnp.max(jnp.abs(offset[:, :2])), 1e-6)
    up = jnp.maximum(jnp.max(jnp.abs(offset[:, 2])), 1e-6)
    reach = ranges.centre + jnp.where(is_any(kind, "swarm_versus_swarm"), 0.5 * ranges.versus_high, 0.0)
    widest = jnp.minimum((room.half - WALL - reach) / aside, 0.5 * (room.height - 2.0 * WALL) / up)
    grows = is_any(kind, "dynamic_formation")
    size, widest = jnp.minimum(size, widest), jnp.where(grows, jnp.minimum(WIDEST, widest), widest)
    centres = _centres(key_centre, kind, drones, ranges)
    lift = WALL + jnp.where(grows, widest, size) * up
    centres = centres.at[:, 2].set(jnp.clip(centres[:, 2], lift, room.height - lift))
    phases = centres + size * offset
    phases = jnp.where(is_any(kind, "obstacles_same"), free[:, :1], phases)
    phases = jnp.where(is_any(kind, "obstacles_random"), free, phases)
    waits = jax.random.uniform(key_starts, (PHASES - 1,), minval=ranges.change_low, maxval=ranges.change_high)
    starts = jnp.concatenate([jnp.zeros(1), jnp.cumsum(waits)])
    key_speed, key_way = jax.random.split(key_drift)
    drift = jax.random.uniform(key_speed, (), minval=ranges.drift_low, maxval=ranges.drift_high)
    drift = jnp.where(jax.random.bernoulli(key_way), drift, -drift)
    drift = jnp.where(grows, drift, 0.0)
    curve = jax.random.uniform(key_curve, (3, 4), minval=-2.0, maxval=2.0).at[:, 0].set(0.0)
    curve = curve.at[2].set(jnp.maximum(curve[2], WALL - phases[0, 2, 0]))  # a Bézier curve stays among its points
    return Goals(phases, starts, offset[0], size, widest, drift, curve, kind)


def is_any(kind: jax.Array, *names: str) -> jax.Array:
    """bool: whether the scenario is one of these."""
    return jnp.any(jnp.stack([kind == SCENARIOS.index(name) for name in names]), axis=0)


def _offsets(key: jax.Array, kind: jax.Array, drones: int, shapes: int, ranges: Ranges) -> tuple[jax.Array, jax.Array]:
    """[P, 3, N] places in one of the first ``shapes`` formations with neighbours 1 m apart, and its size."""
    key_size, key_shape, key_order = jax.random.split(key, 3)
    swap = is_any(kind, "swap")
    low, high = jnp.where(swap, ranges.swap_low, ranges.spacing_low), jnp.where(swap, ranges.swap_high, ranges.spacing_high)
    grows = is_any(kind, "dynamic_formation")
    low, high = jnp.where(grows, 0.0, low), jnp.where(grows, WIDEST, high)
    size = jnp.where(is_any(kind, *TOGETHER), 0.0, low + (high - low) * jax.random.uniform(key_size))
    shape = jax.random.randint(key_shape, (PHASES,), 0, shapes)
    shape = jnp.where(is_any(kind, "dynamic_different"), shape, shape[0])
    orders = jax.vmap(lambda key: jax.random.permutation(key, drones))(jax.random.split(key_order, PHASES))
    order = jnp.where(swap, orders, jnp.arange(drones))
    table = jnp.where(is_any(kind, "swarm_versus_swarm"), _two_formations(drones), formations(drones))
    return jnp.take_along_axis(table[shape], order[:, None], axis=2), size


def _centres(key: jax.Array, kind: jax.Array, drones: int, ranges: Ranges) -> jax.Array:
    """[P, 3, N] m: of the formation that each drone belongs to; two of them change sides in ``swarm_versus_swarm``."""
    draws = jax.random.uniform(key, (PHASES, 3, 2), minval=-1.0, maxval=1.0)
    middle, reach = 0.5 * (ranges.low + ranges.high), 0.5 * (ranges.high - ranges.low)
    heights = middle + reach * draws[:, 2]  # [P, 2]
    centre = jnp.stack([ranges.centre * draws[:, 0, 0], ranges.centre * draws[:, 1, 0], heights[:, 0]], axis=1)
    centre = jnp.where(is_any(kind, "dynamic_same", "dynamic_different"), centre, centre[0])[:, :, None]
    share, way = 0.5 + 0.5 * draws[0, 0, 1], jnp.pi * draws[0, 1, 1]
    apart = ranges.versus_low + (ranges.versus_high - ranges.versus_low) * share
    aside = 0.5 * jnp.stack([apart * jnp.cos(way), apart * jnp.sin(way), heights[0, 1] - heights[0, 0]])[:, None]
    first = (jnp.arange(drones) < _first_half(drones)) ^ (jnp.arange(PHASES)[:, None] % 2 == 1)
    two = centre.at[:, 2].add(aside[2]) + jnp.where(first, -1.0, 1.0)[:, None] * aside
    return jnp.where(is_any(kind, "swarm_versus_swarm"), two, centre)


def obstacle_count(density: Any) -> Any:
    """Cells with an obstacle, whole ones: 12 of 64 at a density of 0.2."""
    return jnp.floor(jnp.asarray(density) * CELLS * CELLS + 1e-4)


def draw_obstacles(key: jax.Array, env_params: Any, most: int, drones: int) -> tuple[jax.Array, ...]:
    """Cylinders in cells of 1 m of the central 8 × 8, and free cells for starts and goals.

    Args:
        key: consumed.
        env_params: its ``density``, ``obstacle_size`` and ``ranges``.
        most: M; with 0 there are none, whatever the density.
        drones: N.

    Returns:
        x, y and radius [M] (0 beyond their number), and two [3, N] places at random heights of 1 to 3 m in cells without one.
    """
    key_cells, key_low, key_high, key_drawn = jax.random.split(key, 4)
    shares = jax.random.uniform(key_drawn, (2,))
    density = _at_or_above(env_params.density, env_params.ranges.density_high, shares[0]) if most else 0.0
    size = _at_or_above(env_params.obstacle_size, env_params.ranges.size_high, shares[1])
    order = jax.random.permutation(key_cells, CELLS * CELLS)
    number = obstacle_count(density).astype(jnp.int32)
    radius = jnp.where(jnp.arange(most) < number, 0.5 * size, 0.0)
    turn = jnp.arange(drones) % (CELLS * CELLS - number)  # where free cells are few, several drones share one
    start, goal = order[number + turn], order[CELLS * CELLS - 1 - turn]

    def place(key: jax.Array, cell: jax.Array) -> jax.Array:
        height = jax.random.uniform(key, (drones,), minval=LOWEST, maxval=HIGHEST)
        return jnp.stack([*_middle(cell), height])

    return *(part[:most] for part in _middle(order)), radius, place(key_low, start), place(key_high, goal)


def _at_or_above(low: Any, high: Any, share: jax.Array) -> jax.Array:
    """From ``low`` to ``high``; ``low`` where that is the higher one."""
    return low + share * jnp.maximum(high - low, 0.0)


def _middle(cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x and y of cells by their number."""
    return cell % CELLS - 0.5 * (CELLS - 1), cell // CELLS - 0.5 * (CELLS - 1)
