import jax
import numpy as np
import pytest

from marljax.utils.random import flat


@pytest.mark.parametrize("draw", [jax.random.uniform, jax.random.gumbel, jax.random.normal])
@pytest.mark.parametrize("shape", [(), (16,), (4, 3, 7)])
def test_one_long_row_holds_the_same_numbers(draw, shape):
    np.testing.assert_array_equal(flat(draw, jax.random.key(1), shape), draw(jax.random.key(1), shape))
    keys = jax.random.split(jax.random.key(2), 3)
    np.testing.assert_array_equal(
        jax.vmap(lambda key: flat(draw, key, shape))(keys), jax.vmap(lambda key: draw(key, shape))(keys)
    )
