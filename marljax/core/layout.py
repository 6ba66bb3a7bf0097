"""Names of the parts of an observation, for encoders that treat entities one by one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.spaces import Part

OWN = "own"  # the part of a layout that is the agent itself
Layout = tuple[Part, ...]


def fault(env: Environment) -> str:
    """What is wrong with ``env.obs_layout``, in one sentence; empty where it describes the observation, or says nothing."""
    layout: Any = env.obs_layout
    if not isinstance(layout, tuple) or not all(isinstance(part, Part) for part in layout):
        return f"obs_layout is {layout!r}, not a tuple of marljax.core.spaces.Part"
    first: dict[str, Part] = {}
    for part in layout:
        alike = first.setdefault(part.name, part)
        if not part.name.isidentifier() or part.count < 1 or part.width < 1:
            return f"obs_layout holds {part}; give a name, at least one entity and at least one column each"
        if part.name == OWN and (part.count > 1 or part.ordered):
            return f"obs_layout holds {part}; there is one agent that observes"
        if (part.count, part.ordered) != (alike.count, alike.ordered):
            return f"obs_layout holds {alike} and {part}; parts of one name are columns of the same entities"
    given = sum(part.count * part.width for part in layout)
    wanted = sum(math.prod(box.shape) for box in jax.tree.leaves(env.observation_space))
    return f"obs_layout describes {given} columns of an observation of {wanted}" if layout and given != wanted else ""


def kinds(layout: Layout) -> Layout:
    """One part per kind of entity, in the order of first mention: parts of one name joined, the own left out."""
    widths: dict[str, int] = {}
    for part in layout:
        widths[part.name] = widths.get(part.name, 0) + part.width
    first = {part.name: part for part in reversed(layout)}
    return tuple(Part(name, first[name].count, width, first[name].ordered) for name, width in widths.items() if name != OWN)


def split(layout: Layout, obs: jax.Array) -> dict[str, jax.Array]:
    """Flat observations [..., O] as entities [..., count, width] by name; the own is among them, if only with a width of 0."""
    places = np.cumsum([part.count * part.width for part in layout])[:-1]
    found: dict[str, list[jax.Array]] = {OWN: [jnp.zeros((*obs.shape[:-1], 1, 0))]}
    for part, columns in zip(layout, jnp.split(obs, places, axis=-1), strict=True):
        found.setdefault(part.name, []).append(columns.reshape(*obs.shape[:-1], part.count, part.width))
    return {name: jnp.concatenate(parts, axis=-1) for name, parts in found.items()}


def present(entities: jax.Array) -> jax.Array:
    """[..., count, width] → [..., count] bool: there is an entity, for not all of its columns are 0."""
    return jnp.any(entities != 0.0, axis=-1)
