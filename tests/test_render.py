"""Episodes become files that show what the scenes hold."""

import shutil
import subprocess
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from toys import Corridor

from marljax import render
from marljax.errors import UserError
from marljax.scene import Boxes, Circles, Labels, Scene, Segments, empty

RED, BLUE = (0.9, 0.0, 0.1), (0.0, 0.4, 0.7)


class Street:
    legend = (("car", (*BLUE, 1.0)), ("crashed", (*RED, 1.0)))
    units = types.MappingProxyType({"time": "s", "distance": "m"})


def street(num_frames: int, length: float = 400.0) -> Scene:
    """A blue car drives along a street 10 m wide, beside an absent one, and turns red in the last frame."""
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


def test_gif_shows_every_frame_and_stays_small(tmp_path):
    path = render.animate(Street(), street(100), tmp_path / "street.gif", fps=10)
    assert path.stat().st_size < 3_000_000
    frames = Image.open(path)
    assert frames.n_frames == 100
    assert frames.size[0] == render.WIDTH
    assert [item.name for item in tmp_path.iterdir()] == ["street.gif"]
    assert (count(frames, BLUE, render.HEADER) > 50, count(frames, RED, render.HEADER)) == (True, 0)
    frames.seek(99)
    assert (count(frames, BLUE, render.HEADER), count(frames, RED, render.HEADER) > 50) == (0, True)


def test_absent_shapes_are_not_drawn_and_proportions_are_kept(tmp_path):
    scene = jax.tree.map(lambda leaf: leaf[0], street(2, length=20.0))
    image = Image.open(render.picture(Street(), scene, tmp_path / "street.png"))
    pixels = np.argwhere(np.abs(np.asarray(image, int)[render.HEADER :, :, :3] - 255 * np.array(BLUE)).max(-1) < 12)
    height, width = pixels.max(0) - pixels.min(0) + 1
    scale = (image.size[0] - 2 * render.MARGIN) / 20.0
    assert abs(height - 4 * scale) <= 2
    assert abs(width - 4 * scale) <= 2


@pytest.mark.parametrize(("width", "height", "expected"), [(10, 10, 1), (70, 10, 1), (520, 18, 2), (5000, 10, 4)])
def test_thin_worlds_are_cut_into_panels(width, height, expected):
    assert render.panels(width, height) == expected


@pytest.mark.parametrize("place", [100.0, 200.0])
def test_what_stands_where_two_panels_meet_is_drawn_once(tmp_path, place):
    """A car of 4 × 4 m at the end of the first panel, and its number, fill as many pixels as elsewhere."""
    scene = jax.tree.map(lambda leaf: leaf[0], street(2))
    assert render.panels(400.0, 10.0) == 3
    centre = jnp.array([[place * 2 / 3, 0.0], [50.0, 50.0]])
    scene = scene._replace(boxes=scene.boxes._replace(centre=centre))
    image = Image.open(render.picture(Street(), scene, tmp_path / "street.png"))
    scale = 3 * (render.WIDTH - 2 * render.MARGIN) / 400.0
    assert abs(count(image, BLUE, render.HEADER) - (4 * scale) ** 2) < 8 * scale
    label = Labels(centre[:1], jnp.array([8]), jnp.array([[*RED, 1.0]]))
    bare = scene._replace(boxes=empty(Boxes), labels=label)
    ink = [
        count(
            Image.open(render.picture(Street(), bare._replace(labels=label._replace(position=position)), tmp_path / "n.png")),
            RED,
            render.HEADER,
        )
        for position in (centre[:1], jnp.array([[50.0, 0.0]]))
    ]
    assert ink[0] > 10
    assert abs(ink[0] - ink[1]) <= 0.3 * ink[1]


class Status(NamedTuple):
    cars: jax.Array
    on_the_ramp: jax.Array


def test_the_status_is_written_beside_the_time_and_the_legend_names_what_some_scene_needs(tmp_path):
    scenes = jax.tree.map(np.asarray, street(2))
    assert render.listed(Street.legend, scenes) == Street.legend
    some = scenes._replace(listed=np.array([[True, False], [True, False]]))
    assert render.listed(Street.legend, some) == Street.legend[:1]
    assert render.listed(Street.legend, some._replace(listed=np.eye(2, dtype=bool))) == Street.legend
    assert render.status_words(Status(np.float32(3.0), np.int32(1))) == ["cars 3", "on the ramp 1"]
    assert render.status_words(()) == []
    one = jax.tree.map(lambda leaf: leaf[0], scenes)
    headers = []
    for status in ((), Status(np.array(3), np.array(1)), Status(np.array(3), np.array(2))):
        image = Image.open(render.picture(Street(), one._replace(status=status), tmp_path / "street.png"))
        headers.append(np.asarray(image)[: render.HEADER // 2])
    assert np.any(headers[0] != headers[1])
    assert np.any(headers[1] != headers[2])


def test_boxes_turn_counter_clockwise_and_circles_have_their_radius():
    box = Boxes(np.array([[1.0, 2.0]]), np.array([[4.0, 2.0]]), np.array([np.pi / 2]), np.ones((1, 4)))
    np.testing.assert_allclose(render.box_corners(box)[0], [[2, 0], [2, 4], [0, 4], [0, 0]], atol=1e-12)
    circle = Circles(np.array([[1.0, 2.0]]), np.array([3.0]), np.ones((1, 4)))
    np.testing.assert_allclose(np.hypot(*(render.circle_corners(circle)[0] - [1.0, 2.0]).T), 3.0)


def test_an_environment_is_drawn_with_its_labels_and_moving_view(tmp_path):
    env = Corridor()
    states, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))
    scenes = jax.vmap(env.scene, in_axes=(0, None))(states, env.default_params)
    follows = scenes._replace(bounds=scenes.bounds + 0.4 * jnp.arange(3.0)[:, None])
    still = Image.open(render.animate(env, scenes, tmp_path / "still.gif"))
    moving = Image.open(render.animate(env, follows, tmp_path / "moving.gif"))
    still.seek(2)
    moving.seek(2)
    assert count(still, (0.0, 0.45, 0.7), render.HEADER) > count(moving, (0.0, 0.45, 0.7), render.HEADER) > 0


def test_labels_leave_nothing_behind_when_the_view_moves(tmp_path):
    """Whatever was shown before, a frame of an animation is the picture of its scene."""
    scenes = street(2)
    ink = jnp.tile(jnp.array([0.1, 0.1, 0.1, 1.0]), (2, 1, 1))
    labels = Labels(jnp.array([[[50.0, 0.0]], [[90.0, 0.0]]]), jnp.array([[3], [4]]), ink)
    bounds = scenes.bounds + jnp.array([[0.0] * 4, [5.0, 5.0, 0.0, 0.0]])
    scenes = scenes._replace(labels=labels, bounds=bounds, time=jnp.arange(2.0))
    stage = render.Stage(jax.tree.map(np.asarray, scenes), Street.legend, Street.units)
    for index in range(2):
        scene = jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index], scenes)
        stage.show(scene)
        alone = Image.open(render.picture(Street(), scene, tmp_path / f"{index}.png"))
        np.testing.assert_array_equal(np.asarray(stage.image()), np.asarray(alone))
    unlabelled = scene._replace(labels=scene.labels._replace(colour=np.zeros((1, 4))))
    bare = Image.open(render.picture(Street(), unlabelled, tmp_path / "bare.png"))
    assert np.any(np.asarray(bare) != np.asarray(alone))


def test_mistakes_are_one_line_and_leave_nothing(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"has to end in \.gif or \.mp4"):
        render.animate(Street(), street(2), tmp_path / "street.avi")
    with pytest.raises(UserError, match=r"cannot write .*missing.street\.gif: No such file or directory"):
        render.animate(Street(), street(2), tmp_path / "missing" / "street.gif")
    with pytest.raises(UserError, match="at least one frame; picture draws a single one"):
        render.animate(Street(), jax.tree.map(lambda leaf: leaf[0], street(2)), tmp_path / "street.gif")
    with pytest.raises(UserError, match="show nothing"):
        render.animate(Street(), street(2)._replace(bounds=jnp.zeros((2, 4))), tmp_path / "street.gif")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="an MP4 needs ffmpeg on the PATH"):
        render.animate(Street(), street(2), tmp_path / "street.mp4")
    assert list(tmp_path.iterdir()) == []


def test_the_users_backend_is_left_alone():
    code = "import sys, marljax.render, marljax.plot; assert not [name for name in sys.modules if name.startswith('matplotlib')]"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_mp4_is_written_where_ffmpeg_is_installed(tmp_path):
    path = render.animate(Street(), street(10), tmp_path / "street.mp4")
    assert path.read_bytes()[4:8] == b"ftyp"
    assert list(tmp_path.iterdir()) == [path]
