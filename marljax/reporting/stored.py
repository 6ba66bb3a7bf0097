"""Runs as their folders hold them: results, progress, environment. Read without JAX and without a user's code."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marljax.errors import UserError
from marljax.io import run_folder
from marljax.io.files import read_file

SWEEP = "sweep."  # prefix of swept names in the rows and results of a run
ENV = "env."  # prefix of an environment's options and params
CUSTOM = "custom"  # as a name: what ``target`` names
RETURNS = ("return", "return_0")  # of which the first that exists is the score of an environment that lists no metrics
SCENARIO = ("name", "preset", "scenario", "task", "density")  # options that name the task of an environment
TAIL = 2**16  # bytes of metrics.jsonl that hold its last row


class Display(NamedTuple):
    """How to present an environment's metrics: see ``marljax.core.environment.Display``."""

    metrics: tuple[str, ...] = ()
    units: Mapping[str, str] = {}
    lowest: tuple[str, ...] = ()


class SeedResult(NamedTuple):
    """The final evaluation of one trained seed."""

    seed: int
    trial: int  # index of its setting in a sweep
    values: dict[str, float]  # that its setting sweeps
    best: dict[str, float]  # mean metrics of the best parameters
    last: dict[str, float]


class Results(NamedTuple):
    """The final evaluation of a run."""

    seeds: list[SeedResult]
    best_trial: int  # of a sweep, as it was ranked
    display: Display | None  # None of a run of an older version, which did not record it


def main_metric(known: Iterable[str], display: Display) -> str:
    """The environment's first metric among those ``known``; its return where it lists none."""
    names = list(known)
    return next((name for name in (*display.metrics, *RETURNS) if name in names), names[0])


def read_results(folder: Path) -> Results:
    """The final evaluation of every seed of a run, or of every setting and seed of a sweep.

    Raises ``UserError`` where there is none, or it is damaged.
    """
    try:
        saved = run_folder.read_results(folder)
        if "replicas" in saved:
            seeds, best_trial = [_of_replica(replica) for replica in saved["replicas"]], int(saved["settings"][0]["trial"])
        else:
            own = {int(seed): (_numbers(metrics), _numbers(metrics["last"])) for seed, metrics in saved["seeds"].items()}
            seeds, best_trial = [SeedResult(seed, 0, {}, *metrics) for seed, metrics in own.items()], 0
        if not all(each.best and each.last for each in seeds) or not seeds:
            raise ValueError("no metrics")
        known, display = saved.get("display"), None
        if known is not None:
            display = Display(tuple(known["metrics"]), dict(known["units"]), tuple(known["lowest"]))
        return Results(seeds, best_trial, display)
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no final evaluation") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        advice = f"{run_folder.resume_argument(folder)} evaluates again"
        raise UserError(f"{folder / run_folder.RESULTS} is damaged, edited or of another version; {advice}") from error


def _of_replica(replica: Mapping[str, Any]) -> SeedResult:
    values = {name.removeprefix(SWEEP): value for name, value in replica.items() if name.startswith(SWEEP)}
    metrics = (_numbers(replica[which]) for which in ("metrics", "last"))
    return SeedResult(int(replica["seed"]), int(replica["trial"]), values, *metrics)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among the entries; None, as JSON has no NaN, becomes NaN again."""
    numbers = {name: np.nan if value is None else value for name, value in metrics.items() if name not in ("update", "last")}
    return {name: float(value) for name, value in numbers.items()}


def algorithm(tree: Mapping[str, Any]) -> str:
    """The name of a configuration's algorithm; of a user's own its module."""
    return _name(tree, "algo", ".")


def environment(tree: Mapping[str, Any]) -> str:
    """The name of a configuration's environment; of a user's own its class."""
    return _name(tree, "env", ":")


def task(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a configuration with its options and params, by name: equal for equal tasks."""
    params = tree["env_params"]
    options = {key: value for key, value in tree["env"].items() if key not in params and value is not None}
    return {"env": tree["env_name"], **{ENV + key: value for key, value in (options | params).items()}}


def scenario(tree: Mapping[str, Any]) -> str:
    """The environment and what names its task: ``merge easy``."""
    options = [tree["env"].get(name) for name in SCENARIO]
    return " ".join([environment(tree), *(option for option in options if isinstance(option, str) and option)])


def _name(tree: Mapping[str, Any], group: str, separator: str) -> str:
    name, target = tree[f"{group}_name"], tree[group].get("target")
    return target.rpartition(separator)[2] if name == CUSTOM and isinstance(target, str) else name


def parts(folder: Path, tree: Mapping[str, Any]) -> list[Path]:
    """The folders with the rows and checkpoints of a run."""
    search = tree.get("search", {})
    return run_folder.parts(folder, search.get("batches") if search.get("batch") is None else None)


def status(folder: Path, sessions: Iterable[Mapping[str, Any]]) -> str:
    """``running``, ``killed``, ``interrupted``, ``failed``, ``diverged`` or ``finished``."""
    last = ["running", *(str(session.get("status")) for session in sessions)][-1]  # without a session it is about to start
    return "killed" if last == "running" and not run_folder.is_locked(folder) else last


def steps_done(folders: Iterable[Path]) -> float:
    """Environment steps of each seed so far; of batches their mean."""
    return float(np.mean([_last_steps(folder) for folder in folders]))


def _last_steps(folder: Path) -> int:
    try:
        lines = read_file(folder / run_folder.METRICS, last=TAIL).split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["env_steps"])
        except (ValueError, LookupError, TypeError, RecursionError):  # the last one may be cut off
            continue
    return 0
