"""Files written whole or not at all, and what stands in them as JSON."""

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

DRAFT = ".writing-"  # how the names of unfinished files and folders begin; those of a process that was killed stay
SEAL = "checksum"  # of all else that stands in a file, under this name in it
drafts: set[Path] = set()  # files and folders that are being written; a process that ends at once removes them


def discard(path: Path) -> None:
    """Removes a file or a folder, as far as that can be done."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, suffixes: tuple[str, ...] = ()) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends well and disappears when it does not.

    Raises ``UserError`` for a suffix other than ``suffixes`` (if any are given) and where the file cannot be written.
    """
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise UserError(f"cannot write {path}: its name has to end in {' or '.join(suffixes)}")
    if "\0" in str(path):
        raise UserError(f"cannot write {str(path)!r}: no file has such a name; choose another")
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(4)}-{path.name}")
    drafts.add(draft)
    try:
        # A name that nobody can foresee, and a file that was not there: a link laid in its place would be followed.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another place or check the rights") from error
    finally:
        drafts.discard(draft)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def contents(path: Path) -> bytes:
    """Everything in a regular file; ``OSError`` for anything else, since a device or a pipe may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def as_json(tree: Any, indent: int | None = None) -> str:
    """Plain values as JSON that every reader takes; numbers that are not finite, for which it has no word, as ``null``."""
    return json.dumps(_finite(tree), indent=indent, allow_nan=False)


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with the checksum of all of them: what was read and is not ``sealed`` again has changed since."""
    content = {name: value for name, value in tree.items() if name != SEAL}
    return content | {SEAL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _finite(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _finite(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
