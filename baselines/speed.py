"""How fast an environment and its training are on this machine, against a rival in the same run.

    python baselines/speed.py env=merge
    python baselines/speed.py env=merge env.density=easy algo=ippo
    python baselines/speed.py env=smax
    python baselines/speed.py env=ride_dispatch
    python baselines/speed.py env=swarm
    python baselines/speed.py env=collective
    python baselines/speed.py seeds                  # many seeds in one program, many devices, and their memory

Writes ``baselines/results/speed_<env>.md``, or with more words a page of their own. Every row is measured in a process of its
own, from a cold start and without the compilation cache, so that compile times and peak memory are its own. Rates are medians
over repetitions after a warm-up, with every output computed: observations, masks, rewards, metrics, global state and automatic
restarts. Steps in which an environment only restarts do not count, except in training.
"""

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
REPETITIONS = 5
RANDOM_STEPS = 100  # per environment and repetition
RIVAL_SECONDS = 10.0
ROUNDS = 3  # of a duel, ours and the rival in turn
Row = dict[str, float]  # figures of one measurement
Sides = dict[str, list[Row]]  # "random" is ours, "rival" theirs


class Sizes(NamedTuple):
    """Numbers of environments that an environment is measured at."""

    random: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)
    training: tuple[int, ...] = (16, 64, 256, 1024)
    parts: int = 1024  # where no duel says how many


SIZES = {"ride_dispatch": Sizes((1, 2, 4, 8, 16, 32), (4, 8, 16), 4)}


class Duel(NamedTuple):
    """What an environment and a rival that runs in batches, too, are both measured at."""

    words: tuple[str, ...]
    num_envs: int


DUELS = {
    "smax": (
        Duel(("env.scenario=3m",), 1024),
        Duel(("env.scenario=2s3z",), 1024),
        Duel(("env.scenario=smacv2_5_units",), 1024),
        Duel(("env.scenario=27m_vs_30m",), 64),
    )
}


class Size(NamedTuple):
    """One row of how an environment's speed changes with its size."""

    words: tuple[str, ...]
    num_envs: int


GROWTH = {
    "swarm": (
        Size(("env.preset=obstacles", "env.drones=1", "env.neighbours=0"), 2048),
        *(
            Size(("env.preset=obstacles", f"env.drones={drones}"), num_envs)
            for drones, num_envs in ((2, 1024), (4, 512), (8, 256), (16, 128), (32, 64), (64, 16), (128, 4))
        ),
        *(Size(("env.preset=obstacles",), num_envs) for num_envs in (1, 16, 64, 1024, 4096)),
        Size(("env.preset=open",), 256),
        Size(("env.preset=open", "env.dynamics=point3d"), 256),
        Size(("env.preset=coverage",), 256),
    ),
    "collective": (
        *(Size((f"env.agents={agents}",), num_envs) for agents, num_envs in ((100, 64), (1000, 8), (10_000, 1))),
        *(Size((f"env.agents={agents}", "env.neighbours=sorted"), num_envs) for agents, num_envs in ((1000, 8), (10_000, 1))),
        Size(("env.task=kuramoto", "env.agents=1000"), 8),
        Size(("env.task=aggregation", "env.agents=1000"), 8),
    ),
}


def main(words: Sequence[str]) -> None:
    """Measures, prints and writes the report."""
    from rich.console import Console

    from marljax import settings
    from marljax.baselines.tables import file_name, write_report
    from marljax.errors import UserError

    console = Console()
    if any(word in ("-h", "--help") for word in words):
        print((__doc__ or "").strip())
        return
    if "seeds" in words:
        from marljax.baselines import scaling

        return scaling.main()
    usual = "ospo" if "env=ride_dispatch" in words else "mappo"
    algo = next((word.removeprefix("algo=") for word in words if word.startswith("algo=")), usual)
    command = " ".join(["python baselines/speed.py", *words])
    variant = "-".join(word for word in words if not word.startswith("env="))
    words = [word for word in words if not word.startswith("algo=")]
    try:
        chosen = settings.compose(algo, words)
    except UserError as error:
        sys.exit(f"error: {error}")
    console.print(f"{chosen.env_name}: {os.cpu_count()} CPU cores; each row in a process of its own")

    def take(kind: str, count: int, more: Sequence[str] = ()) -> Row:
        row = measure_apart(kind, count, algo, [*words, *more])
        figures = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        console.print(f"{kind:>9} {count or '':>5}  {figures}  {' '.join(more)}")
        return row

    sizes = SIZES.get(chosen.env_name, Sizes())
    planned: Sequence[Duel] = DUELS.get(chosen.env_name, ())
    if planned and any(word.startswith("env.") for word in words):
        planned = (Duel((), sizes.parts),) if jaxmarl_can(chosen.env, chosen.env_params) else ()
    duels = [(duel, face(duel, take)) for duel in planned]
    profiles = [(duel, take("parts", duel.num_envs, duel.words)) for duel in planned or (Duel((), sizes.parts),)]
    measured: dict[str, list[Row]] = {"start": [], "random": [], "rival": [], "training": []}
    jobs = [("start", 0), *(("random", count) for count in sizes.random), *(("training", count) for count in sizes.training)]
    if chosen.env_name in RIVALS.keys() - DUELS.keys():
        # The rival is measured before, between and after, so that a change of the machine's load shows.
        jobs = [("rival", 0), *jobs[:5], ("rival", 0), *jobs[5:], ("rival", 0)]
    for kind, count in jobs:
        measured[kind].append(take(kind, count))
    more: Sequence[str] = ()
    if chosen.env_name in GROWTH and not any(word.startswith("env.") for word in words):
        sizes_grown = GROWTH[chosen.env_name]
        more = growth_section(chosen.env_name, [take("random", size.num_envs, size.words) for size in sizes_grown])
    if chosen.env_name == "ride_dispatch":
        own = ride_dispatch_own()
        fleets = [take("fleet", vehicles) for vehicles in own.FLEETS]
        more = own.section(fleets, [take("matching", number) for number in range(len(own.MATCHED))])
    text = report(chosen, measured, duels, profiles, command, algo, more)
    path = RESULTS / f"speed_{file_name('-'.join(filter(None, (chosen.env_name, variant))))}.md"
    write_report(path, text)
    console.print(text)
    console.print(f"written: {path}")


def face(duel: Duel, take: Callable[[str, int, Sequence[str]], Row]) -> Sides:
    """Measures ours and the rival in turn, so that a change of the machine's load meets both."""
    rows: Sides = {"random": [], "rival": []}
    for _ in range(ROUNDS):
        for kind, measured in rows.items():
            measured.append(take(kind, duel.num_envs, duel.words))
    return rows


def measure_apart(kind: str, count: int, algo: str, words: Sequence[str]) -> Row:
    """One measurement in a fresh process; its figures and peak memory."""
    command = [sys.executable, __file__, "--measure", kind, str(count), algo, *words]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
    if done.returncode:
        sys.exit(f"the measurement '{kind} {count}' failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind: str, count: int, algo: str, words: Sequence[str]) -> Row:
    """Figures of one kind; runs inside the process that ``measure_apart`` starts."""
    begun = time.perf_counter()
    import marljax  # noqa: F401 - its import is what is timed

    import_time = time.perf_counter() - begun
    from marljax import settings

    chosen = settings.compose(algo, words)
    given = chosen.env, chosen.env_params, count
    measures: dict[str, Callable[[], Row]] = {
        "start": lambda: {"import_s": import_time},
        "random": lambda: random_rate(*given),
        "parts": lambda: part_times(*given),
        "training": lambda: training_rate(chosen, count),
        "rival": lambda: RIVALS[chosen.env_name](*given),
        "fleet": lambda: ride_dispatch_own().fleet_figures(count),
        "matching": lambda: ride_dispatch_own().matching_figures(ride_dispatch_own().MATCHED[count]),
    }
    return measures[kind]() | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def random_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second under uniform available actions."""
    import jax
    import jax.numpy as jnp

    from marljax.evaluate import RandomPolicy
    from marljax.vector import vectorize

    vec, policy = vectorize(env, num_envs), RandomPolicy(env)

    def step(env_params: Any, carried: tuple, key: jax.Array) -> tuple:
        state, timestep = carried
        key_action, key_step = jax.random.split(key)
        action, _ = policy(key_action, state, timestep, ())
        state, timestep = vec.step(key_step, state, action, env_params)
        return (state, timestep), vec.global_state(state, env_params), jnp.sum(~timestep.first)

    return scan_rate(vec.reset, step, env_params) | {
        "agents": env.num_agents,
        "substeps": getattr(env, "substeps", 0),
    }


def part_times(env: Any, env_params: Any, num_envs: int) -> Row:
    """Milliseconds that each part of a step of all environments takes, run by itself."""
    import jax

    from marljax.evaluate import RandomPolicy
    from marljax.vector import vectorize

    vec, policy = vectorize(env, num_envs), RandomPolicy(env)
    key = jax.random.key(0)
    state, timestep = vec.reset(key, env_params)
    action, _ = policy(key, state, timestep, ())
    keys = jax.random.split(key, num_envs)
    parts: dict[str, tuple[Callable, tuple]] = {
        "whole step": (vec.step, (key, state, action, env_params)),
        "reset": (jax.vmap(env.initial, (0, None)), (keys, env_params)),
        "transition": (jax.vmap(env.transition, (0, 0, 0, None)), (keys, state.env, action, env_params)),
        "observation": (jax.vmap(env.observe, (0, None)), (state.env, env_params)),
        "global state": (jax.vmap(env.global_state, (0, None)), (state.env, env_params)),
        "random policy": (lambda key, timestep: policy(key, (), timestep, ()), (key, timestep)),
    }
    return {name: 1e3 * call_time(*part) for name, part in parts.items()}


def call_time(function: Callable, inputs: tuple, calls: int = RANDOM_STEPS) -> float:
    """Seconds of a compiled call, the median of several."""
    import jax

    compiled = jax.jit(function).lower(*inputs).compile()
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(*inputs))
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def scan_rate(start: Callable, step: Callable, env_params: Any) -> Row:
    """Rate of ``step(env_params, carried, key) -> (carried, outputs, environments that moved)`` from ``start(key, env_params)``,
    and both programs' compile time. An environment that only restarts in a step does not count."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def run(key: jax.Array, carried: Any, env_params: Any) -> Any:
        # env_params are an input, as in training: closed over, they would be folded into the program. Outputs go from step to
        # step with what is carried, so that every step has to compute them.
        _, shapes, _ = jax.eval_shape(step, env_params, carried, key)

        def one(kept: tuple, key: jax.Array) -> tuple[tuple, None]:
            carried, outputs, moved = step(env_params, kept[0], key)
            return (carried, outputs, kept[2] + moved), None

        outputs = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(one, (carried, outputs, jnp.zeros((), jnp.int32)), jax.random.split(key, RANDOM_STEPS))[0]

    begun = time.perf_counter()
    carried = jax.jit(start)(jax.random.key(0), env_params)
    compiled = run.lower(jax.random.key(0), carried, env_params).compile()
    compile_time = time.perf_counter() - begun
    carried, *_ = jax.block_until_ready(compiled(jax.random.key(0), carried, env_params))
    rates = []
    for repetition in range(REPETITIONS):
        begun = time.perf_counter()
        carried, _, moved = jax.block_until_ready(compiled(jax.random.key(repetition), carried, env_params))
        rates.append(int(moved) / (time.perf_counter() - begun))
    return {"env_steps_per_s": statistics.median(rates), "compile_s": compile_time}


def training_rate(chosen: Any, num_envs: int) -> Row:
    """Environment steps per second of whole updates, the compile time, and the time from there to the end of the first update."""
    import jax

    from marljax import parallel
    from marljax.train import Trainer

    config = chosen.config.replace(num_envs=num_envs, total_steps=num_envs * chosen.config.rollout_length * (REPETITIONS + 2))
    trainer = Trainer(chosen.algorithm, chosen.training_env, config, parallel.make_mesh())
    begun = time.perf_counter()
    members = trainer.init(jax.random.split(jax.random.key(0), 1), chosen.training_params)
    members, _ = jax.block_until_ready(trainer.run(members, 1))
    first_update = time.perf_counter() - begun
    times = []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        members, _ = jax.block_until_ready(trainer.run(members, 1))
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times)
    rate = trainer.steps_per_update / seconds
    return {"env_steps_per_s": rate, "compile_s": first_update - seconds, "first_update_s": first_update}


def highway_env_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of highway-env on the same road, clock and spawns; random actions, one at a time."""
    del num_envs
    if importlib.util.find_spec("highway_env") is None:
        sys.exit('error: the rival, highway-env, is not installed; pip install -e ".[dev]"')
    import numpy as np

    from marljax.baselines.highway_merge import random_episode

    rng = np.random.default_rng(0)
    return episode_rate(lambda: random_episode(env.physics, env_params, rng))


def episode_rate(play: Callable[[], int]) -> Row:
    """Steps per second of a rival whose ``play`` runs one episode and returns its steps, after a first one to warm up."""
    play()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < RIVAL_SECONDS:
        steps += play()
    return {"env_steps_per_s": steps / (time.perf_counter() - begun)}


def jaxmarl_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of JaxMARL's SMAX with the same units, spawns, views and script."""
    from marljax.baselines.jaxmarl_smax import random_step

    return scan_rate(*random_step(env, num_envs), env_params)


def jaxmarl_can(env: Any, env_params: Any) -> bool:
    """Whether the rival of ``smax`` has the same options and numbers."""
    import jax
    import numpy as np

    from marljax.envs.smax_units import PUBLISHED

    usual = jax.tree.map(np.array_equal, env_params, env.default_params)
    return env.mode == "scripted" and env.action_type == "discrete" and env.scenario in PUBLISHED and all(jax.tree.leaves(usual))


def ride_gym_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of ride-gym with the same fleet, patience and number of orders on a grid of streets."""
    del num_envs
    if importlib.util.find_spec("ride_gym") is None:
        sys.exit('error: the rival, ride-gym, is not installed; pip install -e ".[dev]"')
    import numpy as np

    own = ride_dispatch_own()
    rng, rival = np.random.default_rng(0), own.ride_gym(env, env_params)
    return episode_rate(lambda: own.ride_gym_episode(rival, rng))


def ride_dispatch_own() -> Any:
    """What is measured of that environment only."""
    from marljax.baselines import ride_dispatch_speed

    return ride_dispatch_speed


RIVALS: dict[str, Callable[[Any, Any, int], Row]] = {
    "merge": highway_env_rate,
    "smax": jaxmarl_rate,
    "ride_dispatch": ride_gym_rate,
}


def report(
    chosen: Any,
    measured: dict[str, list[Row]],
    duels: Sequence[tuple[Duel, Sides]],
    profiles: Sequence[tuple[Duel, Row]],
    command: str,
    algo: str,
    more: Sequence[str],
) -> str:
    """The Markdown page; ``more`` are paragraphs of the environment's own."""
    from marljax.baselines.tables import describe_versions, markdown_table

    sizes = SIZES.get(chosen.env_name, Sizes())
    rival = statistics.median(row["env_steps_per_s"] for row in measured["rival"]) if measured["rival"] else None
    random_rows = [
        [
            f"{count:,}",
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['env_steps_per_s'] * row['agents']:,.0f}",
            *([f"{row['env_steps_per_s'] / rival:,.0f}×"] if rival else []),
            f"{row['compile_s']:.1f}",
            f"{row['peak_mib']:,.0f}",
        ]
        for count, row in zip(sizes.random, measured["random"], strict=True)
    ]
    training_rows = [
        [f"{count:,}", *(f"{row[name]:,.{places}f}" for name, places in _TRAINING_COLUMNS.items())]
        for count, row in zip(sizes.training, measured["training"], strict=True)
    ]
    rates = [row["env_steps_per_s"] for row in measured["rival"]]
    lines = [
        f"# Speed of `{chosen.env_name}`",
        f"`{command}` on {os.cpu_count()} CPU cores; {describe_versions()}.",
        f"`import marljax` takes {measured['start'][0]['import_s']:.2f} s.",
        *duel_section(duels),
        "## Random actions",
        "All outputs computed: observation, mask, reward, metrics, global state, automatic restart.",
        *(
            [f"The rival makes {min(rates):,.0f}–{max(rates):,.0f} env-steps/s, measured three times in this run."]
            if rates
            else []
        ),
        markdown_table(
            ["environments", "env-steps/s", "agent-steps/s", *(["× rival"] if rival else []), "compile s", "peak MiB"],
            random_rows,
        ),
        *profile_section(profiles),
        f"## Training, `{algo}`",
        f"rollout_length {chosen.config.rollout_length}, hidden {list(chosen.config.hidden)}, {chosen.config.num_epochs} epochs.",
        markdown_table(["environments", "env-steps/s", "compile s", "set-up and first update s", "peak MiB"], training_rows),
        *more,
    ]
    return "\n\n".join(lines) + "\n"


def duel_section(duels: Sequence[tuple[Duel, Sides]]) -> list[str]:
    """Ours and the rival, medians of the rounds; nothing where there were none."""
    from marljax.baselines.tables import markdown_table

    rows = []
    for duel, sides in duels:
        medians = [
            [statistics.median(row[name] for row in side) for side in sides.values()] for name in ("env_steps_per_s", "compile_s")
        ]
        (own, theirs), (own_compile, their_compile) = medians
        ratios = [mine["env_steps_per_s"] / other["env_steps_per_s"] for mine, other in zip(*sides.values(), strict=True)]
        rows.append(
            [
                " ".join(duel.words),
                f"{duel.num_envs:,}",
                f"{own:,.0f}",
                f"{theirs:,.0f}",
                f"{statistics.median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})",
                f"{own_compile:.1f}",
                f"{their_compile:.1f}",
                f"{own_compile / their_compile:.2f}×",
            ]
        )
    header = ["", "environments", "env-steps/s", "rival's", "ratio (range)", "compile s", "rival's compile s", "ratio"]
    about = (
        f"Random actions, all outputs computed on both sides; ours and the rival in turn, medians of {ROUNDS} rounds. "
        "Of ours, the one step in an episode that only restarts it does not count."
    )
    return ["## Against the rival", about, markdown_table(header, rows)] if rows else []


def profile_section(profiles: Sequence[tuple[Duel, Row]]) -> list[str]:
    """Where the time of a step goes."""
    from marljax.baselines.tables import markdown_table

    names = [name for name in profiles[0][1] if name != "peak_mib"]
    rows = [[" ".join(duel.words), f"{duel.num_envs:,}", *(f"{row[name]:.2f}" for name in names)] for duel, row in profiles]
    about = (
        "Milliseconds of a step of all environments, and of its parts run by themselves: in one program they share some work. "
        "A step resets the environments only if the episode of one of them has ended."
    )
    return ["## Where the time goes", about, markdown_table(["", "environments", *names], rows)]


def growth_section(name: str, rows: Sequence[Row]) -> list[str]:
    """How speed changes with the number of agents and environments."""
    from marljax.baselines.tables import markdown_table

    inside = "physics sub-steps/s" if any(row["substeps"] for row in rows) else ""
    table = []
    for size, row in zip(GROWTH[name], rows, strict=True):
        agent_steps = row["env_steps_per_s"] * row["agents"]
        rates = [row["env_steps_per_s"], agent_steps, *([agent_steps * row["substeps"]] if inside else [])]
        figures = [f"{row['agents']:,.0f}", f"{size.num_envs:,}", *(f"{rate:,.0f}" for rate in rates)]
        table.append([" ".join(size.words), *figures, f"{row['compile_s']:.1f}", f"{row['peak_mib']:,.0f}"])
    header = ["", "agents", "environments", "env-steps/s", "agent-steps/s", *filter(None, [inside]), "compile s", "peak MiB"]
    return ["## Growth", "Random actions, all outputs computed, as above.", markdown_table(header, table)]


_TRAINING_COLUMNS = {"env_steps_per_s": 0, "compile_s": 1, "first_update_s": 1, "peak_mib": 0}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        kind, count, algo, *words = sys.argv[2:]
        print(json.dumps(measure(kind, int(count), algo, words)))
    else:
        main(sys.argv[1:])
