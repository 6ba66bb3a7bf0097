"""The command ``marljax plot``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marljax.cli.evaluate import ALGO_TARGET, PlotOptions, folder_and_options
from marljax.errors import UserError
from marljax.io import terminal

if TYPE_CHECKING:
    from rich.console import Console


PLOT_HELP = """usage: marljax plot <run folder> [trust=true]

Draws curve.png from metrics.jsonl, also of a run that was stopped or still goes on; of a sweep that is ranked also sweep.png.
  trust=true       import env.target of a run that was not trained here: it may run any code
"""


def plot(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(PLOT_HELP, end="")
        return 0
    folder, options, repeated = folder_and_options(words, PlotOptions)
    if changed := [key for key in repeated if key not in ("env.target", ALGO_TARGET)]:
        raise UserError(f"plot draws a run as it was; leave out {', '.join(changed)}")
    draw_again(folder, terminal.screen(), options.trust, repeated)
    return 0


def draw_again(folder: Path, console: "Console", trusted: bool = False, repeated: Mapping[str, Any] | None = None) -> None:
    """The pictures of a run folder that need no training: the learning curve, and of a sweep its settings.

    ``trusted`` and ``repeated``, settings by key as the user gave them, are for ``trust.read_config``.
    """
    from marljax.config import trust
    from marljax.config.settings import from_tree
    from marljax.reporting import ranking
    from marljax.reporting.report import draw_curve, last_of, played

    settings = from_tree(trust.read_config(folder, repeated or {}, trusted))
    if settings.run.search.tried:
        draw_curve(settings, folder, console)
        ranking.draw_again(settings, folder, console)
        return
    own = (settings.algo, last_of(settings.algo))
    references = {name: figures for name, figures in played(folder).items() if name not in own}
    draw_curve(settings, folder, console, references)
