"""Many instances of an environment in one array program, restarting by themselves."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from marljax.environment import Environment, EnvParams, Lasting, Outcome, TimeStep, checked_action, timestep


class VecState(struct.PyTreeNode):
    """States of E instances and the running figures of their episodes."""

    env: Any  # the environment's own state, leading [E]
    ended: jax.Array  # [E] bool: the last timestep ended an episode; the next step starts another
    returns: jax.Array  # [E, A] sum of rewards so far
    present: jax.Array  # [E, A] bool: alive at some time in this episode
    length: jax.Array  # [E] int32 steps so far


@dataclasses.dataclass(frozen=True)
class VecEnv:
    """E instances that share env_params; made by ``vectorize``.

    An episode restarts on the *next* step: the timestep that ends it carries its final observation, and the step after ignores
    the action and returns the first timestep of a new episode (``first``, reward 0). Every observation is computed once, and the
    value of a final observation comes out of an ordinary rollout; the cost is one masked step per episode (``TimeStep.acting``).

    The metrics gain ``length`` (steps) and ``return``: the sum of an agent's rewards, averaged over the agents ever present.
    Where agents compete there is one return per team, ``return_0``, ``return_1``, ….
    """

    env: Environment
    num_envs: int

    def reset(self, key: jax.Array, env_params: EnvParams | None = None) -> tuple[VecState, TimeStep]:
        """First timesteps of E episodes; every field gains a leading [E]."""
        env_params = self.env.numbers(env_params)
        keys = jax.random.split(key, self.num_envs)
        return jax.vmap(self._reset, in_axes=(0, None))(keys, env_params)

    def step(
        self, key: jax.Array, state: VecState, action: jax.Array, env_params: EnvParams | None = None
    ) -> tuple[VecState, TimeStep]:
        """One step of every instance; ``action`` is [E, A, …], another shape raises ``UserError``."""
        action = checked_action(self.env, action, self.num_envs)
        env_params = self.env.numbers(env_params)
        keys = jax.random.split(key, self.num_envs)
        return jax.vmap(self._step, in_axes=(0, 0, 0, None))(keys, state, action, env_params)

    def global_state(self, state: VecState, env_params: EnvParams) -> jax.Array:
        """[E, G] for centralised critics."""
        return jax.vmap(self.env.global_state, in_axes=(0, None))(state.env, env_params)

    def _reset(self, key: jax.Array, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        num_agents = self.env.num_agents
        env_state = self.env.initial(key, env_params)
        blank = VecState(
            env=env_state,
            ended=jnp.array(False),
            returns=jnp.zeros(num_agents),
            present=jnp.zeros(num_agents, bool),
            length=jnp.zeros((), jnp.int32),
        )
        outcome = Outcome(jnp.zeros(num_agents), jnp.array(False), jnp.array(False))
        return self._look(blank, outcome, jnp.array(True), env_params)

    def _step(self, key: jax.Array, state: VecState, action: jax.Array, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        key_initial, key_transition = jax.random.split(key)
        moved, outcome = self.env.transition(key_transition, state.env, action, env_params)
        fresh = self.env.restart(key_initial, _with_lasting(state.env, moved), env_params)
        begins = state.ended
        continues = ~begins
        env_state = _map_unless_lasting(lambda new, old: jnp.where(begins, new, old), fresh, moved)
        outcome = Outcome(outcome.reward * continues, outcome.terminated & continues, outcome.truncated & continues)
        state = VecState(
            env=env_state,
            ended=outcome.terminated | outcome.truncated,
            returns=jnp.where(begins, 0.0, state.returns + outcome.reward),
            present=state.present & continues,
            length=jnp.where(begins, 0, state.length + 1),
        )
        return self._look(state, outcome, begins, env_params)

    def _look(self, state: VecState, outcome: Outcome, first: jax.Array, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        view = self.env.observe(state.env, env_params)
        state = state.replace(present=state.present | view.alive)
        seen = timestep(view, outcome, first)
        return state, seen.replace(metrics=view.metrics | self._episode_metrics(state))

    def _episode_metrics(self, state: VecState) -> dict[str, jax.Array]:
        teams = self.env.teams
        metrics = {"length": state.length.astype(jnp.float32)}
        for team in sorted(set(teams)):
            present = state.present & jnp.array([member == team for member in teams])
            mean = jnp.sum(state.returns * present) / jnp.maximum(jnp.sum(present), 1)
            metrics[f"return_{team}" if self.env.competitive else "return"] = mean
        return metrics


def _with_lasting(state: Any, moved: Any) -> Any:
    """``state`` with the lasting parts of ``moved``."""
    return _map_unless_lasting(lambda old, _: old, state, moved)


def _map_unless_lasting(function: Callable[..., Any], tree: Any, moved: Any) -> Any:
    """``function(leaf, leaf of moved)``; lasting parts are those of ``moved``."""

    def apply(part: Any, other: Any) -> Any:
        return other if isinstance(other, Lasting) else function(part, other)

    return jax.tree.map(apply, tree, moved, is_leaf=lambda part: isinstance(part, Lasting))


def vectorize(env: Environment, num_envs: int) -> VecEnv:
    """E instances of ``env`` that restart by themselves: see ``VecEnv``."""
    return VecEnv(env, num_envs)
