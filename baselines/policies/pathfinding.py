"""Scripted policies for ``pathfinding``: every agent for itself, and PIBT, which is made for soft collisions (Okumura et al.
2022, "Priority Inheritance with Backtracking for Iterative Multi-Agent Path Finding"). They read the tables of distances, and
PIBT all agents' places.

Axis letters: A agents. The five candidates of an agent are its own cell and those above, below, left and right.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.pathfinding import Pathfinding, PathfindingState
from marljax.envs.pathfinding.pibt import best_first, plan
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy


@dataclasses.dataclass(frozen=True)
class Shortest:
    """A step on a shortest path, of several at random; after a refusal a random action (as POGEMA's ``AStarAgent``)."""

    env: Pathfinding

    def __call__(
        self, env_params: EnvParams, key: jax.Array, state: PathfindingState, timestep: TimeStep, carry: Any
    ) -> tuple[jax.Array, Any]:
        del timestep
        key_ties, key_random = jax.random.split(key)
        _, distance = candidates(self.env, key_ties, state, env_params)
        anywhere = jax.random.randint(key_random, (self.env.num_agents,), 0, self.env.action_space.n)
        return jnp.where(state.refused, anywhere, jnp.argmin(distance, axis=1)), carry


class Memory(NamedTuple):
    """What PIBT remembers."""

    priority: jax.Array  # [A] the higher, the earlier an agent chooses
    goal: jax.Array  # [A] the goals of the last step


@dataclasses.dataclass(frozen=True)
class Pibt:
    """An agent's priority grows by 1 with every step until it reaches its goal; ties are random."""

    env: Pathfinding

    @property
    def start(self) -> Memory:
        """The memory before an episode."""
        agents = self.env.num_agents
        return Memory(jnp.zeros(agents), jnp.zeros(agents, jnp.int32))

    def __call__(
        self, env_params: EnvParams, key: jax.Array, state: PathfindingState, timestep: TimeStep, carry: Memory
    ) -> tuple[jax.Array, Memory]:
        key_first, key_ties = jax.random.split(key)
        reached = env_params.tables.goals[state.map, carry.goal] == state.cell
        priority = jnp.where(reached, carry.priority % 1.0, carry.priority + 1.0)
        priority = jnp.where(timestep.first, jax.random.uniform(key_first, priority.shape), priority)
        cells, distance = candidates(self.env, key_ties, state, env_params)
        following = plan(state.cell, best_first(cells, distance), priority, state.alive)
        return jnp.argmax(cells == following[:, None], axis=1), Memory(priority, state.goal)


def candidates(env: Pathfinding, key: jax.Array, state: PathfindingState, env_params: EnvParams) -> tuple[jax.Array, jax.Array]:
    """[A, 5] cells by action, and their distances to the goal, ties in random order; blocked ones are infinitely far."""
    cells, distance = env.around(state, env_params.tables)
    return cells, distance + jax.random.uniform(key, cells.shape)


def scripted_policies(env: Pathfinding, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: shortest paths, PIBT, and random actions."""
    pibt = Pibt(env)
    return {
        "shortest": ScriptedPolicy(env, env_params, Partial(Shortest(env), env_params)),
        "pibt": ScriptedPolicy(env, env_params, Partial(pibt, env_params), pibt.start),
        "random": ScriptedPolicy(env, env_params, RandomPolicy(env)),
    }
