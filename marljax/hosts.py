"""Several processes that train one run together: all compute, the first one writes. With one process everything here is trivial.

Each is started with the same command and ``distributed=true``; JAX finds the others on clusters that it knows (Slurm, Open MPI,
Kubernetes, TPU pods), or is told where they are by ``hosts.*``. They share the file system that run folders lie in.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from marljax.errors import UserError

LONGEST_LINE = 2048  # bytes of a line that the first process tells the others


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Where the processes of a run find each other; what is None JAX finds out from the cluster."""

    coordinator: str | None = None
    count: int | None = None
    index: int | None = None


def join(hosts: Hosts) -> None:
    """Becomes one of the processes of a run; to be called before anything is computed.

    Raises ``UserError`` where the others cannot be found.
    """
    given = [name for name, value in dataclasses.asdict(hosts).items() if value is not None]
    if given and len(given) < 3:
        raise UserError(f"hosts.{given[0]} needs the others too: hosts.coordinator=<host:port> hosts.count=2 hosts.index=0")
    if given and not 0 <= hosts.index < hosts.count:  # type: ignore[operator]
        raise UserError(f"hosts.index={hosts.index} is out of range; it takes integers from 0 to {hosts.count - 1}")  # type: ignore[operator]
    try:
        jax.distributed.initialize(hosts.coordinator, hosts.count, hosts.index)
    except Exception as error:  # JAX says in many kinds of errors that it knows no cluster or that nobody answers
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        advice = "give hosts.coordinator=<host:port> hosts.count=<processes> hosts.index=<0, 1, …>"
        raise UserError(f"distributed=true does not work here: {reason}; {advice}") from error


def is_first() -> bool:
    """Whether this process writes."""
    return jax.process_index() == 0


def first_does(action: Callable[[], Path]) -> Path:
    """The path that ``action`` gives in the first process; a ``UserError`` there is one everywhere."""
    if jax.process_count() == 1:
        return action()
    line = ""
    if is_first():
        try:
            line = f"+{action()}"
        except UserError as error:
            line = f"-{error}"
    line = _told(line)
    if line.startswith("-"):
        raise UserError(line[1:])
    return Path(line[1:])


def _told(line: str) -> str:
    """The first process's line, everywhere."""
    row = np.zeros(LONGEST_LINE, np.uint8)
    content = np.frombuffer(line.encode()[:LONGEST_LINE], np.uint8)
    row[: len(content)] = content
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(row))).rstrip(b"\0").decode(errors="ignore")


def largest(number: int) -> int:
    """The largest of the numbers that the processes give."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.array(number))))


def wait(where: str) -> None:
    """Until every process is there."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def gathered(tree: Any) -> Any:
    """Arrays that every process has whole; with one process as they are."""
    return tree if jax.process_count() == 1 else fetched(tree)


def fetched(tree: Any) -> Any:
    """Arrays on the host, whole, whichever processes hold their parts."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(lambda leaf: np.asarray(_whole(leaf)), tree)


def _whole(leaf: Any) -> Any:
    everywhere = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    return leaf if everywhere else multihost_utils.process_allgather(leaf, tiled=True)


def placed(array: Any, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """An array that every process has, as parts on the devices of all."""
    if jax.process_count() == 1 or sharding is None:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
