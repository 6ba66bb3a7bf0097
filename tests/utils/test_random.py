import functools

import jax
import numpy as np
import pytest

from marljax.utils.random import flat


@pytest.mark.parametrize("draw", [jax.random.uniform, jax.random.gumbel])
@pytest.mark.parametrize("shape", [(), (4, 3, 7)])
def test_one_long_row_holds_the_same_numbers(draw, shape):
    keys = jax.random.split(jax.random.key(2), 3)
    found, expected = (jax.vmap(lambda key, f=f: f(key, shape))(keys) for f in (functools.partial(flat, draw), draw))
    np.testing.assert_array_equal(found, expected)
