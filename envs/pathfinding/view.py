"""What agents of ``pathfinding`` observe: obstacles and agents around them, and guidance from tables of distances.

Axis letters: A agents, V = 2 radius + 1 cells along an edge of a view, B words of a row of bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.pathfinding.tables import STEPS, WORD, Shape, Tables

GUIDANCES = ("none", "next", "cost", "directions", "path")
FAR = 20.0  # hops beyond which ``cost`` shows no difference
SCALE = 64.0  # hops, of the distance to the goal
NO_WAY = 2.0  # in ``next``: the change of distance by a step into a wall


class Eye(NamedTuple):
    """Static numbers of a view."""

    shape: Shape
    radius: int
    guidance: str
    unit: int  # of tables of distances: 1 for hops, or EIGHTHS

    @property
    def edge(self) -> int:
        return 2 * self.radius + 1

    @property
    def side(self) -> int:
        """The longer edge of the maps."""
        return max(self.shape.height, self.shape.width) - 2 * self.radius


def columns(eye: Eye, timed: bool) -> tuple[str, ...]:
    """Names of an observation's columns."""

    def channel(name: str) -> tuple[str, ...]:
        around = range(-eye.radius, eye.radius + 1)
        return tuple(f"{name} {row:+d} {column:+d}" for row in around for column in around)

    guides = {
        "none": (),
        "next": ("by up", "by down", "by left", "by right"),
        "cost": channel("cost"),
        "directions": tuple(name for way in ("up", "down", "left", "right") for name in channel(way)),
        "path": channel("path"),
    }
    own = ("goal row", "goal column", "goal row of side", "goal column of side", "distance", "refused")
    return (*channel("wall"), *channel("agent"), *guides[eye.guidance], *own, *(("time left",) if timed else ()))


def rows_of(shape: Shape, cells: jax.Array, present: jax.Array) -> jax.Array:
    """[H, B] uint32 bits of the cells of those ``present`` [A]; cells are distinct."""
    row, column = cells // shape.width, cells % shape.width
    bit = jnp.where(present, jnp.uint32(1) << (column % WORD).astype(jnp.uint32), jnp.uint32(0))
    words = jnp.zeros(shape.height * shape.words, jnp.uint32).at[row * shape.words + column // WORD].add(bit)
    return words.reshape(shape.height, shape.words)


def window(eye: Eye, rows: Callable[[jax.Array], jax.Array], cells: jax.Array) -> jax.Array:
    """[A, V] uint32: of each row of an agent's view the bits of its V cells, the leftmost the lowest.

    ``rows`` gives the words [A, V, B] of rows [A, V].
    """
    row, column = cells // eye.shape.width, cells % eye.shape.width
    words = rows(row[:, None] + np.arange(-eye.radius, eye.radius + 1))
    left = (column - eye.radius)[:, None]
    shift = (left % WORD).astype(jnp.uint32)
    if eye.shape.words == 1:
        return words[..., 0] >> shift
    low = jnp.take_along_axis(words, (left // WORD)[..., None], axis=-1)[..., 0]
    following = jnp.minimum(left // WORD + 1, eye.shape.words - 1)
    high = jnp.take_along_axis(words, following[..., None], axis=-1)[..., 0]
    # a shift by all 32 bits is undefined: by 31 and by one more
    return (low >> shift) | ((high << (WORD - 1 - shift)) << 1)


def unpacked(eye: Eye, words: jax.Array) -> jax.Array:
    """[A, V V] float32 of the bits of ``window``."""
    bits = (words[..., None] >> np.arange(eye.edge, dtype=np.uint32)) & 1
    return bits.reshape(words.shape[0], -1).astype(jnp.float32)


def steps_of(shape: Shape) -> np.ndarray:
    """[4] differences of cells by a step up, down, left and right."""
    return np.array([row * shape.width + column for row, column in STEPS], np.int32)


def around(eye: Eye, table: jax.Array, number: jax.Array, goal: jax.Array, cells: jax.Array) -> jax.Array:
    """[A, V, V] of a table [M, G, C] around the cells of agents, for their goals."""
    table = table.reshape(*table.shape[:2], eye.shape.height, eye.shape.width)
    row, column = cells // eye.shape.width - eye.radius, cells % eye.shape.width - eye.radius

    def one(goal: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(table, (number, goal, row, column), (1, 1, eye.edge, eye.edge))[0, 0]

    return jax.vmap(one)(goal, row, column)


def guide(eye: Eye, tables: Tables, number: jax.Array, goal: jax.Array, cells: jax.Array, distance: jax.Array) -> jax.Array:
    """[A, …] what ``guidance`` shows of the way to the goal; ``number`` is the map's, ``distance`` [A] the agents' own."""
    most = np.iinfo(tables.distance.dtype).max
    if eye.guidance == "next":
        after = tables.distance[number, goal[:, None], cells[:, None] + steps_of(eye.shape)].astype(jnp.int32)
        change = (after - distance[:, None]) / eye.unit
        return jnp.where(after == most, NO_WAY, jnp.clip(change, -NO_WAY, NO_WAY))
    if eye.guidance == "cost":
        seen = around(eye, tables.distance, number, goal, cells).astype(jnp.int32)
        change = jnp.clip((seen - distance[:, None, None]) / (eye.unit * FAR), -1.0, 1.0)
        return jnp.where(seen == most, -1.0, change).reshape(len(cells), -1)
    if eye.guidance == "directions":
        seen = around(eye, tables.better, number, goal, cells)
        ways = (seen[:, None] >> np.arange(4, dtype=np.uint8)[:, None, None]) & 1
        return ways.reshape(len(cells), -1).astype(jnp.float32)
    return path(eye, around(eye, tables.better, number, goal, cells))


def path(eye: Eye, better: jax.Array) -> jax.Array:
    """[A, V V]: 1 on the shortest way from the middle of the view until it leaves the view; of several ways the one that goes up
    rather than down, down rather than left, left rather than right.

    better [A, V, V]: the steps on shortest ways from each cell.
    """
    agents, edge = better.shape[0], eye.edge
    # the step from each cell, within the view; none at the goal
    bit = jnp.argmax((better[..., None] >> np.arange(4, dtype=np.uint8)) & 1, axis=-1).reshape(agents, -1)
    rows, cols = (np.array([step[axis] for step in STEPS]) for axis in range(2))
    going = better.reshape(agents, -1) > 0
    index = np.arange(edge * edge)
    row, column = index // edge + jnp.asarray(rows)[bit], index % edge + jnp.asarray(cols)[bit]
    leaves = (row < 0) | (row >= edge) | (column < 0) | (column >= edge)
    goes = going & ~leaves
    following = jnp.where(goes, row * edge + column, index)
    middle = edge * edge // 2

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(jnp.take_along_axis(goes, state[0][:, None], axis=1))

    def walk(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        place = jnp.take_along_axis(following, state[0][:, None], axis=1)[:, 0]
        return place, state[1] | (index == place[:, None])

    start = jnp.broadcast_to(jnp.asarray(index == middle), (agents, edge * edge))
    return jax.lax.while_loop(unfinished, walk, (jnp.full(agents, middle), start))[1].astype(jnp.float32)
