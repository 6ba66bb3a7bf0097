"""The command ``marljax compare``."""

import dataclasses
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path

from marljax.cli.exit_status import reject_flags
from marljax.cli.help import explained
from marljax.config import compose, convert
from marljax.config.schema import Group
from marljax.core.fields import option
from marljax.errors import unknown
from marljax.io import terminal
from marljax.io.files import output_stem
from marljax.io.run_folder import Which

MEANING = """Compares runs on one task by the final evaluation of every seed: a table, and compare.md, .csv, .png and .svg. Takes
run folders, folders of them, and patterns. Seeds with equal settings are a group, and so is every setting of a sweep."""


@dataclasses.dataclass(frozen=True)
class CompareOptions(Group):
    """Options of ``marljax compare``."""

    metric: str | None = option(None, help="of the final evaluation; null: the environment's first one")
    lowest: bool | None = option(None, help="less is better; null: as the environment says")
    which: Which = option("best", choices=typing.get_args(Which), help="parameters of every seed")
    judge: str = option("same", choices=("same", "own"), help="own: env.* may differ, each run was scored in its own environment")
    out: str = option("compare", help="files to write, without their ending, or a folder for compare.md and the others")


def compare(arguments: Sequence[str]) -> int:
    """Prints and writes a comparison of runs."""
    if explained(arguments, "compare <run folder> … [key=value …]", MEANING, CompareOptions):
        return 0
    names, options = names_and_options(arguments)

    from marljax.reporting import comparison, groups, stored
    from marljax.training.progress import print_line

    runs, left_out = groups.read_runs(groups.find_runs(names))
    groups.check_comparable(runs, options.judge)
    metric, unrecorded = comparison.choose_metric(runs, options.metric, options.lowest)
    found, tasks = groups.grouped(runs, options.which), {stored.scenario(run.tree) for run in runs}
    changed = groups.changed_settings(runs)
    own = [f"each run was scored in its own environment: {', '.join(changed)} differ"] if changed else []
    task = tasks.pop() if len(tasks) == 1 else stored.environment(runs[0].tree)
    compared = comparison.compare(found, metric, options.which, task, [*left_out, *unrecorded, *own])
    screen = terminal.screen()
    screen.print(comparison.table(compared))
    for line in compared.notes:
        print_line(screen, f"note: {line}")
    stem = output_stem(options.out, "compare")
    comparison.write(compared, stem, shlex.join(["marljax", "compare", *arguments]))
    print_line(screen, f"written: {stem}.md, .csv, .png, .svg")
    return 0


def names_and_options(arguments: Sequence[str]) -> tuple[list[str], CompareOptions]:
    """The folders and patterns, and the options."""
    reject_flags(arguments)
    keys = convert.names(CompareOptions)
    names, overrides = [], []
    for text in arguments:
        key, equals, _ = text.partition("=")
        if not equals or Path(text).exists():
            names.append(text)
        elif key in keys:
            overrides.append(text)
        else:
            raise unknown("option", key, keys)
    return names, convert.build(CompareOptions, "", compose.parse(overrides))
