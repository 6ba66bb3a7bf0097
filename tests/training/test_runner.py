"""Runs: bitwise resumes, frozen replicas, one row per chunk and seed, one trace, one writer."""

import dataclasses
import glob
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
import tiny
from kill_and_corrupt import assert_same, newest, timeless
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import Corridor

import marljax
from marljax.config import compose, schema
from marljax.errors import UserError
from marljax.io import checkpoint, metrics_log, run_folder
from marljax.reporting import report
from marljax.training import best, load, runner, trackers
from marljax.training.evaluation import Evaluator, ScriptedPolicy
from marljax.training.resume import extension_line

# 40 updates; most runs here have three seeds and chunks of 2, and share one compiled program
TINY = ["env=corridor", "algo.total_steps=800", "render=false", "eval.episodes=4", "checkpoint.every=0.1"]
SHARED = ("seeds=3", "chunk=2")
pytestmark = pytest.mark.usefixtures("toys")


def train(tmp_path, *arguments, name="run", console=None):
    settings = compose.compose("tiny", [*TINY, f"runs={tmp_path}", f"name={name}", *arguments])
    return runner.train(settings, console or Console(quiet=True))


def resume(folder, console=None):
    return runner.train(compose.compose("tiny", [f"resume={folder}"]), console or Console(quiet=True))


@pytest.fixture(scope="module")
def finished(toys, tmp_path_factory):
    """An uninterrupted run of three seeds."""
    return train(tmp_path_factory.mktemp("finished"), *SHARED)


def assert_same_state(run, other):
    for one, two in zip(*(jax.tree.leaves((each.replicas, each.best)) for each in (run, other)), strict=True):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        np.testing.assert_array_equal(one, two)


def test_a_run_leaves_rows_checkpoints_and_its_configuration(finished):
    run = finished.run
    assert (finished.status, run.update) == ("finished", 40)
    rows = metrics_log.read_rows(run.folder)
    assert [(row["update"], row["seed"]) for row in rows] == [(update, seed) for update in range(0, 41, 2) for seed in (0, 1, 2)]
    assert rows[-1]["env_steps"] == 800
    assert [path.name for path in checkpoint.checkpoints(run.folder / "checkpoints")] == ["00000040", "00000036"]
    assert run_folder.read_config(run.folder)["algo"]["total_steps"] == 800
    scores = [[row["eval_return"] for row in rows if row["seed"] == seed and "eval_return" in row] for seed in (0, 1, 2)]
    np.testing.assert_allclose(run.best.score, np.max(scores, -1), rtol=1e-6)


def test_neither_chunks_nor_other_seeds_change_a_run(finished, tmp_path):
    params = finished.run.replicas.state.learner.params
    other = train(tmp_path, "seeds=3", "chunk=15", "eval.every=0.5", name="chunks").run
    chex.assert_trees_all_equal(params, other.replicas.state.learner.params)
    alone = train(tmp_path, "seed=2", "chunk=2", name="alone").run
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[2:], params), alone.replicas.state.learner.params)


def test_a_signal_stops_after_the_chunk_and_resume_goes_on_to_the_same_bits(finished, tmp_path, terminate_at):
    terminate_at(14)
    stopped = train(tmp_path, *SHARED)
    assert (stopped.status, stopped.signal, stopped.run.update) == ("interrupted", signal.SIGTERM, 14)
    with (stopped.run.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 16, "seed": 0}) + '\n{"update": 16, "se')  # as a kill after the checkpoint leaves it
    resumed = resume(stopped.run.folder)
    assert resumed.status == "finished"
    assert_same_state(resumed.run, finished.run)
    assert timeless(resumed.run.folder) == timeless(finished.run.folder)


def test_a_damaged_newest_checkpoint_costs_only_its_updates(finished, tmp_path, capsys):
    run = train(tmp_path, *SHARED).run
    newest = checkpoint.checkpoints(run.folder / "checkpoints")[0]
    largest = max((file for file in (newest / "arrays").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    resumed = resume(run.folder, Console())
    assert "00000040 is damaged" in capsys.readouterr().out
    assert_same_state(resumed.run, finished.run)
    assert timeless(run.folder) == timeless(finished.run.folder)


def test_resume_takes_only_what_changes_no_result(finished):
    folder = finished.run.folder
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("chunk: 2", "chunk: 4"))
    again = runner.train(compose.compose("tiny", [f"resume={folder}", "env=corridor", "checkpoint.keep=1"]), Console(quiet=True))
    assert_same_state(again.run, finished.run)
    with pytest.raises(UserError, match="tiny"):
        compose.compose("mappo", [f"resume={folder}"])


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing_behind(finished, tmp_path, monkeypatch):
    def refuse(*_):
        raise UserError("no")

    with monkeypatch.context() as patch:
        patch.setattr(tiny, "update", refuse)
        with pytest.raises(UserError, match="no"):
            train(tmp_path / "runs", "algo.num_envs=7")  # a size that no other test has compiled
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(runner, "announce", refuse)
    for before in ([], ["other"]):
        for name in before:
            (tmp_path / "runs" / "tiny_corridor" / name).mkdir(parents=True)
        with pytest.raises(UserError, match="no"):
            train(tmp_path / "runs", *SHARED)
        assert [path.name for path in tmp_path.glob("runs/tiny_corridor/*")] == before
        assert (tmp_path / "runs").exists() == bool(before)


def test_only_the_diverged_seed_freezes(finished, tmp_path, capsys):
    ended = train(tmp_path, "algo.broken_seed=1", "algo.broken_update=7", *SHARED, console=Console())
    run = ended.run
    assert ended.status == "finished"
    assert "seed 1 diverged: loss is not finite at update 8" in capsys.readouterr().out
    np.testing.assert_array_equal(run.diverged, [False, True, False])
    np.testing.assert_array_equal(run.replicas.state.learner.updates, [40, 7, 40])
    weights, healthy = (np.asarray(each.replicas.state.learner.params["w"]) for each in (run, finished.run))
    np.testing.assert_array_equal(weights[[0, 2]], healthy[[0, 2]])
    assert np.isfinite(weights).all()
    assert not np.array_equal(weights[1], healthy[1])
    assert max(row["update"] for row in metrics_log.read_rows(run.folder) if row["seed"] == 1) == 8
    assert run.best.update[1] <= 8


@pytest.mark.parametrize("arguments", [(), ("eval.every=0", "checkpoint.every=0")])
def test_a_run_stops_when_every_seed_has_diverged_and_keeps_the_last_good_parameters(tmp_path, arguments):
    ended = train(tmp_path, "algo.broken_seed=0", "algo.broken_update=7", "chunk=2", *arguments)
    assert (ended.status, ended.run.update) == ("diverged", 8)
    assert checkpoint.checkpoints(ended.run.folder / "checkpoints")[0].name == "00000008"
    assert np.isfinite(marljax.load(ended.run.folder).params["w"]).all()
    last = marljax.load(ended.run.folder, which="last").params["w"]
    np.testing.assert_array_equal(last, ended.run.replicas.state.learner.params["w"][0])
    assert np.isfinite(last).all()
    assert resume(ended.run.folder).status == "diverged"


def test_only_seeds_without_an_evaluation_fall_back_on_their_last_parameters():
    found = best.Best({"w": np.array([[1.0], [2.0]])}, np.array([3.0, -np.inf], np.float32), np.array([4, 0]))
    np.testing.assert_array_equal(best.best_or_last(found, {"w": np.array([[5.0], [6.0]])})["w"], [[1.0], [6.0]])
    np.testing.assert_array_equal(best.best_updates(found, 9), [4, 9])


@pytest.mark.parametrize("compete", [False, True])
def test_where_teams_compete_the_newest_parameters_are_the_best(monkeypatch, compete):
    monkeypatch.setattr(runner, "play_suite", lambda *_: {"return": np.zeros((1, 4))})
    replicas = SimpleNamespace(state=SimpleNamespace(learner=SimpleNamespace(params={"w": np.array([[2.0]])})))
    before = best.Best({"w": np.array([[1.0]])}, np.array([3.0], np.float32), np.array([4]))
    settings = SimpleNamespace(env=Corridor(compete=compete))
    run = SimpleNamespace(replicas=replicas, settings=settings, best=before, diverged=np.array([False]), update=9)
    runner.evaluate(run, None)
    assert (run.best.params["w"].item(), run.best.update.item()) == ((2.0, 9) if compete else (1.0, 4))


def test_an_update_is_traced_once(tmp_path, monkeypatch):
    chex.clear_trace_counter()
    monkeypatch.setattr(tiny, "update", chex.assert_max_traces(tiny.update, n=1))
    assert train(tmp_path, "chunk=2", "algo.num_envs=3").status == "finished"


def test_one_writer_and_one_run_per_folder(finished):
    folder = finished.run.folder
    with run_folder.locked(folder), pytest.raises(UserError, match="another process"), run_folder.locked(folder):
        pass
    with pytest.raises(UserError, match="choose another name="):
        run_folder.create(folder.parent.parent, folder.parent.name, folder.name)


def test_load_gives_the_evaluated_parameters(finished, monkeypatch):
    run = finished.run
    policy = marljax.load(run.folder)
    index = int(np.argmax(run.best.score))
    assert (policy.seed, policy.update, policy.score) == (index, run.best.update[index], run.best.score[index])
    np.testing.assert_array_equal(policy.params["w"], run.best.params["w"][index])
    last = marljax.load(run.folder, seed=1, which="last")
    np.testing.assert_array_equal(last.params["w"], run.replicas.state.learner.params["w"][1])
    state, timestep = policy.env.reset(jax.random.key(0), policy.env_params)
    action, carry = policy(jax.random.key(1), state, timestep, policy.initial_carry())
    assert (action.shape, carry) == ((policy.env.num_agents,), ())
    params = jax.tree.map(lambda leaf: leaf[None], policy.params)
    again = runner.play_suite(run.settings, Evaluator(run.settings.env, 4), params, 0)
    np.testing.assert_allclose(again["return"].mean(), policy.score, rtol=1e-6)
    with pytest.raises(UserError, match="seed 9; it trained 0, 1, 2"):
        marljax.load(run.folder, seed=9)
    with pytest.raises(UserError, match="is not a run folder"):
        marljax.load(run.folder.parent)
    monkeypatch.setattr(type(run.settings.env), "version", "2")
    with pytest.raises(UserError, match="env version 1, not 2"):
        marljax.load(run.folder)


def always_walk(key, state, timestep, carry):
    return jax.numpy.full(timestep.alive.shape, tiny.FORTH), carry


@pytest.fixture
def walker(monkeypatch):
    """A scripted policy, alone."""
    monkeypatch.setattr(
        report, "scripted_policies", lambda env, env_params: {"walker": ScriptedPolicy(env, env_params, always_walk)}
    )


def test_learned_and_scripted_policies_play_the_same_episodes_in_every_run(finished, walker):
    """Whatever is evaluated in training, and however many episodes."""
    settings, params = finished.run.settings, finished.run.best.params
    other = dataclasses.replace(settings, run=dataclasses.replace(settings.run, eval=schema.Evaluation(0.5, 7, 9)))
    lines = []
    many, same, few = (
        dict(report.compare(each, params, 1, episodes, lines.append))
        for each, episodes in ((settings, 40), (other, 40), (other, 6))
    )
    for name in ("tiny", "walker"):
        assert len(np.unique(many[name]["return"])) > 4
        np.testing.assert_array_equal(many[name]["return"], same[name]["return"])
        np.testing.assert_allclose(many[name]["return"][..., :6], few[name]["return"], rtol=1e-6)
    walks = np.asarray(params["w"][:, 0, 0] > 0)
    assert walks.any()
    np.testing.assert_allclose(few["tiny"]["return"][walks][0], few["walker"]["return"], rtol=1e-6)
    assert lines[:2] == ["evaluating tiny on 40 episodes × 3 seeds", "evaluating baselines: walker"]
    changed = load.with_env(settings, {"limit": 3, "agents": 2})
    assert (int(changed.env_params.limit), changed.env.agents) == (3, 2)


def test_last_parameters_that_are_or_play_as_the_best_get_no_row_of_their_own(finished, walker):
    params, last = finished.run.best.params, finished.run.replicas.state.learner.params
    alike = params | {"w": 2 * params["w"]}  # only the sign counts
    assert not best.same_parameters(params, last)
    assert not best.same_parameters(params, alike)
    for first, second, rows in ((params, last, 2), (last, last, 1), (params, alike, 1)):
        names = [name for name, _ in report.compare(finished.run.settings, first, 1, 4, last=second)]
        assert names == [*["tiny", "tiny, last"][:rows], "walker"]


def test_lines_about_many_seeds_are_short(finished):
    settings = finished.run.settings
    many = dataclasses.replace(settings, replicas=tuple(settings.replicas[0]._replace(seed=seed) for seed in range(40)))
    lines = report.describe_best(many, np.arange(40))
    assert lines[0] == "best parameters: after updates 0 to 39 of 40, median 20"
    assert lines[1].startswith("warning: seed 0: ")
    assert "20 of 40 runs" in report.describe_best(many, np.arange(40) // 20)[1]
    assert len(report.describe_best(many, np.full(40, 3))) == 1


def test_killed_in_mid_run_and_resumed_gives_the_same_bits(tmp_path):
    """At any time, from outside: a run of 200 updates, of which the process of the test trains a second one and the rest."""
    long = (*SHARED, "algo.total_steps=4000", "eval.every=0.1")
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "toy_command.py"), "tiny", *TINY, *long]
    running = subprocess.Popen([*command, f"runs={tmp_path}", "name=killed"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    folder = tmp_path / "tiny_corridor" / "killed"
    while len(checkpoint.checkpoints(folder / "checkpoints")) < 2 and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, running.stdout.read().decode()
    whole = train(tmp_path, *long, name="whole").run
    assert resume(folder).run.update == whole.update == newest(folder) == 200
    assert_same(folder, whole.folder)


def test_wandb_writes_one_offline_run_per_seed_and_says_how_to_send_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = train(tmp_path, *SHARED, "wandb.mode=offline", console=Console()).run
    command = next(line for line in capsys.readouterr().out.splitlines() if "wandb sync" in line).split("wandb sync ")[1]
    assert len(glob.glob(command)) == 3
    assert command == f"{run.folder}/wandb/offline-run-*"


def test_wandb_out_of_reach_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(trackers, "WANDB_TIMEOUT", 2)
    with pytest.raises(UserError, match=r"wandb.mode=online .* use wandb.mode=offline") as refused:
        train(tmp_path, *SHARED, "wandb.mode=online")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_shows_every_row_once_also_after_a_resume(tmp_path, terminate_at):
    terminate_at(14)
    stopped = train(tmp_path, *SHARED, "tensorboard=true").run
    shutil.rmtree(checkpoint.checkpoints(stopped.folder / "checkpoints")[0])  # goes on from update 12
    run = resume(stopped.folder).run
    rows = metrics_log.read_rows(run.folder)
    for seed in (0, 1, 2):
        events = EventAccumulator(str(run.folder / "tensorboard" / f"seed{seed}")).Reload()
        assert events.Tags()["scalars"]
        for name in events.Tags()["scalars"]:
            points = [(each.step, each.value, each.wall_time) for each in events.Scalars(name)]
            own = [(row["env_steps"], row[name], row["time"]) for row in rows if row["seed"] == seed and name in row]
            np.testing.assert_allclose(points, own, rtol=1e-6)


def test_tensorboard_without_its_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match=r"^tensorboard=true .*pip install tensorboardX$"):
        train(tmp_path, *SHARED, "tensorboard=true")
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_for_longer_to_what_a_longer_one_computes(finished, tmp_path, terminate_at, capsys):
    short = train(tmp_path, *SHARED, "algo.total_steps=400").run
    run_folder.write_results(short.folder, {"policies": {}})
    longer = [f"resume={short.folder}", "algo.total_steps=800"]
    with pytest.raises(UserError, match=r"algo.total_steps=200 is less than the 400 of .*longer"):
        compose.compose("tiny", [longer[0], "algo.total_steps=200"])
    terminate_at(22)
    stopped = runner.train(compose.compose("tiny", longer), Console())
    assert (stopped.status, stopped.run.update) == ("interrupted", 22)
    assert "algo.total_steps was 400 and is 800; nothing is annealed" in capsys.readouterr().out
    assert not (short.folder / "results.json").exists()  # of the shorter run
    assert marljax.load(short.folder, which="last").update == 22
    resumed = resume(short.folder, Console()).run
    assert "for longer" not in capsys.readouterr().out
    chex.assert_trees_all_equal(*(each.replicas.state.learner.params for each in (resumed, finished.run)))
    assert run_folder.read_config(short.folder)["algo"]["total_steps"] == 800
    sessions = json.loads((short.folder / "run.json").read_text())["sessions"]
    assert [session.get("extended_from") for session in sessions] == [None, 400, None]
    config = short.folder / "config.yaml"
    config.write_text(config.read_text().replace("total_steps: 800", "total_steps: 400"))
    with pytest.raises(UserError, match=r"algo.total_steps was 800 and is 400"):
        resume(short.folder)


def test_where_something_is_annealed_going_on_for_longer_says_that_it_is_another_run():
    longer = compose.compose("tiny", ["env=corridor", "algo.anneal=true", "algo.total_steps=440"])
    line = extension_line(longer, runner.make_trainer(longer), 400)
    assert "was 400 and is 440; what is annealed now follows the longer schedule" in line


def test_a_new_run_starts_from_the_parameters_of_another(finished, tmp_path, capsys):
    """Seed by seed, its first evaluation is the score of the loaded policy, here and in another environment."""
    source, run = finished.run.folder, finished.run

    def first_rows(started):
        rows = metrics_log.read_rows(started.folder)
        return [row["eval_return"] for row in rows if row["update"] == 0]

    same = train(tmp_path, *SHARED, f"init_from={source}", "seed=5", name="same", console=Console()).run
    np.testing.assert_allclose(first_rows(same), run.best.score, rtol=1e-6)
    assert f"starting from the best parameters of {source}: the seeds in their order" in capsys.readouterr().out
    (session,) = json.loads((same.folder / "run.json").read_text())["sessions"]
    updates = run.best.update.tolist()
    assert session["init_from"] == {"folder": str(source), "which": "best", "seeds": [0, 1, 2], "updates": updates}
    np.testing.assert_array_equal(same.replicas.state.learner.updates, [40, 40, 40])
    own = metrics_log.read_rows(finished.run.folder)
    assert first_rows(same) != [row["eval_return"] for row in own if row["update"] == 0]

    words = ("env.slip=0.6", f"init_from={source}", "init_which=last", "chunk=2")
    alone = train(tmp_path, *words, name="alone").run  # fewer seeds: all start from the best one
    params = jax.tree.map(lambda leaf: leaf[None], marljax.load(source, which="last").params)
    played = runner.play_suite(alone.settings, Evaluator(alone.settings.env, 4), params, 0)
    np.testing.assert_allclose(first_rows(alone), played["return"].mean(-1), rtol=1e-6)


def test_parameters_that_do_not_fit_are_one_line(finished, tmp_path):
    source = finished.run.folder
    refused = rf"^init_from={re.escape(str(source))} does not fit: w is float32\[3, 2\] there and float32\[4, 2\] here; .*sizes$"
    with pytest.raises(UserError, match=refused):
        train(tmp_path, "algo.layers=[4,2]", f"init_from={source}")
    with pytest.raises(UserError, match="is not a run folder"):
        train(tmp_path, f"init_from={source.parent}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="leave out init_from"):
        compose.compose("tiny", [f"resume={source}", f"init_from={source}"])


@pytest.mark.parametrize("option", [True, False])
def test_values_above_the_largest_possible_return_are_warned_of_once(option):
    """With rewards of at most 2 and γ = 0.9 no policy is worth more than 20, as 0 and 2 claim; replica 1 has its own γ."""
    config = SimpleNamespace(gamma=np.array([0.9, 0.99, 0.9]), **({"bootstrap_limit": True} if option else {}))
    run = SimpleNamespace(
        replicas=SimpleNamespace(config=config),
        trainer=SimpleNamespace(num_updates=100),
        largest_reward=np.zeros(3),
        names=["seed 0", "seed 1", "seed 2"],
        update=0,
    )
    lines = []
    for value, reward in ((90.0, 0.1), (21.0, 2.0), (30.0, 1.0), (40.0, 1.0)):  # a chunk each; the first is too early
        run.update += 4
        metrics = {"max_value": np.array([[value], [30.0], [np.nan]]), "max_reward": np.array([[reward], [1.0], [2.0]])}
        runner.report_impossible_values(run, metrics, lines.append)
    assert len(lines) == 1
    assert all(text in lines[0] for text in ("seed 0", "30", "20 is the limit"))
    assert ("bootstrap_limit=false" in lines[0]) == option
