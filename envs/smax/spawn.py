"""How battles of ``smax`` begin: who is where, and what type.

Axis letters: N units of both teams; trailing axes are free. One draw of uniform numbers serves a reset.
"""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.smax.units import NUM_KINDS, Scenario, SmaxParams
from marljax.utils.batching import expand_trailing_dims

CORNERS = 4
START_ALLIES, START_ENEMIES = 0.25, 0.75  # of the map's width


def num_draws(scenario: Scenario) -> int:
    """Uniform numbers that a reset needs: two or three per unit, and five where positions are random."""
    per_unit = 3 if scenario.random_types or scenario.random_positions else 2
    return per_unit * scenario.num_units + (CORNERS + 1 if scenario.random_positions else 0)


def spawn(draws: jax.Array, scenario: Scenario, env_params: SmaxParams) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Positions x and y, [N, …] map units, and types [N, …] int32, or None where the scenario fixes them.

    Args:
        draws: [``num_draws``, …] uniform in [0, 1).
        scenario: says which kind of positions and types.
        env_params: the numbers.
    """
    size = scenario.num_units
    place_x, place_y, lot = draws[:size], draws[size : 2 * size], draws[2 * size : 3 * size]
    kind = _types(lot, scenario) if scenario.random_types else None
    if scenario.random_positions:
        x, y = _scattered(place_x, place_y, lot, draws[3 * size :], scenario, env_params)
    else:
        x, y = _face_to_face(place_x, place_y, scenario, env_params)
    return x, y, kind


def _is_ally(scenario: Scenario, like: jax.Array) -> np.ndarray:
    return expand_trailing_dims(np.arange(scenario.num_units) < scenario.num_allies, like)


def _group_and_type(lot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two independent uniform integers out of one uniform number: a corner, and the unit type from the remainder."""
    group = jnp.floor(CORNERS * lot)
    kind = jnp.floor(NUM_KINDS * (CORNERS * lot - group))
    return group.astype(jnp.int32), kind.astype(jnp.int32)


def _types(lot: jax.Array, scenario: Scenario) -> jax.Array:
    kind = _group_and_type(lot)[1]
    return jnp.concatenate([kind[: scenario.num_allies], _paired(kind, kind[: scenario.num_allies], scenario)])


def _paired(values: jax.Array, partners: jax.Array, scenario: Scenario) -> jax.Array:
    """Of the enemies: ``partners`` as far as there are allies, then their own ``values``."""
    return jnp.concatenate([partners, values[2 * scenario.num_allies :]])[: scenario.num_enemies]


def _face_to_face(
    place_x: jax.Array, place_y: jax.Array, scenario: Scenario, env_params: SmaxParams
) -> tuple[jax.Array, jax.Array]:
    start = jnp.where(_is_ally(scenario, place_x), START_ALLIES, START_ENEMIES)
    noise = env_params.spawn_noise
    x = start * env_params.map_width + noise * (2 * place_x - 1)
    return x, env_params.map_height / 2 + noise * (2 * place_y - 1)


def _scattered(
    place_x: jax.Array, place_y: jax.Array, lot: jax.Array, common: jax.Array, scenario: Scenario, env_params: SmaxParams
) -> tuple[jax.Array, jax.Array]:
    """Half the time the enemies mirror the allies; else one team stands in the centre, the other in the four corners."""
    along, case = common[:CORNERS], jnp.floor(4 * common[CORNERS])
    reflected_x, reflected_y = _reflected(place_x, place_y, scenario, env_params)
    allies_inside = jnp.broadcast_to(case == 2, lot.shape)
    inside = allies_inside == _is_ally(scenario, lot)
    group = _group_and_type(lot)[0]
    share = jnp.ones_like(lot)  # of the way from the corner to the centre
    for corner in range(CORNERS):
        share = jnp.where(~inside & (group == corner), along[corner], share)
    noise, width, height = env_params.spawn_noise, env_params.map_width, env_params.map_height
    x = share * width / 2 + (1 - share) * width * (group % 2) + noise * (2 * place_x - 1)
    y = share * height / 2 + (1 - share) * height * (group // 2) + noise * (2 * place_y - 1)
    return jnp.where(case < 2, reflected_x, x), jnp.where(case < 2, reflected_y, y)


def _reflected(place_x: jax.Array, place_y: jax.Array, scenario: Scenario, env_params: SmaxParams) -> tuple[jax.Array, jax.Array]:
    allies = slice(None, scenario.num_allies)
    half = env_params.map_width / 2 * place_x
    mirrored = env_params.map_width - _paired(half, half[allies], scenario)
    y = env_params.map_height * place_y
    return jnp.concatenate([half[allies], mirrored]), jnp.concatenate([y[allies], _paired(y, y[allies], scenario)])
