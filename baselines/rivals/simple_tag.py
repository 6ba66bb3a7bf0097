"""The cooperative side of JaxMARL's MPE simple_tag: three predators that learn, and a prey that follows a script.

In simple_tag both sides learn, which leaves nothing to compare learners by. JaxMARL's own predators and scripted prey
(``MPE_simple_facmac_v1``) take continuous actions only, which no Q-learner can. So here the prey of ``MPE_simple_tag_v3`` plays a
script in both libraries: ``Predators`` keeps JaxMARL's API, and ``Chase`` is the same object behind our adapter.

Axis letters: P predators.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxmarl.environments import SimpleTagMPE
from jaxmarl.environments.multi_agent_env import MultiAgentEnv

from marljax import registry
from marljax.wrappers.jaxmarl_families import WrappedEnv, wrapped_env

TAG = "MPE_simple_tag_v3"
PREY = "agent_0"
AHEAD = 0.3  # how far the prey looks along each action; its largest step is 0.13
RANDOM = 0.5  # share of its actions that are random; without them it is hardly ever caught: it is faster than its predators
BOUND = 0.9  # where simple_tag begins to punish a prey for leaving
DIRECTIONS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))  # of simple_tag's actions, in their order


class Predators(MultiAgentEnv):
    """simple_tag whose agents are its predators; they share a reward of 10 per step and predator that touches the prey."""

    def __init__(self) -> None:
        self.tag = SimpleTagMPE()
        super().__init__(self.tag.num_adversaries)
        self.agents = list(self.tag.adversaries)
        self.max_steps = self.tag.max_steps
        self.observation_spaces = {agent: self.tag.observation_spaces[agent] for agent in self.agents}
        self.action_spaces = {agent: self.tag.action_spaces[agent] for agent in self.agents}

    def reset(self, key: jax.Array) -> tuple[dict[str, jax.Array], Any]:  # type: ignore[override]
        obs, state = self.tag.reset(key)
        return self._own(obs), state

    def step_env(self, key: jax.Array, state: Any, actions: dict[str, jax.Array]) -> tuple[Any, ...]:
        key_prey, key_step = jax.random.split(key)
        prey = play_prey(key_prey, state.p_pos[: self.num_agents], state.p_pos[self.num_agents])
        prey = prey.reshape(actions[self.agents[0]].shape)
        obs, state, reward, done, info = self.tag.step_env(key_step, state, {**actions, PREY: prey})
        return self._own(obs), state, self._own(reward), self._own(done) | {"__all__": done["__all__"]}, info

    def _own(self, values: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {agent: values[agent] for agent in self.agents}


def play_prey(key: jax.Array, predators: jax.Array, prey: jax.Array) -> jax.Array:
    """The prey's action: towards where the nearest predator is farthest, but not out of the arena; a share ``RANDOM`` of its
    actions is uniform.

    predators [P, 2], prey [2] → [] int32
    """
    key_whether, key_any = jax.random.split(key)
    anything = jax.random.randint(key_any, (), 0, len(DIRECTIONS))
    ahead = prey + AHEAD * jnp.array(DIRECTIONS)
    distance = jnp.linalg.norm(ahead[:, None] - predators, axis=-1).min(axis=-1)
    outside = jnp.maximum(jnp.abs(ahead) - BOUND, 0.0).sum(axis=-1)
    away = jnp.argmax(distance - 10.0 * outside).astype(anything.dtype)
    return jnp.where(jax.random.bernoulli(key_whether, RANDOM), anything, away)


@functools.cache
def chased() -> WrappedEnv:
    """What our adapter knows of ``Predators``."""
    tag, env = wrapped_env(TAG, ()), Predators()
    agents = range(env.num_agents)
    return dataclasses.replace(
        tag,
        env=env,
        agents=tuple(env.agents),
        obs_sizes=tuple(tag.obs_sizes[agent] for agent in agents),
        spaces=tuple(tag.spaces[agent] for agent in agents),
    )


@dataclasses.dataclass(frozen=True)
class Chase(registry.environment_class(f"jaxmarl/{TAG}")):  # type: ignore[misc]
    """``Predators`` through the adapter for JaxMARL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chased()  # which no trace can make

    @property
    def _wrapped(self) -> WrappedEnv:
        return chased()
