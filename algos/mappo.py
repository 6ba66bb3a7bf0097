"""MAPPO: PPO whose critic sees the global state (Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent
Games").

The actor is shared by the agents and sees local observations. ``python algos/mappo.py env=merge`` trains it.

Axis letters: T time, E environments, A agents, O observation, G global state.
"""

if __name__ == "__main__":  # as a command: before the imports, so that Ctrl-C ends those without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("mappo")


import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import static
from marljax.core.environment import Environment
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.learning import ppo, rollout
from marljax.learning.ppo import Carry
from marljax.learning.rollout import TrainState, annealed, collect, start
from marljax.nn.networks import CentralCritic, agent_ids, apply_per_agent, init_per_agent
from marljax.nn.networks import initial_carry as zero_carry
from marljax.nn.running_stats import RunningStats
from marljax.utils import collectives
from marljax.utils.validation import divide


class Config(ppo.ManyAgents, ppo.PPOConfig):
    """PPO's hyperparameters and what the critic sees of each agent besides the global state."""

    critic_features: str = static("observation", choices=("observation", "id", "both", "none"))  # per agent


class Params(NamedTuple):
    """Everything that a policy and its critic need."""

    actor: Any
    critic: Any
    obs_stats: ppo.ObsStats
    state_stats: RunningStats  # [G]
    value_stats: RunningStats  # []


class Inputs(NamedTuple):
    """What the networks see. Leading [T, E]."""

    local: rollout.Inputs  # [T, E, A, …]
    state: jax.Array  # [T, E, G]


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Fresh networks and environments; the learner's part is the same on every shard of the data axis."""
    rollout.refuse_items(env)
    key_actor, key_critic, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    shape = (vec.num_envs, env.num_agents)
    carry = Carry(*(zero_carry(config.core, config.hidden[-1], shape) for _ in Carry._fields))
    actors = start(vec, env_params, collectives.fold_data(key_reset), carry, config.stagger)
    inputs = see(env, config, env_params, actors.env_state, actors.timestep)
    params = init_params(env, config, inputs, key_actor, key_critic)
    return TrainState(ppo.new_learner(config, params, key_learner, env_params), actors)


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: a rollout, its advantages and returns, epochs of gradient steps."""
    learner, actors = state
    key_next, key_rollout, key_fit = jax.random.split(learner.key, 3)
    learner = learner.replace(key=key_next)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = annealed(env, learner, config.num_updates)

    # Collect.
    decide = functools.partial(rollout_policy, env, config, learner.params, env_params)
    carry = actors.carry
    key_rollout = collectives.fold_data(key_rollout)
    actors, records, steps, episodes = collect(vec, env_params, decide, actors, key_rollout, config.rollout_length)

    # Targets.
    inputs, last, sample, log_prob, value = records
    steps = steps._replace(reward=steps.reward * config.reward_scale)
    last_inputs = see(env, config, env_params, actors.env_state, actors.timestep)
    _, last_value = values(env, config, learner.params, last_inputs, actors.carry.critic)
    advantage, target = ppo.targets(config, env, learner.params, steps, inputs.local.alive, value, last_value[0])
    decides, valued = ppo.masks(config, env, inputs.local, last)
    batch = ppo.Batch(inputs, sample, log_prob, value, decides, valued, advantage, target)

    # Learn. Observation statistics change after the gradient steps, which must see what the rollout saw.
    if config.normalize_values:
        value_stats = learner.params.value_stats.updated(target, valued, config.value_horizon)
        learner = learner.replace(params=learner.params._replace(value_stats=value_stats))
    evaluate = functools.partial(evaluate_batch, env, config)
    learner, terms = ppo.fit(config, learner, batch, carry, evaluate, key_fit)
    if config.normalize_observations:
        learner = learner.replace(params=update_stats(env, config, learner.params, inputs, last))
    return TrainState(learner, actors), terms | ppo.extremes(steps, batch) | episodes


initial_carry = ppo.initial_carry
act = ppo.act_alone


def see(env: Environment, config: Config, env_params: EnvParams, env_state: VecState, timestep: TimeStep) -> Inputs:
    """What the networks see of the current timestep, T = 1."""
    state = vectorize(env, timestep.first.shape[0]).global_state(env_state, env_params)
    limit_ends = (env.limit_ends or not config.bootstrap_limit) and config.time_for_critic
    local = rollout.with_time(env, env_params, timestep, rollout.inputs_of(timestep), limit_ends)
    return Inputs(local, state[None])


def rollout_policy(
    env: Environment,
    config: Config,
    params: Params,
    env_params: EnvParams,
    key: jax.Array,
    env_state: VecState,
    timestep: TimeStep,
    carry: Carry,
) -> tuple[jax.Array, Carry, Any]:
    """Samples actions [E, A] and records what the update needs of the moment."""
    inputs = see(env, config, env_params, env_state, timestep)
    actor_carry, head = ppo.policy(env, config, params, inputs.local, carry.actor)
    critic_carry, value = values(env, config, params, inputs, carry.critic)
    sample = head.sample(key)
    record = jax.tree.map(lambda x: x[0], (inputs, timestep.last[None], sample, head.log_prob(sample), value))
    return head.action(sample)[0], Carry(actor_carry, critic_carry), record


def values(env: Environment, config: Config, params: Params, inputs: Inputs, carry: Any) -> tuple[Any, jax.Array]:
    """The critic's memory and values [T, E, A] as its head gives them."""
    state = params.state_stats.normalize(inputs.state) if config.normalize_observations else inputs.state
    seen = critic_features(env, config, params, inputs.local)
    carry, value = apply_per_agent(
        critic_network(env, config),
        params.critic,
        config.share_parameters,
        carry,
        (state,),
        seen,
        inputs.local.first,
        inputs.local.alive,
    )
    return carry, value


def critic_features(env: Environment, config: Config, params: Params, local: rollout.Inputs) -> jax.Array:
    """[T, E, A, F]: what tells one agent's value from another's."""
    parts = [jnp.zeros((*local.obs.shape[:-1], 0))]
    if config.critic_features in ("observation", "both"):
        parts.append(ppo.features(env, config, local.obs, params.obs_stats))
    if config.critic_features == "id" or (config.critic_features == "both" and not config.agent_id):  # which is an id already
        ids = agent_ids(local.obs.shape[2])
        parts.append(jnp.broadcast_to(ids, (*local.obs.shape[:-1], ids.shape[-1])))
    return ppo.and_time(jnp.concatenate(parts, -1), local)


def evaluate_batch(
    env: Environment, config: Config, params: Params, batch: ppo.Batch, carry: Carry, key: jax.Array
) -> ppo.Evaluation:
    """Replays the networks over a minibatch, with gradients."""
    _, head = ppo.policy(env, config, params, batch.inputs.local, carry.actor)
    _, value = values(env, config, params, batch.inputs, carry.critic)
    return ppo.Evaluation(head.log_prob(batch.sample), head.entropy(key), value)


def update_stats(env: Environment, config: Config, params: Params, inputs: Inputs, last: jax.Array) -> Params:
    """Joins a rollout's observations and global states, but those of final timesteps ``last`` [T, E], to their statistics."""
    obs_stats = ppo.updated_stats(env, config, params.obs_stats, inputs.local, last)
    return params._replace(obs_stats=obs_stats, state_stats=params.state_stats.updated(inputs.state, ~last))


def init_params(env: Environment, config: Config, inputs: Inputs, key_actor: jax.Array, key_critic: jax.Array) -> Params:
    """Fresh networks and statistics for inputs of this shape."""
    obs_stats = ppo.new_stats(env, config, inputs.local.obs.shape[-1])
    params = Params(None, None, obs_stats, RunningStats.create(inputs.state.shape[-1:]), RunningStats.create(()))
    count = None if config.share_parameters else env.num_agents
    carry = zero_carry(config.core, config.hidden[-1], inputs.local.alive.shape[1:])
    moment = (inputs.local.first, inputs.local.alive)
    seen = ppo.features(env, config, inputs.local.obs, params.obs_stats)
    actor = init_per_agent(ppo.actor_network(env, config), key_actor, count, carry, seen, *moment)
    seen = critic_features(env, config, params, inputs.local)
    critic = init_per_agent(critic_network(env, config), key_critic, count, carry, inputs.state, seen, *moment)
    return params._replace(actor=actor, critic=critic)


def critic_network(env: Environment, config: Config) -> CentralCritic:
    sizes = ppo.sizes(env, config)
    sees = config.critic_features in ("observation", "both")
    return CentralCritic(sizes if sees else sizes._replace(encoder=None))
