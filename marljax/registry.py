"""Environments and algorithms by name, imported on first use."""

import dataclasses
import importlib
import sys
from collections.abc import Hashable
from types import ModuleType
from typing import Any

from marljax.core.environment import Environment
from marljax.errors import UserError, short_repr, unknown

CUSTOM = "custom"  # env=custom env.target=package.module:Class, algo=custom algo.target=package.module
OWN_FOLDERS: list[str] = []  # where command lines find the modules of targets, after all installed packages
ENVIRONMENTS: dict[str, str] = {
    "merge": "marljax.envs.merge:Merge",
    "smax": "marljax.envs.smax:Smax",
    "swarm": "marljax.envs.swarm:Swarm",
    "ride_dispatch": "marljax.envs.ride_dispatch:RideDispatch",
    "collective": "marljax.envs.collective:Collective",
    "pathfinding": "marljax.envs.pathfinding:Pathfinding",
}
# environments of other libraries: <suite>/<name>
SUITES: dict[str, str] = {"jaxmarl": "marljax.wrappers.from_jaxmarl", "gymnax": "marljax.wrappers.from_gymnax"}
ALGORITHMS: dict[str, str] = {
    "ppo": "marljax.algos.ppo",
    "ippo": "marljax.algos.ippo",
    "mappo": "marljax.algos.mappo",
    "ospo": "marljax.algos.ospo",
    "values": "marljax.algos.values",
    "qmix": "marljax.algos.qmix",
    "pqn": "marljax.algos.pqn",
}
ALGORITHM_NAMES = ("Config", "init", "update", "initial_carry", "act")  # that an algorithm's module defines


def register(name: str, target: str) -> None:
    """Registers an environment: ``register("maze", "my_package.maze:Maze")``.

    The class derives from ``marljax.Environment``; it is imported on the first ``make``. Registering a name again replaces it.
    """
    if target.count(":") != 1:
        raise UserError(f"'{target}' does not name a class; write package.module:Class")
    ENVIRONMENTS[name] = target


def register_algorithm(name: str, target: str) -> None:
    """Registers an algorithm: ``register_algorithm("reinforce", "my_package.reinforce")``.

    The module implements ``marljax.learning.algorithm.Algorithm``; it is imported on first use. Registering a name again replaces
    it.
    """
    if not all(part.isidentifier() for part in target.split(".")):
        raise UserError(f"'{target}' does not name a module; write package.module")
    ALGORITHMS[name] = target


def load_class(target: str) -> type[Environment]:
    """The environment class named by ``package.module:Class``."""
    if target.count(":") != 1:
        raise UserError(f"'{target}' does not name a class; write package.module:Class")
    module_name, class_name = target.split(":")
    module = _import(module_name)
    if not hasattr(module, class_name):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise unknown(f"class in {module_name}", class_name, classes)
    found = getattr(module, class_name)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise UserError(f"{target} is not an environment; derive it from marljax.Environment")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise UserError(f"{target} does not implement {', '.join(missing)}; see marljax.Environment for what each does")
    return found


def import_target(target: str) -> ModuleType:
    """The module of a user's ``package.module`` or ``package.module:Class``, found in ``OWN_FOLDERS`` too.

    These join ``sys.path`` no earlier, since packages probe for optional dependencies and the current folder may hold anything.
    """
    sys.path.extend(folder for folder in OWN_FOLDERS if folder not in sys.path)
    return _import(target.partition(":")[0])


def _import(name: str) -> ModuleType:
    """The module of that name; raises one line that names the module to fix."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if f"{name}.".startswith(f"{missing}."):  # the module itself, or a package that it should be in
            raise UserError(f"cannot import '{name}' ({error}); is it installed or on PYTHONPATH?") from error
        raise UserError(f"'{name}' imports '{missing}', which is missing; install it, or fix that import") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UserError(f"importing '{name}' raised {type(error).__name__}: {error}; fix that module") from error


def environment_class(name: str) -> type[Environment]:
    """The class registered as ``name``, or ``<suite>/<name>``.

    The module of a suite defines ``environment_class(name)``, which raises ``UserError`` for an unknown name.
    """
    suite, slash, member = name.partition("/")
    if slash and suite not in SUITES:
        raise unknown("suite of environments", suite, SUITES)
    if slash:
        return _import(SUITES[suite]).environment_class(member)
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, [*ENVIRONMENTS, *(f"{suite}/<name>" for suite in SUITES)])
    return load_class(ENVIRONMENTS[name])


def full_name(name: str, member: Any) -> str:
    """``<suite>/<member>`` if ``name`` is a suite, else ``name``: the name for ``env=<suite> env.name=<member>``."""
    if name not in SUITES:
        return name
    if not isinstance(member, str):
        known = ", ".join(_import(SUITES[name]).names())
        raise UserError(f"{name} is a suite of environments; choose one with env={name} env.name=<name>; known: {known}")
    return f"{name}/{member}"


def make(name: str, /, **options: Any) -> Environment:
    """An environment by name: ``make("merge", density="hard")``, ``make("gymnax/CartPole-v1")``.

    Options are the environment's fields; an unknown one raises ``UserError`` with the closest names. Params are not options:
    change ``env.default_params`` with ``.replace(…)``.
    """
    if not isinstance(name, str):
        raise UserError(f"{short_repr(name)} is not the name of an environment; give one, such as make('merge')")
    if name in SUITES:
        options = dict(options)
        name = full_name(name, options.pop("name", None))
    return build(environment_class(name), name, options)


def build(cls: type[Environment], name: str, options: dict[str, Any]) -> Environment:
    """``cls(**options)``; raises ``UserError`` with one line for options that it does not take."""
    fields = [field.name for field in dataclasses.fields(cls) if field.init]
    for option in options:
        if option in fields:
            continue
        default_params = cls(**{key: value for key, value in options.items() if key in fields}).default_params
        if dataclasses.is_dataclass(default_params) and option in vars(default_params):
            change = f"env.default_params.replace({option}=…)"
            raise UserError(f"'{option}' of {name} is a param, not an option; give env.reset and env.step {change}")
        raise unknown(f"option of {name}", option, fields)
    try:
        return cls(**options)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        for field in dataclasses.fields(cls):
            if field.name in options and not isinstance(options[field.name], Hashable):
                example = "" if field.default is dataclasses.MISSING else f", such as {field.name}={field.default!r}"
                given = f"{field.name}={short_repr(options[field.name])}"
                raise UserError(f"{name} does not take {given}; give text, numbers or a tuple of them{example}") from error
        given = ", ".join(f"{option}={short_repr(value)}" for option, value in options.items()) or "its defaults"
        raise UserError(f"{name} does not take {given}: {error or type(error).__name__}") from error


def name_of(cls: type[Environment]) -> str | None:
    """The name that a class is registered by, if any."""
    for name, target in ENVIRONMENTS.items():
        module_name, _, class_name = target.partition(":")
        if getattr(sys.modules.get(module_name), class_name, None) is cls:
            return name
    return None


def algorithm(name: str, target: Any = None) -> ModuleType:
    """The module of an algorithm by name; for ``custom`` that of ``target``."""
    if name == CUSTOM:
        if not isinstance(target, str):
            raise UserError(f"algo={CUSTOM} needs algo.target=package.module")
        module = import_target(target)
    elif target is not None:
        raise UserError(f"algo.target={target} needs algo={CUSTOM}")
    elif name not in ALGORITHMS:
        raise unknown("algorithm", name, [*ALGORITHMS, CUSTOM])
    else:
        module = _import(ALGORITHMS[name])
    if missing := [needed for needed in ALGORITHM_NAMES if not hasattr(module, needed)]:
        raise UserError(f"{module.__name__} is not an algorithm: it has no {', '.join(missing)}; see marljax.learning.algorithm")
    return module
