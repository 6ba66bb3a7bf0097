"""An algorithm from outside of the package: the REINFORCE of the documentation."""

import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import marljax
from marljax import registry
from marljax.cli import batches
from marljax.cli.plot import plot
from marljax.config import compose
from marljax.io import program_cache

ROOT = Path(__file__).parents[2]
WORDS = ["env=gymnax/CartPole-v1", "render=false", "eval.episodes=8", "eval.final_episodes=8", "checkpoint.every=1"]


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The module of the example, found only from its folder."""
    text = (ROOT / "docs" / "how_to" / "own_algorithm.md").read_text(encoding="utf-8")
    example = re.search(r'```python title="reinforce.py"\n(.*?)```', text, re.DOTALL)
    (tmp_path / "reinforce.py").write_text(example[1], encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(program_cache, "enable", lambda: None)
    yield "reinforce"
    sys.modules.pop("reinforce", None)


def test_the_example_learns(target):
    """On CartPole with every one of three seeds; random actions return 20."""
    algorithm = registry.algorithm("custom", target)
    env = marljax.make("gymnax/CartPole-v1")
    train = marljax.make_train(algorithm, env, algorithm.Config(total_steps=100_000))
    metrics = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 3)).metrics
    last = slice(-20, None)
    returns = metrics["sum_return"][:, last].sum(-1) / metrics["episodes"][:, last].sum(-1)
    assert (np.asarray(returns) > 100).all(), returns


def test_a_run_of_it_is_resumed_and_loaded_only_where_it_is_trusted(target, tmp_path):
    words = [f"algo.target={target}", *WORDS, f"runs={tmp_path}", "name=run", "algo.total_steps=4096", "algo.hidden=[8]"]
    ended = batches.train(compose.compose("custom", words), Console(quiet=True))
    assert (ended.status, ended.folder.parent.name) == ("finished", "reinforce_gymnax-CartPole-v1")
    assert marljax.load(ended.folder).config.hidden == (8,)
    moved = ended.folder.rename(tmp_path / "moved")
    with pytest.raises(marljax.UserError, match=r"algo.target=reinforce.*trust"):
        marljax.load(moved)
    assert marljax.load(moved, trust=True).config.hidden == (8,)
    assert plot([str(moved), f"algo.target={target}"]) == 0


def test_registered_names_are_taken(target, monkeypatch):
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))
    marljax.register_algorithm("own", target)
    assert marljax.tuned("own", "gymnax/CartPole-v1", "algo.hidden=[8]").config.hidden == (8,)
    with pytest.raises(marljax.UserError, match=r"write package\.module"):
        marljax.register_algorithm("own", "reinforce:update")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["custom"], "algo.target"),
        (["custom", "algo.target=json"], "Config, init, update"),
        (["custom", "algo.target=absent_module"], "absent_module"),
        (["ppo", "algo.target=json"], "algo=custom"),
    ],
)
def test_targets_that_are_none(words, part):
    with pytest.raises(marljax.UserError, match=part):
        compose.compose(words[0], ["env=merge", *words[1:]])
