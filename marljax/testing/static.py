"""Checks of an environment that need no episode: shapes, types, declarations."""

import contextlib
import dataclasses
import functools
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core import layout
from marljax.core.environment import Display, Environment, ScriptedPolicy
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, MultiDiscrete, num_actions
from marljax.core.types import EnvParams, TimeStep, is_shared
from marljax.core.vector import vectorize
from marljax.errors import UserError, first_line, short_repr
from marljax.utils.pytrees import first_nan, shape_difference, strongly_typed
from marljax.wrappers.base import Wrapper

NUM_ENVS = 4  # instances stepped side by side: few, so that the check stays cheap
TOLERANCE = 1e-3  # between a program and its vmapped twin, whose sums run in another order


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
    """Why no episode of an environment can be drawn, before anything runs: it has no scene, or one that is broken. Empty where
    nothing speaks against it."""
    try:
        has_scene = check_scene(env, strongly_typed(env_params), jax.random.key(0), functools.partial(require, env))
    except UserError as error:
        return str(error)
    return "" if has_scene else f"{type(env).__name__} has no scene; implement scene(state, env_params)"


def is_ours(env: Environment) -> bool:
    """Whether an environment's class comes with this library."""
    return type(env).__module__.partition(".")[0] == __name__.partition(".")[0]


Check = Callable[[Any, str], None]


class Broken(AssertionError, UserError):
    """An environment breaks the contract: a failed check of the kit, and before training a mistake of the user."""


def require(env: Environment, condition: Any, sentence: str) -> None:
    if not condition:
        raise Broken(f"{type(env).__name__}: {sentence}")


# --- what can be seen without running anything ------------------------------------------------------------------------

SPACES = ("num_agents", "teams", "action_space", "observation_space", "noop", "items", "obs_layout")
DESCRIPTION = (*SPACES, "default_params", "limit_ends", "presets", "display")


def check_statically(env: Environment, env_params: EnvParams | None = None, weak_types: bool = False) -> EnvParams:
    """The part of ``check_env`` that runs nothing: the description, and the shapes of all results. Takes about a second.

    Returns the numbers that it was checked with, as arrays. ``weak_types``: shapes and dtypes may differ in that.
    """
    check = functools.partial(require, env)
    check(isinstance(env, Environment), "it is no environment; derive it from marljax.Environment")
    for name in DESCRIPTION:
        with own_code(type(env), name):
            getattr(env, name)
    with own_code(type(env), "its description"):
        _check_structure(env, check)
        _check_told(env, check)
        env_params = strongly_typed(env.resolve_params(env_params))
    check(not first_nan(env_params), f"env_params hold NaN in {first_nan(env_params)}")
    with own_code(type(env), "its functions"):
        _check_shapes(env, env_params, jax.random.key(0), check, weak_types)
        _check_longest(env, env_params, check)
        _check_rivals(env, env_params, jax.random.key(0), check)
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
    check(isinstance(space, Discrete | MultiDiscrete | Box), f"action_space is {space!r}, not one of marljax.core.spaces")
    sizes = space.shape if isinstance(space, Box) else space_parts(space)
    check(min(sizes, default=isinstance(space, Box)) > 0, f"action_space is {space!r}, which holds no action")
    if isinstance(space, Box):
        check((space.low, space.high) == (-1.0, 1.0), f"continuous actions lie in [{space.low}, {space.high}], not in [-1, 1]")
    else:
        fits = isinstance(env.noop, int) and 0 <= env.noop < min(space_parts(space))
        check(fits, f"noop is {env.noop!r}, which is no action of {space}")
    boxes = jax.tree.leaves(env.observation_space)
    check(boxes and all(isinstance(box, Box) for box in boxes), "observation_space is neither a Box nor a pytree of them")
    fits = isinstance(env.teams, tuple) and len(env.teams) == env.num_agents and all(isinstance(team, int) for team in env.teams)
    check(fits, f"teams is {env.teams!r}, not a tuple of one integer for each of {env.num_agents} agents")
    empty = sorted({*range(max(env.teams) + 1)} - {*env.teams})
    check(min(env.teams) == 0 and not empty, f"teams is {env.teams!r}: they count from 0, and each has an agent")
    check(not layout.fault(env), layout.fault(env))


def _check_told(env: Environment, check: Check) -> None:
    """What an environment tells algorithms and tables about itself is of the right type."""
    check(isinstance(env.limit_ends, bool), f"limit_ends is {short_repr(env.limit_ends)}, not True or False")
    display = env.display
    check(isinstance(display, Display), f"display is {short_repr(display)}, not a marljax.core.environment.Display")
    for name, names in (("presets", env.presets), ("display.metrics", display.metrics)):
        listed = isinstance(names, tuple | list) and all(isinstance(entry, str) for entry in names)
        check(listed, f"{name} is {short_repr(names)}, not a tuple of names")
    for name, texts in (("display.warnings", display.warnings), ("display.units", display.units)):
        given = isinstance(texts, Mapping) and all(isinstance(part, str) for pair in texts.items() for part in pair)
        check(given, f"{name} is {short_repr(texts)}, not a dictionary of texts by the name of a metric")


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
    taken = [name for name in reset.metrics if name == "length" or name.startswith(("return_", "reward_sum"))]
    check(not taken, f"metrics named {taken} would hide those of vectorize; rename them")
    next_state, step = abstract("step", env.step, key, state, action, env_params)
    for name, before, after in (("state", state, next_state), ("timestep", reset, step)):
        difference = shape_difference(before, after)
        check(not difference, f"the {name} of step is not like that of reset: {difference}")
    _check_shapes_vectorized(env, env_params, key, check, abstract)
    difference = shape_difference(state, abstract("reset_episode_counters", env.reset_episode_counters, state, env_params))
    check(not difference, f"the state of reset_episode_counters is not like that of reset: {difference}")
    next_start = abstract("restart", env.restart, key, state, env_params)
    difference = shape_difference(state, next_start)
    check(not difference, f"the state of restart is not like that of reset: {difference}")
    vector = abstract("global_state", env.global_state, state, env_params)
    check(isinstance(vector, jax.ShapeDtypeStruct), f"global_state is {vector!r}, not a vector of floats")
    flat = len(vector.shape) == 1 and jnp.issubdtype(vector.dtype, jnp.floating)
    check(flat, f"global_state is {vector.dtype}{list(vector.shape)}, not a vector of floats")
    difference = shape_difference(env_params, abstract("anneal", env.anneal, env_params, jnp.zeros(())))
    check(not difference, f"anneal changes the env_params: {difference}")


def check_scene(env: Environment, env_params: EnvParams, key: jax.Array, check: Check) -> bool:
    """Whether there is a scene; if so, that it can be drawn."""
    state, _ = _abstract(env, "reset", env.reset, key, env_params)
    try:
        scene = _abstract(env, "scene", env.scene, state, env_params)
    except Broken:
        raise
    except UserError:  # it has none
        return False
    check(isinstance(scene, Scene), f"scene gives a {type(scene).__name__}, not a marljax.core.scene.Scene")
    legend = env.display.legend
    coloured = isinstance(legend, tuple | list) and all(_is_coloured(entry) for entry in legend)
    check(coloured, "display.legend is not a tuple of (name, RGBA) pairs")
    return True


def _is_coloured(entry: Any) -> bool:
    pair = isinstance(entry, tuple | list) and len(entry) == 2
    return pair and isinstance(entry[0], str) and np.shape(entry[1]) == (4,)


def _check_longest(env: Environment, env_params: EnvParams, check: Check) -> None:
    """``max_episode_steps`` gives one number or None, and can be compiled."""
    with own_code(type(env), "max_episode_steps"):
        longest = env.max_episode_steps(env_params)
    number = np.ndim(longest) == 0 and np.asarray(longest).dtype.kind in "iuf"
    check(longest is None or number, f"max_episode_steps gives {short_repr(longest)}, not a number or None")
    _abstract(env, "max_episode_steps", env.max_episode_steps, env_params)


def rivals_of(env: Environment, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """The scripted policies of an environment's class by name; raises ``UserError`` where it gives something else."""
    with own_code(type(env), "scripted_policies"):
        given = env.scripted_policies(env_params)
    require(env, isinstance(given, Mapping), f"rivals gives {short_repr(given)}, not a dictionary of policies by name")
    found = {}
    for name, policy in given.items():
        rival = policy if isinstance(policy, ScriptedPolicy) else ScriptedPolicy(env, env_params, policy)
        require(env, isinstance(name, str), f"rivals has a policy named {short_repr(name)}; give it a text as its name")
        require(env, callable(rival.policy), f"the scripted policy '{name}' is {short_repr(rival.policy)}, not a function")
        found[name] = rival
    return found


def _check_rivals(env: Environment, env_params: EnvParams, key: jax.Array, check: Check) -> None:
    """One decision of every scripted policy has the shapes that its environment takes."""
    for name, rival in rivals_of(env, env_params).items():
        what = f"the scripted policy '{name}'"
        decision = _abstract(env, what, functools.partial(_first_decision, rival), key)
        check(isinstance(decision, tuple) and len(decision) == 2, f"{what} does not give a pair (action, carry)")
        action, carry = decision
        wanted, array = _action_shape(rival.env), isinstance(action, jax.ShapeDtypeStruct)
        given = f"{action.dtype}{list(action.shape)}" if array else short_repr(action)
        kind = jnp.number if isinstance(rival.env.action_space, Box) else jnp.integer
        fits = array and action.shape == wanted.shape and jnp.issubdtype(action.dtype, kind)
        check(fits, f"{what} gives the actions {given}, not {wanted.dtype}{list(wanted.shape)}")
        difference = shape_difference(*(jax.eval_shape(strongly_typed, of) for of in (rival.carry, carry)))
        check(not difference, f"{what} gives another carry than it began with: {difference}")


def _first_decision(rival: ScriptedPolicy, key: jax.Array) -> Any:
    """What a scripted policy does at the start of an episode."""
    start = vectorize(rival.env, 1).reset(key, rival.env_params)
    state, timestep = jax.tree.map(lambda leaf: leaf[0], start)
    return rival.policy(key, state.env, timestep, jax.tree.map(jnp.asarray, rival.carry))


def check_mapped(env: Environment, env_params: EnvParams, key: jax.Array) -> None:
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


def check_anneal(env: Environment, env_params: EnvParams, check: Check) -> None:
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
    silent = [name for name in env.display.warnings if name not in before[1].metrics]
    check(not silent, f"display.warnings names {silent}, which are no metrics; observe reports {sorted(before[1].metrics)}")
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), env_params)
    abstract("reset over a batch of env_params", jax.vmap(env.reset, (None, 0), axis_size=2), key, several)


def check_presets(env: Environment, env_params: EnvParams, key: jax.Array, check: Check) -> None:
    """Presets give numbers of one shape, and only a field that changes shapes changes equality."""
    for preset in env.presets:
        other = strongly_typed(env.preset_params(preset))
        difference = shape_difference(env_params, other)
        check(not difference, f"the env_params of preset '{preset}' need another program: {difference}")
        check(not first_nan(other), f"the env_params of preset '{preset}' hold NaN in {first_nan(other)}")
    # not env.reset, which is compiled once for environments that are equal
    shapes = jax.eval_shape(vectorize(env, 1).reset, key, env_params)
    chosen = [field.name for field in dataclasses.fields(env) if field.init and getattr(env, field.name) in (*env.presets,)]
    for name in chosen:
        for preset in env.presets:
            other_env = dataclasses.replace(env, **{name: preset})
            others = jax.eval_shape(vectorize(other_env, 1).reset, key, strongly_typed(other_env.default_params))
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
    """One sentence for anything that the code of an environment's class raises: the class, what was called, and the innermost
    function of the class's own module. A ``UserError`` and the errors of a device, such as too little memory, stay what they are.
    """
    try:
        yield
    except (UserError, jax.errors.JaxRuntimeError):
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        traced = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
        fault = f"cannot be compiled: {first_line(error)}" if traced else f"raised {type(error).__name__}: {first_line(error)}"
        raise Broken(f"{cls.__name__}: {what} {fault}{_place(cls, error)}") from error


def _place(cls: type, error: BaseException) -> str:
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


def space_parts(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def by_part(space: Discrete | MultiDiscrete, action_mask: jax.Array) -> jax.Array:
    """[A, sum n] → [A, K, max n]; what lies beyond a part's own n is not allowed."""
    sizes = np.array(space_parts(space))
    column = np.arange(sizes.max())
    index = np.cumsum(sizes)[:, None] - sizes[:, None] + column
    inside = column < sizes[:, None]
    return action_mask[:, np.where(inside, index, 0)] & inside


def _action_shape(env: Environment) -> jax.ShapeDtypeStruct:
    dtype = jnp.zeros(()).dtype if isinstance(env.action_space, Box) else jnp.zeros((), int).dtype
    return jax.ShapeDtypeStruct((env.num_agents, *env.action_space.shape), dtype)
