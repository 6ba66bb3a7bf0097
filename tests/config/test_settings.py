"""Command lines become settings, and every mistake in one is a line that says what to do."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import marljax
import marljax.configs
from marljax import registry
from marljax.cli import app, exit_status
from marljax.config import settings
from marljax.config.compose import compose
from marljax.errors import UserError
from marljax.io import program_cache, run_folder

CUSTOM = ["env=custom", "env.target=toys:Corridor"]


@pytest.fixture(autouse=True)
def algorithms(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "tiny", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")


def test_defaults_come_from_the_classes_and_the_command_line_wins():
    given = compose("tiny", ["env=corridor"])
    assert given.config == given.algorithm.Config()
    assert given.env == registry.make("corridor")
    assert given.env_params.slip == np.float32(0.1)
    words = ["env=corridor", "algo.total_steps=1e6", "algo.layers=[4]", "algo.learning_rate=1", "seeds=2.0", "eval.every=0"]
    changed = compose("tiny", [*words, "env.length=6", "env.preset=slow", "env.limit=7", "wandb.tags=[a,b]"])
    assert (changed.config.total_steps, changed.config.layers, changed.config.learning_rate) == (1_000_000, (4,), 1.0)
    assert (changed.env.length, int(changed.env_params.limit), changed.env_params.slip) == (6, 7, np.float32(0.5))
    assert (changed.run.seeds, changed.run.eval.every, changed.run.wandb.tags) == (2, 0.0, ("a", "b"))


def test_a_users_own_environment_goes_by_its_class():
    given = compose("tiny", [*CUSTOM, "env.agents=2"])
    assert (given.title, given.env.agents) == ("tiny_corridor", 2)
    assert given.label == "tiny on Corridor"


def test_a_name_with_an_underscore_stays_whole(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "tiny_two", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "kl_pads", "toys:Corridor")
    given = compose("tiny_two", ["env=kl_pads"])
    assert (given.label, given.title) == ("tiny_two on kl_pads", "tiny_two_kl_pads")


@pytest.mark.parametrize("given", [(3, "corridor"), ("tiny", 3), ("tiny", "corridor", 3), ("tiny", "corridor", None)])
def test_python_s_tuned_takes_text(given):
    with pytest.raises(UserError, match=r"tuned got (3|None); give text, such as tuned\('mappo', 'merge'"):
        marljax.tuned(*given)


def test_tuned_files_change_defaults_and_yield_to_the_command_line(tmp_path, monkeypatch):
    config = (Path(marljax.configs.__file__).parent / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "tuned").mkdir()
    tuned = tmp_path / "tuned" / "tiny_corridor.yaml"
    tuned.write_text("# @package _global_\nalgo:\n  num_envs: 8\n  learning_rate: 0.5\nenv:\n  agents: 1\n  slip: 0.3\n")
    monkeypatch.setattr(marljax.configs, "__file__", str(tmp_path / "__init__.py"))
    given = compose("tiny", ["env=corridor", "algo.learning_rate=0.25", "env.slip=0.7"])
    assert (given.config.num_envs, given.config.learning_rate, given.env.agents) == (8, 0.25, 1)
    assert given.env_params.slip == np.float32(0.7)
    (tmp_path / "tuned" / "tiny_corridor_sure.yaml").write_text(
        "# @package _global_\ndefaults:\n  - tiny_corridor\n  - _self_\nenv:\n  slip: 0.0\n"
    )
    variant, untuned = (compose("tiny", ["env=corridor", f"tuned={name}"]) for name in ("sure", "none"))
    assert (variant.config.num_envs, variant.env_params.slip) == (8, 0.0)
    assert (untuned.config, untuned.env_params) == (type(untuned.config)(), untuned.env.default_params)
    with pytest.raises(UserError, match=r"^unknown variant of the tuned values of tiny on corridor 'sur'; did you mean sure\?$"):
        compose("tiny", ["env=corridor", "tuned=sur"])
    tuned.write_text("# @package _global_\nalgo:\n  num_env: 8\n")
    with pytest.raises(UserError, match=r"unknown setting 'algo.num_env'; did you mean algo.num_envs"):
        compose("tiny", ["env=corridor"])


def test_the_written_configuration_gives_the_same_settings(tmp_path):
    given = compose("tiny", ["env=corridor", "env.agents=2", "env.slip=0.3", "algo.layers=[4,5]", "seeds=3", "wandb.tags=[x]"])
    run_folder.write_config(tmp_path, given.tree)
    again = settings.from_tree(run_folder.read_config(tmp_path))
    assert (again.config, again.env, again.run, again.tree) == (given.config, given.env, given.run, given.tree)
    assert again.env_params == given.env_params


MISTAKES = [
    ("env=coridor", "unknown environment 'coridor'; did you mean corridor?"),
    ("", "choose an environment, such as env=merge"),
    ("env=corridor algo.learning_rat=1", "unknown setting 'algo.learning_rat'; did you mean algo.learning_rate?"),
    ("env=corridor learning_rate=1", "did you mean algo.learning_rate?"),
    ("env=corridor sead=1", "unknown setting 'sead'; did you mean seed"),
    ("env=corridor eval.evry=1", "did you mean eval.every"),
    ("env=corridor env.lenght=1", "unknown setting 'env.lenght'; did you mean env.length?"),
    ("env=corridor env.slipp=1", "did you mean env.slip?"),
    ("env=corridor env.length.x=1", "unknown setting 'env.length.x'"),
    ("env=corridor algo.num_envs.x=1", "unknown setting 'algo.num_envs.x'"),
    ("env=corridor eval=3", "eval is a group of settings: eval.every"),
    ("env=corridor algo.num_envs=many", "algo.num_envs=many has the wrong type; it takes an integer, such as 4"),
    ("env=corridor algo.num_envs=1.5", "takes an integer"),
    ("env=corridor algo.num_envs=true", "takes an integer"),
    ("env=corridor algo.num_envs=null", "takes an integer"),
    ("env=corridor algo.layers=3", "algo.layers=3 has the wrong type; it takes a list, such as [3,2]"),
    ("env=corridor algo.layers=[3,a]", "algo.layers[1]=a has the wrong type"),
    ("env=corridor algo.learning_rate=-1", "error: algo.learning_rate=-1.0 is out of range"),
    ("env=corridor algo.learning_rate=nan", "algo.learning_rate=nan has the wrong type; it takes a number"),
    ("env=corridor algo.num_envs=0", "error: algo.num_envs=0 is out of range; it takes integers of at least 1"),
    ("env=merge env.cavs_max=9", "error: env.cavs_max=9 of merge is out of range"),
    ("env=corridor algo.num_envs=1e99", "algo.num_envs=1e+99 is out of range"),
    ("env=corridor algo.num_envs=3e9", "algo.num_envs=3000000000 is out of range; it takes integers up to 2147483647"),
    ("env=corridor algo.num_envs=2e9 algo.rollout_length=2", "an update of 4e+09 environment steps is too large"),
    ("env=corridor algo.total_steps=1e14", "a run of 5e+12 updates is too long; lower total_steps"),
    ("env=corridor algo.learning_rate=1e39", "algo.learning_rate=1e+39 is out of range; it takes a finite number from 0"),
    ("env=corridor env.length=1e99", "env.length=1e+99 is out of range"),
    ("env=corridor env.limit=3e9", "env.limit=3e+09 is out of range; it takes numbers up to 2147483647"),
    ("env=corridor env.slip=1e99", "env.slip=1e+99 is out of range"),
    ("env=corridor seeds=2e9", "seeds=2000000000 is out of range; it takes integers up to"),
    ("env=corridor eval.episodes=1e12", "eval.episodes=1000000000000 is out of range; it takes integers up to"),
    ("env=corridor name=../../up", "name='../../up' is no plain name; runs=<folder> says where"),
    ("env=corridor name=..", "name='..' is no plain name"),
    ("env=merge tuned=cautios", "unknown variant of the tuned values of tiny on merge 'cautios'; known: none, standard."),
    ("env=merge env.position_noise=30", "env.position_noise=30 of merge is out of range; it takes m up to 17.5"),
    ("env=corridor env.compete=1", "env.compete=1 has the wrong type; it takes true or false"),
    ("env=corridor env.limit=2.5", "env.limit=2.5 has the wrong type; it takes an integer"),
    ("env=corridor env.slip=[1,2]", "env.slip=[1,2] has the wrong type; it takes a number"),
    ("env=corridor render=maybe", "render=maybe has the wrong type; it takes true or false"),
    ("env=corridor seeds=0", "seeds=0 is out of range"),
    ("env=corridor seed=-1", "out of range"),
    ("env=corridor eval.every=2", "eval.every=2.0 is out of range; it is a fraction of training"),
    ("env=corridor wandb.mode=sometimes", "choose online or offline or disabled"),
    ("env=corridor seeds=3 mesh.seed=2", "3 members do not divide into 2 parts of mesh.seed"),
    ("env=corridor devices=2", "2 devices are asked for (mesh.seed=1 × mesh.data=2), and there are 1"),
    ("env=corridor devices=3 mesh.data=2", "3 devices do not divide into 2 parts of mesh.data"),
    ("env=corridor devices=4 mesh.data=2 mesh.seed=1", "mesh.seed=1 × mesh.data=2 are not devices=4"),
    ("env=corridor devices=0", "devices=0 is out of range"),
    ("env=corridor devices=every", "devices=every is out of range"),
    ("env=corridor hosts.index=0", "add distributed=true"),
    ("env=corridor distributed=true hosts.index=0", "hosts.index needs the others too"),
    ("env=corridor sweep.layers=[1,2]", "-m algo.layers=…,… trains one after another; sweep.* takes learning_rate"),
    ("env=corridor sweep.env.length=[4,5]", "-m env.length=…,… trains one after another"),
    ("env=corridor sweep.learnin_rate=[1,2]", "did you mean sweep.learning_rate?"),
    ("env=corridor sweep.env.limi=[1,2]", "did you mean sweep.env.limit?"),
    ("env=corridor sweep.learning_rate=[-1,2]", "sweep.learning_rate=-1.0 is out of range"),
    ("env=corridor sweep.learning_rate=[1,1]", "names a value twice"),
    ("env=corridor sweep.learning_rate=interval(0,1)", "search.method=sobol"),
    ("env=corridor sweep.learning_rate=interval(0,1) search.method=sobol", "say how many, such as search.trials=32"),
    ("env=corridor sweep.learning_rate=tag(log,interval(0,1)) search.method=sobol search.trials=2", "above 0"),
    ("env=corridor search.trials=3", "add what is swept"),
    ("env=corridor sweep.learning_rate=[1,2] search.metric=speed", "'speed'; known: "),
    ("env=corridor search.metric=speed", "'speed'; known: "),
    ("env=smax env.mode=self_play sweep.learning_rate=[1,2]", "teams compete here"),
    ("env=corridor sweep.learning_rate=[1] search.method=random search.trials=2", "more than the 1 setting that there"),
    ("env=corridor sweep.learning_rate=[1,2,3] search.batches=2", "3 members do not divide into 2 batches"),
    ("env=corridor sweep=3", "name what is swept"),
    ("env=corridor search.batch=1", "written by the run itself"),
    ("env=corridor mesh.data=64", "64 devices are asked for (mesh.seed=1 × mesh.data=64), and there are 1"),
    ("env=corridor seed=1,2", "trains several in one program"),
    ("env=corridor ~seeds", "can be changed, not removed"),
    ("env=corridor seeds", "cannot read 'seeds'; write key=value"),
    ("env=corridor --seeds=2", "settings are written key=value, without dashes"),
    ("env=corridor algo=mappo", "this command trains tiny"),
    ("env=custom", "needs env.target=package.module:Class"),
    ("env=custom env.target=toys", "write package.module:Class"),
    ("env=custom env.target=toys:Coridor", "did you mean Corridor"),
    ("env=custom env.target=toyz:Corridor", "cannot import 'toyz'"),
    ("env=custom env.target=tiny:Config", "is not an environment"),
    ("env=corridor env.target=toys:Corridor", "needs env=custom"),
    ("env=custom env.target=marljax.wrappers.joint:Joint", "marljax.wrappers.joint:Joint wraps another environment"),
    ("env=corridor env.preset=damaged", "Corridor: default_params raised KeyError: 'damaged' (preset_params, line"),
    ("env={a:1}", "env=<name> chooses"),
    ("env=corridor sweep.learning_rate=glob(*)", "cannot read sweep.learning_rate=glob(*); write a list"),
    ("resume=nowhere", "nowhere is not a run folder: it has no config.yaml"),
    ("env=corridor runs=/dev/null", "cannot make the run folder /dev/null/tiny_corridor"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_status_2(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program_cache, "enable", lambda: None)
    with pytest.raises(SystemExit) as stopped:
        app.main("tiny", line.split())
    output = capsys.readouterr()
    assert stopped.value.code == 2
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert message in output.err
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


def printed(capsys, *words):
    """What ``--help`` says to these words, without its spacing."""
    with pytest.raises(SystemExit) as stopped:
        app.main("tiny", [*words, "--help"])
    assert stopped.value.code == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_help_lists_every_setting_with_the_value_that_would_run_and_its_meaning(capsys):
    lines = printed(capsys, "env=corridor", "env.preset=slow", "seeds=2", "algo.layers=[4]")
    assert {
        "seeds=2 how many seeds to train at once, in one program: seed, seed + 1, …",
        "checkpoint.keep=2 newest checkpoints kept; the best parameters of every seed stand in each",
        "algo.num_envs=4",
        "algo.layers=[4]",
        "algo.learning_rate=0.1 how fast the parameters drift",
        "env.length=4",
        "env.limit=20 decisions until truncation",
        "env.slip=0.5 probability that a move fails",
    } <= set(lines)
    lines = printed(capsys)
    assert {"seeds=1 how many seeds to train at once, in one program: seed, seed + 1, …", "algo.layers=[3,2]"} <= set(lines)
    assert lines[-1].startswith("env.*: add env=<name>")
    lines = printed(capsys, "env=merge")
    assert "env.density=hard how many vehicles; easy, medium, hard as in MARL_CAVs, pis_… as in MAPPO-PIS" in lines
    assert any(line.startswith("env.drivers.headway=[") and line.endswith("] s") for line in lines)


OWN_MODULE = """
import dataclasses
from toys import Corridor

@dataclasses.dataclass(frozen=True, kw_only=True)
class Maze(Corridor):
    size: int  # cells

    def __post_init__(self):
        if self.size > 9:
            raise ValueError("size=10 leaves no room")
"""


def test_help_and_runs_find_a_class_in_the_current_folder_and_say_what_it_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_maze.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["env=custom", "env.target=own_maze:Maze"]
    lines = printed(capsys, *words)
    assert {"env.size=??? cells", "needs env.size"} <= set(lines)
    assert {"env.size=3 cells", "env.limit=12 decisions until truncation"} <= set(printed(capsys, *words, "env.size=3"))
    with pytest.raises(UserError, match=r"^env.size has no default; set it$"):
        compose("tiny", words)
    with pytest.raises(UserError, match=r"^env.size=10 leaves no room$"):
        compose("tiny", [*words, "env.size=10"])


def test_help_shows_what_the_tuned_file_sets(capsys):
    tuned = compose("mappo", ["env=merge"])
    with pytest.raises(SystemExit):
        app.main("mappo", ["env=merge", "--help"])
    text = capsys.readouterr().out
    assert "algo.* (mappo, mappo_merge.yaml)" in text
    assert tuned.config.total_steps != type(tuned.config)().total_steps
    assert f"algo.total_steps={tuned.config.total_steps} " in text


def test_an_edited_or_mistaken_configuration_is_one_line(tmp_path):
    given = compose("tiny", ["env=corridor"])
    for edit, message in (
        ({"algo": 3}, "config.yaml: algo is 3, not a group of settings"),
        ({"checkpoint": None}, "config.yaml: checkpoint is None, not a group of settings"),
        ({"algo_name": ["tiny"]}, "algo_name is ['tiny'], not a name"),
        ({"algo": {3: 4}}, "unknown setting 'algo.3'"),
        ({"env": {3: 4}}, "unknown setting 'env.3'"),
        ({3: 4}, "unknown setting '3'"),
    ):
        run_folder.write_config(tmp_path, given.tree | edit)
        with pytest.raises(UserError, match=re.escape(message)):
            compose("tiny", [f"resume={tmp_path}"])
    run_folder.write_config(tmp_path, given.tree)
    for words, message in (
        ("checkpoint.every.foo=1", "unknown setting 'checkpoint.every.foo'"),
        ("sead=1", "did you mean seed"),
        ("checkpoint=3", "checkpoint is a group of settings"),
        ("checkpoint=3 checkpoint.keep=1", "checkpoint=3 stands before it; leave that out"),
        ("seed=1", "leave out seed"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            compose("tiny", [f"resume={tmp_path}", *words.split()])


def test_an_unknown_algorithm_or_command_names_the_nearest(capsys):
    for words, message in ((["train", "mapo", "env=corridor"], "did you mean mappo"), (["evalute"], "did you mean evaluate")):
        assert exit_status.guarded(lambda words=words: app._dispatch(words)) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("env", ["merge", "smax"])
def test_help_explains_itself_without_the_sources(env, capsys):
    text = "\n".join(printed(capsys, f"env={env}"))
    assert re.findall(rf"\b{env}_\w+|\bDRIVERS\b|\bUNIT_NAMES\b", text) == []


def test_names_that_no_file_can_have_are_one_line(tmp_path):
    for setting in ({"name": "a\0b"}, {"name": "a\nb"}, {"name": ""}):
        tree = compose("tiny", ["env=corridor"]).tree | setting
        with pytest.raises(UserError, match="is no plain name"):
            settings.from_tree(tree)
    with pytest.raises(UserError, match="cannot make the run folder"):
        run_folder.create(tmp_path / "a\0b", "title", None)
    with pytest.raises(UserError, match="is not readable"):
        run_folder.read_config(tmp_path / "a\0b")


def test_importing_the_package_stays_light():
    heavy = ("hydra", "orbax", "wandb", "matplotlib", "gymnax", "jaxmarl", "tensorflow_probability")
    code = f"import sys, marljax; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
