"""The table of ``marljax runs``. Reads JSON and YAML only: dozens of runs take less than a second."""

import contextlib
import datetime
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from marljax.errors import UserError
from marljax.io import run_folder
from marljax.reporting import stored
from marljax.reporting.tables import decimals_for
from marljax.training.progress import short
from marljax.utils import stats

AGES = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("min", 60), ("s", 0.0))  # units and their seconds


class Found(NamedTuple):
    """A run folder and when its last session started."""

    folder: Path
    sessions: list[dict[str, Any]]
    started: float  # seconds since 1970


def newest_first(root: Path) -> list[Found]:
    """The runs below a folder; raises ``UserError`` where it does not exist."""
    if not root.is_dir():
        raise UserError(
            f"there is no folder {root}; train something first, or name the one that holds runs: marljax runs <folder>"
        )
    found = [(folder, run_folder.read_sessions(folder)) for folder in run_folder.find(root)]
    return sorted((Found(*each, _started(*each)) for each in found), key=lambda run: run.started, reverse=True)


def _started(folder: Path, sessions: Sequence[Mapping[str, Any]]) -> float:
    try:
        return datetime.datetime.fromisoformat(sessions[-1]["started"]).timestamp()
    except (LookupError, TypeError, ValueError, OverflowError):
        with contextlib.suppress(OSError):
            return os.stat(folder / run_folder.CONFIG, follow_symlinks=False).st_mtime
    return 0.0


def matches(run: Found, algo: str | None, env: str | None) -> bool:
    """Whether a run is of this algorithm and environment; None matches all, and a damaged configuration only that."""
    if algo is None and env is None:
        return True
    try:
        tree = run_folder.read_config(run.folder)
    except UserError:
        return False
    return algo in (None, tree["algo_name"], stored.algorithm(tree)) and env in (None, tree["env_name"], stored.environment(tree))


def table(runs: Sequence[Found], root: Path) -> Table:
    """A row per run."""
    result = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    result.add_column("run", overflow="fold")
    result.add_column("algorithm", no_wrap=True)
    result.add_column("environment", overflow="fold")
    for name in ("steps", "seeds"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("result", overflow="fold")
    result.add_column("age", justify="right", no_wrap=True)
    for run in runs:
        name = run.folder.relative_to(root).as_posix() if run.folder != root else root.as_posix()
        try:
            cells = _cells(run)
        except (UserError, LookupError, TypeError, ValueError, AttributeError):
            cells = ("–", "–", "–", "–", f"{run_folder.CONFIG} is damaged")
        result.add_row(*map(escape, (name, *cells, age(time.time() - run.started))))
    return result


def _cells(run: Found) -> tuple[str, str, str, str, str]:
    """Algorithm, environment, steps, seeds, result; raises whatever an edited configuration leads to."""
    tree = run_folder.read_config(run.folder)
    search, total = tree.get("search", {}), tree["algo"].get("total_steps")
    done = stored.steps_done(stored.parts(run.folder, tree))
    finished = isinstance(total, int | float) and done >= total
    steps = short(done) if finished or not isinstance(total, int | float) else f"{short(done)}/{short(total)}"
    settings = len(search.get("tried") or ())
    seeds = f"{settings} × {tree.get('seeds')}" if settings else str(tree.get("seeds"))
    try:
        result = describe(stored.read_results(run.folder), search)
    except UserError:
        how = stored.status(run.folder, run.sessions)
        damaged = (run.folder / run_folder.RESULTS).exists()
        result = f"{run_folder.RESULTS} is damaged" if damaged else "not evaluated" if how == "finished" else how
    return stored.algorithm(tree), stored.scenario(tree), steps, seeds, result


def describe(results: stored.Results, search: Mapping[str, Any]) -> str:
    """``return 63.1 ± 2.3``: the mean over seeds of the environment's first metric and its 95 % interval; of a sweep, those of
    its best setting."""
    display = results.display or stored.Display()
    seeds = [each for each in results.seeds if each.trial == results.best_trial]
    metric = stored.main_metric(seeds[0].best, display)
    if len({each.trial for each in results.seeds}) > 1 and search.get("metric") in seeds[0].best:
        metric = search["metric"]  # by which the settings were ranked
    values = np.array([each.best[metric] for each in seeds])
    if not np.isfinite(values).all():
        return f"{metric} is not finite"
    scale, unit = (100.0, "%") if display.units.get(metric) == "%" else (1.0, display.units.get(metric, ""))
    mean = stats.mean(scale * values)
    show = decimals_for([mean.high - mean.value])
    half = f" ± {show(mean.high - mean.value)}" if len(values) > 1 else ""
    best = f", best of {len(search['tried'])}" if search.get("tried") else ""
    return f"{metric} {show(mean.value)}{half} {unit}".rstrip() + best


def age(seconds: float) -> str:
    """``3 h``."""
    unit, size = next(((unit, size) for unit, size in AGES if seconds >= size), AGES[-1])
    return f"{max(0, int(seconds // (size or 1)))} {unit}"
