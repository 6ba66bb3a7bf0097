"""Errors on the command line are reported before heavy libraries are imported."""

import subprocess
import sys

import pytest

HEAVY = ("distrax", "tensorflow_probability", "orbax", "jax.experimental.multihost_utils", "flashbax", "gymnax", "jaxmarl",
         "matplotlib.pyplot", "wandb", "scipy.stats")  # fmt: skip
SCRIPT = f"""
import sys
from marljax.cli import app, exit_status
status = exit_status.guarded(lambda: app.run_command(sys.argv[1:]))
print(status, *(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "mappo", "env=merg"],
        ["train", "mappo", "env=merge", "algo.learning_rat=1"],
        ["train", "mappo", "env=merge", "env.density=eazy"],
        ["train", "ospo", "env=ride_dispatch", "env.vehicle=3"],
        ["train", "ippo", "env=jaxmarl/MPE_simple_spread_v3", "algo.gama=0.9"],
        ["train", "ippo", "env=jaxmarl/MPE_simple_spread_v3", "algo.gamma=x"],
        ["train", "ppo", "env=gymnax/CartPole-v1", "eval.every=2"],
        ["evaluate", "nowhere"],
    ],
)
def test_an_error_is_reported_before_heavy_imports(arguments):
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True)
    assert done.stderr.startswith("error: "), done.stderr
    status, *imported = done.stdout.split()
    assert (status, imported) == ("2", [])
