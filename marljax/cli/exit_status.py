"""Errors of a command as one line and an exit status."""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from marljax.errors import UserError
from marljax.io import terminal


def guarded(command: Callable[[], int]) -> int:
    """The exit status of a command; a user's mistake becomes one line on stderr."""
    try:
        return command()
    except UserError as error:
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # how JAX says so
            return _without_another(error)
        advice = "take fewer environments (algo.num_envs), shorter rollouts, fewer seeds or episodes"
        print(f"error: the device has not enough memory; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return _without_another(error)


def _without_another(error: Exception) -> NoReturn:
    """Ends a process that has lost another of the same run; any other error is raised again."""
    from marljax.utils import distributed

    if not distributed.another_ended(error):
        raise error
    terminal.fail_at_once("another process of this run has ended; start all of them again with resume=<run folder>")


def reject_flags(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("-"):
            raise UserError(f"'{word}': settings are written key=value, without dashes; --help lists them")
