"""The commands around a finished run: train, evaluate, replay."""

import dataclasses
import json
import re
import shlex
import signal
import sys
import warnings

import jax
import pytest
from commands import console
from PIL import Image
from rich.console import Console
from toys import Corridor, Points

import marljax
from marljax.cli import app, exit_status, plot, train
from marljax.config import compose
from marljax.core.spaces import Box
from marljax.errors import UserError
from marljax.reporting import report
from marljax.training import evaluation, load, runner
from marljax.training.evaluation import PARTS_PER_SUITE, SUITES

pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture(scope="module")
def folder(toys, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    words = ["env=corridor", f"runs={root}", "name=first", "algo.total_steps=200", "seeds=2", "eval.episodes=4"]
    assert exit_status.guarded(lambda: app.run_command(["train", "tiny", *words, "eval.final_episodes=8"])) == 0
    return root / "tiny_corridor" / "first"


def test_a_finished_run_leaves_pictures_and_the_results_of_its_best_and_last_parameters(folder):
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "results.json", "curve.png", "episode.gif", "episode.html"} <= names
    assert Image.open(folder / "episode.gif").n_frames > 1
    results = json.loads((folder / "results.json").read_text())
    seeds = results["seeds"]
    best, last = ([seeds[name][key] if key else seeds[name] for name in "01"] for key in ("", "last"))
    for name, metrics in {"tiny": best, "tiny, last": last}.items():
        assert results["policies"][name]["return"] == pytest.approx(sum(seed["return"] for seed in metrics) / 2)
    policies = [[marljax.load(folder, seed, which) for seed in (0, 1)] for which in ("best", "last")]
    assert [seed["update"] for seed in best] == [policy.update for policy in policies[0]]
    assert [seed["update"] for seed in last] == [policy.update for policy in policies[1]] == [10, 10]


def test_evaluate_plays_fresh_episodes_and_reports_an_untrained_network_that_is_the_best(folder, capsys):
    """The toy's parameters drift at random: those of seed 0 were best before they did."""
    updates = [json.loads((folder / "results.json").read_text())["seeds"][seed]["update"] for seed in "01"]
    assert updates[0] == 0 < updates[1]
    assert console("evaluate", folder, "episodes=8") == 0
    shown = capsys.readouterr().out
    assert "8 fresh episodes × 2 seeds" in shown
    assert f"best parameters: seed 0 after update 0 of 10, seed 1 after update {updates[1]}" in shown
    assert "warning: seed 0: no evaluation beat that of update 0" in shown
    assert console("evaluate", folder, "episodes=8") == 0
    assert capsys.readouterr().out == shown
    assert console("evaluate", folder, "episodes=8", "suite=1") == 0
    assert capsys.readouterr().out != shown
    assert console("evaluate", folder, "episodes=8", "env.limit=3", "which=last") == 0
    other = capsys.readouterr().out
    assert "best parameters" not in other
    assert other.splitlines() != shown.splitlines()[: len(other.splitlines())]


def test_evaluations_sample_actions_where_a_run_says_so(folder, tmp_path, capsys):
    """The toy's sampled actions always walk, and its likeliest ones only while its parameter is positive."""

    def score(run, *options):
        assert console("evaluate", run, "episodes=8", "which=last", f"out={tmp_path / 'table.json'}", *options) == 0
        assert ("actions sampled" in " ".join(capsys.readouterr().out.split())) == (
            options[-1] == "greedy=false" or run == sampled
        )
        return json.loads((tmp_path / "table.json").read_text())["policies"][0]["metrics"]["return"]["mean"]

    sampled = tmp_path / "tiny_corridor" / "sampled"
    best = score(folder, "greedy=false")
    assert best > score(folder, "suite=0") == score(folder, "greedy=true")
    words = ["env=corridor", f"runs={tmp_path}", "name=sampled", "algo.total_steps=200", "seeds=2", "eval.greedy=false"]
    assert console("train", "tiny", *words, "eval.episodes=4", "eval.final_episodes=8") == 0
    capsys.readouterr()
    assert score(sampled, "suite=0") == best
    played = json.loads((sampled / "results.json").read_text())["seeds"]
    assert all(seed["last"]["return"] == seed["return"] for seed in played.values()), "all walk, whatever their parameters"
    policy = marljax.load(sampled, which="last")
    policy.save(tmp_path / "sampled.npz")
    assert not policy.greedy
    assert not marljax.load(tmp_path / "sampled.npz").greedy


def test_load_warns_of_an_untrained_network(folder):
    with pytest.warns(UserWarning, match="seed 0: .*untrained network.*which='last'"):
        marljax.load(folder, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marljax.load(folder, seed=1)
        marljax.load(folder, seed=0, which="last")


def test_a_stopped_run_leaves_a_curve_and_says_how_to_resume(tmp_path, terminate_at, capsys):
    words = ["env=corridor", f"runs={tmp_path}", "name=in two parts", "chunk=2", "algo.total_steps=200", "eval.episodes=4"]
    terminate_at(4)
    assert console("train", "tiny", *words, "seeds=2", "eval.final_episodes=8") == 128 + signal.SIGTERM
    folder = tmp_path / "tiny_corridor" / "in two parts"
    assert (folder / "curve.png").exists()
    advice = capsys.readouterr().out.split("continue with: ")[1].splitlines()[0]
    assert shlex.split(advice) == ["marljax", "train", "tiny", f"resume={folder}"]
    assert console("train", f"resume={folder}", "render=false") == 0  # the algorithm is the run's
    sessions = json.loads((folder / "run.json").read_text())["sessions"]
    assert [session["status"] for session in sessions] == ["interrupted", "finished"]
    assert all(session["seconds"] > session["training_seconds"] > 0 for session in sessions)
    assert all(session["versions"]["jax"] == jax.__version__ for session in sessions)
    assert sessions[0]["device"] == {"platform": "cpu", "kind": "cpu", "count": jax.device_count()}


def test_the_advice_of_a_script_names_the_script(monkeypatch):
    given = {}
    monkeypatch.setattr(train, "train", lambda algo, words, command: given.update(command=command) or 0)
    for script, command in (("algos/mappo.py", ["python", "algos/mappo.py"]), ("-c", None)):
        monkeypatch.setattr(sys, "argv", [script])
        with pytest.raises(SystemExit):
            app.main("mappo", [])
        assert given["command"] == command


def test_plot_draws_again_from_the_rows(folder, tmp_path):
    drawn = (folder / "curve.png").read_bytes()
    (folder / "curve.png").unlink()
    assert console("plot", folder) == 0
    assert (folder / "curve.png").read_bytes() == drawn
    assert console("plot", folder, f"out={tmp_path / 'figure.pdf'}") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"figure.pdf", "figure_losses.pdf"}


def test_evaluate_writes_its_table(folder, tmp_path, capsys):
    assert console("evaluate", folder, "episodes=8", f"out={tmp_path / 'table.json'}") == 0
    shown, table = capsys.readouterr().out, json.loads((tmp_path / "table.json").read_text())
    assert re.match(r"tiny on corridor, preset=quick: mean over 8 fresh episodes × 2 seeds", table["title"])
    tiny = table["policies"][0]
    assert (tiny["policy"], [seed["seed"] for seed in tiny["seeds"]]) == ("tiny", [0, 1])
    assert f"{tiny['metrics']['return']['mean']:.3g}" in shown


def test_a_finished_run_is_listed_and_compared_by_its_results(folder, tmp_path, capsys):
    assert console("runs", folder.parents[1]) == 0
    assert re.search(r"tiny_corridor/first +tiny +corridor .*200 +2 return ", capsys.readouterr().out)
    seeds = json.loads((folder / "results.json").read_text())["seeds"]
    assert console("compare", folder, "which=last", f"out={tmp_path}") == 0
    lines = (tmp_path / "compare.csv").read_text().splitlines()
    scores = [float(line.split(",")[-1]) for line in lines if ",return," in line]
    assert scores == [seeds[seed]["last"]["return"] for seed in "01"]


def test_no_two_suites_share_a_part():
    most = PARTS_PER_SUITE
    first, second, last = (evaluation.fresh_part(suite) for suite in (0, 1, SUITES - 1))
    assert (first, second, last) == (most, 2 * most, 2**32 - most)  # those below ``first`` are training's and its end's
    parts = (0, 1, first, second - 1, second, 2**32 - 1)
    assert len({tuple(jax.random.key_data(evaluation.suite_key(part)).tolist()) for part in parts}) == len(parts)


def test_an_option_that_the_policies_cannot_act_with_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setattr(Corridor, "observation_space", property(lambda env: Box((2 + env.compete,), 0.0, 1.0)))
    assert console("evaluate", folder, "env.compete=true") == 2
    line = capsys.readouterr().err
    assert "env.compete=true" in line
    assert "(2,) and becomes (3,)" in line
    per_agent = compose.compose("ippo", ["env=corridor", "algo.share_parameters=false"])
    with pytest.raises(UserError, match=r"env.agents=2"):
        load.with_env(per_agent, {"agents": 2})


def test_an_mp4_needs_ffmpeg_before_anything_is_loaded(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.delattr(load, "load_replicas")
    assert console("replay", folder, "out=episode.mp4") == 2
    assert "needs ffmpeg" in capsys.readouterr().err


def test_replay_writes_an_animation(folder, tmp_path, capsys):
    assert console("replay", folder, f"out={tmp_path / 'one.gif'}", "seed=1", "env.limit=5") == 0
    assert "return" in capsys.readouterr().out
    assert 1 < Image.open(tmp_path / "one.gif").n_frames <= 6


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["evaluate", "episodes=3"], "run folder first, then episodes=3"),
        (["evaluate", "{folder}", "episode=3"], "'episode'.*episodes"),
        (["evaluate", "{folder}", "episodes=0"], "episodes=0.*an integer from 1"),
        (["evaluate", "{folder}", "suite=4095"], "suite=4095.*an integer from 0 to 4,094"),
        (["evaluate", "{folder}", "which=worst"], "which=worst.*best or last"),
        (["evaluate", "{folder}", "env.limt=3"], "env.limt'.*env.limit"),
        (["replay", "{folder}", "seed=7"], "seed 7.*0, 1"),
        (["plot", "{folder}", "out=x.gif"], r"out=x.gif.*\.png, \.svg or \.pdf"),
        (["plot", "{folder}", "seed=1"], "'seed'.*trust"),
        (["evaluate", "{folder}", "out=x.xls"], r"out=x.xls.*\.csv, \.json or \.tex"),
        (["evaluate", "{folder}", "out=nowhere/x.csv"], "no folder nowhere"),
        (["plot", "{folder}", "env.limit=3"], "leave out env.limit"),
        (["replay", "{folder}", "out=x.avi"], "out=x.avi.*gif"),
        (["replay", "{folder}", "out=/dev/null/x.gif"], "/dev/null/x.gif"),
        (["evaluat", "{folder}"], "evaluate"),
        (["train", "tin", "env=corridor"], "tiny"),
        (["train", "tiny", "env=coridor"], "corridor"),
        (["train", "tiny", "resume=nowhere"], "nowhere is not a run folder"),
        (["train", "resume=nowhere"], "nowhere is not a run folder"),
        (["train", "-m", "resume=nowhere"], "nowhere is not a run folder"),
        (["train", "env=corridor"], "choose an algorithm, such as marljax train mappo env=merge"),
        (["train", "env=corridor", "algo=tin"], "tiny"),
        (["replay", "pretrained"], "unknown pretrained policy.*merge-easy-mappo"),
        (["info", "coridor"], "corridor"),
        (["info", "corridor", "seeds=2"], "leave out seeds"),
        (["info", "corridor", "env.limt=3"], "env.limt'.*env.limit"),
        (["train", "ippo", "env=smax", "env.kernels=pallas"], "env.kernels=pallas needs an NVIDIA GPU or a TPU"),
    ],
)
def test_mistakes_are_one_line(folder, words, suggestion, capsys):
    assert console(*(word.format(folder=folder) for word in words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{suggestion}", line), line


@pytest.mark.parametrize(
    "words",
    [
        "merge",
        "merge env.density=easy",
        "smax",
        "smax env.mode=self_play",
        "swarm env.preset=obstacles",
        "swarm env.preset=coverage",
        "ride_dispatch",
        "collective",
        "collective env.task=kuramoto",
        "collective env.task=aggregation",
        "pathfinding",
        "pathfinding env.task=once",
        "gymnax/CartPole-v1",
    ],
)
def test_info_explains_every_metric(words, capsys):
    assert console("info", *words.split()) == 0
    text = capsys.readouterr().out
    name, *overrides = words.split()
    assert text.startswith(f"{name}\n")
    assert all(f"{override}  " in text for override in overrides)
    metrics = text.split("\nmetrics of an episode ")[1].splitlines()[1:]
    assert {"length", "return"} & {line.split()[0] for line in metrics}
    assert all(re.match(r"  \w+ {2,}\S", line) for line in metrics), text


def test_info_lists_spaces_and_scripted_policies(capsys):
    assert console("info", "merge") == 0
    text = capsys.readouterr().out
    for expected in ("agents              6", "Discrete(n=5)", "own: 1 × ", "at most 100 steps", "human drivers"):
        assert expected in text, text


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ((None,), "None is not a run folder"),
        (("{folder}", None, "best", 0.0), "trial 0.0.*0 to 0"),
        (("{folder}", "0"), "seed '0'.*0, 1"),
        (("{folder}", True), "seed True.*0, 1"),
    ],
)
def test_python_s_load_takes_paths_and_numbers(folder, arguments, suggestion):
    given = [folder if each == "{folder}" else each for each in arguments]
    with pytest.raises(UserError, match=suggestion):
        load.load(*given)


PAINTLESS = """
from toys import Corridor

class Paintless(Corridor):
    calls = []

    def scene(self, state, env_params):
        raise RuntimeError("no paint")

    def scripted_policies(self, env_params):
        self.calls.append(self)
        if len(self.calls) == 2:  # after training
            raise SystemExit(3)
        return {}
"""


def test_a_finished_run_keeps_its_results_whatever_its_environment_raises(tmp_path, monkeypatch, capsys):
    """A scene that raises is reported once, before training, and costs the animation only."""
    (tmp_path / "paintless.py").write_text(PAINTLESS)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["env=custom", "env.target=paintless:Paintless", "algo.total_steps=40", "eval.every=0", "eval.final_episodes=4"]
    assert console("train", "tiny", *words, f"runs={tmp_path}", "name=bare") == 2
    output = capsys.readouterr()
    assert re.match("error: Paintless: scripted_policies raised SystemExit: 3", output.err)
    assert output.out.startswith("no animation: Paintless: scene raised RuntimeError: no paint")
    folder = tmp_path / "tiny_paintless" / "bare"
    assert list(json.loads((folder / "results.json").read_text())["policies"]) == ["tiny"]
    assert console("train", "tiny", f"resume={folder}") == 0
    shown = capsys.readouterr().out
    assert shown.count("no animation") == 1
    assert "episode.gif" not in shown
    assert "random" in json.loads((folder / "results.json").read_text())["policies"]


def test_an_environment_without_a_scene_is_reported_unless_it_is_another_library_s(capsys, tmp_path, monkeypatch):
    settings = compose.compose("ppo", ["env=gymnax/CartPole-v1"])
    runner.check_environment(settings, Console())
    report.draw_episode(settings, None, "seed 0", tmp_path, Console())
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Corridor, "scene", Points.scene)
    runner.check_environment(compose.compose("tiny", ["env=custom", "env.target=toys:Corridor"]), Console(width=200))
    assert capsys.readouterr().out.startswith("no animation: Corridor has no scene; implement scene(state, env_params)")


def test_an_error_while_an_episode_is_drawn_costs_the_animation_only(folder, tmp_path, monkeypatch, capsys):
    loaded = load.load_replicas(folder, "best")
    params = jax.tree.map(lambda leaf: leaf[0], loaded.params)
    display = dataclasses.replace(Corridor().display, charts=lambda *_: {}["charts"])
    monkeypatch.setattr(Corridor, "display", property(lambda env: display))
    report.draw_episode(loaded.settings, params, "seed 0", tmp_path, Console(width=200))
    assert re.search("no animation: Corridor: .*KeyError: 'charts'", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["env=corridor"], []])
def test_help_shows_the_command_as_typed(words, monkeypatch, capsys):
    assert console("train", "tiny", *words, "--help") == 0
    assert capsys.readouterr().out.startswith("usage: marljax train tiny env=<name>")
    monkeypatch.setattr(sys, "argv", ["algos/tiny.py"])
    with pytest.raises(SystemExit):
        app.main("tiny", [*words, "--help"])
    assert capsys.readouterr().out.startswith("usage: python algos/tiny.py env=<name>")


def test_plot_reads_options_as_the_others_do(folder, monkeypatch):
    given = []
    monkeypatch.setattr(plot, "redraw", lambda *arguments: given.append(arguments[2:]))
    assert [console("plot", folder, *words) for words in ([], ["trust=True"], ["env.target=a:B"])] == [0, 0, 0]
    assert given == [(False, {}, None), (True, {}, None), (False, {"env.target": "a:B"}, None)]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ([], "marljax train"),
        (["--help"], "marljax train"),
        (["train", "--help"], "mappo"),
        (["evaluate", "-h"], "  episodes=320  "),
        (["replay", "-h"], "  env.<key>=…  "),
        (["plot", "-h"], "  trust=false  "),
        (["new", "--help"], "from=mappo"),
        (["runs", "-h"], "  limit=20  "),
        (["compare", "-h"], "  which=best  "),
        (["versus", "-h"], "  battles=512  "),
    ],
)
def test_every_command_explains_itself(words, option, capsys):
    assert console(*words) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage:")
    assert option in text
