"""Runs on Weights & Biases."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marljax.config.settings import Settings
from marljax.errors import UserError, first_line
from marljax.io.metrics_log import Row
from marljax.utils import distributed

WANDB_TIMEOUT = 30  # seconds to wait for the service


class WandbRuns:
    """One Weights & Biases run per replica, grouped; none with ``wandb.mode=disabled``."""

    def __init__(self, settings: Settings, folder: Path, log: Callable[[str], None]) -> None:
        """Starts the runs; raises ``UserError`` where the service cannot be reached or wandb is not logged in.

        Later failures do not stop training: ``log`` gets one line, and ``metrics.jsonl`` has all rows.
        """
        self._runs: dict[tuple[Any, ...], Any] = {}
        self._keys = tuple(settings.replicas[0].row_key)  # of a row, which identify the replica
        self._log = log
        options = settings.run.wandb
        if options.mode == "disabled" or not distributed.is_first():
            return
        try:
            import wandb

            wandb.setup(wandb.Settings(silent=True))
            quiet = wandb.Settings(silent=True, console="off", init_timeout=WANDB_TIMEOUT)
            title = folder.name if settings.run.search.batch is None else folder.parent.name  # of the whole, not of a batch
            for replica in settings.replicas:
                trial = f"trial{replica.trial}_" if replica.values else ""
                name = f"{title}_{trial}{replica.name.replace('seed ', 'seed').replace(' ', '_')}"
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
            self.finish()
            advice = "use wandb.mode=offline or wandb.mode=disabled"
            raise UserError(f"wandb.mode={options.mode} does not work here: {first_line(error)}; {advice}") from error

    def append(self, rows: Sequence[Row]) -> None:
        """Logs rows of ``metrics.jsonl``."""
        with self._failures():
            for run, metrics in self._by_run(rows):
                run.log(metrics)

    def conclude(self, rows: Sequence[Row]) -> None:
        """Adds metrics to the summary of each run, which the service's tables show."""
        with self._failures():
            for run, metrics in self._by_run(rows):
                run.summary.update(metrics)

    def finish(self) -> None:
        runs, self._runs = self._runs, {}
        with self._failures():
            for run in runs.values():
                run.finish()

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
            self._log(f"warning: wandb stopped working ({first_line(error)}); going on without it, metrics.jsonl has every row")
