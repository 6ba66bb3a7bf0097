"""The room of ``swarm`` in three dimensions, for viewers that turn it. Vectors are ``[3, K]``, as in ``scene``; N drones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Balls3D, Colour, Columns3D, Discs3D, Lines3D, Rings3D, Space
from marljax.envs.swarm.quadrotor import Body

ROTORS = np.array([(1, -1), (-1, -1), (-1, 1), (1, 1)]) / math.sqrt(2)  # right front, right rear, left rear, left front
ROTOR, HUB = 0.47, 0.32  # radii, in lengths of an arm
LINES = 10  # grid lines either way from the middle, 1 m apart


def draw(
    body: Any,
    arm: Any,
    colour: jax.Array,
    goal: jax.Array,
    goal_colour: jax.Array,
    obstacles: Any,
    view: tuple[jax.Array, jax.Array],
    style: tuple[Colour, Colour, Colour],
) -> Space:
    """The drones in their room.

    Args:
        body: quadrotors, or point masses, which are balls.
        arm: m from the hub to a rotor's axis as drawn, or radius of a ball.
        colour: [N, 4] of the drones.
        goal: [3, N].
        goal_colour: [N, 4].
        obstacles: None without any.
        view: half width and height in m of the part of the room in view.
        style: colours of the grid, the floor's edge and the obstacles.
    """
    goals = goal.T
    position = body.position.T
    blank = jnp.zeros((0, 3))
    discs, balls = Discs3D(blank, blank, jnp.zeros(0), jnp.zeros((0, 4))), Balls3D(position, jnp.full(len(position), arm), colour)
    arms = Lines3D(blank, blank, jnp.zeros((0, 4)))
    if isinstance(body, Body):
        forward, left, up = jnp.moveaxis(body.rotation, 1, 0)  # [3, N] each
        offsets = arm * jnp.stack([x * forward + y * left for x, y in ROTORS])  # [4, 3, N]
        ends = (body.position + offsets).transpose(0, 2, 1).reshape(-1, 3)
        pale = mixed(colour, 1.0, 0.55)
        rotors = jnp.concatenate([pale, colour, colour, pale])
        discs = Discs3D(ends, jnp.tile(up.T, (4, 1)), jnp.full(len(ends), ROTOR) * arm, rotors)
        balls = balls._replace(radius=HUB * balls.radius)
        arms = Lines3D(jnp.tile(position, (4, 1)), ends, rotors)
    on_floor = jnp.array([1.0, 1.0, 0.0])
    stems = [Lines3D(points, points * on_floor, faded(own, 0.45)) for points, own in ((position, colour), (goals, goal_colour))]
    columns = Columns3D(jnp.zeros((0, 2)), jnp.zeros(0), jnp.zeros(0), jnp.zeros((0, 4)))
    if obstacles is not None:
        present = (obstacles.radius > 0)[:, None]
        foot, height = jnp.stack([obstacles.x, obstacles.y], axis=1), jnp.full(obstacles.x.shape, view[1])
        columns = Columns3D(foot, obstacles.radius, height, jnp.where(present, jnp.array(style[2]), 0.0))
    parts = (_floor(view[0], style), arms, *stems)
    return Space(
        size=jnp.stack(view),
        agents=position,
        lines=Lines3D(*(jnp.concatenate(fields) for fields in zip(*parts, strict=True))),
        discs=discs,
        balls=balls,
        rings=Rings3D(goals, jnp.full(len(goals), 1.3 * arm), goal_colour),
        columns=columns,
    )


def _floor(half: jax.Array, style: tuple[Colour, Colour, Colour]) -> Lines3D:
    """The floor's grid of 1 m within ``half`` m either way, and its edge."""
    number = np.arange(-LINES, LINES + 1.0)
    edge, zero = jnp.zeros(len(number)) + half, jnp.zeros(len(number))
    along = jnp.stack([-edge, number + zero, zero], 1), jnp.stack([edge, number + zero, zero], 1)
    across = tuple(points[:, np.array([1, 0, 2])] for points in along)
    corners = half * np.array([(-1, -1, 0), (1, -1, 0), (1, 1, 0), (-1, 1, 0)], float)
    start, end = (
        jnp.concatenate(points) for points in zip(along, across, (corners, corners[np.array([1, 2, 3, 0])]), strict=True)
    )
    grid = jnp.where((jnp.abs(number) <= half)[:, None], jnp.array(style[0]), 0.0)
    return Lines3D(start, end, jnp.concatenate([grid, grid, jnp.tile(jnp.array([style[1]]), (4, 1))]))


def mixed(colour: jax.Array, light: float, share: float) -> jax.Array:
    """[K, 4] colours with a share of black (0) or white (1)."""
    return jnp.append((1 - share) * colour[:, :3] + share * light, colour[:, 3:], axis=1)


def faded(colour: jax.Array, alpha: float) -> jax.Array:
    """[K, 4] colours, less opaque."""
    return colour * jnp.array([1.0, 1.0, 1.0, alpha])
