"""Hyperparameters of an algorithm: static fields, which shape the program, and traced numbers, each with its range."""

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

Scalar = float | jax.Array  # a traced number: a float in the user's code, an array inside programs

# A hyperparameter that shapes the program, so that changing it compiles again; and a number that the program takes as input.
static, traced = fields.option, fields.param


def is_static(field: dataclasses.Field) -> bool:
    """Whether a config field is part of the program rather than its input."""
    return field.metadata.get("static", False)


def traced_names(config: type) -> list[str]:
    """The fields of a ``Config`` that the program takes as input."""
    return [field.name for field in dataclasses.fields(config) if not is_static(field)]


@dataclass_transform(frozen_default=True)
class Hyperparameters:
    """Base of every algorithm's ``Config``; fields are declared with ``static`` and ``traced``.

    A subclass is a frozen dataclass and a pytree of its traced fields. Its constructor normalises values (lists become tuples,
    1e6 an integer, NumPy scalars Python numbers) and checks them: ``UserError`` for an unknown name, a wrong type, a value out
    of range. Traced fields take arrays too, one entry per run of a batch. Leaves that JAX puts into the pytree are not checked.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True)(cls)
        leaves, structure = traced_names(cls), [name for name in convert.names(cls) if name not in traced_names(cls)]

        def flatten(config: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return tuple(getattr(config, name) for name in leaves), tuple(getattr(config, name) for name in structure)

        def flatten_with_keys(config: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            values, static_values = flatten(config)
            return list(zip(map(jax.tree_util.GetAttrKey, leaves), values, strict=True)), static_values

        def unflatten(static_values: tuple[Any, ...], values: Iterable[Any]) -> Any:
            config = object.__new__(cls)  # not the constructor: it would check the values
            vars(config).update(zip(structure, static_values, strict=True))
            vars(config).update(zip(leaves, values, strict=True))
            return config

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        del values
        names = convert.names(cls)
        for name in named:
            if name not in names:
                raise unknown("hyperparameter", name, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, _normalised(field, getattr(self, field.name)))
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


def check_value(config: type, name: str, value: Any) -> None:
    """Raises ``UserError`` for a value that a field of a ``Config`` does not take, whatever the others are."""
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    value = convert.as_type(f"algo.{name}", value, Any, field.default)
    try:
        _normalised(field, value)
    except UserError as error:
        raise convert.prefixed("algo", error, [name]) from error


def _normalised(field: dataclasses.Field, value: Any) -> Any:
    """The checked value of a field: a static one as the type of its default, a traced one as a float or an array of numbers."""
    if is_static(field):
        value = convert.as_type(field.name, convert.to_builtin(value), Any, field.default)
        fields.check_option(field, value)
        return value
    number = isinstance(value, int | float | jax.Array | np.ndarray | np.generic) and not isinstance(value, bool)
    dtype = getattr(value, "dtype", np.dtype(float))
    if not number or not (jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)):
        given = convert.format_value(convert.to_builtin(value))
        raise UserError(f"{field.name}={given} has the wrong type; it takes a number, such as {field.default:g}")
    if isinstance(value, jax.core.Tracer):
        return value
    too_large = isinstance(value, int) and abs(value) > fields.MAX_FLOAT  # perhaps for a float64 too
    numbers = np.asarray(math.inf if too_large else value).astype(np.float64)
    fields.check_number(field.name, field.metadata, numbers)
    return value if numbers.ndim else float(numbers)


def as_traced(config: Any) -> Any:
    """The config with every traced leaf as float32: Python floats, ints and arrays would each trace the program once."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), config)
