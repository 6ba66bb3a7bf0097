"""``marljax new``: files to start environments and algorithms of one's own from."""

import importlib
import sys

import jax
import numpy as np
import pytest

import marljax
from marljax import registry
from marljax.cli import app, exit_status
from marljax.testing import check_env
from marljax.testing.static import scene_error


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, whose modules are found and forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in {path.stem for path in tmp_path.glob("*.py")} - before:
        sys.modules.pop(name, None)


def new(*words):
    return exit_status.guarded(lambda: app.run_command(["new", *words]))


def test_an_environment_keeps_the_contract_and_is_drawn(here, capsys):
    assert new("env", "my_pads") == 0
    assert "env.target=my_pads:MyPads" in capsys.readouterr().out
    env = registry.load_class("my_pads:MyPads")(agents=2, size=3)
    check_env(env)
    assert scene_error(env, env.default_params) == ""


@pytest.mark.slow
def test_its_agents_learn_to_cover_pads(here):
    """At the end twice as many as random actions do."""
    assert new("env", "pads") == 0
    env = registry.load_class("pads:Pads")()
    mappo = registry.algorithm("mappo")
    train = marljax.make_train(mappo, env, mappo.Config(total_steps=150_000, agent_id=True))
    metrics = jax.jit(train)(jax.random.key(0)).metrics
    returns = np.asarray(metrics["sum_return"] / metrics["episodes"])
    assert returns[-10:].mean() > 2 * returns[:3].mean(), returns


@pytest.mark.parametrize("source", sorted(registry.ALGORITHMS))
def test_an_algorithm_is_a_copy_that_trains_itself(here, source, capsys):
    assert new("algo", f"my_{source}", f"from={source}") == 0
    assert f"algo.target=my_{source}" in capsys.readouterr().out
    text = (here / f"my_{source}.py").read_text(encoding="utf-8")
    assert "__main__" not in text
    assert f"python algos/{source}.py" not in text
    copy = registry.algorithm("custom", f"my_{source}")
    assert copy.__file__ == str(here / f"my_{source}.py")
    assert copy.Config().__dict__ == registry.algorithm(source).Config().__dict__


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["environment", "pads"], "env"),
        (["env"], "new env my_env"),
        (["env", "My-Pads"], "lower-case"),
        (["env", "class"], "lower-case"),
        (["env", "json"], "another name"),
        (["env", "view"], "my_view"),
        (["env", "pads", "size=3"], "leave out size=3"),
        (["algo", "mine", "from=mapo"], "mappo"),
        (["algo", "mine", "mappo"], "leave out mappo"),
        (["env", "taken"], "exists"),
    ],
)
def test_mistakes_write_nothing(here, words, suggestion, capsys):
    (here / "taken.py").write_text("kept")
    assert new(*words) == 2
    error = capsys.readouterr().err
    assert suggestion in error
    assert error.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["taken.py"]
    assert (here / "taken.py").read_text() == "kept"
