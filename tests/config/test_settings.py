"""Command lines become settings, and every mistake in one is a line that names the setting and says what to do."""

import dataclasses
import re
import sys
from typing import Any

import numpy as np
import pytest
from flax import struct
from toys import Corridor

import marljax
import marljax.configs
from marljax import registry
from marljax.cli import app
from marljax.config import settings
from marljax.config.compose import compose
from marljax.core.fields import option, param
from marljax.errors import UserError
from marljax.io import run_folder

CUSTOM = ["env=custom", "env.target=toys:Corridor"]


@struct.dataclass
class RoomParams:
    limit: Any = param(12, low=1, integer=True, help="steps until truncation")
    slip: Any = param(0.1, low=0.0, high=1.0, help="probability that a move fails")
    step_cost: Any = param(0.05, unit="m")
    fewest: Any = param(1)
    table: Any = param(lambda: np.zeros(3), help="a list")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room(Corridor):
    """A corridor whose options and params are declared."""

    colour: str = option("green", choices=("green", "blue"), help="of the walls")
    size: int = option(low=1, high=9, help="in cells")

    def __post_init__(self):
        super().__post_init__()
        if self.size == 8:
            raise ValueError("size=8 leaves no room")

    @property
    def default_params(self):
        return RoomParams()


@pytest.fixture(autouse=True)
def room(toys, monkeypatch):
    monkeypatch.setitem(registry.ENVIRONMENTS, "room", "rooms:Room")
    monkeypatch.setitem(sys.modules, "rooms", sys.modules[__name__])


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
    table = compose("tiny", ["env=room", "env.size=3", "env.table=[1,2,3]"]).env_params.table
    np.testing.assert_array_equal(table, [1, 2, 3])


def test_a_run_is_named_by_its_registered_names_or_its_class(monkeypatch):
    own = compose("tiny", [*CUSTOM, "env.agents=2"])
    assert (own.title, own.label, own.env.agents) == ("tiny_corridor", "tiny on Corridor", 2)
    monkeypatch.setitem(registry.ALGORITHMS, "tiny_two", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "kl_pads", "toys:Corridor")
    given = compose("tiny_two", ["env=kl_pads"])
    assert (given.label, given.title) == ("tiny_two on kl_pads", "tiny_two_kl_pads")


def test_python_s_tuned_takes_text():
    for given in ((3, "corridor"), ("tiny", "corridor", None)):
        with pytest.raises(UserError, match=r"tuned.*tuned\('mappo', 'merge'"):
            marljax.tuned(*given)


def test_tuned_files_change_defaults_and_yield_to_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(marljax.configs, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "tuned").mkdir()
    tuned = tmp_path / "tuned" / "tiny_corridor.yaml"
    tuned.write_text("algo:\n  num_envs: 8\n  learning_rate: 0.5\nenv:\n  agents: 1\n  slip: 0.3\n")
    given = compose("tiny", ["env=corridor", "algo.learning_rate=0.25", "env.slip=0.7"])
    assert (given.config.num_envs, given.config.learning_rate, given.env.agents) == (8, 0.25, 1)
    assert given.env_params.slip == np.float32(0.7)
    (tmp_path / "tuned" / "tiny_corridor_sure.yaml").write_text("defaults: [tiny_corridor]\nenv:\n  slip: 0.0\n")
    variant, untuned = (compose("tiny", ["env=corridor", f"tuned={name}"]) for name in ("sure", "none"))
    assert (variant.config.num_envs, variant.env_params.slip) == (8, 0.0)
    assert (untuned.config, untuned.env_params) == (type(untuned.config)(), untuned.env.default_params)
    with pytest.raises(UserError, match=r"tuned.*'sur'.*\bsure\b"):
        compose("tiny", ["env=corridor", "tuned=sur"])
    with pytest.raises(UserError, match="no tuned values of tiny on merge; omit tuned=sure"):
        compose("tiny", ["env=merge", "tuned=sure"])
    tuned.write_text("algo:\n  num_env: 8\n")
    with pytest.raises(UserError, match=r"algo.num_env'.*algo.num_envs"):
        compose("tiny", ["env=corridor"])


def test_the_written_configuration_gives_the_same_settings(tmp_path):
    given = compose("tiny", ["env=corridor", "env.agents=2", "env.slip=0.3", "algo.layers=[4,5]", "seeds=3", "wandb.tags=[x]"])
    run_folder.write_config(tmp_path, given.tree)
    again = settings.from_tree(run_folder.read_config(tmp_path))
    assert (again.config, again.env, again.run, again.tree) == (given.config, given.env, given.run, given.tree)
    assert again.env_params == given.env_params


# Overrides, of ``env=corridor`` where they choose no other and ``env=`` for none; what the message names; what it suggests.
MISTAKES = [
    # names
    ("algo.learning_rat=1", "algo.learning_rat'", "algo.learning_rate"),
    ("learning_rate=1", "'learning_rate'", "algo.learning_rate"),
    ("eval.evry=1", "eval.evry", "eval.every"),
    ("env.slipp=1", "env.slipp", "env.slip"),
    ("algo.num_envs.x=1", "algo.num_envs.x", "--help|algo.num_envs"),
    ("eval=3", "eval", "eval.every"),
    ("algo=mappo", "tiny", "algo=mappo"),
    # types
    ("algo.num_envs=many", "algo.num_envs=many", "an integer, such as 4"),
    ("algo.num_envs=null", "algo.num_envs=null", "an integer"),
    ("algo.layers=3", "algo.layers=3", r"a list, such as \[3,2\]"),
    ("algo.layers=[3,a]", r"algo.layers\[1\]=a", "an integer"),
    ("algo.learning_rate=nan", "algo.learning_rate=nan", "a number"),
    ("env.compete=1", "env.compete=1", "true or false"),
    ("env.limit=2.5", "env.limit=2.5", "an integer"),
    ("wandb.mode=sometimes", "sometimes", "online.*offline|disabled"),
    ("env=room env.size=3 env.table=[1,2]", "env.table", "a list of 3"),
    # ranges
    ("algo.learning_rate=-1", "algo.learning_rate=-1", "at least 0"),
    ("algo.learning_rate=1e39", "algo.learning_rate=", "finite"),
    ("algo.num_envs=1e99", "algo.num_envs=1e", "at most"),
    ("env.limit=3e9", "env.limit=3e", "at most 2147483647"),
    ("env=room env.size=10", "env.size=10", "from 1 to 9"),
    ("env=room env.size=3 env.slip=2", "env.slip=2", "from 0 to 1"),
    ("env=room env.size=3 env.colour=gren", "gren", "green"),
    ("seeds=2e9", "seeds=2000000000", "an integer from 1"),
    ("eval.every=2", "eval.every=2", "from 0 to 1"),
    ("name=../../up", "name='../../up'", "runs="),
    ("runs=/dev/null", "/dev/null/tiny_corridor", "runs="),
    # devices
    ("seeds=3 mesh.seed=2", "mesh.seed", "change one"),
    ("devices=2", "2 devices", "JAX_NUM_CPU_DEVICES"),
    ("devices=3 mesh.data=2", "3 devices", "mesh.data"),
    ("devices=4 mesh.data=2 mesh.seed=1", "mesh.seed=1", "devices=4"),
    ("devices=every", "devices=every", "at least 1, all or auto"),
    ("hosts.index=0", "hosts", "distributed=true"),
    ("distributed=true hosts.index=0", "hosts.index", "hosts.coordinator="),
    # sweeps
    ("sweep=3", "sweep=3", "sweep.learning_rate="),
    ("sweep.layers=[1,2]", "sweep.layers", r"-m algo.layers=.*sweep\.\* takes learning_rate"),
    ("sweep.env.length=[4,5]", "sweep.env.length", "-m env.length="),
    ("sweep.learnin_rate=[1,2]", "sweep.learnin_rate", "sweep.learning_rate"),
    ("sweep.learning_rate=[-1,2]", "sweep.learning_rate=-1", "at least 0"),
    ("sweep.learning_rate=[1,1]", "sweep.learning_rate", "seeds=4"),
    ("sweep.learning_rate=[1,x]", "sweep.learning_rate", "a list of numbers"),
    ("sweep.learning_rate=glob(*)", "sweep.learning_rate", "a list or an interval"),
    ("sweep.learning_rate=interval(0,1)", "sweep.learning_rate", "search.method=sobol"),
    ("sweep.learning_rate=interval(0,1) search.method=sobol", "search.method=sobol", "search.trials=32"),
    ("sweep.learning_rate=interval(1,0) search.method=sobol search.trials=2", "sweep.learning_rate", "smaller to a larger"),
    ("sweep.learning_rate=tag(log,interval(0,1)) search.method=sobol search.trials=2", "sweep.learning_rate", "above 0"),
    ("sweep.learning_rate=[1] search.trials=2", "search.trials=2", "search.method=random"),
    ("sweep.learning_rate=[1] search.method=random search.trials=2", "search.trials=2", "search.method=grid"),
    ("sweep.learning_rate=[1,2,3] search.batches=2", "search.batches", "change one"),
    ("search.trials=3", "search", "sweep.learning_rate="),
    ("search.batch=1", "search.batch", "leave it out"),
    ("search.metric=speed", "'speed'", "known: "),
    ("env.compete=true sweep.learning_rate=[1,2]", "metric", "search.metric="),
    ("seed=1,2", "seed=1,2", "seeds=8"),
    # syntax
    ("~seeds", "~seeds", "not supported"),
    ("seeds", "'seeds'", "key=value"),
    ("--seeds=2", "--seeds=2", "key=value"),
    # environments
    ("env=", "env", "env=merge"),
    ("env=coridor", "'coridor'", "corridor"),
    ("env={a:1}", "env", "env=<name>"),
    ("env=custom", "env=custom", "env.target=package.module:Class"),
    ("env=custom env.target=toys", "'toys'", "package.module:Class"),
    ("env=custom env.target=toys:Coridor", "'Coridor'", "Corridor"),
    ("env=custom env.target=toyz:Corridor", "'toyz'", "PYTHONPATH"),
    ("env=custom env.target=tiny:Config", "tiny:Config", "marljax.Environment"),
    ("env=custom env.target=marljax.wrappers.joint:Joint", "marljax.wrappers.joint:Joint", "in Python"),
    ("env.target=toys:Corridor", "env.target=toys:Corridor", "env=custom"),
    ("env.preset=damaged", "Corridor: default_params", "KeyError: 'damaged'"),
    ("env=room", "env.size", "set it"),
    ("env=room env.size=8", "env.size=8", "no room"),
]


@pytest.mark.parametrize(("overrides", "setting", "suggestion"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_one_line_and_exit_status_2(overrides, setting, suggestion, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = overrides.split()
    environment = [] if any(word.startswith("env=") for word in words) else ["env=corridor"]
    with pytest.raises(SystemExit) as stopped:
        app.main("tiny", [*environment, *(word for word in words if word != "env=")])
    output = capsys.readouterr()
    assert (stopped.value.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert re.match(f"error: .*{setting}", line), line
    assert re.search(suggestion, line), line
    assert list(tmp_path.iterdir()) == []


def printed(capsys, *words, algo="tiny"):
    """The lines of ``--help``, without their spacing."""
    with pytest.raises(SystemExit) as stopped:
        app.main(algo, [*words, "--help"])
    assert stopped.value.code == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_help_lists_every_setting_with_the_value_that_would_run_and_its_meaning(capsys):
    lines = printed(capsys)
    assert lines[-1].startswith("env.*: add env=<name>")
    assert {"algo.num_envs=4", "algo.layers=[3,2]"} <= {line.split()[0] for line in lines if line}
    lines = printed(capsys, "env=room", "seeds=2", "algo.layers=[4]", "env.slip=0.5", "env.size=3")
    assert {"seeds=2", "checkpoint.keep=2", "algo.layers=[4]", "env.length=4"} <= {line.split()[0] for line in lines if line}
    assert {
        "env.colour=green green | blue: of the walls",
        "env.limit=12 of at least 1: steps until truncation",
        "env.slip=0.5 from 0 to 1: probability that a move fails",
        "env.step_cost=0.05 m",
        "env.table=[0,0,0] a list",
    } <= set(lines)
    assert {"env.size=??? in cells", "needs env.size"} <= set(printed(capsys, "env=room"))


def test_help_shows_what_the_tuned_file_sets_and_needs_no_sources(capsys):
    tuned = compose("mappo", ["env=merge"])
    lines = printed(capsys, "env=merge", algo="mappo")
    assert "algo.* (mappo, mappo_merge.yaml)" in lines
    assert tuned.config.total_steps != type(tuned.config)().total_steps
    assert any(re.match(rf"algo.total_steps={tuned.config.total_steps}\b", line) for line in lines)
    assert any(line.startswith("env.drivers.headway=[") for line in lines)
    assert "env.density=hard" in "\n".join(printed(capsys, "env=merge", algo="ppo"))  # which trains on a joint environment
    text = "\n".join([*lines, *printed(capsys, "env=smax")]).replace("mappo_merge", "")
    assert re.findall(r"\b(?:merge|smax)_\w+|\bDRIVERS\b|\bUNIT_NAMES\b", text) == []


def test_a_class_in_the_current_folder_is_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_maze.py").write_text("from toys import Corridor\n\nclass Maze(Corridor):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["env=custom", "env.target=own_maze:Maze"]
    assert any(line.startswith("env.limit=12") for line in printed(capsys, *words))
    assert compose("tiny", words).label == "tiny on Maze"


@pytest.mark.parametrize(
    ("edit", "setting"),
    [
        ({"algo": 3}, "config.yaml: algo"),
        ({"checkpoint": None}, "config.yaml: checkpoint"),
        ({"algo_name": ["tiny"]}, "algo_name"),
        ({"algo": {3: 4}}, "algo.3"),
        ({3: 4}, "'3'"),
        ({"name": "a\0b"}, "name="),
        ({"name": ""}, "name=''"),
    ],
)
def test_an_edited_configuration_is_one_line(tmp_path, edit, setting):
    run_folder.write_config(tmp_path, compose("tiny", ["env=corridor"]).tree | edit)
    with pytest.raises(UserError, match=f"^.*{setting}.*$"):
        compose("tiny", [f"resume={tmp_path}"])


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        ("checkpoint.every.foo=1", "checkpoint.every.foo"),
        ("sead=1", "seed"),
        ("checkpoint=3", "checkpoint.every"),
        ("checkpoint=3 checkpoint.keep=1", "checkpoint=3; remove"),
        ("seed=1", "leave out seed"),
        ("algo=ippo", "tiny"),
        ("env=merge", "env=corridor"),
    ],
)
def test_a_resumed_run_keeps_its_settings(tmp_path, words, suggestion):
    run_folder.write_config(tmp_path, compose("tiny", ["env=corridor"]).tree)
    with pytest.raises(UserError, match=suggestion):
        compose("tiny", [f"resume={tmp_path}", *words.split()])


def test_paths_that_no_file_can_have_are_one_line(tmp_path):
    with pytest.raises(UserError, match="run folder"):
        run_folder.create(tmp_path / "a\0b", "title", None)
    with pytest.raises(UserError, match="not readable"):
        run_folder.read_config(tmp_path / "a\0b")
