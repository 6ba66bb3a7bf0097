"""Actions of the connected autonomous vehicles ("CAVs") of ``merge``."""

import jax
import jax.numpy as jnp

from marljax.envs.merge import road
from marljax.envs.merge.params import NUM_CAVS, MergeParams
from marljax.envs.merge.traffic import Vehicles

LEFT, IDLE, RIGHT, FASTER, SLOWER = range(5)
NUM_ACTIONS = 5
NAMES = ("left", "idle", "right", "faster", "slower")


def command(vehicles: Vehicles, action: jax.Array, env_params: MergeParams) -> Vehicles:
    """Applies actions to targets; ``vehicles`` and ``action`` (int) have the same shape, any.

    Left changes the target lane from the merging to the through lane. Faster and slower set the target speed one level above
    or below the level nearest to the current speed. Right does nothing: there is no lane to the right that may be entered.
    """
    target_lane = road.follow(vehicles.x, vehicles.target_lane)
    left = (action == LEFT) & (target_lane == road.BC1) & road.through_reachable(vehicles.x, vehicles.y)
    change = (action == FASTER).astype(vehicles.speed.dtype) - (action == SLOWER)
    level = jnp.clip(nearest_level(vehicles.speed, env_params) + change, 0, env_params.speed_levels - 1)
    target_speed = env_params.speed_lowest + level * env_params.speed_interval
    return vehicles.replace(
        target_lane=jnp.where(left, road.BC0, target_lane),
        target_speed=jnp.where(change != 0, target_speed, vehicles.target_speed),
    )


def nearest_level(speed: jax.Array, env_params: MergeParams) -> jax.Array:
    """Index of the target speed nearest to ``speed``, as a float; ties round to even."""
    level = jnp.round((speed - env_params.speed_lowest) / env_params.speed_interval)
    return jnp.clip(level, 0, env_params.speed_levels - 1)


def action_mask(vehicles: Vehicles, alive: jax.Array, env_params: MergeParams) -> jax.Array:
    """[6, 5] bool: left from the merging lane only, faster and slower within the target speeds; absent CAVs can only idle."""
    x, y, lane, target = (leaf[:NUM_CAVS] for leaf in (vehicles.x, vehicles.y, vehicles.lane, vehicles.target_speed))
    level = nearest_level(target, env_params)
    left = alive & (lane == road.BC1) & road.through_reachable(x, y)
    faster, slower = alive & (level < env_params.speed_levels - 1), alive & (level > 0)
    return jnp.stack([left, jnp.ones_like(left), jnp.zeros_like(left), faster, slower], axis=1)
