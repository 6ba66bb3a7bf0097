"""PQN with VDN as in JaxMARL's recurrent script ``pqn_vdn_rnn`` (Gallici et al. 2024), reimplemented on the package's API; used
by ``pqn_compare.py``.

On Overcooked it takes the settings of JaxMARL's script for that game, ``pqn_vdn_cnn_overcooked``, but not its convolutions.

Unlike ``algos/pqn.py``, λ-returns are computed again in every minibatch and not for the last step of a rollout; sequences begin
``memory_window`` steps before the rollout, from the recurrent state of then; environments reset within the step that ends an
episode, so the time limit is terminal; JaxMARL's ``CTRolloutManager`` zeroes the observations, ids included, of agents that are
done, so also the first ones after a reset; a team's reward is the sum over its agents, or the first one's on SMAX and Overcooked,
where all earn the team's, and the sum of shaped rewards; initial weights are flax's; observations are dictionaries by agent.

Axis letters: T time, E environments, B environments of a minibatch, A agents, O observation, H hidden, n actions.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxmarl.wrappers.baselines import CTRolloutManager

from marljax.baselines.rivals.ippo import RolloutConfig, num_actions, stacked
from marljax.baselines.rivals.rnn_ppo import ResetGRU


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Config(RolloutConfig):
    """JaxMARL's settings for MPE (``pqn_vdn_rnn_mpe``); ``SMAX`` are those of ``pqn_vdn_rnn_smax``."""

    num_envs: int = 256
    num_steps: int = 16
    memory_window: int = 0
    hidden: int = 256
    num_layers: int = 2
    norm_inputs: bool = False
    batch_norm: bool = False  # else layer normalisation
    eps_start: float = 1.0
    eps_finish: float = 0.1
    eps_decay: float = 0.1
    max_grad_norm: float = 1.0
    num_minibatches: int = 16
    num_epochs: int = 4
    lr: float = 5e-4
    lr_decay: bool = False  # linearly to 0
    gamma: float = 0.9
    td_lambda: float = 0.3
    reward_scale: float = 1.0
    shaping_steps: int = 1  # over which the weight of the shaped reward falls from 1 to 0


SMAX: dict[str, Any] = {
    "num_envs": 128,
    "num_steps": 128,
    "memory_window": 4,
    "hidden": 512,
    "norm_inputs": True,
    "batch_norm": True,
    "eps_finish": 0.01,
    "lr": 2.5e-4,
    "lr_decay": True,
    "gamma": 0.99,
    "td_lambda": 0.85,
    "reward_scale": 10.0,
}

OVERCOOKED: dict[str, Any] = {
    "num_envs": 64,
    "eps_finish": 0.2,
    "eps_decay": 0.2,
    "max_grad_norm": 10.0,
    "num_epochs": 5,
    "lr": 7.5e-5,
    "lr_decay": True,
    "gamma": 0.99,
}


class QNetwork(nn.Module):
    """Action values of an agent from its observations: normalised dense layers and a GRU."""

    num_actions: int
    config: Config

    @nn.compact
    def __call__(self, carry: jax.Array, obs: jax.Array, first: jax.Array, train: bool) -> tuple[jax.Array, jax.Array]:
        """carry [N, H], obs [T, N, O], first [T, N] → carry, values [T, N, n]."""
        config, x = self.config, obs
        if config.norm_inputs:
            x = nn.BatchNorm(use_running_average=not train)(x)
        for _ in range(config.num_layers):
            x = nn.Dense(config.hidden)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x) if config.batch_norm else nn.LayerNorm()(x))
        scan = nn.scan(ResetGRU, variable_broadcast="params", split_rngs={"params": False})
        carry, x = scan(config.hidden)(carry, (x, first))
        return carry, nn.Dense(self.num_actions)(x)


def apply(num_actions: int, config: Config, params: Any, *inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The network with its running statistics, as it acts."""
    return QNetwork(num_actions, config).apply(params, *inputs, train=False)  # type: ignore[return-value]


class Transition(NamedTuple):
    """One step of all environments, [T, A·E, …], or [T, E] of the team."""

    carry: jax.Array  # [A·E, H] before it
    obs: jax.Array
    first: jax.Array
    valid: jax.Array  # [A·E, n] actions that are available
    action: jax.Array
    reward: jax.Array  # [E]
    done: jax.Array  # [E]


class RunState(NamedTuple):
    """Everything carried between updates."""

    params: Any  # {"params": …, "batch_stats": …}
    opt_state: Any
    window: Transition  # the last ``memory_window`` steps
    actors: tuple  # recurrent state, observations, dones, environments
    updates: jax.Array
    key: jax.Array


def optimizer(config: Config) -> optax.GradientTransformation:
    steps = config.num_epochs * config.num_minibatches * config.num_updates
    rate = optax.linear_schedule(config.lr, 1e-10, steps) if config.lr_decay else config.lr
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.radam(rate))


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """New networks and environments, which take ``memory_window`` random steps; ``env`` is JaxMARL's, inside its log wrapper."""
    key_network, key_reset, key_window, key = jax.random.split(key, 4)
    manager = CTRolloutManager(env, batch_size=config.num_envs)
    blank = jnp.zeros((1, config.hidden)), jnp.zeros((1, 1, manager.obs_size)), jnp.zeros((1, 1), bool)
    params: Any = {"batch_stats": {}} | dict(QNetwork(num_actions(env), config).init(key_network, *blank, train=False))
    obs, env_state = manager.batch_reset(key_reset)
    dones = {agent: jnp.zeros(config.num_envs, bool) for agent in (*env.agents, "__all__")}
    carry = jnp.zeros((env.num_agents * config.num_envs, config.hidden))
    # One step at least, so that the arrays of an empty window have a type.
    start, epsilon, shaping = (carry, obs, dones, env_state), jnp.ones(()), jnp.ones(())
    actors, window, _ = rollout(env, config, params, epsilon, shaping, start, key_window, config.memory_window + 1)
    window = jax.tree.map(lambda x: x[1:], window)
    return RunState(params, optimizer(config).init(params["params"]), window, actors, jnp.zeros((), jnp.int32), key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its metrics are the number of episodes that ended and the sum of their returns, averaged over agents."""
    key, key_rollout, key_epochs = jax.random.split(state.key, 3)
    progress = state.updates / (config.eps_decay * config.num_updates)
    epsilon = config.eps_start + (config.eps_finish - config.eps_start) * jnp.minimum(progress, 1.0)
    shaping = jnp.maximum(1.0 - state.updates * config.steps_per_update / config.shaping_steps, 0.0)
    actors, steps, infos = rollout(env, config, state.params, epsilon, shaping, state.actors, key_rollout, config.num_steps)
    steps = jax.tree.map(lambda window, new: jnp.concatenate([window, new]), state.window, steps)
    params, opt_state = fit(env, config, state.params, state.opt_state, steps, key_epochs)
    window = jax.tree.map(lambda x: x[len(x) - config.memory_window :], steps)
    ended = infos["returned_episode"][..., 0]
    metrics = {"episodes": ended.sum(), "sum_return": (infos["returned_episode_returns"].mean(-1) * ended).sum()}
    if "returned_won_episode" in infos:
        metrics["sum_won"] = (infos["returned_won_episode"][..., 0] * ended).sum()
    return RunState(params, opt_state, window, actors, state.updates + 1, key), metrics


def rollout(
    env: Any,
    config: Config,
    params: Any,
    epsilon: jax.Array,
    shaping: jax.Array,
    actors: tuple,
    key: jax.Array,
    length: int,
) -> tuple[tuple, Transition, dict[str, jax.Array]]:
    """Steps of all environments with ε-greedy actions, and JaxMARL's log of them; ``shaping`` weighs the shaped reward."""
    # E environments with agent ids in their observations, and the team's reward as ``__all__``
    manager, agents = CTRolloutManager(env, batch_size=config.num_envs), env.agents

    def step(scanned: tuple, key: jax.Array) -> tuple:
        carry, obs, dones, env_state = scanned
        key_random, key_which, key_step = jax.random.split(key, 3)
        rows, first = stacked(env, obs), stacked(env, dones)
        next_carry, values = apply(num_actions(env), config, params, carry, rows[None], first[None])
        valid = stacked(env, manager.get_valid_actions(env_state.env_state))
        greedy = jnp.argmax(values[0] - (1 - valid) * 1e10, axis=-1)
        random = jax.random.categorical(key_random, jnp.log(valid))
        action = jnp.where(jax.random.uniform(key_which, greedy.shape) < epsilon, random, greedy)
        actions = dict(zip(agents, action.reshape(len(agents), -1), strict=True))
        next_obs, env_state, rewards, next_dones, info = manager.batch_step(key_step, env_state, actions)
        reward, done = rewards["__all__"], next_dones["__all__"]
        if "shaped_reward" in info:
            reward += shaping * sum(info["shaped_reward"].values())
        reward *= config.reward_scale
        return (next_carry, next_obs, next_dones, env_state), (Transition(carry, rows, first, valid, action, reward, done), info)

    played: Any = jax.lax.scan(step, actors, jax.random.split(key, length))
    return played[0], *played[1]


def fit(env: Any, config: Config, params: Any, opt_state: Any, steps: Transition, key: jax.Array) -> tuple[Any, Any]:
    """Epochs of minibatch steps over whole sequences, shuffled over environments."""
    transform, num_agents = optimizer(config), env.num_agents

    def gradient_step(learner: tuple[Any, Any], order: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, opt_state = learner
        rows = (jnp.arange(num_agents)[:, None] * config.num_envs + order).reshape(-1)  # [A·B]
        team = {"reward": steps.reward[:, order], "done": steps.done[:, order]}
        batch = Transition(**{name: x[:, rows] for name, x in steps._asdict().items() if name not in team}, **team)
        grads, stats = jax.grad(loss, has_aux=True)(params["params"], env, config, params["batch_stats"], batch)
        updates, opt_state = transform.update(grads, opt_state, params["params"])
        return ({"params": optax.apply_updates(params["params"], updates), "batch_stats": stats}, opt_state), None

    def epoch(learner: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(key, config.num_envs).reshape(config.num_minibatches, -1)
        return jax.lax.scan(gradient_step, learner, order)

    return jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, config.num_epochs))[0]


def loss(weights: Any, env: Any, config: Config, batch_stats: Any, batch: Transition) -> tuple[jax.Array, Any]:
    """The squared error of the team's value against the λ-returns of the same network."""
    network = QNetwork(num_actions(env), config)
    variables = {"params": weights, "batch_stats": batch_stats}
    inputs = batch.carry[0], batch.obs, batch.first
    applied: Any = network.apply(variables, *inputs, train=True, mutable=["batch_stats"])
    (_, values), changed = applied
    chosen = jnp.take_along_axis(values, batch.action[..., None], axis=-1)[..., 0]
    best = jnp.max(jax.lax.stop_gradient(values) - (1 - batch.valid) * 1e10, axis=-1)
    chosen, best = (x.reshape(len(x), env.num_agents, -1).sum(1) for x in (chosen, best))  # [T, B]

    def backward(following: tuple[jax.Array, jax.Array], now: tuple) -> tuple:
        (target, value), (reward, done, own_value) = following, now
        target = reward + config.gamma * (1 - done) * (value + config.td_lambda * (target - value))
        return (target, own_value), target

    targets: Any = jax.lax.scan(backward, (best[-1], best[-1]), (batch.reward[:-1], batch.done[:-1], best[:-1]), reverse=True)[1]
    return jnp.mean(jnp.square(chosen[:-1] - targets)), changed.get("batch_stats", {})


def initial_carry(env: Any, config: Config) -> jax.Array:
    """[A, H]"""
    return jnp.zeros((env.num_agents, config.hidden))


def act(env: Any, config: Config, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool) -> tuple[jax.Array, Any]:
    """Actions [A] of the trained policy in one marljax environment."""
    del key, greedy
    obs = jnp.concatenate([timestep.obs, jnp.eye(env.num_agents)], axis=-1)
    first = jnp.broadcast_to(timestep.first, (1, env.num_agents))
    carry, values = apply(env.action_space.n, config, params, carry, obs[None], first)
    return jnp.argmax(jnp.where(timestep.action_mask, values[0], -1e10), axis=-1), carry
