"""Colours and axes of all figures."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colour-blind-safe palette
BLUE, ORANGE = "#0072B2", "#D55E00"
REFERENCES = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT, GRID = "#333333", "#bbbbbb", "#ebebeb"
WIDTH = 9.0  # inches
COLUMNS = 3


def blank(height: float) -> "Figure":
    """An empty figure of a height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: "Axes") -> None:
    """Draws a faint grid and no frame."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=FAINT, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
