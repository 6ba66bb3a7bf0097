"""``swarm``: quadrotors, or point masses, fly to goals without hitting one another, obstacles or walls.

The task is that of "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep Reinforcement Learning"
(Huang et al. 2023), with the dynamics of its simulator.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import LIMITS, Display, Environment
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Part
from marljax.core.types import Outcome, View
from marljax.envs.swarm import contacts, point_mass, quadrotor, scenarios
from marljax.envs.swarm import view as views
from marljax.envs.swarm.contacts import Draws, Obstacles
from marljax.envs.swarm.params import PRESETS, SwarmParams, check, preset_params
from marljax.envs.swarm.point_mass import Point, glide
from marljax.envs.swarm.quadrotor import MOTORS, Body, fly, level, norm
from marljax.envs.swarm.scenarios import AMONG_OBSTACLES, CELLS, Goals
from marljax.envs.swarm.scene import LEGEND, draw
from marljax.envs.swarm.tally import Fresh, Tally, Timing, count, metrics, nothing, timing
from marljax.errors import UserError, unknown
from marljax.utils.batching import batch_last
from marljax.utils.random import batch_last as draws_last
from marljax.utils.random import flat, row

DYNAMICS = {"quadrotor": 3, "point2d": 2, "point3d": 3}  # and their dimensions
TASKS = ("goals", "landmarks")
LOWEST_START = 0.75  # m above the floor that a drone starts
SENSED = 9  # normal draws of a drone's sensors


class SwarmState(struct.PyTreeNode):
    """Everything that an episode consists of."""

    body: Body | Point
    goal: jax.Array  # [3, N] m, now
    goals: Goals  # of the whole episode
    obstacles: Obstacles | None
    sensed: jax.Array  # [9, N] normal draws of the sensors
    tally: Tally
    step: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Swarm(Environment):
    """Every 10 ms each drone sets the thrust of its motors, or every 50 ms a force; an episode lasts 15 s (coverage: 5 s).
    ``SwarmParams`` changes these times.

    Options:

    - ``preset``: one of the scenarios of ``swarm_scenarios``; ``open``, the nine without obstacles; ``obstacles``, both with
      (a fifth of the cells of the middle has one); ``coverage``.
    - ``drones``, ``obstacles``: sizes of the arrays, N and M; 0 drones: the preset's, −1 obstacles: the preset's. Obstacles
      stand only in the scenarios that are meant for them.
    - ``neighbours``: K that a drone sees, those that come closest soonest first; 0 to N − 1; −1: the preset's.
    - ``dynamics``: ``quadrotor``, whose action is the thrust of each motor from none (−1) to full (1), or ``point2d`` and
      ``point3d``, double integrators, whose action is a force along each axis.
    - ``integrator``: of a quadrotor's attitude and spin: ``euler``, as in the reference simulator, or ``rk4``. Explicit Euler
      steps add energy to a body that tumbles: in 5 s at 11.5 rad/s, without any torque, up to as much again. ``rk4`` keeps it.
    - ``task``: ``goals``, one for each drone, or ``landmarks`` (point masses only), each of which wants some drone near it.
    - ``limit``: after its time an episode is truncated (``truncate``: drones are to fly on), or terminated (``end``: the task is
      that long, as with ``coverage``).

    Observation of a drone, in m, m/s and rad/s, with the sensors' noise; D dimensions:

    =========== ================= ==========================================================================================
    part        width             columns
    =========== ================= ==========================================================================================
    own         19                of a quadrotor: place − goal, velocity, rotation (3 × 3, row by row), spin, height
    own         2 D               of a point mass: place − goal (task ``landmarks``: place), velocity
    landmarks   (K + 1) × (D + 1) task ``landmarks``: place − own, m to the nearest other drone; the nearest landmark first
    neighbours  K × 2 D           place and velocity − own, cut off at ±10 m and ±6 m/s; least d + closing speed first
    field       9                 with obstacles: m to the nearest one, from 3 × 3 places 0.1 m apart around the own
    =========== ================= ==========================================================================================

    Global state: of every drone its place, place − goal, velocity and, for quadrotors, rotation and spin, all without noise;
    then x, y and radius of obstacles (0 for those that are not there), and the share of the episode that has passed. Metrics: see
    ``swarm_tally.metrics``.
    """

    preset: str = dataclasses.field(default="static_same", compare=False)
    drones: int = 0  # N; 0: the preset's
    obstacles: int = -1  # M, the most there may be; -1: the preset's
    neighbours: int = -1  # K that a drone sees; -1: the preset's
    dynamics: str = ""  # quadrotor, point2d or point3d; empty: the preset's
    task: str = ""  # goals or landmarks; empty: the preset's
    limit: str = ""  # truncate or end; empty: the preset's
    integrator: str = "euler"  # of a quadrotor's attitude and spin: euler or rk4

    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)

    def __post_init__(self) -> None:
        if self.preset not in tuple(PRESETS):
            raise unknown("preset of swarm", str(self.preset), PRESETS)
        usual = PRESETS[self.preset]
        for option, none in (("drones", 0), ("obstacles", -1), ("dynamics", ""), ("task", ""), ("limit", "")):
            if getattr(self, option) == none:
                object.__setattr__(self, option, getattr(usual, option))
        if self.neighbours == -1 and isinstance(self.drones, int):
            object.__setattr__(self, "neighbours", max(0, min(usual.neighbours, self.drones - 1)))
        choices = {"dynamics": tuple(DYNAMICS), "task": TASKS, "limit": LIMITS, "integrator": quadrotor.INTEGRATORS}
        for option, known in choices.items():
            if getattr(self, option) not in known:
                raise unknown(f"{option} of swarm", str(getattr(self, option)), known)
        for option, least in (("drones", 1), ("obstacles", 0), ("neighbours", 0)):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{option} of swarm is {value!r}; give a number of at least {least}")
        if self.neighbours >= self.drones:
            takes = f"with drones={self.drones} it takes 0 to {self.drones - 1}"
            raise UserError(f"neighbours={self.neighbours} of swarm is out of range; {takes}")
        if self.obstacles >= CELLS**2:
            most = f"the {CELLS**2} cells that hold one each have room for {CELLS**2 - 1} and one free for the drones"
            raise UserError(f"obstacles={self.obstacles} of swarm do not fit; {most}")
        if self.task == "landmarks" and self.dynamics == "quadrotor":
            raise UserError("task=landmarks of swarm is for point masses; give dynamics=point2d or dynamics=point3d")
        if self.integrator != "euler" and self.dynamics != "quadrotor":
            raise UserError(
                f"integrator={self.integrator} of swarm is for dynamics=quadrotor; point masses do not turn, leave it out"
            )

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end"

    @property
    def num_agents(self) -> int:
        return self.drones

    @property
    def dimensions(self) -> int:
        """D of places as agents know them; states hold all three."""
        return DYNAMICS[self.dynamics]

    @property
    def substeps(self) -> int:
        """Steps of the physics between two decisions."""
        return quadrotor.SUBSTEPS if self.dynamics == "quadrotor" else point_mass.SUBSTEPS

    @property
    def action_space(self) -> Box:
        return Box((MOTORS if self.dynamics == "quadrotor" else self.dimensions,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((sum(part.count * part.width for part in self.obs_layout),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        dimensions = self.dimensions
        parts = [Part("own", 1, views.OWN if self.dynamics == "quadrotor" else 2 * dimensions)]
        if self.task == "landmarks":
            parts.append(Part("landmarks", self.neighbours + 1, dimensions + 1))
        if self.neighbours:
            parts.append(Part("neighbours", self.neighbours, 2 * dimensions))
        if self.obstacles:
            parts.append(Part("field", 1, views.FIELD))
        return tuple(parts)

    @property
    def default_params(self) -> SwarmParams:
        return self.preset_params(self.preset)

    def preset_params(self, preset: str) -> SwarmParams:
        """The numbers of another preset for this environment's arrays and dynamics."""
        if preset not in PRESETS:
            raise unknown("preset of swarm", preset, PRESETS)
        return preset_params(preset, self.dynamics)

    def check_params(self, env_params: SwarmParams) -> None:
        """Raises ``UserError`` for numbers that no episode can have."""
        check(env_params, self.obstacles, self.dynamics, self.task)

    def anneal(self, env_params: SwarmParams, progress: jax.Array) -> SwarmParams:
        """The costs of contacts grow from 0 over the first ``collision_anneal`` of a training run."""
        share, weights = env_params.collision_anneal, env_params.weights
        grown = jnp.where(share > 0.0, jnp.clip(progress / jnp.maximum(share, 1e-6), 0.0, 1.0), 1.0)
        costs = {name: getattr(weights, name) * grown for name in ("collision", "near", "obstacle")}
        return env_params.replace(weights=weights.replace(**costs))

    def reset_episode_counters(self, state: SwarmState, env_params: SwarmParams) -> SwarmState:
        return state.replace(tally=nothing(self.drones))

    def initial(self, key: jax.Array, env_params: SwarmParams) -> SwarmState:
        drones = self.drones
        key_goals, key_obstacles, key_place, key_yaw, key_sensed = jax.random.split(key, 5)
        x, y, radius, start, free = scenarios.draw_obstacles(key_obstacles, env_params, self.obstacles, drones)
        goals = scenarios.draw_goals(key_goals, env_params, drones, self.dimensions, free)
        goal = self._goal(goals, jnp.zeros(()))
        among = scenarios.is_any(goals.kind, *AMONG_OBSTACLES)
        middle = jnp.where(among, start, jnp.mean(goal, axis=1, keepdims=True))
        place = middle + env_params.spread * flat(scenarios.either_way, key_place, (3, drones))
        half, height = env_params.room.half, env_params.room.height
        place = jnp.clip(place, jnp.array([-half, -half, LOWEST_START])[:, None], jnp.array([half, half, height])[:, None])
        place = place.at[2].set(0.0) if self.dimensions == 2 else place
        yaw = jnp.pi * flat(scenarios.either_way, key_yaw, (drones,))
        return SwarmState(
            body=level(place, yaw) if self.dynamics == "quadrotor" else Point(place, jnp.zeros_like(place)),
            goal=goal,
            goals=goals,
            obstacles=Obstacles(x, y, jnp.where(among, radius, 0.0)) if self.obstacles else None,
            sensed=flat(jax.random.normal, key_sensed, (SENSED, drones)),
            tally=nothing(drones),
            step=jnp.zeros((), jnp.int32),
        )

    def transition(
        self, key: jax.Array, state: SwarmState, action: jax.Array, env_params: SwarmParams
    ) -> tuple[SwarmState, Outcome]:
        key_normal, key_landing, key_contacts = jax.random.split(key, 3)
        normal = row(jax.random.normal, key_normal, (MOTORS + SENSED) * self.drones)
        thrust, sensed = normal[: MOTORS * self.drones], normal[MOTORS * self.drones :][: SENSED * self.drones]
        landing = row(jax.random.uniform, key_landing, self.drones)[: self.drones]
        draws = thrust, landing, jax.random.key_data(key_contacts)
        step = state.step + 1
        goal = self._goal(state.goals, step * env_params.period)
        given = (
            draws,
            action.T,
            state.body,
            goal,
            state.obstacles,
            state.tally,
            timing(state.step, state.goals.kind, env_params),
        )
        move = functools.partial(self._transition, jax.random.key_impl(key))
        body, tally, reward = batch_last(move)(*given, env_params)
        after = state.replace(body=body, goal=goal, sensed=sensed.reshape(SENSED, -1), tally=tally, step=step)
        over, truncates = step >= env_params.duration, not self.limit_ends
        return after, Outcome(reward, over & (not truncates), over & truncates)

    def _goal(self, goals: Goals, time: jax.Array) -> jax.Array:
        """[3, N] m."""
        goal = scenarios.goals_at(goals, time)
        return goal.at[2].set(0.0) if self.dimensions == 2 else goal

    def _transition(
        self,
        impl: Any,
        draws: tuple[jax.Array, jax.Array, jax.Array],
        action: jax.Array,
        body: Body | Point,
        goal: jax.Array,
        obstacles: Obstacles | None,
        tally: Tally,
        timing: Timing,
        env_params: SwarmParams,
    ) -> tuple[Body | Point, Tally, jax.Array]:
        """What follows of an action [4 or D, N]; ``impl`` is that of the key whose data are the last of the draws."""
        thrust, landing, key_data = draws
        action = jnp.clip(action, -1.0, 1.0)
        before = body.position
        draw = functools.partial(draws_last, functools.partial(contacts.draw, self.drones), key_data, impl)
        if isinstance(body, Body):
            thrust = thrust.reshape(MOTORS, self.drones, *thrust.shape[1:])
            command = 0.5 * (action + 1.0)
            body = fly(body, command, thrust, landing, env_params.drone, env_params.room, self.integrator)
        else:
            body = glide(body, action, obstacles, env_params.drone, env_params.room)
        body, fresh = self._meet(body, before, obstacles, draw, env_params)
        if self.task == "landmarks":
            away = jnp.min(norm(body.position[:, :, None] - goal[:, None]), axis=0)
        else:
            away = norm(body.position - goal)
        reward = self._reward(body, action, away, fresh, env_params)
        return body, count(tally, away, fresh, timing), reward

    def _meet(
        self, body: Any, before: jax.Array, obstacles: Obstacles | None, draw: Callable[[], Draws], env_params: SwarmParams
    ) -> tuple[Any, Fresh]:
        """What drones, obstacles and walls do to the drones after a step of flight; ``before`` [3, N] is where they were."""
        arm = env_params.drone.arm
        apart = contacts.distances(body.position)
        new = (apart <= 2.0 * arm) & (contacts.distances(before) > 2.0 * arm)
        crashed, normal, below = jnp.zeros(new.shape[1:], bool), jnp.zeros_like(before), jnp.zeros_like(new)
        if obstacles is not None:
            gap, normal = contacts.nearest_obstacle(body.position, obstacles)
            crashed = (gap <= arm) & (contacts.nearest_obstacle(before, obstacles)[0] > arm)
        if isinstance(body, Body):
            if obstacles is not None:
                below = contacts.in_downwash(body, apart, env_params.downwash)
            met = contacts.Met(new, apart, crashed, normal, below)
            body = contacts.respond(body, met, draw, env_params.room, env_params.bounces, env_params.downwash)
        close = jnp.sum(jnp.maximum(1.0 - apart / (4.0 * arm), 0.0), axis=1)
        grounded = body.grounded if isinstance(body, Body) else jnp.zeros_like(crashed)
        return body, Fresh(jnp.sum(new, axis=1).astype(close.dtype), crashed, close, grounded)

    def _reward(self, body: Any, action: jax.Array, away: jax.Array, fresh: Fresh, env_params: SwarmParams) -> jax.Array:
        """[N] of a control step."""
        weights = env_params.weights
        if self.task == "landmarks":
            away = jnp.broadcast_to(jnp.mean(away, axis=0, keepdims=True), away.shape)
        cost = weights.distance * away + weights.effort * norm(action)
        if isinstance(body, Body):
            lying, flying = weights.floor + weights.upright, -weights.upright * body.rotation[2, 2]
            cost += weights.spin * norm(body.spin) + jnp.where(body.grounded, lying, flying)
        contact = weights.collision * fresh.collisions + weights.obstacle * fresh.crashed
        return -env_params.period * (0.5 * cost + weights.near * fresh.close) - contact

    def observe(self, state: SwarmState, env_params: SwarmParams) -> View:
        body = state.body
        attitude = (body.rotation.reshape(9, self.drones), body.spin) if isinstance(body, Body) else None
        given = (state.sensed, body.position, body.velocity, attitude, state.goal, state.obstacles)
        obs = batch_last(self._observe)(*given, env_params)
        ones = jnp.ones((self.drones, 1), bool)
        return View(obs.T, ones, ones[:, 0], metrics(state.tally, self.task, isinstance(body, Body), env_params))

    def _observe(
        self,
        noise: jax.Array,
        place: jax.Array,
        velocity: jax.Array,
        attitude: tuple[jax.Array, jax.Array] | None,
        goal: jax.Array,
        obstacles: Obstacles | None,
        env_params: SwarmParams,
    ) -> jax.Array:
        """[O, N]: see ``Swarm``."""
        kept = slice(self.dimensions)
        place = place + env_params.position_noise * noise[:3]
        velocity = velocity + env_params.velocity_noise * noise[3:6]
        parts = [place[kept] if self.task == "landmarks" else (place - goal)[kept], velocity[kept]]
        if attitude is not None:
            parts += [attitude[0], attitude[1] + env_params.gyro_noise * noise[6:], place[2:]]
        if self.task == "landmarks":
            parts.append(views.landmarks(place[kept], goal[kept], self.neighbours + 1))
        if self.neighbours:
            parts.append(views.neighbours(place[kept], velocity[kept], self.neighbours))
        if obstacles is not None:
            parts.append(views.field(place, obstacles))
        return jnp.concatenate(parts)

    def global_state(self, state: SwarmState, env_params: SwarmParams) -> jax.Array:
        body, kept = state.body, slice(self.dimensions)
        parts = [body.position[kept], (body.position - state.goal)[kept], body.velocity[kept]]
        if isinstance(body, Body):
            parts += [body.rotation.reshape(9, -1), body.spin]
        places: list[jax.Array] = []
        if state.obstacles is not None:
            x, y, radius = state.obstacles.x, state.obstacles.y, state.obstacles.radius
            places = [jnp.where(radius > 0, x, 0.0), jnp.where(radius > 0, y, 0.0), radius]
        share = jnp.reshape(state.step / env_params.duration, 1)
        return jnp.concatenate([jnp.concatenate(parts).T.reshape(-1), *places, share])

    def scene(self, state: SwarmState, env_params: SwarmParams) -> Scene:
        return draw(state, env_params, self.task == "landmarks")

    @property
    def display(self) -> Display:
        return Display(
            metrics=("success", "return", "distance", "collision", "crash", "deadlock"),
            units=dict.fromkeys(("success", "collision", "crash", "deadlock"), "%")
            | {"distance": "m", "floor": "s", "time": "s"},
            legend=LEGEND,
            frames_per_second=20.0,
        )
