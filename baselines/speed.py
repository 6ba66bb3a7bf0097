"""Speed of an environment and its training on this machine, compared with another simulator in the same run.

    python baselines/speed.py env=merge
    python baselines/speed.py env=merge env.density=easy algo=ippo
    python baselines/speed.py env=smax
    python baselines/speed.py env=ride_dispatch
    python baselines/speed.py env=swarm
    python baselines/speed.py env=collective
    python baselines/speed.py env=pathfinding        # with POGEMA_PYTHON=<a Python with POGEMA>; taskset -c 0: on one core
    python baselines/speed.py seeds                  # many seeds in one program, many devices, and their memory

Writes ``baselines/results/speed_<env>.md``, or with more overrides a page of their own. Every row is measured in a process of its
own, from a cold start and without the compilation cache, so that compile times and peak memory are its own. Rates are medians
over repetitions after a warm-up, with every output computed: observations, masks, rewards, metrics, global state and automatic
resets. Steps in which an environment only resets are not counted, except in training.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from marljax.baselines import ride_dispatch_speed, scaling
from marljax.baselines.harness import measure
from marljax.baselines.harness.measure import BASELINES, Row, Sizes, run_in_process
from marljax.baselines.harness.result_cache import RESULTS, file_name
from marljax.baselines.harness.tables import describe_versions, write_report
from marljax.config import compose
from marljax.envs.smax.units import PUBLISHED
from marljax.errors import UserError
from marljax.reporting.tables import markdown_table

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ROUNDS = 3  # of a comparison, ours and the baseline in turn
SIZES = {
    "ride_dispatch": Sizes((1, 2, 4, 8, 16, 32), (4, 8, 16), 4),
    "pathfinding": Sizes((1, 16, 128, 1024), (4, 16, 64), 128),
}
IMPORT_TIME = "import time; begun = time.perf_counter(); import marljax; print(time.perf_counter() - begun)"


class Case(NamedTuple):
    """Overrides and a number of environments to measure at."""

    overrides: tuple[str, ...]
    num_envs: int

    @property
    def cells(self) -> list[str]:
        return [" ".join(self.overrides), f"{self.num_envs:,}"]


# Where the baseline runs in batches, too: it is measured at the same number of environments.
HEAD_TO_HEAD = {
    "smax": (
        Case(("env.scenario=3m",), 1024),
        Case(("env.scenario=2s3z",), 1024),
        Case(("env.scenario=smacv2_5_units",), 1024),
        Case(("env.scenario=27m_vs_30m",), 64),
    )
}
# How an environment's speed changes with its size.
GROWTH = {
    "swarm": (
        Case(("env.preset=obstacles", "env.drones=1", "env.neighbours=0"), 2048),
        *(
            Case(("env.preset=obstacles", f"env.drones={drones}"), num_envs)
            for drones, num_envs in ((2, 1024), (4, 512), (8, 256), (16, 128), (32, 64), (64, 16), (128, 4))
        ),
        *(Case(("env.preset=obstacles",), num_envs) for num_envs in (1, 16, 64, 1024, 4096)),
        Case(("env.preset=open",), 256),
        Case(("env.preset=open", "env.dynamics=point3d"), 256),
        Case(("env.preset=coverage",), 256),
    ),
    "collective": (
        *(Case((f"env.agents={agents}",), num_envs) for agents, num_envs in ((100, 64), (1000, 8), (10_000, 1))),
        *(Case((f"env.agents={agents}", "env.neighbours=sorted"), num_envs) for agents, num_envs in ((1000, 8), (10_000, 1))),
        Case(("env.task=kuramoto", "env.agents=1000"), 8),
        Case(("env.task=aggregation", "env.agents=1000"), 8),
    ),
    "pathfinding": (
        *(Case((f"env.guidance={guidance}",), 128) for guidance in ("none", "next", "cost", "directions", "path")),
        *(Case(("env.maps=warehouse", f"env.agents={agents}"), num_envs) for agents, num_envs in ((8, 512), (64, 64), (192, 16))),
        Case(("env.task=together",), 128),
        *(Case((f"env.collision={collision}",), 128) for collision in ("priority", "pibt")),
    ),
}


def main(arguments: Sequence[str]) -> None:
    """Measures, prints and writes the report."""
    if {"-h", "--help"} & set(arguments):
        return print((__doc__ or "").strip())
    if "seeds" in arguments:
        return scaling.main()
    console = Console()
    algo = next((word.removeprefix("algo=") for word in arguments if word.startswith("algo=")), "")
    algo = algo or ("ospo" if "env=ride_dispatch" in arguments else "mappo")
    overrides = [word for word in arguments if not word.startswith("algo=")]
    try:
        run = compose.compose(algo, overrides)
    except UserError as error:
        sys.exit(f"error: {error}")
    console.print(f"{run.env_name}: {CORES} CPU core{'s' * (CORES > 1)}; each row in a process of its own")

    def run_measurement(kind: str, count: int, more: Sequence[str] = ()) -> Row:
        row = run_in_process(measure.__file__, kind, str(count), algo, *overrides, *more)
        metrics = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        console.print(f"{kind:>9} {count or '':>5}  {metrics}  {' '.join(more)}")
        return row

    as_is = not any(word.startswith("env.") for word in overrides)
    sizes = SIZES.get(run.env_name, Sizes())
    cases: Sequence[Case] = HEAD_TO_HEAD.get(run.env_name, ())
    if cases and not as_is:
        cases = (Case((), sizes.parts),) if jaxmarl_supports(run.env, run.env_params) else ()
    sections = head_to_head_section(cases, run_measurement)
    parts = [(case, run_measurement("parts", case.num_envs, case.overrides)) for case in cases or (Case((), sizes.parts),)]
    measured: dict[str, list[Row]] = {"random": [], "baseline": [], "training": []}
    jobs = [*(("random", count) for count in sizes.random), *(("training", count) for count in sizes.training)]
    if run.env_name in BASELINES.keys() - HEAD_TO_HEAD.keys():
        # before, between and after, so that changes of the machine's load show
        jobs = [("baseline", 0), *jobs[:4], ("baseline", 0), *jobs[4:], ("baseline", 0)]
    for kind, count in jobs:
        measured[kind].append(run_measurement(kind, count))
    sections += random_section(sizes, measured["random"], measured["baseline"])
    sections += parts_section(parts) + training_section(run, algo, sizes, measured["training"])
    if run.env_name in GROWTH and as_is:
        sections += growth_section(GROWTH[run.env_name], run_measurement)
    if run.env_name == "ride_dispatch":
        sections += ride_dispatch_speed.sections()

    import_time = float(subprocess.run([sys.executable, "-c", IMPORT_TIME], capture_output=True, text=True, check=True).stdout)
    command = " ".join(["python baselines/speed.py", *arguments])
    head = [
        f"# Speed of `{run.env_name}`",
        f"`{command}` on {CORES} CPU core{'s' * (CORES > 1)}; {describe_versions()}.",
        f"`import marljax` takes {import_time:.2f} s.",
    ]
    text = "\n\n".join([*head, *sections]) + "\n"
    variant = [word for word in arguments if not word.startswith("env=")]
    path = RESULTS / f"speed_{file_name('-'.join([run.env_name, *variant]))}.md"
    write_report(path, text)
    console.print(text)
    console.print(f"written: {path}")


def jaxmarl_supports(env: Any, env_params: Any) -> bool:
    """Whether JaxMARL's SMAX has the same options and parameters."""
    unchanged = jax.tree.map(np.array_equal, env_params, env.default_params)
    return (
        env.mode == "scripted" and env.action_type == "discrete" and env.scenario in PUBLISHED and all(jax.tree.leaves(unchanged))
    )


def head_to_head_section(cases: Sequence[Case], run_measurement: Callable[[str, int, Sequence[str]], Row]) -> list[str]:
    """Ours and the baseline, medians of the rounds; nothing without cases."""
    rows = []
    for case in cases:
        # in turn, so that a change of the machine's load affects both
        kinds = ("random", "baseline")
        rounds = [[run_measurement(kind, case.num_envs, case.overrides) for kind in kinds] for _ in range(ROUNDS)]
        ours, theirs = zip(*rounds, strict=True)
        rate, their_rate, compiled, their_compiled = (
            statistics.median(row[name] for row in side) for name in ("env_steps_per_s", "compile_s") for side in (ours, theirs)
        )
        ratios = [mine["env_steps_per_s"] / other["env_steps_per_s"] for mine, other in zip(ours, theirs, strict=True)]
        ratio = f"{statistics.median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})"
        rates = [f"{rate:,.0f}", f"{their_rate:,.0f}", ratio]
        rows.append([*case.cells, *rates, f"{compiled:.1f}", f"{their_compiled:.1f}", f"{compiled / their_compiled:.2f}×"])
    header = ["", "environments", "env-steps/s", "baseline's", "ratio (range)", "compile s", "baseline's compile s", "ratio"]
    about = (
        f"Random actions, all outputs computed on both sides; ours and the baseline in turn, medians of {ROUNDS} rounds. "
        "Of ours, the one step in an episode that only resets it is not counted."
    )
    return ["## Compared with the baseline", about, markdown_table(header, rows)] if rows else []


def random_section(sizes: Sizes, random: Sequence[Row], baseline: Sequence[Row]) -> list[str]:
    """Rates under random actions, and their ratio to the baseline's where it was measured."""
    rates = [row["env_steps_per_s"] for row in baseline]
    rows = [
        [
            f"{count:,}",
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['env_steps_per_s'] * row['agents']:,.0f}",
            *([f"{row['env_steps_per_s'] / statistics.median(rates):,.0f}×"] if rates else []),
            f"{row['compile_s']:.1f}",
            f"{row['peak_mib']:,.0f}",
        ]
        for count, row in zip(sizes.random, random, strict=True)
    ]
    ratio = ["× baseline"] if rates else []
    lines = ["## Random actions", "All outputs computed: observation, mask, reward, metrics, global state, automatic reset."]
    if rates:
        lines.append(f"The baseline runs {min(rates):,.0f}–{max(rates):,.0f} env-steps/s, measured three times in this run.")
    header = ["environments", "env-steps/s", "agent-steps/s", *ratio, "compile s", "peak MiB"]
    return [*lines, markdown_table(header, rows)]


def parts_section(parts: Sequence[tuple[Case, Row]]) -> list[str]:
    """The time of each part of a step."""
    names = [name for name in parts[0][1] if name != "peak_mib"]
    rows = [[*case.cells, *(f"{row[name]:.2f}" for name in names)] for case, row in parts]
    about = (
        "Milliseconds of a step of all environments, and of its parts on their own: in one program they share some work. "
        "A step resets the environments only if the episode of one of them has ended."
    )
    return ["## Where the time goes", about, markdown_table(["", "environments", *names], rows)]


def training_section(run: Any, algo: str, sizes: Sizes, training: Sequence[Row]) -> list[str]:
    """Rates of whole updates."""
    places = {"env_steps_per_s": 0, "compile_s": 1, "first_update_s": 1, "peak_mib": 0}
    rows = [
        [f"{count:,}", *(f"{row[name]:,.{digits}f}" for name, digits in places.items())]
        for count, row in zip(sizes.training, training, strict=True)
    ]
    config = run.config
    return [
        f"## Training, `{algo}`",
        f"rollout_length {config.rollout_length}, hidden {list(config.hidden)}, {config.num_epochs} epochs.",
        markdown_table(["environments", "env-steps/s", "compile s", "set-up and first update s", "peak MiB"], rows),
    ]


def growth_section(cases: Sequence[Case], run_measurement: Callable[[str, int, Sequence[str]], Row]) -> list[str]:
    """How speed changes with the number of agents and environments."""
    measured = [run_measurement("random", case.num_envs, case.overrides) for case in cases]
    rows = []
    for case, row in zip(cases, measured, strict=True):
        agent_steps = row["env_steps_per_s"] * row["agents"]
        overrides, num_envs = case.cells
        cells = [overrides, f"{row['agents']:,.0f}", num_envs, f"{row['env_steps_per_s']:,.0f}", f"{agent_steps:,.0f}"]
        rows.append([*cells, f"{row['compile_s']:.1f}", f"{row['peak_mib']:,.0f}"])
    header = ["", "agents", "environments", "env-steps/s", "agent-steps/s", "compile s", "peak MiB"]
    return ["## Growth", "Random actions, all outputs computed, as above.", markdown_table(header, rows)]


if __name__ == "__main__":
    main(sys.argv[1:])
