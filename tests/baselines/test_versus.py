"""Loops side by side, PPO with PureJaxRL's and QMIX with JaxMARL's: the same settings, pages of what there is, trainings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from marljax.baselines import cartpole, jaxmarl_qmix, qmix_compare
from marljax.baselines.tables import Cells
from marljax.baselines.versus import Plan

QUIET = Console(quiet=True)
TINY = Plan(total_steps=12_480, seeds=2, tail=0.5, episodes=16, repetitions=2, updates=1)


@pytest.mark.parametrize("mixer", ["qmix", "vdn"])
def test_both_qmix_loops_run_at_the_same_settings(mixer):
    ours, theirs = qmix_compare.our_config(Plan(), mixer), qmix_compare.their_config(Plan(), mixer)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update) == (4807, 208)
    assert ours.capacity * ours.num_envs == theirs.buffer_size
    begins = ours.learning_starts / ours.steps_per_update
    assert np.ceil(begins) == np.floor(theirs.learning_starts / theirs.steps_per_update) + 1, "the same first gradient step"


def test_both_ppo_loops_run_at_the_same_settings():
    ours, theirs = cartpole.our_config(cartpole.PLAN), cartpole.their_config(cartpole.PLAN)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update) == (976, 512)


def test_their_mixer_is_monotonic():
    """From any weights."""
    keys = jax.random.split(jax.random.key(0), 4)
    mixer = jaxmarl_qmix.Mixer(4, 8, 1.0)
    values, state = jax.random.normal(keys[0], (5, 7, 3)), jax.random.normal(keys[1], (5, 7, 6))
    weights = jax.tree.map(lambda w: w + jax.random.normal(keys[2], w.shape), mixer.init(keys[3], values, state))
    slopes = jax.grad(lambda values: mixer.apply(weights, values, state).sum())(values)
    assert (slopes >= 0).all()
    assert (slopes > 0).mean() > 0.5


def test_their_random_actions_become_rare():
    """Over the first tenth of training, to a twentieth."""
    config = jaxmarl_qmix.Config(total_timesteps=208 * 100)
    assert config.num_updates == 100
    assert (config.eps_start, config.eps_finish, config.eps_decay) == (1.0, 0.05, 0.1)
    ours = qmix_compare.our_config(Plan(total_steps=208 * 100), "qmix")
    shares = [float(qmix_compare.qmix.exploration(ours, jnp.array(update))) for update in (0, 5, 10, 99)]
    np.testing.assert_allclose(shares, [1.0, 0.525, 0.05, 0.05], rtol=1e-6)


@pytest.mark.parametrize(
    ("page", "first"), [(cartpole, "marljax, PureJaxRL's loop"), (qmix_compare, "QMIX, marljax, QMIX, JaxMARL's loop")]
)
def test_a_page_says_what_is_missing(tmp_path, page, first):
    cells = Cells(tmp_path, QUIET, compute_missing=False)
    text = page.page({part: fill(cells) for part, fill in page.PARTS.items()})
    assert f"Not computed yet: {first}" in text
    assert f"{page.PLAN.total_steps:,} steps" in text


@pytest.mark.slow
@pytest.mark.parametrize("page", [cartpole, qmix_compare], ids=["ppo", "qmix"])
def test_both_trainings_fill_their_cells_and_are_found_again(tmp_path, page, monkeypatch):
    monkeypatch.setattr(qmix_compare, "MIXERS", {"qmix": "QMIX"})
    again = Cells(tmp_path, QUIET, compute_missing=False)
    for fill in page.PARTS.values():
        text = fill(Cells(tmp_path, QUIET), TINY)
        assert fill(again, TINY) == text
        assert text.count("\n") >= 3
