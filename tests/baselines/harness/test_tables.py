"""Cells are computed once, trainings go on where they stopped, figures are written as the statistics module gives them."""

import json

import jax
import numpy as np
import pytest
from rich.console import Console

from marljax import UserError
from marljax.baselines.harness import result_cache as tables
from marljax.baselines.harness.result_cache import Cells, summarise
from marljax.baselines.harness.tables import markdown_table, mean_interval, rate_interval, rate_spread
from marljax.envs.collective import Collective
from marljax.utils import stats


def test_a_cell_is_computed_once_and_kept(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"return": [1.0, 2.0]}

    for _ in range(2):
        assert Cells(tmp_path, Console(quiet=True)).get("human drivers", {"density": "easy"}, compute) == {"return": [1.0, 2.0]}
    assert len(calls) == 1
    with pytest.raises(UserError, match="other settings"):
        Cells(tmp_path, Console(quiet=True)).get("human drivers", {"density": "hard"}, compute)
    assert [path.name for path in tmp_path.iterdir()] == ["human-drivers.json"]


def test_a_cell_outlives_a_new_setting_but_no_changed_one(tmp_path):
    cells = Cells(tmp_path, Console(quiet=True))
    kept = cells.get("mappo", {"algo": {"gamma": 0.9}, "seeds": 5}, lambda: {"return": [1.0]})
    assert cells.get("mappo", {"algo": {"gamma": 0.9, "new": 1}, "seeds": 5}, lambda: {}) == kept
    for about in ({"algo": {"gamma": 0.8, "new": 1}, "seeds": 5}, {"algo": {"gamma": 0.9}}):
        with pytest.raises(UserError, match="other settings"):
            cells.get("mappo", about, lambda: {})
    kept = cells.get("align", {"env": str(Collective(agents=9)).replace(", limit='end'", "")}, lambda: {"return": [2.0]})
    assert cells.get("align", {"env": str(Collective(agents=9))}, lambda: {}) == kept
    for env in (Collective(agents=8), Collective(agents=9, bins=0), "Collective"):
        with pytest.raises(UserError, match="other settings"):
            cells.get("align", {"env": str(env)}, lambda: {})


def test_a_cell_that_fails_leaves_nothing(tmp_path):
    cells = Cells(tmp_path, Console(quiet=True))
    with pytest.raises(ZeroDivisionError):
        cells.get("broken", {}, lambda: {"return": [1 / 0]})
    assert not list(tmp_path.iterdir())


def test_intervals_over_episodes_and_over_seeds():
    values = np.random.default_rng(0).normal(10.0, 2.0, (5, 400))
    one = stats.mean(values[0])
    assert mean_interval(summarise({"x": values[0]})["x"]) == f"{one.value:.1f} ± {one.high - one.value:.1f}"
    seeds = stats.mean(values.mean(1))
    assert mean_interval(summarise({"x": values})["x"], 2) == f"{seeds.value:.2f} ± {seeds.high - seeds.value:.2f}"


def test_many_episodes_are_played_in_parts():
    keys = []

    def play(key, episodes):
        keys.append(jax.random.key_data(key).tolist())
        return {"won": np.full(episodes, float(len(keys)))}

    figure = tables.in_parts(play, episodes=25, at_once=10)["won"]
    assert (figure["count"], figure["mean"]) == (25, [(10 * 1 + 10 * 2 + 5 * 3) / 25])
    assert keys[0] == jax.random.key_data(tables.suite_key()).tolist()
    assert len({tuple(key) for key in keys}) == 3


def test_rates_are_wilson_over_all_episodes():
    crashes = np.zeros((5, 200))
    crashes[0, :13] = 1
    expected = stats.wilson(13, 1000)
    interval = f"1.3 % [{100 * expected.low:.1f}, {100 * expected.high:.1f}]"
    assert rate_interval(summarise({"crash": crashes})["crash"]) == interval
    assert rate_spread(summarise({"crash": crashes})["crash"]) == f"{interval}; 0.0–6.5"
    assert rate_spread(summarise({"crash": crashes[0]})["crash"]).endswith("]")


def test_markdown():
    lines = markdown_table(["policy", "return"], [["a", "1"], ["b", "2"]]).splitlines()
    assert lines == ["| policy | return |", "| --- | ---: |", "| a | 1 |", "| b | 2 |"]


WORDS = ("env=merge", "env.density=easy", "algo.total_steps=64", "algo.num_envs=4", "algo.rollout_length=8", "algo.hidden=[8]")


@pytest.mark.slow
def test_a_training_is_found_again_and_never_taken_for_another(tmp_path):
    words = [*WORDS, "algo.num_minibatches=2", "seeds=2", "eval.episodes=4", f"runs={tmp_path}", "name=cell"]
    run, folder = tables.train("ippo", words, Console(quiet=True))
    rows = (folder / "metrics.jsonl").read_text()
    again, same = tables.train("ippo", words, Console(quiet=True))
    assert (same, again.config) == (folder, run.config)
    assert (folder / "metrics.jsonl").read_text() == rows
    figures = tables.play_learned(run, folder, run.env, run.env_params, episodes=6)
    assert (len(figures["return"]["mean"]), figures["return"]["count"]) == (2, 6)
    assert json.loads(json.dumps(figures)) == figures
    with pytest.raises(UserError, match="other settings"):
        tables.train("ippo", [*words, "algo.gamma=0.5"], Console(quiet=True))
