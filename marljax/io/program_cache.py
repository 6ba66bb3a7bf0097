"""JAX's cache of compiled programs on the disk: its folder, and the replacement of unreadable entries."""

import contextlib
import functools
import glob
import re
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# JAX's warning, repeated whenever the program is needed
_CACHE_ERROR = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']+)': (.*)", re.DOTALL)


def enable() -> None:
    """Keeps compiled programs in the user's cache folder, so that the next start takes seconds."""
    import jax

    from marljax.io import cache

    # JAX_COMPILATION_CACHE_DIR, or what a user's program has set
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
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
    if not isinstance(warnings.showwarning, functools.partial):  # once per process
        warnings.showwarning = functools.partial(_on_warning, Path(folder), set(), warnings.showwarning)


def _on_warning(folder: Path, reported: set[str], show: Callable[..., None], message: Any, *args: Any, **kwargs: Any) -> None:
    """``warnings.showwarning`` that removes unreadable entries, since JAX writes an entry only where there is none. A cache that
    cannot be written to is reported once."""
    error = _CACHE_ERROR.match(str(message))
    if error is None:
        show(message, *args, **kwargs)
        return
    kind, program, reason = error.groups()
    entries = list(folder.glob(f"{glob.escape(program)}-*-cache"))
    damaged = [entry for entry in entries if not _is_intact(entry)]
    if kind == "reading" and not damaged:
        damaged = entries  # compressed by another library, or written by another JAX
    with contextlib.suppress(OSError):
        for entry in damaged:
            entry.unlink(missing_ok=True)
    if kind == "writing" and kind not in reported:
        reported.add(kind)
        print(f"warning: compiled programs cannot be kept in {folder}: {reason.splitlines()[0]}", file=sys.stderr)


def _is_intact(entry: Path) -> bool:
    """Whether an entry decompresses, as JAX compresses it without zstandard."""
    try:
        zlib.decompress(entry.read_bytes())
    except (OSError, zlib.error):
        return False
    return True
