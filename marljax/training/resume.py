"""The arrays of a checkpoint, and checks that a run folder has not changed since it was saved."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from marljax.config import convert
from marljax.config.compose import TOTAL_STEPS
from marljax.config.overrides import ENV
from marljax.config.settings import CUSTOM, Settings
from marljax.core.types import persistent_parts
from marljax.errors import UserError
from marljax.io import metrics_log, run_folder
from marljax.io.checkpoint import CheckpointSpec
from marljax.training.best import Best
from marljax.training.trainer import MAX_CHUNK, Replicas, Trainer

ENV_PARAMS = "env_params"  # group of a configuration
RESULTS_DEPEND_ON = (
    *("seed", "seeds", "sweep", "search", "eval", "failure_replay", "init_from", "init_which", "algo", "env", ENV_PARAMS),
)  # groups, too


class Saved(NamedTuple):
    """The arrays of a checkpoint."""

    replicas: Replicas
    best: Best


def purpose_of(settings: Settings) -> CheckpointSpec:
    """What the checkpoints of a run are trained with."""
    name = f"{CUSTOM} {settings.tree['env']['target']}" if settings.env_name == CUSTOM else settings.env_name
    return CheckpointSpec(settings.algo, name, settings.env.version)


def replica_inputs(settings: Settings) -> tuple[jax.Array, Any, dict[str, np.ndarray]]:
    """Arguments of ``Trainer.init``: keys [S], env_params, and overrides [S] by name.

    A replica with seed i is the same as a single run with that seed.
    """
    return jax.vmap(jax.random.key)(np.array(settings.seeds, np.uint32)), settings.training_params, settings.overrides


def saved_shapes(trainer: Trainer, settings: Settings) -> Saved:
    """The arrays of a checkpoint as ``jax.ShapeDtypeStruct``."""
    replicas = trainer.shapes(*replica_inputs(settings))
    score, update = (jax.ShapeDtypeStruct((len(settings.replicas),), dtype) for dtype in (np.float32, np.int32))
    return Saved(replicas, Best(replicas.state.learner.params, score, update))


def chunk_of(settings: Settings) -> int:
    """Updates per compiled call; by default about 1 % of training, and if possible a divisor of it."""
    total = settings.config.num_updates
    if settings.run.chunk:
        return min(settings.run.chunk, total)
    target = min(max(total // 100, 1), MAX_CHUNK)
    near = range(max(target // 4, 1), min(4 * target, MAX_CHUNK) + 1)
    divisors = [length for length in near if total % length == 0]
    return min(divisors, key=lambda length: max(length / target, target / length), default=target)


def lost_progress(folder: Path, settings: Settings, replicas: Replicas, found: Sequence[Path]) -> str | None:
    """A description of progress beyond the newest of the checkpoints ``found``; None where nothing is missing.

    A kill costs what came after the newest checkpoint, at most an interval and a chunk. More is lost where checkpoints were
    deleted or replaced by older ones.
    """
    newest, saved = int(found[0].name) if found else 0, run_folder.last_saved(folder)
    remains = f"the newest that is there is of update {newest}" if found else "there is none"
    if saved is not None and saved > newest:
        return f"{folder} had a checkpoint of update {saved}, and {remains}"
    if not found and (folder / run_folder.RESULTS).exists():
        return f"{folder} has results of a run that has ended, but no checkpoint"
    if saved is not None or settings.run.checkpoint.minutes or persistent_parts(replicas.state):
        return None
    rows = max((row["update"] for row in metrics_log.read_rows(folder)), default=0)
    total = settings.config.num_updates
    interval = max(settings.run.checkpoint.every * total, 1) if settings.run.checkpoint.every else total
    if rows - newest > interval + chunk_of(settings):
        return f"{folder} has rows up to update {rows}, and of its checkpoints {remains}"
    return None


def changed_settings(folder: Path, notes: dict[str, Any], settings: Settings) -> dict[str, str]:
    """Name → description of each setting that differs from those of a checkpoint with these notes.

    Settings that are not in the checkpoint are newer than it and not compared, except for ``env``, which lists all that were set.
    More ``algo.total_steps`` are no change: the run goes on for longer.
    """
    saved = notes.get("settings")
    saved = saved if isinstance(saved, dict) else {}
    groups = [group for group in RESULTS_DEPEND_ON if group in saved]
    try:
        before, after = (convert.flatten({group: tree[group] for group in groups}) for tree in (saved, settings.tree))
    except RecursionError as error:
        raise UserError(f"{folder}: the settings in its checkpoints are not what marljax writes; they nest too deep") from error
    lines = {name: f"{name} was {old} and is {after.get(name)}" for name, old in before.items() if old != after.get(name)}
    if shorter(notes, settings) is not None:
        del lines[TOTAL_STEPS]
    added = [name for name in after if name.startswith(ENV) and name not in before and after[name] is not None]
    return {name: f"{name} was not set and is {after[name]}" for name in added} | lines


def shorter(notes: dict[str, Any], settings: Settings) -> int | None:
    """The ``algo.total_steps`` of a checkpoint with these notes, where the run goes on for longer than that."""
    saved = notes.get("settings")
    algo = saved.get("algo") if isinstance(saved, dict) else None
    steps = algo.get("total_steps") if isinstance(algo, dict) else None
    return steps if isinstance(steps, int) and steps < settings.config.total_steps else None


def extension_line(settings: Settings, trainer: Trainer, steps: int) -> str:
    """A line on a run that goes on for longer than its ``steps``, and whether that is what a longer one would have computed."""
    inputs = replica_inputs(settings)
    before = dataclasses.replace(trainer, config=settings.config.replace(total_steps=steps))
    programs = [each.lower(*inputs).as_text() for each in (before, trainer)]
    line = f"going on for longer: {TOTAL_STEPS} was {steps:,} and is {settings.config.total_steps:,}"
    if programs[0] == programs[1]:
        return f"{line}; nothing is annealed, so the last parameters become those of a run that had begun with that"
    return f"{line}; what is annealed now follows the longer schedule, and not the same as in a run that had begun with it"


def edited_params(notes: dict[str, Any], settings: Settings) -> dict[str, str]:
    """Name → description of each edited entry of ``env_params`` in ``config.yaml``.

    That group is only written, never read, so an edit would have no effect. An entry counts as edited where it is neither that of
    a checkpoint with these notes nor the environment's.
    """
    saved, current = notes.get("settings"), settings.tree[ENV_PARAMS]
    before = saved.get(ENV_PARAMS) if isinstance(saved, dict) else None
    before = before if isinstance(before, dict) else current
    other = {
        name: value for name, value in settings.saved_env_params.items() if value not in (before.get(name), current.get(name))
    }
    return {f"{ENV_PARAMS}.{name}": f"{ENV_PARAMS}.{name} was {before.get(name)} and is {value}" for name, value in other.items()}
