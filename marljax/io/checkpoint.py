"""Checkpoints of a whole run, written by orbax; a half-written or damaged one is never restored.

A checkpoint is a folder ``<update>/`` with orbax's files and ``manifest.json``: algorithm and environment, the structure of the
arrays, and the checksum of every file. It is written under another name and renamed when complete.

``orbax.checkpoint.CheckpointManager`` does not fit: it commits a checkpoint and deletes older ones before checksums of its files
can be added, and silently skips an update that is not newer than all others, as after a damaged checkpoint.
"""

import dataclasses
import hashlib
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.errors import UserError, first_line
from marljax.io import files
from marljax.io.files import CHECKSUM, DRAFT, discard, with_checksum
from marljax.io.run_folder import DELETING
from marljax.utils import distributed
from marljax.utils.pytrees import is_key, named_leaves
from marljax.version import __version__

FORMAT = 1  # increased when the layout of a checkpoint changes
MANIFEST, ARRAYS = "manifest.json", "arrays"
_TYPES = {"purpose": dict, "structure": dict, "files": dict, "update": int, "notes": dict}  # of a manifest's entries


class DamagedError(Exception):
    """Files of a checkpoint are missing or changed; an older checkpoint may still be good."""


@dataclasses.dataclass(frozen=True)
class CheckpointSpec:
    """What a checkpoint was trained with; it is restored into nothing else."""

    algo: str
    env: str
    env_version: str


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint in memory."""

    tree: Any  # like the template
    update: int
    notes: dict[str, Any]  # the JSON values that were saved with it
    warnings: tuple[str, ...]  # one line for each newer checkpoint that is damaged


def save(folder: Path, update: int, tree: Any, purpose: CheckpointSpec, keep: int, notes: dict[str, Any] | None = None) -> Path:
    """Writes ``tree`` as ``folder/<update>``, then deletes all but the newest ``keep`` checkpoints up to this one.

    ``tree`` is a pytree of arrays, typed PRNG keys included; ``notes`` are further JSON values for the manifest. Raises
    ``UserError`` when the files cannot be written; earlier checkpoints stay.
    """
    target = folder / _name(update)
    draft = folder / f"{DRAFT}{target.name}"

    @_write_errors(target)
    def begin() -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        discard(draft)
        draft.mkdir()
        return draft

    @_write_errors(target)
    def commit() -> Path:
        manifest = {"format": FORMAT, "update": update, "purpose": dataclasses.asdict(purpose), "notes": notes or {}}
        written = sorted(path for path in draft.rglob("*") if path.is_file())
        checksums = {path.relative_to(draft).as_posix(): _checksum(path) for path in written}
        manifest |= {"marljax": __version__, "structure": structure(tree), "files": checksums}
        (draft / MANIFEST).write_text(json.dumps(with_checksum(manifest), indent=1), encoding="utf-8")
        for path in [*draft.rglob("*"), draft]:  # everything is on the disk before it is renamed
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if target.exists():
            _delete(target)
        draft.rename(target)
        for old in [path for path in checkpoints(folder) if int(path.name) <= update][keep:]:
            _delete(old)
        return target

    files.drafts.add(draft)
    try:
        distributed.on_first_process(begin)
        with _write_errors(target):
            _write_arrays(draft / ARRAYS, tree)
        return distributed.on_first_process(commit)
    except UserError:
        for _ in range(50):  # on a full disk it would be in the way; TensorStore's threads may still be writing to it
            discard(draft)
            if not draft.exists():
                break
            time.sleep(0.1)
        raise
    finally:
        files.drafts.discard(draft)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write the checkpoint {path}: {reason}; free some space or check permissions") from error


def restore(
    folder: Path, template: Any, purpose: CheckpointSpec, parts: Sequence[str] = ("",), update: int | None = None
) -> Restored:
    """The newest good checkpoint in ``folder``, or that of an update, with the shapes, dtypes and shardings of ``template``.

    ``template`` holds arrays or ``jax.ShapeDtypeStruct``. Only arrays whose names begin with one of ``parts`` are read, the rest
    is the template's. A damaged checkpoint is skipped with a warning. Raises ``UserError`` where there is none, where the newest
    has another purpose or structure, or where orbax cannot read its undamaged files.
    """
    found = checkpoints(folder)
    if not found:
        raise UserError(f"{folder} holds no checkpoint; is it the folder of a run that has saved one?")
    if update is not None:
        kept = ", ".join(str(int(path.name)) for path in reversed(found))
        found = [path for path in found if int(path.name) == update]
        if not found:
            raise UserError(
                f"{folder} has no checkpoint of update {update} but of {kept}; train with a larger checkpoint.keep=… to keep more"
            )
    damage: list[str] = []
    for path in found:
        try:
            manifest = read_manifest(path)
            update = manifest["update"]
            if path.name != _name(update):  # an older checkpoint may have been copied over a newer one
                raise DamagedError(f"it is the checkpoint of update {update}; rename it to {_name(update)} to go on from there")
            _check_manifest(path, manifest, purpose, structure(template))
            _check_files(path, manifest["files"])
            tree = _fill(template, path / ARRAYS, tuple(parts))
        except DamagedError as error:
            damage.append(f"checkpoint {path} is damaged ({error})")
            continue
        return Restored(tree, update, manifest["notes"], tuple(f"{line}; going on from {path.name}" for line in damage))
    raise UserError(f"no usable checkpoint: {'; '.join(damage)}")


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"[0-9]{8,}", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises ``DamagedError`` if it is not intact, ``UserError`` if it has another format."""
    try:
        manifest = json.loads(files.read_file(path / MANIFEST))
        if not isinstance(manifest, dict) or CHECKSUM not in manifest:
            raise DamagedError(f"its {MANIFEST} is not complete")
        if with_checksum(manifest) != manifest:
            raise DamagedError(f"its {MANIFEST} has changed since it was written")
    except FileNotFoundError as error:
        raise DamagedError(f"it has no {MANIFEST}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"its {MANIFEST} is not readable") from error
    if (version := manifest.get("format")) != FORMAT:
        raise UserError(f"{path} has checkpoint format {version}, this marljax reads format {FORMAT}; use its version")
    if wrong := [name for name, kind in _TYPES.items() if not isinstance(manifest.get(name), kind)]:
        raise DamagedError(f"{wrong[0]} in its {MANIFEST} has the wrong type")
    return manifest


def newest_notes(folder: Path) -> dict[str, Any]:
    """The notes of the newest checkpoint whose manifest can be read; empty if there is none."""
    for path in checkpoints(folder):
        try:
            return read_manifest(path)["notes"]
        except DamagedError:
            continue
    return {}


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Name → array of a checkpoint's ``arrays``, whose checksums have been verified.

    Raises ``UserError`` where orbax cannot read them: it could not read an older checkpoint either.
    """
    ocp = _orbax()
    requested = dict.fromkeys(names, 0)
    whole = dict.fromkeys(requested, ocp.RestoreArgs(restore_type=np.ndarray))  # whatever devices their shards were on
    args = ocp.args.PyTreeRestore(item=requested, restore_args=whole, partial_restore=True)
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            return checkpointer.restore(path.absolute(), args=args)
    except Exception as error:  # orbax raises many kinds
        in_utf8 = sys.getfilesystemencoding() == "utf-8"
        advice = "free some memory, or take another version of orbax-checkpoint" if in_utf8 else "start Python with -X utf8"
        raise UserError(f"orbax cannot read {path}: {type(error).__name__}: {first_line(error)}; {advice}") from error


def structure(tree: Any) -> dict[str, list[Any]]:
    """Name → [shape, dtype] of every array."""
    return {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in named_leaves(tree)}


def _name(update: int) -> str:
    return f"{update:08d}"


def _fill(template: Any, path: Path, parts: tuple[str, ...]) -> Any:
    """``template`` with the stored arrays whose names begin with one of ``parts``."""
    stored = read_arrays(path, [name for name, leaf in named_leaves(template) if leaf.size and name.startswith(parts)])
    leaves = []
    for name, leaf in named_leaves(template):
        if name.startswith(parts):
            # Popped, so that no more than one array is in memory twice. orbax does not store empty arrays.
            value = stored.pop(name) if leaf.size else np.zeros(leaf.shape, leaf.dtype)
            array = distributed.place(value, getattr(leaf, "sharding", None))
            if is_key(leaf):
                array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(jnp.empty((), leaf.dtype)))
            leaf = array
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _write_arrays(path: Path, tree: Any) -> None:
    arrays = {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in named_leaves(tree) if leaf.size}
    if jax.process_count() == 1:  # else each process writes its own shards
        arrays = {name: np.asarray(array) for name, array in jax.device_get(arrays).items()}
    report, asyncio_log = sys.unraisablehook, logging.getLogger("asyncio")
    level = asyncio_log.level

    def without_closed_loops(unraisable: Any) -> None:
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            report(unraisable)

    # After a failure TensorStore's pending writes report to a closed event loop: both stay silenced then.
    sys.unraisablehook = without_closed_loops
    asyncio_log.setLevel(logging.CRITICAL + 1)
    try:
        with _orbax().StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), arrays)
    except Exception as error:  # orbax reports a full disk by many kinds of errors
        reason = re.search(r": ([^:]+) \[os_error_code", str(error))  # TensorStore's, after the file names
        raise OSError(reason[1] if reason else first_line(error)) from error
    sys.unraisablehook = report
    asyncio_log.setLevel(level)


def _orbax() -> Any:
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # its threads log every error with a traceback
    return orbax.checkpoint


def _check_manifest(path: Path, manifest: dict[str, Any], purpose: CheckpointSpec, expected: dict[str, list[Any]]) -> None:
    """Raises ``UserError`` for a checkpoint of another purpose or structure."""

    def describe(entry: Any) -> str:
        if entry is None:
            return "absent"
        return f"{entry[1]}{entry[0]}" if isinstance(entry, list) and len(entry) == 2 else str(entry)

    for name, value in dataclasses.asdict(purpose).items():
        if (saved := manifest["purpose"].get(name)) != value:
            raise UserError(f"{path} was made for {name.replace('_', ' ')} {saved}, not {value}; train again or use its version")
    found = manifest["structure"]
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            stored, required = (describe(side.get(name)) for side in (found, expected))
            raise UserError(f"{path} does not fit these settings: {name} is {stored} there and {required} here")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(path: Path, checksums: dict[str, str]) -> None:
    """Raises ``DamagedError`` unless the files are those that were written.

    Only regular files inside the checkpoint are opened: reading a device or a pipe might never end.
    """
    root = path.resolve()
    for file in [*root.rglob("*"), *(root / name for name in checksums)]:
        name = os.path.relpath(file, root)
        try:
            target, mode = file.resolve(strict=True), file.stat().st_mode
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: an invalid name
            raise DamagedError(f"{name} is missing or not readable") from error
        if not target.is_relative_to(root) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DamagedError(f"{name} is not a regular file inside it")
    for name, checksum in checksums.items():
        try:
            found = _checksum(root / name)
        except OSError as error:
            raise DamagedError(f"{name} is missing or not readable") from error
        if found != checksum:
            raise DamagedError(f"{name} has changed since it was written")


def _delete(path: Path) -> None:
    """Deletes a checkpoint; it disappears from the list at once, even if the deletion is interrupted."""
    renamed = path.with_name(f"{DELETING}{path.name}")
    discard(renamed)
    path.rename(renamed)
    discard(renamed)
