"""The command line: ``python algos/<algo>.py env=<name> …`` and ``marljax train | info | evaluate | …``."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from marljax.cli.exit_status import HELP_FLAGS, guarded, reject_flags
from marljax.errors import UserError, unknown
from marljax.io import terminal
from marljax.version import __version__

USAGE = """usage:
  marljax train <algorithm> env=<name> [key=value …]   train; also python algos/<algorithm>.py env=<name> …
  marljax train resume=<run folder>                    go on with a run; algo.total_steps=<more> for longer
  marljax info <environment> [env.<key>=value …]       describe an environment: observations, actions, options, metrics
  marljax evaluate <run folder> [key=value …]          play frozen episodes with the trained policy, next to scripted ones
  marljax replay <run folder> [key=value …]            write episodes as a page for a browser, or one as GIF or MP4
  marljax replay pretrained/merge-hard-mappo           of a policy that comes with marljax
  marljax compile <algorithm> env=<name> [key=value …] compile for a GPU or TPU that need not be there: memory, kernels
  marljax plot <run folder>                            draw the learning curve, and the comparison of a sweep's settings
  marljax runs [folder] [key=value …]                  list runs: algorithm, environment, steps, result, age
  marljax compare <run folder> … [key=value …]         compare runs: intervals, probability of improvement, curves
  marljax versus <run folder> … [script random]        play runs of a game of two teams against each other: payoffs, ratings
  marljax exploit <run folder> [key=value …]           train best responses to a run: how far it can be beaten
  marljax new env | algo <name>                        write a file to start an environment or algorithm of your own from
  marljax <command> --help                             list the settings of a command
"""
TRAIN_HELP = """usage: {command} env=<name> [key=value …]

Trains {algo} and writes everything to runs/{algo}_<env>/<time>/. Examples:
  {command} env=merge
  {command} env=merge env.density=easy algo.total_steps=1e6 seeds=4
  {command} env=merge seeds=4 "sweep.learning_rate=[1e-4,1e-3]"    every setting with every seed, in one program
  {command} -m env=merge "algo.hidden=[64],[128,128]"              one run after another, by Hydra's multirun
  {command} env=custom env.target=my_package.my_module:MyEnvironment
  {command} resume=runs/{algo}_merge/<time>    go on, bit for bit; with algo.total_steps=2e6 for longer
  {command} env=merge env.density=hard init_from=runs/{algo}_merge/<time>    start from its trained networks
"""


def main(algo: str, arguments: Sequence[str] | None = None) -> None:
    """Runs one algorithm's command line and exits: 0 done, 1 diverged, 2 an invalid command, 128 + signal when stopped."""
    script = sys.argv[0]
    command = ["python", script] if script.endswith(".py") else None
    _exit_with(lambda: _train(algo, sys.argv[1:] if arguments is None else arguments, command))


def console() -> None:
    """The ``marljax`` command."""
    _exit_with(lambda: run_command(sys.argv[1:]))


def _exit_with(command: Callable[[], int]) -> NoReturn:
    """Runs a command as the whole process, and exits with its status."""

    def started() -> int:
        terminal.in_utf8()
        terminal.without_native_banners()
        with terminal.matplotlib_home():
            return command()

    with terminal.command_process():
        status = terminal.final_status(guarded(started))
    sys.exit(status)


def find_own_modules() -> None:
    """Lets ``env.target`` name a module in the current folder, after everything that is installed."""
    from marljax import registry

    registry.OWN_FOLDERS[:] = [os.getcwd()]


def run_command(arguments: Sequence[str]) -> int:
    """Runs ``marljax <arguments>``; help, the version and a typo need no import of JAX."""
    command, *others = arguments or ["--help"]
    if command in HELP_FLAGS:
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(__version__)
        return 0
    if command == "train":
        return _train_any(others)
    if command == "compile":
        with terminal.without_native_errors():  # plug-ins report that there are no accelerators
            from marljax.cli.compile import compile_program, start

            start()
        find_own_modules()
        return compile_program(others)
    if command == "new":
        from marljax.cli.new import new

        return new(others)
    if command == "runs":
        from marljax.cli.runs import runs

        return runs(others)
    if command == "compare":
        from marljax.cli.compare import compare

        return compare(others)
    if command not in ("info", "evaluate", "replay", "plot", "versus", "exploit"):
        known = ["train", "info", "evaluate", "replay", "compile", "plot", "runs", "compare", "versus", "exploit", "new"]
        raise unknown("command", command, known)
    find_own_modules()
    if command == "versus":
        from marljax.cli.versus import versus

        return versus(others)
    if command == "exploit":
        from marljax.cli.exploit import exploit

        return exploit(others)
    if command == "info":
        from marljax.cli.info import info

        return info(others)
    from marljax.cli import evaluate, plot, replay

    return {"evaluate": evaluate.evaluate, "replay": replay.replay, "plot": plot.plot}[command](others)


def _train_any(arguments: Sequence[str]) -> int:
    """``marljax train <algorithm> …``, or ``marljax train resume=<run folder> …``, which names the algorithm."""
    from marljax import registry

    if arguments and arguments[0] not in HELP_FLAGS:
        named = [word for word in arguments if word.startswith("algo=") or not ("=" in word or word.startswith("-"))]
        if named:
            others = [word for word in arguments if word is not named[0]]
            return _train(named[0].removeprefix("algo="), others)
        folder = next((word.partition("=")[2] for word in arguments if word.startswith("resume=")), "")
        if not folder:
            known = ", ".join(sorted(registry.ALGORITHMS))
            raise UserError(f"choose an algorithm, such as marljax train mappo env=merge; known: {known}")
        from marljax.io import run_folder

        return _train(run_folder.read_config(Path(folder))["algo_name"], arguments)
    from marljax.config import compose

    print(TRAIN_HELP.format(command="marljax train <algorithm>", algo="<algorithm>"), end="")
    print(f"algorithms: {', '.join(sorted(registry.ALGORITHMS))}; environments: {compose.known_environments()}")
    return 0


def _train(algo: str, arguments: Sequence[str], command: Sequence[str] | None = None) -> int:
    """The help of an algorithm's command, several runs with ``-m``, or one."""
    find_own_modules()
    from marljax.cli import help, multirun, train

    if {*HELP_FLAGS} & {*arguments}:
        text = help.settings_text(algo, [argument for argument in arguments if not argument.startswith("-")])
        typed = " ".join(command or ("marljax", "train", algo))
        print(TRAIN_HELP.format(command=typed, algo=algo), text, sep="\n")
        return 0
    reject_flags([argument for argument in arguments if argument not in multirun.FLAGS])
    if {*multirun.FLAGS} & {*arguments}:
        return multirun.run(algo, arguments)
    return train.train(algo, arguments, command)
