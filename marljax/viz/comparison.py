"""Groups of trained seeds next to each other: learning curves, performance profile, mean and interquartile mean.

Axis letters: R seeds, X points along the horizontal axis.
"""

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from marljax.core.style import BLUE, FAINT, INK, ORANGE, REFERENCES, WIDTH, blank, plain
from marljax.io.files import replacing
from marljax.utils import stats
from marljax.utils.stats import Estimate
from marljax.viz.learning_curve import draw_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, *REFERENCES)  # of the groups; there are as many in a picture
THRESHOLDS = 401  # of a performance profile
LABEL_WIDTH = 26  # characters of a group's label in a line
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
    groups: Sequence[Shown], paths: Sequence[str | os.PathLike], *, metric: str, lowest: bool, title: str
) -> None:
    """Draws the best groups, as many as there are colours, in their order.

    Args:
        groups: to be compared.
        paths: files to write, .png, .svg or .pdf; each is complete or, after an error, absent.
        metric: name of the score, with its unit.
        lowest: whether less is better.
        title: above the figure.
    """
    from matplotlib.ticker import EngFormatter

    ranked = sorted(groups, key=lambda group: group.iqm.value if lowest else -group.iqm.value)[: len(COLOURS)]
    shown = [group for group in groups if any(group is each for each in ranked)]
    if len(shown) < len(groups):
        title = f"{title}; the best {len(shown)} of {len(groups)} groups"
    lines = sum(len(_wrapped(group.label).splitlines()) + 1 for group in shown)
    heights = [2.6, max(2.2, 0.2 * lines)]
    figure = blank(sum(heights) + 1.4)
    grid = figure.add_gridspec(2, 2, height_ratios=heights)
    steps, seconds, profile, intervals = (figure.add_subplot(grid[index // 2, index % 2]) for index in range(4))
    for colour, group in zip(COLOURS, shown, strict=False):
        for axes, (positions, values) in ((steps, group.by_steps), (seconds, group.by_seconds)):
            if len(positions):
                draw_seeds(axes, positions, values, colour, group.label)
    steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    _profiles(profile, shown, lowest)
    _intervals(intervals, shown)
    texts = [
        (steps, "against steps", "env steps", metric),
        (seconds, "against training time", "seconds, all seeds of a run at once", metric),
        (profile, "performance profile", f"τ, {metric}", f"share of seeds {'below' if lowest else 'above'} τ"),
        (intervals, "mean and interquartile mean, 95 %", metric, ""),
    ]
    for axes, heading, horizontal, vertical in texts:
        plain(axes)
        axes.set_title(heading, fontsize=10, loc="left", color=INK)
        axes.set_xlabel(horizontal, fontsize=8, color=INK)
        axes.set_ylabel(vertical, fontsize=8, color=INK)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    handles, labels = profile.get_legend_handles_labels()
    columns = int(np.clip(WIDTH // (0.5 + 0.065 * max(map(len, labels))), 1, len(labels)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=8, labelcolor=INK)
    for path in paths:
        with replacing(path, (".png", ".svg", ".pdf")) as draft:
            figure.savefig(draft)


def _profiles(axes: "Axes", groups: Sequence[Shown], lowest: bool) -> None:
    """The share of a group's seeds that are better than each threshold, with its bootstrap band."""
    scores = np.concatenate([group.scores for group in groups])
    room, sign = MARGIN * (np.ptp(scores) or 1.0), -1.0 if lowest else 1.0
    thresholds = np.linspace(scores.min() - room, scores.max() + room, THRESHOLDS)
    for colour, group in zip(COLOURS, groups, strict=False):
        profile = stats.performance_profile(sign * group.scores, sign * thresholds, np.random.default_rng(0))
        if len(group.scores) > 1:
            axes.fill_between(thresholds, profile.low, profile.high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(thresholds, profile.share, color=colour, linewidth=1.8, label=group.label)
    axes.set_ylim(-0.03, 1.03)


def _intervals(axes: "Axes", groups: Sequence[Shown]) -> None:
    """A row per group: each seed, the interquartile mean and below it the mean, with their intervals."""
    for row, (colour, group) in enumerate(zip(COLOURS, groups, strict=False)):
        axes.plot(group.scores, [row] * len(group.scores), "o", color=FAINT, markersize=3.5, zorder=1)
        for offset, estimate, marker, width in ((-0.14, group.iqm, "o", 3.0), (0.14, group.mean, "D", 1.3)):
            if np.isfinite(estimate.low):
                ends = [estimate.low, estimate.high]
                axes.plot(ends, [row + offset] * 2, color=colour, linewidth=width, solid_capstyle="butt", zorder=2)
            axes.plot(estimate.value, row + offset, marker, color=colour, markersize=4.5, markeredgecolor="white", zorder=3)
    axes.set_yticks(range(len(groups)), [_wrapped(group.label) for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    for marker, name, size in (("o", "interquartile mean", 4.5), ("D", "mean", 4.0)):
        axes.plot([], [], marker, color=INK, markersize=size, label=name)
    axes.plot([], [], "o", color=FAINT, markersize=3.5, label="a seed")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, -0.45), ncols=3, frameon=False, fontsize=7, labelcolor=INK)


def _wrapped(label: str) -> str:
    return textwrap.fill(label, LABEL_WIDTH)
