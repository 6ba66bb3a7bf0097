"""Declared fields of environments and algorithms: every value with its range, unit and meaning, checked in one way.

``option`` and ``param`` declare the options and the ``env_params`` of an environment, ``static`` and ``traced``
(``marljax.config``) the hyperparameters of an algorithm. All four store the same metadata, which ``--help`` reads.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from marljax.errors import UserError, short_repr
from marljax.utils.pytrees import named_leaves, to_host

MAX_INT = 2**31 - 1  # integers are int32 inside programs
MAX_UINT = 2**32 - 1  # and unsigned ones uint32
MAX_FLOAT = float(np.finfo(np.float32).max)  # and floats float32
LONGEST_ARRAY = 30  # entries of an array that a message quotes in full
TYPES = {bool: "True or False", int: "an integer", float: "a number", str: "text", tuple: "a tuple"}


def option(
    default: Any = dataclasses.MISSING,
    *,
    choices: Collection[Any] | None = None,
    low: float | None = None,
    high: float = MAX_INT,
    preset: bool = False,
    help: str = "",
) -> Any:
    """A field that shapes the program, such as an environment's option: changing it recompiles.

    ``choices`` are the values it takes; ``low`` and ``high`` bound a number, or every entry of a tuple. A ``preset`` only
    chooses ``env_params``: environments that differ in it alone are equal and share one program.
    """
    metadata = {"static": True, "choices": choices, "low": low, "high": high, "help": help}
    return dataclasses.field(default=default, compare=not preset, metadata=metadata)


def param(
    default: Any = dataclasses.MISSING,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    integer: bool = False,
    unit: str = "",
    help: str = "",
) -> Any:
    """A number or array that the program takes as input: changing or sweeping it does not recompile.

    Entries lie in [``low``, ``high``] and above ``above``; those of an ``integer`` have no fraction. A callable default is called
    for each record.
    """
    metadata = {"static": False, "low": low, "high": high, "above": above, "integer": integer, "unit": unit, "help": help}
    key = "default_factory" if callable(default) else "default"
    return dataclasses.field(**{key: default}, metadata=metadata)


def check_options(env: Any) -> None:
    """Raises ``UserError`` for the first field declared with ``option`` that has a wrong type, choice or range."""
    for field in dataclasses.fields(env):
        if "choices" in field.metadata:
            check_option(field, getattr(env, field.name))


def check_option(field: dataclasses.Field, value: Any) -> None:
    """Raises ``UserError`` for a value that a field declared with ``option`` or ``static`` does not take."""
    given = f"{field.name}={short_repr(value)}"
    choices, low, high = (field.metadata[key] for key in ("choices", "low", "high"))
    if choices is not None:
        if value in list(choices):
            return
        near = difflib.get_close_matches(str(value), map(str, choices), n=3, cutoff=0.5)
        suggestion = f"did you mean {' or '.join(near)}?" if near else f"choose {' or '.join(str(choice) for choice in choices)}"
        raise UserError(f"{field.name}={value} is not available; {suggestion}")
    hint, default = field.type, field.default
    alternatives = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and (default is None or types.NoneType in alternatives):
        return
    stated = [alternative for alternative in alternatives if alternative is not types.NoneType]
    expected: Any = object  # a default says the type where the annotation does not
    if len(stated) == 1 and stated[0] in TYPES:
        expected = stated[0]
    elif default is not None and default is not dataclasses.MISSING:
        expected = type(default)
    accepted: Any = (int, float) if expected is float else expected
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected in (int, float)):
        raise UserError(f"{given} has the wrong type; it takes {TYPES.get(expected, expected)}")
    entries = value if isinstance(value, tuple) else (value,)
    if low is not None and not all(low <= entry <= high for entry in entries):
        bounded = high < MAX_INT or any(entry > high for entry in entries)
        limits = f"from {low:,} to {high:,}" if bounded else f"of at least {low:,}"
        raise UserError(f"{given} is out of range; it takes {'a number' if expected is float else 'an integer'} {limits}")


def check_params(env_params: Any, default: Any) -> None:
    """Checks concrete ``env_params`` against the shapes and types of ``default`` and the ranges that ``param`` declares.

    Numbers are compared as float32, in which programs compute.

    Raises:
        UserError: for the first number of another shape, not finite, with a fraction where ``default`` is an integer, or out of
            its declared range.
    """
    if str(jax.tree.structure(env_params)) != str(jax.tree.structure(default)):
        raise UserError("env_params have another structure than default_params; replace numbers and arrays by numbers and arrays")
    for (name, leaf), (_, expected) in zip(named_leaves(env_params), named_leaves(default), strict=True):
        array, usual = to_host(leaf), to_host(expected)
        if np.array_equal(array, usual):  # an undeclared default may be anything, such as infinity for no limit, or a random key
            continue
        kind, max_int = usual.dtype.kind, MAX_UINT if usual.dtype.kind == "u" else MAX_INT
        given = f"{name}={short_repr(leaf) if array.size > LONGEST_ARRAY else ' '.join(str(leaf).split())}"
        if array.shape != usual.shape:
            raise UserError(f"{given} has shape {list(array.shape)}; it takes shape {list(usual.shape)}")
        fits = array.dtype.kind in "biuf" and (np.abs(array.astype(np.float64)) <= MAX_FLOAT).all()
        if kind == "b":
            fits, takes = fits and ((array == 0) | (array == 1)).all(), "true or false"
        elif kind in "iu":
            fits, takes = fits and ((array % 1 == 0) & (np.abs(array.astype(np.float64)) <= max_int)).all(), "an integer"
        else:
            takes = "finite numbers"
        if not fits:
            raise UserError(f"{given} is out of range; it takes {takes}")
    for name, field, value in declared_params(env_params):
        check_number(name, field.metadata, np.asarray(value))


def check_order(env_params: Any, *pairs: tuple[str, str]) -> None:
    """Raises ``UserError`` for the first pair of dotted names whose first number exceeds the second."""
    values = dict(named_leaves(env_params))
    for low, high in pairs:
        if not float(values[low]) <= float(values[high]):
            raise UserError(f"{low}={values[low]:g} exceeds {high}={values[high]:g}; lower the first or raise the second")


def declared_params(record: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """(dotted name, field, value) of every number that ``param`` declares in a record and the records inside it, except None."""
    if not dataclasses.is_dataclass(record):
        return
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if "integer" in field.metadata and value is not None:
            yield f"{prefix}{field.name}", field, value
        else:
            yield from declared_params(value, f"{prefix}{field.name}.")


def check_number(name: str, metadata: Mapping[str, Any], values: np.ndarray) -> None:
    """Raises ``UserError`` for a number, or the first entry of an array, that is not finite or out of its declared range."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    low, high, above = (np.float32(metadata[key]) for key in ("low", "high", "above"))
    fits = np.isfinite(single) & (single >= low) & (single <= high) & ((single > above) | np.isneginf(above))
    if metadata["integer"]:
        fits &= single % 1 == 0
    if fits.all():
        return
    index = tuple(np.argwhere(~fits)[0])
    entry = f"{name}{list(map(int, index)) if index else ''}={values[index]:g}"
    kind = "an integer" if metadata["integer"] else "a finite number"
    raise UserError(f"{entry} is out of range; it takes {kind}{range_text(metadata)}")


def range_text(metadata: Mapping[str, Any]) -> str:
    """The range of a number in words, such as `` from 0 to 1``; empty where there is none."""
    low, high, above = (metadata[key] for key in ("low", "high", "above"))
    most = f"{np.floor(high * 1e4) / 1e4:g}" if math.isfinite(high) else ""  # rounded to a value that is itself allowed
    if math.isfinite(above):
        return f" above {above:g}" + f", at most {most}" * bool(most)
    if math.isfinite(low):
        return f" from {low:g} to {most}" if most else f" of at least {low:g}"
    return f" of at most {most}" * bool(most)
