"""Whether a run folder may have code imported or data sent: only where its user says so, or trained it on this machine.

A run folder may come from anywhere, and its ``config.yaml`` may name modules to import and an account to log to. What a user
trains here leaves a mark in the user's own state folder, outside the run folder, for each such value at that path; a folder that
was edited, moved or received has none.
"""

import hashlib
import importlib.abc
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from marljax import registry
from marljax.config import convert
from marljax.errors import UserError
from marljax.io import run_folder

WANDB = "wandb"
NAMES = {"env": "env_name", "algo": "algo_name"}  # groups whose ``target`` is imported where their name is ``custom``


def targets(tree: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration would have imported beyond registered names: ``{"env.target": "package.module:Class"}``."""
    custom = [group for group, name in NAMES.items() if tree.get(name) == registry.CUSTOM]
    found = {f"{group}.target": tree[group].get("target") for group in custom}
    return {key: target for key, target in found.items() if isinstance(target, str)}


def check(folder: Path, tree: Mapping[str, Any], repeated: Mapping[str, Any], trust: bool) -> None:
    """Imports what the configuration of a run folder names, where that is allowed; modules in the folder itself never are.

    Raises ``UserError`` where the run was not trained here, and the user has neither repeated the targets nor said ``trust``.
    """
    wanted = targets(tree)
    for key, target in wanted.items():
        if trust or repeated.get(key) == target or is_marked(folder, key, target):
            continue
        word = shlex.quote(f"{key}={target}") if target.isprintable() else f"{key}={target!r}"
        raise UserError(
            f"{folder} was not trained here by you, and loading it would import {word}, which may run any code; "
            f"if you trust it, repeat {word} or add trust=true (in Python trust=True)"
        )
    with nothing_from(folder):
        for target in wanted.values():
            registry.import_target(target)


def read_config(folder: Path, repeated: Mapping[str, Any], trust: bool) -> dict[str, Any]:
    """The configuration of a run folder, with what it names imported as ``check`` allows."""
    tree = run_folder.read_config(folder)
    check(folder, tree, repeated, trust)
    return tree


def mark(folder: Path, tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Remembers that the user runs these values at this path; without a home directory nothing is remembered.

    ``defaults`` are those of the group ``wandb``, which need no mark.
    """
    values: dict[str, Any] = dict(targets(tree))
    if tree[WANDB] != defaults:
        values[WANDB] = tree[WANDB]
    for key, value in values.items():
        path = _mark(folder, key, value)
        if path is None:
            continue
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(f"{folder.resolve()}\n", encoding="utf-8")


def is_marked(folder: Path, key: str, value: Any) -> bool:
    """Whether the user has run this value at this path."""
    path = _mark(folder, key, value)
    return path is not None and path.is_file()


def _mark(folder: Path, key: str, value: Any) -> Path | None:
    """The file that stands for a value at a path; None where there is no place for it."""
    place = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(place) if os.path.isabs(place) else Path.home() / ".local" / "state"
        content = sorted(convert.flatten({key: value}).items())
        return state / "marljax" / "trusted" / hashlib.sha256(repr((str(folder.resolve()), content)).encode()).hexdigest()
    except (RuntimeError, OSError, ValueError):  # no home directory; a path that cannot be
        return None


@contextmanager
def nothing_from(folder: Path) -> Iterator[None]:
    """While it lasts, modules below ``folder`` are not found, unless the user has put a place there on ``sys.path``."""
    registry.OWN_FOLDERS[:] = [own for own in registry.OWN_FOLDERS if not _is_below(own, [folder])]
    guard = _Guard(folder)
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)


class _Guard(importlib.abc.MetaPathFinder):
    """Finds nothing, and stops the search for a module that lies in a run folder.

    The current directory, and packages without an ``__init__`` on the way from another place, would lead there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        here = ("", os.getcwd(), *registry.OWN_FOLDERS)
        self._chosen = [place for place in sys.path if place not in here and _is_below(place, [folder])]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        for place in (spec.origin if spec.has_location else None, *(spec.submodule_search_locations or ())):
            if place and _is_below(place, [self._folder]) and not _is_below(place, self._chosen):
                reason = f"{place} lies in the run folder, from which nothing is imported; move it elsewhere"
                raise ModuleNotFoundError(reason, name=name)
        return None


def _is_below(place: str | Path, folders: Sequence[str | Path]) -> bool:
    """Whether a path lies in one of the folders, as it is written or where its links lead."""
    paths = {Path(os.path.abspath(place)), Path(os.path.realpath(place))}
    tops = [Path(form(folder)) for folder in folders for form in (os.path.abspath, os.path.realpath)]
    return any(path.is_relative_to(top) for path in paths for top in tops)
