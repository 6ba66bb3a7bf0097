"""Evaluation of learned and scripted policies on frozen episodes, in one compiled program.

Axis letters: S replicas, A agents, T steps.
"""

import dataclasses
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from marljax.config.overrides import Overrides, apply_overrides
from marljax.core.environment import Environment, Policy, without_padding
from marljax.core.environment import ScriptedPolicy as ScriptedPolicy
from marljax.core.spaces import Discrete, MultiDiscrete
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecEnv, VecState, vectorize
from marljax.nn.distributions import BLOCKED_ABOVE, Categorical, distribution
from marljax.utils.random import flat

EVALUATION_SEED = 1_000_003  # of the frozen episodes: the same for every run, algorithm and scripted policy
PARTS_PER_SUITE = 2**20  # parts have 32 bits: the first 2**20 are for training, the others for suites of fresh episodes
SUITES = 2**32 // PARTS_PER_SUITE - 1
MAX_STEPS = 10_000  # of an episode, for environments without a time limit
MOST_EXPLAINED = 30_000_000  # numbers


@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """Uniform over the available actions, or over the box of continuous ones; for one environment or a batch of them."""

    env: Environment

    def __call__(self, key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
        del state
        space = self.env.action_space
        if isinstance(space, Discrete):
            if space.n > BLOCKED_ABOVE:
                return Categorical(jnp.zeros(timestep.action_mask.shape), timestep.action_mask).sample(key), carry
            draws = flat(jax.random.uniform, key, timestep.action_mask.shape)
            return jnp.argmax(jnp.where(timestep.action_mask, draws, -1.0), axis=-1), carry
        if isinstance(space, MultiDiscrete):
            return distribution(space, jnp.zeros(timestep.action_mask.shape), timestep.action_mask).sample(key), carry
        action = jax.random.uniform(key, (*timestep.alive.shape, *space.shape), minval=space.low, maxval=space.high)
        return without_padding(space, timestep.action_mask, action), carry


@dataclasses.dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """A learned policy with the interface of scripted ones; its parameters may be traced.

    ``policy(key, state, timestep, carry) -> (action [A, …], carry)`` acts in one environment; ``state`` is ignored and may be
    None, and ``carry`` starts as ``policy.initial_carry()``. It is a pure function: ``jax.jit`` and, for many environments,
    ``jax.vmap`` it.

    Example:
        state, timestep = env.reset(key, env_params)
        action, carry = jax.jit(policy)(key, state, timestep, policy.initial_carry())
        state, timestep = env.step(key, state, action, env_params)
    """

    algorithm: ModuleType
    env: Environment
    config: Any
    params: Any
    greedy: bool = True
    env_params: EnvParams | None = None  # that it was trained with, if known; acting does not use them

    def __call__(self, key: jax.Array, state: Any, timestep: TimeStep, carry: Any = ()) -> tuple[jax.Array, Any]:
        del state
        return self.algorithm.act(self.env, self.config, self.params, timestep, carry, key, self.greedy)

    def initial_carry(self) -> Any:
        """The carry at the start of an episode; ``()`` for a policy without memory."""
        return self.algorithm.initial_carry(self.env, self.config)

    def explain(self, env_params: EnvParams, state: VecState, timestep: TimeStep) -> dict[str, jax.Array]:
        """Network outputs for episodes [T, E] that start at their first timestep, such as ``probability`` [T, E, A, n] of
        each action and ``value`` [T, E, A]; empty for an algorithm without ``explain``."""
        explain = getattr(self.algorithm, "explain", None)
        return explain(self.env, self.config, self.params, env_params, state, timestep) if explain else {}


def misfit(policy: LearnedPolicy, env: Environment, env_params: EnvParams) -> str:
    """Why a policy cannot act in another environment than its own; empty if it can. Its parameters may be shapes."""
    shapes = [str(jax.tree.map(lambda box: box.shape, each.observation_space)) for each in (policy.env, env)]
    actions = [str(each.action_space) for each in (policy.env, env)]
    for name, (before, after) in {"observation's shape": shapes, "action space": actions}.items():
        if before != after:
            return f"the {name} was {before} and becomes {after}"

    def act(key: jax.Array, params: Any) -> Any:  # the global state may differ: acting does not use it
        own = dataclasses.replace(policy, env=env, params=params)
        state, timestep = env.reset(key, env_params)
        return own(key, state, timestep, own.initial_carry())

    try:
        jax.eval_shape(act, jax.random.key(0), policy.params)
    except Exception:  # networks raise many kinds for sizes that do not fit
        return "its networks have other sizes"
    return ""


def play(
    env: Environment, env_params: EnvParams, policy: Policy, carry: Any, key: jax.Array, episodes: int, max_steps: int
) -> dict[str, jax.Array]:
    """Final metrics [episodes] of one episode in each of ``episodes`` environments, whose scenarios ``key`` determines.

    The first n scenarios do not depend on ``episodes``. ``carry`` is the policy's initial carry of one episode. An episode that
    exceeds ``max_steps`` reports its metrics so far, and 0 as ``finished``.
    """
    vec = vectorize(env, episodes)
    key_reset, key_steps = jax.random.split(key)
    state, timestep = vec.reset(key_reset, env_params)
    carry = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (episodes, *leaf.shape)), carry)
    start = (jnp.zeros((), jnp.int32), state, timestep, carry, jnp.ones(episodes, bool), timestep.metrics)

    def running(loop: tuple) -> jax.Array:
        count, _, _, _, unfinished, _ = loop
        return (count < max_steps) & jnp.any(unfinished)

    def step(loop: tuple) -> tuple:
        count, state, timestep, carry, unfinished, metrics = loop
        key = jax.random.fold_in(key_steps, count)
        state, timestep, carry, _ = _step(vec, policy, key, state, timestep, carry, env_params)
        metrics = jax.tree.map(lambda new, old: jnp.where(unfinished, new, old), timestep.metrics, metrics)
        return count + 1, state, timestep, carry, unfinished & ~timestep.last, metrics

    _, _, _, _, unfinished, metrics = jax.lax.while_loop(running, step, start)
    return metrics | {"finished": (~unfinished).astype(jnp.float32)}


def _step(
    vec: VecEnv, policy: Policy, key: jax.Array, state: VecState, timestep: TimeStep, carry: Any, env_params: EnvParams
) -> tuple[VecState, TimeStep, Any, jax.Array]:
    """A step of every environment under a policy of one: the next state, timestep and carry, and the actions taken."""
    key_policy, key_step = jax.random.split(key)
    action, carry = jax.vmap(policy)(jax.random.split(key_policy, vec.num_envs), state.env, timestep, carry)
    return *vec.step(key_step, state, action, env_params), carry, action


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates policies on frozen episodes: the same key gives every policy the same ones."""

    env: Environment
    episodes: int = 32
    max_steps: int = MAX_STEPS

    @functools.partial(jax.jit, static_argnames=("self", "algorithm", "greedy"))
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
        """Metrics [S, episodes] of parameters with a leading [S].

        ``overrides`` holds [S] values by name, as in ``make_train``.
        """

        def evaluate_replica(inputs: tuple[Any, Overrides]) -> dict[str, jax.Array]:
            params, overrides = inputs
            own_config, own_params = apply_overrides(config, env_params, overrides)
            policy = LearnedPolicy(algorithm, self.env, own_config, params, greedy)
            return play(self.env, own_params, policy, policy.initial_carry(), key, self.episodes, self.max_steps)

        # One replica after the other: under vmap all would wait for the longest episode.
        return jax.lax.map(evaluate_replica, (params, overrides or {}))

    def scripted(self, policy: Policy, env_params: EnvParams, key: jax.Array, carry: Any = ()) -> dict[str, jax.Array]:
        """Metrics [episodes] of a policy that is a function of the environment's state."""
        return _evaluate_scripted(self, _partial(policy), env_params, key, carry)

    def scripted_program(self, policy: Policy, env_params: EnvParams, key: jax.Array, carry: Any = ()) -> str:
        """The program of ``scripted`` as text: equal for equal policies, environments and shapes of inputs."""
        return _evaluate_scripted.trace(self, _partial(policy), env_params, key, carry).lower().as_text()


def _partial(policy: Policy) -> Partial:
    return policy if isinstance(policy, Partial) else Partial(policy)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate_scripted(
    evaluator: Evaluator, policy: Partial, env_params: EnvParams, key: jax.Array, carry: Any
) -> dict[str, jax.Array]:
    return play(evaluator.env, env_params, policy, carry, key, evaluator.episodes, evaluator.max_steps)


class Recording(NamedTuple):
    """An episode of T steps."""

    states: Any  # [T + 1, …]
    timesteps: TimeStep  # [T + 1, …]
    actions: Any  # [T, A, …]
    metrics: dict[str, float]  # of the whole episode; ``finished`` is 0 where ``max_steps`` cut it off
    explanation: dict[str, Any]  # [T + 1, A, …] by name, of a learned policy: see ``LearnedPolicy.explain``


def record(
    env: Environment,
    env_params: EnvParams,
    policy: Policy,
    carry: Any,
    key: jax.Array,
    max_steps: int = MAX_STEPS,
    episodes: int | Sequence[int] = 1,
) -> list[Recording]:
    """The first ``episodes`` episodes that ``play`` plays with this key, or those at these indices."""
    key_reset, key_steps = jax.random.split(key)
    kept = np.arange(episodes) if isinstance(episodes, int) else np.asarray(episodes)
    vec = vectorize(env, int(kept.max()) + 1)  # all up to the last: the keys of an episode depend on its index

    @jax.jit
    def keep(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[kept], tree)

    step = jax.jit(functools.partial(_step, vec, policy))
    state, timestep = jax.jit(vec.reset)(key_reset, env_params)
    carry = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (vec.num_envs, *leaf.shape)), carry)
    frames, lengths = [keep((state, timestep))], np.zeros(len(kept), int)
    actions: list[jax.Array] = []
    while len(actions) < max_steps and not lengths.all():
        state, timestep, carry, action = step(jax.random.fold_in(key_steps, len(actions)), state, timestep, carry, env_params)
        frame, chosen = keep(((state, timestep), action))
        frames.append(frame)
        actions.append(chosen)
        lengths = np.where((lengths == 0) & np.asarray(frame[1].last), len(actions), lengths)

    def stack(*leaves: jax.Array) -> Any:  # on the host: thousands of arrays take long to join on a device
        if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
            return jnp.stack(leaves)
        return np.stack(jax.device_get(leaves))

    states, timesteps = jax.tree.map(stack, *frames)
    taken, explanation = np.stack(jax.device_get(actions)), _explain(policy, env_params, states, timesteps)

    def one(index: int, length: int) -> Recording:
        steps = length or len(actions)
        own, seen, explained = jax.tree.map(lambda leaf: leaf[: steps + 1, index], (states.env, timesteps, explanation))
        metrics = {name: float(value[-1]) for name, value in seen.metrics.items()} | {"finished": float(length > 0)}
        return Recording(own, seen, taken[:steps, index], metrics, explained)

    return [one(index, int(length)) for index, length in enumerate(lengths)]


def _explain(policy: Policy, env_params: EnvParams, states: VecState, timesteps: TimeStep) -> dict[str, Any]:
    """Of a learned policy, on the host; empty where it would be too much, as of thousands of agents with thousands of actions."""
    if not isinstance(policy, LearnedPolicy):
        return {}
    sizes = jax.eval_shape(policy.explain, env_params, states, timesteps)
    if sum(leaf.size for leaf in jax.tree.leaves(sizes)) > MOST_EXPLAINED:
        return {}
    return jax.device_get(jax.jit(policy.explain)(env_params, states, timesteps))


def suite_key(part: int) -> jax.Array:
    """Key of the frozen episodes: part 0 during training, 1, 2, … in the final evaluation, ``fresh_part`` … in other suites."""
    return jax.random.fold_in(jax.random.key(EVALUATION_SEED), part)


def fresh_part(suite: int) -> int:
    """The first part of suite 0 … ``SUITES - 1``, which shares none with training and other suites."""
    return (suite + 1) * PARTS_PER_SUITE


def score_of(results: dict[str, np.ndarray]) -> np.ndarray:
    """The metric by which parameters are compared: the return, of the first team where teams compete."""
    return results["return"] if "return" in results else results["return_0"]
