"""OSPO: what an agent earned in a step is compared with what the others of its group did ("One Step is Enough: Multi-Agent
Reinforcement Learning based on One-Step Policy Optimization for Order Dispatch on Ride-Sharing Platforms"); and its kin GRPO.

One policy is shared by all agents; there is no critic. Where agents choose among items that serve one agent each
(``Environment.items``), every agent scores every item. In training agents sample items on their own, so that probabilities are
those of what is learnt from, and the environment says who gets what several ask for; greedy play matches agents and items by the
scores.
``python algos/ospo.py env=ride_dispatch`` trains it.

Axis letters: T time, E environments, A agents, O observation, M items, n actions.
"""

if __name__ == "__main__":  # as a command: before the imports, so that Ctrl-C ends those without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ospo")


import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax.config.hyperparameters import Scalar, static, traced
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import EnvParams, TimeStep, flat_observation
from marljax.core.vector import VecState, vectorize
from marljax.errors import UserError
from marljax.learning import optimizer, ppo
from marljax.learning.advantages import gae
from marljax.learning.rollout import Learner, Step, TrainState, annealed, collect, start
from marljax.nn.distributions import Categorical, Distribution, distribution, num_outputs
from marljax.nn.layers import ACTIVATIONS, Sizes
from marljax.nn.networks import Actor
from marljax.nn.running_stats import RunningStats
from marljax.nn.scorers import PairScorer, TwoTowers
from marljax.utils import collectives
from marljax.utils.assignment import METHODS, match
from marljax.utils.random import flat
from marljax.utils.validation import divide

# What waiting is to an agent that could take an item. never: it has no logit. ignored: agents that wait are out of the group.
# compared: they count in the group's mean. learnt: and in the loss, and only then do matchings leave some without an item.
WAITING = ("never", "ignored", "compared", "learnt")


class Config(ppo.SurrogateConfig):
    """Hyperparameters of OSPO and GRPO."""

    # How much
    num_envs: int = static(8, low=1)  # E, over all devices
    rollout_length: int = static(31, low=1)  # T, steps between updates; with one more than an episode has, rollouts are episodes
    samples: int = static(256, low=0)  # actions of a step and environment that the loss sees, drawn at random; 0: all
    # Policy
    scorer: str = static("two_tower", choices=("two_tower", "pair_mlp"))  # of items: product of embeddings, or MLP of every pair
    hidden: tuple[int, ...] = static((64, 64), low=1)  # widths of the hidden layers
    embedding: int = static(64, low=1)  # width of the two towers' ends
    activation: str = static("relu", choices=ACTIVATIONS)  # of the hidden layers
    normalize_observations: bool = static(True)  # running mean and variance, saved with the policy
    waiting: str = static("compared", choices=WAITING)  # where there is a choice: impossible, out of the group, in it, learnt
    matching: str = static("exact", choices=tuple(METHODS))  # how items are assigned
    matching_weight: str = static("logit", choices=("logit", "probability"))  # its weights; the papers' are probabilities
    explore: str = static("softmax", choices=("softmax", "epsilon"))  # sampling, or the papers' weights made huge at random
    epsilon: float = traced(0.01, low=0.0, high=1.0)  # share of weights that explore=epsilon makes huge
    # Advantages
    advantage: str = static("one_step", choices=("one_step", "group", "to_go"))  # rewards; GRPO; rewards until the end compared
    baseline: str = static("mean", choices=("mean", "median"))  # of the group
    normalize: str = static("step", choices=("step", "buffer", "agent"))  # the group: a step's agents, all, or one agent's steps
    equity_coef: float = traced(0.0, low=0.0)  # weight of the penalty for what a step adds to the spread of the agents' returns
    gamma: float = traced(0.99, low=0.0, high=1.0)  # discount per step, but for one_step
    # Losses
    clip_low: float = traced(0.2, low=0.0, high=1.0)  # how far a probability ratio may fall below 1
    clip_high: float = traced(0.28, low=0.0)  # and rise above it
    entropy_coef: float = traced(0.01, low=0.0)  # weight of the entropy bonus
    stay_near_best: bool = static(False)  # penalise leaving the best policy so far, once an update is no improvement
    kl_coef: float = traced(0.5, low=0.0)  # weight of that penalty at first
    kl_limit: float = traced(0.01, low=0.0)  # beyond it the weight doubles, and only the penalty counts
    kl_coef_max: float = traced(8.0, low=0.0)  # that the weight doubles to

    def __post_init__(self) -> None:
        super().__post_init__()
        samples = self.num_envs * self.rollout_length
        divide(samples, self.num_minibatches, "steps (num_envs × rollout_length)", "minibatches (num_minibatches)")

    @property
    def sizes(self) -> Sizes:
        """Of the networks."""
        return Sizes("mlp", self.hidden, (), self.activation)


class Params(NamedTuple):
    """Everything that a policy needs."""

    actor: Any
    own_stats: RunningStats  # [O]
    item_stats: RunningStats  # [F]; [0] without items


class Optimisation(NamedTuple):
    """What stays between updates besides the policy."""

    adam: Any
    best: Params  # whose rollout had the highest mean reward so far
    best_score: jax.Array
    kl_coef: jax.Array  # 0 before the first update that is no improvement


class Inputs(NamedTuple):
    """What the policy sees. Leading [T, E]; T = 1 in a rollout. Without items ``items`` and ``open`` are ()."""

    own: jax.Array  # [T, E, A, O]
    items: Any  # [T, E, M, F]
    open: Any  # [T, E, M] bool
    mask: jax.Array  # [T, E, A, n] available actions; with items [T, E, A, 1]: the agent may take one


class Batch(NamedTuple):
    """What a rollout leaves for the gradient steps. Leading [T, E]."""

    inputs: Inputs
    sample: jax.Array  # [T, E, A, …] what was done, before squashing
    log_prob: jax.Array  # [T, E, A] of the sample, when it was drawn
    takes: jax.Array  # [T, E, A] bool: takes part in the comparison
    advantage: jax.Array  # [T, E, A]


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """A fresh policy and environments; the learner's part is the same on every shard of the data axis."""
    if env.num_agents == 1 and config.normalize == "step":
        raise UserError(f"ospo compares the agents of a step, and {type(env).__name__} has one; take ppo, or normalize=buffer")
    key_actor, key_reset, key_learner = jax.random.split(key, 3)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    actors = start(vec, env_params, collectives.fold_data(key_reset), ())
    inputs = see(env, actors.timestep)
    widths = inputs.own.shape[-1], inputs.items.shape[-1] if env.items else 0
    params = Params(None, *(RunningStats.create((width,)) for width in widths))
    params = params._replace(actor=network(env, config).init(key_actor, *seen(env, config, params, inputs)))
    updates, zero = jnp.zeros((), jnp.int32), jnp.zeros(())
    adam = optimizer.optimizer(config, updates).init(params.actor)
    return TrainState(Learner(params, Optimisation(adam, params, zero - jnp.inf, zero), updates, key_learner, env_params), actors)


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: a rollout, its comparison within groups, epochs of gradient steps."""
    learner, actors = state
    key_next, key_rollout, key_choice, key_fit = jax.random.split(learner.key, 4)
    learner = learner.replace(key=key_next)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = annealed(env, learner, config.num_updates)

    # Collect.
    decide = functools.partial(rollout_policy, env, config, learner.params)
    key_rollout = collectives.fold_data(key_rollout)
    actors, records, steps, episodes = collect(vec, env_params, decide, actors, key_rollout, config.rollout_length)

    # Compare.
    inputs, sample, log_prob, counts, takes, present, earned = records
    advantage, told = compare(config, steps, counts)
    advantage -= config.equity_coef * widening(steps.reward, earned, present)
    batch = thinned(config, Batch(inputs, sample, log_prob, takes & told, advantage), collectives.fold_data(key_choice))

    # Learn.
    learner = judge(config, learner, steps)
    learner, terms = fit(env, config, learner, batch, key_fit)
    if config.normalize_observations:
        own = learner.params.own_stats.updated(inputs.own, present)
        items = learner.params.item_stats.updated(inputs.items, inputs.open) if env.items else learner.params.item_stats
        learner = learner.replace(params=learner.params._replace(own_stats=own, item_stats=items))
    return TrainState(learner, actors), terms | cut_short(config, steps, counts) | episodes


def initial_carry(env: Environment, config: Config) -> Any:
    """Nothing: the policy does not remember."""
    del env, config
    return ()


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A, …] of one environment from its timestep."""
    one = jax.tree.map(lambda x: x[None], timestep)
    head = policy(env, config, params, see(env, one))
    return head.action(decided(env, config, head, key, greedy))[0, 0], carry


def rollout_policy(
    env: Environment, config: Config, params: Params, key: jax.Array, env_state: VecState, timestep: TimeStep, carry: Any
) -> tuple[jax.Array, Any, Any]:
    """Actions [E, A] and what the update needs of the moment."""
    inputs = see(env, timestep)
    head = policy(env, config, params, inputs)
    sample = decided(env, config, head, key, False)
    able = timestep.acting[None]
    if isinstance(env.action_space, Discrete):
        able &= jnp.sum(available(env, config, inputs), axis=-1) > 1
    takes = able & (sample != env.noop) if env.items else able
    counts = takes if config.waiting in ("never", "ignored") else able
    takes = able if config.waiting == "learnt" else takes
    present = timestep.alive & ~timestep.last[:, None]
    record = jax.tree.map(lambda x: x[0], (inputs, sample, head.log_prob(sample), counts, takes))
    record = (*record, present, env_state.returns)
    return head.action(sample)[0], carry, record


# --- policy ------------------------------------------------------------------------------------------------------------


def see(env: Environment, timestep: TimeStep) -> Inputs:
    """A timestep of E environments as inputs of length T = 1."""
    if env.items:
        shared, free = timestep.obs["shared"], jnp.any(timestep.action_mask[..., :-1], axis=-1, keepdims=True)
        inputs = Inputs(timestep.obs["own"], shared[env.items], shared["open"] > 0, free)
    else:
        inputs = Inputs(flat_observation(timestep.obs, timestep.alive.shape), (), (), timestep.action_mask)
    return jax.tree.map(lambda x: x[None], inputs)


def available(env: Environment, config: Config, inputs: Inputs) -> jax.Array:
    """[T, E, A, n] bool."""
    if not env.items:
        return inputs.mask
    takes = inputs.mask & inputs.open[..., None, :]
    waits = ~jnp.any(takes, axis=-1, keepdims=True) if config.waiting == "never" else jnp.ones_like(inputs.mask)
    return jnp.concatenate([takes, waits], axis=-1)


def network(env: Environment, config: Config) -> Any:
    """Scores of items, or the outputs that a distribution takes."""
    if not env.items:
        return Actor(num_outputs(env.action_space), config.sizes)
    return TwoTowers(config.sizes, config.embedding) if config.scorer == "two_tower" else PairScorer(config.sizes)


def seen(env: Environment, config: Config, params: Params, inputs: Inputs) -> tuple[Any, ...]:
    """The network's arguments."""
    own, items = inputs.own, inputs.items
    if config.normalize_observations:
        own, items = params.own_stats.normalize(own), params.item_stats.normalize(items) if env.items else ()
    return (own, items) if env.items else ((), own, (), ())


def policy(env: Environment, config: Config, params: Params, inputs: Inputs) -> Distribution:
    """Distributions over each agent's own actions [T, E, A]."""
    mask, outputs = available(env, config, inputs), network(env, config).apply(params.actor, *seen(env, config, params, inputs))
    if env.items:
        scores, noop = outputs
        return Categorical(jnp.concatenate([scores, noop[..., None]], axis=-1), mask)
    return distribution(env.action_space, outputs[1], mask)


def decided(env: Environment, config: Config, head: Any, key: jax.Array, greedy: bool) -> jax.Array:
    """What the agents do, before squashing, [T, E, A, …]: their own choices, or the matching's."""
    if not greedy and (config.explore == "softmax" or not env.items):
        return head.sample(key)
    if not env.items:
        return head.mode()
    scores = jax.nn.softmax(head.logits) if config.matching_weight == "probability" else head.logits
    weights, waiting = scores[..., :-1], scores[..., -1]
    if config.waiting != "never" and config.matching_weight == "logit":  # logits of one agent are comparable to another's only so
        weights, waiting = weights - waiting[..., None], jnp.zeros_like(waiting)
    if not greedy:
        draws, known = flat(jax.random.uniform, key, weights.shape), jnp.where(head.mask[..., :-1], weights, 0.0)
        span = 1.0 + jnp.max(known) - jnp.min(known)
        weights = jnp.where(draws < config.epsilon, jnp.max(known) + span * (1.0 + draws / (config.epsilon + 1e-6)), weights)

    def assign(weights: jax.Array, waiting: jax.Array, mask: jax.Array) -> jax.Array:
        return match(weights, mask, waiting if config.waiting == "learnt" else None, config.matching)

    return jax.vmap(jax.vmap(assign))(weights, waiting, head.mask[..., :-1])


# --- comparison --------------------------------------------------------------------------------------------------------


def compare(config: Config, steps: Step, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Advantages [T, E, A] over the agents that count [T, E, A], and which of them tell something."""
    if config.advantage == "one_step":
        return standardised(config, steps.reward, counts)
    if config.advantage == "to_go":
        return standardised(config, to_go(config, steps), counts)
    rewards, told = standardised(config, steps.reward, counts)
    return to_go(config, steps._replace(reward=jnp.where(counts, rewards, 0.0))), told


def to_go(config: Config, steps: Step) -> jax.Array:
    """[T, E, A] discounted rewards of each agent until its episode, or the rollout, ends."""
    nothing = jnp.zeros_like(steps.reward)
    return gae(steps, nothing, nothing[0], config.gamma, 1.0)[0]


def cut_short(config: Config, steps: Step, counts: jax.Array) -> dict[str, jax.Array]:
    """Where rewards until the end are compared, the share of them that the end of the rollout cuts."""
    if config.advantage == "one_step":
        return {}
    whole = jax.lax.cummax(steps.cut.astype(jnp.int8), reverse=True)[..., None] > 0
    return {"cut_returns": collectives.mean(collectives.masked_mean(1.0 - whole, counts))}


def standardised(config: Config, value: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values [T, E, A] beside those of their group, and which of them tell something.

    Mean and standard deviation; or the median and the mean absolute deviation from it (the median deviation of MC-GRPO is 0 as
    soon as half of a group earn the same), and those that are the median themselves tell nothing.
    """
    axes = {"step": (2,), "buffer": (0, 1, 2), "agent": (0, 1)}[config.normalize]
    wide = (lambda x: x) if config.normalize == "step" else collectives.total  # a group may lie on several shards

    def mean(x: jax.Array) -> jax.Array:
        count = wide(jnp.sum(counts, axes, keepdims=True))
        return wide(jnp.sum(jnp.where(counts, x, 0.0), axes, keepdims=True)) / jnp.maximum(count, 1)

    if config.baseline == "mean":
        centred = value - mean(value)
        return centred / (jnp.sqrt(mean(jnp.square(centred))) + 1e-8), counts
    known = jnp.where(counts, value, jnp.nan)
    known = known if config.normalize == "step" else collectives.gather(known, axis=1)
    centred = value - jnp.nan_to_num(jnp.nanmedian(known, axes, keepdims=True))
    return centred / (mean(jnp.abs(centred)) + 1e-3), counts & (centred != 0)


def widening(reward: jax.Array, earned: jax.Array, present: jax.Array) -> jax.Array:
    """[T, E, 1] what a step adds to the standard deviation of the agents' returns; ``earned`` [T, E, A] are those before it."""
    return spread(earned + reward, present) - spread(earned, present)


def spread(returns: jax.Array, present: jax.Array) -> jax.Array:
    """[T, E, 1] standard deviation of the returns of all agents that there are."""
    mean = jnp.mean(returns, axis=-1, keepdims=True, where=present)
    return jnp.nan_to_num(jnp.sqrt(jnp.mean(jnp.square(returns - mean), axis=-1, keepdims=True, where=present)))


def thinned(config: Config, batch: Batch, key: jax.Array) -> Batch:
    """A random choice of the agents that take part, at most ``samples`` per step and environment."""
    count = batch.takes.shape[-1]
    if not 0 < config.samples < count:
        return batch
    chance = jnp.where(batch.takes, flat(jax.random.uniform, key, batch.takes.shape), -1.0)
    chosen = jax.lax.top_k(chance, config.samples)[1]

    def take(x: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 3)), axis=2)

    inputs = batch.inputs._replace(own=take(batch.inputs.own), mask=take(batch.inputs.mask))
    return Batch(inputs, *(take(part) for part in batch[1:]))


# --- learning ----------------------------------------------------------------------------------------------------------


def judge(config: Config, learner: Learner, steps: Step) -> Learner:
    """Remembers the policy that collected a rollout if its mean reward is the highest so far; else the penalty begins."""
    state = learner.opt_state
    score = collectives.mean(jnp.mean(steps.reward))
    better = score > state.best_score
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), learner.params, state.best)
    kl_coef = jnp.where(better, state.kl_coef, jnp.maximum(state.kl_coef, config.kl_coef))
    return learner.replace(opt_state=state._replace(best=best, best_score=jnp.maximum(score, state.best_score), kl_coef=kl_coef))


TERMS = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "kl_to_best")


def fit(env: Environment, config: Config, learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
    """Epochs of minibatch gradient steps on one rollout; returns the learner and the mean of every named loss term."""
    batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
    transform, best = optimizer.optimizer(config, learner.updates), learner.opt_state.best

    def gradient_step(fitted: tuple[Params, Any, jax.Array], given: tuple[Batch, jax.Array]):
        params, adam, kl_coef = fitted
        batch, key = given
        loss = functools.partial(losses, env, config, params, best, kl_coef, batch, key)
        (_, (kl_coef, terms)), grads = jax.value_and_grad(loss, has_aux=True)(params.actor)
        grads, terms = collectives.mean((grads, terms))
        changes, adam = transform.update(grads, adam, params.actor)
        params = params._replace(actor=optax.apply_updates(params.actor, changes))
        return (params, adam, kl_coef), jnp.append(terms, optax.tree.norm(grads))

    def epoch(fitted: tuple[Params, Any, jax.Array], key: jax.Array):
        key_shuffle, key_loss = jax.random.split(key)
        parts, _ = ppo.minibatches(config, batch, (), key_shuffle)
        return jax.lax.scan(gradient_step, fitted, (parts, jax.random.split(key_loss, config.num_minibatches)))

    state = learner.opt_state
    before = learner.params, state.adam, state.kl_coef
    fitted, terms = jax.lax.scan(epoch, before, jax.random.split(key, config.num_epochs))
    if config.normalize_observations:
        fitted = ppo.after_first_rollout(learner, fitted, before)
    params, adam, kl_coef = fitted
    named = dict(zip((*TERMS, "grad_norm"), terms.mean(axis=(0, 1)), strict=True)) | {"kl_coef": kl_coef}
    state = state._replace(adam=adam, kl_coef=kl_coef)
    return learner.replace(params=params, opt_state=state, updates=learner.updates + 1), named


def losses(
    env: Environment, config: Config, params: Params, best: Params, kl_coef: Scalar, batch: Batch, key: jax.Array, actor: Any
) -> tuple[jax.Array, tuple[Scalar, jax.Array]]:
    """The clipped surrogate of a minibatch with the entropy's and the snapshot's part; the latter's new weight and all terms."""
    head = policy(env, config, params._replace(actor=actor), batch.inputs)
    log_ratio = head.log_prob(batch.sample) - batch.log_prob
    policy_loss, shift = ppo.surrogate(log_ratio, batch.advantage, batch.takes, config.clip_low, config.clip_high)
    entropy = collectives.masked_mean(head.entropy(key), batch.takes)
    total, kl = policy_loss - config.entropy_coef * entropy, jnp.zeros(())
    if config.stay_near_best:
        kl = collectives.masked_mean(head.kl(policy(env, config, best, batch.inputs)), batch.takes)
        far = (collectives.mean(jax.lax.stop_gradient(kl)) > config.kl_limit) & (kl_coef > 0)
        kl_coef = jnp.where(far, jnp.minimum(2 * kl_coef, config.kl_coef_max), kl_coef)
        total = jnp.where(far, 0.0, total) + kl_coef * kl
    return total, (kl_coef, jnp.stack([policy_loss, entropy, shift["approx_kl"], shift["clip_fraction"], kl]))
