"""Two training loops at the same settings: returns over seeds, and speed."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

import marljax
from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import Metrics, ResultCache
from marljax.baselines.harness.tables import Columns, interval, mean_interval
from marljax.core.environment import Environment
from marljax.errors import UserError
from marljax.reporting.tables import markdown_table
from marljax.training import mesh
from marljax.training.evaluation import Evaluator, RandomPolicy, ScriptedPolicy
from marljax.training.trainer import Trainer
from marljax.utils import stats

KINDS = {"training": "end of training", "greedy": "greedy"}  # of the returns
POINTS = 50  # of a learning curve
STEADINESS_TEXT = f"""Learning curves in {POINTS} parts: means over seeds of the best part, of the lowest in the second half of
training, and of the last. *Kept*: of the gain over random actions of the best part so far, the smallest share that is left in a
part of the second half, for the seed with the smallest."""
STEADINESS_COLUMNS = ("best", "lowest of the last half", "end", "kept by the worst seed")
COMPARED_COLUMNS = tuple(f"{column}, {kind}" for kind in KINDS.values() for column in ("ours", "theirs", "ours − theirs"))
RETURN_COLUMNS: Columns = {"return, end of training": interval("training"), "return, greedy": interval("greedy")}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to compute."""

    total_steps: int = 1_000_000
    seeds: int = 5
    tail: float = 0.05  # last share of training, whose episodes' returns are averaged
    episodes: int = 1_000  # frozen, for the greedy policies
    repetitions: int = 5  # of each speed measurement
    updates: int = 20  # timed together

    @property
    def keys(self) -> jax.Array:
        """[seeds]"""
        return jax.vmap(jax.random.key)(np.arange(self.seeds, dtype=np.uint32))

    @property
    def speed_text(self) -> str:
        """How the speed was measured."""
        return f"""Whole updates, one seed, the loops in turn in one process, {self.repetitions} rounds of {self.updates} updates
each: medians, and the median and range of the ratios to theirs in the same round. All steps are counted, including those of ours
that only reset an episode."""

    @property
    def about_returns(self) -> dict[str, Any]:
        """What the result of a seed depends on, besides the configuration."""
        return {"tail": self.tail, "episodes": self.episodes, "points": POINTS}

    def returns_text(self, policy: str) -> str:
        """How the returns were measured; ``policy`` is what trains."""
        return f"""{self.seeds} seeds (0–{self.seeds - 1}). *End of training*: the {policy} policy's
episodes in the last {self.tail:.0%} of training. *Greedy*: the final parameters on {self.episodes:,} frozen episodes,
the same for all loops. ±: 95 % t interval over seeds."""


class Loop(NamedTuple):
    """A training loop."""

    algorithm: Any  # a module with ``act`` and ``initial_carry``, as ours have
    config: Any  # with ``num_updates`` and ``steps_per_update``
    # keys [S] → metrics [S, num_updates], with ``episodes`` and ``sum_return``, and parameters [S, …]
    train: Callable[[jax.Array], tuple[Mapping[str, np.ndarray], Any]]
    start: Callable[[], Any]  # the state of one seed
    advance: Callable[[Any, int], Any]  # the state after that many updates


def our_loop(algorithm: ModuleType, env: Environment, config: Any) -> Loop:
    """An algorithm of ours."""
    trainer = Trainer(algorithm, env, config, mesh.make_mesh())
    program = jax.jit(jax.vmap(marljax.make_train(algorithm, env, config)))

    def train(keys: jax.Array) -> tuple[Mapping[str, np.ndarray], Any]:
        result = jax.device_get(program(keys))
        if (result.diverged_at >= 0).any():
            raise UserError("a seed of ours diverged; nothing is kept")
        return result.metrics, result.state.learner.params

    def start() -> Any:
        return trainer.init(jax.random.split(jax.random.key(0), 1), env.default_params)

    return Loop(algorithm, config, train, start, lambda state, count: trainer.run(state, count)[0])


def their_loop(module: ModuleType, env: Any, config: Any) -> Loop:
    """Another library's loop: ``init(env, config, key)`` and ``update(env, config, state)``, whose state has ``params``."""

    def advance(state: Any, count: int) -> Any:
        return jax.lax.scan(lambda state, _: module.update(env, config, state), state, length=count)

    @jax.jit
    @jax.vmap
    def train(key: jax.Array) -> tuple[Any, Any]:
        state, metrics = advance(module.init(env, config, key), config.num_updates)
        return metrics, state.params

    compiled = jax.jit(lambda state, count: advance(state, count)[0], static_argnums=1, donate_argnums=0)
    start = jax.jit(lambda: module.init(env, config, jax.random.key(0)))
    return Loop(module, config, lambda keys: jax.device_get(train(keys)), start, compiled)


def ppo_settings(theirs: Any) -> dict[str, Any]:
    """Settings of ``rivals/ppo.py`` and ``rivals/ippo.py`` under our names."""
    return {
        "total_steps": theirs.num_updates * theirs.steps_per_update,
        "num_envs": theirs.num_envs,
        "rollout_length": theirs.num_steps,
        "num_epochs": theirs.update_epochs,
        "num_minibatches": theirs.num_minibatches,
        "hidden": (theirs.hidden, theirs.hidden),
        "activation": theirs.activation,
        "learning_rate": theirs.lr,
        "max_grad_norm": theirs.max_grad_norm,
        "gamma": theirs.gamma,
        "gae_lambda": theirs.gae_lambda,
        "clip_eps": theirs.clip_eps,
        "entropy_coef": theirs.ent_coef,
        "value_coef": theirs.vf_coef,
        "normalize_values": False,
        "clip_values": True,
        "clip_actor_critic_separately": False,
    }


def train_and_play(
    plan: Plan, loop: Loop, env: Environment, keys: jax.Array, metric: str = "return"
) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """Trains a seed for each of ``keys``: the metrics of training, and one metric of the greedy policies on the frozen
    episodes."""
    metrics, params = loop.train(keys)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        raise UserError(f"a seed of {loop.algorithm.__name__} diverged; nothing is kept")
    evaluator = Evaluator(env, plan.episodes)
    greedy = evaluator.learned(loop.algorithm, loop.config, params, env.default_params, result_cache.suite_key())
    return metrics, result_cache.summarise(jax.device_get(greedy))[metric]


def train_seeds(
    cache: ResultCache,
    plan: Plan,
    name: str,
    about: Mapping[str, Any],
    make: Callable[[], Loop],
    env: Environment,
    metric: str = "return",
) -> Metrics | None:
    """Learning curves, mean returns of the episodes at the end of training, and the greedy policies' ``metric``, of all seeds.

    Each seed is a result of its own, so that a stopped command loses little: under ``vmap`` they take as long. None while any is
    missing.
    """
    loop = functools.cache(make)  # the seeds share compiled programs

    def one(seed: int) -> Metrics:
        metrics, greedy = train_and_play(plan, loop(), env, plan.keys[seed : seed + 1], metric)
        episodes, total = (np.asarray(metrics[key], np.float64) for key in ("episodes", "sum_return"))
        tail = max(round(plan.tail * loop().config.num_updates), 1)
        spread = {"std": [0.0], "count": int(episodes[:, -tail:].sum())}
        if not spread["count"]:
            raise UserError(f"no episode of {name} ended in the last {tail} updates; make the plan's tail longer")
        training = {"mean": [total[:, -tail:].sum() / spread["count"]], **spread}
        return {"training": training, "greedy": greedy, "curve": {"mean": curve(episodes, total).tolist(), **spread}}

    seeds = range(plan.seeds)
    return result_cache.join_seeds([cache.get(f"{name} seed {seed}", about, functools.partial(one, seed)) for seed in seeds])


def curve(episodes: np.ndarray, total: np.ndarray, points: int = POINTS) -> np.ndarray:
    """Mean returns [S, points] of the episodes that end in each of equal parts of training; a part without any repeats the
    previous one.

    episodes, total [S, U]: numbers and summed returns by update.
    """
    means: list[np.ndarray] = []
    for part in np.array_split(np.arange(episodes.shape[1]), min(points, episodes.shape[1])):
        count = episodes[:, part].sum(-1)
        before = means[-1] if means else np.full(len(episodes), np.nan)
        means.append(np.where(count > 0, total[:, part].sum(-1) / np.maximum(count, 1), before))
    return np.stack(means, axis=-1)


def steadiness(curves: list[list[float]], random: float) -> list[str]:
    """Of learning curves [S, points]: means over seeds of the best point, of the lowest in the last half, and of the end; and of
    the gain over random actions at best so far, the smallest share over seeds that is left at a point of the last half."""
    values = np.asarray(curves)
    half = values.shape[1] // 2
    so_far = np.fmax.accumulate(values, axis=1)
    best, lowest, end = so_far[:, -1], np.nanmin(values[:, half:], axis=1), values[:, -1]
    gain, left = so_far[:, half:] - random, values[:, half:] - random
    kept = "nothing gained by half" if (gain <= 0).any() else f"{np.nanmin(left / gain):.0%}"
    return [*(f"{column.mean():.{decimals(best)}f}" for column in (best, lowest, end)), kept]


def decimals(returns: ArrayLike) -> int:
    """Decimal places of a column of returns: two where all are small."""
    return 1 if np.abs(returns).max() > 10 else 2


def random_result(cache: ResultCache, plan: Plan, name: str, env: Environment) -> Metrics | None:
    """Uniform actions on the frozen episodes."""
    return cache.scripted(f"{name} random", {}, ScriptedPolicy(env, env.default_params, RandomPolicy(env)), plan.episodes)


def compared(ours: Metrics, theirs: Metrics, percent: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The cells under ``COMPARED_COLUMNS``, and the ``KINDS`` of which ours is lower with the whole interval; the kinds in
    ``percent`` are shares."""
    cells, lower = [], []
    for kind in KINDS:
        scale, unit = (100.0, " %") if kind in percent else (1.0, "")
        places = 1 if unit else decimals([*ours[kind]["mean"], *theirs[kind]["mean"]])
        cells += [f"{mean_interval(metrics[kind], places, scale)}{unit}" for metrics in (ours, theirs)]
        gap = difference(ours[kind], theirs[kind], scale)
        cells.append(signed(gap))
        lower += [kind] if gap.high < 0 else []
    return cells, lower


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], scale: float = 1.0) -> stats.Estimate:
    """Difference of the means over seeds with Welch's 95 % t interval: seeds of different loops have nothing in common."""
    return stats.difference(*(np.multiply(scale, metrics["mean"]) for metrics in (ours, theirs)))


def signed(gap: stats.Estimate) -> str:
    """A difference with its interval."""
    return f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


def difference_line(title: str, ours: Metrics, theirs: Metrics) -> str:
    """``difference`` of both kinds of returns."""
    training, greedy = (signed(difference(ours[kind], theirs[kind])) for kind in KINDS)
    return f"{title}: {training} at the end of training, {greedy} greedy."


def measure_speed(plan: Plan, loops: Mapping[str, Loop]) -> Metrics:
    """Seconds of whole updates, in turn, one seed each; CPU seconds that the first ones took longer: tracing and compilation."""
    jax.block_until_ready(jax.jit(jax.random.key)(0))  # the cost of the first program of a process belongs to no loop

    def advance(name: str, state: Any) -> tuple[Any, float, float]:
        start, start_cpu = time.perf_counter(), time.process_time()
        state = jax.block_until_ready(loops[name].advance(state() if callable(state) else state, plan.updates))
        return state, time.perf_counter() - start, time.process_time() - start_cpu

    states, first = {}, {}
    for name, loop in loops.items():
        states[name], _, first[name] = advance(name, loop.start)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(plan.repetitions):
        for name in loops:
            states[name], wall, cpu = advance(name, states[name])
            seconds[name].append(wall)
            cpu_seconds[name].append(cpu)
    return {
        name: {
            "steps_per_s": plan.updates * loop.config.steps_per_update / statistics.median(seconds[name]),
            "compile_cpu_s": first[name] - statistics.median(cpu_seconds[name]),
            "seconds": seconds[name],
        }
        for name, loop in loops.items()
    }


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trainings by name that are measured alike; the greedy policies of all play in ``make_env()``."""

    plan: Plan
    about: Mapping[str, Any]  # what all results depend on, besides the plan and configurations
    configs: Mapping[str, Any]
    loops: Mapping[str, Callable[[Any], Loop]]  # from these configurations
    make_env: Callable[[], Environment]

    def returns(self, cache: ResultCache, name: str, loop: str, metric: str = "return") -> Metrics | None:
        """``train_seeds`` of one training, whose results depend neither on the others nor on how speed is measured."""
        about = {**self.about, **self.plan.about_returns, "config": dataclasses.asdict(self.configs[loop])}
        make = functools.partial(self.loops[loop], self.configs[loop])
        return train_seeds(cache, self.plan, f"{name} {loop}", about, make, self.make_env(), metric)

    def speed_table(self, cache: ResultCache, name: str, titles: Mapping[str, str]) -> str:
        """Training steps per second of the loops in ``titles``, and their ratios to the last one's."""

        def measure() -> Metrics:
            return measure_speed(self.plan, {loop: self.loops[loop](self.configs[loop]) for loop in titles})

        about = {**self.about, "repetitions": self.plan.repetitions, "updates": self.plan.updates}
        metrics = cache.get(name, about | {loop: dataclasses.asdict(self.configs[loop]) for loop in titles}, measure)
        if metrics is None:
            return "Not computed yet."
        rates = {name: self.configs[name].steps_per_update / np.array(metrics[name]["seconds"]) for name in titles}
        rows, last = [], [*titles][-1]
        for name, title in titles.items():
            ratios = rates[name] / rates[last]  # of a round
            span = f"{np.median(ratios):.2f}× ({ratios.min():.2f}–{ratios.max():.2f})" if name != last else "1"
            rows.append([title, f"{metrics[name]['steps_per_s']:,.0f}", span, f"{metrics[name]['compile_cpu_s']:.1f}"])
        return markdown_table(["training", "env-steps/s", "× theirs", "tracing and compilation, CPU s"], rows)
