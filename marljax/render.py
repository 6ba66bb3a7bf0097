"""Scenes as pictures and animations, drawn by matplotlib without touching the user's backend.

Axis letters: T frames, K shapes of a kind, P panels.
"""

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from marljax.environment import Environment
from marljax.errors import UserError
from marljax.files import replacing
from marljax.scene import Boxes, Circles, Labels, Polygons, Scene, Segments, empty, kinds

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


def animate(env: Environment, scenes: Scene, path: str | os.PathLike, *, fps: float | None = None) -> Path:
    """Writes an episode as a GIF or, where ffmpeg is installed, an MP4; the suffix of ``path`` decides.

    Args:
        env: gives the legend and the units.
        scenes: stacked scenes, every leaf [T, …], as ``jax.vmap(env.scene, (0, None))(states, env_params)`` gives them.
        path: file to write; it is complete or, after an error, absent.
        fps: frames per second, one for each scene; None: what ``frames`` chooses by the environment's pace.

    Raises:
        UserError: for another suffix, no frames, no ffmpeg, or a path that cannot be written.
    """
    scenes = jax.tree.map(np.asarray, scenes)
    if np.ndim(scenes.time) != 1 or len(scenes.time) == 0:
        raise UserError("animate takes stacked scenes with at least one frame; picture draws a single one")
    if fps is None:
        shown, fps = frames(np.asarray(scenes.time), env.pace)
        scenes = jax.tree.map(lambda leaf: leaf[shown], scenes)
    with replacing(path, (".gif", ".mp4")) as draft:
        write = _write_gif if draft.suffix.lower() == ".gif" else _write_mp4
        write(Stage(scenes, env.legend, env.units), scenes, draft, fps)
    return Path(path)


def picture(env: Environment, scene: Scene, path: str | os.PathLike) -> Path:
    """Writes one scene as a PNG; the same errors as ``animate``."""
    scenes = jax.tree.map(lambda leaf: np.asarray(leaf)[None], scene)
    with replacing(path, (".png",)) as draft:
        stage = Stage(scenes, env.legend, env.units)
        stage.show(_frame(scenes, 0))  # no trails: there is no past
        stage.image().save(draft, format="PNG", optimize=True)
    return Path(path)


def frames(times: np.ndarray, pace: float) -> tuple[np.ndarray, float]:
    """Which of an episode's states an animation shows, the last one among them, and how many frames a second.

    Args:
        times: [T] of the scenes.
        pace: of the environment. 0: each state is a frame, unless they are too many; else time passes as it does in reality.
    """
    steps = len(times) - 1
    seconds = float(times[-1] - times[0]) / max(steps, 1)
    paced = pace > 0 and seconds > 0
    stride = -(-steps // (MAX_FRAMES_PACED if paced else MAX_FRAMES))
    if paced:
        stride = max(stride, round(1 / (pace * seconds)))
    stride = max(stride, 1)
    return np.append(np.arange(0, steps, stride), steps), 1 / (stride * seconds) if paced else FPS


class Stage:
    """A figure whose shapes are replaced from frame to frame; what stands still (axes, ticks, legend) is drawn once.

    The world keeps its proportions. A long thin one is cut into panels that are read like lines of text: each begins where the
    one above it ends.
    """

    def __init__(self, scenes: Scene, legend: tuple, units: Mapping[str, str]):
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
            self._panels.append(_Panel(self.figure.add_axes(place), scenes, units.get("distance", "")))
        lines = [1 - HEADER * part / pixels[1] for part in (0.3, 0.7)]
        # the clock belongs to a panel, because a figure's own animated texts are left out of saved frames
        self._clock = self._panels[0].axes.text(
            MARGIN / pixels[0], lines[0], "", family="monospace", size=11, color=INK, va="center"
        )
        self._clock.set(animated=True, transform=self.figure.transFigure)
        whole = np.all(scenes.time == np.round(scenes.time))
        self._time_format = f"t = {{:{'3.0f' if whole else '4.1f'}}} {units.get('time', '')}".rstrip()
        _add_legend(self.figure, listed(legend, scenes), (MARGIN / pixels[0], lines[1]))

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


def trail_lines(scenes: Scene, index: int) -> Segments | None:
    """What the points of stacked scenes have drawn behind them until the scene ``index``, the older the fainter.

    A point's lines take the colour that it has now.
    """
    if not scenes.trails:
        return None
    age = scenes.time[index] - scenes.time[: index + 1]
    gone = np.flatnonzero((age < 0) | (age > np.max(scenes.trails.lasts[index], initial=0.0)))
    recent = slice(gone[-1] + 1 if len(gone) else 0, index + 1)
    position, width, lasts, colour = (field[recent] for field in scenes.trails)
    left = np.clip(1 - age[recent][:-1, None] / np.maximum(lasts[-1], 1e-9), 0.0, 1.0)  # [F, K] of the older end
    there = (colour[:-1, :, 3] > 0) & (colour[1:, :, 3] > 0)
    shade: Any = np.tile(colour[-1], (len(left), 1, 1))
    shade[..., 3] *= left * there
    return Segments(position[:-1].reshape(-1, 2), position[1:].reshape(-1, 2), width[1:].reshape(-1), shade.reshape(-1, 4))


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


def _frame(scenes: Scene, index: int) -> Scene:
    return jax.tree.map(lambda leaf: leaf[index], scenes)


# --- files ------------------------------------------------------------------------------------------------------------


def _write_gif(stage: Stage, scenes: Scene, path: Path, fps: float) -> None:
    from PIL import Image

    count = len(scenes.time)
    palette = _shared_palette(stage, scenes)

    def images() -> Iterator["PIL.Image.Image"]:
        for index in range(count):
            stage.show(_frame(scenes, index), trail_lines(scenes, index))
            yield stage.image().quantize(palette=palette, dither=Image.Dither.NONE)

    def changes() -> Iterator["PIL.Image.Image"]:
        """The first image, then what of each is not as it was, which takes a fraction of the space."""
        before = None
        for image in images():
            now = np.asarray(image) % UNCHANGED
            drawn = now if before is None else np.where(now == before, UNCHANGED, now)
            before = now
            yield _indexed(drawn, palette)

    drawn = changes()
    tick = max(20, 10 * round(100 / fps))  # the format counts hundredths of a second, and viewers slow down what is faster
    durations = [tick] * (count - 1) + [round(1000 * PAUSE)]
    style = {"save_all": True, "duration": durations, "loop": 0, "optimize": False, "transparency": UNCHANGED, "disposal": 1}
    next(drawn).save(path, format="GIF", append_images=drawn, **style)


def _indexed(colours: np.ndarray, palette: "PIL.Image.Image") -> "PIL.Image.Image":
    """An image of colours [height, width] that are numbers of a palette."""
    from PIL import Image

    image = Image.fromarray(colours.astype(np.uint8))
    image.putpalette(palette.getpalette() or [])
    return image


def _shared_palette(stage: Stage, scenes: Scene) -> "PIL.Image.Image":
    """One palette for all frames: the shapes' own colours, so that rare ones (a crash) survive, and what else a few need."""
    from PIL import Image

    samples = []
    for index in np.unique(np.linspace(0, len(scenes.time) - 1, 6).astype(int)):
        stage.show(_frame(scenes, int(index)), trail_lines(scenes, int(index)))
        samples.append(np.asarray(stage.image()))
    own = _own_colours(scenes)
    strip = Image.fromarray(np.concatenate(samples)).quantize(colors=UNCHANGED - len(own), dither=Image.Dither.NONE)
    mixed = np.array(strip.getpalette(), np.uint8).reshape(-1, 3)
    palette = np.concatenate([own, mixed])[:UNCHANGED]
    palette[palette.min(1) >= 246] = 255  # colours are looked up in steps of 4: these would be taken for a white background
    palette = np.append(palette, np.tile(palette[:1], (UNCHANGED + 1 - len(palette), 1)), axis=0)  # no entry but these
    strip.putpalette(palette.ravel().tolist())
    return strip


def _own_colours(scenes: Scene) -> np.ndarray:
    """[K, 3] bytes: white and the shapes' colours on white; where they are more than ``OWN_COLOURS``, similar ones are one."""
    colours = np.concatenate([shapes.colour.reshape(-1, 4) for shapes in kinds(scenes)])
    visible = np.unique(np.round(colours[colours[:, 3] > 0], 2), axis=0)
    opaque = np.append(1 - visible[:, 3:] * (1 - visible[:, :3]), np.ones((1, 3)), axis=0)
    distinct, step = np.unique(np.round(255 * opaque), axis=0), 1
    while len(distinct) > OWN_COLOURS:
        step *= 2
        _, first = np.unique(distinct // step, axis=0, return_index=True)
        distinct = distinct[first]
    return np.append(np.full((1, 3), 255), distinct, axis=0).astype(np.uint8)


def check_ffmpeg() -> None:
    """Raises ``UserError`` where no MP4 can be written; to be called before an episode is played for one."""
    from matplotlib.animation import FFMpegWriter

    if not FFMpegWriter.isAvailable():
        raise UserError("an MP4 needs ffmpeg on the PATH; install it, or write a .gif")


def _write_mp4(stage: Stage, scenes: Scene, path: Path, fps: float) -> None:
    from matplotlib.animation import FFMpegWriter

    check_ffmpeg()
    count = len(scenes.time)
    writer = FFMpegWriter(fps=max(1, round(fps)), codec="h264", extra_args=["-pix_fmt", "yuv420p"])
    with writer.saving(stage.figure, str(path), DPI):
        for index in itertools.chain(range(count), itertools.repeat(count - 1, round(PAUSE * fps))):
            stage.show(_frame(scenes, index), trail_lines(scenes, index))
            writer.grab_frame()
