"""What a finished run leaves for a person: the final evaluation as a table, a learning curve, an episode as an animation."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from marljax import hosts, runfolder
from marljax.driver import Run, best_or_last, play, suite_key
from marljax.environment import Environment
from marljax.errors import UserError, first_line
from marljax.evaluate import Evaluator, LearnedPolicy, Rival, record
from marljax.files import replacing
from marljax.logs import read_rows
from marljax.progress import comparison, pooled, say
from marljax.settings import Settings

Metrics = dict[str, np.ndarray]
FINAL_PART = 1  # of the frozen suite, from which a run's last evaluation plays; part 0 is that of its training
PART_EPISODES = 32  # of one part, whatever a run's settings: so all runs meet the same episodes


def finish(run: Run, console: Console) -> None:
    """Evaluates the best parameters of every seed beside the scripted policies, and draws what there is to draw."""
    settings = run.settings
    params = best_or_last(run.best, hosts.gathered(run.members.state.learner.params))
    if not hosts.is_first():
        return
    episodes = settings.run.eval.final_episodes
    rows = compare(settings, params, FINAL_PART, episodes, lambda line: say(console, line))
    write(run, rows)
    title = pooled(episodes, "frozen", settings.run.seeds, settings.env.competitive)
    console.print(comparison(title, rows, console.width, settings.env.figures, settings.env.units))
    if settings.run.render:
        draw(run, params, rows, console)
    say(console, f"results: {run.folder}")


def compare(
    settings: Settings, params: Any, part: int, episodes: int, tell: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Metrics]]:
    """(name, metrics) of the learned policies [S, episodes] and the scripted ones [episodes], on the same frozen episodes.

    Those are the first ones of the suite from ``part`` on; they depend on nothing else. ``tell`` hears what goes on.
    """
    many = f" × {len(settings.members)} seeds" if len(settings.members) > 1 else ""
    tell(f"evaluating {settings.algo} on {episodes:,} episodes{many}")
    rows = [(settings.algo, learned(settings, params, part, episodes)), *scripted(settings, part, episodes, tell)]
    for alarm in alarms(settings.env, rows):
        tell(f"warning: {alarm}")
    return rows


def learned(settings: Settings, params: Any, part: int, episodes: int) -> Metrics:
    """Metrics [S, episodes] of policies with parameters [S, …]."""
    evaluator = Evaluator(settings.env, _together(episodes))
    return _joined([play(settings, evaluator, params, each) for each in _parts(part, episodes)], episodes)


def scripted(settings: Settings, part: int, episodes: int, tell: Callable[[str], None]) -> list[tuple[str, Metrics]]:
    """(name, metrics [episodes]) of the scripted policies."""
    rivals = scripted_policies(settings)
    if rivals:
        tell(f"evaluating what it is compared with: {', '.join(rivals)}")
    rows = []
    for name, rival in rivals.items():
        evaluator = Evaluator(rival.env, _together(episodes))
        keys = [suite_key(each) for each in _parts(part, episodes)]
        played = [jax.device_get(evaluator.scripted(rival.policy, rival.env_params, key, rival.carry)) for key in keys]
        rows.append((name, _joined(played, episodes)))
    return rows


def _parts(first: int, episodes: int) -> range:
    return range(first, first + -(-episodes // PART_EPISODES))


def _together(episodes: int) -> int:
    """The first few episodes of a part are the same however many are played."""
    return min(episodes, PART_EPISODES)


def alarms(env: Environment, rows: list[tuple[str, Metrics]]) -> list[str]:
    """A line for each metric that should be 0 and is not, with the policy that it is largest for."""
    lines = []
    for metric, meaning in env.alarms.items():
        name, most = max(((name, float(metrics[metric].mean())) for name, metrics in rows), key=lambda row: row[1])
        if most > 0:
            lines.append(f"{metric} is {most:.3g} per episode with {name}: {meaning}")
    return lines


def scripted_policies(settings: Settings) -> dict[str, Rival]:
    """The scripted rivals that ``marljax.baselines.<env>`` offers for these settings; none where there is no such module.

    Such a module has ``rivals(env, env_params)``, which gives a ``Rival`` by name.
    """
    module = f"marljax.baselines.{settings.env_name}"
    if not settings.env_name.isidentifier() or importlib.util.find_spec(module) is None:
        return {}
    rivals = getattr(importlib.import_module(module), "rivals", None)
    return rivals(settings.bare_env, settings.env_params) if rivals else {}


def write(run: Run, rows: list[tuple[str, Metrics]]) -> None:
    """``results.json``: every policy's mean figures, the learned one's per seed too."""
    means = {name: {key: float(values.mean()) for key, values in metrics.items()} for name, metrics in rows}
    learned = rows[0][1]
    updates = np.where(np.isfinite(run.best.score), run.best.update, run.update)
    per_seed = {
        seed: {key: float(values[index].mean()) for key, values in learned.items()} | {"update": int(updates[index])}
        for index, seed in enumerate(run.settings.seeds)
    }
    runfolder.write_results(run.folder, {"policies": means, "seeds": per_seed})


def draw(run: Run, params: Any, rows: list[tuple[str, Metrics]], console: Console) -> None:
    """The learning curve, and an episode of the best seed; an environment without a scene has no episode to show."""
    from marljax.plot import learning_curve

    references = {name: {key: float(values.mean()) for key, values in metrics.items()} for name, metrics in rows[1:]}
    curve = run.folder / runfolder.CURVE
    title = run.settings.title.replace("_", " on ", 1)
    say(console, f"drawing the learning curve: {curve}")
    learning_curve(read_rows(run.folder), curve, references=references, title=title, units=run.settings.env.units)
    index = int(np.argmax(run.best.score))
    best = jax.tree.map(lambda leaf: leaf[index], params)
    say(console, f"drawing an episode of {run.names[index]}: {run.folder / runfolder.EPISODE}")
    try:
        animate(run.settings, best, suite_key(FINAL_PART), run.folder / runfolder.EPISODE, run.folder / runfolder.CHARTS)
    except UserError as error:
        say(console, f"no animation: {error}")
    except Exception as error:  # the scene is a user's code, and a finished run is worth more than its picture
        say(console, f"no animation: {type(error).__name__} in {type(run.settings.bare_env).__name__}: {first_line(error)}")
    if (run.folder / runfolder.CHARTS).exists():
        say(console, f"charts of it: {run.folder / runfolder.CHARTS}")


def animate(settings: Settings, params: Any, key: jax.Array, path: Path, charts: Path | None = None) -> dict[str, float]:
    """Plays one greedy episode, writes it to ``path`` (GIF or MP4) and returns its final metrics.

    The episode is the first that ``compare`` plays with this key. Where the environment draws charts of an episode they go to
    ``charts``.
    """
    from marljax import render

    policy = LearnedPolicy(settings.algorithm, settings.env, settings.config, params)
    states, metrics = record(settings.env, settings.env_params, policy, policy.initial_carry(), key)
    figure = settings.env.charts(jax.device_get(states), jax.device_get(settings.env_params)) if charts else None
    if charts and figure is not None:
        with replacing(charts) as draft:
            figure.savefig(draft)
    draw = jax.jit(jax.vmap(settings.env.scene, in_axes=(0, None)))
    times = jax.jit(lambda *of: draw(*of).time)(states, settings.env_params)  # the compiler drops the shapes
    shown, fps = render.frames(np.asarray(times), settings.env.pace)
    states = jax.tree.map(lambda leaf: leaf[shown], states)
    render.animate(settings.env, draw(states, settings.env_params), path, fps=fps)
    return metrics


def _joined(parts: list[Metrics], episodes: int) -> Metrics:
    """Metrics [..., episodes]; the last part may hold a few more."""
    return {name: np.concatenate([part[name] for part in parts], -1)[..., :episodes] for name in parts[0]}
