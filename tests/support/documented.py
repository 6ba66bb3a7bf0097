"""Runs what the documentation prints, in a process that keeps its imports and, while they are few, its compiled programs."""

import contextlib
import importlib
import io
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

from programs import free_if_many

from marljax.core.environment import ScriptedPolicy
from marljax.reporting import episodes, report
from marljax.training import runner
from marljax.training.evaluation import RandomPolicy

ROOT = Path(__file__).parents[2]


def only_random(env, env_params):
    """In place of all scripted policies, which have tests of their own and take long to compile."""
    return {episodes.RANDOM: ScriptedPolicy(env, env_params, RandomPolicy(env))}


def trace(settings, console, watcher):
    """In place of ``runner.train``: all that precedes compilation; then the command ends."""
    runner.check_sizes(runner.make_trainer(settings), settings)
    sys.exit(0)


@contextlib.contextmanager
def quick(evaluate=True, train=True):
    """Final comparisons are with random actions only; trainings end without one unless ``evaluate``, and are only traced unless
    ``train``."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(report, "scripted_policies", only_random))
        if not evaluate:
            patches.enter_context(mock.patch.object(report, "finish", return_value=None))
        if not train:
            patches.enter_context(mock.patch.object(runner, "train", trace))
        yield
    free_if_many()


def run_command(command, folder, evaluate=True, train=True):
    """Exit status and output of ``marljax …`` or ``python <script> …`` in that folder; see ``quick``."""
    from marljax.cli import console

    os.chdir(folder)
    name, *words = command
    shown = io.StringIO()
    with quick(evaluate, train), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            if name == "marljax":
                sys.argv = [name, *words]
                console()
            else:
                sys.argv = words
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        except SystemExit as ended:
            return ended.code or 0, shown.getvalue()
    return 0, shown.getvalue()


def run_code(blocks, folder):
    """The names that a page's blocks (name, source) define, executed one after the other."""
    os.chdir(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    namespace = {"__name__": "page"}
    with quick():
        for name, source in blocks:
            if name:  # a file of the reader's, which the blocks below import
                importlib.import_module(Path(name).stem)
            else:
                exec(compile(source, "page", "exec"), namespace)
    return sorted(namespace)
