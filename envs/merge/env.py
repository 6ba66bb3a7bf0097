"""``merge``: connected vehicles learn to merge from a ramp into mixed traffic.

Agents are the connected autonomous vehicles ("CAVs"); the other vehicles are driven by car-following and lane-change models.
The task is that of MARL_CAVs (Chen et al., "Deep Multi-agent Reinforcement Learning for Highway On-Ramp Merging in Mixed
Traffic", 2023), with the driver mixes of iPLAN (Wu et al., 2023) and MAPPO-PIS (2024).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.fields import option
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, Part, available
from marljax.core.types import Outcome, View
from marljax.envs.merge import reward as rewards
from marljax.envs.merge import road, safety, traffic
from marljax.envs.merge import scene as merge_scene
from marljax.envs.merge.actions import FASTER, IDLE, LEFT, NUM_ACTIONS, RIGHT, SLOWER, action_mask, command
from marljax.envs.merge.params import (
    CRASH_PENALTY,
    DENSITIES,
    MAIN_SLOTS,
    MIXES,
    NUM_CAVS,
    NUM_VEHICLES,
    PHYSICS,
    RAMP_SLOTS,
    REWARDS,
    MergeParams,
    check_consistency,
    physics_of,
    preset_params,
)
from marljax.envs.merge.reward import Tally
from marljax.envs.merge.spawn import flow, is_cav, spawn
from marljax.envs.merge.traffic import Physics, Vehicles
from marljax.errors import unknown

__all__ = [
    "FASTER",
    "IDLE",
    "LEFT",
    "MAIN_SLOTS",
    "NUM_CAVS",
    "NUM_VEHICLES",
    "RAMP_SLOTS",
    "RIGHT",
    "SLOWER",
    "Merge",
    "MergeParams",
    "MergeState",
]

DECISION_TIME = traffic.SUBSTEPS * traffic.TIME_STEP  # s
OBSERVED = 4  # neighbours in an observation
PERCEPTION = 180.0  # m
POSITION_SCALE, LATERAL_SCALE, SPEED_SCALE = 150.0, 12.0, 45.0


class MergeState(struct.PyTreeNode):
    """Everything that an episode of ``merge`` consists of."""

    vehicles: Vehicles  # [12] each, CAVs in slots 0–5
    on_ramp: jax.Array  # [6] bool: this CAV entered on the ramp
    step: jax.Array  # int32 decisions taken
    tally: Tally


@dataclasses.dataclass(frozen=True)
class Merge(Environment):
    """On-ramp merging in mixed traffic: six CAV slots, six slots for human-driven vehicles.

    With ``physics="marl_cavs"`` the physics stops in the sub-step in which an episode ends: that of the crash, or the first of
    the last decision.

    Actions, 5 per second: 0 left, 1 idle, 2 right (never available), 3 faster, 4 slower; the last two set the target speed
    one level above or below the level nearest to the present speed. Physics runs at 15 Hz. An episode ends when a CAV
    crashes, or is cut off after 100 decisions.

    Observation of a CAV, 25 numbers, rows of 5; an absent neighbour's row is 0:

    ===== ====================================== ===========================================
    row   whose                                  columns
    ===== ====================================== ===========================================
    0     its own                                1, x / 150, y / 12, vx / 45, vy / 45
    1–4   vehicles within 180 m, nearest         1, and the same four, as differences from
          in |Δx| first, behind ones included    the own
    ===== ====================================== ===========================================

    With ``intents`` each of the four neighbours adds x / 150 and y / 12 of its intended place after 1 … ``horizon``
    decisions, minus the own present place; 0 where the neighbour is not a CAV. A CAV's intended course keeps its target lane
    and speed.

    Global state: 12 × (present, is CAV, x, y, vx, vy, heading), scaled alike. Metrics: see ``merge_reward.metrics``.
    """

    density: str = option("hard", choices=DENSITIES, preset=True, help="number of vehicles, as in MARL_CAVs or MAPPO-PIS (pis_…)")
    drivers: str = option("homogeneous", choices=MIXES, preset=True, help="mix of human drivers: iPLAN's types, or linear")
    physics: str = option("marl_cavs", choices=PHYSICS, help="MARL_CAVs' simulator, or highway-env 1.12.1")
    connected_lanes: bool = option(True, help="drivers see across the joins of segments")
    reward: str = option("regional", choices=REWARDS, help="how rewards are shared among CAVs")
    intents: bool = option(False, help="observations hold the intended courses of neighbouring CAVs (MAPPO-PIS)")
    safety: bool = option(False, help="a supervisor replaces decisions that it predicts to end in a collision")
    horizon: int = option(5, low=1, high=20, help="decisions that intents and supervisor look ahead")
    continue_after_crash: bool = option(False, help="crashed CAVs leave and their wrecks stay; the episode ends when all crashed")
    open_inflow: bool = option(False, help="vehicles leave at the road's end, others enter at both entries")

    version: ClassVar[str] = "2"  # 2: linear drivers steer linearly; with physics=marl_cavs, ends within a decision
    presets: ClassVar[tuple[str, ...]] = tuple(DENSITIES)

    @property
    def num_agents(self) -> int:
        return NUM_CAVS

    @property
    def action_space(self) -> Discrete:
        return Discrete(NUM_ACTIONS)

    @property
    def observation_space(self) -> Box:
        return Box((5 * (1 + OBSERVED) + (2 * self.horizon * OBSERVED if self.intents else 0),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        courses = (Part("neighbours", OBSERVED, 2 * self.horizon),) if self.intents else ()
        return (Part("own", 1, 5), Part("neighbours", OBSERVED, 5), *courses)

    @property
    def noop(self) -> int:
        return IDLE

    @property
    def default_params(self) -> MergeParams:
        return self.preset_params(self.density)

    def preset_params(self, preset: str) -> MergeParams:
        """The numbers of another density, with this environment's drivers and physics."""
        if preset not in DENSITIES:
            raise unknown("density", preset, DENSITIES)
        return preset_params(preset, self.drivers, self.physics)

    def check_params(self, env_params: MergeParams) -> None:
        super().check_params(env_params)
        check_consistency(env_params)

    @property
    def _rules(self) -> Physics:
        return physics_of(self.physics, self.connected_lanes)

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
            skipped=zero,
            own_return=zero,
        )
        return MergeState(vehicles, on_ramp, jnp.zeros((), jnp.int32), tally)

    def transition(
        self, key: jax.Array, state: MergeState, action: jax.Array, env_params: MergeParams
    ) -> tuple[MergeState, Outcome]:
        key_safety, key_flow = jax.random.split(key)
        before = state.vehicles
        acting = self._present(before)
        mask = action_mask(before, acting, env_params)
        action = jnp.where(available(mask, action), action, IDLE)
        decided = self._supervise(key_safety, before, action, mask, env_params)
        last = state.step + 1 >= env_params.duration
        vehicles, skipped = self._drive(before, decided, acting, last, env_params)

        own = rewards.neighbours(vehicles, vehicles.lane[:NUM_CAVS], NUM_CAVS)
        own_reward = rewards.local_reward(vehicles, own, env_params)
        reward = rewards.share(own_reward, self.reward, vehicles, own, acting)
        terminated = self._over(vehicles, acting)
        published = own_reward + (env_params.crash_penalty - CRASH_PENALTY) * vehicles.crashed[:NUM_CAVS]
        tally = rewards.count(state.tally, before, vehicles, own, published, acting, decided != action)
        state = state.replace(vehicles=vehicles, step=state.step + 1, tally=tally.replace(skipped=skipped))
        if self.open_inflow:
            state = self._flow(key_flow, state, ~before.alive, env_params)
        return state, Outcome(reward, terminated, last & ~terminated)

    def observe(self, state: MergeState, env_params: MergeParams) -> View:
        vehicles = state.vehicles
        alive = self._present(vehicles)
        obs = observation(vehicles, alive, safety.intents(vehicles, self._rules, self.horizon) if self.intents else None)
        return View(
            obs=obs,
            action_mask=action_mask(vehicles, alive, env_params),
            alive=alive,
            metrics=rewards.metrics(state.tally, jnp.sum(merged(state)), self._seconds(state)),
        )

    def global_state(self, state: MergeState, env_params: MergeParams) -> jax.Array:
        vehicles = state.vehicles
        features = jnp.stack([jnp.ones_like(vehicles.x), is_cav().astype(vehicles.x.dtype), *scaled(vehicles), vehicles.heading])
        return jnp.where(vehicles.alive, features, 0.0).T.reshape(-1)

    def scene(self, state: MergeState, env_params: MergeParams) -> Scene:
        end = road.ROAD_END if self.open_inflow else merge_scene.FARTHEST
        counted = merge_scene.count(state.vehicles, merged(state), state.tally.cavs, end)
        return merge_scene.draw(state.vehicles, is_cav(), counted, end, self._seconds(state))

    @property
    def display(self) -> Display:
        return Display(
            metrics=("return", "crash", "crashed_cavs", "speed", "throughput", "merged"),
            units=dict.fromkeys(("crash", "crashed_cavs", "merged", "intervened"), "%")
            | {"speed": "m/s", "throughput": "1/s", "min_ttc": "s", "time": "s", "distance": "m"},
            legend=merge_scene.LEGEND,
        )

    def _present(self, vehicles: Vehicles) -> jax.Array:
        """[6] bool: the CAVs that are agents."""
        alive = vehicles.alive[:NUM_CAVS]
        return alive & ~vehicles.crashed[:NUM_CAVS] if self.continue_after_crash else alive

    def _over(self, vehicles: Vehicles, acting: jax.Array) -> jax.Array:
        """Whether crashes end the episode, of the CAVs that were ``acting`` ([6] bool) when the decision began."""
        crashed = vehicles.crashed[:NUM_CAVS] & acting
        if self.continue_after_crash:
            return jnp.any(acting) & ~jnp.any(acting & ~crashed)
        return jnp.any(crashed)

    def _seconds(self, state: MergeState) -> jax.Array:
        """Since the episode began."""
        seconds = state.step * DECISION_TIME
        return seconds - state.tally.skipped * traffic.TIME_STEP if self._rules.stops_at_end else seconds

    def _supervise(
        self, key: jax.Array, vehicles: Vehicles, action: jax.Array, mask: jax.Array, env_params: MergeParams
    ) -> jax.Array:
        """[6] the decisions to take."""
        if not self.safety:
            return action
        drivers, human = traffic.drivers_of(env_params.drivers, vehicles.driver), humans(env_params)
        return safety.supervise(key, vehicles, action, mask, drivers, human, self._rules, env_params, self.horizon)

    def _drive(
        self, vehicles: Vehicles, action: jax.Array, acting: jax.Array, last: jax.Array, env_params: MergeParams
    ) -> tuple[Vehicles, jax.Array]:
        """Applies the CAVs' decisions and advances the traffic by one decision interval.

        Where the rules say so, nothing moves any more once the episode is over: after the sub-step of a crash that ends it, and
        after the first sub-step of the ``last`` decision.

        Returns:
            The vehicles, and how many sub-steps were left out.
        """
        human = humans(env_params)
        action = jnp.concatenate([action, jnp.full(NUM_VEHICLES - NUM_CAVS, IDLE, action.dtype)])
        commanded = command(vehicles, action, env_params)
        vehicles = jax.tree.map(lambda own, new: jnp.where(human, own, new), vehicles, commanded)
        drivers = traffic.drivers_of(env_params.drivers, vehicles.driver)

        def substep(moving: Vehicles) -> Vehicles:
            return traffic.substep(moving, drivers, human, self._rules)

        if not self._rules.stops_at_end:
            vehicles = jax.lax.scan(lambda moving, _: (substep(moving), None), vehicles, length=traffic.SUBSTEPS)[0]
            return vehicles, jnp.zeros((), vehicles.x.dtype)

        # A sub-step too many is taken back when the next begins: at its own end, XLA fuses it and a step takes six times as long.
        def resume(before: Vehicles, after: Vehicles, counts: jax.Array) -> tuple[Vehicles, jax.Array]:
            over = counts & (last | self._over(before, acting))
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), before, after), over

        def body(carry: tuple[Vehicles, Vehicles], number: jax.Array) -> tuple[tuple[Vehicles, Vehicles], jax.Array]:
            moving, over = resume(*carry, number > 1)
            return (moving, substep(moving)), over

        carry, taken_back = jax.lax.scan(body, (vehicles, vehicles), jnp.arange(traffic.SUBSTEPS))
        vehicles, over = resume(*carry, jnp.array(True))
        return vehicles, (jnp.sum(taken_back) + over).astype(vehicles.x.dtype)

    def _flow(self, key: jax.Array, state: MergeState, free: jax.Array, env_params: MergeParams) -> MergeState:
        """Lets vehicles leave and come in, and keeps the count of CAVs."""
        vehicles, entered, left = flow(key, state.vehicles, free, env_params)
        entered, left = entered[:NUM_CAVS], left[:NUM_CAVS]
        on_ramp = jnp.where(entered, vehicles.lane[:NUM_CAVS] == road.JK, state.on_ramp)
        tally = state.tally.replace(
            cavs=state.tally.cavs + jnp.sum(entered),
            ramp_cavs=state.tally.ramp_cavs + jnp.sum(entered & on_ramp),
            ramp_merged=state.tally.ramp_merged + jnp.sum(left & merged(state)),
        )
        return state.replace(vehicles=vehicles, on_ramp=on_ramp, tally=tally)


def humans(env_params: MergeParams) -> jax.Array:
    """[12] bool: the vehicles that car-following and lane-change models drive."""
    return ~is_cav() | jnp.asarray(env_params.cavs_drive_as_humans, bool)


def merged(state: MergeState) -> jax.Array:
    """[6] bool: CAVs that entered on the ramp and drive on the through lane now."""
    lane, alive, crashed = (leaf[:NUM_CAVS] for leaf in (state.vehicles.lane, state.vehicles.alive, state.vehicles.crashed))
    return state.on_ramp & alive & ~crashed & road.contains(road.segments(road.BC0, road.CD), lane)


def scaled(vehicles: Vehicles) -> tuple[jax.Array, ...]:
    """x, y, vx, vy as observed, [12] each."""
    vx, vy = vehicles.speed * jnp.cos(vehicles.heading), vehicles.speed * jnp.sin(vehicles.heading)
    return vehicles.x / POSITION_SCALE, vehicles.y / LATERAL_SCALE, vx / SPEED_SCALE, vy / SPEED_SCALE


def observation(vehicles: Vehicles, alive: jax.Array, intents: tuple[jax.Array, jax.Array] | None) -> jax.Array:
    """[6, O]: see ``Merge``. Neighbours are picked one by one, nearest first.

    Args:
        vehicles: [12].
        alive: [6] bool, CAVs that observe; the others see 0.
        intents: x and y of the CAVs' intended courses, [horizon, 6] each, or None.
    """
    features = jnp.stack(scaled(vehicles))
    own = features[:, :NUM_CAVS]
    dx = jnp.abs(vehicles.x[None, :] - vehicles.x[:NUM_CAVS, None])
    dy = vehicles.y[None, :] - vehicles.y[:NUM_CAVS, None]
    near = (dx**2 + dy**2 < PERCEPTION**2) & vehicles.alive & ~jnp.eye(NUM_CAVS, NUM_VEHICLES, dtype=bool)
    distance = jnp.where(near, dx, jnp.inf)
    ones, slot = jnp.ones_like(own[:1]), jnp.arange(NUM_VEHICLES)
    rows, courses = [ones, own], []
    for _ in range(OBSERVED):
        least = jnp.min(distance, axis=1, keepdims=True)
        first = jnp.min(jnp.where(distance == least, slot, NUM_VEHICLES), axis=1, keepdims=True)
        chosen, present = slot == first, jnp.isfinite(least[:, 0])
        seen = jnp.sum(jnp.where(chosen, features[:, None, :], 0.0), axis=2) - own
        rows.append(jnp.where(present, jnp.concatenate([ones, seen]), 0.0))
        if intents is not None:
            courses.append(intended(chosen & present[:, None], intents, own))
        distance = jnp.where(chosen, jnp.inf, distance)
    return jnp.where(alive, jnp.concatenate(rows + courses), 0.0).T


def intended(chosen: jax.Array, intents: tuple[jax.Array, jax.Array], own: jax.Array) -> jax.Array:
    """[2·horizon, 6]: the course of the chosen neighbour ([6, 12] one-hot) from each CAV's place; 0 unless it is a CAV."""
    chosen = chosen[:, :NUM_CAVS]
    courses = jnp.stack([intents[0] / POSITION_SCALE, intents[1] / LATERAL_SCALE], axis=1)  # [horizon, 2, 6]
    seen = jnp.sum(jnp.where(chosen, courses[:, :, None, :] - own[:2, :, None], 0.0), axis=3)
    return seen.reshape(-1, NUM_CAVS)
