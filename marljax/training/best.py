"""The best parameters of a run so far, by their evaluation. Axis letter: S replicas."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Best(NamedTuple):
    """The evaluated parameters with the highest score of each replica; arrays on the host."""

    params: Any  # [S, …]
    score: Any  # [S] float32 mean evaluation return; -inf before the first evaluation
    update: Any  # [S] int32 after which they were evaluated


def choose(condition: np.ndarray, params: Any, others: Any) -> Any:
    """Parameters [S, …] on the host: for each replica ``params`` where ``condition`` [S] holds, else ``others``."""

    def pick(leaf: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(condition.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, other)

    return jax.tree.map(pick, *jax.device_get((params, others)))


def best_or_last(best: Best, last: Any) -> Any:
    """The best parameters [S, …], or the ``last`` ones of a replica that was never evaluated."""
    return choose(np.isfinite(best.score), best.params, last)


def best_updates(best: Best, last: int) -> np.ndarray:
    """[S] updates after which the parameters of ``best_or_last`` were taken."""
    return np.where(np.isfinite(best.score), best.update, last)


def same_parameters(params: Any, others: Any) -> bool:
    """Whether two trees of parameters [S, …] are equal."""
    return all(np.array_equal(*leaves) for leaves in zip(*map(jax.tree.leaves, jax.device_get((params, others))), strict=True))
