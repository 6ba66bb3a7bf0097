import jax.numpy as jnp
import numpy as np
from devices import on_one_device

from marljax.nn.running_stats import RunningStats


def test_running_statistics_equal_those_of_all_samples():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (50, 4)).astype(np.float32) for _ in range(4)]
    masks = [rng.random(50) < 0.5 for _ in range(4)]

    def update(stats):
        for x, mask in zip(batches, masks, strict=True):
            stats = stats.updated(x, mask)
        return stats

    stats = on_one_device(update, RunningStats.create((4,)))
    samples = np.concatenate([x[mask] for x, mask in zip(batches, masks, strict=True)])
    np.testing.assert_allclose(stats.mean, samples.mean(0), rtol=1e-4)
    np.testing.assert_allclose(stats.var, samples.var(0), rtol=1e-3)
    np.testing.assert_allclose(stats.denormalize(stats.normalize(samples)), samples, atol=1e-4)


def test_running_statistics_with_a_horizon_forget():
    """After k batches of the same size the first has the weight (h / (h + 1))^(k - h) of a moving mean."""

    def update(stats):
        for value in (5.0, *[1.0] * 9):
            stats = stats.updated(jnp.full(8, value), jnp.ones(8, bool), horizon=3)
        return stats

    stats = on_one_device(update, RunningStats.create(()))
    weight = (1 / 3) * (3 / 4) ** 7  # the third batch makes the mean one of three, and seven follow
    np.testing.assert_allclose(stats.mean, 1.0 + 4.0 * weight, rtol=1e-4)
    np.testing.assert_allclose(stats.var, 16.0 * weight * (1 - weight), rtol=1e-3)
