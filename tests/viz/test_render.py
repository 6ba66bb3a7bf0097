"""Pictures and animations show the shapes of their scenes."""

import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from marljax.core.environment import Display
from marljax.core.scene import Boxes, Circles, Labels, Polygons, Scene, Segments, Trails, empty
from marljax.errors import UserError
from marljax.reporting import episodes
from marljax.viz import animation, stage

RED, BLUE = (0.9, 0.0, 0.1), (0.0, 0.4, 0.7)


LEGEND = (("car", (*BLUE, 1.0)), ("crashed", (*RED, 1.0)))
STREET = types.SimpleNamespace(display=Display(legend=LEGEND, units={"time": "s", "distance": "m"}))


def street(num_frames: int, length: float = 400.0) -> Scene:
    """A blue car drives along a street 10 m wide, next to an absent one, and turns red in the last frame."""
    drives = jnp.linspace(10.0, length - 10.0, num_frames)
    centre = jnp.stack([jnp.stack([drives, jnp.zeros(num_frames)], -1), jnp.full((num_frames, 2), 50.0)], 1)
    crashed = (jnp.arange(num_frames) == num_frames - 1)[:, None]
    colour = jnp.concatenate([jnp.where(crashed, jnp.array(RED), jnp.array(BLUE)), jnp.ones((num_frames, 1))], -1)
    absent = jnp.zeros((num_frames, 4))
    edge = jnp.array([[0.0, -2.0], [0.0, 2.0]])
    segments = Segments(edge, edge + jnp.array([length, 0.0]), jnp.ones(2), jnp.full((2, 4), 0.5))
    still = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (num_frames, *leaf.shape)), (segments, empty(Circles), empty(Labels))
    )
    boxes = Boxes(centre, jnp.full((num_frames, 2, 2), 4.0), jnp.zeros((num_frames, 2)), jnp.stack([colour, absent], 1))
    bounds = jnp.tile(jnp.array([0.0, length, -5.0, 5.0]), (num_frames, 1))
    return Scene(still[0], boxes, still[1], still[2], bounds, 0.2 * jnp.arange(num_frames))


def count(image: Image.Image, colour: tuple, below: int = 0) -> int:
    """Pixels of a colour, below the header."""
    pixels = np.asarray(image.convert("RGB"), int)[below:]
    return int(np.sum(np.abs(pixels - 255 * np.array(colour)).max(-1) < 12))


def first(scenes: Scene, index: int = 0) -> Scene:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], scenes)


def test_every_frame_of_a_gif_is_the_picture_of_its_scene(tmp_path):
    """Though a frame of the file holds only changes: a car that drives on, one that stops, and a crash at the end."""
    scenes = first(street(6, length=60.0), np.array([0, 1, 2, 2, 2, 5]))._replace(time=0.5 * np.arange(6))
    film = Image.open(animation.animate(STREET, scenes, tmp_path / "street.gif", fps=10))
    assert [item.name for item in tmp_path.iterdir()] == ["street.gif"]
    assert (film.n_frames, film.size[0]) == (6, stage.WIDTH)
    for index in range(6):
        alone = Image.open(animation.picture(STREET, first(scenes, index), tmp_path / "street.png"))
        film.seek(index)
        apart = np.abs(np.asarray(film.convert("RGB"), int) - np.asarray(alone, int))[stage.HEADER :]
        assert apart.max() < 24
        crashed = index == 5
        assert (count(film, RED, stage.HEADER) > 50, count(film, BLUE, stage.HEADER) > 50) == (crashed, not crashed)


def test_absent_shapes_are_not_drawn_and_proportions_are_kept(tmp_path):
    scene = first(street(2, length=20.0))
    image = Image.open(animation.picture(STREET, scene, tmp_path / "street.png"))
    pixels = np.argwhere(np.abs(np.asarray(image, int)[stage.HEADER :, :, :3] - 255 * np.array(BLUE)).max(-1) < 12)
    height, width = pixels.max(0) - pixels.min(0) + 1
    scale = (image.size[0] - 2 * stage.MARGIN) / 20.0
    assert abs(height - 4 * scale) <= 2
    assert abs(width - 4 * scale) <= 2


@pytest.mark.parametrize(("width", "height", "expected"), [(10, 10, 1), (70, 10, 1), (520, 18, 2), (5000, 10, 4)])
def test_thin_worlds_are_cut_into_panels(width, height, expected):
    assert stage.panels(width, height) == expected


def test_a_shape_where_two_panels_meet_is_drawn_once(tmp_path):
    """A car of 4 × 4 m at the end of the first panel, and its number, fill as many pixels as elsewhere."""

    def pixels(scene: Scene, colour: tuple) -> int:
        return count(Image.open(animation.picture(STREET, scene, tmp_path / "street.png")), colour, stage.HEADER)

    scene = first(street(2))
    assert stage.panels(400.0, 10.0) == 3
    centre = np.array([[400 / 3, 0.0], [50.0, 50.0]])
    scale = 3 * (stage.WIDTH - 2 * stage.MARGIN) / 400.0
    car = pixels(scene._replace(boxes=scene.boxes._replace(centre=centre)), BLUE)
    assert abs(car - (4 * scale) ** 2) < 8 * scale
    labels = [Labels(position, np.array([8]), np.array([[*RED, 1.0]])) for position in (centre[:1], np.array([[50.0, 0.0]]))]
    here, elsewhere = (pixels(scene._replace(boxes=empty(Boxes), labels=label), RED) for label in labels)
    assert here > 10
    assert abs(here - elsewhere) <= 0.3 * elsewhere


class Status(NamedTuple):
    cars: jax.Array
    on_the_ramp: jax.Array


def test_status_follows_the_time_and_the_legend_has_what_some_scene_needs(tmp_path):
    scenes = jax.tree.map(np.asarray, street(2))
    assert stage.needed_entries(LEGEND, scenes) == LEGEND
    some = scenes._replace(listed=np.array([[True, False], [True, False]]))
    assert stage.needed_entries(LEGEND, some) == LEGEND[:1]
    assert stage.needed_entries(LEGEND, some._replace(listed=np.eye(2, dtype=bool))) == LEGEND
    assert stage.status_texts(Status(np.float32(3.0), np.int32(1))) == ["cars 3", "on the ramp 1"]
    assert stage.status_texts(Status(np.array(True), np.array(False))) == ["cars"]
    assert stage.status_texts(()) == []
    one = first(scenes)
    headers = []
    for status in ((), Status(np.array(3), np.array(1)), Status(np.array(3), np.array(2))):
        image = Image.open(animation.picture(STREET, one._replace(status=status), tmp_path / "street.png"))
        headers.append(np.asarray(image)[: stage.HEADER // 2])
    assert np.any(headers[0] != headers[1])
    assert np.any(headers[1] != headers[2])


def test_boxes_turn_counter_clockwise_and_circles_have_their_radius():
    box = Boxes(np.array([[1.0, 2.0]]), np.array([[4.0, 2.0]]), np.array([np.pi / 2]), np.ones((1, 4)))
    np.testing.assert_allclose(stage.box_corners(box)[0], [[2, 0], [2, 4], [0, 4], [0, 0]], atol=1e-12)
    circle = Circles(np.array([[1.0, 2.0]]), np.array([3.0]), np.ones((1, 4)))
    np.testing.assert_allclose(np.hypot(*(stage.circle_corners(circle)[0] - [1.0, 2.0]).T), 3.0)


def test_labels_disappear_when_the_view_moves(tmp_path):
    scenes = street(2)
    ink = jnp.tile(jnp.array([0.1, 0.1, 0.1, 1.0]), (2, 1, 1))
    labels = Labels(jnp.array([[[50.0, 0.0]], [[90.0, 0.0]]]), jnp.array([[3], [4]]), ink)
    bounds = scenes.bounds + jnp.array([[0.0] * 4, [5.0, 5.0, 0.0, 0.0]])
    scenes = scenes._replace(labels=labels, bounds=bounds, time=jnp.arange(2.0))
    reused = stage.Stage(jax.tree.map(np.asarray, scenes), STREET.display)
    for index in range(2):
        scene = first(scenes, index)
        reused.show(scene)
        alone = Image.open(animation.picture(STREET, scene, tmp_path / f"{index}.png"))
        np.testing.assert_array_equal(np.asarray(reused.image()), np.asarray(alone))
    unlabelled = scene._replace(labels=scene.labels._replace(colour=np.zeros((1, 4))))
    bare = Image.open(animation.picture(STREET, unlabelled, tmp_path / "bare.png"))
    assert np.any(np.asarray(bare) != np.asarray(alone))


def test_errors_leave_no_file(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"has to end in \.gif or \.mp4"):
        animation.animate(STREET, street(2), tmp_path / "street.avi")
    with pytest.raises(UserError, match=r"cannot write .*missing.street\.gif"):
        animation.animate(STREET, street(2), tmp_path / "missing" / "street.gif")
    with pytest.raises(UserError, match="picture draws a single one"):
        animation.animate(STREET, first(street(2)), tmp_path / "street.gif")
    with pytest.raises(UserError, match="bounds"):
        animation.animate(STREET, street(2)._replace(bounds=jnp.zeros((2, 4))), tmp_path / "street.gif")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match="pip install imageio-ffmpeg"):
        animation.animate(STREET, street(2), tmp_path / "street.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_mp4_is_written_by_the_ffmpeg_of_a_package(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    path = animation.animate(STREET, street(10), tmp_path / "street.mp4")
    assert path.read_bytes()[4:8] == b"ftyp"
    assert list(tmp_path.iterdir()) == [path]


def test_polygons_are_painted_in_their_order_and_perspective_has_no_axis(tmp_path):
    square = jnp.array([[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]])
    bounds, none = jnp.array([-1.0, 11.0, -1.0, 11.0]), (empty(Segments), empty(Boxes), empty(Circles), empty(Labels))
    colours = jnp.array([[*BLUE, 1.0], [*RED, 1.0], [0.0, 1.0, 0.0, 0.0]])
    ink = []
    for order in ([0, 1, 2], [1, 0, 2]):
        shapes = Polygons(jnp.stack([square, square / 2, square])[jnp.array(order)], colours[jnp.array(order)])
        scene = Scene(*none, bounds, jnp.zeros(()), polygons=shapes, axis=jnp.array(False))
        image = Image.open(animation.picture(STREET, scene, tmp_path / "square.png"))
        ink.append((count(image, BLUE, stage.HEADER), count(image, RED, stage.HEADER)))
    assert abs(ink[0][0] - 3 * ink[0][1]) < 0.02 * ink[0][0]
    assert ink[1][1] == 0
    below = np.asarray(image)[-stage.AXIS + 2 :]
    assert below.min() == 255
    ticked = Image.open(animation.picture(STREET, scene._replace(axis=()), tmp_path / "square.png"))
    assert np.asarray(ticked)[-stage.AXIS + 2 :].min() < 255


def trailing(times: list[float], colour: np.ndarray) -> Scene:
    """Two points that move by 1 a frame to the right, above each other; ``colour`` [T, 2, 4]."""
    along = np.stack([np.arange(len(times)), np.zeros(len(times))], axis=-1)
    position = np.stack([along, along + np.array([0.0, 3.0])], axis=1)
    shape = (len(times), 2)
    trails = Trails(position, np.full(shape, 2.0), np.full(shape, 1.0), colour)
    still = [jax.tree.map(lambda leaf: jnp.zeros((len(times), *leaf.shape)), empty(kind)) for kind in (Segments, Boxes)]
    rest = [jax.tree.map(lambda leaf: jnp.zeros((len(times), *leaf.shape)), empty(kind)) for kind in (Circles, Labels)]
    bounds = np.tile([-1.0, 10.0, -2.0, 5.0], (len(times), 1))
    return jax.tree.map(np.asarray, Scene(*still, *rest, bounds, np.array(times), trails=trails))


def test_trails_join_recent_positions_and_fade():
    """A trail of 1 s in frames 0.4 s apart: lines that are 0.8 and 0.4 s old have a fifth and three fifths of the ink."""
    colour = np.tile([*RED, 0.5], (5, 2, 1))
    lines = animation.trail_lines(trailing([0.0, 0.4, 0.8, 1.2, 1.6], colour), 4)
    np.testing.assert_allclose(lines.start, [[2, 0], [2, 3], [3, 0], [3, 3]])
    np.testing.assert_allclose(lines.end, [[3, 0], [3, 3], [4, 0], [4, 3]])
    np.testing.assert_allclose(lines.colour[:, 3], [0.1, 0.1, 0.3, 0.3], atol=1e-6)
    np.testing.assert_allclose(lines.width, 2.0)
    # an absent point leaves a gap on either side; a restarted clock begins a new trail
    gap = colour.copy()
    gap[3, 1, 3] = 0.0
    lines = animation.trail_lines(trailing([0.0, 0.2, 0.4, 0.6, 0.8], gap), 4)
    np.testing.assert_array_equal(lines.colour[:, 3].reshape(-1, 2) > 0, [[True, True]] * 2 + [[True, False]] * 2)
    lines = animation.trail_lines(trailing([0.0, 0.2, 0.4, 0.0, 0.2], colour), 4)
    np.testing.assert_allclose(lines.start, [[3, 0], [3, 3]])
    assert len(animation.trail_lines(trailing([0.0, 0.2], colour[:2]), 0).start) == 0
    assert animation.trail_lines(jax.tree.map(np.asarray, street(2)), 1) is None


def test_an_animation_has_trails_and_a_picture_has_none(tmp_path):
    scenes = trailing([0.0, 0.1, 0.2], np.tile([*RED, 1.0], (3, 2, 1)))
    film = Image.open(animation.animate(STREET, scenes, tmp_path / "trails.gif"))
    reds = []
    for index in range(3):
        film.seek(index)
        pixels = np.asarray(film.convert("RGB"), int)[stage.HEADER :]
        reds.append(int(np.sum(pixels[..., 0] - pixels[..., 1] > 100)))
    assert 0 == reds[0] < reds[1] < reds[2]
    alone = Image.open(animation.picture(STREET, first(scenes, 2), tmp_path / "trails.png"))
    assert count(alone, RED, stage.HEADER) == 0


@pytest.mark.parametrize(
    ("steps", "seconds", "real_time", "stride", "fps"),
    [
        (100, 0.2, 0.0, 1, 10.0),  # not in real time: every decision
        (2500, 0.2, 0.0, 3, 10.0),  # unless they are too many
        (1500, 0.01, 20.0, 5, 20.0),  # 15 s in real time
        (6000, 0.01, 20.0, 20, 5.0),  # a minute, too
        (7, 0.1, 20.0, 1, 10.0),  # decisions that are farther apart than frames
        (0, 0.1, 20.0, 1, 10.0),
    ],
)
def test_frames_are_chosen_for_the_speed(steps, seconds, real_time, stride, fps):
    shown, rate = animation.frames(seconds * np.arange(steps + 1), Display(frames_per_second=real_time))
    assert rate == pytest.approx(fps)
    assert shown[-1] == steps
    assert len(shown) <= (animation.MAX_FRAMES_REAL_TIME if real_time else animation.MAX_FRAMES) + 1
    assert set(np.diff(shown[:-1])) <= {stride}


def test_an_environment_with_a_frame_rate_is_shown_in_real_time(tmp_path):
    fast = types.SimpleNamespace(display=Display(frames_per_second=20.0))
    film = Image.open(animation.animate(fast, street(41)._replace(time=0.01 * jnp.arange(41)), tmp_path / "fast.gif"))
    assert (film.n_frames, film.info["duration"]) == (9, 50)


def test_frames_between_decisions_are_in_an_animation_and_not_in_a_page():
    """A point that moves by 1 a decision, at 5 decisions a second; a frame at a decision is that of its own state."""

    def between(state, after, share):
        return {"x": (1 - share) * state["x"] + share * after["x"], "shots": after["shots"]}

    def scene(state, env_params):
        lines = Segments(*(jnp.zeros((1, 2)),) * 2, state["shots"][None], jnp.ones((1, 4)))
        none = empty(Boxes), empty(Circles), empty(Labels)
        return Scene(lines, *none, jnp.array([0.0, 1.0, 0.0, 1.0]), state["x"])

    env = types.SimpleNamespace(display=Display(decisions_per_second=5.0, between=between), scene=scene)
    states = {"x": np.arange(3.0), "shots": np.array([0.0, 1.0, 2.0])}
    film = episodes.film(env, (), types.SimpleNamespace(states=states))
    assert film.fps == 20.0
    np.testing.assert_allclose(film.scenes.time, np.arange(9) / 4)
    np.testing.assert_array_equal(film.scenes.segments.width[:, 0], [0, 1, 1, 1, 1, 2, 2, 2, 2])
    kept = film.decisions()
    assert kept.fps == 5.0
    np.testing.assert_array_equal(kept.steps, [0, 1, 2])
    np.testing.assert_array_equal(kept.scenes.time, [0, 1, 2])
