"""The settings of a sweep, judged on the same frozen episodes and ranked, as a table and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from marljax.config import convert
from marljax.config.settings import Settings, batch_of
from marljax.config.sweep import Ranked, described
from marljax.core.vector import vectorize
from marljax.errors import UserError, unknown
from marljax.io import run_folder
from marljax.io.files import SEAL
from marljax.reporting import report
from marljax.training.progress import say
from marljax.training.runner import Run, best_or_last, best_updates, same_parameters
from marljax.utils import distributed, stats
from marljax.utils.stats import Estimate

SHOWN = 20  # settings of the table on the screen; results.json has all
DEFAULT = "return"  # by what settings are ranked
FIGURES = 2  # of the environment, beside what ranks

Played = dict[str, Any]  # a member's place, its metrics and how its training ended, as results.json holds it


def compares(settings: Settings) -> bool:
    """Whether members are compared at the end: they were swept, or several batches were needed."""
    return bool(settings.run.search.tried) or settings.run.search.batches not in (None, 1)


def check_metric(settings: Settings) -> None:
    """Raises ``UserError`` where the environment does not report that by which settings would be ranked.

    Of teams that compete it has to be said: a policy that plays itself wins what it loses.
    """
    wanted = settings.run.search.metric
    if wanted == DEFAULT and not compares(settings):
        return
    _, timestep = jax.eval_shape(vectorize(settings.env, 1).reset, jax.random.key(0), settings.env_params)
    if wanted == DEFAULT and settings.env.competitive:
        raise UserError(
            "teams compete here, and a policy that plays itself wins what it loses; say what ranks, search.metric=<name>: "
            + ", ".join(sorted(timestep.metrics))
        )
    if wanted not in timestep.metrics:
        raise unknown("search.metric, what the environment reports at the end of an episode,", wanted, timestep.metrics)


def judge(run: Run, console: Console) -> None:
    """Plays every member's best and last parameters on the final frozen episodes; writes what they reach to ``results.json``.

    A member that diverged plays with what it was before. Every process plays, the first one writes: so none waits for the others.
    """
    settings = run.settings
    final, diverged = distributed.gathered(run.members.state.learner.params), run.diverged
    params = best_or_last(run.best, final)
    episodes = settings.run.eval.final_episodes
    say(console, f"evaluating {convert.counted(len(settings.members), 'member')} on {episodes:,} episodes")
    played = report.learned(settings, params, report.FINAL_PART, episodes)
    same = same_parameters(params, final)
    last = played if same else report.learned(settings, final, report.FINAL_PART, episodes)
    updates = best_updates(run.best, run.update)
    members = [
        {"trial": member.trial, **member.place, "update": int(updates[index]), "diverged": bool(diverged[index])}
        | {"metrics": report.means(played, index), "last": report.means(last, index)}
        for index, member in enumerate(settings.members)
    ]
    distributed.first_writes(lambda: run_folder.write_results(run.folder, {"members": members}))


def finish(settings: Settings, folder: Path, console: Console) -> None:
    """Ranks the settings of a sweep whose members are all judged; leaves a table, a picture and the best one's episode.

    ``settings`` are those of the sweep or of any of its batches.
    """
    if not distributed.is_first():
        return
    settings = batch_of(settings, None, settings.run.search.batches)
    members = judged(folder, settings.run.search.batches or 1)
    ranks = ranked(settings, members)
    rivals = report.scripted(settings, report.FINAL_PART, settings.run.eval.final_episodes, lambda line: say(console, line))
    references = {name: report.means(metrics) for name, metrics in rivals}
    best = [{**rank._asdict(), "score": rank.score._asdict()} for rank in ranks]
    run_folder.write_results(folder, {"settings": best, "policies": references, "members": members})
    console.print(table(settings, ranks, references))
    for line in report.about_best(settings, np.array([member["update"] for member in members])):
        say(console, line)
    if settings.run.render:
        draw(settings, folder, ranks, references, console)
    say(console, f"results: {folder}; the best setting is trial {ranks[0].trial}: {described(ranks[0].values) or 'the only one'}")


def draw_again(settings: Settings, folder: Path, console: Console) -> None:
    """The picture of a sweep from its ``results.json``; a line where its settings have not been ranked yet."""
    path, again = folder / run_folder.RESULTS, run_folder.resume_word(folder)
    try:
        policies = run_folder.read_results(folder).get("policies") if path.exists() else None
        ranks = ranked(settings, judged(folder, settings.run.search.batches or 1)) if policies is not None else []
        references = {name: _numbers(figures) for name, figures in (policies or {}).items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"the results in {folder} are damaged or were edited; {again} evaluates again") from error
    if not ranks:
        say(console, f"no picture of the sweep: its settings have not been ranked yet; {again} does that")
        return
    draw_sweep(settings, folder, ranks, references, console)


def judged(folder: Path, batches: int) -> list[Played]:
    """What the members of all batches reached."""
    folders = [folder] if batches == 1 else [folder / run_folder.batch(index) for index in range(batches)]
    members = [member for part in folders for member in run_folder.read_results(part)["members"]]
    return [member | {key: _numbers(member[key]) for key in ("metrics", "last")} for member in members]


def is_judged(part: Settings, folder: Path) -> bool:
    """Whether ``judge`` has left results of all members in the folder of a batch, and they are as it left them."""
    try:
        results = run_folder.read_results(folder)
        members = results["members"]
        found = [(member["trial"], member["seed"], type(member["diverged"])) for member in members]
        ranked_by = [member["metrics"][part.run.search.metric] for member in members]
        numbers = [*ranked_by, *(value for member in members for key in ("metrics", "last") for value in member[key].values())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    whole = SEAL in results and found == [(member.trial, member.seed, bool) for member in part.members]
    return whole and all(value is None or isinstance(value, int | float) for value in numbers)


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Figures as JSON holds them, which has no NaN."""
    return {name: float("nan") if value is None else value for name, value in figures.items()}


def ranked(settings: Settings, members: Sequence[Played]) -> list[Ranked]:
    """The settings, best first."""
    metric, sign = settings.run.search.metric, 1 if settings.run.search.lowest else -1
    ranks = []
    for trial, values in enumerate(settings.run.search.tried or ({},)):
        own = [member for member in members if member["trial"] == trial]
        scores = [member["metrics"][metric] for member in own]
        means = {name: float(np.mean([member["metrics"][name] for member in own])) for name in own[0]["metrics"]}
        lasts, updates = ([member["last"][metric] for member in own], [member["update"] for member in own])
        last = stats.iqm(lasts) if len(lasts) > 1 else lasts[0]
        diverged = sum(member["diverged"] for member in own)
        ranks.append(Ranked(trial, values, score_of(scores), scores, diverged, means, last, updates))
    return sorted(ranks, key=lambda rank: sign * rank.score.value)


def score_of(scores: Sequence[float]) -> Estimate:
    """The interquartile mean over seeds with its bootstrap interval, the same whenever it is asked for."""
    if len(scores) == 1:
        return Estimate(scores[0], float("nan"), float("nan"))
    return stats.iqm_interval(scores, np.random.default_rng(0))


def table(settings: Settings, ranks: Sequence[Ranked], references: Mapping[str, Mapping[str, float]]) -> Table:
    """The best settings, and scripted policies below them."""
    metric, env = settings.run.search.metric, settings.env
    seeds = convert.counted(settings.run.seeds, "seed")
    title = f"{metric}, interquartile mean and 95 % interval over {seeds} × {settings.run.eval.final_episodes} frozen episodes"
    others = [name for name in (*env.display.metrics, "return", "length") if name in ranks[0].metrics and name != metric][
        :FIGURES
    ]
    diverged = any(rank.diverged for rank in ranks)
    lasts = any(rank.last != rank.score.value for rank in ranks)
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, min_width=len(title), pad_edge=False)
    made.add_column("trial", justify="right", no_wrap=True)
    made.add_column("setting", overflow="fold")
    made.caption = "last: of the last parameters; all else is of the best ones" if lasts else None
    made.caption_justify = "left"
    for heading in (metric, "95 %", *["last"] * lasts, *others, *["diverged"] * diverged):
        made.add_column(heading, justify="right", no_wrap=True)
    for rank in ranks[:SHOWN]:
        score = rank.score
        interval = f"{score.low:.4g} … {score.high:.4g}" if np.isfinite(score.low) else "–"
        figures = [_figure(rank.metrics[name], env.display.units.get(name, "")) for name in others]
        cells = [str(rank.trial), described(rank.values), f"{score.value:.4g}", interval, *[f"{rank.last:.4g}"] * lasts, *figures]
        made.add_row(*cells, *[f"{rank.diverged} of {len(rank.scores)}"] * diverged)
    if len(ranks) > SHOWN:
        made.add_row("", f"… {len(ranks) - SHOWN} more")
    for name, reached in references.items():
        cells = [_figure(reached[each], env.display.units.get(each, "")) if each in reached else "–" for each in others]
        made.add_row("", name, f"{reached[metric]:.4g}" if metric in reached else "–", "", *[""] * lasts, *cells)
    return made


def _figure(value: float, unit: str) -> str:
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()


def draw_sweep(
    settings: Settings, folder: Path, ranks: Sequence[Ranked], references: Mapping[str, Mapping[str, float]], console: Console
) -> None:
    """How the settings compare."""
    from marljax.viz.sweep_plot import sweep_picture

    metric = settings.run.search.metric
    path = folder / run_folder.SWEEP
    say(console, f"drawing the sweep: {path}")
    levels = {name: figures[metric] for name, figures in references.items() if metric in figures}
    sweep_picture(ranks, path, metric=metric, references=levels, title=settings.label)


def draw(
    settings: Settings, folder: Path, ranks: Sequence[Ranked], references: Mapping[str, Mapping[str, float]], console: Console
) -> None:
    """How the settings compare, and an episode of the best seed of the best one."""
    from marljax.training import load

    draw_sweep(settings, folder, ranks, references, console)
    loaded = load.load_members(folder, "best", ranks[0].trial, trust=True)  # trained here
    index = loaded.index_of(None, folder)
    whose = f"trial {ranks[0].trial}, seed {loaded.settings.seeds[index]}"
    report.draw_episode(loaded.settings, jax.tree.map(lambda leaf: leaf[index], loaded.params), whose, folder, console)
