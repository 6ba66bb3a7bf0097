"""``check_env(env)`` checks an environment, built-in or a user's own, against everything that the rest of the library assumes.

Axis letters: T time, E environments, A agents, K parts of a multi-discrete action, n actions.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment, without_padding
from marljax.core.scene import kinds
from marljax.core.spaces import Box, Discrete, MultiDiscrete
from marljax.core.types import EnvParams, TimeStep
from marljax.core.vector import VecState, vectorize
from marljax.testing.static import NUM_ENVS, check_mapped, check_presets, check_scene, check_statically, require
from marljax.utils.pytrees import first_infinite, first_nan, first_unlike, named_leaves, strongly_typed, to_host

TOLERANCE = 1e-3  # between a program and its vmapped twin, whose sums run in another order


class Snapshot(NamedTuple):
    """Everything that an environment reports of one state."""

    state: Any
    timestep: TimeStep
    global_state: jax.Array  # [G]
    scene: Any  # a Scene, or None if the environment has none


class Rollout(NamedTuple):
    """A vectorised rollout: T steps after the reset, so T + 1 timesteps."""

    states: VecState  # [T + 1, E, …]
    timesteps: TimeStep  # [T + 1, E, …]
    actions: jax.Array  # [T, E, A, …]


def check_env(
    env: Environment, env_params: EnvParams | None = None, *, num_steps: int = 200, seed: int = 0, ends: bool = True
) -> None:
    """Raises ``AssertionError``, with one sentence, unless ``env`` keeps the contract of ``Environment``.

    Checked: equality and hash cover structure only; presets share one program; ``reset``, ``step`` and the steps of
    ``vectorize`` have the same tree, shapes and dtypes; jit, scan and vmap (also over some params alone) work and trace once;
    observations are in their spaces; ``obs_layout`` is empty or describes all columns; everything is finite; unavailable actions
    and the actions of absent agents act as the noop; absent agents get no reward; episodes end, restart on the next step and
    nowhere else; the same key gives the same bits; ``global_state`` and ``scene`` (if there is one) have fixed sizes;
    ``anneal`` keeps tree, shapes and dtypes; ``restart`` and ``reset_episode_counters`` return states like any other.

    Args:
        env: the environment.
        env_params: its params; ``env.default_params`` by default.
        num_steps: random decisions taken, alone and in each of four vectorised instances; an episode has to end within them.
        seed: of the random decisions.
        ends: False for an environment whose episodes never end.
    """
    env_params = check_statically(env, env_params)
    key_shapes, key_steps, key_rollout = jax.random.split(jax.random.key(seed), 3)
    has_scene = check_scene(env, env_params, key_shapes)
    check_mapped(env, env_params, key_shapes)
    for progress in jnp.linspace(0.0, 1.0, 3):
        nan = first_nan(env.anneal(env_params, progress))
        require(env, not nan, f"anneal gives NaN in {nan} at progress {progress:g}")
    check_presets(env, env_params, key_shapes)
    programs = Programs(env, has_scene)
    _check_steps(programs, env_params, num_steps, key_steps)
    _check_presets_run(programs, key_shapes)
    _check_rollout(programs, env_params, num_steps, key_rollout, ends)


class Programs:
    """The compiled functions of one environment, counting how often each was traced."""

    def __init__(self, env: Environment, has_scene: bool):
        self.env, self.has_scene = env, has_scene
        self.traces = {"reset": 0, "step": 0, "rollout": 0}
        self.reset = jax.jit(self._reset)
        self.step = jax.jit(self._step)
        self.rollout = jax.jit(self._rollout, static_argnums=2)
        self.sample = jax.jit(functools.partial(sample_action, env))
        self.allowed_only = jax.jit(functools.partial(allowed_only, env))

    def _reset(self, key: jax.Array, env_params: EnvParams) -> Snapshot:
        self.traces["reset"] += 1
        return self._snapshot(env_params, *self.env.reset(key, env_params))

    def _step(self, key: jax.Array, state: Any, action: jax.Array, env_params: EnvParams) -> Snapshot:
        self.traces["step"] += 1
        return self._snapshot(env_params, *self.env.step(key, state, action, env_params))

    def _snapshot(self, env_params: EnvParams, state: Any, timestep: TimeStep) -> Snapshot:
        scene = self.env.scene(state, env_params) if self.has_scene else None
        return Snapshot(state, timestep, self.env.global_state(state, env_params), scene)

    def _rollout(self, key: jax.Array, env_params: EnvParams, num_steps: int) -> Rollout:
        self.traces["rollout"] += 1
        vec = vectorize(self.env, NUM_ENVS)
        key_reset, key_steps = jax.random.split(key)

        def one_step(carry: tuple[VecState, TimeStep], key: jax.Array) -> tuple:
            key_action, key_step = jax.random.split(key)
            state, timestep = carry
            keys = jax.random.split(key_action, NUM_ENVS)
            action = jax.vmap(functools.partial(sample_action, self.env))(keys, timestep.action_mask)
            carry = vec.step(key_step, state, action, env_params)
            return carry, (carry, action)

        start = vec.reset(key_reset, env_params)
        recorded: tuple[tuple[VecState, TimeStep], jax.Array]
        _, recorded = jax.lax.scan(one_step, start, jax.random.split(key_steps, num_steps))
        steps, actions = recorded
        states, timesteps = jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), start, steps)
        return Rollout(states, timesteps, actions)

    def check_traces(self) -> None:
        again = [name for name, count in self.traces.items() if count > 1]
        require(self.env, not again, f"{' and '.join(again)} had to be compiled more than once for arguments of one shape")


def sample_action(env: Environment, key: jax.Array, action_mask: jax.Array) -> jax.Array:
    """A uniform action of every agent [A, …], among those that ``action_mask`` [A, n] allows."""
    space = env.action_space
    if isinstance(space, Box):
        action = jax.random.uniform(key, (env.num_agents, *space.shape), minval=-1.0, maxval=1.0)
        return without_padding(space, action_mask, action)
    allowed = mask_by_part(space, action_mask)
    action = jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0), axis=-1)
    return action[:, 0] if isinstance(space, Discrete) else action


def allowed_only(env: Environment, action: jax.Array, action_mask: jax.Array) -> jax.Array:
    """The action with the noop, or 0, where the mask forbids it."""
    space = env.action_space
    if isinstance(space, Box):
        return without_padding(space, action_mask, action)
    parts = action.reshape(env.num_agents, -1, 1)
    allowed = jnp.take_along_axis(mask_by_part(space, action_mask), parts, axis=-1)
    return jnp.where(allowed, parts, env.noop).reshape(action.shape)


def mask_by_part(space: Discrete | MultiDiscrete, action_mask: jax.Array) -> jax.Array:
    """[A, sum n] → [A, K, max n], False beyond a part's own n."""
    sizes = _part_sizes(space)
    column = np.arange(sizes.max())
    index = np.cumsum(sizes)[:, None] - sizes[:, None] + column
    inside = column < sizes[:, None]
    return action_mask[:, np.where(inside, index, 0)] & inside


def _part_sizes(space: Discrete | MultiDiscrete) -> np.ndarray:
    return np.array((space.n,) if isinstance(space, Discrete) else space.nvec)


def _check_steps(programs: Programs, env_params: EnvParams, num_steps: int, key: jax.Array) -> None:
    """One instance: random decisions, unavailable ones included, each repeated, and repeated with the noop where that must not
    matter."""
    env = programs.env
    check = functools.partial(require, env)
    key_reset, key = jax.random.split(key)
    now = programs.reset(key_reset, env_params)
    _check_values(env, now)
    check(not first_unlike(now, programs.reset(key_reset, env_params)), "reset gives other bits for the same key")
    any_action = jnp.ones_like(now.timestep.action_mask)
    for key_now in jax.random.split(key, num_steps):
        key_action, key_step, key_reset = jax.random.split(key_now, 3)
        action = programs.sample(key_action, any_action)
        after = programs.step(key_step, now.state, action, env_params)
        _check_values(env, after)
        again = programs.step(key_step, now.state, action, env_params)
        check(not first_unlike(after, again), "step gives other bits for the same key")
        allowed = programs.allowed_only(action, now.timestep.action_mask)
        unlike = first_unlike(after, programs.step(key_step, now.state, allowed, env_params))
        check(not unlike, f"an unavailable action does not act as the noop: {unlike} differs")
        alive = np.asarray(now.timestep.alive)
        if not alive.all():
            check(not np.any(np.asarray(after.timestep.reward)[~alive]), "an agent that was not alive got a reward")
            idle = jnp.asarray(0.0 if isinstance(env.action_space, Box) else env.noop, allowed.dtype)
            of_alive = jnp.where(alive.reshape(-1, *[1] * (allowed.ndim - 1)), allowed, idle)
            unlike = first_unlike(after, programs.step(key_step, now.state, of_alive, env_params))
            check(not unlike, f"the action of an agent that is not alive matters: {unlike} differs")
        if env.afterstates:
            _check_announced(env, now.timestep, np.asarray(allowed), np.asarray(after.timestep.reward))
        programs.check_traces()
        now = programs.reset(key_reset, env_params) if bool(after.timestep.last) else after


def _check_announced(env: Environment, timestep: TimeStep, action: np.ndarray, reward: np.ndarray) -> None:
    """Agents that wait, or take an item that nobody else takes, earn what their observation says."""
    alive, announced = np.asarray(timestep.alive), np.asarray(timestep.obs["reward"])  # type: ignore[index]
    alone = alive & ((action == env.noop) | (np.bincount(action[alive], minlength=env.noop + 1)[action] == 1))
    announced = np.take_along_axis(announced, action[:, None], axis=1)[:, 0]
    unlike = not np.allclose(reward[alone], announced[alone], rtol=TOLERANCE, atol=TOLERANCE)
    require(env, not unlike, "with afterstates an agent earned another reward than it observed for its action")


def _check_values(env: Environment, snapshot: Snapshot) -> None:
    """Values are finite and in their spaces, and masks allow an action; leading axes are free."""
    check = functools.partial(require, env)
    timestep, scene = snapshot.timestep, snapshot.scene
    check(not first_nan(snapshot.state), f"the state has NaN in {first_nan(snapshot.state)}")
    reported = {**vars(timestep), "global_state": snapshot.global_state, "scene": scene}
    check(not first_infinite(reported), f"{first_infinite(reported)} is not finite")
    for (name, value), box in zip(named_leaves({"obs": timestep.obs}), jax.tree.leaves(env.observation_space), strict=True):
        low, high = float(np.min(value)), float(np.max(value))
        inside = box.low <= low and high <= box.high
        check(inside, f"{name} is in [{low:g}, {high:g}], outside observation_space [{box.low:g}, {box.high:g}]")
    colours = [] if scene is None else [np.asarray(shapes.colour) for shapes in kinds(scene)]
    check(all(((colour >= 0) & (colour <= 1)).all() for colour in colours), "a colour of the scene is outside [0, 1]")

    mask, alive = np.asarray(timestep.action_mask), np.asarray(timestep.alive)
    if isinstance(env.action_space, Box):
        check(mask.shape[-1] > 1 or mask.all(), "the action mask of a continuous action has to be all true, except for padding")
        check(
            np.any(mask, axis=-1, keepdims=True)[alive].all(),
            "an agent that is alive has only padding in the mask of its continuous action",
        )
        return
    offsets = np.cumsum((0, *_part_sizes(env.action_space)))[:-1]
    has_choice = np.all(np.logical_or.reduceat(mask, offsets, axis=-1), axis=-1, keepdims=True)
    check(has_choice[alive].all(), "an agent that is alive has no available action, not even the noop")
    if env.afterstates:
        obs, count = timestep.obs, mask.shape[-1]
        by_action = {name: np.shape(value)[: mask.ndim] == mask.shape for name, value in dict(obs).items()}
        ranks = {name: np.ndim(value) - mask.ndim for name, value in dict(obs).items()}
        known = ranks == {"reward": 0, "decisions": 0, "features": 1} and all(by_action.values())
        check(known, "afterstates are observed as reward and decisions [A, n] and features [A, n, F], and nothing else")
        check(env.noop == count - 1, f"with afterstates the last of {count} actions is the noop, to wait; noop is {env.noop}")
        check(mask[..., -1][alive].all(), "with afterstates waiting is always available")
        check(np.min(obs["decisions"]) >= 0, "the number of decisions that are left is negative")
    if env.items:
        shared = timestep.obs["shared"]
        num_items, is_open = np.shape(shared[env.items])[-2], np.asarray(shared["open"]) > 0
        needed = f"{num_items} {env.items} need {num_items + 1} actions, the noop last"
        fits = mask.shape[-1] == num_items + 1 and env.noop == num_items
        check(fits, f"{needed}; there are {mask.shape[-1]}, the noop is {env.noop}")
        has_item = np.any(mask[..., :-1], axis=-1, keepdims=True)
        all_or_none = (mask[..., :-1] == (has_item & is_open[..., None, :])).all(axis=-1, keepdims=True)
        check(all_or_none[alive].all(), f"an agent's action mask is neither all open {env.items} nor none of them")
        check(not has_item[~alive].any(), f"an agent that is not alive may take {env.items}")


def _check_presets_run(programs: Programs, key: jax.Array) -> None:
    """The params of every preset in the one compiled program."""
    key_reset, key_action, key_step = jax.random.split(key, 3)
    for preset in programs.env.presets:
        env_params = strongly_typed(programs.env.preset_params(preset))
        now = programs.reset(key_reset, env_params)
        action = programs.sample(key_action, now.timestep.action_mask)
        _check_values(programs.env, programs.step(key_step, now.state, action, env_params))
        programs.check_traces()


def _check_rollout(programs: Programs, env_params: EnvParams, num_steps: int, key: jax.Array, ends: bool) -> None:
    """Vectorised instances: restarts, absent agents, agreement with a single instance."""
    check = functools.partial(require, programs.env)
    rollout = programs.rollout(key, env_params, num_steps)
    steps = jax.tree.map(np.asarray, rollout.timesteps)
    _check_values(programs.env, Snapshot(rollout.states.env, steps, jnp.zeros(0), None))
    check(not first_unlike(rollout, programs.rollout(key, env_params, num_steps)), "a rollout gives other bits for the same key")
    programs.check_traces()
    check(steps.first[0].all(), "the timestep of reset is not marked as first")
    last = steps.terminated | steps.truncated
    check(not last[0].any(), "an episode has already ended at its reset")
    restarts = np.array_equal(last[:-1], steps.first[1:])
    check(restarts, "the timestep after the last of an episode, and no other, has to be the first of the next")
    check(not steps.reward[1:][last[:-1]].any(), "the first timestep of an episode has a reward")
    absent = ~steps.alive[:-1] & ~last[:-1, :, None]
    check(not steps.reward[1:][absent].any(), "an agent that was not alive got a reward")
    _check_twin(programs, env_params, key, rollout)
    check(last.any() or not ends, f"no episode ended within {num_steps} steps; raise num_steps (ends=False if none ever does)")
    restarted = _restarted_leaves(rollout.states.env, steps.first, last)
    check(not restarted, f"the final state of an episode is a fresh one ({restarted}): leave the restart to vectorize")


def _check_twin(programs: Programs, env_params: EnvParams, key: jax.Array, rollout: Rollout) -> None:
    """An instance of the vectorised environment does the same as ``env.reset`` and ``env.step`` with its keys."""
    key_reset, key_steps = jax.random.split(key)
    _, key_step = jax.random.split(jax.random.split(key_steps, len(rollout.actions))[0])
    instance = NUM_ENVS - 1
    single = programs.reset(jax.random.split(key_reset, NUM_ENVS)[instance], env_params)
    # vectorize splits an instance's key between a fresh state and the transition
    _, key_transition = jax.random.split(jax.random.split(key_step, NUM_ENVS)[instance])
    stepped = programs.step(key_transition, single.state, rollout.actions[0, instance], env_params)
    for time, (name, one) in enumerate((("reset", single), ("step", stepped))):
        twin = jax.tree.map(lambda leaf, time=time: leaf[time, instance], rollout.timesteps)
        twin = twin.replace(metrics={metric: twin.metrics[metric] for metric in one.timestep.metrics})
        unlike = first_unlike(one.timestep, twin, TOLERANCE)
        hint = "is there randomness without a key, or an apply_overrides reset or step?"
        require(programs.env, not unlike, f"{name} and its vectorised twin differ in {unlike} for the same key; {hint}")


def _restarted_leaves(states: Any, first: np.ndarray, last: np.ndarray) -> str:
    """The leaves of the state that have their initial value at every end of an episode, but not just before.

    Leaves that are equal in all initial states (a clock, a score) reveal a transition that restarts the episode by itself, which
    loses the final observation.
    """
    ended = np.argwhere(last[1:]) + np.array([1, 0])
    restarted = []
    for name, value in named_leaves(states):
        leaf = to_host(value)
        fresh = leaf[first]
        constant = (fresh == fresh[:1]).all()
        changed = [(t, e) for t, e in ended if not np.array_equal(leaf[t - 1, e], fresh[0])]
        if not constant or not changed:
            continue
        if not all(np.array_equal(leaf[t, e], fresh[0]) for t, e in changed):
            return ""
        restarted.append(name)
    return ", ".join(restarted)
