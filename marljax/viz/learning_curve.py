"""Learning curves from the rows of ``metrics.jsonl``, drawn by matplotlib without touching the user's backend.

Axis letters: S seeds, X points along the horizontal axis.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.style import BLUE, COLUMNS, INK, ORANGE, REFERENCES, WIDTH, blank, plain
from marljax.errors import UserError
from marljax.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# where a row stands and what algorithms report of themselves: no panel unless asked for
PLACE = {"seed", "update", "env_steps", "steps", "time", "episodes", "steps_per_second", "learning_rate"}
LOSSES = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm", "kl_to_best",
          "kl_coef", "cut_returns"}  # fmt: skip
EVALUATED = "eval_"  # rows hold a greedy evaluation's figures under this prefix


BAND_SEEDS = 5  # from which the interval of the mean is drawn; of fewer it says next to nothing
ROOM = 0.05  # of a panel's height above and below its lines


def learning_curve(
    records: Iterable[Row],
    path: str | os.PathLike,
    *,
    metrics: Sequence[str] = (),
    references: Mapping[str, Mapping[str, float]] | None = None,
    x: str = "env_steps",
    title: str = "",
    units: Mapping[str, str] = MappingProxyType({}),
) -> "Figure":
    """Draws how the metrics of a run grew: each seed as a thin line, their mean, and from five seeds on its 95 % t interval.

    Args:
        records: one row per chunk and seed, with ``x``, ``seed`` and figures by name; a figure may be missing from a row. Figures
            named ``eval_<metric>`` are drawn beside ``<metric>``, as the greedy evaluation.
        path: file to write, .png, .svg or .pdf; it is complete or, after an error, absent.
        metrics: what to draw, the first one large; by default the return, then all that the environment reports and that is not
            the same throughout.
        references: horizontal lines by policy: ``{"all human": {"return": 65.0, "crash": 0.02}}``.
        x: name of the horizontal axis in the rows.
        title: above the figure.
        units: of metrics, for the headings; what is in "%" is shown so, from 0 to 1 in the rows (``env.display.units``).

    Returns:
        the figure that was written.

    Raises:
        UserError: where there is nothing to draw, for a metric that no row has, or a path that cannot be written.
    """
    rows = [row for row in records if x in row and "seed" in row]
    names = list(metrics) or own_metrics(rows)
    missing = [name for name in names if not any(name in row or EVALUATED + name in row for row in rows)]
    if not names or missing:
        found = ", ".join(own_metrics(rows)) or "nothing"
        raise UserError(f"no rows to draw {', '.join(missing) or 'a curve'} from; they hold {found}")
    figure, panels = _layout(len(names), title)
    for name, axes in zip(names, panels, strict=True):
        scale = _panel(axes, rows, name, x, units.get(name, ""))
        _reference_lines(axes, name, references or {}, scale)
        _limit(axes, scale)
    figure.supxlabel(x.replace("_", " "), fontsize=9, color=INK)
    _legend(figure, panels, title)
    with replacing(path, (".png", ".svg", ".pdf")) as draft:
        figure.savefig(draft)
    return figure


def own_metrics(rows: Iterable[Row]) -> list[str]:
    """The names in the rows that the environment reports, returns first.

    Those are what is evaluated; where nothing is, all but the places and the loss terms. Left out is what never changes, unless
    nothing does.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    evaluated = [name.removeprefix(EVALUATED) for name in names if name.startswith(EVALUATED)]
    own = evaluated or [name for name in names if name not in PLACE | LOSSES]
    own = [name for name in own if _varies(rows, name)] or own
    return sorted(own, key=lambda name: not name.startswith("return"))


def _varies(rows: Sequence[Row], name: str) -> bool:
    """Whether a figure takes more than one value, in training or in evaluation."""
    return any(len({row[key] for row in rows if _is_number(row.get(key))}) > 1 for key in (name, EVALUATED + name))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def curve(rows: Iterable[Row], name: str, x: str = "env_steps") -> tuple[np.ndarray, np.ndarray]:
    """A figure along the run: places [X] and values [S, X], NaN where a seed has none."""
    points = {}
    for row in rows:
        if _is_number(row.get(name)):
            points[row["seed"], row[x]] = float(row[name])
    seeds = sorted({seed for seed, _ in points}, key=str)
    places = sorted({place for _, place in points})
    values = [[points.get((seed, place), np.nan) for place in places] for seed in seeds]
    return np.array(places, float), np.array(values, float).reshape(len(seeds), len(places))


def _panel(axes: "Axes", rows: list[Row], name: str, x: str, unit: str) -> float:
    """Draws a figure's training and evaluation; returns by what the rows' numbers are multiplied."""
    scale = 100.0 if unit == "%" else 1.0
    axes.set_title(name.replace("_", " ") + (f" ({unit})" if unit else ""), fontsize=10, loc="left", color=INK)
    for key, colour, label in ((name, BLUE, "training"), (EVALUATED + name, ORANGE, "greedy evaluation")):
        places, values = curve(rows, key, x)
        _series(axes, places, scale * values, colour, label)
    return scale


def _series(axes: "Axes", places: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """The seeds, their mean, and of many its interval; a place where some seed is silent counts those that speak."""
    from marljax.utils import stats  # SciPy's statistics take a second to import, and environments take their colours from here

    if not len(places):
        return
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(places) < 40 else {}
    many = len(values) >= BAND_SEEDS
    for seed in values if len(values) > 1 else ():
        spoken = np.isfinite(seed)
        axes.plot(places[spoken], seed[spoken], color=colour, alpha=0.25 if many else 0.5, linewidth=0.7)
    if many:
        estimates = [stats.mean(column[np.isfinite(column)]) for column in values.T]
        low, high = np.array([(each.low, each.high) for each in estimates]).T
        known = np.isfinite(low)
        axes.fill_between(places[known], low[known], high[known], color=colour, alpha=0.15, linewidth=0)
    axes.plot(places, np.nanmean(values, axis=0), color=colour, linewidth=1.8, label=label, **dots)


def _limit(axes: "Axes", scale: float) -> None:
    """The lines set the height of a panel, not the band; rates stay within 0 and 1."""
    heights = [float(height) for line in axes.get_lines() for height in np.asarray(line.get_ydata(), float)]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    room = ROOM * (high - low)
    if not room:
        return
    if low >= 0 and high <= scale:  # a little more than a rate can be, so that a line at its bound is seen whole
        axes.set_ylim(max(low - room, -0.02 * scale), min(high + room, 1.02 * scale))
    else:
        axes.set_ylim(low - room, high + room)


def _reference_lines(axes: "Axes", name: str, references: Mapping[str, Mapping[str, float]], scale: float) -> None:
    for index, (policy, figures) in enumerate(references.items()):
        if name in figures:
            colour = REFERENCES[index % len(REFERENCES)]
            axes.axhline(scale * figures[name], color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label=policy)


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


def _legend(figure: "Figure", panels: list["Axes"], title: str) -> None:
    """Beside the title, in as many columns as there is room for."""
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) > 1:
        room, widest = WIDTH - 0.1 * len(title), 0.5 + 0.06 * max(map(len, handles))  # inches
        columns = int(np.clip(room // widest, 1, min(len(handles), 5)))
        style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": columns}
        figure.legend(handles.values(), handles.keys(), loc="outside upper right", **style)
