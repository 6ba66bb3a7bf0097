"""The commands as a user types them, on a real environment, from start to replay."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import marljax
from marljax.io.metrics_log import read_rows

ROOT = Path(__file__).parents[2]
SMALL = ["algo.total_steps=4096", "algo.num_envs=16", "algo.rollout_length=64", "algo.num_minibatches=4", "eval.episodes=8"]


def run(folder, *command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_train_evaluate_replay_load(tmp_path):
    shown = run(tmp_path, ROOT / "algos" / "mappo.py", "env=merge", "name=first", "eval.final_episodes=16", *SMALL, "seeds=2")
    folder = tmp_path / "runs" / "mappo_merge" / "first"
    assert "mappo on merge: 4,096 steps in 4 updates" in shown
    for policy in ("mappo", "human drivers (IDM + MOBIL)", "random", "always left"):
        assert policy in shown
    assert all((folder / name).exists() for name in ("config.yaml", "checkpoints", "curve.png"))
    assert Image.open(folder / "episode.gif").n_frames > 10
    assert [row["update"] for row in read_rows(folder) if row["seed"] == 0] == [0, 1, 2, 3, 4]
    human = json.loads((folder / "results.json").read_text())["policies"]["human drivers (IDM + MOBIL)"]
    assert human["crash"] <= 0.2 < 20 < human["return"]

    command = "import sys; from marljax.cli import console; sys.argv[0] = 'marljax'; console()"
    table = run(tmp_path, "-c", command, "evaluate", folder, "episodes=8", "env.density=easy")
    assert "human drivers (IDM + MOBIL)" in table
    run(tmp_path, "-c", command, "replay", folder, f"out={tmp_path / 'again.gif'}")
    assert Image.open(tmp_path / "again.gif").n_frames > 10

    policy = marljax.load(folder)
    env = policy.env
    state, timestep = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    action, _ = policy(jax.random.key(1), state, timestep, policy.initial_carry())
    chosen = np.asarray(action)[np.asarray(timestep.alive)]
    assert np.asarray(timestep.action_mask)[np.flatnonzero(timestep.alive), chosen].all()
