"""From the words of a command line to everything that a run needs, checked before anything starts.

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
from marljax.config.sweep import Member
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.errors import UserError
from marljax.registry import CUSTOM
from marljax.testing.static import own_code
from marljax.utils.pytrees import strongly_typed
from marljax.utils.validation import divide
from marljax.wrappers.base import Wrapper


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that a run needs."""

    algo: str  # a user's own algorithm goes by the name of its module
    env_name: str
    algorithm: ModuleType
    env: Environment  # as the algorithm is shown it: for ppo all agents are one
    env_params: EnvParams
    config: Any  # the algorithm's Config
    run: RunSettings
    tree: dict[str, Any]  # the resolved configuration, as it is written to the run folder
    training_env: Environment  # that of the rollouts: ``env``, or a wrapper of it
    training_params: EnvParams
    bare_env: Environment  # as it is: what scripted policies play in
    members: tuple[Member, ...]  # the runs that train at once
    written: Mapping[str, Any]  # what ``config.yaml`` of a run folder says of ``env_params``; nothing for a new run

    @property
    def seeds(self) -> list[int]:
        """The seed of each member."""
        return [member.seed for member in self.members]

    def has_trial(self, trial: int) -> bool:
        """Whether a member has this setting."""
        return any(member.trial == trial for member in self.members)

    @property
    def overrides(self) -> dict[str, np.ndarray]:
        """What members do not share, [S] each, as ``Trainer.init`` takes it."""
        return self._stacked(tuple(self.members[0].values))

    @property
    def evaluation_overrides(self) -> dict[str, np.ndarray]:
        """Those of ``overrides`` that members are evaluated with."""
        own = self.run.search.judge == "own"
        return self._stacked(tuple(name for name in self.members[0].values if own or not name.startswith(ENV)))

    def _stacked(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        types = {f"{ENV}{name}": dtype for name, dtype in convert.number_types(self.env_params).items()}
        return {
            name: np.array([member.values[name] for member in self.members]).astype(types.get(name, np.float32)) for name in names
        }

    @property
    def title(self) -> str:
        """``<algo>_<env>``; a user's own environment goes by the name of its class."""
        return f"{self.algo}_{self._env_label.lower() if self.env_name == CUSTOM else self.env_name}".replace("/", "-")

    @property
    def label(self) -> str:
        """``<algo> on <env>``, for people."""
        return f"{self.algo} on {self._env_label}"

    @property
    def _env_label(self) -> str:
        return type(self.bare_env).__name__ if self.env_name == CUSTOM else self.env_name


def from_tree(tree: Mapping[str, Any]) -> Settings:
    """Settings from a resolved configuration, every key and value checked."""
    tree = dict(tree)
    algo, env_name = tree.pop("algo_name"), tree.pop("env_name")
    written = tree.pop("env_params", {})  # for people to read; the numbers come from the environment and ``env``
    algo_tree = dict(tree.pop("algo"))
    target = algo_tree.pop("target", None)
    algorithm = registry.algorithm(algo, target)
    config = convert.build(algorithm.Config, "algo", algo_tree)
    bare_env, env_params = build_env(env_name, tree["env"])
    env = adapt_env(algorithm, bare_env)
    env_tree = tree.pop("env")
    if not isinstance(tree["sweep"], Mapping):
        raise UserError(
            f"sweep={convert.format_value(tree['sweep'])}: name what is swept, such as sweep.learning_rate=[1e-4,1e-3]"
        )
    run = with_trials(convert.build(RunSettings, "", tree), config, bare_env, env_params)
    algo_tree = ({} if target is None else {"target": target}) | convert.to_builtin(config)
    resolved = {"algo_name": algo, "env_name": env_name, **convert.to_builtin(run), "algo": algo_tree, "env": env_tree}
    resolved["env_params"] = convert.readable_leaves(env_params)
    training = training_env(env, env_params, run.failure_replay)
    name, members = algorithm.__name__.rpartition(".")[2] if algo == CUSTOM else algo, members_of(run)
    return Settings(name, env_name, algorithm, env, env_params, config, run, resolved, *training, bare_env, members, written)


def batch_of(settings: Settings, batch: int | None, batches: int | None) -> Settings:
    """The settings of one of several equal parts of all members; of the whole for None."""
    search = dataclasses.replace(settings.run.search, batch=batch, batches=batches)
    run = dataclasses.replace(settings.run, search=search)
    tree = settings.tree | {"search": convert.to_builtin(search)}
    return dataclasses.replace(settings, run=run, tree=tree, members=members_of(run))


def with_trials(run: RunSettings, config: Any, env: Environment, env_params: EnvParams) -> RunSettings:
    """Run settings that hold the settings which the sweep tries, every one of them checked."""
    asked, search = convert.flatten(run.sweep), run.search
    if not asked:
        if search.trials is not None or search.method != "grid":
            raise UserError(
                "search.* says how a sweep looks for settings; add what is swept, such as sweep.learning_rate=[1e-4,1e-3]"
            )
        return run
    if search.tried is not None:
        return run
    for name in asked:
        sweep.check_sweepable(name, type(config), env, env_params)
    tried = sweep.trials(asked, search.method, search.trials, search.seed)
    for trial in tried:
        sweep.check_trial(trial, config, env, env_params)
    return dataclasses.replace(run, search=dataclasses.replace(search, tried=tried))


def members_of(run: RunSettings) -> tuple[Member, ...]:
    """The runs that train at once: every setting with every seed, or one of the equal parts of that."""
    seeds = [run.seed + index for index in range(run.seeds)]
    everyone = sweep.members(run.search.tried or ({},), seeds)
    divide(len(everyone), run.search.batches or 1, "members", "batches (search.batches)")
    if run.search.batch is None or run.search.batches is None:
        return tuple(everyone)
    size = len(everyone) // run.search.batches
    return tuple(everyone[run.search.batch * size :][:size])


def build_env(env_name: str, tree: Mapping[str, Any]) -> tuple[Environment, EnvParams]:
    """The environment and its numbers from one mapping of options and numbers; a number that is ``None`` keeps the preset's."""
    cls = environment_class(env_name, tree.get("target"))
    names = convert.names(cls)
    options = {key: value for key, value in tree.items() if key in names}
    with own_code(cls, "its constructor"):
        env = convert.build(cls, "env", options)
    with own_code(cls, "default_params"):
        default_params = env.default_params
    numbers = {key: value for key, value in tree.items() if key not in names and key != "target"}
    known = [*names, *convert.leaf_names(default_params)]
    env_params = convert.replace_leaves(default_params, "env", numbers, known)
    try:
        with own_code(cls, "check_params"):
            env.check_params(env_params)
    except UserError as error:
        raise convert.prefixed("env", error, known) from error
    return env, strongly_typed(env_params)


def adapt_env(algorithm: ModuleType, env: Environment) -> Environment:
    """``env`` as the algorithm takes it, where its module says so by ``present(env)``; else as it is."""
    with own_code(type(env), "its description"):
        return algorithm.present(env) if hasattr(algorithm, "present") else env


def training_env(env: Environment, env_params: EnvParams, wanted: FailureReplaySettings) -> tuple[Environment, EnvParams]:
    """What the rollouts of a run play in: the environment itself, or one that replays its failures."""
    from marljax.wrappers.failure_replay import FailureReplay

    if not wanted.failures:
        return env, env_params
    options = convert.names(FailureReplaySettings)
    structure = {name: getattr(wanted, name) for name in convert.names(FailureReplay) if name in options}
    given = {f"replay_{name}": getattr(wanted, name) for name in options if name not in structure}
    numbers = {name: value for name, value in given.items() if value is not None}
    try:
        replaying = FailureReplay(env, **structure)
        training_params = replaying.around(env_params).replace(**numbers)
        replaying.check_params(training_params)
    except UserError as error:
        raise convert.prefixed("failure_replay", UserError(str(error).removeprefix("replay_")), options) from error
    return replaying, strongly_typed(training_params)


def environment_class(env_name: str, target: Any) -> type[Environment]:
    """The class that ``env=`` names, or ``env.target`` where it is ``custom``."""
    if env_name != CUSTOM:
        if target is not None:
            raise UserError(f"env.target={target} needs env={CUSTOM}")
        return registry.environment_class(env_name)
    if not isinstance(target, str):
        raise UserError(f"env={CUSTOM} needs env.target=package.module:Class")
    registry.import_target(target)
    cls = registry.load_class(target)
    if issubclass(cls, Wrapper) and "env" in convert.required(cls):
        advice = "write a class that gives it one, or wrap it in Python"
        raise UserError(f"{target} wraps another environment, which a command line cannot name; {advice}")
    return cls
