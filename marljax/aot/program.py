"""What a compiled program does on an accelerator: kernels, bytes and collectives, loop by loop, read from its optimised HLO.

Nothing here is measured. A kernel is one launch of a GPU; its bytes are those of its operands and results, of which a slice that
is read and a buffer that is updated in place count with the part that moves. A kernel is estimated to take as long as its bytes
at the memory's bandwidth, and no less than a launch; arithmetic, the host and gaps between kernels are not in the estimate.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

# Instructions without a kernel of their own; the bodies of loops and branches are counted apart.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "while", "conditional", "call", "add-dependency", "get-dimension-size", "iota",
}  # fmt: skip
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"}
PART_READERS = {"dynamic-slice", "slice", "gather"}  # a fusion that uses an operand only through these reads a part of it
SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    arguments: str  # as written
    attributes: str
    root: bool

    @property
    def bytes(self) -> float:
        """Bytes of the result, without the workspace of a library call."""
        return shape_bytes(re.sub(r"s8\[\d+\]", "", self.shape) if self.op == "custom-call" else self.shape)

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute names, such as ``body``."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if found:
            return [name.strip().lstrip("%") for name in found[1].split(",")]
        return [name for kind in ("true_computation", "false_computation") if (name := self.called(kind))]


Computation = dict[str, Instruction]


@dataclasses.dataclass
class Work:
    """What one pass through a part of a program does, its inner loops included."""

    kernels: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0  # estimated
    collectives: float = 0.0
    collective_bytes: float = 0.0

    def add(self, other: "Work", times: float = 1.0) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + times * getattr(other, field.name))


@dataclasses.dataclass
class Loop:
    """A loop of a program; the program itself is one with a single iteration."""

    trip_count: int  # 1 where the compiler does not know it
    work: Work  # of one iteration, inner loops included
    inner: list["Loop"]

    @property
    def update(self) -> "Loop":
        """The inner loop with the most work per iteration, in a training program an update; this one where there is none."""
        return max(self.inner, key=lambda loop: loop.work.seconds, default=self)

    def walk(self) -> Iterator["Loop"]:
        """This loop and all in it."""
        yield self
        for loop in self.inner:
            yield from loop.walk()


def shape_bytes(shape: str) -> float:
    """Bytes of an array, or of all arrays of a tuple, from their HLO type."""

    def width(dtype: str) -> float:
        digits = re.search(r"\d+", dtype)
        return int(digits[0]) / 8 if digits else float(dtype == "pred")

    return sum(width(dtype) * math.prod(int(size) for size in sizes.split(",") if size) for dtype, sizes in SHAPE.findall(shape))


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of an HLO module by name, and the name of the entry."""
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in re.sub(r"/\*index=\d+\*/", "", text).splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
            current = computations[name] = {}
            entry = name if line.startswith("ENTRY") else entry
        elif found := INSTRUCTION.match(line):
            name, shape, op, rest = found.groups()
            arguments, attributes = _split_arguments(rest)
            operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
            current[name] = Instruction(name, shape, op, operands, arguments, attributes, line.lstrip().startswith("ROOT "))
    return computations, entry


def _split_arguments(rest: str) -> tuple[str, str]:
    """Arguments and attributes of ``op(arguments), attributes``, after the opening bracket."""
    depth = 1
    for position, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return rest[:position], rest[position + 1 :]
    return rest, ""


def trip_count(loop: Instruction, computations: Mapping[str, Computation]) -> int:
    """Iterations of a ``while``, from its condition where it counts from 0; 1 where the compiler does not know them."""
    if known := re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes):
        return int(known[1])
    condition = computations.get(loop.called("condition") or "", {})
    for instruction in condition.values():
        if instruction.root and instruction.op == "compare" and "direction=LT" in instruction.attributes:
            limits = [condition[name] for name in instruction.operands if name in condition]
            return next((int(limit.arguments) for limit in limits if limit.op == "constant"), 1)
    return 1


def analyse(text: str, launch: float, bandwidth: float) -> Loop:
    """The loops of a compiled program, from ``compiled.as_text()``.

    Where a conditional chooses, its most expensive branch counts.

    Args:
        text: optimised HLO.
        launch: s, the least that a kernel takes.
        bandwidth: bytes/s of the device's memory.
    """
    computations, entry = parse(text)

    def called(instruction: Instruction) -> Loop | None:
        """What an instruction passes through once, other than a loop's body."""
        if instruction.op == "conditional":
            return max((visit(branch, 1) for branch in instruction.branches), key=lambda branch: branch.work.seconds)
        callee = _callee(instruction, computations) if instruction.op in ("call", "async-start") else None
        return visit(callee, 1) if callee else None

    def visit(name: str, iterations: int) -> Loop:
        computation, loop = computations[name], Loop(iterations, Work(), [])
        for instruction in computation.values():
            if instruction.op == "while" and (body := instruction.called("body")):
                inner = visit(body, trip_count(instruction, computations))
                loop.inner.append(inner)
                loop.work.add(inner.work, inner.trip_count)
            elif part := called(instruction):
                loop.inner += part.inner
                loop.work.add(part.work)
            elif not _is_free(instruction):
                loop.work.add(_kernel(instruction, computation, computations, launch, bandwidth))
        return loop

    return visit(entry, 1)


def _is_free(instruction: Instruction) -> bool:
    """Whether it has no kernel: a scalar of loop control, or the ``-done`` of an asynchronous operation."""
    op = instruction.op
    if op in FREE or op.endswith(("-done", "-update")):
        return True
    is_number = re.match(r"\w+\[\]", instruction.shape) is not None
    return is_number and op not in ("fusion", "custom-call", "reduce", "dot") and op.removesuffix("-start") not in COLLECTIVES


def _callee(instruction: Instruction, computations: Mapping[str, Computation]) -> str | None:
    name = instruction.called("to_apply") or instruction.called("calls")
    return name if name in computations else None


def _kernel(
    instruction: Instruction,
    computation: Computation,
    computations: Mapping[str, Computation],
    launch: float,
    bandwidth: float,
) -> Work:
    """The work of one kernel or collective."""
    op = instruction.op.removesuffix("-start")
    moved = moved_bytes(instruction, computation, computations)
    if op in COLLECTIVES:
        sent = sum(computation[name].bytes for name in instruction.operands if name in computation)
        return Work(1, moved, max(launch, moved / bandwidth), 1, sent)
    return Work(1, moved, max(launch, moved / bandwidth))


def moved_bytes(instruction: Instruction, computation: Computation, computations: Mapping[str, Computation]) -> float:
    """Bytes that a kernel reads and writes."""
    fused = computations.get(instruction.called("calls") or "") if instruction.op == "fusion" else None
    if fused is not None:
        return _fused_bytes(fused)
    sizes = [computation[name].bytes for name in instruction.operands if name in computation]
    if instruction.op == "dynamic-update-slice":
        return 2 * sizes[1]
    if instruction.op in PART_READERS:
        return 2 * instruction.bytes
    return sum(sizes) + instruction.bytes


def _fused_bytes(fused: Computation) -> float:
    """Bytes that a fusion reads and writes: parts of buffers that it slices or updates in place, else everything."""
    users: dict[str, list[Instruction]] = {name: [] for name in fused}
    for instruction in fused.values():
        for operand in instruction.operands:
            if operand in users:
                users[operand].append(instruction)

    def read(parameter: Instruction) -> float:
        parts = 0.0
        for user in _through(parameter.name, users):
            if user.op in PART_READERS:
                parts += user.bytes
            elif user.op != "dynamic-update-slice" or _origin(user.operands[0], fused) != parameter.name:
                return parameter.bytes
        return min(parts, parameter.bytes)

    def written(result: Instruction) -> float:
        result = fused[_origin(result.name, fused)]
        if result.op == "tuple":
            return sum(written(fused[name]) for name in result.operands)
        if result.op == "dynamic-update-slice" and fused[_origin(result.operands[0], fused)].op == "parameter":
            return fused[result.operands[1]].bytes
        return result.bytes

    reads = sum(read(instruction) for instruction in fused.values() if instruction.op == "parameter")
    return reads + sum(written(instruction) for instruction in fused.values() if instruction.root)


def _through(name: str, users: Mapping[str, list[Instruction]]) -> Iterator[Instruction]:
    """The instructions that use a value, past bitcasts of it."""
    for user in users[name]:
        if user.op == "bitcast":
            yield from _through(user.name, users)
        else:
            yield user


def _origin(name: str, fused: Computation) -> str:
    """The value of which ``name`` is a bitcast."""
    while fused[name].op == "bitcast":
        name = fused[name].operands[0]
    return name
