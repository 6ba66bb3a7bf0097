"""Policies as files, and those that come with marljax."""

import json
import re

import jax
import numpy as np
import pytest

import marljax
from marljax.baselines import pretrained
from marljax.config import compose
from marljax.errors import UserError
from marljax.training import policy_file
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer

NAMES = sorted(policy_file.pretrained())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with untrained parameters, and these."""
    settings = compose.compose("mappo", ["env=merge", "env.density=easy", "tuned=none", "algo.hidden=[4]", "seed=7"])
    trainer = Trainer(settings.algorithm, settings.env, settings.config, make_mesh())
    params = trainer.init(jax.random.split(jax.random.key(3), 1), settings.env_params).state.learner.params
    path = tmp_path_factory.mktemp("policy") / "easy.npz"
    policy_file.write(path, settings, jax.tree.map(lambda leaf: leaf[0], params), 7, 12, {"result": {"return": [1.0, 0.0, 2.0]}})
    return path, params


def edited(path, folder, **changes):
    """The file with other entries, or without those that are None."""
    with np.load(path) as file:
        entries = {name: file[name] for name in file.files} | changes
    file = folder / f"{len(list(folder.iterdir()))}.npz"
    np.savez(file, **{name: entry for name, entry in entries.items() if entry is not None})
    return file


def test_a_file_gives_the_policy_back_and_is_saved_again_as_it_is(written, tmp_path):
    path, params = written
    policy = marljax.load(path)
    jax.tree.map(lambda leaf, own: np.testing.assert_array_equal(leaf[0], own), params, policy.params)
    assert (policy.seed, policy.update, policy.card["result"]["return"]) == (7, 12, [1.0, 0.0, 2.0])
    jax.tree.map(np.testing.assert_allclose, policy.env_params, marljax.make("merge", density="easy").default_params)
    policy.save(tmp_path / "again.npz")
    again = marljax.load(tmp_path / "again.npz")
    jax.tree.map(np.testing.assert_array_equal, policy.params, again.params)
    assert again.card == policy.card


def test_what_is_no_policy_is_refused_in_one_line(written, tmp_path):
    path, _ = written
    about = json.loads(str(np.load(path)["card"]))
    target = about | {"config": about["config"] | {"env_name": "custom", "env": {"target": "os:path"}}}
    broken = tmp_path / "broken.npz"
    broken.write_bytes(path.read_bytes()[:500])
    name = next(name for name in np.load(path).files if name != "card")
    for file, message in [
        (tmp_path / "none.npz", "there is no policy file"),
        (broken, "is not a policy that marljax has saved, or is damaged"),
        ("pretrained/merge-hard-mapo", "unknown pretrained policy 'merge-hard-mapo'"),
        (edited(path, tmp_path, **{name: None}), f"does not fit this version of mappo: {re.escape(name)}"),
        (edited(path, tmp_path, card=np.array(json.dumps(about | {"env_version": "0"}))), "trained in version 0 of merge"),
        (edited(path, tmp_path, card=np.array(json.dumps(target))), "may run any code"),
    ]:
        with pytest.raises(UserError, match=message):
            marljax.load(file)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_shipped_policy_scores_what_its_card_says(name):
    policy = marljax.load(f"{policy_file.PRETRAINED}/{name}")
    card = policy.card
    metrics = pretrained.played(policy, 0, card["checked"])
    for metric, first in card["first"].items():
        assert metrics[metric].mean() == pytest.approx(first, rel=0.02, abs=0.02), metric


def test_every_policy_of_the_command_is_shipped_and_small():
    assert list(policy_file.pretrained()) == sorted(pretrained.COMMANDS)
    assert sum(path.stat().st_size for path in policy_file.pretrained().values()) < 3_000_000
