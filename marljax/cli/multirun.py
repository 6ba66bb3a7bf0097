"""``-m``: one run after the other for values that shape the program, by Hydra's own multirun and whatever launcher it has.

Every job is an ordinary command of this library. Hydra sees its words as keys without a place, ``marljax__env__density`` for
``env.density``, because what they mean depends on the algorithm and the environment.
"""

import sys
from collections.abc import Sequence
from typing import Any

from marljax.config import convert
from marljax.config.compose import PATHS, compose, parse
from marljax.config.sweep import KEY
from marljax.errors import UserError

FLAGS = ("-m", "--multirun")
_DOT = "__"  # stands for a dot in Hydra's keys
_OURS = f"marljax{_DOT}"  # before them, so that none is a group of Hydra's
STOPPED = 128  # and the number of a signal, as exit status


def asked(words: Sequence[str]) -> bool:
    """Whether a command is a multirun."""
    return any(word in FLAGS for word in words)


def run(algo: str, words: Sequence[str]) -> int:
    """Hands ``words`` to Hydra, which calls ``job`` for every combination; the exit status."""
    import hydra

    _check(algo, [word for word in words if word not in FLAGS and not _is_hydras(word)])
    _check_hydras([word for word in words if word not in FLAGS and _is_hydras(word)])
    overrides = [_hidden(word) for word in words if word not in FLAGS]
    sys.argv = [sys.argv[0], "--multirun", f"+algo_name={algo}", *overrides]
    hydra.main(version_base="1.3", config_path=None)(job)()
    return 0


def job(config: Any) -> None:
    """One run; raises ``UserError`` where it does not come to a good end, so that Hydra counts it as failed.

    A signal that stops it stops all: it leaves Hydra as ``SystemExit``.
    """
    from hydra.core.hydra_config import HydraConfig

    from marljax.cli import exit_status, train

    plain = map(_plain, HydraConfig.get().overrides.task)
    words = [word for word in plain if word is not None]
    status = exit_status.guarded(lambda: train.train(config.algo_name, words))
    if status >= STOPPED:
        sys.exit(status)
    if status:
        raise UserError(f"{' '.join(words)} ended with status {status}")


def _check(algo: str, words: Sequence[str]) -> None:
    """Raises ``UserError`` for a value that no run takes: each is tried with the first of all others, before anything starts."""
    values = [_values(word) for word in words]
    firsts = [several[0] for several in values]
    given = parse(firsts)
    if given.get("distributed"):
        raise UserError("-m starts one run after the other in one process; a distributed run is started once in each, without -m")
    if "name" in given and any(len(several) > 1 for several in values):
        raise UserError("name= names one run, and -m starts several; leave it out, or choose their folder with runs=<folder>")
    compose(algo, firsts)
    for place, several in enumerate(values):
        for value in several[1:]:
            compose(algo, [*firsts[:place], value, *firsts[place + 1 :]])


def _check_hydras(words: Sequence[str]) -> None:
    """Raises ``UserError`` for settings that Hydra does not know, such as a launcher that is not installed."""
    from hydra import compose as hydra_compose
    from hydra import initialize
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize(version_base="1.3", config_path=None):
            hydra_compose(overrides=[*words], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).partition("Config search path")[0].split())
        raise UserError(f"Hydra does not take {' '.join(words)}: {reason}") from error


def _values(word: str) -> list[str]:
    """A word of several values as one for each; the values of ``sweep.*`` are those of one run, and a path is one."""
    if word.partition("=")[0] in PATHS:
        return [word]
    override = convert.parse_override(word, "write key=value,value, such as algo.gamma=0.95,0.99")
    several = override.is_sweep_override() and not override.is_interval_sweep() and not word.startswith(KEY)
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()] if several else [word]


def _is_hydras(word: str) -> bool:
    return word.split("=")[0].split(".")[0].split("/")[0] == "hydra"


def _hidden(word: str) -> str:
    """A word of this library as one that Hydra takes without knowing the key; Hydra's own stay as they are."""
    key, equals, value = word.partition("=")
    if _is_hydras(word):
        return word
    if key in PATHS and value != "null":
        value = _quoted(word)
    value = f"'{value}'" if key.startswith(KEY) and value[:1] not in ("[", "'", '"') else value  # of one run, not of several
    return f"+{_OURS}{key.replace('.', _DOT)}{equals}{value}"


def _quoted(word: str) -> str:
    """The path in a word, so that Hydra takes it as it stands."""
    from hydra.core.override_parser.types import Quote, QuotedString

    (path,) = parse([word]).values()
    return QuotedString(path, Quote.single).with_quotes()


def _plain(word: str) -> str | None:
    """What ``_hidden`` hid; None for what was never hidden."""
    key, equals, value = word.removeprefix("+").partition("=")
    return f"{key.removeprefix(_OURS).replace(_DOT, '.')}{equals}{value}" if key.startswith(_OURS) else None
