"""The compiled training programs: a whole run as one function, and the chunks of updates that the command line runs.

Both loop over ``algorithm.update`` inside ``shard_map`` over the mesh ("seed", "data") and, on each device, ``vmap`` over the
replicas of a batch: runs that differ in their key and in traced hyperparameters. A replica whose loss or parameters become NaN or
infinite is frozen in its state before that update, except for persistent parts (a replay buffer), which nothing reads after that.

Axis letters: S replicas, E environments.
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
from marljax.config.overrides import Overrides, apply_overrides, check_scalar
from marljax.core.environment import Environment
from marljax.core.types import REPLAYED, EnvParams, with_persistent, without_persistent
from marljax.errors import UserError, short_repr, unknown
from marljax.learning.rollout import TrainState
from marljax.testing.static import check_before_training
from marljax.training.evaluation import LearnedPolicy
from marljax.training.mesh import make_mesh
from marljax.utils import collectives, distributed, memory
from marljax.utils.pytrees import first_nan, named_leaves, strongly_typed
from marljax.utils.validation import is_integer

Metrics = dict[str, jax.Array]
MAX_CHUNK = 64  # updates per compiled call
LARGE = 1024  # numbers of an array of env_params that replicas share rather than copy


class Curve(NamedTuple):
    """A metric along training: ``plt.plot(steps, values.T)`` draws a line per run."""

    steps: np.ndarray  # [num_updates] environment steps after each update
    values: jax.Array  # [..., num_updates]


class Result(struct.PyTreeNode):
    """The result of ``train``; ``jax.vmap`` puts its axes, written ``...``, in front of those of every array."""

    state: TrainState
    metrics: Metrics  # each [..., num_updates]; NaN after a divergence
    diverged_at: jax.Array  # [...] int32 update in which a value was not finite; -1 if there was none
    config: Any  # that the run trained with, overrides included
    algorithm: ModuleType = struct.field(pytree_node=False)
    env: Environment = struct.field(pytree_node=False)

    def curve(self, name: str) -> Curve:
        """A metric after each update: ``steps, returns = results.curve("return")``.

        Metrics of episodes are means over those that ended in the update, NaN where none did; others, such as ``policy_loss``,
        are as the algorithm reports them. Raises ``UserError`` for an unknown name.
        """
        own = {key.removeprefix("sum_"): values for key, values in self.metrics.items()}
        if name not in own:
            raise unknown("metric", name, own)
        values = own[name]
        if f"sum_{name}" in self.metrics:
            replayed = own[REPLAYED] if name == REPLAYED else 0.0  # these are not among the episodes
            episodes = self.metrics["episodes"] + replayed
            values = jnp.where(episodes > 0, values / episodes, jnp.nan)
        return Curve(self.config.steps_per_update * np.arange(1, values.shape[-1] + 1), values)

    def policy(self, *index: int) -> LearnedPolicy:
        """The greedy policy of a run, with its last parameters: ``results.policy()``; after ``jax.vmap`` of the run at that
        index, ``results.policy(3)``. ``dataclasses.replace(policy, greedy=False)`` samples actions.

        A run that diverged has those before it did. Raises ``UserError`` for an index that does not exist.
        """
        runs = self.diverged_at.shape
        inside = len(index) == len(runs) and all(
            is_integer(number) and -size <= number < size for number, size in zip(index, runs, strict=True)
        )
        if not inside:
            given = f"policy({', '.join(map(short_repr, index))})"
            example = f"policy({', '.join('0' for _ in runs)})"
            there = f"are {' × '.join(map(str, runs))} runs" if runs else "is a single run"
            raise UserError(f"{given} does not exist: there {there}; give {example}")
        parts = (self.config, self.state.learner.params, self.state.learner.env_params)
        config, params, env_params = jax.tree.map(lambda leaf: leaf[index], parts)
        return LearnedPolicy(self.algorithm, self.env, config, params, env_params=env_params)


class Replicas(struct.PyTreeNode):
    """The runs of one batch; every leaf but those of ``shared`` has a leading [S].

    Large arrays of env_params in which replicas do not differ, such as tables, are held once: in ``shared``, where
    ``state.learner.env_params`` has None. ``shared`` has None for all others.
    """

    state: TrainState
    config: Any  # traced leaves [S]: replicas may differ
    diverged_at: jax.Array  # [S] int32 update in which a value was not finite; -1 while healthy
    diverged_in: jax.Array  # [S] int32 quantity that was not (index into ``Trainer.quantities``)
    shared: Any = None  # env_params


def with_env_params(replica: Replicas, env_params: EnvParams) -> Replicas:
    """The replica with other env_params."""
    return replica.replace(state=replica.state._replace(learner=replica.state.learner.replace(env_params=env_params)))


def _is_none(part: Any) -> bool:
    return part is None


# The learner is replicated over "data", the actors' [E] is sharded over it. A spec per field, as a prefix of the tree.
_REPLICA: Any = PartitionSpec(collectives.SEED)
_STATE = TrainState(learner=_REPLICA, actors=PartitionSpec(collectives.SEED, collectives.DATA))  # type: ignore[arg-type]
_REPLICAS = Replicas(_STATE, config=_REPLICA, diverged_at=_REPLICA, diverged_in=_REPLICA, shared=PartitionSpec())


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled programs of a batch of runs on a mesh: ``init`` creates the replicas, ``run`` advances (and donates) them."""

    algorithm: ModuleType
    env: Environment
    config: Any  # static fields shape the program; traced leaves are the default of every replica
    mesh: Mesh

    @property
    def num_updates(self) -> int:
        return self.config.num_updates

    @property
    def steps_per_update(self) -> int:
        return self.config.steps_per_update

    def init(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> Replicas:
        """Replicas for keys [S]; ``overrides`` holds [S] values by name, as in ``make_train``, all else is shared."""
        count = keys.shape[0]
        if count % self.mesh.shape[collectives.SEED]:
            raise UserError(f"{count} seeds do not divide over {self.mesh.shape[collectives.SEED]} devices along 'seed'")
        with lean_tracing():
            return _init(self, keys, env_params, as_traced(self.config), dict(overrides or {}))

    def with_params(self, replicas: Replicas, params: Any) -> Replicas:
        """New replicas with the parameters [S, …] of trained ones, and an optimiser and counters of their own."""
        learner = replicas.state.learner
        placed = jax.tree.map(lambda value, like: distributed.place(value, like.sharding), params, learner.params)
        replace = getattr(self.algorithm, "with_params", lambda learner, params: learner.replace(params=params))
        return replicas.replace(state=replicas.state._replace(learner=replace(learner, placed)))

    def shapes(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> Replicas:
        """The result of ``init`` as ``jax.ShapeDtypeStruct`` with shardings."""
        replicas = jax.eval_shape(self.init, keys, env_params, overrides)

        def with_sharding(spec: PartitionSpec, part: Any) -> Any:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

        return jax.tree.map(with_sharding, _REPLICAS, replicas, is_leaf=lambda part: isinstance(part, PartitionSpec))

    def run(self, replicas: Replicas, num_updates: int) -> tuple[Replicas, Metrics]:
        """``num_updates`` more updates; metrics are [S, num_updates]. One program serves all values of ``num_updates``."""
        parts = []
        with lean_tracing():
            for done in range(0, num_updates, MAX_CHUNK):
                count = min(MAX_CHUNK, num_updates - done)
                replicas, metrics = _run(self, replicas, jnp.asarray(count, jnp.int32))
                parts.append({name: values[:, :count] for name, values in metrics.items()})
        return replicas, jax.tree.map(lambda *values: jnp.concatenate(values, axis=1), *parts)

    def lower(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> jax.stages.Lowered:
        """The program of ``run``, traced for the result of ``init`` but not compiled."""
        with lean_tracing():
            shapes = self.shapes(keys, env_params, overrides)
            return _run.lower(self, shapes, jax.ShapeDtypeStruct((), jnp.int32))

    def needs(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> int:
        """Bytes that ``run`` takes in one memory (of a GPU, of all CPU devices), replicas included, as the compiler reports them;
        ``at_most`` where it does not."""
        with lean_tracing():
            analysis = self.lower(keys, env_params, overrides).compile().memory_analysis()
        if analysis is None:
            return self.at_most(keys, env_params, overrides)
        arrays = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        return (arrays + analysis.temp_size_in_bytes) * memory.sharing(self.mesh)

    def at_most(self, keys: jax.Array, env_params: EnvParams, overrides: Overrides | None = None) -> int:
        """Upper bound of ``needs`` that compiles nothing: bytes if no intermediate array were freed, several times too many."""
        with lean_tracing():
            shapes = self.shapes(keys, env_params, overrides)
            program = jax.make_jaxpr(lambda replicas: self.run(replicas, 1))(shapes)
        return (self.bytes_of(shapes) + memory.output_bytes(program.jaxpr)) * memory.sharing(self.mesh)

    def bytes_of(self, replicas: Replicas) -> int:
        """Bytes of replicas, or of their shapes, on each device."""
        return memory.size(replicas.replace(shared=None)) // self.mesh.size + memory.size(replicas.shared)

    @functools.cached_property
    def quantities(self) -> tuple[str, ...]:
        """The names that ``diverged_in`` indexes: the metrics of an update, then the parameters."""
        keys = jax.random.split(jax.random.key(0), self.mesh.shape[collectives.SEED])
        replicas = jax.eval_shape(lambda: self.init(keys, self.env.default_params))
        _, metrics = jax.eval_shape(lambda replicas: self.run(replicas, 1), replicas)
        return (*by_cause(metrics), "params")


@functools.partial(jax.jit, static_argnums=0)
def _init(trainer: Trainer, keys: jax.Array, env_params: EnvParams, config: Any, overrides: dict[str, jax.Array]) -> Replicas:
    def init(keys: jax.Array, overrides: dict[str, jax.Array], config: Any, env_params: EnvParams) -> Replicas:
        _, changed = apply_overrides(config, env_params, jax.tree.map(lambda values: values[0], overrides))

        def is_shared(leaf: Any, other: Any) -> bool:
            return leaf is other and leaf.size >= LARGE

        shares = jax.tree.map(is_shared, env_params, changed)
        shared = jax.tree.map(lambda leaf, shares: leaf if shares else None, env_params, shares)

        def init_replica(inputs: tuple[jax.Array, dict[str, jax.Array]]) -> Replicas:
            key, overrides = inputs
            own_config, own_params = apply_overrides(config, env_params, overrides)
            state = trainer.algorithm.init(trainer.env, own_params, own_config, key)
            replica = Replicas(state, own_config, jnp.array(-1, jnp.int32), jnp.array(-1, jnp.int32))
            own = jax.tree.map(lambda leaf, shares: None if shares else leaf, state.learner.env_params, shares)
            # A weakly typed leaf would become strongly typed in the first chunk, and the second chunk would be traced again.
            return strongly_typed(with_env_params(replica, own))

        return vmap_replicas(init_replica)((keys, overrides)).replace(shared=strongly_typed(shared))

    in_specs = (_REPLICA, _REPLICA, PartitionSpec(), PartitionSpec())
    sharded = jax.shard_map(init, mesh=trainer.mesh, in_specs=in_specs, out_specs=_REPLICAS, check_vma=False)
    return sharded(keys, overrides, config, env_params)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _run(trainer: Trainer, replicas: Replicas, count: jax.Array) -> tuple[Replicas, Metrics]:
    """``count`` more updates; metrics are [S, MAX_CHUNK], of which the first ``count`` are valid.

    The length of the loop is an input: XLA fuses, and so rounds, loops of different known lengths differently, and a run would
    depend on how it is cut into chunks.
    """

    def run(replicas: Replicas, count: jax.Array) -> tuple[Replicas, Metrics]:
        def run_replica(replica: Replicas) -> tuple[Replicas, Metrics]:
            def whole_update(replica: Replicas) -> tuple[Replicas, Metrics]:
                own = replica.state.learner.env_params
                whole = jax.tree.map(lambda part, common: common if part is None else part, own, shared, is_leaf=_is_none)
                updated, metrics = guarded_update(trainer.algorithm, trainer.env, with_env_params(replica, whole))
                return with_env_params(updated, own), metrics

            step = jax.jit(whole_update)  # traced once, used twice
            _, shapes = jax.eval_shape(step, replica)
            log = {name: jnp.zeros((MAX_CHUNK, *shape.shape), shape.dtype) for name, shape in shapes.items()}

            def body(index: jax.Array, carry: tuple[Replicas, Metrics]) -> tuple[Replicas, Metrics]:
                replica, log = carry
                replica, metrics = step(replica)
                return replica, {name: log[name].at[index].set(value) for name, value in metrics.items()}

            return jax.lax.fori_loop(0, count, body, (replica, log))

        shared = replicas.shared
        replicas, metrics = vmap_replicas(run_replica)(replicas.replace(shared=None))
        return replicas.replace(shared=shared), metrics

    in_specs, out_specs = (_REPLICAS, PartitionSpec()), (_REPLICAS, _REPLICA)
    sharded = jax.shard_map(run, mesh=trainer.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return sharded(replicas, count)


@contextlib.contextmanager
def lean_tracing() -> Iterator[None]:
    """Traces and compiles faster, without garbage collection (tracing frees next to nothing) and without a Python traceback for
    every operation of the compiled program."""
    enabled, limit = gc.isenabled(), jax.config.jax_traceback_in_locations_limit  # type: ignore[attr-defined]
    gc.disable()
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", limit)
        if enabled:
            gc.enable()


def vmap_replicas(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``jax.vmap``, except that a single replica is not batched: a smaller program."""

    def apply(replicas: Any) -> Any:
        if jax.tree.leaves(replicas)[0].shape[0] > 1:
            return jax.vmap(function)(replicas)
        return jax.tree.map(lambda leaf: leaf[None], function(jax.tree.map(lambda leaf: leaf[0], replicas)))

    return apply


def guarded_update(algorithm: ModuleType, env: Environment, replica: Replicas) -> tuple[Replicas, Metrics]:
    """One update of one replica, undone and recorded where a value is not finite; a frozen replica reports NaN."""
    state, metrics = algorithm.update(env, replica.config, replica.state)
    # The state keeps its dtypes; with JAX_ENABLE_X64 an update may mix 32 and 64 bits.
    state = jax.tree.map(lambda new, old: new.astype(old.dtype), strongly_typed(state), replica.state)
    names = by_cause(metrics)
    values = jnp.stack([metrics[name] for name in names])
    floats = [leaf.ravel() for leaf in jax.tree.leaves(state.learner.params) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    bad_params = collectives.total(jnp.any(~jnp.isfinite(jnp.concatenate(floats))).astype(jnp.int32)) != 0  # in any shard
    nonfinite = jnp.append(~jnp.isfinite(values), bad_params)
    fails = jnp.any(nonfinite) & (replica.diverged_at < 0)
    frozen = fails | (replica.diverged_at >= 0)
    # Persistent parts, such as a replay buffer, go on: choosing between two versions would copy them in every update.
    chosen = jax.lax.cond(
        frozen, lambda new, old: old, lambda new, old: new, without_persistent(state), without_persistent(replica.state)
    )
    updated = Replicas(
        state=with_persistent(chosen, state),
        config=replica.config,
        diverged_at=jnp.where(fails, replica.state.learner.updates, replica.diverged_at),
        diverged_in=jnp.where(fails, jnp.argmax(nonfinite).astype(jnp.int32), replica.diverged_in),
    )
    return updated, dict(zip(names, jnp.where(frozen, jnp.nan, values), strict=True))


def by_cause(names: Iterable[str]) -> list[str]:
    """Metrics in causal order: environment, losses, the rest."""
    return sorted(names, key=lambda name: (not name.startswith("sum_"), "loss" not in name, name))


def make_train(algorithm: ModuleType, env: Environment, config: Any, env_params: EnvParams | None = None):
    """A whole run as one pure function ``train(key, overrides={}) -> Result``, to be jitted and vmapped.

    ``overrides`` sets traced fields of the config by name (``{"learning_rate": 1e-3}``) and, with the prefix ``env.``, params of
    the environment or of the one inside a wrapper (``{"env.headway_weight": 2.0}``):
    ``jax.vmap(train)(keys, {"learning_rate": rates})`` is a sweep in one program. ``env_params`` default to
    ``env.default_params``.

    Example:
        train = marljax.make_train(mappo, env, mappo.Config(total_steps=200_000))
        results = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 8))
        steps, returns = results.curve("return")  # [num_updates], [8, num_updates]
        marljax.play(env, results.policy(0))

    Raises:
        UserError: ``make_train`` for an argument of another type and an environment that breaks its contract; ``train`` for
            anything but one key, and for overrides that do not exist or are out of range.
    """
    _check_arguments(algorithm, env, config)
    mesh, base_params = make_mesh(), env.resolve_params(env_params)
    _check_nan(base_params)
    check_before_training(env, base_params)

    def run(key: jax.Array, config: Any, env_params: EnvParams) -> Result:
        init = jax.jit(functools.partial(algorithm.init, env))  # traced once for both uses
        size = memory.size(jax.eval_shape(init, env_params, config, key))
        memory.check(size, "a run", "lower num_envs, or the replay buffer's size (buffer_size)")
        replica = Replicas(init(env_params, config, key), config, jnp.array(-1, jnp.int32), jnp.array(-1, jnp.int32))
        step = functools.partial(guarded_update, algorithm, env)
        replica, metrics = jax.lax.scan(lambda replica, _: step(replica), replica, length=config.num_updates)
        return Result(replica.state, metrics, replica.diverged_at, config, algorithm, env)

    def train(key: jax.Array, overrides: dict[str, Any] | None = None) -> Result:
        _check_key(key)
        own_config, env_params = apply_overrides(config, base_params, {} if overrides is None else overrides)
        _check_nan(env_params)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(env_params)):
            with jax.ensure_compile_time_eval():  # jax.jit would trace the computations of the checks, too
                env.check_params(jax.device_get(env_params))
        sharded = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(),) * 3, out_specs=PartitionSpec(), check_vma=False)
        return sharded(key, as_traced(own_config), jax.tree.map(jnp.asarray, env_params))

    return train


def _check_nan(env_params: EnvParams) -> None:
    """Raises ``UserError`` for NaN in params that are not traced."""
    concrete = {name: leaf for name, leaf in named_leaves(env_params) if not isinstance(leaf, jax.core.Tracer)}
    if name := first_nan(concrete):
        raise UserError(f"env_params hold NaN in {name}; give a number")


def _check_key(key: Any) -> None:
    """Raises ``UserError`` for anything but one key, typed (``jax.random.key``) or not (``jax.random.PRNGKey``)."""
    is_array = isinstance(key, jax.Array | np.ndarray)
    typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_array or not (typed or key.dtype == np.uint32) or key.ndim != (0 if typed else 1):
        value = f"{key.dtype}{list(key.shape)}" if is_array else short_repr(key)
        raise UserError(f"train got {value}; give one key, such as jax.random.key(0), and jax.vmap(train) for several")


def _check_arguments(algorithm: ModuleType, env: Environment, config: Any) -> None:
    """Raises ``UserError`` where an argument of ``make_train`` has the wrong type."""
    if not all(hasattr(algorithm, name) for name in ("Config", "init", "update")):
        advice = "give its module, such as mappo after: from marljax.algos import mappo"
        raise UserError(f"{short_repr(algorithm)} is not an algorithm; {advice}")
    if not isinstance(env, Environment):
        raise UserError(f"{short_repr(env)} is not an environment; create one, such as marljax.make('merge')")
    if not isinstance(config, algorithm.Config):
        kind = f"{type(config).__module__}.{type(config).__qualname__}"
        raise UserError(f"config is a {kind}; give a {algorithm.__name__}.Config")
    for field in dataclasses.fields(config):
        if not is_static(field):
            check_scalar(field.name, getattr(config, field.name))
