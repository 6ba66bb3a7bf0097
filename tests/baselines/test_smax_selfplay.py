"""Checkpoints of self-play fight each other: what the matrix holds, what is kept of it, and what the page says of it."""

import dataclasses
import json

import numpy as np
import pytest
from rich.console import Console

from marljax import UserError
from marljax.baselines import smax_selfplay as selfplay
from marljax.baselines.harness.result_cache import Cells

SMALL = (
    "algo.hidden=[8,8]",
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.num_epochs=1",
    "algo.num_minibatches=1",
    "algo.total_steps=32",
)
PLAN = selfplay.Plan(words=SMALL, seeds=2, checkpoints=2, battles=100)


@pytest.mark.slow
def test_a_small_matrix_is_played_and_kept(tmp_path):
    cells = Cells(tmp_path, Console(quiet=True))
    figures = selfplay.cell(cells, PLAN)
    assert figures["checkpoints"]["steps"] == [0, 32]
    won, lost = (np.array(figures["learned"][name]) for name in ("won", "lost"))
    assert won.shape == lost.shape == (2, 2, 2)
    assert np.array(figures["script"]["lost"]).shape == (2, 2)
    assert (won + lost <= 1).all()
    assert (won + lost > 0).all()
    for index in range(2):
        assert abs(np.mean(won[:, index, index] - lost[:, index, index])) < 0.25  # against itself, 200 battles
    assert np.mean(figures["script"]["lost"]) > 0.5  # who has learned nothing yet

    path = tmp_path / "selfplay-3m.json"
    assert json.loads(path.read_text())["figures"] == figures
    kept = Cells(tmp_path, Console(quiet=True), compute_missing=False)
    assert selfplay.cell(kept, PLAN) == figures
    assert "| trained for (steps) | 0k | 0k | scripted enemy |" in selfplay.section(kept, PLAN)
    with pytest.raises(UserError, match="other settings"):
        selfplay.cell(kept, dataclasses.replace(PLAN, battles=101))


def test_what_the_page_says_of_a_matrix(tmp_path):
    """The second checkpoint beats the first, the third is the equal of both."""
    won = np.array([[[0.4, 0.1, 0.4], [0.8, 0.4, 0.4], [0.4, 0.4, 0.4]]])
    lost = np.array([[[0.4, 0.8, 0.4], [0.1, 0.4, 0.4], [0.4, 0.4, 0.4]]])
    text = selfplay.verdict(won, lost, 500)
    assert "(99 % interval): 3 of 3." in text
    assert "both sides counted: 1 of 3 pairs." in text
    assert "at most 0.0 points" in text
    assert "seed by seed: 40 % won" in text
    assert text.endswith("20 % before training, 20 % after.")
    unfair = selfplay.verdict(won, np.where(np.eye(3, dtype=bool), 0.6, lost), 500)
    assert "(99 % interval): 0 of 3." in unfair
    assert "at most 20.0 points" in unfair
    assert selfplay.section(Cells(tmp_path, Console(quiet=True), compute_missing=False)) == "Not computed yet: self-play 3m."


def test_plans_that_cannot_be_played_are_refused():
    with pytest.raises(UserError, match="teams of 5m_vs_6m differ"):
        _ = selfplay.Plan("5m_vs_6m").settings
    with pytest.raises(UserError, match="1 updates do not divide by 2"):
        selfplay.train(PLAN.settings, 3)
