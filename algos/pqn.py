"""PQN (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning"): Q-learning from the rollout at hand, without replay
buffer and target network.

Many parallel environments replace the replay buffer, and layer normalisation the target network: gradient steps regress values
on the λ-returns of the rollout (Peng's Q(λ), Peng and Williams 1994), in shuffled minibatches. A team's value is the sum of its
agents' values (``mixer=vdn``, Sunehag et al. 2018) or a monotonic function of them (``qmix``, Rashid et al. 2018); with ``none``
each agent learns from its own rewards. Unlike in the paper, networks predict standardised returns, and their values start near 0.
``python algos/pqn.py env=smax env.scenario=3m`` trains it.

Axis letters: T time, E environments, A agents, O observation, G global state, n actions.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("pqn")


from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax import nn
from marljax.config import static, traced
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
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
    make_optimizer,
    scan_means,
    start,
)
from marljax.utils import collectives
from marljax.utils.validation import divide


class Config(RolloutConfig):
    """Hyperparameters, a frozen dataclass. ``static`` ones shape the program; ``traced`` ones can be swept with ``jax.vmap``."""

    # Rollouts
    num_envs: int = static(64, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(64, low=1, help="steps of every environment per update")
    epsilon_start: float = traced(1.0, low=0.0, high=1.0, help="share of random actions at first")
    epsilon_end: float = traced(0.05, low=0.0, high=1.0, help="share of random actions at the end")
    epsilon_decay: float = traced(0.5, low=0.0, high=1.0, help="share of the training after which it is epsilon_end")
    # Networks
    core: str = static("gru", choices=("mlp", "gru"), help="gru: the last hidden layer is a GRU")
    hidden: tuple[int, ...] = static((128, 128), low=1, help="widths of the agents' hidden layers")
    layer_norm: bool = static(True, help="normalise dense hidden layers before their activation")
    # Values start near 0, so that the first targets are rewards. The sum of a team's large random maxima would be bootstrapped
    # on, and stay in the standard deviation of returns long after it is unlearnt.
    output_scale: float = static(0.01, low=0.0, help="of the output layer's initial weights; small: values start near 0")
    activation: str = static("relu", choices=tuple(nn.ACTIVATIONS), help="of all hidden layers but the mixing network's")
    network_dtype: str = static("float32", choices=nn.DTYPES, help="of hidden layers; parameters and outputs are float32")
    share_parameters: bool = static(True, help="one network for all agents; false: each has its own")
    agent_id: bool = static(True, help="append a one-hot agent id (up to 64 agents) to observations")
    normalize_observations: bool = static(False, help="by running mean and variance, saved with the policy")
    mixer: str = static("vdn", choices=("qmix", "vdn", "none"), help="none: every agent learns from its own rewards")
    mixer_width: int = static(32, low=1, help="width of the mixing network's hidden layer")
    mixer_slope: float = static(0.05, low=0.0, high=1.0, help="least slope of the mixing network's hidden layer; 0: ELU")
    # Targets
    gamma: float = traced(0.99, low=0.0, high=1.0, help="discount per step")
    td_lambda: float = traced(0.75, low=0.0, high=1.0, help="0: one-step targets, 1: returns until the end of the rollout")
    reward_scale: float = traced(1.0, low=0.0, help="multiplies all rewards before learning")
    bootstrap_limit: bool = static(True, help="false: an episode that reaches the step limit counts as terminated")
    normalize_values: bool = static(True, help="networks predict returns standardised by running mean and standard deviation")
    # Gradient steps
    num_epochs: int = static(4, low=1, help="passes over each rollout")
    num_minibatches: int = static(16, low=1, help="gradient steps per pass")
    optimizer: str = static("radam", choices=("adam", "radam"), help="radam: rectified Adam (Liu et al. 2020)")
    learning_rate: float = traced(1e-3, low=0.0, help="initial learning rate")
    anneal_learning_rate: bool = static(True, help="linearly to 0 over total_steps")
    adam_eps: float = traced(1e-8, low=0.0, help="added to the root of the second moment")
    max_grad_norm: float = traced(1.0, low=0.0, help="global norm to which gradients are clipped")


class Params(NamedTuple):
    """Network parameters and running statistics."""

    agent: Any
    mixer: Any  # {} without weights
    obs_stats: Any  # RunningStats [O]
    state_stats: nn.RunningStats  # [G]
    value_stats: nn.RunningStats  # []


class Transition(NamedTuple):
    """One step of a rollout. Leading [T, E]."""

    inputs: Inputs  # obs, action_mask, first, alive, state
    last: jax.Array  # [T, E] bool: final timestep of an episode, whose action is ignored
    action: jax.Array  # [T, E, A] int32
    team_value: jax.Array  # [T, E, A or 1] of the greedy actions in reward units, under the parameters of the rollout


class Batch(NamedTuple):
    """Training batch. Leading [T, E]."""

    transition: Transition
    mask: jax.Array  # [T, E, A or 1] bool: in the loss
    target: jax.Array  # [T, E, A or 1] λ-returns


class Networks(NamedTuple):
    """Values of the agents and of the team."""

    init: Callable[[jax.Array, jax.Array, Inputs], Params]  # keys of agents and mixer
    # Params, inputs, recurrent state → recurrent state after the last step, Q [T, E, A, n].
    action_values: Callable[[Params, Inputs, Any], tuple[Any, jax.Array]]
    # Params, Q of chosen actions [T, E, A], inputs → Q_tot [T, E, 1], to which agents that are not alive add nothing; without a
    # mixer Q itself.
    mix: Callable[[Params, jax.Array, Inputs], jax.Array]
    update_stats: Callable[[Params, Inputs, jax.Array], Params]  # with the observations and states in a mask [T, E]


def make_networks(env: Environment, config: Config) -> Networks:
    """The networks that ``config`` describes."""
    assert isinstance(env.action_space, Discrete)
    encoder = nn.ObservationEncoder.create(env, "flat", config.agent_id, config.normalize_observations)
    sizes = nn.Sizes(config.core, config.hidden, (), config.activation, dtype=config.network_dtype, layer_norm=config.layer_norm)
    network = nn.Actor(env.action_space.n, sizes, config.output_scale)
    agent = nn.PerAgent(network, env.num_agents, config.share_parameters)
    mixer = nn.Mixer(config.mixer_width, hypernet_width=64, scale=0.01, slope=config.mixer_slope, activation=config.activation)

    def action_values(params: Params, inputs: Inputs, carry: Any) -> tuple[Any, jax.Array]:
        return agent(params.agent, carry, encoder(params.obs_stats, inputs.obs), inputs.first, inputs.alive)

    def mix(params: Params, values: jax.Array, inputs: Inputs) -> jax.Array:
        if config.mixer == "none":
            return values
        values = values * inputs.alive
        if config.mixer == "vdn":
            return jnp.sum(values, axis=-1, keepdims=True)
        state = params.state_stats.normalize(inputs.state) if config.normalize_observations else inputs.state
        return mixer.apply(params.mixer, values, state)  # type: ignore[return-value]

    def init(key_agent: jax.Array, key_mixer: jax.Array, inputs: Inputs) -> Params:
        state_stats, value_stats = nn.RunningStats.create(inputs.state.shape[-1:]), nn.RunningStats.create(())
        params = Params(None, {}, encoder.init_stats(inputs.obs), state_stats, value_stats)
        carry, obs = initial_carry(env, config, inputs.alive.shape[1]), encoder(params.obs_stats, inputs.obs)
        params = params._replace(agent=agent.init(key_agent, carry, obs, inputs.first, inputs.alive))
        if config.mixer != "qmix":
            return params
        return params._replace(mixer=mixer.init(key_mixer, jnp.zeros(inputs.alive.shape), inputs.state))

    def update_stats(params: Params, inputs: Inputs, mask: jax.Array) -> Params:
        obs_stats = encoder.update_stats(params.obs_stats, inputs.obs, inputs.alive & mask[..., None])
        return params._replace(obs_stats=obs_stats, state_stats=params.state_stats.updated(inputs.state, mask))

    return Networks(init, action_values, mix, update_stats)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Initial networks, optimiser and environments; the learner is the same on every shard of the data axis."""
    nn.check_no_items(env)
    name = type(env).__name__
    if not isinstance(env.action_space, Discrete):
        raise UserError(f"pqn needs discrete actions, and those of {name} are {env.action_space}; use ippo or mappo")
    if env.competitive and config.mixer != "none":
        raise UserError(f"mixer={config.mixer} adds up the values of one team, and {name} has several; use mixer=none")
    config = without_single_mixer(env, config)
    key_agent, key_mixer, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    carry = initial_carry(env, config, vec.num_envs)
    actors = start(vec, env_params, collectives.fold_data(key_reset), carry)
    inputs = get_inputs(env, config, env_params, actors.env_state, actors.timestep)
    params = make_networks(env, config).init(key_agent, key_mixer, inputs)
    updates = jnp.zeros((), jnp.int32)
    opt_state = make_optimizer(config, updates, config.optimizer).init({"agent": params.agent, "mixer": params.mixer})
    return TrainState(Learner(params, opt_state, updates, key_learner, env_params), actors)


def without_single_mixer(env: Environment, config: Config) -> Config:
    """The config for this environment: a single agent's values are not mixed."""
    return config.replace(mixer="none") if env.num_agents == 1 and config.mixer != "none" else config


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: collect a rollout, compute its λ-returns, take epochs of minibatch gradient steps."""
    config = without_single_mixer(env, config)
    learner, actors = state
    params, networks = learner.params, make_networks(env, config)
    key_next, key_rollout, key_epochs = jax.random.split(learner.key, 3)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = env.anneal(learner.env_params, learner.updates / config.num_updates)

    def greedy_team_value(inputs, values):
        value = networks.mix(params, jnp.max(jnp.where(inputs.action_mask, values, nn.MASKED), axis=-1), inputs)
        value = params.value_stats.denormalize(value)
        if config.mixer == "none":
            return value
        # Nobody of the team is alive: worth 0. What agents that enter later earn reaches earlier steps through λ only.
        return jnp.where(jnp.any(inputs.alive, axis=-1, keepdims=True), value, 0.0)

    # 1. Collect a rollout with ε-greedy actions.
    epsilon = exploration_rate(config, learner.updates)

    def policy_step(key, env_state, timestep, carry):
        inputs = get_inputs(env, config, env_params, env_state, timestep)
        carry, values = networks.action_values(params, inputs, carry)
        action = nn.epsilon_greedy(key, epsilon, values, inputs.action_mask)
        transition = Transition(inputs, timestep.last[None], action, greedy_team_value(inputs, values))
        return action[0], carry, jax.tree.map(lambda x: x[0], transition)

    first_carry = actors.carry  # from which recurrent networks are replayed
    key_rollout = collectives.fold_data(key_rollout)
    actors, rollout, steps, episodes = collect(vec, env_params, policy_step, actors, key_rollout, config.rollout_length)

    # 2. λ-returns: R_t = r_t + γ [(1 − λ) max Q(s_{t+1}) + λ R_{t+1}] (Gallici et al. 2024, section 4). The final timestep of an
    # episode is a row of the rollout (``last``), so the values of the final observation are the next row's.
    last_inputs = get_inputs(env, config, env_params, actors.env_state, actors.timestep)
    last_value = greedy_team_value(last_inputs, networks.action_values(params, last_inputs, actors.carry)[1])[0]
    team_steps, mask = team_rewards(config, rollout, steps)
    _, target = gae(team_steps, rollout.team_value, last_value, config.gamma, config.td_lambda, config.bootstrap_limit)
    loss_params = params
    if config.normalize_values:  # else mean and deviation remain 0 and 1
        loss_params = params._replace(value_stats=params.value_stats.updated(target, mask))
    batch = Batch(rollout, mask, target)

    # 3. Optimise. An MLP shuffles over time and environments; a GRU shuffles environments and keeps sequences whole.
    def flat(x):
        return x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:])  # [1, T E, …]

    samples = batch if config.core == "gru" else jax.tree.map(flat, batch)
    optimizer = make_optimizer(config, learner.updates, config.optimizer)

    def minibatch_step(trained, minibatch):
        weights, opt_state = trained
        (_, metrics), grads = jax.value_and_grad(td_loss, has_aux=True)(weights, config, networks, loss_params, *minibatch)
        grads, metrics = collectives.mean((grads, metrics))  # over devices
        changes, opt_state = optimizer.update(grads, opt_state, weights)
        return (optax.apply_updates(weights, changes), opt_state), metrics | {"grad_norm": gradient_norm(grads)}

    def epoch(trained, key):
        return scan_means(minibatch_step, trained, split_minibatches(config, samples, first_carry, key))

    before = ({"agent": params.agent, "mixer": params.mixer}, learner.opt_state)
    after, metrics = scan_means(epoch, before, jax.random.split(key_epochs, config.num_epochs))
    if config.normalize_observations:
        # The first rollout, of unnormalised observations, only initialises the statistics: its gradient steps are dropped.
        after = jax.tree.map(lambda new, old: jnp.where(learner.updates > 0, new, old), after, before)
    weights, opt_state = after
    new_params = loss_params._replace(**weights)
    if config.normalize_observations:  # after the gradient steps, which need the inputs of the rollout
        new_params = networks.update_stats(new_params, rollout.inputs, ~rollout.last)
    learner = Learner(new_params, opt_state, learner.updates + 1, key_next, learner.env_params)
    max_reward = collectives.largest(jnp.max(jnp.abs(steps.reward * config.reward_scale)))
    return TrainState(learner, actors), metrics | {"epsilon": epsilon, "max_reward": max_reward} | episodes


def team_rewards(config: Config, rollout: Transition, steps: Step) -> tuple[Step, jax.Array]:
    """What λ-returns are computed from, and the samples that enter the loss: per agent without a mixer, else of the team.

    A team's reward is the mean over all its agents, also dead ones, whose reward is 0: so one agent's reward has the same weight
    however many others are alive. Rows in which nobody is alive are not in a team's loss: there is no action to value.
    """
    alive, reward, mask = rollout.inputs.alive, steps.reward * config.reward_scale, ~rollout.last[..., None]
    if config.mixer == "none":
        return steps._replace(reward=reward), mask & alive
    team = steps._replace(reward=jnp.mean(reward * alive, -1, keepdims=True), alive=jnp.ones_like(mask))
    return team, mask & jnp.any(alive, -1, keepdims=True)


def split_minibatches(config: Config, batch: Batch, carry: Any, key: jax.Array) -> tuple[Batch, Any]:
    """Shuffles axis 1 of the batch and axis 0 of the recurrent states, and splits them: leading [num_minibatches].

    Both axes are environments for a GRU; an MLP shuffles samples and has no recurrent states.
    """
    rows, name = batch.target.shape[1], "sequences" if config.core == "gru" else "samples"
    size = divide(rows, config.num_minibatches, f"{name} of one device", "minibatches")
    order = jax.random.permutation(key, rows).reshape(config.num_minibatches, size)
    return jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch), jax.tree.map(lambda x: x[order], carry)


def td_loss(
    weights: dict[str, Any], config: Config, networks: Networks, params: Params, batch: Batch, carry: Any
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(Q_tot(chosen) − R^λ)² of one minibatch (Gallici et al. 2024, algorithm 1).

    ``masked_mean`` divides by the mean count per device: the mean over devices of losses and gradients is that of one big batch.
    """
    params, rollout = params._replace(**weights), batch.transition
    _, values = networks.action_values(params, rollout.inputs, carry)
    chosen = jax.nn.one_hot(rollout.action, values.shape[-1], dtype=bool)  # cheaper to differentiate than an index
    team_value = networks.mix(params, jnp.sum(jnp.where(chosen, values, 0.0), axis=-1), rollout.inputs)
    # In the networks' own scale, so that one learning rate suits all rewards.
    stats = params.value_stats
    error = team_value - (batch.target - stats.mean) / stats.std
    team_value = stats.denormalize(team_value)
    loss = collectives.masked_mean(jnp.square(error), batch.mask)
    return loss, {
        "td_loss": loss,
        "td_error": collectives.masked_mean(jnp.abs(error), batch.mask) * stats.std,
        "chosen_value": collectives.masked_mean(team_value, batch.mask),
        "max_value": collectives.largest(jax.lax.stop_gradient(jnp.max(jnp.abs(team_value) * batch.mask))),
    }


def get_inputs(env: Environment, config: Config, env_params: EnvParams, env_state: Any, timestep: TimeStep) -> Inputs:
    """Network inputs of the current timestep, T = 1; the state is empty without a mixing network."""
    state = jnp.zeros((*timestep.first.shape, 0))
    if config.mixer == "qmix":
        state = vectorize(env, timestep.first.shape[0]).global_state(env_state, env_params)
    return Inputs.of(timestep)._replace(state=state[None])


def exploration_rate(config: Config, updates: jax.Array) -> jax.Array:
    """ε, the share of random actions in this update."""
    done = updates / jnp.maximum(config.epsilon_decay * config.num_updates, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * jnp.minimum(done, 1.0)


def initial_carry(env: Environment, config: Config, *batch: int) -> Any:
    """The agents' recurrent state at the start of an episode, of one environment or of a batch [*batch]."""
    return nn.initial_carry(config.core, config.hidden[-1], (*batch, env.num_agents))


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A] for one timestep of one environment; not greedy: with the last share of random ones."""
    timestep, carry = jax.tree.map(lambda x: x[None], (timestep, carry))
    carry, values = make_networks(env, config).action_values(params, Inputs.of(timestep), carry)
    mask = timestep.action_mask[None]
    action = nn.best_action(values, mask) if greedy else nn.epsilon_greedy(key, config.epsilon_end, values, mask)
    return action[0, 0], jax.tree.map(lambda x: x[0], carry)


def explain(
    env: Environment, config: Config, params: Params, env_params: EnvParams, env_state: Any, timestep: TimeStep
) -> dict[str, jax.Array]:
    """``action_value`` [T, E, A, n] of episodes [T, E] that start at their first timestep; NaN for unavailable actions.

    With a mixer they are contributions to the team's value, in the scale of the networks; without one they are in units of the
    reward.
    """
    del env_params, env_state
    inputs = jax.tree.map(lambda x: x[:, 0], jax.vmap(Inputs.of)(timestep))
    carry = initial_carry(env, config, timestep.first.shape[1])
    _, values = make_networks(env, config).action_values(params, inputs, carry)
    if without_single_mixer(env, config).mixer == "none":
        values = params.value_stats.denormalize(values) / config.reward_scale
    return {"action_value": jnp.where(inputs.action_mask, values, jnp.nan)}
