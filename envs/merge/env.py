"""``merge``: connected vehicles learn to merge from a ramp into mixed traffic.

Agents are the connected autonomous vehicles ("CAVs"); the other vehicles are driven by car-following and lane-change models.
The task is that of MARL_CAVs (Chen et al., "Deep Multi-agent Reinforcement Learning for Highway On-Ramp Merging in Mixed
Traffic", 2023), with the driver mixes of iPLAN (Wu et al., 2023) and MAPPO-PIS (2024).
"""

import dataclasses
from typing import ClassVar, NamedTuple

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
from marljax.envs.merge.actions import IDLE, NAMES, NUM_ACTIONS, action_mask, command
from marljax.envs.merge.params import (
    CRASH_PENALTY,
    DENSITIES,
    MIXES,
    NUM_CAVS,
    NUM_VEHICLES,
    PHYSICS,
    REWARD_KINDS,
    REWARDS,
    MergeParams,
    check_consistency,
    preset_params,
)
from marljax.envs.merge.reward import EpisodeStats
from marljax.envs.merge.spawn import flow, is_cav, is_human, spawn
from marljax.envs.merge.traffic import Physics, Vehicles, slots_like
from marljax.errors import unknown
from marljax.utils.batching import batch_last, expand_trailing_dims, loop, select

DECISION_TIME = traffic.SUBSTEPS * traffic.TIME_STEP  # s
OBSERVED = 4  # neighbours in an observation
PERCEPTION = 180.0  # m
POSITION_SCALE, LATERAL_SCALE, SPEED_SCALE = 150.0, 12.0, 45.0


class MergeState(struct.PyTreeNode):
    """State of an episode of ``merge``."""

    vehicles: Vehicles  # [12] each, CAVs in slots 0–5
    on_ramp: jax.Array  # [6] bool: this CAV entered on the ramp
    step: jax.Array  # int32 decisions taken
    stats: EpisodeStats


@dataclasses.dataclass(frozen=True)
class Merge(Environment):
    """On-ramp merging in mixed traffic: six slots for CAVs, six for human-driven vehicles.

    Actions, 5 per second: 0 left, 1 idle, 2 right (never available), 3 faster, 4 slower; the last two set the target speed
    one level above or below the level nearest to the current speed. Physics runs at 15 Hz. An episode terminates when a CAV
    crashes and is truncated after 100 decisions. With ``physics="marl_cavs"`` the physics stops in the sub-step in which the
    episode ends: that of the crash, or the first of the last decision.

    Observation of a CAV, 25 numbers in rows of 5; the row of an absent neighbour is 0:

    ===== ======================================== =========================================
    row   vehicle                                  columns
    ===== ======================================== =========================================
    0     the CAV itself                           1, x / 150, y / 12, vx / 45, vy / 45
    1–4   vehicles within 180 m, in order of |Δx|, 1, and the same four relative to the CAV
          in front or behind
    ===== ======================================== =========================================

    With ``intents`` each of the four neighbours adds x / 150 and y / 12 of its intended positions after 1 … ``horizon``
    decisions, relative to the observing CAV's current position; 0 if the neighbour is not a CAV. The intended course of a CAV
    keeps its target lane and speed.

    Global state: 12 × (present, is CAV, x, y, vx, vy, heading), with the same scales. Metrics: see ``reward.MEANINGS``.
    """

    density: str = option("hard", choices=DENSITIES, preset=True, help="number of vehicles, as in MARL_CAVs or MAPPO-PIS (pis_…)")
    drivers: str = option("homogeneous", choices=MIXES, preset=True, help="mix of human drivers: iPLAN's types, or linear")
    physics: str = option("marl_cavs", choices=PHYSICS, help="MARL_CAVs' simulator, or highway-env 1.12.1")
    connected_lanes: bool = option(True, help="drivers consider vehicles on the segments before and after theirs")
    reward: str = option("regional", choices=REWARDS, help="how rewards are shared among CAVs; what is shared: reward_kind")
    reward_kind: str = option("published", choices=REWARD_KINDS, help="MARL_CAVs' sum of terms, or progress along the road")
    intents: bool = option(False, help="observations hold the intended courses of neighbouring CAVs (MAPPO-PIS)")
    safety: bool = option(False, help="a supervisor replaces actions that it predicts to cause a collision")
    horizon: int = option(5, low=1, high=20, help="decisions that intents and supervisor predict ahead")
    continue_after_crash: bool = option(False, help="crashed CAVs become obstacles; the episode ends when all have crashed")
    open_inflow: bool = option(False, help="vehicles leave at the road's end and enter at both entries")

    version: ClassVar[str] = "2"  # 2: linear drivers steer linearly; with physics=marl_cavs, ends within a decision
    presets: ClassVar[tuple[str, ...]] = tuple(DENSITIES)
    instances_last: ClassVar[bool] = True

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
        row, ahead = ("present", "x", "y", "vx", "vy"), range(1, self.horizon + 1)
        intended = tuple(f"{axis} after {step}" for step in ahead for axis in "xy")
        courses = (Part("neighbours", OBSERVED, len(intended), columns=intended),) if self.intents else ()
        return (Part("own", 1, len(row), columns=row), Part("neighbours", OBSERVED, len(row), columns=row), *courses)

    @property
    def noop(self) -> int:
        return IDLE

    @property
    def default_params(self) -> MergeParams:
        return self.preset_params(self.density)

    def preset_params(self, preset: str) -> MergeParams:
        """Parameters of another density, with the drivers and physics of this environment."""
        if preset not in DENSITIES:
            raise unknown("density", preset, DENSITIES)
        return preset_params(preset, self.drivers, self.physics)

    def check_params(self, env_params: MergeParams) -> None:
        super().check_params(env_params)
        check_consistency(env_params)

    @property
    def _rules(self) -> Physics:
        return dataclasses.replace(PHYSICS[self.physics], connected_lanes=self.connected_lanes)

    def initial(self, key: jax.Array, env_params: MergeParams) -> MergeState:
        vehicles, on_ramp = spawn(key, env_params)
        cavs = jnp.sum(vehicles.alive[:NUM_CAVS]).astype(vehicles.x.dtype)
        zero = jnp.zeros_like(cavs)
        stats = EpisodeStats(*[zero] * len(dataclasses.fields(EpisodeStats))).replace(
            cavs=cavs,
            ramp_cavs=jnp.sum(on_ramp & vehicles.alive[:NUM_CAVS]).astype(zero.dtype),
            min_ttc=zero + rewards.TTC_CAP,
        )
        return MergeState(vehicles, on_ramp, jnp.zeros((), jnp.int32), stats)

    def transition(
        self, key: jax.Array, state: MergeState, action: jax.Array, env_params: MergeParams
    ) -> tuple[MergeState, Outcome]:
        key_safety, key_flow = jax.random.split(key)
        vehicles, free = state.vehicles, ~state.vehicles.alive
        mask = action_mask(vehicles, self._present(vehicles), env_params)
        action = decided = jnp.where(available(mask, action), action, IDLE)
        if self.safety:
            decided = safety.supervise(key_safety, vehicles, action, mask, self._rules, env_params, self.horizon)
        state, outcome = batch_last(self._decide)(state, decided, decided != action, env_params)
        if self.open_inflow:
            vehicles, entered, left = flow(key_flow, state.vehicles, free, env_params)
            entered, left = entered[:NUM_CAVS], left[:NUM_CAVS]
            on_ramp = jnp.where(entered, vehicles.lane[:NUM_CAVS] == road.JK, state.on_ramp)
            stats = state.stats.replace(
                cavs=state.stats.cavs + jnp.sum(entered),
                ramp_cavs=state.stats.ramp_cavs + jnp.sum(entered & on_ramp),
                ramp_merged=state.stats.ramp_merged + jnp.sum(left & merged(state)),
            )
            state = state.replace(vehicles=vehicles, on_ramp=on_ramp, stats=stats)
        return state, outcome

    def observe(self, state: MergeState, env_params: MergeParams) -> View:
        return batch_last(self._observe)(state, env_params)

    def global_state(self, state: MergeState, env_params: MergeParams) -> jax.Array:
        return batch_last(self._global_state)(state, env_params)

    def scene(self, state: MergeState, env_params: MergeParams) -> Scene:
        return merge_scene.draw(state.vehicles, merged(state), state.stats.cavs, not self.open_inflow, self._seconds(state))

    @property
    def display(self) -> Display:
        return Display(
            metrics=("return", "crash", "crashed_cavs", "speed", "throughput", "merged"),
            meanings=rewards.MEANINGS,
            lowest=("crash", "crashed_cavs", "intervened"),
            actions=NAMES,
            units=dict.fromkeys(("crash", "crashed_cavs", "merged", "intervened"), "%")
            | {"speed": "m/s", "throughput": "1/s", "min_ttc": "s", "time": "s", "distance": "m"},
            legend=merge_scene.LEGEND,
        )

    # --- under ``batch_last``: arrays may have trailing axes ------------------------------------------------------------

    def _decide(
        self, state: MergeState, action: jax.Array, replaced: jax.Array, env_params: MergeParams
    ) -> tuple[MergeState, Outcome]:
        """One decision of the CAVs: available actions [6]; ``replaced`` [6] bool, those that the supervisor chose."""
        before, acting = state.vehicles, self._present(state.vehicles)
        last = state.step + 1 >= env_params.duration
        vehicles, skipped = self._drive(before, action, acting, last, env_params)
        own = rewards.neighbours(vehicles, vehicles.lane[:NUM_CAVS])
        own_reward = published = rewards.local_reward(vehicles, own, env_params)
        if self.reward_kind == "progress":
            own_reward = rewards.progress_reward(before, vehicles, own, env_params)
        reward = rewards.share(own_reward, self.reward, vehicles, own, acting)
        terminated = self._over(vehicles, acting)
        published += (env_params.crash_penalty - CRASH_PENALTY) * vehicles.crashed[:NUM_CAVS]
        stats = rewards.update_stats(state.stats, before, vehicles, own, published, acting, replaced)
        state = state.replace(vehicles=vehicles, step=state.step + 1, stats=stats.replace(skipped=skipped))
        return state, Outcome(reward, terminated, last & ~terminated)

    def _observe(self, state: MergeState, env_params: MergeParams) -> View:
        vehicles = state.vehicles
        alive = self._present(vehicles)
        return View(
            obs=observation(vehicles, alive, safety.intents(vehicles, self._rules, self.horizon) if self.intents else None),
            action_mask=action_mask(vehicles, alive, env_params),
            alive=alive,
            metrics=rewards.metrics(state.stats, jnp.sum(merged(state), axis=0), self._seconds(state)),
        )

    def _global_state(self, state: MergeState, env_params: MergeParams) -> jax.Array:
        vehicles = state.vehicles
        cav = jnp.zeros_like(vehicles.x) + expand_trailing_dims(is_cav(), vehicles.x)
        features = jnp.stack([jnp.ones_like(vehicles.x), cav, *scaled(vehicles), vehicles.heading], axis=1)
        return jnp.where(vehicles.alive[:, None], features, 0.0).reshape(-1, *vehicles.x.shape[1:])

    def _present(self, vehicles: Vehicles) -> jax.Array:
        """[6] bool: the CAVs that are agents."""
        alive = vehicles.alive[:NUM_CAVS]
        return alive & ~vehicles.crashed[:NUM_CAVS] if self.continue_after_crash else alive

    def _over(self, vehicles: Vehicles, acting: jax.Array) -> jax.Array:
        """Whether crashes end the episode, among the CAVs that were ``acting`` ([6] bool) at the start of the decision."""
        crashed = vehicles.crashed[:NUM_CAVS] & acting
        if self.continue_after_crash:
            return jnp.any(acting, axis=0) & ~jnp.any(acting & ~crashed, axis=0)
        return jnp.any(crashed, axis=0)

    def _seconds(self, state: MergeState) -> jax.Array:
        """Time since the episode began."""
        seconds = state.step * DECISION_TIME
        return seconds - state.stats.skipped * traffic.TIME_STEP if self._rules.stops_at_end else seconds

    def _drive(
        self, vehicles: Vehicles, action: jax.Array, acting: jax.Array, last: jax.Array, env_params: MergeParams
    ) -> tuple[Vehicles, jax.Array]:
        """Applies the CAVs' actions and advances the traffic by one decision interval.

        With ``Physics.stops_at_end`` nothing moves after the end of the episode: the sub-step of the crash that ends it, or the
        first of the ``last`` decision.

        Returns:
            The vehicles, and the number of sub-steps skipped.
        """
        human = is_human(env_params, vehicles.x)
        idle = jnp.full((NUM_VEHICLES - NUM_CAVS, *action.shape[1:]), IDLE, action.dtype)
        vehicles = select(human, vehicles, command(vehicles, jnp.concatenate([action, idle]), env_params))
        drivers = traffic.drivers_of(env_params.drivers, vehicles.driver)

        # A sub-step after the end is undone when the next one starts. Undone right away, XLA would fuse the undoing into the
        # sub-step, and on a CPU a step would take one and a half times as long.
        def substep(index: jax.Array, carry: tuple[Vehicles, Vehicles, jax.Array, jax.Array]) -> tuple:
            before, after, over, skipped = carry
            vehicles = select(over, before, after)
            over = self._rules.stops_at_end & (index > 0) & (last | self._over(vehicles, acting))
            return vehicles, traffic.substep(vehicles, drivers, human, self._rules), over, skipped + over

        start = (vehicles, vehicles, jnp.zeros(vehicles.x.shape[1:], bool), jnp.zeros_like(vehicles.x[0]))
        before, after, over, skipped = loop(traffic.SUBSTEPS, substep, start)
        return select(over, before, after), skipped


def merged(state: MergeState) -> jax.Array:
    """[6] bool: CAVs that entered on the ramp and are on the through lane, not crashed."""
    lane, alive, crashed = (leaf[:NUM_CAVS] for leaf in (state.vehicles.lane, state.vehicles.alive, state.vehicles.crashed))
    return state.on_ramp & alive & ~crashed & road.contains(road.segments(road.BC0, road.CD), lane)


def scaled(vehicles: Vehicles) -> tuple[jax.Array, ...]:
    """x, y, vx, vy with the observation's scales, [12] each."""
    vx, vy = vehicles.speed * jnp.cos(vehicles.heading), vehicles.speed * jnp.sin(vehicles.heading)
    return vehicles.x / POSITION_SCALE, vehicles.y / LATERAL_SCALE, vx / SPEED_SCALE, vy / SPEED_SCALE


class Sighting(NamedTuple):
    """One of the nearest vehicles of each CAV."""

    distance: jax.Array  # [6] m, |Δx|; infinite if there is none
    slot: jax.Array  # [6] int32
    features: jax.Array  # [4, 6] x, y, vx, vy relative to the CAV, with the observation's scales


def observation(vehicles: Vehicles, alive: jax.Array, intents: tuple[jax.Array, jax.Array] | None) -> jax.Array:
    """[6, O]: see ``Merge``.

    Args:
        vehicles: [12].
        alive: [6] bool, CAVs that observe; the others get 0.
        intents: x and y of the CAVs' intended courses, [horizon, 6] each, or None.
    """
    x, y, slots = vehicles.x, vehicles.y, slots_like(vehicles.x)
    features = jnp.stack(scaled(vehicles))
    own = features[:, :NUM_CAVS]

    def compare(other: jax.Array, nearest: list[Sighting]) -> list[Sighting]:
        """Inserts a vehicle into the sorted list."""
        dx, dy = x[other] - x[:NUM_CAVS], y[other] - y[:NUM_CAVS]
        visible = (dx**2 + dy**2 < PERCEPTION**2) & vehicles.alive[other] & (slots[:NUM_CAVS] != other)
        slot = jnp.full(dx.shape, other, jnp.int32)
        new = Sighting(jnp.where(visible, jnp.abs(dx), jnp.inf), slot, features[:, other][:, None] - own)
        updated = []
        for old in nearest:
            closer = new.distance < old.distance
            updated.append(select(closer, new, old))
            new = select(closer, old, new)
        return updated

    far = jnp.full(own.shape[1:], jnp.inf, x.dtype)
    nobody = Sighting(far, jnp.zeros(far.shape, jnp.int32), jnp.zeros_like(own))
    nearest = loop(NUM_VEHICLES, compare, [nobody] * OBSERVED)
    ones = jnp.ones_like(own[:1])
    rows = [ones, own]
    for seen in nearest:
        rows.append(jnp.where(jnp.isfinite(seen.distance), jnp.concatenate([ones, seen.features]), 0.0))
    if intents is not None:
        courses = jnp.stack([intents[0] / POSITION_SCALE, intents[1] / LATERAL_SCALE], axis=1)  # [horizon, 2, 6]
        rows += [course_of(seen, courses, own[:2]) for seen in nearest]
    return jnp.swapaxes(jnp.where(alive, jnp.concatenate(rows), 0.0), 0, 1)


def course_of(seen: Sighting, courses: jax.Array, position: jax.Array) -> jax.Array:
    """[2·horizon, 6] intended course of a neighbour relative to the CAV; 0 if it is not a CAV.

    ``courses`` [horizon, 2, 6] are those of all CAVs, ``position`` [2, 6] the CAV's own.
    """

    def compare(other: jax.Array, course: jax.Array) -> jax.Array:
        chosen = (seen.slot == other) & jnp.isfinite(seen.distance)
        return jnp.where(chosen, courses[:, :, other][:, :, None] - position, course)

    course = loop(NUM_CAVS, compare, jnp.zeros_like(courses))
    return course.reshape(-1, *course.shape[2:])
