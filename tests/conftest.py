"""Settings of all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from importlib.metadata import version

import pytest
from programs import free_if_many

# The tests compile far more than they compute: without LLVM's optimiser and with XLA's older code generator they take a third of
# the time. An unknown flag ends the process, so the second one goes only to the releases that it was tried with. Flags that are
# set already stay.
FLAGS = {"--xla_backend_optimization_level": "0"}
if version("jaxlib").startswith("0.10."):
    FLAGS["--xla_cpu_use_fusion_emitters"] = "false"
given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([given, *(f"{name}={value}" for name, value in FLAGS.items() if name not in given)]).strip()
# Runs mark what is trusted in the user's state folder; tests have a folder of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="marljax-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
# Workers and the commands that tests start load each other's compiled programs; ``.ci/run`` keeps them for the slow tests.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="marljax-programs-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """Results of scripted policies in the user's cache are neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def free_programs():
    """Frees compiled programs between files of tests where there are many."""
    yield
    free_if_many()


@pytest.fixture(params=["cpu", "accelerator"])
def platform(request, monkeypatch):
    """Traces functions as for a CPU, then as for accelerators; both run on a CPU."""
    if request.param == "accelerator":
        import jax

        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, default, **branches: default(*args))
    return request.param


@pytest.fixture(scope="module")
def toys():
    """The toys of ``tests/support`` under names that a command line takes; commands keep no compiled programs of their own."""
    from marljax import registry
    from marljax.io import program_cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ALGORITHMS, "tiny", "tiny")
        patch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
        patch.setattr(program_cache, "enable", lambda: None)
        yield


@pytest.fixture
def terminate_at(monkeypatch):
    """A function that lets runs get SIGTERM after the rows of an update."""
    from marljax.training import runner

    run_chunks = runner.run_chunks

    def arrange(update):
        def terminated(run, progress, record, stopper):
            def record_and_terminate(rows):
                record(rows)
                if run.update == update:
                    os.kill(os.getpid(), signal.SIGTERM)

            return run_chunks(run, progress, record_and_terminate, stopper)

        monkeypatch.setattr(runner, "run_chunks", terminated)

    return arrange
