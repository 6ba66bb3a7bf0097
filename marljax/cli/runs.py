"""The command ``marljax runs``, which starts without JAX."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from marljax.cli.exit_status import HELP_FLAGS, reject_flags
from marljax.errors import UserError, unknown

MEANING = "Lists the runs below a folder, newest first, with the mean of their final evaluation and its 95 % interval over seeds."

PIPED_WIDTH = 200  # columns where no terminal sets a width: a run stays on one line for grep


@dataclasses.dataclass(frozen=True)
class RunsOptions:
    """Options of ``marljax runs``; ``option`` would declare them, but imports JAX."""

    algo: str | None = dataclasses.field(default=None, metadata={"help": "only runs of this algorithm"})
    env: str | None = dataclasses.field(default=None, metadata={"help": "only runs in this environment"})
    limit: int = dataclasses.field(default=20, metadata={"help": "at most as many runs, the newest ones"})


def runs(arguments: Sequence[str]) -> int:
    """Prints a table of runs."""
    if {*HELP_FLAGS} & {*arguments}:
        from marljax.cli.help import explained

        explained(arguments, "runs [folder] [key=value …]", f"{MEANING} The folder is runs by default.", RunsOptions)
        return 0
    from marljax.io import terminal
    from marljax.reporting import run_list

    root, options = folder_and_options(arguments)
    found = run_list.newest_first(root)
    chosen = [run for run in found if run_list.matches(run, options.algo, options.env)]
    screen = terminal.screen()
    if not screen.is_terminal:
        screen.width = PIPED_WIDTH
    if not chosen:
        filters = " ".join(f"{name}={getattr(options, name)}" for name in ("algo", "env") if getattr(options, name))
        print(f"{root} holds no runs" if not found else f"none of the {len(found)} runs in {root} has {filters}")
        return 0
    screen.print(run_list.table(chosen[: options.limit], root))
    if len(chosen) > options.limit:
        print(f"older runs: {len(chosen) - options.limit}; limit={len(chosen)} lists all")
    return 0


def folder_and_options(arguments: Sequence[str]) -> tuple[Path, RunsOptions]:
    """The folder, ``runs`` by default, and the options."""
    reject_flags(arguments)
    names = [field.name for field in dataclasses.fields(RunsOptions)]
    folders, values = [], {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or Path(text).is_dir():
            folders.append(text)
        elif key in names:
            values[key] = value
        else:
            raise unknown("option", key, names)
    if len(folders) > 1:
        raise UserError(f"runs lists one folder, and {' and '.join(folders)} are several; name one that holds them")
    limit = values.pop("limit", str(RunsOptions.limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise UserError(f"limit={limit} is not a number of runs; write limit=50")
    return Path(*folders or ["runs"]), RunsOptions(limit=int(limit), **values)
