"""``pathfinding``: many agents find paths on one grid without standing in each other's way.

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
from marljax.envs.pathfinding import maps as all_maps
from marljax.envs.pathfinding import pibt, rules, view
from marljax.envs.pathfinding import scene as scenes
from marljax.envs.pathfinding.maps import Map
from marljax.envs.pathfinding.tables import COSTS, EIGHTHS, STEPS, Shape, Tables, build, room, shape_of
from marljax.envs.pathfinding.view import GUIDANCES, SCALE, ViewSpec
from marljax.errors import UserError

TASKS = ("lifelong", "together", "once")
COLLISIONS = (*rules.COLLISIONS, "pibt")
ACTIONS = ("stay", "up", "down", "left", "right")
MAX_AGENTS = 1024
MAX_RADIUS = 15
MEANINGS = {
    "throughput": "goals reached per step, by all agents together",
    "refused": "moves that ended where they began, of those tried",
    "csr": "episodes in which all agents were at their goals at the end",
    "isr": "agents that were at their goals at the end",
    "sum_of_costs": "steps until an agent's arrival for good, summed over agents; all steps for those that did not arrive",
    "makespan": "steps until the last agent's arrival for good",
}


class MapDefaults(NamedTuple):
    """Defaults that depend on the maps."""

    agents: int
    duration: int
    side: int = 0  # cells along the edges of the largest map that is generated; 0: as they are


DEFAULTS = {
    "random": MapDefaults(32, 256, 21),
    "mazes": MapDefaults(32, 128, 21),
    "small": MapDefaults(4, 64, all_maps.SMALL_SIDE),
    "warehouse": MapDefaults(64, 256),
    "puzzles": MapDefaults(4, 256),
}
OWN_MAPS = MapDefaults(8, 256)
LEAST_BITS = 12  # of a random number by which cells are shuffled
FIRST_MAP, NUM_MAPS = 128, 32  # generated; the benchmark's own are those of the seeds 0 to 127


class RewardWeights(struct.PyTreeNode):
    """Rewards of an agent."""

    goal: Any = param(1.0, low=0.0, help="for reaching the goal; in the task together, when all agents are at theirs")
    closer: Any = param(0.1, low=0.0, help="per hop, or unit of costs, by which the path to the goal became shorter")
    refused: Any = param(0.05, low=0.0, help="cost of a move that ended where it began")
    path: Any = param(0.0, low=0.0, help="for a step on a shortest path (guidance directions or path only)")


class PathfindingParams(struct.PyTreeNode):
    """Parameters of ``pathfinding``: change ``default_params`` with ``.replace(…)``, nothing is compiled again."""

    map: Any = param(-1, low=-1, integer=True, help="index of the map; -1: each episode draws one")
    duration: Any = param(256, low=1, integer=True, unit="steps", help="after which an episode is truncated")
    agents_min: Any = param(1, low=1, integer=True, help="each episode draws its number of agents, from agents_min …")
    agents_max: Any = param(1, low=1, integer=True, help="… to agents_max")
    repeat_goal: Any = param(True, help="a new goal may be the cell where the agent is, as in the benchmark's results")
    weights: RewardWeights = dataclasses.field(default_factory=RewardWeights)
    tables: Tables = dataclasses.field(default_factory=Tables)  # of the environment's maps


class PathfindingState(struct.PyTreeNode):
    """The state of an episode of ``pathfinding``."""

    cell: jax.Array  # [A] int32
    goal: jax.Array  # [A] int32 index of the goal among the map's
    alive: jax.Array  # [A] bool
    refused: jax.Array  # [A] bool: the last move ended where it began
    arrived: jax.Array  # [A] int32 steps until the agent came to its goal, −1 while it is elsewhere
    since_goal: jax.Array  # [A] int32 steps since the agent was last at its goal, or since the start
    map: jax.Array  # int32
    step: jax.Array  # int32
    reached: jax.Array  # int32 goals reached by all
    moves: jax.Array  # int32 moves tried by all
    failures: jax.Array  # int32 of which ended where they began
    agents: jax.Array  # int32 agents of the episode


@dataclasses.dataclass(frozen=True)
class Pathfinding(Environment):
    """Agents on a grid go to goals that each has for itself; they choose all at once, and two cannot share a cell.

    Actions: 0 stay, 1 up, 2 down, 3 left, 4 right. A move into a wall, or one that the rules of ``collision`` refuse, is a stay;
    only ``pibt`` may move an agent elsewhere, to make room or because the cell it wants is taken. Rewards and ``refused`` are of
    the step that was taken.

    ========== ==================================================================================================================
    collision  rules
    ========== ==================================================================================================================
    soft       no swaps; of several that want a cell the lowest index goes; who wants a staying agent's cell stays (published)
    priority   agents move one after the other to cells that are empty by then (POGEMA's default, training of Follower)
    block_both a cell is entered if nobody stood there before and nobody else wants it
    pibt       a plan of one step for all, in which those in the way make room (Okumura et al. 2022)
    ========== ==================================================================================================================

    With ``pibt`` agents decide in turn, those longest under way first. Each tries its action, then the other cells by distance to
    its goal, equal ones in the order of the actions. Whoever stands in the cell decides next, and if it finds none, the first
    tries its next one. All moves are legal under soft collisions, too.

    Tasks (in POGEMA ``on_target``):

    ========== ==================================================================================================================
    task       rules
    ========== ==================================================================================================================
    lifelong   1 for a goal reached, and a new one in the same connected component (``restart``)
    together   agents stay at their goals; 1 for all, and the end, when all are there at once (``nothing``)
    once       1 for a goal reached, and the agent is gone; the end when all are (``finish``)
    ========== ==================================================================================================================

    Episodes are truncated after ``duration`` steps. The reward has further terms, see ``RewardWeights``.

    Starts and first goals are drawn as in POGEMA: all differ, and a path leads from each start to its goal. Where a map marks
    starts and goals, they are drawn among these, and an agent may start at its goal.

    Observation, V = 2 ``radius`` + 1:

    ========== ====== ===========================================================================================================
    part       width  columns
    ========== ====== ===========================================================================================================
    wall       V V    cells around the agent that are blocked, row by row; beyond the map all are
    agent      V V    cells with an agent, its own included
    step_row   V V    ``intents``: of agents around, the row of the step by which each comes closest to its goal
    step_…     V V    … and the column (``step_column``)
    order      V V    1 for agents that go before the observer, −1 for those that go after it: with ``collision=pibt`` longer
                      under way first; else, and among equals, lower index first (``block_both`` has no order)
    next       4      unless ``guidance=none``: by how much a step changes the distance to the goal, clipped to ±2; 2 for a wall
    cost       V V    ``cost``: distance to the goal from each cell minus the own, 20 hops, clipped; −1: unreachable (MAPF-GPT)
    directions 4 V V  ``directions``: whether a step up, down, left, right from each cell is on a shortest path (DHC, SCRIMP)
    path       V V    ``path``: the cells of a shortest path until it leaves the view (Follower)
    own        6, 7   goal relative to the agent (rows, columns), clipped to the view, in radii; the same in sides of the map;
                      distance to the goal (64 hops); 1 if the last move ended where it began; share of the time left, except in
                      lifelong
    ========== ====== ===========================================================================================================

    With ``costs=congestion`` all distances count what entering a cell costs, more in the middle of the map (Follower).

    Global state: of each agent row and column, those of its goal (sides), distance (64 hops) and whether it is alive; with
    ``collision=pibt`` how long it has been under way, in episodes.
    """

    maps: str = option(
        "random", help="random, mazes, warehouse, puzzles (the benchmark's), small (POGEMA's default, 8 × 8), or a file of maps"
    )
    agents: int = option(0, low=0, high=MAX_AGENTS, help="A; 0: 32 (random, mazes), 64 (warehouse), 4 (small, puzzles), 8 (own)")
    task: str = option(
        "lifelong", choices=TASKS, help="new goals forever; all at their goals at once; or agents leave at their goals"
    )
    collision: str = option(
        "soft", choices=COLLISIONS, help="which agents move when several want a cell; pibt may also push them elsewhere"
    )
    radius: int = option(5, low=1, high=MAX_RADIUS, help="cells that an agent sees in each direction")
    guidance: str = option("cost", choices=GUIDANCES, help="what agents observe of the path to the goal")
    intents: bool = option(False, help="agents see the steps that agents around them would take, and who goes before them")
    costs: str = option("hops", choices=COSTS, help="of paths: hops, or more for cells in the middle of the map")
    mask_walls: bool = option(False, help="moves into walls are not available")
    first_map: int = option(
        -1, low=-1, preset=True, help=f"seed of the first generated map; -1: {FIRST_MAP}, as the benchmark compares on 0 to 127"
    )
    num_maps: int = option(0, low=0, help=f"number of generated maps; 0: {NUM_MAPS}")
    file_stamp: tuple[int, ...] = dataclasses.field(default=(), init=False, repr=False)  # () where ``maps`` is no file

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "file_stamp", all_maps.stamp(self.maps))  # other contents make another environment
        if self.maps not in all_maps.GENERATORS and (self.num_maps or self.first_map >= 0):
            name = "num_maps" if self.num_maps else "first_map"
            raise UserError(f"{name} is for generated maps: {', '.join(all_maps.GENERATORS)}; with maps={self.maps} leave it out")
        rooms = [room(each) for each in self.map_list]
        if (least := min(rooms)) < self.num_agents:
            place = f"map {rooms.index(least)} of {self.maps}"
            if not least:
                raise UserError(f"no start on {place} reaches a goal; connect them")
            raise UserError(f"agents={self.num_agents} do not fit on {place}, which has room for {least}; give at most {least}")

    @property
    def map_list(self) -> tuple[Map, ...]:
        """The maps, in the order of ``env_params.map``."""
        return all_maps.load(*self._map_key)

    @property
    def _map_key(self) -> tuple[str, int, int, tuple[int, ...]]:
        first = FIRST_MAP if self.first_map < 0 else self.first_map
        return self.maps, first, self.num_maps or NUM_MAPS, self.file_stamp

    @property
    def _defaults(self) -> MapDefaults:
        return DEFAULTS.get(self.maps, OWN_MAPS)

    @property
    def _shape(self) -> Shape:
        return shape_of(self.map_list, self.radius, self._defaults.side)

    @property
    def _spec(self) -> ViewSpec:
        unit = EIGHTHS if self.costs == "congestion" else 1
        return ViewSpec(self._shape, self.radius, self.guidance, unit, self.intents)

    @property
    def _with_descents(self) -> bool:
        return self.guidance in ("directions", "path")

    @property
    def num_agents(self) -> int:
        return self.agents or self._defaults.agents

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(ACTIONS))

    @property
    def observation_space(self) -> Box:
        return Box((sum(part.width for part in self.obs_layout),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        return view.layout(self._spec, self.task != "lifelong")

    @property
    def default_params(self) -> PathfindingParams:
        built = build_tables(self._map_key, self._shape, self.radius, self.costs, self._with_descents)
        agents = self.num_agents
        return PathfindingParams(tables=built, duration=self._defaults.duration, agents_min=agents, agents_max=agents)

    def check_params(self, env_params: PathfindingParams) -> None:
        super().check_params(env_params)
        check_order(env_params, ("agents_min", "agents_max"))
        for name, most in (("agents_max", self.num_agents), ("map", len(env_params.tables.blocked) - 1)):
            if float(getattr(env_params, name)) > most:
                raise UserError(f"{name}={float(getattr(env_params, name)):g} is out of range; it takes an integer up to {most}")
        if not self._with_descents and float(env_params.weights.path):
            raise UserError("weights.path needs guidance=directions or path, whose tables hold the steps on shortest paths")

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
        key_map, key_agents, key_place = jax.random.split(key, 3)
        tables, slots = env_params.tables, self.num_agents
        drawn = jax.random.randint(key_map, (), 0, tables.blocked.shape[0])
        map_index = jnp.where(env_params.map < 0, drawn, env_params.map).astype(jnp.int32)
        low, high = (jnp.asarray(value, jnp.int32) for value in (env_params.agents_min, env_params.agents_max))
        agents = jax.random.randint(key_agents, (), low, high + 1)
        cell, goal = place(key_place, tables, map_index, slots, self.map_list[0].marked)
        zero = jnp.zeros((), jnp.int32)
        return PathfindingState(
            cell=cell,
            goal=goal,
            alive=jnp.arange(slots) < agents,
            refused=jnp.zeros(slots, bool),
            arrived=jnp.where(tables.goals[map_index, goal] == cell, 0, -1).astype(jnp.int32),
            since_goal=jnp.zeros(slots, jnp.int32),
            map=map_index,
            step=zero,
            reached=zero,
            moves=zero,
            failures=zero,
            agents=agents.astype(jnp.int32),
        )

    def transition(
        self, key: jax.Array, state: PathfindingState, action: jax.Array, env_params: PathfindingParams
    ) -> tuple[PathfindingState, Outcome]:
        tables, weights = env_params.tables, env_params.weights
        tried = state.alive & (action > 0) & (action < len(ACTIONS))
        target = state.cell + jnp.where(tried, jnp.asarray(self.offsets)[jnp.clip(action, 0, len(ACTIONS) - 1)], 0)
        blocked = tables.blocked[state.map, target]
        if self.mask_walls:
            tried &= ~blocked  # an unavailable action acts as a stay
        want = jnp.where(blocked, state.cell, target)
        if self.collision == "pibt":
            cell = self._pibt_cells(state, want, tables)
        else:
            cell = rules.move(self.collision, state.cell, want, state.alive)
        refused, step = tried & (cell == state.cell), state.step + 1

        before, after = (self._distance(tables, state, at) for at in (state.cell, cell))
        reward = weights.closer * (before - after) - weights.refused * refused
        if self._with_descents:
            descents = tables.descents[state.map, state.goal, state.cell].astype(jnp.int32)
            shortens = (descents[:, None] >> np.arange(len(STEPS))) & 1 > 0
            taken = (cell - state.cell)[:, None] == view.steps_of(self._shape)
            reward += weights.path * jnp.any(taken & shortens, axis=1)

        there = state.alive & (tables.goals[state.map, state.goal] == cell)
        goal, alive, arrived, done = state.goal, state.alive, state.arrived, jnp.array(False)
        if self.task == "lifelong":
            reached = there
            goal = jnp.where(there, self.draw_goals(key, tables, state.map, goal, cell, env_params.repeat_goal), goal)
        else:
            arrived = jnp.where(there & (arrived < 0), step, arrived)
            # as POGEMA counts costs: an agent that leaves its goal in the very last step has arrived
            arrived = jnp.where(alive & ~there & (step < env_params.duration), -1, arrived)
            if self.task == "together":
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
            since_goal=jnp.where(there, 0, state.since_goal + 1),
            step=step,
            reached=state.reached + jnp.sum(reached, dtype=jnp.int32),
            moves=state.moves + jnp.sum(tried, dtype=jnp.int32),
            failures=state.failures + jnp.sum(refused, dtype=jnp.int32),
        )
        return state, Outcome(reward + weights.goal * reached, done, (step >= env_params.duration) & ~done)

    def _pibt_cells(self, state: PathfindingState, want: jax.Array, tables: Tables) -> jax.Array:
        """[A] cells after a step of PIBT in which each agent tries its cell of ``want`` first, then the others by distance to its
        goal."""
        cells, distance = self.around(state, tables)
        cost = jnp.where(cells == want[:, None], -1.0, distance)
        return pibt.plan(state.cell, pibt.best_first(cells, cost), state.since_goal, state.alive)

    def around(self, state: PathfindingState, tables: Tables) -> tuple[jax.Array, jax.Array]:
        """[A, 5] cells to which actions lead, and distances from there to the goal in the unit of the table, infinite where
        blocked."""
        cells = state.cell[:, None] + self.offsets
        distance = tables.distance[state.map, state.goal[:, None], cells].astype(jnp.float32)
        return cells, jnp.where(tables.blocked[state.map, cells], jnp.inf, distance)

    def _rank(self, state: PathfindingState) -> jax.Array:
        """[A] int32 from 1: lower ranks go first."""
        index = jnp.arange(self.num_agents)
        if self.collision != "pibt":
            return index + 1
        longest_first = jnp.argsort(-state.since_goal)  # stable: by index among equals
        return jnp.zeros_like(index).at[longest_first].set(index) + 1

    def _distance(self, tables: Tables, state: PathfindingState, cell: jax.Array) -> jax.Array:
        """[A] hops, or costs of congestion, from ``cell`` to the goal."""
        return tables.distance[state.map, state.goal, cell].astype(jnp.int32) / self._spec.unit

    def draw_goals(
        self, key: jax.Array, tables: Tables, map_index: jax.Array, goal: jax.Array, cell: jax.Array, repeat: jax.Array
    ) -> jax.Array:
        """[A] new goals of agents in the cells of their goals, from the same components; without ``repeat`` other ones."""
        begin, count = tables.goals_begin[map_index, cell], tables.goals_count[map_index, cell]
        uniform = jax.random.uniform(key, goal.shape)
        others = ~jnp.asarray(repeat, bool) & (count > 1)  # a component with one goal has no other
        drawn = begin + jnp.minimum((uniform * (count - others)).astype(jnp.int32), count - others - 1)
        return drawn + (others & (drawn >= goal))  # skips the present one

    def observe(self, state: PathfindingState, env_params: PathfindingParams) -> View:
        tables, spec = env_params.tables, self._spec
        distance = tables.distance[state.map, state.goal, state.cell].astype(jnp.int32)
        walls = view.window(spec, lambda rows: tables.rows[state.map, rows], state.cell)
        occupied = view.rows_of(spec.shape, state.cell, state.alive)
        agents = view.window(spec, lambda rows: occupied[rows], state.cell)
        ahead = view.distances_ahead(spec.shape, tables, state.map, state.goal, state.cell)
        parts = [view.unpacked(spec, walls), view.unpacked(spec, agents)]
        if self.intents:
            parts += view.intents(spec, state.cell, state.alive, self._rank(state), distance, ahead)
        if self.guidance != "none":
            parts.append(view.changes(spec, tables, distance, ahead))
        if self.guidance not in ("none", "next"):
            parts.append(view.guide(spec, tables, state.map, state.goal, state.cell, distance))
        own, goals = (jnp.stack(self._places(cells), axis=1) for cells in (state.cell, tables.goals[state.map, state.goal]))
        parts += [jnp.clip((goals - own) / self.radius, -1.0, 1.0), (goals - own) / spec.side]
        parts += [distance[:, None] / (spec.unit * SCALE), state.refused[:, None]]
        if self.task != "lifelong":
            parts.append(jnp.broadcast_to(1.0 - state.step / env_params.duration, (self.num_agents, 1)))
        obs = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=1) * state.alive[:, None]
        mask = jnp.ones((self.num_agents, len(ACTIONS)), bool)
        if self.mask_walls:
            moves = ~tables.blocked[state.map, state.cell[:, None] + view.steps_of(spec.shape)]
            mask = jnp.concatenate([mask[:, :1], moves], axis=1)
        return View(obs, mask, state.alive, self._metrics(state, env_params))

    def _places(self, cells: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rows and columns of cells, the first ones of the map 0."""
        width = self._shape.width
        return cells // width - self.radius, cells % width - self.radius

    def _metrics(self, state: PathfindingState, env_params: PathfindingParams) -> dict[str, jax.Array]:
        refused = state.failures / jnp.maximum(state.moves, 1)
        if self.task == "lifelong":
            return {"throughput": state.reached / jnp.maximum(state.step, 1), "refused": refused}
        here = jnp.arange(self.num_agents) < state.agents
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
        tables, side = env_params.tables, self._spec.side
        places = (*self._places(state.cell), *self._places(tables.goals[state.map, state.goal]))
        columns = [*(place / side for place in places), self._distance(tables, state, state.cell) / SCALE]
        columns.append(jnp.ones(self.num_agents))
        if self.collision == "pibt":
            columns.append(state.since_goal / env_params.duration)
        return (jnp.stack(columns, axis=1) * state.alive[:, None]).reshape(-1)

    def scene(self, state: PathfindingState, env_params: PathfindingParams) -> Scene:
        tables = env_params.tables
        goals, blocked = tables.goals[state.map, state.goal], tables.blocked[state.map]
        return scenes.draw(self._shape, blocked, state.cell, goals, state.alive, state.step, state.reached)


def place(key: jax.Array, tables: Tables, map_index: jax.Array, agents: int, marked: bool) -> tuple[jax.Array, jax.Array]:
    """[A] starting cells and [A] indices of first goals on a map.

    POGEMA walks through the free cells in random order: a cell becomes the goal of the agent of its component that waits for one,
    or else, while agents are missing and there is room for a goal, the start of the next agent. So within a component starts
    and goals alternate. Where a map marks starts and goals, the k-th start of a component in random order gets its k-th goal.
    """
    key_start, key_goal = jax.random.split(key)
    starts, first, size = (table[map_index] for table in (tables.starts, tables.start_first, tables.start_count))
    slots = first.shape[0]
    chance, start = shuffled(key_start, first)
    rank = jnp.arange(slots) - first  # within its component; negative in empty slots
    if marked:
        _, order = shuffled(key_goal, tables.goal_first[map_index])
        begin, count = tables.goals_begin[map_index, starts], tables.goals_count[map_index, starts]
        ready, goal = (rank >= 0) & (rank < jnp.minimum(size, count)), order[jnp.clip(begin + rank, 0, len(order) - 1)]
    else:
        ready, goal = (rank >= 0) & (rank % 2 == 0) & (rank + 1 < size), start[jnp.minimum(jnp.arange(slots) + 1, slots - 1)]
    _, chosen = jax.lax.top_k(jnp.where(ready, -chance.astype(jnp.float32), -jnp.inf), agents)  # those that the walk meets first
    return starts[start[chosen]], goal[chosen].astype(jnp.int32)


def shuffled(key: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Random order within components: [K] integers by which it is random over all, and [K] indices, both component by component.

    first [K]: the index of the first entry of each one's component, K in empty slots.
    """
    count = first.shape[0]
    bits = count.bit_length()
    chance, index = jax.random.bits(key, (count,), jnp.uint32), jnp.arange(count)
    if 32 - 2 * bits < LEAST_BITS:
        chance >>= 8  # exact as float32
        _, chance, index = jax.lax.sort((first, chance, index), num_keys=2)
        return chance, index
    # in one number, which XLA sorts seven times as fast on a CPU; equal chances, of which there are few, keep their order
    chance >>= 2 * bits
    packed = jnp.sort((first.astype(jnp.uint32) << (32 - bits)) | (chance << bits) | index.astype(jnp.uint32))
    return (packed >> bits) & (2 ** (32 - 2 * bits) - 1), (packed & (2**bits - 1)).astype(jnp.int32)


@functools.lru_cache(maxsize=16)
def build_tables(map_key: tuple, shape: Shape, radius: int, costs: str, with_descents: bool) -> Tables:
    """``tables.build`` of the maps that the options name, kept for the next call."""
    with jax.ensure_compile_time_eval():  # arrays, also where this is called while JAX traces
        return jax.tree.map(jnp.asarray, build(all_maps.load(*map_key), shape, radius, costs, with_descents))
