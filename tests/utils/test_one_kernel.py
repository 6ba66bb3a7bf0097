"""``one_kernel`` in Pallas's interpreter against ``jax.vmap``."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.training.mesh import make_mesh
from marljax.utils import one_kernel
from marljax.utils.one_kernel import GPU, TPU, UnsupportedError, in_one_kernel

SCALES = np.array([1.0, -2.0, 3.0], np.float32)


def everything(x, flags, shared):
    """x [3, 2], flags [3] bool, shared {"rate": [], "steps": [2] int32}: moves, reductions, products, branches, loops."""
    moved = jnp.concatenate([x[::-1].T.reshape(3, 2), jnp.stack([x[0], x[2, ::-1]])])  # [5, 2]
    product = jnp.einsum("ij,jk->ik", x, moved[:2]) + SCALES[:, None] * shared["rate"]
    chosen = jnp.where(flags[:, None] & (x > 0), jnp.sqrt(jnp.abs(product)), product**3)
    picked = chosen[np.array([2, 0, 0])] - shared["steps"].astype(jnp.float32)
    rolled = jax.lax.fori_loop(2, 5, lambda i, total: total * 0.5 + i * picked[0], picked[1])
    unrolled = jax.lax.fori_loop(0, 3, lambda i, total: jnp.maximum(total, picked[i] - i), picked[2], unroll=3)
    drifting = jax.lax.fori_loop(0, 4, lambda _, pair: (pair[0] + 2, pair[1] + pair[0]), (0, x[0, 0]))[1]  # 0 is no counter
    branch = jax.lax.cond(len(x) > 2, lambda x: x.sum(), lambda x: x.min(), picked)
    result = {"float": jnp.stack([rolled, unrolled]), "int": jnp.sum(flags, dtype=jnp.int32) + shared["steps"][1]}
    return result, jnp.any(picked > 0, axis=1), branch.clip(-2, 2) + drifting


def arguments(instances):
    keys = jax.random.split(jax.random.key(0))
    x, flags = jax.random.normal(keys[0], (instances, 3, 2)), jax.random.bernoulli(keys[1], 0.5, (instances, 3))
    return x, flags, {"rate": jnp.float32(0.3), "steps": jnp.array([4, 7], jnp.int32)}


MAPPED = (True, True, {"rate": False, "steps": False})
AXES = (0, 0, None)


@pytest.mark.parametrize("layout", [GPU, TPU], ids=["gpu", "tpu"])
def test_a_kernel_computes_what_vmap_does(layout):
    args = arguments(2 * layout.block)
    found = jax.jit(functools.partial(in_one_kernel, everything, layout, MAPPED, interpret=True))(*args)
    expected = jax.jit(jax.vmap(everything, AXES))(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def per_instance_index(x):
    return x[jnp.argmax(x).astype(jnp.int32)]


def per_instance_branch(x):
    return jax.lax.cond(x[0] > 0, jnp.sum, jnp.max, x)


def rows(x):
    return jax.lax.scan(lambda total, row: (total + row, total), 0.0, x)[1]


@pytest.mark.parametrize("function", [per_instance_index, per_instance_branch, rows, jnp.sort])
def test_what_has_no_place_in_a_kernel_runs_as_before(function):
    x = jax.random.normal(jax.random.key(0), (GPU.block, 4))
    with pytest.raises(UnsupportedError):
        jax.eval_shape(functools.partial(in_one_kernel, function, GPU, (True,)), x)
    np.testing.assert_array_equal(jax.vmap(one_kernel.one_kernel(function, function))(x), jax.vmap(function)(x))


def test_too_many_operations_are_refused(monkeypatch):
    x = jnp.ones((GPU.block, 4))
    monkeypatch.setattr(one_kernel, "MAX_OPERATIONS", 3)
    assert jax.eval_shape(functools.partial(in_one_kernel, jnp.sum, GPU, (True,)), x).shape == (GPU.block,)
    with pytest.raises(UnsupportedError, match="more than 3"):
        jax.eval_shape(functools.partial(in_one_kernel, lambda x: jnp.sum(2 * x), GPU, (True,)), x)


@pytest.mark.parametrize("instances", [GPU.block, 5])
def test_on_a_cpu_it_is_the_other_function(instances):
    """For any number of instances, under nested vmaps, and without."""
    x = jax.random.normal(jax.random.key(0), (3, instances, 4))
    function = one_kernel.one_kernel(jnp.sum, lambda x: -jnp.sum(x))
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(function)))(x), -x.sum(-1), rtol=1e-6)
    np.testing.assert_allclose(function(x[0, 0]), -x[0, 0].sum(), rtol=1e-6)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_kernels_lower_for_one_run_several_seeds_and_in_a_mesh(platform):
    function = one_kernel.one_kernel(everything, everything)
    x, flags, shared = arguments(TPU.block)
    once = jax.jit(jax.vmap(function, AXES))
    seeds = jax.jit(jax.vmap(jax.vmap(function, AXES)))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), (x, flags, shared))
    everywhere = jax.sharding.PartitionSpec()
    sharded = jax.jit(jax.shard_map(once, mesh=make_mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False))
    for program, args in ((once, (x, flags, shared)), (seeds, stacked), (sharded, (x, flags, shared))):
        assert "custom_call" in program.trace(*args).lower(lowering_platforms=(platform,)).as_text()


def test_zeros_of_either_sign_are_different_constants():
    def function(x):
        return jnp.stack([1 / (x * 0.0), 1 / (x * -0.0), 1 / (x - x)])

    x = jnp.ones(GPU.block)
    found = in_one_kernel(function, GPU, (True,), x, interpret=True)
    np.testing.assert_array_equal(found, jax.vmap(function)(x))
