"""The user's cache folder, and in it the metrics of scripted policies on frozen episodes, which every final report shows.

An entry's name is a digest of everything that its metrics depend on: the program with its constants, its inputs, versions and
device. Tracing the program for it takes a small part of the time of running it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.utils.pytrees import named_leaves, to_host
from marljax.version import __version__

METRIC = "metric "  # prefix of the names of arrays in an entry


def home() -> Path | None:
    """``marljax`` in the user's cache folder; None without a home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marljax"
    except RuntimeError:
        return None


def entry_of(program: str, inputs: Any, *about: Any) -> Path | None:
    """Path of the metrics that a program computes from a pytree of inputs; None without a cache folder.

    ``about`` are JSON values that they depend on, too.
    """
    folder = home()
    if folder is None:
        return None
    device, versions = jax.devices()[0], [__version__, *map(metadata.version, ("jax", "jaxlib"))]
    parts = [*about, versions, device.platform, device.device_kind, os.environ.get("XLA_FLAGS")]
    digest = hashlib.sha256(json.dumps(parts).encode() + program.encode())
    for name, leaf in named_leaves(inputs):
        array = to_host(leaf)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return folder / "policies" / f"{digest.hexdigest()}.npz"


def load(entry: Path | None, episodes: int) -> dict[str, np.ndarray] | None:
    """The metrics [episodes] that ``keep`` stored; None where there are none, or the entry is damaged."""
    if entry is None or not entry.is_file():
        return None
    try:
        with np.load(entry, allow_pickle=False) as file:
            metrics = {name.removeprefix(METRIC): file[name] for name in file.files}
    except Exception:  # NumPy and its zip reader raise many kinds for a damaged file
        return None
    return metrics if metrics and all(values.shape == (episodes,) for values in metrics.values()) else None


def keep(entry: Path | None, metrics: Mapping[str, np.ndarray]) -> None:
    """Stores metrics for later runs, if the folder can be written to."""
    if entry is None:
        return
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as draft:
            np.savez(draft, **{METRIC + name: values for name, values in metrics.items()})  # type: ignore[arg-type]
    except (OSError, UserError):
        pass
