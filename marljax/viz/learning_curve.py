"""Learning curves from the rows of ``metrics.jsonl``, drawn by matplotlib without touching the user's backend.

Axis letters: S seeds, X points along the horizontal axis.
"""

import math
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.style import BLUE, COLUMNS, INK, ORANGE, REFERENCES, WIDTH, blank, plain
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.utils import stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# columns that are no metrics of the environment, and get no panel by default
POSITION = {"seed", "update", "env_steps", "time", "episodes"}
LOSSES = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm", "max_value",
          "max_reward", "td_loss", "td_error", "chosen_value", "epsilon", "kl_to_best", "kl_coef", "cut_returns"}  # fmt: skip
EVALUATED = "eval_"  # prefix of a greedy evaluation's metrics

BAND_SEEDS = 5  # from which the interval of the mean is drawn; with fewer it is too wide to be of use
ROOM = 0.05  # of a panel's height above and below its lines


def learning_curve(
    records: Iterable[Row],
    path: str | os.PathLike,
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
    title: str = "",
    units: Mapping[str, str] = MappingProxyType({}),
) -> "Figure":
    """Writes the picture of ``learning_figure`` to ``path``, .png, .svg or .pdf; it is complete or, after an error, absent.

    Returns:
        The figure that was written.

    Raises:
        UserError: for rows without metrics, or a path that cannot be written.
    """
    figure = learning_figure(records, references=references, title=title, units=units)
    with replacing(path, (".png", ".svg", ".pdf")) as draft:
        figure.savefig(draft)
    return figure


def learning_figure(
    records: Iterable[Row],
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
    title: str = "",
    units: Mapping[str, str] = MappingProxyType({}),
) -> "Figure":
    """The return of a run, large, and all metrics of the environment that change, over the steps.

    Each seed is a thin line; with them their mean, and with five seeds or more its 95 % t interval.

    Args:
        records: one row per chunk and seed, with ``env_steps``, ``seed`` and metrics by name, which need not be in every row.
            ``eval_<metric>`` is drawn in the panel of ``<metric>``, as the greedy evaluation.
        references: horizontal lines by policy: ``{"all human": {"return": 65.0, "crash": 0.02}}``.
        title: above the figure.
        units: of metrics, for the headings; "%" multiplies the values by 100 (``env.display.units``).

    Raises:
        UserError: for rows without metrics.
    """
    rows = [row for row in records if "env_steps" in row and "seed" in row]
    names = own_metrics(rows)
    if not names:
        raise UserError("no rows to draw a curve from; they hold nothing")
    figure, panels = _layout(len(names), title)
    for name, axes in zip(names, panels, strict=True):
        _panel(axes, rows, name, units.get(name, ""), references or {})
    figure.supxlabel("env steps", fontsize=9, color=INK)
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) > 1:  # next to the title, in as many columns as fit
        room, widest = WIDTH - 0.1 * len(title), 0.5 + 0.06 * max(map(len, handles))  # inches
        columns = int(np.clip(room // widest, 1, min(len(handles), 5)))
        style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": columns}
        figure.legend(handles.values(), handles.keys(), loc="outside upper right", **style)
    return figure


def own_metrics(rows: Iterable[Row]) -> list[str]:
    """The environment's metrics in the rows, returns first: those that were evaluated, else all but positions and loss terms.

    Metrics that never change are left out, unless all are such.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    evaluated = [name.removeprefix(EVALUATED) for name in names if name.startswith(EVALUATED)]
    own = evaluated or [name for name in names if name not in POSITION | LOSSES]

    def varies(name: str) -> bool:
        columns = [{row[key] for row in rows if _is_number(row.get(key))} for key in (name, EVALUATED + name)]
        return any(len(values) > 1 for values in columns)

    return sorted([name for name in own if varies(name)] or own, key=lambda name: not name.startswith("return"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def curve(rows: Iterable[Row], name: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric along the run: env_steps [X] and values [S, X], NaN where a seed has none."""
    points = {(row["seed"], row["env_steps"]): float(row[name]) for row in rows if _is_number(row.get(name))}
    seeds = sorted({seed for seed, _ in points}, key=str)
    positions = sorted({position for _, position in points})
    values = [[points.get((seed, position), np.nan) for position in positions] for seed in seeds]
    return np.array(positions, float), np.array(values, float).reshape(len(seeds), len(positions))


def _panel(axes: "Axes", rows: list[Row], name: str, unit: str, references: Mapping[str, Mapping[str, float]]) -> None:
    """Draws a metric of training and evaluation, and its references."""
    scale = 100.0 if unit == "%" else 1.0
    axes.set_title(name.replace("_", " ") + (f" ({unit})" if unit else ""), fontsize=10, loc="left", color=INK)
    for key, colour, label in ((name, BLUE, "training"), (EVALUATED + name, ORANGE, "greedy evaluation")):
        positions, values = curve(rows, key)
        if len(positions):
            _series(axes, positions, scale * values, colour, label)
    for index, (policy, metrics) in enumerate(references.items()):
        if name in metrics:
            colour = REFERENCES[index % len(REFERENCES)]
            axes.axhline(scale * metrics[name], color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label=policy)
    # The lines set the height, not the band; of a rate it stays near 0 to 1.
    heights = [float(height) for line in axes.get_lines() for height in np.asarray(line.get_ydata(), float)]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    if room := ROOM * (high - low):
        lowest, highest = (-0.02 * scale, 1.02 * scale) if low >= 0 and high <= scale else (-np.inf, np.inf)
        axes.set_ylim(max(low - room, lowest), min(high + room, highest))


def _series(axes: "Axes", positions: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """The seeds, their mean, and of many its interval; missing values of a seed are ignored."""
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(positions) < 40 else {}
    many = len(values) >= BAND_SEEDS
    for seed in values if len(values) > 1 else ():
        known = np.isfinite(seed)
        axes.plot(positions[known], seed[known], color=colour, alpha=0.25 if many else 0.5, linewidth=0.7)
    if many:
        estimates = [stats.mean(column[np.isfinite(column)]) for column in values.T]
        low, high = np.array([(each.low, each.high) for each in estimates]).T
        known = np.isfinite(low)
        axes.fill_between(positions[known], low[known], high[known], color=colour, alpha=0.15, linewidth=0)
    axes.plot(positions, np.nanmean(values, axis=0), color=colour, linewidth=1.8, label=label, **dots)


def _layout(count: int, title: str) -> tuple["Figure", list["Axes"]]:
    """The first panel over the whole width, the others in rows of at most three below."""
    from matplotlib.ticker import EngFormatter

    columns = min(COLUMNS, max(1, count - 1))
    small_rows = math.ceil((count - 1) / columns)
    figure = blank(3.6 + 1.9 * small_rows)
    grid = figure.add_gridspec(1 + small_rows, columns, height_ratios=[2.0] + [1.1] * small_rows)
    panels = [figure.add_subplot(grid[0, :])]
    panels += [figure.add_subplot(grid[1 + index // columns, index % columns], sharex=panels[0]) for index in range(count - 1)]
    for axes in panels:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(axes)
    if title:
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    return figure, panels
