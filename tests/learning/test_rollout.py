"""The elapsed time as an input, and metrics of episodes."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from marljax.core.types import REPLAYED
from marljax.errors import UserError
from marljax.learning import Inputs, collect


def time_input(longest, **metrics):
    """Of two agents in each of three environments."""
    inputs = Inputs(*[jnp.zeros((1, 3, 2))] * 4)
    env = SimpleNamespace(max_episode_steps=lambda env_params: longest)
    return inputs.with_time(env, None, SimpleNamespace(metrics=metrics)).time


def test_the_time_is_the_elapsed_share_of_the_longest_episode():
    found = time_input(10, length=jnp.array([0.0, 5.0, 10.0]))
    np.testing.assert_allclose(found, np.broadcast_to(np.array([0.0, 0.5, 1.0])[None, :, None, None], (1, 3, 2, 1)))


def test_without_a_known_length_there_is_no_time():
    """Nor where episodes are replayed from their middle, so that their length is not the time."""
    assert time_input(None, length=jnp.zeros(3)) == ()
    assert time_input(10, length=jnp.zeros(3), **{REPLAYED: jnp.zeros(3)}) == ()


def test_no_metric_hides_the_number_of_episodes():
    actors = SimpleNamespace(timestep=SimpleNamespace(metrics={"episodes": jnp.zeros(3)}))
    with pytest.raises(UserError, match=r"'episodes'.*rename"):
        collect(SimpleNamespace(env=None), None, None, actors, None, 1)
