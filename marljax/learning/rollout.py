"""Interaction of policies and environments: the states that live on the accelerator, and one rollout of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import Environment
from marljax.core.types import REPLAYED, EnvParams, TimeStep, flat_observation
from marljax.core.vector import NO_LIMIT, VecEnv, VecState
from marljax.errors import UserError
from marljax.utils import collectives


class Actors(struct.PyTreeNode):
    """What is sharded over the data axis: E environments and what their agents remember."""

    env_state: VecState  # [E, …]
    timestep: TimeStep  # [E, …]
    carry: Any  # recurrent state [E, A, H] of each network, () where there is none; of QMIX its replay, too


class Learner(struct.PyTreeNode):
    """What is replicated over the data axis."""

    params: Any  # everything a policy needs: network parameters and normalisation statistics
    opt_state: Any
    updates: jax.Array  # [] int32, updates done
    key: jax.Array
    env_params: EnvParams


class TrainState(NamedTuple):
    """The whole state of a training run; saving it and going on gives the same numbers as never having stopped."""

    learner: Learner
    actors: Actors


class Step(NamedTuple):
    """What followed a decision: the part of a rollout that does not depend on the policy. Leading [T, E]."""

    reward: jax.Array  # [T, E, A] of the transition out of each timestep
    alive: jax.Array  # [T, E, A] bool after it
    terminated: jax.Array  # [T, E] bool: nothing follows
    cut: jax.Array  # [T, E] bool: an episode ended there, so nothing later belongs to it


Policy = Callable[[jax.Array, VecState, TimeStep, Any], tuple[jax.Array, Any, Any]]


def collect(
    vec: VecEnv, env_params: EnvParams, policy: Policy, actors: Actors, key: jax.Array, length: int
) -> tuple[Actors, Any, Step, dict[str, jax.Array]]:
    """Runs ``policy`` for ``length`` steps in every environment.

    ``policy(key, env_state, timestep, carry)`` returns (action [E, A, …], carry, record); the records come back stacked [T, E,
    …], beside the ``Step`` that followed each, and the figures of the episodes that ended: ``episodes`` (a count) and
    ``sum_<metric>``; see ``episode_figures``.
    """

    def advance(scanned: tuple[Actors, jax.Array], keys: jax.Array):
        actors, sums = scanned
        key_policy, key_step = keys
        action, carry, record = policy(key_policy, actors.env_state, actors.timestep, actors.carry)
        env_state, timestep = vec.step(key_step, actors.env_state, action, env_params)
        step = Step(timestep.reward, timestep.alive, timestep.terminated, timestep.last)
        return (Actors(env_state, timestep, carry), sums + episode_figures(timestep, env_state)), (record, step)

    names = ["episodes", *(f"sum_{name}" for name in sorted(actors.timestep.metrics))]
    keys = jax.random.split(key, (length, 2))
    (actors, sums), (records, steps) = jax.lax.scan(advance, (actors, jnp.zeros(len(names))), keys)
    return actors, records, steps, dict(zip(names, collectives.total(sums), strict=True))


def episode_figures(timestep: TimeStep, env_state: VecState) -> jax.Array:
    """Count and metric sums, in order of names, of the episodes that end in this timestep, over E.

    Episodes that did not start afresh stand in the sum of ``replayed`` alone, which is their number; the other sums and the count
    are those of the task as it is. The first episodes of staggered instances count nowhere, for those cut off would be missing.
    """
    values = jnp.stack([jnp.ones(timestep.last.shape), *(timestep.metrics[name] for name in sorted(timestep.metrics))])
    counted = ends = timestep.last & (env_state.limit == NO_LIMIT)
    if REPLAYED in timestep.metrics:
        row = 1 + sorted(timestep.metrics).index(REPLAYED)
        fresh = timestep.metrics[REPLAYED] == 0
        counted = ends & (fresh | (jnp.arange(len(values)) == row)[:, None])
    return jnp.where(counted, values, 0.0).sum(axis=1)


def annealed(env: Environment, learner: Learner, num_updates: int) -> EnvParams:
    """The environment's numbers for a learner's next update; its own stay those of the whole run."""
    return env.anneal(learner.env_params, learner.updates / num_updates)


def start(vec: VecEnv, env_params: EnvParams, key: jax.Array, carry: Any, stagger: bool = False) -> Actors:
    """Actors at the first timestep of their first episodes, with the numbers that a run begins with; with ``stagger`` these are
    ``VecEnv.staggered`` over the length of an episode, which the environment has to know."""
    env_params = vec.env.anneal(env_params, jnp.zeros(()))
    if not stagger:
        return Actors(*vec.reset(key, env_params), carry)
    longest = vec.env.max_episode_steps(env_params)
    if longest is None:
        raise UserError(f"stagger=true needs to know how long an episode of {type(vec.env).__name__} lasts; leave it out")
    key_reset, key_stagger = jax.random.split(key)
    env_state, timestep = vec.reset(key_reset, env_params)
    return Actors(vec.staggered(key_stagger, env_state, longest), timestep, carry)


class Inputs(NamedTuple):
    """Network inputs of a timestep. Leading [T, E]; T = 1 in a rollout."""

    obs: jax.Array  # [T, E, A, O]
    action_mask: jax.Array  # [T, E, A, n]
    first: jax.Array  # [T, E, A] bool: first timestep of an episode
    alive: jax.Array  # [T, E, A] bool
    time: Any = ()  # [T, E, A, 1] elapsed share of the longest possible episode, where critics see it
    state: Any = ()  # [T, E, G] global state, where a critic or a mixing network sees it

    @classmethod
    def of(cls, timestep: TimeStep) -> "Inputs":
        """Those of a timestep of E environments, T = 1."""
        first = jnp.broadcast_to(timestep.first[:, None], timestep.alive.shape)
        obs = flat_observation(timestep.obs, timestep.alive.shape)
        return jax.tree.map(lambda x: x[None], cls(obs, timestep.action_mask, first, timestep.alive))

    def with_time(self, env: Environment, env_params: EnvParams, timestep: TimeStep) -> "Inputs":
        """The same with the elapsed time of the episodes, where the environment knows how long one may last.

        Where a step limit ends episodes, the return that is left depends on the time (Pardo et al. 2018, "Time Limits in
        Reinforcement Learning"). A critic that does not see it reads it off whatever changes in the course of an episode, such
        as how far agents have gone, and advantages bootstrapped from its values then reward that change.
        """
        longest = env.max_episode_steps(env_params)
        if longest is None or REPLAYED in timestep.metrics:  # where episodes begin anywhere, their length is not the time
            return self
        share = (timestep.metrics["length"] / longest)[None, :, None, None]
        return self._replace(time=jnp.broadcast_to(share, (*self.alive.shape, 1)))


def check_no_items(env: Environment) -> None:
    """Raises ``UserError`` where agents choose among shared items: a vector per agent would hold all of them."""
    if env.items:
        raise UserError(
            f"agents of {type(env).__name__} choose among shared {env.items}, which only ospo scores one by one; "
            "choose another view, such as env.view=candidates"
        )
