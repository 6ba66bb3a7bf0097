"""Runs of more members than memory holds at once: equal batches, one after the other, of one compiled program.

Each batch is a run in a folder of its own, ``batch_0``, ``batch_1``, … in that of the whole.
"""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from marljax.config import convert, trust
from marljax.config.schema import Wandb
from marljax.config.settings import Settings, batch_of
from marljax.errors import UserError
from marljax.io import provenance, run_folder
from marljax.reporting import ranking
from marljax.training import runner
from marljax.training.progress import say
from marljax.training.runner import Ended, Status
from marljax.training.trainer import Trainer
from marljax.utils import distributed, memory
from marljax.utils.collectives import SEED

SHARE = 0.8  # of the memory that is left, which a program may take; evaluation and checkpoints have the rest


def train(settings: Settings, console: Console) -> Ended:
    """Trains all members in one program, or in equal batches where memory holds no more, and judges those of a sweep.

    Of several batches the last run is returned, with the status of all: diverged where every member of every batch has.
    """
    if settings.run.search.batch is not None:
        whole = Path(str(settings.run.resume)).parent
        raise UserError(
            f"{settings.run.resume} is one batch of several; {run_folder.resume_word(whole)} goes on with all of them"
        )
    _say_what_is_not_taken(settings, console)
    runner.check_environment(settings, console)
    ranking.check_metric(settings)
    count = settings.run.search.batches or (1 if settings.run.resume else least(settings, console))
    if count == 1:
        ended = runner.train(settings, console)
        if ranking.compares(settings) and ended.status != "interrupted":
            ranking.judge(ended.run, console)
        return ended
    settings = batch_of(settings, None, count)
    ranking.check_metric(settings)  # batches are always compared
    with ExitStack() as stack:
        folder = runner.entered(stack, settings, None)
        distributed.first_writes(lambda: run_folder.write_config(folder, settings.tree))
        trust.mark(folder, settings.tree, convert.to_builtin(Wandb()))
        session = stack.enter_context(provenance.recorded(folder, runner.own_sources(settings)))
        ended = _one_after_the_other(settings, count, folder, console)
        session.status = ended.status
        return ended


def _say_what_is_not_taken(settings: Settings, console: Console) -> None:
    """That a run which was not trained here may not send anything to the account that it names."""
    if settings.run.resume is None:
        return
    folder = Path(settings.run.resume)
    named = run_folder.read_config(folder).get(trust.WANDB)
    if named not in (None, convert.to_builtin(Wandb()), settings.tree[trust.WANDB]) and not trust.is_marked(
        folder, trust.WANDB, named
    ):
        say(console, f"warning: {folder} was not trained here by you, and wandb.* in its config.yaml is not taken; give it anew")


def _one_after_the_other(settings: Settings, count: int, folder: Path, console: Console) -> Ended:
    statuses: list[Status] = []
    ended = None
    for index in range(count):
        part = batch_of(settings, index, count)
        say(console, f"batch {index + 1} of {count}: {part.members[0].name} to {part.members[-1].name}")
        ended = None  # its arrays make room for those of the next batch
        ended = runner.train(part, console, folder / run_folder.batch(index))
        if ended.status == "interrupted":
            return dataclasses.replace(ended, folder=folder)
        if not distributed.largest(ranking.is_judged(part, ended.folder)):  # all look before one of them writes
            _say_what_is_judged_again(ended.folder, console)
            ranking.judge(ended.run, console)
        statuses.append(ended.status)
        if ended.signal and index + 1 < count:  # it came in the last chunk
            return dataclasses.replace(ended, folder=folder, status="interrupted")
    assert ended is not None
    return dataclasses.replace(ended, folder=folder, status="diverged" if set(statuses) == {"diverged"} else "finished")


def _say_what_is_judged_again(folder: Path, console: Console) -> None:
    path = folder / run_folder.RESULTS
    if path.exists():
        say(console, f"warning: {path} is damaged, was edited or is an earlier version's; its members are judged again")


def least(settings: Settings, console: Console) -> int:
    """The least number of equal batches that fit into the memory of every process."""
    return distributed.largest(distributed.together(lambda: needed(settings, console)))


def needed(settings: Settings, console: Console) -> int:
    """The least number of equal batches each of which fits into memory."""
    members, trainer = len(settings.members), runner.make_trainer(settings)
    unit, room = trainer.mesh.shape[SEED], SHARE * memory.left()
    if members == unit or trainer.at_most(*runner.member_inputs(settings)) < room:
        return 1
    say(console, f"looking whether {runner.many(settings)} fit into memory at once")
    predict = prediction(trainer, settings)
    sizes = [size for size in range(members, 0, -unit) if members % size == 0 and size % unit == 0]
    fitting = next((size for size in sizes if predict(size) <= room), None)
    if fitting is None:
        raise UserError(
            f"{convert.counted(unit, 'member')} would take {memory.shown(predict(unit))} of memory, and there are "
            f"{memory.shown(round(room))}; lower algo.num_envs, algo.rollout_length or, where there is one, algo.buffer_size"
        )
    if fitting < members:
        say(console, f"{memory.shown(predict(members))} would be needed; training {members // fitting} batches of {fitting}")
    return members // fitting


def prediction(trainer: Trainer, settings: Settings) -> Callable[[int], int]:
    """Bytes of memory by number of members: a line through what the compiler reports of the smallest two batches."""
    keys, env_params, overrides = runner.member_inputs(settings)
    unit = trainer.mesh.shape[SEED]

    def reported(size: int) -> int:
        return trainer.needs(keys[:size], env_params, {name: values[:size] for name, values in overrides.items()})

    one, two = reported(unit), reported(2 * unit)
    return lambda members: one + (two - one) * (members - unit) // unit
