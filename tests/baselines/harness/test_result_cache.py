"""Results are computed once, trainings resume where they stopped, intervals are those of the statistics module."""

import json

import jax
import numpy as np
import pytest
from rich.console import Console

from marljax import UserError
from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import ResultCache, summarise
from marljax.baselines.harness.tables import mean_interval, partial_table, rate_interval
from marljax.envs.collective import Collective
from marljax.reporting.tables import markdown_table
from marljax.utils import stats

QUIET = Console(quiet=True)


def test_a_result_is_computed_once_and_kept(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"return": [1.0, 2.0]}

    for _ in range(2):
        assert ResultCache(tmp_path, QUIET).get("human drivers", {"density": "easy"}, compute) == {"return": [1.0, 2.0]}
    assert len(calls) == 1
    with pytest.raises(UserError, match="other settings"):
        ResultCache(tmp_path, QUIET).get("human drivers", {"density": "hard"}, compute)
    assert [path.name for path in tmp_path.iterdir()] == ["human-drivers.json"]
    with pytest.raises(ZeroDivisionError):
        ResultCache(tmp_path, QUIET).get("broken", {}, lambda: {"return": [1 / 0]})
    assert len(list(tmp_path.iterdir())) == 1


def test_a_result_outlives_a_new_setting_but_no_changed_one(tmp_path):
    cache = ResultCache(tmp_path, QUIET)
    kept = cache.get("mappo", {"algo": {"gamma": 0.9}, "seeds": 5}, lambda: {"return": [1.0]})
    assert cache.get("mappo", {"algo": {"gamma": 0.9, "new": 1}, "seeds": 5}, lambda: {}) == kept
    for about in ({"algo": {"gamma": 0.8, "new": 1}, "seeds": 5}, {"algo": {"gamma": 0.9}}):
        with pytest.raises(UserError, match="other settings"):
            cache.get("mappo", about, lambda: {})
    kept = cache.get("align", {"env": str(Collective(agents=9)).replace(", limit='end'", "")}, lambda: {"return": [2.0]})
    assert cache.get("align", {"env": str(Collective(agents=9))}, lambda: {}) == kept
    for env in (Collective(agents=8), Collective(agents=9, bins=0), "Collective"):
        with pytest.raises(UserError, match="other settings"):
            cache.get("align", {"env": str(env)}, lambda: {})


def test_intervals_over_episodes_and_over_seeds():
    values = np.random.default_rng(0).normal(10.0, 2.0, (5, 400))
    one = stats.mean(values[0])
    assert mean_interval(summarise({"x": values[0]})["x"]) == f"{one.value:.1f} ± {one.high - one.value:.1f}"
    seeds = stats.mean(values.mean(1))
    assert mean_interval(summarise({"x": values})["x"], 2) == f"{seeds.value:.2f} ± {seeds.high - seeds.value:.2f}"


def test_many_episodes_are_played_in_batches():
    keys = []

    def play(key, episodes):
        keys.append(jax.random.key_data(key).tolist())
        return {"won": np.full(episodes, float(len(keys)))}

    metric = result_cache.in_batches(play, episodes=25, batch=10)["won"]
    assert (metric["count"], metric["mean"]) == (25, [(10 * 1 + 10 * 2 + 5 * 3) / 25])
    assert keys[0] == jax.random.key_data(result_cache.suite_key()).tolist()
    assert len({tuple(key) for key in keys}) == 3


def test_rates_of_one_policy_are_over_episodes_and_those_of_seeds_over_seeds():
    crashes = np.zeros((5, 200))
    crashes[0, :13] = 1
    expected = stats.wilson(13, 200)
    interval = f"6.5 % [{100 * expected.low:.1f}, {100 * expected.high:.1f}]"
    assert rate_interval(summarise({"crash": crashes[0]})["crash"]) == interval
    assert rate_interval(summarise({"crash": crashes})["crash"]) == "1.3 ± 3.6 %; 0.0–6.5"


def test_markdown():
    lines = markdown_table(["policy", "return"], [["a", "1"], ["b", "2"]]).splitlines()
    assert lines == ["| policy | return |", "| --- | ---: |", "| a | 1 |", "| b | 2 |"]
    assert partial_table(["policy"], [["a"], "b", "c", "b"], "text").endswith("| a |\n\ntext\n\nNot computed yet: b; c.")


OVERRIDES = (
    "env=merge",
    "env.density=easy",
    "algo.total_steps=64",
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.hidden=[8]",
)


@pytest.mark.slow
def test_a_training_is_found_again_and_not_mistaken_for_another(tmp_path):
    overrides = [*OVERRIDES, "algo.num_minibatches=2", "seeds=2", "eval.episodes=4", f"runs={tmp_path}", "name=cell"]
    run, folder = result_cache.train("ippo", overrides, QUIET)
    rows = (folder / "metrics.jsonl").read_text()
    again, same = result_cache.train("ippo", overrides, QUIET)
    assert (same, again.config) == (folder, run.config)
    assert (folder / "metrics.jsonl").read_text() == rows
    metrics = result_cache.play_learned(run, folder, episodes=6)
    assert (len(metrics["return"]["mean"]), metrics["return"]["count"]) == (2, 6)
    assert json.loads(json.dumps(metrics)) == metrics
    with pytest.raises(UserError, match="other settings"):
        result_cache.train("ippo", [*overrides, "algo.gamma=0.5"], QUIET)
