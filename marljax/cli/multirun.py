"""``-m``: one run after another for values that shape the program, by Hydra's multirun and any of its launchers.

Every job is an ordinary command of this library. Hydra is given its overrides as flat keys, ``marljax__env__density`` for
``env.density``, because their meaning depends on the algorithm and the environment.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any

from marljax.config import convert
from marljax.config.compose import PATHS, compose, parse
from marljax.config.sweep import SWEEP
from marljax.errors import UserError
from marljax.training.mesh import use_all_cores

FLAGS = ("-m", "--multirun")
_DOT = "__"  # replaces a dot in Hydra's keys
_PREFIX = f"marljax{_DOT}"  # keeps our keys apart from Hydra's groups
STOPPED = 128  # exit status of a run stopped by a signal, plus its number


def run(algo: str, arguments: Sequence[str]) -> int:
    """Runs a multirun, for every combination of which Hydra calls ``job``; returns the exit status."""
    import hydra

    arguments = [argument for argument in arguments if argument not in FLAGS]
    _check(algo, [argument for argument in arguments if not _is_hydra(argument)])
    _check_hydra([argument for argument in arguments if _is_hydra(argument)])
    sys.argv = [sys.argv[0], "--multirun", f"+algo_name={algo}", *map(_escape_key, arguments)]
    hydra.main(version_base="1.3", config_path=None)(job)()
    return 0


def job(config: Any) -> None:
    """One run; raises ``UserError`` if it fails, so that Hydra counts it as failed.

    A signal that stops it stops all: it leaves Hydra as ``SystemExit``.
    """
    from hydra.core.hydra_config import HydraConfig

    from marljax.cli import exit_status, train

    overrides = []
    for override in HydraConfig.get().overrides.task:
        key, equals, value = override.removeprefix("+").partition("=")
        if key.startswith(_PREFIX):  # the others are Hydra's
            overrides.append(f"{key.removeprefix(_PREFIX).replace(_DOT, '.')}{equals}{value}")
    status = exit_status.guarded(lambda: train.train(config.algo_name, overrides))
    if status >= STOPPED:
        sys.exit(status)
    if status:
        raise UserError(f"{' '.join(overrides)} ended with status {status}")


def _check(algo: str, overrides: Sequence[str]) -> None:
    """Raises ``UserError`` for a value that no run takes: each is tried with the first of all others, before anything starts."""
    values = [_split(override) for override in overrides]
    if any("devices=auto" in several for several in values):  # before anything computes, as composing the settings may
        use_all_cores()
    first = [several[0] for several in values]
    given = parse(first)
    if given.get("distributed"):
        raise UserError("distributed=true starts one run in every process; start it once in each, without -m")
    if "name" in given and any(len(several) > 1 for several in values):
        raise UserError("name= names one run, and -m starts several; leave it out, or choose their folder with runs=<folder>")
    compose(algo, first)
    for index, several in enumerate(values):
        for value in several[1:]:
            compose(algo, [*first[:index], value, *first[index + 1 :]])


def _check_hydra(overrides: Sequence[str]) -> None:
    """Raises ``UserError`` for settings that Hydra does not know, such as a launcher that is not installed."""
    from hydra import compose as hydra_compose
    from hydra import initialize
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize(version_base="1.3", config_path=None):
            hydra_compose(overrides=[*overrides], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).partition("Config search path")[0].split())
        raise UserError(f"Hydra does not take {' '.join(overrides)}: {reason}") from error


def _is_hydra(override: str) -> bool:
    return re.match(r"hydra([./=]|$)", override) is not None


def _split(override: str) -> list[str]:
    """One override per value; the values of ``sweep.*`` belong to one run, and a path is one value."""
    key = override.partition("=")[0]
    if key in PATHS:
        return [override]
    parsed = convert.parse_override(override, "write key=value,value, such as algo.gamma=0.95,0.99")
    if not parsed.is_sweep_override() or parsed.is_interval_sweep() or key.startswith(SWEEP):
        return [override]
    return [f"{key}={value}" for value in parsed.sweep_string_iterator()]


def _escape_key(override: str) -> str:
    """An override with a flat key that Hydra takes without knowing it; Hydra's own stay as they are."""
    from hydra.core.override_parser.types import Quote, QuotedString

    key, equals, value = override.partition("=")
    if _is_hydra(override):
        return override
    if key in PATHS and value != "null":
        value = QuotedString(parse([override])[key], Quote.single).with_quotes()
    if key.startswith(SWEEP) and value[:1] not in ("[", "'", '"'):
        value = f"'{value}'"  # values of one run, not of several
    return f"+{_PREFIX}{key.replace('.', _DOT)}{equals}{value}"
