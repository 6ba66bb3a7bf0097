"""The command ``marljax evaluate``, and what all commands on run folders share."""

import dataclasses
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from marljax.cli.exit_status import reject_flags
from marljax.cli.help import explained
from marljax.cli.train import enable_compilation_cache
from marljax.config import compose, convert
from marljax.config.schema import Group
from marljax.core.fields import option
from marljax.errors import UserError, unknown
from marljax.io import run_folder, terminal
from marljax.io.run_folder import Which
from marljax.training import evaluation, load, policy_file
from marljax.training.load import Loaded

ALGO_TARGET = "algo.target"
TABLES = (".csv", ".json", ".tex")  # formats


@dataclasses.dataclass(frozen=True)
class RunOptions(Group):
    """Options of every command that reads a run folder."""

    trust: bool = option(False, help="import env.target of a run that was not trained here: it may run any code")


@dataclasses.dataclass(frozen=True)
class PlotOptions(RunOptions):
    """Options of ``marljax plot``."""

    out: str | None = option(None, help="file for the curve: .png, .svg or .pdf; null: curve.png in the run folder")


@dataclasses.dataclass(frozen=True)
class PolicyOptions(RunOptions):
    """Options of the commands that play episodes."""

    suite: int = option(0, low=0, high=evaluation.SUITES - 1, help="set of episodes; no two have one in common")
    which: Which = option("best", choices=typing.get_args(Which), help="parameters of every seed")
    trial: int | None = option(None, help="setting of a sweep; null: the best")
    greedy: bool | None = option(None, help="take the likeliest actions; false: act as in training; null: eval.greedy of the run")


@dataclasses.dataclass(frozen=True)
class EvaluateOptions(PolicyOptions):
    """Options of ``marljax evaluate``."""

    episodes: int = option(320, low=1, high=evaluation.PARTS_PER_SUITE, help="for every seed of the run")
    out: str | None = option(None, help="file to write the table to: .csv or .json, also of each seed, or .tex; null: none")


Options = TypeVar("Options", bound=RunOptions)


def evaluate(arguments: Sequence[str]) -> int:
    """Prints a table of fresh episodes: the trained policy's next to scripted ones'."""
    meaning = "Plays episodes that neither training nor its evaluations used, the same for every policy, and prints a table."
    if explained(arguments, "evaluate <run folder> [key=value …]", meaning, EvaluateOptions, "env.<key>=…"):
        return 0
    folder, options, changes = folder_and_options(arguments, EvaluateOptions)
    out = output_file(options.out, TABLES)

    from marljax.reporting import report
    from marljax.training.best import best_updates
    from marljax.training.progress import print_line

    loaded = load_run(folder, options, changes)
    settings, screen = loaded.settings, terminal.screen()
    part = evaluation.fresh_part(options.suite)
    rows = report.compare(settings, loaded.params, part, options.episodes, lambda line: print_line(screen, line))
    screen.print(report.table(settings, rows, options.episodes, "fresh", screen.width))
    if out is not None:
        report.write_table(settings, rows, options.episodes, "fresh", out)
        print_line(screen, f"table: {out}")
    if options.which == "best":
        for line in report.describe_best(settings, best_updates(loaded.best, loaded.update)):
            print_line(screen, line)
    return 0


def load_run(folder: Path, options: PolicyOptions, changes: dict[str, Any], update: int | None = None) -> Loaded:
    """The trained policies of a run, or those of a checkpoint, with changes to its environment."""
    enable_compilation_cache()
    loaded = load.load_replicas(folder, options.which, options.trial, options.trust, changes, update)
    for line in loaded.warnings:
        print(f"warning: {line}", file=sys.stderr)
    env_changes = {key.removeprefix("env."): value for key, value in changes.items() if key.startswith("env.")}
    if env_changes.get("target") == loaded.settings.tree["env"].get("target"):
        env_changes.pop("target", None)  # repeated to allow its import, not changed
    settings = load.with_env(loaded.settings, env_changes)
    if options.greedy is not None:
        evaluated = dataclasses.replace(settings.run.eval, greedy=options.greedy)
        settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, eval=evaluated))
    return loaded._replace(settings=settings)


def output_file(out: str | None, suffixes: tuple[str, ...]) -> Path | None:
    """The file of an option ``out``; ``UserError`` for one that cannot be written, before anything is computed for it."""
    if out is None:
        return None
    path, known = Path(out), f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
    if path.suffix.lower() not in suffixes:
        raise UserError(f"out={out} has no known format; its name has to end in {known}")
    if not path.parent.is_dir():
        raise UserError(f"out={out}: there is no folder {path.parent}; create it, or choose another")
    return path


def folder_and_options(arguments: Sequence[str], kind: type[Options]) -> tuple[Path, Options, dict[str, Any]]:
    """The run folder, the command's options, and by key the changes to the environment and repeated targets."""
    folder, *overrides = arguments
    reject_flags(overrides)
    names: list[str] = convert.names(kind)
    key = folder.partition("=")[0]
    if "=" in folder and (key in names or key.startswith("env.")) and not Path(folder).is_dir():
        raise UserError(f"name the run folder first, then {folder}")
    values, changes = {}, {}
    for key, value in compose.parse(overrides).items():
        if key in names:
            values[key] = value
        elif key.startswith("env.") or key == ALGO_TARGET:
            changes[key] = value
        else:
            raise unknown("option", key, [*names, "env.target" if kind is PlotOptions else "env.<key>"])
    options = convert.build(kind, "", values)
    if not policy_file.is_policy_file(Path(folder)):
        run_folder.read_config(Path(folder))  # an error if it is none, before the heavy imports
    return Path(folder), options, changes
