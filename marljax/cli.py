"""The command line: ``python algos/<algo>.py env=<name> …`` and ``marljax train | evaluate | replay | plot``."""

import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from marljax import terminal
from marljax.errors import UserError, unknown
from marljax.runfolder import Which

if TYPE_CHECKING:
    from rich.console import Console

    from marljax.driver import Ended
    from marljax.trained import Loaded

USAGE = """usage:
  marljax train <algorithm> env=<name> [key=value …]   train; also python algos/<algorithm>.py env=<name> …
  marljax evaluate <run folder> [key=value …]          play fresh frozen episodes with the trained policy, beside scripted ones
  marljax replay <run folder> [key=value …]            write an episode of the trained policy as GIF or MP4
  marljax plot <run folder>                            draw the learning curve again, and how the settings of a sweep compare
  marljax <command> --help                             what each takes
"""
TRAIN_HELP = """usage: python algos/{algo}.py env=<name> [key=value …]

Trains {algo} and leaves everything in runs/{algo}_<env>/<time>/. Examples:
  python algos/{algo}.py env=merge
  python algos/{algo}.py env=merge env.density=easy algo.total_steps=1e6 seeds=4
  python algos/{algo}.py env=merge seeds=4 "sweep.learning_rate=[1e-4,1e-3]"    every setting with every seed, in one program
  python algos/{algo}.py -m env=merge "algo.hidden=[64],[128,128]"              one run after the other, by Hydra's multirun
  python algos/{algo}.py env=custom env.target=my_package.my_module:MyEnvironment
  python algos/{algo}.py resume=runs/{algo}_merge/<time>
"""
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
PLOT_HELP = """usage: marljax plot <run folder> [trust=true]

Draws curve.png from metrics.jsonl, also of a run that was stopped or still goes on; of a sweep that is ranked also sweep.png.
  trust=true       import env.target of a run that was not trained here: it may run any code
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


Options = TypeVar("Options", EvaluateOptions, ReplayOptions)


def main(algo: str, words: Sequence[str] | None = None) -> None:
    """Runs one algorithm's command line and exits: 0 done, 1 diverged, 2 a mistake in the command, 128 + signal when stopped."""
    words = sys.argv[1:] if words is None else words
    script = sys.argv[0]
    command = ["python", script] if script.endswith(".py") else None
    _exit_with(lambda: train(algo, words, command))


def console() -> None:
    """The ``marljax`` command."""
    _exit_with(lambda: _dispatch(sys.argv[1:]))


def _exit_with(command: Callable[[], int]) -> NoReturn:
    """Runs a command as all of its process, and exits with its status."""
    with terminal.command_process():
        find_own_modules()
        status = terminal.final_status(guarded(command))
    sys.exit(status)


def guarded(command: Callable[[], int]) -> int:
    """The exit status of a command; a user's mistake becomes one line on stderr."""
    try:
        return command()
    except UserError as error:
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # how JAX says so
            return _without_another(error)
        advice = "take fewer environments (algo.num_envs), shorter rollouts, fewer seeds or episodes"
        print(f"error: the device has not enough memory; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return _without_another(error)


def _without_another(error: Exception) -> NoReturn:
    """Ends a process that has lost another of the same run; any other error is raised again."""
    from marljax import hosts

    if not hosts.another_ended(error):
        raise error
    terminal.fail_at_once("another process of this run has ended; start all of them again with resume=<run folder>")


def find_own_modules() -> None:
    """Lets ``env.target`` name a module in the current folder, after everything that is installed."""
    from marljax import registry

    registry.OWN_FOLDERS[:] = [os.getcwd()]


def enable_compilation_cache() -> None:
    """Keeps compiled programs for the next start; imported here, because it comes before everything that computes."""
    from marljax import program_cache

    program_cache.enable()


def _dispatch(words: Sequence[str]) -> int:
    commands = {"train": _train_command, "evaluate": _evaluate, "replay": _replay, "plot": _plot}
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
    from marljax import registry, settings

    if not words or words[0] in ("-h", "--help"):
        print(TRAIN_HELP.format(algo="<algorithm>"), end="")
        print(f"algorithms: {', '.join(sorted(registry.ALGORITHMS))}; environments: {settings.known_environments()}")
        return 0
    return train(words[0], words[1:])


def train(algo: str, words: Sequence[str], command: Sequence[str] | None = None) -> int:
    """Trains as a command with these words does, and returns its exit status.

    ``command`` is what comes before the words, for the advice that a run can be continued; by default ``marljax train <algo>``.
    """
    from marljax import describe, fields, multirun, settings

    if {"-h", "--help"} & set(words):
        text = describe.settings_text(algo, [word for word in words if not word.startswith("-")])
        print(TRAIN_HELP.format(algo=algo), text, sep="\n")
        return 0
    _reject_flags([word for word in words if word not in multirun.FLAGS])
    if multirun.asked(words):
        return multirun.run(algo, words)
    _join_others(words)
    wanted = settings.compose(algo, words)
    enable_compilation_cache()

    from marljax import batches, hosts, ranking, report
    from marljax.progress import say

    screen = terminal.screen(quiet=not hosts.is_first())
    ended = batches.train(wanted, screen)
    if ended.status == "interrupted":
        again = shlex.join([*(command or ("marljax", "train", algo)), f"resume={ended.folder}"])
        stopped = f"stopped after {fields.counted(ended.run.update, 'update')}; continue with: {again}"
        say(screen, stopped)
        _draw_so_far(ended, screen)
        lost = terminal.lost_output(screen.file)
        if lost is not None and not isinstance(lost, BrokenPipeError):
            raise UserError(f"{terminal.unwritten(lost)}; {stopped}")
        return 128 + ended.signal
    if ended.status == "diverged":
        print(f"error: every seed has diverged; {ended.folder} holds what they were before", file=sys.stderr)
        return 1
    if ranking.compares(ended.run.settings):
        ranking.finish(ended.run.settings, ended.folder, screen)
    else:
        report.finish(ended.run, screen)
    return 0


def _draw_so_far(ended: "Ended", screen: "Console") -> None:
    """The learning curve of a run that was stopped."""
    from marljax import hosts, report, settings
    from marljax.progress import say

    whole = settings.batch_of(ended.run.settings, None, ended.run.settings.run.search.batches)
    if not whole.run.render or not hosts.is_first():
        return
    try:
        report.draw_curve(whole, ended.folder, screen)
    except UserError as error:
        say(screen, f"no curve: {error}")


def _join_others(words: Sequence[str]) -> None:
    """Becomes one of several processes, where the command says so; that comes before everything that computes."""
    from marljax import fields, hosts, settings

    changes = settings.parse(words)
    places = {key.removeprefix("hosts."): value for key, value in changes.items() if key.startswith("hosts.")}
    if changes.get("distributed") is True:
        hosts.join(fields.build(hosts.Hosts, "hosts", places))
    elif places:
        raise UserError("hosts.* says where the processes of a distributed run are; add distributed=true")


def _evaluate(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(EVALUATE_HELP, end="")
        return 0
    folder, options, env_changes = _folder_and_options(words, EvaluateOptions)
    from marljax import driver, report
    from marljax.progress import say

    loaded = _load(folder, options, env_changes)
    wanted, screen = loaded.settings, terminal.screen()
    part = driver.fresh_part(options.suite)
    rows = report.compare(wanted, loaded.params, part, options.episodes, lambda line: say(screen, line))
    screen.print(report.table(wanted, rows, options.episodes, "fresh", screen.width))
    if options.which == "best":
        for line in report.about_best(wanted, driver.best_updates(loaded.best, loaded.update)):
            say(screen, line)
    return 0


def _replay(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(REPLAY_HELP, end="")
        return 0
    folder, options, env_changes = _folder_and_options(words, ReplayOptions)
    path = Path(options.out or folder / "replay.gif")
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(f"out={path}: write a .gif or an .mp4 file")
    if path.suffix == ".mp4":
        from marljax import render

        render.check_ffmpeg()
    import jax

    from marljax import driver, report

    loaded = _load(folder, options, env_changes)
    wanted, index = loaded.settings, loaded.index_of(options.seed, folder)
    key = driver.suite_key(driver.fresh_part(options.suite))
    charts = path.with_suffix(".png")
    metrics = report.animate(wanted, jax.tree.map(lambda leaf: leaf[index], loaded.params), key, path, charts)
    if loaded.update_of(index, options.which) == 0:
        print(f"warning: seed {wanted.seeds[index]}: the untrained network's parameters; which=last plays the trained ones")
    print(f"{path}: " + "  ".join(f"{name} {value:.3g}" for name, value in metrics.items()))
    return 0


def _plot(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(PLOT_HELP, end="")
        return 0
    folder, *rest = words
    if rest not in ([], ["trust=true"]):
        raise UserError(f"'{rest[0]}': plot takes a run folder and trust=true, nothing else")
    from marljax import report

    report.draw_again(Path(folder), terminal.screen(), bool(rest))
    return 0


def _load(folder: Path, options: Options, env_changes: dict[str, Any]) -> "Loaded":
    """The members of a run, with changes to its environment."""
    enable_compilation_cache()
    from marljax import trained

    repeated = {f"env.{key}": value for key, value in env_changes.items()}
    loaded = trained.load_members(folder, options.which, options.trial, options.trust, repeated)
    for line in loaded.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if env_changes.get("target") == loaded.settings.tree["env"].get("target"):  # repeated, not changed
        env_changes = {key: value for key, value in env_changes.items() if key != "target"}
    return loaded._replace(settings=trained.with_env(loaded.settings, env_changes))


def _folder_and_options(words: Sequence[str], kind: type[Options]) -> tuple[Path, Options, dict[str, Any]]:
    """The run folder, the command's own options, and the changes to the environment."""
    from marljax import evaluate, fields, runfolder, settings

    folder, *rest = words
    _reject_flags(rest)
    key = folder.partition("=")[0]
    if "=" in folder and (key in fields.names(kind) or key.startswith("env.")) and not Path(folder).is_dir():
        raise UserError(f"name the run folder first, then {folder}")
    values, env_changes = {}, {}
    for key, value in settings.parse(rest).items():
        if key.startswith("env."):
            env_changes[key.removeprefix("env.")] = value
        elif key in fields.names(kind):
            values[key] = value
        else:
            raise unknown("option", key, [*fields.names(kind), "env.<key>"])
    options = fields.build(kind, "", values)
    for key, (least, most) in {"episodes": (1, evaluate.PARTS_PER_SUITE), "suite": (0, evaluate.SUITES - 1)}.items():
        if not least <= getattr(options, key, least) <= most:
            raise UserError(f"{key}={getattr(options, key)} is out of range; it takes integers from {least} to {most}")
    runfolder.read_config(Path(folder))  # it is one, before what plays is imported
    return Path(folder), options, env_changes


def _reject_flags(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("-"):
            raise UserError(f"'{word}': settings are written key=value, without dashes; --help lists them")
