"""Hyperparameters of an algorithm: static sizes and traced rates, each with its range."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Self, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from marljax.config import convert
from marljax.core import fields
from marljax.core.fields import MAX_INT
from marljax.errors import UserError, unknown

Scalar = float | jax.Array  # a traced number: float where the user writes it, an array inside programs


# A hyperparameter that shapes the program, so changing it compiles again; and a number that the program takes as input.
static, traced = fields.option, fields.param


def is_static(field: dataclasses.Field) -> bool:
    """Whether a config field is part of the program rather than its input."""
    return field.metadata.get("static", False)


def traced_names(config: type) -> list[str]:
    """The fields of a ``Config`` that are numbers of the program's input."""
    return [field.name for field in dataclasses.fields(config) if not is_static(field)]


@dataclass_transform(frozen_default=True)
class Hyperparameters:
    """Base of every algorithm's ``Config``; fields are declared with ``static`` and ``traced``.

    A subclass is a frozen dataclass and a pytree of its traced fields. Whoever makes one, in Python or by the command line, gets
    its values normalised (lists become tuples, 1e6 an integer, NumPy scalars Python's) and checked: ``UserError`` for a name that
    does not exist, a wrong type, a value out of range. Traced fields take arrays too, one entry per member of a batch. JAX puts
    whatever it likes into the pytree, unchecked.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True)(cls)
        jax.tree_util.register_pytree_with_keys(cls, cls._flatten_with_keys, cls._unflatten, cls._flatten)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        del values
        names = convert.names(cls)
        for name in named:
            if name not in names:
                raise unknown("hyperparameter", name, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            normal = (_static_value if is_static(field) else _traced_value)(field, getattr(self, field.name))
            object.__setattr__(self, field.name, normal)
        if self.steps_per_update > MAX_INT:
            steps = f"{self.steps_per_update:g} environment steps"
            raise UserError(f"an update of {steps} is too large; take fewer environments or shorter rollouts, {MAX_INT} at most")
        if self.num_updates > MAX_INT:
            raise UserError(f"a run of {self.num_updates:g} updates is too long; lower total_steps, to {MAX_INT} updates at most")

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        raise NotImplementedError

    @property
    def num_updates(self) -> int:
        """Updates in a whole run."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, checked like any other."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    @classmethod
    def _names(cls, static: bool) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if is_static(field) == static]  # type: ignore[arg-type]

    def _flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(self, name) for name in self._names(False)), tuple(getattr(self, name) for name in self._names(True))

    def _flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        leaves, structure = self._flatten()
        keys = [jax.tree_util.GetAttrKey(name) for name in self._names(False)]
        return tuple(zip(keys, leaves, strict=True)), structure

    @classmethod
    def _unflatten(cls, structure: tuple[Any, ...], leaves: Iterable[Any]) -> Self:
        config = object.__new__(cls)
        for names, values in ((cls._names(True), structure), (cls._names(False), leaves)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(config, name, value)
        return config


def _static_value(field: dataclasses.Field, value: Any) -> Any:
    """The value as its field's type; a default says the type."""
    value = convert.convert(field.name, convert.to_builtin(value), Any, field.default)
    fields.check_option(field, value)
    return value


def _traced_value(field: dataclasses.Field, value: Any) -> Any:
    """A Python float where a single number is given; arrays of numbers and tracers stay as they are."""
    if not is_number(value):
        given = convert.format_value(convert.to_builtin(value))
        raise UserError(f"{field.name}={given} has the wrong type; it takes a number, such as {field.default:g}")
    if isinstance(value, jax.core.Tracer):
        return value
    too_large = isinstance(value, int) and abs(value) > fields.MAX_FLOAT  # perhaps for a float64 too
    numbers = np.asarray(math.inf if too_large else value).astype(np.float64)
    fields.check_number(field.name, field.metadata, numbers)
    return value if numbers.ndim else float(numbers)


def check_value(config: type, name: str, value: Any) -> None:
    """Raises ``UserError`` for a value that a field of a ``Config`` does not take, whatever the others are."""
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    value = convert.convert(f"algo.{name}", value, Any, field.default)
    try:
        (_static_value if is_static(field) else _traced_value)(field, value)
    except UserError as error:
        raise convert.prefixed("algo", error, [name]) from error


def is_number(value: Any) -> bool:
    """Whether a value is a number or an array of numbers; truth values are not."""
    if not isinstance(value, int | float | jax.Array | np.ndarray | np.generic) or isinstance(value, bool):
        return False
    dtype = value.dtype if hasattr(value, "dtype") else np.dtype(type(value))
    return bool(jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating))


def as_traced(config: Any) -> Any:
    """The config with every traced leaf as float32: Python floats, ints and arrays would each trace the program once."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), config)
