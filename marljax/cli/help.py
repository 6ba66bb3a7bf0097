"""The settings that ``--help`` lists: each key with the value that would apply, the values it takes and its meaning."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from marljax import registry
from marljax.cli.exit_status import HELP_FLAGS
from marljax.config import compose, convert, schema, settings
from marljax.core import fields
from marljax.core.environment import Display
from marljax.core.vector import vectorize
from marljax.errors import UserError
from marljax.testing.static import user_code

METRICS = {  # that every environment has
    "length": "steps",
    "return": "sum of an agent's rewards, mean over the agents",
    "return_…": "sum of an agent's rewards, mean over the agents of a team",
    "reward_sum": "sum of an agent's rewards, mean over the agents; here ``return`` is defined by the task",
}
HELP_COLUMN = 34  # a longer setting moves its own help to the right


class Setting(NamedTuple):
    """A line of help, in parts."""

    key: str  # dotted
    value: str  # that applies
    takes: str  # unit, and range or choices
    meaning: str


def settings_text(algo: str, overrides: Sequence[str]) -> str:
    """Run settings, hyperparameters, and the environment's options and params, as a run with these overrides would have them.

    Without an environment the defaults are listed. An environment with required options lists which it needs.

    Raises:
        UserError: for any other mistake in ``overrides``.
    """
    changes = compose.parse(overrides)
    config = registry.algorithm(algo, changes.get("algo.target")).Config
    if "env" not in changes and changes.get("resume") is None:
        sections = [
            _section("run settings", run_settings()),
            _section(f"algo.* ({algo})", hyperparameters(config)),
            f"env.*: add env=<name> to list them; known: {compose.known_environments()}, {settings.CUSTOM}",
        ]
        return "\n\n".join(sections)
    tree = compose.resolve(algo, changes)
    env_name = tree["env_name"]
    cls = settings.environment_class(env_name, tree["env"].get("target"))
    if missing := [f"env.{name}" for name in convert.required(cls) if name not in tree["env"]]:
        options = {name: tree["env"].get(name, "???") for name in convert.names(cls)}
        own = [_section(f"env.* ({env_name}): options", _settings("env.", options, cls))]
        own.append(f"env.* ({env_name}): params\n  needs {', '.join(missing)}")
    else:
        resolved = settings.from_tree(tree)
        tree, own = resolved.tree, environment_sections(resolved)
    tuned = compose.tuned_name(algo, env_name, cls, tree["tuned"]) if changes.get("resume") is None else None
    run = convert.flatten({key: value for key, value in tree.items() if key in convert.names(schema.RunSettings)})
    sections = [
        _section("run settings", run_settings(run)),
        _section(f"algo.* ({algo}{f', {tuned}.yaml' if tuned else ''})", _settings("algo.", tree["algo"], config)),
        *own,
    ]
    return "\n\n".join(sections)


def environment_sections(resolved: settings.Settings) -> list[str]:
    """An environment's options, params and metrics."""
    name, options = resolved.env_name, environment_options(resolved)
    sections = [_section(f"env.* ({name}): options", options)] if options else []
    sections.append(_section(f"env.* ({name}): params", environment_params(resolved)))
    try:
        return [*sections, listed(f"metrics of an episode ({name})", environment_metrics(resolved))]
    except UserError:  # the settings can be listed all the same; a training says what is wrong
        return sections


def run_settings(values: Mapping[str, Any] | None = None) -> list[Setting]:
    """The run settings: ``values`` by dotted key, or the defaults."""
    return _settings("", values or convert.flatten(convert.to_builtin(schema.RunSettings())), schema.RunSettings)


def hyperparameters(config: type) -> list[Setting]:
    """The fields of a ``Config`` with their defaults."""
    return _settings("algo.", convert.defaults(config), config)


def environment_options(resolved: settings.Settings) -> list[Setting]:
    """The options of an environment."""
    env = resolved.base_env
    options = {key: convert.to_builtin(getattr(env, key)) for key in convert.names(type(env))}
    return _settings("env.", options, type(env))


def environment_params(resolved: settings.Settings) -> list[Setting]:
    """The params of an environment."""
    declared = {key: _help(field) for key, field, _ in fields.declared_params(resolved.env_params)}
    return _rows("env.", convert.readable_leaves(resolved.env_params), declared)


def environment_metrics(resolved: settings.Settings) -> list[tuple[str, str]]:
    """(metric, unit and meaning) of an episode, in the order of tables; ``UserError`` where the environment's code fails."""
    env = resolved.base_env
    with user_code(type(env), "reset"):
        _, timestep = jax.eval_shape(vectorize(env, 1).reset, jax.random.key(0), resolved.env_params)
    measured = [metric for metric in env.display.metrics if metric in timestep.metrics]
    measured += sorted({*timestep.metrics} - {*measured})
    return [(metric, _meaning(metric, env.display)) for metric in measured]


def _meaning(metric: str, display: Display) -> str:
    """``m/s: mean over the agents``: a metric's unit and what it measures."""
    meanings = {**METRICS, **display.meanings}
    meaning = meanings.get(metric) or meanings.get(re.sub(r"_\d+$", "_…", metric), "")
    return ": ".join(filter(None, [display.units.get(metric, ""), meaning]))


def explained(arguments: Sequence[str], usage: str, meaning: str, options: type, env_key: str = "") -> bool:
    """Prints a command's help where it is requested or nothing is given; ``env_key`` where the command takes ``env.<key>``."""
    if arguments and not {*HELP_FLAGS} & {*arguments}:
        return False
    print(f"usage: marljax {usage}\n\n{meaning}\n\n{_section('options', _settings('', convert.defaults(options), options))}")
    if env_key:
        print(f"  {env_key:<{HELP_COLUMN}}  another option or param of the environment, such as env.density=easy")
    return True


def _section(title: str, rows: Iterable[Setting]) -> str:
    return listed(title, [(f"{row.key}={row.value}", ": ".join(filter(None, [row.takes, row.meaning]))) for row in rows])


def listed(title: str, rows: Iterable[tuple[str, str]], column: int = HELP_COLUMN) -> str:
    """A title and, in two columns, what it is of."""
    return "\n".join([title, *(f"  {row:<{column}}  {text}".rstrip() for row, text in rows)])


def _settings(prefix: str, values: Mapping[str, Any], record: type) -> list[Setting]:
    """Values by dotted key, explained by the fields of a dataclass."""
    return _rows(prefix, values, _helps(record))


def _rows(prefix: str, values: Mapping[str, Any], helps: Mapping[str, tuple[str, str]]) -> list[Setting]:
    return [Setting(f"{prefix}{key}", convert.format_value(value), *helps.get(key, ("", ""))) for key, value in values.items()]


def _helps(record: type, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Dotted key → values and meaning of a dataclass's fields, and of those of the dataclasses in it."""
    helps = {}
    for field in dataclasses.fields(record):
        if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            helps |= _helps(field.default_factory, f"{prefix}{field.name}.")
        helps[f"{prefix}{field.name}"] = _help(field)
    return helps


def _help(field: dataclasses.Field) -> tuple[str, str]:
    """``m/s, from 0 to 40`` and ``initial speed``: a field's unit and the values that it takes, and its meaning."""
    metadata = field.metadata
    values = " | ".join(map(convert.format_value, metadata.get("choices") or ()))
    if "above" in metadata:
        values = fields.range_text(metadata).strip()
    return ", ".join(filter(None, [metadata.get("unit", ""), values])), metadata.get("help", "")
