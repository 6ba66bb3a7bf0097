"""``pathfinding``: rules, tasks, maps and views against POGEMA, brute force and the published figures."""

import dataclasses
import functools
import hashlib
import json
from collections import deque
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pathfinding_states import SIDE, random_states

import marljax
from marljax.baselines.policies import pathfinding as policies
from marljax.envs.pathfinding import Pathfinding, maps, pibt, rules, tables, view
from marljax.envs.pathfinding.env import place
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.training.evaluation import Evaluator

DATA = Path(__file__).parents[2] / "data"
TRACES = json.loads((DATA / "pogema_traces.json").read_text())["cases"]
KEY = jax.random.key(0)
TASKS = {"restart": "lifelong", "nothing": "together", "finish": "once"}
MOST = SIDE * SIDE
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def bfs(blocked, goal):
    """Hops from every cell of a map [H, W] to ``goal``, infinite where there is no way."""
    hops = np.full((blocked.shape[0] + 2, blocked.shape[1] + 2), np.inf)
    free = np.pad(~blocked, 1)
    queue = deque([(goal[0] + 1, goal[1] + 1)])
    hops[queue[0]] = 0
    while queue:
        row, column = queue.popleft()
        for there in ((row + down, column + right) for down, right in STEPS):
            if free[there] and np.isinf(hops[there]):
                hops[there] = hops[row, column] + 1
                queue.append(there)
    return hops[1:-1, 1:-1]


def raster(env, row, column):
    """The index of a cell in the tables."""
    return (row + env.radius) * env._shape.width + column + env.radius


def only_goals(env, **changes):
    """Params in which the reward is POGEMA's."""
    env_params = env.default_params
    return env_params.replace(weights=env_params.weights.replace(closer=0.0, refused=0.0), **changes)


@functools.cache
def programs(env):
    return jax.jit(env.initial), jax.jit(env.transition), jax.jit(env.observe)


# --- against POGEMA -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TRACES, ids=lambda case: "-".join([case["map"][11:15], case["collision"], case["task"]]))
def test_episodes_are_those_of_pogema(case):
    kind = "random" if "random" in case["map"] else "mazes"
    task = TASKS[case["task"]]
    env = Pathfinding(maps=kind, first_map=0, num_maps=1, agents=case["agents"], task=task, collision=case["collision"])
    env_params = only_goals(env, duration=len(case["actions"]))
    initial, transition, observe = programs(env)
    goals = list(np.asarray(env_params.tables.goals[0]))

    def cells(numbers):
        return jnp.array([raster(env, number // 64, number % 64) for number in numbers], jnp.int32)

    def indices(numbers):
        return jnp.array([goals.index(int(cell)) for cell in cells(numbers)], jnp.int32)

    state = initial(KEY, env_params).replace(cell=cells(case["starts"]), goal=indices(case["goals"]))
    for t, actions in enumerate(case["actions"]):
        state, outcome = transition(KEY, state, jnp.array([int(action) for action in actions]), env_params)
        np.testing.assert_array_equal(outcome.reward, [int(reward) for reward in case["rewards"][t]])
        np.testing.assert_array_equal(state.alive, [flag == "1" for flag in case["active"][t]])
        live = np.asarray(state.alive)
        np.testing.assert_array_equal(state.cell[live], cells(case["positions"][t])[live])
        assert bool(outcome.terminated) == bool(case["terminated"][t])
        for agent, number in case["new_goals"][t]:
            state = state.replace(goal=state.goal.at[agent].set(indices([number])[0]))
        if t == 0:
            check_view(observe(state, env_params).obs[0], env, state, case)
    names = {"avg_throughput": "throughput", "CSR": "csr", "ISR": "isr", "SoC": "sum_of_costs", "makespan": "makespan"}
    metrics = observe(state, env_params).metrics
    for name, expected in case["metrics"].items():
        if name in names:
            assert float(metrics[names[name]]) == pytest.approx(expected), name


def check_view(obs, env, state, case):
    """Walls and agents in the view of agent 0; beyond the ring around the map POGEMA shows free cells, we show walls. With its
    soft collisions POGEMA does not show an agent that moved to the cell of one with a higher index, which moved on."""
    radius = env.radius
    edge = 2 * radius + 1
    walls, agents, _ = (np.array([int(cell) for cell in channel]).reshape(edge, edge) for channel in case["obs_agent0_step1"])
    row, column = divmod(int(state.cell[0]), env._shape.width)
    rows, columns = (np.arange(edge) + place - 2 * radius for place in (row, column))
    height, width = env.map_list[0].blocked.shape
    near = ((rows >= -1) & (rows <= height))[:, None] & ((columns >= -1) & (columns <= width))
    ours = np.asarray(obs[: 2 * edge**2]).reshape(2, edge, edge)
    np.testing.assert_array_equal(ours[0][near], walls[near])
    assert (ours[0][~near] == 1).all()
    assert (ours[1] >= agents).all()
    if case["collision"] != "soft":
        np.testing.assert_array_equal(ours[1], agents)


@pytest.mark.parametrize("seed", range(3), ids=rules.COLLISIONS)
def test_random_states_move_as_in_pogema(seed):
    """12,000 states of 2 agents to one in every free cell (tests/campaigns/pogema_transitions.py)."""
    collision = rules.COLLISIONS[seed]
    expected = np.load(DATA / "pogema_transitions.npz")[collision]
    positions, wants, alive = (np.zeros((len(expected), MOST), kind) for kind in (np.int32, np.int32, bool))
    for number, (blocked, cells, actions) in enumerate(random_states(seed)):
        inside = np.pad(~blocked, 1)
        offset = np.array([0, *(row * (SIDE + 2) + column for row, column in STEPS)])
        cell = (cells // SIDE + 1) * (SIDE + 2) + cells % SIDE + 1
        target = cell + offset[actions]
        agents = slice(0, len(cells))
        positions[number, agents], alive[number, agents] = cell, True
        wants[number, agents] = np.where(inside.reshape(-1)[target], target, cell)
    moved = jax.jit(jax.vmap(functools.partial(rules.move, collision)))(positions, wants, alive) != positions
    weights = np.uint64(1) << np.arange(MOST, dtype=np.uint64)
    np.testing.assert_array_equal((np.asarray(moved & alive) * weights).sum(1, dtype=np.uint64), expected)


def test_maps_of_the_benchmark():
    """Facts of POGEMA's published maps: a hash of the random ones, free cells of the mazes, figures of the warehouse."""
    texts = [maps.random_map(seed).text for seed in range(128)]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest().startswith("4f5a224f1c2b5edd")
    mazes = [maps.maze(seed) for seed in range(128)]
    free = [int((~each.blocked).sum()) for each in mazes]
    assert (min(free), max(free)) == (179, 441)
    assert np.mean([each.blocked.mean() for each in mazes]) == pytest.approx(0.297, abs=5e-4)
    assert mazes[31].text.splitlines()[13:18] == [
        "####.....#...#####.",
        ".........#.......#.",
        ".......###.......#.",
        ".................#.",
        ".....#####.......#.",
    ]
    shelves = maps.warehouse()
    assert [int(kind.sum()) for kind in (~shelves.blocked, shelves.starts, shelves.goals)] == [1278, 192, 480]
    assert len(maps.PUZZLES) == 16


# --- tables, starts, views ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("costs", tables.COSTS)
def test_distances_and_steps_on_shortest_ways(costs):
    env = Pathfinding(maps="mazes", first_map=3, num_maps=1, radius=2, agents=2, costs=costs, guidance="path")
    known, shape, each = env.default_params.tables, env._shape, env.map_list[0]
    goals = np.asarray(known.goals[0])[: int(each.goals.sum())]
    inside = (slice(2, 2 + each.blocked.shape[0]), slice(2, 2 + each.blocked.shape[1]))
    for number in range(0, len(goals), 37):
        row, column = divmod(int(goals[number]), shape.width)
        found = known.distance[0, number].reshape(shape.height, shape.width)[inside].astype(float)
        hops = bfs(each.blocked, (row - 2, column - 2))
        if costs == "hops":
            np.testing.assert_array_equal(np.where(np.isinf(hops), 255, hops), found)
        else:  # no cell costs less than a hop
            reachable = np.isfinite(hops)
            assert (found[reachable] >= tables.EIGHTHS * hops[reachable]).all()
        better = known.descents[0, number].reshape(shape.height, shape.width)[inside]
        for bit, (down, right) in enumerate(STEPS):
            for there in zip(*np.nonzero((better >> bit) & 1), strict=True):
                after = there[0] + down, there[1] + right
                assert found[after] < found[there], "a step on a shortest way comes closer"
                assert costs == "congestion" or found[after] == found[there] - 1
        assert ((better > 0) == (np.isfinite(hops) & (hops > 0))).all()


def test_crowded_cells_cost_more():
    """On an open square, whatever else there is on the map, the middle is the dearest cell and corners are the cheapest."""
    each = maps.parse("\n".join([".....#.."] * 5), "a square and a strip")
    graph = tables.graph_of(each, tables.shape_of([each], 1), 1, "congestion")
    mean = np.array([[sum(abs(r - i) + abs(c - j) for i in range(5) for j in range(5)) / 25 for c in range(5)] for r in range(5)])
    square = graph.component == graph.component[0]
    np.testing.assert_allclose(graph.entering[square].reshape(5, 5), mean.max() / mean)
    assert graph.entering[~square].max() < 2.0


def walk(order, component, agents):
    """POGEMA's choice of starts and goals, from free cells in random order."""
    size = {name: component.count(name) for name in component}
    waiting, starts, goals = {}, [], {}
    for cell in order:
        name = component[cell]
        if name in waiting:
            goals[waiting.pop(name)] = cell
        elif len(starts) < agents and size[name] >= 2:
            size[name] -= 2
            waiting[name] = len(starts)
            starts.append(cell)
    return starts, [goals[agent] for agent in range(agents)]


@pytest.mark.parametrize("seed", range(4))
def test_starts_and_first_goals_are_pogema_s_for_the_same_order_of_cells(seed):
    env = Pathfinding(maps="small", first_map=seed, num_maps=1, agents=8)
    known = env.default_params.tables
    places = np.asarray(known.starts[0])
    count, chosen = int(env.map_list[0].starts.sum()), jax.jit(place, static_argnums=(3, 4))
    first = np.asarray(known.start_first[0])[:count].tolist()
    for key in jax.random.split(jax.random.key(seed), 20):
        bits = jax.random.bits(jax.random.split(key)[0], places.shape, jnp.uint32)
        chance = np.asarray(bits)[:count] >> 2 * len(places).bit_length()
        starts, goals = walk(np.argsort(chance, kind="stable").tolist(), first, 8)
        cell, goal = chosen(key, known, 0, 8, False)
        np.testing.assert_array_equal(cell, places[starts])
        np.testing.assert_array_equal(known.goals[0][goal], places[goals])


def test_marked_cells_are_starts_and_goals():
    env = Pathfinding(maps="warehouse", agents=192)
    state = programs(env)[0](KEY, env.default_params)
    place_of = np.stack([np.asarray(state.cell) // env._shape.width, np.asarray(state.cell) % env._shape.width]) - env.radius
    assert len(set(zip(*place_of.tolist(), strict=True))) == 192
    assert env.map_list[0].starts[tuple(place_of)].all()
    assert len(set(np.asarray(state.goal).tolist())) == 192


@pytest.mark.parametrize("again", [True, False])
def test_new_goals_are_uniform_over_the_component(again):
    env = Pathfinding(maps="small", first_map=1, num_maps=1, agents=2)
    env_params = env.default_params
    known = env_params.tables
    state = programs(env)[0](KEY, env_params)
    at = known.goals[0, state.goal]
    keys = jax.random.split(KEY, 4000)
    drawn = jax.vmap(lambda key: env.draw_goals(key, known, 0, state.goal, at, again))(keys)
    for agent in range(2):
        begin, count = int(known.goals_begin[0, at[agent]]), int(known.goals_count[0, at[agent]])
        expected = set(range(begin, begin + count)) - ({int(state.goal[agent])} if not again else set())
        values, counts = np.unique(np.asarray(drawn[:, agent]), return_counts=True)
        assert set(values.tolist()) == expected
        assert counts.min() > 0.5 * 4000 / len(expected)


def split(env, obs):
    """The parts [width] of an agent's observation, by name."""
    ends = np.cumsum([part.width for part in env.obs_layout])
    return dict(zip([part.name for part in env.obs_layout], np.split(np.asarray(obs), ends[:-1]), strict=True))


@pytest.mark.parametrize(("name", "radius"), [("random", 5), ("warehouse", 5), ("mazes", 2)])
def test_views(name, radius):
    """Every channel against slices of whole maps."""
    env = Pathfinding(
        maps=name, radius=radius, agents=16, guidance="cost", intents=True, **({} if name == "warehouse" else {"num_maps": 2})
    )
    initial, _, observe = programs(env)
    env_params = env.default_params
    state = initial(KEY, env_params)
    state = state.replace(alive=state.alive.at[3].set(False))
    obs, edge, width = np.asarray(observe(state, env_params).obs), 2 * radius + 1, env._shape.width
    each = env.map_list[int(state.map)]
    blocked = np.ones((env._shape.height, width), bool)
    blocked[radius : radius + each.blocked.shape[0], radius : radius + each.blocked.shape[1]] = each.blocked
    occupied = np.zeros_like(blocked)
    row, column = np.asarray(state.cell) // width, np.asarray(state.cell) % width
    live = np.asarray(state.alive)
    occupied[row[live], column[live]] = True
    goal_cells = np.asarray(env_params.tables.goals)[int(state.map), np.asarray(state.goal)]
    for agent in np.flatnonzero(live):
        seen = (slice(row[agent] - radius, row[agent] + radius + 1), slice(column[agent] - radius, column[agent] + radius + 1))
        goal = int(goal_cells[agent]) // width, int(goal_cells[agent]) % width
        hops = bfs(blocked, goal)
        change = np.clip((hops[seen] - hops[row[agent], column[agent]]) / 20, -1, 1)
        channels = split(env, obs[agent])
        expected = {"wall": blocked[seen], "agent": occupied[seen], "cost": np.where(np.isinf(hops[seen]), -1, change)}
        for channel, values in expected.items():
            np.testing.assert_allclose(channels[channel].reshape(edge, edge), values, atol=1e-6)
        after = [hops[row[agent] + step[0], column[agent] + step[1]] for step in tables.STEPS]
        by_step = np.where(np.isinf(after), 2, np.subtract(after, hops[row[agent], column[agent]]))
        np.testing.assert_array_equal(channels["next"], by_step)
        offset = np.array([goal[0] - row[agent], goal[1] - column[agent]])
        side = max(env._shape.height, width) - 2 * radius
        own = [*np.clip(offset / radius, -1, 1), *(offset / side), hops[row[agent], column[agent]] / 64, 0]
        np.testing.assert_allclose(channels["own"], own, atol=1e-6)
        towards = {}  # the step of each agent around, and whether it comes before this one
        for other in np.flatnonzero(live):
            hops = bfs(blocked, (int(goal_cells[other]) // width, int(goal_cells[other]) % width))
            ahead = [hops[row[other] + step[0], column[other] + step[1]] for step in tables.STEPS]
            step = tables.STEPS[int(np.argmin(ahead))] if min(ahead) < hops[row[other], column[other]] else (0, 0)
            towards[row[other] - row[agent] + radius, column[other] - column[agent] + radius] = (*step, np.sign(agent - other))
        for k, channel in enumerate(view.INTENTS):
            values = [[towards.get((y, x), (0, 0, 0))[k] for x in range(edge)] for y in range(edge)]
            np.testing.assert_array_equal(channels[channel].reshape(edge, edge), values)
    assert not obs[~live].any()


def test_the_path_in_view():
    """A corridor around a wall: the path leads to the goal, or to the border of the view."""
    text = ".....\n.###.\n.#...\n.#.#.\n...#."
    each = maps.parse(text, "a corridor")
    spec = view.ViewSpec(tables.shape_of([each], 2), 2, "path", 1, False)
    known = tables.build([each], spec.shape, 2, "hops", True)
    width = spec.shape.width
    start, goal = 6 * width + 2, 2 * width + 6  # bottom left to top right: up the left side and along the top
    number = list(known.goals[0]).index(goal)
    arrays = jax.tree.map(jnp.asarray, known)
    at = jnp.array([start, 4 * width + 2])
    goals = jnp.array([number, number])
    seen = view.guide(spec, arrays, jnp.array(0), goals, at, jnp.zeros(2))
    expected = np.zeros((2, 5, 5), int)
    expected[0, :3, 2] = 1  # up to the border of the view
    expected[1, :3, 2] = expected[1, 0, 2:] = 1
    np.testing.assert_array_equal(seen.reshape(2, 5, 5), expected)


def test_steps_in_view():
    env = Pathfinding(maps="small", num_maps=1, agents=4, guidance="next", mask_walls=True)
    initial, _, observe = programs(env)
    env_params = env.default_params
    state = initial(KEY, env_params)
    seen = observe(state, env_params)
    change = [split(env, obs)["next"] for obs in seen.obs]
    known = env_params.tables
    for agent in range(4):
        for step, offset in enumerate(view.steps_of(env._shape)):
            cell, there = int(state.cell[agent]), int(state.cell[agent]) + int(offset)
            blocked = bool(known.blocked[0, there])
            before, after = (int(known.distance[0, int(state.goal[agent]), place]) for place in (cell, there))
            assert change[agent][step] == (2 if blocked else after - before)
            assert bool(seen.action_mask[agent, step + 1]) == (not blocked)


# --- PIBT as a rule -------------------------------------------------------------------------------------------------------


def recursive_pibt(cell, candidates, priority):
    """PIBT as in the paper's algorithm 1."""
    following = [-1] * len(cell)

    def decide(agent):
        for there in candidates[agent]:
            if there < 0 or there in following:
                continue
            occupant = next((k for k in range(len(cell)) if cell[k] == there and k != agent), None)
            if occupant is not None and following[occupant] == cell[agent]:
                continue
            following[agent] = there
            if occupant is not None and following[occupant] < 0 and not decide(occupant):
                continue
            return True
        following[agent] = cell[agent]
        return False

    for agent in np.argsort(-np.asarray(priority), kind="stable"):
        if following[agent] < 0:
            decide(agent)
    return following


@pytest.mark.parametrize("agents", [6, 12, 24])
def test_pibt_moves_as_the_recursive_algorithm(agents):
    """Also where the last agent to decide fails those that pushed it, and around agents that are gone."""
    plan = jax.jit(jax.vmap(pibt.plan))
    rng = np.random.default_rng(agents)
    rows = []
    for blocked, cells, _ in random_states(7):
        free = np.pad(~blocked, 1).reshape(-1)
        if len(cells) < agents:
            continue
        cell = (cells[:agents] // SIDE + 1) * (SIDE + 2) + cells[:agents] % SIDE + 1
        around = cell[:, None] + np.array([0, *(row * (SIDE + 2) + column for row, column in STEPS)])
        candidates = rng.permuted(np.where(free[around], around, -1), axis=1)
        rows.append((cell, candidates, rng.random(agents).astype(np.float32), rng.random(agents) < rng.choice([0.7, 1.0])))
        if len(rows) == 1500:
            break
    cell, candidates, priority, alive = map(np.stack, zip(*rows, strict=True))
    found = np.asarray(plan(cell, candidates, priority, alive))
    for number, live in enumerate(alive):
        parts = (cell[number, live].tolist(), candidates[number, live].tolist(), priority[number, live])
        assert found[number, live].tolist() == recursive_pibt(*parts)


@pytest.mark.parametrize(("task", "costs"), [("lifelong", "congestion"), ("once", "hops"), ("together", "hops")])
def test_pibt_starts_from_what_agents_want(task, costs):
    """Each agent's candidates are the cell that it wants, then those around by distance; who is under way longest goes first, and
    others see it."""
    options = {"guidance": "next", "intents": True, "collision": "pibt", "task": task, "costs": costs}
    env = Pathfinding(maps="mazes", num_maps=1, agents=24, radius=2, **options)
    initial, transition, observe = programs(env)
    env_params = env.default_params.replace(agents_min=18, agents_max=18)
    known, state, rng = jax.tree.map(np.asarray, env_params.tables), initial(KEY, env_params), np.random.default_rng(0)
    for step in range(60):
        cell, goal, since, live = (np.asarray(leaf) for leaf in (state.cell, state.goal, state.since_goal, state.alive))
        cells = cell[:, None] + env.offsets
        distance, blocked = known.distance[0, goal[:, None], cells].astype(int), known.blocked[0, cells]
        action = np.where(rng.random(24) < 0.5, rng.integers(0, 5, 24), distance.argmin(1))
        wanted = np.where(blocked, cell[:, None], cells)[np.arange(24), action]
        order = np.lexsort((np.broadcast_to(np.arange(5), cells.shape), distance, cells != wanted[:, None]), axis=1)
        candidates = np.take_along_axis(np.where(blocked, -1, cells), order, axis=1)
        precedence = np.empty(24, int)
        precedence[np.lexsort((np.arange(24), -since))] = np.arange(24)
        viewer = np.flatnonzero(live)[-1]
        shown = split(env, np.asarray(observe(state, env_params).obs)[viewer])["order"]
        around = cell[viewer] + (np.arange(-2, 3)[:, None] * env._shape.width + np.arange(-2, 3)).reshape(-1)
        expected = [np.sign(precedence[viewer] - precedence[live & (cell == place)]).sum() for place in around]
        np.testing.assert_array_equal(shown, expected, err_msg=str(step))
        state, _ = transition(jax.random.key(step), state, action, env_params)
        moved = recursive_pibt(cell[live].tolist(), candidates[live], -precedence[live])
        assert np.asarray(state.cell)[live].tolist() == moved, step
        there = live & (known.goals[0, goal] == state.cell)
        np.testing.assert_array_equal(state.since_goal, np.where(there, 0, since + 1))
        if not np.any(state.alive):
            break
    assert int(state.reached) > 12 or task == "together"


# --- scripted policies ----------------------------------------------------------------------------------------------------


def test_pibt_passes_where_shortest_paths_get_stuck():
    """32 agents on random maps for a quarter of the published episodes; ``baselines/pathfinding.py`` has all figures."""
    env = Pathfinding(num_maps=8)
    env_params = env.default_params.replace(duration=64)
    evaluator, found = Evaluator(env, 16), {}
    for name, scripted in policies.scripted_policies(env, env_params).items():
        metrics = evaluator.scripted(scripted.policy, env_params, KEY, scripted.carry)
        found[name] = float(np.mean(metrics["throughput"]))
        assert name != "pibt" or not np.any(metrics["refused"]), "PIBT's moves never collide"
    assert found["pibt"] > 1.7 > 1.5 > found["shortest"] > 0.8 > 0.1 > found["random"], found


# --- a whole environment --------------------------------------------------------------------------------------------------

VARIANTS = (
    {"maps": "small", "guidance": "cost"},
    {"maps": "small", "task": "once", "guidance": "directions", "mask_walls": True, "collision": "block_both"},
    {"maps": "puzzles", "task": "together", "guidance": "path", "collision": "priority"},
    {"maps": "puzzles", "task": "together", "intents": True, "collision": "pibt"},
    {"maps": "warehouse", "agents": 4, "guidance": "next", "costs": "congestion", "intents": True},
)
MARKED = [VARIANTS[0], *(pytest.param(options, marks=pytest.mark.slow) for options in VARIANTS[1:])]


@pytest.mark.parametrize("options", MARKED, ids=str)
def test_conformance(options):
    env = Pathfinding(**options)
    env_params = env.default_params.replace(duration=12, agents_min=2)
    check_env(env, env_params, num_steps=20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maps": "nowhere.txt"}, "cannot read maps from 'nowhere.txt'.*or a file of maps"),
        ({"maps": "smal"}, "did you mean small"),
        ({"maps": "puzzles", "agents": 12}, "agents=12 do not fit on map [0-9]+ of puzzles, which has room for .*; give at most"),
        ({"maps": "warehouse", "agents": 193}, "room for 192; give at most 192"),
        ({"maps": "warehouse", "num_maps": 2}, "num_maps is for generated maps"),
        ({"radius": 16}, "radius=16"),
        ({"task": "live"}, "lifelong"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as raised:
        Pathfinding(**options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("..\n...", "row 2 of map 0 of .* has 3 cells, and row 1 has 2"),
        ("..\n.x", "row 2 of map 0 .* has the cell 'x'; use '#'"),
        ("@@\n##", "no cell for a goal"),
        ("##\n##", "no cell for a start"),
        ("\n \n", "contains no map"),
        ("@.$\n\n...", "some maps of .* mark starts and goals"),
        ("@#$", "no start on map 0 of .* reaches a goal"),
    ],
)
def test_wrong_maps_are_one_line(text, message, tmp_path):
    path = tmp_path / "maps.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        Pathfinding(maps=str(path), agents=2)


def test_own_maps(tmp_path):
    path = tmp_path / "maps.txt"
    path.write_text("@.$\n.#.\n\n$$$\n@@@\n")
    env = marljax.make("pathfinding", maps=str(path), agents=2)
    assert env.default_params.tables.blocked.shape[0] == 2
    assert [each.marked for each in env.map_list] == [True, True]
    with pytest.raises(UserError, match="agents_max=3 is out of range"):
        env.check_params(env.default_params.replace(agents_max=3))
    with pytest.raises(UserError, match=r"weights\.path needs guidance"):
        env.check_params(env.default_params.replace(weights=env.default_params.weights.replace(path=0.01)))
    with pytest.raises(UserError, match="map=2 is out of range"):
        env.check_params(env.default_params.replace(map=2))
    path.write_text("....\n....\n")  # the file is read again
    other = marljax.make("pathfinding", maps=str(path), agents=2)
    assert other.map_list[0].text == "....\n...."
    assert other != env
    assert other == dataclasses.replace(other)


def test_maps_of_moving_ai(tmp_path):
    path = tmp_path / "city.map"
    path.write_text("\ufefftype octile\nheight 2\nwidth 4\nmap \n.@TG\n.S.W\n", encoding="utf-8")
    env = marljax.make("pathfinding", maps=str(path), agents=1)
    assert env.map_list[0].text == ".##.\n...#"
    assert not env.map_list[0].marked


def test_long_distances_take_16_bits():
    """A corridor of 300 cells; with congestion costs one of 9,000 is too long."""
    each = maps.parse("." * 300, "a corridor")
    known = tables.build([each], tables.shape_of([each], 1), 1, "hops", False)
    assert known.distance.dtype == np.uint16
    np.testing.assert_array_equal(known.distance[0, 299].reshape(3, 302)[1, 1:-1], np.arange(299, -1, -1))
    each = maps.parse("@" + "!" * 9000 + "$", "a long corridor")
    with pytest.raises(UserError, match="is too long for costs in 16 bits"):
        tables.build([each], tables.shape_of([each], 1), 1, "congestion", False)


# --- rewards, agents, masks -----------------------------------------------------------------------------------------------

CORRIDOR = "....\n###."


@pytest.fixture
def corridor(tmp_path):
    """One agent two steps left of its goal, in a corridor with a bend: an environment, params and a state."""
    (tmp_path / "corridor.txt").write_text(CORRIDOR)

    def make(**options):
        env = Pathfinding(maps=str(tmp_path / "corridor.txt"), agents=2, radius=1, **options)
        env_params = env.default_params
        goals = np.asarray(env_params.tables.goals[0]).tolist()
        state = programs(env)[0](KEY, env_params)
        cells = [raster(env, 0, 1), raster(env, 0, 0)]
        goal = [goals.index(raster(env, 0, 3)), goals.index(raster(env, 1, 3))]
        return env, env_params, state.replace(cell=jnp.array(cells), goal=jnp.array(goal), arrived=jnp.array([-1, -1]))

    return make


def test_terms_of_the_reward(corridor):
    env, env_params, state = corridor(guidance="path", task="together")
    weights = env_params.weights.replace(goal=8.0, closer=4.0, refused=2.0, path=1.0)
    env_params = env_params.replace(weights=weights)
    transition = programs(env)[1]
    for actions, expected in {
        (4, 4): (5.0, 5.0),  # both come closer, on their paths
        (3, 0): (-2.0, 0.0),  # into the other: refused
        (1, 3): (-2.0, -2.0),  # into walls
        (4, 0): (5.0, 0.0),
    }.items():
        np.testing.assert_allclose(transition(KEY, state, jnp.array(actions), env_params)[1].reward, expected)
    back = state.replace(cell=state.cell.at[0].set(raster(env, 0, 2)))
    np.testing.assert_allclose(transition(KEY, back, jnp.array([3, 0]), env_params)[1].reward, [-4.0, 0.0])
    last = state.replace(cell=jnp.array([raster(env, 0, 2), raster(env, 1, 3)]))
    after, outcome = transition(KEY, last, jnp.array([4, 0]), env_params)
    np.testing.assert_allclose(outcome.reward, [13.0, 8.0])
    assert outcome.terminated
    assert float(programs(env)[2](after, env_params).metrics["csr"]) == 1.0


def test_who_is_pushed_is_paid_for_the_step_that_it_took(corridor):
    """The agent behind is under way longer, and goes to the right, where the other may stand."""
    env, env_params, state = corridor(guidance="path", task="together", collision="pibt")
    weights = env_params.weights.replace(goal=8.0, closer=4.0, refused=2.0, path=1.0)
    env_params, state = env_params.replace(weights=weights), state.replace(since_goal=jnp.array([0, 5]))
    for actions, steps in {
        (4, 4): (1, 1),
        (0, 4): (1, 1),
        (3, 4): (1, 1),
        (1, 4): (1, 1),
        (3, 0): (1, 0),
        (0, 0): (0, 0),
    }.items():
        after, outcome = programs(env)[1](KEY, state, jnp.array(actions), env_params)
        np.testing.assert_array_equal(after.cell - state.cell, steps)
        np.testing.assert_allclose(outcome.reward, 5.0 * np.array(steps))  # 4 for one hop closer, 1 for the path
        assert not after.refused.any()
        assert int(after.moves) == np.count_nonzero(actions)
    found = np.asarray(env.global_state(state, env_params)).reshape(2, 7)
    np.testing.assert_allclose(found[:, -1], [0, 5 / 256])


def test_masked_walls_act_as_a_stay(corridor):
    env, env_params, state = corridor(mask_walls=True)
    after, outcome = programs(env)[1](KEY, state, jnp.array([1, 3]), env_params)
    assert not after.refused.any()
    assert not outcome.reward.any()
    assert int(after.moves) == 0


def test_directions_time_left_and_the_global_state(corridor):
    env, env_params, state = corridor(guidance="directions", task="once")
    obs = np.asarray(programs(env)[2](state.replace(step=jnp.array(64)), env_params).obs)
    up, down, left, right = split(env, obs[0])["directions"].reshape(4, 3, 3)
    assert obs[0, -1] == pytest.approx(1 - 64 / 256)
    np.testing.assert_array_equal(right, [[0, 0, 0], [1, 1, 1], [0, 0, 0]])  # towards the end of the corridor
    assert not np.any([up, down, left])
    found = np.asarray(env.global_state(state, env_params)).reshape(2, 6)
    np.testing.assert_allclose(found, [[0, 1 / 4, 0, 3 / 4, 2 / 64, 1], [0, 0, 1 / 4, 3 / 4, 4 / 64, 1]])


def test_numbers_of_agents_and_maps():
    env = Pathfinding(maps="small", num_maps=3, agents=6, task="once")
    env_params = env.default_params.replace(agents_min=2, agents_max=4)
    states = jax.vmap(env.initial, (0, None))(jax.random.split(KEY, 200), env_params)
    counts = np.asarray(states.alive.sum(1))
    assert set(counts.tolist()) == {2, 3, 4}
    np.testing.assert_array_equal(states.agents, counts)
    assert set(np.asarray(states.map).tolist()) == {0, 1, 2}
    fixed = jax.vmap(env.initial, (0, None))(jax.random.split(KEY, 20), env_params.replace(map=2))
    assert set(np.asarray(fixed.map).tolist()) == {2}
    state = jax.tree.map(lambda leaf: leaf[0], states)
    there = state.replace(cell=env_params.tables.goals[state.map, state.goal])
    metrics = programs(env)[2](there, env_params).metrics
    assert (float(metrics["csr"]), float(metrics["isr"])) == (1.0, 1.0)
