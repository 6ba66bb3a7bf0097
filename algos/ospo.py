"""OSPO compares an agent's reward in a step with those of the other agents in its group ("One Step is Enough: Multi-Agent
Reinforcement Learning based on One-Step Policy Optimization for Order Dispatch on Ride-Sharing Platforms"). With other settings
it is the related GRPO.

All agents share one policy; there is no critic. Where agents choose among items that serve one agent each
(``Environment.items``), every agent scores every item. In training agents sample items independently, so that the probabilities
are those of the policy that learns, and the environment resolves conflicts over an item; greedy play matches agents and items by
the scores. ``python algos/ospo.py env=ride_dispatch`` trains it.

Axis letters: T time, E environments, A agents, O observation, M items, F item features, n actions.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ospo")


from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax import nn
from marljax.config import Scalar, static, traced
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import EnvParams, TimeStep, flat_observation
from marljax.core.vector import vectorize
from marljax.errors import UserError
from marljax.learning import (
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
from marljax.utils.assignment import METHODS, match
from marljax.utils.random import flat
from marljax.utils.validation import divide

# The role of waiting for an agent that could take an item. never: it has no logit. ignored: waiting agents are not in the group.
# compared: they are in the group's mean. learnt: and in the loss, and only then do matchings leave agents without an item.
WAITING = ("never", "ignored", "compared", "learnt")
MAX_KL_COEF = 8.0  # the weight of the penalty doubles up to this


class Config(RolloutConfig):
    """Hyperparameters, a frozen dataclass. ``static`` ones shape the program; ``traced`` ones can be swept with ``jax.vmap``."""

    # Rollouts
    num_envs: int = static(8, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(31, low=1, help="steps of every environment per update; whole episodes take one step more")
    samples: int = static(256, low=0, help="actions per step and environment in the loss, drawn at random; 0, or attention: all")
    # Policy
    scorer: str = static("two_tower", choices=("two_tower", "pair_mlp"), help="of items: product of embeddings, MLP of pairs")
    hidden: tuple[int, ...] = static((64, 64), low=1, help="widths of the hidden layers")
    embedding: int = static(64, low=1, help="width of the two towers' outputs, and of the attention")
    attention_layers: int = static(0, low=0, help="in which agents and items attend to one another, before pairs are scored")
    attention_heads: int = static(4, low=1, help="of each such layer")
    activation: str = static("relu", choices=tuple(nn.ACTIVATIONS), help="of the hidden layers")
    network_dtype: str = static("float32", choices=nn.DTYPES, help="of hidden layers; parameters and outputs are float32")
    normalize_observations: bool = static(True, help="by running mean and variance, saved with the policy")
    waiting: str = static("compared", choices=WAITING, help="role of agents that wait though they could take an item")
    matching: str = static("exact", choices=tuple(METHODS), help="assignment of items to agents")
    matching_weight: str = static("logit", choices=("logit", "probability"), help="of a pair; the papers use probabilities")
    explore: str = static("softmax", choices=("softmax", "epsilon"), help="epsilon: matchings that put some random pairs first")
    epsilon: float = traced(0.01, low=0.0, high=1.0, help="share of the pairs that explore=epsilon puts first")
    # Advantages
    advantage: str = static("one_step", choices=("one_step", "group", "to_go"), help="of rewards, of GRPO, of rewards-to-go")
    baseline: str = static("mean", choices=("mean", "median"), help="of the group")
    normalize: str = static("step", choices=("step", "buffer", "agent"), help="group: a step's agents, the rollout, one agent")
    equity_coef: float = traced(0.0, low=0.0, help="weight of the penalty for widening the spread of the agents' returns")
    gamma: float = traced(0.99, low=0.0, high=1.0, help="discount per step, unless advantage=one_step")
    # Losses and gradient steps
    num_epochs: int = static(4, low=1, help="passes over each rollout")
    num_minibatches: int = static(4, low=1, help="gradient steps per pass")
    learning_rate: float = traced(5e-4, low=0.0, help="initial learning rate")
    anneal_learning_rate: bool = static(True, help="linearly to 0 over total_steps")
    adam_eps: float = traced(1e-5, low=0.0, help="added to the root of the second moment")
    max_grad_norm: float = traced(0.5, low=0.0, help="global norm to which gradients are clipped")
    clip_low: float = traced(0.2, low=0.0, high=1.0, help="how far a probability ratio may fall below 1")
    clip_high: float = traced(0.28, low=0.0, help="how far a probability ratio may rise above 1")
    entropy_coef: float = traced(0.01, low=0.0, help="weight of the entropy bonus")
    stay_near_best: bool = static(False, help="penalise leaving the best policy so far, once an update is no improvement")
    kl_coef: float = traced(0.5, low=0.0, high=MAX_KL_COEF, help="initial weight of that penalty")
    kl_limit: float = traced(0.01, low=0.0, help="beyond it a minibatch doubles the weight and applies only the penalty")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_layers:
            divide(self.embedding, self.attention_heads, "units (embedding)", "heads (attention_heads)")


class Params(NamedTuple):
    """Network parameters and running statistics."""

    actor: Any
    own_stats: nn.RunningStats  # [O]
    item_stats: nn.RunningStats  # [F]; [0] without items


class OptState(NamedTuple):
    """The learner's state besides the policy."""

    adam: Any
    best: Params  # the policy whose rollout had the highest mean reward so far
    best_score: jax.Array
    kl_coef: jax.Array  # 0 before the first update that is no improvement


class Inputs(NamedTuple):
    """Inputs of the policy. Leading [T, E]; T = 1 in a rollout. Without items ``items`` and ``is_open`` are ()."""

    own: jax.Array  # [T, E, A, O]
    items: Any  # [T, E, M, F]
    is_open: Any  # [T, E, M] bool: may be taken
    mask: jax.Array  # [T, E, A, n] available actions; with items [T, E, A, 1]: the agent may take one


class Transition(NamedTuple):
    """One step of a rollout. Leading [T, E]."""

    inputs: Inputs
    sample: jax.Array  # [T, E, A, …] action before squashing
    log_prob: jax.Array  # [T, E, A] of the sample under the policy of the rollout
    in_group: jax.Array  # [T, E, A] bool: in the mean of its group
    in_loss: jax.Array  # [T, E, A] bool
    acting: jax.Array  # [T, E, A] bool: alive in a running episode
    returns: jax.Array  # [T, E, A] sum of the episode's rewards before this step


class Batch(NamedTuple):
    """Training batch. Leading [T, E]."""

    inputs: Inputs
    sample: jax.Array  # [T, E, A, …]
    log_prob: jax.Array  # [T, E, A]
    mask: jax.Array  # [T, E, A] bool: in the loss
    advantage: jax.Array  # [T, E, A]


class Networks(NamedTuple):
    """The policy, with everything between an observation and it."""

    init: Callable[[jax.Array, Inputs], Params]
    policy: Callable[[Params, Inputs], nn.Distribution]  # of each agent's own actions [T, E, A]
    update_stats: Callable[[Params, Inputs, jax.Array], Params]  # with observations in a mask [T, E, A], and open items


def make_networks(env: Environment, config: Config) -> Networks:
    """The networks that ``config`` describes."""
    sizes = nn.Sizes("mlp", config.hidden, (), config.activation, dtype=config.network_dtype)
    network: Any = nn.Actor(nn.num_outputs(env.action_space), sizes)
    if env.items:
        network = nn.TwoTowers(sizes, config.embedding) if config.scorer == "two_tower" else nn.PairScorer(sizes)
    if env.items and config.attention_layers:
        attention = config.attention_layers, config.embedding, config.attention_heads, config.activation, config.network_dtype
        network = nn.AttentionScorer(network, *attention)

    def arguments(params: Params, inputs: Inputs) -> tuple[Any, ...]:
        own, items = inputs.own, inputs.items
        if config.normalize_observations:
            own, items = params.own_stats.normalize(own), params.item_stats.normalize(items) if env.items else ()
        if not env.items:
            return (), own, (), ()  # an ``Actor`` takes carry, observations, first and alive
        return (own, items, inputs.mask[..., 0], inputs.is_open) if config.attention_layers else (own, items)

    def init(key: jax.Array, inputs: Inputs) -> Params:
        sizes = inputs.own.shape[-1], inputs.items.shape[-1] if env.items else 0
        params = Params(None, *(nn.RunningStats.create((size,)) for size in sizes))
        return params._replace(actor=network.init(key, *arguments(params, inputs)))

    def policy(params: Params, inputs: Inputs) -> nn.Distribution:
        mask, outputs = available_actions(env, config, inputs), network.apply(params.actor, *arguments(params, inputs))
        if env.items:
            scores, noop = outputs
            return nn.Categorical(jnp.concatenate([scores, noop[..., None]], axis=-1), mask)
        return nn.distribution(env.action_space, outputs[1], mask)

    def update_stats(params: Params, inputs: Inputs, mask: jax.Array) -> Params:
        item_stats = params.item_stats.updated(inputs.items, inputs.is_open) if env.items else params.item_stats
        return params._replace(own_stats=params.own_stats.updated(inputs.own, mask), item_stats=item_stats)

    return Networks(init, policy, update_stats)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Initial policy, optimiser and environments; the learner is the same on every shard of the data axis."""
    if env.num_agents == 1 and config.normalize == "step":
        raise UserError(f"ospo compares the agents of a step, and {type(env).__name__} has one; use ppo, or normalize=buffer")
    if env.afterstates:
        raise UserError(
            f"ospo scores items, and {type(env).__name__} observes afterstates; on ride_dispatch set env.view=pairs, "
            "elsewhere use values"
        )
    key_actor, key_reset, key_learner = jax.random.split(key, 3)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    actors = start(vec, env_params, collectives.fold_data(key_reset), ())
    params = make_networks(env, config).init(key_actor, get_inputs(env, actors.timestep))
    updates, zero = jnp.zeros((), jnp.int32), jnp.zeros(())
    opt_state = OptState(make_optimizer(config, updates).init(params.actor), params, jnp.array(-jnp.inf), zero)
    return TrainState(Learner(params, opt_state, updates, key_learner, env_params), actors)


def with_params(learner: Learner, params: Params) -> Learner:
    """A new learner with the parameters of a trained one, which are also the best so far."""
    return learner.replace(params=params, opt_state=learner.opt_state._replace(best=jax.tree.map(jnp.copy, params)))


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: collect a rollout, compare rewards within groups, take epochs of minibatch gradient steps."""
    learner, actors = state
    params, networks = learner.params, make_networks(env, config)
    key_next, key_rollout, key_agents, key_epochs = jax.random.split(learner.key, 4)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = env.anneal(learner.env_params, learner.updates / config.num_updates)

    # 1. Collect a rollout.
    def policy_step(key, env_state, timestep, carry):
        inputs = get_inputs(env, timestep)
        pi = networks.policy(params, inputs)
        sample = choose_actions(env, config, pi, key, greedy=False)
        in_group, in_loss = masks(env, config, timestep, inputs, sample)
        row = (inputs, sample, pi.log_prob(sample), in_group, in_loss), pi.action(sample)
        recorded, action = jax.tree.map(lambda x: x[0], row)
        return action, carry, Transition(*recorded, timestep.acting, env_state.returns)

    key_rollout = collectives.fold_data(key_rollout)
    actors, rollout, steps, episodes = collect(vec, env_params, policy_step, actors, key_rollout, config.rollout_length)

    # 2. Compare each reward with those of its group.
    advantage, informative = estimate_advantages(config, steps, rollout.in_group)
    advantage -= config.equity_coef * equity_penalty(steps.reward, rollout.returns, rollout.acting)
    batch = Batch(rollout.inputs, rollout.sample, rollout.log_prob, rollout.in_loss & informative, advantage)
    batch = subsample_agents(env, config, batch, collectives.fold_data(key_agents))
    opt_state = track_best(config, params, learner.opt_state, steps)

    # 3. Optimise.
    samples = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
    optimizer = make_optimizer(config, learner.updates)

    def minibatch_step(trained, minibatch):
        actor, adam, kl_coef = trained
        loss = jax.value_and_grad(ospo_loss, has_aux=True)
        (_, (kl_coef, metrics)), grads = loss(actor, config, networks, params, opt_state.best, kl_coef, *minibatch)
        grads, metrics = collectives.mean((grads, metrics))  # over devices
        changes, adam = optimizer.update(grads, adam, actor)
        return (optax.apply_updates(actor, changes), adam, kl_coef), metrics | {"grad_norm": gradient_norm(grads)}

    def epoch(trained, key):
        key_shuffle, key_entropy = jax.random.split(key)
        minibatches = split_minibatches(config, samples, key_shuffle)
        return scan_means(minibatch_step, trained, (minibatches, jax.random.split(key_entropy, config.num_minibatches)))

    before = (params.actor, opt_state.adam, opt_state.kl_coef)
    after, metrics = scan_means(epoch, before, jax.random.split(key_epochs, config.num_epochs))
    if config.normalize_observations:
        # The first rollout, of unnormalised observations, only initialises the statistics: its gradient steps are dropped. They
        # change after the gradient steps, which need the inputs of the rollout.
        after = jax.tree.map(lambda new, old: jnp.where(learner.updates > 0, new, old), after, before)
        params = networks.update_stats(params, rollout.inputs, rollout.acting)
    actor, adam, kl_coef = after
    opt_state = opt_state._replace(adam=adam, kl_coef=kl_coef)
    learner = Learner(params._replace(actor=actor), opt_state, learner.updates + 1, key_next, learner.env_params)
    metrics |= truncated_share(config, steps, rollout.in_group)
    if config.stay_near_best:
        metrics["kl_coef"] = kl_coef
    return TrainState(learner, actors), metrics | episodes


def ospo_loss(
    actor: Any, config: Config, networks: Networks, params: Params, best: Params, kl_coef: Scalar, batch: Batch, key: jax.Array
) -> tuple[jax.Array, tuple[Scalar, dict[str, jax.Array]]]:
    """The clipped surrogate with an entropy bonus, and the penalty for leaving the best policy so far, with its new weight."""
    pi = networks.policy(params._replace(actor=actor), batch.inputs)

    # E[min(r A, clip(r, 1 − ε_low, 1 + ε_high) A)]. Masked samples are arbitrary, and a policy may move far; exp of either must
    # not reach the gradient as infinity times zero. A sample whose ratio has left e^±20 has no gradient.
    log_ratio = jnp.clip(jnp.where(batch.mask, pi.log_prob(batch.sample) - batch.log_prob, 0.0), -20.0, 20.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    policy_loss = -collectives.masked_mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage), batch.mask)
    entropy = collectives.masked_mean(pi.entropy(key), batch.mask)
    loss = policy_loss - config.entropy_coef * entropy
    metrics = {
        "policy_loss": policy_loss,
        "entropy": entropy,
        "approx_kl": collectives.masked_mean(ratio - 1.0 - log_ratio, batch.mask),  # "k3" (Schulman 2020)
        "clip_fraction": collectives.masked_mean((clipped != ratio).astype(ratio.dtype), batch.mask),
    }
    if config.stay_near_best:
        kl = collectives.masked_mean(pi.kl(networks.policy(best, batch.inputs)), batch.mask)
        far = (collectives.mean(jax.lax.stop_gradient(kl)) > config.kl_limit) & (kl_coef > 0)
        kl_coef = jnp.where(far, jnp.minimum(2 * kl_coef, MAX_KL_COEF), kl_coef)
        loss = jnp.where(far, 0.0, loss) + kl_coef * kl
        metrics["kl_to_best"] = kl
    return loss, (kl_coef, metrics)


def split_minibatches(config: Config, batch: Batch, key: jax.Array) -> Batch:
    """Shuffles axis 1 of the batch and splits it: leading [num_minibatches]."""
    rows = batch.advantage.shape[1]
    size = divide(rows, config.num_minibatches, "steps of one device", "minibatches")
    order = jax.random.permutation(key, rows).reshape(config.num_minibatches, size)
    return jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch)


def track_best(config: Config, params: Params, opt_state: OptState, steps: Step) -> OptState:
    """Keeps the policy of a rollout whose mean reward is the highest so far; otherwise the penalty begins."""
    score = collectives.mean(jnp.mean(steps.reward))
    better = score > opt_state.best_score
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, opt_state.best)
    kl_coef = jnp.where(better, opt_state.kl_coef, jnp.maximum(opt_state.kl_coef, config.kl_coef))
    return opt_state._replace(best=best, best_score=jnp.maximum(score, opt_state.best_score), kl_coef=kl_coef)


def estimate_advantages(config: Config, steps: Step, in_group: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Advantages [T, E, A] over the agents in the group [T, E, A], and which of them are informative."""
    if config.advantage == "one_step":
        return standardize(config, steps.reward, in_group)
    if config.advantage == "to_go":
        return standardize(config, to_go(config, steps), in_group)
    rewards, informative = standardize(config, steps.reward, in_group)
    return to_go(config, steps._replace(reward=jnp.where(in_group, rewards, 0.0))), informative


def to_go(config: Config, steps: Step) -> jax.Array:
    """[T, E, A] discounted rewards of each agent until its episode, or the rollout, ends."""
    nothing = jnp.zeros_like(steps.reward)
    return gae(steps, nothing, nothing[0], config.gamma, 1.0)[0]


def truncated_share(config: Config, steps: Step, in_group: jax.Array) -> dict[str, jax.Array]:
    """The share of compared returns that the end of the rollout truncates; {} where single rewards are compared."""
    if config.advantage == "one_step":
        return {}
    whole = jax.lax.cummax(steps.cut.astype(jnp.int8), reverse=True)[..., None] > 0
    return {"cut_returns": collectives.mean(collectives.masked_mean(1.0 - whole, in_group))}


def standardize(config: Config, value: jax.Array, in_group: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values [T, E, A] standardised within their group, and which of them are informative.

    By mean and standard deviation; or by the median and the mean absolute deviation from it (MC-GRPO's median deviation is 0 as
    soon as half of a group have the same reward), where the median itself is not informative.
    """
    axes = {"step": (2,), "buffer": (0, 1, 2), "agent": (0, 1)}[config.normalize]
    wide = (lambda x: x) if config.normalize == "step" else collectives.total  # a group may lie on several shards

    def mean(x: jax.Array) -> jax.Array:
        count = wide(jnp.sum(in_group, axes, keepdims=True))
        return wide(jnp.sum(jnp.where(in_group, x, 0.0), axes, keepdims=True)) / jnp.maximum(count, 1)

    if config.baseline == "mean":
        centred = value - mean(value)
        std = jnp.sqrt(mean(jnp.square(centred)))
        rounding = 1e-5 * mean(jnp.abs(value))  # a deviation that rounding explains is none: all have the same reward
        return jnp.where(std > rounding, centred / (std + 1e-8), 0.0), in_group
    known = jnp.where(in_group, value, jnp.nan)
    known = known if config.normalize == "step" else collectives.gather(known, axis=1)
    centred = value - jnp.nan_to_num(jnp.nanmedian(known, axes, keepdims=True))
    return centred / (mean(jnp.abs(centred)) + 1e-3), in_group & (centred != 0)


def equity_penalty(reward: jax.Array, returns: jax.Array, acting: jax.Array) -> jax.Array:
    """[T, E, 1] increase of the standard deviation of the acting agents' ``returns`` [T, E, A] by a step's rewards."""

    def spread(returns: jax.Array) -> jax.Array:
        mean = jnp.mean(returns, axis=-1, keepdims=True, where=acting)
        return jnp.nan_to_num(jnp.sqrt(jnp.mean(jnp.square(returns - mean), axis=-1, keepdims=True, where=acting)))

    return spread(returns + reward) - spread(returns)


def subsample_agents(env: Environment, config: Config, batch: Batch, key: jax.Array) -> Batch:
    """A random choice of the agents in the loss, at most ``samples`` per step and environment; all that attend to one another."""
    count, attending = batch.mask.shape[-1], bool(env.items and config.attention_layers)
    if attending or not 0 < config.samples < count:
        return batch
    chance = jnp.where(batch.mask, flat(jax.random.uniform, key, batch.mask.shape), -1.0)
    chosen = jax.lax.top_k(chance, config.samples)[1]

    def take(x: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 3)), axis=2)

    inputs = batch.inputs._replace(own=take(batch.inputs.own), mask=take(batch.inputs.mask))
    return Batch(inputs, *(take(part) for part in batch[1:]))


def get_inputs(env: Environment, timestep: TimeStep) -> Inputs:
    """Inputs of the policy from the current timestep, T = 1."""
    if env.items:
        shared, free = timestep.obs["shared"], jnp.any(timestep.action_mask[..., :-1], axis=-1, keepdims=True)
        inputs = Inputs(timestep.obs["own"], shared[env.items], shared["open"] > 0, free)
    else:
        inputs = Inputs(flat_observation(timestep.obs, timestep.alive.shape), (), (), timestep.action_mask)
    return jax.tree.map(lambda x: x[None], inputs)


def available_actions(env: Environment, config: Config, inputs: Inputs) -> jax.Array:
    """Mask [T, E, A, n]; with items the last action is to wait."""
    if not env.items:
        return inputs.mask
    takes = inputs.mask & inputs.is_open[..., None, :]
    waits = ~jnp.any(takes, axis=-1, keepdims=True) if config.waiting == "never" else jnp.ones_like(inputs.mask)
    return jnp.concatenate([takes, waits], axis=-1)


def masks(env: Environment, config: Config, timestep: TimeStep, inputs: Inputs, sample: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Agents in the mean of the group, and agents in the loss, both [1, E, A] bool."""
    able = timestep.acting[None]
    if isinstance(env.action_space, Discrete):
        able &= jnp.sum(available_actions(env, config, inputs), axis=-1) > 1
    takes = able & (sample != env.noop) if env.items else able
    return takes if config.waiting in ("never", "ignored") else able, able if config.waiting == "learnt" else takes


def choose_actions(env: Environment, config: Config, pi: Any, key: jax.Array, greedy: bool) -> jax.Array:
    """Actions before squashing [T, E, A, …]: drawn by each agent, or assigned by the matching."""
    if not greedy and (config.explore == "softmax" or not env.items):
        return pi.sample(key)
    if not env.items:
        return pi.mode()
    scores = jax.nn.softmax(pi.logits) if config.matching_weight == "probability" else pi.logits
    weights, waiting = scores[..., :-1], scores[..., -1]
    if config.waiting != "never" and config.matching_weight == "logit":  # relative to waiting, agents' logits are comparable
        weights, waiting = weights - waiting[..., None], jnp.zeros_like(waiting)
    if not greedy:  # the ratio in the loss is that of independent choices, an approximation with explore=epsilon
        draws, known = flat(jax.random.uniform, key, weights.shape), jnp.where(pi.mask[..., :-1], weights, 0.0)
        span = 1.0 + jnp.max(known) - jnp.min(known)
        weights = jnp.where(draws < config.epsilon, jnp.max(known) + span * (1.0 + draws / (config.epsilon + 1e-6)), weights)

    def assign(weights: jax.Array, waiting: jax.Array, mask: jax.Array) -> jax.Array:
        return match(weights, mask, waiting if config.waiting == "learnt" else None, config.matching)

    return jax.vmap(jax.vmap(assign))(weights, waiting, pi.mask[..., :-1])


def initial_carry(env: Environment, config: Config) -> Any:
    """The policy has no recurrent state."""
    return ()


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A, …] for one timestep of one environment."""
    pi = make_networks(env, config).policy(params, get_inputs(env, jax.tree.map(lambda x: x[None], timestep)))
    return pi.action(choose_actions(env, config, pi, key, greedy))[0, 0], carry


def explain(
    env: Environment, config: Config, params: Params, env_params: EnvParams, env_state: Any, timestep: TimeStep
) -> dict[str, jax.Array]:
    """The parameters of the policy [T, E, A, …], before any matching, in episodes [T, E]."""
    del env_params, env_state
    inputs = jax.tree.map(lambda x: x[:, 0], jax.vmap(lambda step: get_inputs(env, step))(timestep))
    return make_networks(env, config).policy(params, inputs).parameters()
