"""Accelerators to compile for, none of which has to be there.

XLA compiles for a GPU from a description of it, with CUDA's assembler, and for a TPU with libtpu: ``pip install -e ".[aot]"``.
"""

import dataclasses
import importlib.util
from typing import Any

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from marljax.aot.program import Loop, analyse
from marljax.errors import UserError, first_line, unknown
from marljax.utils.collectives import DATA, SEED

# XLA's description of an H100 SXM, as far as its compiler reads it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """An accelerator, or several that work together."""

    description: str
    platform: str  # of JAX
    num_devices: int
    topology: dict[str, Any]
    memory: float  # bytes of one device
    bandwidth: float  # bytes/s of its memory
    launch: float  # s that a kernel takes at least; 0 where nothing is launched one by one
    packages: tuple[str, ...]  # modules of the compiler
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of XLA


def _h100(count: int) -> Target:
    topology = {"topology_name": "h100", "topology": f"1x1x{count}", "target_config": H100}
    compiler = ("jax_cuda12_plugin", "nvidia.cuda_nvcc")
    # Tuning would need the GPU, and Triton's matrix products need tuning.
    options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    return Target(f"{count} × NVIDIA H100", "cuda", count, topology, 84_978_434_048, 3.352e12, 2e-6, compiler, options)


def _v5e(rows: int, columns: int) -> Target:
    # TPU v5e: 16 GB at 819 GB/s per chip; hosts hold up to 2 × 2 chips here.
    topology = {"topology_name": f"v5e:{rows}x{columns}", "chips_per_host_bounds": (min(rows, 2), min(columns, 2), 1)}
    return Target(f"{rows * columns} × TPU v5e", "tpu", rows * columns, topology, 16 * 2**30, 8.19e11, 0.0, ("libtpu",))


TARGETS = {"h100": _h100(1), "h100x8": _h100(8), "v5e-1": _v5e(1, 1), "v5e-8": _v5e(2, 4), "v5e-256": _v5e(16, 16)}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled for a target."""

    program: Loop
    arguments: int  # bytes of inputs per device
    outputs: int  # bytes of results per device that are no inputs written in place
    temporaries: int  # bytes per device
    code: int  # bytes of machine code

    @property
    def memory(self) -> int:
        """Bytes that it takes on every device."""
        return self.arguments + self.outputs + self.temporaries + self.code


def target_named(name: str) -> Target:
    """The target of a name in ``TARGETS``.

    Raises:
        UserError: for a name that does not exist, or where its compiler is not installed.
    """
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    target = TARGETS[name]
    for package in target.packages:
        try:
            missing = importlib.util.find_spec(package) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            raise UserError(f"target={name} needs the compiler {package}, which is not installed; run: pip install -e '.[aot]'")
    return target


def devices(target: Target) -> list[Any]:
    """The target's devices, which can be compiled for and nothing else."""
    from jax.experimental import topologies  # slow to import

    jax.devices()  # JAX finds the plug-ins of other platforms when it starts
    try:
        return list(topologies.get_topology_desc(platform=target.platform, **target.topology).devices)
    except (RuntimeError, NotImplementedError) as error:
        advice = "its compiler and JAX must be of the same version: pip install -U -e '.[aot]'"
        raise UserError(f"no compiler for {target.description} ({first_line(error)}); {advice}") from error


def mesh(target: Target) -> Mesh:
    """The mesh ("seed", "data") of a target, all of whose devices share the environments."""
    import numpy as np

    auto = jax.sharding.AxisType.Auto
    grid = np.array(devices(target)).reshape(1, -1)
    return Mesh(grid, (SEED, DATA), axis_types=(auto, auto))


def on_one_device(target: Target, tree: Any) -> Any:
    """Shapes of arrays, to lie on the target's first device."""
    sharding = SingleDeviceSharding(devices(target)[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def compile_for(target: Target, lowered: jax.stages.Lowered) -> Compiled:
    """Compiles a program that was lowered for inputs whose shapes have shardings of the target's devices.

    Raises:
        UserError: if the compiler gives up, for lack of memory say.
    """
    try:
        compiled = lowered.compile(compiler_options=target.options)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"XLA cannot compile this program for {target.description}: {first_line(error)}") from error
    text, memory = compiled.as_text(), compiled.memory_analysis()
    if text is None or memory is None:
        raise UserError(f"the compiler for {target.description} reports neither program nor memory; use another release of JAX")
    return Compiled(
        program=analyse(text, target.launch, target.bandwidth),
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
    )
