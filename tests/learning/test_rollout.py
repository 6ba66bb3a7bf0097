"""What critics see of the time."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from marljax.core.types import REPLAYED
from marljax.learning.rollout import Inputs


def time_seen(longest, **metrics):
    """By two agents in each of three environments."""
    inputs = Inputs(*[jnp.zeros((1, 3, 2))] * 4)
    env = SimpleNamespace(longest=lambda env_params: longest)
    return inputs.with_time(env, None, SimpleNamespace(metrics=metrics)).time


def test_the_time_is_the_elapsed_share_of_the_longest_episode():
    seen = time_seen(10, length=jnp.array([0.0, 5.0, 10.0]))
    np.testing.assert_allclose(seen, np.broadcast_to(np.array([0.0, 0.5, 1.0])[None, :, None, None], (1, 3, 2, 1)))


def test_there_is_no_time_where_it_is_not_known():
    """Without a longest episode; and where episodes are replayed from their middle, so that their length is not the time."""
    assert time_seen(None, length=jnp.zeros(3)) == ()
    assert time_seen(10, length=jnp.zeros(3), **{REPLAYED: jnp.zeros(3)}) == ()
