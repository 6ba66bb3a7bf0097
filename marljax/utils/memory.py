"""Memory of arrays and devices, in bytes."""

import os
import re
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from marljax.errors import UserError

MEMINFO = Path("/proc/meminfo")
USED = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))  # of a container
STATS = (Path("/sys/fs/cgroup/memory.stat"), Path("/sys/fs/cgroup/memory/memory.stat"))
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container, or "max"


def size(tree: Any) -> int:
    """Bytes of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def output_bytes(program: Jaxpr) -> int:
    """Bytes of all results in a program, with loop bodies once and the largest branch of a ``cond``, which runs one of them."""
    total = 0
    for equation in program.eqns:
        parts = [part for part in jax.tree.leaves(equation.params, is_leaf=_is_program) if _is_program(part)]
        inner = [output_bytes(part.jaxpr if isinstance(part, ClosedJaxpr) else part) for part in parts]
        total += size([var.aval for var in equation.outvars if hasattr(var.aval, "shape")])
        total += max(inner) if equation.primitive.name == "cond" else sum(inner)
    return total


def _is_program(part: Any) -> bool:
    return isinstance(part, Jaxpr | ClosedJaxpr)


def available() -> int:
    """Bytes of the first device's memory, used or not; for a CPU the machine's or the container's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text(encoding="utf-8").strip() for path in LIMITS if path.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])


def free_bytes() -> int:
    """Free bytes of the first device's memory; for a CPU the machine's or the container's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    meminfo = MEMINFO.read_text(encoding="utf-8") if MEMINFO.is_file() else ""
    free = re.search(r"^MemAvailable: *(\d+) kB", meminfo, re.MULTILINE)
    used = [int(path.read_text(encoding="utf-8")) for path in USED if path.is_file()]
    counts = [path.read_text(encoding="utf-8") for path in STATS if path.is_file()]
    cached = re.search(r"^(?:total_)?inactive_file (\d+)$", counts[0], re.MULTILINE) if counts else None  # freed on demand
    taken = used[0] - (int(cached[1]) if cached else 0) if used else 0
    return min(available() - taken, 1024 * int(free[1]) if free else available())


def sharing(mesh: jax.sharding.Mesh) -> int:
    """Devices of a mesh that share one memory: all of this process's CPU, or one GPU."""
    return mesh.size // jax.process_count() if jax.local_devices()[0].platform == "cpu" else 1


def check(needed: int, what: str, remedy: str) -> None:
    """Raises ``UserError`` where ``what`` needs more bytes than ``available``; ``remedy`` says what to do."""
    if needed > available():
        room = f"{format_bytes(needed)} of memory, but only {format_bytes(available())} are available"
        raise UserError(f"{what} would need {room}; {remedy}")


def format_bytes(count: int) -> str:
    """Bytes in a readable unit: 512 kB, 13.2 MB, 1.5 GB."""
    for unit, worth in (("GB", 1e9), ("MB", 1e6)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
