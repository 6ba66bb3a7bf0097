"""PPO (Schulman et al. 2017, "Proximal Policy Optimization Algorithms") for one agent, or for one controller of all agents.

Actor and critic see the same observations; they are two networks, or two heads of one. An environment of several agents is
controlled as one, ``marljax.joint(env)``: the controller sees the global state and chooses the actions of all, each under its
agent's mask. ``python algos/ppo.py env=merge`` trains it, and ``python algos/ppo.py env=gymnax env.name=CartPole-v1``.

Axis letters: T time, E environments, A agents (one; IPPO shares this file's loop), O observation.
"""

if __name__ == "__main__":  # as a command: before the imports, so that Ctrl-C ends those without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ppo")


import functools
from typing import Any, NamedTuple

import jax

from marljax.config.hyperparameters import static
from marljax.core.environment import Environment
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.errors import UserError
from marljax.learning import ppo, rollout
from marljax.learning.ppo import Carry
from marljax.learning.rollout import TrainState, annealed, collect, start
from marljax.nn.distributions import Distribution, distribution, num_outputs
from marljax.nn.networks import ActorCritic, Critic, apply_per_agent, init_per_agent
from marljax.nn.networks import initial_carry as zero_carry
from marljax.nn.running_stats import RunningStats
from marljax.utils import collectives
from marljax.utils.validation import divide
from marljax.wrappers.joint import joint

Inputs = rollout.Inputs


class Config(ppo.PPOConfig):
    """Hyperparameters of PPO."""

    share_body: bool = static(False)  # actor and critic are two heads of one network


class Params(NamedTuple):
    """Everything that a policy and its critic need."""

    actor: Any  # with ``share_body`` the whole network
    critic: Any
    obs_stats: ppo.ObsStats
    value_stats: RunningStats  # []


def present(env: Environment) -> Environment:
    """What the command line trains in: all agents of a team as one."""
    rollout.refuse_items(env)
    return env if env.num_agents == 1 else joint(env)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """A fresh learner of one agent, and its environments."""
    if env.num_agents > 1:
        remedy = "take ippo" if env.competitive else "give marljax.joint(env), or take ippo or mappo"
        raise UserError(f"ppo controls one agent, and {type(env).__name__} has {env.num_agents}; {remedy}")
    return begin(env, env_params, config, key)


def begin(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Fresh networks and environments; the learner's part is the same on every shard of the data axis."""
    rollout.refuse_items(env)
    key_actor, key_critic, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    shape = (vec.num_envs, env.num_agents)
    memory = zero_carry(config.core, config.hidden[-1], shape)
    carry = Carry(memory, () if config.share_body else memory)
    actors = start(vec, env_params, collectives.fold_data(key_reset), carry, config.stagger)
    params = init_params(env, config, see(env, config, env_params, actors.timestep), key_actor, key_critic)
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
    last_inputs = see(env, config, env_params, actors.timestep)
    _, _, last_value = apply(env, config, learner.params, last_inputs, actors.carry)
    advantage, target = ppo.targets(config, env, learner.params, steps, inputs.alive, value, last_value[0])
    decides, valued = ppo.masks(config, env, inputs, last)
    batch = ppo.Batch(inputs, sample, log_prob, value, decides, valued, advantage, target)

    # Learn. Observation statistics change after the gradient steps, which must see what the rollout saw.
    if config.normalize_values:
        value_stats = learner.params.value_stats.updated(target, valued, config.value_horizon)
        learner = learner.replace(params=learner.params._replace(value_stats=value_stats))
    evaluate = functools.partial(evaluate_batch, env, config)
    learner, terms = ppo.fit(config, learner, batch, carry, evaluate, key_fit)
    if config.normalize_observations:
        obs_stats = ppo.updated_stats(env, config, learner.params.obs_stats, inputs, last)
        learner = learner.replace(params=learner.params._replace(obs_stats=obs_stats))
    return TrainState(learner, actors), terms | ppo.extremes(steps, batch) | episodes


initial_carry = ppo.initial_carry
act = ppo.act_alone


def see(env: Environment, config: Config, env_params: EnvParams, timestep: TimeStep) -> Inputs:
    """What the networks see of the current timestep, T = 1; the time is for a critic with a network of its own."""
    inputs, limit_ends = rollout.inputs_of(timestep), env.limit_ends or not config.bootstrap_limit
    return rollout.with_time(env, env_params, timestep, inputs, limit_ends and config.time_for_critic and not config.share_body)


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
    del env_state  # the critic, too, sees observations only
    inputs = see(env, config, env_params, timestep)
    carry, head, value = apply(env, config, params, inputs, carry)
    sample = head.sample(key)
    record = jax.tree.map(lambda x: x[0], (inputs, timestep.last[None], sample, head.log_prob(sample), value))
    return head.action(sample)[0], carry, record


def apply(
    env: Environment, config: Config, params: Params, inputs: Inputs, carry: Carry
) -> tuple[Carry, Distribution, jax.Array]:
    """Memories after the last step, distributions, and values as the critic gives them, both [T, E, A]."""
    seen = (ppo.features(env, config, inputs.obs, params.obs_stats), inputs.first, inputs.alive)
    if config.share_body:
        both = both_networks(env, config)
        memory, (outputs, value) = apply_per_agent(both, params.actor, config.share_parameters, carry.actor, (), *seen)
        return Carry(memory, ()), distribution(env.action_space, outputs, inputs.action_mask), value
    actor_carry, head = ppo.policy(env, config, params, inputs, carry.actor)
    critic = critic_network(env, config)
    seen = (ppo.and_time(seen[0], inputs), *seen[1:])
    critic_carry, value = apply_per_agent(critic, params.critic, config.share_parameters, carry.critic, (), *seen)
    return Carry(actor_carry, critic_carry), head, value


def evaluate_batch(
    env: Environment, config: Config, params: Params, batch: ppo.Batch, carry: Carry, key: jax.Array
) -> ppo.Evaluation:
    """Replays the networks over a minibatch, with gradients."""
    _, head, value = apply(env, config, params, batch.inputs, carry)
    return ppo.Evaluation(head.log_prob(batch.sample), head.entropy(key), value)


def init_params(env: Environment, config: Config, inputs: Inputs, key_actor: jax.Array, key_critic: jax.Array) -> Params:
    """Fresh networks and statistics for inputs of this shape."""
    params = Params(None, None, ppo.new_stats(env, config, inputs.obs.shape[-1]), RunningStats.create(()))
    count = None if config.share_parameters else env.num_agents
    carry = zero_carry(config.core, config.hidden[-1], inputs.alive.shape[1:])
    seen = (ppo.features(env, config, inputs.obs, params.obs_stats), inputs.first, inputs.alive)
    if config.share_body:
        return params._replace(actor=init_per_agent(both_networks(env, config), key_actor, count, carry, *seen), critic={})
    actor = init_per_agent(ppo.actor_network(env, config), key_actor, count, carry, *seen)
    seen = (ppo.and_time(seen[0], inputs), *seen[1:])
    critic = init_per_agent(critic_network(env, config), key_critic, count, carry, *seen)
    return params._replace(actor=actor, critic=critic)


def critic_network(env: Environment, config: Config) -> Critic:
    return Critic(ppo.sizes(env, config))


def both_networks(env: Environment, config: Config) -> ActorCritic:
    return ActorCritic(num_outputs(env.action_space), ppo.sizes(env, config))
