"""Fields of an algorithm's ``Config``: static sizes and traced rates, each with its range."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.errors import UserError

Scalar = float | jax.Array  # a traced number: float where the user writes it, an array inside programs


def static(default: Any, *, choices: tuple[Any, ...] | None = None, low: int | None = None) -> Any:
    """A field that shapes the program: changing it compiles anew. ``low`` bounds integers, ``choices`` lists what is allowed."""
    return struct.field(pytree_node=False, default=default, metadata={"choices": choices, "low": low})


def traced(default: float, *, low: float = -math.inf, high: float = math.inf) -> Any:
    """A number that the program takes as input: changing or sweeping it compiles nothing."""
    return struct.field(default=default, metadata={"low": low, "high": high})


def is_static(field: dataclasses.Field) -> bool:
    """Whether a config field is part of the program rather than its input."""
    return not field.metadata.get("pytree_node", True)


def check(config: Any) -> None:
    """Raises ``UserError`` for a field of the wrong type or outside its range; traced arrays are left alone."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_static(field):
            _check_static(field, value)
        elif isinstance(value, int | float):
            low, high = field.metadata["low"], field.metadata["high"]
            if isinstance(value, bool) or not low <= value <= high:
                raise UserError(f"{field.name}={value} is out of range; it takes a number from {low:g} to {high:g}")
        elif not isinstance(value, jax.Array) and isinstance(value, str | list | tuple | dict):
            raise UserError(f"{field.name}={value!r} is not a number")


def _check_static(field: dataclasses.Field, value: Any) -> None:
    name, choices, low = field.name, field.metadata.get("choices"), field.metadata.get("low")
    expected = type(field.default)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise UserError(f"{name}={value!r} has the wrong type; it takes {expected.__name__}, such as {field.default!r}")
    if choices is not None and value not in choices:
        raise UserError(f"{name}={value!r} is not known; choose {' or '.join(map(repr, choices))}")
    entries = value if isinstance(value, tuple) else (value,)
    if low is not None and any(not isinstance(entry, int) or entry < low for entry in entries):
        raise UserError(f"{name}={value!r} is out of range; it takes integers of at least {low}")


def as_traced(config: Any) -> Any:
    """The config with every traced leaf as float32: Python floats, ints and arrays would each trace the program once."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), config)


def divide(total: int, parts: int, what: str, into: str) -> int:
    """``total / parts``, or an error that names both where they do not divide."""
    if total % parts:
        raise UserError(f"{total} {what} do not divide into {parts} {into}; change one of the two")
    return total // parts
