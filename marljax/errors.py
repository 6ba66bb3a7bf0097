"""The one exception for mistakes that a user can mend."""

import difflib
import reprlib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user asked for; the message is one line that says what to do.

    The command line prints it without a traceback; in Python it is an ordinary ``ValueError``.
    """


def short_repr(value: object) -> str:
    """What somebody gave, short enough for a line."""
    return " ".join(reprlib.repr(value).split())


def first_line(error: BaseException) -> str:
    """What an exception of another library says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do."""
    known = sorted(known)
    by_letters = {word.lower(): word for word in known}
    near = [by_letters[word] for word in difflib.get_close_matches(name.lower(), by_letters, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
    return UserError(f"unknown {kind} '{name}'; {hint}")
