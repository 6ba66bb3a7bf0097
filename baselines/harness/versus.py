"""Two loops that train the same at the same settings, side by side: what they reach over seeds, and how fast they are."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

import marljax
from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import Figures
from marljax.baselines.harness.tables import markdown_table
from marljax.core.environment import Environment
from marljax.errors import UserError
from marljax.training import mesh
from marljax.training.evaluation import Evaluator
from marljax.training.trainer import Trainer
from marljax.utils import stats

Metrics = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to compute."""

    total_steps: int = 1_000_000
    seeds: int = 5
    tail: float = 0.05  # the last of training, whose episodes' returns are averaged
    episodes: int = 1_000  # frozen, for the greedy policies
    repetitions: int = 5  # of each speed measurement
    updates: int = 20  # timed together

    @property
    def keys(self) -> jax.Array:
        """[seeds]"""
        return jax.vmap(jax.random.key)(np.arange(self.seeds, dtype=np.uint32))


class Side(NamedTuple):
    """One of the loops."""

    algorithm: Any  # a module with ``act`` and ``initial_carry`` in our manner
    config: Any  # with ``num_updates`` and ``steps_per_update``
    # keys [S] → metrics [S, num_updates], with ``episodes`` and ``sum_return``, and parameters [S, …]
    train: Callable[[jax.Array], tuple[Metrics, Any]]
    start: Callable[[], Any]  # one seed's state
    advance: Callable[[Any, int], Any]  # the state after so many updates


def ours(algorithm: ModuleType, env: Environment, config: Any) -> Side:
    """An algorithm of ours."""
    trainer = Trainer(algorithm, env, config, mesh.make_mesh())
    program = jax.jit(jax.vmap(marljax.make_train(algorithm, env, config)))

    def train(keys: jax.Array) -> tuple[Metrics, Any]:
        result = jax.device_get(program(keys))
        if (result.diverged_at >= 0).any():
            raise UserError("a seed of ours diverged; nothing is kept")
        return result.metrics, result.state.learner.params

    def start() -> Any:
        return trainer.init(jax.random.split(jax.random.key(0), 1), env.default_params)

    return Side(algorithm, config, train, start, lambda state, count: trainer.run(state, count)[0])


def theirs(module: ModuleType, env: Any, config: Any) -> Side:
    """Another library's loop written anew: ``init(env, config, key)`` and ``update(env, config, state)``, whose state has
    ``params``."""

    def advance(state: Any, count: int) -> Any:
        return jax.lax.scan(lambda state, _: module.update(env, config, state), state, length=count)

    @jax.jit
    @jax.vmap
    def train(key: jax.Array) -> tuple[Any, Any]:
        state, metrics = advance(module.init(env, config, key), config.num_updates)
        return metrics, state.params

    compiled = jax.jit(lambda state, count: advance(state, count)[0], static_argnums=1, donate_argnums=0)
    start = jax.jit(lambda: module.init(env, config, jax.random.key(0)))
    return Side(module, config, lambda keys: jax.device_get(train(keys)), start, compiled)


def returns(plan: Plan, side: Side, env: Environment) -> Figures:
    """Per seed: the mean return of the episodes in the last of training, and of the greedy policy's frozen episodes."""
    metrics, params = side.train(plan.keys)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        raise UserError(f"a seed of {side.algorithm.__name__} diverged; nothing is kept")
    tail = max(round(plan.tail * side.config.num_updates), 1)
    episodes, total = (metrics[name][:, -tail:].sum(-1) for name in ("episodes", "sum_return"))
    evaluator = Evaluator(env, plan.episodes)
    greedy = jax.device_get(evaluator.learned(side.algorithm, side.config, params, env.default_params, result_cache.suite_key()))
    training = {"mean": (total / episodes).tolist(), "std": [0.0] * plan.seeds, "count": int(episodes.min())}
    return {"training": training, "greedy": result_cache.summarise(greedy)["return"]}


def difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Mean difference over seeds with its 95 % t interval."""
    gap = stats.mean(np.subtract(mine["mean"], other["mean"]))
    return f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


def measure_speed(plan: Plan, sides: Mapping[str, Side]) -> Figures:
    """Seconds of whole updates, in turns, one seed each; CPU seconds that the first ones took longer: tracing and compilation."""
    states: dict[str, Any] = {}
    first: dict[str, float] = {}
    jax.block_until_ready(jax.jit(jax.random.key)(0))  # what the first program of a process costs is nobody's
    for name, side in sides.items():
        begun = time.process_time()
        states[name] = jax.block_until_ready(side.advance(side.start(), plan.updates))
        first[name] = time.process_time() - begun
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    work: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(plan.repetitions):
        for name, side in sides.items():
            begun, begun_cpu = time.perf_counter(), time.process_time()
            states[name] = jax.block_until_ready(side.advance(states[name], plan.updates))
            seconds[name].append(time.perf_counter() - begun)
            work[name].append(time.process_time() - begun_cpu)
    return {
        name: {
            "steps_per_s": plan.updates * sides[name].config.steps_per_update / statistics.median(times),
            "compile_cpu_s": first[name] - statistics.median(work[name]),
            "seconds": times,
        }
        for name, times in seconds.items()
    }


def speed_table(done: Figures | None, titles: Mapping[str, str], rival: str) -> str:
    """Training steps per second of each, ``titles`` by name, and how many times those of ``rival``."""
    if done is None:
        return "Not computed yet."
    rows: Sequence[Sequence[str]] = [
        [
            title,
            f"{done[name]['steps_per_s']:,.0f}",
            f"{done[name]['steps_per_s'] / done[rival]['steps_per_s']:.2f}×",
            f"{done[name]['compile_cpu_s']:.1f}",
        ]
        for name, title in titles.items()
    ]
    return markdown_table(["training", "env-steps/s", "× theirs", "tracing and compilation, CPU s"], rows)
