"""The command ``marljax versus``."""

import dataclasses
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from marljax.cli.evaluate import ALGO_TARGET, Options, PolicyOptions, load_run
from marljax.cli.exit_status import reject_flags
from marljax.cli.help import explained
from marljax.config import compose, convert
from marljax.core.fields import option
from marljax.errors import UserError, unknown
from marljax.io import run_folder, terminal
from marljax.io.files import output_stem
from marljax.io.run_folder import Which
from marljax.training import evaluation, matches, policy_file
from marljax.training.load import Loaded
from marljax.training.matches import Player

SCRIPT, RANDOM = "script", "random"
MEANING = """Plays runs of a game of two teams against each other, on both sides: payoffs and ratings, versus.md, .csv, .png.
Players are run folders, a checkpoint of one (runs/ippo_smax/first@400: of update 400), policy files, script and random."""


@dataclasses.dataclass(frozen=True)
class VersusOptions(PolicyOptions):
    """Options of ``marljax versus``."""

    which: Which = option(
        "last", choices=typing.get_args(Which), help="of every seed; returns cannot rank parameters of self-play"
    )
    battles: int = option(512, low=2, high=2**20, help="per pair of players at least, half on either side")
    greedy: bool = option(False, help="take the likeliest actions; false: sample them")
    out: str = option("versus", help="files to write, without their ending, or a folder for versus.md and the others")


class Named(NamedTuple):
    """A run as it was typed."""

    text: str
    folder: Path
    update: int | None


def versus(arguments: Sequence[str]) -> int:
    """Prints and writes who beats whom."""
    if explained(arguments, "versus <run folder> … [key=value …]", MEANING, VersusOptions, "env.<key>=…"):
        return 0
    names, options, changes = parsed(arguments, VersusOptions)
    stem = output_stem(options.out, "versus")

    from marljax.reporting import stored, versus
    from marljax.training.progress import print_line

    screen = terminal.screen()
    runs = [named(name) for name in names if name not in (SCRIPT, RANDOM)]
    if not runs or len(names) < 2:
        raise UserError("name at least two players, one of them a run: marljax versus runs/ippo_smax/first runs/ippo_smax/second")
    loaded = load_players(runs, options, changes)
    game = loaded[runs[0].text].settings
    special = {SCRIPT: Player(SCRIPT, None), RANDOM: matches.random_player(game.base_env)}
    players = [special.get(name) or matches.trained_player(name, loaded[name], options.greedy) for name in names]
    task = stored.scenario(game.tree)
    key = evaluation.suite_key(evaluation.fresh_part(options.suite))
    with screen.status(f"{len(players)} players on {task}") as status:
        results = matches.play_all(game.base_env, game.env_params, players, key, options.battles, status.update)
    found = versus.standing(short_names(names), results)
    screen.print(versus.table(found, task, screen.width))
    print_line(screen, versus.summary(found))
    versus.write(found, stem, task, shlex.join(["marljax", "versus", *arguments]))
    print_line(screen, f"written: {stem}.md, .csv, .png, .svg")
    return 0


def parsed(
    arguments: Sequence[str], kind: type[Options], groups: Sequence[str] = ("env.",)
) -> tuple[list[str], Options, dict[str, Any]]:
    """The players, the options, and by key the settings of other ``groups``."""
    reject_flags(arguments)
    keys = convert.names(kind)
    names, overrides = [], []
    changes: dict[str, Any] = {}
    for text in arguments:
        key, equals, _ = text.partition("=")
        if not equals or Path(text).exists() or ("@" in text and Path(text.rpartition("@")[0]).is_dir()):
            names.append(text)
        elif key in keys:
            overrides.append(text)
        elif key.startswith(tuple(groups)) or key == ALGO_TARGET:
            changes |= compose.parse([text])
        else:
            raise unknown("option", key, [*keys, *(f"{group}<key>" for group in groups)])
    places = [name if name in (SCRIPT, RANDOM) else str(Path(name).resolve()) for name in names]
    if twice := [name for name, place in zip(names, places, strict=True) if places.count(place) > 1]:
        raise UserError(f"{twice[-1]} is named twice; name each player once")
    return names, convert.build(kind, "", compose.parse(overrides)), changes


def load_players(
    runs: Sequence[Named], options: PolicyOptions, changes: Mapping[str, Any], known: Mapping[str, Loaded] = MappingProxyType({})
) -> dict[str, Loaded]:
    """The trained policies of runs by how these were typed, after those that are ``known``; ``UserError`` unless all play one
    game."""
    loaded = dict(known)
    for run in runs:
        if run.text in loaded:
            continue
        own = options if run.update is None else dataclasses.replace(options, which="last")
        trained = loaded[run.text] = load_run(run.folder, own, dict(changes), run.update)
        if not any(trained.update_of(index, own.which) for index in range(len(trained.settings.seeds))):
            raise UserError(f"the {own.which} parameters of {run.text} are the untrained network's; train it, or take random")
        game, other = next(iter(loaded.values())).settings, trained.settings
        matches.check_same_game(game.base_env, game.env_params, other.base_env, other.env_params, run.text)
    return loaded


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell them apart."""
    parts, depth = [Path(name).parts for name in names], 1
    while len({part[-depth:] for part in parts}) < len(names) and depth < max(map(len, parts)):
        depth += 1
    return [str(Path(*part[-depth:])) for part in parts]


def named(text: str) -> Named:
    """A run folder, with ``@<update>`` for one of its checkpoints."""
    found = None if Path(text).exists() else re.fullmatch(r"(.+)@(\d+)", text)
    folder, update = (Path(found[1]), int(found[2])) if found else (Path(text), None)
    if not folder.exists():
        raise UserError(f"there is no {folder}; players are run folders, <run folder>@<update>, policy files, script and random")
    if not policy_file.is_policy_file(folder):
        run_folder.read_config(folder)  # an error if it is none, before the heavy imports
    elif update is not None:
        raise UserError(f"{folder} is a policy file and has no checkpoints; leave @{update} out")
    return Named(text, folder, update)
