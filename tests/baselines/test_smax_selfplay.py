"""Checkpoints of self-play fight each other: the matrix, its result file and the page's summary."""

import dataclasses
import json

import numpy as np
import pytest
from rich.console import Console

from marljax import UserError
from marljax.baselines import smax_selfplay as selfplay
from marljax.baselines.harness.result_cache import ResultCache

SMALL = (
    "algo.hidden=[8,8]",
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.num_epochs=1",
    "algo.num_minibatches=1",
    "algo.total_steps=32",
)
PLAN = selfplay.Plan(overrides=SMALL, seeds=2, checkpoints=2, battles=100)


@pytest.mark.slow
def test_a_small_matrix_is_played_and_kept(tmp_path):
    cache = ResultCache(tmp_path, Console(quiet=True))
    metrics = selfplay.matrix(cache, PLAN)
    assert metrics["checkpoints"]["steps"] == [0, 32]
    won, lost = (np.array(metrics["learned"][name]) for name in ("won", "lost"))
    assert won.shape == lost.shape == (2, 2, 2)
    assert np.array(metrics["script"]["lost"]).shape == (2, 2)
    assert (won + lost <= 1).all()
    assert (won + lost > 0).all()
    for index in range(2):
        assert abs(np.mean(won[:, index, index] - lost[:, index, index])) < 0.25  # against itself, 200 battles
    assert np.mean(metrics["script"]["lost"]) > 0.5  # before training

    path = tmp_path / "selfplay-3m.json"
    assert json.loads(path.read_text())["figures"] == metrics
    kept = ResultCache(tmp_path, Console(quiet=True), compute_missing=False)
    assert selfplay.matrix(kept, PLAN) == metrics
    assert "| trained for (steps) | 0k | 0k | scripted enemy |" in selfplay.table(kept, PLAN)
    with pytest.raises(UserError, match="other settings"):
        selfplay.matrix(kept, dataclasses.replace(PLAN, battles=101))


def test_the_summary_of_a_matrix(tmp_path):
    """The second checkpoint beats the first, the third is the equal of both."""
    won = np.array([[[0.4, 0.1, 0.4], [0.8, 0.4, 0.4], [0.4, 0.4, 0.4]]])
    lost = np.array([[[0.4, 0.8, 0.4], [0.1, 0.4, 0.4], [0.4, 0.4, 0.4]]])
    text = selfplay.summary(won, lost, 500)
    assert "(99 % interval): 3 of 3." in text
    assert "both sides counted: 1 of 3 pairs." in text
    assert "at most 0.0 points" in text
    assert "seed by seed: 40 % won" in text
    assert text.endswith("20 % before training, 20 % after.")
    unfair = selfplay.summary(won, np.where(np.eye(3, dtype=bool), 0.6, lost), 500)
    assert "(99 % interval): 0 of 3." in unfair
    assert "at most 20.0 points" in unfair
    assert selfplay.table(ResultCache(tmp_path, Console(quiet=True), compute_missing=False)) == "Not computed yet: self-play 3m."


def test_impossible_plans_are_rejected():
    with pytest.raises(UserError, match=r"5m_vs_6m.*2s3z"):
        _ = selfplay.Plan("5m_vs_6m").settings
    with pytest.raises(UserError, match="total_steps or checkpoints"):
        selfplay.train(PLAN.settings, 3)
