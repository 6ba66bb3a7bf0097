"""``run.json``: command, commits and status of sessions."""

import json
import subprocess
import sys

import pytest

from marljax.io import provenance, run_folder


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_checkout_which_holds_the_package(tmp_path):
    package = tmp_path / "marljax" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    assert provenance.git_state(package) is None
    git(tmp_path, "init")
    (tmp_path / "own.py").write_text("")
    git(tmp_path, "add", "own.py")
    git(tmp_path, "commit", "-m", "own")
    assert provenance.git_state(package) is None  # installed below a repository that knows nothing of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "both")
    state = provenance.git_state(package)
    assert (len(state["commit"]), state["dirty"]) == (40, False)
    assert provenance.describe({"env.target": package})["user_code"] == {"env.target": state}
    package.write_text("changed = True")
    assert provenance.git_state(package)["dirty"]


@pytest.mark.parametrize(
    ("argv", "orig_argv", "command"),
    [
        (["/venv/bin/marljax", "changed"], ["/venv/bin/python3", "/venv/bin/marljax", "train", "ppo"], "marljax train ppo"),
        (["algos/ppo.py"], ["/venv/bin/python", "-X", "utf8", "algos/ppo.py", "env=merge"], "python algos/ppo.py env=merge"),
        (["-c", "x"], ["/venv/bin/python", "-c", "main()", "x"], "python -c main() x"),
        (["/site/own/__main__.py", "x"], ["/venv/bin/python", "-m", "own", "x"], "python -m own x"),
    ],
)
def test_the_command_is_what_was_typed(monkeypatch, argv, orig_argv, command):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert " ".join(provenance.command_line()) == command


def test_the_whole_time_is_noted_of_a_session_that_has_ended(tmp_path):
    with provenance.recorded(tmp_path) as session:
        provenance.record_total_duration(tmp_path, 70.0)  # still running: not the one that is meant
        session.status = "finished"
    path = tmp_path / run_folder.PROVENANCE
    (ended,) = json.loads(path.read_text())["sessions"]
    assert ended["seconds"] == ended["training_seconds"] < 60
    provenance.record_total_duration(tmp_path, 70.0)
    (noted,) = json.loads(path.read_text())["sessions"]
    assert noted == ended | {"seconds": 70.0}


@pytest.mark.parametrize("damage", [None, b"\xff", b'{"sessions": 3}', b'{"sessions": [3]}'])
def test_a_session_that_fails_says_so_whatever_stood_there_before(tmp_path, damage):
    path = tmp_path / run_folder.PROVENANCE
    if damage is not None:
        path.write_bytes(damage)
    seen = []

    def stopped():
        with provenance.recorded(tmp_path):
            seen.extend(json.loads(path.read_text())["sessions"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    (session,) = json.loads(path.read_text())["sessions"]
    assert (seen[0]["status"], seen[0]["seconds"]) == ("running", None)
    assert (session["status"], session["seconds"] >= 0) == ("failed", True)
