"""Starts and goals of the drones of ``swarm``.

The goals of an episode are drawn at its reset as a few phases, between which they jump; within a phase a formation may grow and
its centre may follow a curve. Vectors are ``[3, N]``: components, drones. Axis letters: N drones, P phases, M obstacles.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.envs.swarm.quadrotor import LARGE
from marljax.utils import random

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
ONE_GOAL = ("static_same", "dynamic_same", "lissajous", "bezier", "obstacles_same")  # shared by all drones
CELLS = 8  # along each side of the area with obstacles
MAX_DENSITY = (CELLS**2 - 1) / CELLS**2  # one cell stays free
PHASES = 4  # of an episode's goals: the three changes that fit into 15 s
WIDEST = 1.0  # m between neighbours in a formation that grows and shrinks
LOWEST, HIGHEST = 1.0, 3.0  # m above the floor of starts and goals among obstacles
WALL = 0.5  # m between goals and walls, floor or ceiling
LAP = 15.0  # s of a Lissajous figure, and of a Bézier curve
SHAPES = ("circle", "grid", "circle_xz", "circle_yz", "grid_xz", "grid_yz", "sphere", "cube")
FLAT = 2  # number of horizontal shapes, which come first


class Goals(struct.PyTreeNode):
    """The goals of an episode."""

    phases: jax.Array  # [P, 3, N] m
    starts: jax.Array  # [P] s at which each phase begins
    offset: jax.Array  # [3, N] positions in the formation of the first phase, neighbours 1 apart
    size: jax.Array  # initial m between neighbours
    widest: jax.Array  # maximum m between neighbours
    drift: jax.Array  # m/s by which the size grows, and shrinks after its maximum; 0 where it is constant
    curve: jax.Array  # [3, 4] control points of the centre's curve
    kind: jax.Array  # int32 scenario


class Ranges(struct.PyTreeNode):
    """Distributions of the scenarios.

    The number and size of obstacles are the environment's ``density`` and ``obstacle_size``. Where ``density_high`` or
    ``size_high`` exceeds those, each episode draws from between (domain randomisation). Published: 0.05 to 0.15, 0.3 to 0.5 m.
    """

    density_high: Any = param(0.0, low=0.0, high=MAX_DENSITY, help="upper bound of the density of obstacles")
    size_high: Any = param(0.0, unit="m", help="upper bound of the diameter of obstacles")
    centre: Any = param(1.0, low=0.0, high=LARGE, unit="m", help="formation centres: x and y, either way from the middle")
    low: Any = param(1.5, low=0.0, high=LARGE, unit="m", help="formation centres: lowest height")
    high: Any = param(3.0, unit="m", help="formation centres: greatest height")
    spacing_low: Any = param(0.25, low=0.0, high=LARGE, unit="m", help="between neighbours in a formation: lower bound")
    spacing_high: Any = param(0.5, unit="m", help="upper bound")
    swap_low: Any = param(0.4, low=0.0, high=LARGE, unit="m", help="between neighbours in swap: lower bound")
    swap_high: Any = param(0.8, unit="m", help="upper bound")
    drift_low: Any = param(0.1, low=0.0, high=LARGE, unit="m/s", help="growth of dynamic_formation's spacing: lower bound")
    drift_high: Any = param(0.3, unit="m/s", help="upper bound")
    versus_low: Any = param(1.0, low=0.0, high=LARGE, unit="m", help="horizontal, between two swarms: lower bound")
    versus_high: Any = param(2.0, unit="m", help="upper bound")
    change_low: Any = param(4.0, low=0.0, high=LARGE, unit="s", help="between changes of goals, at most three: lower bound")
    change_high: Any = param(6.0, unit="s", help="upper bound")


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
        distance = np.sqrt(((sphere[:, :, None] - sphere[:, None]) ** 2).sum(axis=0)) + 9 * np.eye(drones)
        sphere /= distance.min()
    upright, sideways = [0, 2, 1], [2, 0, 1]
    shapes = [circle, grid, circle[upright], circle[sideways], grid[upright], grid[sideways], sphere, cube]
    return np.stack([shape - shape.mean(axis=1, keepdims=True) for shape in shapes]).astype(np.float32)


def draw_kind(draw: jax.Array, mix: jax.Array) -> jax.Array:
    """int32 scenario by its share of ``mix`` [len(SCENARIOS)], from a uniform draw."""
    share = jnp.cumsum(mix) / jnp.sum(mix)
    return jnp.minimum(jnp.sum(draw >= share), len(SCENARIOS) - 1).astype(jnp.int32)


def is_any(kind: jax.Array, *names: str) -> jax.Array:
    """bool: whether the scenario is one of these."""
    return jnp.any(jnp.stack([kind == SCENARIOS.index(name) for name in names]), axis=0)


def goals_at(goals: Goals, time: jax.Array) -> jax.Array:
    """[3, N] m."""
    phase = jnp.sum(time >= goals.starts) - 1
    current = jnp.sum(jnp.where((jnp.arange(PHASES) == phase)[:, None, None], goals.phases, 0.0), axis=0)
    turn = 2 * jnp.pi * time / LAP
    lissajous = jnp.stack([jnp.sin(turn), jnp.sin(2 * turn), 0.5 * jnp.sin(3 * turn)])
    share = jnp.clip(time / LAP, 0.0, 1.0)
    weights = jnp.stack([(1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3])
    bezier = jnp.sum(goals.curve * weights, axis=1)
    on_lissajous, on_bezier = (goals.kind == SCENARIOS.index(name) for name in ("lissajous", "bezier"))
    centre = jnp.where(on_lissajous, lissajous, jnp.where(on_bezier, bezier, 0.0))
    size = goals.size + goals.drift * time + goals.widest
    size = jnp.abs(size % (2.0 * goals.widest) - goals.widest)  # back and forth between 0 and the widest
    grown = jnp.where(goals.drift == 0, 0.0, size - goals.size)
    return current + centre[:, None] + grown * goals.offset


class Draws(NamedTuple):
    """Uniform numbers from 0 to 1 of an episode's start, and the sensors' first normal ones."""

    kind: jax.Array  # []
    size: jax.Array  # []
    shape: jax.Array  # [P]
    order: jax.Array  # [P, N]
    centre: jax.Array  # [P, 3]
    versus: jax.Array  # [3]: distance, direction and height of two swarms
    waits: jax.Array  # [P − 1]
    drift: jax.Array  # [2]: speed and sign
    curve: jax.Array  # [3, 4]
    density: jax.Array  # []
    obstacle_size: jax.Array  # []
    cells: jax.Array  # [64]
    heights: jax.Array  # [2, N] of starts and goals among obstacles
    position: jax.Array  # [3, N]
    yaw: jax.Array  # [N]
    sensed: jax.Array  # [sensors, N] normal
    near: jax.Array  # [N] a drone starts near its goal where this is below ``near_share``


def draw(key: jax.Array, drones: int, sensors: int) -> Draws:
    """All random numbers of an episode's start."""
    shapes = {
        "kind": (),
        "size": (),
        "shape": (PHASES,),
        "order": (PHASES, drones),
        "centre": (PHASES, 3),
        "versus": (3,),
        "waits": (PHASES - 1,),
        "drift": (2,),
        "curve": (3, 4),
        "density": (),
        "obstacle_size": (),
        "cells": (CELLS * CELLS,),
        "heights": (2, drones),
        "position": (3, drones),
        "yaw": (drones,),
        "sensed": (sensors, drones),
        "near": (drones,),  # last, so that the others stay what they were before it was added
    }
    draws = Draws(**random.named(key, shapes))
    return draws._replace(sensed=random.normal(draws.sensed))


def between(low: Any, high: Any, share: jax.Array) -> jax.Array:
    """``low`` at a share of 0, ``high`` at 1."""
    return low + (high - low) * share


def choose_goals(draws: Draws, env_params: Any, dimensions: int, free: jax.Array) -> Goals:
    """The goals of an episode.

    Args:
        draws: of its start.
        env_params: its ``mix`` [len(SCENARIOS)], ``room`` and ``ranges``.
        dimensions: 2 for horizontal formations only.
        free: [3, N] positions between obstacles, for the scenarios among them.
    """
    ranges, room = env_params.ranges, env_params.room
    kind = draw_kind(draws.kind, env_params.mix)
    offset, size = _offsets(draws, kind, FLAT if dimensions == 2 else len(SHAPES), ranges)
    # Formations that do not fit into the room are shrunk, and raised off the floor.
    aside = jnp.maximum(jnp.max(jnp.abs(offset[:, :2])), 1e-6)
    up = jnp.maximum(jnp.max(jnp.abs(offset[:, 2])), 1e-6)
    reach = ranges.centre + jnp.where(is_any(kind, "swarm_versus_swarm"), 0.5 * ranges.versus_high, 0.0)
    widest = jnp.minimum((room.half - WALL - reach) / aside, 0.5 * (room.height - 2.0 * WALL) / up)
    grows = is_any(kind, "dynamic_formation")
    size, widest = jnp.minimum(size, widest), jnp.where(grows, jnp.minimum(WIDEST, widest), widest)
    centres = _centres(draws, kind, ranges)
    lift = WALL + jnp.where(grows, widest, size) * up
    centres = centres.at[:, 2].set(jnp.clip(centres[:, 2], lift, room.height - lift))
    phases = centres + size * offset
    phases = jnp.where(is_any(kind, "obstacles_same"), free[:, :1], phases)
    phases = jnp.where(is_any(kind, "obstacles_random"), free, phases)
    waits = between(ranges.change_low, ranges.change_high, draws.waits)
    starts = jnp.concatenate([jnp.zeros(1), jnp.cumsum(waits)])
    drift = between(ranges.drift_low, ranges.drift_high, draws.drift[0])
    drift = jnp.where(grows, jnp.where(draws.drift[1] < 0.5, drift, -drift), 0.0)
    curve = between(-2.0, 2.0, draws.curve).at[:, 0].set(0.0)
    curve = curve.at[2].set(jnp.maximum(curve[2], WALL - phases[0, 2, 0]))  # a Bézier curve stays in the hull of its points
    return Goals(phases, starts, offset[0], size, widest, drift, curve, kind)


def _offsets(draws: Draws, kind: jax.Array, shapes: int, ranges: Ranges) -> tuple[jax.Array, jax.Array]:
    """[P, 3, N] positions in one of the first ``shapes`` formations with neighbours 1 m apart, and its size in m."""
    drones, swap = len(draws.yaw), is_any(kind, "swap")
    low, high = jnp.where(swap, ranges.swap_low, ranges.spacing_low), jnp.where(swap, ranges.swap_high, ranges.spacing_high)
    grows = is_any(kind, "dynamic_formation")
    low, high = jnp.where(grows, 0.0, low), jnp.where(grows, WIDEST, high)
    size = jnp.where(is_any(kind, *ONE_GOAL), 0.0, between(low, high, draws.size))
    shape = jnp.floor(shapes * draws.shape).astype(jnp.int32)
    shape = jnp.where(is_any(kind, "dynamic_different"), shape, shape[0])
    order = jnp.where(swap, random.ranks(draws.order), jnp.arange(drones))
    halves = [formations(count) for count in ((drones + 1) // 2, drones // 2) if count]
    table = jnp.where(is_any(kind, "swarm_versus_swarm"), np.concatenate(halves, axis=2), formations(drones))
    return jnp.take_along_axis(table[shape], order[:, None], axis=2), size


def _centres(draws: Draws, kind: jax.Array, ranges: Ranges) -> jax.Array:
    """[P, 3, N] m: centre of each drone's formation; the two of ``swarm_versus_swarm`` change sides."""
    drones = len(draws.yaw)
    low, high = jnp.stack([-ranges.centre, -ranges.centre, ranges.low]), jnp.stack([ranges.centre, ranges.centre, ranges.high])
    centre = between(low, high, draws.centre)
    centre = jnp.where(is_any(kind, "dynamic_same", "dynamic_different"), centre, centre[0])[:, :, None]
    distance, angle = between(ranges.versus_low, ranges.versus_high, draws.versus[0]), 2.0 * jnp.pi * draws.versus[1]
    rise = between(ranges.low, ranges.high, draws.versus[2]) - centre[0, 2, 0]
    aside = 0.5 * jnp.stack([distance * jnp.cos(angle), distance * jnp.sin(angle), rise])[:, None]
    first = (jnp.arange(drones) < (drones + 1) // 2) ^ (jnp.arange(PHASES)[:, None] % 2 == 1)
    two = centre.at[:, 2].add(aside[2]) + jnp.where(first, -1.0, 1.0)[:, None] * aside
    return jnp.where(is_any(kind, "swarm_versus_swarm"), two, centre)


def obstacle_count(density: Any) -> Any:
    """Whole cells with an obstacle: 12 of 64 at a density of 0.2."""
    return jnp.floor(jnp.asarray(density) * CELLS * CELLS + 1e-4)


def place_obstacles(draws: Draws, env_params: Any, slots: int) -> tuple[jax.Array, ...]:
    """Cylinders in cells of 1 m of the central 8 × 8, and free cells for starts and goals.

    Args:
        draws: of the episode's start.
        env_params: its ``density``, ``obstacle_size`` and ``ranges``.
        slots: M; with 0 there are no obstacles, whatever the density.

    Returns:
        x, y and radius [M] (0 in empty slots), and two [3, N] positions at random heights of 1 to 3 m in free cells.
    """
    ranges, density, size = env_params.ranges, env_params.density, env_params.obstacle_size
    density = between(density, jnp.maximum(ranges.density_high, density), draws.density) if slots else 0.0
    size = between(size, jnp.maximum(ranges.size_high, size), draws.obstacle_size)
    order = random.ranks(draws.cells)
    x, y = order % CELLS - 0.5 * (CELLS - 1), order // CELLS - 0.5 * (CELLS - 1)
    number = obstacle_count(density).astype(jnp.int32)
    radius = jnp.where(jnp.arange(slots) < number, 0.5 * size, 0.0)
    turn = jnp.arange(len(draws.yaw)) % (CELLS * CELLS - number)  # where free cells are few, several drones share one
    heights = between(LOWEST, HIGHEST, draws.heights)
    places = (number + turn, CELLS * CELLS - 1 - turn)
    start, goal = (jnp.stack([x[place], y[place], height]) for place, height in zip(places, heights, strict=True))
    return x[:slots], y[:slots], radius, start, goal
