"""The settings of a sweep, judged on the same frozen episodes and ranked, as a table and a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from marljax import fields, hosts, report, runfolder, stats
from marljax.driver import Run, best_or_last
from marljax.errors import UserError, unknown
from marljax.progress import say
from marljax.settings import Settings, batch_of
from marljax.stats import Estimate
from marljax.sweep import Trial, described
from marljax.vector import vectorize

SHOWN = 20  # settings of the table on the screen; results.json has all
DEFAULT = "return"  # by what settings are ranked
FIGURES = 2  # of the environment, beside what ranks

Played = dict[str, Any]  # a member's place, its metrics and how its training ended, as results.json holds it


class Ranked(NamedTuple):
    """A setting and what its seeds reached."""

    trial: int  # its number
    values: Trial
    score: Estimate  # interquartile mean over seeds; no bounds for a single one
    scores: list[float]  # of each seed
    diverged: int  # seeds that did
    metrics: dict[str, float]  # means over seeds and episodes


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
    """Plays the best parameters of every member on the final frozen episodes, and writes what they reach to ``results.json``.

    A member that diverged plays with what it was before. Every process plays, the first one writes: so none waits for the others.
    """
    settings = run.settings
    params, diverged = best_or_last(run.best, hosts.gathered(run.members.state.learner.params)), run.diverged
    episodes = settings.run.eval.final_episodes
    say(console, f"evaluating {fields.counted(len(settings.members), 'member')} on {episodes:,} episodes")
    played = report.learned(settings, params, report.FINAL_PART, episodes)
    updates = np.where(np.isfinite(run.best.score), run.best.update, run.update)
    members = [
        {"trial": member.trial, **member.place, "update": int(updates[index]), "diverged": bool(diverged[index])}
        | {"metrics": {name: float(values[index].mean()) for name, values in played.items()}}
        for index, member in enumerate(settings.members)
    ]
    hosts.first_writes(lambda: runfolder.write_results(run.folder, {"members": members}))


def finish(settings: Settings, folder: Path, console: Console) -> None:
    """Ranks the settings of a sweep whose members are all judged; leaves a table, a picture and the best one's episode.

    ``settings`` are those of the sweep or of any of its batches.
    """
    if not hosts.is_first():
        return
    settings = batch_of(settings, None, settings.run.search.batches)
    members = judged(folder, settings.run.search.batches or 1)
    ranks = ranked(settings, members)
    rivals = report.scripted(settings, report.FINAL_PART, settings.run.eval.final_episodes, lambda line: say(console, line))
    references = {name: {key: float(values.mean()) for key, values in metrics.items()} for name, metrics in rivals}
    best = [{**rank._asdict(), "score": rank.score._asdict()} for rank in ranks]
    runfolder.write_results(folder, {"settings": best, "policies": references, "members": members})
    console.print(table(settings, ranks, references))
    if settings.run.render:
        draw(settings, folder, ranks, references, console)
    say(console, f"results: {folder}; the best setting is trial {ranks[0].trial}: {described(ranks[0].values) or 'the only one'}")


def judged(folder: Path, batches: int) -> list[Played]:
    """What the members of all batches reached."""
    folders = [folder] if batches == 1 else [folder / runfolder.batch(index) for index in range(batches)]
    members = [
        member for part in folders for member in json.loads((part / runfolder.RESULTS).read_text(encoding="utf-8"))["members"]
    ]
    return [member | {"metrics": {name: _number(value) for name, value in member["metrics"].items()}} for member in members]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def ranked(settings: Settings, members: Sequence[Played]) -> list[Ranked]:
    """The settings, best first."""
    metric, sign = settings.run.search.metric, 1 if settings.run.search.lowest else -1
    ranks = []
    for trial, values in enumerate(settings.run.search.tried or ({},)):
        own = [member for member in members if member["trial"] == trial]
        scores = [member["metrics"][metric] for member in own]
        means = {name: float(np.mean([member["metrics"][name] for member in own])) for name in own[0]["metrics"]}
        ranks.append(Ranked(trial, values, score_of(scores), scores, sum(member["diverged"] for member in own), means))
    return sorted(ranks, key=lambda rank: sign * rank.score.value)


def score_of(scores: Sequence[float]) -> Estimate:
    """The interquartile mean over seeds with its bootstrap interval, the same whenever it is asked for."""
    if len(scores) == 1:
        return Estimate(scores[0], float("nan"), float("nan"))
    return stats.iqm_interval(scores, np.random.default_rng(0))


def table(settings: Settings, ranks: Sequence[Ranked], references: Mapping[str, Mapping[str, float]]) -> Table:
    """The best settings, and scripted policies below them."""
    metric, env = settings.run.search.metric, settings.env
    seeds = fields.counted(settings.run.seeds, "seed")
    title = f"{metric}, interquartile mean and 95 % interval over {seeds} × {settings.run.eval.final_episodes} frozen episodes"
    others = [name for name in (*env.figures, "return", "length") if name in ranks[0].metrics and name != metric][:FIGURES]
    diverged = any(rank.diverged for rank in ranks)
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, min_width=len(title), pad_edge=False)
    made.add_column("trial", justify="right", no_wrap=True)
    made.add_column("setting", overflow="fold")
    for heading in (metric, "95 %", *others, *["diverged"] * diverged):
        made.add_column(heading, justify="right", no_wrap=True)
    for rank in ranks[:SHOWN]:
        score = rank.score
        interval = f"{score.low:.4g} … {score.high:.4g}" if np.isfinite(score.low) else "–"
        figures = [_figure(rank.metrics[name], env.units.get(name, "")) for name in others]
        cells = [str(rank.trial), described(rank.values), f"{score.value:.4g}", interval, *figures]
        made.add_row(*cells, *[f"{rank.diverged} of {len(rank.scores)}"] * diverged)
    if len(ranks) > SHOWN:
        made.add_row("", f"… {len(ranks) - SHOWN} more")
    for name, reached in references.items():
        cells = [_figure(reached[each], env.units.get(each, "")) if each in reached else "–" for each in others]
        made.add_row("", name, f"{reached[metric]:.4g}" if metric in reached else "–", "", *cells)
    return made


def _figure(value: float, unit: str) -> str:
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()


def draw(
    settings: Settings, folder: Path, ranks: Sequence[Ranked], references: Mapping[str, Mapping[str, float]], console: Console
) -> None:
    """How the settings compare, and an episode of the best seed of the best one."""
    from marljax import trained
    from marljax.sweepplot import sweep_picture

    metric = settings.run.search.metric
    path = folder / runfolder.SWEEP
    say(console, f"drawing the sweep: {path}")
    levels = {name: figures[metric] for name, figures in references.items() if metric in figures}
    sweep_picture(ranks, path, metric=metric, references=levels, title=settings.title.replace("_", " on ", 1))
    policy = trained.load(folder, trial=ranks[0].trial)
    say(console, f"drawing an episode of trial {ranks[0].trial}, seed {policy.seed}: {folder / runfolder.EPISODE}")
    own, charts = trained.of_trial(settings, ranks[0].trial), folder / runfolder.CHARTS
    try:
        report.animate(own, policy.params, report.suite_key(report.FINAL_PART), folder / runfolder.EPISODE, charts)
    except UserError as error:
        say(console, f"no animation: {error}")
