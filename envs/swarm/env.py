"""``swarm``: quadrotors, or point masses, fly to goals without hitting one another, obstacles or walls.

The task is that of "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep Reinforcement Learning"
(Huang et al. 2023), with the dynamics of its simulator.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import LIMITS, Display, Environment
from marljax.core.fields import option
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Part
from marljax.core.types import Outcome, View
from marljax.envs.swarm import contacts, point_mass, quadrotor, scenarios
from marljax.envs.swarm import scene as scenes
from marljax.envs.swarm import stats as statistics
from marljax.envs.swarm import view as views
from marljax.envs.swarm.contacts import Obstacles
from marljax.envs.swarm.params import PRESETS, SwarmParams, check_consistency, preset_params
from marljax.envs.swarm.point_mass import Point
from marljax.envs.swarm.quadrotor import MOTORS, Body, norm
from marljax.envs.swarm.scenarios import AMONG_OBSTACLES, CELLS, Goals
from marljax.envs.swarm.stats import EpisodeStats, StepEvents, Timing
from marljax.errors import UserError, unknown
from marljax.utils import random
from marljax.utils.batching import batch_last

DYNAMICS = {"quadrotor": 3, "point2d": 2, "point3d": 3}  # and their dimensions
TASKS = ("goals", "landmarks")
LOWEST_START = 0.75  # m above the floor
SENSORS = 9  # noisy readings per drone
MOTOR_STATES = ("hidden", "critic", "observed")


class SwarmState(struct.PyTreeNode):
    """Complete state of an episode."""

    body: Body | Point
    goal: jax.Array  # [3, N] m, current
    goals: Goals  # of the whole episode
    obstacles: Obstacles | None
    sensed: jax.Array  # [9, N] standard normal noise of the sensors
    actions: jax.Array | None  # [H · (4 or D), N] the last H, newest first; 0 before the first
    stats: EpisodeStats
    step: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Swarm(Environment):
    """N drones set the thrust of their motors every 10 ms (point masses: a force every 50 ms) for 15 s (coverage: 5 s).

    Actions: a quadrotor's are the thrusts of its motors from none (−1) to full (1), a point mass's the force along each axis.
    Point masses are double integrators.

    Explicit Euler steps (``integrator="euler"``, as in the reference simulator) add energy to a tumbling body: up to 100 % in 5 s
    at 11.5 rad/s without any torque. ``rk4`` conserves it.

    Observation of a drone, in m, m/s and rad/s, with the sensors' noise; D dimensions:

    =========== ================= ==========================================================================================
    part        width             columns
    =========== ================= ==========================================================================================
    own         19                quadrotor: position − goal, velocity, rotation (3 × 3, row-major), spin, height
    own         2 D               point mass: position − goal (task ``landmarks``: position), velocity
    own, cont.  4                 ``motors=observed``: square roots of the motors' thrusts, 0 to 1
    own, cont.  H × (4 or D)      ``history=H``: the drone's last H actions, newest first
    landmarks   (K + 1) × (D + 1) task ``landmarks``: relative position, m to the nearest other drone; nearest first
    neighbours  K × 2 D           relative position and velocity, clipped to ±10 m and ±6 m/s; least d + closing speed first
    field       9                 with obstacles: m to the nearest one, from 3 × 3 points 0.1 m apart around the drone
    =========== ================= ==========================================================================================

    Global state: of every drone its position, position − goal, velocity and, for quadrotors, rotation, spin and, unless they are
    ``hidden``, motors, all without noise; then x, y and radius of the obstacles (0 in empty slots), and the elapsed share of the
    episode. Metrics: see ``stats.meanings``.
    """

    preset: str = option(
        "static_same",
        choices=tuple(PRESETS),
        preset=True,
        help="a scenario; open (the nine without obstacles), obstacles (both with) or coverage",
    )
    drones: int = option(0, low=0, help="N; 0: the preset's")
    obstacles: int = option(-1, low=-1, high=CELLS**2 - 1, help="M, slots for obstacles; -1: the preset's")
    neighbours: int = option(-1, low=-1, help="K observed neighbours, those that come closest soonest; -1: the preset's")
    dynamics: str = option("", choices=("", *DYNAMICS), help="quadrotors or double integrators; empty: the preset's")
    task: str = option(
        "", choices=("", *TASKS), help="a goal for each drone, or landmarks to cover (point masses only); empty: the preset's"
    )
    limit: str = option("", choices=("", *LIMITS), help="whether episodes are truncated or end at the limit; empty: the preset's")
    history: int = option(0, low=0, help="H, number of a drone's own last actions in its observation")
    motors: str = option(
        "hidden",
        choices=MOTOR_STATES,
        help="who observes the state of a quadrotor's motors: nobody, mappo's critic in the global state, or drones as well",
    )
    integrator: str = option("euler", choices=quadrotor.INTEGRATORS, help="of a quadrotor's attitude and spin")

    version: ClassVar[str] = "2"  # 2: all random numbers of a start, and of a step, come from one draw
    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    instances_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        preset = PRESETS[self.preset]
        for name, unset in (("drones", 0), ("obstacles", -1), ("dynamics", ""), ("task", ""), ("limit", "")):
            if getattr(self, name) == unset:
                object.__setattr__(self, name, getattr(preset, name))
        if self.neighbours == -1:
            object.__setattr__(self, "neighbours", min(preset.neighbours, self.drones - 1))
        if self.neighbours >= self.drones:
            raise UserError(f"neighbours={self.neighbours} must be less than drones={self.drones}")
        if self.task == "landmarks" and self.dynamics == "quadrotor":
            raise UserError("task=landmarks is for point masses; give dynamics=point2d or dynamics=point3d")
        if self.motors != "hidden" and self.dynamics != "quadrotor":
            raise UserError(f"motors={self.motors} is for dynamics=quadrotor, point masses have none; leave it out")
        if self.integrator != "euler" and self.dynamics != "quadrotor":
            raise UserError(f"integrator={self.integrator} is for dynamics=quadrotor, point masses do not turn; leave it out")

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end"

    @property
    def num_agents(self) -> int:
        return self.drones

    @property
    def dimensions(self) -> int:
        """D of observations and actions; states have all three."""
        return DYNAMICS[self.dynamics]

    @property
    def action_space(self) -> Box:
        return Box((MOTORS if self.dynamics == "quadrotor" else self.dimensions,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((sum(part.count * part.width for part in self.obs_layout),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        axes = "xyz"[: self.dimensions]
        # Of the drone itself: from its goal; where landmarks are to be covered, its place in the room
        offset, velocity = tuple(axes), tuple(f"v{axis}" for axis in axes)
        own = (*offset, *velocity, *(views.ATTITUDE if self.dynamics == "quadrotor" else ()))
        own += views.MOTORS if self.motors == "observed" else ()
        actions = views.MOTORS if self.dynamics == "quadrotor" else axes
        ages = tuple(f"{age} step{'s' * (age > 1)} ago" for age in range(1, self.history + 1))
        own += tuple(f"{action}, {age}" for age in ages for action in actions)
        parts = [Part("own", 1, len(own), columns=own)]
        if self.task == "landmarks":
            parts.append(Part("landmarks", self.neighbours + 1, len(offset) + 1, columns=(*offset, "others' distance")))
        if self.neighbours:
            parts.append(Part("neighbours", self.neighbours, len(offset + velocity), columns=offset + velocity))
        if self.obstacles:
            parts.append(Part("field", 1, len(views.FIELD), columns=views.FIELD))
        return tuple(parts)

    @property
    def default_params(self) -> SwarmParams:
        return preset_params(self.preset, self.dynamics)

    def preset_params(self, preset: str) -> SwarmParams:
        """The parameters of another preset for this environment's dynamics."""
        if preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        return preset_params(preset, self.dynamics)

    def check_params(self, env_params: SwarmParams) -> None:
        super().check_params(env_params)
        check_consistency(env_params, self.obstacles, self.dynamics, self.task)

    def anneal(self, env_params: SwarmParams, progress: jax.Array) -> SwarmParams:
        """Contact costs grow from 0 over the first ``collision_anneal`` of a training run; some drones start near their goals."""
        share, weights = env_params.collision_anneal, env_params.weights
        grown = jnp.where(share > 0.0, jnp.clip(progress / jnp.maximum(share, 1e-6), 0.0, 1.0), 1.0)
        costs = {name: getattr(weights, name) * grown for name in ("collision", "near", "obstacle")}
        near = jnp.maximum(env_params.near_share, env_params.start_near)
        return env_params.replace(weights=weights.replace(**costs), near_share=near)

    def reset_episode_counters(self, state: SwarmState, env_params: SwarmParams) -> SwarmState:
        return state.replace(stats=statistics.initial_stats(self.drones))

    def initial(self, key: jax.Array, env_params: SwarmParams) -> SwarmState:
        drones, room = self.drones, env_params.room
        draws = scenarios.draw(key, drones, SENSORS)
        x, y, radius, start, free = scenarios.place_obstacles(draws, env_params, self.obstacles)
        goals = scenarios.choose_goals(draws, env_params, self.dimensions, free)
        goal = self._goal(goals, jnp.zeros(()))
        among = scenarios.is_any(goals.kind, *AMONG_OBSTACLES)
        middle = jnp.where(among, start, jnp.mean(goal, axis=1, keepdims=True))
        aside = scenarios.between(-1.0, 1.0, draws.position)
        near = draws.near < env_params.near_share
        position = jnp.where(near, goal + env_params.near_spread * aside, middle + env_params.spread * aside)
        low, high = jnp.array([-room.half, -room.half, LOWEST_START]), jnp.array([room.half, room.half, room.height])
        position = jnp.clip(position, low[:, None], high[:, None])
        position = position.at[2].set(0.0) if self.dimensions == 2 else position
        yaw = jnp.pi * scenarios.between(-1.0, 1.0, draws.yaw)
        return SwarmState(
            body=quadrotor.level(position, yaw) if self.dynamics == "quadrotor" else Point(position, jnp.zeros_like(position)),
            goal=goal,
            goals=goals,
            obstacles=Obstacles(x, y, jnp.where(among, radius, 0.0)) if self.obstacles else None,
            sensed=draws.sensed,
            actions=jnp.zeros((self.history * self.action_space.shape[0], drones)) if self.history else None,
            stats=statistics.initial_stats(drones),
            step=jnp.zeros((), jnp.int32),
        )

    def transition(
        self, key: jax.Array, state: SwarmState, action: jax.Array, env_params: SwarmParams
    ) -> tuple[SwarmState, Outcome]:
        key_draws, key_contacts = jax.random.split(key)
        noisy = (MOTORS + SENSORS) * self.drones
        numbers = random.named(key_draws, {"noise": (noisy,), "landing": (self.drones,)})
        thrust, sensed = jnp.split(random.normal(numbers["noise"]), [MOTORS * self.drones])
        draws = thrust, numbers["landing"], jax.random.key_data(key_contacts)
        step = state.step + 1
        goal = self._goal(state.goals, step * env_params.period)
        timing = statistics.timing(state.step, state.goals.kind, env_params)
        advance = batch_last(functools.partial(self._advance, jax.random.key_impl(key)))
        body, stats, reward = advance(draws, action.T, state.body, goal, state.obstacles, state.stats, timing, env_params)
        actions = state.actions
        if actions is not None:
            actions = jnp.concatenate([jnp.clip(action.T, -1.0, 1.0), actions])[: len(actions)]
        sensed = sensed.reshape(SENSORS, -1)
        after = state.replace(body=body, goal=goal, sensed=sensed, actions=actions, stats=stats, step=step)
        over, truncates = step >= env_params.duration, not self.limit_ends
        return after, Outcome(reward, over & (not truncates), over & truncates)

    def _goal(self, goals: Goals, time: jax.Array) -> jax.Array:
        """[3, N] m."""
        goal = scenarios.goals_at(goals, time)
        return goal.at[2].set(0.0) if self.dimensions == 2 else goal

    def _advance(
        self,
        impl: Any,
        draws: tuple[jax.Array, jax.Array, jax.Array],
        action: jax.Array,
        body: Any,
        goal: jax.Array,
        obstacles: Obstacles | None,
        stats: EpisodeStats,
        timing: Timing,
        env_params: SwarmParams,
    ) -> tuple[Body | Point, EpisodeStats, jax.Array]:
        """Body, statistics and reward [N] after an ``action`` [4 or D, N].

        The draws are the motors' noise, the headings after landing, and the data of the contacts' key, whose implementation is
        ``impl``.
        """
        noise, landing, key_data = draws
        action = jnp.clip(action, -1.0, 1.0)
        drone, room, before = env_params.drone, env_params.room, body.position
        if isinstance(body, Body):
            noise = noise.reshape(MOTORS, self.drones, *noise.shape[1:])
            body = quadrotor.step(body, 0.5 * (action + 1.0), noise, landing, drone, room, self.integrator)
        else:
            body = point_mass.step(body, action, obstacles, drone, room)

        arm, distance = drone.arm, contacts.distances(body.position)
        new = (distance <= 2.0 * arm) & (contacts.distances(before) > 2.0 * arm)
        crashed, normal, below = jnp.zeros(new.shape[1:], bool), jnp.zeros_like(before), jnp.zeros_like(new)
        if obstacles is not None:
            gap, normal = contacts.nearest_obstacle(body.position, obstacles)
            crashed = (gap <= arm) & (contacts.nearest_obstacle(before, obstacles)[0] > arm)
        if isinstance(body, Body):
            if obstacles is not None:
                below = contacts.in_downwash(body, distance, env_params.downwash)
            met = contacts.Contacts(new, distance, crashed, normal, below)
            draw = functools.partial(random.batch_last, functools.partial(contacts.draw, self.drones), key_data, impl)
            body = contacts.respond(body, met, draw, room, env_params.bounces, env_params.downwash)
        close = jnp.sum(jnp.maximum(1.0 - distance / (4.0 * arm), 0.0), axis=1)
        grounded = body.grounded if isinstance(body, Body) else jnp.zeros_like(crashed)
        events = StepEvents(jnp.sum(new, axis=1).astype(close.dtype), crashed, close, grounded)

        if self.task == "landmarks":
            away = jnp.min(norm(body.position[:, :, None] - goal[:, None]), axis=0)
        else:
            away = norm(body.position - goal)
        return body, statistics.update(stats, away, events, timing), self._reward(body, action, away, events, env_params)

    def _reward(self, body: Any, action: jax.Array, away: jax.Array, events: StepEvents, env_params: SwarmParams) -> jax.Array:
        """[N] of a control step that ended at ``away`` [N] m from the goals."""
        weights = env_params.weights
        if self.task == "landmarks":
            away = jnp.broadcast_to(jnp.mean(away, axis=0, keepdims=True), away.shape)
        cost = weights.distance * away + weights.effort * norm(action)
        if isinstance(body, Body):
            lying, flying = weights.floor + weights.upright, -weights.upright * body.rotation[2, 2]
            cost += weights.spin * norm(body.spin) + jnp.where(body.grounded, lying, flying)
        contact = weights.collision * events.collisions + weights.obstacle * events.crashed
        return -env_params.period * (0.5 * cost + weights.near * events.close) - contact

    def observe(self, state: SwarmState, env_params: SwarmParams) -> View:
        body, flies = state.body, isinstance(state.body, Body)
        attitude = (body.rotation.reshape(9, self.drones), body.spin) if isinstance(body, Body) else None
        inner = [body.motor] if isinstance(body, Body) and self.motors == "observed" else []
        inner += [] if state.actions is None else [state.actions]
        obs = batch_last(self._observe)(
            state.sensed, body.position, body.velocity, attitude, inner, state.goal, state.obstacles, env_params
        )
        ones = jnp.ones((self.drones, 1), bool)
        return View(obs.T, ones, ones[:, 0], statistics.metrics(state.stats, self.task, flies, env_params))

    def _observe(
        self,
        noise: jax.Array,
        position: jax.Array,
        velocity: jax.Array,
        attitude: tuple[jax.Array, jax.Array] | None,
        inner: list[jax.Array],
        goal: jax.Array,
        obstacles: Obstacles | None,
        env_params: SwarmParams,
    ) -> jax.Array:
        """[O, N]: see ``Swarm``; ``inner`` are the motors [4, N] and the last actions, where they are observed."""
        kept = slice(self.dimensions)
        position = position + env_params.position_noise * noise[:3]
        velocity = velocity + env_params.velocity_noise * noise[3:6]
        parts = [position[kept] if self.task == "landmarks" else (position - goal)[kept], velocity[kept]]
        if attitude is not None:
            parts += [attitude[0], attitude[1] + env_params.gyro_noise * noise[6:], position[2:]]
        parts += inner
        if self.task == "landmarks":
            parts.append(views.landmarks(position[kept], goal[kept], self.neighbours + 1))
        if self.neighbours:
            parts.append(views.neighbours(position[kept], velocity[kept], self.neighbours))
        if obstacles is not None:
            parts.append(views.field(position, obstacles))
        return jnp.concatenate(parts)

    def global_state(self, state: SwarmState, env_params: SwarmParams) -> jax.Array:
        body, kept = state.body, slice(self.dimensions)
        drones = [body.position[kept], (body.position - state.goal)[kept], body.velocity[kept]]
        if isinstance(body, Body):
            drones += [body.rotation.reshape(9, -1), body.spin]
            drones += [] if self.motors == "hidden" else [body.motor]
        parts = [jnp.concatenate(drones).T.reshape(-1)]
        if state.obstacles is not None:
            x, y, radius = state.obstacles.x, state.obstacles.y, state.obstacles.radius
            parts += [jnp.where(radius > 0, x, 0.0), jnp.where(radius > 0, y, 0.0), radius]
        return jnp.concatenate([*parts, jnp.reshape(state.step / env_params.duration, 1)])

    def scene(self, state: SwarmState, env_params: SwarmParams) -> Scene:
        return scenes.draw(state, env_params, self.task == "landmarks", self.dimensions == 2)

    @property
    def display(self) -> Display:
        rates = dict.fromkeys(("success", "collision", "crash", "deadlock"), "%")
        return Display(
            metrics=("success", "return", "distance", "collision", "crash", "deadlock"),
            meanings=statistics.meanings(self.task),
            lowest=("distance", "collision", "crash", "deadlock"),
            units=rates | {"distance": "m", "floor": "s", "time": "s"},
            legend=scenes.LEGEND,
            frames_per_second=20.0,
        )
