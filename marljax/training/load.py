"""Trained policies out of run folders."""

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from marljax.config import convert, settings
from marljax.config import trust as trusting
from marljax.config.overrides import ENV, overridden
from marljax.config.settings import Settings
from marljax.core.environment import Environment
from marljax.core.types import EnvParams, TimeStep
from marljax.errors import UserError, short_repr
from marljax.io import checkpoint, run_folder
from marljax.io.run_folder import Which
from marljax.training.evaluation import LearnedPolicy
from marljax.training.mesh import make_mesh
from marljax.training.runner import (
    ENV_PARAMS,
    Best,
    ahead_of,
    best_or_last,
    best_updates,
    changed,
    edited,
    purpose_of,
    saved_shapes,
)
from marljax.training.trainer import Trainer
from marljax.utils.validation import is_integer


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """A greedy policy with what it was trained for.

    ``policy(key, state, timestep, carry) -> (action [A, …], carry)`` acts in one environment, as scripted policies do;
    ``state`` is ignored, and ``carry`` starts as ``policy.initial_carry()``.
    """

    algorithm: ModuleType
    env: Environment
    env_params: EnvParams
    config: Any
    params: Any
    seed: int
    update: int  # after which these parameters were taken
    score: float  # mean evaluation return then; NaN where it was not evaluated

    def __call__(self, key: jax.Array, state: Any, timestep: TimeStep, carry: Any = ()) -> tuple[jax.Array, Any]:
        del state
        return self.algorithm.act(self.env, self.config, self.params, timestep, carry, key, True)

    def initial_carry(self) -> Any:
        """The policy's memory at the start of an episode; ``()`` where it has none."""
        return self.algorithm.initial_carry(self.env, self.config)


def load(
    run: str | Path, seed: int | None = None, which: Which = "best", trial: int | None = None, trust: bool = False
) -> TrainedPolicy:
    """The policy of a run folder: ``policy = marljax.load("runs/mappo_merge/…")``.

    ``seed`` chooses among the seeds of the run, by default the one with the best evaluation; ``which`` is ``"best"`` (the
    evaluated parameters with the highest return) or ``"last"`` (those of the newest checkpoint); ``trial`` is the number of a
    setting of a sweep, by default the best. ``trust=True`` lets a run that was not trained on this machine by this user import
    the ``env.target`` of its configuration, which may run any code. Raises ``UserError`` where the folder is not a run's, its
    checkpoints are damaged, they were made for another version of the environment, or its configuration was edited. Warns of a
    damaged checkpoint that is passed over, and where the best parameters are those of update 0, the untrained network's: no later
    evaluation beat them.
    """
    if not isinstance(run, str | Path):
        raise UserError(f"{short_repr(run)} is not a run folder; give its path, such as load('runs/mappo_merge/…')")
    members = load_members(Path(run), which, trial, trust)
    for line in members.warnings:
        warnings.warn(line, stacklevel=2)
    index = members.index_of(seed, Path(run))
    chosen, score = members.settings, members.best.score[index]
    took_best = which == "best" and np.isfinite(score)
    update = members.update_of(index, which)
    if update == 0:
        advice = "which='last' gives the trained ones" if members.update else "the run has just begun"
        warnings.warn(f"{run}, seed {chosen.seeds[index]}: these are the untrained network's parameters; {advice}", stacklevel=2)
    return TrainedPolicy(
        algorithm=chosen.algorithm,
        env=chosen.env,
        env_params=chosen.env_params,
        config=chosen.config,
        params=jax.tree.map(lambda leaf: leaf[index], members.params),
        seed=chosen.seeds[index],
        update=update,
        score=float(score) if took_best else float("nan"),
    )


class Loaded(NamedTuple):
    """The members of one setting."""

    settings: Settings  # of these members alone
    params: Any  # [S, …]
    best: Best
    update: int  # of the newest checkpoint
    warnings: tuple[str, ...] = ()  # a line for each checkpoint that was passed over, and for numbers that have changed

    def index_of(self, seed: int | None, folder: Path) -> int:
        """Which member has the seed; for None the one with the best evaluation."""
        seeds = self.settings.seeds
        if seed is not None and not (is_integer(seed) and seed in seeds):
            raise UserError(f"{folder} has no seed {seed!r}; it trained {', '.join(map(str, seeds))}")
        return int(np.argmax(self.best.score)) if seed is None else seeds.index(seed)

    def update_of(self, index: int, which: Which) -> int:
        """After which update a member's best or last parameters were taken; 0: they are the untrained network's."""
        return int(best_updates(self.best, self.update)[index]) if which == "best" else self.update


def load_members(
    folder: Path, which: Which, trial: int | None = None, trust: bool = False, repeated: Mapping[str, Any] | None = None
) -> Loaded:
    """Parameters of every seed of a run, of one setting where it is a sweep.

    A seed that was never evaluated has no best parameters; its last ones stand in. ``trust`` and ``repeated``, settings by key as
    the user gave them, are for ``trust.read_config``.
    """
    if which not in ("best", "last"):
        raise UserError(f"which={which} is not known; choose best or last")
    whole = settings.from_tree(trusting.read_config(folder, repeated or {}, trust))
    trial = chosen_trial(folder, whole, trial)
    found = [_load_batch(place, part, trial) for place, part in batches(folder, whole) if part.has_trial(trial)]
    if not found:
        raise UserError(f"{folder} has no trial {trial}: it is one of several batches, and others trained that")
    last, best = (jax.tree.map(lambda *leaves: np.concatenate(leaves), *side) for side in list(zip(*found, strict=True))[:2])
    told = tuple(line for *_, lines in found for line in lines)
    params = best_or_last(best, last) if which == "best" else last
    return Loaded(of_trial(whole, trial), params, best, min(update for _, _, update, _ in found), told)


def batches(folder: Path, whole: Settings) -> list[tuple[Path, Settings]]:
    """The folders that hold checkpoints of a run, and the settings of each."""
    search = whole.run.search
    if search.batches in (None, 1) or search.batch is not None:
        return [(folder, whole)]
    count = search.batches
    return [(folder / run_folder.batch(index), settings.batch_of(whole, index, count)) for index in range(count)]


def _load_batch(folder: Path, part: Settings, trial: int) -> tuple[Any, Best, int, list[str]]:
    """Newest and best parameters of those members of a batch that are of one setting, the checkpoint's update, warnings.

    Raises ``UserError`` where the settings are not those that were trained; numbers of the environment alone may differ, with a
    warning, since they come from its code and may have other last digits on another machine.
    """
    trainer = Trainer(part.algorithm, part.training_env, part.config, make_mesh())
    parts = ("best", "members.state.learner.params")
    saved, shapes = folder / run_folder.CHECKPOINTS, saved_shapes(trainer, part)
    found = checkpoint.checkpoints(saved)
    ahead = ahead_of(folder, part, shapes.members, found)
    if ahead and not found:
        raise UserError(f"{ahead}; put {saved} back")
    restored = checkpoint.restore(saved, shapes, purpose_of(part), parts)
    lines = changed(folder, restored.notes, part)
    refused = [line for name, line in lines.items() if not name.startswith(f"{ENV_PARAMS}.")]
    for line in (*edited(restored.notes, part).values(), *refused):
        raise UserError(f"{folder}: {line}; set it back in {run_folder.CONFIG}")
    mine = [index for index, member in enumerate(part.members) if member.trial == trial]
    both = (restored.tree.members.state.learner.params, restored.tree.best)
    return (
        *jax.tree.map(lambda leaf: np.asarray(leaf)[mine], both),
        restored.update,
        [*restored.warnings, *([ahead] if ahead else []), *lines.values()],
    )


def chosen_trial(folder: Path, whole: Settings, trial: int | None) -> int:
    """The number of a setting of a run: ``trial``, or the one that was ranked first."""
    count = len(whole.run.search.tried or ((),))
    if trial is not None and not (is_integer(trial) and trial in range(count)):
        raise UserError(f"{folder} has no trial {trial!r}; it tried 0 to {count - 1}")
    if trial is not None or count == 1:
        return trial or 0
    try:
        return int(run_folder.read_results(folder)["settings"][0]["trial"])
    except ValueError as error:
        advice = f"{run_folder.resume_word(folder)} ranks again, or choose a setting with trial=0 to {count - 1}"
        raise UserError(f"{folder / run_folder.RESULTS} is damaged or was edited; {advice}") from error
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{folder} has not ranked its settings yet; choose one with trial=0 to {count - 1}") from error


def of_trial(whole: Settings, trial: int) -> Settings:
    """The settings of one setting's members alone, as runs of their own would have them; the environment as they are judged."""
    mine = [index for index, member in enumerate(whole.members) if member.trial == trial]
    values = {name: numbers[mine[0]] for name, numbers in whole.evaluation_overrides.items()}
    config, env_params = overridden(whole.config, whole.env_params, values)
    numbers = {name.removeprefix(ENV): convert.to_builtin(value) for name, value in values.items() if name.startswith(ENV)}
    tree = whole.tree | {"env": whole.tree["env"] | numbers}
    members = tuple(whole.members[index]._replace(trial=0, values={}) for index in mine)
    return dataclasses.replace(whole, config=config, env_params=env_params, tree=tree, members=members)


def with_env(trained: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings of a run with other options or numbers of the environment: ``{"density": "easy"}``.

    Raises ``UserError`` where the policies of the run cannot act in the changed environment.
    """
    if not changes:
        return trained
    tree = dict(trained.tree["env"]) | dict(changes)
    bare_env, env_params = settings.build_env(trained.env_name, tree)
    env = settings.adapt_env(trained.algorithm, bare_env)
    changed = dataclasses.replace(trained, env=env, bare_env=bare_env, env_params=env_params, tree=trained.tree | {"env": tree})
    words = " ".join(f"env.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items())
    before, after = _spaces(trained.env), _spaces(env)
    for name, space in before.items():
        if after[name] != space:
            raise UserError(
                f"the run's policies do not fit {words}: the {name} was {space} and becomes {after[name]}; leave it out"
            )
    try:
        _act_on_shapes(trained, changed)
    except Exception as error:  # whatever an algorithm's networks raise for sizes that do not fit
        raise UserError(f"the run's policies do not fit {words}: their networks have other sizes; leave it out") from error
    return changed


def _spaces(env: Environment) -> dict[str, str]:
    return {
        "observation's shape": str(jax.tree.map(lambda box: box.shape, env.observation_space)),
        "action space": str(env.action_space),
    }


def _act_on_shapes(trained: Settings, changed: Settings) -> None:
    """Traces one decision in the changed environment; the global state may differ there, because acting does not look at it."""

    def decide(key: jax.Array) -> Any:
        learner = trained.algorithm.init(trained.env, trained.env_params, trained.config, key).learner
        policy = LearnedPolicy(trained.algorithm, changed.env, trained.config, learner.params)
        state, timestep = changed.env.reset(key, changed.env_params)
        return policy(key, state, timestep, policy.initial_carry())

    everywhere = PartitionSpec()
    mesh = make_mesh()
    jax.eval_shape(
        jax.shard_map(decide, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False), jax.random.key(0)
    )
