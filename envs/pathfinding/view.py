"""What agents of ``pathfinding`` observe: obstacles, agents around them and what these intend to do, and guidance from tables of
distances.

Axis letters: A agents, V = 2 radius + 1 cells along an edge of a view, B words of a row of bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.spaces import Part
from marljax.envs.pathfinding.tables import STEPS, WORD, Shape, Tables

GUIDANCES = ("none", "next", "cost", "directions", "path")
INTENTS = ("step_row", "step_column", "order")  # parts of an observation with ``intents``
FAR = 20.0  # hops beyond which ``cost`` shows no difference
SCALE = 64.0  # hops, of the distance to the goal
WALL_AHEAD = 2.0  # in ``next``: the change of distance by a step into a wall


class ViewSpec(NamedTuple):
    """Static numbers of a view."""

    shape: Shape
    radius: int
    guidance: str
    unit: int  # of tables of distances: 1 for hops, or EIGHTHS
    intents: bool

    @property
    def edge(self) -> int:
        return 2 * self.radius + 1

    @property
    def side(self) -> int:
        """The longer edge of the maps."""
        return max(self.shape.height, self.shape.width) - 2 * self.radius


def layout(spec: ViewSpec, timed: bool) -> tuple[Part, ...]:
    """The parts of an observation; ``timed`` for those with the time left."""
    around = range(-spec.radius, spec.radius + 1)
    cells = tuple(f"{row:+d} {column:+d}" for row in around for column in around)
    steps = ("up", "down", "left", "right")
    own = ("goal row", "goal column", "goal row / side", "goal column / side", "distance", "refused")
    parts: dict[str, tuple[str, ...]] = {"wall": cells, "agent": cells}
    if spec.intents:
        parts |= dict.fromkeys(INTENTS, cells)
    if spec.guidance != "none":
        parts["next"] = steps
    if spec.guidance == "directions":
        parts["directions"] = tuple(f"{step} {cell}" for step in steps for cell in cells)
    elif spec.guidance in ("cost", "path"):
        parts[spec.guidance] = cells
    parts["own"] = (*own, "time left") if timed else own
    return tuple(Part(name, 1, len(columns), columns=columns) for name, columns in parts.items())


def rows_of(shape: Shape, cells: jax.Array, present: jax.Array) -> jax.Array:
    """[H, B] uint32 bits of the cells of those ``present`` [A]; cells are distinct."""
    row, column = cells // shape.width, cells % shape.width
    bit = jnp.where(present, jnp.uint32(1) << (column % WORD).astype(jnp.uint32), jnp.uint32(0))
    words = jnp.zeros(shape.height * shape.words, jnp.uint32).at[row * shape.words + column // WORD].add(bit)
    return words.reshape(shape.height, shape.words)


def window(spec: ViewSpec, rows: Callable[[jax.Array], jax.Array], cells: jax.Array) -> jax.Array:
    """[A, V] uint32: of each row of an agent's view the bits of its V cells, the leftmost the lowest.

    ``rows`` gives the words [A, V, B] of rows [A, V].
    """
    row, column = cells // spec.shape.width, cells % spec.shape.width
    words = rows(row[:, None] + np.arange(-spec.radius, spec.radius + 1))
    left = (column - spec.radius)[:, None]
    shift = (left % WORD).astype(jnp.uint32)
    if spec.shape.words == 1:
        return words[..., 0] >> shift
    low = jnp.take_along_axis(words, (left // WORD)[..., None], axis=-1)[..., 0]
    following = jnp.minimum(left // WORD + 1, spec.shape.words - 1)
    high = jnp.take_along_axis(words, following[..., None], axis=-1)[..., 0]
    # a shift by all 32 bits is undefined: by 31 and by one more
    return (low >> shift) | ((high << (WORD - 1 - shift)) << 1)


def unpacked(spec: ViewSpec, words: jax.Array) -> jax.Array:
    """[A, V V] float32 of the bits of ``window``."""
    bits = (words[..., None] >> np.arange(spec.edge, dtype=np.uint32)) & 1
    return bits.reshape(words.shape[0], -1).astype(jnp.float32)


def steps_of(shape: Shape) -> np.ndarray:
    """[4] differences of cells by a step up, down, left and right."""
    return np.array([row * shape.width + column for row, column in STEPS], np.int32)


def around(spec: ViewSpec, table: jax.Array, map_index: jax.Array, goal: jax.Array, cells: jax.Array) -> jax.Array:
    """[A, V, V] of a table [M, G, C] around the cells of agents, for their goals."""
    table = table.reshape(*table.shape[:2], spec.shape.height, spec.shape.width)
    row, column = cells // spec.shape.width - spec.radius, cells % spec.shape.width - spec.radius

    def one(goal: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(table, (map_index, goal, row, column), (1, 1, spec.edge, spec.edge))[0, 0]

    return jax.vmap(one)(goal, row, column)


def distances_ahead(shape: Shape, tables: Tables, map_index: jax.Array, goal: jax.Array, cells: jax.Array) -> jax.Array:
    """[A, 4] int32 distances to the goal after a step up, down, left and right, in the unit of the table; the largest number of
    the table where the step is blocked."""
    return tables.distance[map_index, goal[:, None], cells[:, None] + steps_of(shape)].astype(jnp.int32)


def changes(spec: ViewSpec, tables: Tables, distance: jax.Array, ahead: jax.Array) -> jax.Array:
    """[A, 4] by how many hops each step changes the distance to the goal, from ``distance`` [A] to ``ahead`` [A, 4]."""
    change = jnp.clip((ahead - distance[:, None]) / spec.unit, -WALL_AHEAD, WALL_AHEAD)
    return jnp.where(ahead == np.iinfo(tables.distance.dtype).max, WALL_AHEAD, change)


def guide(
    spec: ViewSpec, tables: Tables, map_index: jax.Array, goal: jax.Array, cells: jax.Array, distance: jax.Array
) -> jax.Array:
    """[A, …] what ``guidance`` shows of the cells around; ``distance`` [A] is the agents' own, in the unit of the table."""
    if spec.guidance == "cost":
        unreachable = np.iinfo(tables.distance.dtype).max
        seen = around(spec, tables.distance, map_index, goal, cells).astype(jnp.int32)
        change = jnp.clip((seen - distance[:, None, None]) / (spec.unit * FAR), -1.0, 1.0)
        return jnp.where(seen == unreachable, -1.0, change).reshape(len(cells), -1)
    descents = around(spec, tables.descents, map_index, goal, cells)
    if spec.guidance == "directions":
        bits = [(descents >> np.uint8(bit)) & 1 for bit in range(len(STEPS))]
        return jnp.stack(bits, axis=1).astype(jnp.float32).reshape(len(cells), -1)
    return path(spec, descents)


def intents(
    spec: ViewSpec, cells: jax.Array, alive: jax.Array, rank: jax.Array, distance: jax.Array, ahead: jax.Array
) -> list[jax.Array]:
    """The three parts [A, V V] ``INTENTS``: of the agents around, rows and columns of the step that shortens the way to their
    goal most (the first of equals), 0 at the goal; and 1 for a lower ``rank`` [A] than the observer's, −1 for a higher one."""
    count = cells.shape[0]
    shortens = jnp.min(ahead, axis=1) < distance
    step = jnp.asarray(STEPS)[jnp.argmin(ahead, axis=1)] * shortens[:, None]
    numbers = jnp.concatenate([step, rank[:, None]], axis=1)
    # those that are gone share the first cell of the border, where nobody is
    grids = jnp.zeros((spec.shape.cells, 3), jnp.int32).at[jnp.where(alive, cells, 0)].set(numbers * alive[:, None])
    zeros = jnp.zeros(count, jnp.int32)
    row, column, number = (around(spec, grid[None, None], jnp.array(0), zeros, cells).reshape(count, -1) for grid in grids.T)
    order = jnp.where(number > 0, jnp.sign(rank[:, None] - number), 0)
    return [row, column, order]


def path(spec: ViewSpec, descents: jax.Array) -> jax.Array:
    """[A, V V]: 1 on a shortest path from the middle of the view until it leaves the view; of several steps it takes the first of
    up, down, left and right.

    descents [A, V, V]: bits of the steps on shortest paths from each cell.
    """
    agents, edge = descents.shape[0], spec.edge
    first = jnp.argmax((descents[..., None] >> np.arange(len(STEPS), dtype=np.uint8)) & 1, axis=-1).reshape(agents, -1)
    index, step = np.arange(edge * edge), np.array(STEPS)
    row, column = (place + jnp.asarray(step[:, axis])[first] for axis, place in enumerate(np.divmod(index, edge)))
    inside = (row >= 0) & (row < edge) & (column >= 0) & (column < edge)
    goes = inside & (descents.reshape(agents, -1) > 0)
    following = jnp.where(goes, row * edge + column, index)
    middle = edge * edge // 2

    def unfinished(walked: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(jnp.take_along_axis(goes, walked[0][:, None], axis=1))

    def walk(walked: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        place = jnp.take_along_axis(following, walked[0][:, None], axis=1)[:, 0]
        return place, walked[1] | (index == place[:, None])

    start = jnp.broadcast_to(jnp.asarray(index == middle), (agents, edge * edge))
    return jax.lax.while_loop(unfinished, walk, (jnp.full(agents, middle), start))[1].astype(jnp.float32)
