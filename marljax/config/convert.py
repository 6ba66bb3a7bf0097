"""Builtin values of a command line or a YAML file into typed records, and back; one clear line for each kind of user error."""

import dataclasses
import difflib
import hashlib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.errors import UserError, unknown
from marljax.utils.pytrees import named_leaves

MAX_VALUE = 2**63 - 1  # of an integer setting that declares no smaller limit
MAX_SUGGESTIONS = 12  # names listed in a message
MAX_LIST = 64  # entries; a longer array in env_params is a table, to be set in Python
DIGEST_DIGITS = 16
EXPECTED: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def parse_override(text: str, advice: str) -> Any:
    """A Hydra override; raises ``UserError`` with ``advice`` for text that is not one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise UserError(f"cannot read '{text}'; {advice}") from error


def hydra_value(value: Any) -> Any:
    """Hydra's quoted strings and containers as builtin values."""
    if isinstance(value, list):
        return [hydra_value(entry) for entry in value]
    if isinstance(value, dict):
        return {str(hydra_value(key)): hydra_value(entry) for key, entry in value.items()}
    return value.text if hasattr(value, "text") and not isinstance(value, type) else value


def names(cls: type) -> list[str]:
    """The fields of a dataclass that its constructor takes."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def key_paths(cls: type, prefix: str = "") -> list[str]:
    """Dotted keys of nested dataclasses, groups included."""
    paths = []
    for name, hint in typing.get_type_hints(cls).items():
        paths.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            paths += key_paths(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return paths


def defaults(cls: type) -> dict[str, Any]:
    """The defaults of a dataclass as builtin values; fields without one are left out."""
    values = {field.name: _default(field) for field in dataclasses.fields(cls) if field.init}
    return {name: to_builtin(value) for name, value in values.items() if value is not dataclasses.MISSING}


def required(cls: type) -> list[str]:
    """The fields of a dataclass that have no default."""
    return [field.name for field in dataclasses.fields(cls) if field.init and _default(field) is dataclasses.MISSING]


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def to_builtin(value: Any) -> Any:
    """Records and arrays as dictionaries, lists and numbers that YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_builtin(getattr(value, name)) for name in names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_builtin(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(entry) for entry in value]
    if isinstance(value, jax.core.Tracer) or (isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)):
        return " ".join(str(value).split())
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array_to_builtin(np.asarray(value))
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _array_to_builtin(array: np.ndarray) -> Any:
    """Nested lists or a number; of a table its shape and a digest."""
    if array.ndim > 1 or array.size > MAX_LIST:
        return f"array of shape {array.shape}, SHA-256 {hashlib.sha256(array.tobytes()).hexdigest()[:DIGEST_DIGITS]}"
    if array.dtype == np.float32:  # the shortest decimal that gives the same float32, not its double's digits
        return [float(str(entry)) for entry in array] if array.ndim else float(str(array[()]))
    return array.tolist()


def build(cls: type, prefix: str, tree: Mapping[str, Any]) -> Any:
    """A dataclass from a mapping; ``UserError`` for an unknown key, a missing one, or a value of the wrong type."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    start = f"{prefix}." if prefix else ""
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError):  # a user's class may annotate with names that exist for type checkers only
        hints = {}
    values = {}
    for key, value in tree.items():
        if key not in fields:
            raise unknown_setting(f"{start}{key}", [f"{start}{name}" for name in fields])
        values[key] = as_type(f"{start}{key}", value, hints.get(key, Any), _default(fields[key]))
    for name in required(cls):
        if name not in values:
            raise UserError(f"{start}{name} has no default; set it")
    try:
        return cls(**values)
    except ValueError as error:  # a range, or two fields that do not fit; the class knows its fields without the prefix
        raise prefixed(prefix, error, fields) from error


def as_type(key: str, value: Any, hint: Any, default: Any = dataclasses.MISSING) -> Any:
    """``value`` as the type that a field declares; an integer may be written as 1e6.

    Where the annotation is not one type, the default's applies: ``jax.Array | float`` with default 0.99 is a float.
    """
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    alternatives = typing.get_args(hint) if is_union else (hint,)
    declared = [each for each in alternatives if each not in (Any, types.NoneType)]
    has_default = default is not None and default is not dataclasses.MISSING
    kind: Any = declared[0] if len(declared) == 1 else type(default) if has_default else Any
    if value is None and (default is None or types.NoneType in alternatives):
        return None
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UserError(f"{key} is a group of settings: {', '.join(f'{key}.{name}' for name in names(kind))}")  # type: ignore[arg-type]
        return build(kind, key, value)  # type: ignore[arg-type]
    is_tuple = kind is tuple or typing.get_origin(kind) is tuple
    if is_tuple and isinstance(value, list | tuple):
        entry_hint = next(iter(typing.get_args(kind)), Any)
        entry_default = default[0] if isinstance(default, tuple) and default else dataclasses.MISSING
        return tuple(as_type(f"{key}[{index}]", entry, entry_hint, entry_default) for index, entry in enumerate(value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) > MAX_VALUE and (kind is int or (kind is float and isinstance(value, int))):
        raise UserError(f"{key}={format_value(value)} is out of range; it takes numbers of at most {MAX_VALUE}")
    if kind is int and is_number and float(value).is_integer():
        return int(value)
    if kind is float and is_number and (math.isfinite(value) or value == default):
        return float(value)
    if kind is str and (is_number or isinstance(value, str)):
        return str(value)
    if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
        raise UserError(f"{key}={format_value(value)} is not available; choose {' or '.join(map(str, typing.get_args(kind)))}")
    if (kind is bool and isinstance(value, bool)) or not (is_tuple or value is None or kind in EXPECTED):
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, Mapping):
        raise UserError(f"{key} is a value, not a group; {key}.{next(iter(value), '')} does not exist")
    takes = "a list" if is_tuple else EXPECTED.get(kind, "a value")
    example = f", such as {format_value(to_builtin(default))}" if has_default and default != () and kind is not bool else ""
    raise UserError(f"{key}={format_value(to_builtin(value))} has the wrong type; it takes {takes}{example}")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; empty ones stay."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return flat


def scalar_types(tree: Any) -> dict[str, np.dtype]:
    """Dotted name → dtype of a pytree's scalars."""
    return {name: jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype) for name, leaf in named_leaves(tree) if not np.ndim(leaf)}


def readable_leaves(tree: Any) -> dict[str, Any]:
    """A pytree's numbers and short lists by dotted name; larger tables by their shape and a digest."""
    return {name: _array_to_builtin(np.asarray(leaf)) for name, leaf in named_leaves(tree)}


def replace_leaves(tree: Any, prefix: str, changes: Mapping[str, Any], known: Sequence[str]) -> Any:
    """A pytree with some leaves replaced by numbers or short lists, shapes and dtypes kept; ``None`` keeps a leaf."""
    changes, leaves = flatten(changes), named_leaves(tree)
    for key in changes:
        if key not in dict(leaves):
            raise unknown_setting(f"{prefix}.{key}", [f"{prefix}.{name}" for name in known])
    new = [leaf if changes.get(name) is None else _like(leaf, f"{prefix}.{name}", changes[name]) for name, leaf in leaves]
    return jax.tree.unflatten(jax.tree.structure(tree), new)


def _like(leaf: Any, key: str, value: Any) -> Any:
    """``value`` with the shape and dtype of ``leaf``; a Python number where that is one."""
    shape, dtype = np.shape(leaf), jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
    if len(shape) > 1 or math.prod(shape) > MAX_LIST:
        raise UserError(f"{key} is a table of shape {shape}; set it in Python, in env_params")
    if shape and not (isinstance(value, list | tuple) and len(value) == shape[0]):
        raise UserError(f"{key}={format_value(value)} has the wrong shape; it takes a list of {shape[0]} numbers")
    kind: type = {"b": bool, "i": int, "u": int}.get(dtype.kind, float)
    entries = [as_type(key, entry, kind) for entry in (value if shape else [value])]
    limit = 1 if kind is bool else np.iinfo(dtype).max if kind is int else float(np.finfo(dtype).max)
    if any(abs(entry) > limit for entry in entries):
        raise UserError(f"{key}={format_value(value)} is out of range; it takes numbers of at most {format_value(limit)}")
    if not isinstance(leaf, jax.Array | np.ndarray):
        return entries[0]
    return jnp.asarray(entries if shape else entries[0], dtype)


def format_value(value: Any) -> str:
    """A builtin value as one would write it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def pluralize(number: int, noun: str) -> str:
    """``1 update``, ``2,000 updates``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def prefixed(prefix: str, error: ValueError, known: Iterable[str]) -> UserError:
    """The error of a dataclass about its own field with the key of the command line: ``gamma=2 …`` → ``algo.gamma=2 …``."""
    message = " ".join(str(error).split())
    first = re.match(r"[\w.]*", message)
    separator = "." if first is not None and first[0] in known else ": "
    return UserError(f"{prefix}{separator}{message}" if prefix else message)


def unknown_setting(key: str, known: Sequence[str]) -> UserError:
    """The error for a dotted key that does not exist; its last part alone is compared, to suggest a missing prefix too."""
    last = {name: name.rsplit(".", 1)[-1] for name in known}
    near = difflib.get_close_matches(key.rsplit(".", 1)[-1], {*last.values()}, n=1, cutoff=0.6)
    suggestions = [name for name in known if last[name] in near]
    if suggestions:
        return UserError(f"unknown setting '{key}'; did you mean {' or '.join(suggestions[:3])}?")
    if len(known) > MAX_SUGGESTIONS:
        return UserError(f"unknown setting '{key}'; --help lists all")
    return unknown("setting", key, known)
