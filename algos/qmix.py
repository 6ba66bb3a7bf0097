"""QMIX (Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning"), VDN
(Sunehag et al. 2018, "Value-Decomposition Networks For Cooperative Multi-Agent Learning") and independent Q-learning (Tan 1993).

Every agent values its own actions from local observations. The team's value is a monotonic function of those of the actions
chosen, with weights made from the global state (``mixer=qmix``), or their sum (``vdn``); with ``none`` each agent learns from its
own rewards. Rollouts are kept in a replay on the accelerator, and replayed whole, GRU cores from the memory that they had then
(the stored state of Kapturowski et al. 2019, without burn-in).
``python algos/qmix.py env=smax env.scenario=3m`` trains it.

Axis letters: T time, E environments, B replayed rollouts, N places of the replay, A agents, O observation, G global state,
n actions.
"""

if __name__ == "__main__":  # as a command: before the imports, so that Ctrl-C ends those without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("qmix")


import functools
from typing import Any, NamedTuple

import flashbax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer, TrajectoryBufferState

from marljax.config.hyperparameters import Scalar, static, traced
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import EnvParams, Lasting, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.errors import UserError
from marljax.learning import config as learning
from marljax.learning.advantages import gae
from marljax.learning.optimizer import optimizer
from marljax.learning.rollout import Inputs, Learner, Step, TrainState, annealed, collect, inputs_of, refuse_items, start
from marljax.nn.distributions import MASKED, Categorical
from marljax.nn.layers import Sizes, activation, dense
from marljax.nn.networks import Core, agent_ids, apply_per_agent, init_per_agent, read_out
from marljax.nn.networks import initial_carry as zero_carry
from marljax.nn.running_stats import RunningStats
from marljax.utils import collectives
from marljax.utils.batching import cond_any
from marljax.utils.validation import divide


class Config(learning.LearningConfig):
    """Hyperparameters of QMIX, VDN and IQL."""

    # How much
    num_envs: int = static(8, low=1)  # E, over all devices
    rollout_length: int = static(32, low=1)  # T, steps per environment between updates, and of what is replayed
    gradient_steps: int = static(2, low=1)  # per update
    batch_size: int = static(32, low=1)  # replayed rollouts per gradient step, over all devices
    learning_starts: int = static(5_000, low=0)  # steps of all environments before the first gradient step
    # Replay
    buffer_size: int = static(100_000, low=1)  # steps of all environments that are kept, rounded down to whole rollouts
    # Of observations and global states; what is beyond float16's 65,504 is that, for policies, too.
    buffer_dtype: str = static("float32", choices=("float32", "bfloat16", "float16"))
    # Networks
    mixer: str = static("qmix", choices=("qmix", "vdn", "none"))  # none: independent Q-learning
    mixer_width: int = static(32, low=1)  # of the mixing network's hidden layer
    hypernet_width: int = static(64, low=1)  # of the hidden layers of the networks that make its weights
    mixer_scale: float = static(0.01)  # of their initial weights
    mixer_slope: float = static(0.05)  # the least, of the mixing network's hidden layer; 0: ELU as in the paper
    core: str = static("gru", choices=("mlp", "gru"))  # gru: the last hidden layer remembers
    hidden: tuple[int, ...] = static((64, 64), low=1)  # widths of the agents' hidden layers
    activation: str = static("relu", choices=learning.ACTIVATIONS)  # of all hidden layers but the mixing network's
    share_parameters: bool = static(True)  # False: every agent has networks of its own
    agent_id: bool = static(True)  # append a one-hot agent id (up to 64 agents) to the observation
    # Exploration
    epsilon_start: float = traced(1.0, low=0.0, high=1.0)  # share of random actions at first
    epsilon_end: float = traced(0.05, low=0.0, high=1.0)  # and at last
    epsilon_decay: float = traced(0.1, low=0.0, high=1.0)  # share of training, from its first step, over which it falls
    # Targets
    gamma: float = traced(0.99, low=0.0, high=1.0)  # discount per step
    td_lambda: float = traced(0.6, low=0.0, high=1.0)  # 0: one-step targets, 1: returns as far as the rollout goes
    reward_scale: float = traced(1.0, low=0.0)  # multiplies rewards before anything is learnt from them
    # False: the step limit ends an episode like any other end; see PPO's
    bootstrap_limit: bool = static(True)
    double_q: bool = static(True)  # the network chooses the next action, and its older copy values it (van Hasselt et al. 2016)
    target_update: str = static("hard", choices=("hard", "polyak"))  # how that copy, the target network, follows
    target_interval: int = static(200, low=1)  # hard: gradient steps from one copy to the next
    tau: float = traced(0.005, low=0.0, high=1.0)  # polyak: how far it goes in a gradient step
    # Optimisation
    learning_rate: float = traced(4e-3, low=0.0)  # at first
    max_grad_norm: float = traced(10.0, low=0.0)  # global norm of all gradients together

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.core == "gru" and len(self.hidden) < 2:
            raise UserError(f"core=gru takes at least two hidden layers, one before the GRU; hidden={list(self.hidden)} has one")
        if self.buffer_size < self.steps_per_update:
            raise UserError(
                f"buffer_size={self.buffer_size} holds no rollouts of {self.rollout_length} steps in {self.num_envs} "
                f"environments; take {self.steps_per_update} or more, shorter rollouts or fewer environments"
            )
        if self.learning_starts > self.total_steps:
            raise UserError(
                f"learning_starts={self.learning_starts} is more than total_steps={self.total_steps}: nothing would be learnt; "
                "lower the one or raise the other"
            )

    @property
    def capacity(self) -> int:
        """N, rollouts that the replay keeps of each environment."""
        return self.buffer_size // self.steps_per_update

    @property
    def sizes(self) -> Sizes:
        """Of the agents' network."""
        return Sizes(self.core, self.hidden, (), self.activation)


class Params(NamedTuple):
    """What policies and the mixing network need."""

    agent: Any
    mixer: Any  # {} without weights
    obs_stats: RunningStats  # [O]
    state_stats: RunningStats  # [G]


class Optimisation(NamedTuple):
    """What stays between updates besides the networks."""

    optimizer: Any
    target: dict[str, Any]  # the target networks: older copies of ``agent`` and ``mixer``, which see inputs normalised as of now
    # Where the replay stands is the same for all environments, so it is here, and not with the replay among the actors.
    insert_index: jax.Array  # [] int32, the place of the replay that is written next
    is_full: jax.Array  # [] bool: no place of the replay is empty


class Carry(NamedTuple):
    """What environments bring along from one update to the next."""

    recurrent: Any  # what GRU cores remember, [E, A, H]; () for MLP cores
    replay: Lasting  # of a ``Sequence`` [E, N, …]


class Seen(NamedTuple):
    """What the networks see. Leading [T, E]."""

    local: Inputs  # [T, E, A, …]
    state: jax.Array  # [T, E, G]; G = 0 without a mixing network


class Sequence(NamedTuple):
    """A rollout of one environment, as it is replayed."""

    seen: Seen  # [T + 1, …]: what follows the last action, too
    last: jax.Array  # [T] bool: the timestep ended an episode, and the action was ignored
    action: jax.Array  # [T, A] int32
    reward: jax.Array  # [T, A]
    terminated: jax.Array  # [T] bool
    cut: jax.Array  # [T] bool
    recurrent: Any  # [A, H] what GRU cores remembered at the start


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Fresh networks, environments and an empty replay; the learner's part is the same on every shard of the data axis."""
    refuse(env, config)
    config = fitting(env, config)
    key_agent, key_mixer, key_reset, key_learner = jax.random.split(key, 4)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    zero = zero_carry(config.core, config.hidden[-1], (vec.num_envs, env.num_agents))
    actors = start(vec, env_params, collectives.fold_data(key_reset), zero)
    seen = see(env, config, env_params, actors.env_state, actors.timestep)
    params = init_params(env, config, seen, key_agent, key_mixer)
    replay = empty_replay(config, seen, zero)
    trained = {"agent": params.agent, "mixer": params.mixer}
    updates = jnp.zeros((), jnp.int32)
    opt_state = optimizer(config, updates).init(trained)
    optimisation = Optimisation(opt_state, jax.tree.map(jnp.copy, trained), replay.current_index, replay.is_full)
    learner = Learner(params, optimisation, updates, key_learner, env_params)
    return TrainState(learner, actors.replace(carry=Carry(zero, Lasting(replay.experience))))


def fitting(env: Environment, config: Config) -> Config:
    """The config for this environment: of one agent there is nothing to mix."""
    return config.replace(mixer="none") if env.num_agents == 1 and config.mixer != "none" else config


def refuse(env: Environment, config: Config) -> None:
    """Raises ``UserError`` for environments whose actions or teams have no such values."""
    refuse_items(env)
    name = type(env).__name__
    if not isinstance(env.action_space, Discrete):
        raise UserError(f"qmix needs discrete actions, and those of {name} are {env.action_space}; take ippo or mappo")
    if env.competitive and config.mixer != "none":
        raise UserError(f"mixer={config.mixer} adds up the values of one team, and {name} has several; take mixer=none")


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: a rollout goes into the replay, gradient steps on what is drawn from it."""
    config = fitting(env, config)
    learner, actors = state
    key_next, key_rollout, key_fit = jax.random.split(learner.key, 3)
    learner = learner.replace(key=key_next)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = annealed(env, learner, config.num_updates)
    epsilon = exploration(config, learner.updates)

    # Collect.
    carry: Carry = actors.carry
    decide = functools.partial(rollout_policy, env, config, learner.params, env_params, epsilon)
    key_rollout = collectives.fold_data(key_rollout)
    actors, records, steps, episodes = collect(
        vec, env_params, decide, actors.replace(carry=carry.recurrent), key_rollout, config.rollout_length
    )

    # Remember.
    seen, last, action = records
    behind = see(env, config, env_params, actors.env_state, actors.timestep)
    whole = jax.tree.map(lambda rows, row: jnp.concatenate([rows, row]), seen, behind)
    rollout = Sequence(whole, last, action, steps.reward, steps.terminated, steps.cut, carry.recurrent)
    replay = added(config, learner, carry.replay, rollout)
    learner = learner.replace(opt_state=learner.opt_state._replace(insert_index=replay.current_index, is_full=replay.is_full))

    # Learn.
    begins = learner.updates + 1 >= -(-config.learning_starts // config.steps_per_update)
    learner, terms = cond_any(begins, functools.partial(fit, env), skip_fit, config, learner, replay, key_fit)
    learner = learner.replace(updates=learner.updates + 1)
    if config.normalize_observations:
        learner = learner.replace(params=updated_stats(learner.params, seen, last))
    actors = actors.replace(carry=Carry(actors.carry, Lasting(replay.experience)))
    terms |= {"epsilon": epsilon, "max_reward": collectives.largest(jnp.max(jnp.abs(steps.reward * config.reward_scale)))}
    return TrainState(learner, actors), terms | episodes


def initial_carry(env: Environment, config: Config) -> Any:
    """An agent's memory at the start of an episode of one environment."""
    return zero_carry(config.core, config.hidden[-1], (env.num_agents,))


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A] of one environment from its timestep; not greedy: with the last share of random ones."""
    one = jax.tree.map(lambda x: x[None], (timestep, carry))
    inputs = inputs_of(one[0])
    inputs = inputs._replace(obs=as_kept(config, inputs.obs))
    carry, values = action_values(env, config, params.agent, params, inputs, one[1])
    action = best(values, inputs.action_mask) if greedy else explored(key, config.epsilon_end, values, inputs.action_mask)
    return action[0, 0], jax.tree.map(lambda x: x[0], carry)


# --- policy ------------------------------------------------------------------------------------------------------------


def see(env: Environment, config: Config, env_params: EnvParams, env_state: VecState, timestep: TimeStep) -> Seen:
    """What the networks see of the current timestep, T = 1, as the replay keeps it."""
    inputs = inputs_of(timestep)
    state = jnp.zeros((*timestep.first.shape, 0))
    if config.mixer == "qmix":
        state = vectorize(env, timestep.first.shape[0]).global_state(env_state, env_params)
    return Seen(inputs._replace(obs=as_kept(config, inputs.obs)), as_kept(config, state[None]))


def as_kept(config: Config, x: jax.Array) -> jax.Array:
    """Observations in the replay's type; policies, too, see them so."""
    dtype = jnp.dtype(config.buffer_dtype)
    if dtype == x.dtype:
        return x
    return jnp.clip(x, -float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).max)).astype(dtype)


def rollout_policy(
    env: Environment,
    config: Config,
    params: Params,
    env_params: EnvParams,
    epsilon: jax.Array,
    key: jax.Array,
    env_state: VecState,
    timestep: TimeStep,
    carry: Any,
) -> tuple[jax.Array, Any, Any]:
    """Explores, [E, A], and records what the replay keeps of the moment."""
    seen = see(env, config, env_params, env_state, timestep)
    carry, values = action_values(env, config, params.agent, params, seen.local, carry)
    action = explored(key, epsilon, values, seen.local.action_mask)[0]
    return action, carry, (jax.tree.map(lambda x: x[0], seen), timestep.last, action)


def exploration(config: Config, updates: jax.Array) -> jax.Array:
    """The share of random actions in this update."""
    done = updates / jnp.maximum(config.epsilon_decay * config.num_updates, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * jnp.minimum(done, 1.0)


def explored(key: jax.Array, epsilon: Scalar, values: jax.Array, mask: jax.Array) -> jax.Array:
    """ε-greedy over the available actions, agent by agent: values and mask […, n] → […]."""
    key_random, key_which = jax.random.split(key)
    random = Categorical(jnp.zeros(values.shape), mask).sample(key_random)
    return jnp.where(jax.random.uniform(key_which, random.shape) < epsilon, random, best(values, mask))


def best(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The available action of the highest value: […, n] → […]."""
    return jnp.argmax(jnp.where(mask, values, MASKED), axis=-1)


def action_values(
    env: Environment, config: Config, weights: Any, params: Params, inputs: Inputs, carry: Any
) -> tuple[Any, jax.Array]:
    """Memories after the last step and values [T, E, A, n] by the network with these weights."""
    seen = (features(config, params, inputs.obs), inputs.first, inputs.alive)
    return apply_per_agent(agent_network(env, config), weights, config.share_parameters, carry, (), *seen)


def features(config: Config, params: Params, obs: jax.Array) -> jax.Array:
    """[T, E, A, F]: observations as the network takes them."""
    obs = obs.astype(jnp.float32)
    obs = params.obs_stats.normalize(obs) if config.normalize_observations else obs
    ids = agent_ids(obs.shape[2]) if config.agent_id else jnp.zeros((obs.shape[2], 0))
    return jnp.concatenate([obs, jnp.broadcast_to(ids, (*obs.shape[:2], *ids.shape))], -1)


class AgentNetwork(nn.Module):
    """Values of an agent's actions."""

    num_actions: int
    sizes: Sizes

    @nn.compact
    def __call__(self, carry: Any, obs: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[Any, jax.Array]:
        """obs [T, …, F] → values [T, …, n]."""
        carry, x = Core(self.sizes)(carry, obs, first, alive)
        return carry, read_out(x, self.sizes, self.num_actions, 1.0)


class Mixer(nn.Module):
    """A team's value, monotonic in every agent's: one hidden layer, whose weights are made from the global state and not negative
    (Rashid et al. 2018, figure 2).

    At first the weights lie around 1 / √width, so that small values are about added up, and ``scale`` says how much the state
    changes that; a large scale multiplies values by the square of the state's norm. The paper's ELU goes flat for negative
    inputs; here its slope does not fall below ``slope``, so that costs are told apart, too. A slope of 0.25, or a bias that lifts
    all values above 0, makes the mixture so linear that it settles for 7 in the paper's two-step game, as a sum does.
    """

    width: int
    hypernet_width: int
    scale: float
    slope: float
    activation: str

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """values […, A], state […, G] → […, 1]."""
        agents = values.shape[-1]

        def made(outputs: int, hidden: int, name: str, around: float = 0.0) -> jax.Array:
            x = activation(self.activation)(dense(hidden, self.scale, f"{name}_hidden")(state))
            return dense(outputs, self.scale, name, bias=around)(x)

        around = 1 / self.width**0.5
        first = made(agents * self.width, self.hypernet_width, "first", around).reshape(*state.shape[:-1], agents, self.width)
        bias = dense(self.width, self.scale, "bias")(state)
        hidden = jnp.einsum("...a,...aw->...w", values, jnp.abs(first)) + bias
        low = jnp.minimum(hidden, 0.0)
        hidden = jnp.maximum(hidden, 0.0) + (1.0 - self.slope) * jnp.expm1(low) + self.slope * low
        second = made(self.width, self.hypernet_width, "second", around)
        return jnp.sum(hidden * jnp.abs(second), axis=-1, keepdims=True) + made(1, self.width, "offset")


def agent_network(env: Environment, config: Config) -> AgentNetwork:
    assert isinstance(env.action_space, Discrete)
    return AgentNetwork(env.action_space.n, config.sizes)


def mixing_network(config: Config) -> Mixer:
    return Mixer(config.mixer_width, config.hypernet_width, config.mixer_scale, config.mixer_slope, config.activation)


def init_params(env: Environment, config: Config, seen: Seen, key_agent: jax.Array, key_mixer: jax.Array) -> Params:
    """Fresh networks and statistics for inputs of this shape."""
    stats = (RunningStats.create(x.shape[-1:]) for x in (seen.local.obs, seen.state))
    params = Params(None, {}, *stats)
    count = None if config.share_parameters else env.num_agents
    carry = zero_carry(config.core, config.hidden[-1], seen.local.alive.shape[1:])
    inputs = (features(config, params, seen.local.obs), seen.local.first, seen.local.alive)
    params = params._replace(agent=init_per_agent(agent_network(env, config), key_agent, count, carry, *inputs))
    if config.mixer != "qmix":
        return params
    state = seen.state.astype(jnp.float32)
    return params._replace(mixer=mixing_network(config).init(key_mixer, jnp.zeros(seen.local.alive.shape), state))


# --- replay ------------------------------------------------------------------------------------------------------------


def buffer(config: Config, num_envs: int) -> TrajectoryBuffer:
    """flashbax's buffer of the rollouts of ``num_envs`` environments, those of one shard; its time counts rollouts."""
    return flashbax.make_trajectory_buffer(
        add_batch_size=num_envs,
        sample_batch_size=divide(config.batch_size, collectives.data_size(), "replayed rollouts (batch_size)", "devices"),
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=config.capacity,
    )


def empty_replay(config: Config, seen: Seen, zero: Any) -> TrajectoryBufferState:
    """An empty replay of rollouts whose timesteps look like ``seen``."""
    return buffer(config, seen.state.shape[1]).init(_blank(config.rollout_length, seen, zero))


def _blank(length: int, seen: Seen, zero: Any) -> Sequence:
    """A rollout of one environment in which nothing happened."""
    one = jax.tree.map(lambda x: jnp.zeros((length + 1, *x.shape[2:]), x.dtype), seen)
    agents = jnp.zeros((length, seen.local.alive.shape[-1]))
    never = jnp.zeros(length, bool)
    return Sequence(one, never, agents.astype(jnp.int32), agents, never, never, jax.tree.map(lambda x: x[0], zero))


def added(config: Config, learner: Learner, replay: Lasting, rollout: Sequence) -> TrajectoryBufferState:
    """The replay with a rollout, leading [T, E] but for ``recurrent``, in the place of the oldest."""
    times = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), rollout._replace(recurrent=()))._replace(recurrent=rollout.recurrent)
    before = TrajectoryBufferState(
        experience=replay.value, current_index=learner.opt_state.insert_index, is_full=learner.opt_state.is_full
    )
    rows = jax.tree.map(lambda x, kept: x[:, None].astype(kept.dtype), times, before.experience)
    return buffer(config, rollout.last.shape[1]).add(before, rows)


def sampled(config: Config, replay: TrajectoryBufferState, key: jax.Array) -> Sequence:
    """Rollouts at random, [T, B, …]; ``recurrent`` is [B, A, H]."""
    num_envs = replay.experience.last.shape[0]
    rows = jax.tree.map(lambda x: x[:, 0], buffer(config, num_envs).sample(replay, key).experience)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), rows._replace(recurrent=()))._replace(recurrent=rows.recurrent)


# --- learning ----------------------------------------------------------------------------------------------------------

TERMS = ("td_loss", "td_error", "chosen_value", "max_value", "grad_norm")


def skip_fit(
    config: Config, learner: Learner, replay: TrajectoryBufferState, key: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """Instead of ``fit`` while the replay is too empty."""
    del config, replay, key
    return learner, dict.fromkeys(TERMS, jnp.zeros(()))


def fit(
    env: Environment, config: Config, learner: Learner, replay: TrajectoryBufferState, key: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """Gradient steps on rollouts drawn from the replay; returns the learner and the mean of every named term."""
    transform, params = optimizer(config, learner.updates), learner.params
    loss = functools.partial(td_loss, env, config, params)

    def gradient_step(fitted: tuple[dict[str, Any], dict[str, Any], Any], given: tuple[jax.Array, jax.Array]):
        (trained, target, opt_state), (key, number) = fitted, given
        batch = sampled(config, replay, collectives.fold_data(key))
        (_, terms), grads = jax.value_and_grad(loss, has_aux=True)(trained, target, batch)
        grads, terms = collectives.mean((grads, terms))
        updates, opt_state = transform.update(grads, opt_state, trained)
        trained = optax.apply_updates(trained, updates)
        if config.target_update == "polyak":
            target = optax.incremental_update(trained, target, config.tau)
        else:
            target = optax.periodic_update(trained, target, number, config.target_interval)
        return (trained, target, opt_state), jnp.append(terms, optax.tree.norm(grads))

    optimisation: Optimisation = learner.opt_state
    fitted = ({"agent": params.agent, "mixer": params.mixer}, optimisation.target, optimisation.optimizer)
    steps = config.gradient_steps
    numbers = learner.updates * steps + jnp.arange(1, steps + 1)  # of gradient steps, those before learning starts included
    (trained, target, opt_state), terms = jax.lax.scan(gradient_step, fitted, (jax.random.split(key, steps), numbers))
    learner = learner.replace(
        params=params._replace(**trained), opt_state=optimisation._replace(target=target, optimizer=opt_state)
    )
    return learner, dict(zip(TERMS, terms.mean(0), strict=True))


def td_loss(
    env: Environment, config: Config, params: Params, trained: dict[str, Any], target: dict[str, Any], batch: Sequence
) -> tuple[jax.Array, jax.Array]:
    """The squared error of what was chosen against targets by the older networks (Rashid et al. 2018, eq. 6; with ``td_lambda``
    Peng's Q(λ), which does not stop at exploratory actions), and ``TERMS`` but the last."""
    local, state = batch.seen.local, batch.seen.state
    _, values = action_values(env, config, trained["agent"], params, local, batch.recurrent)
    _, older = action_values(env, config, target["agent"], params, local, batch.recurrent)
    took = jax.nn.one_hot(batch.action, values.shape[-1], dtype=bool)  # cheaper to differentiate than an index
    chosen = jnp.sum(jnp.where(took, values[:-1], 0.0), axis=-1) * local.alive[:-1]
    following = at(older, best(jax.lax.stop_gradient(values) if config.double_q else older, local.action_mask)) * local.alive
    estimate = mixed(config, params, trained["mixer"], chosen, state[:-1])
    value = mixed(config, params, target["mixer"], following, state)
    td_target = targets(config, batch, value)
    counts = ~batch.last[..., None] & (local.alive[:-1] if config.mixer == "none" else True)
    error = estimate - jax.lax.stop_gradient(td_target)
    means = [collectives.masked_mean(x, counts) for x in (jnp.square(error), jnp.abs(error), estimate)]
    largest = collectives.largest(jax.lax.stop_gradient(jnp.max(jnp.abs(estimate) * counts)))
    return means[0], jnp.stack([*means, largest])


def at(values: jax.Array, action: jax.Array) -> jax.Array:
    """Of values […, n] those of the actions […]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def mixed(config: Config, params: Params, weights: Any, values: jax.Array, state: jax.Array) -> jax.Array:
    """[T, B, A] → the team's value [T, B, 1]; without a mixer as they are."""
    if config.mixer == "none":
        return values
    if config.mixer == "vdn":
        return jnp.sum(values, axis=-1, keepdims=True)
    state = state.astype(jnp.float32)
    state = params.state_stats.normalize(state) if config.normalize_observations else state
    return mixing_network(config).apply(weights, values, state)  # type: ignore[return-value]


def targets(config: Config, batch: Sequence, value: jax.Array) -> jax.Array:
    """TD(λ) targets [T, B, 1 or A] from values [T + 1, B, …].

    A team's reward is the sum over its agents, by their number; those that are not alive earn nothing. So what one of them earns
    weighs the same whoever else is there.
    """
    alive, reward = batch.seen.local.alive, batch.reward * config.reward_scale
    if config.mixer != "none":
        reward = jnp.mean(reward * alive[:-1], -1, keepdims=True)
        alive = jnp.ones((*alive.shape[:-1], 1), bool)
    step = Step(reward, alive[1:], batch.terminated, batch.cut)
    _, td_target = gae(step, value[:-1], value[-1], config.gamma, config.td_lambda, config.bootstrap_limit)
    return td_target


def updated_stats(params: Params, seen: Seen, last: jax.Array) -> Params:
    """Joins a rollout's observations and global states, but those of final timesteps ``last`` [T, E], to their statistics."""
    local, running = seen.local, ~last
    obs_stats = params.obs_stats.updated(local.obs.astype(jnp.float32), local.alive & running[..., None])
    state_stats = params.state_stats.updated(seen.state.astype(jnp.float32), running)
    return params._replace(obs_stats=obs_stats, state_stats=state_stats)
