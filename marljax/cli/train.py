"""The command ``marljax train``."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marljax.errors import UserError
from marljax.io import run_folder, terminal

if TYPE_CHECKING:
    from rich.console import Console

    from marljax.training.runner import RunResult


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk; called before anything computes."""
    from marljax.io import program_cache

    program_cache.enable()


def train(algo: str, overrides: Sequence[str], command: Sequence[str] | None = None) -> int:
    """Trains as a command with these overrides does, and returns its exit status.

    ``command`` precedes the overrides in the advice how to resume a run; by default ``marljax train <algo>``.
    """
    words = command or ("marljax", "train", algo)
    ended = run(algo, overrides, lambda folder: shlex.join([*words, f"resume={folder}"]))
    if ended.status == "interrupted":
        return 128 + ended.signal
    return 1 if ended.status == "diverged" else 0


def run(
    algo: str,
    overrides: Sequence[str],
    how_to_resume: Callable[[Path], str],
    on_log: Callable[[dict[str, Any]], None] | None = None,
) -> "RunResult":
    """Trains with these overrides and reports how that ended.

    ``how_to_resume`` gives the words that continue the run in a folder; ``on_log`` gets every row of its ``metrics.jsonl``.
    """
    from marljax.config import compose, convert, schema
    from marljax.training.mesh import use_all_cores
    from marljax.utils import distributed

    begun = time.monotonic()
    changes = compose.parse(overrides)
    hosts = {key.removeprefix("hosts."): value for key, value in changes.items() if key.startswith("hosts.")}
    if changes.get("distributed") is True:  # joined before anything computes
        distributed.join(**vars(convert.build(schema.Hosts, "hosts", hosts)))
    elif hosts:
        raise UserError("hosts.* needs distributed=true; add it, or leave them out")
    devices, resumed = changes.get("devices"), changes.get("resume")
    if devices is None and resumed is not None:
        devices = run_folder.read_config(Path(str(resumed))).get("devices")
    if devices == "auto":  # before anything computes, as composing the settings may
        use_all_cores()
    settings = compose.compose(algo, overrides)
    enable_compilation_cache()

    from marljax.cli import batches
    from marljax.io import provenance
    from marljax.reporting.live_curve import LiveCurve
    from marljax.training.runner import Watcher, terminal_progress

    screen = terminal.screen(quiet=settings.run.quiet, silent=not distributed.is_first())
    in_notebook = screen.is_jupyter and not screen.quiet
    ended = batches.train(settings, screen, Watcher(on_log, LiveCurve if in_notebook else terminal_progress))
    try:
        _report(ended, how_to_resume(ended.folder), screen)
    finally:
        provenance.record_total_duration(ended.folder, time.monotonic() - begun)
    return ended


def _report(ended: "RunResult", resume: str, screen: "Console") -> None:
    """Reports how training ended; ``resume`` continues it."""
    from marljax.config import convert, settings
    from marljax.reporting import ranking, report
    from marljax.training.progress import print_line
    from marljax.utils import distributed

    if ended.status == "interrupted":
        stopped = f"stopped after {convert.pluralize(ended.run.update, 'update')}; continue with: {resume}"
        print_line(screen, stopped, always=True)
        whole = settings.batch_of(ended.run.settings, None, ended.run.settings.run.search.batches)
        if whole.run.render and distributed.is_first():
            report.try_curve(whole, ended.folder, screen)
        lost = terminal.lost_output(screen.file)
        if lost is not None and not isinstance(lost, BrokenPipeError):
            raise UserError(f"{terminal.output_error(lost)}; {stopped}")
    elif ended.status == "diverged":
        print(f"error: every seed has diverged; {ended.folder} holds their last finite states", file=sys.stderr)
    elif ranking.compares(ended.run.settings):
        ranking.finish(ended.run.settings, ended.folder, screen)
    else:
        report.finish(ended.run, screen)
