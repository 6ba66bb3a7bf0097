"""The settings of a sweep: their ranking, and the score along each swept value."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marljax.config.sweep import RankedTrial
from marljax.core.style import BLUE, COLUMNS, FAINT, INK, ORANGE, REFERENCES, blank, plain
from marljax.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 24  # settings of the first panel
LOG_RATIO = 8.0  # of the largest to the smallest value, from which an axis is logarithmic


def sweep_picture(
    ranks: Sequence[RankedTrial], path: str | os.PathLike, metric: str, references: Mapping[str, float], title: str
) -> None:
    """Draws the ranking, best first, and the score along each swept value.

    Args:
        ranks: the settings, best first.
        path: file to write, .png, .svg or .pdf; it is complete or, after an error, absent.
        metric: name of the score.
        references: scores of other policies, by name.
        title: above the figure.
    """
    names = list(ranks[0].values)
    shown = ranks[:BARS]
    rows = math.ceil(len(names) / COLUMNS)
    figure = blank(1.2 + 0.24 * len(shown) + 2.4 * rows)
    columns = max(1, min(COLUMNS, len(names)))
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[0.8 + 0.24 * len(shown)] + [2.4] * rows)
    _ranking(figure.add_subplot(grid[0, :]), shown, len(ranks), metric, references)
    for index, name in enumerate(names):
        _along(figure.add_subplot(grid[1 + index // columns, index % columns]), ranks, name, metric, references)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    with replacing(path, (".png", ".svg", ".pdf")) as draft:
        figure.savefig(draft)


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
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, labelcolor=INK)


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
        axes.legend(loc="best", frameon=False, fontsize=7, labelcolor=INK)
    plain(axes)
    if different[0] > 0 and different[-1] / different[0] >= LOG_RATIO:
        axes.set_xscale("log")
    axes.set_title(name, fontsize=10, loc="left", color=INK)
    axes.set_ylabel(metric, fontsize=8, color=INK)
    low, high = min(map(min, (rank.scores for rank in ranks))), max(map(max, (rank.scores for rank in ranks)))
    for index, level in enumerate(references.values()):
        if low <= level <= high:
            axes.axhline(level, color=REFERENCES[index % len(REFERENCES)], linewidth=1.2, linestyle=(0, (4, 2)))
