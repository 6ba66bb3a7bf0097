"""The folder of a run: where it is, who may write to it, what lies in it."""

import datetime
import fcntl
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from marljax.errors import UserError
from marljax.files import as_json, replacing

CONFIG, METRICS, CHECKPOINTS, RESULTS = "config.yaml", "metrics.jsonl", "checkpoints", "results.json"
# Those parts of a configuration that are mappings.
GROUPS = ("algo", "env", "env_params", "sweep", "search", "eval", "checkpoint", "failure_replay", "mesh", "hosts", "wandb")
CURVE, SWEEP, EPISODE, CHARTS, LOCK = "curve.png", "sweep.png", "episode.gif", "episode.png", ".lock"

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
                raise UserError(f"{folder} exists already; choose another name=, or resume={folder}") from error
            continue
        except (OSError, ValueError) as error:  # a name that no file system takes is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot make the run folder {folder}: {reason}; choose another with runs=<folder>") from error
        return folder
    raise UserError(f"a hundred runs named {stem} stand in {root / title}; choose a name=")


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
    """Keeps the folder, which is made where there is none, to one writer; the lock ends with the process, however that ends."""
    try:
        folder.mkdir(exist_ok=True)
        file = (folder / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to the run folder {folder}: {error.strerror}; check its rights") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is training in {folder}; wait for it or stop it") from error
        except OSError:  # a file system without locks
            pass
        yield folder


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
        tree = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: bytes that are no text, a name that no file can have
        raise UserError(f"{folder / CONFIG} is not readable: {str(error).splitlines()[0]}") from error
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
    """The final evaluation."""
    with replacing(folder / RESULTS) as draft:
        draft.write_text(as_json(results, indent=1) + "\n", encoding="utf-8")
