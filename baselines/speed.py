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

from marljax.baselines.harness.measure import Row, Sizes, episode_rate, part_times, random_rate, scan_rate, training_rate

RESULTS = Path(__file__).parent / "results"


ROUNDS = 3  # of a duel, ours and the rival in turn


Sides = dict[str, list[Row]]  # "random" is ours, "rival" theirs


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

    from marljax.baselines.harness.result_cache import file_name
    from marljax.baselines.harness.tables import write_report
    from marljax.config import compose
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
        chosen = compose.compose(algo, words)
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
    from marljax.config import compose

    chosen = compose.compose(algo, words)
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


def highway_env_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of highway-env on the same road, clock and spawns; random actions, one at a time."""
    del num_envs
    if importlib.util.find_spec("highway_env") is None:
        sys.exit('error: the rival, highway-env, is not installed; pip install -e ".[dev]"')
    import numpy as np

    from marljax.baselines.rivals.highway_env import random_episode

    rng = np.random.default_rng(0)
    return episode_rate(lambda: random_episode(env.physics, env_params, rng))


def jaxmarl_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of JaxMARL's SMAX with the same units, spawns, views and script."""
    from marljax.baselines.rivals.smax import random_step

    return scan_rate(*random_step(env, num_envs), env_params)


def jaxmarl_can(env: Any, env_params: Any) -> bool:
    """Whether the rival of ``smax`` has the same options and numbers."""
    import jax
    import numpy as np

    from marljax.envs.smax.units import PUBLISHED

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
    from marljax.baselines.harness.tables import describe_versions, markdown_table

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
    from marljax.baselines.harness.tables import markdown_table

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
    from marljax.baselines.harness.tables import markdown_table

    names = [name for name in profiles[0][1] if name != "peak_mib"]
    rows = [[" ".join(duel.words), f"{duel.num_envs:,}", *(f"{row[name]:.2f}" for name in names)] for duel, row in profiles]
    about = (
        "Milliseconds of a step of all environments, and of its parts run by themselves: in one program they share some work. "
        "A step resets the environments only if the episode of one of them has ended."
    )
    return ["## Where the time goes", about, markdown_table(["", "environments", *names], rows)]


def growth_section(name: str, rows: Sequence[Row]) -> list[str]:
    """How speed changes with the number of agents and environments."""
    from marljax.baselines.harness.tables import markdown_table

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
