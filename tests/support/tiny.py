"""An algorithm with the complete interface that compiles quickly: its parameters drift, and its loss can turn NaN."""

import jax
import jax.numpy as jnp

from marljax.config.hyperparameters import Hyperparameters, static, traced
from marljax.core.vector import vectorize
from marljax.learning.rollout import Learner, TrainState
from marljax.utils import collectives
from marljax.utils.validation import divide

STAY, FORTH = 0, 2  # of toys.Corridor


class Config(Hyperparameters):
    total_steps: int = static(1_000, low=1, high=2**53)
    num_envs: int = static(4, low=1)
    rollout_length: int = static(5, low=1)
    layers: tuple[int, ...] = static((3, 2), low=1)
    learning_rate: float = traced(0.1, low=0.0)  # how fast the parameters drift
    anneal: bool = static(False)  # slower and slower, to 0
    broken_seed: float = traced(-1.0)  # the seed whose loss turns NaN
    broken_update: float = traced(7.0)  # after this many updates

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        return -(-self.total_steps // self.steps_per_update)


def init(env, env_params, config, key):
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    seed = jax.random.key_data(key)[-1]
    params = {"w": jax.random.normal(key, config.layers), "nothing": jnp.zeros((0,))}
    state, timestep = vec.reset(collectives.fold_data(key), env_params)
    return TrainState(Learner(params, {"seed": seed}, jnp.zeros((), jnp.int32), key, env_params), (state, timestep))


def update(env, config, state):
    learner, (env_state, timestep) = state
    key_next, key_drift, key_step = jax.random.split(learner.key, 3)
    drift = jax.random.normal(key_drift, config.layers)
    rate = config.learning_rate * (1.0 - learner.updates / config.num_updates if config.anneal else 1.0)
    params = learner.params | {"w": learner.params["w"] + rate * drift}
    vec = vectorize(env, timestep.first.shape[0])
    action = jnp.full((vec.num_envs, env.num_agents), FORTH)
    env_state, timestep = vec.step(collectives.fold_data(key_step), env_state, action, learner.env_params)
    breaks = (learner.opt_state["seed"] == config.broken_seed) & (learner.updates >= config.broken_update)
    ended = timestep.last
    metrics = {
        "loss": jnp.where(breaks, jnp.nan, collectives.mean(jnp.sum(params["w"]))),
        "episodes": collectives.total(jnp.sum(ended, dtype=jnp.float32)),
        "sum_return": collectives.total(jnp.sum(ended * timestep.metrics["return"])),
    }
    learner = learner.replace(params=params, updates=learner.updates + 1, key=key_next)
    return TrainState(learner, (env_state, timestep)), metrics


def initial_carry(env, config):
    return ()


def act(env, config, params, timestep, carry, key, greedy):
    """Walks while the first parameter is positive; where actions are sampled, always."""
    return jnp.full(env.num_agents, jnp.where((params["w"][0, 0] > 0) | (not greedy), FORTH, STAY)), carry
