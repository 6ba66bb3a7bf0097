"""From the words of a command line to everything that a run needs, checked before anything starts.

``algo.*`` are the fields of the algorithm's ``Config`` and ``env.*`` the environment's options and numbers; their defaults stand
in those classes only, and the nodes that Hydra composes are made from them here. Run settings have their types below and their
defaults in ``configs/config.yaml``.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

import marljax.configs
from marljax import fields, registry, sweep, trust
from marljax.config import LARGEST, check_value, divide
from marljax.environment import Environment, EnvParams
from marljax.errors import UserError, unknown
from marljax.hosts import Hosts
from marljax.overrides import ENV
from marljax.registry import CUSTOM
from marljax.runfolder import check_name
from marljax.sweep import KEY, Member, Method
from marljax.testing import own_code
from marljax.trees import strong
from marljax.wrapper import Wrapper

MOST = {"seeds": 2**16, "eval.episodes": 2**20, "eval.final_episodes": 2**20}  # what is held in memory at once
STANDARD, UNTUNED = "standard", "none"  # of the tuned values: those of the pair, and the defaults of the classes
FILLED_IN = ("search.batch", "search.tried")  # by the run
# What has no influence on the numbers, or as little as another machine.
CHANGEABLE_ON_RESUME = ("resume", "render", "checkpoint", "wandb", "devices", "mesh", "distributed", "hosts", "trust")
LITERAL = ("runs", "resume", "name", "out")  # paths, taken as they stand: none of their characters mean anything


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """When and how much to evaluate."""

    every: float
    episodes: int
    final_episodes: int


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """When to save, and how many to keep."""

    every: float
    keep: int
    minutes: float | None = None  # runs of before there were any have none


@dataclasses.dataclass(frozen=True)
class Replaying:
    """The options and numbers of ``marljax.replay``."""

    failures: tuple[str, ...]
    gate: str
    size: int
    ring: int
    spacing: int
    window: int
    probability: float
    grace: int | None
    back: int | None
    times: int
    below: float


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis of the mesh."""

    seed: int | None
    data: int | None


@dataclasses.dataclass(frozen=True)
class Search:
    """How a sweep looks for settings, and judges them."""

    method: Method = "grid"
    trials: int | None = None
    seed: int = 0
    metric: str = "return"
    lowest: bool = False
    judge: Literal["standard", "own"] = "standard"
    batches: int | None = None
    batch: int | None = None
    tried: tuple[dict, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Wandb:
    """Where a run appears on Weights & Biases."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    group: str | None
    tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The root of the configuration; ``configs/config.yaml`` says what each means and holds the defaults."""

    seed: int
    seeds: int
    sweep: dict[str, Any]
    runs: str
    name: str | None
    resume: str | None
    tuned: str
    chunk: int | None
    render: bool
    search: Search
    failure_replay: Replaying
    devices: int | str | None
    distributed: bool
    hosts: Hosts
    eval: Evaluation
    checkpoint: Checkpointing
    mesh: Mesh
    wandb: Wandb
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that a run needs."""

    algo: str
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
    def judged_by(self) -> dict[str, np.ndarray]:
        """Those of ``overrides`` that members are evaluated with."""
        own = self.run.search.judge == "own"
        return self._stacked(tuple(name for name in self.members[0].values if own or not name.startswith(ENV)))

    def _stacked(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        types = {f"{ENV}{name}": dtype for name, dtype in fields.number_types(self.env_params).items()}
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


def compose(algo: str, words: Sequence[str]) -> Settings:
    """The settings that a command line asks for; raises ``UserError`` with one line for anything wrong in it.

    ``words`` are Hydra overrides: ``["env=merge", "algo.gamma=0.95", "seeds=4"]``. With ``resume=<run folder>`` the run's own
    settings are taken, and only those that have no influence on its numbers may be changed.
    """
    return from_tree(resolve(algo, parse(words)))


def tuned(algo: str, env: str, *words: str) -> Settings:
    """What ``python algos/<algo>.py env=<env> <words>`` would train, with the values tuned for the pair.

    Example:
        run = marljax.tuned("mappo", "merge", "env.density=easy", "algo.total_steps=1e6")
        train = marljax.make_train(run.algorithm, run.env, run.config, run.env_params)
    """
    return compose(algo, [f"env={env}", *words])


def resolve(algo: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration: defaults, the tuned file that ``changes`` choose, then ``changes``.

    Its keys are checked. Its values are checked one by one, but for those of ``env``; whether they fit together is not.
    """
    changes = _joined(changes)
    if changes.get("algo", algo) != algo:
        raise UserError(f"this command trains {algo}; for algo={changes['algo']} run that algorithm's own command")
    if changes.get("resume") is not None:
        return _resumed(algo, changes)
    if "env" not in changes:
        raise UserError(f"choose an environment, such as env=merge; known: {known_environments()}")
    if isinstance(changes["env"], Mapping | list):
        raise UserError(
            f"env={fields.shown(changes['env'])} is not a name; env=<name> chooses, and env.<key>=… changes its options"
        )
    env_name = str(changes["env"])
    _check_keys(algo, env_name, changes)
    changes = {key: value for key, value in changes.items() if key not in ("algo", "env")}
    return {"algo_name": algo, "env_name": env_name, **_hydra_tree(algo, env_name, changes)}


def _joined(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """``env=jaxmarl env.name=overcooked`` as ``env=jaxmarl/overcooked``."""
    if not isinstance(changes.get("env"), str) or changes["env"] not in registry.SUITES:
        return changes
    rest = {key: value for key, value in changes.items() if key != "env.name"}
    return rest | {"env": registry.full_name(changes["env"], changes.get("env.name"))}


def known_environments() -> str:
    """The names that ``env=`` takes, those of other libraries' environments by their suite."""
    return ", ".join([*sorted(registry.ENVIRONMENTS), *(f"{suite}/<name>" for suite in sorted(registry.SUITES))])


def node_name(env_name: str) -> str:
    """An environment's name as Hydra and the files of ``configs/tuned`` take it."""
    return re.sub(r"\W", "_", env_name)


def config_folder() -> Path:
    """Where ``config.yaml`` and the tuned values lie."""
    return Path(marljax.configs.__file__).parent


def tuned_name(algo: str, env_name: str, cls: type[Environment], variant: Any) -> str | None:
    """The file in ``configs/tuned`` that holds a variant of the pair's tuned values, without its ending; None where none does.

    Raises ``UserError`` for a variant that is neither there nor "standard" or "none".
    """
    env_name = registry.name_of(cls) or env_name  # a user's module may offer a class of ours, such as Smax with new scenarios
    pair = f"{algo}_{node_name(env_name)}"
    name = pair if variant == STANDARD else f"{pair}_{variant}"
    folder = config_folder() / "tuned"
    if (folder / f"{name}.yaml").is_file():
        return name
    if variant not in (STANDARD, UNTUNED):
        known = [path.stem.removeprefix(f"{pair}_") for path in folder.glob(f"{pair}_*.yaml")]
        raise unknown(f"variant of the tuned values of {algo} on {env_name}", str(variant), [STANDARD, UNTUNED, *known])
    return None


def from_tree(tree: Mapping[str, Any]) -> Settings:
    """Settings from a resolved configuration, every key and value checked."""
    tree = dict(tree)
    algo, env_name = tree.pop("algo_name"), tree.pop("env_name")
    tree.pop("env_params", None)  # written for people to read; the numbers come from the environment and ``env``
    algorithm = registry.algorithm(algo)
    config = fields.build(algorithm.Config, "algo", tree.pop("algo"))
    bare_env, env_params = build_env(env_name, tree["env"])
    env = presented(algorithm, bare_env)
    env_tree = tree.pop("env")
    for group in ("failure_replay", "sweep", "search", "devices", "distributed", "hosts"):  # a run of before there were such
        tree.setdefault(group, run_defaults()[group])
    if not isinstance(tree["sweep"], Mapping):
        raise UserError(f"sweep={fields.shown(tree['sweep'])}: name what is swept, such as sweep.learning_rate=[1e-4,1e-3]")
    run = with_trials(_check_run(fields.build(RunSettings, "", tree)), config, bare_env, env_params)
    resolved = {"algo_name": algo, "env_name": env_name, **fields.plain(run), "algo": fields.plain(config), "env": env_tree}
    resolved["env_params"] = fields.readable_leaves(env_params)
    training = training_env(env, env_params, run.failure_replay)
    return Settings(algo, env_name, algorithm, env, env_params, config, run, resolved, *training, bare_env, members_of(run))


def batch_of(settings: Settings, batch: int | None, batches: int | None) -> Settings:
    """The settings of one of several equal parts of all members; of the whole for None."""
    search = dataclasses.replace(settings.run.search, batch=batch, batches=batches)
    run = dataclasses.replace(settings.run, search=search)
    tree = settings.tree | {"search": fields.plain(search)}
    return dataclasses.replace(settings, run=run, tree=tree, members=members_of(run))


def with_trials(run: RunSettings, config: Any, env: Environment, env_params: EnvParams) -> RunSettings:
    """Run settings that hold the settings which the sweep tries, every one of them checked."""
    asked, search = fields.flatten(run.sweep), run.search
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
    names = fields.names(cls)
    options = {key: value for key, value in tree.items() if key in names}
    with own_code(cls, "its constructor"):
        env = fields.build(cls, "env", options)
    with own_code(cls, "default_params"):
        default_params = env.default_params
    numbers = {key: value for key, value in tree.items() if key not in names and key != "target"}
    known = [*names, *fields.leaf_names(default_params)]
    env_params = fields.replace_leaves(default_params, "env", numbers, known)
    try:
        with own_code(cls, "check_params"):
            env.check_params(env_params)
    except UserError as error:
        raise fields.prefixed("env", error, known) from error
    return env, strong(env_params)


def presented(algorithm: ModuleType, env: Environment) -> Environment:
    """``env`` as the algorithm takes it, where its module says so by ``present(env)``; else as it is."""
    with own_code(type(env), "its description"):
        return algorithm.present(env) if hasattr(algorithm, "present") else env


def training_env(env: Environment, env_params: EnvParams, wanted: Replaying) -> tuple[Environment, EnvParams]:
    """What the rollouts of a run play in: the environment itself, or one that replays its failures."""
    from marljax.replay import FailureReplay

    if not wanted.failures:
        return env, env_params
    options = fields.names(Replaying)
    structure = {name: getattr(wanted, name) for name in fields.names(FailureReplay) if name in options}
    given = {f"replay_{name}": getattr(wanted, name) for name in options if name not in structure}
    numbers = {name: value for name, value in given.items() if value is not None}
    try:
        replaying = FailureReplay(env, **structure)
        training_params = replaying.around(env_params).replace(**numbers)
        replaying.check_params(training_params)
    except UserError as error:
        raise fields.prefixed("failure_replay", UserError(str(error).removeprefix("replay_")), options) from error
    return replaying, strong(training_params)


def run_defaults() -> dict[str, Any]:
    """The run settings of ``config.yaml``."""
    import yaml

    tree = yaml.safe_load((config_folder() / "config.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in tree.items() if key != "defaults"}


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
    if issubclass(cls, Wrapper) and "env" in fields.required(cls):
        advice = "write a class that gives it one, or wrap it in Python"
        raise UserError(f"{target} wraps another environment, which a command line cannot name; {advice}")
    return cls


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The overrides by key, their values as Hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    changes: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in LITERAL and "=" in word:
            changes[key] = _literal(value)
            continue
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            raise UserError(f"cannot read '{word}'; write key=value, such as env=merge or algo.gamma=0.95") from error
        if override.is_delete():
            raise UserError(f"'{word}': settings can be changed, not removed")
        changes[override.key_or_group] = _swept(word, override) if override.is_sweep_override() else _plain(override.value())
    return changes


def _literal(text: str) -> str | None:
    """A path as it was written; one in quotes, as ``-m`` hands them on, without them, and ``null`` for none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text == "null":
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        with suppress(HydraException):
            return str(_plain(OverridesParser.create().parse_override(f"x={text}").value()))
    # No shell expands a quoted ~, and a folder of that name is deleted at the risk of everything.
    return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text


def _swept(word: str, override: Any) -> str:
    """Several values for a key of ``sweep``, as they were written."""
    if not override.key_or_group.startswith(KEY):
        advice = (
            "sweep.<hyperparameter>=[…] trains several in one program, seeds=8 several seeds, and -m anything one after another"
        )
        raise UserError(f"'{word}' gives several values; {advice}")
    return word.partition("=")[2]


def _resumed(algo: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    from marljax.runfolder import read_config

    folder = Path(str(changes["resume"]))
    tree = read_config(folder)
    repeatable = trust.targets(tree)
    # What a stranger's configuration asks for is not sent anywhere.
    if not trust.is_marked(folder, trust.WANDB, tree.get(trust.WANDB)):
        tree[trust.WANDB] = run_defaults()[trust.WANDB]
    tree["trust"] = False  # for the user to say, not for the folder
    if tree["algo_name"] != algo:
        raise UserError(f"{changes['resume']} was trained with {tree['algo_name']}, not with {algo}")
    known = fields.key_paths(RunSettings)
    for key, value in changes.items():
        if key in ("algo", "env"):
            if value != tree[f"{key}_name"]:
                raise UserError(f"{changes['resume']} was trained with {key}={tree[f'{key}_name']}, not with {value}")
        elif key in repeatable:
            if value != repeatable[key]:
                raise UserError(f"{folder} was trained with {key}={repeatable[key]}, not with {fields.shown(value)}")
        elif key not in known and not key.startswith(("algo.", "env.", KEY)):
            raise fields.unknown_setting(key, known)
        elif key.split(".")[0] not in CHANGEABLE_ON_RESUME:
            raise UserError(f"resume continues a run with its own settings; leave out {key} or start a new run")
        else:
            _put(tree, key, value)
    trust.check(folder, tree, changes, tree["trust"] is True)
    return tree


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            raise UserError(
                f"{key}={fields.shown(value)}: {group}={fields.shown(fields.plain(tree))} stands before it; leave that out"
            )
    tree[last] = value


def _hydra_tree(algo: str, env_name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    node = node_name(env_name)
    cls = environment_class(env_name, changes.get("env.target"))
    store = ConfigStore.instance()
    store.store(group="algo", name=algo, node=fields.defaults(registry.algorithm(algo).Config))
    store.store(group="env", name=node, node=fields.defaults(cls))
    tuned_file = tuned_name(algo, env_name, cls, changes.get("tuned", STANDARD))
    overrides = [f"algo={algo}", f"env={node}", f"tuned={tuned_file}" if tuned_file else "~tuned"]
    try:
        with _no_other_hydra(), initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
            composed = hydra_compose("config", overrides=overrides)
        OmegaConf.set_struct(composed, False)
        for key, value in changes.items():
            if key in LITERAL:
                continue
            if key.startswith("env."):  # a dotted name stays one key: env.drivers may be an option, env.drivers.delay a number
                composed.env[key.removeprefix("env.")] = value
            else:
                OmegaConf.update(composed, key, value)
        whole = OmegaConf.to_container(composed, resolve=True)
        return whole | {key: changes[key] for key in LITERAL if key in changes}  # type: ignore[operator, return-value]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"cannot compose the settings: {str(error).splitlines()[0]}") from error


@contextmanager
def _no_other_hydra() -> Iterator[None]:
    """Room for composing settings in a job of Hydra's multirun."""
    from hydra.core.global_hydra import GlobalHydra

    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = running


def _check_keys(algo: str, env_name: str, changes: Mapping[str, Any]) -> None:
    """Every key that the command line names exists, and its value alone is one that it takes; keys of ``env`` are checked against
    its numbers once it is built. The environment is imported last: it may be another library's, which takes seconds."""
    config = registry.algorithm(algo).Config
    known = ["algo", "env", *fields.key_paths(RunSettings), *(f"algo.{name}" for name in fields.names(config))]
    for key in changes:
        if key in FILLED_IN:
            raise UserError(f"{key} is written by the run itself; leave it out")
        if key in known or key.startswith(("env.", KEY)):
            continue
        raise fields.unknown_setting(key, known)
    _check_values(config, changes)
    environment_class(env_name, changes.get("env.target"))


def _check_values(config: type, changes: Mapping[str, Any]) -> None:
    """Raises ``UserError`` for a value of ``algo.*`` or of a run setting that no run takes."""
    run = run_defaults()
    for key, value in changes.items():
        group, _, name = key.partition(".")
        if group == "algo" and name:
            check_value(config, name, value)
        elif group not in ("algo", "env", "sweep"):
            _put(run, key, value)
    _check_run(fields.build(RunSettings, "", run))


def _check_run(run: RunSettings) -> RunSettings:
    at_least_one = {
        "seeds": run.seeds,
        "search.batches": run.search.batches,
        "chunk": run.chunk,
        "eval.episodes": run.eval.episodes,
        "eval.final_episodes": run.eval.final_episodes,
        "checkpoint.keep": run.checkpoint.keep,
        "mesh.seed": run.mesh.seed,
        "mesh.data": run.mesh.data,
    }
    for key, value in at_least_one.items():
        if value is not None and value < 1:
            raise UserError(f"{key}={value} is out of range; it takes integers of at least 1")
        if value is not None and value > MOST.get(key, LARGEST):
            raise UserError(f"{key}={value} is out of range; it takes integers up to {MOST.get(key, LARGEST)}")
    if not 0 <= (run.checkpoint.minutes or 0) < LARGEST:
        raise UserError(f"checkpoint.minutes={run.checkpoint.minutes} is out of range; it takes minutes from 0 on")
    if run.name is not None:
        check_name(run.name)
    for key, fraction in {"eval.every": run.eval.every, "checkpoint.every": run.checkpoint.every}.items():
        if not 0 <= fraction <= 1:
            raise UserError(f"{key}={fraction} is out of range; it is a fraction of training, from 0 to 1")
    if run.seed < 0 or run.seed + run.seeds > 2**31:
        raise UserError(f"seed={run.seed} with seeds={run.seeds} is out of range; every seed lies between 0 and 2147483647")
    if run.devices not in ("all", None) and (not isinstance(run.devices, int) or not 1 <= run.devices <= LARGEST):
        raise UserError(f"devices={fields.shown(run.devices)} is out of range; it takes an integer of at least 1, or all")
    return run


def _plain(value: Any) -> Any:
    """Hydra's quoted strings and containers as ordinary Python values."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(entry) for key, entry in value.items()}
    return value.text if hasattr(value, "text") and not inspect.isclass(value) else value
