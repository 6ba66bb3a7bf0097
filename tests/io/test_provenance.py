"""What ``run.json`` says of where a run comes from."""

import json
import subprocess

import pytest

from marljax.io import provenance, run_folder


def git(folder, *words):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_checkout_which_holds_the_package(tmp_path):
    package = tmp_path / "marljax"
    package.mkdir()
    (package / "__init__.py").write_text("")
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
    (package / "__init__.py").write_text("changed = True")
    assert provenance.git_state(package)["dirty"]


@pytest.mark.parametrize("damage", [None, b"\xff", b"{}", b'{"sessions": 3}', b'{"sessions": [3]}'])
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
