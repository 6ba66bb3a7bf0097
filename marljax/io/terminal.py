"""The process of a command: where its output goes, and how Ctrl-C ends it."""

import contextlib
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

NARROWEST = 40  # columns; in fewer no table can be drawn
PATIENCE = 0.3  # seconds that the main thread has to answer a signal, before another thread does
_ending = threading.RLock()  # of the thread that ends the process


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
        with heard(_stop_soon) if handled else contextlib.nullcontext():
            yield
    finally:
        sys.stdout = before
        if handled:
            signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def heard(hear: Callable[[int], None]) -> Iterator[None]:
    """Calls ``hear`` with the number of every signal that Python handles as soon as it comes, in a thread of its own.

    The handlers themselves run in the main thread between two steps of Python, and only once for several signals of one kind:
    while XLA computes, nothing happens. To be entered in the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reader, 1):
            hear(number[0])

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _stop_soon(number: int) -> None:
    """Ends the process for a Ctrl-C that the main thread does not come to."""
    if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is stop_at_once:
        time.sleep(PATIENCE)
        stop_at_once(number)


def in_utf8() -> None:
    """Starts the command again in Python's UTF-8 mode where the locale has another encoding: JAX and orbax take no other names of
    files. Raises ``UserError`` where that cannot be done, and for names that are not in UTF-8."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        if sys.executable and sys.argv[0] in sys.orig_argv and sys.orig_argv[1:3] != again[1:3]:
            if encoding != "ascii":
                os.environ.setdefault("PYTHONIOENCODING", encoding)  # that of the terminal
            with contextlib.suppress(OSError):
                os.execv(sys.executable, again)
        raise UserError(f"names of files are in {encoding} here, and JAX takes UTF-8 only; set PYTHONUTF8=1")
    for name in (os.getcwd(), *sys.argv):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{os.fsencode(name)!r} is not in UTF-8, and JAX takes no other names of files; rename it") from error


@contextlib.contextmanager
def matplotlib_home() -> Iterator[None]:
    """For the length of a command: where matplotlib could not write to the user's folders, and would warn of that, it gets a
    temporary one."""
    if "MPLCONFIGDIR" in os.environ or all(map(_writable, (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")))):
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # there is no place for it either; matplotlib says so where it is needed
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="marljax-", ignore_cleanup_errors=True))
            os.environ["MPLCONFIGDIR"] = folder
            stack.callback(os.environ.pop, "MPLCONFIGDIR", None)
            files.drafts.add(Path(folder))  # which a process that ends at once removes
            stack.callback(files.drafts.discard, Path(folder))
        yield


def _writable(place: tuple[str, str]) -> bool:
    """Whether matplotlib has or can make a folder in the one that a variable names, or else in this one at home."""
    variable, default = place
    try:
        wanted = Path(os.environ.get(variable) or Path.home() / default) / "matplotlib"
        there = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=there):
            return True
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return False


def stop_at_once(number: int, frame: FrameType | None = None) -> NoReturn:
    """Ends the process with one line. An exception instead might come up in the middle of an import, of a callback or of another
    library's threads, which swallow it or print tracebacks of their own."""
    del frame
    with _ending:  # another thread waits here for the end
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
