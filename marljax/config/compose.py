"""The whole configuration of a run: class defaults ← tuned values ← command line."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import marljax.configs
from marljax import registry
from marljax.config import convert, trust
from marljax.config.hyperparameters import check_value
from marljax.config.schema import RunSettings
from marljax.config.settings import Settings, environment_class, from_tree
from marljax.config.sweep import SWEEP
from marljax.core.environment import Environment
from marljax.errors import UserError, short_repr, unknown

STANDARD, UNTUNED = "standard", "none"  # tuned values of the pair, or none
TOTAL_STEPS = "algo.total_steps"
SET_BY_RUN = ("search.batch", "search.tried")
# Without influence on the results, or as little as another machine has.
CHANGEABLE_ON_RESUME = (
    *("resume", "render", "quiet", "checkpoint", "wandb", "tensorboard", "devices", "mesh", "distributed", "hosts", "trust"),
)
PATHS = ("runs", "resume", "init_from", "name", "out")  # taken literally: no character is special


def compose(algo: str, overrides: Sequence[str]) -> Settings:
    """The settings of a run.

    Args:
        algo: name of the algorithm.
        overrides: in Hydra's syntax, ``["env=merge", "algo.gamma=0.95", "seeds=4"]``. With ``resume=<run folder>`` that run's
            settings apply, and only those without influence on its results may be changed, or ``algo.total_steps`` raised.

    Raises:
        UserError: for the first invalid override.
    """
    return from_tree(resolve(algo, parse(overrides)))


def tuned(algo: str, env: str, *overrides: str) -> Settings:
    """The settings that ``python algos/<algo>.py env=<env> <overrides>`` trains, with the tuned values of the pair.

    Example:
        run = marljax.tuned("mappo", "merge", "env.density=easy", "algo.total_steps=1e6")
        train = marljax.make_train(run.algorithm, run.env, run.config, run.env_params)

    Raises:
        UserError: for a name or setting that does not exist, or a value that it does not take.
    """
    for argument in (algo, env, *overrides):
        if not isinstance(argument, str):
            example = "tuned('mappo', 'merge', 'algo.total_steps=1e6')"
            raise UserError(f"tuned got {short_repr(argument)}, which is not text; call it as {example}")
    return compose(algo, [f"env={env}", *overrides])


def parse(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides by key, their values as Hydra reads them."""
    changes: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if key in PATHS and equals:
            changes[key] = _path(value)
            continue
        override = convert.parse_override(text, "write key=value, such as env=merge or algo.gamma=0.95")
        if override.is_delete():
            raise UserError(f"'{text}': deleting settings (~key) is not supported")
        if override.is_sweep_override() and not override.key_or_group.startswith(SWEEP):
            raise UserError(
                f"'{text}' has several values; sweep.<hyperparameter>=[…] trains several in one program, "
                "seeds=8 several seeds, and -m anything one after another"
            )
        changes[override.key_or_group] = value if override.is_sweep_override() else convert.hydra_value(override.value())
    return changes


def _path(text: str) -> str | None:
    """A path as written, without the quotes in which ``-m`` passes it on; ``null`` is None."""
    if text == "null":
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        with suppress(UserError):
            return str(convert.hydra_value(convert.parse_override(f"x={text}", "").value()))
    # No shell expands a quoted ~, and deleting a folder called ~ could delete everything.
    return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text


def resolve(algo: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration as a tree: class defaults, then the tuned values that ``changes`` choose, then ``changes``.

    Checks every key, and every value alone except those of ``env``; ``from_tree`` checks whether they fit together.
    """
    if isinstance(changes.get("env"), str) and changes["env"] in registry.SUITES:  # env=jaxmarl env.name=overcooked
        full = registry.full_name(changes["env"], changes.get("env.name"))
        changes = {key: value for key, value in changes.items() if key != "env.name"} | {"env": full}
    if changes.get("algo", algo) != algo:
        raise UserError(f"this command trains {algo}; for algo={changes['algo']} run that algorithm's own command")
    if changes.get("resume") is not None:
        return _resumed(algo, changes)
    if "env" not in changes:
        raise UserError(f"choose an environment, such as env=merge; known: {known_environments()}")
    if isinstance(changes["env"], Mapping | list):
        raise UserError(
            f"env={convert.format_value(changes['env'])} is not a name; env=<name> chooses, and env.<key>=… changes its options"
        )
    config = registry.algorithm(algo, changes.get("algo.target")).Config
    _check_overrides(config, changes)
    cls = environment_class(str(changes["env"]), changes.get("env.target"))  # last: it may be another library's and take seconds
    return _merge(algo, config, str(changes["env"]), cls, changes)


def _check_overrides(config: type, changes: Mapping[str, Any]) -> None:
    """Checks that every key exists and that its value alone is valid, except keys of ``env``: they need the environment."""
    known = ["algo", "env", "algo.target", *convert.key_paths(RunSettings), *(f"algo.{name}" for name in convert.names(config))]
    run: dict[str, Any] = {}
    for key, value in changes.items():
        group, _, name = key.partition(".")
        if key in SET_BY_RUN:
            raise UserError(f"{key} is set by the run itself; leave it out")
        if key not in known and group != "env" and not key.startswith(SWEEP):
            raise convert.unknown_setting(key, known)
        if group == "algo" and name and key != "algo.target":
            check_value(config, name, value)
        elif group not in ("algo", "env", "sweep"):
            _put(run, key, value)
    convert.build(RunSettings, "", run)


def _merge(algo: str, config: type, env_name: str, cls: type[Environment], changes: Mapping[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    name = tuned_name(algo, env_name, cls, changes.get("tuned", STANDARD))
    defaults = {**convert.to_builtin(RunSettings()), "algo": convert.defaults(config), "env": convert.defaults(cls)}
    try:
        tree = OmegaConf.merge(defaults, tuned_values(name) if name else {})
        for key, value in changes.items():
            if key.startswith("env."):  # a dotted name stays one key: env.drivers may be an option, env.drivers.delay a param
                tree.env[key.removeprefix("env.")] = value
            elif key not in ("algo", "env", *PATHS):
                OmegaConf.update(tree, key, value)
        values: Any = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"cannot compose the settings: {str(error).splitlines()[0]}") from error
    return {"algo_name": algo, "env_name": env_name, **values, **{key: changes[key] for key in PATHS if key in changes}}


def tuned_values(name: str) -> Any:
    """The tree of ``configs/tuned/<name>.yaml``, over those that it lists under ``defaults``."""
    from omegaconf import OmegaConf

    own: Any = OmegaConf.load(_tuned_folder() / f"{name}.yaml")
    return OmegaConf.merge(*(tuned_values(base) for base in own.pop("defaults", [])), own)


def tuned_name(algo: str, env_name: str, cls: type[Environment], variant: Any) -> str | None:
    """The name of the file in ``configs/tuned`` with a variant of the pair's tuned values; None where there is none.

    Raises:
        UserError: for a variant that is neither a file nor "standard" or "none".
    """
    env_name = registry.name_of(cls) or env_name  # env.target may name a registered class, such as Smax with new scenarios
    pair = re.sub(r"\W", "_", f"{algo}_{env_name}")
    name, folder = pair if variant == STANDARD else f"{pair}_{variant}", _tuned_folder()
    if (folder / f"{name}.yaml").is_file():
        return name
    if variant not in (STANDARD, UNTUNED):
        known = [path.stem.removeprefix(f"{pair}_") for path in folder.glob(f"{pair}_*.yaml")]
        if not known and not (folder / f"{pair}.yaml").is_file():
            raise UserError(f"there are no tuned values of {algo} on {env_name}; omit tuned={variant}")
        raise unknown(f"tuned values of {algo} on {env_name}", str(variant), [STANDARD, UNTUNED, *known])
    return None


def _tuned_folder() -> Path:
    return Path(marljax.configs.__file__).parent / "tuned"


def known_environments() -> str:
    """The names that ``env=`` takes; those of other libraries' environments by their suite."""
    return ", ".join([*sorted(registry.ENVIRONMENTS), *(f"{suite}/<name>" for suite in sorted(registry.SUITES))])


def _resumed(algo: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the run folder ``changes["resume"]``, with those ``changes`` that it allows."""
    from marljax.io.run_folder import read_config

    folder = Path(str(changes["resume"]))
    tree = read_config(folder)
    steps = tree["algo"].get("total_steps")
    repeatable = {"algo": tree["algo_name"], "env": tree["env_name"], **trust.targets(tree)}
    if not trust.is_marked(folder, trust.WANDB, tree.get(trust.WANDB)):
        tree[trust.WANDB] = trust.default_wandb()  # nothing is sent to an account that a received folder names
    tree["trust"] = False  # for the user to set, not for the folder
    if tree["algo_name"] != algo:
        raise UserError(f"{changes['resume']} was trained with {tree['algo_name']}, not with {algo}")
    known = convert.key_paths(RunSettings)
    for key, value in changes.items():
        if key in repeatable and value == repeatable[key]:
            continue
        if key in repeatable:
            raise UserError(f"{folder} was trained with {key}={repeatable[key]}, not with {convert.format_value(value)}")
        if key not in known and not key.startswith(("algo.", "env.", SWEEP)):
            raise convert.unknown_setting(key, known)
        if key != TOTAL_STEPS and key.split(".")[0] not in CHANGEABLE_ON_RESUME:
            raise UserError(f"resume continues a run with its own settings; leave out {key} or start a new run")
        _put(tree, key, value)
    trust.check(folder, tree, changes, tree["trust"] is True)
    longer = tree["algo"].get("total_steps")
    if isinstance(longer, int | float) and isinstance(steps, int | float) and longer < steps:
        raise UserError(f"{TOTAL_STEPS}={longer:,.0f} is less than the {steps:,} of {folder}; a run can only go on for longer")
    return tree


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            before = f"{group}={convert.format_value(convert.to_builtin(tree))}"
            raise UserError(f"{key}={convert.format_value(value)} conflicts with {before}; remove one of them")
    tree[last] = value
