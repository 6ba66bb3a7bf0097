"""Training programs compiled for accelerators that are not there; skipped where their compilers are not installed."""

import importlib.util
import os
import subprocess
import sys

import pytest

from marljax.aot import runs, targets
from marljax.config import compose
from marljax.errors import UserError

# One line per algorithm and environment; the compilers must be found before JAX starts, hence a process of its own.
PAIRS = {
    "ppo gymnax/CartPole-v1": (),
    "mappo merge": (),
    "ippo smax": ("env.scenario=3m",),
    "qmix smax": ("env.scenario=3m",),
    "ospo ride_dispatch": ("algo.num_envs=8",),
    "ippo swarm": (),
    "ippo collective": (),
}
COMPILE = """
import jax
jax.config.update("jax_platforms", "cpu")
from marljax.aot import runs, targets
from marljax.config import compose
report = runs.compile_run(compose.compose({algo!r}, {overrides!r}), targets.target_named({target!r}))
collectives = report.minibatch.collectives if report.minibatch else -1
print(report.update.kernels, report.compiled.memory, report.compiled.temporaries, report.compiled.arguments, collectives)
"""


def compiled(pair: str, target: str, *overrides: str) -> list[float]:
    """Kernels of an update, bytes of memory, of temporaries and of inputs, collectives of a minibatch."""
    try:
        targets.target_named(target)
    except UserError as error:
        pytest.skip(str(error))
    algo, env = pair.split()
    code = COMPILE.format(algo=algo, overrides=[f"env={env}", *PAIRS[pair], *overrides], target=target)
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # conftest's flags of the CPU crash libtpu
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, env=given)
    assert result.returncode == 0, result.stderr[-2000:]
    return [float(word) for word in result.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h100", "v5e-1"])
@pytest.mark.parametrize("pair", PAIRS)
def test_every_algorithm_and_environment_compiles(pair, target):
    kernels, memory, *_ = compiled(pair, target)
    assert kernels > 0
    assert memory < targets.TARGETS[target].memory


@pytest.mark.slow
@pytest.mark.parametrize(("target", "num_envs"), [("h100", 128), ("v5e-1", 1024)])
def test_a_decision_in_one_kernel_saves_launches(target, num_envs):
    pair, fewer = "ippo smax", f"algo.num_envs={num_envs}"
    assert compiled(pair, target, fewer, "env.kernels=pallas")[0] < 0.75 * compiled(pair, target, fewer)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "num_envs"), [("h100x8", 1024), ("v5e-256", 4096)])
def test_mappo_over_many_devices(target, num_envs):
    """Gradients and metrics of a minibatch are reduced in at most five collectives."""
    *_, collectives = compiled("mappo merge", target, f"algo.num_envs={num_envs}")
    assert 0 < collectives <= 5


@pytest.mark.slow
def test_qmix_holds_its_replay_once():
    _, _, temporaries, inputs, _ = compiled("qmix smax", "h100")
    assert temporaries < inputs / 2


def test_targets_that_do_not_exist_or_have_no_compiler(monkeypatch):
    with pytest.raises(UserError, match="h100"):
        targets.target_named("h200")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install"):
        targets.target_named("v5e-1")


def test_environments_must_divide_over_the_devices():
    settings = compose.compose("mappo", ["env=merge", "algo.num_envs=12"])
    with pytest.raises(UserError, match="multiple of 8"):
        runs.compile_run(settings, targets.TARGETS["h100x8"])
