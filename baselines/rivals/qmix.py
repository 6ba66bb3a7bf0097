"""QMIX and VDN as JaxMARL's recurrent scripts run them (Rutherford et al. 2023), written anew against the package's API: the
rival of ``qmix_compare.py``.

What it does otherwise than ``algos/qmix.py``: every update resets its environments and plays one rollout as long as an episode;
the last step of a rollout is never learnt from; the mixing network begins near 0, ours near a sum; the reward of a team is the
sum over its agents; observations travel in dictionaries by agent. Its script takes the end of an episode one step early, which in
rollouts of one episode is the same.

Axis letters: T time, E environments, B replayed rollouts, A agents, O observation, n actions.
"""

import functools
from typing import Any, NamedTuple

import flashbax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer
from flax import struct
from jaxmarl.wrappers.baselines import CTRolloutManager

from marljax.baselines.rivals.rnn_ppo import Recurrent
from marljax.nn.layers import orthogonal


class Config(struct.PyTreeNode):
    """JaxMARL's settings for simple_spread (``ql_rnn_mpe``), in its own terms."""

    mixer: str = struct.field(pytree_node=False, default="qmix")  # or vdn
    total_timesteps: int = struct.field(pytree_node=False, default=1_000_000)
    num_envs: int = struct.field(pytree_node=False, default=8)  # E
    num_steps: int = struct.field(pytree_node=False, default=26)  # T
    buffer_size: int = struct.field(pytree_node=False, default=5_000)  # rollouts
    buffer_batch_size: int = struct.field(pytree_node=False, default=32)  # B
    hidden: int = struct.field(pytree_node=False, default=64)
    mixer_embedding: int = struct.field(pytree_node=False, default=32)
    hyper_hidden: int = struct.field(pytree_node=False, default=128)
    mixer_init_scale: float = struct.field(pytree_node=False, default=0.001)
    eps_start: float = struct.field(pytree_node=False, default=1.0)
    eps_finish: float = struct.field(pytree_node=False, default=0.05)
    eps_decay: float = struct.field(pytree_node=False, default=0.1)
    max_grad_norm: float = struct.field(pytree_node=False, default=25.0)
    target_update_interval: int = struct.field(pytree_node=False, default=200)
    lr: float = struct.field(pytree_node=False, default=5e-3)  # annealed linearly to 0
    learning_starts: int = struct.field(pytree_node=False, default=10_000)
    gamma: float = struct.field(pytree_node=False, default=0.9)

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.steps_per_update

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs


class AgentNetwork(nn.Module):
    """Values of an agent's actions from what it sees and remembers."""

    num_actions: int
    hidden: int

    @nn.compact
    def __call__(self, carry: jax.Array, obs: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """carry [N, H], obs [T, N, O], first [T, N] → values [T, N, n]."""
        carry, x = Recurrent(self.hidden, scale=1.0)(carry, obs, first)
        return carry, nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)


class Mixer(nn.Module):
    """The mixing network, all its layers with small weights at first."""

    embedding: int
    hyper_hidden: int
    scale: float

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """values [T, B, A], state [T, B, G] → [T, B]."""
        agents = values.shape[-1]

        def made(hidden: int, outputs: int) -> jax.Array:
            x = nn.relu(nn.Dense(hidden, kernel_init=orthogonal(self.scale))(state))
            return nn.Dense(outputs, kernel_init=orthogonal(self.scale))(x)

        first = jnp.abs(made(self.hyper_hidden, self.embedding * agents).reshape(*state.shape[:-1], agents, self.embedding))
        bias = nn.Dense(self.embedding, kernel_init=orthogonal(self.scale))(state)
        second = jnp.abs(made(self.hyper_hidden, self.embedding))
        hidden = nn.elu(jnp.einsum("tba,tbaw->tbw", values, first) + bias)
        return jnp.einsum("tbw,tbw->tb", hidden, second) + made(self.embedding, 1)[..., 0]


class Moment(NamedTuple):
    """One step of all environments, by agent; [T, E, …]."""

    obs: dict[str, jax.Array]  # and the global state as ``__all__``
    actions: dict[str, jax.Array]
    rewards: dict[str, jax.Array]
    dones: dict[str, jax.Array]  # of the step before


class RunState(NamedTuple):
    """Everything that a run consists of."""

    params: Any
    target: Any
    opt_state: Any
    buffer: Any
    updates: jax.Array
    key: jax.Array


def manager(env: Any, config: Config) -> CTRolloutManager:
    """E environments with agent ids in their observations, a global state, and a reward of the team: the sum over agents."""
    return CTRolloutManager(env, batch_size=config.num_envs)


def network(env: Any, config: Config) -> AgentNetwork:
    return AgentNetwork(env.action_space(env.agents[0]).n, config.hidden)


def mixer(config: Config) -> Mixer:
    return Mixer(config.mixer_embedding, config.hyper_hidden, config.mixer_init_scale)


def optimizer(config: Config) -> optax.GradientTransformation:
    rate = optax.linear_schedule(config.lr, 1e-10, config.num_updates)
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.radam(rate))


def buffer(config: Config) -> TrajectoryBuffer:
    """Of whole rollouts."""
    return flashbax.make_trajectory_buffer(
        max_length_time_axis=config.buffer_size // config.num_envs,
        min_length_time_axis=config.buffer_batch_size,
        sample_batch_size=config.buffer_batch_size,
        add_batch_size=config.num_envs,
        sample_sequence_length=1,
        period=1,
    )


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """Fresh networks and an empty buffer; ``env`` is JaxMARL's, inside its ``LogWrapper``."""
    key_agent, key_mixer, key_reset, key = jax.random.split(key, 4)
    together = manager(env, config)
    params = {"agent": network(env, config).init(key_agent, *blank(config, 1, together.obs_size))}
    if config.mixer == "qmix":
        state = together.batch_reset(key_reset)[0]["__all__"]
        params["mixer"] = mixer(config).init(key_mixer, jnp.zeros((1, 1, env.num_agents)), state[None, :1])
    moments, _ = jax.eval_shape(functools.partial(rollout, env, config), params, jnp.ones(()), key)
    empty = buffer(config).init(jax.tree.map(lambda x: jnp.zeros((x.shape[0], *x.shape[2:]), x.dtype), moments))
    return RunState(params, params, optimizer(config).init(params), empty, jnp.zeros((), jnp.int32), key)


def blank(config: Config, rows: int, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.zeros((rows, config.hidden)), jnp.zeros((1, rows, size)), jnp.zeros((1, rows), bool)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its figures are the number and the summed returns of the episodes that ended, averaged over agents."""
    key, key_rollout, key_sample = jax.random.split(state.key, 3)
    done = state.updates / (config.eps_decay * config.num_updates)
    epsilon = config.eps_start + (config.eps_finish - config.eps_start) * jnp.minimum(done, 1.0)
    moments, infos = rollout(env, config, state.params, epsilon, key_rollout)
    kept = buffer(config).add(state.buffer, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[:, None], moments))
    state = state._replace(buffer=kept, key=key)
    steps = (state.updates + 1) * config.steps_per_update
    learns = buffer(config).can_sample(kept) & (steps > config.learning_starts)
    state = jax.lax.cond(learns, functools.partial(learn, env, config), lambda state, key: state, state, key_sample)
    due = state.updates % config.target_update_interval == 0
    target = jax.tree.map(lambda new, old: jnp.where(due, new, old), state.params, state.target)
    ended = infos["returned_episode"][..., 0]
    metrics = {"episodes": ended.sum(), "sum_return": (infos["returned_episode_returns"].mean(-1) * ended).sum()}
    return state._replace(target=target, updates=state.updates + 1), metrics


def rollout(env: Any, config: Config, params: Any, epsilon: jax.Array, key: jax.Array) -> tuple[Moment, dict[str, jax.Array]]:
    """One rollout from fresh environments, and JaxMARL's log of it."""
    together, agents = manager(env, config), env.agents
    key_reset, key_steps = jax.random.split(key)
    obs, env_state = together.batch_reset(key_reset)
    dones = {agent: jnp.zeros(config.num_envs, bool) for agent in (*agents, "__all__")}
    carry = jnp.zeros((env.num_agents * config.num_envs, config.hidden))

    def step(scanned: tuple, key: jax.Array) -> tuple:
        carry, obs, dones, env_state = scanned
        key_random, key_which, key_step = jax.random.split(key, 3)
        seen = rows(agents, obs)[None], rows(agents, dones)[None]
        carry, values = outputs(network(env, config), params["agent"], carry, *seen)
        values = values[0].reshape(len(agents), config.num_envs, -1)
        valid = jnp.stack([together.get_valid_actions(env_state.env_state)[agent] for agent in agents])
        greedy = jnp.argmax(values - (1 - valid) * 1e10, axis=-1)
        random = jax.random.categorical(key_random, jnp.log(valid))
        action = jnp.where(jax.random.uniform(key_which, greedy.shape) < epsilon, random, greedy)
        actions = dict(zip(agents, action, strict=True))
        following, env_state, rewards, done, info = together.batch_step(key_step, env_state, actions)
        return (carry, following, done, env_state), (Moment(obs, actions, rewards, dones), info)

    played: tuple[Any, tuple[Moment, dict[str, jax.Array]]]
    played = jax.lax.scan(step, (carry, obs, dones, env_state), jax.random.split(key_steps, config.num_steps))
    return played[1]


def outputs(network: AgentNetwork, weights: Any, carry: Any, obs: jax.Array, first: jax.Array) -> tuple[Any, jax.Array]:
    """Memory after the last step, and values."""
    found: Any = network.apply(weights, carry, obs, first)
    return found


def rows(agents: list[str], values: dict[str, jax.Array]) -> jax.Array:
    """[A·E, …] from [E, …] by agent."""
    return jnp.concatenate([values[agent] for agent in agents])


def learn(env: Any, config: Config, state: RunState, key: jax.Array) -> RunState:
    """One gradient step."""
    sampled = buffer(config).sample(state.buffer, key).experience
    moments = jax.tree.map(lambda x: jnp.swapaxes(x[:, 0], 0, 1), sampled)  # [T, B, …]
    grads = jax.grad(loss)(state.params, env, config, state.target, moments)
    updates, opt_state = optimizer(config).update(grads, state.opt_state, state.params)
    return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)


def loss(params: Any, env: Any, config: Config, target: Any, moments: Moment) -> jax.Array:
    """The squared error of the team's value one step ahead, with double Q-learning."""
    agents, length = env.agents, moments.dones["__all__"].shape[0]

    def side_by_side(values: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([values[agent] for agent in agents], axis=1)  # [T, A·B, …]

    def values_of(weights: Any) -> jax.Array:
        obs, first = side_by_side(moments.obs), side_by_side(moments.dones)
        _, values = outputs(network(env, config), weights["agent"], jnp.zeros((obs.shape[1], config.hidden)), obs, first)
        return jnp.moveaxis(values.reshape(length, len(agents), -1, values.shape[-1]), 1, 2)  # [T, B, A, n]

    def picked(values: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]

    def team(weights: Any, values: jax.Array) -> jax.Array:
        if config.mixer == "vdn":
            return values.sum(-1)
        return mixer(config).apply(weights["mixer"], values, moments.obs["__all__"])  # type: ignore[return-value]

    values = values_of(params)
    chosen = team(params, picked(values, jnp.stack([moments.actions[agent] for agent in agents], axis=-1)))
    following = team(target, picked(values_of(target), jnp.argmax(values, axis=-1)))
    goal = moments.rewards["__all__"][:-1] + config.gamma * (1 - moments.dones["__all__"][1:]) * following[1:]
    return jnp.mean(jnp.square(chosen[:-1] - jax.lax.stop_gradient(goal)))


# --- the trained policy in our evaluation ---------------------------------------------------------------------------------


def initial_carry(env: Any, config: Config) -> jax.Array:
    """[A, H]"""
    return jnp.zeros((env.num_agents, config.hidden))


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [A] of one of our environments."""
    del key, greedy
    obs = jnp.concatenate([timestep.obs, jnp.eye(env.num_agents)], axis=-1)
    first = jnp.broadcast_to(timestep.first, (1, env.num_agents))
    carry, values = outputs(AgentNetwork(env.action_space.n, config.hidden), params["agent"], carry, obs[None], first)
    return jnp.argmax(values[0], axis=-1), carry
