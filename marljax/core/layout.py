"""Parts of a flat observation by name, for encoders that process entities one by one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.spaces import Part
from marljax.errors import UserError

OWN = "own"  # the part of a layout that describes the agent itself
Layout = tuple[Part, ...]


def validate_layout(env: Environment) -> None:
    """Raises ``UserError`` where ``env.obs_layout`` is neither empty nor a description of all columns of the observation."""
    layout: Any = env.obs_layout
    if not isinstance(layout, tuple) or not all(isinstance(part, Part) for part in layout):
        raise UserError(f"obs_layout is {layout!r}, not a tuple of marljax.core.spaces.Part")
    first: dict[str, Part] = {}
    for part in layout:
        same = first.setdefault(part.name, part)
        if not part.name.isidentifier() or part.count < 1 or part.width < 1:
            raise UserError(f"obs_layout has {part}; give a name, at least one entity and at least one column each")
        if part.columns and len(part.columns) != part.width:
            raise UserError(f"obs_layout has {part}; name all of its {part.width} columns, or none")
        if part.name == OWN and (part.count > 1 or part.ordered):
            raise UserError(f"obs_layout has {part}; '{OWN}' is the observing agent, a single one")
        if (part.count, part.ordered) != (same.count, same.ordered):
            raise UserError(f"obs_layout has {same} and {part}; parts of one name are columns of the same entities")
    described = sum(part.count * part.width for part in layout)
    columns = sum(math.prod(box.shape) for box in jax.tree.leaves(env.observation_space))
    if layout and described != columns:
        raise UserError(f"obs_layout describes {described} columns of an observation of {columns}")


def kinds(layout: Layout) -> Layout:
    """One part per kind of entity, in the order of first mention: parts of one name joined, ``own`` left out."""
    widths: dict[str, int] = {}
    for part in layout:
        widths[part.name] = widths.get(part.name, 0) + part.width
    first = {part.name: part for part in reversed(layout)}
    return tuple(Part(name, first[name].count, width, first[name].ordered) for name, width in widths.items() if name != OWN)


def split(layout: Layout, obs: jax.Array) -> dict[str, jax.Array]:
    """Flat observations [..., O] as entities [..., count, width] by name; ``own`` is always included, perhaps with width 0."""
    boundaries = np.cumsum([part.count * part.width for part in layout])[:-1]
    found: dict[str, list[jax.Array]] = {OWN: [jnp.zeros((*obs.shape[:-1], 1, 0))]}
    for part, columns in zip(layout, jnp.split(obs, boundaries, axis=-1), strict=True):
        found.setdefault(part.name, []).append(columns.reshape(*obs.shape[:-1], part.count, part.width))
    return {name: jnp.concatenate(parts, axis=-1) for name, parts in found.items()}


def present(entities: jax.Array) -> jax.Array:
    """[..., count, width] → [..., count] bool: an entity is present where not all of its columns are 0."""
    return jnp.any(entities != 0.0, axis=-1)
