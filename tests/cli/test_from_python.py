"""``marljax.train``: the command as a function, its callback, and its display in a notebook."""

import itertools
import json
import os
import signal
import time
from types import SimpleNamespace

import IPython.display
import pytest
from rich.console import Console

import marljax
from marljax.errors import UserError
from marljax.io import metrics_log, terminal
from marljax.io.checkpoint import checkpoints
from marljax.reporting import live_curve
from marljax.training.progress import print_line

WORDS = ("seeds=2", "chunk=2", "algo.total_steps=400", "eval.episodes=4", "eval.final_episodes=8", "render=false")
pytestmark = pytest.mark.usefixtures("toys")


def train(tmp_path, *words, **kwargs):
    return marljax.train("tiny", "corridor", *WORDS, f"runs={tmp_path}", "name=run", *words, **kwargs)


def test_a_run_gives_its_policy_results_and_rows_and_quiet_prints_one_line(tmp_path, capsys):
    told = []
    run = train(tmp_path, "quiet=true", "seed=1", on_log=told.append)
    *warned, last = capsys.readouterr().out.splitlines()
    assert last == f"results: {run.folder}"
    assert all(line.startswith("warning: seed") for line in warned)  # the toy's untrained network may be the best
    assert run.folder == tmp_path / "tiny_corridor" / "run"
    assert told == run.rows == metrics_log.read_rows(run.folder)
    assert (len(told), run.diverged) == (2 * 11, False)
    assert run.results["policies"]["tiny"].keys() >= {"return", "length"}
    assert run.policy.score == max(row["eval_return"] for row in told if "eval_return" in row)
    with pytest.raises(UserError, match="exists already"):
        train(tmp_path)


@pytest.mark.parametrize("update", [0, 20])
def test_an_error_of_the_callback_stops_the_run_with_a_checkpoint_and_is_raised(tmp_path, update, capsys):
    rows = []

    def fail(row):
        rows.append(row)
        if row["update"] == update:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        train(tmp_path, on_log=fail)
    folder = tmp_path / "tiny_corridor" / "run"
    assert int(checkpoints(folder / "checkpoints")[0].name) == update
    assert rows[-1]["update"] == update
    assert json.loads((folder / "run.json").read_text())["sessions"][0]["status"] == "interrupted"
    advice = capsys.readouterr().out.split("continue with: ")[1].splitlines()[0]
    resumed = eval(advice)
    assert [row["update"] for row in resumed.rows if row["seed"] == 1] == list(range(0, 21, 2))
    assert resumed.results


def test_ctrl_c_saves_and_is_raised(tmp_path):
    def interrupt(row):
        if (row["update"], row["seed"]) == (4, 0):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, on_log=interrupt)
    assert int(checkpoints(tmp_path / "tiny_corridor" / "run" / "checkpoints")[0].name) == 4


def test_in_a_notebook_a_curve_follows_the_run(tmp_path, monkeypatch):
    shown, pictures = [], []
    handle = SimpleNamespace(update=lambda picture: pictures.append((time.monotonic(), picture.data)))

    def display(first, display_id=False):
        if display_id:  # else it is a line of text
            shown.append(first.data)
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(terminal, "screen", lambda **_: Console(force_jupyter=True))
    monkeypatch.setattr(live_curve, "SECONDS_BETWEEN_CURVES", 0.05)
    train(tmp_path)
    assert shown == ["compiling"]
    assert len(pictures) >= 2
    times = [moment for moment, _ in pictures[:-1]]  # the last one comes with the end
    assert all(after - before >= 0.05 for before, after in itertools.pairwise(times))
    assert all(picture.startswith(b"\x89PNG") for _, picture in pictures)


def test_a_quiet_console_is_for_warnings_and_results(capsys):
    for console in (terminal.screen(quiet=True), terminal.screen(silent=True)):
        print_line(console, "one")
        print_line(console, "warning: two")
        print_line(console, "three", always=True)
    assert capsys.readouterr().out == "warning: two\nthree\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("tiny", 3), "train got 3.*'mappo', 'merge'"),
        (("tiny", "coridor"), "coridor.*corridor"),
        (("tiny", "corridor", "seads=2"), "seads.*seeds"),
    ],
)
def test_a_mistake_is_one_line(arguments, line):
    with pytest.raises(UserError, match=line):
        marljax.train(*arguments)


def test_the_callback_has_to_be_a_function():
    with pytest.raises(UserError, match=r"on_log=3 .*on_log=print"):
        marljax.train("tiny", "corridor", on_log=3)
