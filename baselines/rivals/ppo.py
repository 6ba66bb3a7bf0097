"""PPO as PureJaxRL's script runs it (Lu et al. 2022, "Discovered Policy Optimisation"), written anew on gymnax: the rival of
``cartpole.py``.

What it does otherwise than ``algos/ppo.py``: environments restart within the step that ends an episode, so the time limit counts
as an end; the optimiser's step count anneals the learning rate.

Axis letters: T time, E environments, O observation.
"""

import functools
from typing import Any, NamedTuple

import distrax
import jax
import jax.numpy as jnp
import optax
from flax import struct

from marljax.baselines.rivals.ippo import ActorCritic, gae, initial_carry, optimizer

__all__ = ["Config", "RunState", "act", "init", "initial_carry", "update"]


class Config(struct.PyTreeNode):
    """PureJaxRL's settings for CartPole, in its own terms."""

    total_timesteps: int = struct.field(pytree_node=False, default=500_000)
    num_envs: int = struct.field(pytree_node=False, default=4)  # E
    num_steps: int = struct.field(pytree_node=False, default=128)  # T
    update_epochs: int = struct.field(pytree_node=False, default=4)
    num_minibatches: int = struct.field(pytree_node=False, default=4)
    hidden: int = struct.field(pytree_node=False, default=64)  # width of the two layers of actor and critic
    lr: float = struct.field(pytree_node=False, default=2.5e-4)  # annealed linearly to 0
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


class Transition(NamedTuple):
    """One step. Leading [T, E]."""

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
    env_state: Any  # [E]
    obs: jax.Array  # [E, O]
    returns: jax.Array  # [E] of the episodes so far
    key: jax.Array


def outputs(env: Any, config: Config, params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits [..., n] and values [...]."""
    found: Any = ActorCritic(env.num_actions, config.hidden).apply(params, obs)
    return found


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """Fresh networks and environments; ``env`` is gymnax's."""
    key_network, key_reset, key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset)(jax.random.split(key_reset, config.num_envs))
    params = ActorCritic(env.num_actions, config.hidden).init(key_network, obs[0])
    return RunState(params, optimizer(config).init(params), env_state, obs, jnp.zeros(config.num_envs), key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its figures are the number and the summed returns of the episodes that ended."""
    key, key_rollout, key_fit = jax.random.split(state.key, 3)
    step = functools.partial(rollout_step, env, config, state.params)
    keys = jax.random.split(key_rollout, config.num_steps)
    rollout: tuple[Any, tuple[Transition, jax.Array]]
    rollout = jax.lax.scan(step, (state.env_state, state.obs, state.returns), keys)
    (env_state, obs, returns), (transitions, ended) = rollout
    _, last_value = outputs(env, config, state.params, obs)
    advantages = gae(config, transitions, last_value, unroll=16)
    batch = (transitions, advantages, advantages + transitions.value)
    params, opt_state = fit(env, config, state.params, state.opt_state, batch, key_fit)
    metrics = {"episodes": transitions.done.sum(), "sum_return": ended.sum()}
    return RunState(params, opt_state, env_state, obs, returns, key), metrics


def rollout_step(env: Any, config: Config, params: Any, carry: tuple, key: jax.Array) -> tuple:
    env_state, obs, returns = carry
    key_action, key_step = jax.random.split(key)
    logits, value = outputs(env, config, params, obs)
    policy = distrax.Categorical(logits=logits)
    action = policy.sample(seed=key_action)
    stepped = jax.vmap(env.step)(jax.random.split(key_step, config.num_envs), env_state, action)
    new_obs, env_state, reward, terminated, truncated, _ = stepped
    done, returns = terminated | truncated, returns + reward
    kept = Transition(done, action, value, reward, policy.log_prob(action), obs)
    return (env_state, new_obs, jnp.where(done, 0.0, returns)), (kept, returns * done)


def fit(env: Any, config: Config, params: Any, opt_state: Any, batch: tuple, key: jax.Array) -> tuple[Any, Any]:
    """Epochs of minibatch steps over all transitions in shuffled order."""
    transform = optimizer(config)
    rows = config.steps_per_update
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
    logits, value = outputs(env, config, params, kept.obs)
    policy = distrax.Categorical(logits=logits)
    near = kept.value + jnp.clip(value - kept.value, -config.clip_eps, config.clip_eps)
    value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(policy.log_prob(kept.action) - kept.log_prob)
    clipped = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
    actor_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    return actor_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [1] of one of our environments."""
    found: Any = ActorCritic(env.action_space.n, config.hidden).apply(params, timestep.obs)
    return jnp.argmax(found[0], -1) if greedy else jax.random.categorical(key, found[0]), carry
