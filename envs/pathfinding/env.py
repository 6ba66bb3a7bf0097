"""``pathfinding``: many agents find their ways on one grid without standing in each other's way.

The tasks, rules and maps of "POGEMA: A Benchmark Platform for Cooperative Multi-Agent Pathfinding" (Skrynnik et al. 2024), with
the guidance of "Learn to Follow: Decentralized Lifelong Multi-Agent Pathfinding via Planning and Learning" (Skrynnik et al. 2024)
and of MAPF-GPT (Andreychuk et al. 2024).

Axis letters: A agents, C cells, M maps, S starts, G goals, V cells along an edge of a view, O observation.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.fields import check_order, option, param
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, Part
from marljax.core.types import Outcome, View
from marljax.envs.pathfinding import maps as texts
from marljax.envs.pathfinding import rules, tables, view
from marljax.envs.pathfinding import scene as scenes
from marljax.envs.pathfinding.tables import EIGHTHS, Shape, Tables
from marljax.envs.pathfinding.view import GUIDANCES, SCALE, Eye
from marljax.errors import UserError

TASKS = ("lifelong", "together", "once")
ACTIONS = ("stay", "up", "down", "left", "right")
MOST_AGENTS = 1024
LARGEST_RADIUS = 15
SIDES = {"random": 21, "mazes": 21, "small": texts.SMALL_SIDE}  # of the largest generated map
MEANINGS = {
    "throughput": "goals reached per step, by all agents together",
    "refused": "moves that ended where they began, of those tried",
    "csr": "episodes in which all agents were at their goals at the end",
    "isr": "agents that were at their goals at the end",
    "sum_of_costs": "steps until an agent's arrival for good, summed over agents; all steps for those that did not arrive",
    "makespan": "steps until the last agent's arrival for good",
}


class Size(NamedTuple):
    """Defaults that depend on the maps."""

    agents: int
    duration: int
    first_map: int
    num_maps: int


SIZES = {
    "random": Size(32, 256, 128, 32),
    "mazes": Size(32, 128, 128, 32),
    "small": Size(4, 64, 0, 32),
    "warehouse": Size(64, 256, 0, 1),
    "puzzles": Size(4, 256, 0, 1),
}
OWN_MAPS = Size(8, 256, 0, 1)


class RewardWeights(struct.PyTreeNode):
    """Rewards of an agent."""

    goal: Any = param(1.0, low=0.0, help="at the goal; in the task together when all are")
    closer: Any = param(0.1, low=0.0, help="per hop by which the way to the goal became shorter")
    refused: Any = param(0.05, low=0.0, help="cost of a move that ended where it began")
    path: Any = param(0.0, low=0.0, help="for a step along a shortest way (guidance directions or path only)")


class PathfindingParams(struct.PyTreeNode):
    """Parameters of ``pathfinding``: change ``default_params`` with ``.replace(…)``, nothing is compiled again."""

    map: Any = param(-1, low=-1, integer=True, help="index of the map; -1: each episode draws one")
    duration: Any = param(256, low=1, integer=True, unit="steps", help="after which an episode is truncated")
    agents_min: Any = param(1, low=1, integer=True, help="each episode draws its number of agents, from agents_min …")
    agents_max: Any = param(1, low=1, integer=True, help="… to agents_max")
    again: Any = param(True, help="a new goal may be the cell where the agent is, as in the benchmark's results")
    weights: RewardWeights = dataclasses.field(default_factory=RewardWeights)
    tables: Tables = dataclasses.field(default_factory=Tables)  # of the environment's maps


class PathfindingState(struct.PyTreeNode):
    """The state of an episode of ``pathfinding``."""

    cell: jax.Array  # [A] int32
    goal: jax.Array  # [A] int32 index of the goal among the map's
    alive: jax.Array  # [A] bool
    refused: jax.Array  # [A] bool: the last move ended where it began
    arrived: jax.Array  # [A] int32 steps until the agent came to its goal, −1 while it is elsewhere
    map: jax.Array  # int32
    step: jax.Array  # int32
    reached: jax.Array  # int32 goals reached by all
    moves: jax.Array  # int32 moves tried by all
    failures: jax.Array  # int32 of which ended where they began
    agents: jax.Array  # int32 agents of the episode


@dataclasses.dataclass(frozen=True)
class Pathfinding(Environment):
    """Agents on a grid go to goals that each has for itself; they choose all at once, and two cannot share a cell.

    Actions: 0 stay, 1 up, 2 down, 3 left, 4 right. A move into a wall, or one that the rules of ``collision`` refuse, is a stay:

    ========== ==================================================================================================================
    collision  rules
    ========== ==================================================================================================================
    soft       no swaps; of several that want a cell the lowest index may have it; who wants the cell of one that stays stays,
               too; following and rings are allowed (all published tables)
    priority   agents move one after the other to cells that are empty by then (POGEMA's default, training of Follower)
    block_both a cell is entered if nobody stood there before and nobody else wants it
    ========== ==================================================================================================================

    Tasks (in POGEMA ``on_target``):

    ========== ==================================================================================================================
    task       rules
    ========== ==================================================================================================================
    lifelong   1 for a goal reached, and a new one in the same connected component (``restart``)
    together   agents stay at their goals; 1 for all, and the end, when all are there at once (``nothing``)
    once       1 for a goal reached, and the agent is gone; the end when all are (``finish``)
    ========== ==================================================================================================================

    Episodes are truncated after ``duration`` steps. The reward has further terms, see ``RewardWeights``.

    Starts and first goals are drawn as in POGEMA: all differ, and a way leads from each start to its goal. Where a map marks
    starts and goals, they are drawn among these.

    Observation, V = 2 ``radius`` + 1:

    ========== ====== ===========================================================================================================
    part       width  columns
    ========== ====== ===========================================================================================================
    wall       V V    cells around the agent that are blocked, row by row; beyond the map all are (in POGEMA only the first ones)
    agent      V V    cells with an agent, its own included
    next       4      ``guidance=next``: by how much each step changes the distance to the goal; 2 for a wall
    cost       V V    ``cost``: distance to the goal from each cell minus the own, 20 hops, clipped; −1: blocked (MAPF-GPT)
    directions 4 V V  ``directions``: whether a step up, down, left, right from each cell is on a shortest way (DHC, SCRIMP)
    path       V V    ``path``: the cells of a shortest way until it leaves the view (Follower)
    own        6, 7   goal relative to the agent (rows, columns), clipped to the view, in radii; the same in sides of the map;
                      distance to the goal (64 hops); the last move was refused; except in lifelong, share of the time left
    ========== ====== ===========================================================================================================

    With ``costs=congestion`` all distances count what entering a cell costs, more in the middle of the map (Follower).

    Global state: of each agent row and column, those of its goal (sides), distance (64 hops) and whether it is alive.
    Metrics: see ``MEANINGS``.
    """

    maps: str = option(
        "random", help="random, mazes, warehouse, puzzles (the benchmark's), small (POGEMA's default, 8 × 8), or a file of maps"
    )
    agents: int = option(0, low=0, high=MOST_AGENTS, help="A; 0: 32 (random, mazes), 64 (warehouse), 4 (small, puzzles), 8 (own)")
    task: str = option("lifelong", choices=TASKS, help="new goals for ever, all at their goals at once, or each gone at its goal")
    collision: str = option("soft", choices=rules.COLLISIONS, help="who may move where several want the same")
    radius: int = option(5, low=1, high=LARGEST_RADIUS, help="cells that an agent sees in each direction")
    guidance: str = option("cost", choices=GUIDANCES, help="what agents observe of the way to the goal")
    costs: str = option("hops", choices=tuple(tables.COSTS), help="of ways: hops, or more for cells where many ways lead through")
    mask_walls: bool = option(False, help="moves into walls are not available")
    first_map: int = option(-1, low=-1, preset=True, help="seed of the first generated map; -1: 128, as 0 to 127 are for tests")
    num_maps: int = option(0, low=0, help="number of generated maps; 0: 32")

    def __post_init__(self) -> None:
        super().__post_init__()
        size = SIZES.get(self.maps, OWN_MAPS)
        object.__setattr__(self, "agents", self.agents or size.agents)
        if self.maps in texts.GENERATED:
            object.__setattr__(self, "num_maps", self.num_maps or size.num_maps)
            object.__setattr__(self, "first_map", size.first_map if self.first_map < 0 else self.first_map)
        elif self.num_maps or self.first_map >= 0:
            name = "num_maps" if self.num_maps else "first_map"
            raise UserError(f"{name} is for generated maps: {', '.join(texts.GENERATED)}; with maps={self.maps} leave it out")
        check_room(self.all_maps, self.agents)

    @property
    def all_maps(self) -> tuple[texts.Map, ...]:
        """The maps, in the order of ``env_params.map``."""
        return texts.load(self.maps, self.first_map, self.num_maps)

    @property
    def _shape(self) -> Shape:
        return tables.shape_of(self.all_maps, self.radius, SIDES.get(self.maps, 0))

    @property
    def _eye(self) -> Eye:
        return Eye(self._shape, self.radius, self.guidance, EIGHTHS if self.costs == "congestion" else 1)

    @property
    def _needs_ways(self) -> bool:
        return self.guidance in ("directions", "path")

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(ACTIONS))

    @property
    def observation_space(self) -> Box:
        return Box((len(self._columns),))

    @property
    def _columns(self) -> tuple[str, ...]:
        return view.columns(self._eye, self.task != "lifelong")

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        return (Part("own", 1, len(self._columns), columns=self._columns),)

    @property
    def default_params(self) -> PathfindingParams:
        built = build_tables(self.maps, self.first_map, self.num_maps, self._shape, self.radius, self.costs, self._needs_ways)
        duration = SIZES.get(self.maps, OWN_MAPS).duration
        return PathfindingParams(tables=built, duration=duration, agents_min=self.agents, agents_max=self.agents)

    def check_params(self, env_params: PathfindingParams) -> None:
        super().check_params(env_params)
        check_order(env_params, ("agents_min", "agents_max"))
        for name, most in (("agents_max", self.agents), ("map", len(env_params.tables.blocked) - 1)):
            if float(getattr(env_params, name)) > most:
                raise UserError(f"{name}={float(getattr(env_params, name)):g} is out of range; it takes an integer up to {most}")
        if not self._needs_ways and float(env_params.weights.path):
            raise UserError("weights.path needs guidance=directions or path, whose tables say which steps are on a shortest way")

    @property
    def display(self) -> Display:
        rates = dict.fromkeys(("refused", "csr", "isr"), "%")
        return Display(
            metrics=("throughput", "refused") if self.task == "lifelong" else ("csr", "isr", "sum_of_costs", "makespan"),
            meanings=MEANINGS,
            lowest=("refused", "sum_of_costs", "makespan"),
            actions=ACTIONS,
            units={**rates, "time": "steps", "throughput": "goals per step", "sum_of_costs": "steps", "makespan": "steps"},
            legend=scenes.LEGEND,
            decisions_per_second=4.0,
        )

    @property
    def offsets(self) -> np.ndarray:
        """[5] int32 by which an action changes an agent's cell."""
        return np.concatenate([[0], view.steps_of(self._shape)]).astype(np.int32)

    def initial(self, key: jax.Array, env_params: PathfindingParams) -> PathfindingState:
        key_map, key_count, key_place = jax.random.split(key, 3)
        all_tables, size = env_params.tables, self.agents
        drawn = jax.random.randint(key_map, (), 0, all_tables.blocked.shape[0])
        number = jnp.where(env_params.map < 0, drawn, env_params.map).astype(jnp.int32)
        low, high = (jnp.asarray(value, jnp.int32) for value in (env_params.agents_min, env_params.agents_max))
        count = jax.random.randint(key_count, (), low, high + 1)
        cell, goal = place(key_place, all_tables, number, size, self.all_maps[0].marked)
        zero, alive = jnp.zeros((), jnp.int32), jnp.arange(size) < count
        # a map that marks cells may give an agent the goal where it stands
        arrived = jnp.where(all_tables.goals[number, goal] == cell, 0, -1).astype(jnp.int32)
        return PathfindingState(
            cell, goal, alive, jnp.zeros(size, bool), arrived, number, zero, zero, zero, zero, count.astype(jnp.int32)
        )

    def transition(
        self, key: jax.Array, state: PathfindingState, action: jax.Array, env_params: PathfindingParams
    ) -> tuple[PathfindingState, Outcome]:
        known, weights, alive = env_params.tables, env_params.weights, state.alive
        tried = alive & (action > 0) & (action < len(ACTIONS))
        target = state.cell + jnp.where(tried, jnp.asarray(self.offsets)[jnp.clip(action, 0, len(ACTIONS) - 1)], 0)
        blocked = known.blocked[state.map, target]
        if self.mask_walls:
            tried &= ~blocked  # an unavailable action acts as a stay
        cell = rules.move(self.collision, state.cell, jnp.where(blocked, state.cell, target), alive)
        refused, step = tried & (cell == state.cell), state.step + 1

        before, after = (self._distance(known, state.map, state.goal, at) for at in (state.cell, cell))
        reward = weights.closer * (before - after) - weights.refused * refused
        if self._needs_ways:
            ways = known.better[state.map, state.goal, state.cell].astype(jnp.int32)
            follows = (action > 0) & (cell != state.cell) & ((ways >> jnp.maximum(action - 1, 0)) & 1 > 0)
            reward += weights.path * follows
        there = alive & (known.goals[state.map, state.goal] == cell)
        # as POGEMA counts costs: who leaves the goal in the very last step has arrived
        arrived = jnp.where(there, jnp.where(state.arrived < 0, step, state.arrived), state.arrived)
        arrived = jnp.where(alive & ~there & (step < env_params.duration), -1, arrived)
        goal, done = state.goal, jnp.array(False)
        if self.task == "lifelong":
            reached, goal = there, jnp.where(there, self.draw_goals(key, known, state.map, goal, cell, env_params), goal)
            arrived = jnp.full_like(arrived, -1)
        elif self.task == "together":
            done = jnp.all(there | ~alive)
            reached = alive & done
        else:
            reached, alive = there, alive & ~there
            done = ~jnp.any(alive)
        state = state.replace(
            cell=cell,
            goal=goal,
            alive=alive,
            refused=refused,
            arrived=arrived,
            step=step,
            reached=state.reached + jnp.sum(reached, dtype=jnp.int32),
            moves=state.moves + jnp.sum(tried, dtype=jnp.int32),
            failures=state.failures + jnp.sum(refused, dtype=jnp.int32),
        )
        return state, Outcome(reward + weights.goal * reached, done, (step >= env_params.duration) & ~done)

    def _distance(self, known: Tables, number: jax.Array, goal: jax.Array, cell: jax.Array) -> jax.Array:
        """[A] hops to the goal."""
        return known.distance[number, goal, cell].astype(jnp.int32) / self._eye.unit

    def draw_goals(
        self, key: jax.Array, known: Tables, number: jax.Array, goal: jax.Array, cell: jax.Array, env_params: PathfindingParams
    ) -> jax.Array:
        """[A] new goals of agents that are in the cells of their goals, from the same components of the map ``number``."""
        begin, count = known.begin[number, cell], known.count[number, cell]
        uniform = jax.random.uniform(key, (self.agents,))
        others = ~jnp.asarray(env_params.again, bool) & (count > 1)  # a component of one cell has no other
        drawn = begin + jnp.minimum((uniform * (count - others)).astype(jnp.int32), count - others - 1)
        return drawn + (others & (drawn >= goal))  # skips the present one

    def observe(self, state: PathfindingState, env_params: PathfindingParams) -> View:
        known, eye = env_params.tables, self._eye
        most = jnp.iinfo(known.distance.dtype).max
        goal_cell = known.goals[state.map, state.goal]
        raw = known.distance[state.map, state.goal, state.cell].astype(jnp.int32)
        walls = view.window(eye, lambda rows: known.rows[state.map, rows], state.cell)
        occupied = view.rows_of(eye.shape, state.cell, state.alive)
        agents = view.window(eye, lambda rows: occupied[rows], state.cell)
        parts = [view.unpacked(eye, walls), view.unpacked(eye, agents)]
        if self.guidance != "none":
            parts.append(view.guide(eye, known, state.map, state.goal, state.cell, raw))
        width = eye.shape.width
        offset = jnp.stack([goal_cell // width - state.cell // width, goal_cell % width - state.cell % width], axis=1)
        distance = jnp.where(raw == most, 0.0, raw / (eye.unit * SCALE))
        parts += [jnp.clip(offset / self.radius, -1.0, 1.0), offset / eye.side, distance[:, None], state.refused[:, None]]
        if self.task != "lifelong":
            parts.append(jnp.broadcast_to(1.0 - state.step / env_params.duration, (self.agents, 1)))
        obs = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=1) * state.alive[:, None]
        mask = jnp.ones((self.agents, len(ACTIONS)), bool)
        if self.mask_walls:
            moves = ~known.blocked[state.map, state.cell[:, None] + view.steps_of(eye.shape)]
            mask = jnp.concatenate([mask[:, :1], moves], axis=1)
        return View(obs, mask, state.alive, self._metrics(state, env_params))

    def _metrics(self, state: PathfindingState, env_params: PathfindingParams) -> dict[str, jax.Array]:
        refused = state.failures / jnp.maximum(state.moves, 1)
        if self.task == "lifelong":
            return {"throughput": state.reached / jnp.maximum(state.step, 1), "refused": refused}
        here = jnp.arange(self.agents) < state.agents
        at_goal = here & (env_params.tables.goals[state.map, state.goal] == state.cell)
        costs = jnp.where(state.arrived >= 0, state.arrived, state.step) * here
        return {
            "csr": jnp.all(at_goal | ~here).astype(float),
            "isr": jnp.sum(at_goal) / state.agents,
            "sum_of_costs": jnp.sum(costs).astype(float),
            "makespan": jnp.max(costs).astype(float),
            "refused": refused,
        }

    def global_state(self, state: PathfindingState, env_params: PathfindingParams) -> jax.Array:
        known, eye = env_params.tables, self._eye
        goal_cell = known.goals[state.map, state.goal]
        places = [((cells // eye.shape.width, cells % eye.shape.width)) for cells in (state.cell, goal_cell)]
        columns = [(part - eye.radius) / eye.side for pair in places for part in pair]
        distance = self._distance(known, state.map, state.goal, state.cell) / SCALE
        return (jnp.stack([*columns, distance, jnp.ones(self.agents)], axis=1) * state.alive[:, None]).reshape(-1)

    def scene(self, state: PathfindingState, env_params: PathfindingParams) -> Scene:
        known = env_params.tables
        goals = known.goals[state.map, state.goal]
        return scenes.draw(self._shape, known.blocked[state.map], state.cell, goals, state.alive, state.step, state.reached)


def place(key: jax.Array, known: Tables, number: jax.Array, agents: int, marked: bool) -> tuple[jax.Array, jax.Array]:
    """[A] starting cells and [A] indices of first goals on the map ``number``.

    POGEMA walks through the free cells in random order: a cell becomes the goal of the agent of its component that waits for one,
    or else, while agents are missing and there is room for a goal, the start of the next agent. So within a component starts
    and goals alternate. Where a map marks starts and goals, the k-th start of a component in random order gets its k-th goal.
    """
    key_start, key_goal = jax.random.split(key)

    def shuffled(key: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Random numbers and indices, sorted within components."""
        chance, index = jax.random.uniform(key, first.shape), jnp.arange(first.shape[0])
        _, chance, index = jax.lax.sort((first, chance, index), num_keys=2)
        return chance, index

    starts, first, size = (table[number] for table in (known.starts, known.start_first, known.start_count))
    chance, start = shuffled(key_start, first)
    slots = first.shape[0]
    rank = jnp.arange(slots) - first  # within its component; negative in empty slots
    if marked:
        _, order = shuffled(key_goal, known.goal_first[number])
        begin, count = known.begin[number, starts], known.count[number, starts]
        ready, goal = (rank >= 0) & (rank < jnp.minimum(size, count)), order[jnp.clip(begin + rank, 0, len(order) - 1)]
    else:
        ready, goal = (rank >= 0) & (rank % 2 == 0) & (rank + 1 < size), start[jnp.minimum(jnp.arange(slots) + 1, slots - 1)]
    _, chosen = jax.lax.top_k(jnp.where(ready, -chance, -jnp.inf), agents)  # those that the walk meets first
    return starts[start[chosen]], goal[chosen].astype(jnp.int32)


@functools.lru_cache(maxsize=16)
def build_tables(maps: str, first: int, count: int, shape: Shape, radius: int, costs: str, ways: bool) -> Tables:
    """``tables.build`` of the maps that the options name, kept for the next call."""
    return tables.build(texts.load(maps, first, count), shape, radius, costs, ways)


def check_room(maps: tuple[texts.Map, ...], agents: int) -> None:
    """Raises ``UserError`` for the first map on which fewer agents find starts and goals."""
    for number, each in enumerate(maps):
        room = tables.room(each)
        if room < agents:
            raise UserError(
                f"agents={agents} do not fit on map {number}: it has starts, with goals that can be reached, for {room}; "
                f"give at most {min(tables.room(each) for each in maps)}"
            )
