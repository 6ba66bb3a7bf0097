"""The process of a command: where its output goes, and how Ctrl-C ends it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn, TextIO

from rich.console import Console

from marljax.io import files

NARROWEST = 40  # columns; in fewer no table can be drawn


class Output:
    """A text stream to which writing never fails: after the first failure, kept in ``lost``, text goes nowhere.

    So a closed pipe or a full disk ends a run where the run chooses to, with a checkpoint. Characters that the stream has no code
    for become question marks.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # the stream still holds text, which it would try to write once more at exit
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lost_output(stream: Any) -> OSError | None:
    """Why text to a stream no longer arrives; None where it does, or where nobody keeps that."""
    return getattr(stream, "lost", None)


@contextlib.contextmanager
def command_process() -> Iterator[None]:
    """For the length of a command: standard output becomes an ``Output``, and Ctrl-C ends the process at once."""
    before = sys.stdout
    if before is not None:  # it is None where the process was started without one
        sys.stdout = Output(before)  # type: ignore[assignment]
    # a job in the background of a script ignores Ctrl-C
    handled = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    interrupt = signal.signal(signal.SIGINT, stop_at_once) if handled else None
    try:
        yield
    finally:
        sys.stdout = before
        if handled:
            signal.signal(signal.SIGINT, interrupt)


def stop_at_once(number: int, frame: FrameType | None = None) -> NoReturn:
    """Ends the process with one line. An exception instead might come up in the middle of an import, of a callback or of another
    library's threads, which swallow it or print tracebacks of their own."""
    del frame
    for draft in [*files.drafts]:
        files.discard(draft)
    with contextlib.suppress(OSError):
        os.write(2, b"stopped\n")
    os._exit(128 + number)


def fail_at_once(line: str) -> NoReturn:
    """Ends the process with one line on stderr and status 1, where an ordinary exit would wait for what does not come."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        os.write(2, f"error: {line}\n".encode())
    os._exit(1)


def final_status(status: int) -> int:
    """The exit status of a command, once all of its output is written; one line on stderr where that cannot be."""
    if sys.stdout is not None:
        sys.stdout.flush()
    lost = lost_output(sys.stdout)
    if lost is None or status:
        return status
    if isinstance(lost, BrokenPipeError):
        return 128 + signal.SIGPIPE
    print(f"error: {unwritten(lost)}", file=sys.stderr)
    return 2


def unwritten(lost: OSError) -> str:
    """What a user is told when output does not arrive."""
    return f"cannot write to standard output: {lost.strerror or lost}; free some space or send it elsewhere"


def screen(quiet: bool = False) -> Console:
    """A console on standard output, as wide as the terminal but never too narrow for a table."""
    console = Console(quiet=quiet)
    if console.width < NARROWEST:
        console.width = NARROWEST
    return console
