"""PPO: proximal policy optimisation with generalised advantage estimation (Schulman et al. 2017, "Proximal Policy Optimization
Algorithms").

One agent; ``python algos/ppo.py env=gymnax/CartPole-v1`` trains it. Several agents of one team are controlled as one,
``marljax.joint(env)``: the controller observes the global state and chooses all agents' actions, each under its own mask.

Arrays have an axis of agents, A = 1 here, which makes this file IPPO too: see ``algos/ippo.py``.

Axis letters: T time, E environments, A agents, H recurrent state, O observation, F features, n actions.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ppo")


import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax import nn
from marljax.config import static, traced
from marljax.core.environment import Environment
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import vectorize
from marljax.errors import UserError
from marljax.learning import (
    Inputs,
    Learner,
    RolloutConfig,
    Step,
    TrainState,
    collect,
    gae,
    gradient_norm,
    make_actor_critic_optimizer,
    over_time,
    scan_means,
    start,
    value_metrics,
)
from marljax.utils import collectives
from marljax.utils.validation import divide
from marljax.wrappers.joint import joint


class Config(RolloutConfig):
    """Hyperparameters, a frozen dataclass. ``static`` ones shape the program; ``traced`` ones can be swept with ``jax.vmap``."""

    # A single agent needs no setting for these; IPPO's ``Config`` has them.
    share_parameters: ClassVar[bool] = True
    agent_id: ClassVar[bool] = False
    death: ClassVar[str] = "terminal"

    # Rollouts
    num_envs: int = static(64, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(128, low=1, help="steps of every environment per update")
    stagger: bool = static(False, help="truncate first episodes at random, so that fixed-length episodes are out of phase")
    # Networks
    share_body: bool = static(False, help="actor and critic are two heads of one network")
    core: str = static("mlp", choices=("mlp", "gru"), help="gru: the last hidden layer is a GRU")
    hidden: tuple[int, ...] = static((128, 128), low=1, help="widths of the hidden layers of actor and critic")
    head: tuple[int, ...] = static((), low=1, help="widths of the layers between core and outputs")
    activation: str = static("relu", choices=tuple(nn.ACTIVATIONS), help="of all hidden layers")
    network_dtype: str = static("float32", choices=nn.DTYPES, help="of hidden layers; parameters and outputs are float32")
    encoder: str = static("flat", choices=("flat", "attention"), help="attention: over the entities in an observation")
    encoder_width: int = static(64, low=1, help="width of the attention's embeddings, each of two layers")
    encoder_heads: int = static(4, low=1, help="attention heads")
    normalize_observations: bool = static(False, help="by running mean and variance, saved with the policy")
    # Advantages
    gamma: float = traced(0.99, low=0.0, high=1.0, help="discount per step")
    gae_lambda: float = traced(0.95, low=0.0, high=1.0, help="0: one-step targets, 1: whole returns")
    reward_scale: float = traced(1.0, low=0.0, help="multiplies all rewards before learning")
    # Set it to false if the limit belongs to the task: the value of a final observation is bootstrapped from but never regressed
    # on, so it may drift.
    bootstrap_limit: bool = static(True, help="false: an episode that reaches the step limit counts as terminated")
    time_for_critic: bool = static(True, help="add the elapsed time to inputs of a separate critic where limits end episodes")
    normalize_values: bool = static(True, help="the critic predicts returns standardised by running mean and deviation")
    value_horizon: int = static(0, low=0, help="updates that this running mean and deviation cover; 0: all")
    normalize_advantages: str = static("minibatch", choices=("minibatch", "per_agent", "none"), help="to mean 0, deviation 1")
    # Losses and gradient steps
    num_epochs: int = static(4, low=1, help="passes over each rollout")
    num_minibatches: int = static(16, low=1, help="gradient steps per pass")
    learning_rate: float = traced(2e-3, low=0.0, help="initial learning rate")
    critic_learning_rate: float = traced(0.0, low=0.0, help="0: as learning_rate")
    anneal_learning_rate: bool = static(True, help="linearly to 0 over total_steps")
    adam_eps: float = traced(1e-5, low=0.0, help="added to the root of the second moment")
    max_grad_norm: float = traced(0.5, low=0.0, help="global norm to which gradients are clipped")
    clip_actor_critic_separately: bool = static(True, help="clip their gradients each by its own norm; false: by a common one")
    clip_eps: float = traced(0.2, low=0.0, help="clip probability ratios to [1 − ε, 1 + ε]")
    clip_values: bool = static(True, help="PPO2's clipped value loss, with clip_eps in the critic's own scale")
    value_coef: float = traced(0.5, low=0.0, help="weight of the value loss")
    entropy_coef: float = traced(0.01, low=0.0, help="weight of the entropy bonus")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_body and isinstance(self.critic_learning_rate, float) and self.critic_learning_rate > 0.0:
            raise UserError("critic_learning_rate has no effect with share_body=true; omit one of them")


class Params(NamedTuple):
    """Network parameters and running statistics."""

    actor: Any  # with ``share_body`` the whole network
    critic: Any
    obs_stats: Any  # RunningStats [O]; with encoder=attention [width] by kind of entity
    value_stats: nn.RunningStats  # []


class Carry(NamedTuple):
    """Recurrent states [E, A, H] each; () without a GRU."""

    actor: Any
    critic: Any


class Transition(NamedTuple):
    """One step of a rollout. Leading [T, E]."""

    inputs: Inputs  # obs, action_mask, first, alive, time
    last: jax.Array  # [T, E] bool: final timestep of an episode, whose action is ignored
    sample: jax.Array  # [T, E, A, …] action before squashing
    log_prob: jax.Array  # [T, E, A] of the sample under the policy of the rollout


class Batch(NamedTuple):
    """Training batch. Leading [T, E]."""

    transition: Transition
    policy_mask: jax.Array  # [T, E, A] bool: alive in a running episode, with more than one action available
    value_mask: jax.Array  # [T, E, A] bool: in the value loss
    value: jax.Array  # [T, E, A] before the gradient steps, in the critic's own (normalised) scale
    advantage: jax.Array  # [T, E, A]
    target: jax.Array  # [T, E, A] value target, in reward units


class Networks(NamedTuple):
    """Actor and critic, including input normalisation and encoders; T and E are those of the inputs."""

    init: Callable[[jax.Array, jax.Array, Inputs], Params]  # keys of actor and critic
    policy: Callable[[Params, Inputs, Any], tuple[Any, nn.Distribution]]  # recurrent state after the last step, π(· | o)
    value: Callable[[Params, Inputs, Carry], tuple[Carry, jax.Array]]  # V [T, E, A] in the critic's own scale
    # Both; where actor and critic share a body, in one pass through it.
    policy_and_value: Callable[[Params, Inputs, Carry], tuple[nn.Distribution, jax.Array]]
    update_stats: Callable[[Params, Inputs, jax.Array], Params]  # with the observations in a mask [T, E]


def make_networks(env: Environment, config: Config) -> Networks:
    """The networks that ``config`` describes."""
    encoder = nn.ObservationEncoder.create(env, config.encoder, config.agent_id, config.normalize_observations)
    attention = encoder.sizes(config.encoder_width, config.encoder_heads)
    sizes = nn.Sizes(config.core, config.hidden, config.head, config.activation, attention, config.network_dtype)
    outputs = nn.num_outputs(env.action_space)
    actor = nn.PerAgent(nn.Actor(outputs, sizes), env.num_agents, config.share_parameters)
    critic = nn.PerAgent(nn.Critic(sizes), env.num_agents, config.share_parameters)
    both = nn.PerAgent(nn.ActorCritic(outputs, sizes), env.num_agents, config.share_parameters)

    def policy(params: Params, inputs: Inputs, carry: Any) -> tuple[Any, nn.Distribution]:
        carry, outputs = actor(params.actor, carry, encoder(params.obs_stats, inputs.obs), inputs.first, inputs.alive)
        return carry, nn.distribution(env.action_space, outputs, inputs.action_mask)

    def critic_inputs(params: Params, inputs: Inputs) -> jax.Array:
        """Features [T, E, A, F]."""
        return jnp.concatenate([encoder(params.obs_stats, inputs.obs), *jax.tree.leaves(inputs.time)], axis=-1)

    def shared(params: Params, inputs: Inputs, carry: Carry) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        """What actor and critic return that share a body, whose recurrent state is the actor's."""
        obs = encoder(params.obs_stats, inputs.obs)
        body_carry, outputs = both(params.actor, carry.actor, obs, inputs.first, inputs.alive)
        return carry._replace(actor=body_carry), outputs

    def value(params: Params, inputs: Inputs, carry: Carry) -> tuple[Carry, jax.Array]:
        if config.share_body:
            carry, (_, values) = shared(params, inputs, carry)
            return carry, values
        features = critic_inputs(params, inputs)
        critic_carry, values = critic(params.critic, carry.critic, features, inputs.first, inputs.alive)
        return carry._replace(critic=critic_carry), values

    def policy_and_value(params: Params, inputs: Inputs, carry: Carry) -> tuple[nn.Distribution, jax.Array]:
        if config.share_body:
            _, (outputs, values) = shared(params, inputs, carry)
            return nn.distribution(env.action_space, outputs, inputs.action_mask), values
        return policy(params, inputs, carry.actor)[1], value(params, inputs, carry)[1]

    def init(key_actor: jax.Array, key_critic: jax.Array, inputs: Inputs) -> Params:
        params = Params(None, {}, encoder.init_stats(inputs.obs), nn.RunningStats.create(()))
        carry = initial_carry(env, config, inputs.alive.shape[1])
        obs = encoder(params.obs_stats, inputs.obs)
        if config.share_body:
            return params._replace(actor=both.init(key_actor, carry, obs, inputs.first, inputs.alive))
        return params._replace(
            actor=actor.init(key_actor, carry, obs, inputs.first, inputs.alive),
            critic=critic.init(key_critic, carry, critic_inputs(params, inputs), inputs.first, inputs.alive),
        )

    def update_stats(params: Params, inputs: Inputs, mask: jax.Array) -> Params:
        obs_stats = encoder.update_stats(params.obs_stats, inputs.obs, inputs.alive & mask[..., None])
        return params._replace(obs_stats=obs_stats)

    return Networks(init, policy, value, policy_and_value, update_stats)


def present(env: Environment) -> Environment:
    """The environment that the command line trains in: all agents of a team as one."""
    nn.check_no_items(env)
    return env if env.num_agents == 1 else joint(env)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Initial networks, optimiser and environments; the learner is the same on every shard of the data axis."""
    nn.check_no_items(env)
    if type(config) is Config and env.num_agents > 1:  # IPPO's is a subclass
        remedy = "use ippo" if env.competitive else "use marljax.joint(env), ippo or mappo"
        raise UserError(f"ppo controls one agent, and {type(env).__name__} has {env.num_agents}; {remedy}")
    key_actor, key_critic, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    memory = initial_carry(env, config, vec.num_envs)
    carry = Carry(memory, () if config.share_body else memory)
    actors = start(vec, env_params, collectives.fold_data(key_reset), carry, config.stagger)
    inputs = get_inputs(env, config, env_params, actors.timestep)
    params = make_networks(env, config).init(key_actor, key_critic, inputs)
    updates = jnp.zeros((), jnp.int32)
    opt_state = make_actor_critic_optimizer(config, updates, config.share_body).init(
        {"actor": params.actor, "critic": params.critic}
    )
    return TrainState(Learner(params, opt_state, updates, key_learner, env_params), actors)


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: collect a rollout, estimate advantages, take epochs of minibatch gradient steps."""
    learner, actors = state
    params, networks = learner.params, make_networks(env, config)
    key_next, key_rollout, key_epochs = jax.random.split(learner.key, 3)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = env.anneal(learner.env_params, learner.updates / config.num_updates)

    # 1. Collect a rollout.
    def policy_step(key, env_state, timestep, carry):
        inputs = get_inputs(env, config, env_params, timestep)
        actor_carry, pi = networks.policy(params, inputs, carry.actor)
        sample = pi.sample(key)
        transition = Transition(inputs, timestep.last[None], sample, pi.log_prob(sample))
        return pi.action(sample)[0], carry._replace(actor=actor_carry), jax.tree.map(lambda x: x[0], transition)

    first_carry = actors.carry  # from which recurrent networks are replayed
    key_rollout = collectives.fold_data(key_rollout)
    actors, rollout, steps, episodes = collect(vec, env_params, policy_step, actors, key_rollout, config.rollout_length)

    # 2. Estimate values, advantages and value targets.
    last_inputs = get_inputs(env, config, env_params, actors.timestep)
    last_carry, value = over_time(functools.partial(networks.value, params), rollout.inputs, first_carry)
    _, last_value = networks.value(params, last_inputs, last_carry)
    actors = actors.replace(carry=actors.carry._replace(critic=last_carry.critic))
    steps = steps._replace(reward=steps.reward * config.reward_scale)
    advantage, target = estimate_advantages(env, config, params.value_stats, rollout, steps, value, last_value[0])
    batch = Batch(rollout, *loss_masks(env, config, rollout), value, advantage, target)
    loss_params = params
    if config.normalize_values:
        loss_params = params._replace(value_stats=params.value_stats.updated(target, batch.value_mask, config.value_horizon))

    # 3. Optimise. An MLP shuffles over time and environments; a GRU shuffles environments and keeps sequences whole.
    samples = batch if config.core == "gru" else jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)  # [1, T E, …]
    optimizer = make_actor_critic_optimizer(config, learner.updates, config.share_body)

    def minibatch_step(trained, minibatch):
        weights, opt_state = trained
        (_, metrics), grads = jax.value_and_grad(ppo_loss, has_aux=True)(weights, config, networks, loss_params, *minibatch)
        grads, metrics = collectives.mean((grads, metrics))  # over devices
        changes, opt_state = optimizer.update(grads, opt_state, weights)
        return (optax.apply_updates(weights, changes), opt_state), metrics | {"grad_norm": gradient_norm(grads)}

    def epoch(trained, key):
        key_shuffle, key_entropy = jax.random.split(key)
        minibatches, carries = split_minibatches(config, samples, first_carry, key_shuffle)
        keys = jax.random.split(key_entropy, config.num_minibatches)
        return scan_means(minibatch_step, trained, (minibatches, carries, keys))

    before = ({"actor": params.actor, "critic": params.critic}, learner.opt_state)
    after, metrics = scan_means(epoch, before, jax.random.split(key_epochs, config.num_epochs))
    if config.normalize_observations:
        # The first rollout, of unnormalised observations, only initialises the statistics: its gradient steps are dropped.
        after = jax.tree.map(lambda new, old: jnp.where(learner.updates > 0, new, old), after, before)
    weights, opt_state = after
    new_params = loss_params._replace(**weights)
    if config.normalize_observations:  # after the gradient steps, which need the inputs of the rollout
        new_params = networks.update_stats(new_params, rollout.inputs, ~rollout.last)
    learner = Learner(new_params, opt_state, learner.updates + 1, key_next, learner.env_params)
    metrics |= value_metrics(target, advantage, batch.value_mask, steps.reward)
    return TrainState(learner, actors), metrics | episodes


def get_inputs(env: Environment, config: Config, env_params: EnvParams, timestep: TimeStep) -> Inputs:
    """Network inputs of the current timestep, T = 1."""
    inputs, limit_ends = Inputs.of(timestep), env.limit_ends or not config.bootstrap_limit
    with_time = limit_ends and config.time_for_critic and not config.share_body
    return inputs.with_time(env, env_params, timestep) if with_time else inputs


def estimate_advantages(
    env: Environment,
    config: Config,
    value_stats: nn.RunningStats,
    rollout: Transition,
    steps: Step,
    value: jax.Array,
    last_value: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates and value targets [T, E, A] in reward units.

    The final timestep of an episode is a row of the rollout (``last``), so the value of the final observation is the next row's.
    ``gae`` bootstraps a truncated episode from it, with ``bootstrap_limit``; after a termination nothing follows.
    """
    if config.normalize_values:
        value, last_value = value_stats.denormalize(value), value_stats.denormalize(last_value)
    if config.death == "continue":
        steps = steps.with_death_masking(rollout.inputs.alive, env.teams)
    return gae(steps, value, last_value, config.gamma, config.gae_lambda, config.bootstrap_limit)


def loss_masks(env: Environment, config: Config, rollout: Transition) -> tuple[jax.Array, jax.Array]:
    """Samples that enter the policy loss and the value loss, both [T, E, A] bool."""
    running = ~rollout.last[..., None]
    acting = rollout.inputs.alive & running
    policy_mask = acting & nn.has_choice(env.action_space, rollout.inputs.action_mask)
    return policy_mask, acting if config.death == "terminal" else jnp.broadcast_to(running, acting.shape)


def split_minibatches(config: Config, batch: Batch, carry: Carry, key: jax.Array) -> tuple[Batch, Carry]:
    """Shuffles axis 1 of the batch and axis 0 of the recurrent states, and splits them: leading [num_minibatches].

    Both axes are environments for a GRU; an MLP shuffles samples and has no recurrent states.
    """
    rows = batch.advantage.shape[1]
    size = divide(rows, config.num_minibatches, "samples of one device", "minibatches")
    order = jax.random.permutation(key, rows).reshape(config.num_minibatches, size)
    return jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch), jax.tree.map(lambda x: x[order], carry)


def ppo_loss(
    weights: dict[str, Any], config: Config, networks: Networks, params: Params, batch: Batch, carry: Carry, key: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate with value loss and entropy bonus (Schulman et al. 2017, eq. 7 and 9) of one minibatch.

    ``masked_mean`` divides by the mean count per device: the mean over devices of losses and gradients is that of one big batch.
    """
    params, old = params._replace(**weights), batch.transition
    pi, value = networks.policy_and_value(params, old.inputs, carry)

    # Policy: E[min(r A, clip(r, 1 − ε, 1 + ε) A)]. Masked samples are arbitrary, and a policy may move far; exp of either must
    # not reach the gradient as infinity times zero. A sample whose ratio has left e^±20 has no gradient.
    log_ratio = jnp.clip(jnp.where(batch.policy_mask, pi.log_prob(old.sample) - old.log_prob, 0.0), -20.0, 20.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
    advantage = batch.advantage
    if config.normalize_advantages != "none":  # over the minibatch, or over each agent's samples in it
        axes = (0, 1) if config.normalize_advantages == "per_agent" else (0, 1, 2)
        mean = collectives.mean(collectives.masked_mean(advantage, batch.policy_mask, axes))
        var = collectives.mean(collectives.masked_mean(jnp.square(advantage - mean), batch.policy_mask, axes))
        advantage = (advantage - mean) / (jnp.sqrt(var) + 1e-8)
    policy_loss = -collectives.masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), batch.policy_mask)

    # Value: ½ (V − target)² in the critic's own scale, so that one coefficient suits all rewards.
    target = batch.target
    if config.normalize_values:
        target = (target - params.value_stats.mean) / params.value_stats.std
    error = 0.5 * jnp.square(value - target)
    if config.clip_values:
        # Clipped around the critic's output before the gradient steps, unconverted: the critic is not rescaled when the
        # statistics change, so a converted old output would differ from the new one before any gradient step.
        near_old = batch.value + jnp.clip(value - batch.value, -config.clip_eps, config.clip_eps)
        error = jnp.maximum(error, 0.5 * jnp.square(near_old - target))
    value_loss = collectives.masked_mean(error, batch.value_mask)

    entropy = collectives.masked_mean(pi.entropy(key), batch.policy_mask)
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": collectives.masked_mean(ratio - 1.0 - log_ratio, batch.policy_mask),  # "k3" (Schulman 2020)
        "clip_fraction": collectives.masked_mean((clipped != ratio).astype(ratio.dtype), batch.policy_mask),
    }


def initial_carry(env: Environment, config: Config, *batch: int) -> Any:
    """The actor's recurrent state at the start of an episode, of one environment or of a batch [*batch]."""
    return nn.initial_carry(config.core, config.hidden[-1], (*batch, env.num_agents))


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A, …] for one timestep of one environment, greedy or sampled."""
    timestep, carry = jax.tree.map(lambda x: x[None], (timestep, carry))
    carry, pi = make_networks(env, config).policy(params, Inputs.of(timestep), carry)
    sample = pi.mode() if greedy else pi.sample(key)
    return pi.action(sample)[0, 0], jax.tree.map(lambda x: x[0], carry)


def explain(
    env: Environment, config: Config, params: Params, env_params: EnvParams, env_state: Any, timestep: TimeStep
) -> dict[str, jax.Array]:
    """Network outputs for episodes [T, E] that start at their first timestep: the parameters of the policy [T, E, A, …] and
    ``value`` [T, E, A], the discounted return that the critic expects."""
    del env_state
    observe = jax.vmap(functools.partial(get_inputs, env, config, env_params))
    inputs = jax.tree.map(lambda x: x[:, 0], observe(timestep))
    carry, networks = initial_carry(env, config, timestep.first.shape[1]), make_networks(env, config)
    pi, value = networks.policy_and_value(params, inputs, Carry(carry, carry))
    value = params.value_stats.denormalize(value) if config.normalize_values else value
    return pi.parameters() | {"value": value / config.reward_scale}
