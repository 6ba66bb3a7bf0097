"""A population as a density: histograms of angles, and kernels on fixed grids.

Axis letters: N particles, H harmonics, B bins, G centres.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np


def powers(cos: jax.Array, sin: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """[H, N] cos kθ and sin kθ for k = 1 … ``count``, by complex multiplication."""
    cosines, sines = [cos], [sin]
    for _ in range(count - 1):
        a, b = cosines[-1], sines[-1]
        cosines.append(a * cos - b * sin)
        sines.append(b * cos + a * sin)
    return jnp.stack(cosines), jnp.stack(sines)


def shares(mean_cos: jax.Array, mean_sin: jax.Array, bins: int) -> jax.Array:
    """[B, N] a histogram of angles, from their harmonics [B − 1, N]: mean cos kθ and mean sin kθ.

    Bin b weights an angle θ by cos^(2B − 2)((θ − 2πb/B) / 2), scaled so that the bins of every angle add up to 1. Bins of this
    shape overlap (with B = 8 each is half as high 36° from its centre) and are sums of the first B − 1 harmonics: they cost a
    product instead of B comparisons per pair, and rotate exactly with the angles.
    """
    order = 2 * (bins - 1)
    harmonics = [2.0 * math.comb(order, order // 2 + k) / math.comb(order, order // 2) for k in range(1, bins)]
    angle = 2.0 * math.pi / bins * np.outer(np.arange(bins), np.arange(1, bins))
    weights = np.array(harmonics) / bins
    exact = jax.lax.Precision.HIGHEST
    even = jnp.matmul(jnp.asarray(weights * np.cos(angle), mean_cos.dtype), mean_cos, precision=exact)
    odd = jnp.matmul(jnp.asarray(weights * np.sin(angle), mean_sin.dtype), mean_sin, precision=exact)
    return 1.0 / bins + even + odd


def on_circle(cos: jax.Array, sin: jax.Array, centres: int) -> jax.Array:
    """[G, N] kernels of angles around G even centres: exp(κ (cos Δ − 1)), half a spacing wide, 1 on average over the circle."""
    middle = 2.0 * math.pi * np.arange(centres) / centres
    kappa = (centres / math.pi) ** 2
    near = np.cos(middle)[:, None] * cos + np.sin(middle)[:, None] * sin
    return jnp.exp(kappa * (near - 1.0)) / jax.scipy.special.i0e(kappa)


def on_line(position: jax.Array, half: jax.Array, centres: int) -> jax.Array:
    """[G, N] Gaussian kernels of positions in [−half, half], half a spacing wide, 1 on average except near the ends."""
    middle = (2.0 * np.arange(centres) + 1.0 - centres)[:, None]  # in units of half a spacing, like the positions below
    away = position * (centres / half) - middle
    return jnp.exp(-0.5 * away * away) * (2.0 * centres / math.sqrt(2.0 * math.pi))


def joint(*kernels: jax.Array) -> jax.Array:
    """[G₁ · G₂ · …] mean over N particles of the products of their kernels [Gᵢ, N]: a density relative to an even spread."""
    *most, last = kernels
    product = most[0]
    for factor in most[1:]:
        product = (product[:, None] * factor[None]).reshape(-1, last.shape[1])
    density = jnp.matmul(product, last.T, precision=jax.lax.Precision.HIGHEST)
    return density.reshape(-1) / last.shape[1]


def polarisation(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[] length of the mean of N unit vectors: 0 without order, 1 where all agree. Also Kuramoto's order parameter r."""
    return jnp.hypot(jnp.mean(cos, axis=0), jnp.mean(sin, axis=0))
