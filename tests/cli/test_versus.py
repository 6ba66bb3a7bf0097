"""``marljax versus`` and ``marljax exploit``, on runs of a user's own game of two teams."""

import csv
import re

import pytest
from commands import console

import marljax
from marljax.cli.versus import short_names
from marljax.errors import UserError
from marljax.training.best import same_parameters
from marljax.training.load import Loaded

GAME = ("env=custom", "env.target=duels:RockPaperScissors")
SMALL = (
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.num_minibatches=1",
    "algo.hidden=[8]",
    "eval.episodes=2",
    "render=false",
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Commands that should have failed leave no files in the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of two seeds with two checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    common = ("train", "ippo", *GAME, *SMALL, f"runs={root}", "eval.final_episodes=4")
    assert console(*common, "name=trained", "algo.total_steps=128", "seeds=2", "checkpoint.every=0.5", "checkpoint.keep=3") == 0
    return next(root.glob("*/trained"))


def test_versus_writes_payoffs_and_ratings(runs, tmp_path, capsys):
    out = tmp_path / "games"
    assert console("versus", runs, f"{runs}@2", "random", "battles=64", f"out={out}") == 0
    shown = capsys.readouterr().out
    assert re.search(r"trained +2 +\d+", shown)
    assert "cyclic share" in shown
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".csv", ".png", ".svg"}
    rows = list(csv.DictReader(out.with_suffix(".csv").open(encoding="utf-8")))
    assert len(rows) == 9
    payoff = {(row["player"], row["opponent"]): float(row["payoff"]) for row in rows}
    assert all(value == -payoff[pair[::-1]] for pair, value in payoff.items())
    for row in rows:
        assert float(row["low"]) <= float(row["payoff"]) <= float(row["high"])
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "marljax versus" in text
    assert "(games.png)" in text


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["{run}"], "at least two players"),
        (["random", "script"], "at least two players, one of them a run"),
        (["{run}", "{run}"], "named twice"),
        (["{run}", "{run}/"], "named twice"),
        (["{run}", "nowhere"], "there is no nowhere; players are"),
        (["{run}", "{run}/checkpoints"], "is not a run folder"),
        (["{run}", "{run}@3"], "no checkpoint of update 3 but of 2, 4"),
        (["{run}", "script"], "RockPaperScissors has no script"),
        (["{run}", "random", "battle=3"], "battle'.*battles"),
        (["{run}", "random", "out=nowhere/games"], "no folder nowhere"),
        (["{run}", "random", "env.bonus=0.5", "env.bonu=1"], "env.bonu"),
    ],
)
def test_mistakes_are_one_line(runs, words, suggestion, capsys):
    assert console("versus", *(word.format(run=runs) for word in words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{suggestion}", line), line


def test_an_older_checkpoint_is_loaded(runs):
    older, newest = marljax.load(runs, seed=1, update=2), marljax.load(runs, seed=1, which="last")
    assert (older.update, newest.update) == (2, 4)
    assert not same_parameters(older.params, newest.params)
    with pytest.raises(UserError, match="no checkpoint of update 3 but of 2, 4"):
        marljax.load(runs, update=3)


@pytest.mark.parametrize("command", ["versus", "exploit"])
def test_an_untrained_policy_is_no_player(runs, command, monkeypatch, capsys):
    monkeypatch.setattr(Loaded, "update_of", lambda *_: 0)  # as of a run that was stopped before its first update
    assert console(command, runs, "random") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("error: the last parameters of .* are the untrained network's; train it", line), line


def test_exploit_writes_how_far_a_run_is_beaten(runs, tmp_path, capsys):
    out = tmp_path / "beaten"
    members = ("fresh=1", "warm=1", "battles=16", "algo.total_steps=256")
    assert console("exploit", runs, "random", *members, "seed=1", f"out={out}") == 0
    shown = capsys.readouterr().out
    assert "1 fresh and 1 warm members per seed, each 256 steps of ippo" in shown
    assert re.search("training 4 members, 1.02k steps in all", shown)
    assert "first side: wins minus losses of trained against itself" in shown
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".csv", ".png", ".svg"}
    rows = list(csv.DictReader(out.with_suffix(".csv").open(encoding="utf-8")))
    assert [(row["against"], row["seed"], row["start"]) for row in rows] == [
        (who, "1", start) for who in ("trained", "random") for start in ("fresh", "warm")
    ]
    for row in rows:
        assert (row["steps"], row["chosen"]) == ("256", "1")  # the only one of its kind
        assert -1.0 <= float(row["won"]) - float(row["lost"]) <= 1.0
    assert "total_steps: 256" in out.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["random", "{run}"], "name the target first"),
        (["{run}", "fresh=0", "warm=0"], "no member"),
        (["{run}", "fresh=0", "algo.hidden=[4]"], "cannot start from .*; set fresh"),
        (["{run}", "seed=7"], "no seed 7; it trained 0, 1"),
        (["{run}", "algo=ospo"], "ospo"),
        (["{run}", "algo.learning_rat=1"], "learning_rat.*learning_rate"),
        (["{run}", "script"], "RockPaperScissors has no script"),
        (["{run}", "members=3"], "unknown option 'members'"),
        (["{run}@0"], "no checkpoint of update 0"),
        (["{run}", "{run}"], "named twice; name each player once"),
        (["{run}", "algo.target=duels:nothing"], "algo.target=duels:nothing is not the target's algorithm; add algo=custom"),
    ],
)
def test_mistakes_of_exploit_are_one_line(runs, words, suggestion, capsys):
    assert console("exploit", *(word.format(run=runs) for word in words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{suggestion}", line), line


def test_players_are_named_by_as_much_of_their_paths_as_tells_them_apart():
    assert short_names(["runs/ippo/first", "runs/ippo/first@4", "script"]) == ["first", "first@4", "script"]
    assert short_names(["runs/ippo/first", "/runs/qmix/first"]) == ["ippo/first", "qmix/first"]
