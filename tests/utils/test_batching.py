import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.utils.batching import batch_last, fold, loop

KEY = jax.random.key(0)


def spread(x, scale):
    """Of [N, …] and params [] with as many trailing axes: distances to the mean, and the index of the smallest."""
    return {
        "far": (x - jnp.mean(x, axis=0)) * scale,
        "first": jnp.argmin(x, axis=0).astype(jnp.int32) + 0 * scale.astype(jnp.int32),
    }


def plain(x, scale):
    return {"far": (x - jnp.mean(x)) * scale, "first": jnp.argmin(x).astype(jnp.int32)}


# Shapes of x and scale, and the vmaps around the call.
VMAPS = {
    "none": ((5,), (), lambda f: f),
    "both": ((7, 5), (7,), jax.vmap),
    "x": ((7, 5), (), lambda f: jax.vmap(f, (0, None))),
    "scale": ((5,), (4,), lambda f: jax.vmap(f, (None, 0))),
    "seeds of x alone": ((3, 7, 5), (7,), lambda f: jax.vmap(jax.vmap(f), (0, None))),
    "three": ((2, 3, 7, 5), (3,), lambda f: jax.vmap(jax.vmap(jax.vmap(f, (0, None))), (0, None))),
}


@pytest.mark.parametrize(("shape", "scales", "mapped"), VMAPS.values(), ids=VMAPS)
def test_batches_last_give_what_batches_first_give(shape, scales, mapped):
    x, scale = jax.random.normal(KEY, shape), jax.random.uniform(KEY, scales)
    found, expected = (jax.jit(mapped(f))(x, scale) for f in (batch_last(spread), plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)


def test_constants_of_a_loop_with_partly_mapped_arguments():
    add = batch_last(lambda pair, number: {"moves": pair["moves"] + number, "stays": pair["stays"] * number})

    def run(moves):
        start = {"moves": moves, "stays": jnp.zeros(())}
        return jax.lax.scan(lambda pair, _: (add(pair, 1.0), None), start, length=3)[0]["moves"]

    np.testing.assert_array_equal(jax.jit(jax.vmap(run))(jnp.arange(4.0)), jnp.arange(4.0) + 3)


def test_instances_come_last_and_seeds_before():
    shapes = []
    record = batch_last(lambda x: (shapes.append(x.shape), x)[1])
    jax.vmap(jax.vmap(record))(jnp.zeros((3, 7, 5)))
    assert shapes[-1] == (5, 3, 7)


@pytest.mark.parametrize("rows", [3, 20])
def test_fold_and_loop_agree_with_a_reduction_on_every_platform(rows, platform):
    """Few rows are added one by one, more are reduced at once on accelerators."""
    x, others = jax.random.normal(KEY, (4,)), jax.random.normal(jax.random.key(1), (rows,))

    def both(one, other):
        return one[0] + other[0], jnp.minimum(one[1], other[1])

    @jax.jit
    def run(x, others):
        pairs = fold(both, lambda other: (jnp.abs(x - other), x * other), (others,), (0.0, np.inf))
        return pairs, loop(rows, lambda row, total: total + others[row], jnp.zeros(()))

    (distance, product), total = run(x, others)
    np.testing.assert_allclose(distance, np.abs(x[:, None] - others).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(product, (x[:, None] * others).min(axis=1), rtol=1e-6)
    np.testing.assert_allclose(total, others.sum(), rtol=1e-4)
