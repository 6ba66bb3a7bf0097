"""Many instances of an environment in one array program, restarting by themselves."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.custom_batching import custom_vmap

from marljax.core.environment import Environment, checked_action
from marljax.core.types import EnvParams, Outcome, TimeStep, timestep, with_persistent, without_persistent
from marljax.errors import UserError, short_repr
from marljax.utils.validation import is_integer

NO_LIMIT = 2**31 - 1  # steps; longer than any episode


class VecState(struct.PyTreeNode):
    """States of E instances and the running figures of their episodes."""

    env: Any  # the environment's own state, leading [E]
    ended: jax.Array  # [E] bool: the last timestep ended an episode; the next step starts another
    returns: jax.Array  # [E, A] sum of rewards so far
    present: jax.Array  # [E, A] bool: alive at some time in this episode
    length: jax.Array  # [E] int32 steps so far
    limit: jax.Array  # [E] int32 steps after which this episode is cut off, if it still runs; NO_LIMIT but in ``staggered`` ones


@dataclasses.dataclass(frozen=True)
class VecEnv:
    """E instances that share env_params; made by ``vectorize``.

    An episode restarts on the *next* step: the timestep that ends it carries its final observation, and the step after ignores
    the action and returns the first timestep of a new episode (``first``, reward 0). Every observation is computed once, and the
    value of a final observation comes out of an ordinary rollout; the cost is one masked step per episode (``TimeStep.acting``).

    The metrics gain ``length`` (steps) and ``return``: the sum of an agent's rewards, averaged over the agents ever present.
    Where agents compete there is one per team, ``return_0``, ``return_1``, …. Where an environment reports a ``return`` of its
    own, as published for its task, that sum is ``reward_sum``.
    """

    env: Environment
    num_envs: int

    def reset(self, key: jax.Array, env_params: EnvParams | None = None) -> tuple[VecState, TimeStep]:
        """First timesteps of E episodes; every field gains a leading [E]."""
        env_params = self.env.resolve_params(env_params)
        keys = jax.random.split(key, self.num_envs)
        return jax.vmap(self._reset, in_axes=(0, None))(keys, env_params)

    def step(
        self, key: jax.Array, state: VecState, action: jax.Array, env_params: EnvParams | None = None
    ) -> tuple[VecState, TimeStep]:
        """One step of every instance; ``action`` is [E, A, …], another shape raises ``UserError``."""
        action = checked_action(self.env, action, self.num_envs)
        env_params = self.env.resolve_params(env_params)
        keys = jax.vmap(jax.random.split, out_axes=1)(jax.random.split(key, self.num_envs))
        moved, outcome = jax.vmap(self.env.transition, in_axes=(0, 0, 0, None))(keys[1], state.env, action, env_params)

        ended = with_persistent(state.env, moved)
        env_state = self._auto_reset(state.ended, keys[0], ended, without_persistent(moved), env_params)
        env_state = with_persistent(env_state, moved)
        return jax.vmap(self._finish_step, in_axes=(0, 0, 0, None))(state, env_state, outcome, env_params)

    def staggered(self, key: jax.Array, state: VecState, longest: jax.Array | int) -> VecState:
        """First episodes that are cut off after 1 to ``max_episode_steps`` steps, at random; ``state`` is as ``reset`` gives it.

        Without it instances whose episodes last equally long are always at the same moment of them, and a rollout that is shorter
        than an episode shows a learner now only starts and now only ends.
        """
        return state.replace(limit=jax.random.randint(key, (self.num_envs,), 1, jnp.asarray(longest, jnp.int32) + 1))

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
            limit=jnp.full((), NO_LIMIT, jnp.int32),
        )
        outcome = Outcome(jnp.zeros(num_agents), jnp.array(False), jnp.array(False))
        return self._observe(blank, outcome, jnp.array(True), env_params)

    def _auto_reset(self, begins: jax.Array, keys: jax.Array, ended: Any, moved: Any, env_params: EnvParams) -> Any:
        """``moved``, but new states where an episode ``begins`` [E]; lasting parts are None.

        Where all instances end together, which those of a fixed length do, nearly every step does without new states. Not under
        vmap, as over seeds: there JAX would compute both branches, and cannot do so for what ``batch_last`` wraps.
        """

        def renewed(begins: jax.Array, keys: jax.Array, ended: Any, moved: Any, env_params: EnvParams) -> Any:
            fresh = without_persistent(jax.vmap(self.env.restart, in_axes=(0, 0, None))(keys, ended, env_params))
            return jax.vmap(_where)(begins, fresh, moved)

        @custom_vmap
        def alone(*given: Any) -> Any:
            return jax.lax.cond(jnp.any(given[0]), renewed, lambda *given: given[3], *given)

        @alone.def_vmap
        def _(axis_size: int, in_batched: list, *given: Any) -> tuple[Any, Any]:
            del axis_size
            axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
            result = jax.vmap(renewed, in_axes=tuple(axes))(*given)
            return result, jax.tree.map(lambda _: True, result)

        return alone(begins, keys, ended, moved, env_params)

    def _finish_step(self, state: VecState, env_state: Any, outcome: Outcome, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        """One instance after its step; ``state`` is from before it."""
        begins = state.ended
        continues = ~begins
        length = jnp.where(begins, 0, state.length + 1)
        truncated = outcome.truncated | (length >= state.limit) & ~outcome.terminated
        outcome = Outcome(outcome.reward * continues, outcome.terminated & continues, truncated & continues)
        state = VecState(
            env=env_state,
            ended=outcome.terminated | outcome.truncated,
            returns=jnp.where(begins, 0.0, state.returns + outcome.reward),
            present=state.present & continues,
            length=length,
            limit=jnp.where(begins, NO_LIMIT, state.limit),
        )
        return self._observe(state, outcome, begins, env_params)

    def _observe(self, state: VecState, outcome: Outcome, first: jax.Array, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        view = self.env.observe(state.env, env_params)
        state = state.replace(present=state.present | view.alive)
        seen = timestep(view, outcome, first)
        return state, seen.replace(metrics=view.metrics | self._episode_metrics(state, "return" in view.metrics))

    def _episode_metrics(self, state: VecState, has_return: bool) -> dict[str, jax.Array]:
        teams, name = self.env.teams, "reward_sum" if has_return else "return"
        metrics = {"length": state.length.astype(jnp.float32)}
        for team in sorted(set(teams)):
            present = state.present & jnp.array([member == team for member in teams])
            mean = jnp.sum(state.returns * present) / jnp.maximum(jnp.sum(present), 1)
            metrics[f"{name}_{team}" if self.env.competitive else name] = mean
        return metrics


def vectorize(env: Environment, num_envs: int) -> VecEnv:
    """E instances of ``env`` that restart by themselves: see ``VecEnv``.

    Raises:
        UserError: for what is no environment, and where ``num_envs`` is no integer of at least 1.
    """
    if not isinstance(env, Environment):
        raise UserError(f"vectorize got {short_repr(env)}; give an environment, such as marljax.make('merge')")
    if not is_integer(num_envs) or num_envs < 1:
        raise UserError(f"vectorize got num_envs={short_repr(num_envs)}; give how many instances, an integer of at least 1")
    return VecEnv(env, num_envs)


def _where(condition: jax.Array, chosen: Any, other: Any) -> Any:
    """``jnp.where`` of trees."""
    return jax.tree.map(lambda one, another: jnp.where(condition, one, another), chosen, other)
