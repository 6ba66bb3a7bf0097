"""Groups of trained seeds next to each other: learning curves, performance profile, mean and interquartile mean.

Axis letters: R seeds, X points along the horizontal axis.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marljax.core.style import BLUE, FAINT, INK, ORANGE, REFERENCES, WIDTH, blank, plain
from marljax.io.files import replacing
from marljax.utils import stats
from marljax.utils.stats import Estimate
from marljax.viz.learning_curve import draw_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, *REFERENCES)  # of the groups; there are as many in a picture
THRESHOLDS = 401  # of a performance profile
MARGIN = 0.05  # of the range of scores, to each side of a performance profile


class Shown(NamedTuple):
    """A group of seeds."""

    label: str
    scores: np.ndarray  # [R]
    mean: Estimate
    iqm: Estimate
    by_steps: tuple[np.ndarray, np.ndarray]  # env steps [X] and values [R, X]; empty without rows
    by_seconds: tuple[np.ndarray, np.ndarray]


def comparison_picture(
    groups: Sequence[Shown], paths: Sequence[str | os.PathLike], *, metric: str, lowest: bool, curves: str, title: str
) -> "Figure":
    """Draws the best groups, as many as there are colours, in their order.

    Args:
        groups: to be compared.
        paths: files to write, .png, .svg or .pdf; each is complete or, after an error, absent.
        metric: name of the score, with its unit.
        lowest: whether less is better.
        curves: the episodes of the learning curves.
        title: above the figure.

    Returns:
        The figure that was written.
    """
    from matplotlib.ticker import EngFormatter

    ranked = sorted(groups, key=lambda group: group.iqm.value if lowest else -group.iqm.value)[: len(COLOURS)]
    shown = [group for group in groups if any(group is each for each in ranked)]
    if len(shown) < len(groups):
        title = f"{title}; the best {len(shown)} of {len(groups)} groups"
    columns = int(np.clip(WIDTH // (0.5 + 0.065 * max(len(group.label) for group in shown)), 1, len(shown)))
    rows = 2 if any(len(group.by_steps[0]) for group in shown) else 1
    figure = blank(0.4 + 3.0 * rows + 0.2 * -(-len(shown) // columns))
    *upper, profile, intervals = figure.subplots(rows, 2).flat
    for axes, name in zip(upper, ("by_steps", "by_seconds"), strict=False):
        for colour, group in zip(COLOURS, shown, strict=False):
            positions, values = getattr(group, name)
            if len(positions):
                draw_seeds(axes, positions, values, colour, group.label)
    _profiles(profile, shown, lowest)
    _intervals(intervals, shown)
    texts = [
        (f"{curves} over steps", "env steps", metric),
        (f"{curves} over time", "seconds, all seeds of a run at once", metric),
        ("performance profile", f"τ, {metric}", f"share of seeds {'below' if lowest else 'above'} τ"),
        ("scores, 95 %", metric, ""),
    ][-2 * rows :]
    for axes, (heading, horizontal, vertical) in zip((*upper, profile, intervals), texts, strict=True):
        plain(axes)
        axes.set_title(heading, fontsize=10, loc="left", color=INK)
        axes.set_xlabel(horizontal, fontsize=8, color=INK)
        axes.set_ylabel(vertical, fontsize=8, color=INK)
    for axes in upper[:1]:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    style: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": columns}
    figure.legend(*profile.get_legend_handles_labels(), loc="outside lower left", **style)
    for path in paths:
        with replacing(path, (".png", ".svg", ".pdf")) as draft:
            figure.savefig(draft)
    return figure


def _profiles(axes: "Axes", groups: Sequence[Shown], lowest: bool) -> None:
    """The share of a group's seeds that are better than each threshold, with its bootstrap band."""
    scores = np.concatenate([group.scores for group in groups])
    room, sign = MARGIN * (np.ptp(scores) or 1.0), -1.0 if lowest else 1.0
    thresholds = np.linspace(scores.min() - room, scores.max() + room, THRESHOLDS)
    for colour, group in zip(COLOURS, groups, strict=False):
        profile = stats.performance_profile(sign * group.scores, sign * thresholds, np.random.default_rng(0))
        if len(group.scores) > 1:
            axes.fill_between(thresholds, profile.low, profile.high, color=colour, alpha=0.1, linewidth=0)
        axes.plot(thresholds, profile.share, color=colour, linewidth=1.8, label=group.label)
    axes.set_ylim(-0.03, 1.03)


def _intervals(axes: "Axes", groups: Sequence[Shown]) -> None:
    """A row per group, in the order of the legend: each seed, the interquartile mean and the mean, with their intervals."""
    for row, (colour, group) in enumerate(zip(COLOURS, groups, strict=False)):
        axes.plot(group.scores, [row] * len(group.scores), "o", color=FAINT, markersize=3.5, zorder=1)
        for offset, estimate, marker, width in ((-0.14, group.iqm, "o", 3.0), (0.14, group.mean, "D", 1.3)):
            if np.isfinite(estimate.low):
                ends = [estimate.low, estimate.high]
                axes.plot(ends, [row + offset] * 2, color=colour, linewidth=width, solid_capstyle="butt", zorder=2)
            axes.plot(estimate.value, row + offset, marker, color=colour, markersize=4.5, markeredgecolor="white", zorder=3)
    axes.set_yticks([])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    for name, marker, colour, width in (
        ("interquartile mean", "o", INK, 3.0),
        ("mean", "D", INK, 1.3),
        ("a seed", "o", FAINT, 0.0),
    ):
        axes.plot([], [], marker=marker, color=colour, linewidth=width, markersize=4.0, markeredgecolor="white", label=name)
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.98), "borderaxespad": 0.0}
    axes.legend(ncols=3, columnspacing=1.0, handlelength=1.6, frameon=False, fontsize=7, labelcolor=INK, **place)
