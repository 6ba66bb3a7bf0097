"""Settings of all tests."""

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version

import pytest

# The tests compile far more than they compute: without LLVM's optimiser and with XLA's older code generator they take a third of
# the time. An unknown flag ends the process, so the second one goes only to the releases that it was tried with. Flags that are
# set already stay.
FLAGS = {"--xla_backend_optimization_level": "0"}
if version("jaxlib").startswith("0.10."):
    FLAGS["--xla_cpu_use_fusion_emitters"] = "false"
given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([given, *(f"{name}={value}" for name, value in FLAGS.items() if name not in given)]).strip()
# Runs leave marks in the user's state folder; those of tests stay out of it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="marljax-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """The user's own cache stays as it is, and nothing in it decides what is played."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
