"""The commands ``marljax evaluate`` and ``marljax replay``."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marljax.cli.exit_status import reject_flags
from marljax.cli.train import enable_compilation_cache
from marljax.errors import UserError, unknown
from marljax.io import terminal
from marljax.io.run_folder import Which

if TYPE_CHECKING:
    from marljax.training.load import Loaded


EVALUATE_HELP = """usage: marljax evaluate <run folder> [key=value …]

Plays episodes that neither training nor its evaluations have seen, the same for every policy, and prints a table.
  episodes=320     how many, for every seed of the run
  suite=0          which set of episodes; no two have one in common
  which=best       best or last parameters of every seed
  trial=…          which setting of a sweep (default: the best)
  trust=true       import env.target of a run that was not trained here: it may run any code
  env.<key>=…      another option or number of the environment, such as env.density=easy
"""
REPLAY_HELP = """usage: marljax replay <run folder> [key=value …]

Writes one episode of the trained policy as an animation.
  out=…            the file, .gif or .mp4 (default: replay.gif in the run folder)
  suite=0          which episode: the first of that suite
  seed=…           which seed of the run (default: the one with the best evaluation)
  which=best       best or last parameters
  trial=…          which setting of a sweep (default: the best)
  trust=true       import env.target of a run that was not trained here: it may run any code
  env.<key>=…      another option or number of the environment, such as env.density=easy
"""


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """What ``marljax evaluate`` takes besides ``env.<key>``."""

    episodes: int = 320
    suite: int = 0
    which: Which = "best"
    trial: int | None = None
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class ReplayOptions:
    """What ``marljax replay`` takes besides ``env.<key>``."""

    out: str | None = None
    suite: int = 0
    seed: int | None = None
    which: Which = "best"
    trial: int | None = None
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """What ``marljax plot`` takes besides ``env.target``."""

    trust: bool = False


ALGO_TARGET = "algo.target"
Options = TypeVar("Options", EvaluateOptions, ReplayOptions, PlotOptions)


def evaluate(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(EVALUATE_HELP, end="")
        return 0
    folder, options, changes = folder_and_options(words, EvaluateOptions)
    from marljax.reporting import report
    from marljax.training import evaluation, runner
    from marljax.training.progress import say

    loaded = _load(folder, options, changes)
    wanted, screen = loaded.settings, terminal.screen()
    part = evaluation.fresh_part(options.suite)
    rows = report.compare(wanted, loaded.params, part, options.episodes, lambda line: say(screen, line))
    screen.print(report.table(wanted, rows, options.episodes, "fresh", screen.width))
    if options.which == "best":
        for line in report.about_best(wanted, runner.best_updates(loaded.best, loaded.update)):
            say(screen, line)
    return 0


def replay(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(REPLAY_HELP, end="")
        return 0
    folder, options, changes = folder_and_options(words, ReplayOptions)
    path = Path(options.out or folder / "replay.gif")
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(f"out={path}: write a .gif or an .mp4 file")
    if path.suffix == ".mp4":
        from marljax.viz import animation

        animation.check_ffmpeg()
    import jax

    from marljax.reporting import report
    from marljax.training import evaluation

    loaded = _load(folder, options, changes)
    wanted, index = loaded.settings, loaded.index_of(options.seed, folder)
    key = evaluation.suite_key(evaluation.fresh_part(options.suite))
    charts = path.with_suffix(".png")
    metrics = report.animate(wanted, jax.tree.map(lambda leaf: leaf[index], loaded.params), key, path, charts)
    if loaded.update_of(index, options.which) == 0:
        print(f"warning: seed {wanted.seeds[index]}: the untrained network's parameters; which=last plays the trained ones")
    print(f"{path}: " + "  ".join(f"{name} {value:.3g}" for name, value in metrics.items()))
    return 0


def _load(folder: Path, options: EvaluateOptions | ReplayOptions, changes: dict[str, Any]) -> "Loaded":
    """The members of a run, with changes to its environment."""
    enable_compilation_cache()
    from marljax.training import load

    loaded = load.load_members(folder, options.which, options.trial, options.trust, changes)
    for line in loaded.warnings:
        print(f"warning: {line}", file=sys.stderr)
    env_changes = {key.removeprefix("env."): value for key, value in changes.items() if key.startswith("env.")}
    if env_changes.get("target") == loaded.settings.tree["env"].get("target"):  # repeated, not changed
        env_changes = {key: value for key, value in env_changes.items() if key != "target"}
    return loaded._replace(settings=load.with_env(loaded.settings, env_changes))


def folder_and_options(words: Sequence[str], kind: type[Options]) -> tuple[Path, Options, dict[str, Any]]:
    """The run folder, the command's own options, and by key what it changes of the environment or repeats of the targets."""
    from marljax.config import compose, convert
    from marljax.io import run_folder
    from marljax.training import evaluation

    folder, *rest = words
    reject_flags(rest)
    key = folder.partition("=")[0]
    if "=" in folder and (key in convert.names(kind) or key.startswith("env.")) and not Path(folder).is_dir():
        raise UserError(f"name the run folder first, then {folder}")
    values, changes = {}, {}
    for key, value in compose.parse(rest).items():
        if key.startswith("env.") or key == ALGO_TARGET:
            changes[key] = value
        elif key in convert.names(kind):
            values[key] = value
        else:
            raise unknown("option", key, [*convert.names(kind), "env.target" if kind is PlotOptions else "env.<key>"])
    options = convert.build(kind, "", values)
    for key, (least, most) in {"episodes": (1, evaluation.PARTS_PER_SUITE), "suite": (0, evaluation.SUITES - 1)}.items():
        if not least <= getattr(options, key, least) <= most:
            raise UserError(f"{key}={getattr(options, key)} is out of range; it takes integers from {least} to {most}")
    run_folder.read_config(Path(folder))  # it is one, before what plays is imported
    return Path(folder), options, changes
