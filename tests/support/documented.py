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


@contextlib.contextmanager
def quick(evaluate=True):
    """Final comparisons are with random actions only; trainings end without one unless ``evaluate``."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(report, "scripted_policies", only_random))
        if not evaluate:
            patches.enter_context(mock.patch.object(report, "finish", return_value=None))
        yield
    free_if_many()


class TracedError(Exception):
    """Ends a command where training would begin."""


def trace(settings, console, watcher):
    """In place of ``runner.train``: all that precedes compilation."""
    runner.check_sizes(runner.make_trainer(settings), settings)
    raise TracedError


def run_command(command, folder, evaluate=True, train=True):
    """Exit status and output of ``marljax …`` or ``python <script> …`` in that folder; without ``train``, only traces what
    trains."""
    from marljax.cli import console

    os.chdir(folder)
    name, *words = command
    shown = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(quick(evaluate))
        stack.enter_context(contextlib.redirect_stdout(shown))
        stack.enter_context(contextlib.redirect_stderr(shown))
        if not train:
            stack.enter_context(mock.patch.object(runner, "train", trace))
            stack.enter_context(contextlib.suppress(TracedError))
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
