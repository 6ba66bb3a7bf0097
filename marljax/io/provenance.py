"""``run.json``: command, versions, device, commit and duration of every session that trained in a run folder."""

import contextlib
import dataclasses
import datetime
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from marljax.errors import UserError
from marljax.io.files import as_json, replacing
from marljax.io.run_folder import PROVENANCE, read_sessions
from marljax.utils import distributed
from marljax.version import __version__

LIBRARIES = ("jax", "jaxlib", "flax", "optax")
PACKAGE = Path(__file__).parents[1] / "__init__.py"
GIT_TIMEOUT = 5.0  # seconds


@dataclasses.dataclass
class Session:
    """The final status of a session, to be set by the caller; one that is killed stays ``running``."""

    status: str = "failed"


@contextlib.contextmanager
def recorded(
    folder: Path, sources: Mapping[str, Path] | None = None, origin: Mapping[str, Any] | None = None
) -> Iterator[Session]:
    """Adds a session to ``run.json`` of a run folder, and its status and duration when the block ends.

    ``sources`` are the files of a user's own modules, ``{"env.target": …}``, whose commits are recorded, ``origin`` says what the
    session goes beyond or starts from. Only the first process writes. Raises ``UserError`` where the file cannot be written at
    the start.
    """
    session, start = Session(), time.monotonic()
    path = folder / PROVENANCE
    sessions = [*read_sessions(folder), describe(sources or {}) | dict(origin or {})]
    distributed.first_writes(lambda: _write(path, sessions))
    try:
        yield session
    finally:
        seconds = round(time.monotonic() - start, 1)
        sessions[-1] |= {"status": session.status, "training_seconds": seconds, "seconds": seconds}
        if distributed.is_first():
            with contextlib.suppress(UserError):  # a full disk is reported by more important writes
                _write(path, sessions)


def record_total_duration(folder: Path, seconds: float) -> None:
    """Records the total duration of the last session in ``run.json``, with everything before and after its training.

    Only the first process writes; an unwritable file stays as it is.
    """
    sessions = read_sessions(folder)
    if not distributed.is_first() or not sessions or sessions[-1].get("status") == "running":  # another process's session
        return
    sessions[-1]["seconds"] = round(seconds, 1)
    with contextlib.suppress(UserError):
        _write(folder / PROVENANCE, sessions)


def day(folder: Path) -> str:
    """The day on which a run began, ``2026-11-25``; empty where ``run.json`` does not say."""
    started = next((session.get("started") for session in read_sessions(folder)), None)
    return started[:10] if isinstance(started, str) else ""


def describe(sources: Mapping[str, Path]) -> dict[str, Any]:
    """This session, as it starts."""
    device = jax.devices()[0]
    return {
        "command": shlex.join(command_line()),
        "folder": os.getcwd(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "status": "running",
        "training_seconds": None,
        "seconds": None,
        "versions": {"marljax": __version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in LIBRARIES},
        "git": git_state(PACKAGE),
        "user_code": {name: git_state(path) for name, path in sources.items()},
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
    }


def command_line() -> list[str]:
    """The command as it was typed: a script by its path, an installed command by its name."""
    script, arguments = sys.argv[0], sys.orig_argv[1:]  # a multirun changes the rest of sys.argv
    if script.startswith("-") or script not in arguments:  # python -c, python -m
        return ["python", *arguments]
    arguments = arguments[arguments.index(script) + 1 :]
    return ["python", script, *arguments] if script.endswith(".py") else [Path(script).name, *arguments]


def git_state(file: Path) -> dict[str, Any] | None:
    """The commit of the repository that tracks a source file, and whether tracked files differ from it; None outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT, env=environment)
        return done.stdout.strip()

    try:
        if not git("ls-files", "--", file.name):  # installed inside somebody's repository
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that git does not trust
        return None


def _write(path: Path, sessions: list[dict[str, Any]]) -> None:
    with replacing(path) as draft:
        draft.write_text(as_json({"sessions": sessions}, indent=1) + "\n", encoding="utf-8")
