"""``merge``: connected vehicles learn to merge from a ramp into mixed traffic.

Agents are the connected autonomous vehicles ("CAVs"); the other vehicles are driven by car-following and lane-change models.
The task is that of MARL_CAVs (Chen et al., "Deep Multi-agent Reinforcement Learning for Highway On-Ramp Merging in Mixed
Traffic", 2023), with the driver mixes of iPLAN (Wu et al., 2023) and MAPPO-PIS (2024).
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from marljax.envs import merge_reward as rewards
from marljax.envs import merge_road as road
from marljax.envs import merge_scene
from marljax.envs import merge_traffic as traffic
from marljax.envs.merge_reward import Tally
from marljax.envs.merge_traffic import DriverTable, Physics, Vehicles

from marljax.environment import Environment, Outcome, View
from marljax.errors import unknown
from marljax.scene import Colour, Scene
from marljax.spaces import Box, Discrete

NUM_CAVS = 6
NUM_VEHICLES = 12
LEFT, IDLE, RIGHT, FASTER, SLOWER = range(5)
SUBSTEPS = 3
DECISION_TIME = SUBSTEPS * traffic.TIME_STEP
OBSERVED = 4  # neighbours in an observation
PERCEPTION = 180.0  # m
POSITION_SCALE, LATERAL_SCALE, SPEED_SCALE = 150.0, 12.0, 45.0
MAIN_SLOTS = (10.0, 50.0, 90.0, 130.0, 170.0, 210.0)
RAMP_SLOTS = (5.0, 45.0, 85.0, 125.0, 165.0, 205.0)
PAIR_X = (100.0, 120.0)  # the linear drivers of MAPPO-PIS: aggressive on the ramp, defensive on the through lane

# cavs_min, cavs_max, hdvs_min, hdvs_max, linear_pair
DENSITIES: dict[str, tuple[int, int, int, int, bool]] = {
    "easy": (1, 3, 1, 3, False),
    "medium": (2, 4, 2, 4, False),
    "hard": (4, 6, 3, 5, False),
    "pis_hard": (3, 6, 3, 6, False),
    "pis_mixed_easy": (1, 3, 0, 1, True),
    "pis_mixed_medium": (2, 4, 2, 4, True),
    "pis_mixed_hard": (3, 6, 1, 4, True),
}
# shares of the driver types, in the order of merge_traffic.DRIVERS
MIXES: dict[str, tuple[float, ...]] = {
    "homogeneous": (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "mild": (0.0, 0.8, 0.1, 0.1, 0.0, 0.0),
    "chaotic": (0.0, 0.4, 0.3, 0.3, 0.0, 0.0),
    "very_hard": (0.0, 0.5, 0.5, 0.0, 0.0, 0.0),
    "linear": (0.0, 0.0, 0.0, 0.0, 0.5, 0.5),
}
PHYSICS = ("marl_cavs", "highway_env")
REWARDS = ("local", "regional", "global")


@struct.dataclass
class MergeParams:
    """The numbers of ``merge``; change them with ``.replace(…)``, nothing is compiled again."""

    cavs_min: Any = 4  # CAVs per episode, uniform; at most 6
    cavs_max: Any = 6
    hdvs_min: Any = 3  # human-driven vehicles per episode, uniform; at most 6
    hdvs_max: Any = 5
    linear_pair: Any = False  # adds MAPPO-PIS' aggressive and defensive driver; leaves room for 4 other human drivers
    driver_shares: Any = None  # [6] probability of each driver type, in the order of merge_traffic.DRIVERS
    drivers: DriverTable | None = None  # [6] per quantity
    cavs_drive_as_humans: Any = False  # CAVs ignore their actions and drive by IDM and MOBIL, as the base driver
    spawn_speed_min: Any = 25.0  # m/s
    spawn_speed_max: Any = 27.0
    position_noise: Any = 1.5  # m either way
    cav_target_speed: Any = 25.0  # m/s, at the start
    speed_lowest: Any = 10.0  # m/s, first of the CAVs' target speeds
    speed_interval: Any = 5.0  # m/s between them
    speed_levels: Any = 5  # how many
    duration: Any = 100  # decisions of 0.2 s
    crash_penalty: Any = 200.0
    speed_weight: Any = 1.0
    merging_weight: Any = 4.0
    headway_weight: Any = 4.0
    headway_time: Any = 1.2  # s
    reward_speed_low: Any = 10.0  # m/s, where the speed term is 0
    reward_speed_high: Any = 30.0  # m/s, where it is 1
    merging_scale: Any = 1000.0  # m², of the cost near the ramp's end


@struct.dataclass
class MergeState:
    """Everything that an episode of ``merge`` consists of."""

    vehicles: Vehicles  # [12] each, CAVs in slots 0–5
    on_ramp: jax.Array  # [6] bool: this CAV entered on the ramp
    step: jax.Array  # int32 decisions taken
    tally: Tally


@dataclasses.dataclass(frozen=True)
class Merge(Environment):
    """On-ramp merging in mixed traffic: six CAV slots, six slots for human-driven vehicles.

    Options: ``density`` (how many vehicles: ``easy``, ``medium``, ``hard`` as in MARL_CAVs, ``pis_…`` as in MAPPO-PIS) and
    ``drivers`` (who the human drivers are: ``homogeneous``, ``mild``, ``chaotic``, ``very_hard``, ``linear``) choose numbers
    only; ``physics`` (``marl_cavs``, ``highway_env`` for version 1.12.1), ``connected_lanes`` (drivers see across segment
    joins), ``reward`` (``local``, ``regional`` as in the paper, ``global``) and ``continue_after_crash`` choose the program.

    Actions, 5 per second: 0 left, 1 idle, 2 right (never available), 3 faster, 4 slower; the last two set the target speed
    one level above or below the level nearest to the present speed. Physics runs at 15 Hz. An episode ends when a CAV
    crashes, or is cut off after 100 decisions. With ``continue_after_crash`` a crashed CAV leaves the game, its wreck stays,
    and the episode ends when all have crashed.

    Observation of a CAV, 25 numbers, rows of 5; an absent neighbour's row is 0:

    ===== ====================================== ===========================================
    row   whose                                  columns
    ===== ====================================== ===========================================
    0     its own                                1, x / 150, y / 12, vx / 45, vy / 45
    1–4   vehicles within 180 m, nearest         1, and the same four, as differences from
          in |Δx| first, behind ones included    the own
    ===== ====================================== ===========================================

    Global state: 12 × (present, is CAV, x, y, vx, vy, heading), scaled alike. Metrics: see ``merge_reward.metrics``.
    """

    density: str = dataclasses.field(default="hard", compare=False)
    drivers: str = dataclasses.field(default="homogeneous", compare=False)
    physics: str = "marl_cavs"
    connected_lanes: bool = True
    reward: str = "regional"
    continue_after_crash: bool = False

    presets: ClassVar[tuple[str, ...]] = tuple(DENSITIES)

    def __post_init__(self) -> None:
        choices = {
            "density": (self.density, DENSITIES),
            "drivers": (self.drivers, MIXES),
            "physics": (self.physics, PHYSICS),
            "reward": (self.reward, REWARDS),
        }
        for option, (value, known) in choices.items():
            if value not in known:
                raise unknown(f"{option} of merge", str(value), known)

    @property
    def num_agents(self) -> int:
        return NUM_CAVS

    @property
    def action_space(self) -> Discrete:
        return Discrete(5)

    @property
    def observation_space(self) -> Box:
        return Box((5 * (1 + OBSERVED),))

    @property
    def noop(self) -> int:
        return IDLE

    @property
    def default_params(self) -> MergeParams:
        return self.preset_params(self.density)

    def preset_params(self, preset: str) -> MergeParams:
        """The numbers of another density, with this environment's drivers and physics."""
        if preset not in DENSITIES:
            raise unknown("density of merge", preset, DENSITIES)
        cavs_min, cavs_max, hdvs_min, hdvs_max, linear_pair = DENSITIES[preset]
        params = MergeParams(
            cavs_min=cavs_min,
            cavs_max=cavs_max,
            hdvs_min=hdvs_min,
            hdvs_max=hdvs_max,
            linear_pair=linear_pair,
            driver_shares=np.array(MIXES[self.drivers]),
            drivers=traffic.driver_table(imposed_braking=9.0, gain=0.1, change_speed=0.0),
        )
        if self.physics == "highway_env":
            drivers = traffic.driver_table(imposed_braking=2.0, gain=0.2, change_speed=1.0)
            params = params.replace(drivers=drivers, speed_lowest=20.0, speed_levels=3)
        return params

    @property
    def _physics(self) -> Physics:
        highway_env = self.physics == "highway_env"
        return Physics(
            slip_correction=highway_env,
            full_boxes=highway_env,
            heed_target_lane=highway_env,
            connected_lanes=self.connected_lanes,
        )

    def initial(self, key: jax.Array, env_params: MergeParams) -> MergeState:
        vehicles, on_ramp = spawn(key, env_params)
        cavs = jnp.sum(vehicles.alive[:NUM_CAVS]).astype(vehicles.x.dtype)
        zero = jnp.zeros_like(cavs)
        tally = Tally(
            cavs=cavs,
            cavs_crashed=zero,
            ramp_cavs=jnp.sum(on_ramp & vehicles.alive[:NUM_CAVS]).astype(zero.dtype),
            ramp_merged=zero,
            decisions=zero,
            speed_sum=zero,
            crossings=zero,
            intervened=zero,
            min_ttc=zero + rewards.TTC_CAP,
        )
        return MergeState(vehicles, on_ramp, jnp.zeros((), jnp.int32), tally)

    def transition(
        self, key: jax.Array, state: MergeState, action: jax.Array, env_params: MergeParams
    ) -> tuple[MergeState, Outcome]:
        before = state.vehicles
        acting = self._present(before)
        allowed = jnp.take_along_axis(action_mask(before, acting, env_params), action[:, None], axis=1)[:, 0]
        vehicles = self._drive(before, jnp.where(allowed, action, IDLE), env_params)

        own = rewards.neighbours(vehicles, vehicles.lane[:NUM_CAVS], NUM_CAVS)
        own_reward = rewards.local_reward(vehicles, own, env_params)
        reward = rewards.share(own_reward, self.reward, vehicles, own, acting)
        crashed = vehicles.crashed[:NUM_CAVS] & acting
        standing = jnp.any(acting & ~crashed)
        step = state.step + 1
        terminated = ~standing if self.continue_after_crash else jnp.any(crashed)
        state = state.replace(vehicles=vehicles, step=step, tally=self._count(state.tally, before, vehicles, own, acting))
        return state, Outcome(reward, terminated, (step >= env_params.duration) & ~terminated)

    def observe(self, state: MergeState, env_params: MergeParams) -> View:
        vehicles = state.vehicles
        alive = self._present(vehicles)
        merged = state.on_ramp & vehicles.alive[:NUM_CAVS] & ~vehicles.crashed[:NUM_CAVS]
        merged = merged & road.contains(road.segments(road.BC0, road.CD), vehicles.lane[:NUM_CAVS])
        seconds = state.step * DECISION_TIME
        return View(
            obs=observation(vehicles, alive),
            action_mask=action_mask(vehicles, alive, env_params),
            alive=alive,
            metrics=rewards.metrics(state.tally, jnp.sum(merged), seconds),
        )

    def global_state(self, state: MergeState, env_params: MergeParams) -> jax.Array:
        vehicles = state.vehicles
        features = jnp.stack([jnp.ones_like(vehicles.x), is_cav().astype(vehicles.x.dtype), *scaled(vehicles), vehicles.heading])
        return jnp.where(vehicles.alive, features, 0.0).T.reshape(-1)

    def scene(self, state: MergeState, env_params: MergeParams) -> Scene:
        return merge_scene.draw(state.vehicles, is_cav(), state.step * DECISION_TIME)

    @property
    def legend(self) -> tuple[tuple[str, Colour], ...]:
        return merge_scene.LEGEND

    def _present(self, vehicles: Vehicles) -> jax.Array:
        """[6] bool: the CAVs that are agents."""
        alive = vehicles.alive[:NUM_CAVS]
        return alive & ~vehicles.crashed[:NUM_CAVS] if self.continue_after_crash else alive

    def _drive(self, vehicles: Vehicles, action: jax.Array, env_params: MergeParams) -> Vehicles:
        """Applies the CAVs' decisions and advances the traffic by one decision interval."""
        human = ~is_cav() | jnp.asarray(env_params.cavs_drive_as_humans, bool)
        vehicles = command(vehicles, action, human, env_params)
        drivers = traffic.drivers_of(env_params.drivers, vehicles.driver)

        def substep(moving: Vehicles, _: None) -> tuple[Vehicles, None]:
            return traffic.substep(moving, drivers, human, self._physics), None

        moved, _ = jax.lax.scan(substep, vehicles, length=SUBSTEPS)
        return moved

    def _count(self, tally: Tally, before: Vehicles, after: Vehicles, own: rewards.Neighbours, acting: jax.Array) -> Tally:
        """Adds one decision to the figures of the episode."""
        crossed = after.alive & (before.x <= road.OBSTACLE_X) & (after.x > road.OBSTACLE_X)
        newly_crashed = after.crashed[:NUM_CAVS] & ~before.crashed[:NUM_CAVS] & acting
        ttc = jnp.where(acting, rewards.time_to_collision(after, own), rewards.TTC_CAP)
        return tally.replace(
            cavs_crashed=tally.cavs_crashed + jnp.sum(newly_crashed),
            decisions=tally.decisions + jnp.sum(acting),
            speed_sum=tally.speed_sum + jnp.sum(jnp.where(acting, after.speed[:NUM_CAVS], 0.0)),
            crossings=tally.crossings + jnp.sum(crossed),
            min_ttc=jnp.minimum(tally.min_ttc, jnp.min(ttc)),
        )


def is_cav() -> jax.Array:
    """[12] bool: the slots of CAVs."""
    return jnp.arange(NUM_VEHICLES) < NUM_CAVS


def scaled(vehicles: Vehicles) -> tuple[jax.Array, ...]:
    """x, y, vx, vy as observed, [12] each."""
    vx, vy = vehicles.speed * jnp.cos(vehicles.heading), vehicles.speed * jnp.sin(vehicles.heading)
    return vehicles.x / POSITION_SCALE, vehicles.y / LATERAL_SCALE, vx / SPEED_SCALE, vy / SPEED_SCALE


def spawn(key: jax.Array, env_params: MergeParams) -> tuple[Vehicles, jax.Array]:
    """Vehicles at the start of an episode, and [6] bool, which CAVs are on the ramp.

    Half of the CAVs (rounded down) and half of the human drivers start on the through lane, the others on the ramp, in slots
    40 m apart drawn without replacement.
    """
    draws = jax.random.uniform(key, (2 + 2 * len(MAIN_SLOTS) + 4 * NUM_VEHICLES,))
    counts, order, per_vehicle = jnp.split(draws, [2, 2 + 2 * len(MAIN_SLOTS)])
    place, pace, kind, free = per_vehicle.reshape(4, NUM_VEHICLES)
    cavs = env_params.cavs_min + jnp.floor(counts[0] * (env_params.cavs_max - env_params.cavs_min + 1))
    hdvs = env_params.hdvs_min + jnp.floor(counts[1] * (env_params.hdvs_max - env_params.hdvs_min + 1))

    number = jnp.arange(NUM_VEHICLES) % NUM_CAVS
    count, main = jnp.where(is_cav(), cavs, hdvs), jnp.where(is_cav(), jnp.floor(cavs / 2), jnp.floor(hdvs / 2))
    ramp = number >= main
    taken = jnp.where(is_cav(), 0.0, jnp.where(ramp, cavs - jnp.floor(cavs / 2), jnp.floor(cavs / 2)))
    turn = taken + number - jnp.where(ramp, main, 0.0)
    rank = jnp.stack([ranks(row) for row in order.reshape(2, -1)])[ramp.astype(jnp.int32)]
    slots = jnp.where(ramp[:, None], jnp.array(RAMP_SLOTS), jnp.array(MAIN_SLOTS))
    x = jnp.sum(jnp.where(rank == turn[:, None], slots, 0.0), axis=1) + env_params.position_noise * (2 * place - 1)
    speed = env_params.spawn_speed_min + pace * (env_params.spawn_speed_max - env_params.spawn_speed_min)

    shares = jnp.cumsum(jnp.asarray(env_params.driver_shares))
    driver = jnp.sum(kind[:, None] * shares[-1] >= shares[None, :-1], axis=1).astype(jnp.int32)
    driver = jnp.where(is_cav(), 0, driver)
    alive = number < count

    slot, paired = jnp.arange(NUM_VEHICLES), jnp.asarray(env_params.linear_pair, bool)
    for member, (pair_x, on_ramp) in enumerate(zip(PAIR_X, (True, False), strict=True)):
        chosen = paired & (slot == NUM_VEHICLES - len(PAIR_X) + member)
        alive, ramp = alive | chosen, jnp.where(chosen, on_ramp, ramp)
        x = jnp.where(chosen, pair_x + env_params.position_noise * (2 * place - 1), x)
        driver = jnp.where(chosen, traffic.DRIVERS.index("linear_aggressive") + member, driver)
    return settle(x, speed, ramp, driver, free, alive, env_params), ramp[:NUM_CAVS]


def ranks(values: jax.Array) -> jax.Array:
    """Place of each value in ascending order, [K] int32; a random permutation when the values are random."""
    index = jnp.arange(values.shape[0])
    earlier = index[None, :] < index[:, None]
    below = (values[None, :] < values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
    return jnp.sum(below, axis=1)


def settle(
    x: jax.Array,
    speed: jax.Array,
    ramp: jax.Array,
    driver: jax.Array,
    free: jax.Array,
    alive: jax.Array,
    env_params: MergeParams,
) -> Vehicles:
    """Vehicles at rest in the middle of their lane's beginning, [12] each; ``free`` in [0, 1) draws their exponents."""
    y = jnp.where(ramp, road.RAMP_Y, road.THROUGH_Y).astype(x.dtype)
    lane = jnp.where(ramp, road.JK, road.AB).astype(jnp.int32)
    humans = ~is_cav() | jnp.asarray(env_params.cavs_drive_as_humans, bool)
    table = traffic.drivers_of(env_params.drivers, driver)
    phase = (x + y) * jnp.pi
    return Vehicles(
        x=jnp.where(alive, x, 0.0),
        y=jnp.where(alive, y, 0.0),
        heading=jnp.zeros_like(x),
        speed=jnp.where(alive, speed, 0.0),
        lane=lane,
        target_lane=lane,
        target_speed=jnp.where(humans, speed, env_params.cav_target_speed),
        timer=phase - table.delay * jnp.floor(phase / table.delay),
        crashed=jnp.zeros(x.shape, bool),
        alive=alive,
        driver=driver,
        exponent=table.exponent_low + free * (table.exponent_high - table.exponent_low),
    )


def command(vehicles: Vehicles, action: jax.Array, human: jax.Array, env_params: MergeParams) -> Vehicles:
    """The CAVs' new targets from their decisions ([6] int); the human drivers' are left alone."""
    action = jnp.concatenate([action, jnp.full(NUM_VEHICLES - NUM_CAVS, IDLE, action.dtype)])
    target_lane = road.follow(vehicles.x, vehicles.target_lane)
    left = (action == LEFT) & (target_lane == road.BC1) & road.through_reachable(vehicles.x, vehicles.y)
    level = nearest_level(vehicles.speed, env_params)
    level = jnp.clip(level + (action == FASTER) - (action == SLOWER), 0, env_params.speed_levels - 1)
    chosen = env_params.speed_lowest + level * env_params.speed_interval
    changes = ((action == FASTER) | (action == SLOWER)) & ~human
    return vehicles.replace(
        target_lane=jnp.where(left & ~human, road.BC0, target_lane),
        target_speed=jnp.where(changes, chosen, vehicles.target_speed),
    )


def nearest_level(speed: jax.Array, env_params: MergeParams) -> jax.Array:
    """The number of the target speed nearest to ``speed``, halves to even, as a float."""
    level = jnp.round((speed - env_params.speed_lowest) / env_params.speed_interval)
    return jnp.clip(level, 0, env_params.speed_levels - 1)


def action_mask(vehicles: Vehicles, alive: jax.Array, env_params: MergeParams) -> jax.Array:
    """[6, 5] bool: left from the merging lane only, faster and slower within the target speeds; absent CAVs can only idle."""
    x, y, lane, target = (leaf[:NUM_CAVS] for leaf in (vehicles.x, vehicles.y, vehicles.lane, vehicles.target_speed))
    level = nearest_level(target, env_params)
    left = alive & (lane == road.BC1) & road.through_reachable(x, y)
    faster, slower = alive & (level < env_params.speed_levels - 1), alive & (level > 0)
    return jnp.stack([left, jnp.ones_like(left), jnp.zeros_like(left), faster, slower], axis=1)


def observation(vehicles: Vehicles, alive: jax.Array) -> jax.Array:
    """[6, 25]: see ``Merge``. Neighbours are picked one by one, nearest first."""
    features = jnp.stack(scaled(vehicles))
    dx = jnp.abs(vehicles.x[None, :] - vehicles.x[:NUM_CAVS, None])
    dy = vehicles.y[None, :] - vehicles.y[:NUM_CAVS, None]
    near = (dx**2 + dy**2 < PERCEPTION**2) & vehicles.alive & ~jnp.eye(NUM_CAVS, NUM_VEHICLES, dtype=bool)
    distance = jnp.where(near, dx, jnp.inf)
    own = features[:, :NUM_CAVS]
    rows = [jnp.concatenate([jnp.ones_like(own[:1]), own])]
    slot = jnp.arange(NUM_VEHICLES)
    for _ in range(OBSERVED):
        least = jnp.min(distance, axis=1, keepdims=True)
        first = jnp.min(jnp.where(distance == least, slot, NUM_VEHICLES), axis=1, keepdims=True)
        chosen, present = slot == first, jnp.isfinite(least[:, 0])
        seen = jnp.sum(jnp.where(chosen, features[:, None, :], 0.0), axis=2) - own
        rows.append(jnp.where(present, jnp.concatenate([jnp.ones_like(own[:1]), seen]), 0.0))
        distance = jnp.where(chosen, jnp.inf, distance)
    stacked = jnp.where(alive, jnp.concatenate(rows), 0.0)
    return stacked.T
