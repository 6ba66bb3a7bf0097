"""Runs on Weights & Biases."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marljax.config.settings import Settings
from marljax.errors import UserError, first_line
from marljax.io.metrics_log import Row
from marljax.utils import distributed

WANDB_TIMEOUT = 30  # seconds to wait for the service


class WandbRuns:
    """One Weights & Biases run per member, grouped; nothing at all where ``wandb.mode=disabled``."""

    def __init__(self, settings: Settings, folder: Path, tell: Callable[[str], None]) -> None:
        """Starts the runs; one clear ``UserError`` where the service cannot be reached or wandb is not logged in.

        Trouble later on costs no training: ``tell`` gets one line, and the rows stand in ``metrics.jsonl`` anyway.
        """
        self._runs: dict[tuple[Any, ...], Any] = {}  # by place
        self._place = tuple(settings.members[0].place)
        self._tell = tell
        wanted = settings.run.wandb
        if wanted.mode == "disabled" or not distributed.is_first():
            return
        try:
            import wandb

            wandb.setup(wandb.Settings(silent=True))
            quiet = wandb.Settings(silent=True, console="off", init_timeout=WANDB_TIMEOUT)
            called = folder.name if settings.run.search.batch is None else folder.parent.name  # of the whole, not of a batch
            for member in settings.members:
                trial = f"trial{member.trial}_" if member.values else ""
                name = f"{called}_{trial}{member.name.replace('seed ', 'seed').replace(' ', '_')}"
                run = self._runs[self._of(member.place)] = wandb.init(
                    mode=wanted.mode,
                    project=wanted.project,
                    entity=wanted.entity,
                    group=wanted.group or f"{settings.title}/{called}",
                    name=name,
                    id=re.sub(r"[^\w.-]", "_", f"{settings.title}_{name}"),
                    resume="allow",
                    tags=list(wanted.tags),
                    config=settings.tree | member.place,
                    dir=str(folder),
                    reinit="create_new",
                    settings=quiet,
                )
                run.define_metric("*", step_metric="env_steps")
        except Exception as error:  # wandb has many kinds of errors for a missing network, login or rights
            self.finish()
            advice = "use wandb.mode=offline or wandb.mode=disabled"
            raise UserError(f"wandb.mode={wanted.mode} does not work here: {first_line(error)}; {advice}") from error

    def append(self, rows: Sequence[Row]) -> None:
        try:
            for row in rows:
                if run := self._runs.get(self._of(row)):
                    run.log({key: value for key, value in row.items() if key not in self._place})
        except Exception as error:
            self._give_up(error)

    def conclude(self, rows: Sequence[Row]) -> None:
        """Puts figures of members beside each run's last ones, where the service's tables show them."""
        try:
            for row in rows:
                if run := self._runs.get(self._of(row)):
                    run.summary.update({key: value for key, value in row.items() if key not in self._place})
        except Exception as error:
            self._give_up(error)

    def _of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[key] for key in self._place)

    def finish(self) -> None:
        runs, self._runs = self._runs, {}
        try:
            for run in runs.values():
                run.finish()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._runs = {}
        self._tell(f"warning: wandb stopped working ({first_line(error)}); going on without it, metrics.jsonl has every row")
