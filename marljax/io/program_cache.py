"""JAX's cache of compiled programs on the disk: where it lies, and what becomes of entries that cannot be read."""

import contextlib
import functools
import glob
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What JAX warns of, each time a program is needed.
_TROUBLE = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']+)': (.*)", re.DOTALL)


def enable() -> None:
    """Keeps compiled programs in the user's cache folder, so that the next start takes seconds."""
    import jax

    from marljax.io import cache

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not folder:
        home = cache.home()
        if home is None:
            advice = "programs are compiled again at every start; XDG_CACHE_HOME=<folder> says where to keep them"
            print(f"warning: there is no home directory; {advice}", file=sys.stderr)
            return
        folder = str(home / "jax")
        jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if not isinstance(warnings.showwarning, functools.partial):  # once in a process
        warnings.showwarning = functools.partial(_mend, Path(folder), set(), warnings.showwarning)


def _mend(folder: Path, told: set[str], show: Callable[..., None], message: Any, *where: Any, **more: Any) -> None:
    """``warnings.showwarning`` that removes entries which cannot be read: JAX compiles and writes such a program again, but only
    where there is no entry. A cache that cannot be written is one line, once."""
    trouble = _TROUBLE.match(str(message))
    if trouble is None:
        show(message, *where, **more)
        return
    kind, program, reason = trouble.groups()
    entries = list(folder.glob(f"{glob.escape(program)}-*-cache"))
    damaged = [entry for entry in entries if not _is_whole(entry)]
    if kind == "reading" and not damaged:
        damaged = entries  # packed by another library, or another JAX's
    with contextlib.suppress(OSError):
        for entry in damaged:
            entry.unlink(missing_ok=True)
    if kind == "writing" and kind not in told:
        told.add(kind)
        print(f"warning: compiled programs cannot be kept in {folder}: {reason.splitlines()[0]}", file=sys.stderr)


def _is_whole(entry: Path) -> bool:
    """Whether an entry can be unpacked, as JAX packs it without zstandard."""
    try:
        zlib.decompress(entry.read_bytes())
    except (OSError, zlib.error):
        return False
    return True
