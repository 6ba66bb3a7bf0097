"""Playing policies, learned and scripted alike: frozen scenarios, one compiled program, one figure per episode."""

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from marljax.config.overrides import Overrides, overridden
from marljax.core.environment import Environment, Policy, without_padding
from marljax.core.environment import ScriptedPolicy as ScriptedPolicy
from marljax.core.spaces import Discrete, MultiDiscrete
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.nn.distributions import MANY, Categorical, distribution
from marljax.utils.random import flat

PARTS_PER_SUITE = 2**20  # parts have 32 bits: the first 2**20 are for training, the others for suites of fresh episodes
SUITES = 2**32 // PARTS_PER_SUITE - 1
MAX_STEPS = 10_000  # of an episode, a bound for environments whose episodes need not end


@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """Uniform over the available actions, or over the box of continuous ones; for one environment or a batch of them."""

    env: Environment

    def __call__(self, key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
        del state
        space = self.env.action_space
        if isinstance(space, Discrete):
            if space.n > MANY:
                return Categorical(jnp.zeros(timestep.action_mask.shape), timestep.action_mask).sample(key), carry
            draws = flat(jax.random.uniform, key, timestep.action_mask.shape)
            return jnp.argmax(jnp.where(timestep.action_mask, draws, -1.0), axis=-1), carry
        if isinstance(space, MultiDiscrete):
            return distribution(space, jnp.zeros(timestep.action_mask.shape), timestep.action_mask).sample(key), carry
        action = jax.random.uniform(key, (*timestep.alive.shape, *space.shape), minval=space.low, maxval=space.high)
        return without_padding(space, timestep.action_mask, action), carry


@dataclasses.dataclass(frozen=True)
class LearnedPolicy:
    """A network's policy through the same door as a scripted one; its parameters may be traced."""

    algorithm: ModuleType
    env: Environment
    config: Any
    params: Any
    greedy: bool = True

    def __call__(self, key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
        del state
        return self.algorithm.act(self.env, self.config, self.params, timestep, carry, key, self.greedy)

    def initial_carry(self) -> Any:
        return self.algorithm.initial_carry(self.env, self.config)


def play(
    env: Environment, env_params: EnvParams, policy: Policy, carry: Any, key: jax.Array, episodes: int, max_steps: int
) -> dict[str, jax.Array]:
    """Final metrics [episodes] of one episode in each of ``episodes`` environments, whose scenarios ``key`` fixes.

    The first n scenarios are the same however many are asked for. ``carry`` is the policy's memory at the start of one
    episode. An episode that outlasts ``max_steps`` reports its metrics so far and counts as unfinished (``finished`` 0).
    """
    vec = vectorize(env, episodes)
    key_reset, key_steps = jax.random.split(key)
    state, timestep = vec.reset(key_reset, env_params)
    carry = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (episodes, *leaf.shape)), carry)
    unfinished = jnp.ones(episodes, bool)
    played = (state, timestep, carry, unfinished, timestep.metrics)
    step = functools.partial(_play_step, vec, env_params, policy)

    def running(looped: tuple[jax.Array, Any]) -> jax.Array:
        count, (_, _, _, unfinished, _) = looped
        return (count < max_steps) & jnp.any(unfinished)

    def body(looped: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        count, played = looped
        return count + 1, step(jax.random.fold_in(key_steps, count), played)

    _, (_, _, _, unfinished, metrics) = jax.lax.while_loop(running, body, (jnp.zeros((), jnp.int32), played))
    return metrics | {"finished": (~unfinished).astype(jnp.float32)}


def _play_step(vec: Any, env_params: EnvParams, policy: Policy, key: jax.Array, played: tuple) -> tuple:
    state, timestep, carry, unfinished, metrics = played
    key_policy, key_step = jax.random.split(key)
    keys = jax.random.split(key_policy, vec.num_envs)
    action, carry = jax.vmap(policy)(keys, state.env, timestep, carry)
    state, timestep = vec.step(key_step, state, action, env_params)
    metrics = jax.tree.map(lambda new, old: jnp.where(unfinished, new, old), timestep.metrics, metrics)
    return state, timestep, carry, unfinished & ~timestep.last, metrics


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluation of policies on frozen scenarios: the same key gives every policy the same episodes to play."""

    env: Environment
    episodes: int = 32
    max_steps: int = MAX_STEPS

    def learned(
        self,
        algorithm: ModuleType,
        config: Any,
        params: Any,
        env_params: EnvParams,
        key: jax.Array,
        greedy: bool = True,
        overrides: Overrides | None = None,
    ) -> dict[str, jax.Array]:
        """Metrics [S, episodes] of the parameters of S members (leading [S] on every leaf of ``params``).

        ``overrides`` are numbers [S] in which they differ, by name as ``make_train`` takes them.
        """
        return _evaluate_learned(self, algorithm, config, params, env_params, key, greedy, dict(overrides or {}))

    def scripted(self, policy: Policy, env_params: EnvParams, key: jax.Array, carry: Any = ()) -> dict[str, jax.Array]:
        """Metrics [episodes] of a policy that is a function of the environment's state."""
        return _evaluate_scripted(self, _partial(policy), env_params, key, carry)

    def scripted_program(self, policy: Policy, env_params: EnvParams, key: jax.Array, carry: Any = ()) -> str:
        """What ``scripted`` would compile, as text: alike where policy, environment and shapes of the inputs are."""
        return _evaluate_scripted.trace(self, _partial(policy), env_params, key, carry).lower().as_text()


def _partial(policy: Policy) -> Partial:
    return policy if isinstance(policy, Partial) else Partial(policy)


@functools.partial(jax.jit, static_argnums=(0, 1, 6))
def _evaluate_learned(
    evaluator: Evaluator,
    algorithm: ModuleType,
    config: Any,
    params: Any,
    env_params,
    key,
    greedy: bool,
    overrides: dict[str, Any],
):
    def member(given: tuple[Any, dict[str, Any]]) -> dict[str, jax.Array]:
        params, overrides = given
        own, own_params = overridden(config, env_params, overrides)
        policy = LearnedPolicy(algorithm, evaluator.env, own, params, greedy)
        return play(evaluator.env, own_params, policy, policy.initial_carry(), key, evaluator.episodes, evaluator.max_steps)

    # One member after the other: their episodes differ in length, and under vmap all would wait for the longest.
    return jax.lax.map(member, (params, overrides))


@functools.partial(jax.jit, static_argnums=0)
def _evaluate_scripted(evaluator: Evaluator, policy: Partial, env_params: EnvParams, key: jax.Array, carry: Any):
    return play(evaluator.env, env_params, policy, carry, key, evaluator.episodes, evaluator.max_steps)


def record(
    env: Environment, env_params: EnvParams, policy: Policy, carry: Any, key: jax.Array, max_steps: int = MAX_STEPS
) -> tuple[Any, dict[str, float]]:
    """The states of the first episode that ``play`` plays with this key, stacked [T + 1, …], and its final metrics.

    T is the number of steps it lasted, at most ``max_steps``; ``finished`` among the metrics is 0 where that cut it off.
    """
    key_reset, key_steps = jax.random.split(key)
    state, timestep = jax.jit(vectorize(env, 1).reset)(key_reset, env_params)
    step = jax.jit(functools.partial(_record_step, env, policy))
    states = [state]
    for count in range(max_steps):
        state, timestep, carry = step(jax.random.fold_in(key_steps, count), state, timestep, carry, env_params)
        states.append(state)
        if bool(timestep.last[0]):
            break
    stacked = jax.tree.map(lambda *leaves: jnp.stack([leaf[0] for leaf in leaves]), *[state.env for state in states])
    metrics = timestep.metrics | {"finished": timestep.last}
    return stacked, {name: float(value[0]) for name, value in metrics.items()}


def _record_step(env: Environment, policy: Policy, key: jax.Array, state: VecState, timestep: TimeStep, carry: Any, env_params):
    key_policy, key_step = jax.random.split(key)
    one_state, one_timestep = jax.tree.map(lambda leaf: leaf[0], (state.env, timestep))
    action, carry = policy(jax.random.split(key_policy, 1)[0], one_state, one_timestep, carry)
    state, timestep = vectorize(env, 1).step(key_step, state, action[None], env_params)
    return state, timestep, carry


EVALUATION_SEED = 1_000_003  # the frozen suite: the same episodes for every run, algorithm and scripted policy


def suite_key(part: int) -> jax.Array:
    """Keys of the frozen evaluation episodes: part 0 during training, 1, 2, … at the end, ``fresh_part`` … for other suites."""
    return jax.random.fold_in(jax.random.key(EVALUATION_SEED), part)


def fresh_part(suite: int) -> int:
    """The first part of suite 0 … ``SUITES - 1``; no other suite has its parts, nor has training."""
    return (suite + 1) * PARTS_PER_SUITE


def score_of(results: dict[str, np.ndarray]) -> np.ndarray:
    """The figure by which parameters are compared: the return, of the first team where teams compete."""
    return results["return"] if "return" in results else results["return_0"]
