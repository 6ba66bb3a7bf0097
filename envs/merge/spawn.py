"""How vehicles enter and leave the road of ``merge``."""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.merge import road, traffic
from marljax.envs.merge.params import MAIN_SLOTS, NUM_CAVS, NUM_VEHICLES, PAIR_X, RAMP_SLOTS, MergeParams
from marljax.envs.merge.traffic import Vehicles
from marljax.utils.batching import expand_trailing_dims, select
from marljax.utils.random import flat, ranks


def is_cav() -> np.ndarray:
    """[12] bool: the slots of CAVs."""
    return np.arange(NUM_VEHICLES) < NUM_CAVS


def is_human(env_params: MergeParams, like: jax.Array) -> jax.Array:
    """[12, …] bool: the vehicles driven by car-following and lane-change models, with the trailing axes of ``like`` [12, …]."""
    return jnp.logical_or(expand_trailing_dims(~is_cav(), like), jnp.asarray(env_params.cavs_drive_as_humans, bool))


def spawn(key: jax.Array, env_params: MergeParams) -> tuple[Vehicles, jax.Array]:
    """Vehicles at the start of an episode, and [6] bool, the CAVs on the ramp.

    Half of the CAVs (rounded down) and half of the human drivers start on the through lane, the others on the ramp, in slots
    40 m apart drawn without replacement.
    """
    draws = flat(jax.random.uniform, key, (2 + 2 * len(MAIN_SLOTS) + 4 * NUM_VEHICLES,))
    counts, order, per_vehicle = jnp.split(draws, [2, 2 + 2 * len(MAIN_SLOTS)])
    position, pace, kind, exponent = per_vehicle.reshape(4, NUM_VEHICLES)
    cavs = env_params.cavs_min + jnp.floor(counts[0] * (env_params.cavs_max - env_params.cavs_min + 1))
    hdvs = env_params.hdvs_min + jnp.floor(counts[1] * (env_params.hdvs_max - env_params.hdvs_min + 1))

    number = jnp.arange(NUM_VEHICLES) % NUM_CAVS
    count, main = jnp.where(is_cav(), cavs, hdvs), jnp.where(is_cav(), jnp.floor(cavs / 2), jnp.floor(hdvs / 2))
    ramp = number >= main
    taken = jnp.where(is_cav(), 0.0, jnp.where(ramp, cavs - jnp.floor(cavs / 2), jnp.floor(cavs / 2)))
    turn = taken + number - jnp.where(ramp, main, 0.0)
    rank = ranks(order.reshape(2, -1))[ramp.astype(jnp.int32)]
    slots = jnp.where(ramp[:, None], jnp.array(RAMP_SLOTS), jnp.array(MAIN_SLOTS))
    x = jnp.sum(jnp.where(rank == turn[:, None], slots, 0.0), axis=1) + env_params.position_noise * (2 * position - 1)
    speed = env_params.spawn_speed_min + pace * (env_params.spawn_speed_max - env_params.spawn_speed_min)

    driver = jnp.where(is_cav(), 0, draw_driver(kind, env_params))
    alive = number < count

    slot, paired = jnp.arange(NUM_VEHICLES), jnp.asarray(env_params.linear_pair, bool)
    for index, (pair_x, on_ramp) in enumerate(zip(PAIR_X, (True, False), strict=True)):
        chosen = paired & (slot == NUM_VEHICLES - len(PAIR_X) + index)
        alive, ramp = alive | chosen, jnp.where(chosen, on_ramp, ramp)
        x = jnp.where(chosen, pair_x + env_params.position_noise * (2 * position - 1), x)
        driver = jnp.where(chosen, traffic.DRIVERS.index("linear_aggressive") + index, driver)
    return enter(x, speed, ramp, driver, exponent, alive, env_params), ramp[:NUM_CAVS]


def draw_driver(uniform: jax.Array, env_params: MergeParams) -> jax.Array:
    """Driver types (int32) in proportion to ``driver_shares``, from uniform draws in [0, 1) of any shape."""
    shares = jnp.cumsum(jnp.asarray(env_params.driver_shares))
    return jnp.sum(uniform[..., None] * shares[-1] >= shares[:-1], axis=-1).astype(jnp.int32)


def enter(
    x: jax.Array,
    speed: jax.Array,
    ramp: jax.Array,
    driver: jax.Array,
    uniform: jax.Array,
    alive: jax.Array,
    env_params: MergeParams,
) -> Vehicles:
    """Vehicles centred in the first segment of their road, [12] each; ``uniform`` in [0, 1) determines their exponents."""
    y = jnp.where(ramp, road.RAMP_Y, road.THROUGH_Y).astype(x.dtype)
    lane = jnp.where(ramp, road.JK, road.AB).astype(jnp.int32)
    human = is_human(env_params, x)
    table = traffic.drivers_of(env_params.drivers, driver)
    phase = (x + y) * jnp.pi
    return Vehicles(
        x=jnp.where(alive, x, 0.0),
        y=jnp.where(alive, y, 0.0),
        heading=jnp.zeros_like(x),
        speed=jnp.where(alive, speed, 0.0),
        lane=lane,
        target_lane=lane,
        target_speed=jnp.where(human, speed, env_params.cav_target_speed),
        timer=phase - table.delay * jnp.floor(phase / table.delay),
        crashed=jnp.zeros(x.shape, bool),
        alive=alive,
        driver=driver,
        exponent=table.exponent_low + uniform * (table.exponent_high - table.exponent_low),
    )


def flow(key: jax.Array, vehicles: Vehicles, free: jax.Array, env_params: MergeParams) -> tuple[Vehicles, jax.Array, jax.Array]:
    """Open inflow: vehicles past the road's end leave, and at each entry one enters with some probability if there is room.

    A draw decides between a CAV and a human driver, who takes the lowest ``free`` slot ([12] bool) of its kind; if there is
    none, no vehicle enters.

    Returns:
        The vehicles; [12] bool, those that entered; [12] bool, those that left.
    """
    left = vehicles.alive & (vehicles.x > road.ROAD_END)
    vehicles = vehicles.replace(alive=vehicles.alive & ~left)
    draws = flat(jax.random.uniform, key, (2, 5))
    entered = jnp.zeros(NUM_VEHICLES, bool)
    for ramp, draw in zip((False, True), draws, strict=True):
        arrival, human, pace, kind, exponent = draw
        lane_y = road.RAMP_Y if ramp else road.THROUGH_Y
        near = (vehicles.x < env_params.inflow_clearance) & (jnp.abs(vehicles.y - lane_y) < road.LANE_WIDTH / 2)
        clear = ~jnp.any(near & vehicles.alive)
        fits = free & ~entered & (is_cav() == (human < env_params.inflow_cav_share))
        first = fits & (jnp.cumsum(fits) == 1) & clear & (arrival < env_params.inflow_probability)
        driver = jnp.where(is_cav(), 0, draw_driver(kind, env_params))
        speed = env_params.inflow_speed + env_params.inflow_speed_noise * (2 * pace - 1)
        ones = jnp.ones_like(vehicles.x)
        new = enter(0.0 * ones, speed * ones, jnp.full(ones.shape, ramp), driver, exponent, first, env_params)
        vehicles = select(first, new, vehicles)
        entered = entered | first
    return vehicles, entered, left
