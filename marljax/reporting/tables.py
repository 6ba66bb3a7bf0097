"""The table at the end of a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from marljax.training.progress import SHOWN
from marljax.utils import stats

COLUMNS = 7  # metrics of a comparison
POLICY_WIDTH = 16  # characters after which a policy's name may be wrapped


def pooled(episodes: int, kind: str, seeds: int) -> str:
    """The title of a comparison: the samples of its means and intervals."""
    played = f"{episodes} {kind} episodes × {seeds} seed{'s' * (seeds != 1)}"
    return f"mean over {played}, 95 % interval over {'seeds' if seeds > 1 else 'episodes'}"


def comparison(
    title: str,
    rows: Sequence[tuple[str, Mapping[str, np.ndarray]]],
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
    for name in key_metrics([values for _, values in rows], metrics):
        values = [each.get(name) for _, each in rows]
        rate = all(each is None or _is_rate(each) for each in values)
        unit = units.get(name) or ("%" if rate else "")
        cells = [_cell(each, unit, rate) for each in values]
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
    if values is None:
        return "–"
    values = np.asarray(values, np.float64)
    over_seeds = values.ndim == 2 and len(values) > 1
    sample = values.mean(-1) if over_seeds else values.ravel()
    mean = stats.mean(sample)
    if unit != "%":
        return f"{mean.value:.3g}\n± {mean.high - mean.value:.2g}"
    if over_seeds:
        low, high = np.clip((mean.low, mean.high), 0.0, 1.0)
    elif rate or (_is_rate(sample) and np.ptp(sample) > 0):
        _, low, high = stats.wilson(int(sample.sum()), sample.size)
    else:
        return f"{100 * mean.value:.1f}\n± {100 * (mean.high - mean.value):.1f}"
    return f"{100 * mean.value:.1f}\n{100 * low:.1f}–{100 * high:.1f}"
