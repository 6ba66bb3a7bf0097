"""The page that plays episodes: what it holds, and what it shows in a browser."""

import html
import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

from marljax.config import compose
from marljax.errors import UserError
from marljax.reporting.episodes import film, player, scripted_policies
from marljax.training.evaluation import LearnedPolicy, record, suite_key
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer
from marljax.viz import viewer

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# What the page shows, after the actions that a person would take; the dump of the page holds it as JSON.
WALK = """
<script>
const errors = [], found = {errors};
addEventListener("error", event => errors.push(event.message));
const texts = row => [row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)];
const cells = table => table ? Object.fromEntries([...table.rows].map(texts)) : {};
const pointer = (type, [x, y], more = {}) => {
  const event = new PointerEvent(type, {clientX: x / devicePixelRatio, clientY: y / devicePixelRatio, ...more});
  for (const [name, value] of [["offsetX", x], ["offsetY", y]])
    Object.defineProperty(event, name, {value: value / devicePixelRatio});
  players[0].canvas.dispatchEvent(event);
};
ready.then(() => {
  const press = key => dispatchEvent(new KeyboardEvent("keydown", {key}));
  found.title = document.title; found.clocks = players.map(p => p.clock.textContent); found.agents = $("agents").children.length;
  found.painted = players.map(p => new Set(p.pen.getImageData(0, 0, p.canvas.width, p.canvas.height).data).size);
  $("scrub").value = FRAME; $("scrub").dispatchEvent(new Event("input"));
  found.scrubbed = players.map(p => p.clock.textContent); found.now = cells($("now"));
  found.policy = [...$("policy").querySelectorAll("table")].map(cells);
  found.observation = cells($("observation").querySelector("table"));
  $("agents").lastChild.click(); found.last = cells($("observation").querySelector("table")); found.who = $("who").textContent;
  press("a"); found.next = $("who").textContent;
  press("End"); found.strips = [...$("strips").children].map(strip => strip.textContent); press("Home");
  const [place] = places(players[0], 0);
  pointer("pointermove", place); found.hovered = $("who").textContent;
  const turned = JSON.stringify([state.view, state.orbit]);
  players[0].canvas.setPointerCapture = () => {};
  pointer("pointerdown", place); pointer("pointermove", [place[0] + 40, place[1] + 30]); pointer("pointerup", place);
  found.moved = JSON.stringify([state.view, state.orbit]) !== turned; press("r");
  found.whole = JSON.stringify([state.view, state.orbit]) === turned;
  press(" "); found.playing = $("play").textContent;
  tick(before + 2500 / played(leader()).fps); found.played = +$("scrub").value;
  press(" "); found.paused = $("play").textContent;
  const result = document.createElement("pre");
  result.id = "found"; result.textContent = JSON.stringify(found); document.body.append(result);
});
</script>
"""


def walk(path, frame, folder):
    """What a person finds on a page at a frame, in a browser."""
    walked = folder / "walk.html"
    page = path.read_text(encoding="utf-8")
    walked.write_text(page.replace("</body>", WALK.replace("FRAME", str(frame)) + "</body>"), encoding="utf-8")
    options = [*FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1200,800", "--virtual-time-budget=20000"]
    done = subprocess.run([BROWSER, *options, "--dump-dom", walked.as_uri()], capture_output=True, text=True, timeout=120)
    shown = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert shown, done.stderr[-2000:]
    found = json.loads(html.unescape(shown[1]))
    assert found["errors"] == []
    assert min(found["painted"]) > 20
    assert found["scrubbed"] != found["clocks"]
    assert (found["hovered"][:7], found["next"][:7]) == ("Agent 0", "Agent 0")  # after the last comes the first
    assert found["moved"]
    assert found["whole"]
    assert (found["playing"], found["paused"]) == ("pause", "play")
    assert found["played"] > 1
    return found


def recorded(settings, policy, **options):
    """Episodes of a policy with their frames."""
    learned = isinstance(policy, LearnedPolicy)
    function, carry = (policy, policy.initial_carry()) if learned else (policy.policy, policy.carry)
    env_params = settings.env_params if learned else policy.env_params
    episodes = record(policy.env, env_params, function, carry, suite_key(1), **options)
    return [(episode, film(policy.env, env_params, episode)) for episode in episodes]


def untrained(settings):
    trainer = Trainer(settings.algorithm, settings.env, settings.config, make_mesh())
    params = trainer.init(jax.random.split(jax.random.key(3), 1), settings.env_params).state.learner.params
    return LearnedPolicy(settings.algorithm, settings.env, settings.config, jax.tree.map(lambda leaf: leaf[0], params))


def settings_of(env, *overrides, algo="ippo"):
    return compose.compose(algo, [f"env={env}", "tuned=none", *overrides])


@pytest.fixture(scope="module")
def merge():
    """Two episodes of merge, played at random and by a network, as players of a page."""
    settings = settings_of("merge", "env.density=easy", "env.duration=12", "algo.hidden=[8]")
    random, network = scripted_policies(settings.base_env, settings.env_params)["random"], untrained(settings)
    each = {"random </script> drivers": random, "network": network}
    return [player(settings.env, name, recorded(settings, policy, episodes=2)) for name, policy in each.items()]


@pytest.fixture(scope="module")
def page(merge, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "merge.html"
    assert viewer.write_page(merge[:1], path, "drivers on merge") == 2
    return path


def words_of(page):
    meta = json.loads(re.search(r'id="meta">(.*?)</script>', page, re.S)[1])
    return meta, re.search(r'id="blob">(.*?)</script>', page, re.S)[1]


def test_a_page_is_complete_and_asks_for_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < viewer.LARGEST
    assert not re.search(r"(src|href)=|https?://|@import|fetch\(", text)
    meta, _ = words_of(text)
    (player,) = meta["players"]
    assert (player["agents"], player["actions"][1], len(player["episodes"])) == (6, "idle", 2)
    assert [name for name, meaning in meta["metrics"] if meaning] == ["return", "crash", "crashed_cavs"]
    assert (player["name"], player["columns"][:2]) == ("random </script> drivers", ["own present", "own x"])


def test_many_actions_are_listed_by_the_most_probable():
    values = np.random.default_rng(0).random((3, 2, 40))
    values[0, 0, 7] = np.nan
    listed = viewer._largest("probability", values)
    assert listed["probability"].shape == listed["probability.which"].shape == (3, 2, 8)
    np.testing.assert_array_equal(listed["probability"][..., 0], np.nanmax(values, axis=2))
    assert 7 not in listed["probability.which"][0, 0]
    assert viewer._largest("value", values[..., 0]).keys() == {"value"}


def test_absent_shapes_cost_no_precision():
    values = np.array([[[0.1, 0.2], [1e9, 1e9]]])
    colour = np.array([[[0, 0, 0, 1.0], [0, 0, 0, 0.0]]])
    np.testing.assert_array_equal(viewer._without_absent(values, colour), [[[0.1, 0.2], [0.1, 0.1]]])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
@pytest.mark.slow
def test_a_browser_shows_what_environment_and_networks_gave(merge, tmp_path):
    path, frame = tmp_path / "both.html", 5
    assert viewer.write_page(merge, path, "two on merge") == 2
    found = walk(path, frame, tmp_path)
    episodes = [player.episodes[0] for player in merge]
    assert (found["title"], found["agents"], found["who"][:7]) == ("two on merge", 6, "Agent 5")
    assert found["scrubbed"][1].startswith("network")
    for agent, table in ((0, found["observation"]), (5, found["last"])):
        values = np.array([list(map(float, texts)) for texts in table.values()])
        np.testing.assert_allclose(values.T, [episode.observation[frame, agent] for episode in episodes], rtol=1e-3)
    assert list(found["observation"])[:2] == ["own present", "own x"]
    names = ("left", "idle", "right", "faster", "slower")
    taken = [int(episode.action[frame, 0]) for episode in episodes]
    assert found["now"]["action"] == [f"{action} {names[action]}" for action in taken]
    sums = [episode.reward[: frame + 1, 0].sum() for episode in episodes]
    assert list(map(float, found["now"]["sum of rewards"])) == pytest.approx(sums, rel=1e-3)
    (chances,) = found["policy"]  # of the network alone
    shown = [float(chances[name][0]) for name in names]
    np.testing.assert_allclose(shown, episodes[1].explanation["probability"][frame, 0], rtol=1e-3)
    value = found["now"]["expected return"]
    assert (value[0], float(value[1])) == ("–", pytest.approx(episodes[1].explanation["value"][frame, 0], rel=1e-3))
    assert found["strips"][0].startswith("return")


@pytest.mark.parametrize(
    "words",
    [
        "smax",
        "swarm env.preset=obstacles",
        "swarm env.preset=coverage",
        "ride_dispatch env.preset=demo",
        "collective env.agents=20",
        "pathfinding env.agents=8",
    ],
)
@pytest.mark.slow
def test_every_environment_plays_in_a_browser_with_agents_to_point_at(words, tmp_path):
    env, *overrides = words.split()
    settings = settings_of(env, *overrides)
    policy = next(iter(scripted_policies(settings.base_env, settings.env_params).values()))
    path = tmp_path / "page.html"
    scripted = player(settings.env, "scripted", recorded(settings, policy, max_steps=60))
    assert viewer.write_page([scripted], path, words) == 1
    meta, _ = words_of(path.read_text(encoding="utf-8"))
    names = {array["name"]: array["shape"] for array in meta["players"][0]["arrays"][0]}
    assert names["obs"][2] == len(meta["players"][0]["columns"]) > 0
    if BROWSER is not None:
        walk(path, 5, tmp_path)


def test_what_does_not_fit_is_left_out_or_refused(merge, tmp_path, monkeypatch):
    one = [merge[0]._replace(episodes=merge[0].episodes[:1])]
    viewer.write_page(one, tmp_path / "one.html", "drivers on merge")
    monkeypatch.setattr(viewer, "LARGEST", (tmp_path / "one.html").stat().st_size)
    assert viewer.write_page(merge[:1], tmp_path / "one.html", "drivers on merge") == 1
    monkeypatch.setattr(viewer, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"write a \.gif instead"):
        viewer.write_page(one, tmp_path / "none.html", "drivers on merge")
    assert not (tmp_path / "none.html").exists()
