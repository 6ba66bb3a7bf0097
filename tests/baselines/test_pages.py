"""Pages of results: what is missing is listed; trainings fill their results and are found again; pages follow from results."""

import dataclasses
import importlib
import os
import shutil

import numpy as np
import pytest
from rich.console import Console

from marljax.baselines import (
    cartpole,
    games,
    jaxmarl_compare,
    league,
    mpe,
    pqn_compare,
    qmix_compare,
    smax_battles,
    swarm,
    untuned,
)
from marljax.baselines.harness import loops, result_cache
from marljax.baselines.harness.loops import Plan
from marljax.baselines.harness.result_cache import ResultCache, summarise

QUIET = Console(quiet=True)
PAGES = [path.stem for path in sorted(result_cache.BASELINES.glob("*.py")) if "\nPAGE = " in path.read_text(encoding="utf-8")]
TINY = Plan(total_steps=12_480, seeds=2, tail=0.5, episodes=16, repetitions=2, updates=1)


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        (cartpole, "marljax; PureJaxRL's loop"),
        (qmix_compare, "QMIX, marljax; QMIX, JaxMARL's loop"),
        (jaxmarl_compare, "; ".join(jaxmarl_compare.LOOPS.values())),
        (mpe, "simple_spread, IPPO; simple_spread, MAPPO"),
        (pqn_compare, "simple_spread, marljax, defaults; simple_spread, marljax, JaxMARL's settings"),
        (untuned, "MPE simple_spread, ippo; MPE simple_reference, ippo"),
        (games, "QMIX two-step; QMIX climbing"),
        (league, "last; uniform; pfsp; nash; rae"),
        (smax_battles, "3m; 3s_vs_5z; 2s3z; smacv2_5_units; 5m_vs_6m; 6h_vs_8z; 8m; 3s5z."),
    ],
)
def test_a_page_lists_what_is_missing(tmp_path, module, missing):
    page = module.PAGE.render(ResultCache(tmp_path, QUIET, compute_missing=False))
    text = " ".join(page.split())
    assert f"Not computed yet: {missing}" in text
    steps = module.PLAN.total_steps if hasattr(module, "PLAN") else getattr(module, "STEPS", 80_000)
    steps = league.MATRIX_CONFIG.total_steps if module is league else steps
    assert f"{steps:,} steps" in text
    assert page.startswith(f"# {module.PAGE.title}\n\n")


def test_a_page_has_a_row_for_every_scripted_policy(tmp_path, monkeypatch):
    def metrics(policy, *_):
        """Two episodes' worth of every metric."""
        shares = {"success": [0.4, 0.6], "collision": [0.4, 0.6], "crash": [0.0, 0.0]}
        deadlock = {} if policy.env.task == "landmarks" else {"deadlock": [0.0, 0.0]}
        return summarise({"return": [1.425, 1.575], "distance": [1.425, 1.575], **shares, **deadlock})

    monkeypatch.setattr(result_cache, "play_scripted", metrics)
    monkeypatch.setattr(swarm, "LEARNED", {})
    monkeypatch.setattr(swarm, "HOVERING", {})
    monkeypatch.setattr(swarm, "AMONG", {})
    text = swarm.PAGE.render(ResultCache(tmp_path, QUIET))
    assert all(f"| {setting}: random | 1.50 ± " in text for setting in swarm.SETTINGS)
    assert "| coverage: nearest landmark | 1.50 ± 0.95 | 50.0 ± 127.1 | 1.50 ± 0.95 | 50.0 ± 127.1 | 0.0 ± 0.0 | – |" in text


def test_battles_stand_by_size_beside_the_published_figures(monkeypatch):
    """The published aggregate only where none of ours is missing."""
    found = {"3m": 0.9, "2s3z": 0.8, "5m_vs_6m": 0.1, "8m": 0.6}

    def won(cache, algo, battle):
        return {"won": {"mean": [found[battle]] * 5, "std": [0.0] * 5, "count": 9}} if battle in found else None

    monkeypatch.setattr(smax_battles, "battle_result", won)
    rows, mean, missing = smax_battles.battles_table("ippo", False, None).split("\n\n")
    assert rows.splitlines()[2:] == [
        "| 3m | 90.0 ± 0.0 | – | – |",
        "| 2s3z | 80.0 ± 0.0 | 89 | 99 |",
        "| 5m_vs_6m | 10.0 ± 0.0 | 5 | 20 |",
        "| 8m | 60.0 ± 0.0 | – | – |",
    ]
    assert mean == "Interquartile mean over these 4 battles: 0.70 [0.70, 0.70].", "of 0.6 and 0.8, the middle half"
    assert missing == "Not computed yet: 3s_vs_5z; smacv2_5_units; 6h_vs_8z; 3s5z."
    assert "published" not in smax_battles.battles_table("pqn", False, None)
    found |= dict.fromkeys(smax_battles.UNITS, 0.5)
    assert smax_battles.battles_table("pqn", False, None).endswith("over other battles, also large ones: 0.95.")


def test_large_battles_are_left_out_on_a_cpu(tmp_path):
    """Trainings of days would begin with the command that makes the page."""
    table = smax_battles.battles_table("pqn", True, ResultCache(tmp_path, QUIET))
    assert "Not computed yet: 3s5z_vs_3s6z" in table
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_pages_follow_from_the_results_that_are_kept(tmp_path, monkeypatch, name):
    """Results are of today's settings, and pages have today's texts; versions and the number of cores may differ."""
    cores = f"{os.cpu_count()} cores"
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    page = importlib.import_module(f"marljax.baselines.{name}").PAGE
    folder = tmp_path / page.name  # a copy: some pages draw pictures beside their results
    shutil.copytree(result_cache.RESULTS / page.name, folder)
    text = page.render(ResultCache(folder, QUIET, compute_missing=False)).replace(cores, "2 cores")
    kept = (result_cache.RESULTS / f"{page.name}.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if not line.startswith("Generated by")] == [
        line for line in kept.splitlines() if not line.startswith("Generated by")
    ]


def test_a_command_rejects_unknown_tables(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["swarm.py", "scriptedd"])
    with pytest.raises(SystemExit):
        swarm.PAGE.main()
    assert "scripted, learned" in " ".join(capsys.readouterr().err.replace("'", "").split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        *(cartpole, jaxmarl_compare, qmix_compare, pqn_compare, untuned, "mappo"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in mpe.PAIRS if name != "mappo"),
    ],
    ids=str,
)
def test_trainings_fill_their_results_and_are_found_again(tmp_path, module, monkeypatch):
    if isinstance(module, str):
        monkeypatch.setattr(mpe, "PAIRS", {module: mpe.PAIRS[module]})
        monkeypatch.setattr(mpe, "ENVS", {"simple_tag": mpe.ENVS["simple_tag"]})
        module = mpe
    monkeypatch.setattr(untuned, "PROBLEMS", {name: untuned.PROBLEMS[name] for name in ("simple_speaker_listener", "CartPole")})
    monkeypatch.setattr(qmix_compare, "MIXERS", {"qmix": "QMIX"})
    left_out = set(pqn_compare.PROBLEMS) - {"simple_spread"}
    settings = {"num_envs": 16, "hidden": 16, "num_epochs": 1, "num_minibatches": 2}
    small = pqn_compare.PROBLEMS["simple_spread"]._replace(settings=settings)
    monkeypatch.setattr(pqn_compare, "PROBLEMS", {"simple_spread": small})
    again = ResultCache(tmp_path, QUIET, compute_missing=False)
    for name, table in module.PAGE.tables.items():
        if module is pqn_compare and name in left_out:
            continue
        text = table(ResultCache(tmp_path, QUIET), plan=TINY)
        assert table(again, plan=TINY) == text, name
        assert text.count("\n") >= 2
        assert "Not computed yet" not in text
        assert "nan" not in text
    if module is jaxmarl_compare:
        rows = [line.split("|") for line in jaxmarl_compare.returns_table(again, TINY).splitlines() if "±" in line]
        assert all(-200 < float(row[2].split("±")[0]) < -5 for row in rows)  # untrained policies get about -25 per agent
        with pytest.raises(ValueError, match="other settings"):
            jaxmarl_compare.returns_table(again, dataclasses.replace(TINY, episodes=TINY.episodes + 1))


def test_the_curve_of_a_training_has_the_means_of_its_parts():
    episodes = np.array([[1.0, 3.0, 0.0, 0.0, 2.0, 0.0]])
    total = np.array([[-1.0, -7.0, 0.0, 0.0, -8.0, 0.0]])
    np.testing.assert_allclose(loops.curve(episodes, total, points=3), [[-2.0, -2.0, -4.0]])


def test_steadiness_shows_the_collapse_of_one_seed():
    """Though the mean hardly shows it and the end is well again."""
    steady = [[-26.0, -20.0, -21.0, -19.0]] * 4
    assert loops.steadiness(steady, -26.0)[-1] == "83%"
    assert loops.steadiness([[-26.0, -25.0, -24.0, -19.0]], -26.0)[-1] == "100%", "learning late is no collapse"
    assert loops.steadiness([*steady, [-26.0, -20.0, -47.0, -20.0]], -26.0)[-1] == "-350%"
    assert loops.steadiness([[-26.0, -27.0, -68.0, -68.0]], -26.0)[-1] == "nothing gained by half"


@pytest.mark.slow
def test_strategies_of_populations_are_exploited_and_compared(tmp_path, monkeypatch):
    """Self-play and populations in a battle as small as they come; its page has their tables and pictures."""
    tiny = league.Plan(
        "3m",
        (*league.CLOSE, "algo.num_envs=4", "algo.rollout_length=16", "algo.num_minibatches=1", "algo.hidden=[8]"),
        leagues=2,
        size=3,
        oracle_steps=128,
        member_steps=128,
        fresh=1,
        battles=4,
    )
    monkeypatch.setattr(league, "PLANS", {"3m": tiny})
    monkeypatch.setattr(league, "RUNS", tmp_path / "runs" / "tables")
    cache = ResultCache(tmp_path / "league", QUIET)
    text = league.exploit_table("3m", cache) + league.payoff_table("3m", cache)
    assert "Not computed" not in text
    for title in league.STRATEGIES:
        assert text.count(f"| {title} | ") == 2
    pictures = {path.name for path in (tmp_path / "league").glob("*.png")}
    assert pictures == {f"3m-{name}.png" for name in (*league.TRAINED, "strategies")}
    assert all(f"(league/{name})" in text for name in pictures)
