"""Runs in other programs' displays: Weights & Biases, TensorBoard."""

import contextlib
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from marljax.config.settings import Settings
from marljax.config.sweep import Replica
from marljax.errors import UserError, first_line
from marljax.io.files import discard
from marljax.io.metrics_log import Row, read_rows
from marljax.utils import distributed

WANDB_TIMEOUT = 30  # seconds to wait for the service
EVENT_FILES = "events.out.tfevents.*"
FLUSH_SECONDS = 10  # in which points reach an open TensorBoard
AXES = ("update", "env_steps", "time")  # columns of a row that TensorBoard has as axes


class Tracker:
    """One run per replica in another program; none in any but the first process.

    The start raises ``UserError``. Later failures do not stop training: ``log`` gets one line, and ``metrics.jsonl`` has every
    row.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings, log: Callable[[str], None]) -> None:
        self._runs: dict[tuple[Any, ...], Any] = {}
        self._keys = tuple(settings.replicas[0].row_key)  # of a row, which identify the replica
        self._log = log

    def append(self, rows: Sequence[Row]) -> None:
        """Logs rows of ``metrics.jsonl``."""
        with self._failures():
            for run, metrics in self._by_run(rows):
                self._add(run, metrics)

    def conclude(self, rows: Sequence[Row]) -> None:
        """Logs the final row of each replica, where the program has a place for it."""

    def finish(self) -> None:
        runs, self._runs = self._runs, {}
        with self._failures():
            for run in runs.values():
                self._close(run)

    def _add(self, run: Any, metrics: Row) -> None:
        raise NotImplementedError

    def _close(self, run: Any) -> None:
        raise NotImplementedError

    def _by_run(self, rows: Sequence[Row]) -> Iterator[tuple[Any, Row]]:
        for row in rows:
            if run := self._runs.get(tuple(row[key] for key in self._keys)):
                yield run, {name: value for name, value in row.items() if name not in self._keys}

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._runs = {}
            stopped = f"{self.name} stopped working ({first_line(error)})"
            self._log(f"warning: {stopped}; going on without it, metrics.jsonl has every row")


def _label(replica: Replica) -> str:
    """``seed3``, ``trial2_learning_rate=0.001_seed3``."""
    trial = f"trial{replica.trial}_" if replica.values else ""
    return f"{trial}{replica.name.replace('seed ', 'seed').replace(' ', '_')}"


class WandbRuns(Tracker):
    """Runs on Weights & Biases, grouped; none with ``wandb.mode=disabled``."""

    name = "wandb"

    def __init__(self, settings: Settings, folder: Path, log: Callable[[str], None]) -> None:
        """Starts the runs; raises ``UserError`` where the service cannot be reached or wandb is not logged in."""
        super().__init__(settings, log)
        options, self._folder = settings.run.wandb, folder
        self._offline = options.mode == "offline"
        if options.mode == "disabled" or not distributed.is_first():
            return
        try:
            import wandb

            wandb.setup(wandb.Settings(silent=True))
            quiet = wandb.Settings(silent=True, console="off", init_timeout=WANDB_TIMEOUT)
            title = folder.name if settings.run.search.batch is None else folder.parent.name  # of the whole, not of a batch
            for replica in settings.replicas:
                name = f"{title}_{_label(replica)}"
                run = self._runs[tuple(replica.row_key.values())] = wandb.init(
                    mode=options.mode,
                    project=options.project,
                    entity=options.entity,
                    group=options.group or f"{settings.title}/{title}",
                    name=name,
                    id=re.sub(r"[^\w.-]", "_", f"{settings.title}_{name}"),
                    resume="allow",
                    tags=list(options.tags),
                    config=settings.tree | replica.row_key,
                    dir=str(folder),
                    reinit="create_new",
                    settings=quiet,
                )
                run.define_metric("*", step_metric="env_steps")
        except Exception as error:  # wandb raises many kinds for a missing network, login or permission
            self._offline = False
            self.finish()
            advice = "use wandb.mode=offline or wandb.mode=disabled"
            raise UserError(f"wandb.mode={options.mode} does not work here: {first_line(error)}; {advice}") from error

    def conclude(self, rows: Sequence[Row]) -> None:
        """Adds metrics to the summary of each run, which the service's tables show."""
        with self._failures():
            for run, metrics in self._by_run(rows):
                run.summary.update(metrics)

    def finish(self) -> None:
        super().finish()
        if self._offline and distributed.is_first():
            self._log(f"to send the offline runs: wandb sync {shlex.quote(str(self._folder / 'wandb'))}/offline-run-*")

    def _add(self, run: Any, metrics: Row) -> None:
        run.log(metrics)

    def _close(self, run: Any) -> None:
        run.finish()


class TensorBoardRuns(Tracker):
    """Event files in ``tensorboard/<replica>/`` of the run folder; none without ``tensorboard=true``."""

    name = "tensorboard"

    def __init__(self, settings: Settings, folder: Path, log: Callable[[str], None]) -> None:
        """Writes the event files again from ``metrics.jsonl``, so that a run that continues has every point, and has it once.

        Raises ``UserError`` where tensorboardX is not installed, or cannot write.
        """
        super().__init__(settings, log)
        if not settings.run.tensorboard or not distributed.is_first():
            return
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise UserError("tensorboard=true needs a package that is not installed: pip install tensorboardX") from error
        try:
            for replica in settings.replicas:
                own = folder / "tensorboard" / _label(replica)
                before = list(own.glob(EVENT_FILES))
                for path in before:
                    discard(path)
                # A TensorBoard that is open has read the removed files: this step lets it forget their points.
                writer = SummaryWriter(str(own), purge_step=0 if before else None, flush_secs=FLUSH_SECONDS)
                self._runs[tuple(replica.row_key.values())] = writer
        except OSError as error:
            self.finish()
            advice = "free some space, check permissions, or leave tensorboard=true out"
            raise UserError(f"cannot write {folder / 'tensorboard'}: {error.strerror}; {advice}") from error
        self.append(read_rows(folder))

    def _add(self, run: Any, metrics: Row) -> None:
        for name, value in metrics.items():
            if name not in AXES and value is not None and math.isfinite(value):
                run.add_scalar(name, value, metrics["env_steps"], walltime=metrics["time"])

    def _close(self, run: Any) -> None:
        run.close()
