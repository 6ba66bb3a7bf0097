"""What a run writes while it goes on: rows of ``metrics.jsonl``, and Weights & Biases where it is asked for."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marljax.core.types import REPLAYED
from marljax.errors import UserError
from marljax.io.files import as_json, contents, replacing
from marljax.io.run_folder import METRICS
from marljax.utils import distributed

Row = dict[str, Any]


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
        if not distributed.is_first():
            return
        rows = [row for row in read_rows(folder) if row["update"] <= update]
        with replacing(self._path) as draft:
            draft.write_text("".join(map(_line, rows)), encoding="utf-8")

    def append(self, rows: Sequence[Row]) -> None:
        if not distributed.is_first():
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


def _line(row: Row) -> str:
    return as_json(row) + "\n"
