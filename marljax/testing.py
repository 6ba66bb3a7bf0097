"""The conformance kit: ``check_env(env)`` holds an environment, ours or a user's own, to everything that the rest relies on.

Axis letters: T time, E environments, A agents, K parts of a multi-discrete action, n actions.
"""

import contextlib
import dataclasses
import functools
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax import entities
from marljax.environment import Environment, EnvParams, TimeStep, is_shared, num_actions, without_padding
from marljax.errors import UserError, first_line
from marljax.scene import kinds
from marljax.spaces import Box, Discrete, MultiDiscrete
from marljax.trees import first_infinite, first_nan, first_unlike, named_leaves, shape_difference, strong, to_host
from marljax.vector import VecState, vectorize
from marljax.wrapper import Wrapper

NUM_ENVS = 4  # instances stepped side by side: few, so that the check stays cheap
TOLERANCE = 1e-3  # between a program and its vmapped twin, whose sums run in another order


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
    sizes; ``anneal`` gives numbers of the same tree, shapes and dtypes, so that one program takes them all; ``resumed`` and
    ``restart`` give states like any other.

    Args:
        env: the environment.
        env_params: numbers to check it with; ``env.default_params`` by default.
        num_steps: random decisions taken, alone and in each of four vectorised instances; an episode has to end within them.
        seed: of the random decisions.
        ends: False for an environment whose episodes never end.
    """
    check = functools.partial(_require, env)
    env_params = check_statically(env, env_params)
    key_shapes, key_walk, key_rollout = jax.random.split(jax.random.key(seed), 3)
    has_scene = _check_scene(env, env_params, key_shapes, check)
    _check_mapped(env, env_params, key_shapes)
    _check_anneal(env, env_params, check)
    _check_presets(env, env_params, key_shapes, check)
    programs = Programs(env, has_scene)
    _walk(programs, env_params, num_steps, key_walk, check)
    _run_presets(programs, key_shapes, check)
    _check_vectorized(programs, env_params, num_steps, key_rollout, ends, check)


def check_before_training(env: Environment, env_params: EnvParams | None = None) -> None:
    """Raises ``UserError`` with the sentence of ``check_env`` where an environment breaks the contract in a way that can be seen
    without running it. An environment of this library is left unchecked; of a wrapper the one inside is checked.

    Weak types, which ``check_env`` names, are let pass: they cost a second trace, and programs are right.
    """
    while isinstance(env, Wrapper) and is_ours(env):
        env, env_params = env.env, None  # a wrapper may hold the numbers of what it wraps among its own
    if is_ours(env):
        return
    check_statically(env, env_params, weak_types=True)


def scene_fault(env: Environment, env_params: EnvParams) -> str:
    """Why nothing can draw the scene of an environment that is not of this library, before anything runs; empty where nothing
    speaks against it, or there is no scene."""
    if is_ours(env):
        return ""
    try:
        _check_scene(env, strong(env_params), jax.random.key(0), functools.partial(_require, env))
    except Broken as error:
        return str(error)
    return ""


def is_ours(env: Environment) -> bool:
    """Whether an environment's class comes with this library."""
    return type(env).__module__.partition(".")[0] == __name__.partition(".")[0]


Check = Callable[[Any, str], None]


class Broken(AssertionError, UserError):
    """An environment breaks the contract: a failed check of the kit, and before training a mistake of the user."""


def _require(env: Environment, condition: Any, sentence: str) -> None:
    if not condition:
        raise Broken(f"{type(env).__name__}: {sentence}")


# --- what can be seen without running anything ------------------------------------------------------------------------

DESCRIPTION = ("num_agents", "teams", "action_space", "observation_space", "noop", "obs_layout", "default_params")


def check_statically(env: Environment, env_params: EnvParams | None = None, weak_types: bool = False) -> EnvParams:
    """The part of ``check_env`` that runs nothing: the description, and the shapes of all results. Takes about a second.

    Returns the numbers that it was checked with, as arrays. ``weak_types``: shapes and dtypes may differ in that.
    """
    check = functools.partial(_require, env)
    check(isinstance(env, Environment), "it is no environment; derive it from marljax.Environment")
    for name in DESCRIPTION:
        with own_code(type(env), name):
            getattr(env, name)
    with own_code(type(env), "its description"):
        _check_structure(env, check)
        env_params = strong(env.numbers(env_params))
    check(not first_nan(env_params), f"env_params hold NaN in {first_nan(env_params)}")
    with own_code(type(env), "its functions"):
        _check_shapes(env, env_params, jax.random.key(0), check, weak_types)
    return env_params


def _check_structure(env: Environment, check: Check) -> None:
    """The static description: fields, equality, spaces, teams, layout."""
    fields = {field.name for field in dataclasses.fields(env)}
    hidden = [name for name in vars(env) if name not in fields and not _is_cached(type(env), name)]
    check(not hidden, f"equality does not see {hidden}; make them fields of a dataclass(frozen=True)")
    try:
        hash(env)
    except TypeError as error:
        raise Broken(f"{type(env).__name__}: it cannot be hashed ({error}); keep arrays in env_params") from error
    twin = dataclasses.replace(env)
    check(twin == env and hash(twin) == hash(env), "two environments made with the same options are not equal, or hash apart")
    check(isinstance(env.num_agents, int) and env.num_agents > 0, f"num_agents is {env.num_agents!r}, not a positive integer")
    space = env.action_space
    check(isinstance(space, Discrete | MultiDiscrete | Box), f"action_space is {space!r}, not one of marljax.spaces")
    sizes = space.shape if isinstance(space, Box) else _parts(space)
    check(min(sizes, default=isinstance(space, Box)) > 0, f"action_space is {space!r}, which holds no action")
    if isinstance(space, Box):
        check((space.low, space.high) == (-1.0, 1.0), f"continuous actions lie in [{space.low}, {space.high}], not in [-1, 1]")
    else:
        fits = isinstance(env.noop, int) and 0 <= env.noop < min(_parts(space))
        check(fits, f"noop is {env.noop!r}, which is no action of {space}")
    boxes = jax.tree.leaves(env.observation_space)
    check(boxes and all(isinstance(box, Box) for box in boxes), "observation_space is neither a Box nor a pytree of them")
    fits = isinstance(env.teams, tuple) and len(env.teams) == env.num_agents and all(isinstance(team, int) for team in env.teams)
    check(fits, f"teams is {env.teams!r}, not a tuple of one integer for each of {env.num_agents} agents")
    empty = sorted({*range(max(env.teams) + 1)} - {*env.teams})
    check(min(env.teams) == 0 and not empty, f"teams is {env.teams!r}: they count from 0, and each has an agent")
    check(not entities.fault(env), entities.fault(env))


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


def _check_shapes(env: Environment, env_params: EnvParams, key: jax.Array, check: Check, weak_types: bool) -> None:
    """Trees, shapes and dtypes, by abstract evaluation."""
    action = _action_shape(env)
    abstract = functools.partial(_abstract_strong if weak_types else _abstract, env)
    state, reset = abstract("reset", env.reset, key, env_params)
    expected = _expected(env, reset)
    difference = shape_difference(expected, {name: getattr(reset, name) for name in expected})
    check(not difference, f"the timestep does not follow the spaces: {difference}")
    sized = isinstance(reset.metrics, dict) and all(leaf.shape == () for leaf in jax.tree.leaves(reset.metrics))
    check(sized, "metrics is not a dictionary of scalars")
    own = {"return"} if env.own_return else set()
    taken = [name for name in reset.metrics if (name == "length" or name.startswith("return")) and name not in own]
    check(not taken, f"metrics named {taken} would hide those of vectorize; rename them")
    next_state, step = abstract("step", env.step, key, state, action, env_params)
    for name, before, after in (("state", state, next_state), ("timestep", reset, step)):
        difference = shape_difference(before, after)
        check(not difference, f"the {name} of step is not like that of reset: {difference}")
    _check_shapes_vectorized(env, env_params, key, check, abstract)
    difference = shape_difference(state, abstract("resumed", env.resumed, state, env_params))
    check(not difference, f"the state of resumed is not like that of reset: {difference}")
    next_start = abstract("restart", env.restart, key, state, env_params)
    difference = shape_difference(state, next_start)
    check(not difference, f"the state of restart is not like that of reset: {difference}")
    vector = abstract("global_state", env.global_state, state, env_params)
    check(isinstance(vector, jax.ShapeDtypeStruct), f"global_state is {vector!r}, not a vector of floats")
    flat = len(vector.shape) == 1 and jnp.issubdtype(vector.dtype, jnp.floating)
    check(flat, f"global_state is {vector.dtype}{list(vector.shape)}, not a vector of floats")
    difference = shape_difference(env_params, abstract("anneal", env.anneal, env_params, jnp.zeros(())))
    check(not difference, f"anneal changes the env_params: {difference}")


def _check_scene(env: Environment, env_params: EnvParams, key: jax.Array, check: Check) -> bool:
    """Whether there is a scene; if so, that it can be drawn."""
    state, _ = _abstract(env, "reset", env.reset, key, env_params)
    try:
        _abstract(env, "scene", env.scene, state, env_params)
    except Broken:
        raise
    except UserError:  # it has none
        return False
    coloured = all(isinstance(name, str) and len(colour) == 4 for name, colour in env.legend)
    check(coloured, "legend is not a tuple of (name, RGBA) pairs")
    return True


def _check_mapped(env: Environment, env_params: EnvParams, key: jax.Array) -> None:
    """Sweeps map some leaves of env_params and leave the others, keys and states alone: every other leaf, then the rest."""
    state, _ = jax.eval_shape(env.reset, key, env_params)
    action = _action_shape(env)
    leaves, tree = jax.tree.flatten(env_params)
    for first in range(min(2, len(leaves))):
        axes = [0 if place % 2 == first else None for place in range(len(leaves))]
        mapped = [leaf if axis is None else jnp.stack([leaf, leaf]) for leaf, axis in zip(leaves, axes, strict=True)]
        numbers, in_axes = (jax.tree.unflatten(tree, parts) for parts in (mapped, axes))
        _abstract(env, "reset", jax.vmap(env.reset, (None, in_axes)), key, numbers)
        _abstract(env, "step", jax.vmap(env.step, (None, None, None, in_axes)), key, state, action, numbers)
        _abstract(env, "global_state", jax.vmap(env.global_state, (None, in_axes)), state, numbers)


def _check_anneal(env: Environment, env_params: EnvParams, check: Check) -> None:
    """Numbers in the course of a run make sense."""
    for now in jnp.linspace(0.0, 1.0, 3):
        unknown = first_nan(env.anneal(env_params, now))
        check(not unknown, f"anneal gives NaN in {unknown} at progress {now:g}")


def _check_shapes_vectorized(env: Environment, env_params: EnvParams, key: jax.Array, check: Check, abstract: Callable) -> None:
    """The same for ``vectorize``, and for a batch of env_params."""
    vec = vectorize(env, NUM_ENVS)
    action = _action_shape(env)
    actions = jax.ShapeDtypeStruct((NUM_ENVS, *action.shape), action.dtype)
    before = abstract("vectorize's reset", vec.reset, key, env_params)
    after = abstract("vectorize's step", vec.step, key, before[0], actions, env_params)
    difference = shape_difference(before, after)
    check(not difference, f"a vectorised step is not like a vectorised reset: {difference}")
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), env_params)
    abstract("reset over a batch of env_params", jax.vmap(env.reset, (None, 0), axis_size=2), key, several)


def _check_presets(env: Environment, env_params: EnvParams, key: jax.Array, check: Check) -> None:
    """Presets give numbers of one shape, and only a field that changes shapes changes equality."""
    for preset in env.presets:
        other = strong(env.preset_params(preset))
        difference = shape_difference(env_params, other)
        check(not difference, f"the env_params of preset '{preset}' need another program: {difference}")
        check(not first_nan(other), f"the env_params of preset '{preset}' hold NaN in {first_nan(other)}")
    # not env.reset, which is compiled once for environments that are equal
    shapes = jax.eval_shape(vectorize(env, 1).reset, key, env_params)
    chosen = [field.name for field in dataclasses.fields(env) if field.init and getattr(env, field.name) in (*env.presets,)]
    for name in chosen:
        for preset in env.presets:
            other_env = dataclasses.replace(env, **{name: preset})
            others = jax.eval_shape(vectorize(other_env, 1).reset, key, strong(other_env.default_params))
            alike = not shape_difference(shapes, others)
            equal = other_env == env and hash(other_env) == hash(env)
            check(alike or not equal, f"{name}='{preset}' changes shapes, but not equality; drop compare=False")
            check(equal or not alike, f"{name}='{preset}' changes equality, but no shape; declare it with compare=False")


def _abstract(env: Environment, what: str, function: Callable, *args: Any) -> Any:
    """Shapes of a function's results; what a user's code raises becomes one sentence."""
    with own_code(type(env), what):
        return jax.eval_shape(function, *args)


def _abstract_strong(env: Environment, what: str, function: Callable, *args: Any) -> Any:
    """The same without weak types."""
    return jax.tree.map(lambda leaf: leaf.update(weak_type=False), _abstract(env, what, function, *args))


@contextlib.contextmanager
def own_code(cls: type, what: str) -> Iterator[None]:
    """One sentence for anything that the code of an environment's class raises, but for a ``UserError``: the class, what was
    called, and the innermost function of the class's own module."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a user's code may raise anything
        traced = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
        fault = f"cannot be compiled: {first_line(error)}" if traced else f"raised {type(error).__name__}: {first_line(error)}"
        raise Broken(f"{cls.__name__}: {what} {fault}{_place(cls, error)}") from error


def _place(cls: type, error: Exception) -> str:
    """``(transition, line 31 of maze.py)``: the innermost function of the class's module that an error came through, if any."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({own[-1].name}, line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""


def _expected(env: Environment, reset: TimeStep) -> dict[str, Any]:
    """What a timestep's fields look like; the part ``shared`` of an observation has no agent axis. The mask of continuous actions
    has one of two widths: ``reset`` tells which."""
    agents, real = env.num_agents, jnp.zeros(()).dtype
    actions, space = num_actions(env.action_space), env.action_space
    if isinstance(space, Box) and reset.action_mask.shape[-1:] == (math.prod(space.shape),):
        actions = math.prod(space.shape)

    def leaf(path: tuple, box: Box) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(box.shape if is_shared(path) else (agents, *box.shape), real)

    flag = jax.ShapeDtypeStruct((), bool)
    return {
        "obs": jax.tree_util.tree_map_with_path(leaf, env.observation_space),
        "action_mask": jax.ShapeDtypeStruct((agents, actions), bool),
        "reward": jax.ShapeDtypeStruct((agents,), real),
        "alive": jax.ShapeDtypeStruct((agents,), bool),
        "first": flag,
        "terminated": flag,
        "truncated": flag,
    }


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
    allowed = _by_part(space, action_mask)
    action = jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0), axis=-1)
    return action[:, 0] if isinstance(space, Discrete) else action


def _parts(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def _by_part(space: Discrete | MultiDiscrete, action_mask: jax.Array) -> jax.Array:
    """[A, sum n] → [A, K, max n]; what lies beyond a part's own n is not allowed."""
    sizes = np.array(_parts(space))
    column = np.arange(sizes.max())
    index = np.cumsum(sizes)[:, None] - sizes[:, None] + column
    inside = column < sizes[:, None]
    return action_mask[:, np.where(inside, index, 0)] & inside


def allowed_only(env: Environment, action: jax.Array, action_mask: jax.Array) -> jax.Array:
    """The action with noop, or 0, in the place of what the mask forbids."""
    space = env.action_space
    if isinstance(space, Box):
        return without_padding(space, action_mask, action)
    parts = action.reshape(env.num_agents, -1, 1)
    allowed = jnp.take_along_axis(_by_part(space, action_mask), parts, axis=-1)
    return jnp.where(allowed, parts, env.noop).reshape(action.shape)


def _action_shape(env: Environment) -> jax.ShapeDtypeStruct:
    dtype = jnp.zeros(()).dtype if isinstance(env.action_space, Box) else jnp.zeros((), int).dtype
    return jax.ShapeDtypeStruct((env.num_agents, *env.action_space.shape), dtype)


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
    offsets = np.cumsum((0, *_parts(env.action_space)))[:-1]
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
        env_params = strong(env.preset_params(preset))
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
