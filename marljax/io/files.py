"""Files that are written whole or not at all, and their JSON content."""

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marljax.errors import UserError

DRAFT = ".writing-"  # prefix of unfinished files and folders; a killed process leaves them behind
CHECKSUM = "checksum"  # key under which a JSON file stores the checksum of everything else in it
REPORT = (".md", ".csv", ".png", ".svg")  # the files of a report
drafts: set[Path] = set()  # being written; a process that exits at once removes them


def output_stem(out: str, name: str) -> Path:
    """The files of a report at ``out`` without their ending, ``name`` in it if it is a folder; ``UserError`` where they cannot be
    written."""
    path = Path(out)
    stem = path / name if path.is_dir() else path.with_suffix("") if path.suffix in REPORT else path
    if not stem.parent.is_dir() or not os.access(stem.parent, os.W_OK):
        raise UserError(f"cannot write out={out}: there is no folder {stem.parent}, or it is protected; choose another")
    return stem


def discard(path: Path) -> None:
    """Removes a file or a folder, as far as possible."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, suffixes: tuple[str, ...] = ()) -> Iterator[Path]:
    """A path to write to that replaces ``path`` when the block succeeds, and is removed when it raises.

    Raises ``UserError`` for a suffix other than ``suffixes`` (if there are any) and where the file cannot be written.
    """
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise UserError(f"cannot write {path}: its name has to end in {' or '.join(suffixes)}")
    if "\0" in str(path):
        raise UserError(f"cannot write {str(path)!r}: the name holds a null byte; choose another")
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(4)}-{path.name}")
    drafts.add(draft)
    try:
        # An unpredictable name and O_EXCL: otherwise somebody could place a link there, which would be followed.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another path or check permissions") from error
    finally:
        drafts.discard(draft)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read_file(path: Path, last: int | None = None) -> bytes:
    """The content of a regular file, or its ``last`` bytes; ``OSError`` for anything else: a device or a pipe may have no end."""
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if last is not None:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
        return file.read()


def as_json(tree: Any, indent: int | None = None) -> str:
    """Builtin values as strict JSON, which has no NaN and no infinities: those become ``null``."""
    return json.dumps(_finite(tree), indent=indent, allow_nan=False)


def _finite(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _finite(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def with_checksum(tree: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with the checksum of all of them; a tree that differs from its ``with_checksum`` version has been changed."""
    content = {name: value for name, value in tree.items() if name != CHECKSUM}
    return content | {CHECKSUM: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}
