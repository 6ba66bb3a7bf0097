"""Plain values from a command line or a YAML file into typed records, and back; one clear line for each kind of mistake."""

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

LARGEST = 2**63 - 1  # what any setting may be
LONGEST_CHOICE = 12  # names in a message
DIGITS = 16  # of a digest
LONGEST_LIST = 64  # a longer array of env_params is a table: it is set in Python, not on a command line


def parse_override(text: str, advice: str) -> Any:
    """One of Hydra's overrides; raises ``UserError`` with ``advice`` for text that is not one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise UserError(f"cannot read '{text}'; {advice}") from error


def hydra_value(value: Any) -> Any:
    """Hydra's quoted strings and containers as ordinary Python values."""
    if isinstance(value, list):
        return [hydra_value(entry) for entry in value]
    if isinstance(value, dict):
        return {str(hydra_value(key)): hydra_value(entry) for key, entry in value.items()}
    return value.text if hasattr(value, "text") and not isinstance(value, type) else value


def names(cls: type) -> list[str]:
    """The fields that a record is made with."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def key_paths(cls: type, prefix: str = "") -> list[str]:
    """Dotted keys of a record of records, groups included."""
    paths = []
    for name, hint in typing.get_type_hints(cls).items():
        paths.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            paths += key_paths(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return paths


def defaults(cls: type) -> dict[str, Any]:
    """The fields that have a default, as plain values."""
    found = {field.name: _default(field) for field in dataclasses.fields(cls) if field.init}
    return {name: to_builtin(value) for name, value in found.items() if value is not dataclasses.MISSING}


def required(cls: type) -> list[str]:
    """The fields that have none."""
    return [field.name for field in dataclasses.fields(cls) if field.init and _default(field) is dataclasses.MISSING]


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
        return _readable(np.asarray(value))
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def build(cls: type, prefix: str, tree: Mapping[str, Any]) -> Any:
    """A record from a mapping; ``UserError`` for an unknown key, a missing one, or a value of the wrong type."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = _hints(cls)
    values = {}
    for key, value in tree.items():
        if key not in fields:
            raise unknown_setting(_join(prefix, key), [_join(prefix, name) for name in fields])
        values[key] = convert(_join(prefix, key), value, hints.get(key, Any), _default(fields[key]))
    for name in required(cls):
        if name not in values:
            raise UserError(f"{_join(prefix, name)} has no default; set it")
    try:
        return cls(**values)
    except ValueError as error:  # a range, or two fields that do not fit; the record knows its names without the prefix
        raise prefixed(prefix, error, fields) from error


def convert(key: str, value: Any, hint: Any, default: Any = dataclasses.MISSING) -> Any:
    """``value`` as the type that a field is declared with; integers may be written 1e6.

    A field's default says its type where the annotation does not (``jax.Array | float`` with default 0.99 is a number).
    """
    choices = _alternatives(hint)
    if value is None:
        if default is None or type(None) in choices:
            return None
        raise _wrong_type(key, value, _expected(hint, default))
    kind = _kind(choices, default)
    if isinstance(value, Mapping) and kind in (bool, int, float, str):
        raise UserError(
            f"{key} has no settings of its own, such as {key}.{next(iter(value), '')}; it takes {_expected(hint, default)}"
        )
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UserError(f"{key} is a group of settings: {', '.join(f'{key}.{name}' for name in names(kind))}")  # type: ignore[arg-type]
        return build(kind, key, value)  # type: ignore[arg-type]
    if typing.get_origin(kind) is typing.Literal:
        return _literal(key, value, typing.get_args(kind))
    if kind is tuple or typing.get_origin(kind) is tuple:
        return _entries(key, value, kind, default)
    return _scalar(key, value, kind, default)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; empty ones stay."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return flat


def leaf_names(tree: Any) -> list[str]:
    """Dotted names of a pytree's arrays."""
    return [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def number_types(tree: Any) -> dict[str, np.dtype]:
    """Dotted name → type of a pytree's single numbers."""
    leaves = {_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    return {name: jax.dtypes.canonicalize_dtype(leaf.dtype) for name, leaf in leaves.items() if leaf.ndim == 0}


def readable_leaves(tree: Any) -> dict[str, Any]:
    """A pytree's numbers and short lists by name; larger tables by their shape and a digest."""
    return {_name(path): _readable(np.asarray(leaf)) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def replace_leaves(tree: Any, prefix: str, numbers: Mapping[str, Any], known: Sequence[str]) -> Any:
    """A pytree with some leaves replaced by numbers or short lists, shapes and dtypes kept; ``None`` keeps a leaf."""
    wanted = flatten(numbers)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    present = {_name(path) for path, _ in paths}
    for key in wanted:
        if key not in present:
            raise unknown_setting(_join(prefix, key), [_join(prefix, name) for name in known])
    leaves = [leaf if wanted.get(_name(path)) is None else _leaf(_join(prefix, _name(path)), wanted[_name(path)], leaf)
              for path, leaf in paths]  # fmt: skip
    return jax.tree.unflatten(structure, leaves)


def format_value(value: Any) -> str:
    """A plain value as one would write it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(number: int, thing: str) -> str:
    """``1 update``, ``2,000 updates``."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def prefixed(prefix: str, error: ValueError, known: Iterable[str]) -> UserError:
    """What a record says of its own fields, in the words of the command line: ``gamma=2 …`` becomes ``algo.gamma=2 …``."""
    message = " ".join(str(error).split())
    first = re.match(r"[\w.]*", message)
    names_a_field = first is not None and first[0] in known
    return UserError(f"{prefix}.{message}" if prefix and names_a_field else f"{prefix}: {message}" if prefix else message)


def unknown_setting(key: str, known: Sequence[str]) -> UserError:
    """The error for a dotted key that does not exist; its last part counts, so that a forgotten prefix is found too."""
    near = difflib.get_close_matches(_last(key), {_last(name) for name in known}, n=1, cutoff=0.6)
    suggestions = [name for name in known if near and _last(name) == near[0]]
    if not suggestions and len(known) > LONGEST_CHOICE:
        return UserError(f"unknown setting '{key}'; --help lists all there are")
    if not suggestions:
        return unknown("setting", key, known)
    return UserError(f"unknown setting '{key}'; did you mean {' or '.join(suggestions[:3])}?")


def _scalar(key: str, value: Any, kind: Any, default: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) > LARGEST and (kind is int or (kind is float and isinstance(value, int))):
        raise UserError(f"{key}={format_value(value)} is out of range; it takes numbers up to {LARGEST}")
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and number and float(value).is_integer():
        return int(value)
    if kind is float and number and (math.isfinite(value) or value == default):
        return float(value)
    if kind is str and (number or isinstance(value, str)):
        return str(value)
    if kind in (bool, int, float, str):
        raise _wrong_type(key, value, _expected(kind, default))
    return tuple(value) if isinstance(value, list) else value


def _literal(key: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise UserError(f"{key}={format_value(value)} is not known; choose {' or '.join(map(format_value, allowed))}")
    return value


def _entries(key: str, value: Any, kind: Any, default: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        example = format_value(to_builtin(default)) if isinstance(default, tuple) and default else "[1,2]"
        raise _wrong_type(key, value, f"a list, such as {example}")
    hints = [hint for hint in typing.get_args(kind) if hint is not Ellipsis]
    sample = default[0] if isinstance(default, tuple) and default else dataclasses.MISSING
    hint = hints[0] if hints else Any
    return tuple(convert(f"{key}[{index}]", entry, hint, sample) for index, entry in enumerate(value))


def _leaf(key: str, value: Any, leaf: Any) -> Any:
    shape, dtype = np.shape(leaf), jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
    if len(shape) > 1 or math.prod(shape) > LONGEST_LIST:
        raise UserError(f"{key} is a table of shape {shape}; set it in Python, in env_params")
    if shape and (not isinstance(value, list | tuple) or len(value) != shape[0]):
        given = f"{len(value)} were given" if isinstance(value, list | tuple) else f"{format_value(value)} was given"
        raise UserError(f"{key} takes a list of {shape[0]} numbers; {given}")
    kind = bool if dtype.kind == "b" else int if np.issubdtype(dtype, np.integer) else float
    entries = [_scalar(key, entry, kind, None) for entry in (value if shape else [value])]
    most = 1 if kind is bool else np.iinfo(dtype).max if kind is int else float(np.finfo(dtype).max)
    if any(abs(entry) > most for entry in entries):
        raise UserError(f"{key}={format_value(value)} is out of range; it takes numbers up to {format_value(most)}")
    if not isinstance(leaf, jax.Array | np.ndarray):
        return entries[0]
    return jnp.asarray(entries if shape else entries[0], dtype)


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError):  # a user's class may annotate with names that exist for type checkers only
        return {}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _kind(choices: tuple[Any, ...], default: Any) -> Any:
    stated = [choice for choice in choices if choice is not type(None)]
    if len(stated) == 1 and stated[0] is not Any:
        return stated[0]
    return Any if default in (None, dataclasses.MISSING) else type(default)


def _expected(hint: Any, default: Any) -> str:
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    kind = _kind(_alternatives(hint), default)
    example = (
        f", such as {format_value(to_builtin(default))}"
        if default not in (None, dataclasses.MISSING) and kind is not bool
        else ""
    )
    return words.get(kind, "a value") + example


def _wrong_type(key: str, value: Any, expected: str) -> UserError:
    return UserError(f"{key}={format_value(to_builtin(value))} has the wrong type; it takes {expected}")


def _readable(array: np.ndarray) -> Any:
    if array.ndim > 1 or array.size > LONGEST_LIST:
        return f"array of shape {array.shape}, SHA-256 {hashlib.sha256(array.tobytes()).hexdigest()[:DIGITS]}"
    if array.dtype == np.float32:  # the shortest decimal that gives the same float32, not its double's digits
        return [float(str(entry)) for entry in array] if array.ndim else float(str(array[()]))
    return array.tolist()


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _last(key: str) -> str:
    return key.rsplit(".", 1)[-1]
