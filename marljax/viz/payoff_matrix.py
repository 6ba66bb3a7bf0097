"""A payoff matrix as a picture. Axis letter: N players."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from marljax.core.style import BLUE, GRID, INK, ORANGE, WIDTH, blank
from marljax.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERED = 16  # players up to which cells show their numbers


def payoff_picture(names: Sequence[str], payoff: np.ndarray, paths: Sequence[str | os.PathLike], title: str) -> "Figure":
    """Draws payoffs between −1 and 1: blue where the row wins, orange where it loses.

    Args:
        names: of the players, in the order of rows and columns.
        payoff: [N, N] of the row against the column.
        paths: files to write, .png, .svg or .pdf; each is complete or, after an error, absent.
        title: above the figure.

    Returns:
        The figure that was written.
    """
    from matplotlib.colors import LinearSegmentedColormap

    size = len(names)
    height = float(np.clip(1.6 + 0.55 * size, 3.2, WIDTH))
    figure = blank(height)
    figure.set_figwidth(max(height + 1.8, 5.5))
    axes = figure.subplots()
    colours = LinearSegmentedColormap.from_list("payoff", (ORANGE, "#ffffff", BLUE)).with_extremes(bad=GRID)  # grey: the diagonal
    shown = np.ma.masked_where(np.eye(size, dtype=bool), payoff)
    image = axes.imshow(shown, cmap=colours, vmin=-1.0, vmax=1.0)
    for i, j in np.ndindex(size, size) if size <= NUMBERED else ():
        if i != j:
            colour = "white" if abs(payoff[i, j]) > 0.8 else INK
            axes.text(j, i, f"{payoff[i, j] + 0.0:+.2f}".replace("-", "−"), ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(size), names, rotation=40, ha="right", fontsize=8, color=INK)
    axes.set_yticks(range(size), names, fontsize=8, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, shrink=0.8)
    bar.set_label("won − lost", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=8, color=INK, labelcolor=INK)
    bar.outline.set_visible(False)
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    for path in paths:
        with replacing(path, (".png", ".svg", ".pdf")) as draft:
            figure.savefig(draft)
    return figure
