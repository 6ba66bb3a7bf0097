"""The comparison with JaxMARL's loop: both trainings at the same settings, and pages of what there is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import marljax
from marljax.baselines import jaxmarl_compare as compare
from marljax.baselines.harness.result_cache import Cells
from marljax.baselines.rivals import ippo as rival
from marljax.learning import advantages
from marljax.learning.rollout import Step
from marljax.utils import stats

PLAN = compare.Plan(total_steps=6_144, seeds=2, tail=0.5, episodes=16, repetitions=2, updates=1)


def test_both_run_at_the_same_settings():
    ours, theirs = compare.our_config(PLAN), compare.their_config(PLAN)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update) == (3, 2048)
    full = compare.Plan()
    assert compare.our_config(full).num_updates == compare.their_config(full).num_updates == 488


def test_their_advantages_are_ours_where_every_end_is_terminal():
    length, rows = 7, 4
    keys = jax.random.split(jax.random.key(0), 4)
    reward, value = jax.random.normal(keys[0], (2, length, rows))
    done = jax.random.bernoulli(keys[1], 0.3, (length, rows))
    last = jax.random.normal(keys[2], (rows,))
    config = compare.their_config(PLAN)
    kept = rival.Transition(done, done, value, reward, value, value)
    theirs = rival.gae(config, kept, last)
    steps = Step(reward[..., None], jnp.ones((length, rows, 1), bool), done, done)
    ours, _ = advantages.gae(steps, value[..., None], last[:, None], config.gamma, config.gae_lambda)
    np.testing.assert_allclose(theirs, ours[..., 0], rtol=1e-5, atol=1e-6)


def test_the_limit_can_be_an_end():
    env = compare.our_env(limit_ends=True)
    assert env == marljax.make(f"jaxmarl/{compare.NAME}")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    state = state.replace(inner=state.inner.replace(step=jnp.array(25)))
    step = jax.random.key(1), state, jnp.zeros(3, int)
    for own, terminated in ((env, True), (compare.our_env(), False)):
        _, timestep = jax.jit(own.step)(*step)
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (terminated, not terminated)


def test_a_page_says_what_is_missing(tmp_path):
    cells = Cells(tmp_path, Console(quiet=True), compute_missing=False)
    text = compare.page({part: fill(cells) for part, fill in compare.PARTS.items()})
    assert f"Not computed yet: {compare.OURS}; {compare.TERMINAL}; {compare.THEIRS}." in text
    assert "1,000,000 steps" in text
    gap = stats.mean([1.0, 2.0, 3.0])
    line = compare.difference({"mean": [2.0, 4.0, 6.0]}, {"mean": [1.0, 2.0, 3.0]})
    assert line == f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


@pytest.mark.slow
def test_both_trainings_fill_their_cells_and_are_found_again(tmp_path):
    cells = Cells(tmp_path, Console(quiet=True))
    text = compare.returns_table(cells, PLAN)
    again = Cells(tmp_path, Console(quiet=True), compute_missing=False)
    assert compare.returns_table(again, PLAN) == text
    done = again.get("returns theirs", _about(tmp_path / "returns-theirs.json"), dict)
    for figure in done.values():
        assert len(figure["mean"]) == PLAN.seeds
        assert all(-200 < value < -5 for value in figure["mean"])  # untrained policies lie near -25 per agent
    other = dataclasses.replace(PLAN, seeds=1)
    with pytest.raises(ValueError, match="computed for other settings"):
        compare.returns_table(cells, other)


def _about(path):
    import json

    return json.loads(path.read_text())["about"]
