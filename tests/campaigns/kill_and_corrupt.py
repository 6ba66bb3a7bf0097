"""Kills runs of every algorithm at random times and damages checkpoints; all have to end with the bits of an undisturbed run.

    python tests/campaigns/kill_and_corrupt.py                              # 50 kills, 20 damaged checkpoints: minutes
    python tests/campaigns/kill_and_corrupt.py kills=5 damages=4 seed=1

A slow test runs a short campaign.
"""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from marljax.io import checkpoint, metrics_log

SUPPORT = Path(__file__).parents[1] / "support"
ALGORITHMS = ("ppo", "ippo", "mappo", "qmix", "ospo")
KILLS_PER_RUN = 5
TRAINING = 0.9  # probability that a kill comes after an update; else while the command starts
CHUNK, EVERY = 5, 10  # updates per chunk, and between two checkpoints
UPDATES = 400
SMALL = ["env=corridor", "algo.num_envs=8", "algo.rollout_length=8", f"algo.total_steps={UPDATES * 64}", "algo.hidden=[8,8]"]
SMALL += ["seeds=2", "render=false", f"chunk={CHUNK}", "eval.every=0.1", "eval.episodes=4", "eval.final_episodes=8"]
SMALL += [f"checkpoint.every={EVERY / UPDATES}", "checkpoint.minutes=0"]
OWN = {
    "qmix": ["algo.buffer_size=2048", "algo.learning_starts=256", "algo.batch_size=8", "algo.core=gru"],
    **{algo: ["algo.num_epochs=2", "algo.num_minibatches=2"] for algo in ("ppo", "ippo", "mappo")},
    "ospo": ["algo.num_epochs=1", "algo.num_minibatches=2"],
}


@dataclasses.dataclass
class Campaign:
    """Its folder, random numbers and counts."""

    folder: Path
    rng: random.Random
    kills: int = 0
    while_training: int = 0  # kills further than the run had ever been; the others while it starts or repeats lost updates
    before_any: int = 0  # kills before the first checkpoint
    in_a_checkpoint: int = 0  # while one was being written
    most_lost: int = 0  # updates between the last row of a killed run and its newest checkpoint
    damages: int = 0

    def start(self, algo: str, *arguments: str) -> subprocess.Popen:
        environment = os.environ | {"XDG_CACHE_HOME": str(self.folder / "cache"), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, str(SUPPORT / "toy_command.py"), algo, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, algo: str, *arguments: str) -> str:
        """The output of a command, which has to succeed."""
        process = self.start(algo, *arguments)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def new(self, algo: str, name: str) -> tuple[Path, list[str]]:
        """A run's folder, and the arguments that start it."""
        return self.folder / f"{algo}_corridor" / name, [*SMALL, *OWN[algo], f"runs={self.folder}", f"name={name}"]


def newest(run: Path) -> int:
    """The update of the newest checkpoint; 0 before the first."""
    found = checkpoint.checkpoints(run / "checkpoints")
    return int(found[0].name) if found else 0


def last_row(run: Path) -> int:
    return max((row["update"] for row in metrics_log.read_rows(run)), default=0)


def arrays(run: Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by name."""
    path = checkpoint.checkpoints(run / "checkpoints")[0]
    shapes = checkpoint.read_manifest(path)["structure"]
    return checkpoint.read_arrays(path / checkpoint.ARRAYS, [name for name, (shape, _) in shapes.items() if np.prod(shape)])


def assert_same(run: Path, whole: Path) -> None:
    """Two runs have ended with the same bits and the same rows."""
    mine, theirs = arrays(run), arrays(whole)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(mine[name], array, err_msg=f"{run}: {name}")
    assert timeless(run) == timeless(whole), run


def timeless(run: Path) -> list[metrics_log.Row]:
    """Its rows without their times."""
    return [{key: value for key, value in row.items() if key != "time"} for row in metrics_log.read_rows(run)]


class Seconds(NamedTuple):
    """How long an undisturbed command takes."""

    starts: float  # until its first row
    trains: float


def run_with_kills(campaign: Campaign, algo: str, name: str, kills: int, takes: Seconds) -> Path:
    """A run that is killed up to ``kills`` times, mostly while it trains, and then finishes."""
    run, arguments = campaign.new(algo, name)
    for _ in range(kills):
        begins, rows, process = newest(run), last_row(run), campaign.start(algo, *resume_or_start(run, arguments))
        trains = campaign.rng.random() < TRAINING
        while trains and last_row(run) == rows and process.poll() is None:
            time.sleep(0.01)
        time.sleep(campaign.rng.uniform(0, takes.trains * (1 - rows / UPDATES) if trains else takes.starts))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break  # it was faster
        lost = last_row(run) - newest(run)
        assert newest(run) >= begins, "a checkpoint was lost"
        assert lost < EVERY + CHUNK, f"{run} had got to {last_row(run)} and goes on from {newest(run)}"
        campaign.kills += 1
        campaign.while_training += last_row(run) > rows
        campaign.before_any += not newest(run)
        campaign.in_a_checkpoint += any((run / "checkpoints").glob(".*"))
        campaign.most_lost = max(campaign.most_lost, lost)
    begins = newest(run)
    output = campaign.run(algo, *resume_or_start(run, arguments))
    assert not begins or f"{begins} updates done already" in output, output
    return run


def resume_or_start(run: Path, arguments: list[str]) -> list[str]:
    """The arguments that resume a run, or start it again where it was killed before it had written its configuration."""
    if (run / "config.yaml").exists():
        return [f"resume={run}"]
    shutil.rmtree(run, ignore_errors=True)
    return arguments


def flip_a_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    del rng
    path.unlink()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (flip_a_bit, truncate, delete)


def run_damaged(campaign: Campaign, algo: str, whole: Path, damage: Callable[[Path, random.Random], None], name: str) -> None:
    """Damages the newest checkpoint of an unfinished run: it is reported, the one before is used, and the end is the same."""
    run = whole.with_name(name)
    shutil.copytree(whole.with_name("half"), run)
    config = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(re.sub(r"(?m)^name: .*$", f"name: {name}", config), encoding="utf-8")
    found = checkpoint.checkpoints(run / "checkpoints")
    files = [path for path in found[0].rglob("*") if path.is_file() and path.stat().st_size]
    file = campaign.rng.choice(files)
    damage(file, campaign.rng)
    output = campaign.run(algo, f"resume={run}")
    reported = f"{found[0].name} is damaged" in output and f"going on from {found[1].name}" in output
    assert reported, f"{file}, {damage.__name__}: {output}"
    assert f"{int(found[1].name)} updates done already" in output, output
    assert_same(run, whole)
    campaign.damages += 1


def half_done(campaign: Campaign, algo: str) -> None:
    """A run that was asked to stop in the middle, with two checkpoints."""
    run, arguments = campaign.new(algo, "half")
    process = campaign.start(algo, *arguments)
    while len(checkpoint.checkpoints(run / "checkpoints")) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert f"resume={run}" in "".join(output.splitlines()), output
    assert EVERY < newest(run) < UPDATES, output


def campaign_of(folder: Path, kills: int, damages: int, seed: int, algorithms: tuple[str, ...] = ALGORITHMS) -> Campaign:
    """Kills and damaged checkpoints, spread over the algorithms."""
    campaign = Campaign(folder, random.Random(seed))
    for index, algo in enumerate(algorithms):
        whole, arguments = campaign.new(algo, "whole")
        campaign.run(algo, *arguments, "name=warm")  # compiles
        begun = time.time()
        campaign.run(algo, *arguments)
        rows = metrics_log.read_rows(whole)
        takes = Seconds(rows[0]["time"] - begun, rows[-1]["time"] - rows[0]["time"])
        mine, number = campaign.kills + len(range(index, kills, len(algorithms))), 0
        while campaign.kills < mine:
            count = min(KILLS_PER_RUN, mine - campaign.kills)
            assert_same(run_with_kills(campaign, algo, f"killed_{number}", count, takes), whole)
            number += 1
        if index < damages:
            half_done(campaign, algo)
        for number in range(index, damages, len(algorithms)):
            run_damaged(campaign, algo, whole, DAMAGES[number % len(DAMAGES)], f"damaged_{number}")
        print(f"{algo}: {number} runs that train for {takes.trains:.1f} s, {campaign.kills} kills so far", flush=True)
    return campaign


def main(arguments: list[str]) -> None:
    options = {"kills": 50, "damages": 20, "seed": 0}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options or not value.isdigit():
            sys.exit(f"error: cannot read '{argument}'; write {' '.join(f'{name}={value}' for name, value in options.items())}")
        options[key] = int(value)
    with tempfile.TemporaryDirectory() as folder:
        done = campaign_of(Path(folder), **options)
    facts = {name: value for name, value in vars(done).items() if isinstance(value, int)}
    print(json.dumps(facts))
    print("every run ended with the bits of the undisturbed one, every damaged checkpoint was reported and skipped")


if __name__ == "__main__":
    main(sys.argv[1:])
