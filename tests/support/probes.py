"""Environments whose values and best actions are known analytically."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from marljax import Environment, Outcome, View
from marljax.core.spaces import Box, Discrete

CONSTANT, TRACKING, DELAYED, CHOICE, TRUNCATED, COORDINATION, ABSENT, MEMORY = range(8)
# Steps of an episode, and whether its end is a termination, by variant.
STEPS = jnp.array([1, 1, 2, 1, 5, 1, 1, 4])
TERMINATES = jnp.array([True, True, True, True, False, True, True, True])


@struct.dataclass
class ProbeParams:
    variant: int = CONSTANT
    garbage: float = 0.0  # what absent agents observe and earn


class ProbeState(struct.PyTreeNode):
    time: jax.Array  # []
    cue: jax.Array  # [2] ±1 per agent, drawn at reset
    present: jax.Array  # [2] bool


@dataclasses.dataclass(frozen=True)
class Probe(Environment):
    """Two agents, two actions, observation [cue or 0, time left over 4]. ``env_params.variant`` chooses the reward:

    - CONSTANT: 1 for the only step; the value is 1.
    - TRACKING: the cue; the value is the cue.
    - DELAYED: 0, then 1; the first value is γ.
    - CHOICE: 1 for the action that the cue's sign names.
    - TRUNCATED: 1 in every step, cut off after 5, the observation never changes; the value is 1 / (1 - γ).
    - COORDINATION: both take action 0: 1; both take action 1: ½; else 0.
    - ABSENT: like CHOICE; the second agent is absent in half of the episodes, and then observes and earns garbage.
    - MEMORY: only the first observation has the cue; after the fourth decision 1 for the action that it names.
    """

    num_agents = 2
    action_space = Discrete(2)
    observation_space = Box((2,))

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams()

    def initial(self, key, env_params):
        key_cue, key_present = jax.random.split(key)
        cue = jax.random.rademacher(key_cue, (2,), jnp.float32)
        absent = (env_params.variant == ABSENT) & jax.random.bernoulli(key_present)
        return ProbeState(jnp.zeros((), jnp.int32), cue, jnp.array([True, False]) | ~absent)

    def transition(self, key, state, action, env_params):
        variant, time = env_params.variant, state.time + 1
        named = (action == (state.cue > 0)).astype(jnp.float32)
        ends = time >= STEPS[variant]
        agree = jnp.where(action[0] == action[1], jnp.where(action[0] == 0, 1.0, 0.5), 0.0)
        rewards = [jnp.ones(2), state.cue, ends * jnp.ones(2), named, jnp.ones(2), jnp.full(2, agree), named, ends * named]
        reward = jnp.where(state.present, jnp.stack(rewards)[variant], env_params.garbage)
        return state.replace(time=time), Outcome(reward, ends & TERMINATES[variant], ends & ~TERMINATES[variant])

    def observe(self, state, env_params):
        variant = env_params.variant
        shows = jnp.isin(variant, jnp.array([TRACKING, CHOICE, ABSENT])) | ((variant == MEMORY) & (state.time == 0))
        clock = jnp.where(variant == TRUNCATED, 0.0, state.time / 4.0)
        obs = jnp.stack([state.cue * shows, jnp.full(2, clock)], -1)
        obs = jnp.where(state.present[:, None], obs, env_params.garbage)
        return View(obs, jnp.ones((2, 2), bool), state.present, {})

    def global_state(self, state, env_params):
        return jnp.where(state.present[:, None], self.observe(state, env_params).obs, 0.0).ravel()


def final_return(metrics, variant):
    """The mean return of a variant's episodes in the last ten updates of a training; metrics [variants, updates]."""
    sums, counts = (metrics[name][variant, -10:].sum() for name in ("sum_return", "episodes"))
    return float(sums / counts)


@dataclasses.dataclass(frozen=True)
class Aim(Environment):
    """Two agents, one step: each earns minus the squared distance of its action [1, 2] to a target, of which it observes one
    coordinate itself and the other in the shared part; the best return is 0."""

    num_agents = 2
    action_space = Box((1, 2), -1.0, 1.0)
    observation_space = {"own": Box((1,)), "shared": Box((1,))}  # noqa: RUF012

    @property
    def default_params(self):
        return None

    def initial(self, key, env_params):
        return jax.random.uniform(key, (3,), minval=-0.6, maxval=0.6)

    def transition(self, key, state, action, env_params):
        target = jnp.stack([state[:2], jnp.broadcast_to(state[2], 2)], -1)
        return state, Outcome(-jnp.sum((action[:, 0] - target) ** 2, -1), jnp.array(True), jnp.array(False))

    def observe(self, state, env_params):
        return View({"own": state[:2, None], "shared": state[2:]}, jnp.ones((2, 1), bool), jnp.ones(2, bool), {})

    def global_state(self, state, env_params):
        return state


@dataclasses.dataclass(frozen=True)
class Drift(Environment):
    """An agent starts at x = 0 and may walk away: action 1 increases x by one, and it earns −1 − x / 100. It observes x and the
    time, and every episode is truncated after 25 steps. The best return is −25.

    A critic is never trained on final observations, which differ from all others here, so bootstrapped values extrapolate.
    """

    num_agents = 1
    action_space = Discrete(2)
    observation_space = Box((2,))

    @property
    def default_params(self):
        return None

    def initial(self, key, env_params):
        return jnp.zeros(2)  # x, steps

    def transition(self, key, state, action, env_params):
        state = state + jnp.stack([action[0], 1]).astype(jnp.float32)
        return state, Outcome(-1.0 - state[:1] / 100, jnp.array(False), state[1] >= 25)

    def observe(self, state, env_params):
        return View(state[None] / 25, jnp.ones((1, 2), bool), jnp.ones(1, bool), {})

    def global_state(self, state, env_params):
        return state[:1]


@struct.dataclass
class DepotParams:
    pay: float = 1.0


@dataclasses.dataclass(frozen=True)
class Depot(Environment):
    """Every agent is always free to take an order; ``orders`` of them arrive in each of four decisions, worth ``pay`` each.

    With more orders than agents an agent adds ``pay`` per decision to what all earn; with fewer orders than agents, nothing.
    """

    agents: int = 1
    orders: int = 1
    duration: int = 4
    action_space = property(lambda self: Discrete(self.orders + 1))
    num_agents = property(lambda self: self.agents)
    noop = property(lambda self: self.orders)
    afterstates = True

    @property
    def observation_space(self):
        by_action = (self.orders + 1,)
        return {"reward": Box(by_action), "decisions": Box(by_action), "features": Box((*by_action, 1))}

    @property
    def default_params(self):
        return DepotParams()

    def max_episode_steps(self, env_params):
        return self.duration

    def initial(self, key, env_params):
        return jnp.zeros((), jnp.int32)

    def transition(self, key, state, action, env_params):
        taken = (action[:, None] == jnp.arange(self.orders)) & (jnp.cumsum(action[:, None] == jnp.arange(self.orders), 0) == 1)
        return state + 1, Outcome(env_params.pay * jnp.any(taken, 1), jnp.array(False), state + 1 >= self.duration)

    def observe(self, state, env_params):
        by_action = jnp.ones((self.agents, self.orders + 1))
        reward = env_params.pay * by_action.at[:, -1].set(0.0)
        obs = {
            "reward": reward,
            "decisions": jnp.maximum(self.duration - 1.0 - state, 0.0) * by_action,
            "features": by_action[..., None],
        }
        return View(obs, by_action > 0, jnp.ones(self.agents, bool), {})

    def global_state(self, state, env_params):
        return state[None].astype(jnp.float32)
