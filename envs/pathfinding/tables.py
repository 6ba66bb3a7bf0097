"""Tables of maps, built once on the host: what is blocked, where agents may start and go, and how far it is.

Maps lie in rasters of H × W cells with a border as wide as agents see, so that a view is one slice. A cell is its index in the
raster, row by row.

Axis letters: M maps, S starts, G goals, C = H W cells of a raster, F free cells, B words of a row of bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import struct
from scipy import ndimage, sparse
from scipy.sparse import csgraph

from marljax.core.fields import param
from marljax.envs.pathfinding.maps import Map
from marljax.errors import UserError

COSTS = ("hops", "congestion")
EIGHTHS = 8  # of a hop, in which congestion costs are counted
WORD = 32  # bits
MAX_BYTES = 2**31  # of the tables of distances and steps
BLOCK = 1024  # goals whose distances are computed at a time
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


class Shape(NamedTuple):
    """Static sizes of tables."""

    height: int  # of a raster, its border included
    width: int
    starts: int
    goals: int

    @property
    def cells(self) -> int:
        return self.height * self.width

    @property
    def words(self) -> int:
        return -(-self.width // WORD)


class Tables(struct.PyTreeNode):
    """What an environment knows about its maps. Starts and goals are sorted by the connected component that they lie in."""

    blocked: Any = param((), help="[M, C] of each cell")
    rows: Any = param((), help="[M, H, B] the same as bits of uint32, column 0 the lowest")
    starts: Any = param((), help="[M, S] cells in which agents may start, 0 in empty slots")
    start_first: Any = param((), help="[M, S] index of the first start of its component; S in empty slots")
    start_count: Any = param((), help="[M, S] starts of its component")
    goals: Any = param((), help="[M, G] cells that may be goals, 0 in empty slots")
    goal_first: Any = param((), help="[M, G] index of the first goal of its component; G in empty slots")
    goals_begin: Any = param((), help="[M, C] index of the first goal in the component of a cell")
    goals_count: Any = param((), help="[M, C] goals in that component; 0 for blocked cells")
    distance: Any = param((), help="[M, G, C] from a cell to a goal, in hops or eighths; the largest number if unreachable")
    descents: Any = param((), help="[M, G, C] bits of the steps on shortest paths: 1 up, 2 down, 4 left, 8 right; or ()")


def shape_of(maps: Sequence[Map], radius: int, side: int = 0) -> Shape:
    """Sizes that hold these maps or, with ``side``, any map of that many cells along each edge."""
    if side:
        return Shape(side + 2 * radius, side + 2 * radius, side * side, side * side)
    height, width = (max(each.blocked.shape[axis] for each in maps) for axis in range(2))
    starts, goals = (max(int(cells.sum()) for cells in kind) for kind in ([m.starts for m in maps], [m.goals for m in maps]))
    return Shape(height + 2 * radius, width + 2 * radius, starts, goals)


def build(maps: Sequence[Map], shape: Shape, radius: int, costs: str, with_descents: bool) -> Tables:
    """The tables of ``maps``. Distances are uint8 where hops fit, else uint16.

    Raises:
        UserError: for tables of more than 2 GB, or paths whose costs exceed 16 bits.
    """
    size = len(maps) * shape.goals * shape.cells * (2 + with_descents)
    if size > MAX_BYTES:
        raise UserError(f"the maps need {size / 1e9:.1f} GB of tables; give fewer or smaller maps, or mark fewer goals with '$'")
    built = [_tables_of(each, shape, radius, costs, with_descents) for each in maps]
    found = {name: np.stack([each[name] for each in built]) for name in built[0]}
    distance = found["distance"]
    unreachable = np.iinfo(distance.dtype).max
    if costs == "hops" and distance[distance < unreachable].max(initial=0) < np.iinfo(np.uint8).max:
        found["distance"] = np.minimum(distance, np.iinfo(np.uint8).max).astype(np.uint8)
    return Tables(**found)


def room(each: Map) -> int:
    """The number of agents that find starts, and goals that can be reached from there."""
    component, _ = ndimage.label(~each.blocked)
    starts, goals = (np.bincount(component[cells], minlength=component.max() + 1) for cells in (each.starts, each.goals))
    return int(np.minimum(starts, goals).sum() if each.marked else (starts // 2).sum())


class Graph(NamedTuple):
    """A map as a graph of its free cells."""

    blocked: np.ndarray  # [C] bool
    cells: np.ndarray  # [F] index in the raster
    component: np.ndarray  # [F]
    edges: list[tuple[np.ndarray, np.ndarray]]  # by step: nodes, and the nodes that it leads to
    entering: np.ndarray  # [F] cost of entering a cell, in hops
    reversed_steps: Any  # [F, F] sparse: costs of the steps, backwards
    starts: np.ndarray  # nodes, by component
    goals: np.ndarray


def graph_of(each: Map, shape: Shape, radius: int, costs: str) -> Graph:
    """The free cells of a map, and the steps between them."""

    def raster(values: np.ndarray, border: bool) -> np.ndarray:
        whole = np.full((shape.height, shape.width), border)
        whole[radius : radius + values.shape[0], radius : radius + values.shape[1]] = values
        return whole.reshape(-1)

    blocked = raster(each.blocked, True)
    cells = np.flatnonzero(~blocked)
    node = np.full(shape.cells, -1)
    node[cells] = np.arange(len(cells))
    edges = []
    for row, column in STEPS:  # the border is blocked: no index leaves the raster
        target = node[cells + row * shape.width + column]
        edges.append((np.flatnonzero(target >= 0), target[target >= 0]))
    source, target = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    hops = sparse.csr_matrix((np.ones(len(source)), (source, target)), (len(cells), len(cells)))
    _, component = csgraph.connected_components(hops, directed=False)
    starts, goals = (node[np.flatnonzero(raster(kind, False))] for kind in (each.starts, each.goals))
    starts, goals = (nodes[np.argsort(component[nodes], kind="stable")] for nodes in (starts, goals))
    entering = _congestion(hops, component) if costs == "congestion" else np.ones(len(cells))
    # a step costs what entering its cell does; distances to a goal are those from it along reversed steps
    reversed_steps = sparse.csr_matrix((entering[target], (target, source)), hops.shape)
    return Graph(blocked, cells, component, edges, entering, reversed_steps, starts, goals)


def _congestion(hops: Any, component: np.ndarray) -> np.ndarray:
    """[F] cost of entering a cell (Skrynnik et al. 2024, "Learn to Follow"): the largest mean distance from a cell to those that
    it can reach, over that of this cell, so that cells in the middle cost more.

    The largest is that of the cell's own component, and not of the whole map: elsewhere all costs would grow by one factor.
    """
    nodes, mean = len(component), np.zeros(len(component))
    for first in range(0, nodes, BLOCK):
        block = np.arange(first, min(first + BLOCK, nodes))
        length = csgraph.dijkstra(hops, unweighted=True, indices=block)
        reachable = np.isfinite(length)
        mean[block] = np.where(reachable, length, 0.0).sum(1) / reachable.sum(1)
    largest = ndimage.maximum(mean, component, component) if nodes else mean
    return np.where(mean > 0, largest / np.where(mean > 0, mean, 1.0), 1.0)  # a cell alone is never entered


def _tables_of(each: Map, shape: Shape, radius: int, costs: str, with_descents: bool) -> dict[str, np.ndarray]:
    """The rows of all tables that belong to one map; distances are uint16."""
    graph = graph_of(each, shape, radius, costs)

    def padded(values: np.ndarray, slots: int, value: int = 0) -> np.ndarray:
        return np.pad(values, (0, slots - len(values)), constant_values=value).astype(np.int32)

    def first_and_count(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = graph.component[nodes]
        first = np.searchsorted(own, graph.component)
        return first, np.searchsorted(own, graph.component, side="right") - first

    start_first, start_count = first_and_count(graph.starts)
    goal_first, goal_count = first_and_count(graph.goals)
    begin, count = np.zeros((2, shape.cells), np.int32)
    begin[graph.cells], count[graph.cells] = goal_first, goal_count
    bits = np.ones((shape.height, shape.words * WORD), np.uint64)
    bits[:, : shape.width] = graph.blocked.reshape(shape.height, shape.width)
    words = bits.reshape(shape.height, shape.words, WORD) << np.arange(WORD, dtype=np.uint64)
    found = {
        "blocked": graph.blocked,
        "rows": words.sum(-1).astype(np.uint32),
        "starts": padded(graph.cells[graph.starts], shape.starts),
        "start_first": padded(start_first[graph.starts], shape.starts, shape.starts),
        "start_count": padded(start_count[graph.starts], shape.starts),
        "goals": padded(graph.cells[graph.goals], shape.goals),
        "goal_first": padded(goal_first[graph.goals], shape.goals, shape.goals),
        "goals_begin": begin,
        "goals_count": count,
    }
    return found | _ways_to_goals(graph, shape, EIGHTHS if costs == "congestion" else 1, with_descents)


def _ways_to_goals(graph: Graph, shape: Shape, unit: int, with_descents: bool) -> dict[str, np.ndarray]:
    """``distance`` and, ``with_descents``, ``descents`` of one map."""
    unreachable = np.iinfo(np.uint16).max
    distance = np.full((shape.goals, shape.cells), unreachable, np.uint16)
    descents = np.zeros((shape.goals, shape.cells), np.uint8)
    for first in range(0, len(graph.goals), BLOCK):
        to_goal = csgraph.dijkstra(graph.reversed_steps, indices=graph.goals[first : first + BLOCK])  # [block, F]
        rows, reachable = slice(first, first + len(to_goal)), np.isfinite(to_goal)
        if (longest := to_goal[reachable].max(initial=0.0)) * unit >= unreachable:
            raise UserError(f"a path of {longest:,.0f} hops is too long for costs in 16 bits; give smaller maps")
        distance[rows, graph.cells] = np.where(reachable, np.round(to_goal * unit), unreachable)
        for bit, (source, target) in enumerate(graph.edges if with_descents else ()):
            before, after = to_goal[:, source], to_goal[:, target]
            shortens = np.isfinite(before) & np.isclose(graph.entering[target] + after, before)
            descents[rows, graph.cells[source]] |= shortens.astype(np.uint8) << bit
    return {"distance": distance} | ({"descents": descents} if with_descents else {})
