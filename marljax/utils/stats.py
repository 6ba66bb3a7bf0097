"""Statistics of results, on the host: intervals for rates and means, interquartile means, probability of improvement.

Axis letters: R runs (seeds), M tasks (environments), B bootstrap samples. Scores are [R, M].
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # imports scipy.stats where it is first used: half a second that a mean does not need
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special

from marljax.errors import UserError

LEVEL = 0.95  # coverage of intervals
SAMPLES = 2000  # bootstrap samples, as in Agarwal et al. 2021
AT_ONCE = 200  # of them that are computed together: all would take much memory for hundreds of runs


class Estimate(NamedTuple):
    """A statistic and its confidence interval."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """A performance profile and its pointwise confidence band, [T] each."""

    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


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
    interval = scipy.stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    return Estimate(successes / count, float(interval.low), float(interval.high))


def mean(values: ArrayLike, low: float = -np.inf, high: float = np.inf) -> Estimate:
    """The mean of independent values with Student's t interval, of a single value an infinite one, cut to ``low`` … ``high``."""
    sample = _finite(np.asarray(values, float).ravel())
    if sample.size == 0:
        raise UserError("no values to average; use at least one")
    if sample.size == 1:
        return Estimate(float(sample[0]), low, high)
    half = t_half_width(float(sample.std(ddof=1)), len(sample))
    middle = float(sample.mean())
    return Estimate(middle, max(middle - half, low), min(middle + half, high))


def t_half_width(std: float, count: int) -> float:
    """Half the width of Student's t interval for the mean of ``count`` values with this standard deviation (n - 1)."""
    return float(special.stdtrit(count - 1, 0.5 + LEVEL / 2) * std / np.sqrt(count))


def difference(ours: ArrayLike, theirs: ArrayLike) -> Estimate:
    """The difference of the means of two independent samples with Welch's t interval; infinite if either is a single value."""
    samples = [_finite(np.asarray(values, float).ravel()) for values in (ours, theirs)]
    if not all(sample.size for sample in samples):
        raise UserError("no values to compare; use at least one on either side")
    gap = float(samples[0].mean() - samples[1].mean())
    if min(sample.size for sample in samples) == 1:
        return Estimate(gap, -np.inf, np.inf)
    counts = np.array([sample.size for sample in samples])
    variances = np.array([sample.var(ddof=1) for sample in samples]) / counts  # of the means
    if not variances.any():
        return Estimate(gap, gap, gap)
    freedom = variances.sum() ** 2 / (variances**2 / (counts - 1)).sum()
    half = float(special.stdtrit(freedom, 0.5 + LEVEL / 2) * np.sqrt(variances.sum()))
    return Estimate(gap, gap - half, gap + half)


def iqm(scores: ArrayLike) -> float:
    """The interquartile mean: the mean without the lowest and the highest quarter of all runs × tasks (Agarwal et al. 2021)."""
    return float(_iqm(_scores(scores)))


def iqm_interval(scores: ArrayLike, rng: Generator, samples: int = SAMPLES) -> Estimate:
    """The interquartile mean of scores [R, M] (or [R], one task) with a stratified bootstrap interval."""
    return stratified_bootstrap(_iqm, [scores], rng, samples)


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """How likely a run of ours beats one of theirs on a task drawn at random: Mann–Whitney's U / (R·R'), averaged over tasks.

    Ties count half. Scores are [R, M] and [R', M], or [R] and [R'] for one task.
    """
    return float(_improvement(*_paired(ours, theirs)))


def improvement_interval(ours: ArrayLike, theirs: ArrayLike, rng: Generator) -> Estimate:
    """The probability of improvement with a stratified bootstrap interval."""
    return stratified_bootstrap(_improvement, _paired(ours, theirs), rng)


def performance_profile(scores: ArrayLike, thresholds: ArrayLike, rng: Generator) -> Profile:
    """The share of runs × tasks with a score above each threshold [T], with a stratified bootstrap band (Agarwal et al. 2021)."""
    levels = np.asarray(thresholds, float)

    def profile(scores: np.ndarray) -> np.ndarray:
        """[…, T]."""
        return np.stack([(scores > level).mean((-2, -1)) for level in levels], axis=-1)

    runs = _scores(scores)
    return Profile(profile(runs), *_bootstrap_bounds(profile, [runs], rng, SAMPLES))


def stratified_bootstrap(
    statistic: Callable[..., np.ndarray], scores: Sequence[ArrayLike], rng: Generator, samples: int = SAMPLES
) -> Estimate:
    """A statistic of one or more score arrays with its percentile bootstrap interval (Agarwal et al. 2021).

    Runs are drawn with replacement within each task and each array, never across them (unlike by ``scipy.stats.bootstrap``).

    Args:
        statistic: of as many arrays […, R, M] as ``scores`` holds, over the last two axes.
        scores: arrays [R, M], each with its own R.
        rng: source of the resampling; the same generator state gives the same interval.
        samples: B.
    """
    arrays = [_scores(array) for array in scores]
    low, high = _bootstrap_bounds(statistic, arrays, rng, samples)
    return Estimate(float(statistic(*arrays)), float(low), float(high))


def _bootstrap_bounds(
    statistic: Callable[..., np.ndarray], arrays: Sequence[np.ndarray], rng: Generator, samples: int
) -> np.ndarray:
    """[2, …]: the lower and the upper bound of a statistic."""

    def resampled(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, rng.integers(0, len(array), array.shape), axis=0)

    values = []
    for start in range(0, samples, AT_ONCE):
        drawn = [[resampled(array) for array in arrays] for _ in range(start, min(start + AT_ONCE, samples))]
        values.append(statistic(*map(np.stack, zip(*drawn, strict=True))))
    return np.quantile(np.concatenate(values), [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)


def _iqm(scores: np.ndarray) -> np.ndarray:
    """[…] of scores […, R, M]."""
    return scipy.stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def _improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[…] of scores […, R, M] and […, R', M]."""
    left, right = ours[..., :, None, :], theirs[..., None, :, :]
    return np.mean((left > right) + 0.5 * (left == right), axis=(-3, -2, -1))


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
