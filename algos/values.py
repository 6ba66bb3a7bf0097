"""Values of agents after a decision, learnt from what each adds to the value of the matching.

Agents that choose among items which serve one agent each are matched to them by r + γ (V(after taking it) − V(after waiting)),
where V is the value of one agent's afterstate, shared by all agents and blind to the others: approximate dynamic programming
with post-decision states (Powell 2011, chapter 4), for dispatch as by Xu et al. (2018), Tang et al. (2019) and Shah et al. (2020,
"Neural Approximate Dynamic Programming for On-Demand Ride-Pooling"). These learn V from an agent's own rewards. But an order that
another agent could have taken as well is no credit to the one that took it: with ``learn_from=marginal`` V is learnt from rewards
less the prices of the items, the dual solution of the matching, so that it is what the fleet would lose without the agent.
``python algos/values.py env=ride_dispatch`` trains it.

Axis letters: T time, E environments, S slots of the buffer, A agents, n actions, F features, B samples of a minibatch.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("values")


import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax import nn
from marljax.config import static, traced
from marljax.core.environment import Environment, allowed_actions
from marljax.core.types import EnvParams, PersistentState, TimeStep
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
    value_metrics,
)
from marljax.utils import collectives
from marljax.utils.assignment import METHODS, match, prices
from marljax.utils.random import flat
from marljax.utils.validation import divide

BLOCK = 32  # agents whose afterstates are valued together


class Config(RolloutConfig):
    """Hyperparameters, a frozen dataclass. ``static`` ones shape the program; ``traced`` ones can be swept with ``jax.vmap``."""

    # Rollouts
    num_envs: int = static(6, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(31, low=2, help="steps of every environment per update; whole episodes take one step more")
    noise: float = traced(0.1, low=0.0, help="standard deviation of noise on weights of pairs in rollouts, in units of reward")
    matching: str = static("exact", choices=tuple(METHODS), help="assignment of items to agents")
    # Network
    hidden: tuple[int, ...] = static((32, 32), low=1, help="widths of the hidden layers")
    activation: str = static("relu", choices=tuple(nn.ACTIVATIONS), help="of the hidden layers")
    network_dtype: str = static("float32", choices=nn.DTYPES, help="of hidden layers; parameters and outputs are float32")
    # Targets
    learn_from: str = static("marginal", choices=("marginal", "own"), help="rewards less the items' prices, or whole rewards")
    gamma: float = traced(0.99, low=0.0, high=1.0, help="discount per step")
    td_lambda: float = traced(0.9, low=0.0, high=1.0, help="0: one-step targets, 1: returns until the end of the rollout")
    # Gradient steps
    buffer_rollouts: int = static(5, low=1, help="latest rollouts whose samples are drawn")
    num_epochs: int = static(3, low=1, help="passes over a full buffer per update, in random samples")
    batch_size: int = static(2_048, low=1, help="samples per gradient step (one agent at one step each), over all devices")
    learning_rate: float = traced(1e-3, low=0.0, help="initial learning rate")
    anneal_learning_rate: bool = static(True, help="linearly to 0 over total_steps")
    adam_eps: float = traced(1e-8, low=0.0, help="added to the root of the second moment")
    max_grad_norm: float = traced(100.0, low=0.0, help="global norm to which gradients are clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.matching == "greedy" and self.learn_from == "marginal":
            raise UserError("matching=greedy is not optimal and has no prices; use exact or auction, or learn_from=own")


class Params(NamedTuple):
    """Network parameters."""

    value: Any


class Transition(NamedTuple):
    """One step of a rollout. Leading [T, E]."""

    features: jax.Array  # [T, E, A, F] after the action
    decisions: jax.Array  # [T, E, A] that follow it
    acting: jax.Array  # [T, E, A] bool: alive in a running episode
    took: jax.Array  # [T, E, A] bool: an item
    reward: jax.Array  # [T, E, A] of the action
    price: jax.Array  # [T, E, A] of the item, 0 for waiting and unless learn_from=marginal
    value: jax.Array  # [T, E, A] of the afterstate under the parameters of the rollout


class Samples(NamedTuple):
    """Training samples; leading … are [E, S, T − 1, A] in the buffer and [B] in a minibatch."""

    features: jax.Array  # […, F]
    decisions: jax.Array  # […]
    target: jax.Array  # […] λ-returns
    mask: jax.Array  # […] bool: in the loss


class Networks(NamedTuple):
    """The value of afterstates."""

    init: Callable[[jax.Array, jax.Array], Params]
    # Params, features […, F], decisions […] → […]. The value is a rate per decision that is left, so nothing after the last one.
    value: Callable[[Params, jax.Array, jax.Array], jax.Array]


def make_networks(config: Config) -> Networks:
    """The network that ``config`` describes; it starts as 0, so that the first rollout matches by rewards alone."""
    sizes = nn.Sizes("mlp", config.hidden, (), config.activation, dtype=config.network_dtype)
    network = nn.Actor(1, sizes, scale=0.0)

    def init(key: jax.Array, features: jax.Array) -> Params:
        return Params(network.init(key, (), features, (), ()))

    def value(params: Params, features: jax.Array, decisions: jax.Array) -> jax.Array:
        outputs: Any = network.apply(params.value, (), features, (), ())
        return decisions * outputs[1][..., 0]

    return Networks(init, value)


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """An initial network, environments and an empty buffer; the learner is the same on every shard of the data axis."""
    if not env.afterstates:
        raise UserError(
            f"values needs the afterstates of all actions, which {type(env).__name__} does not provide; "
            "on ride_dispatch set env.view=afterstates, elsewhere use ippo or mappo"
        )
    key_value, key_reset, key_learner = jax.random.split(key, 3)
    vec = vectorize(env, divide(config.num_envs, collectives.data_size(), "environments", "devices"))
    actors = start(vec, env_params, collectives.fold_data(key_reset), ())
    obs: Any = actors.timestep.obs
    features = obs["features"][:, :, 0]  # [E, A, F]
    params, updates = make_networks(config).init(key_value, features), jnp.zeros((), jnp.int32)
    rows = jnp.zeros((vec.num_envs, config.buffer_rollouts, config.rollout_length - 1, env.num_agents))
    empty = Samples(jnp.zeros((*rows.shape, features.shape[-1])), rows, rows, rows > 0)
    opt_state = make_optimizer(config, updates).init(params)
    return TrainState(Learner(params, opt_state, updates, key_learner, env_params), actors.replace(carry=PersistentState(empty)))


def update(env: Environment, config: Config, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration: collect a rollout, compute its λ-returns, take gradient steps on samples of the latest rollouts."""
    learner, actors = state
    params, networks = learner.params, make_networks(config)
    key_next, key_rollout, key_samples = jax.random.split(learner.key, 3)
    vec = vectorize(env, actors.timestep.first.shape[0])
    env_params = env.anneal(learner.env_params, learner.updates / config.num_updates)

    # 1. Collect a rollout: match agents and items by the values of what they would become.
    def policy_step(key, env_state, timestep, carry):
        keys = jax.random.split(key, vec.num_envs)
        action, transition = jax.vmap(lambda key, timestep: choose(env, config, networks, params, timestep, key))(keys, timestep)
        return action, carry, transition

    buffer = actors.carry.value
    actors, key_rollout = actors.replace(carry=()), collectives.fold_data(key_rollout)
    actors, rollout, steps, episodes = collect(vec, env_params, policy_step, actors, key_rollout, config.rollout_length)

    # 2. λ-returns of the afterstates: what an agent earns from the next decision on.
    samples = make_samples(config, rollout, steps)
    slot = learner.updates % config.buffer_rollouts
    new = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), samples)  # [E, T − 1, …]
    buffer = jax.tree.map(lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new, slot, axis=1), buffer, new)

    # 3. Optimise.
    optimizer = make_optimizer(config, learner.updates)
    batch_size = divide(config.batch_size, collectives.data_size(), "samples (batch_size)", "devices")
    filled = jnp.minimum(learner.updates + 1, config.buffer_rollouts)

    def gradient_step(trained, key):
        params, opt_state = trained
        batch = draw(buffer, filled, batch_size, collectives.fold_data(key))
        (_, metrics), grads = jax.value_and_grad(value_loss, has_aux=True)(params, networks, batch)
        grads, metrics = collectives.mean((grads, metrics))  # over devices
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state), metrics | {"grad_norm": gradient_norm(grads)}

    count = max(config.num_epochs * buffer.target.size // batch_size, 1)
    (new_params, opt_state), metrics = scan_means(
        gradient_step, (params, learner.opt_state), jax.random.split(key_samples, count)
    )
    learner = Learner(new_params, opt_state, learner.updates + 1, key_next, learner.env_params)
    advantage = samples.target - rollout.value[:-1]
    metrics |= value_metrics(samples.target, advantage, samples.mask, steps.reward)
    if config.learn_from == "marginal":
        took = rollout.took & rollout.acting
        for name, value in (("item_price", rollout.price), ("priced_share", (rollout.price > 0).astype(rollout.price.dtype))):
            metrics[name] = collectives.mean(collectives.masked_mean(value, took))
    return TrainState(learner, actors.replace(carry=PersistentState(buffer))), metrics | episodes


def choose(
    env: Environment, config: Config, networks: Networks, params: Params, timestep: TimeStep, key: jax.Array | None
) -> tuple[jax.Array, Transition]:
    """Actions [A] by matching for one timestep of one environment, and what a rollout keeps; noise on weights with a key."""
    obs, mask = timestep.obs, allowed_actions(env, timestep)[:, :-1]
    value = functools.partial(networks.value, params)
    value_waiting = value(obs["features"][:, -1], obs["decisions"][:, -1])[:, None]  # [A, 1]
    value_taking = value_items(value, obs, jnp.any(mask, axis=1))  # [A, n − 1]
    # w_ij = r_ij + γ (V(x_ij) − V(x_i0)), x_i0 the state after waiting
    weights = obs["reward"][:, :-1] + config.gamma * (value_taking - value_waiting)
    if key is not None:
        weights += config.noise * flat(jax.random.normal, key, weights.shape)
    action = match(weights, mask, 0.0, config.matching)
    price = jnp.zeros(action.shape, weights.dtype)
    if config.learn_from == "marginal":  # also of the noise, so exact only without
        price = jnp.append(prices(weights, mask, action), 0.0)[action]

    def chosen(by_action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(by_action, action.reshape(-1, *[1] * (by_action.ndim - 1)), axis=1)[:, 0]

    features, decisions, reward = (chosen(obs[name]) for name in ("features", "decisions", "reward"))
    took = action < mask.shape[1]
    after = chosen(jnp.concatenate([value_taking, value_waiting], axis=1))
    return action, Transition(features, decisions, timestep.acting, took, reward, price, after)


def value_items(value: Callable[..., jax.Array], obs: dict[str, jax.Array], can_act: jax.Array) -> jax.Array:
    """[A, n − 1] values after taking each item, of the agents that may take one; arbitrary for the others, often most of them.

    A few agents at a time: the hidden layers of all pairs would not fit into a cache.
    """
    count, items = obs["reward"].shape[0], obs["reward"].shape[1] - 1
    order = jnp.pad(jnp.argsort(~can_act), (0, -count % BLOCK), constant_values=count)  # those that may choose first

    def value_block(block: jax.Array, values: jax.Array) -> jax.Array:
        agents = jax.lax.dynamic_slice_in_dim(order, block * BLOCK, BLOCK)
        return values.at[agents].set(value(obs["features"][agents, :-1], obs["decisions"][agents, :-1]), mode="drop")

    blocks = -(-jnp.sum(can_act) // BLOCK)
    return jax.lax.fori_loop(0, blocks, value_block, jnp.zeros((count, items), obs["reward"].dtype))


def make_samples(config: Config, rollout: Transition, steps: Step) -> Samples:
    """Targets y_t = ρ_{t+1} + γ [(1 − λ) V(x_{t+1}) + λ y_{t+1}], [T − 1, E, A], with ρ a reward less the price of its item.

    The end of an episode is the end of the task, whether terminated or truncated: ``decisions`` count down to it.
    """
    earned = rollout.reward - rollout.price if config.learn_from == "marginal" else rollout.reward
    earned = jnp.where(rollout.acting, earned, 0.0)
    ends = steps.cut[:-1]  # the next timestep is final: nothing is decided in it
    following = Step(earned[1:], rollout.acting[1:], ends, ends)
    _, target = gae(following, rollout.value[:-1], rollout.value[-1], config.gamma, config.td_lambda)
    features, decisions = rollout.features[:-1], rollout.decisions[:-1]
    return Samples(features, decisions, target, rollout.acting[:-1] & (decisions > 0))


def draw(buffer: Samples, filled: jax.Array, batch_size: int, key: jax.Array) -> Samples:
    """Random samples [B] of the slots that are filled."""
    num_envs, _, length, num_agents = buffer.target.shape
    sizes = jnp.array([num_envs, 1, length, num_agents]).at[1].set(filled)
    index = tuple(jax.random.randint(key, (4, batch_size), 0, sizes[:, None]))
    return jax.tree.map(lambda x: x[index], buffer)


def value_loss(params: Params, networks: Networks, batch: Samples) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(V(x) − y)²."""
    value = networks.value(params, batch.features, batch.decisions)
    loss = collectives.masked_mean(jnp.square(value - batch.target), batch.mask)
    return loss, {"value_loss": loss, "afterstate_value": collectives.masked_mean(value, batch.mask)}


def initial_carry(env: Environment, config: Config) -> Any:
    """The policy has no recurrent state."""
    return ()


def act(
    env: Environment, config: Config, params: Params, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A] for one timestep of one environment; not greedy: with the noise of rollouts."""
    action, _ = choose(env, config, make_networks(config), params, timestep, None if greedy else key)
    return action, carry


def explain(
    env: Environment, config: Config, params: Params, env_params: EnvParams, env_state: Any, timestep: TimeStep
) -> dict[str, jax.Array]:
    """``action_value`` [T, E, A, n] of episodes [T, E]: the reward and the discounted value of what follows, before any matching;
    NaN for unavailable actions."""
    del env, env_params, env_state
    obs: Any = timestep.obs
    value = functools.partial(make_networks(config).value, params)
    after = jax.lax.map(lambda step: value(*step), (obs["features"], obs["decisions"]))  # a step at a time: see value_items
    return {"action_value": jnp.where(timestep.action_mask, obs["reward"] + config.gamma * after, jnp.nan)}
