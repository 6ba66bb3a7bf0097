"""The command line: ``python algos/<algo>.py env=<name> …`` and ``marljax train | evaluate | replay``."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from marljax.errors import UserError, unknown

USAGE = """usage:
  marljax train <algorithm> env=<name> [key=value …]   train; also python algos/<algorithm>.py env=<name> …
  marljax evaluate <run folder> [key=value …]          play fresh frozen episodes with the trained policy, beside scripted ones
  marljax replay <run folder> [key=value …]            write an episode of the trained policy as GIF or MP4
  marljax <command> --help                             what each takes
"""
TRAIN_HELP = """usage: python algos/{algo}.py env=<name> [key=value …]

Trains {algo} and leaves everything in runs/{algo}_<env>/<time>/. Examples:
  python algos/{algo}.py env=merge
  python algos/{algo}.py env=merge env.density=easy algo.total_steps=1e6 seeds=4
  python algos/{algo}.py env=custom env.target=my_package.my_module:MyEnvironment
  python algos/{algo}.py resume=runs/{algo}_merge/<time>
"""
EVALUATE_HELP = """usage: marljax evaluate <run folder> [key=value …]

Plays episodes that neither training nor its evaluations have seen, the same for every policy, and prints a table.
  episodes=320     how many
  suite=0          which set of episodes; another number gives other ones
  which=best       best or last parameters of every seed
  env.<key>=…      another option or number of the environment, such as env.density=easy
"""
REPLAY_HELP = """usage: marljax replay <run folder> [key=value …]

Writes one episode of the trained policy as an animation.
  out=…            the file, .gif or .mp4 (default: replay.gif in the run folder)
  suite=0          which episode
  seed=…           which seed of the run (default: the one with the best evaluation)
  which=best       best or last parameters
  env.<key>=…      another option or number of the environment, such as env.density=easy
"""
EVALUATION_SUITE = 1_000  # parts of the frozen suite from here on are for ``marljax evaluate`` and ``replay``
PARTS_PER_SUITE = 100  # so far apart are the parts of suite=0, suite=1, …


def main(algo: str, words: Sequence[str] | None = None) -> None:
    """Runs one algorithm's command line and exits: 0 done, 1 diverged, 2 a mistake in the command, 128 + signal when stopped."""
    words = sys.argv[1:] if words is None else words
    sys.exit(guarded(lambda: _train(algo, words)))


def console() -> None:
    """The ``marljax`` command."""
    sys.exit(guarded(lambda: _dispatch(sys.argv[1:])))


def guarded(command: Callable[[], int]) -> int:
    """The exit status of a command; a user's mistake becomes one line on stderr."""
    try:
        return command()
    except UserError as error:
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def enable_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, so that the next start takes seconds."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "marljax" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _dispatch(words: Sequence[str]) -> int:
    commands = {"train": _train_command, "evaluate": _evaluate, "replay": _replay}
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        import marljax

        print(marljax.__version__)
        return 0
    if words[0] not in commands:
        raise unknown("command", words[0], commands)
    return commands[words[0]](words[1:])


def _train_command(words: Sequence[str]) -> int:
    from marljax import registry

    if not words or words[0] in ("-h", "--help"):
        print(TRAIN_HELP.format(algo="<algorithm>"), end="")
        print(f"algorithms: {', '.join(sorted(registry.ALGORITHMS))}; environments: {', '.join(sorted(registry.ENVIRONMENTS))}")
        return 0
    return _train(words[0], words[1:])


def _train(algo: str, words: Sequence[str]) -> int:
    from marljax import settings

    if {"-h", "--help"} & set(words):
        changes = settings.parse([word for word in words if not word.startswith("-")])
        print(TRAIN_HELP.format(algo=algo))
        print(settings.describe(algo, changes.get("env"), changes.get("env.target")))
        return 0
    _reject_flags(words)
    wanted = settings.compose(algo, words)
    enable_compilation_cache()

    from marljax import driver, report

    screen = Console()
    ended = driver.train(wanted, screen)
    if ended.status == "interrupted":
        print(f"stopped after {ended.run.update} updates; continue with resume={ended.run.folder}")
        return 128 + ended.signal
    if ended.status == "diverged":
        checkpoints = ended.run.folder / "checkpoints"
        print(f"error: every seed has diverged; {checkpoints} holds what they were before", file=sys.stderr)
        return 1
    report.finish(ended.run, screen)
    return 0


def _evaluate(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(EVALUATE_HELP, end="")
        return 0
    folder, changes, env_changes = _folder_and_changes(words, {"episodes": 320, "suite": 0, "which": "best"})
    from marljax import report
    from marljax.progress import comparison, pooled

    trained, params, _ = _trained(folder, changes["which"], env_changes)
    batch = trained.run.eval.episodes
    first = _first_part(changes["suite"])
    parts = range(first, first + -(-changes["episodes"] // batch))
    rows = report.compare(trained, params, parts)
    screen = Console()
    screen.print(comparison(pooled(len(parts) * batch, "fresh", trained.run.seeds), rows, screen.width))
    return 0


def _replay(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(REPLAY_HELP, end="")
        return 0
    folder, changes, env_changes = _folder_and_changes(words, {"out": "", "suite": 0, "seed": -1, "which": "best"})
    import jax
    import numpy as np

    from marljax import driver, report

    path = Path(changes["out"] or folder / "replay.gif")
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(f"out={path}: write a .gif or an .mp4 file")
    trained, params, best = _trained(folder, changes["which"], env_changes)
    seeds = driver.seeds_of(trained)
    if changes["seed"] != -1 and changes["seed"] not in seeds:
        raise UserError(f"{folder} has no seed {changes['seed']}; it trained {', '.join(map(str, seeds))}")
    index = int(np.argmax(best.score)) if changes["seed"] == -1 else seeds.index(changes["seed"])
    key = driver.suite_key(_first_part(changes["suite"]))
    metrics = report.animate(trained, jax.tree.map(lambda leaf: leaf[index], params), key, path)
    print(f"{path}: " + "  ".join(f"{name} {value:.3g}" for name, value in metrics.items()))
    return 0


def _first_part(suite: int) -> int:
    """Where ``suite=…`` starts in the frozen suite, for both commands."""
    return EVALUATION_SUITE + suite * PARTS_PER_SUITE


def _trained(folder: Path, which: Any, env_changes: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The settings of a run, with changes to its environment, its parameters [S, …] and their best evaluations."""
    enable_compilation_cache()
    from marljax import runfolder, settings, trained

    original = settings.from_tree(runfolder.read_config(folder))
    params, best, _ = trained.load_members(folder, original, which)
    return trained.with_env(original, env_changes), params, best


def _folder_and_changes(words: Sequence[str], defaults: dict[str, Any]) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The run folder, the command's own options, and the changes to the environment."""
    from marljax import fields, settings

    folder, *rest = words
    _reject_flags(rest)
    if "=" in folder:
        raise UserError(f"name the run folder first, then {folder}")
    options, env_changes = dict(defaults), {}
    for key, value in settings.parse(rest).items():
        if key.startswith("env."):
            env_changes[key.removeprefix("env.")] = value
        elif key in defaults:
            options[key] = fields.convert(key, value, type(defaults[key]))
        else:
            raise unknown("option", key, [*defaults, "env.<key>"])
    for key in ("episodes", "suite"):
        if options.get(key, 1) < (key == "episodes"):
            raise UserError(f"{key}={options[key]} is out of range; it takes integers of at least {int(key == 'episodes')}")
    return Path(folder), options, env_changes


def _reject_flags(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("-"):
            raise UserError(f"'{word}': settings are written key=value, without dashes; --help lists them")
