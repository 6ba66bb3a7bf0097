"""Whether a run folder may have code imported or data sent: only where its user allows it, or trained it on this machine.

A run folder may come from anywhere, and its ``config.yaml`` may name modules to import and an account to log to. For each such
value, training leaves a mark in the user's own state folder; a run folder that was edited, moved or received has none.
"""

import hashlib
import importlib.abc
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from marljax import registry
from marljax.config import convert
from marljax.config.schema import Wandb
from marljax.errors import UserError
from marljax.io import run_folder

WANDB = "wandb"
NAMES = {"env": "env_name", "algo": "algo_name"}  # groups whose ``target`` is imported where their name is ``custom``


def targets(tree: Mapping[str, Any]) -> dict[str, str]:
    """The modules of users that a configuration names: ``{"env.target": "package.module:Class"}``."""
    custom = {f"{group}.target": tree[group].get("target") for group, name in NAMES.items() if tree.get(name) == registry.CUSTOM}
    return {key: target for key, target in custom.items() if isinstance(target, str)}


def check(folder: Path, tree: Mapping[str, Any], repeated: Mapping[str, Any], trust: bool) -> None:
    """Imports the targets of a run folder's configuration, where that is allowed; modules in the folder itself never are.

    Raises:
        UserError: where the run was not trained here, and the user has neither repeated the targets nor set ``trust``.
    """
    found = targets(tree)
    for key, target in found.items():
        if trust or repeated.get(key) == target or is_marked(folder, key, target):
            continue
        override = shlex.quote(f"{key}={target}") if target.isprintable() else f"{key}={target!r}"
        raise UserError(
            f"{folder} was not trained here by you, and loading it would import {override}, which may run any code; "
            f"if you trust it, repeat {override} or add trust=true (in Python trust=True)"
        )
    registry.OWN_FOLDERS[:] = [own for own in registry.OWN_FOLDERS if not _is_below(own, [folder])]
    guard = _Guard(folder)
    sys.meta_path.insert(0, guard)
    try:
        for target in found.values():
            registry.import_target(target)
    finally:
        sys.meta_path.remove(guard)


def read_config(folder: Path, repeated: Mapping[str, Any], trust: bool) -> dict[str, Any]:
    """The configuration of a run folder, its targets imported as ``check`` allows."""
    tree = run_folder.read_config(folder)
    check(folder, tree, repeated, trust)
    return tree


def mark(folder: Path, tree: Mapping[str, Any]) -> None:
    """Remembers that the user runs a configuration's targets, and its group ``wandb`` unless that is the default, at this path.

    Without a home directory nothing is remembered.
    """
    values = targets(tree) | ({} if tree[WANDB] == default_wandb() else {WANDB: tree[WANDB]})
    for key, value in values.items():
        if path := _mark(folder, key, value):
            with suppress(OSError):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_text(f"{folder.resolve()}\n", encoding="utf-8")


def default_wandb() -> dict[str, Any]:
    """The defaults of the group ``wandb``, which need no mark."""
    return convert.to_builtin(Wandb())


def is_marked(folder: Path, key: str, value: Any) -> bool:
    """Whether the user has run this value at this path."""
    path = _mark(folder, key, value)
    return path is not None and path.is_file()


def _mark(folder: Path, key: str, value: Any) -> Path | None:
    """The file that marks a value at a path; None where there is no state folder."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
        content = sorted(convert.flatten({key: value}).items())
        return state / "marljax" / "trusted" / hashlib.sha256(repr((str(folder.resolve()), content)).encode()).hexdigest()
    except (RuntimeError, OSError, ValueError):  # no home directory, or an impossible path
        return None


class _Guard(importlib.abc.MetaPathFinder):
    """Stops the import of a module in a run folder, to which the current directory or a package without ``__init__`` may lead.

    Directories of the run folder that the user has put on ``sys.path`` are allowed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        current = ("", os.getcwd(), *registry.OWN_FOLDERS)
        self._allowed = [path for path in sys.path if path not in current and _is_below(path, [folder])]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        for file in (spec.origin if spec.has_location else None, *(spec.submodule_search_locations or ())):
            if file and _is_below(file, [self._folder]) and not _is_below(file, self._allowed):
                raise ModuleNotFoundError(f"{file} is in the run folder, from which nothing is imported; move it", name=name)
        return None


def _is_below(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Whether a path is in one of the folders, as written or after resolving links."""
    paths = {Path(os.path.abspath(path)), Path(os.path.realpath(path))}
    tops = [Path(resolve(folder)) for folder in folders for resolve in (os.path.abspath, os.path.realpath)]
    return any(path.is_relative_to(top) for path in paths for top in tops)
