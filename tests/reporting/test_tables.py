"""The table at the end of a run can be read in a terminal."""

import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ttest_1samp

from marljax.reporting import tables
from marljax.training import progress


def played(*shape):
    """Metrics as merge reports them."""
    draw = np.random.default_rng(0).random(shape)
    figures = {"crash": 1.0 * (draw < 0.03), "crashed_cavs": 0.04 * draw, "speed": 20 + draw, "throughput": 0.8 * draw}
    figures |= {"merged": draw**2, "min_ttc": 10 * draw, "intervened": 0 * draw, "own_return": 100 * draw}
    return figures | {"return": 100 * draw, "length": 90 + 10 * draw, "finished": np.ones(shape)}


@pytest.mark.parametrize(("width", "count"), [(80, 5), (100, 7)])
def test_every_metric_fits_its_column(width, count):
    rows = [("mappo", played(4, 320)), ("human drivers (IDM + MOBIL)", played(320)), ("random, supervised", played(320))]
    screen = io.StringIO()
    Console(file=screen, width=width).print(tables.comparison(tables.pooled(320, "frozen", 4), rows, width))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "320 frozen episodes × 4 seeds" in lines[0]
    header = next(line for line in lines if line.split()[:1] == ["policy"])
    names = ["return", "crash", "crashed_cavs", "speed", "throughput", "merged", "min_ttc"][:count]
    assert header.split() == ["policy", *names]
    learned = next(line for line in lines if line.split()[:1] == ["mappo"]).replace(" %", "").split()
    figures = {name: values.mean() * (100 if name == "crash" else 1) for name, values in rows[0][1].items()}
    np.testing.assert_allclose([float(word) for word in learned[1:]], [figures[name] for name in names], rtol=0.02)


def test_a_column_has_the_unit_of_its_header():
    """A rate that is 0 or 1 per episode for one policy and a fraction for the other is one rate."""
    units = {"crashed_cavs": "%", "merged": "%", "speed": "m/s"}
    ones, other = played(320), played(320)
    ones |= {"merged": np.arange(320) % 2, "crashed_cavs": np.full(320, 0.25)}
    screen = io.StringIO()
    figures = ["crash", "crashed_cavs", "merged", "speed"]
    table = tables.comparison("t", [("mappo", ones), ("random", other)], 60, figures, units)
    Console(file=screen, width=60).print(table)
    lines = [line.split() for line in screen.getvalue().splitlines()]
    header = next(index for index, line in enumerate(lines) if line[:1] == ["policy"])
    assert lines[header] == ["policy", *figures]
    assert lines[header + 1] == ["%", "%", "%", "m/s"]
    values, intervals = lines[header + 3 : header + 5]
    assert values[2:4] == ["25.0", "50.0"]
    assert intervals[-3] == "44.6–55.4"


def cells_of(rows, name, units=None):
    """The last words of a table's lines below its header, two lines for each policy: a figure and its interval."""
    screen = io.StringIO()
    Console(file=screen, width=60).print(tables.comparison("t", rows, 60, [name], units or {}))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    rule = next(index for index, words in enumerate(lines) if words and set(words[0]) == {"─"})
    return [words[-1] for words in lines[rule + 1 :] if words]


def test_a_share_that_is_always_1_is_not_a_rate():
    rows = [("ospo", {"service": np.ones(16)}), ("random", {"service": np.linspace(0.9, 1.0, 16)})]
    assert cells_of(rows, "service", {"service": "%"})[:2] == ["100.0", "0.0"]


def test_an_interval_over_seeds_is_students_over_their_means():
    """Seeds at 62.0 and 58.1, each with a narrow interval: their 640 episodes are not independent."""
    reached = np.array([62.0, 58.1])[:, None] + np.tile([-1.0, 1.0], 160)
    expected = ttest_1samp([62.0, 58.1], 0.0).confidence_interval(0.95)
    assert cells_of([("mappo", {"return": reached})], "return") == ["60.1", f"{expected.high - 60.05:.2g}"]
    of_one_seed, scripted = ("mappo", {"return": reached[:1]}), ("random", {"return": reached[0]})
    assert cells_of([of_one_seed, scripted], "return") == ["62", "0.11"] * 2  # over its episodes


def test_rates_over_seeds_have_an_interval_over_seeds_that_ends_at_0_and_100():
    crash = np.zeros((3, 100))
    crash[0, :40], crash[1, :10] = 1.0, 1.0
    expected = ttest_1samp([0.4, 0.1, 0.0], 0.0).confidence_interval(0.95)
    assert expected.low < 0
    cells = cells_of([("mappo", {"crash": crash}), ("random", {"crash": crash[0]})], "crash")
    assert cells == ["16.7", f"0.0–{100 * expected.high:.1f}", "40.0", "30.9–49.8"]  # the other is Wilson's, over episodes
    share = cells_of([("mappo", {"merged": np.array([[0.9, 0.8], [0.5, 0.7]])})], "merged", {"merged": "%"})
    assert share[1].endswith("–100.0")


def test_a_table_of_few_seeds_says_so():
    assert "interval over episodes" in tables.pooled(320, "frozen", 1)
    assert "one seed" in progress.caveat(1)
    assert "2 seeds are few" in progress.caveat(2)
    assert "few" not in progress.caveat(3)
    assert "over seeds" in tables.pooled(320, "frozen", 2)


def test_the_headline_gives_units():
    figures = {"won": 0.474, "return": 1.2345, "speed": 24.26, "lost": np.nan, "length": 31.0}
    assert progress.headline(figures, ["lost", "won"], {"won": "%"}) == "won 47 %  return 1.23"
    assert progress.headline(figures, ["speed"], {"speed": "m/s"}, count=1) == "speed 24.3 m/s"


def test_a_metric_is_left_out_only_if_it_is_redundant_for_every_policy():
    one, other = played(8), played(8)
    assert "finished" not in tables.key_metrics([one, other])
    assert "own_return" not in tables.key_metrics([one, other], count=20)
    assert tables.key_metrics([one, other], ["own_return"])[0] == "own_return"
    never = {"won": np.zeros(8), "lost": np.zeros(8)}
    assert tables.key_metrics([one | never, other | never], ["won", "lost"])[:2] == ["won", "return"]
    cut = other | {"finished": np.zeros(8), "own_return": np.ones(8)}
    assert tables.key_metrics([one, cut])[:3] == ["return", "crash", "finished"]
    assert "own_return" in tables.key_metrics([one, cut], count=20)


def test_a_file_holds_the_intervals_of_policies_and_seeds(tmp_path):
    """LaTeX has the table of the screen."""
    rows = [("mappo", played(3, 40)), ("50 % & more_", played(40))]
    title, units = "320 fresh episodes, 95 %", {"speed": "m/s", "crashed_cavs": "%"}
    paths = [tmp_path / f"table.{kind}" for kind in ("csv", "json", "tex")]
    for path in paths:
        tables.write_comparison(rows, path, title, [4, 5, 6], ["speed", "crash"], units)
    with paths[0].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0])[3:6] == ["speed", "speed_low", "speed_high"]
    assert [line["policy"] for line in lines] == ["mappo"] * 4 + ["50 % & more_"]
    assert [(line["seed"], line["episodes"]) for line in lines] == [("", "120"), *((seed, "40") for seed in "456"), ("", "40")]
    speed = rows[0][1]["speed"]
    for line, sample in ((lines[0], speed.mean(1)), (lines[2], speed[1])):
        expected = ttest_1samp(sample, 0.0).confidence_interval(0.95)
        np.testing.assert_allclose([float(line["speed_low"]), float(line["speed_high"])], expected)
    whole = json.loads(paths[1].read_text())
    assert (whole["title"], whole["units"], len(whole["policies"])) == (title, units, 2)
    seed = whole["policies"][0]["seeds"][1]
    assert (seed["seed"], seed["metrics"]["speed"]["mean"]) == (5, pytest.approx(speed[1].mean()))
    lines = paths[2].read_text().splitlines()
    assert lines[4].startswith(r"policy & speed (m/s) & crash (\%) & return & crashed\_cavs (\%)")
    assert lines[6].startswith(f"mappo & ${speed.mean():.3g} \\pm ")
    assert lines[7].startswith(r"50 \% \& more\_ & $")
    assert lines[2] == rf"\begin{{tabular}}{{l{'r' * tables.COLUMNS}}}"
    assert [line.replace(r"\&", "").count("&") for line in (lines[4], lines[6], lines[7])] == [tables.COLUMNS] * 3
