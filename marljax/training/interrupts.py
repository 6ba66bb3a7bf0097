"""Signals that end a run after the current chunk."""

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

from rich.console import Console

from marljax.io import terminal
from marljax.io.terminal import lost_output
from marljax.training.progress import say
from marljax.utils import distributed


class Stopper:
    """Turns the first Ctrl-C or SIGTERM, or output that no longer arrives, into a request that is met after the chunk. A second
    signal does what Ctrl-C did before: in a command it ends the process, in the middle of a chunk too; in Python it raises
    ``KeyboardInterrupt`` when the chunk is done."""

    def __init__(self, console: Console) -> None:
        self.asked = 0  # the signal
        self._console = console
        self._previous: dict[int, Any] = {}
        self._heard = 0  # how many signals have come; Python merges those that come while XLA computes
        self._met = threading.Event()  # the main thread knows of the second one
        self._stack = contextlib.ExitStack()

    def agreed(self) -> int:
        """The signal, if any process has been asked; to be called by all of them."""
        if lost_output(self._console.file) is not None:
            self.asked = self.asked or signal.SIGPIPE
        self.asked = distributed.largest(self.asked)
        return self.asked

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._ask)
            self._stack.enter_context(terminal.heard(self._hear))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """In the main thread."""
        if self.asked:
            self._met.set()
            self._console.show_cursor()  # which the live bar hides
            interrupt = self._previous[signal.SIGINT]
            (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)
        self.asked = number

    def _hear(self, number: int) -> None:
        """In a thread, at once."""
        if number not in self._previous:
            return
        self._heard += 1
        if self._heard == 1:
            say(self._console, "stopping after this chunk, with a checkpoint; once more to stop at once")
        if self._heard != 2 or self._met.wait(terminal.PATIENCE):
            return
        signal.pthread_kill(threading.main_thread().ident or 0, number)  # the two were merged into one
        if self._previous[signal.SIGINT] is terminal.stop_at_once and not self._met.wait(terminal.PATIENCE):
            self._console.show_cursor()
            terminal.stop_at_once(number)
