"""Interaction of policies and environments: the state of a training run, and one rollout."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Environment
from marljax.core.types import REPLAYED, EnvParams, TimeStep, flat_observation
from marljax.core.vector import NO_LIMIT, VecEnv, VecState
from marljax.errors import UserError
from marljax.utils import collectives

MAX_PACKED_SIZE = 32  # elements per environment up to which an array is small


class Actors(struct.PyTreeNode):
    """The sharded part of a training run: E environments and the recurrent states of their agents."""

    env_state: VecState  # [E, …]
    timestep: TimeStep  # [E, …]
    carry: Any  # recurrent state [E, A, H] of each network, () without one; QMIX adds its replay buffer


class Learner(struct.PyTreeNode):
    """The part that every shard of the data axis holds a copy of."""

    params: Any  # everything that a policy needs: network parameters and normalisation statistics
    opt_state: Any
    updates: jax.Array  # [] int32, updates done
    key: jax.Array
    env_params: EnvParams


class TrainState(NamedTuple):
    """The whole state of a training run: resuming from it is bit for bit as if the run had never stopped."""

    learner: Learner
    actors: Actors


class Step(NamedTuple):
    """Environment outputs of a step, the part of a rollout that does not depend on the policy. Leading [T, E]."""

    reward: jax.Array  # [T, E, A] of the transition out of each timestep
    alive: jax.Array  # [T, E, A] bool after it
    terminated: jax.Array  # [T, E] bool: nothing follows
    cut: jax.Array  # [T, E] bool: an episode ended there, terminated or truncated

    def with_death_masking(self, alive: jax.Array, teams: Sequence[int]) -> "Step":
        """The same with agents that stay in the episode after their death and share what their team earns.

        In the spirit of death masking (Yu et al. 2022), which also replaces the inputs of the dead; here they stay.
        ``alive`` [T, E, A] is that of the timesteps in which actions were taken. Dead agents earn the mean reward of their
        living team-mates, and their values go on; only where a new agent takes over the slot does nothing follow.
        """
        team = jnp.array(teams)
        same_team = (team[:, None] == team).astype(self.reward.dtype)
        team_reward, living = (self.reward * alive) @ same_team, alive @ same_team
        reward = jnp.where(alive, self.reward, team_reward / jnp.maximum(living, 1.0))
        return self._replace(reward=reward, alive=alive | ~self.alive)


Policy = Callable[[jax.Array, VecState, TimeStep, Any], tuple[jax.Array, Any, Any]]


def collect(
    vec: VecEnv, env_params: EnvParams, policy: Policy, actors: Actors, key: jax.Array, length: int
) -> tuple[Actors, Any, Step, dict[str, jax.Array]]:
    """Runs ``policy`` for ``length`` steps in every environment.

    ``policy(key, env_state, timestep, carry)`` returns (action [E, A, …], carry, record). The records come back stacked [T, E,
    …], with the ``Step`` after each, and sums over the episodes that ended: their number ``episodes`` and ``sum_<metric>``; see
    ``episode_metrics``.

    Raises:
        UserError: for an environment with a metric named ``episodes``.
    """
    if "episodes" in actors.timestep.metrics:
        raise UserError(f"the metric 'episodes' of {type(vec.env).__name__} hides the number of episodes; rename it")

    unpack: Callable[[list[jax.Array]], Any] = tuple

    def advance(scanned: tuple[Actors, jax.Array], keys: jax.Array) -> tuple[Any, list[jax.Array]]:
        nonlocal unpack
        actors, sums = scanned
        key_policy, key_step = keys
        action, carry, record = policy(key_policy, actors.env_state, actors.timestep, actors.carry)
        env_state, timestep = vec.step(key_step, actors.env_state, action, env_params)
        step = Step(timestep.reward, timestep.alive, timestep.terminated, timestep.last)
        arrays, unpack = packed((record, step), vec.num_envs)
        return (Actors(vec.carried(env_state), timestep, carry), sums + episode_metrics(timestep, env_state)), arrays

    names = ["episodes", *(f"sum_{name}" for name in sorted(actors.timestep.metrics))]
    keys, sums = jax.random.split(key, (length, 2)), jnp.zeros((len(names), vec.num_envs))
    (actors, sums), arrays = jax.lax.scan(advance, (actors, sums), keys)
    records, steps = unpack(arrays)
    return actors, records, steps, dict(zip(names, collectives.total(jnp.sum(sums, axis=1)), strict=True))


def packed(tree: Any, num_envs: int) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Any]]:
    """The leaves of a tree, small ones [E, …] of each type side by side in one array, and the function that unpacks these with
    leading [T].

    On an accelerator each array that a scan stores is a kernel more per step.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    shapes = [leaf.shape for leaf in leaves]
    sizes = [math.prod(shape[1:]) for shape in shapes]
    groups: dict[Any, list[int]] = {}  # numbers of leaves
    for number, leaf in enumerate(leaves):
        small = leaf.shape[:1] == (num_envs,) and sizes[number] <= MAX_PACKED_SIZE
        groups.setdefault(leaf.dtype if small else number, []).append(number)

    def pack(group: list[int]) -> jax.Array:
        if len(group) == 1:
            return leaves[group[0]]
        return jnp.concatenate([leaves[number].reshape(num_envs, -1) for number in group], axis=-1)

    def unpack(arrays: list[jax.Array]) -> Any:
        found: dict[int, jax.Array] = {}
        for group, array in zip(groups.values(), arrays, strict=True):
            ends = np.cumsum([sizes[number] for number in group])[:-1]
            found |= zip(group, jnp.split(array, ends, axis=-1) if len(group) > 1 else [array], strict=True)
        return jax.tree.unflatten(
            structure, [found[number].reshape(len(found[number]), *shape) for number, shape in enumerate(shapes)]
        )

    return [pack(group) for group in groups.values()], unpack


def over_time(network: Callable[[Any, Any], tuple[Any, Any]], inputs: Any, carry: Any) -> tuple[Any, Any]:
    """``network(inputs, carry)`` of a whole rollout: the recurrent state after it and outputs, from inputs [T, …] and the state
    before. In one pass, except on a CPU, whose caches hold the layers of one step but not of all."""

    def step_by_step(inputs: Any, carry: Any) -> tuple[Any, Any]:
        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            carry, outputs = network(jax.tree.map(lambda x: x[None], row), carry)
            return carry, jax.tree.map(lambda x: x[0], outputs)

        return jax.lax.scan(step, carry, inputs)

    return jax.lax.platform_dependent(inputs, carry, cpu=step_by_step, default=network)


def episode_metrics(timestep: TimeStep, env_state: VecState) -> jax.Array:
    """1 and the metrics, in order of names, of the episodes that end in this timestep, else 0: [metrics, E].

    Episodes that were replayed from a later state are included in the sum of ``replayed`` only, which is their number. The first
    episodes of staggered instances are left out: those cut off would be missing.
    """
    values = jnp.stack([jnp.ones(timestep.last.shape), *(timestep.metrics[name] for name in sorted(timestep.metrics))])
    included = ends = timestep.last & (env_state.limit == NO_LIMIT)
    if REPLAYED in timestep.metrics:
        row = 1 + sorted(timestep.metrics).index(REPLAYED)
        fresh = timestep.metrics[REPLAYED] == 0
        included = ends & (fresh | (jnp.arange(len(values)) == row)[:, None])
    return jnp.where(included, values, 0.0)


def start(vec: VecEnv, env_params: EnvParams, key: jax.Array, carry: Any, stagger: bool = False) -> Actors:
    """Actors at the first timestep of their first episodes, under the params that a run begins with.

    ``stagger`` truncates these episodes at random steps (``VecEnv.staggered``) and needs an environment that knows how long an
    episode lasts.
    """
    env_params = vec.env.anneal(env_params, jnp.zeros(()))
    if not stagger:
        return Actors(*vec.reset(key, env_params), carry)
    longest = vec.env.max_episode_steps(env_params)
    if longest is None:
        raise UserError(
            f"stagger=true takes an environment with a known episode length, unlike {type(vec.env).__name__}; omit it"
        )
    key_reset, key_stagger = jax.random.split(key)
    env_state, timestep = vec.reset(key_reset, env_params)
    return Actors(vec.staggered(key_stagger, env_state, longest), timestep, carry)


class Inputs(NamedTuple):
    """Network inputs of a timestep. Leading [T, E]; T = 1 in a rollout."""

    obs: jax.Array  # [T, E, A, O]
    action_mask: jax.Array  # [T, E, A, n]
    first: jax.Array  # [T, E, A] bool: first timestep of an episode
    alive: jax.Array  # [T, E, A] bool
    time: Any = ()  # [T, E, A, 1] elapsed share of the longest possible episode, for critics
    state: Any = ()  # [T, E, G] global state, for central critics and mixing networks

    @classmethod
    def of(cls, timestep: TimeStep) -> "Inputs":
        """Those of a timestep of E environments, T = 1."""
        first = jnp.broadcast_to(timestep.first[:, None], timestep.alive.shape)
        obs = flat_observation(timestep.obs, timestep.alive.shape)
        return jax.tree.map(lambda x: x[None], cls(obs, timestep.action_mask, first, timestep.alive))

    def with_time(self, env: Environment, env_params: EnvParams, timestep: TimeStep) -> "Inputs":
        """The same with the elapsed time of the episodes, where the environment knows how long one may last.

        Where a step limit ends episodes, the remaining return depends on the time (Pardo et al. 2018, "Time Limits in
        Reinforcement Learning"). A critic without it infers the time from whatever changes in the course of an episode, such as
        how far agents have gone, and advantages bootstrapped from its values then reward that change.
        """
        longest = env.max_episode_steps(env_params)
        if longest is None or REPLAYED in timestep.metrics:  # replayed episodes begin anywhere: their length is not the time
            return self
        elapsed = (timestep.metrics["length"] / longest)[None, :, None, None]
        return self._replace(time=jnp.broadcast_to(elapsed, (*self.alive.shape, 1)))
