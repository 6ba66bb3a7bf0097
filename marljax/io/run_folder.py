"""The folder of a run: where it is, who may write to it, what lies in it."""

import datetime
import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from marljax.errors import UserError
from marljax.io.files import DRAFT, SEAL, as_json, contents, discard, replacing, sealed

CONFIG, METRICS, CHECKPOINTS, RESULTS = "config.yaml", "metrics.jsonl", "checkpoints", "results.json"
# Those parts of a configuration that are mappings.
GROUPS = ("algo", "env", "env_params", "sweep", "search", "eval", "checkpoint", "failure_replay", "mesh", "hosts", "wandb")
PROVENANCE = "run.json"
CURVE, SWEEP, EPISODE, CHARTS, LOCK = "curve.png", "sweep.png", "episode.gif", "episode.png", ".lock"
SAVED = ".saved"  # holds the update of the last checkpoint that was written here, 0 before the first
WRITTEN = (CONFIG, METRICS, RESULTS, CURVE, SWEEP, EPISODE, CHARTS, SAVED)  # by training
REMOVED = ".deleting-"  # how the names of checkpoints begin that are being deleted

Which = Literal["best", "last"]  # of the parameters of a run


def create(root: Path, title: str, name: str | None) -> Path:
    """Makes ``<root>/<title>/<name>``; without a name, the time.

    Raises ``UserError`` where nothing can be written or a run stands there already.
    """
    stem = name or datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(100):
        folder = root / title / (stem if attempt == 0 else f"{stem}_{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if name is not None or not folder.parent.is_dir():
                raise UserError(f"{folder} exists already; choose another name=, or {resume_word(folder)}") from error
            continue
        except (OSError, ValueError) as error:  # a name that no file system takes is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot make the run folder {folder}: {reason}; choose another with runs=<folder>") from error
        return folder
    raise UserError(f"a hundred runs named {stem} stand in {root / title}; choose a name=")


def resume_word(folder: Path) -> str:
    """``resume=<folder>`` as it can be pasted into a shell."""
    return shlex.quote(f"resume={folder}")


def batch(index: int) -> str:
    """The folder of one of several batches, in that of the whole run."""
    return f"batch_{index}"


def check_name(name: str) -> None:
    """Raises ``UserError`` for what is not the plain name of a folder, but nothing or the path of another."""
    if name in ("", ".", "..") or set("/\\") & set(name) or not name.isprintable():
        raise UserError(
            f"name={name!r} is no plain name; runs=<folder> says where the run's folder stands, name= what it is called"
        )


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Keeps the folder, which is made where there is none, to one writer; the lock ends with the process, however that ends.

    What killed runs have left half-written or half-deleted is cleared away. Raises ``UserError`` for a folder that leads the
    writer elsewhere by links.
    """
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to the run folder {folder}: {error.strerror}; check its rights and {LOCK}") from error
    with open(descriptor, "rb", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is training in {folder}; wait for it or stop it") from error
        except OSError:  # a file system without locks: what looks left may be another process's
            alone = False
        else:
            alone = True
        _check_links(folder)
        if alone:
            _clear(folder)
        yield folder


def _check_links(folder: Path) -> None:
    """A linked folder would have checkpoints written, and old ones deleted, outside of the run's own."""
    for path in (folder / CHECKPOINTS, folder / "wandb", *folder.glob("batch_*")):
        if path.is_symlink():
            raise UserError(f"{path} is a link, and a run writes nothing outside its own folder; put the folder itself there")


def _clear(folder: Path) -> None:
    """Removes drafts of what training writes, and checkpoints that were being written or deleted."""
    drafts = [path for path in folder.glob(f"{DRAFT}*") if path.name.endswith(tuple(f"-{name}" for name in WRITTEN))]
    halves = [path for start in (DRAFT, REMOVED) for path in (folder / CHECKPOINTS).glob(f"{start}*")]
    for path in (*drafts, *halves):
        discard(path)


def note_saved(folder: Path, update: int) -> None:
    """Remembers that the newest checkpoint is of this update: so it is noticed when checkpoints are lost or put back."""
    with replacing(folder / SAVED) as draft:
        draft.write_text(f"{update}\n", encoding="utf-8")


def last_saved(folder: Path) -> int | None:
    """The update of the last checkpoint that was written here, 0 before the first; None where that is not known."""
    try:
        return int(contents(folder / SAVED))
    except (OSError, ValueError):
        return None


def remove(folder: Path, *parents: Path) -> None:
    """Deletes a run folder in which nothing happened, and those of ``parents``, inner ones first, that it leaves empty."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in parents:
        with suppress(OSError):  # other runs stand in it
            parent.rmdir()


def write_config(folder: Path, tree: Mapping[str, Any]) -> None:
    """The resolved configuration, for people to read and for ``resume`` and ``load``."""
    import yaml

    with replacing(folder / CONFIG) as draft:
        draft.write_text(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run; raises ``UserError`` where the folder is not a run's."""
    import yaml

    try:
        tree = yaml.safe_load(contents(folder / CONFIG).decode())
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: bytes that are no text, a name that no file can have
        raise UserError(f"{folder / CONFIG} is not readable: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise UserError(f"{folder / CONFIG} is not readable: its settings are nested too deep") from error
    if not isinstance(tree, dict) or not {"algo_name", "env_name", "algo", "env"} <= tree.keys():
        raise UserError(f"{folder / CONFIG} is not the configuration of a marljax run")
    for name in ("algo_name", "env_name"):
        if not isinstance(tree[name], str):
            raise UserError(f"{folder / CONFIG}: {name} is {tree[name]}, not a name; set it back")
    for group in GROUPS:
        if not isinstance(tree.get(group, {}), dict):
            raise UserError(f"{folder / CONFIG}: {group} is {tree[group]}, not a group of settings; set it back")
    return tree


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """The final evaluation, with its checksum."""
    with replacing(folder / RESULTS) as draft:
        draft.write_text(as_json(sealed(json.loads(as_json(results))), indent=1) + "\n", encoding="utf-8")


def read_results(folder: Path) -> dict[str, Any]:
    """What ``write_results`` left; earlier versions left no checksum.

    Raises ``OSError`` where it cannot be read, ``ValueError`` where it is damaged or was edited.
    """
    try:
        results = json.loads(contents(folder / RESULTS))
        whole = isinstance(results, dict) and (SEAL not in results or sealed(results) == results)
    except RecursionError as error:
        raise ValueError(f"{folder / RESULTS} is nested too deep") from error
    if not whole:
        raise ValueError(f"{folder / RESULTS} has changed since it was written")
    return results
