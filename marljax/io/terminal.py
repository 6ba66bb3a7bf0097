"""The process of a command: its output, and how Ctrl-C ends it."""

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from rich.console import Console

from marljax.errors import UserError
from marljax.io import files

MIN_WIDTH = 40  # columns that a table needs
PATIENCE = 0.3  # seconds for the main thread to handle a signal before another thread does
_exit_lock = threading.RLock()


class Output:
    """A text stream to which writing never fails: after the first failure, kept in ``lost``, text is discarded.

    So a run can react to a closed pipe or a full disk with a checkpoint. Characters that the stream cannot encode become question
    marks.
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
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())  # the stream's buffer would be flushed again at exit
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lost_output(stream: Any) -> OSError | None:
    """The error that an ``Output`` met; None without one and for other streams."""
    return getattr(stream, "lost", None)


@contextlib.contextmanager
def command_process() -> Iterator[None]:
    """During a command standard output is an ``Output``, and Ctrl-C ends the process at once."""
    before = sys.stdout
    if before is not None:  # the process has one
        sys.stdout = Output(before)  # type: ignore[assignment]
    # a background job of a script ignores Ctrl-C
    handled = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    interrupt = signal.signal(signal.SIGINT, stop_at_once) if handled else None

    def stop_soon(number: int) -> None:
        """For a Ctrl-C that the main thread does not get to."""
        if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is stop_at_once:
            time.sleep(PATIENCE)
            stop_at_once(number)

    try:
        with signal_listener(stop_soon) if handled else contextlib.nullcontext():
            yield
    finally:
        sys.stdout = before
        if handled:
            signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def signal_listener(callback: Callable[[int], None]) -> Iterator[None]:
    """Calls ``callback`` with the number of every signal that Python handles, at once and in a thread of its own.

    Python's handlers run in the main thread between bytecodes, not while XLA computes, and once for several signals of one kind.
    To be entered in the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reader, 1):
            callback(number[0])

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


@contextlib.contextmanager
def without_native_errors() -> Iterator[None]:
    """Discards what this process, compiled libraries included, writes to its standard error."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def in_utf8() -> None:
    """Restarts the command in Python's UTF-8 mode where the locale has another encoding: JAX and orbax require UTF-8 file names.
    Raises ``UserError`` where that is not possible, and for names that are not in UTF-8."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        if sys.executable and sys.argv[0] in sys.orig_argv and sys.orig_argv[1:3] != again[1:3]:
            if encoding != "ascii":
                os.environ.setdefault("PYTHONIOENCODING", encoding)  # that of the terminal
            with contextlib.suppress(OSError):
                os.execv(sys.executable, again)
        raise UserError(f"file names are in {encoding} here, and JAX takes UTF-8 only; set PYTHONUTF8=1")
    for name in (os.getcwd(), *sys.argv):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{os.fsencode(name)!r} is not in UTF-8, which JAX requires of file names; rename it") from error


@contextlib.contextmanager
def matplotlib_home() -> Iterator[None]:
    """During a command matplotlib has a temporary folder where it could not write to the user's, and would warn of that."""

    def writable(variable: str, default: str) -> bool:
        try:
            folder = Path(os.environ.get(variable) or Path.home() / default) / "matplotlib"
            existing = next(path for path in (folder, *folder.parents) if path.exists())
            with tempfile.TemporaryDirectory(dir=existing):
                return True
        except (OSError, RuntimeError):  # RuntimeError: no home directory
            return False

    if "MPLCONFIGDIR" in os.environ or (writable("XDG_CONFIG_HOME", ".config") and writable("XDG_CACHE_HOME", ".cache")):
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without a temporary folder either, matplotlib warns where it is used
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="marljax-", ignore_cleanup_errors=True))
            os.environ["MPLCONFIGDIR"] = folder
            stack.callback(os.environ.pop, "MPLCONFIGDIR", None)
            files.drafts.add(Path(folder))  # removed by a process that exits at once
            stack.callback(files.drafts.discard, Path(folder))
        yield


def stop_at_once(number: int, frame: FrameType | None = None) -> NoReturn:
    """Ends the process with one line. An exception could be raised inside an import, a callback or a library's threads, which
    swallow it or print tracebacks of their own."""
    with _exit_lock:  # never released
        for draft in [*files.drafts]:
            files.discard(draft)
        with contextlib.suppress(OSError):
            os.write(2, b"stopped\n")
        os._exit(128 + number)


def fail_at_once(line: str) -> NoReturn:
    """Ends the process with one line on stderr and status 1, where an ordinary exit would hang."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        os.write(2, f"error: {line}\n".encode())
    os._exit(1)


def final_status(status: int) -> int:
    """The exit status of a command, once all of its output is flushed; one line on stderr where that fails."""
    if sys.stdout is not None:
        sys.stdout.flush()
    lost = lost_output(sys.stdout)
    if lost is None or status:
        return status
    if isinstance(lost, BrokenPipeError):
        return 128 + signal.SIGPIPE
    print(f"error: {output_error(lost)}", file=sys.stderr)
    return 2


def output_error(lost: OSError) -> str:
    """The message for an error of standard output."""
    return f"cannot write to standard output: {lost.strerror or lost}; free some space or redirect it"


def without_native_banners() -> None:
    """Keeps what XLA logs off the terminal, unless ``TF_CPP_MIN_LOG_LEVEL`` asks for it: its errors reach Python as exceptions.

    To be called before anything computes.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # which JAX sets where there is none
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def screen(quiet: bool = False, silent: bool = False) -> Console:
    """A console on standard output, at least as wide as a table needs.

    A ``quiet`` one is for warnings and results only, as ``print_line`` writes them; a ``silent`` one shows nothing.
    """
    console = Console(quiet=quiet or silent, file=io.StringIO() if silent else None)
    if console.width < MIN_WIDTH:
        console.width = MIN_WIDTH
    return console
