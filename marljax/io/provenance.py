"""Where a run folder comes from: ``run.json`` holds command, versions, device and time of every session that trained in it."""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from marljax.errors import UserError
from marljax.io.files import as_json, replacing
from marljax.io.run_folder import PROVENANCE
from marljax.utils import distributed
from marljax.version import __version__

LIBRARIES = ("jax", "jaxlib", "flax", "optax")
GIT_TIMEOUT = 5.0  # seconds


@dataclasses.dataclass
class Session:
    """How a session ends; whoever runs it says so. One that is killed stays ``running``."""

    status: str = "failed"


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Session]:
    """Adds a session to ``run.json`` of a run folder, and its status and duration when the block ends.

    Only the first of several processes writes. Raises ``UserError`` where the file cannot be written at the start.
    """
    session, start = Session(), time.monotonic()
    path = folder / PROVENANCE
    sessions = [*_read(path), described()]
    distributed.first_writes(lambda: _write(path, sessions))
    try:
        yield session
    finally:
        sessions[-1] |= {"status": session.status, "seconds": round(time.monotonic() - start, 1)}
        with contextlib.suppress(UserError):  # a full disk has been told of by what matters more
            if distributed.is_first():
                _write(path, sessions)


def described() -> dict[str, Any]:
    """This session, as it starts."""
    device = jax.devices()[0]
    return {
        "command": shlex.join(sys.orig_argv),
        "folder": os.getcwd(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "status": "running",
        "seconds": None,
        "versions": {"marljax": __version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in LIBRARIES},
        "git": git_state(Path(__file__).parent),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
    }


def git_state(package: Path) -> dict[str, Any] | None:
    """The commit of the checkout that a package lies in and whether tracked files differ from it; None outside of one.

    A package installed below somebody's own repository is not part of that.
    """
    try:
        if not _git(package, "ls-files", "--", "__init__.py"):
            return None
        commit = _git(package, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(package, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that git does not trust
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT, env=environment)
    return done.stdout.strip()


def _read(path: Path) -> list[dict[str, Any]]:
    """The sessions so far; of a file that is missing or damaged none."""
    try:
        sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []


def _write(path: Path, sessions: list[dict[str, Any]]) -> None:
    with replacing(path) as draft:
        draft.write_text(as_json({"sessions": sessions}, indent=1) + "\n", encoding="utf-8")
