"""``-m``: Hydra's multirun of this library's own commands."""

import re

import pytest

from marljax.cli import app, train
from marljax.config import compose
from marljax.io import run_folder

STRANGE = "a (1)=b,c ~é's"  # name of a folder


@pytest.fixture(autouse=True)
def folder(toys, tmp_path, monkeypatch):
    """An empty one: Hydra writes its records to the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The overrides of every run that is started; none trains. A run of seed 13 ends with status 143."""
    runs = []

    def record(algo, overrides, command=None):
        runs.append(overrides)
        return 143 if "seed=13" in overrides else 0

    monkeypatch.setattr(train, "train", record)
    return runs


def command(*words):
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        app.main("tiny", ["-m", *words])
    return ended.value.code


def test_every_combination_is_a_run_and_sweep_stays_within_one(started):
    interval = "sweep.learning_rate=tag(log,interval(0.1,1))"
    words = ["algo.num_envs=2,4", interval, "search.method=sobol,random", "search.trials=2", "algo.layers=[3],[4,5]"]
    assert command("env=corridor", *words) == 0
    runs = [compose.compose("tiny", overrides) for overrides in started]
    found = sorted((run.config.num_envs, run.config.layers, run.run.search.method) for run in runs)
    assert found == [(envs, layers, method) for envs in (2, 4) for layers in ((3,), (4, 5)) for method in ("random", "sobol")]
    assert all(len(run.run.search.tried) == 2 for run in runs)


def test_quoted_values_environments_of_other_libraries_and_paths_taken_literally(started):
    words = ["sweep.learning_rate='interval(0.1,1)'", "search.method=random", "search.trials=2", f"runs={STRANGE}"]
    assert command("env=gymnax", "env.name=CartPole-v1", "seed=1,2", *words) == 0
    runs = [compose.compose("tiny", overrides) for overrides in started]
    assert [(run.env_name, run.run.seed, run.run.runs) for run in runs] == [
        ("gymnax/CartPole-v1", seed, STRANGE) for seed in (1, 2)
    ]


def test_a_signal_ends_all_runs(started):
    assert command("env=corridor", "seed=1,13,2") == 143
    assert len(started) == 2


def test_a_run_that_fails_lets_the_others_train(folder, capsys):
    small = ["env=corridor", "algo.total_steps=80", "render=false", "eval.every=0", "eval.episodes=4", "eval.final_episodes=4"]
    assert command(*small, "algo.broken_seed=0,-1", "algo.broken_update=2") == 1
    assert len([run_folder.read_config(path.parent) for path in folder.glob("runs/*/*/config.yaml")]) == 2
    assert "every seed has diverged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["seed=1,2", "name=x"], "name= .*runs=<folder>"),
        (["seed=1,2", "distributed=true"], "distributed.*without -m"),
        (["algo.num_envs=2,-1"], "algo.num_envs=-1"),
        (["algo.nmu_envs=2,4"], "algo.num_envs"),
        (["--seed", "1,2"], "key=value"),
        (["seed=1,2", "hydra/launcher=nope"], "hydra/launcher/nope"),
        (["seed=1,2)"], r"seed=1,2\)"),
    ],
)
def test_nothing_starts_where_one_run_could_not(started, capsys, words, suggestion):
    assert command("env=corridor", *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines
    assert re.search(suggestion, lines[0])
    assert not started
