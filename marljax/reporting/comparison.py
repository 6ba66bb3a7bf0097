"""The comparison of groups of trained seeds: statistics, a table, and files. Scores are those of one task."""

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from marljax.config.convert import format_value
from marljax.errors import UserError, unknown
from marljax.io.files import REPORT, replacing
from marljax.io.run_folder import Which
from marljax.reporting.groups import Group, StoredRun, differing
from marljax.reporting.stored import RETURNS, Display, main_metric
from marljax.reporting.tables import decimals_for, markdown_table
from marljax.training.progress import FEWEST_SEEDS
from marljax.utils import stats
from marljax.utils.stats import Estimate
from marljax.version import __version__
from marljax.viz import comparison as picture
from marljax.viz import learning_curve
from marljax.viz.learning_curve import EVALUATED

NO_INTERVAL = (float("nan"), float("nan"))
NAMED = 4  # groups up to which the title of a page lists them
MATRIX = 12  # groups up to which each is compared with each; of more, each with the first
METHOD = f"""Scores are a seed's mean over the frozen episodes that end every run; all intervals are 95 %.

- *mean*: with Student's t interval over seeds.
- *IQM*: the mean without the lowest and the highest quarter of the seeds, with a bootstrap interval over seeds
  (percentiles of {stats.SAMPLES:,} samples).
- *Probability of improvement*, P(X > Y): how likely a seed of X is better than one of Y; ties count half. Seeds of both groups
  are drawn for its interval.
- *Performance profile*: the share of seeds that are better than τ.
- *Time*: seconds of training, compilation included, of the program that trains all seeds of a run at once; without the pauses
  of a run that was stopped and resumed. A group's curve ends with the first of its runs.

All but mean and time are those of Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice*.
"""


@dataclasses.dataclass(frozen=True)
class Metric:
    """What is compared."""

    name: str
    unit: str
    lowest: bool  # whether less is better

    @property
    def scale(self) -> float:
        """A rate is shown in per cent."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def direction(self) -> str:
        return "lower is better" if self.lowest else "higher is better"


@dataclasses.dataclass(frozen=True)
class Line:
    """A group's scores [R], in the metric's unit, and their statistics."""

    group: Group
    scores: np.ndarray
    mean: Estimate
    iqm: Estimate


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All groups, compared by one metric."""

    metric: Metric
    task: str
    which: Which
    episodes: int  # of the final evaluation
    lines: list[Line]
    better: dict[tuple[int, int], Estimate]  # (i, j): probability that a seed of group i is better than one of group j
    notes: list[str]  # lines on what limits the comparison


def choose_metric(runs: Sequence[StoredRun], name: str | None, lowest: bool | None) -> tuple[Metric, list[str]]:
    """The metric to compare, by default the task's first, and lines on what is not known of it.

    Raises ``UserError`` where some run lacks it, and where teams compete and none is named.
    """
    lines = []
    known = [metric for metric in runs[0].results.seeds[0].best if all(metric in run.results.seeds[0].best for run in runs)]
    display = next((run.results.display for run in runs if run.results.display), None)
    if display is None:
        display = Display()
        lines.append("these runs' marljax did not record the environment's metrics and units; metric= and lowest= choose")
    if name is not None and name not in known:
        raise unknown("metric of these runs", name, known)
    if name is None and RETURNS[0] not in known and RETURNS[1] in known:
        raise UserError(f"self-play returns are zero-sum; choose a metric with metric=<name>: {', '.join(known)}")
    chosen = name or main_metric(known, display)
    return Metric(chosen, display.units.get(chosen, ""), chosen in display.lowest if lowest is None else lowest), lines


def compare(groups: Sequence[Group], metric: Metric, which: Which, task: str, notes: Sequence[str] = ()) -> Comparison:
    """The statistics of all groups; raises ``UserError`` for scores that are not finite."""
    lines = [_line(group, metric) for group in groups]
    sign = -1.0 if metric.lowest else 1.0
    better: dict[tuple[int, int], Estimate] = {}
    for i, ours in enumerate(lines):
        for j, theirs in enumerate(lines[: i if len(lines) <= MATRIX else min(i, 1)]):
            chance = _improvement(sign * ours.scores, sign * theirs.scores)
            better |= {(i, j): chance, (j, i): Estimate(1 - chance.value, 1 - chance.high, 1 - chance.low)}
    episodes = groups[0].seeds[0].run.tree["eval"]["final_episodes"]
    return Comparison(metric, task, which, episodes, lines, better, [*notes, *_notes(groups)])


def _line(group: Group, metric: Metric) -> Line:
    scores = metric.scale * np.array([seed.metrics[metric.name] for seed in group.seeds])
    for seed, score in zip(group.seeds, scores, strict=True):
        if not np.isfinite(score):
            raise UserError(f"{metric.name} of {seed.run.folder}, seed {seed.seed}, is not finite; choose another with metric=")
    if len(scores) == 1:
        single = Estimate(float(scores[0]), *NO_INTERVAL)
        return Line(group, scores, single, single)
    mean = stats.mean(scores, 0.0, 100.0) if metric.unit == "%" else stats.mean(scores)
    return Line(group, scores, mean, stats.iqm_interval(scores, np.random.default_rng(0)))


def _improvement(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    if min(len(ours), len(theirs)) == 1:
        return Estimate(stats.probability_of_improvement(ours, theirs), *NO_INTERVAL)
    return stats.improvement_interval(ours, theirs, np.random.default_rng(0))


def _notes(groups: Sequence[Group]) -> list[str]:
    """Lines on what limits the comparison."""
    notes = []
    same = [[group.seeds[0].run.tree["algo_name"], dict(group.settings)] for group in groups]
    if repeated := [group.label for group, own in zip(groups, same, strict=True) if same.count(own) > 1]:
        notes.append(f"the same settings and seeds in several runs, each of which is a group: {', '.join(repeated)}")
    if few := [group.label for group in groups if len(group.seeds) < FEWEST_SEEDS]:
        notes.append(f"fewer than {FEWEST_SEEDS} seeds, few for an interval: {', '.join(few)}")
    for group in groups:
        ends: dict[Path, int] = {}
        for seed in group.seeds:
            last = max((row["update"] for row in seed.rows), default=0)
            ends[seed.run.folder] = max(ends.get(seed.run.folder, 0), last)
        for seed in group.seeds:
            if seed.rows and max(row["update"] for row in seed.rows) < ends[seed.run.folder]:
                notes.append(f"{group.label}: seed {seed.seed} of {seed.run.folder} diverged; its parameters from before count")
    steps = {group.label: f"{group.settings['algo.total_steps']:,}" for group in groups if "algo.total_steps" in group.settings}
    for name, values in {"env steps": steps, "devices": _devices(groups)}.items():
        if len({*values.values()}) > 1:
            consequence = "; seconds cannot be compared" if name == "devices" else ""
            notes.append(f"different {name}: {', '.join(f'{label} {value}' for label, value in values.items())}{consequence}")
    return notes


def _devices(groups: Sequence[Group]) -> dict[str, str]:
    found = {}
    for group in groups:
        devices = [seed.run.session.get("device") for seed in group.seeds]
        names = dict.fromkeys(f"{device.get('kind')} × {device.get('count')}" for device in devices if isinstance(device, dict))
        if names:
            found[group.label] = ", ".join(names)
    return found


# --- on the screen and in files ---------------------------------------------------------------------------------------


def table(compared: Comparison) -> Table:
    """A row per group: mean, interquartile mean, probability of improvement over the first group."""
    title = escape(_title(compared))
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, min_width=len(title))
    result.add_column("group", overflow="fold")
    for name in _columns(compared):
        result.add_column(name, justify="right", no_wrap=True)
    for cells in _rows(compared):
        result.add_row(*map(escape, cells))
    return result


def _title(compared: Comparison) -> str:
    metric = compared.metric
    return f"{metric.title} on {compared.task}, {metric.direction}; [95 % interval over seeds]"


def _columns(compared: Comparison) -> list[str]:
    versus = ["P(better than 1st)"] if len(compared.lines) > 1 else []
    return ["seeds", "mean", "IQM", *versus]


def _rows(compared: Comparison) -> list[list[str]]:
    rows, show = [], decimals_for((line.mean.high - line.mean.low) / 2 for line in compared.lines)
    for index, line in enumerate(compared.lines):
        cells = [line.group.label, str(len(line.scores)), _interval(line.mean, show), _interval(line.iqm, show)]
        if len(compared.lines) > 1:
            cells.append(_interval(compared.better[index, 0], "{:.2f}".format) if index else "")
        rows.append(cells)
    return rows


def _interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    """``63.1 [60.2, 66.0]``."""
    interval = f" [{show(estimate.low)}, {show(estimate.high)}]" if np.isfinite(estimate.low) else ""
    return f"{show(estimate.value)}{interval}"


def write(compared: Comparison, stem: Path, command: str) -> None:
    """``<stem>.md``, ``.csv``, ``.png`` and ``.svg``; raises ``UserError`` where they cannot be written."""
    paths = {kind: stem.with_name(f"{stem.name}{kind}") for kind in REPORT}
    for kind, text in ((".csv", _csv(compared)), (".md", _markdown(compared, command, paths[".png"].name))):
        with replacing(paths[kind]) as draft:
            draft.write_text(text, encoding="utf-8")
    metric = compared.metric
    every_row = [seed.rows for line in compared.lines for seed in line.group.seeds if seed.rows]
    evaluated = all(any(EVALUATED + metric.name in row for row in rows) for rows in every_row)
    key = EVALUATED + metric.name if evaluated else metric.name
    picture.comparison_picture(
        [_shown(line, key, metric.scale) for line in compared.lines],
        [paths[".png"], paths[".svg"]],
        metric=metric.title,
        lowest=metric.lowest,
        curves="evaluation" if evaluated else "training",
        title=f"{metric.title} on {compared.task}, {metric.direction}",
    )


def _csv(compared: Comparison) -> str:
    """Every metric of every seed, in long form."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "seed", "run", "metric", "score"])
    for line in compared.lines:
        for seed in line.group.seeds:
            writer.writerows(
                [line.group.label, seed.seed, seed.run.folder, name, value] for name, value in sorted(seed.metrics.items())
            )
    return text.getvalue()


def _markdown(compared: Comparison, command: str, figure: str) -> str:
    labels = [line.group.label for line in compared.lines]
    sessions = [seed.run.session for line in compared.lines for seed in line.group.seeds]
    versions = {f"{name} {version}" for session in sessions for name, version in dict(session.get("versions") or {}).items()}
    metric = compared.metric
    sections = [
        f"# {metric.title} on {compared.task}: {', '.join(labels) if len(labels) <= NAMED else f'{len(labels)} groups'}",
        f"```bash\n{command}\n```\nmarljax {__version__}; the runs: {', '.join(sorted(versions)) or 'of unknown versions'}.",
        f"The {compared.which} parameters of every seed on the same {compared.episodes} frozen episodes; {metric.direction}.",
        markdown_table(["group", *_columns(compared)], _rows(compared)),
        *["\n".join(f"- {note}" for note in compared.notes)] * bool(compared.notes),
        f"![Learning curves, performance profile, mean and interquartile mean]({figure})",
    ]
    if 1 < len(labels) <= MATRIX:
        numbers = [f"{index + 1}" for index in range(len(labels))]
        rows = [
            [f"{number}: {label}", *_chances(compared, int(number) - 1)] for number, label in zip(numbers, labels, strict=True)
        ]
        sections += ["## Probability that a seed of the row is better than one of the column"]
        sections += [markdown_table(["", *numbers], rows)]
    settings = [line.group.settings for line in compared.lines]
    if keys := differing(settings):
        rows = [[key, *(format_value(each[key]) if key in each else "–" for each in settings)] for key in keys]
        sections += ["## Settings that differ", markdown_table(["", *labels], rows)]
    rows = [[line.group.label, folder, seeds] for line in compared.lines for folder, seeds in _folders(line.group).items()]
    sections += ["## Runs", markdown_table(["group", "run folder", "seeds"], rows), "## Method", METHOD]
    return "\n\n".join(sections)


def _chances(compared: Comparison, row: int) -> list[str]:
    count = len(compared.lines)
    return ["" if row == other else _interval(compared.better[row, other], "{:.2f}".format) for other in range(count)]


def _folders(group: Group) -> Mapping[str, str]:
    """Run folder → its seeds."""
    seeds: dict[str, list[str]] = {}
    for each in group.seeds:
        seeds.setdefault(str(each.run.folder), []).append(str(each.seed))
    return {folder: ", ".join(numbers) for folder, numbers in seeds.items()}


def _shown(line: Line, key: str, scale: float) -> picture.Shown:
    """A group for the picture, with the curves of one column of its rows."""
    rows = [row | {"seed": index} for index, seed in enumerate(line.group.seeds) for row in seed.rows]
    steps, values = learning_curve.curve(rows, key)
    timed = [
        [(row["seconds"], row[key]) for row in seed.rows if "seconds" in row and row.get(key) is not None]
        for seed in line.group.seeds
    ]
    seconds, at_seconds = _over_time([np.array(points, float).T for points in timed if points])
    return picture.Shown(
        line.group.label, line.scores, line.mean, line.iqm, (steps, scale * values), (seconds, scale * at_seconds)
    )


def _over_time(seeds: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds [X] and values [S, X], interpolated, from pairs [2, points] of each seed, over the time in which all trained."""
    if not seeds:
        return np.zeros(0), np.zeros((0, 0))
    begin, end = max(times[0] for times, _ in seeds), min(times[-1] for times, _ in seeds)
    every = np.unique(np.concatenate([times for times, _ in seeds]))
    seconds = every[(every >= begin) & (every <= end)]
    return seconds, np.array([np.interp(seconds, times, values) for times, values in seeds])
