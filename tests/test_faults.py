"""What happens to runs from outside: kills, damage, a full disk, other machines, several processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fault_campaign
import numpy as np
import pytest

from marljax import checkpoint

HERE = Path(__file__).parent
ALGO = "qmix"  # whose checkpoints hold a replay
WORDS = [*fault_campaign.SMALL, *fault_campaign.OWN[ALGO]]


def started(folder, *words, kib=None, **environment):
    """A command in a process of its own, whose files may have at most so many KiB."""
    variables = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, str(HERE / "toy_command.py"), ALGO, *words]
    if kib is not None:
        command = ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash", *command]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder, *words, status=0, **given):
    """What a command prints, without the line breaks of a narrow screen."""
    process = started(folder, *words, **given)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    return output


@pytest.mark.slow
def test_a_short_campaign(tmp_path):
    done = fault_campaign.campaign_of(tmp_path, kills=2, damages=2, seed=1, algorithms=("qmix",))
    assert (done.kills, done.damages) == (2, 2)


@pytest.mark.slow
def test_a_full_disk_costs_the_newest_checkpoint_only(tmp_path):
    """Files cannot grow: one line says so, what was saved before is good, and with room again the run goes on."""
    folder = tmp_path / f"{ALGO}_corridor" / "run"
    running = started(tmp_path, *WORDS, f"runs={tmp_path}", "name=run")
    while not checkpoint.checkpoints(folder / "checkpoints") and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)
    running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    before = fault_campaign.newest(folder)
    output = run(tmp_path, f"resume={folder}", kib=largest_kib(folder) // 2, status=2)
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output
    assert "free some space" in lines[0]
    assert fault_campaign.newest(folder) == before
    assert f"{before} updates done already" in run(tmp_path, f"resume={folder}")
    assert fault_campaign.newest(folder) == fault_campaign.UPDATES


def largest_kib(folder):
    return max(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1024


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def both(folder, *words):
    """Statuses and lines of two processes that train together."""
    where = [f"hosts.coordinator=127.0.0.1:{port()}", "hosts.count=2", "distributed=true"]
    pair = [started(folder, *words, *where, f"hosts.index={index}", JAX_NUM_CPU_DEVICES="4") for index in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in pair]
    said = [[line for line in output.splitlines() if "[Gloo]" not in line and line.strip()] for output in outputs]
    return [process.returncode for process in pair], said


@pytest.mark.slow
def test_two_processes_of_four_devices_do_what_one_of_eight_does(tmp_path):
    """By the documented command, checkpoints and a resume on one device included; only the first process writes and speaks."""
    words = [*WORDS, f"runs={tmp_path}", "algo.total_steps=1280", "devices=all", "checkpoint.every=0.5"]
    statuses, said = both(tmp_path, *words, "name=two")
    assert statuses == [0, 0], said
    assert any("× 8" in line for line in said[0])
    assert said[1] == []
    statuses, said = both(tmp_path, *words, "name=two")
    assert statuses == [2, 2]
    assert all("exists already" in lines[-1] for lines in said), said
    run(tmp_path, *words, "name=one", JAX_NUM_CPU_DEVICES="8")
    two, one = (tmp_path / f"{ALGO}_corridor" / name for name in ("two", "one"))
    mine, theirs = fault_campaign.arrays(two), fault_campaign.arrays(one)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(mine[name].astype(float), array.astype(float), rtol=1e-4, atol=1e-5, err_msg=name)
    rows = [fault_campaign.timeless(folder) for folder in (two, one)]
    assert [row["update"] for row in rows[0]] == [row["update"] for row in rows[1]]
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    shutil.rmtree(checkpoint.checkpoints(two / "checkpoints")[0])
    output = run(tmp_path, f"resume={two}", "devices=1")
    assert "warning: going on on 1 × 1 devices (cpu) instead of 2 × 4 devices (cpu); numbers may differ" in output
    assert fault_campaign.newest(two) == fault_campaign.newest(one)
