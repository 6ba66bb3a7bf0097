"""``-m``: Hydra's multirun of this library's own commands."""

import pytest

from marljax import registry
from marljax.cli import app, train
from marljax.io import run_folder

SMALL = ["env=corridor", "algo.total_steps=80", "render=false", "eval.every=0", "eval.episodes=4", "eval.final_episodes=4"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The toys by name, in an empty folder: Hydra leaves its records in the current one."""
    monkeypatch.setitem(registry.ALGORITHMS, "tiny", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words):
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        app.main("tiny", ["-m", *SMALL, *words])
    return ended.value.code


def configs(place):
    return [run_folder.read_config(path.parent) for path in sorted(place.glob("runs/*/*/config.yaml"))]


def test_every_combination_is_a_run_and_sweep_stays_within_one(place):
    assert (
        command(
            "algo.num_envs=2,4", "sweep.learning_rate=tag(log,interval(0.1,1))", "search.method=sobol,random", "search.trials=2"
        )
        == 0
    )
    found = configs(place)
    assert sorted((tree["algo"]["num_envs"], tree["search"]["method"]) for tree in found) == [
        (2, "random"), (2, "sobol"), (4, "random"), (4, "sobol")
    ]  # fmt: skip
    assert all(len(tree["search"]["tried"]) == 2 for tree in found)


def test_quoted_words_and_environments_of_other_libraries(place):
    words = [word for word in SMALL if not word.startswith("env=")]
    with pytest.raises(SystemExit) as ended:
        app.main("tiny", ["-m", *words, "env=gymnax", "env.name=CartPole-v1", "seed=1,2", "sweep.learning_rate='interval(0.1,1)'",
                          "search.method=random", "search.trials=2"])  # fmt: skip
    assert ended.value.code == 0
    assert [(tree["env_name"], tree["seed"]) for tree in configs(place)] == [("gymnax/CartPole-v1", 1), ("gymnax/CartPole-v1", 2)]


def test_a_run_that_fails_lets_the_others_train_and_a_signal_ends_all(place, monkeypatch, capsys):
    assert command("algo.broken_seed=0,-1", "algo.broken_update=2") == 1
    assert len(configs(place)) == 2
    assert "every seed has diverged" in capsys.readouterr().err
    trained = train.train
    started = []

    def stopped(algo, words, command=None):
        if "-m" in words:
            return trained(algo, words, command)
        started.append(words)
        return 143

    monkeypatch.setattr(train, "train", stopped)
    assert command("seed=1,2") == 143
    assert len(started) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["seed=1,2", "name=x"], "name= names one run, and -m starts several"),
        (["seed=1,2", "distributed=true"], "a distributed run is started once in each, without -m"),
        (["algo.num_envs=2,-1"], "algo.num_envs=-1"),
        (["algo.nmu_envs=2,4"], "did you mean algo.num_envs"),
        (["--seed", "1,2"], "settings are written key=value"),
        (["seed=1,2", "hydra/launcher=nope"], "Could not find 'hydra/launcher/nope'"),
        (["seed=1,2)"], "cannot read 'seed=1,2)'"),
    ],
)
def test_nothing_starts_where_one_run_could_not(place, capsys, words, told):
    assert command(*words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines
    assert told in lines[0]
    assert not configs(place)
