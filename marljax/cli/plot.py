"""The command ``marljax plot``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    folder, *rest = words
    if rest not in ([], ["trust=true"]):
        raise UserError(f"'{rest[0]}': plot takes a run folder and trust=true, nothing else")
    draw_again(Path(folder), terminal.screen(), bool(rest))
    return 0


def draw_again(folder: Path, console: "Console", trusted: bool = False) -> None:
    """The pictures of a run folder that need no training: the learning curve, and of a sweep its settings."""
    from marljax.config import trust
    from marljax.config.settings import from_tree
    from marljax.io import run_folder
    from marljax.reporting import ranking
    from marljax.reporting.report import draw_curve, last_of, played

    tree = run_folder.read_config(folder)
    trust.check(folder, tree, {}, trusted)
    settings = from_tree(tree)
    if settings.run.search.tried:
        draw_curve(settings, folder, console)
        ranking.draw_again(settings, folder, console)
        return
    own = (settings.algo, last_of(settings.algo))
    references = {name: figures for name, figures in played(folder).items() if name not in own}
    draw_curve(settings, folder, console, references)
