"""The command ``marljax new``: a file to start an environment or an algorithm of one's own from."""

import importlib.resources
import importlib.util
import keyword
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from marljax.cli.exit_status import HELP_FLAGS, reject_flags
from marljax.errors import UserError, unknown

USAGE = """usage: marljax new env <name>
       marljax new algo <name> [from=mappo]

Writes <name>.py into the current folder: a small complete environment, or a copy of an algorithm, to change as you like.
Then for example:
  marljax train mappo env=custom env.target=<name>:<Name>
  marljax train custom algo.target=<name> env=merge
"""
AS_A_SCRIPT = re.compile(r'^if __name__ == "__main__":.*\n(?:(?: .*)?\n)*', re.MULTILINE)  # of an algorithm: trains the original


def new(arguments: Sequence[str]) -> int:
    """Writes the file and prints what to do next."""
    if not arguments or {*HELP_FLAGS} & {*arguments}:
        print(USAGE, end="")
        return 0
    reject_flags(arguments)
    kind, *others = arguments
    if kind not in KINDS:
        raise unknown("kind of file", kind, KINDS)
    if not others:
        raise UserError(f"'marljax new {kind}' needs a name, such as marljax new {kind} my_{kind}")
    name, *options = others
    check_name(name)
    text, commands = KINDS[kind](name, options)
    path = Path(f"{name}.py")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f"{path} exists; choose another name, or move it away") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; go to another folder or check permissions") from error
    print(f"wrote {path}; next:", *commands, sep="\n  ")
    return 0


def check_name(name: str) -> None:
    """Raises ``UserError`` unless a module of that name can be written here and is then found."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"'{name}' is not the name of a module; use lower-case letters, digits and underscores, such as my_maze")
    if not Path(f"{name}.py").exists() and importlib.util.find_spec(name) is not None:
        raise UserError(f"a module '{name}' is installed and would be found instead; choose another name")


def environment(name: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """The text of an environment's file, with its class named after the file, and commands to try."""
    if options:
        raise UserError(f"'marljax new env' takes a name and nothing else; leave out {' '.join(options)}")
    template = importlib.resources.files("marljax.cli").joinpath("template.py").read_text(encoding="utf-8")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if class_name != "Pads" and re.search(rf"^(?:from .* import .*|class )\b{class_name}\b", template, re.MULTILINE):
        raise UserError(f"a class {class_name} would hide marljax's own; choose another name, such as my_{name}")
    check = f"from marljax.testing import check_env; from {name} import {class_name}; check_env({class_name}()); print('ok')"
    target = f"env=custom env.target={name}:{class_name}"
    commands = [f'python -c "{check}"', f"marljax train mappo {target} algo.agent_id=true"]
    return template.replace("Pads", class_name), commands


def algorithm(name: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """The text of an algorithm's file, and commands to try."""
    from marljax import registry

    if len(options) > 1 or not all(option.startswith("from=") for option in options):
        raise UserError(f"'marljax new algo' takes a name and from=<algorithm>; leave out {' '.join(options)}")
    source = options[0].removeprefix("from=") if options else "mappo"
    if source not in registry.ALGORITHMS:
        raise unknown("algorithm", source, registry.ALGORITHMS)
    text = importlib.resources.files("marljax.algos").joinpath(f"{source}.py").read_text(encoding="utf-8")
    command = f"marljax train custom algo.target={name}"
    text = AS_A_SCRIPT.sub("", text, count=1).replace(f"python algos/{source}.py", command)
    return text, [f"{command} env=merge"]


KINDS: dict[str, Callable[[str, Sequence[str]], tuple[str, list[str]]]] = {"env": environment, "algo": algorithm}
