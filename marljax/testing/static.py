"""Checks of an environment that run no episode: shapes, types, declarations."""

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

from marljax.core.environment import Display, Environment, ScriptedPolicy
from marljax.core.layout import validate_layout
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, MultiDiscrete, num_actions
from marljax.core.types import EnvParams, TimeStep, is_shared
from marljax.core.vector import vectorize
from marljax.errors import UserError, first_line, short_repr
from marljax.utils.pytrees import first_nan, shape_difference, strongly_typed
from marljax.wrappers.base import Wrapper

NUM_ENVS = 4  # instances of a vectorised environment
SPACES = ("num_agents", "teams", "action_space", "observation_space", "noop", "items", "afterstates", "obs_layout")
DESCRIPTION = (*SPACES, "default_params", "limit_ends", "presets", "display")


class Broken(AssertionError, UserError):
    """An environment violates the contract: a failed check of ``check_env``, and a user error before training."""


def require(env: Environment, condition: Any, sentence: str) -> None:
    if not condition:
        raise Broken(f"{type(env).__name__}: {sentence}")


@contextlib.contextmanager
def user_code(cls: type, what: str) -> Iterator[None]:
    """Turns an exception of an environment's own code into one sentence: the class, what was called, and the innermost function
    of the class's module. ``UserError`` and device errors, such as too little memory, pass through.
    """
    try:
        yield
    except (UserError, jax.errors.JaxRuntimeError):
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        untraceable = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
        happened = "cannot be compiled" if untraceable else f"raised {type(error).__name__}"
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f" ({frames[-1].name}, line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
        raise Broken(f"{cls.__name__}: {what} {happened}: {first_line(error)}{where}") from error


def is_builtin(env: Environment) -> bool:
    """Whether an environment's class is part of this library."""
    return type(env).__module__.partition(".")[0] == __name__.partition(".")[0]


def check_before_training(env: Environment, env_params: EnvParams | None = None) -> None:
    """Raises ``UserError`` where a user's environment violates the contract in a way that shows without running it.

    Environments of this library are not checked; for a wrapper, the environment inside is. Weak types, which ``check_env``
    reports, are accepted: they cost a second trace, and results are right.
    """
    while isinstance(env, Wrapper) and is_builtin(env):
        env, env_params = env.env, None  # a wrapper may have params of its own
    if not is_builtin(env):
        check_statically(env, env_params, weak_types=True)


def scene_error(env: Environment, env_params: EnvParams) -> str:
    """Why no episode can be drawn: the environment has no scene, or a broken one. Empty if there is no objection."""
    try:
        has_scene = check_scene(env, strongly_typed(env_params), jax.random.key(0))
    except UserError as error:
        return str(error)
    return "" if has_scene else f"{type(env).__name__} has no scene; implement scene(state, env_params)"


def check_statically(env: Environment, env_params: EnvParams | None = None, weak_types: bool = False) -> EnvParams:
    """The part of ``check_env`` that runs nothing: the description, and the shapes of all results. Takes about a second.

    Returns the params that were checked, as arrays. ``weak_types``: whether dtypes may differ in being weak.
    """
    require(env, isinstance(env, Environment), "it is not an environment; derive it from marljax.Environment")
    for name in DESCRIPTION:
        with user_code(type(env), name):
            getattr(env, name)
    with user_code(type(env), "its description"):
        _check_identity(env)
        _check_spaces(env)
        _check_display(env)
        env_params = strongly_typed(env.resolve_params(env_params))
    require(env, not first_nan(env_params), f"env_params have NaN in {first_nan(env_params)}")
    with user_code(type(env), "its functions"):
        _check_shapes(env, env_params, jax.random.key(0), weak_types)
        with user_code(type(env), "max_episode_steps"):
            longest = env.max_episode_steps(env_params)
        is_number = longest is None or (np.ndim(longest) == 0 and np.asarray(longest).dtype.kind in "iuf")
        require(env, is_number, f"max_episode_steps returns {short_repr(longest)}, not a number or None")
        _abstract(env, "max_episode_steps", env.max_episode_steps, env_params)
        _check_scripted_policies(env, env_params, jax.random.key(0))
    return env_params


def _check_identity(env: Environment) -> None:
    """Equality and hash cover the options."""
    cls, options = type(env), {field.name for field in dataclasses.fields(env)}
    cached = {name for name in vars(env) if isinstance(getattr(cls, name, None), functools.cached_property)}
    hidden = sorted({*vars(env)} - options - cached)
    require(env, not hidden, f"equality ignores {hidden}; make them fields of a dataclass(frozen=True)")
    try:
        hash(env)
    except TypeError as error:
        raise Broken(f"{cls.__name__}: it cannot be hashed ({error}); keep arrays in env_params") from error
    twin = dataclasses.replace(env)
    require(env, twin == env and hash(twin) == hash(env), "two environments with the same options differ in equality or hash")


def _check_spaces(env: Environment) -> None:
    """Numbers of agents and actions, teams, layout."""
    check = functools.partial(require, env)
    agents, space, noop, teams = env.num_agents, env.action_space, env.noop, env.teams
    check(isinstance(agents, int) and agents > 0, f"num_agents is {agents!r}, not a positive integer")
    is_space = isinstance(space, Discrete | MultiDiscrete | Box)
    check(is_space, f"action_space is {space!r}, not one of marljax.core.spaces")
    if isinstance(space, Box):
        check(min(space.shape, default=1) > 0, f"action_space is {space!r}, which has no action")
        is_unit = (space.low, space.high) == (-1.0, 1.0)
        check(is_unit, f"continuous actions are in [{space.low}, {space.high}], not in [-1, 1]")
    else:
        fewest = min((space.n,) if isinstance(space, Discrete) else space.nvec, default=0)
        check(fewest > 0, f"action_space is {space!r}, which has no action")
        check(isinstance(noop, int) and 0 <= noop < fewest, f"noop is {noop!r}, which is not an action of {space}")
    boxes = jax.tree.leaves(env.observation_space)
    are_boxes = boxes and all(isinstance(box, Box) for box in boxes)
    check(are_boxes, "observation_space is neither a Box nor a pytree of them")
    complete = isinstance(teams, tuple) and len(teams) == agents and all(isinstance(team, int) for team in teams)
    check(complete, f"teams is {teams!r}, not a tuple of one integer for each of {agents} agents")
    check({*teams} == {*range(max(teams) + 1)}, f"teams is {teams!r}; number them from 0, each with an agent")
    try:
        validate_layout(env)
    except UserError as error:
        raise Broken(f"{type(env).__name__}: {error}") from error


def _check_display(env: Environment) -> None:
    """Types of what algorithms and tables read."""
    check, display = functools.partial(require, env), env.display
    check(isinstance(env.limit_ends, bool), f"limit_ends is {short_repr(env.limit_ends)}, not True or False")
    check(isinstance(display, Display), f"display is {short_repr(display)}, not a marljax.core.environment.Display")
    for name, names in (("presets", env.presets), ("display.metrics", display.metrics)):
        is_names = isinstance(names, tuple | list) and all(isinstance(entry, str) for entry in names)
        check(is_names, f"{name} is {short_repr(names)}, not a tuple of names")
    for name, texts in (("display.warnings", display.warnings), ("display.units", display.units)):
        is_texts = isinstance(texts, Mapping) and all(isinstance(part, str) for pair in texts.items() for part in pair)
        check(is_texts, f"{name} is {short_repr(texts)}, not a dictionary of texts by metric")


def _check_shapes(env: Environment, env_params: EnvParams, key: jax.Array, weak_types: bool) -> None:
    """Trees, shapes and dtypes, by abstract evaluation: of one instance, of ``vectorize``, and of a batch of env_params."""

    def abstract(what: str, function: Callable, *args: Any) -> Any:
        shapes = _abstract(env, what, function, *args)
        return jax.tree.map(lambda leaf: leaf.update(weak_type=False), shapes) if weak_types else shapes

    def require_same(one: Any, other: Any, sentence: str) -> None:
        difference = shape_difference(one, other)
        check(not difference, f"{sentence}: {difference}")

    check, action = functools.partial(require, env), _action_shape(env)
    state, reset = abstract("reset", env.reset, key, env_params)
    expected = _expected_timestep(env, reset)
    actual = {name: getattr(reset, name) for name in expected}
    require_same(expected, actual, "the timestep does not match the spaces")
    scalars = isinstance(reset.metrics, dict) and all(leaf.shape == () for leaf in jax.tree.leaves(reset.metrics))
    check(scalars, "metrics is not a dictionary of scalars")
    taken = [name for name in reset.metrics if name == "length" or name.startswith(("return_", "reward_sum"))]
    check(not taken, f"metrics named {taken} would hide those of vectorize; rename them")
    next_state, step = abstract("step", env.step, key, state, action, env_params)
    resumed = abstract("reset_episode_counters", env.reset_episode_counters, state, env_params)
    restarted = abstract("restart", env.restart, key, state, env_params)
    for name, other in (("step", next_state), ("reset_episode_counters", resumed), ("restart", restarted)):
        require_same(state, other, f"the state of {name} differs from that of reset")
    require_same(reset, step, "the timestep of step differs from that of reset")
    vector = abstract("global_state", env.global_state, state, env_params)
    is_array = isinstance(vector, jax.ShapeDtypeStruct)
    is_vector = is_array and len(vector.shape) == 1 and jnp.issubdtype(vector.dtype, jnp.floating)
    found = f"{vector.dtype}{list(vector.shape)}" if is_array else f"{vector!r}"
    check(is_vector, f"global_state is {found}, not a vector of floats")
    require_same(env_params, abstract("anneal", env.anneal, env_params, jnp.zeros(())), "anneal changes the env_params")

    vec = vectorize(env, NUM_ENVS)
    actions = jax.ShapeDtypeStruct((NUM_ENVS, *action.shape), action.dtype)
    before = abstract("vectorize's reset", vec.reset, key, env_params)
    after = abstract("vectorize's step", vec.step, key, before[0], actions, env_params)
    require_same(before, after, "a vectorised step differs from a vectorised reset")
    metrics = before[1].metrics
    absent = [name for name in env.display.warnings if name not in metrics]
    check(not absent, f"display.warnings has {absent}, which are not metrics; observe reports {sorted(metrics)}")
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), env_params)
    abstract("reset over a batch of env_params", jax.vmap(env.reset, (None, 0), axis_size=2), key, batch)


def _expected_timestep(env: Environment, reset: TimeStep) -> dict[str, Any]:
    """Shapes of a timestep's fields; ``reset`` decides between the two widths that the mask of continuous actions may have."""
    agents, real = env.num_agents, jnp.zeros(()).dtype
    actions, space = num_actions(env.action_space), env.action_space
    if isinstance(space, Box) and reset.action_mask.shape[-1:] == (math.prod(space.shape),):
        actions = math.prod(space.shape)

    def leaf(path: tuple, box: Box) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(box.shape if is_shared(path) else (agents, *box.shape), real)

    return {
        "obs": jax.tree_util.tree_map_with_path(leaf, env.observation_space),
        "action_mask": jax.ShapeDtypeStruct((agents, actions), bool),
        "reward": jax.ShapeDtypeStruct((agents,), real),
        "alive": jax.ShapeDtypeStruct((agents,), bool),
        **dict.fromkeys(("first", "terminated", "truncated"), jax.ShapeDtypeStruct((), bool)),
    }


def check_scene(env: Environment, env_params: EnvParams, key: jax.Array) -> bool:
    """Whether there is a scene; if so, that it and the legend have the right types."""
    state, _ = _abstract(env, "reset", env.reset, key, env_params)
    try:
        scene = _abstract(env, "scene", env.scene, state, env_params)
    except Broken:
        raise
    except UserError:  # it has none
        return False
    require(env, isinstance(scene, Scene), f"scene returns a {type(scene).__name__}, not a marljax.core.scene.Scene")
    with user_code(type(env), "display"):
        legend = env.display.legend
    pairs = isinstance(legend, tuple | list) and all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in legend)
    is_legend = pairs and all(isinstance(name, str) and np.shape(colour) == (4,) for name, colour in legend)
    require(env, is_legend, "display.legend is not a tuple of (name, RGBA) pairs")
    return True


def scripted_policies_of(env: Environment, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """The scripted policies of an environment's class by name; raises ``UserError`` where they have a wrong type."""
    with user_code(type(env), "scripted_policies"):
        policies = env.scripted_policies(env_params)
    is_mapping = isinstance(policies, Mapping)
    require(env, is_mapping, f"scripted_policies returns {short_repr(policies)}, not a dictionary of policies by name")
    found = {}
    for name, policy in policies.items():
        scripted = policy if isinstance(policy, ScriptedPolicy) else ScriptedPolicy(env, env_params, policy)
        require(env, isinstance(name, str), f"scripted_policies has the name {short_repr(name)}; give a text")
        is_function = callable(scripted.policy)
        require(env, is_function, f"the scripted policy '{name}' is {short_repr(scripted.policy)}, not a function")
        found[name] = scripted
    return found


def _check_scripted_policies(env: Environment, env_params: EnvParams, key: jax.Array) -> None:
    """One decision of every scripted policy has the shapes that its environment takes."""
    for name, scripted in scripted_policies_of(env, env_params).items():
        what = f"the scripted policy '{name}'"

        def first_decision(key: jax.Array, scripted: ScriptedPolicy = scripted) -> Any:
            start = vectorize(scripted.env, 1).reset(key, scripted.env_params)
            state, timestep = jax.tree.map(lambda leaf: leaf[0], start)
            return scripted.policy(key, state.env, timestep, jax.tree.map(jnp.asarray, scripted.carry))

        decision = _abstract(env, what, first_decision, key)
        require(env, isinstance(decision, tuple) and len(decision) == 2, f"{what} does not return a pair (action, carry)")
        action, carry = decision
        expected, is_array = _action_shape(scripted.env), isinstance(action, jax.ShapeDtypeStruct)
        found = f"{action.dtype}{list(action.shape)}" if is_array else short_repr(action)
        kind = jnp.number if isinstance(scripted.env.action_space, Box) else jnp.integer
        fits = is_array and action.shape == expected.shape and jnp.issubdtype(action.dtype, kind)
        require(env, fits, f"{what} returns the actions {found}, not {expected.dtype}{list(expected.shape)}")
        difference = shape_difference(*(jax.eval_shape(strongly_typed, each) for each in (scripted.carry, carry)))
        require(env, not difference, f"{what} returns another carry than it started with: {difference}")


def check_mapped(env: Environment, env_params: EnvParams, key: jax.Array) -> None:
    """vmap over some leaves of env_params only, as in sweeps: every other leaf, then the rest."""
    state, _ = jax.eval_shape(env.reset, key, env_params)
    action = _action_shape(env)
    leaves, tree = jax.tree.flatten(env_params)
    for offset in range(min(2, len(leaves))):
        axes = [0 if index % 2 == offset else None for index in range(len(leaves))]
        mapped = [leaf if axis is None else jnp.stack([leaf, leaf]) for leaf, axis in zip(leaves, axes, strict=True)]
        batch, in_axes = (jax.tree.unflatten(tree, parts) for parts in (mapped, axes))
        _abstract(env, "reset", jax.vmap(env.reset, (None, in_axes)), key, batch)
        _abstract(env, "step", jax.vmap(env.step, (None, None, None, in_axes)), key, state, action, batch)
        _abstract(env, "global_state", jax.vmap(env.global_state, (None, in_axes)), state, batch)


def check_presets(env: Environment, env_params: EnvParams, key: jax.Array) -> None:
    """Presets have params of the same shapes, and environments are equal exactly if their shapes are."""
    for preset in env.presets:
        other = strongly_typed(env.preset_params(preset))
        difference = shape_difference(env_params, other)
        require(env, not difference, f"the env_params of preset '{preset}' need another program: {difference}")
        require(env, not first_nan(other), f"the env_params of preset '{preset}' have NaN in {first_nan(other)}")

    def first(env: Environment, env_params: EnvParams) -> Any:  # env.reset is cached for environments that are equal
        state = env.initial(key, env_params)
        return state, env.observe(state, env_params)

    shapes = jax.eval_shape(functools.partial(first, env), env_params)
    options = [field.name for field in dataclasses.fields(env) if field.init and getattr(env, field.name) in (*env.presets,)]
    for name in options:
        for preset in env.presets:
            other_env = dataclasses.replace(env, **{name: preset})
            other_shapes = jax.eval_shape(functools.partial(first, other_env), strongly_typed(other_env.default_params))
            same_shapes = not shape_difference(shapes, other_shapes)
            equal = other_env == env and hash(other_env) == hash(env)
            sentence = f"{name}='{preset}' changes shapes, but not equality; declare it without preset=True"
            require(env, same_shapes or not equal, sentence)
            sentence = f"{name}='{preset}' changes equality, but no shape; declare it with option(preset=True)"
            require(env, equal or not same_shapes, sentence)


def _abstract(env: Environment, what: str, function: Callable, *args: Any) -> Any:
    with user_code(type(env), what):
        return jax.eval_shape(function, *args)


def _action_shape(env: Environment) -> jax.ShapeDtypeStruct:
    dtype = jnp.zeros(()).dtype if isinstance(env.action_space, Box) else jnp.zeros((), int).dtype
    return jax.ShapeDtypeStruct((env.num_agents, *env.action_space.shape), dtype)
