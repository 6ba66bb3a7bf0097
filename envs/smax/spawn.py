"""Initial positions and unit types of ``smax``.

Axis letters: N units of both teams; trailing axes are free.
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

    With random positions, half the time the enemies mirror the allies; else one team starts in the centre and the other on the
    ways to the four corners.

    Args:
        draws: [``num_draws``, …] uniform in [0, 1).
        scenario: which kind of positions and types.
        env_params: the map's size and the noise.
    """
    size, num_allies = scenario.num_units, scenario.num_allies
    noise, width, height = env_params.spawn_noise, env_params.map_width, env_params.map_height
    draw_x, draw_y, lot = draws[:size], draws[size : 2 * size], draws[2 * size : 3 * size]
    is_ally = expand_trailing_dims(np.arange(size) < num_allies, draws)
    # one uniform number gives two independent integers: a corner, and a unit type from the remainder
    corner = jnp.floor(CORNERS * lot)
    kind = jnp.floor(NUM_KINDS * (CORNERS * lot - corner)).astype(jnp.int32)
    corner = corner.astype(jnp.int32)

    def paired(allies: jax.Array, enemies: jax.Array) -> jax.Array:
        """[N, …] of both teams: enemy k is drawn with ally k, surplus enemies by themselves."""
        enemies = jnp.concatenate([enemies[:num_allies], enemies[2 * num_allies :]])[: scenario.num_enemies]
        return jnp.concatenate([allies[:num_allies], enemies])

    types = paired(kind, kind) if scenario.random_types else None
    noise_x, noise_y = noise * (2 * draw_x - 1), noise * (2 * draw_y - 1)
    if not scenario.random_positions:
        return jnp.where(is_ally, START_ALLIES, START_ENEMIES) * width + noise_x, height / 2 + noise_y, types

    common = draws[3 * size :]
    along, case = common[:CORNERS], jnp.floor(4 * common[CORNERS])
    inside = jnp.broadcast_to(case == 2, lot.shape) == is_ally
    share = jnp.ones_like(lot)  # of the way from the corner to the centre
    for number in range(CORNERS):
        share = jnp.where(~inside & (corner == number), along[number], share)
    x = share * width / 2 + (1 - share) * width * (corner % 2) + noise_x
    y = share * height / 2 + (1 - share) * height * (corner // 2) + noise_y
    half, anywhere = width / 2 * draw_x, height * draw_y
    return jnp.where(case < 2, paired(half, width - half), x), jnp.where(case < 2, paired(anywhere, anywhere), y), types
