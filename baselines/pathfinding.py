"""Planners and learners on POGEMA's benchmark: ``python baselines/pathfinding.py [table …]`` writes
baselines/results/pathfinding.md."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from marljax.baselines.harness.result_cache import Metrics, ResultCache, cache_key, suite_key, summarise
from marljax.baselines.harness.tables import Page, Section, mean_interval, partial_table
from marljax.baselines.policies.pathfinding import scripted_policies
from marljax.config.settings import Settings
from marljax.envs.pathfinding import Pathfinding
from marljax.training import load
from marljax.training.evaluation import Evaluator, ScriptedPolicy

MAPS = 128  # of the benchmark: those of the seeds 0 to 127
EPISODES = 4  # with other starts and goals, on each of the generated maps
NUMBERS = {
    "random": (8, 16, 24, 32, 48, 64),
    "mazes": (8, 16, 24, 32, 48, 64),
    "warehouse": (32, 64, 96, 128, 160, 192),
    "puzzles": (2, 3, 4),
}
POLICIES = {  # scripted ones, and the costs by which they measure distances
    "shortest": ("shortest", "hops"),
    "pibt": ("pibt", "hops"),
    "pibt, congestion costs": ("pibt", "congestion"),
}
VERSION = 2  # of the scripted policies; 2: the end of PIBT's chains
SEEDS = 10
# Trained on other maps of the same kind, and compared on the benchmark's: algorithm and further settings
TUNED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "IPPO": ("ippo", ()),
    "IPPO with PIBT": ("ippo", ("env.collision=pibt",)),
}
# As many agent steps on all maps: with 64 agents in the warehouse, 4 on puzzles, 32 otherwise
TRAINING = {"warehouse": ("algo.total_steps=300_000",), "puzzles": ("algo.total_steps=4_800_000",)}
# Algorithms are compared on random maps, trained with the most of these numbers of agents.
ALGORITHM_AGENTS, ALGORITHM_STEPS, ALGORITHM_SEEDS = (8, 16), 300_000, 5
# What IPPO's tuned values say of observations and networks
OBSERVATIONS = ("env.guidance=cost", "env.intents=true", "env.radius=3", "env.costs=congestion", "eval.greedy=false")
NETWORKS = ("algo.hidden=[128,64]", "algo.num_envs=8", "algo.rollout_length=64")
Q_LEARNING = (*OBSERVATIONS, *NETWORKS, "algo.core=mlp", "algo.agent_id=false")
QMIX = (
    "algo.buffer_size=20_000",
    "algo.batch_size=8",
    "algo.gradient_steps=4",
    "algo.learning_rate=1e-3",
    "algo.reward_scale=16",
)
ALGORITHMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "IPPO": ("ippo", ()),
    "MAPPO": ("mappo", (*OBSERVATIONS, *NETWORKS, "algo.num_epochs=2", "algo.num_minibatches=8")),
    "PQN, independent": ("pqn", (*Q_LEARNING, "algo.mixer=none")),
    "QMIX": ("qmix", (*Q_LEARNING, *QMIX)),
}
Published = Mapping[str, Mapping[str, Sequence[float | None]]]  # by maps and method, one for each of ``NUMBERS``
# Goals per step as published by POGEMA's benchmark: means over its 128 instances.
THROUGHPUT: Published = {
    "random": {
        "RHCR, central": (0.625, 1.251, 1.798, 2.286, 3.203, 3.819),
        "MATS-LP, tree search": (0.606, 1.163, 1.590, 1.911, 2.345, 2.431),
        "Follower": (0.600, 1.131, 1.536, 1.829, 2.261, 2.465),
        "Assistant switcher": (0.536, 0.964, 1.243, 1.415, 1.612, 1.676),
        "MAMBA": (0.512, 0.863, 1.068, 1.114, 1.111, 1.065),
        "QPLEX": (0.354, 0.691, 0.880, 0.926, 0.627, 0.349),
        "QMIX": (0.148, 0.336, 0.466, 0.523, 0.557, 0.493),
        "EPOM": (0.498, None, None, 1.361, None, 1.600),
        "RePlan": (0.507, None, None, 1.111, None, 1.136),
        "VDN": (0.108, None, None, 0.163, None, 0.071),
        "IQL": (0.079, None, None, 0.339, None, 0.161),
    },
    "mazes": {
        "RHCR, central": (0.477, 0.939, 1.356, 1.703, 2.263, 2.587),
        "MATS-LP, tree search": (0.458, 0.849, 1.143, 1.322, 1.474, 1.505),
        "Follower": (0.449, 0.832, 1.115, 1.307, 1.523, 1.613),
        "Assistant switcher": (0.382, 0.646, 0.794, 0.882, 0.943, 0.961),
        "MAMBA": (0.365, 0.567, 0.672, 0.673, 0.673, 0.646),
        "QPLEX": (0.241, 0.467, 0.583, 0.619, 0.516, 0.369),
        "QMIX": (0.148, 0.298, 0.425, 0.486, 0.508, 0.469),
    },
    "warehouse": {
        "RHCR, central": (1.225, 2.268, 3.103, 3.493, 2.456, 1.568),
        "Follower": (1.127, 1.957, 2.613, 3.151, 3.599, 3.937),
        "MATS-LP, tree search": (1.109, 1.668, 1.792, 1.825, 1.904, 1.911),
        "MAMBA": (0.851, 1.381, 1.514, 1.628, 1.776, 1.910),
        "QMIX": (0.559, 0.951, 1.217, 1.357, 1.379, 1.298),
    },
    "puzzles": {
        "RHCR, central": (0.454, 0.565, 0.594),
        "MATS-LP, tree search": (0.392, 0.432, 0.358),
        "Follower": (0.359, 0.324, 0.274),
        "QMIX": (0.127, 0.116, 0.108),
    },
}
# Shares of episodes of 128 steps in which all agents were at their goals at once, of the task ``together``: means over 128
# episodes, or fewer where a method's are missing
TOGETHER: Published = {
    "random": {
        "LaCAM, central": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        "SCRIMP": (1.0, 1.0, 0.953, 0.836, 0.562, 0.180),
        "DCC": (1.0, 1.0, 0.906, 0.766, 0.281, 0.1),
        "MAMBA": (0.602, 0.102, 0.0, None, None, None),
        "QMIX": (0.023, 0.0, None, None, None, None),
    },
    "mazes": {
        "LaCAM, central": (1.0, None, None, None, None, 0.906),
        "SCRIMP": (0.977, 0.797, 0.625, 0.359, 0.172, 0.055),
        "DCC": (0.961, 0.781, 0.562, 0.289, 0.109, 0.033),
    },
}
TOGETHER_STEPS = 128


def benchmark(maps: str, agents: int, **options: Any) -> Pathfinding:
    """An environment on the benchmark's maps."""
    return Pathfinding(maps=maps, agents=agents, **generated(maps), **options)


def generated(maps: str) -> dict[str, Any]:
    """The options that choose the benchmark's maps."""
    return {"first_map": 0, "num_maps": MAPS} if maps in ("random", "mazes") else {}


def episodes_per_map(count: int) -> int:
    """Episodes on each of ``count`` maps, so that all tables have the same number."""
    return MAPS * EPISODES // count


def scripted_result(cache: ResultCache, maps: str, name: str, agents: int, task: str = "lifelong") -> Metrics | None:
    """One of ``POLICIES`` on every map equally often."""
    policy, costs = POLICIES[name]
    env = benchmark(maps, agents, costs=costs, task=task)
    env_params = env.default_params
    if task != "lifelong":
        env_params = env_params.replace(duration=TOGETHER_STEPS)
    scripted = scripted_policies(env, env_params)[policy]
    count = env_params.tables.blocked.shape[0]
    about = {"policy": policy, "version": VERSION, "maps": count, **cache_key(scripted, episodes_per_map(count))}
    title = f"{maps} {name} {agents}" if task == "lifelong" else f"{maps} {task} {name} {agents}"
    return cache.get(title, about, lambda: scripted_metrics(scripted, count, episodes_per_map(count)))


def scripted_metrics(scripted: ScriptedPolicy, count: int, episodes: int) -> Metrics:
    """Metrics over as many episodes on each of the first ``count`` maps."""
    evaluator = Evaluator(scripted.env, episodes)

    def play(number: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        return evaluator.scripted(scripted.policy, scripted.env_params.replace(map=number), key, scripted.carry)

    return summarise(jax.device_get(jax.jit(lambda: on_every_map(play, count))()))


def on_every_map(play: Callable[[jax.Array, jax.Array], dict[str, jax.Array]], count: int) -> dict[str, jax.Array]:
    """Metrics [episodes] of ``play(map, key)`` on each of the first maps, one after the other."""
    metrics = jax.lax.map(lambda number: play(number, jax.random.fold_in(suite_key(), number)), jnp.arange(count), batch_size=16)
    return {name: values.reshape(-1) for name, values in metrics.items()}


def learned_result(
    cache: ResultCache, maps: str, name: str, algo: str, overrides: Sequence[str], numbers: Sequence[int], seeds: int
) -> Metrics | None:
    """The metrics ``throughput <agents>`` for each of ``numbers``: of the last policy of every seed, which is trained on the
    environment's own maps, on every map of the benchmark."""

    def measure(run: Settings, folder: Path) -> Metrics:
        params = load.load_replicas(folder, "last").params
        return {f"throughput {agents}": on_the_benchmark(run, params, maps, agents) for agents in numbers}

    about = {"agents": numbers, "episodes": MAPS, "which": "last", **generated(maps)}
    overrides = ["env=pathfinding", f"env.maps={maps}", "eval.every=0", *overrides]
    return cache.trained_by_seed(f"{maps} {name}", algo, overrides, measure, seeds, about)


def on_the_benchmark(run: Settings, params: Any, maps: str, agents: int) -> dict[str, Any]:
    """Throughput of the policy of a run with parameters [1, …], with another number of agents than in training."""
    assert isinstance(run.env, Pathfinding)
    env = dataclasses.replace(run.env, agents=agents, **generated(maps))
    env_params = env.default_params
    count = env_params.tables.blocked.shape[0]
    metrics = learned_metrics(
        Evaluator(env, MAPS // count), run.algorithm, run.run.eval.greedy, count, run.config, params, env_params
    )
    return summarise(jax.device_get(metrics))["throughput"]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))  # one program for all seeds
def learned_metrics(
    evaluator: Evaluator, algorithm: ModuleType, greedy: bool, count: int, config: Any, params: Any, env_params: Any
) -> dict[str, jax.Array]:
    """Metrics [episodes] of the policy with parameters [1, …]."""

    def play(number: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        return evaluator.learned(algorithm, config, params, env_params.replace(map=number), key, greedy)

    return on_every_map(play, count)


def bound_result(cache: ResultCache, maps: str, agents: int) -> Metrics | None:
    """Goals per step if agents could pass through one another: no policy can reach more on average."""
    env = benchmark(maps, agents)
    count = env.default_params.tables.blocked.shape[0]
    about = {"env": str(env), "env_version": env.version, "episodes": episodes_per_map(count)}
    return cache.get(f"{maps} bound {agents}", about, lambda: without_collisions(env, count))


def without_collisions(env: Pathfinding, count: int) -> Metrics:
    """Goals per step of agents on shortest paths that nobody blocks."""
    env_params = env.default_params
    tables, duration = env_params.tables, env_params.duration

    def episode(key: jax.Array, number: jax.Array) -> jax.Array:
        key_start, key_goals = jax.random.split(key)
        state = env.initial(key_start, env_params.replace(map=number))

        def trip(key: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            cell, goal, time, reached = found
            # who is at the new goal already has reached it after one step
            time = time + jnp.maximum(tables.distance[number, goal, cell], 1)
            cell = tables.goals[number, goal]
            return (
                cell,
                env.draw_goals(key, tables, number, goal, cell, env_params.repeat_goal),
                time,
                reached + (time <= duration),
            )

        def unfinished(loop: tuple) -> jax.Array:
            return jnp.any(loop[1][2] < duration)

        def step(loop: tuple) -> tuple:
            key, key_trip = jax.random.split(loop[0])
            return key, trip(key_trip, loop[1])

        zeros = jnp.zeros(env.num_agents, jnp.int32)
        _, (_, _, _, reached) = jax.lax.while_loop(unfinished, step, (key_goals, (state.cell, state.goal, zeros, zeros)))
        return jnp.sum(reached) / duration

    numbers = jnp.repeat(jnp.arange(count), episodes_per_map(count))
    throughput = jax.jit(jax.vmap(episode))(jax.random.split(suite_key(), len(numbers)), numbers)
    return summarise({"throughput": throughput})


def throughput_table(maps: str, cache: ResultCache) -> str:
    """Goals per step by number of agents: published figures, ours, and the bound."""
    numbers = NUMBERS[maps]
    rows = published_rows(THROUGHPUT[maps])
    for name in POLICIES:
        found = [scripted_result(cache, maps, name, agents) for agents in numbers]
        rows.append(row(name, [metrics and metrics["throughput"] for metrics in found], f"{name} on {maps}"))
    for name, (algo, overrides) in TUNED.items():
        learned = learned_result(cache, maps, name, algo, (*TRAINING.get(maps, ()), *overrides), numbers, SEEDS)
        rows.append(learned_row(f"{name}, {SEEDS} seeds", learned, numbers, f"{name} on {maps}"))
    bounds = [bound_result(cache, maps, agents) for agents in numbers]
    rows.append(row("without collisions", [metrics and metrics["throughput"] for metrics in bounds], f"the bound on {maps}"))
    return partial_table([f"goals per step, {maps}, N =", *map(str, numbers)], rows)


def algorithms_table(cache: ResultCache) -> str:
    """Goals per step by algorithm, of few agents on random maps."""
    columns = [NUMBERS["random"].index(agents) for agents in ALGORITHM_AGENTS]
    methods = {name: [THROUGHPUT["random"][name][column] for column in columns] for name in ("QMIX", "VDN", "IQL")}
    rows = published_rows(methods)
    for name, (algo, overrides) in ALGORITHMS.items():
        settings = (f"env.agents={max(ALGORITHM_AGENTS)}", f"algo.total_steps={ALGORITHM_STEPS}", *overrides)
        learned = learned_result(cache, "random", f"few {name}", algo, settings, ALGORITHM_AGENTS, ALGORITHM_SEEDS)
        rows.append(learned_row(name, learned, ALGORITHM_AGENTS, name))
    return partial_table(["goals per step, random, N =", *map(str, ALGORITHM_AGENTS)], rows)


def together_table(maps: str, cache: ResultCache) -> str:
    """How often all agents get to their goals, by their number."""
    rows = published_rows(TOGETHER[maps])
    for name in POLICIES:
        found = [scripted_result(cache, maps, name, agents, "together") for agents in NUMBERS[maps]]
        rows.append(row(name, [metrics and metrics["csr"] for metrics in found], f"{name} on {maps}"))
    return partial_table([f"CSR, {maps}, N =", *map(str, NUMBERS[maps])], rows)


def published_rows(methods: Mapping[str, Sequence[float | None]]) -> list[list[str] | str]:
    """A row for each method."""
    return [
        [f"{name}, published", *("–" if value is None else f"{value:.3f}" for value in values)]
        for name, values in methods.items()
    ]


def learned_row(name: str, learned: Metrics | None, numbers: Sequence[int], missing: str) -> list[str] | str:
    """The row of what ``learned_result`` found."""
    return row(name, [(learned or {}).get(f"throughput {agents}") for agents in numbers], missing)


def row(name: str, metrics: Sequence[Mapping[str, Any] | None], missing: str) -> list[str] | str:
    """A row with an interval for each number of agents; ``missing`` where one of them is not computed."""
    cells = [mean_interval(metric, 3) for metric in metrics if metric]
    return [name, *cells] if len(cells) == len(metrics) else missing


PAGE = Page(
    name="pathfinding",
    title="`pathfinding`: results",
    intro=f"""The lifelong task with the rules and sizes of POGEMA's benchmark (Skrynnik et al. 2024): soft collisions, 256
steps, 128 on mazes; new goals are uniform over an agent's component, where it stands included, as in the version of
POGEMA of the published figures. {MAPS * EPISODES} episodes: {EPISODES} on each of the benchmark's {MAPS} random maps and mazes,
which are equal to its own, or as many on the one warehouse and the sixteen puzzles; starts and goals are drawn as there, but are
not the same. ±: 95 % t interval over episodes. Published figures are means over 128 episodes, read from the benchmark's raw
results.

*Shortest*: each agent steps along a shortest path, and at random after it was refused. *PIBT* (Okumura et al. 2022) plans one
step for all agents by priorities; with *congestion costs* (Follower's), paths lead around the middle of the map. Both read tables
of distances from every cell to every goal, and PIBT the places of all agents: what the published planners know, and learners do
not.

*IPPO* (`configs/tuned/ippo_pathfinding.yaml`) was trained on each kind of maps, on other random ones and mazes than the
benchmark's, with one number of agents (32, in the warehouse 64, on puzzles 4) for 19 million agent steps, and plays with
all; {SEEDS} seeds, the last policy of each with sampled actions, {MAPS} episodes, ± over seeds. Its agents see three cells around
them, distances to their goal from there, and which step each agent in view would take on its own way (as in MAPF-GPT): more than
POGEMA's observations show, and less than PIBT knows. *IPPO with PIBT* (`env.collision=pibt`): PIBT tries an agent's action first,
and then goes by distances with congestion costs, in training, too (after Veerapaneni et al. 2024, where a policy's probabilities
order all actions). Its moves are legal under soft collisions; like PIBT it is central.

*Without collisions* agents pass through one another: a bound.""",
    sections=(
        Section("Random maps", "", {"random": functools.partial(throughput_table, "random")}),
        Section(
            "Mazes",
            "",
            {"mazes": functools.partial(throughput_table, "mazes")},
            """By itself IPPO is above shortest paths here and on random maps. There it is close to PIBT with up to 24 agents, and
a few per cent behind it and Follower with 32; in mazes, whose corridors ask agents to give way for many steps, it is further
behind, and with 48 and 64 agents on both. It was trained for 19 million agent steps with 32 agents, Follower for a thousand
million with 128 to 256. Tried as well, with one seed each in runs that were not kept: a GRU was worse in mazes; a view of five
cells there, and three times as many steps on random maps, gave a few per cent.

With PIBT, which makes others give way, IPPO reaches more goals than either alone, by about a quarter on random maps with 64
agents, twice as many as in training: agents may wait and go round, where PIBT always tries the shortest way first. In mazes,
where there is less to choose from, it adds one or two per cent.""",
        ),
        Section(
            "Warehouse",
            """The map of the benchmark's experiments. (The one in its folder of raw results has starts and goals exchanged, and
no method could pass 1.04 goals per step there with 32 agents.)""",
            {"warehouse": functools.partial(throughput_table, "warehouse")},
        ),
        Section(
            "Puzzles",
            "Sixteen maps of 5 × 5 cells.",
            {"puzzles": functools.partial(throughput_table, "puzzles")},
            """PIBT is close to Follower on random maps, and ahead of it on mazes from 32 agents on. In the warehouse congestion
costs make a third more of it with 192 agents, close to Follower, which has them too; there IPPO, trained with 64 agents, adds to
PIBT up to 96 and takes from it beyond. In the dead ends of the puzzles one step ahead is not enough, and there learning does
most: with 4 agents it makes four times as much of PIBT. What RHCR, which plans many steps, reaches beyond is left to learn.""",
        ),
        Section(
            "Algorithms",
            f"""{max(ALGORITHM_AGENTS)} agents on random maps, {ALGORITHM_STEPS:,} steps of the environment, {ALGORITHM_SEEDS}
seeds: a quarter of the agent steps above. All learners see the same, with distances to their goals, which those of the published
rows do not see; they act by networks of one size, and without PIBT. IPPO has its tuned values, which were searched for here,
MAPPO the same where it has them, the Q-learners their defaults but for network and rollouts. Agents of PQN learn for themselves;
QMIX learns from the sum of rewards, at a learning rate of 1e-3, by four gradient steps of eight rollouts an update from a buffer
of 20,000 steps. Actions are sampled as at the end of training: Q-learners take one in twenty at random.""",
            {"algorithms": algorithms_table},
            """Tried as well, with one seed each in runs that were not kept: from the mean of rewards, at its default learning
rate, QMIX learns to stay. So did PQN with VDN, whose values diverged, before its values started near 0; since then it was not
tried.""",
        ),
        Section(
            "All at their goals at once",
            f"""The task `together`: the share of episodes in which all agents are at their goals at once within {TOGETHER_STEPS}
steps (CSR).""",
            {f"{maps}-together": functools.partial(together_table, maps) for maps in TOGETHER},
            """PIBT promises, where all neighbouring cells lie on a common cycle, that every agent reaches its goal at some time,
not that all are there at once; still it leaves the learnt methods behind in mazes and in crowds. LaCAM searches for a plan of
all agents.""",
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
