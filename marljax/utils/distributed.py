"""Several processes that train one run together: all compute, the first one writes. With one process all of this does nothing.

Each is started with the same command and ``distributed=true``; JAX finds the others on clusters that it knows (Slurm, Open MPI,
Kubernetes, TPU pods), or connects as ``hosts.*`` says. They share the file system that run folders lie in.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from marljax.errors import UserError, first_line

LONGEST_LINE = 2048  # bytes of an error message or path that processes exchange
LONGEST_REPORT = 24 * 3600  # seconds that the others wait for the first one's final evaluation
Result = TypeVar("Result")


def join(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> None:
    """Becomes one of the processes of a run; to be called before anything is computed.

    ``coordinator`` is ``address:port`` of the first of ``count`` processes; where all are None, JAX asks the cluster. Raises
    ``UserError`` where the others cannot be found.
    """
    hosts = {"coordinator": coordinator, "count": count, "index": index}
    given = [name for name, value in hosts.items() if value is not None]
    if given and len(given) < 3:
        raise UserError(f"hosts.{given[0]} needs the others too: hosts.coordinator=<host:port> hosts.count=2 hosts.index=0")
    if count is not None and index is not None and not 0 <= index < count:
        raise UserError(f"hosts.index={index} is out of range; it takes integers from 0 to {count - 1}")
    try:
        jax.distributed.initialize(coordinator, count, index, shutdown_timeout_seconds=LONGEST_REPORT)
    except Exception as error:  # of many types: no known cluster, no answer
        advice = "give hosts.coordinator=<host:port> hosts.count=<processes> hosts.index=<0, 1, …>"
        raise UserError(f"distributed=true does not work here: {first_line(error)}; {advice}") from error


def another_ended(error: BaseException) -> bool:
    """Whether an exception means that another process of the run has ended."""
    return jax.process_count() > 1 and bool(re.search("Gloo|NCCL|heartbeat|task died", str(error)))


def is_first() -> bool:
    """Whether this process writes."""
    return jax.process_index() == 0


def on_all_processes(action: Callable[[], Result]) -> Result:
    """The result of ``action`` in this process, after all have run it; a ``UserError`` of one is raised everywhere."""
    if jax.process_count() == 1:
        return action()
    failure, result = "", None
    try:
        result = action()
    except UserError as error:
        failure = str(error)
    failures = [line for line in _allgather_str(failure) if line]
    if failures:
        raise UserError(failures[0])
    return result  # type: ignore[return-value]


def first_writes(action: Callable[[], None]) -> None:
    """Runs ``action`` in the first process only; a ``UserError`` there is raised everywhere."""
    on_all_processes(action if is_first() else lambda: None)


def on_first_process(action: Callable[[], Path]) -> Path:
    """The path that ``action`` returns in the first process; a ``UserError`` there is raised everywhere."""
    if jax.process_count() == 1:
        return action()
    path = on_all_processes(lambda: str(action()) if is_first() else "")
    return Path(_allgather_str(path)[0])


def _allgather_str(line: str) -> list[str]:
    """The line of every process, in all of them."""
    row = np.frombuffer(line.encode()[:LONGEST_LINE].ljust(LONGEST_LINE, b"\0"), np.uint8)
    rows = np.asarray(_allgather(row)).reshape(jax.process_count(), LONGEST_LINE)
    return [bytes(each).rstrip(b"\0").decode(errors="ignore") for each in rows]


def largest(number: int) -> int:
    """The maximum over all processes."""
    if jax.process_count() == 1:
        return number
    return int(np.max(_allgather(np.array(number))))


def _allgather(array: Any, tiled: bool = False) -> Any:
    from jax.experimental import multihost_utils  # nothing that a single process needs

    return multihost_utils.process_allgather(array, tiled=tiled)


def gather(tree: Any) -> Any:
    """Arrays that every process has whole; with one process unchanged."""
    return tree if jax.process_count() == 1 else fetch(tree)


def fetch(tree: Any) -> Any:
    """Arrays on the host, whole, whichever processes hold their parts."""
    if jax.process_count() == 1:
        return jax.device_get(tree)

    def whole(leaf: Any) -> np.ndarray:
        everywhere = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        return np.asarray(leaf if everywhere else _allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)


def place(array: Any, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """An array that every process has, sharded over the devices of all."""
    if jax.process_count() == 1 or sharding is None:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
