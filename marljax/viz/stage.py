"""Scenes as pictures and animations, drawn by matplotlib without touching the user's backend.

Axis letters: T frames, K shapes of a kind, P panels.
"""

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.environment import Display
from marljax.core.scene import Boxes, Circles, Labels, Polygons, Scene, Segments, empty
from marljax.errors import UserError

if TYPE_CHECKING:
    import PIL.Image

WIDTH, MAX_HEIGHT = 1200, 800  # pixels of a picture; a tall world gets narrower
MIN_HEIGHT = 160  # pixels that a world has to fill before it is no longer cut into panels
DPI = 100
HEADER, AXIS, MARGIN = 56, 24, 16  # pixels: time and status above the legend, tick labels below each panel, left and right
CORNERS = 32  # of the polygon that stands for a circle
PAUSE = 1.5  # seconds that the last frame of an animation stays
FPS = 10.0  # of an animation whose environment names no pace
MAX_FRAMES = 1000  # of an animation; a longer episode is shown in larger steps
MAX_FRAMES_PACED = 300  # of one that plays in real time; a longer episode is shown in larger steps, at fewer frames per second
INK, FAINT = "#333333", "#bbbbbb"
UNCHANGED = 255  # of a GIF's colours, the one that leaves a pixel as it was
OWN_COLOURS = 128  # of the others, how many are those of shapes at most


class Stage:
    """A figure whose shapes are replaced from frame to frame; what stands still (axes, ticks, legend) is drawn once.

    The world keeps its proportions. A long thin one is cut into panels that are read like lines of text: each begins where the
    one above it ends.
    """

    def __init__(self, scenes: Scene, display: Display):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._bounds: tuple[float, ...] = ()
        self._background: Any = None
        width, height = _extent(np.asarray(scenes.bounds[0]))
        rows = panels(width, height)
        window = width / rows
        scale = min((WIDTH - 2 * MARGIN) / window, (MAX_HEIGHT - HEADER) / rows / height)
        pixels = (_even(scale * window + 2 * MARGIN), _even(rows * (scale * height + AXIS) + HEADER))
        pixels = (max(pixels[0], WIDTH // 3), pixels[1])
        self.figure = Figure(figsize=(pixels[0] / DPI, pixels[1] / DPI), dpi=DPI, facecolor="white")
        self._canvas = FigureCanvasAgg(self.figure)
        self._panels = []
        for row in range(rows):
            bottom = pixels[1] - HEADER - (row + 1) * (scale * height + AXIS) + AXIS
            left = (pixels[0] - scale * window) / 2
            place = (left / pixels[0], bottom / pixels[1], scale * window / pixels[0], scale * height / pixels[1])
            self._panels.append(_Panel(self.figure.add_axes(place), scenes, display.units.get("distance", "")))
        lines = [1 - HEADER * part / pixels[1] for part in (0.3, 0.7)]
        # the clock belongs to a panel, because a figure's own animated texts are left out of saved frames
        self._clock = self._panels[0].axes.text(
            MARGIN / pixels[0], lines[0], "", family="monospace", size=11, color=INK, va="center"
        )
        self._clock.set(animated=True, transform=self.figure.transFigure)
        whole = np.all(scenes.time == np.round(scenes.time))
        self._time_format = f"t = {{:{'3.0f' if whole else '4.1f'}}} {display.units.get('time', '')}".rstrip()
        _add_legend(self.figure, listed(display.legend, scenes), (MARGIN / pixels[0], lines[1]))

    def show(self, scene: Scene, trails: Segments | None = None) -> None:
        """Replaces what is drawn by another scene, with the lines of its trails."""
        self._view(tuple(float(bound) for bound in scene.bounds))
        self._canvas.restore_region(self._background)
        for panel in self._panels:
            panel.update(scene, trails)
            panel.draw()
        self._clock.set_text("   ".join([self._time_format.format(float(scene.time)), *status_words(scene.status)]))
        self.figure.draw_artist(self._clock)

    def image(self) -> "PIL.Image.Image":
        """What is drawn, as an RGB image."""
        from PIL import Image

        return Image.fromarray(np.asarray(self._canvas.buffer_rgba())[..., :3])

    def _view(self, bounds: tuple[float, ...]) -> None:
        """Moves the view; the static part is drawn again only if that changes it."""
        if bounds == self._bounds:
            return
        left, right, bottom, top = bounds
        edges = np.linspace(left, right, len(self._panels) + 1)
        for start, end, panel in zip(edges, edges[1:], self._panels, strict=False):
            panel.axes.set_xlim(start, end)
            panel.axes.set_ylim(bottom, top)
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(self.figure.bbox)
        self._bounds = bounds


def panels(width: float, height: float) -> int:
    """How many panels a world is cut into: the fewest that together fill ``MIN_HEIGHT``."""
    filled = WIDTH * height / width  # one panel; each of P is P times as high
    return min(4, max(1, math.ceil(math.sqrt(MIN_HEIGHT / filled))))


def listed(legend: tuple, scenes: Scene) -> tuple:
    """What of the legend some scene of an episode needs."""
    if not len(np.shape(scenes.listed)[1:]):
        return legend
    return tuple(entry for entry, needed in zip(legend, np.any(scenes.listed, axis=0), strict=True) if needed)


def status_words(status: Any) -> list[str]:
    """``["cars 3", "on the ramp 1"]`` for a status of those fields."""
    return [
        f"{name.replace('_', ' ')} {float(value):g}" for name, value in zip(getattr(status, "_fields", ()), status, strict=True)
    ]


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
        # only what a scene has is drawn
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

    def update(self, scene: Scene, trails: Segments | None) -> None:
        """Takes over the shapes of one scene; those with alpha 0 are left out."""
        segments, boxes, circles, labels = (_visible(shapes) for shapes in scene[:4])
        labels = self._own(labels)
        _set_lines(self._segments, segments)
        _set_lines(self._trails, empty(Segments) if trails is None else _visible(trails))
        if scene.polygons:
            polygons = _visible(scene.polygons)
            self._polygons.set_verts(list(polygons.corners))
            self._polygons.set_facecolor(polygons.colour)
        self._boxes.set_verts(list(box_corners(boxes)))
        self._boxes.set_facecolor(boxes.colour)
        self._circles.set_verts(list(circle_corners(circles)))
        self._circles.set_facecolor(circles.colour)
        for label, text in itertools.zip_longest(zip(*labels, strict=True), self._labels):
            text.set_visible(label is not None)
            if label is not None:
                text.set(position=label[0], text=f"{int(label[1])}", color=label[2])

    def _own(self, labels: Labels) -> Labels:
        """Those that stand in this panel, whole: they are not cut where panels meet."""
        (left, right), height = self.axes.get_xlim(), self.axes.get_ylim()
        x, y = labels.position.T
        here = (x >= left) & (x < right) & (y >= min(height)) & (y <= max(height))
        return Labels(*(field[here] for field in labels))

    def draw(self) -> None:
        for artist in (*self._collections, *self._labels):
            self.axes.draw_artist(artist)


def _set_lines(collection: Any, lines: Segments) -> None:
    collection.set_segments(list(np.stack([lines.start, lines.end], axis=1)))
    collection.set_linewidth(lines.width)
    collection.set_color(lines.colour)


def box_corners(boxes: Boxes) -> np.ndarray:
    """Corners [K, 4, 2] of oriented rectangles, counter-clockwise from the rear right."""
    along = np.stack([np.cos(boxes.heading), np.sin(boxes.heading)], axis=-1) * boxes.size[:, :1] / 2
    across = np.stack([-np.sin(boxes.heading), np.cos(boxes.heading)], axis=-1) * boxes.size[:, 1:] / 2
    offsets = np.stack([-along - across, along - across, along + across, -along + across], axis=1)
    return np.asarray(boxes.centre)[:, None] + offsets


def circle_corners(circles: Circles) -> np.ndarray:
    """Corners [K, CORNERS, 2] of polygons that stand for circles."""
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    unit = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return np.asarray(circles.centre)[:, None] + np.asarray(circles.radius)[:, None, None] * unit


def _visible(shapes: Segments | Boxes | Circles | Labels | Polygons) -> Any:
    shown = shapes.colour[:, 3] > 0
    return type(shapes)(*(field[shown] for field in shapes))


def _add_legend(figure: Any, legend: tuple, corner: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    if not legend:
        return
    handles = [Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.5, label=name) for name, colour in legend]
    # eight entries have to fit into a row
    spacing = {"columnspacing": 1.4 if len(handles) < 7 else 0.9, "handlelength": 1.2, "borderaxespad": 0.0, "borderpad": 0.0}
    style = {"ncols": len(handles), "frameon": False, "fontsize": 9, "labelcolor": INK}
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=corner, **style, **spacing)


def _extent(bounds: np.ndarray) -> tuple[float, float]:
    """Width and height of the view."""
    left, right, bottom, top = (float(bound) for bound in bounds)
    if not (math.isfinite(right - left) and math.isfinite(top - bottom) and right > left and top != bottom):
        raise UserError(
            f"the scene's bounds ({left:g}, {right:g}, {bottom:g}, {top:g}) show nothing; give x_min < x_max, y_min < y_max"
        )
    return right - left, abs(top - bottom)


def _even(pixels: float) -> int:
    """Video encoders want even sizes."""
    return 2 * round(pixels / 2)
