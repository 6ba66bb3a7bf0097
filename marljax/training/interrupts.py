"""Signals and errors of a user's code that end a run after the current chunk."""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rich.console import Console

from marljax.io import terminal
from marljax.io.terminal import lost_output
from marljax.training.progress import print_line
from marljax.utils import distributed


class Stopper:
    """Turns the first Ctrl-C or SIGTERM, lost output, or an exception of a user's code, into a request to stop after the chunk.

    A second signal does what Ctrl-C did before: in a command it ends the process, even in the middle of a chunk; in Python it
    raises ``KeyboardInterrupt`` after the chunk.
    """

    def __init__(self, console: Console) -> None:
        self.error: BaseException | None = None  # of a user's code
        self._console = console
        self._signal = 0  # that requests to stop
        self._previous: dict[int, Any] = {}  # handlers
        self._received = 0  # signals; Python merges those that arrive while XLA computes
        self._second_handled = threading.Event()  # by the main thread
        self._stack = contextlib.ExitStack()

    def agreed(self) -> int:
        """The signal that any process received, 0 for none; to be called by all of them."""
        if lost_output(self._console.file) is not None:
            self._signal = self._signal or signal.SIGPIPE
        if self.error is not None:
            self._signal = self._signal or signal.SIGINT
        self._signal = distributed.largest(self._signal)
        return self._signal

    def guard(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a user's function, unless one has raised before."""
        if self.error is None:
            try:
                function(*arguments)
            except BaseException as error:  # SystemExit, too: the run is saved first
                self.error = error

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
            self._stack.enter_context(terminal.signal_listener(self._listen))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between bytecodes."""
        if self._signal:
            self._second_handled.set()
            self._console.show_cursor()  # hidden by the live bar
            interrupt = self._previous[signal.SIGINT]
            (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)
        self._signal = number

    def _listen(self, number: int) -> None:
        """In another thread, at once."""
        if number not in self._previous:
            return
        self._received += 1
        if self._received == 1:
            line = "saving a checkpoint and stopping after this chunk; press Ctrl-C again to abort"
            print_line(self._console, line, always=True)
        if self._received != 2 or self._second_handled.wait(terminal.PATIENCE):
            return
        signal.pthread_kill(threading.main_thread().ident or 0, number)  # in case the two were merged
        if self._previous[signal.SIGINT] is terminal.stop_at_once and not self._second_handled.wait(terminal.PATIENCE):
            self._console.show_cursor()
            terminal.stop_at_once(number)
