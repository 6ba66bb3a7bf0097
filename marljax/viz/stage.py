"""Scenes as pictures and animations, drawn by matplotlib without touching the user's backend.

Axis letter: K shapes of a kind.
"""

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.environment import Display
from marljax.core.scene import Boxes, Circles, Labels, Polygons, Scene, Segments, empty
from marljax.core.style import FAINT, INK
from marljax.errors import UserError

if TYPE_CHECKING:
    import PIL.Image

WIDTH, MAX_HEIGHT = 1200, 800  # pixels of a picture; a tall world gets narrower
MIN_HEIGHT = 160  # pixels of a world's height below which it is cut into panels
DPI = 100
HEADER, AXIS, MARGIN = 56, 24, 16  # pixels: time and status above the legend, tick labels below each panel, left and right
CORNERS = 32  # of the polygon that draws a circle


class Stage:
    """A figure whose shapes are replaced from frame to frame; the static part (axes, ticks, legend) is drawn once.

    The world keeps its proportions. A long thin one is cut into panels that are read like lines of text: each begins where the
    one above it ends.
    """

    def __init__(self, scenes: Scene, display: Display, widest: int = WIDTH):
        """``widest``: pixels of the width; lines and letters keep their size."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        self._bounds: tuple[float, ...] = ()
        self._background: Any = None
        width, height = view_size(scenes)
        rows = panels(width, height)
        window = width / rows
        scale = min((widest - 2 * MARGIN) / window, (MAX_HEIGHT * widest / WIDTH - HEADER) / rows / height)
        # even, as video encoders require
        pixels = [2 * round(size / 2) for size in (scale * window + 2 * MARGIN, rows * (scale * height + AXIS) + HEADER)]
        pixels[0] = max(pixels[0], widest // 3)
        self.figure = Figure(figsize=(pixels[0] / DPI, pixels[1] / DPI), dpi=DPI, facecolor="white")
        self._canvas = FigureCanvasAgg(self.figure)
        self._panels = []
        for row in range(rows):
            bottom = pixels[1] - HEADER - (row + 1) * (scale * height + AXIS) + AXIS
            left = (pixels[0] - scale * window) / 2
            box = (left / pixels[0], bottom / pixels[1], scale * window / pixels[0], scale * height / pixels[1])
            self._panels.append(_Panel(self.figure.add_axes(box), scenes, display.units.get("distance", "")))
        left, (clock, legend) = MARGIN / pixels[0], [1 - HEADER * part / pixels[1] for part in (0.3, 0.7)]
        # the clock belongs to a panel, because a figure's own animated texts are left out of saved frames
        self._clock = self._panels[0].axes.text(left, clock, "", family="monospace", size=11, color=INK, va="center")
        self._clock.set(animated=True, transform=self.figure.transFigure)
        whole = np.all(scenes.time == np.round(scenes.time))
        self._time_format = f"t = {{:{'3.0f' if whole else '4.1f'}}} {display.units.get('time', '')}".rstrip()
        if entries := needed_entries(display.legend, scenes):
            patches = [Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.5, label=name) for name, colour in entries]
            # eight entries have to fit into a row
            spacing = {"columnspacing": 1.4 if len(entries) < 7 else 0.9, "handlelength": 1.2, "borderaxespad": 0.0}
            style = {"ncols": len(entries), "frameon": False, "fontsize": 9, "labelcolor": INK, "borderpad": 0.0}
            self.figure.legend(handles=patches, loc="center left", bbox_to_anchor=(left, legend), **style, **spacing)

    def show(self, scene: Scene, trails: Segments | None = None) -> None:
        """Draws another scene, with the lines of its trails."""
        bounds = tuple(float(bound) for bound in scene.bounds)
        if bounds != self._bounds:  # a moved view draws the static part again
            edges = np.linspace(bounds[0], bounds[1], len(self._panels) + 1)
            for left, right, panel in zip(edges, edges[1:], self._panels, strict=False):
                panel.axes.set(xlim=(left, right), ylim=bounds[2:])
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
            self._bounds = bounds
        self._canvas.restore_region(self._background)
        for panel in self._panels:
            panel.draw(scene, trails)
        self._clock.set_text("   ".join([self._time_format.format(float(scene.time)), *status_texts(scene.status)]))
        self.figure.draw_artist(self._clock)

    def image(self) -> "PIL.Image.Image":
        """The drawn scene as an RGB image."""
        from PIL import Image

        return Image.fromarray(np.asarray(self._canvas.buffer_rgba())[..., :3])


def view_size(scenes: Scene) -> tuple[float, float]:
    """Width and height of the first view; ``UserError`` if it is none."""
    x_min, x_max, y_min, y_max = map(float, scenes.bounds[0])
    width, height = x_max - x_min, abs(y_max - y_min)
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        bounds = f"({x_min:g}, {x_max:g}, {y_min:g}, {y_max:g})"
        raise UserError(f"the scene's bounds {bounds} are not a view; give finite x_min < x_max, y_min < y_max")
    return width, height


def panels(width: float, height: float) -> int:
    """The number of panels that a world is cut into: the fewest that together have ``MIN_HEIGHT``."""
    single = WIDTH * height / width  # pixels; each of P panels is P times as high
    return min(4, max(1, math.ceil(math.sqrt(MIN_HEIGHT / single))))


def needed_entries(legend: tuple, scenes: Scene) -> tuple:
    """The legend's entries that some scene lists."""
    if not np.shape(scenes.listed)[1:]:
        return legend
    return tuple(entry for entry, needed in zip(legend, np.any(scenes.listed, axis=0), strict=True) if needed)


def status_texts(status: Any) -> list[str]:
    """``["cars 3", "on the ramp 1"]`` for a status of those fields; of bools the names of the true ones."""
    texts = []
    for field, value in zip(getattr(status, "_fields", ()), status, strict=True):
        name, is_bool = field.replace("_", " "), np.asarray(value).dtype == bool
        texts += [name] * bool(value) if is_bool else [f"{name} {float(value):g}"]
    return texts


class _Panel:
    """One axes with a collection per kind of shape."""

    def __init__(self, axes: Any, scenes: Scene, unit: str):
        from matplotlib.collections import LineCollection, PolyCollection

        self.axes = axes
        self._trails = LineCollection([], animated=True, zorder=3, capstyle="butt")
        self._segments = LineCollection([], animated=True, zorder=3, capstyle="butt")
        self._boxes = PolyCollection([], animated=True, zorder=4, linewidth=0)
        self._polygons = PolyCollection([], animated=True, zorder=4, linewidth=0)
        self._circles = PolyCollection([], animated=True, zorder=5, linewidth=0)
        trails, polygons = [self._trails] * bool(scenes.trails), [self._polygons] * bool(scenes.polygons)
        self._collections = [*trails, self._segments, self._boxes, *polygons, self._circles]
        for collection in self._collections:
            axes.add_collection(collection, autolim=False)
        style = {"size": 8, "weight": "bold", "ha": "center", "va": "center_baseline", "zorder": 6}
        self._labels = [axes.text(0, 0, "", animated=True, **style) for _ in range(scenes.labels.value.shape[1])]
        axes.xaxis.set_major_formatter(f"{{x:g}} {unit}".rstrip())
        axes.tick_params(labelsize=8, colors=INK, length=3, color=FAINT, left=False, labelleft=False)
        axes.xaxis.set_visible(bool(np.all(scenes.axis)))
        for spine in axes.spines.values():
            spine.set_color(FAINT)

    def draw(self, scene: Scene, trails: Segments | None) -> None:
        """Draws the shapes of one scene; those with alpha 0 are absent."""
        segments, boxes, circles, labels = (_visible(shapes) for shapes in scene[:4])
        lines = ((self._segments, segments), (self._trails, empty(Segments) if trails is None else _visible(trails)))
        for collection, shapes in lines:
            collection.set_segments(list(np.stack([shapes.start, shapes.end], axis=1)))
            collection.set_linewidth(shapes.width)
            collection.set_color(shapes.colour)
        areas = [(self._boxes, box_corners(boxes), boxes.colour), (self._circles, circle_corners(circles), circles.colour)]
        if scene.polygons:
            polygons = _visible(scene.polygons)
            areas.append((self._polygons, polygons.corners, polygons.colour))
        for polygon, corners, colour in areas:
            polygon.set_verts(list(corners))
            polygon.set_facecolor(colour)
        # A label is drawn whole, in the panel that holds its position: it is not cut where panels meet.
        (left, right), height = self.axes.get_xlim(), self.axes.get_ylim()
        x, y = labels.position.T
        inside = (x >= left) & (x < right) & (y >= min(height)) & (y <= max(height))
        own = zip(*(field[inside] for field in labels), strict=True)
        for label, text in itertools.zip_longest(own, self._labels):
            text.set_visible(label is not None)
            if label is not None:
                text.set(position=label[0], text=f"{int(label[1])}", color=label[2])
        for artist in (*self._collections, *self._labels):
            self.axes.draw_artist(artist)


def box_corners(boxes: Boxes) -> np.ndarray:
    """Corners [K, 4, 2] of oriented rectangles, counter-clockwise from the rear right."""
    along = np.stack([np.cos(boxes.heading), np.sin(boxes.heading)], axis=-1) * boxes.size[:, :1] / 2
    across = np.stack([-np.sin(boxes.heading), np.cos(boxes.heading)], axis=-1) * boxes.size[:, 1:] / 2
    offsets = np.stack([-along - across, along - across, along + across, -along + across], axis=1)
    return np.asarray(boxes.centre)[:, None] + offsets


def circle_corners(circles: Circles) -> np.ndarray:
    """Corners [K, CORNERS, 2] of the polygons that draw circles."""
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    unit = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return np.asarray(circles.centre)[:, None] + np.asarray(circles.radius)[:, None, None] * unit


def _visible(shapes: Segments | Boxes | Circles | Labels | Polygons) -> Any:
    shown = shapes.colour[:, 3] > 0
    return type(shapes)(*(field[shown] for field in shapes))
