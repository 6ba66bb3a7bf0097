"""The table at the end of a run, on the screen and as a file."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from marljax.io.files import as_json, replacing
from marljax.training.progress import SHOWN
from marljax.utils import stats
from marljax.utils.stats import Estimate

COLUMNS = 7  # metrics of a comparison
POLICY_WIDTH = 16  # characters after which a policy's name may be wrapped
ESCAPED = str.maketrans(  # in LaTeX
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
)
Rows = Sequence[tuple[str, Mapping[str, np.ndarray]]]  # (policy, metrics [S, episodes] or [episodes])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned. Empty without rows."""
    if not rows:
        return ""
    marks = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in [header, marks, *rows])


def pooled(episodes: int, kind: str, seeds: int, greedy: bool = True) -> str:
    """The title of a comparison: the samples of its means and intervals, and where policies are not ``greedy``."""
    played = f"{episodes} {kind} episodes × {seeds} seed{'s' * (seeds != 1)}"
    how = "" if greedy else ", actions sampled"
    return f"mean over {played}{how}, 95 % interval over {'seeds' if seeds > 1 else 'episodes'}"


def comparison(
    title: str,
    rows: Rows,
    width: int = 100,
    metrics: Sequence[str] = (),
    units: Mapping[str, str] = MappingProxyType({}),
    caption: str | None = None,
) -> Table:
    """A table with a row per policy: the means of the most important metrics, their 95 % intervals below.

    Episodes of one seed share its parameters and are not independent: with two or more seeds the interval is Student's t over the
    means of seeds, clipped to 0 and 100 for percentages; else it is over episodes. A metric that is 0 or 1 in every episode of
    every policy is a rate in per cent, over episodes with Wilson's interval.

    Args:
        title: of the table.
        rows: (policy, metrics), metrics [S, episodes] of a policy that was trained with S seeds, or [episodes].
        width: characters; the least important metrics that do not fit are left out.
        metrics: the most important ones (``env.display.metrics``).
        units: of metrics (``env.display.units``).
        caption: below the table.
    """
    table = Table(title=title, title_justify="left", min_width=len(title), box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.caption, table.caption_justify = caption, "left"
    table.add_column("policy\n ", overflow="fold")
    columns: list[list[str]] = []
    room = width - 2 - min(POLICY_WIDTH, max(len(policy) for policy, _ in rows))
    for name, unit, rate in _columns(rows, key_metrics([values for _, values in rows], metrics), units):
        cells = [_cell(each.get(name), unit, rate) for _, each in rows]
        room -= 3 + max(len(line) for text in (name, unit, *cells) for line in text.splitlines())
        if room < 0 and columns:
            break
        table.add_column(f"{name}\n{unit}" if unit else f"{name}\n ", justify="right", no_wrap=True)
        columns.append(cells)
    for (policy, _), *cells in zip(rows, *columns, strict=True):
        table.add_row(escape(policy), *cells)
    return table


def key_metrics(policies: Sequence[Mapping[str, np.ndarray]], first: Sequence[str] = (), count: int = COLUMNS) -> list[str]:
    """Columns of a comparison, at most ``count``: ``first``, common metrics, then all others, the length last.

    Left out are ``finished`` where it is 1 throughout, a metric that is 0 throughout unless it is the very first, and one that
    repeats an earlier one for every policy.
    """
    names = list(dict.fromkeys(name for metrics in policies for name in metrics))
    if all(np.all(metrics.get("finished", 1) == 1) for metrics in policies):
        names = [name for name in names if name != "finished"]
    names = [name for name in names if name in first[:1] or any(np.any(metrics.get(name, 0)) for metrics in policies)] or names
    order = list(dict.fromkeys([*first, *(name for name in SHOWN if name != "length"), "finished"]))
    names.sort(key=lambda name: order.index(name) if name in order else len(order) + (name == "length"))
    kept: list[str] = []
    for name in names:
        if not any(all(_same(metrics, name, other) for metrics in policies) for other in kept):
            kept.append(name)
    return kept[:count]


def decimals_for(half_widths: Iterable[float]) -> Callable[[float], str]:
    """Formats numbers with as many decimals as show two digits of the narrowest interval's half width."""
    known = [width for width in half_widths if np.isfinite(width) and width > 0]
    if not known:
        return "{:.4g}".format
    decimals = int(np.clip(1 - np.floor(np.log10(min(known))), 0, 6))
    return f"{{:,.{decimals}f}}".format


def _same(metrics: Mapping[str, np.ndarray], name: str, other: str) -> bool:
    if name not in metrics or other not in metrics:
        return name not in metrics and other not in metrics
    return metrics[name].shape == metrics[other].shape and np.allclose(metrics[name], metrics[other], rtol=1e-4, atol=1e-5)


def _is_rate(values: np.ndarray) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def _cell(values: np.ndarray | None, unit: str, rate: bool) -> str:
    """A mean and its interval in the column's unit; ``values`` are [S, episodes] or [episodes], of a ``rate`` 0 or 1."""
    return "–" if values is None else "\n".join(_texts(*_estimate(values, unit, rate), unit, "–"))


def _estimate(values: np.ndarray, unit: str, rate: bool) -> tuple[Estimate, bool]:
    """A mean with its 95 % interval, and whether that is one of a share, inside [0, 1], rather than symmetric."""
    values = np.asarray(values, np.float64)
    over_seeds = values.ndim == 2 and len(values) > 1
    sample = values.mean(-1) if over_seeds else values.ravel()
    if unit == "%" and over_seeds:
        return stats.mean(sample, 0.0, 1.0), True
    if unit == "%" and (rate or (_is_rate(sample) and np.ptp(sample) > 0)):
        return stats.wilson(int(sample.sum()), sample.size), True
    return stats.mean(sample), False


def _texts(estimate: Estimate, share: bool, unit: str, dash: str) -> tuple[str, str]:
    """An estimate and its interval, ``± 1.2`` or ``0.3–1.4``, in per cent where that is the unit."""
    value, low, high = estimate
    if unit != "%":
        return f"{value:.3g}", f"± {high - value:.2g}"
    interval = f"{100 * low:.1f}{dash}{100 * high:.1f}" if share else f"± {100 * (high - value):.1f}"
    return f"{100 * value:.1f}", interval


def write_comparison(
    rows: Rows,
    path: str | os.PathLike,
    title: str,
    seeds: Sequence[int],
    metrics: Sequence[str] = (),
    units: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes the rows of a ``comparison`` to a file, with its intervals.

    .csv and .json hold every metric, shares as 0 to 1, also of each seed, whose intervals are over its episodes; .tex holds the
    columns of ``comparison`` as a ``booktabs`` table.

    Args:
        rows, metrics, units: as those of ``comparison``.
        path: file to write; it is complete or, after an error, as it was before.
        title: of the table, a comment in LaTeX.
        seeds: [S] of the learned policies.
    """
    known = {".csv": _as_csv, ".json": _as_json, ".tex": _as_latex}
    with replacing(path, tuple(known)) as draft:
        Path(draft).write_text(known[Path(path).suffix.lower()](rows, title, seeds, metrics, units), encoding="utf-8")


def _columns(rows: Rows, names: Sequence[str], units: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Name, unit and whether it is a rate, of each column."""
    for name in names:
        rate = all(_is_rate(metrics[name]) for _, metrics in rows if name in metrics)
        yield name, units.get(name) or ("%" if rate else ""), rate


def _estimates(
    rows: Rows,
    seeds: Sequence[int],
    first: Sequence[str],
    units: Mapping[str, str],
) -> Iterator[tuple[str, int | None, int, dict[str, Estimate]]]:
    """Policy, seed (None: all), episodes and every metric, of each policy and each of its seeds."""
    policies = [metrics for _, metrics in rows]
    important = key_metrics(policies, first)
    names = dict.fromkeys([*important, *sorted({name for metrics in policies for name in metrics})])
    columns = list(_columns(rows, list(names), units))
    for policy, metrics in rows:
        shape = next(iter(metrics.values())).shape
        parts: list[tuple[int | None, Any]] = [(None, ...)]
        parts += [(seed, index) for index, seed in enumerate(seeds)] if len(shape) == 2 else []
        for seed, part in parts:
            own = {name: _estimate(metrics[name][part], unit, rate)[0] for name, unit, rate in columns if name in metrics}
            yield policy, seed, int(np.prod(shape if seed is None else shape[-1:])), own


def _as_csv(rows: Rows, title: str, seeds: Sequence[int], first: Sequence[str], units: Mapping[str, str]) -> str:
    lines = list(_estimates(rows, seeds, first, units))
    names = list(dict.fromkeys(name for *_, metrics in lines for name in metrics))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["policy", "seed", "episodes", *(f"{name}{end}" for name in names for end in ("", "_low", "_high"))])
    for policy, seed, episodes, metrics in lines:
        cells = [value for name in names for value in metrics.get(name, (np.nan,) * 3)]
        own = [repr(float(value)) if np.isfinite(value) else "" for value in cells]
        table.writerow([policy, "" if seed is None else seed, episodes, *own])
    return text.getvalue()


def _as_json(rows: Rows, title: str, seeds: Sequence[int], first: Sequence[str], units: Mapping[str, str]) -> str:
    policies: list[dict[str, Any]] = []
    for policy, seed, episodes, estimates in _estimates(rows, seeds, first, units):
        metrics = {name: dict(zip(("mean", "low", "high"), map(float, each), strict=True)) for name, each in estimates.items()}
        if seed is None:
            policies.append({"policy": policy, "episodes": episodes, "metrics": metrics, "seeds": []})
        else:
            policies[-1]["seeds"].append({"seed": seed, "episodes": episodes, "metrics": metrics})
    return as_json({"title": title, "units": dict(units), "policies": policies}, indent=1) + "\n"


def _as_latex(rows: Rows, title: str, seeds: Sequence[int], first: Sequence[str], units: Mapping[str, str]) -> str:
    columns = list(_columns(rows, key_metrics([metrics for _, metrics in rows], first), units))
    heads = ["policy", *(f"{name} ({unit})" if unit else name for name, unit, _ in columns)]
    lines = [
        " & ".join(head.translate(ESCAPED) for head in heads),
        *(_latex_row(policy, metrics, columns) for policy, metrics in rows),
    ]
    top, *body = [f"{line} \\\\" for line in lines]
    begin = [f"% {title}", "% \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule"]
    return "\n".join([*begin, top, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_row(policy: str, metrics: Mapping[str, np.ndarray], columns: Sequence[tuple[str, str, bool]]) -> str:
    cells = []
    for name, unit, rate in columns:
        if name not in metrics:
            cells.append("--")
            continue
        value, interval = _texts(*_estimate(metrics[name], unit, rate), unit, ", ")
        text = f"{value} {interval}" if interval.startswith("±") else rf"{value}\;[{interval}]"
        text = text.replace("±", r"\pm").replace("inf", r"\infty")
        cells.append("$" + re.sub(r"e([+-]\d+)", lambda found: rf" \times 10^{{{int(found[1])}}}", text) + "$")
    return " & ".join([policy.translate(ESCAPED), *cells])
