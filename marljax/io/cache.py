"""The user's cache folder, and in it the metrics of scripted policies on frozen episodes, which every final report shows.

An entry's name is a digest of everything that its metrics depend on: the program with its constants, its inputs, versions and
device. The program is that of a traced function, or where all of it is this library's, the library's source and the settings.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.utils.pytrees import named_leaves, to_host
from marljax.version import __version__

JAX_OPTIONS = ("enable_x64", "default_prng_impl", "threefry_partitionable", "default_matmul_precision")  # that change results
METRIC = "metric "  # prefix of the names of arrays in an entry


def home() -> Path | None:
    """``marljax`` in the user's cache folder; None without a home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marljax"
    except RuntimeError:
        return None


@functools.cache
def source_digest() -> str | None:
    """A digest of all Python and data files of this library, as they are at the first call; None where one cannot be read."""
    digest, package = hashlib.sha256(), Path(__file__).parent.parent
    for folder, folders, names in os.walk(package, followlinks=True):
        folders[:] = sorted(set(folders) - {"results", "__pycache__"})
        for name in sorted(name for name in names if not name.startswith(".")):
            try:
                content = Path(folder, name).read_bytes()
            except OSError:
                return None
            digest.update(f"{folder.removeprefix(str(package))}/{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def files_digest(settings: Any) -> str:
    """A digest of the files that fields of a dataclass name, where there are such files."""
    digest = hashlib.sha256()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, str) and value and (path := Path(value)).is_file():
            content = path.read_bytes()
            digest.update(f"{field.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def cached_metrics(
    compute: Callable[[], dict[str, np.ndarray]], episodes: int, program: str, inputs: Any, *about: Any
) -> dict[str, np.ndarray]:
    """Metrics [episodes] from the cache, or from ``compute`` where it has none, an unreadable entry or no folder.

    They depend on ``program``, a pytree of ``inputs`` and ``about``, further JSON values.
    """
    folder = home()
    if folder is None:
        return compute()
    device, versions = jax.devices()[0], [__version__, *map(metadata.version, ("jax", "jaxlib"))]
    options = [str(getattr(jax.config, f"jax_{name}")) for name in JAX_OPTIONS]
    parts = [*about, versions, device.platform, device.device_kind, os.environ.get("XLA_FLAGS"), options]
    digest = hashlib.sha256(json.dumps(parts).encode() + program.encode())
    for name, leaf in named_leaves(inputs):
        array = to_host(leaf)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    entry = folder / "policies" / f"{digest.hexdigest()}.npz"
    if entry.is_file():
        with contextlib.suppress(Exception), np.load(entry, allow_pickle=False) as file:  # of a damaged file many kinds
            metrics = {name.removeprefix(METRIC): file[name] for name in file.files}
            if metrics and all(values.shape == (episodes,) for values in metrics.values()):
                return metrics
    metrics = compute()
    with contextlib.suppress(OSError, UserError):  # a folder that cannot be written to
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as draft:
            np.savez(draft, **{METRIC + name: values for name, values in metrics.items()})  # type: ignore[arg-type]
    return metrics
