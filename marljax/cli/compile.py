"""The command ``marljax compile``."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marljax.cli.exit_status import reject_flags
from marljax.cli.help import explained
from marljax.config.schema import Group
from marljax.core.fields import option
from marljax.errors import UserError

if TYPE_CHECKING:
    from marljax.aot.program import Work
    from marljax.aot.runs import Report

MEANING = """Compiles a run's training program for an accelerator that need not be there, and prints its memory, its kernels and
an estimate of its speed. Nothing is measured: the estimate takes every kernel to last as long as its bytes at the memory's
bandwidth, and on a GPU no less than a launch. Targets: {targets}."""


@dataclasses.dataclass(frozen=True)
class CompileOptions(Group):
    """Options of ``marljax compile``, besides those of the run."""

    target: str = option("h100", help="accelerator to compile for")


def start() -> None:
    """Starts JAX on the CPU, whatever accelerators there are."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.devices()


def compile_program(arguments: Sequence[str]) -> int:
    """Compiles a run for a target and prints what the compiler says."""
    from marljax.aot import runs, targets
    from marljax.config import compose

    usage = "compile <algorithm> env=<name> [key=value …] [target=<accelerator>]"
    if explained(arguments, usage, MEANING.format(targets=", ".join(targets.TARGETS)), CompileOptions):
        return 0
    algo, *overrides = arguments
    reject_flags(arguments)
    algo = algo.removeprefix("algo=")
    if "=" in algo:
        raise UserError(f"name the algorithm first, then {algo}")
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("target=")]
    target = targets.target_named(chosen[-1] if chosen else CompileOptions().target)
    settings = compose.compose(algo, [text for text in overrides if not text.startswith("target=")])
    print(describe(runs.compile_run(settings, target)))
    return 0


def describe(report: "Report") -> str:
    """The lines that the command prints."""
    from marljax.utils.memory import format_bytes

    compiled, target = report.compiled, report.target
    kinds = {
        "inputs": compiled.arguments,
        "results": compiled.outputs,
        "temporaries": compiled.temporaries,
        "code": compiled.code,
    }
    memory = " + ".join(f"{format_bytes(size)} {kind}" for kind, size in kinds.items() if size)

    def work(name: str, part: "Work | None") -> str:
        if part is None:
            return f"{name}: not found as a loop of its own"
        collectives = (
            f", {part.collectives:.0f} collectives of {format_bytes(int(part.collective_bytes))}" if part.collectives else ""
        )
        seconds = f", {part.seconds * 1e6:,.0f} µs" if target.launch else ""
        return f"{name}: {part.kernels:,.0f} kernels, {part.bytes / 1e6:,.1f} MB{collectives}{seconds}"

    lines = [
        f"compiled for {target.description} in {report.compile_seconds:.0f} s; per device:",
        f"memory: {format_bytes(compiled.memory)} of {format_bytes(int(target.memory))}: {memory}",
        work("a step of all environments", report.rollout_step),
        work("a minibatch or gradient step", report.minibatch),
        work(f"an update of {report.steps_per_update:,} steps", report.update),
    ]
    if target.launch:
        lines.append(f"estimate, not a measurement: {report.steps_per_second:,.0f} steps/s on all devices")
    return "\n".join(lines)
