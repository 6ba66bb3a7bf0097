"""What many seeds in one program, and many devices, are worth on this machine; ``python baselines/speed.py seeds``.

Every row is measured in a process of its own, from a cold start and, unless it says so, without the compilation cache.
"""

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ALGO, WORDS = "mappo", ("env=merge", "algo.num_envs=16")
SEEDS = (1, 2, 4, 8, 16, 32, 64)
DEVICES = ((8, 1, 1), (8, 2, 1), (8, 4, 1), (8, 8, 1), (1, 1, 1), (1, 1, 2), (1, 1, 4))  # seeds, mesh.seed, mesh.data
RACERS, RACE_STEPS = 16, 65_536  # seeds of the race between one program and as many processes
SECONDS = 10.0  # of a measured rate, after the first update
# What sweeps are predicted to take: algorithm, words, members.
SWEEPS = (
    ("mappo", ("env=merge", "algo.num_envs=256"), 8),
    ("ippo", ("env=swarm", "algo.num_envs=1024"), 4),
    ("qmix", ("env=smax", "env.scenario=2s3z"), 8),
    ("mappo", ("env=smax", "env.scenario=3m", "algo.num_envs=256"), 32),
)
Row = dict[str, float]


def main() -> None:
    """Measures, prints and writes ``baselines/results/speed_seeds.md``."""
    from rich.console import Console

    from marljax.baselines.harness.tables import write_report

    console = Console()

    def take(kind: str, *given: Any, devices: int = 1) -> Row:
        row = measure_apart(kind, given, devices)
        figures = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        console.print(f"{kind:>8}  {figures}  {given}", highlight=False)
        return row

    seeds = [take("rate", count, 1, 1) for count in SEEDS]
    devices = [take("rate", *given, devices=given[1] * given[2]) for given in DEVICES]
    sweeps = [take("memory", *given) for given in SWEEPS]
    racers = race(console.print)
    text = page(seeds, devices, sweeps, racers)
    write_report(RESULTS / "speed_seeds.md", text)
    console.print(text)


def measure_apart(kind: str, given: Sequence[Any], devices: int) -> Row:
    """One measurement in a fresh process with so many devices."""
    command = [sys.executable, __file__, kind, json.dumps(given)]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    if devices > 1:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
    if done.returncode:
        sys.exit(f"the measurement '{kind} {given}' failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rate(seeds: int, mesh_seed: int, mesh_data: int) -> Row:
    """Environment steps per second of all seeds together, and the seconds until the first update was done."""
    import jax

    from marljax.config import compose
    from marljax.training import runner

    run = compose.compose(ALGO, [*WORDS, f"seeds={seeds}", f"mesh.seed={mesh_seed}", f"mesh.data={mesh_data}"])
    begun = time.perf_counter()
    trainer = runner.make_trainer(run)
    members, _ = jax.block_until_ready(trainer.run(trainer.init(*runner.member_inputs(run)), 1))
    first, begun, updates, seconds = time.perf_counter() - begun, time.perf_counter(), 0, 0.0
    while seconds < SECONDS:
        members, _ = jax.block_until_ready(trainer.run(members, 4))
        updates, seconds = updates + 4, time.perf_counter() - begun
    rate = updates * seeds * trainer.steps_per_update / seconds
    return {"env_steps_per_s": rate, "first_update_s": first, "peak_mib": resident("VmHWM") / 2**20}


def memory(algo: str, words: Sequence[str], members: int) -> Row:
    """What a batch of members was predicted to take, and how much more than before the process held at most."""
    import jax

    from marljax.cli import batches
    from marljax.config import compose
    from marljax.training import runner

    run = compose.compose(algo, [*words, f"seeds={members}"])
    trainer = runner.make_trainer(run)
    predicted = batches.prediction(trainer, run)(members)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak of tracing and compiling so far does not count
    jax.block_until_ready(trainer.run(trainer.init(*runner.member_inputs(run)), 2))
    peak = resident("VmHWM")
    return {"predicted_mib": predicted / 2**20, "grown_mib": (peak - before) / 2**20, "peak_mib": peak / 2**20}


def resident(which: str) -> int:
    """Bytes of memory that the process holds (``VmRSS``), or has held at most (``VmHWM``)."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return 1024 * int(found[1])


def race(say: Callable[[str], None]) -> Row:
    """Seconds of one command with many seeds, and of as many commands with one each, with their compilation and without."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        shared = [*WORDS, f"algo.total_steps={RACE_STEPS}", "render=false", "eval.every=0", "eval.final_episodes=32"]
        shared += [f"runs={folder}/runs", f"chunk={RACE_STEPS}"]
        seconds["one program"] = command_time([*shared, f"seeds={RACERS}"], {"JAX_ENABLE_COMPILATION_CACHE": "false"})
        say(f"{seconds}")
        apart = {"processes": {"JAX_ENABLE_COMPILATION_CACHE": "false"}, "processes, cached": {"XDG_CACHE_HOME": folder}}
        for name, environment in apart.items():
            seconds[name] = sum(command_time([*shared, f"seed={seed}"], environment) for seed in range(RACERS))
            say(f"{seconds}")
    return seconds


def command_time(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Wall-clock seconds of a training command, from its start to its end."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "marljax.algos." + ALGO, *words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=os.environ | environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - begun


def page(seeds: Sequence[Row], devices: Sequence[Row], sweeps: Sequence[Row], racers: Mapping[str, float]) -> str:
    """``baselines/results/speed_seeds.md``."""
    from marljax.baselines.harness.tables import describe_versions, markdown_table

    words = " ".join(WORDS)
    alone = seeds[0]["env_steps_per_s"]
    best = max(range(len(SEEDS)), key=lambda index: seeds[index]["env_steps_per_s"])
    rows = [
        [f"{count}", f"{row['env_steps_per_s']:,.0f}", f"{row['env_steps_per_s'] / alone:.2f}×", f"{row['first_update_s']:.1f}",
         f"{row['peak_mib']:,.0f}"]
        for count, row in zip(SEEDS, seeds, strict=True)
    ]  # fmt: skip
    spread = [
        [f"{count}", f"{seed} × {data}", f"{row['env_steps_per_s']:,.0f}", f"{row['first_update_s']:.1f}"]
        for (count, seed, data), row in zip(DEVICES, devices, strict=True)
    ]
    taken = [
        [f"`{algo} {' '.join(given)}`", f"{members}", f"{row['predicted_mib']:,.0f}", f"{row['grown_mib']:,.0f}",
         f"{row['predicted_mib'] / row['grown_mib'] - 1:+.0%}", f"{row['peak_mib']:,.0f}"]
        for (algo, given, members), row in zip(SWEEPS, sweeps, strict=True)
    ]  # fmt: skip
    one = racers["one program"]
    compared = [[name, f"{seconds:,.0f}", f"{seconds / one:.2f}×"] for name, seconds in racers.items()]
    return (
        "\n\n".join(
            [
                "# Many seeds, many devices",
                f"`python baselines/speed.py seeds` on {os.cpu_count()} CPU cores; {describe_versions()}.",
                "## Seeds in one program",
                f"`{ALGO} {words}`; most steps per second with {SEEDS[best]} seeds.",
                markdown_table(["seeds", "env-steps/s, all together", "× one seed", "first update s", "peak MiB"], rows),
                "## One program or processes in turn",
                f"{RACERS} seeds of {RACE_STEPS:,} steps each, wall-clock of whole commands, imports and compilation included. "
                "*Cached*: only the first process compiles.",
                markdown_table(["", "s", "× one program"], compared),
                "## Devices",
                "Virtual devices (`JAX_NUM_CPU_DEVICES`) share the cores of one CPU, which one program alone does not keep busy.",
                markdown_table(["seeds", "mesh, seed × data", "env-steps/s, all together", "first update s"], spread),
                "## Memory",
                "*Predicted*: what a line through the compiler's figures of one and two members says of all. *Grown*: how much "
                "more the process held at most while it initialised, compiled and ran two updates. *Peak*: all "
                "that it held then.",
                markdown_table(["run", "members", "predicted MiB", "grown MiB", "off by", "peak MiB"], taken),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    measures: dict[str, Callable[..., Row]] = {"rate": rate, "memory": memory}
    print(json.dumps(measures[sys.argv[1]](*json.loads(sys.argv[2]))))
