"""The compiled training programs: a whole run as one function, and the chunks that the command line drives.

Both run ``algorithm.update`` in a scan, inside ``shard_map`` over the mesh ("seed", "data") and, per device, ``vmap`` over
members: the runs of one batch, which differ in their key and in traced hyperparameters. A member whose numbers are no longer
finite is frozen as it was before that update, but for lasting parts (a replay), which nothing reads any more.
"""

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marljax.config.hyperparameters import as_traced, is_static
from marljax.config.overrides import Overrides, check_single, overridden
from marljax.core.environment import Environment
from marljax.core.types import EnvParams, with_persistent, without_persistent
from marljax.errors import UserError, short_repr
from marljax.learning.rollout import TrainState
from marljax.testing.static import check_before_training
from marljax.training.mesh import make_mesh
from marljax.utils import collectives, memory
from marljax.utils.pytrees import first_nan, named_leaves, strongly_typed

Metrics = dict[str, jax.Array]
LONGEST = 64  # updates of a chunk; the host has to look now and then


class Result(NamedTuple):
    """What ``train`` returns."""

    state: TrainState
    metrics: Metrics  # each [num_updates]; NaN after a member diverged
    diverged_at: jax.Array  # int32 update in which a number stopped being finite; -1 if none did


class Members(struct.PyTreeNode):
    """The runs of one batch; every leaf has a leading [S]."""

    state: TrainState
    config: Any  # its traced leaves, [S] each: members may differ
    diverged_at: jax.Array  # [S] int32 update in which a number stopped being finite; -1 while healthy
    diverged_in: jax.Array  # [S] int32 which quantity (index into ``Trainer.quantities``)


# learner: replicated over data; actors: their leading [E] is sharded over data. One spec per field, a prefix of the tree.
_MEMBER: Any = PartitionSpec(collectives.SEED)
_STATE = TrainState(learner=_MEMBER, actors=PartitionSpec(collectives.SEED, collectives.DATA))  # type: ignore[arg-type]
_MEMBERS = Members(state=_STATE, config=_MEMBER, diverged_at=_MEMBER, diverged_in=_MEMBER)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled pieces of a batch of runs on a mesh.

    ``init`` makes the members, ``run`` advances them by some updates and donates what it is given.
    """

    algorithm: ModuleType
    env: Environment
    config: Any  # its static fields shape the program; its traced leaves are the default of every member
    mesh: Mesh

    @property
    def num_updates(self) -> int:
        return self.config.num_updates

    @property
    def steps_per_update(self) -> int:
        return self.config.steps_per_update

    def init(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> Members:
        """Members for keys [S]: ``overrides`` are [S] by name, as ``make_train`` takes them; other numbers are shared by all."""
        count = keys.shape[0]
        if count % self.mesh.shape[collectives.SEED]:
            raise UserError(f"{count} seeds do not divide over {self.mesh.shape[collectives.SEED]} devices along 'seed'")
        with lean_tracing():
            return _init(self, keys, env_params, as_traced(self.config), dict(overrides or {}))

    def shapes(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> Members:
        """What ``init`` would return as ``jax.ShapeDtypeStruct``, with the places of its arrays."""
        members = jax.eval_shape(self.init, keys, env_params, overrides)

        def placed(spec: PartitionSpec, part: Any) -> Any:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

        return jax.tree.map(placed, _MEMBERS, members, is_leaf=lambda part: isinstance(part, PartitionSpec))

    def run(self, members: Members, num_updates: int) -> tuple[Members, Metrics]:
        """``num_updates`` more updates; metrics are [S, num_updates]. One program serves all numbers."""
        parts = []
        with lean_tracing():
            for done in range(0, num_updates, LONGEST):
                count = min(LONGEST, num_updates - done)
                members, metrics = _run(self, members, jnp.asarray(count, jnp.int32))
                parts.append({name: values[:, :count] for name, values in metrics.items()})
        return members, jax.tree.map(lambda *values: jnp.concatenate(values, axis=1), *parts)

    def needs(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> int:
        """Bytes of one memory (a GPU's, a CPU's) that ``run`` takes with such members, their arrays included.

        The compiler reports it; a backend that says nothing leaves ``at_most``.
        """
        with lean_tracing():
            shapes = self.shapes(keys, env_params, overrides)
            found = _run.lower(self, shapes, jax.ShapeDtypeStruct((), jnp.int32)).compile().memory_analysis()
        if found is None:
            return self.at_most(keys, env_params, overrides)
        kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        return (kept + found.temp_size_in_bytes) * memory.sharing(self.mesh)

    def at_most(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> int:
        """Bytes of one memory that ``run`` would take if nothing in it were ever freed: quickly known, several times too much."""
        with lean_tracing():
            shapes = self.shapes(keys, env_params, overrides)
            program = jax.make_jaxpr(lambda members: self.run(members, 1))(shapes)
        return (memory.size(shapes) // self.mesh.size + memory.made_by(program.jaxpr)) * memory.sharing(self.mesh)

    @functools.cached_property
    def quantities(self) -> tuple[str, ...]:
        """What ``diverged_in`` counts: the named outputs of an update, then the parameters."""
        keys = jax.random.split(jax.random.key(0), self.mesh.shape[collectives.SEED])
        members = jax.eval_shape(lambda: self.init(keys, self.env.default_params))
        _, metrics = jax.eval_shape(lambda members: self.run(members, 1), members)
        return (*by_cause(metrics), "params")


@functools.partial(jax.jit, static_argnums=0)
def _init(trainer: Trainer, keys: jax.Array, env_params: EnvParams, config: Any, overrides: dict[str, jax.Array]) -> Members:
    def members(keys: jax.Array, overrides: dict[str, jax.Array], config: Any, env_params: EnvParams) -> Members:
        def member(given: tuple[jax.Array, dict[str, jax.Array]]) -> Members:
            key, overrides = given
            own, own_params = overridden(config, env_params, overrides)
            state = trainer.algorithm.init(trainer.env, own_params, own, key)
            # A weakly typed leaf would become strong in the first chunk and trace the second one anew.
            return strongly_typed(Members(state, own, jnp.array(-1, jnp.int32), jnp.array(-1, jnp.int32)))

        return of_each(member)((keys, overrides))

    return jax.shard_map(
        members,
        mesh=trainer.mesh,
        in_specs=(_MEMBER, _MEMBER, PartitionSpec(), PartitionSpec()),
        out_specs=_MEMBERS,
        check_vma=False,
    )(keys, overrides, config, env_params)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _run(trainer: Trainer, members: Members, count: jax.Array) -> tuple[Members, Metrics]:
    """``count`` more updates; metrics are [S, LONGEST], of which the first ``count`` count.

    That number is an input, because for every length of a loop that it knows XLA may fuse, and so round, in another way: a run
    would depend on how it was cut into chunks.
    """

    def chunk(members: Members, count: jax.Array) -> tuple[Members, Metrics]:
        def member(member: Members) -> tuple[Members, Metrics]:
            step = jax.jit(functools.partial(guarded_update, trainer.algorithm, trainer.env))  # traced once, used twice
            _, shapes = jax.eval_shape(step, member)
            kept = {name: jnp.zeros((LONGEST, *shape.shape), shape.dtype) for name, shape in shapes.items()}

            def one(number: jax.Array, carried: tuple[Members, Metrics]) -> tuple[Members, Metrics]:
                member, kept = carried
                member, metrics = step(member)
                return member, {name: kept[name].at[number].set(value) for name, value in metrics.items()}

            return jax.lax.fori_loop(0, count, one, (member, kept))

        return of_each(member)(members)

    return jax.shard_map(
        chunk, mesh=trainer.mesh, in_specs=(_MEMBERS, PartitionSpec()), out_specs=(_MEMBERS, _MEMBER), check_vma=False
    )(members, count)


@contextlib.contextmanager
def lean_tracing() -> Iterator[None]:
    """Programs are traced and compiled faster without two things that help nobody here: looking for garbage among the objects of
    tracing, all of which stay, and the Python traceback of every operation in the compiled program."""
    collects, locations = gc.isenabled(), jax.config.jax_traceback_in_locations_limit  # type: ignore[attr-defined]
    gc.disable()
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", locations)
        if collects:
            gc.enable()


def of_each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``jax.vmap``, but a single member stays without it: a smaller program."""

    def apply(members: Any) -> Any:
        if jax.tree.leaves(members)[0].shape[0] > 1:
            return jax.vmap(function)(members)
        return jax.tree.map(lambda leaf: leaf[None], function(jax.tree.map(lambda leaf: leaf[0], members)))

    return apply


def guarded_update(algorithm: ModuleType, env: Environment, member: Members) -> tuple[Members, Metrics]:
    """One update of one member, undone and remembered where a number stops being finite; a frozen member reports NaN."""
    state, metrics = algorithm.update(env, member.config, member.state)
    # The state keeps its dtypes; with JAX_ENABLE_X64 an update may mix 32 and 64 bits.
    state = jax.tree.map(lambda new, old: new.astype(old.dtype), strongly_typed(state), member.state)
    names = by_cause(metrics)
    values = jnp.stack([metrics[name] for name in names])
    broken = jnp.append(~jnp.isfinite(values), ~all_finite(state.learner.params))
    fails = jnp.any(broken) & (member.diverged_at < 0)
    frozen = fails | (member.diverged_at >= 0)
    # What lasts, such as a replay, goes on: to choose between two of it would copy it in every update.
    chosen = jax.lax.cond(
        frozen, lambda new, old: old, lambda new, old: new, without_persistent(state), without_persistent(member.state)
    )
    kept = Members(
        state=with_persistent(chosen, state),
        config=member.config,
        diverged_at=jnp.where(fails, member.state.learner.updates, member.diverged_at),
        diverged_in=jnp.where(fails, jnp.argmax(broken).astype(jnp.int32), member.diverged_in),
    )
    return kept, dict(zip(names, jnp.where(frozen, jnp.nan, values), strict=True))


def by_cause(names: Iterable[str]) -> list[str]:
    """Quantities in the order in which trouble spreads: what the environment reports, losses, then all that follows from them."""
    return sorted(names, key=lambda name: (not name.startswith("sum_"), "loss" not in name, name))


def all_finite(tree: Any) -> jax.Array:
    """Whether every number of every shard is finite."""
    numbers = [leaf.ravel() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    bad = jnp.any(~jnp.isfinite(jnp.concatenate(numbers)))
    return collectives.total(bad.astype(jnp.int32)) == 0


def make_train(algorithm: ModuleType, env: Environment, config: Any, env_params: EnvParams | None = None):
    """A whole run as one pure function ``train(key, overrides={}) -> Result``, to be jitted and vmapped at will.

    ``overrides`` names traced leaves of the config (``{"learning_rate": 1e-3}``) and, with the prefix ``env.``, numbers of the
    environment (``{"env.headway_weight": 2.0}``), also of one inside a wrapper;
    ``jax.vmap(train)(keys, {"learning_rate": rates})`` is a sweep in one program.
    ``env_params`` are ``env.default_params`` where they are not given. ``make_train`` raises ``UserError`` where an argument is
    another thing than it should be or the environment breaks its contract, ``train`` for what is no single key and for overrides
    that do not exist or are out of range.

    Example:
        train = marljax.make_train(mappo, env, mappo.Config(total_steps=200_000))
        results = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 8))
    """
    _check_given(algorithm, env, config)
    mesh, numbers = make_mesh(), env.resolve_params(env_params)
    check_known(numbers)
    check_before_training(env, numbers)

    def body(key: jax.Array, config: Any, env_params: EnvParams) -> Result:
        init = jax.jit(functools.partial(algorithm.init, env))  # traced once for its size and its arrays
        size = memory.size(jax.eval_shape(init, env_params, config, key))
        memory.check(size, "a run", "lower num_envs, or what is replayed (buffer_size)")
        state = init(env_params, config, key)
        member = Members(state, config, jnp.array(-1, jnp.int32), jnp.array(-1, jnp.int32))
        step = functools.partial(guarded_update, algorithm, env)
        member, metrics = jax.lax.scan(lambda member, _: step(member), member, length=config.num_updates)
        return Result(member.state, metrics, member.diverged_at)

    def train(key: jax.Array, overrides: dict[str, Any] | None = None) -> Result:
        _check_key(key)
        changed, env_params = overridden(config, numbers, {} if overrides is None else overrides)
        check_known(env_params)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(env_params)):
            with jax.ensure_compile_time_eval():  # under jax.jit what checks compute would be traced, too
                env.check_params(jax.device_get(env_params))
        everywhere = PartitionSpec()
        return jax.shard_map(body, mesh=mesh, in_specs=(everywhere,) * 3, out_specs=everywhere, check_vma=False)(
            key, as_traced(changed), as_traced_params(env_params)
        )

    return train


def check_known(env_params: EnvParams) -> None:
    """Raises ``UserError`` for NaN among those numbers that are not traced."""
    known = [(name, leaf) for name, leaf in named_leaves(env_params) if not isinstance(leaf, jax.core.Tracer)]
    if unknown := first_nan(dict(known)):
        raise UserError(f"env_params hold NaN in {unknown}; give a number")


def as_traced_params(env_params: EnvParams) -> EnvParams:
    """env_params as arrays, so that Python numbers do not become part of the program."""
    return jax.tree.map(jnp.asarray, env_params)


def _check_key(key: Any) -> None:
    """Raises ``UserError`` for anything but one key, typed (``jax.random.key``) or not (``jax.random.PRNGKey``)."""
    is_array = isinstance(key, jax.Array | np.ndarray)
    typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_array or not (typed or key.dtype == np.uint32) or key.ndim != (0 if typed else 1):
        given = f"{key.dtype}{list(key.shape)}" if is_array else short_repr(key)
        raise UserError(f"train got {given}; give one key, such as jax.random.key(0), and jax.vmap(train) for several")


def _check_given(algorithm: ModuleType, env: Environment, config: Any) -> None:
    """Raises ``UserError`` where an argument of ``make_train`` is another thing than it should be."""
    needs = [name for name in ("Config", "init", "update") if not hasattr(algorithm, name)]
    if needs:
        raise UserError(
            f"{short_repr(algorithm)} is no algorithm; give its module, such as mappo after: from marljax.algos import mappo"
        )
    if not isinstance(env, Environment):
        raise UserError(f"{short_repr(env)} is no environment; make one, such as marljax.make('merge')")
    if not isinstance(config, algorithm.Config):
        given = f"{type(config).__module__}.{type(config).__qualname__}"
        raise UserError(f"config is a {given}; give a {algorithm.__name__}.Config")
    for field in dataclasses.fields(config):
        if not is_static(field):
            check_single(field.name, getattr(config, field.name))
