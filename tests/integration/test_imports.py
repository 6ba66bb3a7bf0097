"""What ``import marljax`` offers, and what neither it nor an error on the command line imports."""

import subprocess
import sys

HEAVY = ("distrax", "tensorflow_probability", "orbax", "jax.experimental.multihost_utils", "flashbax", "gymnax", "jaxmarl",
         "matplotlib.pyplot", "wandb", "scipy.stats")  # fmt: skip
ERRORS = [
    ["train", "mappo", "env=merg"],
    ["train", "mappo", "env=merge", "env.density=eazy"],
    ["train", "ospo", "env=ride_dispatch", "env.vehicle=3"],
    ["train", "ippo", "env=jaxmarl/MPE_simple_spread_v3", "algo.gama=0.9"],
    ["train", "ippo", "env=jaxmarl/MPE_simple_spread_v3", "algo.gamma=x"],
    ["train", "ppo", "env=gymnax/CartPole-v1", "eval.every=2"],
    ["evaluate", "nowhere"],
    ["compare", "nowhere"],
]


def python(script):
    """The lines that a new interpreter prints, and its stderr."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_an_error_is_reported_before_heavy_imports():
    script = f"""
import sys
from marljax.cli import app, exit_status
for words in {ERRORS}:
    status = exit_status.guarded(lambda: app.run_command(words))
    print(status, *words, *(name for name in {HEAVY} if name in sys.modules))
"""
    lines, errors = python(script)
    assert lines == [" ".join(["2", *words]) for words in ERRORS]
    assert [line.split()[0] for line in errors.splitlines()] == ["error:"] * len(ERRORS)


def test_help_the_version_and_a_typo_import_no_jax():
    script = """
import sys
from marljax.cli import app, exit_status
for words in ([], ["--help"], ["--version"], ["evalute"]):
    exit_status.guarded(lambda: app.run_command(words))
print(*{"jax", "hydra", "matplotlib", "numpy"} & set(sys.modules))
"""
    lines, errors = python(script)
    assert (lines[-1], errors) == ("", "error: unknown command 'evalute'; did you mean evaluate?\n")


def test_every_public_name_is_listed_and_costs_nothing_until_asked_for():
    """Drawing leaves the user's matplotlib backend alone: its modules import none."""
    script = f"""
import sys, marljax
print(*(set(marljax.__all__) | {{"testing"}}) - set(dir(marljax)))
print(*({{*{HEAVY}}} | {{"hydra", "marljax.testing"}}) & set(sys.modules))
import marljax.viz.animation, marljax.viz.learning_curve
print(*(name for name in sys.modules if name.startswith("matplotlib")))
print(*(name for name in dir(marljax) if not name.startswith("__") and name not in marljax.__all__))
print(*(name for name in dir(marljax) if not hasattr(marljax, name)))
print(marljax.testing.check_env.__name__)
"""
    folders = "algos config core envs learning nn testing training utils viz wrappers"
    assert python(script)[0] == ["", "", "", folders, "", "check_env"]
