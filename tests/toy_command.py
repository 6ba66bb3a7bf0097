"""``python toy_command.py <algorithm> key=value …``: the command line, with the toys that tests train on and with."""

import sys

from marljax import cli, registry

registry.ENVIRONMENTS["corridor"] = "toys:Corridor"
registry.ALGORITHMS["tiny"] = "tiny"

if __name__ == "__main__":
    cli.main(sys.argv[1], sys.argv[2:])
