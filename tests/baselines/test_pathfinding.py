"""The page of ``pathfinding``: scripted policies and the bound next to published figures; POGEMA's speed."""

import itertools

import numpy as np
import pytest
from rich.console import Console

from marljax import tuned
from marljax.baselines import pathfinding
from marljax.baselines.harness import measure, result_cache
from marljax.baselines.harness.result_cache import ResultCache
from marljax.envs.pathfinding import Pathfinding

QUIET = Console(quiet=True)


def test_the_page_has_published_figures_and_lists_what_is_missing(tmp_path):
    page = pathfinding.PAGE.render(ResultCache(tmp_path, QUIET, compute_missing=False))
    assert "| Follower, published | 0.600 | 1.131 | 1.536 | 1.829 | 2.261 | 2.465 |" in page
    assert page.count("Not computed yet") == len(pathfinding.NUMBERS) + len(pathfinding.TOGETHER) + 1  # the algorithms
    for published, maps in [(each, maps) for each in (pathfinding.THROUGHPUT, pathfinding.TOGETHER) for maps in each]:
        assert {len(values) for values in published[maps].values()} == {len(pathfinding.NUMBERS[maps])}


def test_all_learners_see_and_compute_alike():
    """As many agent steps on all maps, and what IPPO's tuned values say of observations and networks."""
    for (algo, overrides), maps in itertools.product(pathfinding.TUNED.values(), pathfinding.NUMBERS):
        run = tuned(algo, "pathfinding", f"env.maps={maps}", *pathfinding.TRAINING.get(maps, ()), *overrides)
        assert run.config.total_steps * run.env.num_agents == 19_200_000
    ippo, *others = (tuned(algo, "pathfinding", *overrides) for algo, overrides in pathfinding.ALGORITHMS.values())
    assert pathfinding.ALGORITHM_STEPS * max(pathfinding.ALGORITHM_AGENTS) == 19_200_000 / 4
    for run in others:
        assert run.env == ippo.env
        for name in ("hidden", "core", "num_envs", "rollout_length", "agent_id"):
            assert getattr(run.config, name) == getattr(ippo.config, name), name


def test_no_policy_is_above_the_bound(tmp_path, monkeypatch):
    """Three agents on the puzzles, once each; every policy plays every map."""
    monkeypatch.setattr(pathfinding, "MAPS", 16)
    monkeypatch.setattr(pathfinding, "EPISODES", 1)
    monkeypatch.setattr(pathfinding, "NUMBERS", {"puzzles": (3,)})
    monkeypatch.setattr(pathfinding, "SEEDS", 2)
    small = ("env.agents=3", "algo.total_steps=2000", "algo.num_envs=4", "algo.rollout_length=64", "env.duration=64")
    monkeypatch.setattr(pathfinding, "TUNED", {"IPPO": ("ippo", small)})
    monkeypatch.setattr(pathfinding, "TRAINING", {})
    monkeypatch.setattr(result_cache, "RUNS", tmp_path / "runs")
    cache = ResultCache(tmp_path, QUIET)
    text = pathfinding.throughput_table("puzzles", cache)
    assert pathfinding.throughput_table("puzzles", ResultCache(tmp_path, QUIET, compute_missing=False)) == text
    rows = {line.split("|")[1].strip(): line.split("|")[2] for line in text.splitlines() if "±" in line}
    found = {name: float(cell.split("±")[0]) for name, cell in rows.items()}
    bound = found.pop("without collisions")
    assert list(found) == ["shortest", "pibt", "pibt, congestion costs", "IPPO, 2 seeds"]
    assert all(0.0 < value < bound for value in found.values())
    metrics = pathfinding.scripted_result(cache, "puzzles", "pibt", 3)
    assert metrics["throughput"]["count"] == 16


def test_the_bound_of_a_lone_agent_is_what_shortest_ways_reach(monkeypatch):
    monkeypatch.setattr(pathfinding, "MAPS", 256)
    env = Pathfinding(maps="puzzles", agents=1)
    bound = pathfinding.without_collisions(env, 16)["throughput"]
    alone = pathfinding.scripted_metrics(pathfinding.scripted_policies(env, env.default_params)["shortest"], 16, 16)["throughput"]
    error = np.hypot(bound["std"], alone["std"]) / bound["count"] ** 0.5
    np.testing.assert_allclose(alone["mean"], bound["mean"], atol=4 * error[0])


def test_pogema_needs_a_python_of_its_own(monkeypatch):
    monkeypatch.delenv(measure.POGEMA_PYTHON, raising=False)
    with pytest.raises(SystemExit, match="POGEMA_PYTHON is not set, and POGEMA needs a Python of its own: python -m venv"):
        measure.pogema_rate(Pathfinding(maps="small"), None, 1)
