"""Trained seeds of several runs, grouped by what they were trained with. Imports no user's code."""

import dataclasses
import datetime
import functools
import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marljax.config.convert import flatten, format_value
from marljax.errors import UserError
from marljax.io import checkpoint, run_folder
from marljax.io.metrics_log import Row, read_rows
from marljax.io.run_folder import Which
from marljax.reporting import stored
from marljax.reporting.stored import ENV

VERSION = "the environment's version"
LISTED = 3  # differences that a message names


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run that has ended, and its final evaluation."""

    folder: Path
    tree: dict[str, Any]  # the resolved configuration
    results: stored.Results
    task: dict[str, Any]  # by name everything that has to agree between runs whose scores are compared
    settings: dict[str, Any]  # by key those that may explain a difference in scores

    @functools.cached_property
    def session(self) -> dict[str, Any]:
        """The session that ended the run, from ``run.json``; empty without one."""
        return next(iter(run_folder.read_sessions(self.folder)[-1:]), {})

    @property
    def swept(self) -> list[str]:
        """The names of a sweep's settings."""
        return list(self.results.seeds[0].values)


class Seed(NamedTuple):
    """A trained seed."""

    run: StoredRun
    seed: int
    metrics: Mapping[str, float]  # means of its final evaluation
    rows: list[Row]  # of metrics.jsonl; with ``seconds`` of training


@dataclasses.dataclass(frozen=True)
class Group:
    """Seeds that were trained with the same settings."""

    label: str
    settings: Mapping[str, Any]
    seeds: Sequence[Seed]


# --- reading ----------------------------------------------------------------------------------------------------------


def find_runs(names: Iterable[str]) -> list[Path]:
    """The run folders that folders and patterns (``runs/mappo_merge/*``) name, each once; files among them are left out.

    Raises ``UserError`` for a name without runs.
    """
    found: dict[Path, Path] = {}
    for name in names:
        paths = [Path(name)] if Path(name).exists() else [Path(path) for path in sorted(glob.glob(name, recursive=True))]
        runs = [run for path in paths for run in run_folder.find(path)]
        if not runs and not Path(name).is_file():
            raise UserError(f"{name} is not a run folder, and holds none")
        found |= {run.resolve(): run for run in runs if run.resolve() not in found}
    if not found:
        raise UserError("no run folder among these; name one or more, such as runs/mappo_merge/…")
    return list(found.values())


def read_runs(folders: Iterable[Path]) -> tuple[list[StoredRun], list[str]]:
    """The runs with a final evaluation, and a line on each one that is left out; raises ``UserError`` where all are."""
    runs, lines = [], []
    for folder in folders:
        try:
            tree = run_folder.read_config(folder)
            runs.append(StoredRun(folder, tree, _results(folder, tree), _task(folder, tree), _settings(tree)))
        except UserError as error:
            lines.append(f"left out: {error}")
        except (LookupError, TypeError, AttributeError):
            lines.append(f"left out: {folder / run_folder.CONFIG} is of another version of marljax, or was edited")
    if not runs:
        raise UserError(f"none of these runs can be compared; {lines[0]}")
    return runs, lines


def _results(folder: Path, tree: Mapping[str, Any]) -> stored.Results:
    if (folder / run_folder.RESULTS).exists():
        return stored.read_results(folder)
    how = stored.status(folder, run_folder.read_sessions(folder))
    done = f"{stored.steps_done(stored.parts(folder, tree)):,.0f} of {tree['algo']['total_steps']:,} steps"
    advice = "wait for it" if how == "running" else f"{run_folder.resume_argument(folder)} finishes it"
    raise UserError(f"{folder} has no final evaluation ({how}, {done}); {advice}")


def _task(folder: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    version, episodes = _env_version(stored.parts(folder, tree)), tree["eval"]["final_episodes"]
    return stored.task(tree) | {VERSION: version, "eval.final_episodes": episodes}


def _settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    replay = tree["failure_replay"] if tree["failure_replay"]["failures"] else {}
    evaluation = {key: tree["eval"][key] for key in ("every", "episodes")}  # by which the best parameters are chosen
    evaluation["greedy"] = tree["eval"].get("greedy", True)  # which older runs do not have
    return flatten({"algo": tree["algo"], "failure_replay": replay, "eval": evaluation})


def _env_version(folders: Sequence[Path]) -> str | None:
    """That of the newest checkpoint whose manifest is intact; None without one."""
    for path in (path for folder in folders for path in checkpoint.checkpoints(folder / run_folder.CHECKPOINTS)):
        try:
            return str(checkpoint.read_manifest(path)["purpose"]["env_version"])
        except (checkpoint.DamagedError, UserError, LookupError):
            continue
    return None


def _rows(run: StoredRun) -> dict[tuple, list[Row]]:
    """The rows of each replica by its seed and its values of a sweep, with the ``seconds`` of training that they came after."""
    names = [stored.SWEEP + name for name in run.swept]
    found: dict[tuple, list[Row]] = {}
    for part in stored.parts(run.folder, run.tree):
        rows = [row for row in read_rows(part) if "env_steps" in row]
        seconds = training_seconds(rows, run_folder.read_sessions(part))
        for row in rows:
            timed = row | ({"seconds": seconds[row["update"]]} if row["update"] in seconds else {})
            found.setdefault((row["seed"], *(row.get(name) for name in names)), []).append(timed)
    return found


def training_seconds(rows: Iterable[Row], sessions: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Update → seconds since training began, compilation included, without pauses between sessions and what was repeated."""
    times = {row["update"]: row["time"] for row in rows if isinstance(row.get("time"), int | float)}
    starts = []
    for session in sessions:
        try:
            starts.append(datetime.datetime.fromisoformat(session["started"]).timestamp())
        except (LookupError, TypeError, ValueError):
            continue
    elapsed, before, seconds = 0.0, -np.inf, {}
    for update, now in sorted(times.items()):
        since = max([before, *(start for start in starts if start <= now)])  # a session that started in between: after a pause
        elapsed += max(now - since, 0.0) if np.isfinite(since) else 0.0
        before, seconds[update] = now, elapsed
    return seconds


# --- what can be compared ---------------------------------------------------------------------------------------------


def check_comparable(runs: Sequence[StoredRun], judge: str = "same") -> None:
    """Raises ``UserError`` for runs whose scores are of different tasks or episodes, and names what differs.

    With ``judge="own"`` options and params of the environment may: each run was scored in its own.
    """
    first, *others = runs
    for run in runs:
        if run.tree.get("search", {}).get("judge") == "own" and any(name.startswith(ENV) for name in run.swept):
            raise UserError(f"{run.folder} evaluated each setting in its own environment (search.judge=own); leave it out")
    for run in others:
        one, other = first.task, run.task
        names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
        names = [name for name in names if judge == "same" or not name.startswith(ENV)]
        if VERSION in names and None in (one[VERSION], other[VERSION]):
            names.remove(VERSION)
        if not names:
            continue
        names = names[:1] if names[0] == "env" else names
        texts = [f"{name} is {_value(one, name)} in the first and {_value(other, name)} in the second" for name in names[:LISTED]]
        more = f", and {len(names) - LISTED} more differ" if len(names) > LISTED else ""
        advice = "" if names[0] in ("env", VERSION) else "; marljax evaluate with env.<key>=… plays each in the same environment"
        if all(name.startswith(ENV) for name in names):
            advice += ", judge=own compares scores in their own"
        raise UserError(f"{first.folder} and {run.folder} cannot be compared: {'; '.join(texts)}{more}{advice}")


def changed_settings(runs: Sequence[StoredRun]) -> list[str]:
    """What differs in the runs' environments: their options, which choose params, or else their params."""
    names = [name for name in differing([run.task for run in runs]) if name.startswith(ENV)]
    options = [name for name in names if any(name.removeprefix(ENV) not in run.tree["env_params"] for run in runs)]
    return options or names


def _value(values: Mapping[str, Any], name: str) -> str:
    return format_value(values[name]) if name in values else "not set"


# --- groups -----------------------------------------------------------------------------------------------------------


def grouped(runs: Sequence[StoredRun], which: Which) -> list[Group]:
    """The seeds of all runs in groups of equal settings, in the order of the runs.

    Runs that differ in seeds only are one group; where they share a seed, each is its own.
    """
    swept = [name for run in runs for name in run.swept if name.startswith(ENV)]
    changed = changed_settings(runs)
    found: dict[str, tuple[str, dict[str, Any], list[Seed]]] = {}
    for run in runs:
        rows, params = _rows(run), {name: run.tree["env_params"].get(name.removeprefix(ENV)) for name in swept}
        params |= {name: run.task.get(name) for name in changed}
        for result in run.results.seeds:
            own = {name if name.startswith(ENV) else f"algo.{name}": value for name, value in result.values.items()}
            settings = params | run.settings | own
            algo = stored.algorithm(run.tree)
            key = json.dumps([algo, {name: _as_float(value) for name, value in settings.items()}], sort_keys=True, default=str)
            metrics = result.best if which == "best" else result.last
            seed = Seed(run, result.seed, metrics, rows.get((result.seed, *result.values.values()), []))
            found.setdefault(key, (algo, settings, []))[2].append(seed)
    separate = [(algo, settings, part) for algo, settings, seeds in found.values() for part in _without_repeats(seeds)]
    labels = _labels(separate, changed)
    return [Group(label, settings, seeds) for label, (_, settings, seeds) in zip(labels, separate, strict=True)]


def _as_float(value: Any) -> Any:
    """A sweep's values are floats, also those of integers."""
    return float(value) if type(value) is int else value


def _without_repeats(seeds: list[Seed]) -> list[list[Seed]]:
    """All seeds together, or those of each run apart where two runs share a seed: they may be of two versions of the code."""
    if len({each.seed for each in seeds}) == len(seeds):
        return [seeds]
    by_run: dict[Path, list[Seed]] = {}
    for each in seeds:
        by_run.setdefault(each.run.folder, []).append(each)
    return list(by_run.values())


def _labels(groups: Sequence[tuple[str, Mapping[str, Any], list[Seed]]], changed: Sequence[str]) -> list[str]:
    """The algorithm, what is ``changed`` in its environment and the settings in which its groups differ; the run folder, too,
    where that is the only difference."""
    labels = []
    for algo, settings, _ in groups:
        keys = dict.fromkeys([*changed, *differing([others for name, others, _ in groups if name == algo])])
        texts = [f"{key.removeprefix('algo.')}={format_value(settings[key])}" for key in keys if key in settings]
        labels.append(" ".join([algo, *texts]))
    folders = [seeds[0].run.folder for *_, seeds in groups]
    return [
        f"{label} ({'/'.join(folder.parts[-2:])})" if labels.count(label) > 1 else label
        for label, folder in zip(labels, folders, strict=True)
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that two or more have, with different values."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({str(_as_float(each[key])) for each in settings if key in each}) > 1]
