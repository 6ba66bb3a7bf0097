"""Learning curves from the rows of ``metrics.jsonl``, drawn by matplotlib without touching the user's backend.

Axis letters: S seeds, X points along the horizontal axis.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.style import BLUE, COLUMNS, FAINT, INK, ORANGE, REFERENCES, WIDTH, blank, plain
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.utils import stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

FORMATS = (".png", ".svg", ".pdf")
# columns that are no metrics of the environment, and get no panel by default
POSITION = {"seed", "setting", "update", "env_steps", "time", "episodes"}
LOSSES = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm", "max_value",
          "max_reward", "td_loss", "td_error", "chosen_value", "epsilon", "kl_to_best", "kl_coef", "cut_returns", "item_price",
          "priced_share", "afterstate_value"}  # fmt: skip
EVALUATED = "eval_"  # prefix of an evaluation's metrics

BAND_SEEDS = 5  # from which the interval of the mean is drawn; with fewer it is too wide to be of use
MOST_SETTINGS = 8  # of a sweep in colour, the best ones; others are grey
ROOM = 0.05  # of a panel's height above and below what it shows


def learning_curve(
    records: Iterable[Row],
    path: str | os.PathLike | None,
    *,
    first: Sequence[str] = (),
    references: Mapping[str, Mapping[str, float]] | None = None,
    title: str = "",
    units: Mapping[str, str] = MappingProxyType({}),
) -> "Figure":
    """Draws the main metric of a run, large, and all metrics of the environment that change, over the steps.

    Each seed is a thin line; with them their mean, and with five seeds or more its 95 % t interval. Of a sweep the mean of every
    setting is drawn, of evaluations, if there are any; beyond eight settings the best at the end have a colour.

    Args:
        records: one row per chunk and seed, with ``env_steps``, ``seed`` and metrics by name, which need not be in every row.
            ``eval_<metric>`` is drawn in the panel of ``<metric>``, as that of evaluations. ``setting`` names that of a sweep.
        path: file to write, .png, .svg or .pdf; it is complete or, after an error, absent. None writes nothing.
        first: metrics in the order of their importance (``env.display.metrics``).
        references: horizontal lines by policy: ``{"all human": {"return": 65.0, "crash": 0.02}}``.
        title: above the figure.
        units: of metrics, for the headings; "%" multiplies the values by 100 (``env.display.units``).

    Returns:
        The figure.

    Raises:
        UserError: for rows without metrics, or a path that cannot be written.
    """
    rows = _complete(records)
    return _draw(rows, own_metrics(rows, first), path, True, references or {}, title, units)


def loss_curve(records: Iterable[Row], path: str | os.PathLike, *, title: str = "") -> "Figure | None":
    """Draws losses, entropy and whatever else the updates report, which ``learning_curve`` leaves out; None without any."""
    rows = _complete(records)
    names = {name for row in rows for name in row if not name.startswith(EVALUATED)} - POSITION - {*_of_episodes(rows)}
    if not names:
        return None
    return _draw(rows, sorted(names, key=lambda name: ("loss" not in name, name)), path, False, {}, title, {})


def _complete(records: Iterable[Row]) -> list[Row]:
    return [row for row in records if "env_steps" in row and "seed" in row]


def _draw(
    rows: list[Row],
    names: Sequence[str],
    path: str | os.PathLike | None,
    large: bool,
    references: Mapping[str, Mapping[str, float]],
    title: str,
    units: Mapping[str, str],
) -> "Figure":
    """A panel for each name, the first one ``large``, and one legend for all."""
    if not names:
        raise UserError("no rows to draw a curve from; they hold nothing")
    colours = _colours(rows, names[0])
    figure, panels = _layout(len(names), large)
    for name, axes in zip(names, panels, strict=True):
        _panel(axes, rows, name, units.get(name, ""), references, colours)
    last = max(row["env_steps"] for row in rows)
    for axes in panels:
        axes.set_xlim(-0.01 * last, 1.02 * last)
    figure.supxlabel(_caption(rows, bool(colours)), fontsize=9, color=INK)
    entitle(figure, panels, title)
    if path is not None:
        save(figure, path)
    return figure


def entitle(figure: Any, panels: Iterable["Axes"], title: str) -> None:
    """The title of a figure, with the legend of all panels below it unless that had a single entry."""
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) < 2:
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
        return
    # The title is the legend's: matplotlib would draw one of the figure over the legend.
    columns = int(np.clip(WIDTH // (0.55 + 0.065 * max(map(len, handles))), 1, len(handles)))  # of that many inches
    style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": columns, "borderpad": 0.0, "alignment": "left"}
    legend = figure.legend(handles.values(), handles.keys(), loc="outside upper left", title=title, title_fontsize=11, **style)
    legend.get_title().set_color(INK)


def _caption(rows: list[Row], sweep: bool) -> str:
    """The label of the horizontal axis, and what lines and bands show of several seeds."""
    seeds = len({row["seed"] for row in rows})
    band = ", band: its 95 % interval" if seeds >= BAND_SEEDS else ""
    lines = "" if seeds == 1 else f"line: mean over seeds{band}" if sweep else f"thin: seeds, thick: their mean{band}"
    return "env steps" + (f"   ({lines})" if lines else "")


def save(figure: "Figure", path: str | os.PathLike) -> None:
    """Writes a figure as .png, .svg or .pdf, with fonts that journals take; complete or, after an error, absent."""
    import matplotlib

    with replacing(path, FORMATS) as draft, matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(draft)


def own_metrics(rows: Iterable[Row], first: Sequence[str] = ()) -> list[str]:
    """The environment's metrics in the rows: ``first``, returns, others; without those that never change, unless all are such."""
    rows = list(rows)
    own = _of_episodes(rows)

    def varies(name: str) -> bool:
        columns = [{row[key] for row in rows if _is_number(row.get(key))} for key in (name, EVALUATED + name)]
        return any(len(values) > 1 for values in columns)

    kept = [name for name in own if varies(name)] or own
    return sorted(kept, key=lambda name: (first.index(name) if name in first else len(first), not name.startswith("return")))


def _of_episodes(rows: list[Row]) -> list[str]:
    """The metrics of episodes: those that were evaluated, else all but positions and loss terms."""
    names = dict.fromkeys(name for row in rows for name in row)
    evaluated = [name.removeprefix(EVALUATED) for name in names if name.startswith(EVALUATED)]
    return evaluated or [name for name in names if name not in POSITION | LOSSES]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def curve(rows: Iterable[Row], name: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric along the run: env_steps [X] and values [S, X], NaN where a seed has none."""
    points = {(row["seed"], row["env_steps"]): float(row[name]) for row in rows if _is_number(row.get(name))}
    seeds = sorted({seed for seed, _ in points}, key=str)
    positions = sorted({position for _, position in points})
    values = [[points.get((seed, position), np.nan) for position in positions] for seed in seeds]
    return np.array(positions, float), np.array(values, float).reshape(len(seeds), len(positions))


def _colours(rows: list[Row], name: str) -> dict[str, str]:
    """The colour of each setting of a sweep, in the order of the rows; empty for other runs.

    Beyond ``MOST_SETTINGS`` only those whose metric ``name`` is highest at the end have one.
    """
    settings = list(dict.fromkeys(row["setting"] for row in rows if "setting" in row))
    if not settings:
        return {}
    from matplotlib import colormaps, colors

    if len(settings) > MOST_SETTINGS:
        final = {setting: _of_setting(rows, name, setting)[1] for setting in settings}
        ends = {setting: float(np.nanmean(values[:, -1])) for setting, values in final.items() if values.size}
        best = sorted(ends, key=lambda setting: -ends[setting])[:MOST_SETTINGS]
        settings = [setting for setting in settings if setting in best]
    shades = map(colors.to_hex, colormaps["viridis"](np.linspace(0.0, 0.9, len(settings))))
    return dict(zip(settings, shades, strict=True))


def _of_setting(rows: list[Row], name: str, setting: str) -> tuple[np.ndarray, np.ndarray]:
    """``curve`` of one setting of a sweep: of evaluations, if there are any."""
    own = [row for row in rows if row.get("setting") == setting]
    positions, values = curve(own, EVALUATED + name)
    return (positions, values) if len(positions) else curve(own, name)


def _panel(
    axes: "Axes",
    rows: list[Row],
    name: str,
    unit: str,
    references: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
) -> None:
    """Draws a metric of training and evaluation, or of the settings of a sweep, and its references."""
    scale = 100.0 if unit == "%" else 1.0
    axes.set_title(name.replace("_", " ") + (f" ({unit})" if unit else ""), fontsize=10, loc="left", color=INK)
    lines = [(curve(rows, name), BLUE, "training"), (curve(rows, EVALUATED + name), ORANGE, "evaluation")]
    if colours:
        settings = sorted({row["setting"] for row in rows}, key=lambda setting: setting in colours)  # grey ones first
        settings = settings[: len(settings) - len(colours)] + list(colours)
        lines = [(_of_setting(rows, name, each), colours.get(each, FAINT), each if each in colours else "") for each in settings]
    for (positions, values), colour, label in lines:
        if len(positions):
            draw_seeds(axes, positions, scale * values, colour, label, with_seeds=not colours)
    for index, (policy, metrics) in enumerate(references.items()):
        if name in metrics:
            colour = REFERENCES[index % len(REFERENCES)]
            axes.axhline(scale * metrics[name], color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label=policy)
    # The lines set the height, not the band, unless it stands for the seeds; of a rate it stays near 0 to 1.
    heights = [float(height) for line in axes.get_lines() for height in np.asarray(line.get_ydata(), float)]
    heights += [float(height) for height in axes.dataLim.intervaly] if colours and heights else []
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    if room := ROOM * (high - low):
        lowest, highest = (-0.02 * scale, 1.02 * scale) if low >= 0 and high <= scale else (-np.inf, np.inf)
        axes.set_ylim(max(low - room, lowest), min(high + room, highest))


def draw_seeds(axes: "Axes", positions: np.ndarray, values: np.ndarray, colour: str, label: str, with_seeds: bool = True) -> None:
    """The seeds, their mean, and of many its interval; missing values of a seed are ignored."""
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(positions) < 40 else {}
    many = len(values) >= BAND_SEEDS
    for seed in values if len(values) > 1 and with_seeds else ():
        known = np.isfinite(seed)
        axes.plot(positions[known], seed[known], color=colour, alpha=0.25 if many else 0.5, linewidth=0.7)
    if many:
        estimates = [stats.mean(column[np.isfinite(column)]) for column in values.T]
        low, high = np.array([(each.low, each.high) for each in estimates]).T
        known = np.isfinite(low)
        axes.fill_between(positions[known], low[known], high[known], color=colour, alpha=0.15, linewidth=0)
    axes.plot(positions, np.nanmean(values, axis=0), color=colour, linewidth=1.8, label=label or None, **dots)


def _layout(count: int, large: bool) -> tuple["Figure", list["Axes"]]:
    """Panels in rows of at most three; a ``large`` first one over the whole width."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    others = count - large
    columns = min(COLUMNS, max(1, others))
    rows = [2.0] * large + [1.1 if large else 1.4] * math.ceil(others / columns)
    figure = blank(1.0 + 1.75 * sum(rows))
    grid = figure.add_gridspec(len(rows), columns, height_ratios=rows)
    panels = [figure.add_subplot(grid[0, :])] if large else []
    panels += [figure.add_subplot(grid[large + index // columns, index % columns]) for index in range(others)]
    for index, axes in enumerate(panels):
        axes.xaxis.set_major_locator(MaxNLocator(10 if large and index == 0 else 5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(axes)
    return figure, panels
