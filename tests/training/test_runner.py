"""Runs: resumed to the same bits, frozen where they diverge, one row per chunk and seed, one trace, one writer."""

import dataclasses
import json
import os
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
from rich.console import Console
from toys import Corridor

import marljax
from marljax import registry
from marljax.config import compose, schema
from marljax.errors import UserError
from marljax.io import checkpoint, metrics_log, run_folder
from marljax.reporting import report
from marljax.training import load, runner
from marljax.training import wandb as wandb_runs
from marljax.training.evaluation import ScriptedPolicy

# 40 updates; most runs here share seeds=3 and chunk=2, and with them one compiled program
TINY = [
    "env=corridor",
    "algo.total_steps=800",
    "render=false",
    "eval.episodes=4",
    "eval.final_episodes=8",
    "checkpoint.every=0.1",
]


@pytest.fixture(autouse=True)
def algorithms(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "tiny", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")


def train(tmp_path, *words, name="run"):
    return runner.train(compose.compose("tiny", [*TINY, f"runs={tmp_path}", f"name={name}", *words]), Console(quiet=True))


def state_of(run):
    return [np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
            for x in jax.tree.leaves((run.members, run.best))]  # fmt: skip


def assert_same_state(run, other):
    for one, two in zip(state_of(run), state_of(other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run of three seeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ALGORITHMS, "tiny", "tiny")
        patch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
        return train(tmp_path_factory.mktemp("finished"), "seeds=3", "chunk=2")


def test_a_run_leaves_rows_checkpoints_and_its_configuration(finished):
    run = finished.run
    assert (finished.status, run.update) == ("finished", 40)
    rows = metrics_log.read_rows(run.folder)
    assert [(row["update"], row["seed"]) for row in rows] == [(update, seed) for update in range(0, 41, 2) for seed in (0, 1, 2)]
    assert rows[-1]["env_steps"] == 800
    assert [path.name for path in checkpoint.checkpoints(run.folder / "checkpoints")] == ["00000040", "00000036"]
    assert run_folder.read_config(run.folder)["algo"]["total_steps"] == 800
    scores = np.array(
        [[row["eval_return"] for row in rows if row["seed"] == seed and "eval_return" in row] for seed in (0, 1, 2)]
    )
    np.testing.assert_allclose(run.best.score, scores.max(-1), rtol=1e-6)


def test_rows_hold_means_per_episode():
    metrics = {
        "loss": np.array([[1.0, 3.0, np.nan]]),
        "episodes": np.array([[0.0, 4.0, np.nan]]),
        "sum_return": np.array([[0.0, 8.0, np.nan]]),
    }
    assert metrics_log.summarise(metrics, 0) == {"episodes": 4, "loss": 2.0, "return": 2.0}
    assert metrics_log.summarise({name: values[:, 2:] for name, values in metrics.items()}, 0) == {}
    assert "return" not in metrics_log.summarise({name: values[:, :1] for name, values in metrics.items()}, 0)


def test_damaged_rows_are_left_out(tmp_path):
    good = '{"update": 2, "seed": 0, "loss": null}'
    bad = ['{"update": null, "seed": 0}', '{"update": 1}', '{"update": 1, "seed": 0, "loss": [1]}', "[]", "[" * 100_000, '{"upd']
    lines = [good.encode(), b"\xff\xfe", *(line.encode() for line in bad)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert metrics_log.read_rows(tmp_path) == [{"update": 2, "seed": 0, "loss": None}]
    metrics_log.MetricsFile(tmp_path, 2).append([{"update": 3, "seed": 0, "loss": float("nan")}])
    assert [row["update"] for row in metrics_log.read_rows(tmp_path)] == [2, 3]
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*metrics.jsonl: Is a directory; move it away"):
        metrics_log.MetricsFile(tmp_path, 2)


def test_where_chunks_end_changes_no_number(finished, tmp_path):
    other = train(tmp_path, "seeds=3", "chunk=15", "eval.every=0.5").run
    params, same = (jax.tree.leaves(run.members.state.learner.params) for run in (finished.run, other))
    for one, two in zip(params, same, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_seed_of_a_batch_is_the_run_of_that_seed(finished, tmp_path):
    alone = train(tmp_path, "seed=2", "chunk=2").run
    for one, two in zip(jax.tree.leaves(finished.run.members.state), jax.tree.leaves(alone.members.state), strict=True):
        if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one[2:], two)


def test_a_signal_stops_after_the_chunk_and_resume_goes_on_to_the_same_bits(finished, tmp_path, monkeypatch):
    run_chunks = runner.run_chunks

    def interrupted(run, progress, record, stopper):
        def record_and_interrupt(rows):
            record(rows)
            if run.update == 14:
                os.kill(os.getpid(), signal.SIGTERM)

        return run_chunks(run, progress, record_and_interrupt, stopper)

    monkeypatch.setattr(runner, "run_chunks", interrupted)
    stopped = train(tmp_path, "seeds=3", "chunk=2")
    assert (stopped.status, stopped.signal, stopped.run.update) == ("interrupted", signal.SIGTERM, 14)
    monkeypatch.setattr(runner, "run_chunks", run_chunks)
    with (stopped.run.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 16, "seed": 0}) + '\n{"update": 16, "se')  # what a kill after the checkpoint leaves
    resumed = runner.train(compose.compose("tiny", [f"resume={stopped.run.folder}"]), Console(quiet=True))
    assert resumed.status == "finished"
    assert_same_state(resumed.run, finished.run)
    assert timeless(resumed.run.folder) == timeless(finished.run.folder)


def timeless(folder):
    return [{key: value for key, value in row.items() if key != "time"} for row in metrics_log.read_rows(folder)]


def test_resume_takes_only_what_changes_no_number(finished):
    folder = finished.run.folder
    again = runner.train(compose.compose("tiny", [f"resume={folder}", "env=corridor", "checkpoint.keep=1"]), Console(quiet=True))
    assert_same_state(again.run, finished.run)
    for word, message in (
        ("algo.learning_rate=1", "leave out algo.learning_rate"),
        ("env=merge", "was trained with env=corridor, not with merge"),
        ("wandb.made=offline", "did you mean wandb.mode"),
    ):
        with pytest.raises(UserError, match=message):
            compose.compose("tiny", [f"resume={folder}", word])
    with pytest.raises(UserError, match="was trained with tiny, not with mappo"):
        compose.compose("mappo", [f"resume={folder}"])


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """The folder of a finished run, for its configuration to be edited."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ALGORITHMS, "tiny", "tiny")
        patch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
        return train(tmp_path_factory.mktemp("edited"), "seeds=3", "chunk=2", "env.slip=0.3").run.folder


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ("learning_rate: 0.1", "learning_rate: 0.2", r"algo.learning_rate was 0.1 and is 0.2; set it back"),
        ("seed: 0", "seed: 1", r"seed was 0 and is 1"),
        ("seeds: 3", "seeds: 2", r"seeds was 3 and is 2"),
        ("episodes: 4", "episodes: 5", r"eval.episodes was 4 and is 5"),
        ("slip: 0.3", "slip: 0.2", r"env.slip was 0.3 and is 0.2"),
        ("  slip: 0.3\n", "", r"env.slip was 0.3 and is None"),
    ],
)
def test_a_run_whose_settings_were_edited_does_not_go_on(edited, line, other, message):
    config = edited / "config.yaml"
    text = config.read_text()
    assert line in text
    config.write_text(text.replace(line, other, 1))
    with pytest.raises(UserError, match=message):
        runner.train(compose.compose("tiny", [f"resume={edited}"]), Console(quiet=True))
    assert edited.is_dir()
    config.write_text(text.replace("chunk: 2", "chunk: 4"))
    assert runner.train(compose.compose("tiny", [f"resume={edited}"]), Console(quiet=True)).status == "finished"
    config.write_text(text)


def test_sizes_that_fit_no_update_leave_nothing_behind(tmp_path, monkeypatch):
    def refuses(env, config, state):
        raise UserError("2 rows of one device do not divide into 4 minibatches; change one of the two")

    monkeypatch.setattr(tiny, "update", refuses)
    with pytest.raises(UserError, match="do not divide into 4 minibatches"):
        train(tmp_path / "runs", "algo.num_envs=7")  # a size of its own: other tests have compiled theirs
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing_behind(finished, tmp_path, monkeypatch):
    def refuses(run, console):
        raise UserError("no")

    monkeypatch.setattr(runner, "announce", refuses)
    with pytest.raises(UserError, match="no"):
        train(tmp_path / "runs", "seeds=3", "chunk=2")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs" / "tiny_corridor" / "other").mkdir(parents=True)
    with pytest.raises(UserError, match="no"):
        train(tmp_path / "runs", "seeds=3", "chunk=2")
    assert [path.name for path in (tmp_path / "runs" / "tiny_corridor").iterdir()] == ["other"]


def test_a_damaged_newest_checkpoint_costs_only_its_updates(finished, tmp_path, capsys):
    run = train(tmp_path, "seeds=3", "chunk=2").run
    newest = checkpoint.checkpoints(run.folder / "checkpoints")[0]
    largest = max((file for file in (newest / "arrays").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    resumed = runner.train(compose.compose("tiny", [f"resume={run.folder}"]), Console())
    assert "00000040 is damaged" in capsys.readouterr().out
    assert_same_state(resumed.run, finished.run)
    assert timeless(run.folder) == timeless(finished.run.folder)


def test_only_the_diverged_seed_freezes(finished, tmp_path, capsys):
    broken = ["algo.broken_seed=1", "algo.broken_update=7", "chunk=2", "seeds=3"]
    ended = runner.train(compose.compose("tiny", [*TINY, f"runs={tmp_path}", *broken]), Console())
    run = ended.run
    assert ended.status == "finished"
    assert "seed 1 diverged: loss is not finite at update 8" in capsys.readouterr().out
    np.testing.assert_array_equal(run.diverged, [False, True, False])
    np.testing.assert_array_equal(run.members.state.learner.updates, [40, 7, 40])
    weights = np.asarray(run.members.state.learner.params["w"])
    healthy = np.asarray(finished.run.members.state.learner.params["w"])
    np.testing.assert_array_equal(weights[[0, 2]], healthy[[0, 2]])
    assert np.isfinite(weights).all()
    assert not np.array_equal(weights[1], healthy[1])
    rows = metrics_log.read_rows(run.folder)
    assert max(row["update"] for row in rows if row["seed"] == 1) == 8
    assert run.best.update[1] <= 8


@pytest.mark.parametrize("words", [(), ("eval.every=0", "checkpoint.every=0")])
def test_a_run_stops_when_every_seed_has_diverged_and_keeps_what_was_good(tmp_path, words):
    ended = train(tmp_path, "algo.broken_seed=0", "algo.broken_update=7", "chunk=2", *words)
    assert (ended.status, ended.run.update) == ("diverged", 8)
    assert checkpoint.checkpoints(ended.run.folder / "checkpoints")[0].name == "00000008"
    for which in ("best", "last"):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(marljax.load(ended.run.folder, which=which).params))
    last = marljax.load(ended.run.folder, which="last").params
    np.testing.assert_array_equal(last["w"], ended.run.members.state.learner.params["w"][0])
    resumed = runner.train(compose.compose("tiny", [f"resume={ended.run.folder}"]), Console(quiet=True))
    assert resumed.status == "diverged"


def test_only_seeds_without_an_evaluation_fall_back_on_their_last_parameters():
    best = runner.Best({"w": np.array([[1.0], [2.0]])}, np.array([3.0, -np.inf], np.float32), np.array([4, 0]))
    np.testing.assert_array_equal(runner.best_or_last(best, {"w": np.array([[5.0], [6.0]])})["w"], [[1.0], [6.0]])


@pytest.mark.parametrize("compete", [False, True])
def test_where_teams_compete_the_newest_parameters_count_as_the_best(monkeypatch, compete):
    monkeypatch.setattr(runner, "play_suite", lambda *_: {"return": np.zeros((1, 4))})
    kept = runner.Best({"w": np.array([[1.0]])}, np.array([3.0], np.float32), np.array([4]))
    newest = {"w": np.array([[2.0]])}
    state = SimpleNamespace(learner=SimpleNamespace(params=newest))
    settings = SimpleNamespace(env=Corridor(compete=compete))
    run = SimpleNamespace(
        members=SimpleNamespace(state=state), settings=settings, best=kept, diverged=np.array([False]), update=9
    )
    runner.evaluate(run, None)
    assert (run.best.params["w"].item(), run.best.update.item()) == ((2.0, 9) if compete else (1.0, 4))


def test_the_driver_traces_an_update_once(tmp_path, monkeypatch):
    chex.clear_trace_counter()
    monkeypatch.setattr(tiny, "update", chex.assert_max_traces(tiny.update, n=1))
    assert train(tmp_path, "chunk=2", "algo.num_envs=3").status == "finished"


def test_one_writer_and_one_run_per_folder(finished, tmp_path):
    with run_folder.locked(finished.run.folder):
        child = f"import marljax.io.run_folder as r, pathlib\nwith r.locked(pathlib.Path({str(finished.run.folder)!r})): pass"
        other = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert "another process is training in" in other.stderr
    folder = finished.run.folder
    with pytest.raises(UserError, match="exists already; choose another name="):
        run_folder.create(folder.parent.parent, folder.parent.name, folder.name)


def test_load_gives_the_evaluated_parameters(finished):
    run = finished.run
    policy = marljax.load(run.folder)
    best = int(np.argmax(run.best.score))
    assert (policy.seed, policy.update, policy.score) == (best, run.best.update[best], run.best.score[best])
    np.testing.assert_array_equal(policy.params["w"], run.best.params["w"][best])
    last = marljax.load(run.folder, seed=1, which="last")
    np.testing.assert_array_equal(last.params["w"], run.members.state.learner.params["w"][1])
    state, timestep = policy.env.reset(jax.random.key(0), policy.env_params)
    action, carry = policy(jax.random.key(1), state, timestep, policy.initial_carry())
    assert (action.shape, carry) == ((policy.env.num_agents,), ())
    again = runner.play_suite(
        run.settings, runner.Evaluator(run.settings.env, 4), jax.tree.map(lambda x: x[None], policy.params), 0
    )
    np.testing.assert_allclose(again["return"].mean(), policy.score, rtol=1e-6)
    with pytest.raises(UserError, match="has no seed 9; it trained 0, 1, 2"):
        marljax.load(run.folder, seed=9)
    with pytest.raises(UserError, match="is not a run folder"):
        marljax.load(run.folder.parent)


def test_load_refuses_another_version_of_the_environment(finished, monkeypatch):
    monkeypatch.setattr(type(finished.run.settings.env), "version", "2")
    with pytest.raises(UserError, match="made for env version 1, not 2"):
        marljax.load(finished.run.folder)


def test_a_trained_policy_meets_other_numbers_and_the_scripted_rivals(finished, monkeypatch):
    run = finished.run
    other = load.with_env(run.settings, {"limit": 3, "agents": 2})
    assert (int(other.env_params.limit), other.env.agents) == (3, 2)
    walker = ScriptedPolicy(run.settings.env, run.settings.env_params, always_walk)
    monkeypatch.setattr(report, "scripted_policies", lambda settings: {"walker": walker})
    rows = dict(report.compare(run.settings, run.best.params, 1, 7))
    assert (rows["tiny"]["return"].shape, rows["walker"]["return"].shape) == ((3, 7), (7,))
    walks = np.asarray(run.best.params["w"][:, 0, 0] > 0)
    assert walks.any()
    np.testing.assert_allclose(rows["tiny"]["return"][walks][0], rows["walker"]["return"], rtol=1e-6)  # the same episodes


def test_last_parameters_that_are_the_best_get_no_row_of_their_own(finished):
    run = finished.run
    last = run.members.state.learner.params
    assert not runner.same_parameters(run.best.params, last)
    names = [[name for name, _ in report.compare(run.settings, best, 1, 4, last=last)] for best in (run.best.params, last)]
    assert [[name for name in each if "tiny" in name] for each in names] == [["tiny", "tiny, last"], ["tiny"]]


def test_last_parameters_that_play_as_the_best_do_get_no_row_of_their_own(finished):
    best = finished.run.best.params
    alike = best | {"w": 2 * best["w"]}  # only its sign counts
    assert not runner.same_parameters(best, alike)
    names = [name for name, _ in report.compare(finished.run.settings, best, 1, 4, last=alike)]
    assert [name for name in names if "tiny" in name] == ["tiny"]


def test_what_is_said_of_many_seeds_is_short(finished):
    settings = finished.run.settings
    members = tuple(settings.members[0]._replace(seed=seed) for seed in range(40))
    many = dataclasses.replace(settings, members=members)
    lines = report.about_best(many, np.arange(40))
    assert lines[0] == "best parameters: after updates 0 to 39 of 40, median 20"
    assert lines[1].startswith("warning: seed 0: ")
    assert report.about_best(many, np.arange(40) // 20)[1].startswith("warning: 20 of 40 members: ")
    assert len(report.about_best(many, np.full(40, 3))) == 1


def test_the_final_episodes_are_the_same_for_every_run(finished, monkeypatch):
    """Whatever is evaluated in training, and however many are asked for."""
    wanted, params = finished.run.settings, finished.run.best.params
    monkeypatch.setattr(
        report, "scripted_policies", lambda settings: {"walker": ScriptedPolicy(settings.env, settings.env_params, always_walk)}
    )
    other = dataclasses.replace(wanted, run=dataclasses.replace(wanted.run, eval=schema.Evaluation(0.5, 7, 9)))
    told = []
    many, same, few = (
        dict(report.compare(each, params, 1, episodes, told.append)) for each, episodes in ((wanted, 40), (other, 40), (other, 6))
    )
    for name in ("tiny", "walker"):
        assert len(np.unique(many[name]["return"])) > 4
        np.testing.assert_array_equal(many[name]["return"], same[name]["return"])
        np.testing.assert_allclose(many[name]["return"][..., :6], few[name]["return"], rtol=1e-6)
    assert told[:2] == ["evaluating tiny on 40 episodes × 3 seeds", "evaluating what it is compared with: walker"]


def always_walk(key, state, timestep, carry):
    return jax.numpy.full(timestep.alive.shape, tiny.FORTH), carry


KILLED = """
import sys
from marljax import cli, registry
registry.ENVIRONMENTS["corridor"] = "toys:Corridor"
cli.main("ippo", sys.argv[1:])
"""


def command(folder, *words):
    support = str(Path(__file__).parents[1] / "support")
    path = os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def assert_same_arrays(*paths):
    """Every array of two checkpoints has the same bits."""
    structures = [checkpoint.read_manifest(path)["structure"] for path in paths]
    assert structures[0] == structures[1]
    names = [name for name, (shape, _) in structures[0].items() if np.prod(shape)]
    one, other = (checkpoint.read_arrays(path / checkpoint.ARRAYS, names) for path in paths)
    for name in names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_killed_in_mid_run_and_resumed_gives_the_same_bits(tmp_path):
    small = ["algo.total_steps=64000", "algo.num_envs=8", "algo.rollout_length=16", "algo.hidden=[8]", "algo.num_epochs=2"]
    small += ["env=corridor", "seeds=2", f"runs={tmp_path}", "render=false", "eval.every=0.1", "eval.final_episodes=32"]
    checkpoints = tmp_path / "ippo_corridor" / "killed" / "checkpoints"
    running = command(tmp_path, *small, "name=killed")
    while len(checkpoint.checkpoints(checkpoints)) < 2 and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, running.stdout.read().decode()
    killed_at = checkpoint.read_manifest(checkpoint.checkpoints(checkpoints)[0])["update"]
    others = [command(tmp_path, *small, "name=whole"), command(tmp_path, f"resume={checkpoints.parent}")]
    for other in others:
        output, _ = other.communicate()
        assert other.returncode == 0, output.decode()
    assert 0 < killed_at < 500
    whole = checkpoint.checkpoints(tmp_path / "ippo_corridor" / "whole" / "checkpoints")[0]
    resumed = checkpoint.checkpoints(checkpoints)[0]
    assert whole.name == resumed.name == "00000500"
    assert_same_arrays(whole, resumed)
    assert timeless(whole.parents[1]) == timeless(resumed.parents[1])


def test_wandb_writes_one_offline_run_per_seed(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = train(tmp_path, "seeds=3", "chunk=2", "wandb.mode=offline").run
    assert len(list((run.folder / "wandb").glob("offline-run-*"))) == 3


def test_wandb_out_of_reach_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(wandb_runs, "WANDB_TIMEOUT", 2)
    with pytest.raises(UserError, match=r"wandb.mode=online does not work here: .*; use wandb.mode=offline") as refused:
        train(tmp_path, "seeds=3", "chunk=2", "wandb.mode=online")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_values_that_nobody_can_earn_are_warned_of_once():
    """With rewards of at most 2 and γ = 0.9 no policy is worth more than 20, as members 0 and 2 say; 1 − γ is member 1's own."""
    config = SimpleNamespace(gamma=np.array([0.9, 0.99, 0.9]))
    run = SimpleNamespace(
        members=SimpleNamespace(config=config),
        trainer=SimpleNamespace(num_updates=100),
        largest_reward=np.zeros(3),
        names=["seed 0", "seed 1", "seed 2"],
        update=0,
    )
    told = []
    for value, reward in ((90.0, 0.1), (21.0, 2.0), (30.0, 1.0), (40.0, 1.0)):  # a chunk each; the first is too early
        run.update += 4
        metrics = {"max_value": np.array([[value], [30.0], [np.nan]]), "max_reward": np.array([[reward], [1.0], [2.0]])}
        runner.report_impossible_values(run, metrics, told.append)
    assert len(told) == 1
    assert all(word in told[0] for word in ("seed 0", "30", "20 at most", "bootstrap_limit=false"))
