"""Statistics of results, on the host: intervals for rates and means, interquartile means, probability of improvement.

Axis letters: R runs (seeds), M tasks (environments), B bootstrap samples. Scores are [R, M].
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import stats

from marljax.errors import UserError

LEVEL = 0.95  # coverage of intervals
SAMPLES = 2000  # bootstrap samples, as in Agarwal et al. 2021


class Estimate(NamedTuple):
    """A statistic and its confidence interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, count: int, level: float = LEVEL) -> Estimate:
    """A rate with Wilson's score interval (Wilson 1927), which stays inside [0, 1] and is sound for rates near 0.

    Without trials the rate is NaN and the interval [0, 1].
    """
    if not 0 < level < 1:
        raise UserError(f"a confidence level of {level}; use one between 0 and 1, such as 0.95")
    if not 0 <= successes <= count:
        raise UserError(f"{successes} successes of {count} is not a valid rate; use 0 <= successes <= count")
    if count == 0:
        return Estimate(float("nan"), 0.0, 1.0)
    interval = stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    return Estimate(successes / count, float(interval.low), float(interval.high))


def mean(values: ArrayLike) -> Estimate:
    """The mean of independent values with Student's t interval; of a single value, an infinite one."""
    sample = _finite(np.asarray(values, float).ravel())
    if sample.size == 0:
        raise UserError("no values to average; use at least one")
    if sample.size == 1:
        return Estimate(float(sample[0]), -np.inf, np.inf)
    half = t_half_width(float(sample.std(ddof=1)), len(sample))
    return Estimate(float(sample.mean()), float(sample.mean() - half), float(sample.mean() + half))


def t_half_width(std: float, count: int) -> float:
    """Half the width of Student's t interval for the mean of ``count`` values with this standard deviation (n - 1)."""
    return float(stats.t.ppf(0.5 + LEVEL / 2, count - 1) * std / np.sqrt(count))


def iqm(scores: ArrayLike) -> float:
    """The interquartile mean: the mean without the lowest and the highest quarter of all runs × tasks (Agarwal et al. 2021)."""
    return float(stats.trim_mean(_scores(scores), 0.25, axis=None))


def iqm_interval(scores: ArrayLike, rng: Generator, samples: int = SAMPLES) -> Estimate:
    """The interquartile mean of scores [R, M] (or [R], one task) with a stratified bootstrap interval."""
    return stratified_bootstrap(iqm, [scores], rng, samples)


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """How likely a run of ours beats one of theirs on a task drawn at random: Mann–Whitney's U / (R·R'), averaged over tasks.

    Ties count half. Scores are [R, M] and [R', M], or [R] and [R'] for one task.
    """
    left, right = _paired(ours, theirs)
    wins = left[:, None] > right[None]
    ties = left[:, None] == right[None]
    return float(np.mean(wins + 0.5 * ties))


def improvement_interval(ours: ArrayLike, theirs: ArrayLike, rng: Generator) -> Estimate:
    """The probability of improvement with a stratified bootstrap interval."""
    return stratified_bootstrap(probability_of_improvement, _paired(ours, theirs), rng)


def stratified_bootstrap(
    statistic: Callable[..., float], scores: Sequence[ArrayLike], rng: Generator, samples: int = SAMPLES
) -> Estimate:
    """A statistic of one or more score arrays with its percentile bootstrap interval (Agarwal et al. 2021).

    Runs are drawn with replacement within each task and each array, never across them (unlike by ``scipy.stats.bootstrap``).

    Args:
        statistic: of as many arrays [R, M] as ``scores`` holds.
        scores: arrays [R, M], each with its own R.
        rng: source of the resampling; the same generator state gives the same interval.
        samples: B.
    """
    arrays = [_scores(array) for array in scores]

    def resampled(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, rng.integers(0, array.shape[0], array.shape), axis=0)

    drawn = [statistic(*map(resampled, arrays)) for _ in range(samples)]
    low, high = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Estimate(float(statistic(*arrays)), float(low), float(high))


def _paired(ours: ArrayLike, theirs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    left, right = _scores(ours), _scores(theirs)
    if left.shape[1] != right.shape[1]:
        raise UserError(f"scores of {left.shape[1]} tasks against scores of {right.shape[1]}; use the same tasks")
    return left, right


def _scores(values: ArrayLike) -> np.ndarray:
    scores = np.asarray(values, float)
    scores = scores[:, None] if scores.ndim == 1 else scores
    if scores.ndim != 2 or scores.size == 0:
        raise UserError(f"scores of shape {list(np.shape(values))}; use [runs] or [runs, tasks] with at least one run")
    return _finite(scores)


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise UserError(f"{np.sum(~np.isfinite(values))} of {values.size} values are not finite; leave diverged runs out")
    return values
