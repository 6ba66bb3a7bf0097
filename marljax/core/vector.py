"""Many instances of an environment in one array program, with automatic resets."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.custom_batching import custom_vmap

from marljax.core.environment import Environment, checked_action
from marljax.core.types import EnvParams, Outcome, TimeStep, timestep, with_persistent, without_persistent
from marljax.errors import UserError, short_repr
from marljax.utils.batching import first_axis_minor, select
from marljax.utils.validation import is_integer

NO_LIMIT = 2**31 - 1  # steps; longer than any episode


class VecState(struct.PyTreeNode):
    """States of E instances and statistics of their episodes."""

    env: Any  # the environment's own state, leading [E]
    ended: jax.Array  # [E] bool: the last timestep ended an episode; the next step starts another
    returns: jax.Array  # [E, A] sum of rewards so far
    present: jax.Array  # [E, A] bool: has been alive in this episode
    length: jax.Array  # [E] int32 steps so far
    limit: jax.Array  # [E] int32 steps after which this episode is truncated; NO_LIMIT unless ``staggered``


@dataclasses.dataclass(frozen=True)
class VecEnv:
    """E instances that share env_params; created by ``vectorize``.

    An episode restarts on the *next* step: the timestep that ends it carries its final observation, and the following step
    ignores the action and returns the first timestep of a new episode (``first``, reward 0). So every observation is computed
    once, and values of final observations come from an ordinary rollout, at the cost of one masked step per episode
    (``TimeStep.acting``).

    The metrics gain ``length`` (steps) and ``return``: the sum of an agent's rewards, averaged over the agents that were ever
    present. Where teams compete there is one per team: ``return_0``, ``return_1``, …. Where an environment reports its own
    ``return``, as published for its task, that sum is called ``reward_sum``.
    """

    env: Environment
    num_envs: int

    def reset(self, key: jax.Array, env_params: EnvParams | None = None) -> tuple[VecState, TimeStep]:
        """First timesteps of E episodes; every field gains a leading [E]."""
        env_params = self.env.resolve_params(env_params)

        def reset_one(key: jax.Array) -> tuple[VecState, TimeStep]:
            num_agents = self.env.num_agents
            state = VecState(
                env=self.env.initial(key, env_params),
                ended=jnp.array(False),
                returns=jnp.zeros(num_agents),
                present=jnp.zeros(num_agents, bool),
                length=jnp.zeros((), jnp.int32),
                limit=jnp.full((), NO_LIMIT, jnp.int32),
            )
            outcome = Outcome(jnp.zeros(num_agents), jnp.array(False), jnp.array(False))
            return self._observe(state, outcome, jnp.array(True), env_params)

        return jax.vmap(reset_one)(jax.random.split(key, self.num_envs))

    def step(
        self, key: jax.Array, state: VecState, action: jax.Array, env_params: EnvParams | None = None
    ) -> tuple[VecState, TimeStep]:
        """One step of every instance; ``action`` is [E, A, …], any other shape raises ``UserError``."""
        action = checked_action(self.env, action, self.num_envs)
        env_params = self.env.resolve_params(env_params)
        keys = jax.vmap(jax.random.split, out_axes=1)(jax.random.split(key, self.num_envs))
        next_state, outcome = jax.vmap(self.env.transition, in_axes=(0, 0, 0, None))(keys[1], state.env, action, env_params)

        previous = with_persistent(state.env, next_state)
        env_state = self._auto_reset(state.ended, keys[0], previous, without_persistent(next_state), env_params)
        env_state = with_persistent(env_state, next_state)
        return jax.vmap(self._finish_step, in_axes=(0, 0, 0, None))(state, env_state, outcome, env_params)

    def carried(self, state: VecState) -> VecState:
        """``state`` as a loop around ``step`` should carry it: laid out in memory as the environment computes with it.

        Values and shapes stay. Only for what a loop carries, never for a program's results: see ``first_axis_minor``.
        """
        if not self.env.instances_last:
            return state
        return state.replace(env=jax.tree.map(lambda leaf: first_axis_minor(leaf) if leaf.ndim > 1 else leaf, state.env))

    def staggered(self, key: jax.Array, state: VecState, longest: jax.Array | int) -> VecState:
        """Truncates the first episodes after 1 to ``longest`` steps, at random; ``state`` is the one that ``reset`` returns.

        Otherwise instances with episodes of equal length stay in phase, and rollouts shorter than an episode contain only
        starts or only ends.
        """
        return state.replace(limit=jax.random.randint(key, (self.num_envs,), 1, jnp.asarray(longest, jnp.int32) + 1))

    def global_state(self, state: VecState, env_params: EnvParams) -> jax.Array:
        """[E, G] for centralised critics."""
        return jax.vmap(self.env.global_state, in_axes=(0, None))(state.env, env_params)

    def _auto_reset(self, starts: jax.Array, keys: jax.Array, previous: Any, continued: Any, env_params: EnvParams) -> Any:
        """``continued``, replaced by new states where an episode ``starts`` [E]; persistent parts are None.

        Where all instances end together, as those of a fixed length do, nearly every step on a CPU skips the new states; on
        accelerators computing them takes fewer kernels than a branch. Not under vmap, as over seeds: there JAX would compute
        both branches, and cannot do so for what ``batch_last`` wraps.
        """

        def replace_started(starts: jax.Array, keys: jax.Array, previous: Any, continued: Any, env_params: EnvParams) -> Any:
            fresh = without_persistent(jax.vmap(self.env.restart, in_axes=(0, 0, None))(keys, previous, env_params))
            return jax.vmap(select)(starts, fresh, continued)

        @custom_vmap
        def skip_if_none_start(*args: Any) -> Any:
            return jax.lax.platform_dependent(*args, cpu=on_cpu, default=replace_started)

        def on_cpu(*args: Any) -> Any:
            return jax.lax.cond(jnp.any(args[0]), replace_started, lambda *args: args[3], *args)

        @skip_if_none_start.def_vmap
        def _(axis_size: int, in_batched: list, *args: Any) -> tuple[Any, Any]:
            axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
            result = jax.vmap(replace_started, in_axes=tuple(axes))(*args)
            return result, jax.tree.map(lambda _: True, result)

        return skip_if_none_start(starts, keys, previous, continued, env_params)

    def _finish_step(self, state: VecState, env_state: Any, outcome: Outcome, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        """One instance after its step; ``state`` is from before it."""
        starts = state.ended
        continues = ~starts
        length = jnp.where(starts, 0, state.length + 1)
        truncated = outcome.truncated | (length >= state.limit) & ~outcome.terminated
        outcome = Outcome(outcome.reward * continues, outcome.terminated & continues, truncated & continues)
        state = VecState(
            env=env_state,
            ended=outcome.terminated | outcome.truncated,
            returns=jnp.where(starts, 0.0, state.returns + outcome.reward),
            present=state.present & continues,
            length=length,
            limit=jnp.where(starts, NO_LIMIT, state.limit),
        )
        return self._observe(state, outcome, starts, env_params)

    def _observe(self, state: VecState, outcome: Outcome, first: jax.Array, env_params: EnvParams) -> tuple[VecState, TimeStep]:
        view = self.env.observe(state.env, env_params)
        state = state.replace(present=state.present | view.alive)
        teams, name = self.env.teams, "reward_sum" if "return" in view.metrics else "return"
        metrics = view.metrics | {"length": state.length.astype(jnp.float32)}
        for team in sorted(set(teams)):
            present = state.present & jnp.array([agent_team == team for agent_team in teams])
            mean = jnp.sum(state.returns * present) / jnp.maximum(jnp.sum(present), 1)
            metrics[f"{name}_{team}" if self.env.competitive else name] = mean
        return state, timestep(view._replace(metrics=metrics), outcome, first)


def vectorize(env: Environment, num_envs: int) -> VecEnv:
    """``num_envs`` instances of ``env`` with automatic resets: see ``VecEnv``.

    Raises:
        UserError: if ``env`` is not an environment, or ``num_envs`` not an integer of at least 1.
    """
    if not isinstance(env, Environment):
        raise UserError(f"vectorize got {short_repr(env)}; give an environment, such as marljax.make('merge')")
    if not is_integer(num_envs) or num_envs < 1:
        raise UserError(f"vectorize got num_envs={short_repr(num_envs)}; give the number of instances, an integer of at least 1")
    return VecEnv(env, num_envs)
