"""The end of a run: the final evaluation as a table, a learning curve, an episode as an animation. Axis letter: S replicas."""

import dataclasses
import functools
import inspect
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial
from rich.console import Console
from rich.table import Table

from marljax.config import convert
from marljax.config.settings import Settings
from marljax.config.sweep import SWEEP, describe_trial
from marljax.core.environment import Environment, Policy, ScriptedPolicy
from marljax.errors import UserError, first_line
from marljax.io import cache, provenance, run_folder
from marljax.io.metrics_log import Row, read_rows
from marljax.reporting.episodes import animate, draw_charts, film, player, scripted_policies
from marljax.reporting.tables import comparison, pooled, write_comparison
from marljax.testing.static import scene_error, user_code
from marljax.training.best import best_or_last, best_updates, same_parameters
from marljax.training.evaluation import Evaluator, LearnedPolicy, Recording, record, score_of, suite_key
from marljax.training.progress import caveat, print_line
from marljax.training.runner import Run, play_suite
from marljax.utils import distributed

Metrics = dict[str, np.ndarray]
Rows = list[tuple[str, Metrics]]  # (policy, metrics [S, episodes] or [episodes])
FINAL_PART = 1  # of the frozen episodes, with which a run's final evaluation begins; part 0 is that of training
PART_EPISODES = 32  # of one part, whatever a run's settings: so all runs play the same episodes
BUILTIN_MODULES = ("marljax.envs.", "marljax.baselines.policies.", "marljax.training.")
SIMPLE = (str, bool, int, float, tuple, type(None))  # types of settings whose repr says all
LISTED = 8  # replicas that a line names


def finish(run: Run, console: Console) -> None:
    """Evaluates every seed's best and last parameters and the scripted policies, and draws the pictures."""
    settings = run.settings
    last = distributed.gather(run.replicas.state.learner.params)
    params = best_or_last(run.best, last)
    if not distributed.is_first():
        return
    episodes = settings.run.eval.final_episodes
    # The learned rows are written before scripted policies, which may be a user's code, can raise.
    rows = compare(
        settings, params, FINAL_PART, episodes, lambda line: print_line(console, line), last, lambda rows: _write(run, rows)
    )
    _write(run, rows)
    console.print(table(settings, rows, episodes, "frozen", console.width))
    for line in describe_best(settings, best_updates(run.best, run.update)):
        print_line(console, line)
    if settings.env.display.meanings:
        target = settings.tree["env"].get("target")
        words = shlex.join([settings.env_name, *([f"env.target={target}"] if target else [])])
        print_line(console, f"what the metrics measure: marljax info {words}")
    if settings.run.render:
        references = {name: means(metrics) for name, metrics in rows if name not in (settings.algo, last_of(settings.algo))}
        try_curve(settings, run.folder, console, references)
        index = int(np.argmax(run.best.score))
        draw_episode(settings, jax.tree.map(lambda leaf: leaf[index], params), run.names[index], run.folder, console)
    print_line(console, f"results: {run.folder}", always=True)


def _write(run: Run, rows: Rows) -> None:
    """``results.json``: every policy's mean metrics, those of learned ones per seed, too."""
    by_name, algo = dict(rows), run.settings.algo
    best, last = by_name[algo], by_name.get(last_of(algo), by_name[algo])
    updates = best_updates(run.best, run.update)
    per_seed = {
        seed: means(best, index) | {"update": int(updates[index]), "last": means(last, index) | {"update": run.update}}
        for index, seed in enumerate(run.settings.seeds)
    }
    policies = {name: means(metrics) for name, metrics in rows}
    run_folder.write_results(run.folder, {"policies": policies, "seeds": per_seed, "display": displayed(run.settings.env)})


def displayed(env: Environment) -> dict[str, Any]:
    """How commands present an environment's metrics that only read its results; JSON values."""
    display = env.display
    return {"metrics": [*display.metrics], "units": {**display.units}, "lowest": [*display.lowest]}


def table(settings: Settings, rows: Rows, episodes: int, kind: str, width: int) -> Table:
    """The rows of ``compare``, over that many ``kind`` episodes (frozen, fresh), for a screen of that width."""
    env, seeds = settings.env, len(settings.replicas)
    caption = caveat(seeds, env.competitive)
    return comparison(
        pooled(episodes, kind, seeds, settings.run.eval.greedy), rows, width, env.display.metrics, env.display.units, caption
    )


def write_table(settings: Settings, rows: Rows, episodes: int, kind: str, path: Path) -> None:
    """The rows of ``compare`` as a .csv, .json or .tex file; see ``write_comparison``."""
    how = pooled(episodes, kind, len(settings.replicas), settings.run.eval.greedy)
    title = f"{settings.label}, {settings.scenario}: {how}"
    write_comparison(rows, path, title, settings.seeds, settings.env.display.metrics, settings.env.display.units)


def describe_best(settings: Settings, updates: np.ndarray) -> list[str]:
    """Lines on the update after which each replica's best parameters were taken, with a warning for untrained networks.

    The best is the highest of about twenty evaluations of few episodes, and may be due to chance.
    """
    total, names = settings.config.num_updates, [replica.name for replica in settings.replicas]
    if len(names) <= LISTED:
        each = [f"{name} after update {update:,}" for name, update in zip(names, updates, strict=True)]
        each[0] += f" of {total:,}"
        lines = [f"best parameters: {', '.join(each)}"]
    else:
        low, middle, high = np.quantile(updates, (0.0, 0.5, 1.0))
        lines = [f"best parameters: after updates {low:,.0f} to {high:,.0f} of {total:,}, median {middle:,.0f}"]
    if untrained := [name for name, update in zip(names, updates, strict=True) if update == 0]:
        which = ", ".join(untrained) if len(untrained) <= LISTED else f"{len(untrained)} of {len(names)} runs"
        whose = "the untrained network's" if settings.run.init_from is None else "those that the run began with"
        lines.append(f"warning: {which}: no evaluation beat that of update 0; the best parameters are {whose}")
    return lines


def last_of(algo: str) -> str:
    """Name of the row of an algorithm's last parameters; that of the best ones is the algorithm's name alone."""
    return f"{algo}, last"


def compare(
    settings: Settings,
    params: Any,
    part: int,
    episodes: int,
    log: Callable[[str], None] = lambda line: None,
    last: Any = None,
    keep: Callable[[Rows], None] = lambda rows: None,
) -> Rows:
    """(policy, metrics) of the learned policies [S, episodes] and the scripted ones [episodes], on the same frozen episodes.

    Args:
        settings: of the run.
        params: [S, …] of the learned policies.
        part: first part of the frozen episodes, which depend on nothing else.
        episodes: for each policy.
        log: gets lines on the progress.
        last: parameters [S, …] for a second learned row, unless they equal ``params`` or play exactly as those do.
        keep: gets the learned rows as soon as they are computed.
    """
    seeds = f" × {len(settings.replicas)} seeds" if len(settings.replicas) > 1 else ""
    log(f"evaluating {settings.algo} on {episodes:,} episodes{seeds}")
    rows = [(settings.algo, learned(settings, params, part, episodes))]
    if last is not None and not same_parameters(params, last):
        played = learned(settings, last, part, episodes)
        if not all(np.array_equal(values, played[name], equal_nan=True) for name, values in rows[0][1].items()):
            rows.append((last_of(settings.algo), played))
    keep(rows)
    rows += scripted(settings, part, episodes, log)
    for warning in display_warnings(settings.env, rows):
        log(f"warning: {warning}")
    return rows


def learned(settings: Settings, params: Any, part: int, episodes: int) -> Metrics:
    """Metrics [S, episodes] of policies with parameters [S, …]."""
    evaluator = Evaluator(settings.env, min(episodes, PART_EPISODES))
    return _play_parts(lambda part: play_suite(settings, evaluator, params, part), part, episodes)


def scripted(settings: Settings, part: int, episodes: int, log: Callable[[str], None]) -> Rows:
    """(policy, metrics [episodes]) of the scripted policies, from the user's cache where it has them."""
    policies = scripted_policies(settings.base_env, settings.env_params)
    log(f"evaluating baselines: {', '.join(policies)}")
    rows = []
    for name, policy in policies.items():
        with user_code(type(settings.base_env), f"the scripted policy '{name}'"):
            rows.append((name, _play_scripted(policy, part, episodes)))
    return rows


def _play_scripted(scripted: ScriptedPolicy, part: int, episodes: int) -> Metrics:
    evaluator = Evaluator(scripted.env, min(episodes, PART_EPISODES))
    policy, env_params, carry = scripted.policy, scripted.env_params, scripted.carry
    program = _builtin_program(evaluator, policy) or evaluator.scripted_program(policy, env_params, suite_key(part), carry)
    arguments = (policy.args, policy.keywords) if isinstance(policy, Partial) else ()

    def play(part: int) -> Metrics:
        return jax.device_get(evaluator.scripted(policy, env_params, suite_key(part), carry))

    inputs = (arguments, env_params, carry)
    compute = functools.partial(_play_parts, play, part, episodes)
    return cache.cached_metrics(compute, episodes, program, inputs, part, episodes, scripted.env.version)


def _builtin_program(evaluator: Evaluator, policy: Policy) -> str | None:
    """What determines the program that plays a scripted policy of this library in an environment of its own; None where a user's
    code may have a part in it. Tracing takes far longer: a second and more where a final report shows four policies.
    """
    env, function = evaluator.env, policy.func if isinstance(policy, Partial) else policy
    parts = (type(env), function if inspect.isfunction(function) else type(function))
    simple = all(isinstance(getattr(env, field.name), SIMPLE) for field in dataclasses.fields(env))
    source = cache.source_digest()
    if source is None or not simple or not all(f"{part.__module__}.".startswith(BUILTIN_MODULES) for part in parts):
        return None
    name = f"{function.__module__}.{function.__qualname__}" if inspect.isfunction(function) else repr(function)
    battle = getattr(env, "battle", None)  # of a scenario that a user may have registered
    return f"{evaluator} {name} {battle} {source} {cache.files_digest(env)}"


def _play_parts(play: Callable[[int], Metrics], first: int, episodes: int) -> Metrics:
    """Metrics [..., episodes] of as many parts of the frozen episodes as are needed."""
    parts = [play(part) for part in range(first, first + -(-episodes // PART_EPISODES))]
    return {name: np.concatenate([part[name] for part in parts], -1)[..., :episodes] for name in parts[0]}


def display_warnings(env: Environment, rows: Rows) -> list[str]:
    """A line for each metric that should be 0 and is not, with the policy for which it is largest."""
    lines = []
    for metric, meaning in env.display.warnings.items():
        reached = [(name, float(metrics[metric].mean())) for name, metrics in rows if metric in metrics]
        name, most = max(reached, key=lambda row: row[1], default=("", 0.0))
        if most > 0:
            lines.append(f"{metric} is {most:.3g} per episode with {name}: {meaning}")
    return lines


def means(metrics: Metrics, index: Any = ...) -> dict[str, float]:
    """Means over all episodes, or those of one seed."""
    return {name: float(values[index].mean()) for name, values in metrics.items()}


def draw_episode(settings: Settings, params: Any, whose: str, folder: Path, console: Console) -> None:
    """An episode in a run folder as animation and page, and its charts; the start of the run has said if there is no scene."""
    from marljax.viz import viewer

    path, page, charts = (folder / name for name in (run_folder.EPISODE, run_folder.PAGE, run_folder.CHARTS))
    has_scene = not scene_error(settings.base_env, settings.env_params)
    if has_scene:
        print_line(console, f"drawing an episode of {whose}: {path}, {page.name}")
    elif settings.base_env.display.charts is None:
        return
    try:
        (episode,) = record_episodes(settings, params, FINAL_PART, [0])
        draw_charts(settings.env, settings.env_params, episode, charts)
        if has_scene:
            shown = film(settings.env, settings.env_params, episode)
            animate(settings.env, shown, path)
            played = player(settings.env, f"{whose}, frozen episode 1", [(episode, shown)])
            viewer.write_page([played], page, settings.label)
    except (UserError, jax.errors.JaxRuntimeError) as error:  # must not fail a finished run
        print_line(console, f"no animation: {first_line(error)}")
    if charts.exists():
        print_line(console, f"charts of an episode: {charts}")


def draw_curve(
    settings: Settings,
    folder: Path,
    console: Console,
    references: Mapping[str, Mapping[str, float]] | None = None,
    path: Path | None = None,
) -> None:
    """The learning curve of a run folder, from its rows so far, and that of losses; ``settings`` are those of the whole run.

    ``path`` is the file for the curve, by default in the folder; ``_losses`` is appended to the name of the other.
    """
    from marljax.viz.learning_curve import learning_curve, loss_curve

    path = path or folder / run_folder.CURVE
    print_line(console, f"drawing the learning curve: {path}")
    rows, title, display = curve_rows(settings, folder), heading(settings, folder), settings.env.display
    learning_curve(rows, path, first=display.metrics, references=references, title=title, units=display.units)
    loss_curve(rows, path.with_stem(f"{path.stem}_losses"), title=title)


def try_curve(
    settings: Settings, folder: Path, console: Console, references: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """``draw_curve`` at the end of a run, which must not fail: a line where there is nothing to draw."""
    try:
        draw_curve(settings, folder, console, references)
    except UserError as error:
        print_line(console, f"no learning curve: {error}")


def heading(settings: Settings, folder: Path) -> str:
    """The title of a run's pictures: algorithm, environment and scenario; seeds, what is shown of them, and the day."""
    settings_tried, seeds = len(settings.run.search.tried or ()), convert.pluralize(settings.run.seeds, "seed")
    about = [f"{settings_tried} settings × {seeds}" if settings_tried else seeds, provenance.day(folder)]
    return f"{settings.label}, {settings.scenario}".rstrip(", ") + "\n" + ", ".join(filter(None, about))


def curve_rows(settings: Settings, folder: Path) -> list[Row]:
    """The rows of every batch of a run; those of a sweep name their ``setting``."""
    rows = [row for part in run_folder.parts(folder, settings.run.search.batches) for row in read_rows(part)]
    if not settings.run.search.tried:
        return rows
    names = {f"{SWEEP}{name}": name for name in settings.replicas[0].values}
    metrics = [{name: value for name, value in row.items() if not name.startswith(SWEEP)} for row in rows]
    settings_of = [describe_trial({name: row.get(key, math.nan) for key, name in names.items()}) for row in rows]
    return [own | {"setting": setting} for own, setting in zip(metrics, settings_of, strict=True)]


def played(folder: Path) -> dict[str, dict[str, float]]:
    """The mean metrics of each policy in a run's final evaluation; empty without an intact ``results.json``."""
    try:
        policies = run_folder.read_results(folder)["policies"]
        return {
            name: {key: value for key, value in metrics.items() if isinstance(value, int | float)}
            for name, metrics in policies.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def record_episodes(settings: Settings, params: Any, part: int, indices: Sequence[int]) -> list[Recording]:
    """Episodes of one replica's parameters, by their index among those that ``compare`` plays from ``part`` on."""
    env_params = settings.env_params
    policy = LearnedPolicy(settings.algorithm, settings.env, settings.config, params, settings.run.eval.greedy)
    found: dict[int, Recording] = {}
    for offset in sorted({index // PART_EPISODES for index in indices}):
        own = [index for index in indices if index // PART_EPISODES == offset]
        key, within = suite_key(part + offset), [index % PART_EPISODES for index in own]
        recorded = record(settings.env, env_params, policy, policy.initial_carry(), key, episodes=within)
        found |= dict(zip(own, recorded, strict=True))
    return [found[index] for index in indices]


def worst_episodes(settings: Settings, params: Any, part: int, episodes: int, count: int) -> list[int]:
    """Indices of the ``count`` episodes of lowest return among ``episodes`` from ``part`` on, the worst first."""
    score = score_of(learned(settings, jax.tree.map(lambda leaf: leaf[None], params), part, episodes))[0]
    return np.argsort(score, kind="stable")[:count].tolist()
