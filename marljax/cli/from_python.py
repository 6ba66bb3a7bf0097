"""``marljax train`` as a function."""

import dataclasses
import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marljax.cli.train import run
from marljax.errors import UserError, short_repr
from marljax.io import run_folder

if TYPE_CHECKING:
    from marljax.training.load import TrainedPolicy

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that has ended."""

    folder: Path
    diverged: bool  # every seed; then there are no results, and the policy is the last finite one

    @functools.cached_property
    def policy(self) -> "TrainedPolicy":
        """The best parameters of the best seed; ``marljax.load(run.folder, seed=…, which=…, trial=…)`` gives others."""
        from marljax.training.load import load

        return load(self.folder, trust=True)  # it was trained here

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """The final evaluation, as in ``results.json``: mean metrics by policy and by seed, or of a sweep by setting."""
        return {} if self.diverged else run_folder.read_results(self.folder)

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The rows of ``metrics.jsonl``, one per chunk and seed; of several batches those of one after the other."""
        from marljax.io.metrics_log import read_rows

        batches = [self.folder / run_folder.batch_folder(index) for index in range(len([*self.folder.glob("batch_*")]))]
        return [row for part in batches or [self.folder] for row in read_rows(part)]


def train(algo: str, env: str, *overrides: str, on_log: Callable[[Row], None] | None = None) -> TrainedRun:
    """Trains as ``marljax train <algo> env=<env> <overrides>`` does, with the same progress, run folder and final comparison.

    Example:
        run = marljax.train("mappo", "merge", "env.density=easy", "algo.total_steps=2e5", on_log=print)
        run.folder, run.policy, run.results

    Args:
        algo: name of the algorithm.
        env: name of the environment, or an override that makes one unnecessary: ``"resume=runs/mappo_merge/…"``.
        overrides: as on the command line; ``"quiet=true"`` prints the run folder only.
        on_log: called with every row of ``metrics.jsonl`` as it is written, on the host, between compiled chunks: a dict with
            ``seed``, ``update``, ``env_steps``, ``time`` in seconds since 1970, and metrics by name. If it raises, the run stops
            with a checkpoint, to be resumed, and the exception is raised again. In a distributed run the first process calls it.

    In a notebook a learning curve shows the progress. Compiled programs are kept in the user's cache folder, unless the program
    has chosen another one.

    Raises:
        UserError: for a name or setting that does not exist, or a value that it does not take.
        KeyboardInterrupt: after Ctrl-C, with a checkpoint.
    """
    for argument in (algo, env, *overrides):
        if not isinstance(argument, str):
            example = "train('mappo', 'merge', 'algo.total_steps=1e6')"
            raise UserError(f"train got {short_repr(argument)}, which is not text; call it as {example}")
    if on_log is not None and not callable(on_log):
        raise UserError(f"on_log={short_repr(on_log)} cannot be called; give a function of a row, such as on_log=print")
    words = [env if "=" in env else f"env={env}", *overrides]
    ended = run(algo, words, lambda folder: f"marljax.train({algo!r}, {f'resume={folder}'!r})", on_log)
    if ended.error is not None:
        raise ended.error
    if ended.status == "interrupted":
        raise KeyboardInterrupt if ended.signal == signal.SIGINT else SystemExit(128 + ended.signal)
    return TrainedRun(ended.folder, ended.status == "diverged")
