"""IPPO as in JaxMARL's feed-forward script (Rutherford et al. 2023), reimplemented on the package's API; used by
``jaxmarl_compare.py``, ``mpe.py`` and ``untuned.py``. The parts that the other PPO loops share are here, too.

Unlike ``algos/ippo.py``, environments reset within the step that ends an episode, so the time limit is terminal; learning rates
are annealed by the optimiser's step count; rewards and observations are dictionaries by agent.

Axis letters: T time, E environments, A agents, O observation, n actions. A batch has A·E rows, agent by agent.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from marljax.nn.layers import dense


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """What every loop is configured with, under JaxMARL's names."""

    total_timesteps: int = 1_000_000
    num_envs: int = 16  # E
    num_steps: int = 128  # T
    hidden: int = 64  # width of every hidden layer
    gamma: float = 0.99

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.steps_per_update


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Config(RolloutConfig):
    """JaxMARL's settings for simple_spread; ``activation`` is a name in ``flax.linen``."""

    update_epochs: int = 4
    num_minibatches: int = 4
    lr: float = 2.5e-3  # annealed linearly to 0
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    activation: str = "tanh"
    gae_unroll: ClassVar[int] = 1


class ActorCritic(nn.Module):
    """Two towers of two layers."""

    num_actions: int
    hidden: int
    activation: str = "tanh"

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """obs [..., O] → logits [..., n], values [...]."""
        activation = getattr(nn, self.activation)
        x = obs
        for _ in range(2):
            x = activation(dense(self.hidden)(x))
        logits = dense(self.num_actions, 0.01)(x)
        x = obs
        for _ in range(2):
            x = activation(dense(self.hidden)(x))
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
    """Everything carried between updates."""

    params: Any
    opt_state: Any
    env_state: Any  # of a LogWrapper, [E]
    obs: dict[str, jax.Array]  # [E, O] by agent
    key: jax.Array


def outputs(num_actions: int, config: Config, params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits [..., n] and values [...]."""
    return ActorCritic(num_actions, config.hidden, config.activation).apply(params, obs)  # type: ignore[return-value]


def num_actions(env: Any) -> int:
    return env.action_space(env.agents[0]).n


def stacked(env: Any, values: dict[str, jax.Array]) -> jax.Array:
    """[A·E, …] from [E, …] by agent."""
    return jnp.concatenate([values[agent] for agent in env.agents])


def annealed_adam(
    learning_rate: float, steps_per_update: int, num_updates: int, max_grad_norm: float
) -> optax.GradientTransformation:
    """Adam on clipped gradients, with a learning rate that falls to 0 update by update."""

    def rate(count: jax.Array) -> jax.Array:
        return learning_rate * (1.0 - (count // steps_per_update) / num_updates)

    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=1e-5))


def optimizer(config: Config) -> optax.GradientTransformation:
    return annealed_adam(config.lr, config.num_minibatches * config.update_epochs, config.num_updates, config.max_grad_norm)


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """New networks and environments; ``env`` is JaxMARL's, inside its ``LogWrapper``."""
    key_network, key_reset, key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset)(jax.random.split(key_reset, config.num_envs))
    params = ActorCritic(num_actions(env), config.hidden, config.activation).init(key_network, stacked(env, obs)[0])
    return RunState(params, optimizer(config).init(params), env_state, obs, key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its metrics are the number of episodes that ended and the sum of their returns, averaged over agents."""
    key, key_rollout, key_fit = jax.random.split(state.key, 3)
    policy = functools.partial(outputs, num_actions(env), config, state.params)

    def step(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], tuple[Transition, jax.Array, jax.Array]]:
        env_state, last_obs = carry
        key_action, key_step = jax.random.split(key)
        obs = stacked(env, last_obs)
        logits, value = policy(obs)
        pi = distrax.Categorical(logits=logits)
        action = pi.sample(seed=key_action)
        actions = dict(zip(env.agents, action.reshape(env.num_agents, -1), strict=True))
        keys = jax.random.split(key_step, config.num_envs)
        new_obs, env_state, reward, done, info = jax.vmap(env.step)(keys, env_state, actions)
        transition = Transition(stacked(env, done), action, value, stacked(env, reward), pi.log_prob(action), obs)
        return (env_state, new_obs), (transition, done["__all__"], info["returned_episode_returns"])

    keys = jax.random.split(key_rollout, config.num_steps)
    (env_state, obs), (transitions, ended, returned) = jax.lax.scan(step, (state.env_state, state.obs), keys)
    advantages = gae(config, transitions, policy(stacked(env, obs))[1], config.gae_unroll)
    batch = (transitions, advantages, advantages + transitions.value)
    params, opt_state = fit(env, config, state.params, state.opt_state, batch, key_fit)
    metrics = {"episodes": ended.sum(), "sum_return": (returned.mean(-1) * ended).sum()}
    return RunState(params, opt_state, env_state, obs, key), metrics


def gae(config: Any, transitions: Any, last_value: jax.Array, unroll: int = 1) -> jax.Array:
    """Advantages [T, rows], not bootstrapped at a done. ``config`` has gamma and gae_lambda, transitions reward, value and
    done."""

    def backward(carry: tuple[jax.Array, jax.Array], now: Any) -> tuple:
        advantage, next_value = carry
        delta = now.reward + config.gamma * next_value * (1 - now.done) - now.value
        advantage = delta + config.gamma * config.gae_lambda * (1 - now.done) * advantage
        return (advantage, now.value), advantage

    return jax.lax.scan(backward, (jnp.zeros_like(last_value), last_value), transitions, reverse=True, unroll=unroll)[1]


def fit(env: Any, config: Config, params: Any, opt_state: Any, batch: tuple, key: jax.Array) -> tuple[Any, Any]:
    """Epochs of minibatch steps over all transitions in shuffled order."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    transform, rows = optimizer(config), len(flat[0].done)

    def step(learner: tuple[Any, Any], minibatch: tuple) -> tuple[tuple[Any, Any], None]:
        params, opt_state = learner
        grads = jax.grad(loss)(params, env, config, *minibatch)
        updates, opt_state = transform.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    def epoch(learner: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(key, rows).reshape(config.num_minibatches, -1)
        return jax.lax.scan(step, learner, jax.tree.map(lambda x: x[order], flat))

    return jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, config.update_epochs))[0]


def loss(params: Any, env: Any, config: Config, batch: Transition, advantage: jax.Array, target: jax.Array) -> jax.Array:
    logits, value = outputs(num_actions(env), config, params, batch.obs)
    return clipped_loss(logits, value, batch, advantage, target, config.clip_eps, config.vf_coef, config.ent_coef)


def clipped_loss(
    logits: jax.Array,
    value: jax.Array,
    batch: Any,
    advantage: jax.Array,
    target: jax.Array,
    clip_eps: float,
    value_coef: float,
    entropy_coef: float,
) -> jax.Array:
    """The clipped surrogate with PPO2's clipped value loss and an entropy bonus; ``batch`` has action, log_prob and value."""
    policy = distrax.Categorical(logits=logits)
    near = batch.value + jnp.clip(value - batch.value, -clip_eps, clip_eps)
    value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(policy.log_prob(batch.action) - batch.log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    actor_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    return actor_loss + value_coef * value_loss - entropy_coef * policy.entropy().mean()


def initial_carry(env: Any, config: Config) -> tuple:
    """No memory."""
    del env, config
    return ()


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [A] of the trained policy in one marljax environment."""
    logits, _ = outputs(env.action_space.n, config, params, timestep.obs)
    return jnp.argmax(logits, -1) if greedy else jax.random.categorical(key, logits), carry
