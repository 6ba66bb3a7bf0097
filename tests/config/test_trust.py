"""Run folders that somebody else wrote, that were damaged, edited or moved: nothing is executed, overwritten or passed over."""

import json
import os
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
from marljax.config import compose, schema, settings, trust
from marljax.errors import UserError
from marljax.io import checkpoint, files, metrics_log, program_cache, run_folder
from marljax.reporting import ranking
from marljax.training import runner

TINY = ["algo.total_steps=800", "chunk=2", "eval.episodes=4", "eval.final_episodes=8", "checkpoint.every=0.1", "render=false"]
CUSTOM = ["env=custom", "env.target=toys:Corridor"]
STRANGE = "a (1)=b,c ~é's"  # a folder's name


@pytest.fixture(scope="module", autouse=True)
def algorithms():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ALGORITHMS, "tiny", "tiny")
        patch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
        patch.setattr(registry, "OWN_FOLDERS", [])
        patch.setattr(program_cache, "enable", lambda: None)
        yield


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def train(*words):
    return batches.train(compose.compose("tiny", [*TINY, *words]), Console(quiet=True))


def resume(folder, *words, width=1000):
    return batches.train(compose.compose("tiny", [f"resume={folder}", *words]), Console(width=width))


def console(*words):
    """The exit status of ``marljax <words>``, as in a process of its own."""
    app.find_own_modules()
    return exit_status.guarded(lambda: app._dispatch([str(word) for word in words]))


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A finished run of 40 updates, with checkpoints of 36 and 40."""
    return train("env=corridor", f"runs={tmp_path_factory.mktemp('registered')}").folder


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    """A finished run of an environment of one's own."""
    return train(*CUSTOM, f"runs={tmp_path_factory.mktemp('custom')}").folder


@pytest.fixture
def received(registered, tmp_path):
    """A copy elsewhere, with which a test may do what it likes."""
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


@pytest.mark.parametrize("place", ["in the folder", "beside it"])
def test_no_command_imports_what_a_received_folder_names(foreign, tmp_path, monkeypatch, capsys, imported, place):
    here = foreign if place == "in the folder" else tmp_path
    bad_module(here, "bad_one")
    edit(foreign, "toys:Corridor", "bad_one:Env")
    monkeypatch.chdir(here)
    commands = (["evaluate", foreign], ["replay", foreign], ["train", "tiny", f"resume={foreign}"])
    for words in (*commands, ["evaluate", foreign, "env.target=toys:Corridor"]):
        assert console(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "would import env.target=bad_one:Env" in line
        assert "trust=true" in line
    with pytest.raises(UserError, match="trust=True"):
        marljax.load(foreign)
    assert imported() is None


def test_a_repeated_target_or_trust_allows_the_import(foreign, capsys):
    for word in ("env.target=toys:Corridor", "trust=true"):
        assert console("evaluate", foreign, "episodes=4", word) == 0
    assert "4 fresh episodes" in capsys.readouterr().out
    assert marljax.load(foreign, trust=True).env.length == 4
    with pytest.raises(UserError, match=r"was trained with env.target=toys:Corridor, not with toys:Walk"):
        compose.compose("tiny", [f"resume={foreign}", "env.target=toys:Walk"])
    assert resume(foreign, "env.target=toys:Corridor").status == "finished"
    assert marljax.load(foreign).update <= 40  # has been trained here now


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


def test_the_current_folder_joins_the_path_only_for_targets(received, tmp_path, monkeypatch):
    """Packages try to import others that are not there; a stranger's folder could hold one."""
    monkeypatch.chdir(received)
    assert console("evaluate", ".", "episodes=4") == 0
    assert not {str(received), "", "."} & set(sys.path)


def test_what_was_trained_here_needs_no_word_until_it_is_moved_or_edited(custom, foreign, tmp_path, monkeypatch):
    assert marljax.load(custom).env.length == 4
    assert compose.compose("tiny", [f"resume={custom}"]).env_name == "custom"
    with pytest.raises(UserError, match="was not trained here"):
        compose.compose("tiny", [f"resume={foreign}"])
    moved = Path(shutil.move(custom, tmp_path / "moved"))
    with pytest.raises(UserError, match="was not trained here"):
        marljax.load(moved)
    edit(Path(shutil.move(moved, custom)), "toys:Corridor", "toys:Walk")
    with pytest.raises(UserError, match=r"would import env.target=toys:Walk"):
        marljax.load(custom)
    edit(custom, "toys:Walk", "toys:Corridor")

    def nowhere():
        raise RuntimeError("no home directory")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    homeless = train(*CUSTOM, f"runs={tmp_path}", "name=homeless", "sweep.learning_rate=[0.1,0.2]")
    ranking.finish(homeless.run.settings, homeless.folder, Console(quiet=True))
    with pytest.raises(UserError, match="was not trained here"):
        marljax.load(homeless.folder)


def test_edited_results_of_a_batch_are_told_and_judged_again(tmp_path, capsys):
    ended = train("env=corridor", f"runs={tmp_path}", "sweep.learning_rate=[0.1,0.2]", "search.batches=2")
    results = ended.folder / "batch_1" / "results.json"
    judged = results.read_text()
    tree = json.loads(judged)
    tree["members"][0]["metrics"]["return"] = 1e9
    ranking.finish(ended.run.settings, ended.folder, Console(quiet=True))
    for edited in ({"members": tree["members"]}, tree):  # with no checksum, and with the one that it had
        results.write_text(json.dumps(edited))
        assert resume(ended.folder).status == "finished"
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert told == [f"warning: {results} is damaged, was edited or is an earlier version's; its members are judged again"]
        assert results.read_text() == judged
    results.write_text(json.dumps(tree))
    assert console("plot", ended.folder) == 2
    assert "are damaged or were edited; resume=" in capsys.readouterr().err


def test_batches_of_ones_own_environment_are_resumed_without_a_word(tmp_path):
    ended = train(*CUSTOM, f"runs={tmp_path}", "sweep.learning_rate=[0.1,0.2]", "search.batches=2")
    results = ended.folder / "batch_0" / "results.json"
    judged = results.read_text()
    results.write_text(judged[:-9])  # and what is damaged there is made again
    assert resume(ended.folder).status == "finished"
    assert results.read_text() == judged
    assert marljax.load(ended.folder, trial=1).update <= 40


def test_wandb_settings_of_a_received_folder_are_not_obeyed(received, registered, capsys):
    edit(received, "mode: disabled", "mode: online")
    edit(received, "project: marljax", "project: theirs")
    ended = resume(received)
    assert (ended.run.settings.run.wandb.mode, ended.run.settings.run.wandb.project) == ("disabled", "marljax")
    assert "wandb.* in its config.yaml is not taken" in capsys.readouterr().out
    given = compose.compose("tiny", [f"resume={received}", "wandb.mode=offline"]).run.wandb
    assert (given.mode, given.project) == ("offline", "marljax")
    tree = run_folder.read_config(received)
    trust.mark(received, tree, schema.run_defaults()["wandb"])  # as training does
    assert compose.compose("tiny", [f"resume={received}"]).run.wandb.project == "theirs"


def test_trust_is_not_for_the_folder_to_say(foreign):
    edit(foreign, "trust: false", "trust: true")
    with pytest.raises(UserError, match="was not trained here"):
        compose.compose("tiny", [f"resume={foreign}"])


# --- files outside ---


def test_links_in_a_run_folder_lead_no_writer_outside(received, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".metrics.writing.jsonl", ".writing-metrics.jsonl", ".results.writing.json", ".writing-0-metrics.jsonl"):
        (received / name).symlink_to(victim)
    (received / "checkpoints" / ".writing-00000040").symlink_to(tmp_path)
    assert resume(received).status == "finished"
    with monkeypatch.context() as patch:
        patch.setattr(files.secrets, "token_hex", lambda count: "0")
        (received / ".writing-0-results.json").symlink_to(victim)
        with pytest.raises(UserError, match=r"cannot write .*results.json: File exists"):
            run_folder.write_results(received, {})
    (received / ".lock").unlink()
    (received / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match="cannot write to the run folder"):
        resume(received)
    (received / ".lock").unlink()
    elsewhere = shutil.move(received / "checkpoints", tmp_path / "elsewhere")
    (received / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(UserError, match="checkpoints is a link"):
        resume(received)
    assert victim.read_text() == "precious"


def test_what_killed_runs_left_is_cleared_away(received):
    kept = received / ".writing-1-replay.gif"  # somebody may be drawing it
    left = [received / ".writing-1-metrics.jsonl", received / "checkpoints" / ".writing-00000044" / "arrays" / "d",
            received / "checkpoints" / ".deleting-00000032" / "manifest.json"]  # fmt: skip
    for path in (kept, *left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    resume(received)
    assert sorted(path.name for path in (received / "checkpoints").iterdir()) == ["00000036", "00000040"]
    assert [path.name for path in received.glob(".writing-*")] == [kept.name]


# --- lost, old and edited parts ---


def test_a_damaged_checkpoint_is_told_by_every_reader(received, capsys):
    manifest = received / "checkpoints" / "00000040" / checkpoint.MANIFEST
    manifest.write_text(manifest.read_text()[:-9])
    for words in (["evaluate", received, "episodes=4"], ["replay", received]):
        assert console(*words) == 0
        error = capsys.readouterr().err
        assert "00000040 is damaged" in error
        assert "going on from 00000036" in error
    with pytest.warns(UserWarning, match="00000040 is damaged"):
        assert marljax.load(received, which="last").update == 36


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  length: 4", "  length: 3", "env.length was 4 and is 3"),
        ("  length: 4", "  length: 4\n  slip: 0.9", "env.slip was not set and is 0.9"),
        ("learning_rate: 0.1", "learning_rate: 0.3", "algo.learning_rate was 0.1 and is 0.3"),
        ("  step_cost: 0.05", "  step_cost: 0.5", "env_params.step_cost was 0.05 and is 0.5"),
        ("  step_cost: 0.05", "  step_cost: 0.05\n  cost: 1", "env_params.cost was None and is 1"),
    ],
)
def test_an_edited_configuration_is_refused_by_every_reader(received, capsys, old, new, told):
    edit(received, old, new)
    assert console("evaluate", received) == 2
    assert told in capsys.readouterr().err
    for read in (marljax.load, resume):
        with pytest.raises(UserError, match=told):
            read(received)
    edit(received, new, old)
    assert console("evaluate", received, "episodes=4", "env.length=3") == 0


def test_other_numbers_of_the_code_are_told(received, monkeypatch):
    other = Corridor().default_params.replace(step_cost=0.06)
    monkeypatch.setattr(Corridor, "default_params", property(lambda env: other))
    with pytest.warns(UserWarning, match=r"env_params.step_cost was 0.05 and is 0.06"):
        marljax.load(received)


def test_lost_checkpoints_are_not_trained_anew_in_silence(received, capsys):
    shutil.rmtree(received / "checkpoints")
    before = (received / "metrics.jsonl").read_bytes()
    for unlink in (None, ".saved", "results.json"):
        if unlink:
            (received / unlink).unlink(missing_ok=True)
        with pytest.raises(UserError, match=r"put .*checkpoints back, or start a new run"):
            resume(received)
        with pytest.raises(UserError, match=r"but no checkpoint|had a checkpoint of update 40|has rows up to update 40"):
            marljax.load(received)
        assert (received / "metrics.jsonl").read_bytes() == before
    assert "nothing was saved" not in capsys.readouterr().out


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so(registered, tmp_path, monkeypatch, capsys):
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
    assert "nothing was saved yet; starting from the beginning" in capsys.readouterr().out
    assert [row["update"] for row in metrics_log.read_rows(folder)] == [
        row["update"] for row in metrics_log.read_rows(registered)
    ]


def test_an_old_checkpoint_in_the_place_of_a_new_one_is_told(received, capsys):
    saved = received / "checkpoints"
    shutil.rmtree(saved / "00000040")
    shutil.copytree(saved / "00000036", saved / "00000040")
    with pytest.warns(UserWarning, match="it is the checkpoint of update 36; rename it to 00000036"):
        marljax.load(received)
    assert resume(received).run.update == 40
    printed = capsys.readouterr().out
    assert "it is the checkpoint of update 36" in printed
    assert "36 updates done already" in printed


@pytest.mark.parametrize("known", [True, False])
def test_a_run_that_had_got_further_says_so(received, capsys, known):
    saved = received / "checkpoints"
    manifest = json.loads((saved / "00000036" / checkpoint.MANIFEST).read_text())
    shutil.rmtree(saved / "00000040")
    old = saved / ("00000036" if known else "00000012")
    if not known:
        (received / ".saved").unlink()
        (saved / "00000036").rename(old)
        (old / checkpoint.MANIFEST).write_text(json.dumps(checkpoint.sealed(manifest | {"update": 12})))
    told = "had a checkpoint of update 40" if known else "has rows up to update 40"
    with pytest.warns(UserWarning, match=told):
        marljax.load(received)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_chunks", lambda *_: "finished")
        resume(received)
    assert f"{told}, and" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: None, "metrics.jsonl is missing"),
        (lambda rows: rows[:5] + rows[6:], "metrics.jsonl is not what it was at update 40"),
        (lambda rows: [rows[0].replace('"update": 0', '"update": 1'), *rows[1:]], "metrics.jsonl is not what it was"),
        (lambda rows: [*rows, '{"update": 44, "seed": 0}', '{"upd'], None),
    ],
)
def test_lost_and_altered_rows_are_told(received, capsys, change, told):
    path = received / "metrics.jsonl"
    rows = change(path.read_text().splitlines())
    path.unlink()
    if rows is not None:
        path.write_text("\n".join(rows) + "\n")
    assert console("train", "tiny", f"resume={received}", "render=true") == 0
    printed = "".join(capsys.readouterr().out.splitlines())
    assert told in printed if told else "metrics.jsonl" not in printed
    assert ("no learning curve" in printed) == (rows is None)


@pytest.mark.parametrize("content", [b"", b"{", b'{"members": 3}', b'{"members": []}', b"\xff", b"[" * 100_000, "others"])
def test_damaged_results_of_a_batch_are_judged_again(tmp_path, monkeypatch, content):
    part = compose.compose("tiny", ["env=corridor", "sweep.learning_rate=[0.1,0.2]", "search.batches=2"])
    part = settings.batch_of(part, 0, 2)
    figures = {"return": 0.5, "length": None}
    member = {"trial": 0, "seed": 0, "sweep.learning_rate": 0.1, "diverged": False, "metrics": figures, "last": figures}
    run_folder.write_results(tmp_path, {"members": [member]})
    assert ranking.is_judged(part, tmp_path)
    if content == "others":
        run_folder.write_results(tmp_path, {"members": [member | {"trial": 1}]})
    else:
        (tmp_path / "results.json").write_bytes(content)
    assert not ranking.is_judged(part, tmp_path)


# --- what has no end ---


@pytest.mark.parametrize("damage", ["device", "above", "pipe", "link", "manifest"])
def test_only_regular_files_of_a_checkpoint_are_read(received, tmp_path, damage):
    newest = received / "checkpoints" / "00000040"
    manifest = newest / checkpoint.MANIFEST
    content = json.loads(manifest.read_text())
    if damage in ("device", "above"):
        (tmp_path / "x").write_text("x")
        name = {"device": "/dev/zero", "above": "../../../x"}[damage]
        manifest.write_text(json.dumps(checkpoint.sealed(content | {"files": {name: "0"}})))
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
def in_two_minutes():
    """Fails a test that is not done by then: opening a pipe that nobody else opens takes for ever."""

    def waiting(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waiting)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_two_minutes")
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "results.json", "run.json", ".saved", ".lock", "curve.png"])
def test_no_command_waits_for_a_pipe_in_place_of_a_file(received, capsys, name):
    """Each ends, with a line where it cannot do without the file."""
    for words in (["plot", received], ["evaluate", received, "episodes=4"], ["train", "tiny", f"resume={received}"]):
        (received / name).unlink(missing_ok=True)
        os.mkfifo(received / name)
        status = console(*words)
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
        assert status == 2 * len(lines)
        assert len(lines) == (name in ("config.yaml", "metrics.jsonl") and (name, words[0]) != ("metrics.jsonl", "evaluate"))


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
    (word,) = shlex.split(run_folder.resume_word(folder))
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
def test_what_a_path_means(text, path, monkeypatch):
    monkeypatch.setenv("HOME", "HOME")
    assert compose.parse([f"resume={text}"]) == {"resume": path}


def test_several_runs_take_paths_literally_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app.main("tiny", ["-m", *TINY, "env=corridor", "seed=1,2", f"runs={STRANGE}"])
    assert ended.value.code == 0
    assert len(list((tmp_path / STRANGE).glob("*/*/config.yaml"))) == 2
