"""The device mesh."""

import contextlib
import math
import os

import jax

from marljax.errors import UserError
from marljax.utils.collectives import DATA, SEED
from marljax.utils.validation import divide


def make_mesh(seed: int = 1, data: int = 1) -> jax.sharding.Mesh:
    """A mesh of ``seed × data`` devices."""
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh((seed, data), (SEED, DATA), axis_types=(auto, auto), devices=jax.devices()[: seed * data])


def use_all_cores() -> None:
    """Makes every core of a CPU a device, unless the user has chosen a number; to be called before anything is computed."""
    flags = os.environ.get("XLA_FLAGS", "")
    chosen = "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform_device_count" in flags
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not chosen:
        with contextlib.suppress(RuntimeError):  # something has been computed: the devices are fixed
            jax.config.update("jax_num_cpu_devices", cores)


def layout(devices: int | None, seed: int | None, data: int | None, replicas: int) -> tuple[int, int]:
    """(seed, data): devices along the replicas of a batch and along the environments of each.

    Args:
        devices: the total; None for ``seed × data``.
        seed: None for the largest number that divides devices and replicas.
        data: None for the rest.
        replicas: S.
    """
    if devices is None:
        seed, data = seed or 1, data or 1
    elif seed is None:
        seed = divide(devices, data, "devices", "parts of mesh.data") if data else math.gcd(devices, replicas)
    if data is None:
        data = divide(devices or seed, seed, "devices", "parts of mesh.seed")
    if devices is not None and seed * data != devices:
        raise UserError(f"mesh.seed={seed} × mesh.data={data} does not equal devices={devices}; leave one of the three out")
    divide(replicas, seed, "runs" if replicas > 1 else "run", "parts of mesh.seed")
    return seed, data
