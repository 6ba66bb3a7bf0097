"""How fast an environment and its training are on this machine, against a rival in the same run.

    python baselines/speed.py env=merge
    python baselines/speed.py env=merge env.density=easy algo=ippo

Writes ``baselines/results/speed_<env>.md``. Every row is measured in a process of its own, from a cold start and without the
compilation cache, so that compile times and peak memory are its own. Rates are medians over repetitions after a warm-up, with
every output computed: observations, masks, rewards, metrics, global state and automatic restarts.
"""

import functools
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
from typing import Any

RESULTS = Path(__file__).parent / "results"
NUM_ENVS = (1, 4, 16, 64, 256, 1024, 4096)
TRAINING_ENVS = (16, 64, 256, 1024)
REPETITIONS = 5
RANDOM_STEPS = 100  # per environment and repetition
RIVAL_SECONDS = 10.0


def main(words: Sequence[str]) -> None:
    """Measures, prints and writes the report."""
    from rich.console import Console

    from marljax import settings
    from marljax.baselines.tables import write_report
    from marljax.errors import UserError

    console = Console()
    algo = next((word.removeprefix("algo=") for word in words if word.startswith("algo=")), "mappo")
    words = [word for word in words if not word.startswith("algo=")]
    try:
        chosen = settings.compose(algo, words)
    except UserError as error:
        sys.exit(f"error: {error}")
    rival = RIVALS.get(chosen.env_name)
    console.print(f"{chosen.env_name}: {os.cpu_count()} CPU cores; each row in a process of its own")
    measured: dict[str, list[dict[str, Any]]] = {"start": [], "random": [], "rival": [], "training": []}
    jobs = [("start", 0), *(("random", count) for count in NUM_ENVS), *(("training", count) for count in TRAINING_ENVS)]
    if rival is not None:
        # The rival is measured before, between and after, so that a change of the machine's load shows.
        jobs = [("rival", 0), *jobs[:5], ("rival", 0), *jobs[5:], ("rival", 0)]
    for kind, count in jobs:
        row = measure_apart(kind, count, algo, words)
        measured[kind].append(row)
        console.print(f"{kind:>9} {count or '':>5}  " + "  ".join(f"{name} {value:,.4g}" for name, value in row.items()))
    text = report(chosen, measured, words, algo)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"speed_{chosen.env_name.replace('/', '-')}.md"
    write_report(path, text)
    console.print(text)
    console.print(f"written: {path}")


def measure_apart(kind: str, count: int, algo: str, words: Sequence[str]) -> dict[str, float]:
    """One measurement in a fresh process; its figures and peak memory."""
    command = [sys.executable, __file__, "--measure", kind, str(count), algo, *words]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"the measurement '{kind} {count}' failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind: str, count: int, algo: str, words: Sequence[str]) -> dict[str, float]:
    """Figures of one kind; runs inside the process that ``measure_apart`` starts."""
    begun = time.perf_counter()
    import marljax  # noqa: F401 - its import is what is timed

    import_time = time.perf_counter() - begun
    from marljax import settings

    chosen = settings.compose(algo, words)
    if kind == "start":
        figures = {"import_s": import_time}
    elif kind == "random":
        figures = random_rate(chosen.env, chosen.env_params, count)
    elif kind == "training":
        figures = training_rate(chosen, count)
    else:
        figures = {"env_steps_per_s": RIVALS[chosen.env_name](chosen.env, chosen.env_params)}
    return figures | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def random_rate(env: Any, env_params: Any, num_envs: int) -> dict[str, float]:
    """Environment steps per second under uniform available actions, all outputs reduced to sums so that none is
    optimised away."""
    import jax
    import jax.numpy as jnp

    from marljax.vector import vectorize

    vec = vectorize(env, num_envs)

    def step(env_params: Any, carried: tuple, key: jax.Array) -> tuple:
        state, timestep, total = carried
        key_action, key_step = jax.random.split(key)
        action = jax.random.categorical(key_action, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
        state, timestep = vec.step(key_step, state, action, env_params)
        outputs = (timestep, vec.global_state(state, env_params))
        total = total + sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(outputs))
        return (state, timestep, total), None

    @jax.jit
    def run(key: jax.Array, state: Any, timestep: Any, env_params: Any) -> tuple:
        # env_params are an input, as in training: closed over, they would be folded into the program.
        body = functools.partial(step, env_params)
        return jax.lax.scan(body, (state, timestep, 0.0), jax.random.split(key, RANDOM_STEPS))[0]

    begun = time.perf_counter()
    state, timestep = jax.jit(vec.reset)(jax.random.key(0), env_params)
    compiled = run.lower(jax.random.key(0), state, timestep, env_params).compile()
    compile_time = time.perf_counter() - begun
    state, timestep, _ = jax.block_until_ready(compiled(jax.random.key(0), state, timestep, env_params))
    times = []
    for repetition in range(REPETITIONS):
        begun = time.perf_counter()
        state, timestep, _ = jax.block_until_ready(compiled(jax.random.key(repetition), state, timestep, env_params))
        times.append(time.perf_counter() - begun)
    return {"env_steps_per_s": num_envs * RANDOM_STEPS / statistics.median(times), "compile_s": compile_time}


def training_rate(chosen: Any, num_envs: int) -> dict[str, float]:
    """Environment steps per second of whole updates, the compile time, and the time from there to the end of the first update."""
    import jax

    from marljax import parallel
    from marljax.train import Trainer

    config = chosen.config.replace(num_envs=num_envs, total_steps=num_envs * chosen.config.rollout_length * (REPETITIONS + 2))
    trainer = Trainer(chosen.algorithm, chosen.env, config, parallel.make_mesh())
    begun = time.perf_counter()
    members = trainer.init(jax.random.split(jax.random.key(0), 1), chosen.env_params)
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


def highway_env_rate(env: Any, env_params: Any) -> float:
    """Environment steps per second of highway-env on the same road, clock and spawns; random actions, one process."""
    if importlib.util.find_spec("highway_env") is None:
        sys.exit('error: the rival, highway-env, is not installed; pip install -e ".[dev]"')
    import numpy as np

    from marljax.baselines.highway_merge import random_episode

    rng = np.random.default_rng(0)
    random_episode(env.physics, env_params, rng)
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < RIVAL_SECONDS:
        steps += random_episode(env.physics, env_params, rng)
    return steps / (time.perf_counter() - begun)


RIVALS: dict[str, Callable[[Any, Any], float]] = {"merge": highway_env_rate}


def report(chosen: Any, measured: dict[str, list[dict[str, Any]]], words: Sequence[str], algo: str) -> str:
    """The Markdown page."""
    from marljax.baselines.tables import describe_versions, markdown_table

    rival = statistics.median(row["env_steps_per_s"] for row in measured["rival"]) if measured["rival"] else None
    random_rows = [
        [
            f"{count:,}",
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['env_steps_per_s'] / rival:,.0f}×" if rival else "–",
            f"{row['compile_s']:.1f}",
            f"{row['peak_mib']:,.0f}",
        ]
        for count, row in zip(NUM_ENVS, measured["random"], strict=True)
    ]
    training_rows = [
        [f"{count:,}", *(f"{row[name]:,.{places}f}" for name, places in _TRAINING_COLUMNS.items())]
        for count, row in zip(TRAINING_ENVS, measured["training"], strict=True)
    ]
    rates = [row["env_steps_per_s"] for row in measured["rival"]]
    lines = [
        f"# Speed of `{chosen.env_name}`",
        f"`python baselines/speed.py {' '.join(words)}` on {os.cpu_count()} CPU cores; {describe_versions()}.",
        f"`import marljax` takes {measured['start'][0]['import_s']:.2f} s.",
        "## Random actions",
        "All outputs computed: observation, mask, reward, metrics, global state, automatic restart.",
        *(
            [f"The rival makes {min(rates):,.0f}–{max(rates):,.0f} env-steps/s, measured three times in this run."]
            if rates
            else []
        ),
        markdown_table(["environments", "env-steps/s", "× rival", "compile s", "peak MiB"], random_rows),
        f"## Training, `{algo}`",
        f"rollout_length {chosen.config.rollout_length}, hidden {list(chosen.config.hidden)}, {chosen.config.num_epochs} epochs.",
        markdown_table(["environments", "env-steps/s", "compile s", "set-up and first update s", "peak MiB"], training_rows),
    ]
    return "\n\n".join(lines) + "\n"


_TRAINING_COLUMNS = {"env_steps_per_s": 0, "compile_s": 1, "first_update_s": 1, "peak_mib": 0}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        kind, count, algo, *words = sys.argv[2:]
        print(json.dumps(measure(kind, int(count), algo, words)))
    else:
        main(sys.argv[1:])
