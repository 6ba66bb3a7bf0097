"""Commands as a user types them, in this process."""

import sys

import pytest

from marljax.cli import app


def console(*words):
    """The exit status of ``marljax <words>``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["marljax", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            app.console()
    return stopped.value.code
