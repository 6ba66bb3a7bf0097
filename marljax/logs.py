"""What a run writes while it goes on: rows of ``metrics.jsonl``, and Weights & Biases where it is asked for."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marljax import hosts
from marljax.environment import REPLAYED
from marljax.errors import UserError, first_line
from marljax.files import as_json, contents, replacing
from marljax.runfolder import METRICS
from marljax.settings import Settings

Row = dict[str, Any]
WANDB_TIMEOUT = 30  # seconds to wait for the service


def summarise(metrics: Mapping[str, np.ndarray], member: int) -> Row:
    """One member's figures over the updates of a chunk, from metrics [S, num_updates].

    Loss terms are averaged over updates; ``sum_<name>`` over the episodes that ended becomes the mean ``<name>`` per episode.
    Where some did not start afresh, that is of those that did, and ``replayed`` is the share of the others among all.
    Updates after a divergence are left out; where none is left, so is everything.
    """
    healthy = np.isfinite(np.stack([values[member] for values in metrics.values()])).all(0)
    if not healthy.any():
        return {}
    own = {name: values[member][healthy] for name, values in metrics.items()}
    episodes = float(own["episodes"].sum())
    row: Row = {"episodes": int(episodes)}
    if f"sum_{REPLAYED}" in own:
        others = float(own.pop(f"sum_{REPLAYED}").sum())
        if episodes + others:
            row[REPLAYED] = others / (episodes + others)
    for name, values in own.items():
        if name.startswith("sum_"):
            if episodes:
                row[name.removeprefix("sum_")] = float(values.sum()) / episodes
        elif name != "episodes":
            row[name] = float(values.mean())
    return row


class MetricsFile:
    """``metrics.jsonl``: one row per chunk and seed, appended whole."""

    def __init__(self, folder: Path, update: int) -> None:
        """Opens the file to go on after ``update``: later rows, and a row cut in two by a kill, are dropped."""
        self._path = folder / METRICS
        if not hosts.is_first():
            return
        rows = [row for row in read_rows(folder) if row["update"] <= update]
        with replacing(self._path) as draft:
            draft.write_text("".join(map(_line, rows)), encoding="utf-8")

    def append(self, rows: Sequence[Row]) -> None:
        if not hosts.is_first():
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(map(_line, rows)))
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}; free some space or check the rights") from error


def read_rows(folder: Path) -> list[Row]:
    """The rows of a run's ``metrics.jsonl``; lines that a kill has cut, or that are damaged, are left out."""
    try:
        lines = contents(folder / METRICS).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {folder / METRICS}: {error.strerror}; move it away or check its rights") from error
    return [row for row in map(_row, lines) if row is not None]


def fingerprint(folder: Path) -> dict[str, Any]:
    """Of the rows written so far, for a checkpoint to hold."""
    try:
        rows = contents(folder / METRICS)
    except OSError:
        rows = b""
    return {"bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()}


def altered(folder: Path, kept: Any, update: int) -> str | None:
    """What to say where the rows up to a checkpoint are not those that stood there when it was saved.

    ``kept`` is the ``fingerprint`` in the checkpoint; without one only a missing file is noticed.
    """
    try:
        rows = contents(folder / METRICS)
    except FileNotFoundError:
        return f"{folder / METRICS} is missing; the learning curve has nothing up to update {update}"
    except OSError:
        return None  # whoever reads the rows says so
    known = isinstance(kept, dict) and type(kept.get("bytes")) is int
    if not known or hashlib.sha256(rows[: kept["bytes"]]).hexdigest() == kept.get("sha256"):
        return None
    return f"{folder / METRICS} is not what it was at update {update}; its rows are taken as they stand"


def _row(line: bytes) -> Row | None:
    """What stands in a line, if it is a row: numbers by name, with its update and seed."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and all(type(row.get(name)) is int for name in ("update", "seed"))
    return row if whole and all(value is None or isinstance(value, int | float) for value in row.values()) else None


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
        if wanted.mode == "disabled" or not hosts.is_first():
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


def _line(row: Row) -> str:
    return as_json(row) + "\n"
