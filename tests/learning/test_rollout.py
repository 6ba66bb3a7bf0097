"""Storing and evaluating rollouts, the elapsed time as an input, and metrics."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.core.types import REPLAYED
from marljax.errors import UserError
from marljax.learning import Inputs, collect, over_time, scan_means
from marljax.learning.rollout import MAX_PACKED_SIZE, packed


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


def test_small_arrays_are_stored_together_and_come_back():
    """[T, E, …] of every type, in the order of the tree, as if they had been stored one by one."""
    rng = np.random.default_rng(0)
    length, instances = 4, 3
    tree = {
        "reward": rng.normal(size=(length, instances, 2)).astype(np.float32),
        "obs": rng.normal(size=(length, instances, 2, MAX_PACKED_SIZE)).astype(np.float32),  # too large
        "mask": rng.random((length, instances, 2, 5)) < 0.5,
        "none": (),
        "entropy": rng.normal(size=length).astype(np.float32),  # a number for all environments
        "last": rng.random((length, instances)) < 0.5,
        "value": rng.normal(size=(length, instances)).astype(np.float32),
        "action": rng.integers(0, 9, (length, instances, 2), dtype=np.int32),
    }
    rows = [packed(jax.tree.map(lambda x, row=row: jnp.asarray(x[row]), tree), instances) for row in range(length)]
    assert len(rows[0][0]) == 5  # three types, the large one, and that for all environments
    arrays, unpack = [jnp.stack(arrays) for arrays in zip(*[row for row, _ in rows], strict=True)], rows[-1][1]
    found = unpack(arrays)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, found, tree)


def test_a_network_over_time_is_the_same_step_by_step():
    def network(inputs, carry):  # a memory that forgets at first timesteps
        def step(total, row):
            x, first = row
            total = jnp.where(first, 0.0, total) + x
            return total, {"total": total}

        return jax.lax.scan(step, carry, inputs)

    x, first = jax.random.normal(jax.random.key(0), (7, 3)), jax.random.bernoulli(jax.random.key(1), 0.3, (7, 3))
    expected = network((x, first), jnp.ones(3))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(over_time, static_argnums=0)(network, (x, first), jnp.ones(3)), expected)


def test_metrics_of_gradient_steps_come_back_as_means():
    def step(total, x):
        return total + x, {"b": x, "a": 2 * x}

    total, metrics = jax.jit(lambda: scan_means(step, jnp.zeros(()), jnp.arange(5.0)))()
    assert float(total) == 10.0
    assert {name: float(value) for name, value in metrics.items()} == {"a": 4.0, "b": 2.0}
