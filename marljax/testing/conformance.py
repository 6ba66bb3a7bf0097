"""The conformance kit: ``check_env(env)`` holds an environment, ours or a user's own, to everything that the rest relies on.

Axis letters: T time, E environments, A agents, K parts of a multi-discrete action, n actions.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment, without_padding
from marljax.core.scene import kinds
from marljax.core.spaces import Box, Discrete
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.testing.static import (
    NUM_ENVS,
    TOLERANCE,
    Check,
    by_part,
    check_anneal,
    check_mapped,
    check_presets,
    check_scene,
    check_statically,
    require,
    space_parts,
)
from marljax.utils.pytrees import first_infinite, first_nan, first_unlike, named_leaves, strongly_typed, to_host


class Seen(NamedTuple):
    """Everything that an environment shows of one state."""

    state: Any
    timestep: TimeStep
    global_state: jax.Array  # [G]
    scene: Any  # a Scene, or None where the environment has none


class Rollout(NamedTuple):
    """A vectorised rollout: T steps after the reset, so T + 1 timesteps."""

    states: VecState  # [T + 1, E, …]
    timesteps: TimeStep  # [T + 1, E, …]
    actions: jax.Array  # [T, E, A, …]


def check_env(
    env: Environment, env_params: EnvParams | None = None, *, num_steps: int = 200, seed: int = 0, ends: bool = True
) -> None:
    """Raises ``AssertionError``, with one sentence that says what is wrong, unless ``env`` keeps the contract.

    Checked: equality and hash cover structure only; presets share one program; ``reset``, ``step`` and the steps of
    ``vectorize`` have the same tree, shapes and dtypes; jit, vmap (over some numbers alone, too) and scan work and trace
    once; the spaces hold the observations; ``obs_layout`` describes all of their columns, or none; everything is finite;
    unavailable actions and the actions of absent agents act as the noop; absent agents get no reward; episodes end, restart on
    the next step and nowhere else; the same key gives the same bits; ``global_state`` and ``scene`` (if there is one) have fixed
    sizes; ``anneal`` gives numbers of the same tree, shapes and dtypes, so that one program takes them all; ``restart`` and
    ``reset_episode_counters`` give states like any other.

    Args:
        env: the environment.
        env_params: numbers to check it with; ``env.default_params`` by default.
        num_steps: random decisions taken, alone and in each of four vectorised instances; an episode has to end within them.
        seed: of the random decisions.
        ends: False for an environment whose episodes never end.
    """
    check = functools.partial(require, env)
    env_params = check_statically(env, env_params)
    key_shapes, key_walk, key_rollout = jax.random.split(jax.random.key(seed), 3)
    has_scene = check_scene(env, env_params, key_shapes, check)
    check_mapped(env, env_params, key_shapes)
    check_anneal(env, env_params, check)
    check_presets(env, env_params, key_shapes, check)
    programs = Programs(env, has_scene)
    _walk(programs, env_params, num_steps, key_walk, check)
    _run_presets(programs, key_shapes, check)
    _check_vectorized(programs, env_params, num_steps, key_rollout, ends, check)


# --- compiled programs ------------------------------------------------------------------------------------------------


class Programs:
    """The compiled functions of one environment, counting how often each was traced."""

    def __init__(self, env: Environment, has_scene: bool):
        self.env = env
        self.traces = {"reset": 0, "step": 0, "rollout": 0}
        self.reset = jax.jit(functools.partial(self._reset, has_scene))
        self.step = jax.jit(functools.partial(self._step, has_scene))
        self.rollout = jax.jit(self._rollout, static_argnums=2)
        self.sample = jax.jit(functools.partial(sample_action, env))
        self.allowed_only = jax.jit(functools.partial(allowed_only, env))

    def _reset(self, has_scene: bool, key: jax.Array, env_params: EnvParams) -> Seen:
        self.traces["reset"] += 1
        return self._seen(has_scene, env_params, *self.env.reset(key, env_params))

    def _step(self, has_scene: bool, key: jax.Array, state: Any, action: jax.Array, env_params: EnvParams) -> Seen:
        self.traces["step"] += 1
        return self._seen(has_scene, env_params, *self.env.step(key, state, action, env_params))

    def _seen(self, has_scene: bool, env_params: EnvParams, state: Any, timestep: TimeStep) -> Seen:
        scene = self.env.scene(state, env_params) if has_scene else None
        return Seen(state, timestep, self.env.global_state(state, env_params), scene)

    def _rollout(self, key: jax.Array, env_params: EnvParams, num_steps: int) -> Rollout:
        self.traces["rollout"] += 1
        vec = vectorize(self.env, NUM_ENVS)
        key_reset, key_steps = rollout_keys(key)

        def one_step(carry: tuple[VecState, TimeStep], key: jax.Array) -> tuple:
            key_action, key_step = jax.random.split(key)
            state, timestep = carry
            keys = jax.random.split(key_action, NUM_ENVS)
            action = jax.vmap(functools.partial(sample_action, self.env))(keys, timestep.action_mask)
            after = vec.step(key_step, state, action, env_params)
            return after, (after, action)

        start = vec.reset(key_reset, env_params)
        recorded: tuple[tuple[VecState, TimeStep], jax.Array]
        _, recorded = jax.lax.scan(one_step, start, jax.random.split(key_steps, num_steps))
        steps, actions = recorded
        states, timesteps = jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), start, steps)
        return Rollout(states, timesteps, actions)

    def check_traces(self, check: Check) -> None:
        again = [name for name, count in self.traces.items() if count > 1]
        check(not again, f"{' and '.join(again)} had to be compiled more than once for arguments of one shape")


def rollout_keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The keys of a rollout's reset and of its steps."""
    key_reset, key_steps = jax.random.split(key)
    return key_reset, key_steps


def sample_action(env: Environment, key: jax.Array, action_mask: jax.Array) -> jax.Array:
    """A uniform action of every agent [A, …], among those that ``action_mask`` [A, n] allows."""
    space = env.action_space
    if isinstance(space, Box):
        action = jax.random.uniform(key, (env.num_agents, *space.shape), minval=-1.0, maxval=1.0)
        return without_padding(space, action_mask, action)
    allowed = by_part(space, action_mask)
    action = jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0), axis=-1)
    return action[:, 0] if isinstance(space, Discrete) else action


def allowed_only(env: Environment, action: jax.Array, action_mask: jax.Array) -> jax.Array:
    """The action with noop, or 0, in the place of what the mask forbids."""
    space = env.action_space
    if isinstance(space, Box):
        return without_padding(space, action_mask, action)
    parts = action.reshape(env.num_agents, -1, 1)
    allowed = jnp.take_along_axis(by_part(space, action_mask), parts, axis=-1)
    return jnp.where(allowed, parts, env.noop).reshape(action.shape)


# --- one environment, step by step ------------------------------------------------------------------------------------


def _walk(programs: Programs, env_params: EnvParams, num_steps: int, key: jax.Array, check: Check) -> None:
    """Random decisions, forbidden ones included, each taken again and with noop in the place of what must not matter."""
    env = programs.env
    key_reset, key = jax.random.split(key)
    now = programs.reset(key_reset, env_params)
    _check_seen(env, now, check)
    check(not first_unlike(now, programs.reset(key_reset, env_params)), "reset gives other bits for the same key")
    anything = jnp.ones_like(now.timestep.action_mask)
    for key_now in jax.random.split(key, num_steps):
        key_action, key_step, key_reset = jax.random.split(key_now, 3)
        action = programs.sample(key_action, anything)
        after = programs.step(key_step, now.state, action, env_params)
        _check_seen(env, after, check)
        again = programs.step(key_step, now.state, action, env_params)
        check(not first_unlike(after, again), "step gives other bits for the same key")
        allowed = programs.allowed_only(action, now.timestep.action_mask)
        unlike = first_unlike(after, programs.step(key_step, now.state, allowed, env_params))
        check(not unlike, f"an unavailable action does not act as the noop: {unlike} differs")
        _check_absent(programs, env_params, key_step, now, allowed, after, check)
        programs.check_traces(check)
        now = programs.reset(key_reset, env_params) if bool(after.timestep.last) else after


def _check_absent(
    programs: Programs, env_params: EnvParams, key: jax.Array, now: Seen, action: jax.Array, after: Seen, check: Check
) -> None:
    """Agents that are not alive get no reward, and what they do changes nothing."""
    env, alive = programs.env, np.asarray(now.timestep.alive)
    if alive.all():
        return
    check(not np.any(np.asarray(after.timestep.reward)[~alive]), "an agent that was not alive got a reward")
    idle = 0.0 if isinstance(env.action_space, Box) else env.noop
    present = alive.reshape(-1, *[1] * (action.ndim - 1))
    silent = programs.step(key, now.state, jnp.where(present, action, jnp.asarray(idle, action.dtype)), env_params)
    unlike = first_unlike(after, silent)
    check(not unlike, f"the action of an agent that is not alive matters: {unlike} differs")


def _check_seen(env: Environment, seen: Seen, check: Check) -> None:
    """Finite values inside their spaces; leading axes are free."""
    check(not first_nan(seen.state), f"the state holds NaN in {first_nan(seen.state)}")
    visible = {**vars(seen.timestep), "global_state": seen.global_state, "scene": seen.scene}
    check(not first_infinite(visible), f"{first_infinite(visible)} is not finite")
    obs = named_leaves({"obs": seen.timestep.obs})
    for (name, value), box in zip(obs, jax.tree.leaves(env.observation_space), strict=True):
        low, high = float(np.min(value)), float(np.max(value))
        inside = box.low <= low and high <= box.high
        check(inside, f"{name} spans [{low:g}, {high:g}], outside of observation_space [{box.low:g}, {box.high:g}]")
    colours = [] if seen.scene is None else [np.asarray(shapes.colour) for shapes in kinds(seen.scene)]
    check(all(((colour >= 0) & (colour <= 1)).all() for colour in colours), "a colour of the scene lies outside of [0, 1]")
    mask = np.asarray(seen.timestep.action_mask)
    if isinstance(env.action_space, Box):
        check(mask.shape[-1] > 1 or mask.all(), "the action mask of a continuous action has to be all true, but for padding")
        usable = np.asarray(mask.any(axis=-1))[np.asarray(seen.timestep.alive)].all()
        check(usable, "an agent that is alive has only padding in the mask of its continuous action")
        return
    offsets = np.cumsum((0, *space_parts(env.action_space)))[:-1]
    choice = np.asarray(np.logical_or.reduceat(mask, offsets, axis=-1).all(axis=-1))
    check(choice[np.asarray(seen.timestep.alive)].all(), "an agent that is alive has no available action, not even the noop")
    if env.items:
        _check_items(env, mask, seen.timestep, check)


def _check_items(env: Environment, mask: np.ndarray, timestep: TimeStep, check: Check) -> None:
    """What ``Environment.items`` promises; mask [..., A, M + 1]."""
    shared = timestep.obs["shared"]
    items, is_open = np.shape(shared[env.items])[-2], np.asarray(shared["open"]) > 0
    fits = mask.shape[-1] == items + 1 and env.noop == items
    check(
        fits, f"{items} {env.items} need {items + 1} actions, the noop last; there are {mask.shape[-1]}, the noop is {env.noop}"
    )
    able = mask[..., :-1].any(axis=-1, keepdims=True)
    same = (mask[..., :-1] == (able & is_open[..., None, :])).all(axis=-1)
    check(same[np.asarray(timestep.alive)].all(), f"an agent's action mask is neither all open {env.items} nor none of them")


def _run_presets(programs: Programs, key: jax.Array, check: Check) -> None:
    """Every preset's numbers in the one compiled program."""
    env = programs.env
    key_reset, key_action, key_step = jax.random.split(key, 3)
    for preset in env.presets:
        env_params = strongly_typed(env.preset_params(preset))
        now = programs.reset(key_reset, env_params)
        action = programs.sample(key_action, now.timestep.action_mask)
        _check_seen(env, programs.step(key_step, now.state, action, env_params), check)
        programs.check_traces(check)


# --- many environments, restarting by themselves ----------------------------------------------------------------------


def _check_vectorized(
    programs: Programs, env_params: EnvParams, num_steps: int, key: jax.Array, ends: bool, check: Check
) -> None:
    """Restarts, absent agents and agreement with the single environment, over a compiled rollout."""
    env = programs.env
    rollout = programs.rollout(key, env_params, num_steps)
    steps = jax.tree.map(np.asarray, rollout.timesteps)
    _check_seen(env, Seen(rollout.states.env, steps, jnp.zeros(0), None), check)
    check(not first_unlike(rollout, programs.rollout(key, env_params, num_steps)), "a rollout gives other bits for the same key")
    programs.check_traces(check)
    check(steps.first[0].all(), "the timestep of reset is not marked as first")
    last = steps.terminated | steps.truncated
    check(not last[0].any(), "an episode has already ended at its reset")
    restarts = np.array_equal(last[:-1], steps.first[1:])
    check(restarts, "the timestep after the last of an episode, and no other, has to be the first of the next")
    check(not steps.reward[1:][last[:-1]].any(), "the first timestep of an episode carries a reward")
    absent = ~steps.alive[:-1] & ~last[:-1, :, None]
    check(not steps.reward[1:][absent].any(), "an agent that was not alive got a reward")
    _check_twins(programs, env_params, key, rollout, check)
    check(last.any() or not ends, f"no episode ended within {num_steps} steps; raise num_steps (ends=False if none ever does)")
    restarted = _restarts_itself(rollout.states.env, steps.first, last)
    check(not restarted, f"the final state of an episode is a fresh one ({restarted}): leave the restart to vectorize")


def _check_twins(programs: Programs, env_params: EnvParams, key: jax.Array, rollout: Rollout, check: Check) -> None:
    """An instance of the vectorised environment does what ``env.reset`` and ``env.step`` do with its keys."""
    key_reset, key_steps = rollout_keys(key)
    _, key_step = jax.random.split(jax.random.split(key_steps, len(rollout.actions))[0])
    instance = NUM_ENVS - 1
    single = programs.reset(jax.random.split(key_reset, NUM_ENVS)[instance], env_params)
    # vectorize gives one part of an instance's key to a fresh state, the other to the transition
    _, key_transition = jax.random.split(jax.random.split(key_step, NUM_ENVS)[instance])
    stepped = programs.step(key_transition, single.state, rollout.actions[0, instance], env_params)
    for time, (name, one) in enumerate((("reset", single), ("step", stepped))):
        twin = jax.tree.map(lambda leaf, time=time: leaf[time, instance], rollout.timesteps)
        twin = twin.replace(metrics={metric: twin.metrics[metric] for metric in one.timestep.metrics})
        unlike = first_unlike(one.timestep, twin, TOLERANCE)
        hint = "is there randomness without a key, or an own reset or step?"
        check(not unlike, f"{name} and its vectorised twin differ in {unlike} for the same key; {hint}")


def _restarts_itself(states: Any, first: np.ndarray, last: np.ndarray) -> str:
    """The state's leaves that hold their initial value at every end of an episode, though they had left it just before.

    Leaves that are the same in every initial state (a clock, a score) betray a transition that restarts the episode by
    itself: the final observation would be lost.
    """
    ended = np.argwhere(last[1:]) + np.array([1, 0])
    back = []
    for name, value in named_leaves(states):
        leaf = to_host(value)
        fresh = leaf[first]
        constant = (fresh == fresh[:1]).all()
        moved = [(t, e) for t, e in ended if not np.array_equal(leaf[t - 1, e], fresh[0])]
        if not constant or not moved:
            continue
        if not all(np.array_equal(leaf[t, e], fresh[0]) for t, e in moved):
            return ""
        back.append(name)
    return ", ".join(back)
