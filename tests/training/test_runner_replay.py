"""Runs of QMIX, whose checkpoints hold a replay buffer: announced, resumed to the same bits, not read for a policy."""

import json

import chex
import jax
import pytest
from kill_and_corrupt import arrays, assert_same
from rich.console import Console

import marljax
from marljax.config import compose
from marljax.io import checkpoint
from marljax.training import resume, runner

SMALL = ["env=corridor", "algo.total_steps=400", "algo.num_envs=4", "algo.rollout_length=5", "algo.buffer_size=60"]
SMALL += ["algo.batch_size=8", "algo.learning_starts=0", "algo.hidden=[8,8]", "algo.core=gru", "seeds=2", "chunk=2"]
SMALL += ["render=false", "eval.every=0.5", "eval.episodes=4", "checkpoint.every=0.1"]


def train(folder, *arguments, console=None):
    return runner.train(compose.compose("qmix", [*SMALL, f"runs={folder}", *arguments]), console or Console(quiet=True))


pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture(scope="module")
def finished(toys, tmp_path_factory):
    """An uninterrupted run."""
    return train(tmp_path_factory.mktemp("finished"), "name=whole").run


def test_a_run_is_resumed_with_its_replay_to_the_same_bits(finished, tmp_path, terminate_at):
    """Also where the checkpoint does not know a newer setting."""
    terminate_at(8)
    stopped = train(tmp_path, "name=stopped")
    assert (stopped.status, stopped.run.update) == ("interrupted", 8)
    manifest = checkpoint.checkpoints(stopped.run.folder / "checkpoints")[0] / checkpoint.MANIFEST
    content = json.loads(manifest.read_text())
    del content["notes"]["settings"]["algo"]["tau"]
    manifest.write_text(json.dumps(checkpoint.with_checksum(content)))
    resumed = runner.train(compose.compose("qmix", [f"resume={stopped.run.folder}"]), Console(quiet=True))
    assert resumed.status == "finished"
    assert any("carry.replay.value.inputs" in name for name in arrays(finished.folder))
    assert_same(resumed.run.folder, finished.folder)


def test_a_policy_is_loaded_without_the_replay(finished, monkeypatch):
    names = []
    read = checkpoint.read_arrays
    monkeypatch.setattr(checkpoint, "read_arrays", lambda path, wanted: read(path, names.extend(wanted) or wanted))
    policy = marljax.load(finished.folder, seed=1, which="last")
    assert names
    assert not [name for name in names if "actors" in name or "opt_state" in name]
    params = finished.replicas.state.learner.params.agent
    chex.assert_trees_all_equal(policy.params.agent, jax.tree.map(lambda leaf: leaf[1], params))
    template = resume.saved_shapes(finished.trainer, finished.settings)
    assert checkpoint.structure(template) == checkpoint.structure(resume.Saved(finished.replicas, finished.best))


@pytest.mark.parametrize(("arguments", "count"), [((), 1), (("checkpoint.minutes=0",), 10)])
def test_large_checkpoints_are_announced_and_minutes_apart(tmp_path, capsys, arguments, count):
    run = train(tmp_path, "checkpoint.keep=99", *arguments, console=Console(width=200)).run
    assert len(checkpoint.checkpoints(run.folder / "checkpoints")) == count
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(run.replicas.state.actors.carry.replay.value)) / 2
    assert f"replay buffer: {kept / 1e3:.0f} kB per seed" in capsys.readouterr().out
