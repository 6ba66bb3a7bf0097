"""Trained policies out of run folders."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from marljax import checkpoint, parallel, runfolder, settings
from marljax.driver import Best, best_or_last, member_keys, purpose_of, saved_shapes, seeds_of
from marljax.environment import Environment, EnvParams, TimeStep
from marljax.errors import UserError
from marljax.evaluate import LearnedPolicy
from marljax.runfolder import Which
from marljax.settings import Settings
from marljax.train import Trainer


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


def load(run: str | Path, seed: int | None = None, which: Which = "best") -> TrainedPolicy:
    """The policy of a run folder: ``policy = marljax.load("runs/mappo_merge/…")``.

    ``seed`` chooses among the seeds of the run, by default the one with the best evaluation; ``which`` is ``"best"`` (the
    evaluated parameters with the highest return) or ``"last"`` (those of the newest checkpoint). Raises ``UserError`` where the
    folder is not a run's, its checkpoints are damaged, or they were made for another version of the environment.
    """
    folder = Path(run)
    trained = settings.from_tree(runfolder.read_config(folder))
    params, best, update = load_members(folder, trained, which)
    seeds = seeds_of(trained)
    if seed is not None and seed not in seeds:
        raise UserError(f"{folder} has no seed {seed}; it trained {', '.join(map(str, seeds))}")
    index = int(np.argmax(best.score)) if seed is None else seeds.index(seed)
    took_best = which == "best" and np.isfinite(best.score[index])
    return TrainedPolicy(
        algorithm=trained.algorithm,
        env=trained.env,
        env_params=trained.env_params,
        config=trained.config,
        params=jax.tree.map(lambda leaf: leaf[index], params),
        seed=seeds[index],
        update=int(best.update[index]) if took_best else update,
        score=float(best.score[index]) if took_best else float("nan"),
    )


def load_members(folder: Path, trained: Settings, which: Which) -> tuple[Any, Best, int]:
    """Parameters [S, …] of every seed, their best evaluations, and the update of the checkpoint.

    A seed that was never evaluated has no best parameters; its last ones stand in.
    """
    if which not in ("best", "last"):
        raise UserError(f"which={which} is not known; choose best or last")
    trainer = Trainer(trained.algorithm, trained.training_env, trained.config, parallel.make_mesh())
    template = saved_shapes(trainer, member_keys(trained), trained)
    parts = ("best", "members.state.learner.params")
    restored = checkpoint.restore(folder / runfolder.CHECKPOINTS, template, purpose_of(trained), parts)
    last, best = restored.tree.members.state.learner.params, restored.tree.best
    return best_or_last(best, last) if which == "best" else last, best, restored.update


def with_env(trained: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings of a run with other options or numbers of the environment: ``{"density": "easy"}``.

    Raises ``UserError`` where the policies of the run cannot act in the changed environment.
    """
    if not changes:
        return trained
    tree = dict(trained.tree["env"]) | dict(changes)
    bare_env, env_params = settings.build_env(trained.env_name, tree)
    env = settings.presented(trained.algorithm, bare_env)
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
    mesh = parallel.make_mesh()
    jax.eval_shape(
        jax.shard_map(decide, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False), jax.random.key(0)
    )
