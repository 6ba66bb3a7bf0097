"""What the PPO family shares: hyperparameters, the clipped losses, and the passes over minibatches."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax.config.hyperparameters import Hyperparameters, Scalar, static, traced
from marljax.core import layout as entities
from marljax.core.environment import Environment
from marljax.core.spaces import Box, MultiDiscrete
from marljax.core.types import EnvParams, TimeStep
from marljax.errors import UserError
from marljax.learning.advantages import gae, with_death_masking
from marljax.learning.config import LearningConfig
from marljax.learning.optimizer import optimizer
from marljax.learning.rollout import Inputs, Learner, Step, inputs_of
from marljax.nn import encoder as entity_encoder
from marljax.nn.distributions import Distribution, distribution, num_outputs
from marljax.nn.layers import EncoderSizes, Sizes
from marljax.nn.networks import Actor, agent_ids, apply_per_agent
from marljax.nn.networks import initial_carry as zero_carry
from marljax.nn.running_stats import RunningStats
from marljax.utils import collectives
from marljax.utils.validation import divide

ObsStats = RunningStats | dict[str, RunningStats]  # [O]; with an encoder of entities [width] by name, see ``entities``


class SurrogateConfig(LearningConfig):
    """Hyperparameters of all that climbs a surrogate on its own rollouts."""

    num_epochs: int = static(4, low=1)  # passes over each rollout
    num_minibatches: int = static(4, low=1)  # gradient steps per pass


class PPOConfig(SurrogateConfig):
    """Hyperparameters of PPO."""

    # What a single agent needs no setting for; see ``ManyAgents``.
    share_parameters: ClassVar[bool] = True
    agent_id: ClassVar[bool] = False
    death: ClassVar[str] = "terminal"

    rollout_length: int = static(32, low=1)  # T, steps per environment between updates
    stagger: bool = static(False)  # first episodes are cut off at random, for environments whose episodes last equally long
    # Networks
    core: str = static("mlp", choices=("mlp", "gru"))  # gru: the last hidden layer remembers
    head: tuple[int, ...] = static((), low=1)  # widths of layers of each output's own behind them
    encoder: str = static("flat", choices=("flat", "attention"))  # attention: over the entities that an agent sees
    encoder_width: int = static(64, low=1)  # of its embeddings, each of two layers
    encoder_heads: int = static(4, low=1)  # of its attention
    # Targets
    gamma: float = traced(0.99, low=0.0, high=1.0)  # discount per step
    gae_lambda: float = traced(0.95, low=0.0, high=1.0)  # 0: one-step targets, 1: whole returns
    reward_scale: float = traced(1.0, low=0.0)  # multiplies rewards before anything is learnt from them
    normalize_values: bool = static(True)  # the critic predicts returns scaled by their running mean and deviation
    value_horizon: int = static(0, low=0)  # updates that their mean and deviation look back on; 0: all
    normalize_advantages: str = static("minibatch", choices=("minibatch", "per_agent", "none"))  # to mean 0, deviation 1
    # False: the step limit ends an episode like any other end; for limits that belong to the task, and where what agents see at
    # the limit is unlike what they see before it, so that nothing corrects the critic's extrapolation
    bootstrap_limit: bool = static(True)
    time_for_critic: bool = static(True)  # where the step limit ends episodes, critics see how much of it is over
    # Losses and gradients
    learning_rate: float = traced(2e-3, low=0.0)  # at first
    clip_apart: bool = static(True)  # max_grad_norm bounds the gradients of actor and critic each; False: of both together
    critic_learning_rate: float = traced(0.0, low=0.0)  # of a critic with a network of its own; 0: as learning_rate
    clip_eps: float = traced(0.2, low=0.0)  # how far a probability ratio may leave 1
    entropy_coef: float = traced(0.01, low=0.0)  # weight of the entropy bonus
    value_coef: float = traced(0.5, low=0.0)  # weight of the critic's loss
    clip_values: bool = static(True)  # PPO2's clipped value loss, with clip_eps in the critic's own scale
    huber_delta: float = traced(0.0, low=0.0)  # value loss becomes linear beyond it; 0: squared everywhere

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "attention":
            divide(self.encoder_width, self.encoder_heads, "units (encoder_width)", "heads (encoder_heads)")
        if self.core == "gru" and len(self.hidden) < 2:
            raise UserError(f"core=gru takes at least two hidden layers, one before the GRU; hidden={list(self.hidden)} has one")
        if self.core == "gru":
            divide(self.num_envs, self.num_minibatches, "sequences (num_envs)", "minibatches (num_minibatches)")
        else:
            samples = self.num_envs * self.rollout_length
            divide(samples, self.num_minibatches, "samples (num_envs × rollout_length)", "minibatches (num_minibatches)")


class ManyAgents(Hyperparameters):
    """What PPO's hyperparameters gain where there are several agents: the first base of such a ``Config``."""

    share_parameters: bool = static(True)  # False: every agent has networks of its own
    agent_id: bool = static(False)  # append a one-hot agent id (up to 64 agents) to the observation
    death: str = static("terminal", choices=("terminal", "continue"))  # continue: the dead share team rewards on (Yu et al. 2022)


class Carry(NamedTuple):
    """What GRU cores remember, [E, A, H] each; () for MLP cores."""

    actor: Any
    critic: Any


class Batch(NamedTuple):
    """What a rollout leaves for the gradient steps. Leading [T, E], but for the carries."""

    inputs: Any  # what the networks see
    sample: jax.Array  # [T, E, A, …] drawn action, before squashing
    log_prob: jax.Array  # [T, E, A] of the sample, when it was drawn
    value: jax.Array  # [T, E, A] then, as the critic's head gave it: normalised where values are
    decides: jax.Array  # [T, E, A] bool: alive in a running episode, and more than one action was available
    valued: jax.Array  # [T, E, A] bool: enters the critic's loss
    advantage: jax.Array  # [T, E, A]
    target: jax.Array  # [T, E, A] return to regress on


class Evaluation(NamedTuple):
    """What the networks say of a batch."""

    log_prob: jax.Array  # [T, E, A]
    entropy: jax.Array  # [T, E, A]
    value: jax.Array  # [T, E, A] as the critic's head gives it: normalised where values are


def layout(env: Environment, config: PPOConfig) -> entities.Layout:
    """What an encoder knows of the observation, () without one; raises ``UserError`` where the environment names no entities."""
    if config.encoder == "flat":
        return ()
    name, wrong = type(env).__name__, entities.fault(env)
    if wrong:
        raise UserError(f"encoder=attention cannot read {name}: {wrong}")
    if not entities.kinds(env.obs_layout):
        raise UserError(f"encoder=attention needs entities, and {name} as chosen names none in its layout; take encoder=flat")
    return env.obs_layout


def new_stats(env: Environment, config: PPOConfig, size: int) -> ObsStats:
    """Statistics of observations [..., size] before the first."""
    known = layout(env, config)
    return entity_encoder.create_stats(known) if known else RunningStats.create((size,))


def updated_stats(env: Environment, config: PPOConfig, stats: ObsStats, inputs: Inputs, last: jax.Array) -> ObsStats:
    """Joins a rollout's observations, but those of final timesteps ``last`` [T, E] and of agents that are not alive."""
    mask = inputs.alive & ~last[..., None]
    if isinstance(stats, RunningStats):
        return stats.updated(inputs.obs, mask)
    return entity_encoder.updated_stats(stats, layout(env, config), inputs.obs, mask)


def features(env: Environment, config: PPOConfig, obs: jax.Array, stats: ObsStats) -> jax.Array:
    """[T, E, A, F]: observations as the networks take them, normalised and with an agent id where the config says so."""
    if isinstance(stats, RunningStats):
        obs = stats.normalize(obs) if config.normalize_observations else obs
    else:
        obs = entity_encoder.arrange(layout(env, config), obs, stats if config.normalize_observations else None)
    if config.agent_id:
        ids = agent_ids(obs.shape[2])
        obs = jnp.concatenate([obs, jnp.broadcast_to(ids, (*obs.shape[:2], *ids.shape))], -1)
    return obs


def and_time(seen: jax.Array, inputs: Inputs) -> jax.Array:
    """[T, E, A, F (+ 1)]: what a critic sees, with the time where inputs hold it."""
    return jnp.concatenate([seen, *jax.tree.leaves(inputs.time)], -1)


def sizes(env: Environment, config: PPOConfig) -> Sizes:
    """Of networks that see observations."""
    kinds = entities.kinds(layout(env, config))
    encoder = EncoderSizes(kinds, config.encoder_width, config.encoder_heads) if kinds else None
    return Sizes(config.core, config.hidden, config.head, config.activation, encoder)


def actor_network(env: Environment, config: PPOConfig) -> Actor:
    return Actor(num_outputs(env.action_space), sizes(env, config))


def policy(env: Environment, config: PPOConfig, params: Any, inputs: Inputs, carry: Any) -> tuple[Any, Distribution]:
    """The actor's distributions [T, E, A] and its memory after the last step; ``params`` has ``actor`` and ``obs_stats``."""
    seen = features(env, config, inputs.obs, params.obs_stats)
    module = actor_network(env, config)
    carry, outputs = apply_per_agent(module, params.actor, config.share_parameters, carry, (), seen, inputs.first, inputs.alive)
    return carry, distribution(env.action_space, outputs, inputs.action_mask)


def act_alone(
    env: Environment, config: PPOConfig, params: Any, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A, …] of one environment from its timestep; the ``act`` of every algorithm of the family."""
    one = jax.tree.map(lambda x: x[None], (timestep, carry))
    carry, head = policy(env, config, params, inputs_of(one[0]), one[1])
    sample = head.mode() if greedy else head.sample(key)
    return head.action(sample)[0, 0], jax.tree.map(lambda x: x[0], carry)


def masks(config: PPOConfig, env: Environment, inputs: Inputs, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(decides, valued), both [T, E, A], given which timesteps [T, E] ended an episode.

    An agent with a single available action (in each part of a ``MultiDiscrete``) leaves the actor's loss, not the critic's.
    """
    running = ~last[..., None]
    acts = inputs.alive & running
    parts = len(env.action_space.nvec) if isinstance(env.action_space, MultiDiscrete) else 1
    has_choice = True if isinstance(env.action_space, Box) else inputs.action_mask.sum(-1) > parts
    return acts & has_choice, acts if config.death == "terminal" else jnp.broadcast_to(running, acts.shape)


def actor_critic_optimizer(config: PPOConfig, updates: jax.Array) -> optax.GradientTransformation:
    """Of parameters {"actor": …, "critic": …}."""
    own = jnp.asarray(config.critic_learning_rate)
    rates: dict[str, Scalar] = {"actor": config.learning_rate, "critic": jnp.where(own > 0.0, own, config.learning_rate)}
    return optimizer(config, updates, rates, config.clip_apart)


def new_learner(config: PPOConfig, params: Any, key: jax.Array, env_params: EnvParams) -> Learner:
    """A learner before its first update; ``params`` has ``actor`` and ``critic``, which are trained."""
    updates = jnp.zeros((), jnp.int32)
    opt_state = actor_critic_optimizer(config, updates).init({"actor": params.actor, "critic": params.critic})
    return Learner(params, opt_state, updates, key, env_params)


def targets(
    config: PPOConfig, env: Environment, params: Any, steps: Step, alive: jax.Array, value: jax.Array, last_value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Advantages and returns [T, E, A] in reward units, from values [T, E, A] and [E, A] as the critic's head gives them."""
    if config.normalize_values:
        value, last_value = params.value_stats.denormalize(value), params.value_stats.denormalize(last_value)
    if config.death == "continue":
        steps = with_death_masking(steps, alive, env.teams)
    return gae(steps, value, last_value, config.gamma, config.gae_lambda, config.bootstrap_limit)


def extremes(steps: Step, batch: "Batch") -> dict[str, jax.Array]:
    """The largest absolute value and reward of a rollout; no policy is worth more than max |r| / (1 − γ)."""
    value = jnp.where(batch.valued, batch.target - batch.advantage, 0.0)  # in reward units
    found = {"max_value": jnp.max(jnp.abs(value)), "max_reward": jnp.max(jnp.abs(steps.reward))}
    return collectives.largest(found)


def initial_carry(env: Environment, config: PPOConfig) -> Any:
    """The actor's memory at the start of an episode of one environment; the ``initial_carry`` of every algorithm of the
    family."""
    return zero_carry(config.core, config.hidden[-1], (env.num_agents,))


def losses(
    config: PPOConfig, evaluation: Evaluation, batch: Batch, value_stats: RunningStats
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate (Schulman et al. 2017, eq. 7 and 9) of one minibatch and its named terms.

    Means are over acting agents of all shards; the gradient's mean over the data axis is that of one big batch.
    """
    advantage = _normalize_advantages(config, batch)
    change = evaluation.log_prob - batch.log_prob
    policy_loss, shift = surrogate(change, advantage, batch.decides, config.clip_eps, config.clip_eps)
    value_loss = collectives.masked_mean(_value_error(config, evaluation.value, batch, value_stats), batch.valued)
    entropy = collectives.masked_mean(evaluation.entropy, batch.decides)
    total = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    terms = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        **shift,
    }
    return total, terms


def surrogate(
    log_ratio: jax.Array, advantage: jax.Array, decides: jax.Array, low: Scalar, high: Scalar
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped policy loss of samples [...] that enter it where ``decides``, and how far the policy has moved.

    Ratios of new to old probability are clipped to 1 - ``low`` … 1 + ``high``.
    """
    # A sample that leaves the loss may hold anything, and a policy may move far; exp of either must not reach the gradient as
    # infinity times zero. e^20 is clipped by any ``high`` and ``low`` anyway.
    log_ratio = jnp.clip(jnp.where(decides, log_ratio, 0.0), -20.0, 20.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - low, 1.0 + high)
    shift = {
        # Schulman's low-variance estimator of KL(old || new): (r - 1) - log r.
        "approx_kl": collectives.masked_mean(ratio - 1.0 - log_ratio, decides),
        "clip_fraction": collectives.masked_mean((clipped != ratio).astype(ratio.dtype), decides),
    }
    return -collectives.masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), decides), shift


def _normalize_advantages(config: PPOConfig, batch: Batch) -> jax.Array:
    if config.normalize_advantages == "none":
        return batch.advantage
    axes = (0, 1) if config.normalize_advantages == "per_agent" else (0, 1, 2)
    mean = collectives.mean(collectives.masked_mean(batch.advantage, batch.decides, axes))
    var = collectives.mean(collectives.masked_mean(jnp.square(batch.advantage - mean), batch.decides, axes))
    return (batch.advantage - mean) / (jnp.sqrt(var) + 1e-8)


def _value_error(config: PPOConfig, value: jax.Array, batch: Batch, stats: RunningStats) -> jax.Array:
    """[T, E, A] in the critic's own scale, so that one coefficient suits all rewards."""
    target = (batch.target - stats.mean) / stats.std if config.normalize_values else batch.target
    error = _huber(value - target, config.huber_delta)
    if config.clip_values:
        # what the critic said itself, not that in reward units and back: ``stats`` have changed since, and it has not
        old = batch.value
        near_old = old + jnp.clip(value - old, -config.clip_eps, config.clip_eps)
        error = jnp.maximum(error, _huber(near_old - target, config.huber_delta))
    return error


def _huber(error: jax.Array, delta: Scalar) -> jax.Array:
    """½ e², linear beyond delta (Huber 1964); delta is traced, so 0 stands for no limit."""
    linear = delta * (jnp.abs(error) - 0.5 * delta)
    return jnp.where((delta > 0.0) & (jnp.abs(error) > delta), linear, 0.5 * jnp.square(error))


def explained_variance(batch: Batch) -> jax.Array:
    """1 - Var(return - value) / Var(return) over the critic's samples: 1 a perfect critic, 0 a constant."""

    def variance(x: jax.Array) -> jax.Array:
        mean = collectives.mean(collectives.masked_mean(x, batch.valued))
        return collectives.mean(collectives.masked_mean(jnp.square(x - mean), batch.valued))

    spread = variance(batch.target)
    return jnp.where(spread > 0.0, 1.0 - variance(batch.advantage) / jnp.maximum(spread, 1e-8), 0.0)


TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
Evaluate = Callable[[Any, Batch, Any, jax.Array], Evaluation]


def fit(
    config: PPOConfig, learner: Learner, batch: Batch, carry: Any, evaluate: Evaluate, key: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """Epochs of minibatch gradient steps on one rollout; returns the learner and the mean of every named loss term.

    ``evaluate(params, batch, carry, key)`` replays the networks. An MLP shuffles over time and environments; a GRU keeps whole
    sequences and starts each from ``carry`` [E, A, H], the memory at the start of the rollout.
    """
    if config.core == "mlp":
        batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
    transform = actor_critic_optimizer(config, learner.updates)

    def loss(trained: Any, params: Any, batch: Batch, carry: Any, key: jax.Array):
        params = params._replace(**trained)
        total, terms = losses(config, evaluate(params, batch, carry, key), batch, params.value_stats)
        return total, jnp.stack([terms[name] for name in TERMS])

    def gradient_step(fitted: tuple[Any, Any], minibatch: tuple[Batch, Any, jax.Array]):
        params, opt_state = fitted
        trained = {"actor": params.actor, "critic": params.critic}
        (_, terms), grads = jax.value_and_grad(loss, has_aux=True)(trained, params, *minibatch)
        grads, terms = collectives.mean((grads, terms))
        updates, opt_state = transform.update(grads, opt_state, trained)
        trained = optax.apply_updates(trained, updates)
        return (params._replace(**trained), opt_state), jnp.append(terms, optax.tree.norm(grads))

    def epoch(fitted: tuple[Any, Any], key: jax.Array):
        key_shuffle, key_loss = jax.random.split(key)
        sequences, carries = minibatches(config, batch, carry, key_shuffle)
        keys = jax.random.split(key_loss, config.num_minibatches)
        return jax.lax.scan(gradient_step, fitted, (sequences, carries, keys))

    (params, opt_state), terms = jax.lax.scan(
        epoch, (learner.params, learner.opt_state), jax.random.split(key, config.num_epochs)
    )
    named = dict(zip((*TERMS, "grad_norm"), terms.mean(axis=(0, 1)), strict=True))
    if config.normalize_observations:
        params, opt_state = after_first_rollout(learner, (params, opt_state), (learner.params, learner.opt_state))
    learner = learner.replace(params=params, opt_state=opt_state, updates=learner.updates + 1)
    return learner, named | {"explained_variance": explained_variance(batch)}


def after_first_rollout(learner: Learner, fitted: Any, before: Any) -> Any:
    """``fitted``, but ``before`` in a run's first update: the policy saw that rollout unnormalised, and it only tells what to
    normalise by."""
    return jax.tree.map(lambda new, old: jnp.where(learner.updates > 0, new, old), fitted, before)


def minibatches(config: SurrogateConfig, batch: Any, carry: Any, key: jax.Array) -> tuple[Any, Any]:
    """Shuffles axis 1 of the batch and axis 0 of the carries, and splits them: leading [num_minibatches]."""
    rows = jax.tree.leaves(batch)[0].shape[1]
    size = divide(rows, config.num_minibatches, "rows of one device", "minibatches")
    order = jax.random.permutation(key, rows).reshape(config.num_minibatches, size)
    split = jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch)
    return split, jax.tree.map(lambda x: x[order], carry)
