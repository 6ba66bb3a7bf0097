"""``python toy_command.py <algorithm> key=value …``: the command line, with the toys that tests train on and with."""

import sys

from marljax import registry
from marljax.cli import app

registry.ENVIRONMENTS["corridor"] = "toys:Corridor"
registry.ALGORITHMS["tiny"] = "tiny"

if __name__ == "__main__":
    app.main(sys.argv[1], sys.argv[2:])
