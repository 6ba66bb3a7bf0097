"""Episodes that are played from Python: by whom, what they hold, and how they show themselves."""

import dataclasses
import html
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from PIL import Image
from toys import FORTH, Corridor, Points

import marljax
from marljax.core.environment import ScriptedPolicy
from marljax.errors import UserError
from marljax.training.evaluation import Evaluator, LearnedPolicy, fresh_part, suite_key

pytestmark = pytest.mark.usefixtures("toys")


def walk(key, state, timestep, carry):
    """Needs the state, as only scripted policies may."""
    del key, timestep
    return jnp.full(state.cell.shape, FORTH), carry


def learned(w, env_params=None):
    return LearnedPolicy(tiny, Corridor(), tiny.Config(), {"w": jnp.full((3, 2), w)}, env_params=env_params)


@pytest.fixture(scope="module")
def walked(toys):
    return marljax.play("corridor", walk, episodes=3)


def test_the_default_episodes_are_the_first_that_evaluate_plays(walked):
    expected = Evaluator(Corridor(), 3).scripted(walk, Corridor().default_params, suite_key(fresh_part(0)))
    for name, values in walked.metrics.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)
    assert len(walked.episodes[0].actions) == walked.metrics["length"][0]
    assert re.match(r"<3 episodes of walk on corridor: return .*\.save\('episode.html'\)", repr(walked))


def test_the_env_params_are_the_ones_given_or_those_of_the_training():
    """With slip=1 nobody gets anywhere; with slip=0 everybody does, in four steps."""
    never, always = (Corridor().default_params.replace(slip=slip) for slip in (1.0, 0.0))
    assert marljax.play(Corridor(), walk, always, key=3).metrics["length"].tolist() == [4]
    trained = learned(1.0, env_params=always)
    assert marljax.play(Corridor(), trained).metrics["length"].tolist() == [4]
    assert marljax.play(Corridor(), trained, never, key=jax.random.key(5)).metrics["length"].tolist() == [12]
    assert marljax.play(Corridor(preset="slow"), trained).env_params.limit == 20  # equal in structure, but another task
    elsewhere = ScriptedPolicy(Corridor(agents=1), always, walk)
    assert marljax.play("corridor", elsewhere).metrics["length"].tolist() == [4]
    assert marljax.play("corridor", "random").title == "random on corridor"


def test_a_notebook_shows_the_page_and_files_hold_the_episodes(walked, tmp_path):
    page = walked.save(tmp_path / "episode.html").read_text(encoding="utf-8")
    assert len(json.loads(re.search(r'id="meta">(.*?)</script>', page, re.S)[1])["players"][0]["episodes"]) == 3
    shown = walked._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1]) == page
    steps = int(walked.metrics["length"][0])
    assert Image.open(walked.save(tmp_path / "episode.gif")).n_frames == steps + 1
    with pytest.raises(UserError, match=r"episode.avi .*\.mp4"):
        walked.save(tmp_path / "episode.avi")


def test_without_a_scene_there_are_numbers():
    played = marljax.play(Points(), lambda key, state, timestep, carry: (jnp.zeros((2, 2)), carry))
    assert re.match("<p>&lt;an episode of .*return .*no page: Points has no scene", played._repr_html_())
    with pytest.raises(UserError, match="Points has no scene"):
        played.save("episode.html")
    with pytest.raises(UserError, match="Points has no scene"):
        Points().render(Points().reset(jax.random.key(0))[0])


def test_a_state_has_a_picture():
    env = Corridor()
    state, _ = env.reset(jax.random.key(0))
    image = env.render(state)
    assert np.asarray(image).shape == (*image.size[::-1], 3)
    gone = env.render(dataclasses.replace(state, alive=jnp.zeros_like(state.alive)), env.default_params)
    assert np.any(np.asarray(gone) != np.asarray(image))
    many, _ = marljax.vectorize(env, 2).reset(jax.random.key(0))
    for states in (many, many.env, None):
        with pytest.raises(UserError, match=r"one state of Corridor.*jax.tree.map\(lambda leaf: leaf\[0\]"):
            env.render(states)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("corridr", walk), "corridor"),
        ((walk, "corridor"), "is not an environment"),
        (("corridor", "randm"), "policy of corridor 'randm'; did you mean random"),
        (("corridor", 3), "3 is not a policy; give one of marljax.load"),
        (("corridor", walk, {"slip": 0}), "give CorridorParams"),
        (("corridor", walk, None, "seed"), r"give jax.random.key\(0\)"),
        (("corridor", walk, None, None, 0), "episodes=0"),
        ((Points(), learned(1.0)), "the policy does not fit Points: the observation's shape"),
    ],
)
def test_impossible_arguments_are_one_line(arguments, match):
    with pytest.raises(UserError, match=match) as refused:
        marljax.play(*arguments)
    assert "\n" not in str(refused.value)
