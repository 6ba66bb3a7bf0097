"""A function of one environment as a single kernel for all of them, on GPUs and TPUs: ``one_kernel``.

XLA breaks a decision of many small arrays into dozens of kernels, and launching one takes longer than its arithmetic. Here every
number of an instance becomes a vector, a lane for each instance of a block. Whatever only moves numbers about (slices, stacks,
constant indices, loops over units) is carried out while tracing, on Python objects; elementwise arithmetic is left, which Pallas
compiles into one kernel that keeps everything in registers.

The time that Triton takes grows with the cube of the operations in a kernel, hence ``MAX_OPERATIONS``.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

Function = Callable[..., Any]
MAX_OPERATIONS = 3600

ELEMENTWISE = {
    "abs", "add", "and", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "exp", "floor", "ge", "gt",
    "integer_pow", "le", "log", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem", "rsqrt", "select_n", "sign",
    "sin", "sqrt", "square", "sub", "tan", "tanh", "xor",
}  # fmt: skip
# Results are some of the operands' numbers in another order; indices, their last operands, have to be constants.
REARRANGING = {
    "broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "pad", "reshape",
    "rev", "slice", "split", "squeeze", "stack", "transpose",
}  # fmt: skip
INDICES = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}  # position of the first one
REDUCTIONS = {
    "reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and", "reduce_or": "or",
}  # fmt: skip
OPERATIONS = {  # of the reductions, and the difference
    "add": jax.lax.add, "sub": jax.lax.sub, "mul": jax.lax.mul, "max": jax.lax.max, "min": jax.lax.min,
    "and": jax.lax.bitwise_and, "or": jax.lax.bitwise_or,
}  # fmt: skip
IDENTITIES = {"copy", "pvary", "reshard", "stop_gradient"}  # inside a kernel
SIGNED = {"add", "sub", "mul"}  # operations that take the sign out of their operands
COMMUTATIVE = {"add", "and", "eq", "max", "min", "mul", "ne", "or", "xor"}
CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class UnsupportedError(Exception):
    """An operation that has no place in such a kernel."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a platform's kernels see instances."""

    lanes: tuple[int, ...]  # shape of a vector
    bool_dtype: Any  # of booleans in memory

    @property
    def block(self) -> int:
        """Instances of one program of the grid."""
        return math.prod(self.lanes)


GPU = Layout((32,), jnp.int8)  # a warp
TPU = Layout((8, 128), jnp.int32)  # a vector register
PLATFORMS = {"cuda": GPU, "tpu": TPU}


def one_kernel(function: Function, otherwise: Function) -> Function:
    """``otherwise``, except under ``jax.vmap`` on a GPU or TPU: there ``function`` as one kernel.

    Where that is not possible (too many operations, one without a place in a kernel, a number of instances that blocks do not
    divide), it is ``otherwise`` there, too.

    Args:
        function: of pytrees of arrays of one instance, without random draws.
        otherwise: computes the same.
    """

    @custom_vmap
    def call(*args: Any) -> Any:
        return otherwise(*args)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        axes = tuple(jax.tree.map(lambda batched: 0 if batched else None, batched) for batched in in_batched)
        plain = jax.vmap(otherwise, in_axes=axes, axis_size=axis_size)
        layouts = {platform: layout for platform, layout in PLATFORMS.items() if axis_size % layout.block == 0}
        kernels = {name: functools.partial(in_one_kernel, function, layout, in_batched) for name, layout in layouts.items()}
        try:
            result = jax.lax.platform_dependent(*args, default=plain, **kernels)
        except UnsupportedError:
            result = plain(*args)
        return result, jax.tree.map(lambda _: True, result)

    return call


def in_one_kernel(function: Function, layout: Layout, in_batched: Any, *args: Any, interpret: bool = False) -> Any:
    """``function`` of every instance.

    Args:
        function: as in ``one_kernel``.
        layout: of the platform; its blocks divide the number of instances.
        in_batched: tree of booleans like ``args``: which have a leading axis of instances.
        args: arrays.
        interpret: carry it out in Pallas's interpreter, on any platform.

    Raises:
        UnsupportedError: while tracing, for a function that cannot be a kernel.
    """
    leaves, batched = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)], jax.tree.leaves(in_batched)
    shapes = [
        jax.ShapeDtypeStruct(leaf.shape[1:] if mapped else leaf.shape, leaf.dtype)
        for leaf, mapped in zip(leaves, batched, strict=True)
    ]
    of_one = jax.tree.unflatten(jax.tree.structure(args), shapes)
    program, result = jax.make_jaxpr(function, return_shape=True)(*of_one)

    def kernel(*refs: Any) -> None:
        sources, targets = refs[: len(shapes)], refs[len(shapes) :]
        inputs = [Numbers.read(*source) for source in zip(sources, shapes, batched, strict=True)]
        interpreter = Interpreter(layout.lanes)
        for ref, numbers in zip(targets, interpreter.run(program, inputs), strict=True):
            for row, element in enumerate(numbers.flat):
                ref[row] = interpreter.vector(element, ref.dtype)

    memory = [_to_memory(leaf, mapped, layout) for leaf, mapped in zip(leaves, batched, strict=True)]
    axis_size = next(leaf.shape[0] for leaf, mapped in zip(leaves, batched, strict=True) if mapped)
    outputs = _pallas_call(kernel, memory, batched, program.out_avals, axis_size, layout, interpret)
    results = [_from_memory(x, aval, axis_size) for x, aval in zip(outputs, program.out_avals, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(result), results)


def _pallas_call(
    kernel: Function,
    inputs: list[jax.Array],
    batched: list[bool],
    out_avals: Sequence[Any],
    axis_size: int,
    layout: Layout,
    interpret: bool,
) -> Sequence[jax.Array]:
    """The kernel over a grid of blocks of instances."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu, triton

    on_gpu = layout is GPU

    def spec(rows: int, mapped: bool) -> Any:
        if not mapped:
            return pl.BlockSpec((1, rows), lambda i: (0, 0), memory_space=None if on_gpu else tpu.SMEM)
        return pl.BlockSpec((rows, *layout.lanes), (lambda i: (0, i)) if on_gpu else (lambda i: (0, i, 0)))

    def out_shape(aval: Any) -> jax.ShapeDtypeStruct:
        shape = (math.prod(aval.shape), *_instance_axes(axis_size, layout))
        return jax.ShapeDtypeStruct(shape, layout.bool_dtype if aval.dtype == bool else aval.dtype)

    outputs = [out_shape(aval) for aval in out_avals]
    return pl.pallas_call(
        kernel,
        grid=(axis_size // layout.block,),
        in_specs=[spec(x.shape[0] if mapped else x.shape[1], mapped) for x, mapped in zip(inputs, batched, strict=True)],
        out_specs=[spec(output.shape[0], True) for output in outputs],
        out_shape=outputs,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1) if on_gpu and not interpret else None,
        interpret=interpret,
    )(*inputs)


def _instance_axes(axis_size: int, layout: Layout) -> tuple[int, ...]:
    return (axis_size // math.prod(layout.lanes[1:]), *layout.lanes[1:])


def _to_memory(leaf: jax.Array, mapped: bool, layout: Layout) -> jax.Array:
    """[numbers of an instance, instances …], or [1, numbers] of what all share."""
    if leaf.dtype == bool:
        leaf = leaf.astype(layout.bool_dtype)
    if not mapped:
        return leaf.reshape(1, -1)
    last = jnp.moveaxis(leaf, 0, -1)
    return last.reshape(math.prod(last.shape[:-1]), *_instance_axes(leaf.shape[0], layout))


def _from_memory(x: jax.Array, aval: Any, axis_size: int) -> jax.Array:
    return jnp.moveaxis(x.reshape(*aval.shape, axis_size), -1, 0).astype(aval.dtype)


# --- numbers of one instance, each a vector of lanes ------------------------------------------------------------------


class Numbers:
    """An array of one instance whose elements are vectors of lanes, or scalars that all instances share."""

    def __init__(self, elements: np.ndarray, dtype: Any) -> None:
        self.elements, self.dtype = elements, np.dtype(dtype)

    @classmethod
    def of(cls, elements: Sequence[Any], aval: Any) -> "Numbers":
        """From elements in row-major order."""
        array = np.empty(len(elements), object)
        for index, element in enumerate(elements):  # all at once, NumPy would look into the vectors
            array[index] = element
        return cls(array.reshape(aval.shape), aval.dtype)

    @classmethod
    def constant(cls, value: Any) -> "Numbers":
        """From an array that is known while tracing."""
        value = np.asarray(value)
        return cls.of([value.dtype.type(number) for number in value.ravel()], value)

    @classmethod
    def read(cls, ref: Any, shape: jax.ShapeDtypeStruct, mapped: bool) -> "Numbers":
        """From a kernel's memory; not ``mapped``: what all instances share."""
        rows = [ref[row] if mapped else ref[0, row] for row in range(math.prod(shape.shape))]
        return cls.of([row != 0 for row in rows] if shape.dtype == bool else rows, shape)

    @property
    def flat(self) -> list[Any]:
        return list(self.elements.ravel())

    @property
    def value(self) -> np.ndarray | None:
        """The array where it is known while tracing."""
        if not all(_is_known(element) for element in self.flat):
            return None
        return np.array(self.flat, self.dtype).reshape(self.elements.shape)


def _is_known(element: Any) -> bool:
    return isinstance(element, np.generic)


class Negative:
    """The negative of a vector, as an element."""

    def __init__(self, positive: Any) -> None:
        self.positive = positive


def _positive(element: Any) -> Any:
    return element.positive if isinstance(element, Negative) else element


class Interpreter:
    """Carries out a program of one instance on ``Numbers``."""

    def __init__(self, lanes: tuple[int, ...]) -> None:
        self.lanes = lanes
        self.operations = 0
        self.results: dict[Any, Any] = {}  # of operations, so that none is carried out twice
        self.kept: list[Any] = []  # their operands, whose identities are in the keys

    def run(self, program: ClosedJaxpr, inputs: Sequence[Numbers]) -> list[Numbers]:
        """Results of the program."""
        return self.evaluate(program.jaxpr, [Numbers.constant(const) for const in program.consts], inputs)

    def evaluate(self, jaxpr: Jaxpr, consts: Sequence[Numbers], inputs: Sequence[Numbers]) -> list[Numbers]:
        found: dict[Any, Numbers] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def read(variable: Any) -> Numbers:
            known = isinstance(variable, Literal)
            return Numbers.constant(np.asarray(variable.val, variable.aval.dtype)) if known else found[variable]

        for eqn in jaxpr.eqns:
            found.update(zip(eqn.outvars, self.apply(eqn, [read(variable) for variable in eqn.invars]), strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def apply(self, eqn: JaxprEqn, inputs: list[Numbers]) -> list[Numbers]:
        """The results of one equation."""
        name, params = eqn.primitive.name, eqn.params
        if name in IDENTITIES:
            return inputs
        if name in CALLS:
            return self.run(params[CALLS[name]], inputs)
        if name == "platform_index":  # as on a CPU, where loops over units are unrolled in part, and those over time are not
            platforms = params["platforms"]
            index = next(index for index, names in enumerate(platforms) if names is None or "cpu" in names)
            return [Numbers.constant(np.int32(index))]
        if name in ("scan", "cond"):
            return getattr(self, name)(eqn, inputs)
        values = [numbers.value for numbers in inputs]
        if all(value is not None for value in values):
            return [Numbers.constant(value) for value in _evaluated(eqn, values)]
        if name in ELEMENTWISE:
            return [self.elementwise(eqn, inputs)]
        if name in REARRANGING:
            return self.rearrange(eqn, inputs)
        if name in REDUCTIONS:
            return [self.reduce(REDUCTIONS[name], inputs[0], params["axes"], eqn.outvars[0].aval)]
        if name == "dot_general":
            return [self.dot(eqn, *inputs)]
        raise UnsupportedError(name)

    def operate(self, kind: str, operands: Sequence[Any]) -> Any:
        """One of ``OPERATIONS`` on vectors or scalars, unless it has been carried out on them before.

        The difference of two units is the negative of what it is the other way round, so that their distance is computed once.
        """
        if kind not in SIGNED:
            return self.carry_out(kind, OPERATIONS[kind], [self.plain(x) for x in operands])
        negative, kind, operands = self.without_signs(kind, operands)
        result = self.carry_out(kind, OPERATIONS[kind], operands)
        return Negative(result) if negative else result

    def without_signs(self, kind: str, operands: Sequence[Any]) -> tuple[bool, str, Sequence[Any]]:
        """The sign, kind and operands, none negative, of the same sum, difference or product: exact but for the sign
        of zeros."""
        (one, other), signs = map(_positive, operands), [isinstance(x, Negative) for x in operands]
        if kind == "mul":
            return signs[0] != signs[1], kind, (one, other)
        signs[1] ^= kind == "sub"
        if signs[0] == signs[1]:
            return signs[0], "add", (one, other)
        if signs[0]:
            one, other = other, one
        turned = self.key("sub", (other, one)) in self.results
        return turned, "sub", (other, one) if turned else (one, other)

    def carry_out(self, kind: str, operation: Function, operands: Sequence[Any], variant: Any = ()) -> Any:
        """The same for any operation on operands without signs; ``variant`` tells those of a kind apart."""
        key = self.key(kind, operands, variant)
        if key not in self.results:
            shape = max((np.shape(operand) for operand in operands), key=len)
            self.results[key] = operation(*[jnp.broadcast_to(jnp.asarray(operand), shape) for operand in operands])
            self.kept.append(operands)
            self.operations += 1
            if self.operations > MAX_OPERATIONS:
                raise UnsupportedError(f"more than {MAX_OPERATIONS:,} operations")
        return self.results[key]

    def key(self, kind: str, operands: Sequence[Any], variant: Any = ()) -> Any:
        names = [(str(x.dtype), x.tobytes()) if _is_known(x) else ("", id(x)) for x in operands]
        return kind, variant, *(sorted(names) if kind in COMMUTATIVE else names)

    def vector(self, element: Any, dtype: Any) -> jax.Array:
        """An element with a number for every lane."""
        return jnp.broadcast_to(jnp.asarray(self.plain(element)), self.lanes).astype(dtype)

    def plain(self, element: Any) -> Any:
        """An element that is no ``Negative``."""
        if isinstance(element, Negative):
            zero = np.zeros((), element.positive.dtype)[()]
            return self.carry_out("sub", jax.lax.sub, (zero, element.positive))  # never −0, as a difference of equals is not
        return element

    def elementwise(self, eqn: JaxprEqn, inputs: list[Numbers]) -> Numbers:
        shape = np.broadcast_shapes(*[numbers.elements.shape for numbers in inputs])
        rows = zip(*[np.broadcast_to(numbers.elements, shape).ravel() for numbers in inputs], strict=True)
        kind, operation = eqn.primitive.name, functools.partial(eqn.primitive.bind, **_local(eqn.params))
        variant = tuple(sorted((key, str(value)) for key, value in eqn.params.items()))
        even = kind in ("abs", "square") or (kind == "integer_pow" and eqn.params["y"] in (2, 4))

        def result(row: tuple[Any, ...]) -> Any:
            if kind == "select_n" and _is_known(row[0]):
                return row[1 + int(row[0])]
            if all(map(_is_known, row)):
                return _evaluated(eqn, row)[0][()]
            if kind in OPERATIONS:
                return self.operate(kind, row)
            return self.carry_out(kind, operation, [_positive(x) if even else self.plain(x) for x in row], variant)

        return Numbers.of([result(row) for row in rows], eqn.outvars[0].aval)

    def rearrange(self, eqn: JaxprEqn, inputs: list[Numbers]) -> list[Numbers]:
        """Finds out where numbers go by moving their positions instead."""
        count = INDICES.get(eqn.primitive.name, len(inputs))
        moved, indices = inputs[:count], [numbers.value for numbers in inputs[count:]]
        if any(index is None for index in indices):
            raise UnsupportedError(f"{eqn.primitive.name} at an index that differs between instances")
        ends = np.cumsum([0, *(numbers.elements.size for numbers in moved)])
        # From 1: a gather fills with 0 what lies outside.
        positions = [np.arange(first + 1, last + 1, dtype=np.int32) for first, last in itertools.pairwise(ends)]
        places = [place.reshape(numbers.elements.shape) for place, numbers in zip(positions, moved, strict=True)]
        params = {"fill_value": 0} if "fill_value" in eqn.params else {}
        elements = [element for numbers in moved for element in numbers.flat]
        results = []
        for found, variable in zip(_evaluated(eqn, [*places, *indices], params), eqn.outvars, strict=True):
            if found.size and found.min() < 1:
                raise UnsupportedError(f"{eqn.primitive.name} outside an array")
            results.append(Numbers.of([elements[place - 1] for place in found.ravel()], variable.aval))
        return results

    def fold(self, kind: str, elements: Iterable[Any]) -> Any:
        return functools.reduce(lambda one, other: self.operate(kind, (one, other)), elements)

    def reduce(self, kind: str, numbers: Numbers, axes: Sequence[int], aval: Any) -> Numbers:
        rest = [axis for axis in range(numbers.elements.ndim) if axis not in axes]
        rows = numbers.elements.transpose(*rest, *axes).reshape(math.prod(aval.shape), -1)
        if not rows.shape[1]:
            raise UnsupportedError("a reduction of nothing")
        return Numbers.of([self.fold(kind, row) for row in rows], aval)

    def dot(self, eqn: JaxprEqn, left: Numbers, right: Numbers) -> Numbers:
        (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]

        def arranged(numbers: Numbers, batch: Sequence[int], summed: Sequence[int]) -> np.ndarray:
            """[batch, rest, summed]."""
            sizes = numbers.elements.shape
            rest = [axis for axis in range(len(sizes)) if axis not in (*batch, *summed)]
            shape = [math.prod(sizes[axis] for axis in axes) for axes in (batch, rest, summed)]
            return numbers.elements.transpose(*batch, *rest, *summed).reshape(shape)

        rows = [
            self.fold("add", [self.operate("mul", pair) for pair in zip(row, column, strict=True)])
            for one, other in zip(arranged(left, left_batch, left_sum), arranged(right, right_batch, right_sum), strict=True)
            for row in one
            for column in other
        ]
        return Numbers.of(rows, eqn.outvars[0].aval)

    def cond(self, eqn: JaxprEqn, inputs: list[Numbers]) -> list[Numbers]:
        branches, (index, *operands) = eqn.params["branches"], inputs
        if index.value is None:
            raise UnsupportedError("cond, which differs between instances")
        return self.run(branches[int(np.clip(index.value, 0, len(branches) - 1))], operands)

    def scan(self, eqn: JaxprEqn, inputs: list[Numbers]) -> list[Numbers]:
        """Stays a loop if it was not to be unrolled and has a carry only."""
        params, body = eqn.params, eqn.params["jaxpr"]
        num_consts, num_carry, length = params["num_consts"], params["num_carry"], params["length"]
        consts, carry, rows = inputs[:num_consts], inputs[num_consts:][:num_carry], inputs[num_consts + num_carry :]
        if rows or len(eqn.outvars) > num_carry:
            raise UnsupportedError("a scan of rows")
        if params["unroll"] > 1:
            for _ in range(length):
                carry = self.run(body, [*consts, *carry])
            return carry
        avals: list[Any] = [variable.aval for variable in eqn.outvars]
        # Counters need no vectors.
        counters = [numbers.value is not None and _counts(body.jaxpr, num_consts + row, row) for row, numbers in enumerate(carry)]
        outer = self.results

        def widened(carry: Sequence[Numbers]) -> list[list[Any]]:
            kept = [numbers for numbers, counter in zip(carry, counters, strict=True) if not counter]
            return [[self.vector(x, numbers.dtype) for x in numbers.flat] for numbers in kept]

        def step(count: jax.Array, vectors: list[list[Any]]) -> list[list[Any]]:
            self.results, left = dict(outer), iter(vectors)
            inside = [
                Numbers.of([count.astype(aval.dtype) + numbers.flat[0]] if counter else next(left), aval)
                for numbers, aval, counter in zip(carry, avals, counters, strict=True)
            ]
            return widened(self.run(body, [*consts, *inside]))

        vectors = iter(jax.lax.fori_loop(0, length, step, widened(carry)))
        self.results = outer
        return [
            Numbers.constant(numbers.flat[0] + aval.dtype.type(length)) if counter else Numbers.of(next(vectors), aval)
            for numbers, aval, counter in zip(carry, avals, counters, strict=True)
        ]


def _counts(body: Jaxpr, before: int, after: int) -> bool:
    """Whether a loop's body adds 1 to this number."""
    made = [eqn for eqn in body.eqns if any(variable is body.outvars[after] for variable in eqn.outvars)]
    if not made or made[0].primitive.name != "add":
        return False
    one, other = made[0].invars
    return one is body.invars[before] and isinstance(other, Literal) and np.ndim(other.val) == 0 and other.val == 1


def _local(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an operation, without the sharding of whole arrays."""
    return {name: None if name == "sharding" else value for name, value in params.items()}


def _evaluated(eqn: JaxprEqn, values: Sequence[Any], params: dict[str, Any] | None = None) -> list[np.ndarray]:
    """Results of an equation for operands that are known."""
    with jax.ensure_compile_time_eval():
        results = eqn.primitive.bind(*map(jnp.asarray, values), **(_local(eqn.params) | (params or {})))
        return [np.asarray(result) for result in (results if eqn.primitive.multiple_results else [results])]
