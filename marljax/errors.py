"""The exception for user errors."""

import difflib
import reprlib
from collections.abc import Iterable


class UserError(ValueError):
    """A user's mistake; the message is one line that says what to do.

    The command line prints it without a traceback; in Python it is an ordinary ``ValueError``.
    """


def short_repr(value: object) -> str:
    """A value's ``repr``, shortened to fit in a message."""
    return " ".join(reprlib.repr(value).split())


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the closest ones that do."""
    known = sorted(known)
    by_lowercase = {word.lower(): word for word in known}
    close = [by_lowercase[word] for word in difflib.get_close_matches(name.lower(), by_lowercase, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}."
    return UserError(f"unknown {kind} '{name}'; {hint}")
