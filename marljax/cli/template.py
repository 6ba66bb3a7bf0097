"""Agents on a grid that have to cover pads: an environment to start from.

Everything is written for one instance; ``jax.vmap`` steps thousands of them. ``marljax.Environment`` documents what else may be
defined: scripted policies to compare with, presets, teams, agents that come and go.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.fields import option, param
from marljax.core.scene import Boxes, Circles, Labels, Scene, Segments, empty
from marljax.core.spaces import Box, Discrete
from marljax.core.types import Outcome, View

MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # by action
AGENT, PAD, COVERED = (0.12, 0.45, 0.90, 1.0), (0.80, 0.80, 0.80, 1.0), (0.35, 0.75, 0.40, 1.0)


class PadsParams(struct.PyTreeNode):
    """Inputs of the compiled program: ``env.slip=0.2`` and ``"sweep.env.slip=[0.0,0.2]"`` compile nothing again."""

    duration: Any = param(25, low=1, help="steps of an episode")
    slip: Any = param(0.1, low=0.0, high=1.0, help="probability that a move fails")


class PadsState(struct.PyTreeNode):
    """An episode's state."""

    agents: jax.Array  # [A, 2] int32 cells
    pads: jax.Array  # [A, 2]
    step: jax.Array  # []


@dataclasses.dataclass(frozen=True)
class Pads(Environment):
    """Agents cover pads, and all earn the share of pads that are covered.

    Observation: the agent's own cell, and of each pad, nearest first, the offset and whether another agent is on it; all lengths
    over the grid's size.
    """

    agents: int = option(3, low=1, high=9, help="A, also the number of pads")  # options shape the program
    size: int = option(5, low=3, help="cells along each side of the grid")

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(MOVES))

    @property
    def observation_space(self) -> Box:
        return Box((2 + 3 * self.agents,), -1.0, 1.0)

    @property
    def default_params(self) -> PadsParams:
        return PadsParams()

    @property
    def display(self) -> Display:
        """Metrics that tables show first, and how they and the scene are labelled."""
        legend = (("agent", AGENT), ("pad", PAD), ("covered", COVERED))
        return Display(metrics=("covered",), meanings={"covered": "pads covered now"}, units={"covered": "%"}, legend=legend)

    def initial(self, key: jax.Array, env_params: PadsParams) -> PadsState:
        key_agents, key_pads = jax.random.split(key)  # a key is used once
        agents = jax.random.randint(key_agents, (self.agents, 2), 0, self.size)
        cell = jax.random.permutation(key_pads, self.size**2)[: self.agents]
        return PadsState(agents, jnp.stack([cell // self.size, cell % self.size], axis=1), jnp.zeros((), jnp.int32))

    def transition(
        self, key: jax.Array, state: PadsState, action: jax.Array, env_params: PadsParams
    ) -> tuple[PadsState, Outcome]:
        moves = jax.random.uniform(key, (self.agents, 1)) >= env_params.slip
        agents = jnp.clip(state.agents + moves * jnp.array(MOVES)[action], 0, self.size - 1)
        state = state.replace(agents=agents, step=state.step + 1)
        reward = jnp.full(self.agents, jnp.mean(jnp.any(on_pad(state), axis=0)))
        # Terminated: the task is over, nothing more can be earned. Truncated: only the episode is, and values go on.
        return state, Outcome(reward, terminated=jnp.array(False), truncated=state.step >= env_params.duration)

    def observe(self, state: PadsState, env_params: PadsParams) -> View:
        on, offsets = on_pad(state), state.pads - state.agents[:, None]
        taken = jnp.sum(on, axis=0) - on > 0
        pads = jnp.concatenate([offsets / self.size, taken[..., None]], axis=-1)
        nearest_first = jnp.argsort(jnp.sum(jnp.abs(offsets), axis=-1), axis=1)
        pads = jnp.take_along_axis(pads, nearest_first[..., None], axis=1)
        obs = jnp.concatenate([state.agents / self.size, pads.reshape(self.agents, -1)], axis=1)
        mask, alive = jnp.ones((self.agents, len(MOVES)), bool), jnp.ones(self.agents, bool)
        return View(obs, mask, alive, {"covered": jnp.mean(jnp.any(on, axis=0))})

    def global_state(self, state: PadsState, env_params: PadsParams) -> jax.Array:
        return jnp.concatenate([state.agents, state.pads]).reshape(-1) / self.size

    def scene(self, state: PadsState, env_params: PadsParams) -> Scene:
        """What animations and pages draw; without it there are none."""
        pad = jnp.where(jnp.any(on_pad(state), axis=0)[:, None], jnp.array(COVERED), jnp.array(PAD))
        boxes = Boxes(1.0 * state.pads, jnp.full((self.agents, 2), 0.9), jnp.zeros(self.agents), pad)
        circles = Circles(1.0 * state.agents, jnp.full(self.agents, 0.3), jnp.tile(jnp.array(AGENT), (self.agents, 1)))
        bounds = jnp.array([-0.5, self.size - 0.5, -0.5, self.size - 0.5])
        return Scene(empty(Segments), boxes, circles, empty(Labels), bounds, 1.0 * state.step, agents=circles.centre)


def on_pad(state: PadsState) -> jax.Array:
    """[A, A] bool: an agent (first axis) is on a pad."""
    return jnp.all(state.agents[:, None] == state.pads, axis=-1)
