"""Trained policies from run folders. Axis letter: S replicas."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from marljax.config import convert, settings
from marljax.config import trust as trusting
from marljax.config.overrides import ENV, apply_overrides
from marljax.config.settings import Settings
from marljax.errors import UserError, short_repr
from marljax.io import checkpoint, run_folder
from marljax.io.run_folder import Which
from marljax.training import policy_file
from marljax.training.best import Best, best_or_last, best_updates
from marljax.training.evaluation import LearnedPolicy, misfit
from marljax.training.mesh import make_mesh
from marljax.training.resume import ENV_PARAMS, changed_settings, edited_params, lost_progress, purpose_of, saved_shapes
from marljax.training.trainer import Trainer
from marljax.utils.pytrees import named_leaves
from marljax.utils.validation import is_integer


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrainedPolicy(LearnedPolicy):
    """A policy with the environment and the configuration that it was trained with. It acts as in its run's evaluations
    (``eval.greedy``); see ``LearnedPolicy`` for a call."""

    seed: int
    update: int  # after which these parameters were taken
    score: float  # mean evaluation return then; NaN where it was not evaluated
    settings: Settings  # of the run, for its setting alone
    card: Mapping[str, Any]  # of a policy file: how it was trained, and its result; else empty

    def save(self, path: str | os.PathLike, card: Mapping[str, Any] | None = None) -> None:
        """Writes the policy as a file that ``load`` reads, without the rest of its run: ``policy.save("merge.npz")``.

        ``card`` replaces what the file says of the policy, in JSON's types. Raises ``UserError`` where it cannot be written.
        """
        about = self.card if card is None else card
        policy_file.write(path, self.settings, self.params, self.seed, self.update, about, self.greedy)


def load(
    run: str | Path,
    seed: int | None = None,
    which: Which = "best",
    trial: int | None = None,
    trust: bool = False,
    update: int | None = None,
) -> TrainedPolicy:
    """The policy of a run folder, ``policy = marljax.load("runs/mappo_merge/…")``, or of a file.

    Args:
        run: the folder, a file that ``policy.save`` wrote, or a policy that comes with marljax, such as
            ``"pretrained/merge-hard-mappo"``.
        seed: of the run; by default the one with the best evaluation.
        which: ``"best"``, the evaluated parameters with the highest return, or ``"last"``, those of the newest checkpoint.
        trial: number of a setting of a sweep; by default the best.
        trust: lets a run that was not trained on this machine by this user import the ``env.target`` of its configuration, which
            may run any code.
        update: of an older checkpoint, with its last parameters whatever ``which`` says; by default the newest.

    Raises:
        UserError: where the folder is not a run's, its checkpoints are damaged or of another version of the environment, its
            configuration was edited, or it has no checkpoint of that update.

    Warns of a damaged checkpoint that is skipped, and where the best parameters are those of the untrained network (update 0).
    """
    if not isinstance(run, str | Path):
        raise UserError(f"{short_repr(run)} is not a run folder; give its path, such as load('runs/mappo_merge/…')")
    which = which if update is None else "last"
    if update is not None and policy_file.is_policy_file(Path(run)):
        raise UserError(f"{run} is a policy file and has no checkpoints; leave update out")
    replicas = load_replicas(Path(run), which, trial, trust, update=update)
    for line in replicas.warnings:
        warnings.warn(line, stacklevel=2)
    index = replicas.index_of(seed, Path(run))
    chosen, score = replicas.settings, replicas.best.score[index]
    update = replicas.update_of(index, which)
    if update == 0:
        advice = "which='last' gives the trained ones" if replicas.update else "the run has just begun"
        whose = "the untrained network's parameters" if chosen.run.init_from is None else "the parameters that the run began with"
        warnings.warn(f"{run}, seed {chosen.seeds[index]}: these are {whose}; {advice}", stacklevel=2)
    return TrainedPolicy(
        algorithm=chosen.algorithm,
        env=chosen.env,
        env_params=chosen.env_params,
        config=chosen.config,
        params=jax.tree.map(lambda leaf: leaf[index], replicas.params),
        greedy=chosen.run.eval.greedy,
        seed=chosen.seeds[index],
        update=update,
        score=float(score) if which == "best" and np.isfinite(score) else float("nan"),
        settings=chosen,
        card=replicas.card,
    )


class Start(NamedTuple):
    """Parameters that a new run starts from."""

    params: Any  # [S, …] on the host
    record: dict[str, Any]  # for run.json
    line: str  # for the screen
    warnings: tuple[str, ...]


def starting_params(new: Settings, template: Any) -> Start:
    """The parameters of the run ``init_from`` for the replicas of a new one, whose own are the ``template`` [S, …].

    Of a run with as many seeds each seed gets those of its counterpart, else all get those of the best one. Of a sweep its best
    setting is taken.

    Raises:
        UserError: where the folder is not a run's, was not trained here, or its parameters do not fit the networks.
    """
    folder, which = Path(str(new.run.init_from)), new.run.init_which
    loaded = load_replicas(folder, which, trust=new.run.trust, repeated=trusting.targets(new.tree))
    stored, needed = checkpoint.structure(loaded.params), checkpoint.structure(template)
    for name in [*needed, *stored]:
        found, expected = (f"{entry[1]}{entry[0][1:]}" if (entry := side.get(name)) else "absent" for side in (stored, needed))
        if found != expected:
            advice = "take an algorithm, networks and an environment of the same sizes"
            raise UserError(f"init_from={folder} does not fit: {name} is {found} there and {expected} here; {advice}")
    arrays, seeds = dict(named_leaves(loaded.params)), loaded.settings.seeds
    paired, best = len(seeds) == new.run.seeds, loaded.index_of(None, folder)
    chosen = [replica.seed - new.run.seed if paired else best for replica in new.replicas]
    updates = [loaded.update_of(index, which) for index in chosen]
    whose = f"seed {seeds[chosen[0]]} after update {updates[0]:,}" if len(set(chosen)) == 1 else "the seeds in their order"
    untrained = [f"seed {seeds[index]}" for index in dict.fromkeys(chosen) if loaded.update_of(index, which) == 0]
    lines = [f"{folder}: the parameters of {', '.join(untrained)} are the untrained network's"] * bool(untrained)
    return Start(
        params=jax.tree.unflatten(jax.tree.structure(template), [arrays[name][chosen] for name, _ in named_leaves(template)]),
        record={"folder": str(folder.resolve()), "which": which, "seeds": [seeds[index] for index in chosen], "updates": updates},
        line=f"starting from the {which} parameters of {folder}: {whose}",
        warnings=(*loaded.warnings, *lines),
    )


class Loaded(NamedTuple):
    """The trained replicas of one setting."""

    settings: Settings  # of these replicas alone
    params: Any  # [S, …]
    best: Best
    update: int  # of the newest checkpoint
    warnings: tuple[str, ...] = ()  # of damaged checkpoints and changed env_params
    card: Mapping[str, Any] = MappingProxyType({})  # of a policy file

    def index_of(self, seed: int | None, folder: Path) -> int:
        """Index of the replica with the seed; for None of the one with the best evaluation."""
        seeds = self.settings.seeds
        if seed is not None and not (is_integer(seed) and seed in seeds):
            raise UserError(f"{folder} has no seed {seed!r}; it trained {', '.join(map(str, seeds))}")
        return int(np.argmax(self.best.score)) if seed is None else seeds.index(seed)

    def update_of(self, index: int, which: Which) -> int:
        """The update after which a replica's best or last parameters were taken; 0 for the untrained network."""
        return int(best_updates(self.best, self.update)[index]) if which == "best" else self.update


def load_replicas(
    folder: Path,
    which: Which,
    trial: int | None = None,
    trust: bool = False,
    repeated: Mapping[str, Any] | None = None,
    update: int | None = None,
) -> Loaded:
    """Parameters of every seed of a run, or of one setting of a sweep.

    The last parameters are used as the best of a seed that was never evaluated. ``update`` chooses an older checkpoint than the
    newest, with ``which="last"``. ``trust`` and ``repeated``, settings by key from the user, are arguments of
    ``trust.read_config``.
    """
    if which not in ("best", "last"):
        raise UserError(f"which={which} is not known; choose best or last")
    if policy_file.is_policy_file(folder):
        chosen, params, about = policy_file.read(folder, trust, repeated)
        best = Best(params, np.full(1, np.nan, np.float32), np.full(1, about["update"], np.int32))
        return Loaded(chosen, params, best, about["update"], card=about["card"])
    whole = settings.from_tree(trusting.read_config(folder, repeated or {}, trust))
    trial = _choose_trial(folder, whole, trial)
    search, parts = whole.run.search, [(folder, whole)]
    if search.batches not in (None, 1) and search.batch is None:
        indices = range(search.batches)
        parts = [(folder / run_folder.batch_folder(index), settings.batch_of(whole, index, search.batches)) for index in indices]
    parts = [(path, part) for path, part in parts if any(replica.trial == trial for replica in part.replicas)]
    found = [_load_batch(path, part, trial, update) for path, part in parts]
    if not found:
        raise UserError(f"{folder} has no trial {trial}: it is one of several batches, and others trained that")
    last, best = (jax.tree.map(lambda *leaves: np.concatenate(leaves), *side) for side in list(zip(*found, strict=True))[:2])
    lines = tuple(line for *_, lines in found for line in lines)
    params = best_or_last(best, last) if which == "best" else last
    return Loaded(_settings_of_trial(whole, trial), params, best, min(update for _, _, update, _ in found), lines)


def _load_batch(folder: Path, part: Settings, trial: int, update: int | None) -> tuple[Any, Best, int, list[str]]:
    """Newest and best parameters of the replicas of a batch that have a setting, the checkpoint's update, warnings.

    Raises ``UserError`` where other settings were trained, but only warns of other env_params: they come from the environment's
    code, and may differ in the last digits on another machine.
    """
    trainer = Trainer(part.algorithm, part.training_env, part.config, make_mesh())
    saved, shapes = folder / run_folder.CHECKPOINTS, saved_shapes(trainer, part)
    found = checkpoint.checkpoints(saved)
    lost = lost_progress(folder, part, shapes.replicas, found)
    if lost and not found:
        raise UserError(f"{lost}; put {saved} back")
    names = ("best", "replicas.state.learner.params")
    restored = checkpoint.restore(saved, shapes, purpose_of(part), names, update)
    lines = changed_settings(folder, restored.notes, part)
    refused = [line for name, line in lines.items() if not name.startswith(f"{ENV_PARAMS}.")]
    for line in (*edited_params(restored.notes, part).values(), *refused):
        raise UserError(f"{folder}: {line}; set it back in {run_folder.CONFIG}")
    own = [index for index, replica in enumerate(part.replicas) if replica.trial == trial]
    params = (restored.tree.replicas.state.learner.params, restored.tree.best)
    last, best = jax.tree.map(lambda leaf: np.asarray(leaf)[own], params)
    return last, best, restored.update, [*restored.warnings, *([lost] if lost else []), *lines.values()]


def _choose_trial(folder: Path, whole: Settings, trial: int | None) -> int:
    """The number of a setting of a run: ``trial``, or the one that was ranked first."""
    count = len(whole.run.search.tried or ((),))
    if trial is not None and not (is_integer(trial) and trial in range(count)):
        raise UserError(f"{folder} has no trial {trial!r}; it tried 0 to {count - 1}")
    if trial is not None or count == 1:
        return trial or 0
    try:
        return int(run_folder.read_results(folder)["settings"][0]["trial"])
    except ValueError as error:
        advice = f"{run_folder.resume_argument(folder)} ranks again, or choose a setting with trial=0 to {count - 1}"
        raise UserError(f"{folder / run_folder.RESULTS} is damaged or was edited; {advice}") from error
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{folder} has not ranked its settings yet; choose one with trial=0 to {count - 1}") from error


def _settings_of_trial(whole: Settings, trial: int) -> Settings:
    """The settings of one setting's replicas, as a run of their own would have them; the environment is that of evaluations."""
    own = [index for index, replica in enumerate(whole.replicas) if replica.trial == trial]
    values = {name: column[own[0]] for name, column in whole.evaluation_overrides.items()}
    config, env_params = apply_overrides(whole.config, whole.env_params, values)
    tree = whole.tree | {"env": dict(whole.tree["env"]), "algo": dict(whole.tree["algo"])}
    for name, value in values.items():
        group = "env" if name.startswith(ENV) else "algo"
        tree[group][name.removeprefix(ENV)] = convert.to_builtin(value)
    tree[ENV_PARAMS] = convert.readable_leaves(env_params)
    replicas = tuple(whole.replicas[index]._replace(trial=0, values={}) for index in own)
    return dataclasses.replace(whole, config=config, env_params=env_params, tree=tree, replicas=replicas)


def with_env(trained: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings of a run with other options or params of the environment: ``{"density": "easy"}``.

    Raises ``UserError`` where the policies of the run cannot act in the changed environment.
    """
    if not changes:
        return trained
    tree = dict(trained.tree["env"]) | dict(changes)
    base_env, env_params = settings.build_env(trained.env_name, tree)
    env = settings.adapt_env(trained.algorithm, base_env)
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changes.items()}
    refusal = f"the run's policies do not fit {' '.join(f'env.{key}={text}' for key, text in texts.items())}"

    def init(key: jax.Array) -> Any:
        return trained.algorithm.init(trained.env, trained.env_params, trained.config, key).learner.params

    everywhere = PartitionSpec()
    sharded = jax.shard_map(init, mesh=make_mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)
    params = jax.eval_shape(sharded, jax.random.key(0))
    if reason := misfit(LearnedPolicy(trained.algorithm, trained.env, trained.config, params), env, env_params):
        raise UserError(f"{refusal}: {reason}; leave it out")
    changed = trained.tree | {"env": tree, ENV_PARAMS: convert.readable_leaves(env_params)}
    return dataclasses.replace(trained, env=env, base_env=base_env, env_params=env_params, tree=changed)
