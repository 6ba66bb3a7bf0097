"""``metrics.jsonl``: the metrics of a run in progress, one row per chunk and seed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marljax.core.types import REPLAYED
from marljax.errors import UserError
from marljax.io.files import as_json, read_file, replacing
from marljax.io.run_folder import METRICS
from marljax.utils import distributed

Row = dict[str, Any]


def summarise(metrics: Mapping[str, np.ndarray], replica: int) -> Row:
    """One run's metrics over the updates of a chunk, from metrics [S, num_updates].

    Loss terms are averaged over updates; ``sum_<name>`` over the episodes that ended becomes the mean ``<name>`` per episode that
    was not replayed; ``replayed`` is the share of replayed episodes. Updates after a divergence are left out; a row without
    updates is empty.
    """
    healthy = np.isfinite(np.stack([values[replica] for values in metrics.values()])).all(0)
    if not healthy.any():
        return {}
    own = {name: values[replica][healthy] for name, values in metrics.items()}
    episodes = float(own["episodes"].sum())
    row: Row = {"episodes": int(episodes)}
    if f"sum_{REPLAYED}" in own:
        replayed = float(own.pop(f"sum_{REPLAYED}").sum())
        if episodes + replayed:
            row[REPLAYED] = replayed / (episodes + replayed)
    for name, values in own.items():
        if name.startswith("sum_"):
            if episodes:
                row[name.removeprefix("sum_")] = float(values.sum()) / episodes
        elif name != "episodes":
            row[name] = float(values.mean())
    return row


class MetricsFile:
    """``metrics.jsonl`` of a run that trains; the first process writes."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continues the file after ``update``: drops later rows, and one that a kill has cut in two."""
        self._path = folder / METRICS
        if distributed.is_first():
            rows = [row for row in read_rows(folder) if row["update"] <= update]
            with replacing(self._path) as draft:
                draft.write_text("".join(as_json(row) + "\n" for row in rows), encoding="utf-8")

    def append(self, rows: Sequence[Row]) -> None:
        if not distributed.is_first():
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(as_json(row) + "\n" for row in rows))
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}; free some space or check permissions") from error


def read_rows(folder: Path) -> list[Row]:
    """The rows of a run's ``metrics.jsonl``; truncated and damaged lines are left out."""
    try:
        lines = read_file(folder / METRICS).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {folder / METRICS}: {error.strerror}; move it away or check permissions") from error
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        complete = isinstance(row, dict) and all(type(row.get(name)) is int for name in ("update", "seed"))
        if complete and all(value is None or isinstance(value, int | float) for value in row.values()):
            rows.append(row)
    return rows


def fingerprint(folder: Path) -> dict[str, Any]:
    """Length and checksum of the rows so far, for a checkpoint."""
    try:
        rows = read_file(folder / METRICS)
    except OSError:
        rows = b""
    return {"bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()}


def altered(folder: Path, saved: Any, update: int) -> str | None:
    """A warning where the rows up to a checkpoint have changed since; ``saved`` is its ``fingerprint``."""
    try:
        rows = read_file(folder / METRICS)
    except FileNotFoundError:
        return f"{folder / METRICS} is missing; the learning curve has nothing up to update {update}"
    except OSError:
        return None  # reading the rows raises
    comparable = isinstance(saved, dict) and type(saved.get("bytes")) is int
    if not comparable or hashlib.sha256(rows[: saved["bytes"]]).hexdigest() == saved.get("sha256"):
        return None
    return f"{folder / METRICS} is not what it was at update {update}; its rows are taken as they are"
