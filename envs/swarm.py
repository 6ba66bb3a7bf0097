"""``swarm``: quadrotors fly to goals without hitting one another, obstacles or walls.

The task is that of "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep Reinforcement Learning"
(Huang et al. 2023), with the dynamics of its simulator.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.draws import flat
from marljax.environment import Environment, Outcome, View
from marljax.envs import swarm_contacts as contacts
from marljax.envs import swarm_scenarios as scenarios
from marljax.envs.swarm_body import MOTORS, SUBSTEPS, Body, Quadrotor, Room, fly, level
from marljax.envs.swarm_contacts import Bounces, Downwash, Draws, Obstacles
from marljax.envs.swarm_scenarios import AMONG_OBSTACLES, OPEN, SCENARIOS, Goals, Ranges, goals_at
from marljax.errors import UserError, unknown
from marljax.spaces import Box

OWN, PER_NEIGHBOUR, FIELD = 19, 6, 9
WINDOW = 5  # steps over which the mean distance says that a drone has arrived
FARTHEST, FASTEST = 10.0, 6.0  # m and m/s, of what is seen of a neighbour
NORMALS = MOTORS + 9 + 3 * (2 * contacts.TRIES + 4)  # of a drone and control step: thrust, sensors, contacts
UNIFORMS = 6  # landing, then those of contacts
LAST = 100  # control steps whose distance to the goal is reported
SPACING = 0.1  # m between the points of the distance field


class RewardWeights(struct.PyTreeNode):
    """Of the costs of a control step; those of motion and place are per second of simulated time."""

    distance: Any = 1.0  # per m
    effort: Any = 0.05  # of the length of the action
    floor: Any = 1.0  # while on it
    upright: Any = 1.0  # how far the axis of thrust is from the vertical
    spin: Any = 0.1  # per rad/s
    collision: Any = 5.0  # per new contact of two drones
    near: Any = 10.0  # of two drones closer than two diameters
    obstacle: Any = 5.0  # per new contact with an obstacle


class SwarmParams(struct.PyTreeNode):
    """The numbers of ``swarm``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    drone: Quadrotor = dataclasses.field(default_factory=Quadrotor)
    room: Room = dataclasses.field(default_factory=Room)
    ranges: Ranges = dataclasses.field(default_factory=Ranges)
    bounces: Bounces = dataclasses.field(default_factory=Bounces)
    downwash: Downwash = dataclasses.field(default_factory=Downwash)
    weights: RewardWeights = dataclasses.field(default_factory=RewardWeights)
    mix: Any = dataclasses.field(default_factory=lambda: shares("static_same"))  # shares of the scenarios
    duration: Any = 1500  # control steps
    density: Any = 0.2  # share of the cells of 1 m in the middle with an obstacle
    obstacle_size: Any = 0.6  # m, diameter
    position_noise: Any = 0.005  # m, of the sensors
    velocity_noise: Any = 0.01  # m/s
    gyro_noise: Any = 1.75e-4  # rad/s
    spread: Any = 2.0  # m that a drone starts from the middle, either way
    grace: Any = 150  # control steps in which contacts do not count for the metrics
    arrived: Any = 1.0  # m from the goal
    collision_anneal: Any = 0.0  # share of a training run in which the costs of contacts grow from 0; 0: they stay what they are


def shares(*names: str) -> np.ndarray:
    """[len(SCENARIOS)] equal shares of these scenarios."""
    return np.array([name in names for name in SCENARIOS], np.float32) / len(names)


class Seen(struct.PyTreeNode):
    """What an episode's metrics are made of, [N] each."""

    recent: jax.Array  # [WINDOW, N] m to the goal in the last steps
    arrived: jax.Array  # bool
    collided: jax.Array  # bool: with a drone, after the first 1.5 s
    crashed: jax.Array  # bool: into an obstacle
    late: jax.Array  # m to the goal, summed over the last second


class SwarmState(struct.PyTreeNode):
    """Everything that an episode consists of."""

    body: Body
    touching: contacts.Contacts
    goals: Goals
    obstacles: Obstacles | None
    sensed: jax.Array  # [9, N] normal draws of the sensors
    seen: Seen
    step: jax.Array  # int32


PRESETS = {
    "same_goal": (8, 0, {}),
    "open": (8, 0, {"mix": OPEN}),
    "obstacles": (8, 16, {"mix": AMONG_OBSTACLES, "spread": 0.1, "arrived": 0.5}),
}


@dataclasses.dataclass(frozen=True)
class Swarm(Environment):
    """Every 10 ms each drone sets the thrust of its four motors; after 15 s the episode is cut off.

    Options:

    - ``preset``: ``same_goal`` (one goal for all, no obstacles), ``open`` (the nine scenarios without obstacles) or
      ``obstacles`` (both with; a fifth of the cells has one).
    - ``drones``, ``obstacles``: sizes of the arrays, N and M; 0 drones: the preset's, −1 obstacles: the preset's.
    - ``neighbours``: K that a drone sees, those that come closest soonest first.
    """

    preset: str = dataclasses.field(default="same_goal", compare=False)
    drones: int = 0  # N; 0: the preset's
    obstacles: int = -1  # M, the most there may be; -1: the preset's
    neighbours: int = 2  # K that a drone sees

    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    figures: ClassVar[tuple[str, ...]] = ("success", "return", "collision", "crash", "deadlock", "distance")
    units: ClassVar[Mapping[str, str]] = dict.fromkeys(("success", "collision", "crash", "deadlock"), "%") | {
        "distance": "m",
        "time": "s",
    }

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise unknown("preset of swarm", str(self.preset), PRESETS)
        object.__setattr__(self, "drones", self.drones or PRESETS[self.preset][0])
        object.__setattr__(self, "obstacles", PRESETS[self.preset][1] if self.obstacles == -1 else self.obstacles)
        if not 1 <= self.neighbours < self.drones:
            takes = f"with {self.drones} drones it takes 1 to {self.drones - 1}"
            raise UserError(f"neighbours={self.neighbours} of swarm is out of range; {takes}")

    @property
    def num_agents(self) -> int:
        return self.drones

    @property
    def action_space(self) -> Box:
        return Box((MOTORS,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((OWN + PER_NEIGHBOUR * self.neighbours + FIELD * (self.obstacles > 0),))

    @property
    def default_params(self) -> SwarmParams:
        return self.preset_params(self.preset)

    def preset_params(self, preset: str) -> SwarmParams:
        if preset not in PRESETS:
            raise unknown("preset of swarm", preset, PRESETS)
        numbers = dict(PRESETS[preset][2])
        if "mix" in numbers:
            numbers["mix"] = shares(*numbers["mix"])
        return SwarmParams(**numbers)

    def anneal(self, env_params: SwarmParams, progress: jax.Array) -> SwarmParams:
        share, weights = env_params.collision_anneal, env_params.weights
        grown = jnp.where(share > 0.0, jnp.clip(progress / jnp.maximum(share, 1e-6), 0.0, 1.0), 1.0)
        costs = {name: getattr(weights, name) * grown for name in ("collision", "near", "obstacle")}
        return env_params.replace(weights=weights.replace(**costs))

    def resumed(self, state: SwarmState, env_params: SwarmParams) -> SwarmState:
        seen = jax.tree.map(jnp.zeros_like, state.seen)
        return state.replace(seen=seen.replace(recent=jnp.full_like(seen.recent, jnp.inf)))

    def initial(self, key: jax.Array, env_params: SwarmParams) -> SwarmState:
        count = self.drones
        key_goals, key_obstacles, key_place, key_yaw, key_sensed = jax.random.split(key, 5)
        draws = jax.random.uniform(key_place, (3, count), minval=-1.0, maxval=1.0)
        density = env_params.density if self.obstacles else 0.0
        drawn = scenarios.draw_obstacles(key_obstacles, self.obstacles, density, env_params.obstacle_size, count)
        x, y, radius, start, free = drawn
        goals = scenarios.draw_goals(key_goals, env_params.mix, count, env_params.room, env_params.ranges, free)
        among = scenarios.is_any(goals.kind, *AMONG_OBSTACLES)
        middle = jnp.where(among, start, jnp.mean(goals_at(goals, jnp.zeros(())), axis=1, keepdims=True))
        place = middle + env_params.spread * draws
        place = place.at[2].set(jnp.maximum(place[2], 0.75))
        yaw = jax.random.uniform(key_yaw, (count,), minval=-jnp.pi, maxval=jnp.pi)
        no, never = jnp.zeros((count, count), bool), jnp.zeros(count, bool)
        zero = jnp.zeros(count)
        seen = Seen(jnp.full((WINDOW, count), jnp.inf, jnp.float32), never, never, never, zero)
        obstacles = Obstacles(x, y, radius) if self.obstacles else None
        sensed = flat(jax.random.normal, key_sensed, (9, count))
        touching = contacts.Contacts(no, never, never)
        return SwarmState(level(place, yaw), touching, goals, obstacles, sensed, seen, jnp.zeros((), jnp.int32))

    def transition(
        self, key: jax.Array, state: SwarmState, action: jax.Array, env_params: SwarmParams
    ) -> tuple[SwarmState, Outcome]:
        key_normal, key_uniform = jax.random.split(key)
        normal = flat(jax.random.normal, key_normal, (NORMALS, self.drones))
        uniform = flat(jax.random.uniform, key_uniform, (UNIFORMS, self.drones))
        return self._transition(normal, uniform, state, jnp.clip(action.T, -1.0, 1.0), env_params)

    def _transition(
        self, normal: jax.Array, uniform: jax.Array, state: SwarmState, action: jax.Array, env_params: SwarmParams
    ) -> tuple[SwarmState, Outcome]:
        thrust, sensed, rest = normal[:MOTORS], normal[MOTORS : MOTORS + 9], normal[MOTORS + 9 :]
        rest = rest.reshape(-1, 3, *rest.shape[1:])
        draws = Draws(rest[: contacts.TRIES], rest[contacts.TRIES : 2 * contacts.TRIES], rest[-4], rest[-3:], *uniform[1:])
        body = fly(state.body, 0.5 * (action + 1.0), thrust, uniform[0], env_params.drone, env_params.room)
        body, touching, fresh = self._meet(body, state, draws, env_params)
        time = (state.step + 1) * SUBSTEPS * env_params.drone.timestep
        away = _length(body.position - goals_at(state.goals, time))
        reward = self._reward(body, action, away, fresh, env_params)
        seen = self._remember(state, away, fresh, env_params)
        after = state.replace(body=body, touching=touching, sensed=sensed, seen=seen, step=state.step + 1)
        return after, Outcome(reward, jnp.array(False), after.step >= env_params.duration)

    def _meet(
        self, body: Body, state: SwarmState, draws: Draws, env_params: SwarmParams
    ) -> tuple[Body, contacts.Contacts, "Fresh"]:
        """What drones, obstacles and walls do to the drones after a step of flight."""
        reach, before = 2.0 * env_params.drone.arm, state.touching
        apart = contacts.distances(body.position)
        drones = apart <= reach
        new = drones & ~before.drones
        chosen, meets = contacts.partners(new, apart)
        body = contacts.bounce(body, chosen, meets, draws, env_params.bounces)
        obstacle, crashed = before.obstacle, jnp.zeros_like(before.obstacle)
        if state.obstacles is not None:
            gap, normal = contacts.nearest_obstacle(body.position, state.obstacles)
            obstacle = gap <= env_params.drone.arm
            crashed = obstacle & ~before.obstacle
            body = contacts.off_obstacle(body, normal, crashed, draws, env_params.bounces)
            body = contacts.blow(body, draws, env_params.downwash)
        body, wall = contacts.off_wall(body, env_params.room, draws, env_params.bounces)
        close = jnp.sum(jnp.maximum(1.0 - apart / (2.0 * reach), 0.0), axis=1)
        fresh = Fresh(jnp.sum(new, axis=1).astype(close.dtype), crashed, close)
        return body, contacts.Contacts(drones, obstacle, wall), fresh

    def _reward(self, body: Body, action: jax.Array, away: jax.Array, fresh: "Fresh", env_params: SwarmParams) -> jax.Array:
        """[N] of a control step."""
        weights = env_params.weights
        lying = weights.floor + weights.upright
        flying = -weights.upright * body.rotation[2, 2]
        cost = weights.distance * away + weights.effort * _length(action) + weights.spin * _length(body.spin)
        cost += jnp.where(body.grounded, lying, flying)
        contact = weights.collision * fresh.collisions + weights.obstacle * fresh.crashed
        return -env_params.drone.timestep * cost - contact - 0.01 * weights.near * fresh.close

    def _remember(self, state: SwarmState, away: jax.Array, fresh: "Fresh", env_params: SwarmParams) -> Seen:
        seen, counts = state.seen, state.step >= env_params.grace
        recent = jnp.concatenate([seen.recent[1:], away[None]])
        late = state.step >= env_params.duration - LAST
        return Seen(
            recent=recent,
            arrived=seen.arrived | (jnp.mean(recent, axis=0) < env_params.arrived),
            collided=seen.collided | (counts & (fresh.collisions > 0)),
            crashed=seen.crashed | (counts & fresh.crashed),
            late=seen.late + jnp.where(late, away, 0.0),
        )

    def observe(self, state: SwarmState, env_params: SwarmParams) -> View:
        obs = self._observe(state, env_params)
        ones = jnp.ones((self.drones, 1), bool)
        return View(obs.T, ones, ones[:, 0], self._metrics(state, env_params))

    def _observe(self, state: SwarmState, env_params: SwarmParams) -> jax.Array:
        """[O, N]: see ``Swarm``."""
        body, noise = state.body, state.sensed
        place = body.position + env_params.position_noise * noise[:3]
        velocity = body.velocity + env_params.velocity_noise * noise[3:6]
        spin = body.spin + env_params.gyro_noise * noise[6:9]
        goal = goals_at(state.goals, state.step * SUBSTEPS * env_params.drone.timestep)
        rotation = body.rotation.reshape(9, *body.rotation.shape[2:])
        parts = [place - goal, velocity, rotation, spin, place[2:], self._neighbours(place, velocity)]
        if state.obstacles is not None:
            parts.append(field(place, state.obstacles))
        return jnp.concatenate(parts)

    def _neighbours(self, place: jax.Array, velocity: jax.Array) -> jax.Array:
        """[6 K, N] relative places and velocities of those that come closest soonest, the first first."""
        seen = jnp.concatenate([_between(place, FARTHEST), _between(velocity, FASTEST)])
        apart, faster = place[:, None] - place[:, :, None], velocity[:, None] - velocity[:, :, None]
        distance = _length(apart)
        rank = distance + jnp.sum(apart * faster, axis=0) / jnp.maximum(distance, 1e-6)
        own = np.eye(self.drones, dtype=bool).reshape(self.drones, self.drones, *[1] * (place.ndim - 2))
        rank = jnp.where(own, jnp.inf, rank)
        chosen = []
        for _ in range(self.neighbours):
            best = jnp.argmin(rank, axis=1)
            is_best = best[:, None] == jnp.arange(self.drones).reshape(1, -1, *[1] * (place.ndim - 2))
            chosen.append(jnp.sum(jnp.where(is_best, seen, 0.0), axis=2))
            rank = jnp.where(is_best, jnp.inf, rank)
        return jnp.concatenate(chosen)

    def _metrics(self, state: SwarmState, env_params: SwarmParams) -> dict[str, jax.Array]:
        seen = state.seen
        clean = ~(seen.collided | seen.crashed)
        rates = {
            "success": clean & seen.arrived,
            "collision": seen.collided,
            "crash": seen.crashed,
            "deadlock": clean & ~seen.arrived,
        }
        means = {name: jnp.mean(part, axis=0, dtype=seen.late.dtype) for name, part in rates.items()}
        return means | {"distance": jnp.mean(seen.late, axis=0) / LAST}

    def global_state(self, state: SwarmState, env_params: SwarmParams) -> jax.Array:
        body = state.body
        goal = goals_at(state.goals, state.step * SUBSTEPS * env_params.drone.timestep)
        rotation = body.rotation.reshape(9, -1)
        parts = jnp.concatenate([body.position, body.position - goal, body.velocity, rotation, body.spin])
        return jnp.append(parts.T.reshape(-1), state.step / env_params.duration)


class Fresh(struct.PyTreeNode):
    """What has just begun, [N] each."""

    collisions: jax.Array  # with how many drones
    crashed: jax.Array  # bool: into an obstacle
    close: jax.Array  # sum over other drones of how far they are inside of two diameters, as a share


def field(place: jax.Array, obstacles: Obstacles) -> jax.Array:
    """[9, N] m to the nearest obstacle, from a drone's place and those 0.1 m around it."""
    steps = (-SPACING, 0.0, SPACING)
    gaps = []
    for along in steps:
        for aside in steps:
            x, y = place[0][:, None] + along - obstacles.x, place[1][:, None] + aside - obstacles.y
            gap = jnp.sqrt(x * x + y * y) - obstacles.radius
            gaps.append(jnp.min(jnp.where(obstacles.radius > 0, gap, FARTHEST), axis=1))
    return jnp.stack(gaps)


def _between(part: jax.Array, most: float) -> jax.Array:
    """[3, N, N] what the second has less what the first has, cut off."""
    return jnp.clip(part[:, None] - part[:, :, None], -most, most)


def _length(vector: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(vector**2, axis=0))
