"""Values in which the runs of a batch differ: hyperparameters by name, params of the environment as ``env.<name>``."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import is_static
from marljax.core.types import EnvParams
from marljax.errors import UserError, short_repr, unknown
from marljax.utils.pytrees import shape_difference, strongly_typed

ENV = "env."  # prefix of the names of env_params
Overrides = Mapping[str, Any]


def apply_overrides(config: Any, env_params: EnvParams, overrides: Overrides) -> tuple[Any, EnvParams]:
    """The config and env_params with some values replaced; static hyperparameters cannot be.

    Raises:
        UserError: for a name that does not exist, a static hyperparameter, or a value of another shape.
    """
    if not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides):
        raise UserError(f"overrides={short_repr(overrides)} are not values by name, such as {{'learning_rate': 1e-3}}")
    changes = {name: value for name, value in overrides.items() if not name.startswith(ENV)}
    fields = {field.name: field for field in dataclasses.fields(config)}
    for name in changes:
        if name not in fields:
            raise unknown("hyperparameter", name, fields)
        if is_static(fields[name]):
            raise UserError(f"'{name}' is static (changes compiled shapes) and cannot be vmapped; set it in Config")
    config = config.replace(**changes) if changes else config
    for name in changes:
        check_scalar(name, getattr(config, name))
    for name, value in overrides.items():
        if name.startswith(ENV):
            param = name.removeprefix(ENV)
            env_params = _replace_param(env_params, param, value, param)
    return config, env_params


def check_scalar(name: str, value: Any) -> None:
    """Raises ``UserError`` for an array where a scalar is expected."""
    if jnp.ndim(value):
        raise UserError(f"'{name}' has shape {list(jnp.shape(value))}; it takes a scalar (under jax.vmap, one per run)")


def _replace_param(record: EnvParams, path: str, value: Any, name: str) -> EnvParams:
    """The record with the field at a dotted path (``demand_scale``, ``drivers.headway``) replaced; ``name`` is that in messages.

    A field that a wrapper's record does not have is looked up in that of the wrapped environment, its field ``env``.
    """
    first, _, rest = path.partition(".")
    fields = {field.name for field in dataclasses.fields(record)} if dataclasses.is_dataclass(record) else set()
    if first not in fields and "env" in fields:
        return record.replace(env=_replace_param(record.env, path, value, name))
    if first not in fields:
        raise unknown("param of the environment", name, fields)
    current = getattr(record, first)
    if rest:
        value = _replace_param(current, rest, value, name)
    else:
        _check_shape(name, value, current)
    return record.replace(**{first: value})


def _check_shape(name: str, value: Any, current: Any) -> None:
    """Raises ``UserError`` for a value whose shape differs from that of ``current``, a leaf or a tree of env_params."""
    try:
        new, old = strongly_typed(value), strongly_typed(current)
    except (TypeError, ValueError) as error:
        raise UserError(f"'{ENV}{name}' is {short_repr(value)}; it takes numbers or arrays") from error
    if not jax.tree_util.all_leaves([new, old]):
        difference = shape_difference(old, new)
    else:
        difference = f"shape {list(new.shape)} instead of {list(old.shape)}" if new.shape != old.shape else ""
    if difference:
        raise UserError(f"'{ENV}{name}' has another structure than the default: {difference} (under jax.vmap, per run)")
