"""Sweeps: the settings that are tried, replicas that equal single runs, batches, ranking, loading."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from kill_and_corrupt import arrays
from rich.console import Console

import marljax
from marljax.cli import app, batches, plot
from marljax.config import compose as settings
from marljax.config import sweep
from marljax.errors import UserError
from marljax.io import metrics_log
from marljax.reporting import groups, ranking, report
from marljax.training import load, runner
from marljax.training.evaluation import Evaluator
from marljax.utils import memory

SMALL = ["env=corridor", "algo.total_steps=800", "render=false", "eval.episodes=4", "eval.final_episodes=8", "chunk=10"]
GRID = ["seeds=2", "sweep.learning_rate=[0.1,0.2]", "sweep.env.slip=[0,0.2]"]
pytestmark = pytest.mark.usefixtures("toys")


def compose(folder, *arguments):
    return settings.compose("tiny", [*SMALL, f"runs={folder}", "name=run", *arguments])


def train(folder, *arguments):
    return batches.train(compose(folder, *arguments), Console(quiet=True))


def resume(folder):
    return batches.train(settings.compose("tiny", [f"resume={folder}"]), Console(quiet=True))


@pytest.fixture(scope="module")
def whole(toys, tmp_path_factory):
    """A grid of four settings with two seeds each, in one program."""
    ended = train(tmp_path_factory.mktemp("whole"), *GRID)
    ranking.finish(ended.run.settings, ended.folder, Console(quiet=True))
    return ended


def test_a_grid_is_every_combination_and_draws_fill_their_intervals():
    assert sweep.trials({"a": [1, 2], "b": [3, 4]}, "grid", None, 0) == (
        {"a": 1.0, "b": 3.0},
        {"a": 1.0, "b": 4.0},
        {"a": 2.0, "b": 3.0},
        {"a": 2.0, "b": 4.0},
    )
    asked = {"rate": "tag(log,interval(1e-5,1e-1))", "share": "interval(0.5,0.9)", "kind": "choice(1,2)"}
    for method in ("random", "sobol"):
        drawn = sweep.trials(asked, method, 64, 3)
        assert drawn == sweep.trials(asked, method, 64, 3) != sweep.trials(asked, method, 64, 4)
        rates, shares, kinds = (np.array([trial[name] for trial in drawn]) for name in asked)
        assert 1e-5 <= rates.min() < 1e-4 < 1e-2 < rates.max() <= 1e-1
        assert abs(np.log10(rates).mean() + 3) < (0.1 if method == "sobol" else 0.6)
        assert 0.5 <= shares.min() < 0.55 < 0.85 < shares.max() <= 0.9
        assert set(kinds) == {1.0, 2.0}
    counts = np.histogram([trial["share"] for trial in sweep.trials(asked, "sobol", 64, 0)], 16, (0.5, 0.9))[0]
    assert counts.tolist() == [4] * 16  # evenly, as random draws would not be


def test_no_setting_is_drawn_twice_and_integers_are_whole():
    lists = {"a": [1, 2, 3], "b": [4, 5]}
    for method in ("random", "sobol"):
        drawn = sweep.trials(lists, method, 6, 0)
        assert {tuple(trial.values()) for trial in drawn} == {(a, b) for a in (1, 2, 3) for b in (4, 5)}
        whole = [trial["a"] for trial in sweep.trials({"a": "tag(log,int(interval(2,9)))"}, method, 8, 0)]
        assert sorted(whole) == list(range(2, 10))
    with pytest.raises(UserError, match=r"search.trials=7 .* search.method=grid"):
        sweep.trials(lists, "random", 7, 0)


def test_a_replica_is_the_run_of_its_seed_and_setting(whole, tmp_path):
    """Also with numbers of the environment. Bit for bit: the toy algorithm's numbers do not depend on how many run at once."""
    replicas = whole.run.settings.replicas
    assert len(replicas) == 8
    assert replicas[3].row_key == {"seed": 1, "sweep.learning_rate": 0.1, "sweep.env.slip": 0.2}
    alone = train(tmp_path, "seed=1", "algo.learning_rate=0.1", "env.slip=0.2").run
    params, same = whole.run.replicas.state.learner.params["w"][3], alone.replicas.state.learner.params["w"][0]
    np.testing.assert_array_equal(params, same)

    def rows(folder, place):  # but for evaluations, which play in the sweep's own environment
        found = [row for row in metrics_log.read_rows(folder) if place.items() <= row.items()]
        return [{key: row[key] for key in row if not key.startswith(("time", "sweep", "eval"))} for row in found]

    assert rows(whole.folder, replicas[3].row_key) == rows(alone.folder, {})


@pytest.mark.parametrize("judge", ["standard", "own"])
def test_settings_are_judged_on_the_same_episodes_or_on_their_own(tmp_path, judge):
    ended = train(tmp_path, "sweep.env.limit=[2,6]", f"search.judge={judge}", "algo.learning_rate=0")
    found = [replica["metrics"]["length"] for replica in ranking.read_results(ended.folder, 1)]
    assert (found[0] == found[1]) == (judge == "standard")


def test_batches_give_the_results_of_one_program_also_where_they_were_stopped(whole, tmp_path, monkeypatch):
    """Stopped between the training of one and its final episodes, then by a signal in its last chunk."""

    def stop(run, console):
        raise KeyboardInterrupt

    def signalled(part, console, folder, watcher, train=runner.train):
        return dataclasses.replace(train(part, console, folder, watcher), signal=15)

    with monkeypatch.context() as patch:
        patch.setattr(ranking, "evaluate_runs", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, *GRID, "search.batches=2")
    folder = tmp_path / "tiny_corridor" / "run"
    assert not (folder / "batch_0" / "results.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", signalled)
        ended = resume(folder)
    assert (ended.status, ended.signal, ended.folder) == ("interrupted", 15, folder)
    assert (folder / "batch_0" / "results.json").exists()
    assert not (folder / "batch_1").exists()
    with pytest.raises(UserError, match=r"batch_0 .*resume=.*run"):
        resume(folder / "batch_0")
    ended = resume(folder)
    assert (ended.status, ended.folder) == ("finished", folder)
    ranking.finish(ended.run.settings, folder, Console(quiet=True))
    parts = [arrays(folder / f"batch_{index}") for index in range(2)]
    for name, array in arrays(whole.folder).items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array, err_msg=name)
    assert (whole.folder / "results.json").read_text() == (folder / "results.json").read_text()
    for trial in (None, 2):
        one, other = (marljax.load(each, trial=trial) for each in (whole.folder, folder))
        assert (one.seed, one.score, one.config.learning_rate) == (other.seed, other.score, other.config.learning_rate)
        np.testing.assert_array_equal(one.params["w"], other.params["w"])


def test_the_best_setting_comes_first_with_its_interval(whole):
    ranks = ranking.ranked(whole.run.settings, ranking.read_results(whole.folder, 1))
    assert sorted(rank.trial for rank in ranks) == list(range(4))
    values = [rank.score.value for rank in ranks]
    assert values == sorted(values, reverse=True)
    assert all(rank.score.low <= rank.score.value <= rank.score.high and len(rank.scores) == 2 for rank in ranks)
    params = whole.run.replicas.state.learner.params
    played = runner.play_suite(whole.run.settings, Evaluator(whole.run.settings.env, 8), params, report.FINAL_PART)[
        "return"
    ].mean(-1)
    for rank in ranks:
        own = slice(2 * rank.trial, 2 * rank.trial + 2)
        assert rank.last == pytest.approx(played[own].mean())
        assert rank.updates == whole.run.best.update[own].tolist()
    headers = [column.header for column in ranking.table(whole.run.settings, ranks, {}).columns]
    assert headers[2:5] == ["return", "95 %", "last"]
    saved = json.loads((whole.folder / "results.json").read_text())
    assert [setting["trial"] for setting in saved["settings"]] == [rank.trial for rank in ranks]


def test_the_settings_of_a_sweep_are_groups_that_compare(whole):
    runs, left_out = groups.read_runs(groups.find_runs([str(whole.folder)]))
    found = groups.grouped(runs, "last")
    replicas = json.loads((whole.folder / "results.json").read_text())["replicas"]
    scores = [[seed.metrics["return"] for seed in group.seeds] for group in found]
    assert np.ravel(scores).tolist() == [replica["last"]["return"] for replica in replicas]
    assert (left_out, [len(group.seeds) for group in found]) == ([], [2, 2, 2, 2])
    assert found[1].label == "tiny env.slip=0.2 learning_rate=0.1"
    assert all(seed.rows[-1]["env_steps"] == 800 and seed.rows[-1]["seconds"] > 0 for group in found for seed in group.seeds)
    assert runs[0].results.display.units == {}
    assert runs[0].task["the environment's version"] == "1"


def test_a_sweep_is_drawn_again_where_it_is_ranked(whole, tmp_path, capsys):
    whole.folder.joinpath("sweep.png").unlink(missing_ok=True)
    plot.redraw(whole.folder, Console())
    assert whole.folder.joinpath("sweep.png").exists()
    rows = report.curve_rows(whole.run.settings, whole.folder)
    assert len({(row["setting"], row["seed"]) for row in rows}) == 8  # of each replica
    assert not any(name.startswith("sweep.") for row in rows for name in row)
    unranked = tmp_path / "run"
    unranked.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        unranked.joinpath(name).write_bytes(whole.folder.joinpath(name).read_bytes())
    plot.redraw(unranked, Console())
    assert unranked.joinpath("curve.png").exists()
    assert "have not been ranked yet" in capsys.readouterr().out


def test_lowest_first_and_diverged_replicas_are_counted(tmp_path):
    ended = train(tmp_path, "seeds=2", "sweep.broken_seed=[-1,1]", "search.metric=length", "search.lowest=true")
    assert ended.status == "finished"
    ranks = ranking.ranked(ended.run.settings, ranking.read_results(ended.folder, 1))
    assert [rank.score.value for rank in ranks] == sorted(np.mean(rank.scores) for rank in ranks)
    assert {rank.trial: rank.diverged for rank in ranks} == {0: 0, 1: 1}
    assert [column.header for column in ranking.table(ended.run.settings, ranks, {}).columns][-1] == "diverged"


def test_one_setting_is_loaded_as_a_run_of_its_own(whole):
    loaded = load.load_replicas(whole.folder, "last", trial=3)
    assert loaded.settings.seeds == [0, 1]
    assert float(loaded.settings.config.learning_rate) == pytest.approx(0.2)
    np.testing.assert_array_equal(loaded.params["w"], whole.run.replicas.state.learner.params["w"][6:])
    best = marljax.load(whole.folder)
    trial = json.loads((whole.folder / "results.json").read_text())["settings"][0]["trial"]
    assert best.score == max(np.asarray(whole.run.best.score)[2 * trial :][:2])
    with pytest.raises(UserError, match="trial 4; it tried 0 to 3"):
        marljax.load(whole.folder, trial=4)
    with pytest.raises(UserError, match="seed 7; it trained 0, 1"):
        marljax.load(whole.folder, trial=0, seed=7)


def test_what_memory_does_not_hold_is_split(tmp_path, monkeypatch, capsys):
    """Eight replicas in a memory for three make four batches."""
    wanted = compose(tmp_path, *GRID)
    predict = batches.predict_memory(runner.make_trainer(wanted), wanted)
    monkeypatch.setattr(batches.memory, "free_bytes", lambda: int(predict(3) / batches.MEMORY_FRACTION))
    assert batches.num_batches(wanted, Console(width=200)) == 4
    assert "training 4 batches of 2" in capsys.readouterr().out
    monkeypatch.setattr(batches.memory, "free_bytes", lambda: 100)
    with pytest.raises(UserError, match=r"algo.num_envs"):
        batches.num_batches(wanted, Console(quiet=True))


@pytest.mark.slow
def test_memory_grows_with_replicas_as_predicted():
    """Extrapolated from one and two replicas to the compiler's size of eight, which is less than all of their arrays."""
    arguments = ["algo.num_envs=64", "algo.rollout_length=128", "algo.num_minibatches=2", "seeds=8"]
    wanted = settings.compose("ippo", ["env=corridor", *arguments])
    trainer = runner.make_trainer(wanted)
    needs = trainer.needs(*runner.replica_inputs(wanted))
    assert batches.predict_memory(trainer, wanted)(8) == pytest.approx(needs, rel=0.1)
    arrays = memory.size(trainer.shapes(*runner.replica_inputs(wanted)))
    assert 20 * arrays < needs < trainer.at_most(*runner.replica_inputs(wanted)) < 15 * needs


def test_the_command_draws_ranks_and_replays_the_best(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    small = [argument for argument in SMALL if not argument.startswith("render")]
    draws = ["sweep.learning_rate=tag(log,interval(0.01,1))", "search.method=sobol", "search.trials=4", "seeds=2"]
    with pytest.raises(SystemExit) as stopped:
        app.main("tiny", [*small, *draws, f"runs={tmp_path}", "name=run"])
    output = capsys.readouterr()
    assert stopped.value.code == 0, output.err
    folder = tmp_path / "tiny_corridor" / "run"
    assert "interquartile mean and 95 % interval over 2 seeds × 8 frozen episodes" in output.out
    assert (folder / "sweep.png").stat().st_size > 10_000
    tree = json.loads((folder / "results.json").read_text())
    assert len(tree["settings"]) == 4
    again = settings.compose("tiny", [f"resume={folder}"])  # what was drawn is kept, not drawn again
    assert [trial["learning_rate"] for trial in again.run.search.tried] == [
        entry["values"]["learning_rate"] for entry in sorted(tree["settings"], key=lambda entry: entry["trial"])
    ]
    assert jax.tree.leaves(again.overrides)[0].shape == (8,)
