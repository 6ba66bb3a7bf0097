"""What ``import marljax`` offers, and what it does not import yet."""

import subprocess
import sys

HEAVY = ("gymnax", "jaxmarl", "distrax", "matplotlib", "wandb", "orbax", "hydra", "flashbax")


def python(script):
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_every_public_name_is_listed_before_it_is_imported():
    script = "import marljax; print(*(set(marljax.__all__) | {'testing'}) - set(dir(marljax)))"
    assert python(script) == []


def test_dir_lists_what_is_public_and_all_of_it_can_be_had():
    script = """
import marljax
print(*(name for name in dir(marljax) if not name.startswith("__") and name not in marljax.__all__))
print(*(name for name in dir(marljax) if not hasattr(marljax, name)))
"""
    folders = ["algos", "config", "core", "envs", "learning", "nn", "testing", "training", "utils", "viz", "wrappers"]
    assert python(script) == folders


def test_the_conformance_kit_is_an_attribute_and_costs_nothing_until_asked_for():
    script = f"""
import sys, marljax
print(*({{*{HEAVY}}} | {{"marljax.testing"}}) & set(sys.modules))
print(marljax.testing.check_env.__name__)
"""
    assert python(script) == ["check_env"]
