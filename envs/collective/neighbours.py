"""Sums over the neighbours of every particle.

A sum over neighbours is a product of the summands, [F, N], with the 0/1 matrix of who is near, [N, rows]: on a CPU 0.25 to 0.4 ns
per pair for 3 to 15 sums, where masked sums take 0.6 to 5 ns. Rows are processed in chunks, so that [N, N] is never stored.

Axis letters: N particles, F sums, C particles of a chunk, W candidates of a chunk.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marljax.errors import UserError

METHODS = ("dense", "sorted")


class Sums(NamedTuple):
    """Sums over the neighbours of each particle, itself included."""

    total: jax.Array  # [F, N]
    missed: jax.Array  # [] particles that may have neighbours outside their chunk's candidates


@dataclasses.dataclass(frozen=True)
class Search:
    """A way of finding the neighbours of ``agents`` particles; shapes only.

    ``dense`` compares all pairs. ``sorted`` sorts by y and compares each chunk of particles only with the ``window`` candidates
    from one radius below its lowest particle upwards; where more lie within one radius of the chunk, they are left out and the
    chunk's particles are counted as ``missed``.
    """

    method: str
    agents: int
    chunk: int  # C
    window: int  # W, for ``sorted``

    def __post_init__(self) -> None:
        if self.method == "sorted" and not self.chunk < self.window <= self.agents:
            limits = f"with chunk={self.chunk} and {self.agents} agents it takes {self.chunk + 1} to {self.agents}"
            raise UserError(f"window={self.window} is out of range; {limits}, or set neighbours=dense")

    def sums(self, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array | None = None) -> Sums:
        """Sums of ``values`` [F, N] over all particles within ``radius``.

        Args:
            x: [N].
            y: [N].
            values: [F, N].
            radius: distance within which particles are neighbours.
            box: length of a periodic square [0, box)²; None: an unbounded plane.
        """
        if self.method == "sorted":
            assert box is not None
            return self._sorted(x, y, values, radius, box)
        if self.chunk >= self.agents:
            return Sums(_sum_near(x, y, x, y, values, radius, box), jnp.zeros(()))
        rows = _chunks(x, self.chunk), _chunks(y, self.chunk)
        total = jax.lax.map(lambda row: _sum_near(row[0], row[1], x, y, values, radius, box), rows)
        return Sums(_join(total, self.agents), jnp.zeros(()))

    def _sorted(self, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array) -> Sums:
        order = jnp.argsort(y)
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(self.agents, dtype=order.dtype), unique_indices=True)
        table = jnp.concatenate([x[None], y[None], values])[:, order]
        x, y = table[:2]
        # three periods side by side make every window contiguous
        heights = jnp.concatenate([y - box, y, y + box])
        table = jnp.concatenate([table] * 3, axis=1)
        # the last chunk is padded with copies of the highest particle: zeros would extend its range
        rows_x, rows_y = (_chunks(part, self.chunk, mode="edge") for part in (x, y))
        first = jnp.searchsorted(heights, rows_y[:, 0] - radius)
        beyond = jnp.searchsorted(heights, rows_y[:, -1] + radius, side="right")

        def sum_window(row: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            row_x, row_y, start = row
            window = jax.lax.dynamic_slice_in_dim(table, start, self.window, axis=1)
            return _sum_near(row_x, row_y, window[0], window[1], window[2:], radius, box)

        total = _join(jax.lax.map(sum_window, (rows_x, rows_y, first)), self.agents)
        chunk_sizes = jnp.minimum(self.agents - jnp.arange(0, self.agents, self.chunk), self.chunk)  # without padding
        missed = jnp.sum(jnp.where(beyond - first > self.window, chunk_sizes, 0)).astype(total.dtype)
        return Sums(total[:, rank], missed)


def materialize(*parts: jax.Array) -> tuple[jax.Array, ...]:
    """The same finite arrays [N], computed once.

    XLA for CPU otherwise recomputes them in every loop that reads them, for every pair and every sum, which takes up to four
    times as long. It does not fuse a product; it removes ``jax.lax.optimization_barrier`` before fusing.
    """
    stack = jnp.stack(parts)
    same = jnp.matmul(jnp.eye(len(parts), dtype=stack.dtype), stack, precision=jax.lax.Precision.HIGHEST)
    return tuple(same)


def _sum_near(
    row_x: jax.Array, row_y: jax.Array, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array | None
) -> jax.Array:
    """[F, C] sums of ``values`` [F, W] over the W candidates that are near each of C particles."""
    dx, dy = jnp.abs(row_x - x[:, None]), jnp.abs(row_y - y[:, None])
    if box is not None:
        dx, dy = jnp.minimum(dx, box - dx), jnp.minimum(dy, box - dy)
    near = dx * dx + dy * dy <= radius * radius
    return jnp.matmul(values, near.astype(values.dtype), precision=jax.lax.Precision.HIGHEST)


def _chunks(part: jax.Array, chunk: int, **pad_mode: str) -> jax.Array:
    """[N] as [chunks, C]."""
    return jnp.pad(part, (0, -part.shape[0] % chunk), **pad_mode).reshape(-1, chunk)


def _join(total: jax.Array, agents: int) -> jax.Array:
    """[chunks, F, C] as [F, N]."""
    return jnp.moveaxis(total, 0, 1).reshape(total.shape[1], -1)[:, :agents]
