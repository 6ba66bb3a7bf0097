"""Who is near whom, and what the near ones add up to.

A sum over neighbours is a product of what is to be summed, [F, N], with the matrix of 0 and 1 that says who is near, [N, rows]:
on a CPU 0.25 to 0.4 ns per pair for 3 to 15 sums, where masked sums take 0.6 to 5 ns. The rows are taken a chunk at a time, so
that no [N, N] is ever kept.

Axis letters: N particles, F sums, C particles of a chunk, W candidates that a chunk looks at.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marljax.errors import UserError, unknown

METHODS = ("dense", "sorted")


class Sums(NamedTuple):
    """What the neighbours of each particle add up to, the particle itself included."""

    total: jax.Array  # [F, N]
    missed: jax.Array  # [] particles that may have neighbours which their chunk did not look at


@dataclasses.dataclass(frozen=True)
class Search:
    """A way of finding the neighbours of ``agents`` particles; shapes only.

    ``dense`` looks at all pairs. ``sorted`` sorts by y and lets each chunk of particles look only at the ``window`` candidates
    from one radius below its lowest particle upwards; where more lie within one radius of the chunk, they are left out and its
    particles counted as ``missed``.
    """

    method: str
    agents: int
    chunk: int  # C
    window: int  # W, for ``sorted``

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("neighbours of collective", str(self.method), METHODS)
        if self.method == "sorted" and not self.chunk < self.window <= self.agents:
            takes = f"with chunk={self.chunk} and {self.agents} agents it takes {self.chunk + 1} to {self.agents}"
            raise UserError(f"window={self.window} of collective is out of range; {takes}, or neighbours=dense")

    def sums(self, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array | None = None) -> Sums:
        """Sums of ``values`` [F, N] over all particles within ``radius``.

        Args:
            x: [N].
            y: [N].
            values: [F, N].
            radius: within which a particle is near.
            box: length of a periodic square [0, box)²; None: the plane has no borders.
        """
        if self.method == "sorted":
            assert box is not None
            return self._sorted(x, y, values, radius, box)
        if self.chunk >= self.agents:
            return Sums(_sum_near(x, y, x, y, values, radius, box), jnp.zeros(()))
        rows = (_chunks(x, self.chunk), _chunks(y, self.chunk))
        total = jax.lax.map(lambda row: _sum_near(row[0], row[1], x, y, values, radius, box), rows)
        return Sums(_joined(total, self.agents), jnp.zeros(()))

    def _sorted(self, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array) -> Sums:
        order = jnp.argsort(y)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(self.agents, dtype=order.dtype), unique_indices=True)
        table = jnp.concatenate([x[None], y[None], values])[:, order]
        x, y = table[:2]
        # three periods side by side: every window is one piece
        heights = jnp.concatenate([y - box, y, y + box])
        table = jnp.concatenate([table] * 3, axis=1)
        # the last chunk is filled up with copies of the highest particle: zeros would widen its reach
        rows_x, rows_y = (_chunks(part, self.chunk, mode="edge") for part in (x, y))
        first = jnp.searchsorted(heights, rows_y[:, 0] - radius)
        beyond = jnp.searchsorted(heights, rows_y[:, -1] + radius, side="right")

        def look(row: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            here_x, here_y, start = row
            seen = jax.lax.dynamic_slice_in_dim(table, start, self.window, axis=1)
            return _sum_near(here_x, here_y, seen[0], seen[1], seen[2:], radius, box)

        total = _joined(jax.lax.map(look, (rows_x, rows_y, first)), self.agents)
        sizes = _sizes(self.agents, self.chunk)
        missed = jnp.sum(jnp.where(beyond - first > self.window, sizes, 0)).astype(total.dtype)
        return Sums(total[:, place], missed)


def settled(*parts: jax.Array) -> tuple[jax.Array, ...]:
    """The same finite arrays [N], computed once.

    XLA for CPU otherwise computes them anew in every loop that reads them, for every pair and every sum: up to four times the
    time of a whole search. A product it keeps apart; ``jax.lax.optimization_barrier`` is gone before it decides.
    """
    whole = jnp.stack(parts)
    same = jnp.matmul(jnp.eye(len(parts), dtype=whole.dtype), whole, precision=jax.lax.Precision.HIGHEST)
    return tuple(same)


def default_window(agents: int, chunk: int, per_radius: float) -> int:
    """W with room for three times the particles that an even spread has beside a chunk; ``per_radius`` lie in a strip one radius
    high. Flocks are dense in places: at η = 2 twice the particles were too few for one in twenty of 4,096.
    """
    return min(agents, chunk + round(6.0 * per_radius))


def _sum_near(
    here_x: jax.Array, here_y: jax.Array, x: jax.Array, y: jax.Array, values: jax.Array, radius: jax.Array, box: jax.Array | None
) -> jax.Array:
    """[F, C] sums of ``values`` [F, W] over the W candidates that are near each of C particles."""
    dx, dy = jnp.abs(here_x - x[:, None]), jnp.abs(here_y - y[:, None])
    if box is not None:
        dx, dy = jnp.minimum(dx, box - dx), jnp.minimum(dy, box - dy)
    near = dx * dx + dy * dy <= radius * radius
    return jnp.matmul(values, near.astype(values.dtype), precision=jax.lax.Precision.HIGHEST)


def _chunks(part: jax.Array, chunk: int, **how: str) -> jax.Array:
    """[N] as [chunks, C]."""
    return jnp.pad(part, (0, -part.shape[0] % chunk), **how).reshape(-1, chunk)


def _joined(total: jax.Array, agents: int) -> jax.Array:
    """[chunks, F, C] as [F, N]."""
    return jnp.moveaxis(total, 0, 1).reshape(total.shape[1], -1)[:, :agents]


def _sizes(agents: int, chunk: int) -> jax.Array:
    """[chunks] particles in each chunk, without those that only fill up."""
    return jnp.minimum(agents - jnp.arange(0, agents, chunk), chunk)
