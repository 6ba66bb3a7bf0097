"""From the words of a command line to the whole configuration."""

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marljax import registry
from marljax.config import convert, trust
from marljax.config.hyperparameters import check_value
from marljax.config.schema import RunSettings, check_run, config_folder, run_defaults
from marljax.config.settings import Settings, environment_class, from_tree
from marljax.config.sweep import KEY
from marljax.core.environment import Environment
from marljax.errors import UserError, short_repr, unknown

STANDARD, UNTUNED = "standard", "none"  # of the tuned values: those of the pair, and the defaults of the classes
FILLED_IN = ("search.batch", "search.tried")  # by the run
# What has no influence on the numbers, or as little as another machine.
CHANGEABLE_ON_RESUME = ("resume", "render", "checkpoint", "wandb", "devices", "mesh", "distributed", "hosts", "trust")
LITERAL = ("runs", "resume", "name", "out")  # paths, taken as they stand: none of their characters mean anything


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

    Raises:
        UserError: for a name or a setting that does not exist, and for a value that it does not take.
    """
    for given in (algo, env, *words):
        if not isinstance(given, str):
            raise UserError(f"tuned got {short_repr(given)}; give text, such as tuned('mappo', 'merge', 'algo.total_steps=1e6')")
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
            f"env={convert.format_value(changes['env'])} is not a name; env=<name> chooses, and env.<key>=… changes its options"
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
    from marljax.io.run_folder import read_config

    folder = Path(str(changes["resume"]))
    tree = read_config(folder)
    repeatable = {"algo": tree["algo_name"], "env": tree["env_name"], **trust.targets(tree)}
    # What a stranger's configuration asks for is not sent anywhere.
    if not trust.is_marked(folder, trust.WANDB, tree.get(trust.WANDB)):
        tree[trust.WANDB] = run_defaults()[trust.WANDB]
    tree["trust"] = False  # for the user to say, not for the folder
    if tree["algo_name"] != algo:
        raise UserError(f"{changes['resume']} was trained with {tree['algo_name']}, not with {algo}")
    known = convert.key_paths(RunSettings)
    for key, value in changes.items():
        if key in repeatable and value == repeatable[key]:
            continue
        if key in repeatable:
            raise UserError(f"{folder} was trained with {key}={repeatable[key]}, not with {convert.format_value(value)}")
        if key not in known and not key.startswith(("algo.", "env.", KEY)):
            raise convert.unknown_setting(key, known)
        if key.split(".")[0] not in CHANGEABLE_ON_RESUME:
            raise UserError(f"resume continues a run with its own settings; leave out {key} or start a new run")
        _put(tree, key, value)
    trust.check(folder, tree, changes, tree["trust"] is True)
    return tree


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            given = f"{group}={convert.format_value(convert.to_builtin(tree))}"
            raise UserError(f"{key}={convert.format_value(value)} conflicts with {given}; remove one of them")
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
    target = changes.get("algo.target")
    store.store(group="algo", name=algo, node=convert.defaults(registry.algorithm(algo, target).Config))
    store.store(group="env", name=node, node=convert.defaults(cls))
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
    config = registry.algorithm(algo, changes.get("algo.target")).Config
    known = ["algo", "env", "algo.target", *convert.key_paths(RunSettings), *(f"algo.{name}" for name in convert.names(config))]
    for key in changes:
        if key in FILLED_IN:
            raise UserError(f"{key} is written by the run itself; leave it out")
        if key in known or key.startswith(("env.", KEY)):
            continue
        raise convert.unknown_setting(key, known)
    _check_values(config, changes)
    environment_class(env_name, changes.get("env.target"))


def _check_values(config: type, changes: Mapping[str, Any]) -> None:
    """Raises ``UserError`` for a value of ``algo.*`` or of a run setting that no run takes."""
    run = run_defaults()
    for key, value in changes.items():
        group, _, name = key.partition(".")
        if key == "algo.target":
            continue
        if group == "algo" and name:
            check_value(config, name, value)
        elif group not in ("algo", "env", "sweep"):
            _put(run, key, value)
    check_run(convert.build(RunSettings, "", run))


def _plain(value: Any) -> Any:
    """Hydra's quoted strings and containers as ordinary Python values."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(entry) for key, entry in value.items()}
    return value.text if hasattr(value, "text") and not inspect.isclass(value) else value
