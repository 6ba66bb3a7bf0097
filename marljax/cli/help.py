"""What ``--help`` prints about settings: every key with the value that would run and what it means.

The meanings are those that stand in the sources: the comment beside a field, or the list of options in a class's docstring.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marljax import registry
from marljax.config import compose, convert, schema, settings

NOTE_COLUMN = 34  # of the meanings; a longer setting pushes its own aside


def settings_text(algo: str, words: Sequence[str]) -> str:
    """Run settings, the algorithm's and the environment's, composed as a run with these words would be.

    Without an environment the defaults are shown. An environment whose options are not complete shows them, and which it needs;
    any other mistake in ``words`` raises ``UserError``.
    """
    changes = compose.parse(words)
    config = registry.algorithm(algo, changes.get("algo.target")).Config
    if "env" not in changes and changes.get("resume") is None:
        known = f"{compose.known_environments()}, {settings.CUSTOM}"
        algorithm = _section(f"algo.* ({algo})", "algo.", convert.defaults(config), _field_notes(config))
        run_settings = _run_section(schema.run_defaults())
        return "\n\n".join([run_settings, algorithm, f"env.*: add env=<name> to list them; known: {known}"])
    tree = compose.resolve(algo, changes)
    env_name = tree["env_name"]
    cls = settings.environment_class(env_name, tree["env"].get("target"))
    missing = [f"env.{name}" for name in convert.required(cls) if name not in tree["env"]]
    options: Mapping[str, Any] = {name: tree["env"].get(name, "???") for name in convert.names(cls)}
    numbers = f"env.* ({env_name}): numbers\n  needs {', '.join(missing)}"
    if not missing:
        wanted = settings.from_tree(tree)
        tree, options = wanted.tree, {name: convert.to_builtin(getattr(wanted.env, name)) for name in options}
        values = convert.readable_leaves(wanted.env_params)
        numbers = _section(f"env.* ({env_name}): numbers", "env.", values, _leaf_notes(wanted.env_params))
    name = compose.tuned_name(algo, env_name, cls, tree["tuned"]) if changes.get("resume") is None else None
    tuned = f", {name}.yaml" if name else ""
    run = {key: value for key, value in tree.items() if key in convert.names(schema.RunSettings)}
    sections = [
        _run_section(run),
        _section(f"algo.* ({algo}{tuned})", "algo.", tree["algo"], _field_notes(config)),
        _section(f"env.* ({env_name}): options", "env.", options, _field_notes(cls)),
        numbers,
    ]
    return "\n\n".join(sections)


def _section(title: str, prefix: str, values: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    rows = [(f"{prefix}{name}={convert.format_value(value)}", notes.get(name, "")) for name, value in values.items()]
    return "\n".join([title, *(f"  {row:<{NOTE_COLUMN}}  {note}".rstrip() for row, note in rows)])


def _run_section(tree: Mapping[str, Any]) -> str:
    return _section("Run settings", "", convert.flatten(tree), _yaml_notes(_config_file().read_text(encoding="utf-8")))


def _config_file() -> Path:
    return schema.config_folder() / "config.yaml"


def _yaml_notes(text: str) -> dict[str, str]:
    """Dotted key → the comment behind it, of a YAML file with groups one level deep."""
    notes, group = {}, ""
    for indent, key, rest in re.findall(r"^( *)(\w+):(.*)$", text, flags=re.MULTILINE):
        group = group if indent else key
        comment = rest.partition(" # ")[2].strip()
        if comment:
            notes[f"{group}.{key}" if indent else key] = comment
    return notes


def _field_notes(cls: type) -> dict[str, str]:
    """Name → choices and meaning of a record's fields."""
    comments = _comments(cls)
    notes = {}
    for field in dataclasses.fields(cls):
        choices = " | ".join(map(convert.format_value, field.metadata.get("choices") or ()))
        notes[field.name] = "; ".join(filter(None, [choices, comments.get(field.name, "")]))
    return notes


def _leaf_notes(tree: Any, prefix: str = "") -> dict[str, str]:
    """Dotted name → meaning of a pytree's numbers, where records say it."""
    notes = {f"{prefix}{name}": note for name, note in _comments(type(tree)).items()}
    for name, value in _entries(tree):
        notes |= _leaf_notes(value, f"{prefix}{name}.")
    return notes


def _entries(tree: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        return tree.items()
    if dataclasses.is_dataclass(tree):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return tree._asdict().items() if hasattr(tree, "_asdict") else ()


def _comments(cls: type) -> dict[str, str]:
    """Name → the comment beside a field, or else its line in a docstring's list (``- ``name``: …``)."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == "builtins":
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # defined interactively, or compiled
            continue
        listed = re.findall(r"^- ``(\w+)``: (.*(?:\n  .*)*)", inspect.cleandoc(base.__doc__ or ""), flags=re.MULTILINE)
        found |= {name: " ".join(text.replace("``", "").split()).rstrip(".") for name, text in listed}
        found |= dict(re.findall(r"^ +(\w+): .*?  # (.*)$", source, flags=re.MULTILINE))
    return found
