"""The command ``marljax plot``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marljax.cli.evaluate import ALGO_TARGET, PlotOptions, folder_and_options, output_file
from marljax.cli.help import explained
from marljax.errors import UserError
from marljax.io import terminal

FORMATS = (".png", ".svg", ".pdf")

if TYPE_CHECKING:
    from rich.console import Console


def plot(arguments: Sequence[str]) -> int:
    """Draws the pictures of a run folder."""
    meaning = (
        "Draws the learning curve from metrics.jsonl, also of a run in progress, losses and entropy next to it as curve_losses, "
        "and the ranking of a sweep as sweep.png, or with out=curve.pdf as curve_sweep.pdf."
    )
    if explained(arguments, "plot <run folder> [key=value …]", meaning, PlotOptions):
        return 0
    folder, options, repeated = folder_and_options(arguments, PlotOptions)
    if changed := [key for key in repeated if key not in ("env.target", ALGO_TARGET)]:
        raise UserError(f"plot draws a run as it was; leave out {', '.join(changed)}")
    redraw(folder, terminal.screen(), options.trust, repeated, output_file(options.out, FORMATS))
    return 0


def redraw(
    folder: Path,
    console: "Console",
    trusted: bool = False,
    repeated: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> None:
    """Draws the pictures of a run folder that need no training: the learning curve, and the comparison of a sweep.

    ``trusted`` and ``repeated``, overrides by key, are those of ``trust.read_config``; ``out`` is the curve's file.
    """
    from marljax.config import trust
    from marljax.config.settings import from_tree
    from marljax.reporting import ranking
    from marljax.reporting.report import draw_curve, last_of, played

    settings = from_tree(trust.read_config(folder, repeated or {}, trusted))
    if settings.run.search.tried:
        draw_curve(settings, folder, console, path=out)
        ranking.redraw(settings, folder, console, out and out.with_stem(f"{out.stem}_sweep"))
        return
    own = (settings.algo, last_of(settings.algo))
    draw_curve(settings, folder, console, {name: metrics for name, metrics in played(folder).items() if name not in own}, out)
