"""Replicas that do not fit into memory at once, as equal batches of one compiled program, trained one after another.

Each batch is a run in a folder of its own, ``batch_0``, ``batch_1``, … in that of the whole.
"""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from marljax.config import convert, trust
from marljax.config.settings import Settings, batch_of
from marljax.errors import UserError
from marljax.io import provenance, run_folder
from marljax.reporting import ranking
from marljax.training import runner
from marljax.training.progress import print_line
from marljax.training.runner import TERMINAL, RunResult, Status, Watcher
from marljax.training.trainer import Trainer
from marljax.utils import distributed, memory
from marljax.utils.collectives import SEED

MEMORY_FRACTION = 0.8  # of the free memory, for the program; the remainder is for evaluation and checkpoints


def train(settings: Settings, console: Console, watcher: Watcher = TERMINAL) -> RunResult:
    """Trains all replicas in one program, or in equal batches if they do not fit into memory; evaluates those of a sweep.

    Of several batches the last run is returned, with the status of all: diverged if every replica of every batch has.
    """
    resume = settings.run.resume
    if settings.run.search.batch is not None:
        whole = run_folder.resume_argument(Path(str(resume)).parent)
        raise UserError(f"{resume} is one batch of several; {whole} resumes all of them")
    if resume is not None:
        named, harmless = run_folder.read_config(Path(resume)).get(trust.WANDB), (None, trust.default_wandb())
        ignored = named not in (*harmless, settings.tree[trust.WANDB])
        if ignored and not trust.is_marked(Path(resume), trust.WANDB, named):
            line = f"{resume} was not trained here by you: wandb.* in its config.yaml is ignored; set it on the command line"
            print_line(console, f"warning: {line}")
    runner.check_environment(settings, console)
    ranking.check_metric(settings)
    count = settings.run.search.batches
    if count is None:
        count = 1 if resume else distributed.largest(distributed.on_all_processes(lambda: num_batches(settings, console)))
    if count == 1:
        ended = runner.train(settings, console, watcher=watcher)
        if ranking.compares(settings) and ended.status != "interrupted":
            ranking.evaluate_runs(ended.run, console)
        return ended
    settings = batch_of(settings, None, count)
    ranking.check_metric(settings)  # batches are always compared
    with ExitStack() as stack:
        folder = runner.open_run_folder(stack, settings, None)
        distributed.first_writes(lambda: run_folder.write_config(folder, settings.tree))
        trust.mark(folder, settings.tree)
        session = stack.enter_context(provenance.recorded(folder, runner.own_sources(settings)))
        ended = _train_batches(settings, count, folder, console, watcher)
        session.status = ended.status
        return ended


def _train_batches(settings: Settings, count: int, folder: Path, console: Console, watcher: Watcher) -> RunResult:
    statuses: list[Status] = []
    ended = None
    for index in range(count):
        part = batch_of(settings, index, count)
        print_line(console, f"batch {index + 1} of {count}: {part.replicas[0].name} to {part.replicas[-1].name}")
        ended = None  # frees its arrays for the next batch
        ended = runner.train(part, console, folder / run_folder.batch_folder(index), watcher)
        if ended.status == "interrupted":
            return dataclasses.replace(ended, folder=folder)
        if not distributed.largest(ranking.has_results(part, ended.folder)):  # every process reads before one of them writes
            results = ended.folder / run_folder.RESULTS
            if results.exists():
                print_line(console, f"warning: {results} is damaged, edited or of another version; evaluating its runs again")
            ranking.evaluate_runs(ended.run, console)
        statuses.append(ended.status)
        if ended.signal and index + 1 < count:  # it came in the last chunk
            return dataclasses.replace(ended, folder=folder, status="interrupted")
    assert ended is not None
    return dataclasses.replace(ended, folder=folder, status="diverged" if set(statuses) == {"diverged"} else "finished")


def num_batches(settings: Settings, console: Console) -> int:
    """The least number of equal batches such that each fits into memory."""
    total, trainer = len(settings.replicas), runner.make_trainer(settings)
    unit, room = trainer.mesh.shape[SEED], MEMORY_FRACTION * memory.free_bytes()
    if total == unit or trainer.at_most(*runner.replica_inputs(settings)) < room:
        return 1
    print_line(console, f"checking whether {runner.describe_runs(settings)} fit into memory at once")
    predict = predict_memory(trainer, settings)
    sizes = [size for size in range(total, 0, -unit) if total % size == 0 and size % unit == 0]
    fitting = next((size for size in sizes if predict(size) <= room), None)
    if fitting is None:
        need = f"{convert.pluralize(unit, 'run')} needs {memory.format_bytes(predict(unit))} of memory"
        raise UserError(
            f"{need}, but only {memory.format_bytes(round(room))} are available; "
            "lower algo.num_envs, algo.rollout_length or, if there is one, algo.buffer_size"
        )
    if fitting < total:
        print_line(
            console, f"{memory.format_bytes(predict(total))} would be needed; training {total // fitting} batches of {fitting}"
        )
    return total // fitting


def predict_memory(trainer: Trainer, settings: Settings) -> Callable[[int], int]:
    """Bytes of memory by number of replicas, linear in what the compiler reports for the two smallest batches."""
    keys, env_params, overrides = runner.replica_inputs(settings)
    unit = trainer.mesh.shape[SEED]
    one, two = (
        trainer.needs(keys[:size], env_params, {name: values[:size] for name, values in overrides.items()})
        for size in (unit, 2 * unit)
    )
    return lambda replicas: one + (two - one) * (replicas - unit) // unit
