"""Commands and code of README and documentation run as they are printed, with small settings; and the hooks of the site."""

import concurrent.futures
import importlib.util
import itertools
import math
import multiprocessing
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from documented import run_code, run_command

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
DEVICES = "8"
# What cannot run here, and why. A command that one of these patterns begins is not run.
UNTESTED = {
    r"pip install": "installs; .ci/run does so in a new virtual environment",
    r"pytest|\.ci/run|python tests/campaigns": "runs the tests themselves",
    r"mkdocs": ".ci/run builds the site",
    r"srun|python .* hosts\.|python .* hydra/launcher=": "needs a cluster; tests/config and tests/cli check such settings",
    r"marljax compile": "needs compilers for accelerators, an extra that tests do without",
    r"python baselines/(?!.* --help)|rm -r baselines": "takes hours, or measures; tests/baselines computes small tables",
}
RUN = {
    "eval.episodes": "2",
    "eval.final_episodes": "2",
    "eval.every": "0",
    "checkpoint.every": "0",
    "render": "false",
    "search.batches": "1",
}
LEARNER = {"algo.total_steps": "128", "algo.num_envs": "8", "algo.rollout_length": "8"}
LEARNERS = {
    "qmix": {"algo.batch_size": "8", "algo.buffer_size": "128", "algo.learning_starts": "0", "algo.gradient_steps": "1"},
    "values": {"algo.batch_size": "64"},
    "ospo": {"algo.num_minibatches": "2", "algo.num_epochs": "1", "algo.samples": "8"},
    **{algo: {"algo.num_minibatches": "2", "algo.num_epochs": "1"} for algo in ("ppo", "ippo", "mappo", "pqn")},
}
ENVIRONMENTS = {
    "merge": {"env.duration": "8"},
    "smax": {"env.duration": "8"},
    "swarm": {"env.duration": "8"},
    "ride_dispatch": {"env.duration": "8", "env.vehicles": "8", "env.orders": "16", "env.demand_scale": "0.02"},
    "collective": {"env.duration": "8", "env.agents": "10"},
    "pathfinding": {"env.duration": "8"},
}
# that examples load
RUNS = {
    "mappo_merge": ("env=merge",),
    "ippo_merge": ("env=merge",),
    "ippo_smax": ("env=smax", "seeds=4"),
    "ippo_pathfinding": ("env=pathfinding", "env.maps=small"),
}
TRIPS = "tpep_pickup_datetime,PULocationID,DOLocationID\n" + "2024-01-02 19:05:00,4,12\n2024-01-03 19:10:00,12,4\n" * 50


def commands(text):
    """The commands of a page's fenced blocks, as lists of words."""
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r" && ", line):
                yield from filter(None, [tuple(shlex.split(command, comments=True))])


def code(text):
    """(file name or empty, source) of a page's blocks of Python."""
    return re.findall(r'^```python(?: title="(.*?)")?\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


COMMANDS = list(dict.fromkeys(itertools.chain(*map(commands, PAGES.values()))))
CODE = {name: blocks for name, text in PAGES.items() if (blocks := code(text))}


def untested(command):
    return any(re.match(pattern, " ".join(command)) for pattern in UNTESTED)


def test_a_command_is_run_or_excused():
    assert len(COMMANDS) > 40
    assert {command[0] for command in COMMANDS if not untested(command)} <= {"python", "marljax", "JAX_NUM_CPU_DEVICES=8"}
    assert [pattern for pattern in UNTESTED if not any(re.match(pattern, " ".join(command)) for command in COMMANDS)] == []


def test_scripts_that_are_mentioned_exist():
    scripts = re.findall(r"`(?:python )?((?:algos|baselines|docs|marljax|tests)/[\w/.-]+\.\w+)", "\n".join(PAGES.values()))
    assert len(scripts) > 20
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def small(command):
    """The words of a command with small settings."""
    name, *words = command
    if "--help" in words or words[0] in ("info", "plot", "replay", "runs", "compare", "new"):
        return command
    if any(word.startswith("resume=") for word in words):
        return tuple(re.sub(r"^algo\.total_steps=.*", "algo.total_steps=192", word) for word in command)
    if words[0] in ("evaluate", "versus", "exploit"):
        sizes = {"evaluate": ["episodes=2"], "versus": ["battles=2"], "exploit": ["battles=2", "fresh=1", "warm=1"]}[words[0]]
        kept = [word for word in command if word.partition("=")[0] not in ("fresh", "warm", "algo.total_steps")]
        return (*kept, *sizes, *["algo.total_steps=192"] * (words[0] == "exploit"))
    algo, *settings = (Path(words[0]).stem, *words[1:]) if name == "python" else (words[1].removeprefix("algo="), *words[2:])
    env = next(word.partition("=")[2].partition("/")[0] for word in settings if word.startswith("env="))
    changes = RUN | LEARNER | LEARNERS.get(algo, {}) | ENVIRONMENTS.get(env, {})
    if any(word.startswith("search.method=") for word in settings):
        changes["search.trials"] = "2"
    if any(word.startswith("seeds=") for word in settings):  # so that sweeps share a program of four runs
        lists = [word.count(",") + 1 for word in settings if re.match(r"sweep\..*=\[", word)]
        tried = math.prod(lists) if lists else int(changes.get("search.trials", 1))
        changes["seeds"] = DEVICES if any(word.startswith("devices=") for word in settings) else str(4 // tried)
    if "wandb.mode=online" in settings:
        changes["wandb.mode"] = "offline"
    kept = [word for word in words if word.partition("=")[0] not in changes]
    return (name, *kept, *(f"{key}={value}" for key, value in changes.items()))


# Of the commands that only train an algorithm under changed settings, one per algorithm is run and the others are traced:
# compilation takes most of the time, and test_every_pair trains every algorithm in every environment.
TRAINING = {
    command: found[1]
    for command in COMMANDS
    if (found := re.fullmatch(r"python algos/(\w+)\.py( (env|algo|tuned)[.=]\S+)+", " ".join(command)))
}
TRACED = {*TRAINING} - {*{algo: command for command, algo in reversed(TRAINING.items())}.values()}


@pytest.fixture(scope="module")
def process():
    """A process with virtual devices, which imports and compiles once for many examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_NUM_CPU_DEVICES", DEVICES)
        patch.setenv("WANDB_MODE", "offline")
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
            yield lambda function, *arguments: executor.submit(function, *arguments).result()


@pytest.fixture(scope="module")
def folder(process, tmp_path_factory):
    """What the examples take for granted: two runs, modules of the reader's own, records of trips."""
    folder = tmp_path_factory.mktemp("documentation")
    for name, source in itertools.chain(*CODE.values()):
        if name:
            (folder / name).write_text(source, encoding="utf-8")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "my_module.py").write_text("from rendezvous import Rendezvous as MyEnvironment\n")
    (folder / "my_package" / "my_algorithm.py").write_text((folder / "reinforce.py").read_text(encoding="utf-8"))
    zones = [4, 12]
    (folder / "trips.csv").write_text(TRIPS)
    (folder / "zones.csv").write_text("zone_id,up_km,cross_km\n" + "".join(f"{zone},{zone},0\n" for zone in zones))
    pairs = itertools.product(zones, zones)
    (folder / "times.csv").write_text("from_zone,to_zone,minutes\n" + "".join(f"{a},{b},{abs(a - b)}\n" for a, b in pairs))
    for name, words in RUNS.items():
        algo = name.partition("_")[0]
        status, shown = process(run_command, small(("python", f"algos/{algo}.py", *words, "name=first")), folder)
        assert status == 0, shown
    return folder


def with_runs(text):
    """A text with the folders of the fixture's runs in place of elided ones."""
    return re.sub(rf"runs/({'|'.join(RUNS)})/…", r"runs/\1/first", text)


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if not untested(command)], ids=" ".join)
def test_command(command, process, folder):
    if any("parquet" in word for word in command):
        pandas = pytest.importorskip("pandas")
        trips = pandas.read_csv(folder / "trips.csv", parse_dates=["tpep_pickup_datetime"])
        trips.to_parquet(folder / next(word for word in command if "parquet" in word).partition("=")[2])
    words = tuple(with_runs(word) for word in command if not word.startswith("JAX_NUM_CPU_DEVICES="))
    status, shown = process(run_command, small(words), folder, False, command not in TRACED)
    assert status == 0, shown


@pytest.mark.slow
@pytest.mark.parametrize("page", CODE)
def test_code(page, process, folder):
    sizes = "total_steps=64, num_envs=8, rollout_length=8"
    blocks = [
        (name, re.sub(r'"algo\.total_steps=.*?"', '"algo.total_steps=64", "algo.num_envs=8", "algo.rollout_length=8"', source))
        for name, source in CODE[page]
    ]
    blocks = [(name, with_runs(re.sub(r"(?<!\.)\btotal_steps=\d[\d_]*", sizes, source))) for name, source in blocks]
    assert process(run_code, blocks, folder)


@pytest.fixture(scope="module")
def hooks():
    specification = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_code(hooks):
    params = hooks.marked(' params("collective", "env.task=kuramoto") ')
    assert "| `env.coupling` | `1.5` | rad/time, from 0 to 1e+06 | K |" in params
    assert "| `algo.gamma` | `0.99` | from 0 to 1 | discount per step | ✓ |" in hooks.marked(' config("mappo") ')
    assert "| 1–4 | vehicles within 180 m, in order of \\|Δx\\|, in front or behind | 1," in hooks.marked(' about("merge") ')
    assert hooks.marked(' results("speed_merge", "Random actions") ').startswith("All outputs computed")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="algorithms/pqn.md"))
    assert "[twelve problems](../tables/untuned.md)" in hooks.on_page_markdown('{{ results("pqn", "Returns") }}', page)


@pytest.mark.parametrize("marker", ["param('merge')", 'params("mrge")', 'results("merge", "Absent")', "params(", "facts()"])
def test_a_marker_without_meaning_ends_the_build(hooks, marker):
    from mkdocs.exceptions import PluginError

    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    with pytest.raises(PluginError, match=r"index\.md"):
        hooks.on_page_markdown(f"text {{{{ {marker} }}}}", page)
