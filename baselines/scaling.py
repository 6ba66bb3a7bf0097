"""Gains of many seeds in one program, and of many devices, on this machine; ``python baselines/speed.py seeds``.

Every row is measured in a process of its own, from a cold start and, except where stated, without the compilation cache.
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

import jax
from rich.console import Console

from marljax.baselines.harness.measure import COLD, Row, run_in_process
from marljax.cli import batches
from marljax.config import compose
from marljax.training import runner

ALGO, OVERRIDES = "mappo", ("env=merge", "algo.num_envs=16")
SEEDS = (1, 2, 4, 8, 16, 32, 64)
DEVICES = ((8, 1, 1), (8, 2, 1), (8, 4, 1), (8, 8, 1), (1, 1, 1), (1, 1, 2), (1, 1, 4))  # seeds, mesh.seed, mesh.data
RACE_SEEDS, RACE_STEPS = 16, 65_536  # of the race between one program and as many processes
SECONDS = 10.0  # of a measured rate, after the first update
# Sweeps whose memory is predicted: algorithm, overrides, replicas.
SWEEPS = (
    ("mappo", ("env=merge", "algo.num_envs=256"), 8),
    ("ippo", ("env=swarm", "algo.num_envs=1024"), 4),
    ("qmix", ("env=smax", "env.scenario=2s3z"), 8),
    ("mappo", ("env=smax", "env.scenario=3m", "algo.num_envs=256"), 32),
)


def main() -> None:
    """Measures, prints and writes ``baselines/results/speed_seeds.md``."""
    # imports of the page would be part of the peak memory that a process measures
    from marljax.baselines.harness.result_cache import RESULTS
    from marljax.baselines.harness.tables import write_report

    console = Console()

    def run_measurement(kind: str, *given: Any, devices: int = 1) -> Row:
        environment = {"JAX_NUM_CPU_DEVICES": str(devices)} if devices > 1 else {}
        row = run_in_process(__file__, kind, json.dumps(given), environment=environment)
        metrics = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        console.print(f"{kind:>8}  {metrics}  {given}", highlight=False)
        return row

    seeds = [run_measurement("rate", count, 1, 1) for count in SEEDS]
    devices = [run_measurement("rate", *given, devices=given[1] * given[2]) for given in DEVICES]
    sweeps = [run_measurement("memory", *given) for given in SWEEPS]
    text = page(seeds, devices, sweeps, race(console.print))
    write_report(RESULTS / "speed_seeds.md", text)
    console.print(text)


def rate(seeds: int, mesh_seed: int, mesh_data: int) -> Row:
    """Environment steps per second of all seeds together, and the seconds until the end of the first update."""
    run = compose.compose(ALGO, [*OVERRIDES, f"seeds={seeds}", f"mesh.seed={mesh_seed}", f"mesh.data={mesh_data}"])
    begun = time.perf_counter()
    trainer = runner.make_trainer(run)
    replicas, _ = jax.block_until_ready(trainer.run(trainer.init(*runner.replica_inputs(run)), 1))
    first, begun, updates, seconds = time.perf_counter() - begun, time.perf_counter(), 0, 0.0
    while seconds < SECONDS:
        replicas, _ = jax.block_until_ready(trainer.run(replicas, 4))
        updates, seconds = updates + 4, time.perf_counter() - begun
    rate = updates * seeds * trainer.steps_per_update / seconds
    return {"env_steps_per_s": rate, "first_update_s": first, "peak_mib": resident("VmHWM") / 2**20}


def memory(algo: str, overrides: Sequence[str], replicas: int) -> Row:
    """The predicted memory of a batch of replicas, and by how much the process grew at most."""
    run = compose.compose(algo, [*overrides, f"seeds={replicas}"])
    trainer = runner.make_trainer(run)
    predicted = batches.predict_memory(trainer, run)(replicas)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak: tracing and compiling are not counted
    jax.block_until_ready(trainer.run(trainer.init(*runner.replica_inputs(run)), 2))
    peak = resident("VmHWM")
    return {"predicted_mib": predicted / 2**20, "grown_mib": (peak - before) / 2**20, "peak_mib": peak / 2**20}


def resident(field: str) -> int:
    """Bytes of memory that the process holds (``VmRSS``), or has held at most (``VmHWM``)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return 1024 * int(found[1])


def race(log: Callable[[str], None]) -> Row:
    """Seconds of one command with many seeds, and of as many commands with one each, without and with a compilation cache."""

    def command_time(overrides: Sequence[str], environment: Mapping[str, str]) -> float:
        begun = time.perf_counter()
        command = [sys.executable, "-m", f"marljax.algos.{ALGO}", *overrides]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=os.environ | environment)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return time.perf_counter() - begun

    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        shared = [*OVERRIDES, f"algo.total_steps={RACE_STEPS}", "render=false", "eval.every=0", "eval.final_episodes=32"]
        shared += [f"runs={folder}/runs", f"chunk={RACE_STEPS}"]
        seconds["one program"] = command_time([*shared, f"seeds={RACE_SEEDS}"], COLD)
        log(f"{seconds}")
        for name, environment in {"processes": COLD, "processes, cached": {"XDG_CACHE_HOME": folder}}.items():
            seconds[name] = sum(command_time([*shared, f"seed={seed}"], environment) for seed in range(RACE_SEEDS))
            log(f"{seconds}")
    return seconds


def page(seeds: Sequence[Row], devices: Sequence[Row], sweeps: Sequence[Row], racers: Mapping[str, float]) -> str:
    """``baselines/results/speed_seeds.md``."""
    from marljax.baselines.harness.tables import describe_versions
    from marljax.reporting.tables import markdown_table

    single = seeds[0]["env_steps_per_s"]
    best, _ = max(zip(SEEDS, seeds, strict=True), key=lambda pair: pair[1]["env_steps_per_s"])
    seed_rows = []
    for count, row in zip(SEEDS, seeds, strict=True):
        rates = [f"{row['env_steps_per_s']:,.0f}", f"{row['env_steps_per_s'] / single:.2f}×"]
        seed_rows.append([f"{count}", *rates, f"{row['first_update_s']:.1f}", f"{row['peak_mib']:,.0f}"])
    device_rows = [
        [f"{count}", f"{seed} × {data}", f"{row['env_steps_per_s']:,.0f}", f"{row['first_update_s']:.1f}"]
        for (count, seed, data), row in zip(DEVICES, devices, strict=True)
    ]
    memory_rows = []
    for (algo, overrides, replicas), row in zip(SWEEPS, sweeps, strict=True):
        predicted, grown, peak = row["predicted_mib"], row["grown_mib"], row["peak_mib"]
        sizes = [f"{predicted:,.0f}", f"{grown:,.0f}", f"{predicted / grown - 1:+.0%}", f"{peak:,.0f}"]
        memory_rows.append([f"`{algo} {' '.join(overrides)}`", f"{replicas}", *sizes])
    race_rows = [[name, f"{seconds:,.0f}", f"{seconds / racers['one program']:.2f}×"] for name, seconds in racers.items()]
    paragraphs = [
        "# Many seeds, many devices",
        f"`python baselines/speed.py seeds` on {os.cpu_count()} CPU cores; {describe_versions()}.",
        "## Seeds in one program",
        f"`{ALGO} {' '.join(OVERRIDES)}`; most steps per second with {best} seeds.",
        markdown_table(["seeds", "env-steps/s, all together", "× one seed", "first update s", "peak MiB"], seed_rows),
        "## One program or processes in turn",
        f"{RACE_SEEDS} seeds of {RACE_STEPS:,} steps each, wall-clock of whole commands, imports and compilation included. "
        "*Cached*: only the first process compiles.",
        markdown_table(["", "s", "× one program"], race_rows),
        "## Devices",
        "Virtual devices (`JAX_NUM_CPU_DEVICES`) share the cores of one CPU, which one program alone does not saturate.",
        markdown_table(["seeds", "mesh, seed × data", "env-steps/s, all together", "first update s"], device_rows),
        "## Memory",
        "*Predicted*: extrapolated linearly from the compiler's estimates for one and two replicas. *Grown*: growth of the "
        "process at most while it initialised, compiled and ran two updates. *Peak*: all that it held then.",
        markdown_table(["run", "replicas", "predicted MiB", "grown MiB", "error", "peak MiB"], memory_rows),
    ]
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    measures: dict[str, Callable[..., Row]] = {"rate": rate, "memory": memory}
    print(json.dumps(measures[sys.argv[1]](*json.loads(sys.argv[2]))))
