import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from marljax.utils.random import flat, named, normal, ranks


@pytest.mark.parametrize("draw", [jax.random.uniform, jax.random.gumbel])
@pytest.mark.parametrize("shape", [(), (4, 3, 7)])
def test_one_long_row_holds_the_same_numbers(draw, shape):
    keys = jax.random.split(jax.random.key(2), 3)
    found, expected = (jax.vmap(lambda key, f=f: f(key, shape))(keys) for f in (functools.partial(flat, draw), draw))
    np.testing.assert_array_equal(found, expected)


def test_named_numbers_are_independent_parts_of_one_draw():
    shapes = {"one": (), "table": (2, 3), "row": (5,), "none": (0,)}
    found = named(jax.random.key(0), shapes)
    assert {name: part.shape for name, part in found.items()} == shapes
    assert len(set(np.concatenate([np.ravel(part) for part in found.values()]).tolist())) == 12
    other = named(jax.random.key(1), shapes)
    assert not any(np.any(np.isin(found[name], other[name])) for name in shapes)
    many = jax.vmap(lambda key: named(key, shapes))(jax.random.split(jax.random.key(2), 5_000))
    assert stats.kstest(np.asarray(many["one"]), "uniform").pvalue > 0.01
    assert abs(np.corrcoef(many["one"], many["row"][:, 0])[0, 1]) < 0.05


def test_normal_numbers_are_those_of_jax():
    key = jax.random.key(0)
    np.testing.assert_allclose(normal(jax.random.uniform(key, (4_096,))), jax.random.normal(key, (4_096,)), rtol=2e-4, atol=1e-6)
    assert np.isfinite(normal(jnp.array([0.0, 1.0 - 2.0**-23]))).all()


def test_ranks_of_random_numbers_are_permutations_and_ties_keep_their_order():
    uniform = jax.random.uniform(jax.random.key(0), (2_000, 4))
    found = np.asarray(ranks(uniform))
    np.testing.assert_array_equal(found, np.argsort(np.argsort(uniform, axis=1), axis=1))
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.01
    np.testing.assert_array_equal(ranks(jnp.array([0.5, 0.2, 0.5, 0.2])), [2, 0, 3, 1])
