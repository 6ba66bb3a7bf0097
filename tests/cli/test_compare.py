"""``marljax compare`` and ``marljax runs``, on run folders that hold what they read."""

import copy
import csv
import datetime
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from commands import console

from marljax.errors import UserError
from marljax.io import run_folder
from marljax.io.files import with_checksum
from marljax.reporting import comparison, groups, run_list
from marljax.utils import stats
from marljax.viz.comparison import Shown, comparison_picture

TREE = {
    "algo_name": "mappo",
    "env_name": "merge",
    "seed": 0,
    "seeds": 3,
    "search": {"metric": "return", "lowest": False, "judge": "standard", "batches": None, "batch": None, "tried": None},
    "failure_replay": {"failures": [], "size": 20},
    "eval": {"every": 0.25, "episodes": 32, "final_episodes": 320},
    "algo": {"total_steps": 400, "learning_rate": 1e-3, "num_epochs": 4},
    "env": {"density": "easy", "safety": False},
    "env_params": {"crash_penalty": 200.0},
}
DISPLAY = {"metrics": ["return", "crash"], "units": {"crash": "%"}, "lowest": ["crash"]}
START = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC).timestamp()


class Folder:
    """Writes run folders; ``scores`` are the return of each seed."""

    def __init__(self, root):
        self.root = root

    def __call__(self, name, scores, *, seed=0, display=DISPLAY, version="1", sessions=((0, "finished"),), done=400, **changes):
        folder, tree = self.root / name, copy.deepcopy(TREE) | {"seed": seed, "seeds": len(scores)}
        folder.mkdir(parents=True)
        for key, value in changes.items():
            group, _, key = key.rpartition("__")
            (tree[group] if group else tree)[key] = value
        run_folder.write_config(folder, tree)
        self._progress(folder, scores, seed, sessions, done)
        if done == 400:
            run_folder.write_results(folder, self._results(tree, scores, seed) | ({"display": display} if display else {}))
            manifest = {"format": 1, "update": 4, "purpose": {"env_version": version}, "notes": {}, "structure": {}, "files": {}}
            checkpoint = folder / "checkpoints" / "00000004"
            checkpoint.mkdir(parents=True)
            (checkpoint / "manifest.json").write_text(json.dumps(with_checksum(manifest)))
        return folder

    def _progress(self, folder, scores, seed, sessions, done):
        started = [datetime.datetime.fromtimestamp(START + begin, datetime.UTC).isoformat() for begin, _ in sessions]
        each = [{"started": text, "status": status} for text, (_, status) in zip(started, sessions, strict=True)]
        (folder / "run.json").write_text(json.dumps({"sessions": each}))
        rows = [
            {"seed": seed + index, "update": update, "env_steps": 100 * update, "time": START + 10 * update}
            | {"eval_return": score * update / 4, "eval_crash": 0.1}
            for update in range(done // 100 + 1)
            for index, score in enumerate(scores)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cut of')

    def _results(self, tree, scores, seed):
        metrics = [{"return": score, "crash": score / 1000} for score in scores]
        if not tree["search"]["tried"]:
            return {"seeds": {seed + i: own | {"update": 4, "last": own | {"update": 4}} for i, own in enumerate(metrics)}}
        count = len(scores) // len(tree["search"]["tried"])
        replicas = [
            {"trial": i // count, "seed": seed + i % count, "metrics": own, "last": {**own, "return": 0.0}}
            | {f"sweep.{name}": value for name, value in tree["search"]["tried"][i // count].items()}
            for i, own in enumerate(metrics)
        ]
        return {"settings": [{"trial": 1}], "replicas": replicas}


@pytest.fixture
def make(tmp_path):
    return Folder(tmp_path / "runs")


def grouped(*folders, which="best"):
    runs, _ = groups.read_runs(folders)
    return groups.grouped(runs, which)


def test_compare_writes_the_statistics_of_the_scores_of_every_seed(make, tmp_path, capsys):
    ours, theirs = [60.0, 64.0, 61.0, 70.0, 66.0], [50.0, 62.0, 58.0]
    make("mappo_merge/first", ours[:3]), make("mappo_merge/more", ours[3:], seed=3)
    make("ippo_merge/one", theirs, algo_name="ippo")
    assert console("compare", tmp_path / "runs/mappo_merge", f"{tmp_path}/runs/ippo*/*", f"out={tmp_path}") == 0
    shown = capsys.readouterr().out
    mean, iqm = stats.mean(ours), stats.iqm_interval(ours, np.random.default_rng(0))
    chance = stats.improvement_interval(theirs, ours, np.random.default_rng(0))
    expected = [f"{value:.1f} [{low:.1f}, {high:.1f}]" for value, low, high in (mean, iqm)]
    expected += [f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]"]
    page = (tmp_path / "compare.md").read_text()
    assert all(text in page and text in shown for text in expected), shown
    with (tmp_path / "compare.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "return"]
    assert [float(row["score"]) for row in rows] == ours + theirs
    assert [(row["group"], row["seed"]) for row in rows[4:6]] == [("mappo", "4"), ("ippo", "0")]
    assert {path.suffix for path in tmp_path.glob("compare.*")} == {".md", ".csv", ".png", ".svg"}


def test_less_is_better_where_the_environment_or_the_user_says_so(make):
    few, many = make("a", [50.0, 51.0]), make("b", [60.0, 61.0], algo_name="ippo")
    runs, _ = groups.read_runs([few, many])
    for name, lowest, chance in (("crash", None, 1.0), ("crash", False, 0.0), ("return", None, 0.0), ("return", True, 1.0)):
        metric, _ = comparison.choose_metric(runs, name, lowest)
        compared = comparison.compare(groups.grouped(runs, "best"), metric, "best", "merge")
        assert compared.better[0, 1] == (chance,) * 3
        assert compared.better[1, 0].value == 1 - chance
    assert comparison.choose_metric(runs, None, None)[0] == comparison.Metric("return", "", False)
    assert compared.lines[0].mean.value == 50.5


def test_a_sweep_is_a_group_per_setting_which_joins_runs_of_that_setting(make):
    tried = [{"learning_rate": 1e-3, "env.crash_penalty": 200.0}, {"learning_rate": 3e-3, "env.crash_penalty": 400.0}]
    sweep = make("sweep", [1.0, 2.0, 3.0, 4.0], search__tried=tried)
    single = make("single", [5.0, 6.0], seed=7)
    found = grouped(sweep, single)
    assert [[seed.metrics["return"] for seed in group.seeds] for group in found] == [[1.0, 2.0, 5.0, 6.0], [3.0, 4.0]]
    labels = [f"mappo env.crash_penalty={penalty} learning_rate={rate}" for penalty, rate in ((200, 0.001), (400, 0.003))]
    assert [group.label for group in found] == labels
    assert [seed.metrics["return"] for seed in grouped(sweep, which="last")[1].seeds] == [0.0, 0.0]


def test_runs_with_the_same_seeds_and_settings_stay_apart(make):
    found = grouped(make("old/first", [1.0, 2.0]), make("new/first", [3.0, 4.0]), make("new/other", [5.0], algo__num_epochs=8))
    assert [group.label for group in found] == [
        "mappo num_epochs=4 (old/first)",
        "mappo num_epochs=4 (new/first)",
        "mappo num_epochs=8",
    ]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"env_name": "smax"}, "env is merge in the first and smax in the second$"),
        ({"env__density": "hard"}, "env.density is easy in the first and hard"),
        ({"env__wind": 3.0}, "env.wind is not set in the first and 3 in"),
        ({"env_params__crash_penalty": 400.0}, "env.crash_penalty is 200 in the first and 400"),
        ({"eval__final_episodes": 64}, "eval.final_episodes is 320 in the first and 64"),
        ({"version": "2"}, "version is 1 in the first and 2"),
        ({"search__judge": "own", "search__tried": [{"env.crash_penalty": 1.0}]}, "search.judge=own"),
    ],
)
def test_runs_of_different_tasks_are_refused(make, changes, difference, capsys, tmp_path):
    first, other = make("first", [1.0, 2.0]), make("other", [1.0, 2.0], **changes)
    assert console("compare", first, other, f"out={tmp_path}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(difference, line)
    assert str(other) in line
    assert not (tmp_path / "compare.md").exists()


def test_settings_of_the_environment_may_differ_where_the_user_says_so(make, capsys, tmp_path):
    """A changed weight or option, whatever params that chooses, is part of a group's label; another environment is refused."""
    first, other = (
        make("first", [1.0, 2.0, 3.0]),
        make("other", [4.0, 5.0, 6.0], env_params__crash_penalty=400.0, algo_name="ippo"),
    )
    assert console("compare", first, other, f"out={tmp_path}", "metric=crash", "judge=own") == 0
    assert "its own environment: env.crash_penalty differ" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "compare.md").read_text()
    assert all(f"| {label} |" in page for label in ("mappo env.crash_penalty=200", "ippo env.crash_penalty=400"))
    assert console("compare", first, other, f"out={tmp_path}") == 2
    assert "judge=own compares scores in their own" in capsys.readouterr().err
    denser = make("denser", [1.0], env__density="hard", env_params__crash_penalty=400.0)
    assert console("compare", first, denser, f"out={tmp_path}", "judge=own") == 0
    page = (tmp_path / "compare.md").read_text()
    assert "| mappo env.density=hard |" in page
    assert "merge easy" not in page
    assert console("compare", first, make("battle", [1.0], env_name="smax"), "judge=own") == 2
    assert "env is merge in the first and smax in the second" in capsys.readouterr().err


def test_unfinished_and_damaged_runs_are_left_out_with_a_line(make, capsys):
    good, stopped = make("good", [1.0, 2.0]), make("stopped", [1.0, 2.0], done=200, sessions=((0, "interrupted"),))
    edited, empty = make("edited", [1.0, 2.0]), make("empty", [3.0])
    (edited / "results.json").write_text((edited / "results.json").read_text().replace("2.0", "9.0"))
    (empty / "config.yaml").write_text("algo_name: mappo\nenv_name: merge\nalgo: {}\nenv: {}\n")
    runs, lines = groups.read_runs([good, stopped, edited, empty])
    assert [run.folder for run in runs] == [good]
    starts = [
        f"left out: {stopped} has no final evaluation (interrupted, 200 of 400 steps); resume={stopped}",
        f"left out: {edited / 'results.json'} is damaged",
        f"left out: {empty / 'config.yaml'} is of another version",
    ]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines
    assert console("compare", stopped) == 2
    assert "none of these runs can be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["nowhere"], "nowhere is not a run folder"),
        (["metric=return"], "no run folder"),
        (["{folder}", "metric=crsh"], "'crsh'.*crash"),
        (["{folder}", "metrik=crash"], "'metrik'.*metric"),
        (["{folder}", "which=worst"], "which=worst.*best or last"),
        (["{folder}", "out={folder}/no/x"], "cannot write"),
    ],
)
def test_mistakes_are_one_line(make, words, suggestion, capsys):
    folder = make("first", [1.0, 2.0])
    assert console("compare", *(word.format(folder=folder) for word in words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{suggestion}", line), line


def test_without_recorded_metrics_the_return_is_compared_and_self_play_needs_a_choice(make):
    runs, _ = groups.read_runs([make("old", [1.0, 2.0], display=None)])
    metric, lines = comparison.choose_metric(runs, None, None)
    assert (metric.name, metric.unit, len(lines)) == ("return", "", 1)
    for seed in runs[0].results.seeds:
        seed.best["return_0"] = seed.best.pop("return")
    with pytest.raises(UserError, match=r"zero-sum.*metric=<name>: crash, return_0"):
        comparison.choose_metric(runs, None, None)


def test_seconds_are_those_of_training_without_pauses(make):
    folder = make("two_parts", [1.0], sessions=((-5, "interrupted"), (24, "finished")))  # stopped after update 2, at 20 s
    (seed,) = grouped(folder)[0].seeds
    assert [row["seconds"] for row in seed.rows] == [5, 15, 25, 31, 41]


def test_a_diverged_seed_and_other_steps_are_noted(make):
    folder = make("first", [1.0, 2.0, 3.0])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[:-1]]
    kept = [row for row in rows if row["seed"] != 1 or row["update"] < 3]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    found = grouped(folder, make("short", [1.0], algo__total_steps=200))
    notes = comparison.compare(found, comparison.Metric("return", "", False), "best", "merge").notes
    assert [note.partition(":")[0] for note in notes] == [
        "fewer than 3 seeds, few for an interval",
        "mappo total_steps=400",
        "different env steps",
    ]
    assert "seed 1" in notes[1]


def test_the_picture_shows_the_best_groups_and_their_profiles(tmp_path):
    def shown(label, scores):
        curve = np.arange(3.0), np.outer(scores, [0.0, 0.5, 1.0])
        return Shown(
            label, np.array(scores), stats.mean(scores), stats.iqm_interval(scores, np.random.default_rng(0)), curve, curve
        )

    many = [shown(f"group {index}", [index, index + 1.0, index + 2.0]) for index in range(9)]
    path = tmp_path / "picture.png"
    figure = comparison_picture(many, [path], metric="return", lowest=False, curves="training", title="title")
    assert figure.get_suptitle() == "title; the best 7 of 9 groups"
    steps, _, profile, _ = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"group {index}" for index in range(2, 9)]
    assert len(steps.get_lines()) == 7 * 4  # three seeds and their mean
    first = profile.get_lines()[0].get_ydata()
    assert (first[0], first[-1]) == (1.0, 0.0)
    assert np.all(np.diff(first) <= 0)
    nothing = np.zeros(0), np.zeros((0, 0))
    bare = many[0]._replace(by_steps=nothing, by_seconds=nothing)
    assert len(comparison_picture([bare], [path], metric="return", lowest=True, curves="", title="").axes) == 2


def test_runs_lists_what_there_is_newest_first(make, tmp_path, capsys):
    make("mappo_merge/old", [60.0, 64.0, 62.0], sessions=((-3600, "finished"),))
    make("mappo_merge/sweep", [1.0, 2.0, 5.0, 7.0], search__tried=[{"learning_rate": 1e-3}, {"learning_rate": 3e-3}])
    make("ippo_smax/stopped", [1.0], algo_name="ippo", env_name="smax", done=200, sessions=((60, "interrupted"),))
    make("ippo_smax/killed", [1.0], algo_name="ippo", env_name="smax", done=300, sessions=((50, "running"),))
    running = make("ippo_smax/running", [1.0], algo_name="ippo", env_name="smax", done=100, sessions=((70, "running"),))
    damaged = make("damaged", [1.0])
    (damaged / "config.yaml").write_text("{[ :")
    (damaged / "run.json").write_text("{")
    with run_folder.locked(running):
        assert console("runs", tmp_path / "runs") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "/" in line or "damaged" in line]
    assert [line[:-2] for line in lines] == [
        ["damaged", "–", "–", "–", "–", "config.yaml", "is", "damaged"],
        ["ippo_smax/running", "ippo", "smax", "easy", "100/400", "1", "running"],
        ["ippo_smax/stopped", "ippo", "smax", "easy", "200/400", "1", "interrupted"],
        ["ippo_smax/killed", "ippo", "smax", "easy", "300/400", "1", "killed"],
        ["mappo_merge/sweep", "mappo", "merge", "easy", "400", "2", "×", "4", "return", "6", "±", "13,", "best", "of", "2"],
        ["mappo_merge/old", "mappo", "merge", "easy", "400", "3", "return", "62.0", "±", "5.0"],
    ]
    assert console("runs", tmp_path / "runs", "env=smax", "limit=2") == 0
    shown = capsys.readouterr().out
    assert "ippo_smax/stopped" in shown
    assert "ippo_smax/killed" not in shown
    assert "older runs: 1; limit=3" in shown
    assert [run_list.age(seconds) for seconds in (5, 3 * 3600 + 1, 86400 * 400)] == ["5 s", "3 h", "1 y"]


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [(["nowhere"], "there is no folder nowhere"), (["limit=x"], "limit=x"), (["ago=mappo"], "'ago'.*algo")],
)
def test_mistakes_of_runs_are_one_line(words, suggestion, capsys):
    assert console("runs", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{suggestion}", line), line


def test_runs_are_listed_without_jax(make, tmp_path):
    make("first", [1.0, 2.0])
    code = f"import sys; from marljax.cli import app; app.run_command(['runs', {str(tmp_path)!r}]); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
