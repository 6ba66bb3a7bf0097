"""How much memory arrays take, and whether there is so much."""

import os
import re
from pathlib import Path
from typing import Any

import jax

from marljax.errors import UserError

MEMINFO = Path("/proc/meminfo")
USED = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))  # of a container
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container, or "max"


def size(tree: Any) -> int:
    """Bytes of arrays, or of their shapes."""
    return sum(leaf.size * _width(leaf) for leaf in jax.tree.leaves(tree))


def _width(leaf: Any) -> int:
    """Bytes of an entry; of a random key its own array's."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), leaf.dtype))
        return data.size * data.dtype.itemsize
    return leaf.dtype.itemsize


def available() -> int:
    """Bytes of the first device's memory, used or not; of a CPU the machine's, or the container's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in LIMITS if path.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])


def left() -> int:
    """Bytes of the first device's memory that nothing has taken; of a CPU those of the machine or the container."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    free = re.search(r"^MemAvailable: *(\d+) kB", MEMINFO.read_text(), re.MULTILINE) if MEMINFO.is_file() else None
    used = [path.read_text().strip() for path in USED if path.is_file()]
    return min(available() - int(used[0]) if used else available(), 1024 * int(free[1]) if free else available())


def shares(devices: int) -> int:
    """Among how many memories arrays on so many devices are divided; the devices of a CPU have one together."""
    return 1 if jax.local_devices()[0].platform == "cpu" else devices


def check(needed: int, what: str, remedy: str) -> None:
    """Raises ``UserError`` where ``needed`` bytes, which ``what`` takes, are more than there are at all."""
    if needed > available():
        raise UserError(f"{what} would take {shown(needed)} of memory, and there are {shown(available())}; {remedy}")


def shown(count: int) -> str:
    """Bytes for people: 512 kB, 13.2 MB, 1.5 GB."""
    for unit, worth in (("GB", 1e9), ("MB", 1e6)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
