"""Errors of a command as one line and an exit status."""

import signal
import sys
from collections.abc import Callable, Sequence

from marljax.errors import UserError
from marljax.io import terminal

HELP_FLAGS = ("-h", "--help")


def guarded(command: Callable[[], int]) -> int:
    """The exit status of a command; a ``UserError`` becomes one line on stderr and status 2.

    If another process of the same run has ended, so does this one; any other error is raised again.
    """
    try:
        return command()
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error):  # raised by JAX
            advice = "take fewer environments (algo.num_envs), shorter rollouts, fewer seeds or episodes"
            print(f"error: the device has not enough memory; {advice}", file=sys.stderr)
            return 2
        from marljax.utils import distributed

        if distributed.another_ended(error):
            terminal.fail_at_once("another process of this run has ended; start all of them again with resume=<run folder>")
        raise


def reject_flags(arguments: Sequence[str]) -> None:
    """Raises ``UserError`` for an argument that begins with a dash."""
    for argument in arguments:
        if argument.startswith("-"):
            raise UserError(f"'{argument}': settings are written key=value, without dashes; --help lists them")
