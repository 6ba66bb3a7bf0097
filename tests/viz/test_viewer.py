"""The page that plays episodes: what it holds, and what it shows in a browser."""

import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

from marljax.config import compose
from marljax.errors import UserError
from marljax.reporting import report
from marljax.training.evaluation import record, suite_key
from marljax.viz import viewer

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# What the page shows, after the actions that a person would take; the dump of the page holds it as JSON.
WALK = """
<script>
const errors = [], found = {errors};
addEventListener("error", event => errors.push(event.message));
const texts = row => [...row.cells].map(cell => cell.textContent);
const cells = id => Object.fromEntries([...$(id).rows].map(texts));
ready.then(() => {
  const press = key => dispatchEvent(new KeyboardEvent("keydown", {key})), box = canvas.getBoundingClientRect();
  found.title = document.title; found.clock = $("clock").textContent; found.agents = $("agents").children.length;
  found.painted = new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data).size;
  $("scrub").value = FRAME; $("scrub").dispatchEvent(new Event("input"));
  found.scrubbed = $("clock").textContent; found.observation = cells("obs"); found.now = cells("now");
  $("agents").lastChild.click(); found.last = cells("obs"); found.who = $("who").textContent;
  press("End"); found.strips = [...$("strips").children].map(strip => strip.textContent); press("Home");
  const place = part("agents"), panel = panels()[0];
  const x = panel.x + (place[0] - panel.left) * panel.scale, y = panel.y + (panel.top - place[1]) * panel.scale * panel.up;
  const [clientX, clientY] = [box.left + x / devicePixelRatio, box.top + y / devicePixelRatio];
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
  found.hovered = $("who").textContent;
  press(" "); found.playing = $("play").textContent;
  tick(before + 1000); found.played = +$("scrub").value;
  press(" "); found.paused = $("play").textContent;
  const result = document.createElement("pre");
  result.id = "found"; result.textContent = JSON.stringify(found); document.body.append(result);
});
</script>
"""


def filmed(settings, episodes):
    return [(episode, report.film(settings.env, settings.env_params, episode)) for episode in episodes]


def settings_of(env, *overrides):
    return compose.compose("ippo", [f"env={env}", "tuned=none", *overrides])


@pytest.fixture(scope="module")
def merge(tmp_path_factory):
    """Two episodes of merge and their page."""
    settings = settings_of("merge", "env.density=easy", "env.duration=12")
    policy = report.scripted_policies(settings.base_env, settings.env_params)["random"]
    episodes = record(policy.env, policy.env_params, policy.policy, policy.carry, suite_key(1), episodes=2)
    path = tmp_path_factory.mktemp("page") / "merge.html"
    assert report.write_page(settings.env, filmed(settings, episodes), path, settings.label, "random </script> drivers") == 2
    return episodes, path


def words_of(page):
    meta = json.loads(re.search(r'id="meta">(.*?)</script>', page, re.S)[1])
    return meta, re.search(r'id="blob">(.*?)</script>', page, re.S)[1]


def test_a_page_is_complete_and_asks_for_nothing(merge):
    _, path = merge
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size < viewer.LARGEST
    assert not re.search(r"(src|href)=|https?://|@import|fetch\(", page)
    meta, _ = words_of(page)
    assert (meta["agents"], meta["actions"][1], len(meta["episodes"])) == (6, "idle", 2)
    assert [name for name, meaning in meta["metrics"] if meaning] == ["return", "crash", "crashed_cavs"]
    assert meta["subtitle"] == "random </script> drivers"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
@pytest.mark.slow
def test_a_browser_plays_scrubs_and_shows_what_the_environment_gave(merge, tmp_path):
    episodes, path = merge
    frame, steps = 5, jax.device_get(episodes[0].timesteps)
    walked = tmp_path / "walk.html"
    page = path.read_text(encoding="utf-8")
    walked.write_text(page.replace("</body>", WALK.replace("FRAME", str(frame)) + "</body>"), encoding="utf-8")
    options = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,800", "--virtual-time-budget=20000"]
    done = subprocess.run([BROWSER, *options, "--dump-dom", walked.as_uri()], capture_output=True, text=True, timeout=120)
    shown = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert shown, done.stderr[-2000:]
    found = json.loads(shown[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert found["errors"] == []
    assert found["title"].startswith("ippo on merge")
    assert (found["agents"], found["who"][:7], found["hovered"][:7]) == (6, "Agent 5", "Agent 0")
    assert found["painted"] > 20
    assert found["scrubbed"] != found["clock"]
    for agent, table in ((0, found["observation"]), (5, found["last"])):
        values = [float(text) for text in table.values()]
        np.testing.assert_allclose(values, steps.obs[frame, agent], rtol=1e-3)
    assert list(found["observation"])[:2] == ["own 0", "own 1"]
    action = int(episodes[0].actions[frame, 0])
    assert found["now"]["action"] == f"{action} {('left', 'idle', 'right', 'faster', 'slower')[action]}"
    assert float(found["now"]["sum of rewards"]) == pytest.approx(steps.reward[: frame + 1, 0].sum(), rel=1e-3)
    assert found["strips"][0].startswith("return")
    assert (found["playing"], found["paused"]) == ("pause", "play")
    assert found["played"] > 1


@pytest.mark.parametrize("words", ["smax", "swarm env.preset=obstacles", "ride_dispatch env.preset=demo", "collective"])
@pytest.mark.slow
def test_every_environment_has_a_page_with_agents_to_point_at(words, tmp_path):
    env, *overrides = words.split()
    settings = settings_of(env, *overrides)
    policy = next(iter(report.scripted_policies(settings.base_env, settings.env_params).values()))
    episodes = record(policy.env, policy.env_params, policy.policy, policy.carry, suite_key(1), max_steps=60)
    path = tmp_path / "page.html"
    assert report.write_page(settings.env, filmed(settings, episodes), path, settings.label, "scripted") == 1
    meta, _ = words_of(path.read_text(encoding="utf-8"))
    names = {array["name"]: array["shape"] for array in meta["arrays"][0]}
    assert names["agents"][1] >= settings.env.num_agents
    assert names["obs"][2] == len(meta["columns"]) > 0


def test_what_does_not_fit_is_left_out_or_refused(merge, tmp_path, monkeypatch):
    episodes, _ = merge
    settings = settings_of("merge", "env.density=easy", "env.duration=12")
    episodes = filmed(settings, episodes)
    report.write_page(settings.env, episodes[:1], tmp_path / "one.html", settings.label, "random")
    monkeypatch.setattr(viewer, "LARGEST", (tmp_path / "one.html").stat().st_size)
    assert report.write_page(settings.env, episodes, tmp_path / "one.html", settings.label, "random") == 1
    monkeypatch.setattr(viewer, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"write a \.gif instead"):
        report.write_page(settings.env, episodes, tmp_path / "none.html", settings.label, "random")
    assert not (tmp_path / "none.html").exists()
