"""Numbers that members of a batch do not share: hyperparameters by name, numbers of the environment as ``env.<name>``."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import is_static
from marljax.core.types import EnvParams
from marljax.errors import UserError, short_repr, unknown
from marljax.utils.pytrees import shape_difference, strongly_typed

ENV = "env."  # before the name of a number of the environment
Overrides = Mapping[str, Any]


def overridden(config: Any, env_params: EnvParams, overrides: Overrides) -> tuple[Any, EnvParams]:
    """The config and env_params with some of their numbers replaced; static fields cannot be."""
    if not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides):
        raise UserError(f"overrides are {short_repr(overrides)}; give numbers by name, such as {{'learning_rate': 1e-3}}")
    mine = {name: value for name, value in overrides.items() if not name.startswith(ENV)}
    theirs = {name.removeprefix(ENV): value for name, value in overrides.items() if name.startswith(ENV)}
    for name in mine:
        check_hyperparameter(type(config), name)
    config = config.replace(**mine) if mine else config
    for name in mine:
        check_single(name, getattr(config, name))
    for name, value in theirs.items():
        env_params = _with_number(env_params, name, name, value)
    return config, env_params


def check_hyperparameter(config: type, name: str) -> None:
    """Raises ``UserError`` for a name that is no traced field of an algorithm's ``Config``."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    if name not in fields:
        raise unknown("hyperparameter", name, fields)
    if is_static(fields[name]):
        raise UserError(f"'{name}' shapes the program and cannot vary inside one; give it to Config, one program per value")


def check_single(name: str, value: Any) -> None:
    """Raises ``UserError`` for an array where one number is taken."""
    if jnp.ndim(value):
        raise UserError(f"'{name}' is of shape {list(jnp.shape(value))}; it takes one number (under jax.vmap, one per member)")


def _with_number(env_params: EnvParams, whole: str, name: str, value: Any) -> EnvParams:
    """A record with the part ``name`` (``demand_scale``, ``drivers.headway``) replaced; ``whole`` is the name in messages.

    What a wrapper's own record does not have is the wrapped one's, its field ``env``.
    """
    first, _, rest = name.partition(".")
    if not _has(env_params, first):
        if not _has(env_params, "env"):
            raise unknown("number of the environment", whole, known_numbers(env_params))
        return env_params.replace(env=_with_number(env_params.env, whole, name, value))
    current = getattr(env_params, first)
    if rest:
        return env_params.replace(**{first: _with_number(current, whole, rest, value)})
    _check_shape(whole, value, current)
    return env_params.replace(**{first: value})


def _has(record: Any, name: str) -> bool:
    return dataclasses.is_dataclass(record) and name in {field.name for field in dataclasses.fields(record)}


def known_numbers(env_params: EnvParams) -> set[str]:
    """The names that ``env.<name>`` may have: fields of a record, and of the one that it wraps in a field ``env``."""
    own = {field.name for field in dataclasses.fields(env_params)} if dataclasses.is_dataclass(env_params) else set()
    return own | known_numbers(env_params.env) if "env" in own else own


def _check_shape(name: str, value: Any, current: Any) -> None:
    """Raises ``UserError`` for a value that cannot stand in the place of ``current``, a leaf or a tree of env_params."""
    try:
        given, usual = strongly_typed(value), strongly_typed(current)
    except (TypeError, ValueError) as error:
        raise UserError(f"'{ENV}{name}' is {short_repr(value)}; give numbers or arrays") from error
    if jax.tree_util.all_leaves([given, usual]):
        if given.shape != usual.shape:
            shapes = f"of shape {list(given.shape)}; it takes shape {list(usual.shape)}"
            raise UserError(f"'{ENV}{name}' is {shapes} (under jax.vmap, per member)")
    elif difference := shape_difference(usual, given):
        raise UserError(f"'{ENV}{name}' differs from the environment's own: {difference} (under jax.vmap, per member)")
