"""The command line: ``python algos/<algo>.py env=<name> …`` and ``marljax train | evaluate | replay | plot``."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from marljax.cli.evaluate import evaluate, replay
from marljax.cli.exit_status import guarded, reject_flags
from marljax.cli.plot import plot
from marljax.cli.train import TRAIN_HELP
from marljax.errors import unknown
from marljax.io import terminal

USAGE = """usage:
  marljax train <algorithm> env=<name> [key=value …]   train; also python algos/<algorithm>.py env=<name> …
  marljax evaluate <run folder> [key=value …]          play fresh frozen episodes with the trained policy, beside scripted ones
  marljax replay <run folder> [key=value …]            write an episode of the trained policy as GIF or MP4
  marljax plot <run folder>                            draw the learning curve again, and how the settings of a sweep compare
  marljax <command> --help                             what each takes
"""


def main(algo: str, words: Sequence[str] | None = None) -> None:
    """Runs one algorithm's command line and exits: 0 done, 1 diverged, 2 a mistake in the command, 128 + signal when stopped."""
    words = sys.argv[1:] if words is None else words
    script = sys.argv[0]
    command = ["python", script] if script.endswith(".py") else None
    _exit_with(lambda: _train(algo, words, command))


def console() -> None:
    """The ``marljax`` command."""
    _exit_with(lambda: _dispatch(sys.argv[1:]))


def _exit_with(command: Callable[[], int]) -> NoReturn:
    """Runs a command as all of its process, and exits with its status."""

    def started() -> int:
        terminal.in_utf8()
        find_own_modules()
        with terminal.matplotlib_home():
            return command()

    with terminal.command_process():
        status = terminal.final_status(guarded(started))
    sys.exit(status)


def find_own_modules() -> None:
    """Lets ``env.target`` name a module in the current folder, after everything that is installed."""
    from marljax import registry

    registry.OWN_FOLDERS[:] = [os.getcwd()]


def _dispatch(words: Sequence[str]) -> int:
    commands = {"train": _train_command, "evaluate": evaluate, "replay": replay, "plot": plot}
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        import marljax

        print(marljax.__version__)
        return 0
    if words[0] not in commands:
        raise unknown("command", words[0], commands)
    return commands[words[0]](words[1:])


def _train_command(words: Sequence[str]) -> int:
    from marljax import registry
    from marljax.config import compose

    if not words or words[0] in ("-h", "--help"):
        print(TRAIN_HELP.format(command="marljax train <algorithm>", algo="<algorithm>"), end="")
        print(f"algorithms: {', '.join(sorted(registry.ALGORITHMS))}; environments: {compose.known_environments()}")
        return 0
    return _train(words[0].removeprefix("algo="), words[1:])


def _train(algo: str, words: Sequence[str], command: Sequence[str] | None = None) -> int:
    """``marljax train <algo>``: its help, several runs with ``-m``, or one."""
    from marljax.cli import help, multirun, train

    if {"-h", "--help"} & set(words):
        text = help.settings_text(algo, [word for word in words if not word.startswith("-")])
        typed = " ".join(command or ("marljax", "train", algo))
        print(TRAIN_HELP.format(command=typed, algo=algo), text, sep="\n")
        return 0
    reject_flags([word for word in words if word not in multirun.FLAGS])
    return multirun.run(algo, words) if multirun.asked(words) else train.train(algo, words, command)
