"""Timing of environments and trainings. As a command it takes one measurement in a process of its own and prints it as JSON.

Its imports are part of the peak memory that it measures, so it imports no more than it needs.
"""

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.config import compose
from marljax.core.vector import vectorize
from marljax.training import mesh
from marljax.training.evaluation import RandomPolicy
from marljax.training.trainer import Trainer

REPETITIONS = 5
RANDOM_STEPS = 100  # per environment and repetition
BASELINE_SECONDS = 10.0
POGEMA_PYTHON = "POGEMA_PYTHON"  # environment variable: the Python that runs POGEMA
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false"}

Row = dict[str, float]  # the metrics of one measurement


class Sizes(NamedTuple):
    """Numbers of environments that an environment is measured at."""

    random: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)
    training: tuple[int, ...] = (16, 64, 256, 1024)
    parts: int = 1024


def run_in_process(script: str, *arguments: str, environment: Mapping[str, str] = COLD) -> Any:
    """What a script prints last, as JSON, from a fresh process without the compilation cache."""
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, **COLD, **environment})
    if done.returncode:
        sys.exit(f"the measurement {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def random_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second under uniform available actions."""
    vec, policy = vectorize(env, num_envs), RandomPolicy(env)

    def step(env_params: Any, carried: tuple, key: jax.Array) -> tuple:
        state, timestep = carried
        key_action, key_step = jax.random.split(key)
        action, _ = policy(key_action, state, timestep, ())
        state, timestep = vec.step(key_step, state, action, env_params)
        return (vec.carried(state), timestep), vec.global_state(state, env_params), jnp.sum(~timestep.first)

    return scan_rate(vec.reset, step, env_params) | {"agents": env.num_agents}


def part_times(env: Any, env_params: Any, num_envs: int) -> Row:
    """Milliseconds that each part of a step of all environments takes on its own."""
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
    compiled = jax.jit(function).lower(*inputs).compile()
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(*inputs))
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def scan_rate(start: Callable, step: Callable, env_params: Any) -> Row:
    """Rate of ``step(env_params, carried, key) -> (carried, outputs, environments that moved)`` from ``start(key, env_params)``,
    and both programs' compile time. Environments that only reset in a step do not move."""

    @jax.jit
    def run(key: jax.Array, carried: Any, env_params: Any) -> Any:
        # env_params are an input, as in training: closed over, they would be folded into the program. Outputs are carried along,
        # so that every step has to compute them.
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


def training_rate(run: Any, num_envs: int) -> Row:
    """Environment steps per second of whole updates, the compile time, and the time from there to the end of the first update."""
    config = run.config.replace(num_envs=num_envs, total_steps=num_envs * run.config.rollout_length * (REPETITIONS + 2))
    trainer = Trainer(run.algorithm, run.training_env, config, mesh.make_mesh())
    begun = time.perf_counter()
    replicas = trainer.init(jax.random.split(jax.random.key(0), 1), run.training_params)
    replicas, _ = jax.block_until_ready(trainer.run(replicas, 1))
    first_update = time.perf_counter() - begun
    times = []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        replicas, _ = jax.block_until_ready(trainer.run(replicas, 1))
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times)
    rate = trainer.steps_per_update / seconds
    return {"env_steps_per_s": rate, "compile_s": first_update - seconds, "first_update_s": first_update}


def episode_rate(play: Callable[[], int]) -> Row:
    """Steps per second of a simulator whose ``play`` runs one episode and returns its steps, after a first one to warm up."""
    play()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < BASELINE_SECONDS:
        steps += play()
    return {"env_steps_per_s": steps / (time.perf_counter() - begun)}


def measure(kind: str, count: int, algo: str, overrides: Sequence[str]) -> Row:
    """Metrics of one kind, in a process of its own."""
    run = compose.compose(algo, overrides)
    given = run.env, run.env_params, count
    measures: dict[str, Callable[[], Row]] = {
        "random": lambda: random_rate(*given),
        "parts": lambda: part_times(*given),
        "training": lambda: training_rate(run, count),
        "baseline": lambda: BASELINES[run.env_name](*given),
    }
    return measures[kind]() | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def highway_env_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of highway-env on the same road, clock and spawns; random actions, one at a time."""
    del num_envs
    check_installed("highway-env")
    from marljax.baselines.rivals.highway_env import random_episode

    rng = np.random.default_rng(0)
    return episode_rate(lambda: random_episode(env.physics, env_params, rng))


def jaxmarl_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of JaxMARL's SMAX with the same units, spawns, observations and script."""
    from marljax.baselines.rivals.smax import random_step

    return scan_rate(*random_step(env, num_envs), env_params)


def ride_gym_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of ride-gym with the same fleet, patience and number of orders on a grid of streets."""
    del num_envs
    check_installed("ride-gym")
    from marljax.baselines.rivals.ride_gym import ride_gym, ride_gym_episode

    rng, simulator = np.random.default_rng(0), ride_gym(env, env_params)
    return episode_rate(lambda: ride_gym_episode(simulator, rng))


def pogema_rate(env: Any, env_params: Any, num_envs: int) -> Row:
    """Environment steps per second of POGEMA on the first of the maps, with as many agents and the same rules and views."""
    del num_envs
    python = os.environ.get(POGEMA_PYTHON)
    if not python:
        advice = f"python -m venv pogema && pogema/bin/pip install pogema==1.4.0, then {POGEMA_PYTHON}=pogema/bin/python"
        sys.exit(f"error: {POGEMA_PYTHON} is not set, and POGEMA needs a Python of its own: {advice}")
    if env.map_list[0].marked:
        sys.exit("error: POGEMA is measured on maps without marked starts and goals; choose env.maps=random")
    arguments = {
        "map": [[int(cell) for cell in row] for row in env.map_list[0].blocked],
        "num_agents": env.num_agents,
        "obs_radius": env.radius,
        "collision_system": env.collision,
        "on_target": {"lifelong": "restart", "together": "nothing", "once": "finish"}[env.task],
        "max_episode_steps": int(env_params.duration),
    }
    script = Path(__file__).parents[1] / "rivals" / "pogema_speed.py"
    command = [python, str(script), json.dumps(arguments), str(BASELINE_SECONDS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
        return {"env_steps_per_s": json.loads(done.stdout.splitlines()[-1])}
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        sys.exit(f"error: {POGEMA_PYTHON}={python} cannot run POGEMA: {reason}")


def check_installed(package: str) -> None:
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        sys.exit(f'error: {package} is not installed; pip install -e ".[dev]"')


BASELINES: dict[str, Callable[[Any, Any, int], Row]] = {
    "merge": highway_env_rate,
    "smax": jaxmarl_rate,
    "ride_dispatch": ride_gym_rate,
    "pathfinding": pogema_rate,
}


if __name__ == "__main__":
    kind, count, algo, *overrides = sys.argv[1:]
    print(json.dumps(measure(kind, int(count), algo, overrides)))
