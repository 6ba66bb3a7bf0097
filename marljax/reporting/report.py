"""What a finished run leaves for a person: the final evaluation as a table, a learning curve, an episode as an animation."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial
from rich.console import Console
from rich.table import Table

from marljax.config.settings import Settings
from marljax.config.sweep import KEY
from marljax.core.environment import Environment, ScriptedPolicy
from marljax.errors import UserError, first_line
from marljax.io import cache, run_folder
from marljax.io.files import replacing
from marljax.io.metrics_log import Row, read_rows
from marljax.reporting.tables import comparison, pooled
from marljax.testing.static import own_code, rivals_of, scene_fault
from marljax.training.evaluation import Evaluator, LearnedPolicy, RandomPolicy, record, suite_key
from marljax.training.progress import caveat, say
from marljax.training.runner import Run, best_or_last, best_updates, play_suite, same_parameters
from marljax.utils import distributed

Metrics = dict[str, np.ndarray]
FINAL_PART = 1  # of the frozen suite, from which a run's last evaluation plays; part 0 is that of its training
PART_EPISODES = 32  # of one part, whatever a run's settings: so all runs meet the same episodes
RANDOM = "random"
LISTED = 8  # members that a line names one by one


def finish(run: Run, console: Console) -> None:
    """Evaluates every seed's best and last parameters beside the scripted policies, and draws what there is to draw."""
    settings = run.settings
    last = distributed.gathered(run.members.state.learner.params)
    params = best_or_last(run.best, last)
    if not distributed.is_first():
        return
    episodes = settings.run.eval.final_episodes
    # The learned rows are on disk before anything of a user's environment beside its episodes can raise.
    rows = compare(settings, params, FINAL_PART, episodes, lambda line: say(console, line), last, lambda rows: write(run, rows))
    write(run, rows)
    console.print(table(settings, rows, episodes, "frozen", console.width))
    for line in about_best(settings, best_updates(run.best, run.update)):
        say(console, line)
    if settings.run.render:
        draw(run, params, rows, console)
    say(console, f"results: {run.folder}")


def table(settings: Settings, rows: list[tuple[str, Metrics]], episodes: int, kind: str, width: int) -> Table:
    """The rows of ``compare``, over that many ``kind`` episodes (frozen, fresh), for a screen of that width."""
    env, seeds = settings.env, len(settings.members)
    caption = caveat(seeds, env.competitive)
    return comparison(pooled(episodes, kind, seeds), rows, width, env.display.metrics, env.display.units, caption)


def about_best(settings: Settings, updates: np.ndarray) -> list[str]:
    """After which update each member's best parameters were taken, and a warning where that is the untrained network.

    The best is the highest of some twenty evaluations of few episodes, and may be there by luck.
    """
    total, names = settings.config.num_updates, [member.name for member in settings.members]
    if len(names) <= LISTED:
        each = [f"{name} after update {update:,}" for name, update in zip(names, updates, strict=True)]
        each[0] += f" of {total:,}"
        lines = [f"best parameters: {', '.join(each)}"]
    else:
        low, middle, high = np.quantile(updates, (0.0, 0.5, 1.0))
        lines = [f"best parameters: after updates {low:,.0f} to {high:,.0f} of {total:,}, median {middle:,.0f}"]
    untrained = [name for name, update in zip(names, updates, strict=True) if update == 0]
    if untrained:
        whose = ", ".join(untrained) if len(untrained) <= LISTED else f"{len(untrained)} of {len(names)} members"
        lines.append(f"warning: {whose}: no evaluation beat that of update 0; the best parameters are the untrained network's")
    return lines


def last_of(algo: str) -> str:
    """What the row of an algorithm's last parameters is called; that of the best ones has its name alone."""
    return f"{algo}, last"


def compare(
    settings: Settings,
    params: Any,
    part: int,
    episodes: int,
    tell: Callable[[str], None] = lambda line: None,
    last: Any = None,
    keep: Callable[[list[tuple[str, Metrics]]], None] = lambda rows: None,
) -> list[tuple[str, Metrics]]:
    """(name, metrics) of the learned policies [S, episodes] and the scripted ones [episodes], on the same frozen episodes.

    Those are the first ones of the suite from ``part`` on; they depend on nothing else. ``tell`` hears what goes on. ``last`` are
    parameters [S, …] for a second learned row; where they are ``params``, or play as those do, there is none. ``keep`` is given
    the learned rows as soon as they are there.
    """
    many = f" × {len(settings.members)} seeds" if len(settings.members) > 1 else ""
    tell(f"evaluating {settings.algo} on {episodes:,} episodes{many}")
    rows = [(settings.algo, learned(settings, params, part, episodes))]
    if last is not None and not same_parameters(params, last):
        played_last = learned(settings, last, part, episodes)
        same = all(np.array_equal(values, played_last[name], equal_nan=True) for name, values in rows[0][1].items())
        rows += [] if same else [(last_of(settings.algo), played_last)]
    keep(rows)
    rows += scripted(settings, part, episodes, tell)
    for warning in display_warnings(settings.env, rows):
        tell(f"warning: {warning}")
    return rows


def learned(settings: Settings, params: Any, part: int, episodes: int) -> Metrics:
    """Metrics [S, episodes] of policies with parameters [S, …]."""
    evaluator = Evaluator(settings.env, _together(episodes))
    return _joined([play_suite(settings, evaluator, params, each) for each in _parts(part, episodes)], episodes)


def scripted(settings: Settings, part: int, episodes: int, tell: Callable[[str], None]) -> list[tuple[str, Metrics]]:
    """(name, metrics [episodes]) of the scripted policies; those that the user's cache holds are not played again."""
    rivals = scripted_policies(settings)
    tell(f"evaluating what it is compared with: {', '.join(rivals)}")
    rows = []
    for name, rival in rivals.items():
        with own_code(type(settings.bare_env), f"the scripted policy '{name}'"):
            rows.append((name, _of_rival(rival, part, episodes)))
    return rows


def _of_rival(rival: ScriptedPolicy, part: int, episodes: int) -> Metrics:
    """Metrics [episodes] of a scripted policy, from the user's cache or played."""
    evaluator = Evaluator(rival.env, _together(episodes))
    keys = [suite_key(each) for each in _parts(part, episodes)]
    program = evaluator.scripted_program(rival.policy, rival.env_params, keys[0], rival.carry)
    numbers = (rival.policy.args, rival.policy.keywords) if isinstance(rival.policy, Partial) else ()
    entry = cache.entry_of(program, (numbers, rival.env_params, rival.carry), part, episodes, rival.env.version)
    kept = cache.load(entry, episodes)
    if kept is not None:
        return kept
    played = [jax.device_get(evaluator.scripted(rival.policy, rival.env_params, key, rival.carry)) for key in keys]
    metrics = _joined(played, episodes)
    cache.keep(entry, metrics)
    return metrics


def _parts(first: int, episodes: int) -> range:
    return range(first, first + -(-episodes // PART_EPISODES))


def _together(episodes: int) -> int:
    """The first few episodes of a part are the same however many are played."""
    return min(episodes, PART_EPISODES)


def display_warnings(env: Environment, rows: list[tuple[str, Metrics]]) -> list[str]:
    """A line for each metric that should be 0 and is not, with the policy that it is largest for."""
    lines = []
    for metric, meaning in env.display.warnings.items():
        reached = [(name, float(metrics[metric].mean())) for name, metrics in rows if metric in metrics]
        name, most = max(reached, key=lambda row: row[1], default=("", 0.0))
        if most > 0:
            lines.append(f"{metric} is {most:.3g} per episode with {name}: {meaning}")
    return lines


def scripted_policies(settings: Settings) -> dict[str, ScriptedPolicy]:
    """What a learned policy is compared with: those of ``marljax.baselines.policies.<env>``, of the environment's own
    class, and random actions where none of these are.

    Such a module has ``scripted_policies(env, env_params)``, which gives a ``ScriptedPolicy`` by name; a class has
    ``Environment.scripted_policies``.
    """
    env, env_params, found = settings.bare_env, settings.env_params, {}
    module = f"marljax.baselines.policies.{settings.env_name}"
    if settings.env_name.isidentifier() and importlib.util.find_spec(module) is not None:
        offered = getattr(importlib.import_module(module), "scripted_policies", None)
        found = dict(offered(env, env_params)) if offered else {}
    found |= rivals_of(env, env_params)
    if not any(name.startswith(RANDOM) for name in found):
        found[RANDOM] = ScriptedPolicy(env, env_params, RandomPolicy(env))
    return found


def write(run: Run, rows: list[tuple[str, Metrics]]) -> None:
    """``results.json``: every policy's mean figures, the learned ones' per seed too."""
    by_name = dict(rows)
    best, last = by_name[run.settings.algo], by_name.get(last_of(run.settings.algo), by_name[run.settings.algo])
    updates = best_updates(run.best, run.update)
    per_seed = {
        seed: means(best, index) | {"update": int(updates[index]), "last": means(last, index) | {"update": run.update}}
        for index, seed in enumerate(run.settings.seeds)
    }
    policies = {name: means(metrics) for name, metrics in rows}
    run_folder.write_results(run.folder, {"policies": policies, "seeds": per_seed})


def means(metrics: Metrics, index: Any = ...) -> dict[str, float]:
    """Over all episodes, or those of one seed."""
    return {key: float(values[index].mean()) for key, values in metrics.items()}


def draw(run: Run, params: Any, rows: list[tuple[str, Metrics]], console: Console) -> None:
    """The learning curve, and an episode of the best seed; an environment without a scene has no episode to show."""
    own = (run.settings.algo, last_of(run.settings.algo))
    references = {name: means(metrics) for name, metrics in rows if name not in own}
    try:
        draw_curve(run.settings, run.folder, console, references)
    except UserError as error:  # without rows
        say(console, f"no learning curve: {error}")
    index = int(np.argmax(run.best.score))
    draw_episode(run.settings, jax.tree.map(lambda leaf: leaf[index], params), run.names[index], run.folder, console)


def draw_episode(settings: Settings, params: Any, whose: str, folder: Path, console: Console) -> None:
    """An episode as an animation in a run folder, and charts of it; the run has told before training where there is no scene."""
    path, charts = folder / run_folder.EPISODE, folder / run_folder.CHARTS
    has_scene = not scene_fault(settings.bare_env, settings.env_params)
    if has_scene:
        say(console, f"drawing an episode of {whose}: {path}")
    elif settings.bare_env.display.charts is None:
        return
    try:
        animate(settings, params, suite_key(FINAL_PART), path if has_scene else None, charts)
    except (UserError, jax.errors.JaxRuntimeError) as error:  # a finished run is worth more than its picture
        say(console, f"no animation: {first_line(error)}")
    if charts.exists():
        say(console, f"charts of an episode: {charts}")


def draw_curve(
    settings: Settings, folder: Path, console: Console, references: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """The learning curve of a run folder, from the rows that are there; ``settings`` are those of the whole run."""
    from marljax.viz.learning_curve import learning_curve

    path = folder / run_folder.CURVE
    say(console, f"drawing the learning curve: {path}")
    rows = curve_rows(settings, folder)
    learning_curve(rows, path, references=references, title=settings.label, units=settings.env.display.units)


def curve_rows(settings: Settings, folder: Path) -> list[Row]:
    """The rows of every batch of a run; the members of a sweep, which share seeds, have a ``seed`` of their own each."""
    batches = settings.run.search.batches or 1
    folders = [folder] if batches == 1 else [folder / run_folder.batch(index) for index in range(batches)]
    rows = [row for each in folders for row in read_rows(each)]
    if not settings.run.search.tried:
        return rows
    place = tuple(settings.members[0].place)
    figures = [{name: value for name, value in row.items() if not name.startswith(KEY)} for row in rows]
    return [own | {"seed": str([row.get(name) for name in place])} for own, row in zip(figures, rows, strict=True)]


def played(folder: Path) -> dict[str, dict[str, float]]:
    """What each policy reached in a run's final evaluation; nothing where there was none, or ``results.json`` is damaged
    or was edited."""
    try:
        policies = run_folder.read_results(folder)["policies"]
        return {
            name: {key: value for key, value in figures.items() if isinstance(value, int | float)}
            for name, figures in policies.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def animate(settings: Settings, params: Any, key: jax.Array, path: Path | None, charts: Path | None = None) -> dict[str, float]:
    """Plays one greedy episode, writes it to ``path`` (GIF or MP4; None: nowhere) and returns its final metrics.

    The episode is the first that ``compare`` plays with this key. Where the environment draws charts of an episode they go to
    ``charts``. Raises ``UserError`` where a file cannot be written, there is no scene, or the environment's own code fails.
    """
    policy = LearnedPolicy(settings.algorithm, settings.env, settings.config, params)
    states, metrics = record(settings.env, settings.env_params, policy, policy.initial_carry(), key)
    with own_code(type(settings.bare_env), "what draws an episode"):
        if charts:
            _draw_charts(settings, states, charts)
        if path:
            _draw_scenes(settings, states, path)
    return metrics


def _draw_charts(settings: Settings, states: Any, path: Path) -> None:
    figure = settings.env.display.charts and settings.env.display.charts(*jax.device_get((states, settings.env_params)))
    if figure is None:
        return
    with replacing(path) as draft:
        figure.savefig(draft)


def _draw_scenes(settings: Settings, states: Any, path: Path) -> None:
    from marljax.viz import animation

    draw = jax.jit(jax.vmap(settings.env.scene, in_axes=(0, None)))
    times = jax.jit(lambda *of: draw(*of).time)(states, settings.env_params)  # the compiler drops the shapes
    shown, fps = animation.frames(np.asarray(times), settings.env.display.frames_per_second)
    states = jax.tree.map(lambda leaf: leaf[shown], states)
    animation.animate(settings.env, draw(states, settings.env_params), path, fps=fps)


def _joined(parts: list[Metrics], episodes: int) -> Metrics:
    """Metrics [..., episodes]; the last part may hold a few more."""
    return {name: np.concatenate([part[name] for part in parts], -1)[..., :episodes] for name in parts[0]}
