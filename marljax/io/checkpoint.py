"""Checkpoints of a whole run: written by orbax, named by their update, never read half-written or damaged.

A checkpoint is a folder ``<update>/`` with orbax's files and a ``manifest.json`` that says what the checkpoint was made for, the
structure of its arrays, and the checksum of every file. It is written under another name and renamed when complete.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.errors import UserError, first_line
from marljax.io import files
from marljax.io.files import DRAFT, SEAL, contents, discard, sealed
from marljax.io.run_folder import REMOVED
from marljax.utils import distributed
from marljax.version import __version__

FORMAT = 1  # raised when the layout of a checkpoint changes
MANIFEST, ARRAYS = "manifest.json", "arrays"
_KINDS = {"format": object, "purpose": dict, "structure": dict, "files": dict, "update": int, "notes": dict}  # in a manifest


class DamagedError(Exception):
    """Files of a checkpoint are missing or changed; an older checkpoint may still be good."""


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What a checkpoint was made for; it loads into nothing else."""

    algo: str
    env: str
    env_version: str


@dataclasses.dataclass(frozen=True)
class Restored:
    """What came out of a run folder."""

    tree: Any  # like the template
    update: int
    notes: dict[str, Any]  # the plain values that were saved with it
    warnings: tuple[str, ...]  # one line for each newer checkpoint that was damaged


def save(folder: Path, update: int, tree: Any, purpose: Purpose, keep: int, notes: dict[str, Any] | None = None) -> Path:
    """Writes ``tree`` as ``folder/<update>``, then drops all but the newest ``keep`` checkpoints up to this one.

    ``tree`` is a pytree of arrays (typed PRNG keys included); ``notes`` are further plain values for the manifest. Raises
    ``UserError`` when the files cannot be written; what was there before stays.
    """
    target = folder / _folder_name(update)
    draft = folder / f"{DRAFT}{target.name}"
    files.drafts.add(draft)
    try:
        distributed.first_does(lambda: _begun(draft))
        try:
            _write_arrays(draft / ARRAYS, _arrays(tree))
        except OSError as error:
            raise _unwritten(target, error) from error
        return distributed.first_does(lambda: _completed(draft, target, tree, purpose, keep, notes or {}))
    except UserError:
        _discard(draft)  # on a full disk it would be in the way of whatever is to be written next
        raise
    finally:
        files.drafts.discard(draft)


def _begun(draft: Path) -> Path:
    """An empty folder to write to."""
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        discard(draft)
        draft.mkdir()
    except OSError as error:
        raise _unwritten(draft, error) from error
    return draft


def _discard(draft: Path) -> None:
    """Removes a draft in which threads of TensorStore's may still be writing, for a while."""
    for _ in range(50):
        files.discard(draft)
        if not draft.exists():
            return
        time.sleep(0.1)


def _completed(draft: Path, target: Path, tree: Any, purpose: Purpose, keep: int, notes: dict[str, Any]) -> Path:
    """Describes what was written, gives it its name, and removes what is older than the newest ``keep``."""
    folder, update = target.parent, int(target.name)
    try:
        manifest = {"format": FORMAT, "update": update, "purpose": dataclasses.asdict(purpose), "notes": notes}
        manifest |= {"marljax": __version__, "structure": structure(tree), "files": _checksums(draft)}
        (draft / MANIFEST).write_text(json.dumps(sealed(manifest), indent=1), encoding="utf-8")
        _flush(draft)
        if target.exists():
            _remove(target)
        draft.rename(target)
        for old in [path for path in checkpoints(folder) if int(path.name) <= update][keep:]:
            _remove(old)
    except OSError as error:
        raise _unwritten(target, error) from error
    return target


def _unwritten(path: Path, error: OSError) -> UserError:
    """What a user is told when the files of a checkpoint cannot be written."""
    return UserError(f"cannot write the checkpoint {path}: {error.strerror or error}; free some space or check the rights")


def restore(folder: Path, template: Any, purpose: Purpose, parts: Sequence[str] = ("",)) -> Restored:
    """The newest good checkpoint in ``folder``, as arrays like those of ``template`` and placed like them.

    ``template`` may hold arrays or ``jax.ShapeDtypeStruct``. Only arrays whose names begin with one of ``parts`` are read into
    memory; the others come back as the template has them. A damaged checkpoint is passed over for the one before it, and a
    warning says so. Raises ``UserError`` where there is none, where the newest was made for another purpose or structure, or
    where its files are good but cannot be read here.
    """
    found = checkpoints(folder)
    if not found:
        raise UserError(f"{folder} holds no checkpoint; is it the folder of a run that has saved one?")
    damage: list[str] = []
    for path in found:
        try:
            manifest = read_manifest(path)
            _check_name(path, manifest["update"])
            _check_purpose(path, manifest, purpose)
            _check_structure(path, manifest["structure"], structure(template))
            _check_files(path, manifest["files"])
            tree = _filled(template, path / ARRAYS, tuple(parts))
        except DamagedError as error:
            damage.append(f"checkpoint {path} is damaged ({error})")
            continue
        return Restored(
            tree, manifest["update"], manifest["notes"], tuple(f"{line}; going on from {path.name}" for line in damage)
        )
    raise UserError(f"no usable checkpoint: {'; '.join(damage)}")


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"[0-9]{8,}", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _folder_name(update: int) -> str:
    return f"{update:08d}"


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says about itself.

    Raises ``DamagedError`` if it cannot be read, ``UserError`` if it is another program's or another format.
    """
    try:
        manifest = json.loads(contents(path / MANIFEST))
        changed = isinstance(manifest, dict) and SEAL in manifest and sealed(manifest) != manifest  # those of before have no seal
    except FileNotFoundError as error:
        raise DamagedError(f"it has no {MANIFEST}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"its {MANIFEST} is not readable") from error
    if not isinstance(manifest, dict) or not _KINDS.keys() - {"notes"} <= manifest.keys():
        raise DamagedError(f"its {MANIFEST} is not complete")
    if changed:
        raise DamagedError(f"its {MANIFEST} has changed since it was written")
    if manifest["format"] != FORMAT:
        raise UserError(f"{path} has checkpoint format {manifest['format']}, this marljax reads format {FORMAT}; use its version")
    manifest = {"notes": {}} | manifest
    wrong = [name for name, kind in _KINDS.items() if not isinstance(manifest[name], kind)]
    if wrong:
        raise DamagedError(f"{wrong[0]} in its {MANIFEST} is not what marljax writes")
    return manifest


def newest_notes(folder: Path) -> dict[str, Any]:
    """The notes of the newest checkpoint whose manifest can be read; empty where there is none."""
    for path in checkpoints(folder):
        try:
            return read_manifest(path)["notes"]
        except DamagedError:
            continue
    return {}


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Name → array of a checkpoint's ``arrays``, whose checksums have been compared.

    Raises ``UserError`` where they cannot be read all the same: no older checkpoint could be.
    """
    wanted = dict.fromkeys(names, 0)
    whole = dict.fromkeys(wanted, _orbax().RestoreArgs(restore_type=np.ndarray))  # whatever devices their parts were on
    args = _orbax().args.PyTreeRestore(item=wanted, restore_args=whole, partial_restore=True)
    try:
        with _orbax().PyTreeCheckpointer() as checkpointer:
            return checkpointer.restore(path.absolute(), args=args)
    except Exception as error:  # orbax has many kinds
        in_utf8 = sys.getfilesystemencoding() == "utf-8"
        advice = "free some memory, or take another version of orbax-checkpoint" if in_utf8 else "start Python with -X utf8"
        raise UserError(f"orbax cannot read {path}: {type(error).__name__}: {first_line(error)}; {advice}") from error


def structure(tree: Any) -> dict[str, list[Any]]:
    """Name → [shape, dtype] of every array."""
    return {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in _named(tree)}


def _named(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _arrays(tree: Any) -> dict[str, Any]:
    """Arrays by name, on the host but for those that several processes share, of which each writes its parts.

    Empty ones stay away (orbax does not store them), the template gives them back.
    """
    arrays = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in _named(tree) if leaf.size}
    if jax.process_count() > 1:
        return arrays
    return {name: np.asarray(array) for name, array in jax.device_get(arrays).items()}


def _filled(template: Any, path: Path, parts: tuple[str, ...]) -> Any:
    """``template`` with the stored arrays in the places whose names begin with one of ``parts``."""
    arrays = read_arrays(path, [name for name, leaf in _named(template) if leaf.size and name.startswith(parts)])
    # each is dropped once it is placed: nothing stands in memory twice but the array of the moment
    leaves = [_placed(leaf, arrays.pop(name, None)) if name.startswith(parts) else leaf for name, leaf in _named(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _placed(leaf: Any, value: np.ndarray | None) -> jax.Array:
    """``value``, of an empty array None, as ``leaf`` is."""
    array = distributed.placed(np.zeros(leaf.shape, leaf.dtype) if value is None else value, getattr(leaf, "sharding", None))
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(jnp.empty((), leaf.dtype))) if _is_key(leaf) else array


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    report, tasks = sys.unraisablehook, logging.getLogger("asyncio")  # which tells of tasks whose errors nobody awaits
    level = tasks.level
    sys.unraisablehook = functools.partial(_without_late_reports, report)
    tasks.setLevel(logging.CRITICAL + 1)
    try:
        with _orbax().StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), arrays)
        sys.unraisablehook = report
        tasks.setLevel(level)
    except Exception as error:  # orbax reports a full disk with many kinds of errors
        reason = re.search(r": ([^:]+) \[os_error_code", str(error))  # as TensorStore gives it, behind names of files
        raise OSError(reason[1] if reason else first_line(error)) from error


def _orbax() -> Any:
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # its threads log every error that it raises, too, with tracebacks
    return orbax.checkpoint


def _check_name(path: Path, update: int) -> None:
    """An older checkpoint may have been copied over a newer one."""
    if path.name != _folder_name(update):
        raise DamagedError(f"it is the checkpoint of update {update}; rename it to {_folder_name(update)} to go on from there")


def _without_late_reports(report: Callable[[Any], None], unraisable: Any) -> None:
    """``sys.unraisablehook`` while a checkpoint is written, and after that has failed: every write of TensorStore's that ends
    later reports to a loop that is closed by then."""
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        report(unraisable)


def _check_purpose(path: Path, manifest: dict[str, Any], purpose: Purpose) -> None:
    for name, wanted in dataclasses.asdict(purpose).items():
        found = manifest["purpose"].get(name)
        if found != wanted:
            raise UserError(f"{path} was made for {name.replace('_', ' ')} {found}, not {wanted}; train anew or use its version")


def _check_structure(path: Path, found: dict[str, list[Any]], wanted: dict[str, list[Any]]) -> None:
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            theirs, ours = (_describe(side.get(name)) for side in (found, wanted))
            raise UserError(f"{path} does not fit these settings: {name} is {theirs} there and {ours} here")


def _describe(entry: Any) -> str:
    if entry is None:
        return "absent"
    return f"{entry[1]}{entry[0]}" if isinstance(entry, list) and len(entry) == 2 else str(entry)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in files}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(path: Path, checksums: dict[str, str]) -> None:
    """Whether the files are those that were written; only regular ones in the checkpoint's folder are read at all."""
    root = path.resolve()
    _check_kinds(root)
    for name, checksum in checksums.items():
        try:
            file = (root / name).resolve()
            if not file.is_relative_to(root):
                raise DamagedError(f"{name} lies outside of it")
            found = _checksum(file)
        except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
            raise DamagedError(f"{name} is missing or not readable") from error
        if found != checksum:
            raise DamagedError(f"{name} has changed since it was written")


def _check_kinds(root: Path) -> None:
    """Nothing but folders, regular files and links to those: reading a device or a pipe might never end."""
    for place, folders, names in os.walk(root):
        for name in (*folders, *names):
            file = Path(place, name)
            try:
                target, mode = file.resolve(strict=True), file.stat().st_mode
            except (OSError, RuntimeError) as error:  # RuntimeError: links that go round
                raise DamagedError(f"{file.relative_to(root)} is missing or not readable") from error
            if not target.is_relative_to(root):
                raise DamagedError(f"{file.relative_to(root)} is a link to outside of it")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DamagedError(f"{file.relative_to(root)} is not a regular file")


def _flush(folder: Path) -> None:
    """Puts files and folders on the disk, so that the rename cannot arrive there before them."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Deletes a checkpoint; it disappears from the list at once, whatever happens during the deletion."""
    gone = path.with_name(f"{REMOVED}{path.name}")
    discard(gone)
    path.rename(gone)
    discard(gone)
