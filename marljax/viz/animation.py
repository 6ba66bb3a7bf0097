"""GIF and MP4 files of episodes. Axis letters: T frames, K shapes of a kind."""

import functools
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Display, Environment
from marljax.core.scene import Scene, Segments, kinds
from marljax.core.types import EnvParams, State
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.testing.static import user_code
from marljax.viz.stage import DPI, Stage

if TYPE_CHECKING:
    import PIL.Image

PAUSE = 1.5  # seconds that the last frame stays
SMOOTH = 20.0  # frames per second of an animation with frames between decisions
MAX_FRAMES = 1000  # a longer episode is shown in larger steps
MAX_FRAMES_REAL_TIME = 300  # of an animation in real time; a longer episode is shown in larger steps, at fewer frames per second
UNCHANGED = 255  # palette index of a GIF's pixels that are the same as in the frame before
SHAPE_COLOURS = 128  # of the palette's 255 other colours, at most this many are shapes' own


def animate(env: Environment, scenes: Scene, path: str | os.PathLike, *, fps: float | None = None) -> Path:
    """Writes an episode as a GIF or, with ffmpeg, an MP4; the suffix of ``path`` decides.

    Args:
        env: its ``display`` has legend, units and frames per second.
        scenes: stacked scenes, every leaf [T, …], as ``jax.vmap(env.scene, (0, None))(states, env_params)`` gives them.
        path: file to write; it is complete or, after an error, absent.
        fps: frames per second, one for each scene; None: scenes and speed as ``frames`` chooses them.

    Raises:
        UserError: for another suffix, no frames, no ffmpeg, or a path that cannot be written.
    """
    scenes = jax.tree.map(np.asarray, scenes)
    if np.ndim(scenes.time) != 1 or len(scenes.time) == 0:
        raise UserError("animate takes stacked scenes with at least one frame; picture draws a single one")
    if fps is None:
        shown, fps = frames(np.asarray(scenes.time), env.display)
        scenes = jax.tree.map(lambda leaf: leaf[shown], scenes)
    with replacing(path, (".gif", ".mp4")) as draft:
        write = _write_gif if draft.suffix.lower() == ".gif" else _write_mp4
        write(Stage(scenes, env.display), scenes, draft, fps)
    return Path(path)


def picture(env: Environment, scene: Scene, path: str | os.PathLike) -> Path:
    """Writes one scene as a PNG; the same errors as ``animate``."""
    with replacing(path, (".png",)) as draft:
        _image(env, scene).save(draft, format="PNG", optimize=True)
    return Path(path)


def render(env: Environment, state: State, env_params: EnvParams | None = None) -> "PIL.Image.Image":
    """A picture of one state: ``env.render(state)``. A notebook shows it; ``np.asarray`` gives [H, W, 3] bytes, RGB.

    ``env_params`` default to ``env.default_params``. Raises ``UserError`` where there is no scene, and for anything but
    one of its states.
    """
    env_params = env.resolve_params(env_params)
    expected, _ = jax.eval_shape(env.reset, jax.random.key(0), env_params)
    if [jnp.shape(leaf) for leaf in jax.tree.leaves(state)] != [leaf.shape for leaf in jax.tree.leaves(expected)]:
        advice = "take one of several with jax.tree.map(lambda leaf: leaf[0], states), after vectorize of state.env"
        raise UserError(f"render draws one state of {type(env).__name__}, as env.reset and env.step give it; {advice}")
    with user_code(type(env), "what draws a state"):
        return _image(env, _scene(env, state, env_params))


@functools.partial(jax.jit, static_argnums=0)
def _scene(env: Environment, state: State, env_params: EnvParams) -> Scene:
    return env.scene(state, env_params)


def _image(env: Environment, scene: Scene) -> "PIL.Image.Image":
    scenes = jax.tree.map(lambda leaf: np.asarray(leaf)[None], scene)
    stage = Stage(scenes, env.display)
    stage.show(_frame(scenes, 0))  # no trails: there is no past
    return stage.image()


def frames(times: np.ndarray, display: Display) -> tuple[np.ndarray, float]:
    """Indices of the scenes that an animation shows, the last one included, and its frames per second.

    Args:
        times: [T] of the scenes.
        display: of the environment; not in real time there is a frame per scene, unless they are too many.
    """
    frames_per_second = display.frames_per_second
    steps = len(times) - 1
    seconds = float(times[-1] - times[0]) / max(steps, 1)
    real_time = frames_per_second > 0 and seconds > 0
    stride = -(-steps // (MAX_FRAMES_REAL_TIME if real_time else MAX_FRAMES))
    if real_time:
        stride = max(stride, round(1 / (frames_per_second * seconds)))
    stride = max(stride, 1)
    fps = 1 / (stride * seconds) if real_time else display.decisions_per_second
    return np.append(np.arange(0, steps, stride), steps), fps


def frames_between(shown: int, fps: float, display: Display) -> int:
    """How many frames an animation of ``shown`` scenes has from each to the next, that scene itself included."""
    if display.between is None or shown > MAX_FRAMES_REAL_TIME:
        return 1
    return max(1, min(round(SMOOTH / fps), MAX_FRAMES // shown))


def trail_lines(scenes: Scene, index: int) -> Segments | None:
    """The trails of stacked scenes up to ``index``, in the current colours of their points, fading with age."""
    if not scenes.trails:
        return None
    age = scenes.time[index] - scenes.time[: index + 1]
    gone = np.flatnonzero((age < 0) | (age > np.max(scenes.trails.lasts[index], initial=0.0)))
    recent = slice(gone[-1] + 1 if len(gone) else 0, index + 1)
    position, width, lasts, colour = (field[recent] for field in scenes.trails)
    fade = np.clip(1 - age[recent][:-1, None] / np.maximum(lasts[-1], 1e-9), 0.0, 1.0)  # [T - 1, K] of the older end
    present = (colour[:-1, :, 3] > 0) & (colour[1:, :, 3] > 0)
    rgba: Any = np.tile(colour[-1], (len(fade), 1, 1))
    rgba[..., 3] *= fade * present
    return Segments(position[:-1].reshape(-1, 2), position[1:].reshape(-1, 2), width[1:].reshape(-1), rgba.reshape(-1, 4))


def _frame(scenes: Scene, index: int) -> Scene:
    return jax.tree.map(lambda leaf: leaf[index], scenes)


def _write_gif(stage: Stage, scenes: Scene, path: Path, fps: float) -> None:
    from PIL import Image

    def images(indices: Any) -> Iterator["PIL.Image.Image"]:
        for index in indices:
            stage.show(_frame(scenes, index), trail_lines(scenes, index))
            yield stage.image()

    count = len(scenes.time)
    samples = [np.asarray(image) for image in images(np.unique(np.linspace(0, count - 1, 6).astype(int)))]
    colours = palette(scenes, Image.fromarray(np.concatenate(samples)))
    drawn = (image.quantize(palette=colours, dither=Image.Dither.NONE) for image in images(range(count)))
    tick = max(20, 10 * round(100 / fps))  # ms; the format has hundredths of a second, and viewers slow down less than 2
    durations = [tick] * (count - 1) + [round(1000 * PAUSE)]
    # ``optimize`` and ``transparency``: each frame holds only the pixels that change.
    style = {"save_all": True, "duration": durations, "loop": 0, "optimize": True, "transparency": UNCHANGED, "disposal": 1}
    next(drawn).save(path, format="GIF", append_images=drawn, **style)


def palette(scenes: Scene, samples: "PIL.Image.Image") -> "PIL.Image.Image":
    """A palette for all frames: the shapes' own colours, so that rare ones (a crash) are kept, and the samples' other colours."""
    from PIL import Image

    own = _shape_colours(scenes)
    strip = samples.quantize(colors=UNCHANGED - len(own), dither=Image.Dither.NONE)
    mixed = np.array(strip.getpalette(), np.uint8).reshape(-1, 3)
    colours = np.concatenate([own, mixed])[:UNCHANGED]
    colours[colours.min(1) >= 246] = 255  # Pillow looks colours up in steps of 4 and would take these for a white background
    colours = np.append(colours, np.tile(colours[:1], (UNCHANGED + 1 - len(colours), 1)), axis=0)
    strip.putpalette(colours.ravel().tolist())
    return strip


def _shape_colours(scenes: Scene) -> np.ndarray:
    """[K, 3] bytes: white and the shapes' colours on white; similar ones are merged down to ``SHAPE_COLOURS``."""
    colours = np.concatenate([shapes.colour.reshape(-1, 4) for shapes in kinds(scenes)])
    visible = np.unique(np.round(colours[colours[:, 3] > 0], 2), axis=0)
    opaque = np.append(1 - visible[:, 3:] * (1 - visible[:, :3]), np.ones((1, 3)), axis=0)
    distinct, step = np.unique(np.round(255 * opaque), axis=0), 1
    while len(distinct) > SHAPE_COLOURS:
        step *= 2
        _, first = np.unique(distinct // step, axis=0, return_index=True)
        distinct = distinct[first]
    return np.append(np.full((1, 3), 255), distinct, axis=0).astype(np.uint8)


def check_ffmpeg() -> str:
    """The path of ffmpeg: that of the package imageio-ffmpeg, or else the one on the PATH; ``UserError`` where there is none."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):  # the package may come without a binary
        found = shutil.which("ffmpeg")
    if found is None:
        raise UserError("an MP4 needs ffmpeg; pip install imageio-ffmpeg brings one, or write a .gif")
    return found


def _write_mp4(stage: Stage, scenes: Scene, path: Path, fps: float) -> None:
    import matplotlib
    from matplotlib.animation import FFMpegWriter

    count = len(scenes.time)
    with matplotlib.rc_context({"animation.ffmpeg_path": check_ffmpeg()}):
        writer = FFMpegWriter(fps=max(1, round(fps)), codec="h264", extra_args=["-pix_fmt", "yuv420p"])
        with writer.saving(stage.figure, str(path), DPI):
            for index in itertools.chain(range(count), itertools.repeat(count - 1, round(PAUSE * fps))):
                stage.show(_frame(scenes, index), trail_lines(scenes, index))
                writer.grab_frame()
