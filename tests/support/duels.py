"""Games of two teams with known answers."""

import dataclasses

import jax.numpy as jnp
from flax import struct

from marljax import Environment, Outcome, View
from marljax.core.spaces import Box, Discrete


@struct.dataclass
class DuelParams:
    bonus: float = 0.0  # the first team's, whatever happens


@dataclasses.dataclass(frozen=True)
class RockPaperScissors(Environment):
    """One decision of one agent on either side: paper beats rock, scissors beat paper, rock beats scissors."""

    num_agents = 2
    teams = (0, 1)
    action_space = Discrete(3)
    observation_space = Box((1,), 0.0, 1.0)

    @property
    def default_params(self):
        return DuelParams()

    def initial(self, key, env_params):
        return jnp.zeros((), jnp.int32)

    def transition(self, key, state, action, env_params):
        ahead = (action[0] - action[1]) % 3
        first = jnp.where(ahead == 1, 1.0, jnp.where(ahead == 2, -1.0, 0.0)) + env_params.bonus
        return state, Outcome(jnp.stack([first, -first]), jnp.array(True), jnp.array(False))

    def observe(self, state, env_params):
        return View(jnp.ones((2, 1)), jnp.ones((2, 3), bool), jnp.ones(2, bool), {})

    def global_state(self, state, env_params):
        return jnp.ones(1)


@dataclasses.dataclass(frozen=True)
class Push(Environment):
    """Two agents on either side push a stone for ``steps`` decisions; whoever has pushed it further earns the distance. They
    observe their team, where the stone is, and the time."""

    steps: int = 4

    num_agents = 4
    teams = (0, 1, 0, 1)
    action_space = Discrete(2)
    observation_space = Box((3,))

    @property
    def default_params(self):
        return DuelParams()

    def initial(self, key, env_params):
        return jnp.zeros(2)  # place, time

    def transition(self, key, state, action, env_params):
        sign = jnp.array([1.0, -1.0, 1.0, -1.0])
        place, time = state[0] + jnp.sum(sign * action), state[1] + 1
        ends = time >= self.steps
        reward = jnp.where(ends, sign * (place + env_params.bonus), 0.0)
        return jnp.stack([place, time]), Outcome(reward, ends, jnp.array(False))

    def observe(self, state, env_params):
        obs = jnp.stack([jnp.array([0.0, 1.0, 0.0, 1.0]), *(jnp.full(4, part) for part in state)], 1)
        return View(obs, jnp.ones((4, 2), bool), jnp.ones(4, bool), {})

    def global_state(self, state, env_params):
        return state
