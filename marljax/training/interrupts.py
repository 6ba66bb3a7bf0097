"""Signals that end a run after the current chunk."""

import signal
import threading
from types import FrameType
from typing import Any

from rich.console import Console

from marljax.io.terminal import lost_output
from marljax.training.progress import say
from marljax.utils import distributed


class Stopper:
    """Turns the first Ctrl-C or SIGTERM, or output that no longer arrives, into a request that is met after the chunk. A second
    signal does what Ctrl-C did before: in a command it ends the process, in Python it raises ``KeyboardInterrupt``."""

    def __init__(self, console: Console) -> None:
        self.asked = 0  # the signal
        self._console = console
        self._previous: dict[int, Any] = {}

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
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._console.show_cursor()  # which the live bar hides
            interrupt = self._previous[signal.SIGINT]
            (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)
        self.asked = number
        say(self._console, "stopping after this chunk, with a checkpoint; once more to stop at once")
