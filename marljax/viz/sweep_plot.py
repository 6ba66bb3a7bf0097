"""The settings of a sweep: their ranking, and the score along each swept value."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marljax.config.sweep import RankedTrial
from marljax.core.style import BLUE, COLUMNS, FAINT, INK, ORANGE, REFERENCES, blank, plain
from marljax.viz.learning_curve import entitle, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 24  # settings of the first panel
MOST_TICKS = 6  # swept values up to which each has a tick; more would overlap
TICK_WIDTH = 0.12  # of a panel, that a tick's label takes
LOG_RATIO = 8.0  # of the largest to the smallest value, from which an axis is logarithmic


def sweep_picture(
    ranks: Sequence[RankedTrial], path: str | os.PathLike, metric: str, references: Mapping[str, float], title: str
) -> "Figure":
    """Draws the ranking, best first, and the score along each swept value; returns the figure that was written.

    Args:
        ranks: the settings, best first.
        path: file to write, .png, .svg or .pdf; it is complete or, after an error, absent.
        metric: name of the score.
        references: scores of other policies, by name.
        title: above the figure.
    """
    names = list(ranks[0].values)
    shown = ranks[:BARS]
    columns = max(1, min(COLUMNS, len(names)))
    rows = math.ceil(len(names) / columns)
    heights = [1.4 + 0.24 * len(shown), *[2.4 * rows] * bool(names)]
    figure = blank(sum(heights))
    # Parts with margins of their own: the long labels of the ranking would squeeze the panels below it.
    top, *bottom = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    ranking = top.add_subplot()
    _ranking(ranking, shown, len(ranks), metric, references)
    panels = [part.add_subplot(rows, columns, 1 + index) for part in bottom for index in range(len(names))]
    for name, axes in zip(names, panels, strict=True):
        _along(axes, ranks, name, metric, references)
    entitle(top, [ranking, *panels[:1]], title)
    save(figure, path)
    return figure


def _ranking(axes: "Axes", shown: Sequence[RankedTrial], count: int, metric: str, references: Mapping[str, float]) -> None:
    """A row per setting: each seed, the interquartile mean, its interval."""
    for row, rank in enumerate(shown):
        seed, interval, mean = ("a seed", "95 % interval", "interquartile mean") if row == 0 else (None, None, None)
        axes.plot(rank.scores, [row] * len(rank.scores), "o", color=FAINT, markersize=4, label=seed)
        if np.isfinite(rank.score.low):
            ends = [rank.score.low, rank.score.high]
            axes.plot(ends, [row, row], color=BLUE, linewidth=2.5, solid_capstyle="butt", label=interval)
        axes.plot(rank.score.value, row, "o", color=ORANGE, markersize=5, label=mean)
    for index, (name, level) in enumerate(references.items()):
        axes.axvline(level, color=REFERENCES[index % len(REFERENCES)], linewidth=1.2, linestyle=(0, (4, 2)), label=name)
    plain(axes)
    labels = ["  ".join(f"{name.split('.')[-1]} {value:.3g}" for name, value in rank.values.items()) for rank in shown]
    axes.set_yticks(range(len(shown)), [f"{label}   #{rank.trial}" for label, rank in zip(labels, shown, strict=True)])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    more = f", the best {len(shown)} of {count} settings" if count > len(shown) else ""
    axes.set_title(f"{metric}{more}", fontsize=10, loc="left", color=INK)


def _along(axes: "Axes", ranks: Sequence[RankedTrial], name: str, metric: str, references: Mapping[str, float]) -> None:
    """The scores of all settings over one swept value; where values repeat, a line joins the best setting of each."""
    values = np.array([rank.values[name] for rank in ranks])
    scores = np.array([rank.score.value for rank in ranks])
    for rank in ranks:
        axes.plot([rank.values[name]] * len(rank.scores), rank.scores, "o", color=FAINT, markersize=3, zorder=1)
    axes.plot(values, scores, "o", color=ORANGE, markersize=5, zorder=3)
    different = np.unique(values)
    if len(different) < len(values):
        best = [next(rank.score.value for rank in ranks if rank.values[name] == value) for value in different]
        axes.plot(different, best, color=BLUE, linewidth=1.5, zorder=2, label="best setting with each value")
    plain(axes)
    if different[0] > 0 and different[-1] / different[0] >= LOG_RATIO:
        axes.set_xscale("log")
    if len(different) <= MOST_TICKS:
        axes.set_xticks(different, _tick_labels(different, axes.get_xscale() == "log"))
        axes.set_xticks([], minor=True)
    axes.set_title(name, fontsize=10, loc="left", color=INK)
    axes.set_ylabel(metric, fontsize=8, color=INK)
    low, high = min(map(min, (rank.scores for rank in ranks))), max(map(max, (rank.scores for rank in ranks)))
    for index, level in enumerate(references.values()):
        if low <= level <= high:
            axes.axhline(level, color=REFERENCES[index % len(REFERENCES)], linewidth=1.2, linestyle=(0, (4, 2)))


def _tick_labels(values: np.ndarray, log: bool) -> list[str]:
    """A label for each of the sorted values, empty where it would touch the one before."""
    places = np.log(values) if log else values
    labels, last = [], -math.inf
    for value, place in zip(values, places, strict=True):
        apart = place - last >= TICK_WIDTH * np.ptp(places)
        small = 0 < abs(value) < 1e-3
        labels.append((f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-") if small else f"{value:.3g}") if apart else "")
        last = place if apart else last
    return labels
