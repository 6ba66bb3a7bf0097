"""The user's cache folder, and in it what scripted policies reached on frozen episodes, which every final report shows again.

An entry's name is a digest of all that its figures depend on: the program that plays, with every constant in it, its inputs,
versions and device. So whatever is changed in an environment, its numbers or a policy is played; tracing a program costs a small
part of running it. What cannot be read is played again.
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

METRIC = "metric "  # before the names of arrays in an entry


def home() -> Path | None:
    """``marljax`` in the user's cache folder; None where there is no home directory to have one in."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marljax"
    except RuntimeError:
        return None


def entry_of(program: str, inputs: Any, *about: Any) -> Path | None:
    """Where the figures are kept that a program gives for a pytree of inputs; ``about`` is what else they depend on, as plain
    values. None without a cache folder."""
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
    """The metrics [episodes] that ``keep`` left; None where there are none, or the entry is damaged."""
    if entry is None or not entry.is_file():
        return None
    try:
        with np.load(entry, allow_pickle=False) as file:
            metrics = {name.removeprefix(METRIC): file[name] for name in file.files}
    except Exception:  # NumPy and its zip reader raise many kinds for a damaged file
        return None
    return metrics if metrics and all(values.shape == (episodes,) for values in metrics.values()) else None


def keep(entry: Path | None, metrics: Mapping[str, np.ndarray]) -> None:
    """Leaves metrics for later runs; a folder that cannot be written to keeps none."""
    if entry is None:
        return
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as draft:
            np.savez(draft, **{METRIC + name: values for name, values in metrics.items()})  # type: ignore[arg-type]
    except (OSError, UserError):
        pass
