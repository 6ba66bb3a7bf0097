"""The ranking of a sweep's settings, on the same frozen episodes, as a table and a picture."""

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
from marljax.config.sweep import RankedTrial, describe_trial
from marljax.core.vector import vectorize
from marljax.errors import UserError, unknown
from marljax.io import run_folder
from marljax.reporting import report
from marljax.training.best import best_or_last, best_updates, same_parameters
from marljax.training.load import load_replicas
from marljax.training.progress import print_line
from marljax.training.runner import Run
from marljax.utils import distributed, stats
from marljax.utils.stats import Estimate

SHOWN = 20  # settings of the table on the screen; results.json has all
DEFAULT = "return"  # metric that ranks
OTHERS = 2  # further metrics in the table

Result = dict[str, Any]  # of a replica in results.json: its seed and setting, metrics, and how its training ended
References = Mapping[str, Mapping[str, float]]  # policy → metrics


def compares(settings: Settings) -> bool:
    """Whether replicas are compared at the end: in a sweep, and where there are several batches."""
    return bool(settings.run.search.tried) or settings.run.search.batches not in (None, 1)


def check_metric(settings: Settings) -> None:
    """Raises ``UserError`` where ``search.metric`` is not a metric of the environment, or is needed because teams compete."""
    metric = settings.run.search.metric
    if metric == DEFAULT and not compares(settings):
        return
    _, timestep = jax.eval_shape(vectorize(settings.env, 1).reset, jax.random.key(0), settings.env_params)
    if metric == DEFAULT and settings.env.competitive:
        names = ", ".join(sorted(timestep.metrics))
        raise UserError(f"self-play returns are zero-sum; choose a metric with search.metric=<name>: {names}")
    if metric not in timestep.metrics:
        raise unknown("search.metric, a metric of the environment,", metric, timestep.metrics)


def evaluate_runs(run: Run, console: Console) -> None:
    """Evaluates every replica's best and last parameters on the final frozen episodes; writes ``results.json``.

    Replicas that diverged are evaluated with their last good parameters. Every process plays and the first one writes, so that
    none has to wait.
    """
    settings = run.settings
    final, diverged = distributed.gather(run.replicas.state.learner.params), run.diverged
    params = best_or_last(run.best, final)
    episodes = settings.run.eval.final_episodes
    print_line(console, f"evaluating {convert.pluralize(len(settings.replicas), 'run')} on {episodes:,} episodes")
    best = report.learned(settings, params, report.FINAL_PART, episodes)
    last = best if same_parameters(params, final) else report.learned(settings, final, report.FINAL_PART, episodes)
    updates = best_updates(run.best, run.update)
    replicas = [
        {"trial": replica.trial, **replica.row_key, "update": int(updates[index]), "diverged": bool(diverged[index])}
        | {"metrics": report.means(best, index), "last": report.means(last, index)}
        for index, replica in enumerate(settings.replicas)
    ]
    distributed.first_writes(lambda: run_folder.write_results(run.folder, {"replicas": replicas}))


def finish(settings: Settings, folder: Path, console: Console) -> None:
    """Ranks the settings of a sweep whose replicas are all evaluated; writes a table, a picture and the best one's episode.

    ``settings`` are those of the sweep or of any of its batches.
    """
    if not distributed.is_first():
        return
    settings = batch_of(settings, None, settings.run.search.batches)
    replicas = read_results(folder, settings.run.search.batches or 1)
    ranks = ranked(settings, replicas)
    baselines = report.scripted(
        settings, report.FINAL_PART, settings.run.eval.final_episodes, lambda line: print_line(console, line)
    )
    references = {name: report.means(metrics) for name, metrics in baselines}
    rows = [{**rank._asdict(), "score": rank.score._asdict()} for rank in ranks]
    display = report.displayed(settings.env)
    run_folder.write_results(folder, {"settings": rows, "policies": references, "replicas": replicas, "display": display})
    console.print(table(settings, ranks, references))
    for line in report.describe_best(settings, np.array([replica["update"] for replica in replicas])):
        print_line(console, line)
    if settings.run.render:
        report.try_curve(settings, folder, console, references)
        _draw(settings, folder, ranks, references, console)
        loaded = load_replicas(folder, "best", ranks[0].trial, trust=True)  # it was trained here
        index = loaded.index_of(None, folder)
        whose = f"trial {ranks[0].trial}, seed {loaded.settings.seeds[index]}"
        report.draw_episode(loaded.settings, jax.tree.map(lambda leaf: leaf[index], loaded.params), whose, folder, console)
    best = f"the best setting is trial {ranks[0].trial}: {describe_trial(ranks[0].values) or 'the only one'}"
    print_line(console, f"results: {folder}; {best}", always=True)


def redraw(settings: Settings, folder: Path, console: Console, picture: Path | None = None) -> None:
    """Draws the picture of a sweep from its ``results.json``; prints a line where its settings are not ranked yet.

    ``picture`` is the file, by default in the folder.
    """
    path, again = folder / run_folder.RESULTS, run_folder.resume_argument(folder)
    try:
        policies = run_folder.read_results(folder).get("policies") if path.exists() else None
        ranks = ranked(settings, read_results(folder, settings.run.search.batches or 1)) if policies is not None else []
        references = {name: _nan_for_none(metrics) for name, metrics in (policies or {}).items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"the results in {folder} are damaged or were edited; {again} evaluates again") from error
    if ranks:
        _draw(settings, folder, ranks, references, console, picture)
    else:
        print_line(console, f"no picture of the sweep: its settings have not been ranked yet; {again} does that")


def read_results(folder: Path, batches: int) -> list[Result]:
    """The results of the replicas of all batches."""
    replicas = [replica for part in run_folder.parts(folder, batches) for replica in run_folder.read_results(part)["replicas"]]
    return [replica | {key: _nan_for_none(replica[key]) for key in ("metrics", "last")} for replica in replicas]


def has_results(part: Settings, folder: Path) -> bool:
    """Whether the folder of a batch holds intact results of all replicas from ``evaluate_runs``."""
    try:
        replicas = run_folder.read_results(folder)["replicas"]
        found = [(replica["trial"], replica["seed"], type(replica["diverged"])) for replica in replicas]
        values = [replica["metrics"][part.run.search.metric] for replica in replicas]
        values += [value for replica in replicas for key in ("metrics", "last") for value in replica[key].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    complete = found == [(replica.trial, replica.seed, bool) for replica in part.replicas]
    return complete and all(value is None or isinstance(value, int | float) for value in values)


def _nan_for_none(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics from JSON, which has no NaN."""
    return {name: float("nan") if value is None else value for name, value in metrics.items()}


def ranked(settings: Settings, replicas: Sequence[Result]) -> list[RankedTrial]:
    """The settings, best first, by the interquartile mean over seeds; its bootstrap interval is deterministic."""
    metric, sign = settings.run.search.metric, 1 if settings.run.search.lowest else -1
    ranks = []
    for trial, values in enumerate(settings.run.search.tried or ({},)):
        own = [replica for replica in replicas if replica["trial"] == trial]
        scores, lasts = ([replica[key][metric] for replica in own] for key in ("metrics", "last"))
        means = {name: float(np.mean([replica["metrics"][name] for replica in own])) for name in own[0]["metrics"]}
        if len(own) == 1:
            score, last = Estimate(scores[0], float("nan"), float("nan")), lasts[0]
        else:
            score, last = stats.iqm_interval(scores, np.random.default_rng(0)), stats.iqm(lasts)
        diverged = sum(replica["diverged"] for replica in own)
        ranks.append(RankedTrial(trial, values, score, scores, diverged, means, last, [replica["update"] for replica in own]))
    return sorted(ranks, key=lambda rank: sign * rank.score.value)


def table(settings: Settings, ranks: Sequence[RankedTrial], references: References) -> Table:
    """The best settings, and the scripted policies below them."""
    metric, display = settings.run.search.metric, settings.env.display
    seeds = convert.pluralize(settings.run.seeds, "seed")
    title = f"{metric}, interquartile mean and 95 % interval over {seeds} × {settings.run.eval.final_episodes} frozen episodes"
    others = [name for name in (*display.metrics, "return", "length") if name in ranks[0].metrics and name != metric][:OTHERS]
    with_diverged = any(rank.diverged for rank in ranks)
    with_last = any(rank.last != rank.score.value for rank in ranks)

    def cells(metrics: Mapping[str, float]) -> list[str]:
        texts = []
        for name in others:
            value, unit = metrics.get(name), display.units.get(name, "")
            if value is None:
                texts.append("–")
            else:
                texts.append(f"{100 * value:.1f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip())
        return texts

    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, min_width=len(title), pad_edge=False)
    result.caption = "last: of the last parameters; all else is of the best ones" if with_last else None
    result.caption_justify = "left"
    result.add_column("trial", justify="right", no_wrap=True)
    result.add_column("setting", overflow="fold")
    for heading in (metric, "95 %", *["last"] * with_last, *others, *["diverged"] * with_diverged):
        result.add_column(heading, justify="right", no_wrap=True)
    for rank in ranks[:SHOWN]:
        score = rank.score
        interval = f"{score.low:.4g} … {score.high:.4g}" if np.isfinite(score.low) else "–"
        row = [str(rank.trial), describe_trial(rank.values), f"{score.value:.4g}", interval, *[f"{rank.last:.4g}"] * with_last]
        result.add_row(*row, *cells(rank.metrics), *[f"{rank.diverged} of {len(rank.scores)}"] * with_diverged)
    if len(ranks) > SHOWN:
        result.add_row("", f"… {len(ranks) - SHOWN} more")
    for name, metrics in references.items():
        value = f"{metrics[metric]:.4g}" if metric in metrics else "–"
        result.add_row("", name, value, "", *[""] * with_last, *cells(metrics))
    return result


def _draw(
    settings: Settings,
    folder: Path,
    ranks: Sequence[RankedTrial],
    references: References,
    console: Console,
    path: Path | None = None,
) -> None:
    """The comparison of the settings as a picture."""
    from marljax.viz.sweep_plot import sweep_picture

    metric, path = settings.run.search.metric, path or folder / run_folder.SWEEP
    print_line(console, f"drawing the sweep: {path}")
    levels = {name: metrics[metric] for name, metrics in references.items() if metric in metrics}
    sweep_picture(ranks, path, metric=metric, references=levels, title=report.heading(settings, folder))
