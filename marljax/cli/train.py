"""The command ``marljax train``."""

import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marljax.errors import UserError
from marljax.io import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from marljax.training.runner import Ended

TRAIN_HELP = """usage: {command} env=<name> [key=value …]

Trains {algo} and leaves everything in runs/{algo}_<env>/<time>/. Examples:
  {command} env=merge
  {command} env=merge env.density=easy algo.total_steps=1e6 seeds=4
  {command} env=merge seeds=4 "sweep.learning_rate=[1e-4,1e-3]"    every setting with every seed, in one program
  {command} -m env=merge "algo.hidden=[64],[128,128]"              one run after the other, by Hydra's multirun
  {command} env=custom env.target=my_package.my_module:MyEnvironment
  {command} resume=runs/{algo}_merge/<time>
"""


def enable_compilation_cache() -> None:
    """Keeps compiled programs for the next start; imported here, because it comes before everything that computes."""
    from marljax.io import program_cache

    program_cache.enable()


def train(algo: str, words: Sequence[str], command: Sequence[str] | None = None) -> int:
    """Trains as a command with these words does, and returns its exit status.

    ``command`` is what comes before the words, for the advice that a run can be continued; by default ``marljax train <algo>``.
    """
    from marljax.config import compose

    begun = time.monotonic()
    _join_others(words)
    wanted = compose.compose(algo, words)
    enable_compilation_cache()

    from marljax.cli import batches
    from marljax.io import provenance
    from marljax.utils import distributed

    screen = terminal.screen(quiet=not distributed.is_first())
    ended = batches.train(wanted, screen)
    try:
        return _concluded(ended, command or ("marljax", "train", algo), screen)
    finally:
        provenance.note_whole(ended.folder, time.monotonic() - begun)


def _concluded(ended: "Ended", command: Sequence[str], screen: "Console") -> int:
    """Reports how training ended, by ``command``, and returns the exit status."""
    from marljax.config import convert
    from marljax.reporting import ranking, report
    from marljax.training.progress import say

    if ended.status == "interrupted":
        again = shlex.join([*command, f"resume={ended.folder}"])
        stopped = f"stopped after {convert.counted(ended.run.update, 'update')}; continue with: {again}"
        say(screen, stopped)
        _draw_so_far(ended, screen)
        lost = terminal.lost_output(screen.file)
        if lost is not None and not isinstance(lost, BrokenPipeError):
            raise UserError(f"{terminal.unwritten(lost)}; {stopped}")
        return 128 + ended.signal
    if ended.status == "diverged":
        print(f"error: every seed has diverged; {ended.folder} holds what they were before", file=sys.stderr)
        return 1
    if ranking.compares(ended.run.settings):
        ranking.finish(ended.run.settings, ended.folder, screen)
    else:
        report.finish(ended.run, screen)
    return 0


def _draw_so_far(ended: "Ended", screen: "Console") -> None:
    """The learning curve of a run that was stopped."""
    from marljax.config import settings
    from marljax.reporting import report
    from marljax.training.progress import say
    from marljax.utils import distributed

    whole = settings.batch_of(ended.run.settings, None, ended.run.settings.run.search.batches)
    if not whole.run.render or not distributed.is_first():
        return
    try:
        report.draw_curve(whole, ended.folder, screen)
    except UserError as error:
        say(screen, f"no curve: {error}")


def _join_others(words: Sequence[str]) -> None:
    """Becomes one of several processes, where the command says so; that comes before everything that computes."""
    from marljax.config import compose, convert, schema
    from marljax.utils import distributed

    changes = compose.parse(words)
    places = {key.removeprefix("hosts."): value for key, value in changes.items() if key.startswith("hosts.")}
    if changes.get("distributed") is True:
        distributed.join(**vars(convert.build(schema.Hosts, "hosts", places)))
    elif places:
        raise UserError("hosts.* says where the processes of a distributed run are; add distributed=true")
