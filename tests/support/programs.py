"""Keeps a process that compiles many programs within the memory maps that Linux gives it."""

import sys
from pathlib import Path

MAPS = Path("/proc/self/maps")
MANY = 30_000  # of 65,530, Linux's default; JAX ends the process where there are none left


def free_if_many():
    """Frees the compiled programs of this process if they hold many memory maps; other systems than Linux have no such limit."""
    if "jax" in sys.modules and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        sys.modules["jax"].clear_caches()
