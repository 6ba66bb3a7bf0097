"""IPPO as JaxMARL's feed-forward script runs it (Rutherford et al. 2023), written anew against the package's API: the rival of
``jaxmarl_compare.py``.

What it does otherwise than ``algos/ippo.py``: environments restart within the step that ends an episode, so the time limit counts
as an end; the optimiser's step count anneals the learning rate; rewards and observations travel in dictionaries by agent.

Axis letters: T time, E environments, A agents, O observation. A batch has A·E rows, agents one after the other.
"""

import functools
from typing import Any, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from marljax.nn.layers import dense


class Config(struct.PyTreeNode):
    """JaxMARL's settings for simple_spread, in its own terms."""

    total_timesteps: int = struct.field(pytree_node=False, default=1_000_000)
    num_envs: int = struct.field(pytree_node=False, default=16)  # E
    num_steps: int = struct.field(pytree_node=False, default=128)  # T
    update_epochs: int = struct.field(pytree_node=False, default=4)
    num_minibatches: int = struct.field(pytree_node=False, default=4)
    hidden: int = struct.field(pytree_node=False, default=64)  # width of the two layers of actor and critic
    lr: float = struct.field(pytree_node=False, default=2.5e-3)  # annealed linearly to 0
    gamma: float = struct.field(pytree_node=False, default=0.99)
    gae_lambda: float = struct.field(pytree_node=False, default=0.95)
    clip_eps: float = struct.field(pytree_node=False, default=0.2)
    ent_coef: float = struct.field(pytree_node=False, default=0.01)
    vf_coef: float = struct.field(pytree_node=False, default=0.5)
    max_grad_norm: float = struct.field(pytree_node=False, default=0.5)

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.steps_per_update

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs


class ActorCritic(nn.Module):
    """Two towers of two tanh layers."""

    num_actions: int
    hidden: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """obs [..., O] → logits [..., n], values [...]."""
        x = obs
        for _ in range(2):
            x = nn.tanh(dense(self.hidden)(x))
        logits = dense(self.num_actions, 0.01)(x)
        x = obs
        for _ in range(2):
            x = nn.tanh(dense(self.hidden)(x))
        return logits, dense(1, 1.0)(x)[..., 0]


class Transition(NamedTuple):
    """One step of all agents. Leading [T, A·E]."""

    done: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array


class RunState(NamedTuple):
    """Everything that a run consists of."""

    params: Any
    opt_state: Any
    env_state: Any  # of a LogWrapper, [E]
    obs: dict[str, jax.Array]  # [E, O] by agent
    key: jax.Array


def outputs(num_actions: int, config: Config, params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits [..., n] and values [...]."""
    found: Any = ActorCritic(num_actions, config.hidden).apply(params, obs)
    return found


def num_actions(env: Any) -> int:
    return env.action_space(env.agents[0]).n


def optimizer(config: Any) -> optax.GradientTransformation:
    """Of this loop and of others with the same schedule."""

    def rate(count: jax.Array) -> jax.Array:
        update = count // (config.num_minibatches * config.update_epochs)
        return config.lr * (1.0 - update / config.num_updates)

    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5))


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """Fresh networks and environments; ``env`` is JaxMARL's, inside its ``LogWrapper``."""
    key_network, key_reset, key = jax.random.split(key, 3)
    size = env.observation_space(env.agents[0]).shape
    params = ActorCritic(num_actions(env), config.hidden).init(key_network, jnp.zeros(size))
    obs, env_state = jax.vmap(env.reset)(jax.random.split(key_reset, config.num_envs))
    return RunState(params, optimizer(config).init(params), env_state, obs, key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its figures are the number and the summed returns of the episodes that ended, meant over agents."""
    key, key_rollout, key_fit = jax.random.split(state.key, 3)
    step = functools.partial(rollout_step, env, config, state.params)
    keys = jax.random.split(key_rollout, config.num_steps)
    rollout: tuple[Any, tuple[Transition, jax.Array, jax.Array]]
    rollout = jax.lax.scan(step, (state.env_state, state.obs), keys)
    (env_state, obs), (transitions, ended, returned) = rollout
    _, last_value = outputs(num_actions(env), config, state.params, stacked(env, obs))
    advantages = gae(config, transitions, last_value)
    batch = (transitions, advantages, advantages + transitions.value)
    params, opt_state = fit(env, config, state.params, state.opt_state, batch, key_fit)
    metrics = {"episodes": ended.sum(), "sum_return": (returned.mean(-1) * ended).sum()}
    return RunState(params, opt_state, env_state, obs, key), metrics


def stacked(env: Any, values: dict[str, jax.Array]) -> jax.Array:
    """[A·E, …] from [E, …] by agent."""
    return jnp.concatenate([values[agent] for agent in env.agents])


def rollout_step(env: Any, config: Config, params: Any, carry: tuple, key: jax.Array) -> tuple:
    env_state, last_obs = carry
    key_action, key_step = jax.random.split(key)
    obs = stacked(env, last_obs)
    logits, value = outputs(num_actions(env), config, params, obs)
    policy = distrax.Categorical(logits=logits)
    action = policy.sample(seed=key_action)
    actions = dict(zip(env.agents, action.reshape(env.num_agents, -1), strict=True))
    keys = jax.random.split(key_step, config.num_envs)
    new_obs, env_state, reward, done, info = jax.vmap(env.step)(keys, env_state, actions)
    kept = Transition(stacked(env, done), action, value, stacked(env, reward), policy.log_prob(action), obs)
    return (env_state, new_obs), (kept, done["__all__"], info["returned_episode_returns"])


def gae(config: Any, transitions: Any, last_value: jax.Array, unroll: int = 1) -> jax.Array:
    """Advantages [T, A·E]; nothing follows a done. ``config`` has gamma and gae_lambda, transitions reward, value and done."""

    def backward(carry: tuple[jax.Array, jax.Array], now: Any) -> tuple:
        advantage, next_value = carry
        delta = now.reward + config.gamma * next_value * (1 - now.done) - now.value
        advantage = delta + config.gamma * config.gae_lambda * (1 - now.done) * advantage
        return (advantage, now.value), advantage

    return jax.lax.scan(backward, (jnp.zeros_like(last_value), last_value), transitions, reverse=True, unroll=unroll)[1]


def fit(env: Any, config: Config, params: Any, opt_state: Any, batch: tuple, key: jax.Array) -> tuple[Any, Any]:
    """Epochs of minibatch steps over all transitions in shuffled order."""
    transform = optimizer(config)
    rows = config.num_steps * config.num_envs * env.num_agents
    flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), batch)

    def step(fitted: tuple, minibatch: tuple) -> tuple:
        params, opt_state = fitted
        grads = jax.grad(loss)(params, env, config, *minibatch)
        updates, opt_state = transform.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    def epoch(fitted: tuple, key: jax.Array) -> tuple:
        order = jax.random.permutation(key, rows).reshape(config.num_minibatches, -1)
        return jax.lax.scan(step, fitted, jax.tree.map(lambda x: x[order], flat))

    return jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, config.update_epochs))[0]


def loss(params: Any, env: Any, config: Config, kept: Transition, advantage: jax.Array, target: jax.Array) -> jax.Array:
    """The clipped surrogate with PPO2's clipped value loss and an entropy bonus."""
    logits, value = outputs(num_actions(env), config, params, kept.obs)
    policy = distrax.Categorical(logits=logits)
    near = kept.value + jnp.clip(value - kept.value, -config.clip_eps, config.clip_eps)
    value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(policy.log_prob(kept.action) - kept.log_prob)
    clipped = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
    actor_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    return actor_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()


# --- the trained policy in our evaluation ---------------------------------------------------------------------------------


def initial_carry(env: Any, config: Config) -> tuple:
    """No memory."""
    del env, config
    return ()


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [A] of one of our environments."""
    logits, _ = outputs(env.action_space.n, config, params, timestep.obs)
    return jnp.argmax(logits, -1) if greedy else jax.random.categorical(key, logits), carry
