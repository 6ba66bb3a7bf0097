"""Random states of ``pathfinding`` for comparisons with POGEMA; NumPy only, so that POGEMA's own Python can make them as well."""

from collections.abc import Iterator

import numpy as np

SIDE, STATES = 8, 12_000


def random_states(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Walls [8, 8] bool, cells [A] of agents, and their actions [A]; from two agents to one in every free cell."""
    rng = np.random.default_rng(seed)
    for _ in range(STATES):
        blocked = rng.random((SIDE, SIDE)) < rng.uniform(0.0, 0.5)
        free = np.flatnonzero(~blocked)
        agents = int(rng.integers(2, len(free) + 1))
        yield blocked, rng.permutation(free)[:agents], rng.integers(0, 5, agents)
