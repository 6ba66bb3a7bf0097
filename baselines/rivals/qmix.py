"""QMIX and VDN as in JaxMARL's recurrent scripts (Rutherford et al. 2023), reimplemented on the package's API; used by
``qmix_compare.py`` and ``mpe.py``.

Unlike ``algos/qmix.py``, every update resets its environments and plays one rollout as long as an episode; the last step of a
rollout is not trained on; the mixing network starts near 0, ours near a sum; a team's reward is the sum over its agents;
observations are dictionaries by agent. The script ends episodes one step early, which makes no difference in rollouts of one
episode.

Axis letters: T time, E environments, B replayed rollouts, A agents, O observation, G global state, H hidden, n actions.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flashbax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer
from jaxmarl.wrappers.baselines import CTRolloutManager

from marljax.baselines.rivals.ippo import RolloutConfig, num_actions, stacked
from marljax.baselines.rivals.rnn_ppo import Recurrent
from marljax.nn.layers import orthogonal


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Config(RolloutConfig):
    """JaxMARL's settings for simple_spread (``ql_rnn_mpe``)."""

    num_envs: int = 8
    num_steps: int = 26
    gamma: float = 0.9
    mixer: str = "qmix"  # or vdn
    buffer_size: int = 5_000  # rollouts
    buffer_batch_size: int = 32  # B
    mixer_embedding: int = 32
    hyper_hidden: int = 128
    mixer_init_scale: float = 0.001
    eps_start: float = 1.0
    eps_finish: float = 0.05
    eps_decay: float = 0.1
    max_grad_norm: float = 25.0
    target_update_interval: int = 200
    lr: float = 5e-3  # annealed linearly to 0
    learning_starts: int = 10_000


class AgentNetwork(nn.Module):
    """Action values of an agent from its observations, with a memory."""

    num_actions: int
    hidden: int

    @nn.compact
    def __call__(self, carry: jax.Array, obs: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """carry [N, H], obs [T, N, O], first [T, N] → carry, values [T, N, n]."""
        carry, x = Recurrent(self.hidden, scale=1.0)(carry, obs, first)
        return carry, nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)


class Mixer(nn.Module):
    """The mixing network; the initial weights of all its layers are small."""

    embedding: int
    hyper_hidden: int
    scale: float

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """values [T, B, A], state [T, B, G] → [T, B]."""
        agents = values.shape[-1]

        def hypernet(hidden: int, outputs: int) -> jax.Array:
            x = nn.relu(nn.Dense(hidden, kernel_init=orthogonal(self.scale))(state))
            return nn.Dense(outputs, kernel_init=orthogonal(self.scale))(x)

        first = jnp.abs(hypernet(self.hyper_hidden, self.embedding * agents).reshape(*state.shape[:-1], agents, self.embedding))
        bias = nn.Dense(self.embedding, kernel_init=orthogonal(self.scale))(state)
        second = jnp.abs(hypernet(self.hyper_hidden, self.embedding))
        hidden = nn.elu(jnp.einsum("tba,tbaw->tbw", values, first) + bias)
        return jnp.einsum("tbw,tbw->tb", hidden, second) + hypernet(self.embedding, 1)[..., 0]


def apply(network: AgentNetwork, weights: Any, *inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return network.apply(weights, *inputs)  # type: ignore[return-value]


class Timestep(NamedTuple):
    """One step of all environments, by agent; [T, E, …]."""

    obs: dict[str, jax.Array]  # and the global state as ``__all__``
    actions: dict[str, jax.Array]
    rewards: dict[str, jax.Array]
    dones: dict[str, jax.Array]  # of the previous step


class RunState(NamedTuple):
    """Everything carried between updates."""

    params: Any
    target: Any
    opt_state: Any
    buffer: Any
    updates: jax.Array
    key: jax.Array


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
    """New networks and an empty buffer; ``env`` is JaxMARL's, inside its ``LogWrapper``."""
    key_agent, key_mixer, key_reset, key = jax.random.split(key, 4)
    manager = CTRolloutManager(env, batch_size=config.num_envs)
    blank = jnp.zeros((1, config.hidden)), jnp.zeros((1, 1, manager.obs_size)), jnp.zeros((1, 1), bool)
    params = {"agent": AgentNetwork(num_actions(env), config.hidden).init(key_agent, *blank)}
    if config.mixer == "qmix":
        state = manager.batch_reset(key_reset)[0]["__all__"]
        params["mixer"] = mixer(config).init(key_mixer, jnp.zeros((1, 1, env.num_agents)), state[None, :1])
    timesteps, _ = jax.eval_shape(functools.partial(rollout, env, config), params, jnp.ones(()), key)
    empty = buffer(config).init(jax.tree.map(lambda x: jnp.zeros((x.shape[0], *x.shape[2:]), x.dtype), timesteps))
    return RunState(params, params, optimizer(config).init(params), empty, jnp.zeros((), jnp.int32), key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its metrics are the number of episodes that ended and the sum of their returns, averaged over agents."""
    key, key_rollout, key_sample = jax.random.split(state.key, 3)
    progress = state.updates / (config.eps_decay * config.num_updates)
    epsilon = config.eps_start + (config.eps_finish - config.eps_start) * jnp.minimum(progress, 1.0)
    timesteps, infos = rollout(env, config, state.params, epsilon, key_rollout)
    replay = buffer(config).add(state.buffer, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[:, None], timesteps))
    state = state._replace(buffer=replay, key=key)
    steps = (state.updates + 1) * config.steps_per_update
    learns = buffer(config).can_sample(replay) & (steps > config.learning_starts)
    state = jax.lax.cond(learns, functools.partial(learn, env, config), lambda state, key: state, state, key_sample)
    due = state.updates % config.target_update_interval == 0
    target = jax.tree.map(lambda new, old: jnp.where(due, new, old), state.params, state.target)
    ended = infos["returned_episode"][..., 0]
    metrics = {"episodes": ended.sum(), "sum_return": (infos["returned_episode_returns"].mean(-1) * ended).sum()}
    return state._replace(target=target, updates=state.updates + 1), metrics


def rollout(env: Any, config: Config, params: Any, epsilon: jax.Array, key: jax.Array) -> tuple[Timestep, dict[str, jax.Array]]:
    """One rollout from reset environments, and JaxMARL's log of it."""
    # E environments with agent ids in their observations, a global state, and the sum over agents as the team's reward
    manager, agents = CTRolloutManager(env, batch_size=config.num_envs), env.agents
    network = AgentNetwork(num_actions(env), config.hidden)
    key_reset, key_steps = jax.random.split(key)
    obs, env_state = manager.batch_reset(key_reset)
    dones = {agent: jnp.zeros(config.num_envs, bool) for agent in (*agents, "__all__")}
    carry = jnp.zeros((env.num_agents * config.num_envs, config.hidden))

    def step(scanned: tuple, key: jax.Array) -> tuple:
        carry, obs, dones, env_state = scanned
        key_random, key_which, key_step = jax.random.split(key, 3)
        inputs = stacked(env, obs)[None], stacked(env, dones)[None]
        carry, values = apply(network, params["agent"], carry, *inputs)
        values = values[0].reshape(len(agents), config.num_envs, -1)
        valid = jnp.stack([manager.get_valid_actions(env_state.env_state)[agent] for agent in agents])
        greedy = jnp.argmax(values - (1 - valid) * 1e10, axis=-1)
        random = jax.random.categorical(key_random, jnp.log(valid))
        action = jnp.where(jax.random.uniform(key_which, greedy.shape) < epsilon, random, greedy)
        actions = dict(zip(agents, action, strict=True))
        next_obs, env_state, rewards, done, info = manager.batch_step(key_step, env_state, actions)
        return (carry, next_obs, done, env_state), (Timestep(obs, actions, rewards, dones), info)

    return jax.lax.scan(step, (carry, obs, dones, env_state), jax.random.split(key_steps, config.num_steps))[1]


def learn(env: Any, config: Config, state: RunState, key: jax.Array) -> RunState:
    """One gradient step."""
    sampled = buffer(config).sample(state.buffer, key).experience
    timesteps = jax.tree.map(lambda x: jnp.swapaxes(x[:, 0], 0, 1), sampled)  # [T, B, …]
    grads = jax.grad(loss)(state.params, env, config, state.target, timesteps)
    updates, opt_state = optimizer(config).update(grads, state.opt_state, state.params)
    return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)


def loss(params: Any, env: Any, config: Config, target: Any, timesteps: Timestep) -> jax.Array:
    """The squared one-step TD error of the team's value, with double Q-learning."""
    agents, length = env.agents, timesteps.dones["__all__"].shape[0]
    network = AgentNetwork(num_actions(env), config.hidden)
    obs, first = (jnp.concatenate([part[agent] for agent in agents], axis=1) for part in (timesteps.obs, timesteps.dones))

    def action_values(weights: Any) -> jax.Array:
        _, values = apply(network, weights["agent"], jnp.zeros((obs.shape[1], config.hidden)), obs, first)
        return jnp.moveaxis(values.reshape(length, len(agents), -1, values.shape[-1]), 1, 2)  # [T, B, A, n]

    def team_value(weights: Any, values: jax.Array, action: jax.Array) -> jax.Array:
        values = jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
        if config.mixer == "vdn":
            return values.sum(-1)
        return mixer(config).apply(weights["mixer"], values, timesteps.obs["__all__"])  # type: ignore[return-value]

    values = action_values(params)
    chosen = team_value(params, values, jnp.stack([timesteps.actions[agent] for agent in agents], axis=-1))
    following = team_value(target, action_values(target), jnp.argmax(values, axis=-1))
    goal = timesteps.rewards["__all__"][:-1] + config.gamma * (1 - timesteps.dones["__all__"][1:]) * following[1:]
    return jnp.mean(jnp.square(chosen[:-1] - jax.lax.stop_gradient(goal)))


def initial_carry(env: Any, config: Config) -> jax.Array:
    """[A, H]"""
    return jnp.zeros((env.num_agents, config.hidden))


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [A] of the trained policy in one marljax environment."""
    del key, greedy
    obs = jnp.concatenate([timestep.obs, jnp.eye(env.num_agents)], axis=-1)
    first = jnp.broadcast_to(timestep.first, (1, env.num_agents))
    network = AgentNetwork(env.action_space.n, config.hidden)
    carry, values = apply(network, params["agent"], carry, obs[None], first)
    return jnp.argmax(values[0], axis=-1), carry
