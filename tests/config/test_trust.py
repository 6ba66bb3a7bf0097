"""Run folders from elsewhere, or damaged, edited or moved: nothing is executed, overwritten or silently ignored."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console
from toys import Corridor

import marljax
from marljax import registry
from marljax.cli import app, batches, exit_status
from marljax.config import compose, settings, trust
from marljax.errors import UserError
from marljax.io import checkpoint, files, metrics_log, run_folder, terminal
from marljax.reporting import ranking
from marljax.training import runner

TINY = ["algo.total_steps=800", "chunk=2", "eval.episodes=4", "eval.final_episodes=8", "checkpoint.every=0.1", "render=false"]
CUSTOM = ["env=custom", "env.target=toys:Corridor"]
STRANGE = "a (1)=b,c ~é's"  # name of a folder


@pytest.fixture(autouse=True)
def path(toys, monkeypatch):
    monkeypatch.setattr(registry, "OWN_FOLDERS", [])
    monkeypatch.setattr(sys, "path", list(sys.path))


def train(*words):
    return batches.train(compose.compose("tiny", [*TINY, *words]), Console(quiet=True))


def resume(folder, *words, width=1000):
    return batches.train(compose.compose("tiny", [f"resume={folder}", *words]), Console(width=width))


def console(*words):
    """The exit status of ``marljax <words>``, as in a process of its own."""
    return exit_status.guarded(lambda: app.run_command([str(word) for word in words]))


@pytest.fixture(scope="module")
def registered(toys, tmp_path_factory):
    """A finished run of 40 updates, with checkpoints of 36 and 40."""
    return train("env=corridor", "env.limit=12", f"runs={tmp_path_factory.mktemp('registered')}").folder


@pytest.fixture(scope="module")
def custom(toys, tmp_path_factory):
    """A finished run of a user's environment."""
    return train(*CUSTOM, f"runs={tmp_path_factory.mktemp('custom')}").folder


@pytest.fixture
def received(registered, tmp_path):
    """A copy elsewhere, which a test may damage."""
    return Path(shutil.copytree(registered, tmp_path / "received"))


@pytest.fixture
def foreign(custom, tmp_path):
    return Path(shutil.copytree(custom, tmp_path / "foreign"))


def edit(folder, old, new):
    config = folder / run_folder.CONFIG
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new, 1))


def bad_module(folder, name):
    """A module that shows that it was imported."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.py").write_text("import os\nos.environ['MARLJAX_IMPORTED'] = __file__\nfrom toys import Corridor as Env\n")


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.delenv("MARLJAX_IMPORTED", raising=False)
    yield lambda: os.environ.get("MARLJAX_IMPORTED")
    for name in [name for name in sys.modules if name.startswith("bad_")]:
        del sys.modules[name]


# --- code ---


@pytest.mark.parametrize("inside", [True, False])
def test_no_command_imports_the_target_of_a_received_folder(foreign, tmp_path, monkeypatch, capsys, imported, inside):
    here = foreign if inside else tmp_path
    bad_module(here, "bad_one")
    edit(foreign, "toys:Corridor", "bad_one:Env")
    edit(foreign, "trust: false", "trust: true")  # which is not for the folder to say
    monkeypatch.chdir(here)
    repeated_another = ["evaluate", foreign, "env.target=toys:Corridor"]
    for words in (["evaluate", foreign], ["replay", foreign], ["train", "tiny", f"resume={foreign}"], repeated_another):
        assert console(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "env.target=bad_one:Env" in line
        assert "trust=true" in line
    with pytest.raises(UserError, match="trust=True"):
        marljax.load(foreign)
    assert imported() is None


def test_a_repeated_target_or_trust_allows_the_import(foreign, capsys):
    for word in ("env.target=toys:Corridor", "trust=true"):
        assert console("evaluate", foreign, "episodes=4", word) == 0
    assert "4 fresh episodes" in capsys.readouterr().out
    assert marljax.load(foreign, trust=True).env.length == 4
    with pytest.raises(UserError, match=r"env.target=toys:Corridor.*toys:Walk"):
        compose.compose("tiny", [f"resume={foreign}", "env.target=toys:Walk"])
    assert resume(foreign, "env.target=toys:Corridor").status == "finished"
    assert marljax.load(foreign).update <= 40  # it has been trained here


def test_nothing_is_imported_from_the_folder_itself_unless_it_is_on_the_path(foreign, tmp_path, monkeypatch, imported):
    tree = run_folder.read_config(foreign)

    def check(target):
        app.find_own_modules()
        trust.check(foreign, tree | {"env": tree["env"] | {"target": target}}, {}, trust=True)

    bad_module(foreign, "bad_inside")
    bad_module(foreign / "bad_package", "bad_deep")
    (tmp_path / "bad_link").symlink_to(foreign)
    for here, target in (
        (foreign, "bad_inside:Env"),
        (foreign / "checkpoints", "bad_inside:Env"),
        (tmp_path, "foreign.bad_inside:Env"),
        (tmp_path, "foreign.bad_package.bad_deep:Env"),
        (tmp_path, "bad_link.bad_inside:Env"),
    ):
        monkeypatch.chdir(here)
        for path in (list(sys.path), ["", *sys.path]):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "path", path)
                with pytest.raises(UserError, match="cannot import"):
                    check(target)
        assert imported() is None
    (tmp_path / "bad_outside.py").write_text("try:\n    import bad_inside\nexcept ImportError:\n    pass\nclass Env: pass\n")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", ["", *sys.path])
        check("bad_outside:Env")
    assert imported() is None
    bad_module(foreign / "source", "bad_chosen")
    sys.path.append(str(foreign / "source"))  # as PYTHONPATH does
    check("bad_chosen:Env")
    assert imported() is not None


def test_the_current_folder_joins_the_path_only_for_targets(received, monkeypatch):
    """Packages try to import others that are not installed; a received folder could hold one."""
    monkeypatch.chdir(received)
    assert console("evaluate", ".", "episodes=4") == 0
    assert not {str(received), "", "."} & set(sys.path)


def test_a_run_trained_here_is_trusted_until_it_is_moved_or_edited(custom, foreign, tmp_path, monkeypatch):
    assert marljax.load(custom).env.length == 4
    assert compose.compose("tiny", [f"resume={custom}"]).env_name == "custom"
    with pytest.raises(UserError, match="not trained here"):
        compose.compose("tiny", [f"resume={foreign}"])
    moved = Path(shutil.move(custom, tmp_path / "moved"))
    with pytest.raises(UserError, match="not trained here"):
        marljax.load(moved)
    edit(Path(shutil.move(moved, custom)), "toys:Corridor", "toys:Walk")
    with pytest.raises(UserError, match=r"env.target=toys:Walk"):
        marljax.load(custom)
    edit(custom, "toys:Walk", "toys:Corridor")

    def no_home():
        raise RuntimeError("no home directory")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    trust.mark(foreign, run_folder.read_config(foreign))
    with pytest.raises(UserError, match="not trained here"):
        marljax.load(foreign)


def test_damaged_or_edited_results_of_batches_are_reported_and_evaluated_again(tmp_path, monkeypatch, capsys):
    """Also those of a user's environment, whose folder is trusted without a word, or without a home for its marks."""
    ended = train(*CUSTOM, f"runs={tmp_path}", "sweep.learning_rate=[0.1,0.2]", "search.batches=2")
    results = ended.folder / "batch_1" / "results.json"
    before = results.read_text()
    tree = json.loads(before)
    tree["replicas"][0]["metrics"]["return"] = 1e9
    ranking.finish(ended.run.settings, ended.folder, terminal.screen(silent=True))
    edited = json.dumps(tree)  # with the checksum of the original
    for content in (edited, before[:-9]):
        results.write_text(content)
        assert resume(ended.folder).status == "finished"
        (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert str(results) in warning
        assert results.read_text() == before
    assert marljax.load(ended.folder, trial=1).update <= 40
    results.write_text(edited)
    assert console("plot", ended.folder) == 2
    assert "resume=" in capsys.readouterr().err
    results.write_text(before)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "without marks"))
    ranking.finish(ended.run.settings, ended.folder, Console(quiet=True))
    with pytest.raises(UserError, match="not trained here"):
        marljax.load(ended.folder)


@pytest.mark.parametrize("content", [b"", b"{", b'{"replicas": 3}', b'{"replicas": []}', b"\xff", b"[" * 100_000, "others"])
def test_damaged_results_of_a_batch_do_not_count(tmp_path, content):
    part = compose.compose("tiny", ["env=corridor", "sweep.learning_rate=[0.1,0.2]", "search.batches=2"])
    part = settings.batch_of(part, 0, 2)
    metrics = {"return": 0.5, "length": None}
    replica = {"trial": 0, "seed": 0, "sweep.learning_rate": 0.1, "diverged": False, "metrics": metrics, "last": metrics}
    run_folder.write_results(tmp_path, {"replicas": [replica]})
    assert ranking.has_results(part, tmp_path)
    if content == "others":
        run_folder.write_results(tmp_path, {"replicas": [replica | {"trial": 1}]})
    else:
        (tmp_path / "results.json").write_bytes(content)
    assert not ranking.has_results(part, tmp_path)


def test_wandb_settings_of_a_received_folder_are_ignored(received, capsys):
    edit(received, "mode: disabled", "mode: online")
    edit(received, "project: marljax", "project: theirs")
    ended = resume(received)
    assert (ended.run.settings.run.wandb.mode, ended.run.settings.run.wandb.project) == ("disabled", "marljax")
    assert "wandb.*" in capsys.readouterr().out
    given = compose.compose("tiny", [f"resume={received}", "wandb.mode=offline"]).run.wandb
    assert (given.mode, given.project) == ("offline", "marljax")
    trust.mark(received, run_folder.read_config(received))  # as training does
    assert compose.compose("tiny", [f"resume={received}"]).run.wandb.project == "theirs"


# --- files outside ---


def test_links_in_a_run_folder_lead_no_writer_outside_and_drafts_of_killed_runs_are_removed(received, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    drawn = received / ".writing-1-replay.gif"  # another process may be drawing it
    for path in (drawn, received / ".writing-1-metrics.jsonl", received / "checkpoints" / ".writing-00000044" / "d",
                 received / "checkpoints" / ".deleting-00000032" / "d"):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    for name in (".metrics.writing.jsonl", ".writing-metrics.jsonl", ".results.writing.json", ".writing-0-metrics.jsonl"):
        (received / name).symlink_to(victim)
    (received / "checkpoints" / ".writing-00000040").symlink_to(tmp_path)
    assert resume(received).status == "finished"
    assert sorted(path.name for path in (received / "checkpoints").iterdir()) == ["00000036", "00000040"]
    assert [path.name for path in received.glob(".writing-1-*")] == [drawn.name]
    with monkeypatch.context() as patch:
        patch.setattr(files.secrets, "token_hex", lambda count: "0")
        (received / ".writing-0-results.json").symlink_to(victim)
        with pytest.raises(UserError, match=r"results.json: File exists"):
            run_folder.write_results(received, {})
    (received / ".lock").unlink()
    (received / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match="run folder"):
        resume(received)
    (received / ".lock").unlink()
    elsewhere = shutil.move(received / "checkpoints", tmp_path / "elsewhere")
    (received / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(UserError, match="checkpoints is a link"):
        resume(received)
    assert victim.read_text() == "precious"


# --- lost, old and edited parts ---


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("  length: 4", "  length: 3", "env.length was 4 and is 3"),
        ("  length: 4", "  length: 4\n  slip: 0.9", "env.slip was not set and is 0.9"),
        ("  limit: 12\n", "", "env.limit was 12 and is None"),
        ("seed: 0", "seed: 1", "seed was 0 and is 1"),
        ("  episodes: 4", "  episodes: 5", "eval.episodes was 4 and is 5"),
        ("learning_rate: 0.1", "learning_rate: 0.3", "algo.learning_rate was 0.1 and is 0.3"),
        ("  step_cost: 0.05", "  step_cost: 0.5", "env_params.step_cost was 0.05 and is 0.5"),
        ("  step_cost: 0.05", "  step_cost: 0.05\n  cost: 1", "env_params.cost was None and is 1"),
    ],
)
def test_every_reader_rejects_an_edited_configuration(received, capsys, old, new, change):
    edit(received, old, new)
    assert console("evaluate", received) == 2
    assert change in capsys.readouterr().err
    for read in (marljax.load, resume):
        with pytest.raises(UserError, match=change):
            read(received)


def test_env_params_changed_in_the_code_are_reported(received, monkeypatch):
    other = Corridor().default_params.replace(step_cost=0.06)
    monkeypatch.setattr(Corridor, "default_params", property(lambda env: other))
    with pytest.warns(UserWarning, match=r"env_params.step_cost was 0.05 and is 0.06"):
        marljax.load(received)


def test_a_run_that_lost_its_checkpoints_does_not_start_again(received):
    shutil.rmtree(received / "checkpoints")
    before = (received / "metrics.jsonl").read_bytes()
    for lost in ("nothing else", ".saved", "results.json"):
        (received / lost).unlink(missing_ok=True)
        with pytest.raises(UserError, match="checkpoints back, or start a new run"):
            resume(received)
        with pytest.raises(UserError, match="checkpoint"):
            marljax.load(received)
        assert (received / "metrics.jsonl").read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(registered, tmp_path, monkeypatch, capsys):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train("env=corridor", f"runs={tmp_path}", "name=killed")
    folder = tmp_path / "tiny_corridor" / "killed"
    assert metrics_log.read_rows(folder)
    edit(folder, "  step_cost: 0.05", "  step_cost: 0.5")
    with pytest.raises(UserError, match=r"env_params.step_cost was 0.05 and is 0.5; set it back"):
        resume(folder)
    edit(folder, "  step_cost: 0.5", "  step_cost: 0.05")
    assert resume(folder).status == "finished"
    assert "nothing was saved" in capsys.readouterr().out
    rows, uninterrupted = ([row["update"] for row in metrics_log.read_rows(each)] for each in (folder, registered))
    assert rows == uninterrupted


@pytest.mark.parametrize(
    ("lost", "reported"),
    [
        ("renamed", "is the checkpoint of update 36"),
        ("newest", "had a checkpoint of update 40"),
        ("newest and note", "has rows up to update 40"),
    ],
)
def test_lost_progress_is_reported(received, monkeypatch, capsys, lost, reported):
    saved = received / "checkpoints"
    manifest = json.loads((saved / "00000036" / checkpoint.MANIFEST).read_text())
    shutil.rmtree(saved / "00000040")
    if lost == "renamed":
        shutil.copytree(saved / "00000036", saved / "00000040")
    if lost == "newest and note":
        (received / ".saved").unlink()
        old = (saved / "00000036").rename(saved / "00000012")
        (old / checkpoint.MANIFEST).write_text(json.dumps(checkpoint.with_checksum(manifest | {"update": 12})))
    with pytest.warns(UserWarning, match=reported):
        marljax.load(received)
    monkeypatch.setattr(runner, "run_chunks", lambda *_: "finished")
    resume(received)
    assert reported in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda rows: None, "metrics.jsonl is missing"),
        (lambda rows: rows[:5] + rows[6:], "metrics.jsonl is not what it was"),
        (lambda rows: [rows[0].replace('"update": 0', '"update": 1'), *rows[1:]], "metrics.jsonl is not what it was"),
        (lambda rows: [*rows, '{"update": 44, "seed": 0}', '{"upd'], None),
    ],
    ids=["lost", "one less", "altered", "one more"],
)
def test_lost_and_altered_rows_are_reported(received, capsys, change, reported):
    path = received / "metrics.jsonl"
    rows = change(path.read_text().splitlines())
    path.unlink()
    if rows is not None:
        path.write_text("\n".join(rows) + "\n")
    assert console("train", "tiny", f"resume={received}", f"render={rows is None}") == 0
    printed = "".join(capsys.readouterr().out.splitlines())
    assert reported in printed if reported else "metrics.jsonl" not in printed
    assert ("no learning curve" in printed) == (rows is None)


# --- files without end ---


@pytest.mark.parametrize("damage", ["cut", "device", "above", "pipe", "link", "manifest"])
def test_a_damaged_checkpoint_is_reported_and_only_regular_files_are_read(received, tmp_path, capsys, damage):
    newest = received / "checkpoints" / "00000040"
    manifest = newest / checkpoint.MANIFEST
    content = manifest.read_text()
    if damage == "cut":
        manifest.write_text(content[:-9])
        assert console("evaluate", received, "episodes=4") == 0
        assert re.search("00000040 is damaged.*00000036", capsys.readouterr().err)
    elif damage in ("device", "above"):
        (tmp_path / "x").write_text("x")
        name = {"device": "/dev/zero", "above": "../../../x"}[damage]
        manifest.write_text(json.dumps(checkpoint.with_checksum(json.loads(content) | {"files": {name: "0"}})))
    elif damage == "pipe":
        os.mkfifo(newest / "arrays" / "pipe")
    elif damage == "link":
        (newest / "arrays" / "link").symlink_to("/dev/zero")
    else:
        manifest.unlink()
        manifest.symlink_to("/dev/zero")
    with pytest.warns(UserWarning, match="00000040 is damaged"):
        assert marljax.load(received, which="last").update == 36


@pytest.fixture
def two_minutes():
    """Fails a test that takes longer: opening a pipe that nobody else opens never returns."""

    def waiting(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waiting)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("two_minutes")
@pytest.mark.parametrize(
    ("names", "needed_by"),
    [
        (["config.yaml"], ["plot", "evaluate", "train"]),
        (["metrics.jsonl"], ["plot", "train"]),
        (["results.json", "run.json", ".saved", ".lock", "curve.png"], []),
    ],
)
def test_no_command_waits_for_a_pipe_in_place_of_a_file(received, capsys, names, needed_by):
    for words in (["plot", received], ["evaluate", received, "episodes=4"], ["train", "tiny", f"resume={received}"]):
        for name in names:
            (received / name).unlink(missing_ok=True)
            os.mkfifo(received / name)
        status = console(*words)
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
        assert (status, len(lines)) == ((2, 1) if words[0] in needed_by else (0, 0))


def test_a_configuration_without_end_is_one_line(received):
    config = received / run_folder.CONFIG
    config.write_text("a: " + "[" * 5_000 + "]" * 5_000)
    with pytest.raises(UserError, match="nested too deep"):
        run_folder.read_config(received)
    config.unlink()
    config.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not a regular file"):
        run_folder.read_config(received)


# --- names ---


def test_paths_are_taken_literally_and_advice_can_be_pasted(registered, tmp_path, capsys):
    runs = tmp_path / STRANGE
    given = compose.compose("tiny", ["env=corridor", f"runs={runs}", f"name={STRANGE}"]).run
    assert (given.runs, given.name) == (str(runs), STRANGE)
    folder = runs / "tiny_corridor" / STRANGE
    shutil.copytree(registered, folder)
    (word,) = shlex.split(run_folder.resume_argument(folder))
    assert word == f"resume={folder}"
    assert console("train", "tiny", word) == 0
    assert console("evaluate", folder, "episodes=4") == 0
    assert console("replay", folder, f"out={tmp_path / 'a (1),b=c.gif'}") == 0
    assert (tmp_path / "a (1),b=c.gif").exists()
    capsys.readouterr()
    assert console("train", "tiny", "env=corridor", f"runs={runs}", f"name={STRANGE}") == 2
    assert shlex.quote(word) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "path"), [("'a b'", "a b"), ("null", None), ("~x", "~x"), ("${x}", "${x}"), ("1e3", "1e3"), ("~/x", "HOME/x")]
)
def test_paths_as_written(text, path, monkeypatch):
    monkeypatch.setenv("HOME", "HOME")
    assert compose.parse([f"resume={text}"]) == {"resume": path}
