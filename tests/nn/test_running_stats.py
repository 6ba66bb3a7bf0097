import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from marljax.nn.running_stats import RunningStats
from marljax.training import mesh


def in_mesh(function):
    """Runs a function that uses collectives over the data axis."""
    spec = PartitionSpec()
    return jax.jit(jax.shard_map(function, mesh=mesh.make_mesh(), in_specs=spec, out_specs=spec, check_vma=False))


def test_running_statistics_equal_those_of_all_samples():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (50, 4)).astype(np.float32) for _ in range(4)]
    masks = [rng.random(50) < 0.5 for _ in range(4)]
    stats = RunningStats.create((4,))
    update = in_mesh(lambda stats, x, mask: stats.updated(x, mask))
    for x, mask in zip(batches, masks, strict=True):
        stats = update(stats, x, mask)
    kept = np.concatenate([x[mask] for x, mask in zip(batches, masks, strict=True)])
    np.testing.assert_allclose(stats.mean, kept.mean(0), rtol=1e-4)
    np.testing.assert_allclose(stats.var, kept.var(0), rtol=1e-3)
    np.testing.assert_allclose(stats.denormalize(stats.normalize(kept)), kept, atol=1e-4)


def test_running_statistics_with_a_horizon_forget():
    """After k batches of the same size the first has the weight (h / (h + 1))^(k - h) of a moving mean."""
    stats, horizon = RunningStats.create(()), 3
    update = in_mesh(lambda stats, x: stats.updated(x, jnp.ones(8, bool), horizon))
    series = [5.0, *[1.0] * 9]
    for value in series:
        stats = update(stats, jnp.full(8, value))
    weight = (1 / 3) * (3 / 4) ** 7  # the third batch makes the mean one of three, and seven follow
    np.testing.assert_allclose(stats.mean, 1.0 + 4.0 * weight, rtol=1e-4)
    np.testing.assert_allclose(stats.var, 16.0 * weight * (1 - weight), rtol=1e-3)
