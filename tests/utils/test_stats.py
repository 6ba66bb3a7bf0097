"""Intervals and aggregates against textbook values, SciPy and rliable."""

import functools

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm, ttest_1samp, ttest_ind

from marljax.errors import UserError
from marljax.utils import stats

OURS = np.random.default_rng(0).normal(1.0, 1.0, (10, 4))
THEIRS = np.random.default_rng(1).normal(0.6, 2.0, (8, 4))


def test_wilson_is_the_score_interval():
    """By hand for 1 of 10; exact at 0 and 1."""
    np.testing.assert_allclose(stats.wilson(1, 10), (0.1, 0.0178762, 0.4041500), atol=1e-6)
    z = norm.ppf(0.95)
    np.testing.assert_allclose(stats.wilson(0, 40, 0.9), (0.0, 0.0, z**2 / (40 + z**2)), atol=1e-12)
    assert stats.wilson(40, 40, 0.99).high == 1.0
    np.testing.assert_equal(stats.wilson(0, 0), (np.nan, 0.0, 1.0))  # without trials


def test_mean_has_students_interval():
    estimate = stats.mean(OURS[:, 0])
    interval = ttest_1samp(OURS[:, 0], 0.0).confidence_interval(0.95)
    np.testing.assert_allclose(estimate, (OURS[:, 0].mean(), interval.low, interval.high))
    np.testing.assert_allclose(stats.mean([1.0, 2.0, 3.0]), (2.0, 2 - 4.3026527 / 3**0.5, 2 + 4.3026527 / 3**0.5), rtol=1e-6)
    assert stats.mean([5.0]) == (5.0, -np.inf, np.inf)


def test_difference_has_welchs_interval():
    ours, theirs = [1.0, 2.0, 4.0, 5.5], [0.5, 3.0, 1.5]
    found = stats.difference(ours, theirs)
    expected = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(found, (3.125 - 5.0 / 3.0, *expected))
    assert stats.difference([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0, 1.0)
    assert stats.difference([2.0], [1.0, 3.0]) == (0.0, -np.inf, np.inf)


def test_iqm_leaves_out_both_outer_quarters():
    assert stats.iqm([[-100.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 900.0]]) == 3.5
    assert stats.iqm([1.0, 2.0, 3.0, 40.0]) == 2.5


def test_probability_of_improvement_is_mann_whitneys_and_counts_ties_half():
    per_task = [mannwhitneyu(OURS[:, task], THEIRS[:, task]).statistic / (10 * 8) for task in range(4)]
    assert stats.probability_of_improvement(OURS, THEIRS) == pytest.approx(np.mean(per_task))
    assert stats.probability_of_improvement([1.0, 2.0], [1.0, 2.0]) == 0.5
    assert stats.probability_of_improvement([1.0, 3.0], [1.0, 2.0]) == 0.625


def test_bootstrap_is_reproducible_stratified_and_covers():
    again = [stats.iqm_interval(OURS, np.random.default_rng(7)) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].low < again[0].value == stats.iqm(OURS) < again[0].high
    # tasks of very different scale without noise: only resampling across tasks could spread the figure
    scale = np.tile([1.0, 1000.0], (5, 1))
    assert stats.iqm_interval(scale, np.random.default_rng(0)) == (500.5, 500.5, 500.5)
    # the bootstrap of a mean comes close to the normal interval of its plug-in standard error
    sample = OURS[:, :1]
    mean = functools.partial(np.mean, axis=(-2, -1))
    _, low, high = stats.stratified_bootstrap(mean, [sample], np.random.default_rng(3), samples=4000)
    half = norm.ppf(0.975) * sample.std() / len(sample) ** 0.5
    np.testing.assert_allclose((low, high), (sample.mean() - half, sample.mean() + half), atol=0.12 * half)


@pytest.fixture
def rliable(monkeypatch):
    """rliable 1.2.0 needs arch 7, of which pandas 3 breaks a part that is imported and not used: its plots."""
    decorators = pytest.importorskip("pandas.util._decorators")
    monkeypatch.setattr(decorators, "deprecate_kwarg", lambda *args, **kwargs: lambda function: function)
    library, metrics = pytest.importorskip("rliable.library"), pytest.importorskip("rliable.metrics")
    np.random.seed(0)  # noqa: NPY002 the source of its resampling
    return library, metrics


def test_same_figures_as_rliable(rliable):
    library, metrics = rliable
    assert stats.iqm(OURS) == pytest.approx(metrics.aggregate_iqm(OURS))
    assert stats.probability_of_improvement(OURS, THEIRS) == pytest.approx(metrics.probability_of_improvement(OURS, THEIRS))
    both = {"iqm": OURS}
    _, bounds = library.get_interval_estimates(both, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=2000)
    mine = stats.iqm_interval(OURS, np.random.default_rng(0), samples=2000)
    np.testing.assert_allclose(mine[1:], bounds["iqm"][:, 0], atol=0.03)
    pair = {"pair": (OURS, THEIRS)}
    _, bounds = library.get_interval_estimates(pair, metrics.probability_of_improvement, reps=300)
    mine = stats.improvement_interval(OURS, THEIRS, np.random.default_rng(0))
    np.testing.assert_allclose(mine[1:], np.ravel(bounds["pair"]), atol=0.05)
    thresholds = np.append(np.linspace(-1.0, 3.0, 9), OURS[0, 0])  # also exactly at a score
    share, bounds = library.create_performance_profile({"ours": OURS}, thresholds)
    mine = stats.performance_profile(OURS, thresholds, np.random.default_rng(0))
    np.testing.assert_allclose(mine.share, share["ours"], rtol=1e-12)
    np.testing.assert_allclose(mine[1:], bounds["ours"], atol=0.03)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (stats.wilson, (5, 4), "5 successes of 4"),
        (stats.wilson, (1, 4, 95), "level of 95"),
        (stats.iqm, ([1.0, np.nan],), "leave diverged runs out"),
        (stats.probability_of_improvement, (OURS, THEIRS[:, :2]), "same tasks"),
        (stats.mean, ([],), "no values"),
    ],
)
def test_user_errors(function, arguments, message):
    with pytest.raises(UserError, match=message):
        function(*arguments)
