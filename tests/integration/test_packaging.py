"""The ways to install: an editable clone, a wheel of it, a wheel of its sdist."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("envs", "algos", "baselines", "configs")


def run(*command, cwd, **env):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


WALK = """
import importlib, pkgutil
import marljax
names = ["marljax", *(module.name for module in pkgutil.walk_packages(marljax.__path__, "marljax."))]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder ``marljax`` with the files that git would clone, in an empty folder."""
    folder = tmp_path_factory.mktemp("work") / "marljax"
    folder.mkdir()
    for name in filter(None, run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def python(clone):
    """The interpreter of a new virtual environment, in which that clone is installed to be edited."""
    venv = clone.parent / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=clone.parent)
    run(venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "-e", "./marljax", cwd=clone.parent)
    return venv / "bin" / "python"


@pytest.mark.slow
def test_an_editable_clone_is_found_from_the_folder_above_it(clone, python):
    """There a folder of the package's own name lies in the way; and every folder of ours is a part of the package."""
    script = f"import marljax; print(marljax.make.__module__); from marljax import {', '.join(FOLDERS)}"
    for cwd in (clone.parent, clone, clone / "algos"):
        shown = run(python, "-c", script, cwd=cwd, PYTHONPATH=sysconfig.get_path("purelib"))
        assert shown.split() == ["marljax.registry"]


@pytest.mark.slow
def test_wheels_hold_every_module_and_data_file(clone, python):
    """Of the clone and of its sdist alike; links become folders."""
    tracked = {path.relative_to(clone).as_posix() for path in clone.rglob("*") if path.suffix in (".py", ".yaml", ".csv")}
    wanted = {name for name in tracked if name.startswith("marljax/") and "__pycache__" not in name}
    inside = {f"marljax/{name}" for name in tracked if name.startswith(FOLDERS) and not name.startswith("baselines/results")}
    run(python, "-m", "pip", "install", "-q", "build", cwd=clone.parent)
    run(python, "-m", "build", "-o", "dist", clone, cwd=clone.parent)  # an sdist, and a wheel of that
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "direct", clone, cwd=clone.parent)
    for wheel in (*clone.parent.glob("dist/*.whl"), *clone.parent.glob("direct/*.whl")):
        held = set(zipfile.ZipFile(wheel).namelist())
        assert not (wanted | inside) - held
        assert not {name for name in held if not name.startswith("marljax")}
    installed = clone.parent / "installed"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--target", installed, wheel, cwd=clone.parent)
    shown = run(sys.executable, "-c", WALK, cwd=clone.parent.parent, PYTHONPATH=str(installed))
    modules = {name for name in wanted | inside if name.endswith(".py")}
    assert int(shown.split()[-1]) == len(modules)
