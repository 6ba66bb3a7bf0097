"""Learning curves show the rows' metrics: means, intervals, seeds, evaluations and references."""

import itertools

import numpy as np
import pytest

from marljax.config.sweep import RankedTrial
from marljax.core.style import FAINT
from marljax.errors import UserError
from marljax.utils.stats import Estimate, mean
from marljax.viz.learning_curve import curve, learning_curve, loss_curve, own_metrics
from marljax.viz.sweep_plot import sweep_picture

SEEDS, POINTS = 5, 5


def rows(evaluated: bool = True, seeds: int = SEEDS) -> list[dict]:
    """Five chunks of each seed; seed 2 reports no crash in its last chunk, as after a divergence."""
    made = []
    for seed in range(seeds):
        for point in range(POINTS):
            row = {"seed": seed, "update": point, "env_steps": 1000 * (point + 1), "time": 0.5, "episodes": 7, "finished": 1}
            row |= {"return": 10.0 * point + seed, "crash": 0.5 - 0.1 * point, "policy_loss": 0.1, "entropy": 1.0}
            if evaluated and point % 2:
                row |= {"eval_return": 10.0 * point + 5.0, "eval_crash": None if seed else 0.25, "eval_finished": 1.0}
            if (seed, point) == (2, 4):
                row["crash"] = float("nan")
            made.append(row)
    return made


def test_curve_gathers_values_by_seed_and_position():
    positions, values = curve(rows(), "crash")
    np.testing.assert_array_equal(positions, 1000.0 * np.arange(1, 6))
    assert values.shape == (SEEDS, POINTS)
    assert np.isnan(values).sum() == np.isnan(values[2, 4]) == 1
    assert curve(rows(), "eval_crash")[1].tolist() == [[0.25, 0.25]]


@pytest.mark.parametrize("evaluated", [True, False])
def test_panels_are_the_environments_metrics_that_change(evaluated):
    assert own_metrics(rows(evaluated)) == ["return", "crash"]
    assert own_metrics(rows(evaluated), first=("won", "crash")) == ["crash", "return"]
    assert own_metrics([{"seed": 0, "env_steps": 1, "finished": 1.0, "return": 2.0}]) == ["return", "finished"]


def test_the_figure_shows_means_intervals_seeds_and_references(tmp_path):
    references = {"human": {"return": 65.0}, "random": {"return": -40.0, "crash": 0.6}}
    figure = learning_curve(rows(), tmp_path / "curve.png", references=references, title="mappo on merge")
    assert [item.name for item in tmp_path.iterdir()] == ["curve.png"]
    large, small = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["return", "crash"]
    lines = {line.get_label(): line for line in large.get_lines()}
    np.testing.assert_allclose(lines["training"].get_xydata()[:, 1], 10.0 * np.arange(5) + 2)
    np.testing.assert_allclose(lines["evaluation"].get_xydata(), [[2000, 15], [4000, 35]])
    assert lines["human"].get_ydata()[0] == 65.0
    assert (len(large.get_lines()), len(small.get_lines())) == (2 * (SEEDS + 1) + 2, SEEDS + 1 + 1 + 1)
    band = large.collections[0].get_datalim(large.transData)
    seeds = np.arange(SEEDS)
    np.testing.assert_allclose((band.y0, band.y1), (mean(seeds).low, mean(40 + seeds).high))
    bottom, top = large.get_ylim()
    assert bottom < -40 < 65 < top
    assert large.get_xlim()[0] <= 1000 < 5000 <= large.get_xlim()[1]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["training", "evaluation", "human", "random"]


def test_two_seeds_are_lines_whose_heights_set_the_axis_and_rates_stay_rates(tmp_path):
    """A t interval of two values would reach from -1000 to 1000."""
    two = [row | {"return": row["return"] * (1 + 9 * row["seed"])} for row in rows(evaluated=False, seeds=2)]
    figure = learning_curve(two, tmp_path / "curve.png", units={"crash": "%"}, references={"reckless": {"crash": 1.0}})
    large, small = figure.axes
    assert not [collection for axes in figure.axes for collection in axes.collections]
    assert len(large.get_lines()) == 3
    low, high = large.get_ylim()
    assert (-50 < low <= 0, 410 <= high < 450) == (True, True)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["return", "crash (%)"]
    np.testing.assert_allclose(small.get_lines()[0].get_ydata(), [50, 40, 30, 20, 10])
    assert small.get_lines()[-1].get_ydata()[0] == 100.0
    low, high = small.get_ylim()
    assert (-2 <= low <= 10, 100 <= high <= 102) == (True, True)


def test_a_single_seed_is_a_line_without_band(tmp_path):
    figure = learning_curve(rows(evaluated=False, seeds=1), tmp_path / "curve.svg")
    assert [(len(axes.get_lines()), len(axes.collections)) for axes in figure.axes] == [(1, 0), (1, 0)]
    assert not figure.legends


def test_losses_have_a_figure_of_their_own(tmp_path):
    figure = loss_curve(rows(), tmp_path / "losses.pdf")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["policy loss", "entropy"]
    bare = [{key: value for key, value in row.items() if key not in ("policy_loss", "entropy")} for row in rows()]
    assert loss_curve(bare, tmp_path / "none.pdf") is None
    assert [item.name for item in tmp_path.iterdir()] == ["losses.pdf"]


def test_a_sweep_has_a_line_per_setting_and_the_best_have_a_colour(tmp_path):
    """Ten settings, the later the better; each line is the mean over seeds of the evaluation."""
    swept = []
    for index in range(10):
        changes = {"setting": f"gamma={index}"}
        swept += [row | changes | {"eval_return": row["return"] + index} for row in rows(evaluated=False, seeds=2)]
    figure = learning_curve(swept, tmp_path / "curve.png", references={"random": {"return": -40.0}})
    large = figure.axes[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"gamma={index}" for index in range(2, 10)] + [
        "random"
    ]
    lines = [line for line in large.get_lines() if len(line.get_xdata()) == POINTS]
    assert [line.get_color() == FAINT for line in lines] == [True, True] + [False] * 8
    heights = sorted(line.get_ydata()[-1] for line in lines)
    np.testing.assert_allclose(heights, 40.5 + np.arange(10))


def test_the_bands_of_a_sweep_are_inside_the_picture(tmp_path):
    """They stand for the seeds, which are not drawn."""
    swept = [row | {"setting": "only", "return": row["return"] + 100 * row["seed"]} for row in rows(evaluated=False)]
    axes = learning_curve(swept, tmp_path / "curve.png").axes[0]
    band = axes.collections[0].get_datalim(axes.transData)
    low, high = axes.get_ylim()
    assert low < band.y0 < 100 < 300 < band.y1 < high


def test_swept_values_have_ticks_that_do_not_touch(tmp_path):
    ranks = []
    for trial, (rate, coef) in enumerate(itertools.product([1e-4, 1.1e-4, 1e-3, 1e-2], [0.0, 0.01])):
        scores = [1.0 + trial, 2.0 + trial]
        values = {"learning_rate": rate, "entropy_coef": coef}
        ranks.append(RankedTrial(trial, values, Estimate(1.5 + trial, 1.0 + trial, 2.0 + trial), scores, 0, {}, 0.0, [3, 3]))
    figure = sweep_picture(ranks, tmp_path / "sweep.svg", "return", {"random": 0.0}, "ppo on merge")
    ranking, rates, coefs = figure.axes
    assert (rates.get_xscale(), rates.get_xticks().tolist()) == ("log", [1e-4, 1.1e-4, 1e-3, 1e-2])
    assert [label.get_text() for label in rates.get_xticklabels()] == ["1e-4", "", "0.001", "0.01"]
    assert [label.get_text() for label in coefs.get_xticklabels()] == ["0", "0.01"]
    assert len(ranking.get_yticks()) == len(ranks)


def test_errors_leave_no_file(tmp_path):
    with pytest.raises(UserError, match="no rows"):
        learning_curve([], tmp_path / "curve.png")
    with pytest.raises(UserError, match=r"has to end in \.png or \.svg or \.pdf"):
        learning_curve(rows(), tmp_path / "curve.gif")
    with pytest.raises(UserError, match="cannot write"):
        learning_curve(rows(), tmp_path / "missing" / "curve.png")
    assert list(tmp_path.iterdir()) == []
