"""Helpers of the suites, which adapt another library's environments: classes by name, options, dtypes, bounds."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.fields import option
from marljax.errors import UserError
from marljax.utils.pytrees import strongly_typed

PLAIN = (bool, int, float, str, type(None))  # types of supported options; arrays and records are not

Options = tuple[tuple[str, Any], ...]  # (name, value) pairs of options that are not at their default


def member_class(base: Any, library: str, member: str, options: Mapping[str, tuple[Any, Any]], **namespace: Any) -> Any:
    """A subclass of ``base`` for an environment of ``library``; ``options``: name → (type, default)."""
    namespace |= {
        "member": member,
        "version": f"{base.version}, {library} {importlib.metadata.version(library)}",
        "__doc__": f"{library}'s {member}.",
        "__module__": base.__module__,
    }
    name = "".join(letter if letter.isalnum() else "_" for letter in member)
    fields = [(key, hint, option(default)) for key, (hint, default) in options.items()]
    return dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, namespace=namespace)


def given(env: Environment, base: Any) -> Options:
    """The options of ``env`` to pass to its library: those that ``base`` does not have and that are not at their default."""
    own = {field.name for field in dataclasses.fields(base)}
    pairs = [(field, getattr(env, field.name)) for field in dataclasses.fields(env) if field.name not in own]
    return tuple((field.name, value) for field, value in pairs if value != field.default)


def construction_error(library: str, member: str, options: Options, error: Exception) -> UserError:
    """The one-line error for an exception of a library's constructor."""
    reason = " ".join(str(error).split()) or type(error).__name__
    given = ", ".join(f"{name}={value}" for name, value in options)
    name = f"{library}'s {member}"
    return UserError(f"{given} does not work for {name}: {reason}" if given else f"{name} cannot be constructed: {reason}")


def cast(tree: Any, like: Any) -> Any:
    """A state with the dtypes of another one, or of its shapes; Python numbers become arrays."""
    return strongly_typed(jax.tree.map(lambda leaf, other: jnp.asarray(leaf, other.dtype), tree, like))


def rescale_action(action: jax.Array, space: Any) -> jax.Array:
    """An action in [−1, 1] with the bounds and shape of another library's ``Box``."""
    low, high = (jnp.broadcast_to(jnp.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return low + (high - low) * (jnp.clip(action.reshape(space.shape), -1.0, 1.0) + 1.0) / 2.0
