"""What the suites of other libraries' environments share: classes by name, options, dtypes, bounds."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.errors import UserError
from marljax.utils.pytrees import strongly_typed

PLAIN = (bool, int, float, str, type(None))  # options of these types can be given; arrays and records cannot

Options = tuple[tuple[str, Any], ...]  # (name, value) pairs, those at their default left out


def member_class(base: Any, library: str, member: str, options: Mapping[str, tuple[Any, Any]], **namespace: Any) -> Any:
    """A subclass of ``base`` for the environment ``member`` of ``library``; ``options``: name → (type, default)."""
    namespace |= {
        "member": member,
        "version": f"{base.version}, {library} {importlib.metadata.version(library)}",
        "__doc__": f"{library}'s {member}.",
        "__module__": base.__module__,
    }
    name = "".join(letter if letter.isalnum() else "_" for letter in member)
    fields = [(option, hint, dataclasses.field(default=default)) for option, (hint, default) in options.items()]
    return dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, namespace=namespace)


def given(env: Environment, base: Any) -> Options:
    """The options of ``env`` that ``base`` does not have and that are not at their default, as its library is given them."""
    own = {field.name for field in dataclasses.fields(base)}
    pairs = [(field, getattr(env, field.name)) for field in dataclasses.fields(env) if field.name not in own]
    return tuple((field.name, value) for field, value in pairs if value != field.default)


def refusal(library: str, member: str, options: Options, error: Exception) -> UserError:
    """One line for what a library raises when it is asked for an environment."""
    reason = " ".join(str(error).split()) or type(error).__name__
    asked = ", ".join(f"{name}={value}" for name, value in options)
    what = f"{asked} does not suit {library}'s {member}" if asked else f"{library}'s {member} cannot be made"
    return UserError(f"{what}: {reason}")


def cast(tree: Any, like: Any) -> Any:
    """A state in the dtypes of another one, or of its shapes; Python numbers as arrays."""
    return strongly_typed(jax.tree.map(lambda leaf, usual: jnp.asarray(leaf, usual.dtype), tree, like))


def stretched(action: jax.Array, space: Any) -> jax.Array:
    """An action in [−1, 1], in the bounds and shape of another library's box."""
    low, high = (jnp.broadcast_to(jnp.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return low + (high - low) * (jnp.clip(action.reshape(space.shape), -1.0, 1.0) + 1.0) / 2.0
