"""A resolved configuration as everything that a run needs, checked before anything starts.

``algo.*`` are the fields of the algorithm's ``Config``, ``env.*`` the environment's options and params, all others the fields of
``marljax.config.schema.RunSettings``; defaults, ranges and meanings are declared in those classes only.
"""

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from marljax import registry
from marljax.config import convert, sweep
from marljax.config.overrides import ENV
from marljax.config.schema import FailureReplaySettings, RunSettings
from marljax.config.sweep import Replica
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.errors import UserError
from marljax.registry import CUSTOM
from marljax.testing.static import user_code
from marljax.utils.pytrees import named_leaves, strongly_typed
from marljax.utils.validation import divide
from marljax.wrappers.base import Wrapper


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that a run needs."""

    algo: str  # name of the algorithm; for a user's own, of its module
    env_name: str
    algorithm: ModuleType
    env: Environment  # as adapted to the algorithm: for ppo all agents are one
    env_params: EnvParams
    config: Any  # the algorithm's Config
    run: RunSettings
    tree: dict[str, Any]  # the resolved configuration, as in the run folder
    training_env: Environment  # of the rollouts: ``env``, or a wrapper of it
    training_params: EnvParams
    base_env: Environment  # as constructed, for scripted policies
    replicas: tuple[Replica, ...]  # that are trained at once: every setting with every seed
    saved_env_params: Mapping[str, Any]  # ``env_params`` in the ``config.yaml`` of a run folder; empty for a new run

    @property
    def seeds(self) -> list[int]:
        """The seed of each replica."""
        return [replica.seed for replica in self.replicas]

    @property
    def overrides(self) -> dict[str, np.ndarray]:
        """The values in which replicas differ, [S] each, as ``Trainer.init`` takes them."""
        dtypes = {f"{ENV}{name}": dtype for name, dtype in convert.scalar_types(self.env_params).items()}
        return {
            name: np.array([replica.values[name] for replica in self.replicas]).astype(dtypes.get(name, np.float32))
            for name in self.replicas[0].values
        }

    @property
    def evaluation_overrides(self) -> dict[str, np.ndarray]:
        """Those of ``overrides`` that apply in evaluations, too."""
        own_params = self.run.search.judge == "own"
        return {name: values for name, values in self.overrides.items() if own_params or not name.startswith(ENV)}

    @property
    def title(self) -> str:
        """``<algo>_<env>``, the name of a folder."""
        return f"{self.algo}_{self._env_label.lower() if self.env_name == CUSTOM else self.env_name}".replace("/", "-")

    @property
    def label(self) -> str:
        """``<algo> on <env>``."""
        return f"{self.algo} on {self._env_label}"

    @property
    def scenario(self) -> str:
        """``density=easy safety=true``: the environment's first option, if a text, and whatever is not the default."""
        options = {field.name: field.default for field in dataclasses.fields(self.base_env) if field.init}
        first = next((name for name, default in options.items() if isinstance(default, str)), None)
        values = {name: getattr(self.base_env, name) for name in options}
        shown = {name: value for name, value in values.items() if name == first or value != options[name]}
        others = (*options, "target")
        shown |= {name: value for name, value in self.tree["env"].items() if name not in others and value is not None}
        return " ".join(f"{name}={convert.format_value(convert.to_builtin(value))}" for name, value in shown.items())

    @property
    def _env_label(self) -> str:
        return type(self.base_env).__name__ if self.env_name == CUSTOM else self.env_name


def from_tree(tree: Mapping[str, Any]) -> Settings:
    """Settings from a resolved configuration, every key and value checked."""
    tree = dict(tree)
    algo, env_name, env_tree, algo_tree = (tree.pop(key) for key in ("algo_name", "env_name", "env", "algo"))
    saved_env_params = tree.pop("env_params", {})  # for people to read; the values come from the environment and ``env``
    target = {key: value for key, value in algo_tree.items() if key == "target" and value is not None}
    algorithm = registry.algorithm(algo, target.get("target"))
    config = convert.build(algorithm.Config, "algo", {key: value for key, value in algo_tree.items() if key != "target"})
    base_env, env_params = build_env(env_name, env_tree)
    if not isinstance(tree["sweep"], Mapping):
        given = convert.format_value(tree["sweep"])
        raise UserError(f"sweep={given} has no name; write sweep.<name>=[…], such as sweep.learning_rate=[1e-4,1e-3]")
    run = _with_trials(convert.build(RunSettings, "", tree), config, base_env, env_params)
    env = adapt_env(algorithm, base_env)
    resolved = {
        **{"algo_name": algo, "env_name": env_name},
        **convert.to_builtin(run),
        **{"algo": target | convert.to_builtin(config), "env": env_tree, "env_params": convert.readable_leaves(env_params)},
    }
    training = _training_env(env, env_params, run.failure_replay)
    algo = algorithm.__name__.rpartition(".")[2] if algo == CUSTOM else algo
    replicas = _replicas(run)
    return Settings(
        algo, env_name, algorithm, env, env_params, config, run, resolved, *training, base_env, replicas, saved_env_params
    )


def batch_of(settings: Settings, batch: int | None, batches: int | None) -> Settings:
    """The settings of one of several equal batches of replicas; of all together for None."""
    search = dataclasses.replace(settings.run.search, batch=batch, batches=batches)
    run = dataclasses.replace(settings.run, search=search)
    tree = settings.tree | {"search": convert.to_builtin(search)}
    return dataclasses.replace(settings, run=run, tree=tree, replicas=_replicas(run))


def _with_trials(run: RunSettings, config: Any, env: Environment, env_params: EnvParams) -> RunSettings:
    """Run settings whose ``search.tried`` lists the settings of the sweep, each of them checked."""
    axes, search = convert.flatten(run.sweep), run.search
    if not axes and (search.trials is not None or search.method != "grid"):
        raise UserError("search.* needs a sweep; add one, such as sweep.learning_rate=[1e-4,1e-3]")
    if not axes or search.tried is not None:
        return run
    for name in axes:
        sweep.check_sweepable(name, type(config), env, env_params)
    tried = sweep.trials(axes, search.method, search.trials, search.seed)
    for trial in tried:
        sweep.check_trial(trial, config, env, env_params)
    return dataclasses.replace(run, search=dataclasses.replace(search, tried=tried))


def _replicas(run: RunSettings) -> tuple[Replica, ...]:
    """Every setting with every seed, those of one setting next to each other; of a batch its part of them."""
    seeds, trials, search = range(run.seed, run.seed + run.seeds), run.search.tried or ({},), run.search
    replicas = tuple(Replica(seed, index, trial) for index, trial in enumerate(trials) for seed in seeds)
    size = divide(len(replicas), search.batches or 1, "runs", "batches (search.batches)")
    if search.batch is None or search.batches is None:
        return replicas
    return replicas[search.batch * size :][:size]


def build_env(env_name: str, tree: Mapping[str, Any]) -> tuple[Environment, EnvParams]:
    """The environment and its params from one mapping of both; a param that is ``None`` keeps the preset's."""
    cls = environment_class(env_name, tree.get("target"))
    names = convert.names(cls)
    with user_code(cls, "its constructor"):
        env = convert.build(cls, "env", {key: value for key, value in tree.items() if key in names})
    with user_code(cls, "default_params"):
        default_params = env.default_params
    known = [*names, *(name for name, _ in named_leaves(default_params))]
    changes = {key: value for key, value in tree.items() if key not in names and key != "target"}
    env_params = convert.replace_leaves(default_params, "env", changes, known)
    try:
        with user_code(cls, "check_params"):
            env.check_params(env_params)
    except UserError as error:
        raise convert.prefixed("env", error, known) from error
    return env, strongly_typed(env_params)


def adapt_env(algorithm: ModuleType, env: Environment) -> Environment:
    """``env`` as the algorithm trains in it: ``present(env)`` of its module, if there is one."""
    with user_code(type(env), "its description"):
        return algorithm.present(env) if hasattr(algorithm, "present") else env


def _training_env(env: Environment, env_params: EnvParams, replay: FailureReplaySettings) -> tuple[Environment, EnvParams]:
    """The environment of the rollouts and its params: ``env`` itself, or ``FailureReplay`` around it."""
    from marljax.wrappers.failure_replay import FailureReplay

    if not replay.failures:
        return env, env_params
    names = convert.names(FailureReplaySettings)
    options = [name for name in names if name in convert.names(FailureReplay)]
    changes = {f"replay_{name}": getattr(replay, name) for name in names if name not in options}
    try:
        wrapper = FailureReplay(env, **{name: getattr(replay, name) for name in options})
        params = wrapper.wrap_params(env_params).replace(**{name: value for name, value in changes.items() if value is not None})
        wrapper.check_params(params)
    except UserError as error:
        raise convert.prefixed("failure_replay", UserError(str(error).removeprefix("replay_")), names) from error
    return wrapper, strongly_typed(params)


def environment_class(env_name: str, target: Any) -> type[Environment]:
    """The class that ``env=`` names, or ``env.target`` where it is ``custom``."""
    if env_name != CUSTOM and target is not None:
        raise UserError(f"env.target={target} needs env={CUSTOM}")
    if env_name != CUSTOM:
        return registry.environment_class(env_name)
    if not isinstance(target, str):
        raise UserError(f"env={CUSTOM} needs env.target=package.module:Class")
    registry.import_target(target)
    cls = registry.load_class(target)
    if issubclass(cls, Wrapper) and "env" in convert.required(cls):
        advice = "write a class that gives it one, or wrap it in Python"
        raise UserError(f"{target} wraps another environment, which a command line cannot name; {advice}")
    return cls
