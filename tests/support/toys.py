"""Small environments that keep the whole contract, for tests of the core: one discrete, one continuous."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.scene import Boxes, Circles, Labels, Scene, Segments, empty
from marljax.core.spaces import Box, Discrete, Part
from marljax.core.types import Outcome, View

STAY, BACK, FORTH = 0, 1, 2


@struct.dataclass
class CorridorParams:
    """Params of ``Corridor``."""

    limit: Any = 12  # decisions until truncation
    slip: Any = 0.1  # probability that a move fails
    step_cost: Any = 0.05
    fewest: Any = 1  # agents in an episode: fewest … num_agents


@struct.dataclass
class CorridorState:
    cell: jax.Array  # [A] int32
    alive: jax.Array  # [A] bool
    arrived: jax.Array  # [] int32, agents that have left through the far end
    time: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True)
class Corridor(Environment):
    """Agents walk to the far end of a corridor and leave; some episodes have fewer of them. Discrete, masked."""

    presets: ClassVar[tuple[str, ...]] = ("quick", "slow")
    action_space = Discrete(3)
    observation_space = Box((2,), 0.0, 1.0)

    length: int = 4
    agents: int = 3
    compete: bool = False
    preset: str = dataclasses.field(default="quick", compare=False)

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def default_params(self) -> CorridorParams:
        return self.preset_params(self.preset)

    def preset_params(self, preset: str) -> CorridorParams:
        return {"quick": CorridorParams(), "slow": CorridorParams(limit=20, slip=0.5)}[preset]

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(agent % 2 if self.compete else 0 for agent in range(self.agents))

    def initial(self, key: jax.Array, env_params: CorridorParams) -> CorridorState:
        count = jax.random.randint(key, (), env_params.fewest, self.agents + 1)
        zero = jnp.zeros((), jnp.int32)
        return CorridorState(jnp.zeros(self.agents, jnp.int32), jnp.arange(self.agents) < count, zero, zero)

    def transition(self, key: jax.Array, state: CorridorState, action: jax.Array, env_params: CorridorParams) -> tuple:
        allowed = jnp.take_along_axis(self._mask(state), action[:, None], axis=1)[:, 0]
        moves = jax.random.uniform(key, (self.agents,)) >= env_params.slip
        shift = jnp.where(action == FORTH, 1, jnp.where(action == BACK, -1, 0)) * allowed * moves
        cell = state.cell + shift
        arrives = state.alive & (cell == self.length)
        alive = state.alive & ~arrives
        after = CorridorState(cell, alive, state.arrived + jnp.sum(arrives, dtype=jnp.int32), state.time + 1)
        reward = (arrives - env_params.step_cost) * state.alive
        terminated = ~jnp.any(alive)
        return after, Outcome(reward, terminated, ~terminated & (after.time >= env_params.limit))

    def observe(self, state: CorridorState, env_params: CorridorParams) -> View:
        position, clock = state.cell / self.length, jnp.full(self.agents, state.time / env_params.limit)
        return View(jnp.stack([position, clock], axis=-1), self._mask(state), state.alive, {"arrived": 1.0 * state.arrived})

    def global_state(self, state: CorridorState, env_params: CorridorParams) -> jax.Array:
        return jnp.concatenate([state.cell / self.length, 1.0 * state.alive, state.time[None] / env_params.limit])

    def scene(self, state: CorridorState, env_params: CorridorParams) -> Scene:
        lane = jnp.arange(self.agents, dtype=float)
        centre = jnp.stack([1.0 * state.cell, lane], axis=-1)
        blue = jnp.array([0.0, 0.45, 0.7, 1.0]) * state.alive[:, None]
        walls = jnp.array([[0.0, -1.0], [0.0, self.agents]])
        return Scene(
            segments=Segments(walls, walls + jnp.array([self.length, 0.0]), jnp.ones(2), jnp.ones((2, 4)) * 0.5),
            boxes=empty(Boxes),
            circles=Circles(centre, jnp.full(self.agents, 0.3), blue),
            labels=Labels(centre, jnp.arange(self.agents), jnp.ones((self.agents, 4)) * state.alive[:, None]),
            bounds=jnp.array([-1.0, self.length + 1.0, -1.5, self.agents + 0.5]),
            time=1.0 * state.time,
        )

    @property
    def display(self) -> Display:
        return Display(legend=(("walker", (0.0, 0.45, 0.7, 1.0)),))

    def _mask(self, state: CorridorState) -> jax.Array:
        walks = state.alive
        return jnp.stack([jnp.ones(self.agents, bool), walks & (state.cell > 0), walks], axis=-1)


@struct.dataclass
class PointsState:
    x: jax.Array  # [A]
    y: jax.Array  # [A]
    time: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True)
class Points(Environment):
    """Points steer to the origin of a square until a time limit. Continuous, structured observation, no scene."""

    agents: int = 2
    action_space = Box((2,), -1.0, 1.0)
    observation_space = {"own": Box((2,), -1.0, 1.0), "shared": Box((1,), 0.0, 1.0)}  # noqa: RUF012

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def default_params(self) -> dict[str, Any]:
        return {"limit": 10, "speed": 0.3}

    def initial(self, key: jax.Array, env_params: dict) -> PointsState:
        x, y = jax.random.uniform(key, (2, self.agents), minval=-1.0, maxval=1.0)
        return PointsState(x, y, jnp.zeros((), jnp.int32))

    def transition(self, key: jax.Array, state: PointsState, action: jax.Array, env_params: dict) -> tuple:
        x = jnp.clip(state.x + env_params["speed"] * action[:, 0], -1.0, 1.0)
        y = jnp.clip(state.y + env_params["speed"] * action[:, 1], -1.0, 1.0)
        after = PointsState(x, y, state.time + 1)
        return after, Outcome(-jnp.hypot(x, y), jnp.array(False), after.time >= env_params["limit"])

    def observe(self, state: PointsState, env_params: dict) -> View:
        obs = {"own": jnp.stack([state.x, state.y], axis=-1), "shared": state.time[None] / env_params["limit"]}
        mask, alive = jnp.ones((self.agents, 1), bool), jnp.ones(self.agents, bool)
        return View(obs, mask, alive, {"spread": jnp.std(state.x)})

    def global_state(self, state: PointsState, env_params: dict) -> jax.Array:
        return jnp.concatenate([state.x, state.y])


@dataclasses.dataclass(frozen=True)
class Padded(Points):
    """``Points`` of which only the first can move along y: the second entry of the others' actions is padding."""

    @property
    def usable(self) -> jax.Array:
        """[A, 2] bool."""
        return jnp.stack([jnp.ones(self.agents, bool), jnp.arange(self.agents) == 0], axis=-1)

    def transition(self, key: jax.Array, state: PointsState, action: jax.Array, env_params: dict) -> tuple[PointsState, Outcome]:
        return super().transition(key, state, jnp.where(self.usable, action, 0.0), env_params)

    def observe(self, state: PointsState, env_params: dict) -> View:
        return super().observe(state, env_params)._replace(action_mask=self.usable)


@dataclasses.dataclass(frozen=True)
class Crowd(Points):
    """``Points`` that observe each other within 1, and a beacon: entities of two kinds, one of them in two parts."""

    agents: int = 4

    @property
    def observation_space(self) -> Box:
        return Box((2 + 4 * (self.agents - 1) + 3,))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        others = self.agents - 1
        return Part("others", others, 3), Part("own", 1, 2), Part("beacon", 1, 3), Part("others", others, 1)

    def observe(self, state: PointsState, env_params: dict) -> View:
        number = jnp.arange(self.agents)
        other = (number[:, None] + number[1:]) % self.agents  # [A, A − 1]
        dx, dy = state.x[other] - state.x[:, None], state.y[other] - state.y[:, None]
        near = jnp.hypot(dx, dy) < 1.0
        offset = jnp.where(near[..., None], jnp.stack([dx, dy, jnp.ones_like(dx)], axis=-1), 0.0)
        own = jnp.stack([state.x, state.y], axis=-1)
        beacon = jnp.stack([0.5 - state.x, -state.y, jnp.full(self.agents, 0.1 * state.time)], axis=-1)
        distance = jnp.where(near, jnp.hypot(dx, dy), 0.0)
        obs = jnp.concatenate([offset.reshape(self.agents, -1), own, beacon, distance], axis=-1)
        mask, alive = jnp.ones((self.agents, 1), bool), jnp.ones(self.agents, bool)
        return View(obs, mask, alive, {"spread": jnp.std(state.x)})


@struct.dataclass
class BumpsParams:
    """Params of ``Bumps``."""

    limit: Any = 9  # steps of an episode, at least
    pay: Any = 1.0  # per step


@struct.dataclass
class BumpsState:
    kind: jax.Array  # [] int32, 0 … 12, determines the whole episode
    step: jax.Array  # [] int32
    bumps: jax.Array  # [] int32 so far
    key: jax.Array  # a typed key, such as states may hold


def bump(kind, step):
    """Whether the step to ``step`` is a bump in episodes of this kind."""
    return (kind * 7 + step * 5) % 11 < 2


@dataclasses.dataclass(frozen=True)
class Bumps(Environment):
    """One agent that can do nothing meets bumps in a fixed order. The reward is the pay, annealed from 0 in training."""

    num_agents = 1
    action_space = Discrete(2)
    observation_space = Box((1,))

    @property
    def default_params(self) -> BumpsParams:
        return BumpsParams()

    def initial(self, key: jax.Array, env_params: BumpsParams) -> BumpsState:
        zero = jnp.zeros((), jnp.int32)
        return BumpsState(jax.random.randint(key, (), 0, 13), zero, zero, key)

    def transition(self, key: jax.Array, state: BumpsState, action: jax.Array, env_params: BumpsParams) -> tuple:
        step = state.step + 1
        after = state.replace(step=step, bumps=state.bumps + bump(state.kind, step), key=key)
        pay = jnp.full(1, env_params.pay, jnp.float32)
        return after, Outcome(pay, jnp.array(False), step >= env_params.limit + state.kind % 5 * (env_params.limit > 5))

    def observe(self, state: BumpsState, env_params: BumpsParams) -> View:
        metrics = {"bumps": state.bumps.astype(jnp.float32), "kind": state.kind.astype(jnp.float32)}
        return View(jnp.full((1, 1), 0.1 * state.step, jnp.float32), jnp.ones((1, 2), bool), jnp.ones(1, bool), metrics)

    def global_state(self, state: BumpsState, env_params: BumpsParams) -> jax.Array:
        return jnp.full(1, 0.1 * state.step, jnp.float32)

    def reset_episode_counters(self, state: BumpsState, env_params: BumpsParams) -> BumpsState:
        return state.replace(bumps=jnp.zeros_like(state.bumps))

    def anneal(self, env_params: BumpsParams, progress: jax.Array) -> BumpsParams:
        return env_params.replace(pay=env_params.pay * progress)
