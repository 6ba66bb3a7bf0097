"""Runs and their environment: kills, a full disk, poor terminals, lost output, signals, several processes."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import kill_and_corrupt
import numpy as np
import pytest

from marljax.io import checkpoint, program_cache

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
ALGO = "qmix"  # whose checkpoints hold a replay buffer
ARGUMENTS = [*kill_and_corrupt.SMALL, *kill_and_corrupt.OWN[ALGO]]
TINY = ["env=corridor", "eval.every=0", "eval.final_episodes=4", "render=false", "name=run"]


def start(folder, algo, *arguments, shell='exec "$@"', **environment):
    """A command in a process of its own, by way of a shell; a variable that is None is unset."""
    variables = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"} | environment
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, str(SUPPORT / "toy_command.py"), algo, *arguments]
    shell_command = ["bash", "-o", "pipefail", "-c", shell, "bash", *command]
    return subprocess.Popen(shell_command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder, *arguments, status=0, **options):
    """Output and errors of a command with ``ALGO``."""
    process = start(folder, ALGO, *arguments, **options)
    output = "".join(process.communicate(timeout=300))
    assert process.returncode == status, output
    return output


def tiny(folder, *arguments, **options):
    """A short run: status, output, errors."""
    process = start(folder, "tiny", *TINY, f"runs={folder}", *arguments, **options)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def wait_for(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_short_campaign(tmp_path):
    done = kill_and_corrupt.campaign_of(tmp_path, kills=2, damages=2, seed=1, algorithms=(ALGO,))
    assert (done.kills, done.damages) == (2, 2)


@pytest.mark.slow
def test_a_full_disk_costs_the_newest_checkpoint_only(tmp_path):
    """Files cannot grow: one line reports it, earlier checkpoints stay good, and with room again the run goes on."""
    folder = tmp_path / f"{ALGO}_corridor" / "run"
    running = start(tmp_path, ALGO, *ARGUMENTS, f"runs={tmp_path}", "name=run")
    wait_for(lambda: checkpoint.checkpoints(folder / "checkpoints"), running)
    running.send_signal(signal.SIGTERM)
    running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    before = kill_and_corrupt.newest(folder)
    # Orbax spreads the arrays over as many files as the timing gives; the description of the arrays is always one file.
    description = next(folder.rglob("_METADATA")).stat().st_size
    output = run(tmp_path, f"resume={folder}", shell=f'ulimit -f {description // 2048}; exec "$@"', status=2)
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output
    assert "free some space" in lines[0]
    assert not any(text in output for text in ("Traceback", "Event loop"))
    assert output.splitlines()[-1] == lines[0]
    assert not list(folder.glob("**/.writing-*"))
    assert kill_and_corrupt.newest(folder) == before
    assert f"{before} updates done already" in run(tmp_path, f"resume={folder}")
    assert kill_and_corrupt.newest(folder) == kill_and_corrupt.UPDATES


def test_every_file_name_works_in_every_locale(tmp_path):
    """Of the working directory, the runs and a user's own module."""
    here = tmp_path / "é" / "d"
    here.mkdir(parents=True)
    (here / "own.py").write_text("from toys import Corridor\n")
    words = ["algo.total_steps=40", "env=custom", "env.target=own:Corridor", f"runs={here}", "name=n1"]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, output, errors = tiny(tmp_path, *words, shell=f'cd {here}; exec "$@"', **ascii_only, JAX_COMPILATION_CACHE_DIR=None)
    assert (status, errors) == (0, ""), output
    (session,) = json.loads(next(here.rglob("run.json")).read_text())["sessions"]
    assert session["user_code"] == {"env.target": None}  # no repository
    assert session["command"].startswith(f"python {SUPPORT / 'toy_command.py'} tiny ")
    status, _, errors = tiny(tmp_path, "algo.total_steps=40", shell="\"$@\" $'runs=\\xe9'")
    assert (status, errors.count("\n")) == (2, 1)
    assert "is not in UTF-8" in errors


def test_a_home_that_cannot_be_written_to_is_one_line_even_in_a_narrow_ascii_terminal(tmp_path):
    unwritable = {"HOME": "/proc", "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_STATE_HOME": None, "MPLCONFIGDIR": None}
    terminal = {"COLUMNS": "1", "PYTHONIOENCODING": "ascii"}
    status, output, errors = tiny(tmp_path, "algo.total_steps=40", "render=true", **unwritable, **terminal)
    assert status == 0, output
    assert len(output.splitlines()) > 3
    assert "matplotlib" not in errors
    assert errors.count("\n") <= 1  # of the cache of programs


def test_a_full_output_is_one_line_and_costs_no_updates(tmp_path):
    status, _, errors = tiny(tmp_path, "algo.total_steps=1e6", "chunk=5", shell='"$@" > /dev/full')
    assert status == 2
    assert errors.count("\n") == 1
    assert "error: cannot write to standard output: No space left on device" in errors
    assert checkpoint.checkpoints(tmp_path / "tiny_corridor" / "run" / "checkpoints")


def test_a_closed_pipe_ends_a_run_like_a_signal(tmp_path):
    status, output, errors = tiny(tmp_path, "algo.total_steps=1e6", "chunk=5", shell='"$@" | head -n 1')
    assert (status, errors) == (128 + signal.SIGPIPE, "")
    assert output.startswith("tiny on corridor")
    assert checkpoint.checkpoints(tmp_path / "tiny_corridor" / "run" / "checkpoints")


def test_a_second_ctrl_c_ends_a_run_at_once_with_one_line(tmp_path):
    arguments = ["algo.total_steps=1e7", "chunk=5", "checkpoint.every=1e-9"]  # a checkpoint after every chunk
    running = start(tmp_path, "tiny", *TINY, f"runs={tmp_path}", *arguments)
    wait_for(lambda: checkpoint.checkpoints(tmp_path / "tiny_corridor" / "run" / "checkpoints"), running)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 128 + signal.SIGINT
    assert errors in ("stopped\n", "")  # empty where the first one was quick enough


def test_two_ctrl_c_in_the_middle_of_a_chunk_end_a_run_at_once(tmp_path):
    """Python merges them: the only chunk takes much longer than both."""
    arguments = ["algo.total_steps=1280", "chunk=64", "algo.layers=[2000,2000]"]
    running = start(tmp_path, "tiny", *TINY, f"runs={tmp_path}", *arguments)
    folder = tmp_path / "tiny_corridor" / "run"
    wait_for((folder / "metrics.jsonl").exists, running)
    time.sleep(1.0)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.1)
    output, errors = running.communicate(timeout=300)
    assert (running.returncode, errors) == (128 + signal.SIGINT, "stopped\n"), output
    assert output.count("press Ctrl-C again") <= 1  # a pipe may lose the last output
    assert not checkpoint.checkpoints(folder / "checkpoints")


@pytest.mark.parametrize("library", ["numpy", "jaxlib"])
def test_ctrl_c_while_a_command_imports_shows_no_traceback(tmp_path, library):
    command = [sys.executable, str(ROOT / "algos" / "mappo.py"), "env=merge", f"runs={tmp_path}"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while f"/{library}/" not in Path(f"/proc/{running.pid}/maps").read_text():  # its libraries are being loaded
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert "Traceback" not in errors


def test_damaged_entries_of_the_cache_of_programs_are_replaced(tmp_path):
    environment = {"JAX_COMPILATION_CACHE_DIR": None}
    assert tiny(tmp_path, "algo.total_steps=40", **environment)[0] == 0
    entries = {path: path.stat().st_size for path in (tmp_path / "cache").rglob("jit__*-cache")}
    assert entries
    for path in entries:
        os.truncate(path, entries[path] // 2)
    for kept in (tmp_path / "cache").rglob("*.npz"):
        kept.unlink()  # else scripted policies are not played, and their programs not needed
    status, _, errors = tiny(tmp_path, "algo.total_steps=40", "name=again", **environment)
    assert (status, errors) == (0, "")
    assert all(path.stat().st_size > size // 2 for path, size in entries.items())


def test_without_a_home_directory_programs_are_not_kept(monkeypatch, capsys):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(program_cache.Path, "home", no_home)
    folder = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        program_cache.enable()
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
    assert capsys.readouterr().err.count("\n") == 1


WIDE = """
import sys, jax, importlib
from probes import Depot
from toys import Corridor
from marljax.training.trainer import make_train
own = {"qmix": dict(buffer_size=256, learning_starts=32, batch_size=4, core="mlp"), "pqn": dict(num_minibatches=2, core="mlp")}
own["values"] = dict(batch_size=8)
for name in ("ppo", "ippo", "mappo", "ospo", "qmix", "pqn", "values"):
    algo = importlib.import_module(f"marljax.algos.{name}")
    env = Depot(agents=2) if name == "values" else Corridor()
    env = algo.present(env) if hasattr(algo, "present") else env
    given = own.get(name, dict(num_minibatches=2, num_epochs=1))
    config = algo.Config(total_steps=128, num_envs=4, rollout_length=8, hidden=(8,), **given)
    assert int(jax.jit(make_train(algo, env, config))(jax.random.key(0)).diverged_at) == -1, name
"""


@pytest.mark.slow
def test_every_algorithm_trains_in_64_bits(tmp_path):
    command = [sys.executable, "-c", WIDE]
    done = subprocess.run(command, env=os.environ | {"JAX_ENABLE_X64": "1"}, cwd=SUPPORT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [*ARGUMENTS, f"runs={tmp_path}", "name=wide", "algo.total_steps=1280"]
    run(tmp_path, *words, JAX_ENABLE_X64="1")
    assert kill_and_corrupt.newest(tmp_path / f"{ALGO}_corridor" / "wide") == 20


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_two(folder, *words):
    """Statuses and lines of two processes that train together."""
    where = [f"hosts.coordinator=127.0.0.1:{port()}", "hosts.count=2", "distributed=true"]
    pair = [start(folder, ALGO, *words, *where, f"hosts.index={index}", JAX_NUM_CPU_DEVICES="4") for index in range(2)]
    outputs = ["".join(process.communicate(timeout=300)) for process in pair]
    noise = ("[Gloo]", "peer ranks")
    lines = [[line for line in text.splitlines() if line.strip() and not any(each in line for each in noise)] for text in outputs]
    return [process.returncode for process in pair], lines


def test_auto_trains_seeds_on_the_cores_of_a_cpu_and_goes_on_there(tmp_path):
    words, plain = ["seeds=12", "algo.total_steps=640"], {"XLA_FLAGS": None, "JAX_NUM_CPU_DEVICES": None}
    status, output, errors = tiny(tmp_path, *words, "devices=auto", **plain)
    assert status == 0, output + errors
    cores = len(os.sched_getaffinity(0))
    assert f"× {math.gcd(cores, 12)}" in output.splitlines()[0] or cores == 1
    folder = tmp_path / "tiny_corridor" / "run"
    shutil.rmtree(checkpoint.checkpoints(folder / "checkpoints")[0])
    status, output, errors = tiny(tmp_path, f"resume={folder}", **plain)
    assert "warning" not in output + errors, output + errors


@pytest.mark.slow
def test_a_process_that_has_lost_the_other_ends_with_a_line(tmp_path):
    where = [f"hosts.coordinator=127.0.0.1:{port()}", "hosts.count=2", "distributed=true", "devices=all"]
    words = [*ARGUMENTS, f"runs={tmp_path}", "name=run", "algo.total_steps=1e8", *where]
    pair = [start(tmp_path, ALGO, *words, f"hosts.index={index}", JAX_NUM_CPU_DEVICES="1") for index in range(2)]
    rows = tmp_path / f"{ALGO}_corridor" / "run" / "metrics.jsonl"
    while not rows.exists() or len(rows.read_text().splitlines()) < 6:
        assert pair[0].poll() is None
        time.sleep(0.05)
    pair[1].kill()
    pair[1].communicate()
    output = "".join(pair[0].communicate(timeout=300))
    assert pair[0].returncode == 1, output
    assert output.splitlines()[-1].startswith("error: another process of this run has ended")
    assert "Traceback" not in output


@pytest.mark.slow
def test_two_processes_of_four_devices_do_what_one_of_eight_does(tmp_path):
    """By the documented command, with checkpoints and a resume on one device; only the first process writes and prints."""
    words = [*ARGUMENTS, f"runs={tmp_path}", "algo.total_steps=1280", "devices=all", "checkpoint.every=0.5"]
    statuses, lines = run_two(tmp_path, *words, "name=two")
    assert statuses == [0, 0], lines
    assert any("× 8" in line for line in lines[0])
    assert lines[1] == []
    statuses, lines = run_two(tmp_path, *words, "name=two")
    assert statuses == [2, 2]
    assert all("exists already" in each[-1] for each in lines), lines
    run(tmp_path, *words, "name=one", JAX_NUM_CPU_DEVICES="8")
    two, one = (tmp_path / f"{ALGO}_corridor" / name for name in ("two", "one"))
    mine, theirs = kill_and_corrupt.arrays(two), kill_and_corrupt.arrays(one)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(mine[name].astype(float), array.astype(float), rtol=1e-4, atol=1e-5, err_msg=name)
    rows = [kill_and_corrupt.timeless(folder) for folder in (two, one)]
    assert [row["update"] for row in rows[0]] == [row["update"] for row in rows[1]]
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    shutil.rmtree(checkpoint.checkpoints(two / "checkpoints")[0])
    output = run(tmp_path, f"resume={two}", "devices=1")
    assert "warning: going on on 1 × 1 devices (cpu) instead of 2 × 4 devices (cpu)" in output
    assert kill_and_corrupt.newest(two) == kill_and_corrupt.newest(one)
