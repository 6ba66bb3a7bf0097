"""Pages of result tables."""

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from marljax.baselines.harness.result_cache import Cells, Figures, Part
from marljax.errors import UserError, unknown
from marljax.io.files import replacing
from marljax.utils import stats


def mean_interval(figure: Mapping[str, Any], places: int = 1, scale: float = 1.0) -> str:
    """Mean with a 95 % t interval: over seeds, each of which counts once, or over the episodes of a scripted policy."""
    means = scale * np.asarray(figure["mean"])
    if len(means) > 1:
        estimate = stats.mean(means)
        half = estimate.high - estimate.value
    else:
        half = stats.t_half_width(scale * figure["std"][0], figure["count"])
    return f"{means.mean():.{places}f} ± {half:.{places}f}"


def rate_interval(figure: Mapping[str, Any]) -> str:
    """A rate in per cent with Wilson's 95 % interval over all episodes, those of all seeds pooled."""
    count = figure["count"] * len(figure["mean"])
    estimate = stats.wilson(round(float(np.mean(figure["mean"])) * count), count)
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def rate_spread(figure: Mapping[str, Any]) -> str:
    """``rate_interval`` and, where there are several seeds, the lowest and highest of their rates."""
    rates = [f"{100 * rate:.1f}" for rate in (min(figure["mean"]), max(figure["mean"]))]
    return f"{rate_interval(figure)}; {rates[0]}–{rates[1]}" if len(figure["mean"]) > 1 else rate_interval(figure)


def main(
    text: str, folder: Path, parts: Mapping[str, Part], page: Callable[[dict[str, str]], str], cold: Sequence[str] = ()
) -> None:
    """The command of a page: computes the parts asked for (default: all) and writes the page from every cell there is.

    Args:
        text: its help.
        folder: of the cells; the page stands beside it.
        parts: what fills each part of the page.
        page: the page from its parts.
        cold: parts that measure compile times, for which the compilation cache stays off.
    """
    from marljax.cli.train import enable_compilation_cache

    words = sys.argv[1:]
    if any(word in ("-h", "--help") for word in words):
        print(text.strip())
        return
    try:
        for word in words:
            if word not in parts:
                raise unknown("part of the tables", word, parts)
        if not any(part in cold for part in words or parts):
            enable_compilation_cache()
        _fill(folder, parts, page, words or list(parts))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")


def _fill(folder: Path, parts: Mapping[str, Part], page: Callable[[dict[str, str]], str], wanted: Sequence[str]) -> None:
    console = Console()
    cells = Cells(folder, console)
    for part in wanted:
        console.print(f"\n{part}\n{parts[part](cells)}", markup=False)
    kept = Cells(folder, console, compute_missing=False)
    path = folder.with_suffix(".md")
    write_report(path, page({part: fill(kept) for part, fill in parts.items()}))
    console.print(f"written: {path}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned. Nothing without rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([" --- ", *(" ---: " for _ in header[1:])]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def by_row(
    what: str, header: Sequence[str], columns: Callable[[Figures], Sequence[str]], rows: Sequence[tuple[str, Figures | None]]
) -> str:
    """A table of titled cells, those that there are; says which are missing."""
    done = [[name, *columns(figures)] for name, figures in rows if figures is not None]
    missing = [name for name, figures in rows if figures is None]
    return with_missing(missing, markdown_table([what, *header], done))


def with_missing(missing: Sequence[str], *paragraphs: str) -> str:
    """Paragraphs of a part, and a last one that names what is not computed yet, if anything."""
    return "\n\n".join([*filter(None, paragraphs), *([f"Not computed yet: {'; '.join(missing)}."] if missing else [])])


def version(package: str) -> str:
    """Of an installed package."""
    return importlib.metadata.version(package)


def describe_versions() -> str:
    """Versions that figures depend on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("marljax", "jax", "jaxlib", "flax", "optax"))
    return f"Python {platform.python_version()}, {versions}, {jax.devices()[0].device_kind} backend"


def write_report(path: Path, text: str) -> None:
    """Writes a page of results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
