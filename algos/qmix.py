"""QMIX (Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning"), VDN
(Sunehag et al. 2018, "Value-Decomposition Networks For Cooperative Multi-Agent Learning") and independent Q-learning (Tan 1993).

Every agent estimates the values of its actions from local observations. The team's value is a monotonic function of those of the
chosen actions, with weights computed from the global state (``mixer=qmix``), or their sum (``vdn``); with ``none`` each agent
learns from its own rewards. Rollouts are stored in a replay buffer on the accelerator and replayed whole, GRUs from the
recurrent state at that time (the stored state of Kapturowski et al. 2019, without burn-in).
``python algos/qmix.py env=smax env.scenario=3m`` trains it.

Axis letters: T time, E environments, B replayed rollouts, N slots of the replay buffer, A agents, O observation, G global state,
n actions.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("qmix")


import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flashbax
import jax
import jax.numpy as jnp
import optax
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer, TrajectoryBufferState

from marljax import nn
from marljax.config import static, traced
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import EnvParams, PersistentState, TimeStep
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
from marljax.utils.batching import cond_any, row_major_on_gpu
from marljax.utils.validation import divide


class Config(RolloutConfig):
    """Hyperparameters, a frozen dataclass. ``static`` ones shape the program; ``traced`` ones can be swept with ``jax.vmap``."""

    # Rollouts
    num_envs: int = static(8, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(32, low=1, help="steps of every environment per update, and of a replayed rollout")
    epsilon_start: float = traced(1.0, low=0.0, high=1.0, help="share of random actions at first")
    epsilon_end: float = traced(0.05, low=0.0, high=1.0, help="share of random actions at the end")
    epsilon_decay: float = traced(0.1, low=0.0, high=1.0, help="share of the training after which it is epsilon_end")
    # Replay buffer
    buffer_size: int = static(100_000, low=1, help="capacity in environment steps, rounded down to whole rollouts")
    # Policies act on inputs of this type, too; values are clipped to its range.
    buffer_dtype: str = static("float32", choices=("float32", "bfloat16", "float16"), help="of stored observations and states")
    # Networks
    core: str = static("gru", choices=("mlp", "gru"), help="gru: the last hidden layer is a GRU")
    hidden: tuple[int, ...] = static((64, 64), low=1, help="widths of the agents' hidden layers")
    activation: str = static("relu", choices=tuple(nn.ACTIVATIONS), help="of all hidden layers but the mixing network's")
    network_dtype: str = static("float32", choices=nn.DTYPES, help="of hidden layers; parameters and outputs are float32")
    output_scale: float = static(1.0, low=0.0, help="of the output layer's initial weights; small: values start near 0")
    share_parameters: bool = static(True, help="one network for all agents; false: each has its own")
    agent_id: bool = static(True, help="append a one-hot agent id (up to 64 agents) to observations")
    normalize_observations: bool = static(False, help="by running mean and variance, saved with the policy")
    mixer: str = static("qmix", choices=("qmix", "vdn", "none"), help="none: independent Q-learning")
    mixer_width: int = static(32, low=1, help="width of the mixing network's hidden layer")
    hypernet_width: int = static(64, low=1, help="width of the hidden layers of the hypernetworks")
    mixer_scale: float = static(0.01, help="scale of the hypernetworks' initial weights")
    mixer_slope: float = static(0.05, low=0.0, high=1.0, help="least slope of the mixing network's hidden layer; 0: ELU")
    # Targets
    gamma: float = traced(0.99, low=0.0, high=1.0, help="discount per step")
    td_lambda: float = traced(0.6, low=0.0, high=1.0, help="0: one-step targets, 1: returns until the end of the rollout")
    reward_scale: float = traced(1.0, low=0.0, help="multiplies all rewards before learning")
    bootstrap_limit: bool = static(True, help="false: an episode that reaches the step limit counts as terminated")
    double_q: bool = static(True, help="the online network chooses the next action in targets (van Hasselt et al. 2016)")
    target_update: str = static("hard", choices=("hard", "polyak"), help="of the target network")
    target_interval: int = static(200, low=1, help="hard: gradient steps between copies")
    tau: float = traced(0.005, low=0.0, high=1.0, help="polyak: rate per gradient step")
    # Gradient steps
    gradient_steps: int = static(2, low=1, help="per update")
    batch_size: int = static(32, low=1, help="replayed rollouts per gradient step, over all devices")
    learning_starts: int = static(5_000, low=0, help="environment steps before the first gradient step")
    optimizer: str = static("adam", choices=("adam", "radam"), help="radam: rectified Adam (Liu et al. 2020)")
    learning_rate: float = traced(4e-3, low=0.0, help="initial learning rate")
    anneal_learning_rate: bool = static(True, help="linearly to 0 over total_steps")
    adam_eps: float = traced(1e-5, low=0.0, help="added to the root of the second moment")
    max_grad_norm: float = traced(10.0, low=0.0, help="global norm to which gradients are clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer_size < self.steps_per_update:
            raise UserError(
                f"buffer_size={self.buffer_size} holds no rollouts of {self.rollout_length} steps in {self.num_envs} "
                f"environments; take {self.steps_per_update} or more, shorter rollouts or fewer environments"
            )
        if self.learning_starts > self.total_steps:
            raise UserError(
                f"learning_starts={self.learning_starts} exceeds total_steps={self.total_steps}: nothing would be learnt; "
                "lower the one or raise the other"
            )

    @property
    def capacity(self) -> int:
        """N, rollouts of each environment that the buffer holds."""
        return self.buffer_size // self.steps_per_update


class Params(NamedTuple):
    """Network parameters and running statistics."""

    agent: Any
    mixer: Any  # {} without weights
    obs_stats: Any  # RunningStats [O]
    state_stats: nn.RunningStats  # [G]


class OptState(NamedTuple):
    """The learner's state besides the networks."""

    optimizer: Any
    target: dict[str, Any]  # target networks: older copies of ``agent`` and ``mixer``, whose inputs are normalised as theirs
    # The buffer's position is the same for all environments, so it is here and not with their shards of the buffer.
    insert_index: jax.Array  # [] int32, the slot that is written next
    is_full: jax.Array  # [] bool: no slot is empty


class Carry(NamedTuple):
    """State of the environments' policies and replay between updates."""

    recurrent: Any  # recurrent states [E, A, H]; () without a GRU
    replay: PersistentState  # of a ``Rollout`` [E, N, …]


class Rollout(NamedTuple):
    """A rollout as it is stored and replayed. Leading [T, E], or [T, B]."""

    inputs: Inputs  # [T + 1]: also those after the last action
    last: jax.Array  # [T] bool: final timestep of an episode, whose action is ignored
    action: jax.Array  # [T, …, A] int32
    reward: jax.Array  # [T, …, A]
    terminated: jax.Array  # [T] bool
    cut: jax.Array  # [T] bool: an episode ended there
    recurrent: Any  # [E, A, H] recurrent states at its first timestep


class Networks(NamedTuple):
    """Values of the agents and of the team.

    Weights {"agent": …, "mixer": …} are the online or the target networks'; of ``Params`` only the statistics are used.
    """

    init: Callable[[jax.Array, jax.Array, Inputs], Params]  # keys of agents and mixer
    # Params, weights, inputs, recurrent state → recurrent state after the last step, Q [T, E, A, n].
    action_values: Callable[[Params, Any, Inputs, Any], tuple[Any, jax.Array]]
    # Params, weights, Q [T, E, A], state [T, E, G] → Q_tot [T, E, 1]; without a mixer Q itself.
    mix: Callable[[Params, Any, jax.Array, jax.Array], jax.Array]
    update_stats: Callable[[Params, Inputs, jax.Array], Params]  # with the observations and states in a mask [T, E]


def make_networks(env: Environment, config: Config) -> Networks:
    """The networks that ``config`` describes."""
    assert isinstance(env.action_space, Discrete)
    encoder = nn.ObservationEncoder.create(env, "flat", config.agent_id, config.normalize_observations)
    sizes = nn.Sizes(config.core, config.hidden, (), config.activation, dtype=config.network_dtype)
    network = nn.Actor(env.action_space.n, sizes, config.output_scale)
    agent = nn.PerAgent(network, env.num_agents, config.share_parameters)
    mixer = nn.Mixer(config.mixer_width, config.hypernet_width, config.mixer_scale, config.mixer_slope, config.activation)

    def action_values(params: Params, weights: Any, inputs: Inputs, carry: Any) -> tuple[Any, jax.Array]:
        obs = encoder(params.obs_stats, inputs.obs.astype(jnp.float32))
        return agent(weights["agent"], carry, obs, inputs.first, inputs.alive)

    def mix(params: Params, weights: Any, values: jax.Array, state: jax.Array) -> jax.Array:
        if config.mixer == "none":
            return values
        if config.mixer == "vdn":
            return jnp.sum(values, axis=-1, keepdims=True)
        state = state.astype(jnp.float32)
        state = params.state_stats.normalize(state) if config.normalize_observations else state
        return mixer.apply(weights["mixer"], values, state)  # type: ignore[return-value]

    def init(key_agent: jax.Array, key_mixer: jax.Array, inputs: Inputs) -> Params:
        obs, state = inputs.obs.astype(jnp.float32), inputs.state.astype(jnp.float32)
        params = Params(None, {}, encoder.init_stats(obs), nn.RunningStats.create(state.shape[-1:]))
        carry = initial_carry(env, config, inputs.alive.shape[1])
        agent_params = agent.init(key_agent, carry, encoder(params.obs_stats, obs), inputs.first, inputs.alive)
        params = params._replace(agent=agent_params)
        if config.mixer != "qmix":
            return params
        return params._replace(mixer=mixer.init(key_mixer, jnp.zeros(inputs.alive.shape), state))

    def update_stats(params: Params, inputs: Inputs, mask: jax.Array) -> Params:
        obs, state = inputs.obs.astype(jnp.float32), inputs.state.astype(jnp.float32)
        obs_stats = encoder.update_stats(params.obs_stats, obs, inputs.alive & mask[..., None])
        return params._replace(obs_stats=obs_stats, state_stats=params.state_stats.updated(state, mask))

    return Networks(init, action_values, mix, update_stats)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Initial networks, environments and an empty replay buffer; the learner is the same on every shard of the data axis."""
    nn.check_no_items(env)
    name = type(env).__name__
    if not isinstance(env.action_space, Discrete):
        raise UserError(f"qmix needs discrete actions, and those of {name} are {env.action_space}; use ippo or mappo")
    if env.competitive and config.mixer != "none":
        raise UserError(f"mixer={config.mixer} adds up the values of one team, and {name} has several; use mixer=none")
    config = without_single_mixer(env, config)
    key_agent, key_mixer, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    recurrent = initial_carry(env, config, vec.num_envs)
    actors = start(vec, env_params, collectives.fold_data(key_reset), recurrent)
    inputs = get_inputs(env, config, env_params, actors.env_state, actors.timestep)
    params = make_networks(env, config).init(key_agent, key_mixer, inputs)
    weights, updates = {"agent": params.agent, "mixer": params.mixer}, jnp.zeros((), jnp.int32)
    optimizer_state = make_optimizer(config, updates, config.optimizer).init(weights)

    length = config.rollout_length
    rows = jax.tree.map(lambda x: jnp.zeros((length + 1, *x.shape[2:]), x.dtype), inputs)  # of one environment
    reward, flags = jnp.zeros((length, env.num_agents)), jnp.zeros(length, bool)
    empty = Rollout(rows, flags, reward.astype(jnp.int32), reward, flags, flags, jax.tree.map(lambda x: x[0], recurrent))
    replay = make_buffer(config, vec.num_envs).init(empty)
    opt_state = OptState(optimizer_state, jax.tree.map(jnp.copy, weights), replay.current_index, replay.is_full)
    learner = Learner(params, opt_state, updates, key_learner, env_params)
    return TrainState(learner, actors.replace(carry=Carry(recurrent, PersistentState(replay.experience))))


def with_params(learner: Learner, params: Params) -> Learner:
    """A new learner with the parameters of a trained one; its target networks are copies of those."""
    target = jax.tree.map(jnp.copy, {"agent": params.agent, "mixer": params.mixer})
    return learner.replace(params=params, opt_state=learner.opt_state._replace(target=target))


def without_single_mixer(env: Environment, config: Config) -> Config:
    """The config for this environment: a single agent's values are not mixed."""
    return config.replace(mixer="none") if env.num_agents == 1 and config.mixer != "none" else config


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: store a rollout in the replay buffer, take gradient steps on rollouts sampled from it."""
    config = without_single_mixer(env, config)
    learner, actors = state
    params, networks = learner.params, make_networks(env, config)
    key_next, key_rollout, key_learn = jax.random.split(learner.key, 3)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = env.anneal(learner.env_params, learner.updates / config.num_updates)

    # 1. Collect a rollout with ε-greedy actions.
    epsilon = exploration_rate(config, learner.updates)

    def policy_step(key, env_state, timestep, carry):
        inputs = get_inputs(env, config, env_params, env_state, timestep)
        carry, values = networks.action_values(params, {"agent": params.agent}, inputs, carry)
        action = nn.epsilon_greedy(key, epsilon, values, inputs.action_mask)[0]
        return action, carry, (jax.tree.map(lambda x: x[0], inputs), timestep.last, action)

    carry: Carry = actors.carry
    actors, key_rollout = actors.replace(carry=carry.recurrent), collectives.fold_data(key_rollout)
    collected = collect(vec, env_params, policy_step, actors, key_rollout, config.rollout_length)
    actors, (inputs, last, action), steps, episodes = collected

    # 2. Store it.
    next_inputs = get_inputs(env, config, env_params, actors.env_state, actors.timestep)
    inputs_and_next = jax.tree.map(lambda rows, row: jnp.concatenate([rows, row]), inputs, next_inputs)
    rollout = Rollout(inputs_and_next, last, action, steps.reward, steps.terminated, steps.cut, carry.recurrent)
    replay = add_to_replay(config, learner.opt_state, carry.replay, rollout)
    opt_state = learner.opt_state._replace(insert_index=replay.current_index, is_full=replay.is_full)

    # 3. Learn, once ``learning_starts`` steps are collected.
    learner = learner.replace(key=key_next, opt_state=opt_state)
    enough = learner.updates + 1 >= -(-config.learning_starts // config.steps_per_update)

    def skip_learning(config, learner, replay, key):
        names = ("td_loss", "td_error", "chosen_value", "max_value", "grad_norm")  # all metrics of ``learn``
        return learner, dict.fromkeys(names, jnp.zeros((), jnp.float32))

    learner, metrics = cond_any(enough, functools.partial(learn, env), skip_learning, config, learner, replay, key_learn)
    learner = learner.replace(updates=learner.updates + 1)
    if config.normalize_observations:
        learner = learner.replace(params=networks.update_stats(learner.params, inputs, ~last))
    actors = actors.replace(carry=Carry(actors.carry, PersistentState(replay.experience)))
    max_reward = collectives.largest(jnp.max(jnp.abs(steps.reward * config.reward_scale)))
    return TrainState(learner, actors), metrics | {"epsilon": epsilon, "max_reward": max_reward} | episodes


def learn(
    env: Environment, config: Config, learner: Learner, replay: TrajectoryBufferState, key: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """Takes gradient steps on sampled rollouts; returns the learner and the mean of every metric."""
    params, networks = learner.params, make_networks(env, config)
    optimizer = make_optimizer(config, learner.updates, config.optimizer)

    def gradient_step(trained, step):
        (weights, target, opt_state), (key, number) = trained, step
        batch = sample_replay(config, replay, collectives.fold_data(key))
        (_, metrics), grads = jax.value_and_grad(td_loss, has_aux=True)(weights, config, networks, params, target, batch)
        grads, metrics = collectives.mean((grads, metrics))  # over devices
        changes, opt_state = optimizer.update(grads, opt_state, weights)
        weights = optax.apply_updates(weights, changes)
        if config.target_update == "polyak":
            target = optax.incremental_update(weights, target, config.tau)
        else:
            target = optax.periodic_update(weights, target, number, config.target_interval)
        return (weights, target, opt_state), metrics | {"grad_norm": gradient_norm(grads)}

    opt_state: OptState = learner.opt_state
    before = ({"agent": params.agent, "mixer": params.mixer}, opt_state.target, opt_state.optimizer)
    count = config.gradient_steps
    steps = learner.updates * count + jnp.arange(1, count + 1)  # those before ``learning_starts`` included
    (weights, target, optimizer_state), metrics = scan_means(gradient_step, before, (jax.random.split(key, count), steps))
    opt_state = opt_state._replace(target=target, optimizer=optimizer_state)
    metrics = {name: value.astype(jnp.float32) for name, value in metrics.items()}  # as in ``skip_learning``
    return learner.replace(params=params._replace(**weights), opt_state=opt_state), metrics


def td_loss(
    weights: dict[str, Any], config: Config, networks: Networks, params: Params, target: dict[str, Any], batch: Rollout
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(Q_tot(chosen) − y)² (Rashid et al. 2018, eq. 6), with Peng's Q(λ) (Peng and Williams 1994) in y, which does
    not stop at exploratory actions."""
    inputs = batch.inputs
    _, values = networks.action_values(params, weights, inputs, batch.recurrent)
    _, target_values = networks.action_values(params, target, inputs, batch.recurrent)

    # Values of the chosen actions and, from the target network, of the greedy ones in every row, the one after the last included;
    # agents that are not alive add nothing.
    chosen = jax.nn.one_hot(batch.action, values.shape[-1], dtype=bool)  # cheaper to differentiate than an index
    chosen_value = jnp.sum(jnp.where(chosen, values[:-1], 0.0), axis=-1) * inputs.alive[:-1]
    greedy_action = nn.best_action(jax.lax.stop_gradient(values) if config.double_q else target_values, inputs.action_mask)
    greedy_value = jnp.take_along_axis(target_values, greedy_action[..., None], axis=-1)[..., 0] * inputs.alive
    team_value = networks.mix(params, weights, chosen_value, inputs.state[:-1])
    greedy_team_value = networks.mix(params, target, greedy_value, inputs.state)

    # A team's reward is the mean over all its agents, also dead ones, whose reward is 0: so one agent's reward has
    # the same weight however many others are alive.
    alive, reward = inputs.alive, batch.reward * config.reward_scale
    mask = ~batch.last[..., None]
    if config.mixer == "none":
        mask &= alive[:-1]
    else:
        reward = jnp.mean(reward * alive[:-1], -1, keepdims=True)
        alive = jnp.ones((*alive.shape[:-1], 1), bool)
    step = Step(reward, alive[1:], batch.terminated, batch.cut)
    bootstrapped, last_value = greedy_team_value[:-1], greedy_team_value[-1]
    _, td_target = gae(step, bootstrapped, last_value, config.gamma, config.td_lambda, config.bootstrap_limit)

    error = team_value - jax.lax.stop_gradient(td_target)
    loss = collectives.masked_mean(jnp.square(error), mask)
    return loss, {
        "td_loss": loss,
        "td_error": collectives.masked_mean(jnp.abs(error), mask),
        "chosen_value": collectives.masked_mean(team_value, mask),
        "max_value": collectives.largest(jax.lax.stop_gradient(jnp.max(jnp.abs(team_value) * mask))),
    }


def get_inputs(env: Environment, config: Config, env_params: EnvParams, env_state: Any, timestep: TimeStep) -> Inputs:
    """Network inputs of the current timestep, T = 1, as the replay buffer stores them; the state is empty without a
    mixing network."""
    state = jnp.zeros((*timestep.first.shape, 0))
    if config.mixer == "qmix":
        state = vectorize(env, timestep.first.shape[0]).global_state(env_state, env_params)
    inputs = Inputs.of(timestep)
    return inputs._replace(obs=to_buffer_dtype(config, inputs.obs), state=to_buffer_dtype(config, state[None]))


def to_buffer_dtype(config: Config, x: jax.Array) -> jax.Array:
    """Observations in the type in which the replay buffer stores them."""
    dtype = jnp.dtype(config.buffer_dtype)
    if dtype == x.dtype:
        return x
    return jnp.clip(x, -float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).max)).astype(dtype)


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
    inputs = Inputs.of(timestep)
    inputs = inputs._replace(obs=to_buffer_dtype(config, inputs.obs))
    carry, values = make_networks(env, config).action_values(params, {"agent": params.agent}, inputs, carry)
    mask = inputs.action_mask
    action = nn.best_action(values, mask) if greedy else nn.epsilon_greedy(key, config.epsilon_end, values, mask)
    return action[0, 0], jax.tree.map(lambda x: x[0], carry)


def explain(
    env: Environment, config: Config, params: Params, env_params: EnvParams, env_state: Any, timestep: TimeStep
) -> dict[str, jax.Array]:
    """``action_value`` [T, E, A, n] of episodes [T, E] that start at their first timestep; NaN for unavailable actions.

    With a mixer they are what it mixes; without one they are in units of the reward.
    """
    del env_params, env_state
    inputs = jax.tree.map(lambda x: x[:, 0], jax.vmap(Inputs.of)(timestep))
    inputs = inputs._replace(obs=to_buffer_dtype(config, inputs.obs))
    carry = initial_carry(env, config, timestep.first.shape[1])
    _, values = make_networks(env, config).action_values(params, {"agent": params.agent}, inputs, carry)
    if without_single_mixer(env, config).mixer == "none":
        values = values / config.reward_scale
    return {"action_value": jnp.where(inputs.action_mask, values, jnp.nan)}


def make_buffer(config: Config, num_envs: int) -> TrajectoryBuffer:
    """flashbax's buffer of the rollouts of ``num_envs`` environments, of one shard; an entry of its time axis is a rollout."""
    return flashbax.make_trajectory_buffer(
        add_batch_size=num_envs,
        sample_batch_size=divide(config.batch_size, collectives.data_size(), "replayed rollouts (batch_size)", "devices"),
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=config.capacity,
    )


def swap_axes(rollout: Rollout) -> Rollout:
    """[T, E, …] → [E, T, …] and back; ``recurrent`` has no time axis."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), rollout._replace(recurrent=()))._replace(recurrent=rollout.recurrent)


def add_to_replay(config: Config, opt_state: OptState, replay: PersistentState, rollout: Rollout) -> TrajectoryBufferState:
    """The buffer with a rollout [T, E] in the slot of the oldest."""
    before = TrajectoryBufferState(experience=replay.value, current_index=opt_state.insert_index, is_full=opt_state.is_full)
    rows = jax.tree.map(lambda x, stored: x[:, None].astype(stored.dtype), swap_axes(rollout), before.experience)
    after = make_buffer(config, rollout.last.shape[1]).add(before, rows)
    # In the layout of the rows a GPU would hold the buffer twice.
    return after.replace(experience=jax.tree.map(row_major_on_gpu, after.experience))


def sample_replay(config: Config, replay: TrajectoryBufferState, key: jax.Array) -> Rollout:
    """Random rollouts [T, B]; ``recurrent`` is [B, A, H]."""
    buffer = make_buffer(config, replay.experience.last.shape[0])
    return swap_axes(jax.tree.map(lambda x: x[:, 0], buffer.sample(replay, key).experience))
