"""Running mean and variance of network inputs and value targets."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marljax.utils import collectives


class RunningStats(NamedTuple):
    """Moments of all samples so far; saved with the network parameters."""

    mean: jax.Array  # [F]
    var: jax.Array  # [F]
    weight: jax.Array  # [] number of samples

    @classmethod
    def create(cls, shape: tuple[int, ...]) -> "RunningStats":
        # A tiny weight instead of 0: the first batch replaces these moments, and nothing divides by zero before it.
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.array(1e-4))

    def updated(self, x: jax.Array, mask: jax.Array, horizon: int = 0) -> "RunningStats":
        """Adds the samples of a batch ``x`` [..., F] in ``mask`` [...], over all shards (Chan et al. 1979, parallel variance).

        A ``horizon`` caps the weight of earlier samples at that many batches of this size (exponential forgetting).
        """
        axes = tuple(range(mask.ndim))
        weight = mask.astype(jnp.float32).reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        count = collectives.total(weight.sum())
        mean = collectives.total((x * weight).sum(axes)) / jnp.maximum(count, 1.0)
        var = collectives.total((jnp.square(x - mean) * weight).sum(axes)) / jnp.maximum(count, 1.0)
        before = jnp.where(count > 0, jnp.minimum(self.weight, horizon * count), self.weight) if horizon else self.weight
        total = before + count
        delta = mean - self.mean
        square = self.var * before + var * count + jnp.square(delta) * before * count / total
        return RunningStats(self.mean + delta * count / total, square / total, total)

    @property
    def std(self) -> jax.Array:
        return jnp.sqrt(jnp.maximum(self.var, 1e-8))

    def normalize(self, x: jax.Array) -> jax.Array:
        return jnp.clip((x - self.mean) / self.std, -10.0, 10.0)

    def denormalize(self, x: jax.Array) -> jax.Array:
        return x * self.std + self.mean
