"""The folder of a run: where it is, who may write to it, which files it holds."""

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
from marljax.io.files import DRAFT, as_json, discard, read_file, replacing, with_checksum

CONFIG, METRICS, CHECKPOINTS, RESULTS, PROVENANCE = "config.yaml", "metrics.jsonl", "checkpoints", "results.json", "run.json"
CURVE, LOSSES, SWEEP = "curve.png", "curve_losses.png", "sweep.png"
EPISODE, PAGE, CHARTS, LOCK = "episode.gif", "episode.html", "episode.png", ".lock"
SAVED = ".saved"  # holds the update of the last checkpoint written here, 0 before the first
WRITTEN = (CONFIG, METRICS, RESULTS, CURVE, LOSSES, SWEEP, EPISODE, PAGE, CHARTS, SAVED)  # by training
DELETING = ".deleting-"  # prefix of checkpoints that are being deleted
# the parts of a configuration that are mappings
GROUPS = ("algo", "env", "env_params", "sweep", "search", "eval", "checkpoint", "failure_replay", "mesh", "hosts", "wandb")
ATTEMPTS = 100  # at a name that is free
NESTING, FLAT = "[{-?:", 1000  # characters that begin a level of YAML; with fewer of them it cannot be nested deep

Which = Literal["best", "last"]  # of the parameters of a run


def create(root: Path, title: str, name: str | None) -> Path:
    """Creates ``<root>/<title>/<name>``; without a name, the time.

    Raises ``UserError`` where nothing can be written or the run already exists.
    """
    stem = name or datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(ATTEMPTS):
        folder = root / title / (stem if attempt == 0 else f"{stem}_{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if name is not None or not folder.parent.is_dir():
                raise UserError(f"{folder} exists already; choose another name=, or {resume_argument(folder)}") from error
            continue
        except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot create the run folder {folder}: {reason}; choose another with runs=<folder>") from error
        return folder
    raise UserError(f"{root / title} holds {ATTEMPTS} runs named {stem}; choose a name=")


def resume_argument(folder: Path) -> str:
    """``resume=<folder>``, quoted for a shell."""
    return shlex.quote(f"resume={folder}")


def batch_folder(index: int) -> str:
    """Name of a batch's folder inside that of the whole run."""
    return f"batch_{index}"


def check_name(name: str) -> None:
    """Raises ``UserError`` for a name that is not that of a single folder."""
    if name in ("", ".", "..") or set("/\\") & set(name) or not name.isprintable():
        raise UserError(f"name={name!r} is not a valid folder name; it names the run's folder in runs=<folder>")


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Limits the folder, which is created if needed, to one writer; the lock ends with the process, however that ends.

    Removes what killed runs left half-written or half-deleted. Raises ``UserError`` where another process holds the lock, and for
    links that lead out of the folder.
    """
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to the run folder {folder}: {error.strerror}; check permissions and {LOCK}") from error
    with open(descriptor, "rb", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            exclusive = True
        except BlockingIOError as error:
            raise UserError(f"another process is training in {folder}; wait for it or stop it") from error
        except OSError:  # a file system without locks: drafts may be another process's
            exclusive = False
        # Through a linked folder, checkpoints would be written and deleted outside of the run's own.
        inside = [*folder.glob("tensorboard/*"), *folder.glob("batch_*")]
        for path in (folder / CHECKPOINTS, folder / "wandb", folder / "tensorboard", *inside):
            if path.is_symlink():
                raise UserError(f"{path} is a link, and a run writes only inside its own folder; replace it by the folder itself")
        if exclusive:
            drafts = [path for path in folder.glob(f"{DRAFT}*") if path.name.endswith(tuple(f"-{name}" for name in WRITTEN))]
            for path in drafts + [path for start in (DRAFT, DELETING) for path in (folder / CHECKPOINTS).glob(f"{start}*")]:
                discard(path)
        yield folder


def note_saved(folder: Path, update: int) -> None:
    """Records the update of the newest checkpoint, so that lost or replaced checkpoints are noticed."""
    with replacing(folder / SAVED) as draft:
        draft.write_text(f"{update}\n", encoding="utf-8")


def last_saved(folder: Path) -> int | None:
    """The update of the last checkpoint written here, 0 before the first; None if unknown."""
    try:
        return int(read_file(folder / SAVED))
    except (OSError, ValueError):
        return None


def remove(folder: Path, *parents: Path) -> None:
    """Deletes an unused run folder, and those of ``parents``, inner ones first, that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in parents:
        with suppress(OSError):  # it holds other runs
            parent.rmdir()


def write_config(folder: Path, tree: Mapping[str, Any]) -> None:
    """The resolved configuration, for people to read and for ``resume`` and ``load``."""
    import yaml

    with replacing(folder / CONFIG) as draft:
        draft.write_text(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run; raises ``UserError`` where the folder holds none."""
    import yaml

    path = folder / CONFIG
    try:
        text = read_file(path).decode()
        # The parser in C takes a fifth of the time, but deep nesting overflows its stack.
        flat = sum(map(text.count, NESTING)) < FLAT
        tree = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader) if flat else yaml.SafeLoader)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a name that no file can have
        raise UserError(f"{path} is not readable: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise UserError(f"{path} is not readable: its settings are nested too deep") from error
    if not isinstance(tree, dict) or not {"algo_name", "env_name", "algo", "env"} <= tree.keys():
        raise UserError(f"{path} is not the configuration of a marljax run")
    for name in ("algo_name", "env_name"):
        if not isinstance(tree[name], str):
            raise UserError(f"{path}: {name} is {tree[name]}, not a name; set it back")
    for group in GROUPS:
        if not isinstance(tree.get(group, {}), dict):
            raise UserError(f"{path}: {group} is {tree[group]}, not a group of settings; set it back")
    return tree


def find(root: Path) -> list[Path]:
    """The run folders below a folder, or that folder itself; batches are parts of their run, and links are not followed."""
    found = []
    for folder, inner, names in os.walk(root):
        if CONFIG in names:
            found.append(Path(folder))
            inner.clear()
    return sorted(found)


def parts(folder: Path, batches: int | None) -> list[Path]:
    """The folders with the rows and checkpoints of a run: its own, or those of its batches."""
    return [folder] if batches in (None, 1) else [folder / batch_folder(index) for index in range(batches)]


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions of a run so far, from ``run.json``; none of a file that is missing or damaged."""
    try:
        sessions = json.loads(read_file(folder / PROVENANCE))["sessions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []


def is_locked(folder: Path) -> bool:
    """Whether a process is training in a run folder; False on a file system without locks."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """The final evaluation, with its checksum."""
    with replacing(folder / RESULTS) as draft:
        draft.write_text(as_json(with_checksum(json.loads(as_json(results))), indent=1) + "\n", encoding="utf-8")


def read_results(folder: Path) -> dict[str, Any]:
    """The final evaluation. Raises ``OSError`` where it cannot be read, ``ValueError`` where it is damaged or was edited."""
    try:
        results = json.loads(read_file(folder / RESULTS))
        intact = isinstance(results, dict) and with_checksum(results) == results
    except RecursionError as error:
        raise ValueError(f"{folder / RESULTS} is nested too deep") from error
    if not intact:
        raise ValueError(f"{folder / RESULTS} has changed since it was written")
    return results
