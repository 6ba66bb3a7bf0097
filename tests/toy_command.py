"""``python toy_command.py <algorithm> key=value …``: the command line, with the toy environments that tests train on."""

import sys

from marljax import cli, registry

registry.ENVIRONMENTS["corridor"] = "toys:Corridor"

if __name__ == "__main__":
    cli.main(sys.argv[1], sys.argv[2:])
