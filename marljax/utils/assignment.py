"""Maximum-weight bipartite matching inside compiled programs: exact, by auction, or greedy.

Axis letters: R rows, C columns.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from optax.assignment import hungarian_algorithm

from marljax.errors import unknown

COARSE, FINE = 0.1, 0.001  # ε of an auction's first and last phase, relative to the largest weight
PHASES, MORE_PHASES = 4, 8
MAX_ROUNDS = 5_000  # of bidding, in half a phase
FORBIDDEN = 1e6  # cost of a forbidden pair, in multiples of the largest weight


def match(weights: jax.Array, mask: jax.Array, decline: jax.Array | float | None = 0.0, method: str = "exact") -> jax.Array:
    """[R] int32 column of each row, C for none: pairs of largest total weight, each column at most once.

    With the default ``decline`` of 0 no pair of negative weight is made, nor of weight 0.

    Args:
        weights: [R, C] finite.
        mask: [R, C] bool, allowed pairs.
        decline: [R] or a scalar, the value of a row without a column; None: as many pairs as possible are made (by ``greedy``
            at least half as many).
        method: ``exact`` (``optax.assignment``), ``auction`` (Bertsekas and Castañon 1992, forward and reverse, ε-scaled; each
            match within 1e-3 of the largest gain, or of the weights' range where as many pairs as possible are made) or
            ``greedy`` (repeatedly the pairs that are each other's best; at least half of the largest total).
    """
    if method not in METHODS:
        raise unknown("method of matching", method, METHODS)
    if decline is not None:
        gains = jnp.where(mask, weights - jnp.broadcast_to(decline, weights.shape[:1])[:, None], -jnp.inf)
        return METHODS[method](gains, None)
    least, most = (jnp.where(mask, weights, end) for end in (jnp.inf, -jnp.inf))
    low, span = jnp.min(least), jnp.max(most) - jnp.min(least)
    span = jnp.where(span > 0, span, 1.0)
    # One more pair outweighs any gain of all others without it.
    return METHODS[method](jnp.where(mask, weights - low + span * (min(weights.shape) + 1), -jnp.inf), span)


def prices(weights: jax.Array, mask: jax.Array, column: jax.Array) -> jax.Array:
    """[C] least prices of the columns at which every row prefers its own in a matching of largest total weight.

    They solve its dual with v ≥ 0: u_i + v_j ≥ w_ij for allowed pairs, with equality for matched ones, and u_i = 0 for a row
    without a column. Of all solutions this one is the best for the rows: u_i is exactly what the total loses without row i
    (Shapley and Shubik 1971, Leonard 1983). A column that nobody has costs 0.

    Args:
        weights: [R, C] finite.
        mask: [R, C] bool, allowed pairs.
        column: [R] of each row, C for none: ``match`` with ``decline=0``. A matching that is not optimal has no such prices;
            those of the auction are near them, and none exceeds the weight of its pair.
    """
    rows, columns = weights.shape
    gains = jnp.where(mask, weights, -jnp.inf)
    matched = column < columns
    own = jnp.take_along_axis(gains, jnp.minimum(column, columns - 1)[:, None], axis=1)[:, 0]
    owned = column[:, None] == jnp.arange(columns)
    most = jnp.max(jnp.where(owned, gains, 0.0), axis=0)  # [C] what the owner pays at most, 0 without one

    def raised(price: jax.Array) -> jax.Array:
        """The most that another row than the owner would gain by each column."""
        profit = jnp.where(matched, own - price[jnp.minimum(column, columns - 1)], 0.0)
        envy = jnp.max(jnp.where(owned, -jnp.inf, gains - profit[:, None]), axis=0)
        return jnp.clip(jnp.maximum(envy, price), 0.0, most)

    def changes(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        before, now, count = carry
        return jnp.any(now > before) & (count < rows)

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, now, count = carry
        return now, raised(now), count + 1

    none = jnp.zeros(columns, weights.dtype)
    return jax.lax.while_loop(changes, step, (none, raised(none), jnp.zeros((), jnp.int32)))[1]


@jax.custom_batching.sequential_vmap  # vmapped, every instance would take as many steps as the slowest
def _hungarian(gains: jax.Array) -> jax.Array:
    """Each row has its own column for declining: shared ones would make ties, which slow the search down."""
    rows, columns = gains.shape
    if columns < rows:  # the search goes row by row
        row = _hungarian(gains.T)
        chosen = row[:, None] == jnp.arange(rows)
        return jnp.where(jnp.any(chosen, axis=0), jnp.argmax(chosen, axis=0), columns).astype(jnp.int32)
    scale = jnp.max(jnp.abs(jnp.where(jnp.isfinite(gains), gains, 0.0)))
    forbidden = FORBIDDEN * jnp.maximum(scale, 1e-6)
    costs = jnp.where(gains > 0, -gains, forbidden)
    own = jnp.where(jnp.eye(rows, dtype=bool), 0.0, forbidden)
    row, column = hungarian_algorithm(jnp.concatenate([costs, own], axis=1))
    found = jnp.zeros(rows, jnp.int32).at[row].set(column.astype(jnp.int32))
    return jnp.where(found < columns, found, columns)


def _greedy(gains: jax.Array) -> jax.Array:
    rows, columns = gains.shape
    number = jnp.arange(rows)

    def pair(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, left = carry
        best = jnp.argmax(left, axis=1)
        mutual = (jnp.argmax(left, axis=0)[best] == number) & (jnp.max(left, axis=1) > 0)
        found = jnp.where(mutual, best.astype(jnp.int32), found)
        taken = jnp.any((best[:, None] == jnp.arange(columns)) & mutual[:, None], axis=0)
        return found, jnp.where(mutual[:, None] | taken, -jnp.inf, left)

    start = jnp.full(rows, columns, jnp.int32), gains
    return jax.lax.while_loop(lambda carry: jnp.any(carry[1] > 0), pair, start)[0]


def _auction(gains: jax.Array, span: jax.Array | None) -> jax.Array:
    """Rows bid for columns, then unassigned columns with a positive price bid for rows. ε shrinks from phase to phase; where the
    gains are much larger than their differences, its last value is relative to ``span``."""
    rows, columns = gains.shape
    largest = jnp.maximum(jnp.max(jnp.where(jnp.isfinite(gains), gains, 0.0)), 1e-6)

    def phase(prices: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
        forward = Auction(jnp.full(rows, -1), jnp.full(columns, -1), jnp.ones(rows), prices)
        forward = _bid(gains, forward, epsilon)
        # Prices of an earlier phase may be too high for columns without a bidder in this one.
        back = _bid(gains.T, Auction(forward.buyer, forward.good, forward.price, forward.profit), epsilon)
        return back.profit, back.buyer

    phases = PHASES if span is None else MORE_PHASES
    first, last = COARSE * largest, FINE * (largest if span is None else span)
    epsilons = first * (last / first) ** np.linspace(0.0, 1.0, phases, dtype=np.float32)
    found = jax.lax.scan(phase, jnp.zeros(columns), epsilons)[1][-1]
    return jnp.where(found >= 0, found, columns).astype(jnp.int32)


class Auction(NamedTuple):
    """An assignment with its prices; B bidders, G goods."""

    good: jax.Array  # [B] int32 of each bidder, −1 for none
    buyer: jax.Array  # [G] int32 of each good, −1 for none
    profit: jax.Array  # [B] from the good; without one, the most that the bidder would give up
    price: jax.Array  # [G]


def _bid(gains: jax.Array, auction: Auction, epsilon: jax.Array) -> Auction:
    """All bidders without a good that can still gain bid at once, until none is left."""
    bidders, goods = (jnp.arange(size) for size in gains.shape)

    def waiting(now: Auction) -> jax.Array:
        return (now.good < 0) & (now.profit > 0) & (jnp.max(gains - now.price, axis=1) > 0)

    def active(carry: tuple[Auction, jax.Array]) -> jax.Array:
        return (carry[1] < MAX_ROUNDS) & jnp.any(waiting(carry[0]))

    def one_round(carry: tuple[Auction, jax.Array]) -> tuple[Auction, jax.Array]:
        now, count = carry
        values = gains - now.price
        best = goods == jnp.argmax(values, axis=1)[:, None]
        second = jnp.maximum(jnp.max(jnp.where(best, -jnp.inf, values), axis=1), 0.0)
        bids = best & waiting(now)[:, None]
        offer = jnp.where(bids, gains - second[:, None] + epsilon, -jnp.inf)
        sold, buyer = jnp.any(bids, axis=0), jnp.argmax(offer, axis=0)
        gets = sold & (bidders[:, None] == buyer)  # [B, G]
        wins, loses = jnp.any(gets, axis=1), jnp.any((goods == now.good[:, None]) & sold, axis=1)
        after = Auction(
            good=jnp.where(wins, jnp.argmax(gets, axis=1), jnp.where(loses, -1, now.good)),
            buyer=jnp.where(sold, buyer, now.buyer),
            profit=jnp.where(wins, second - epsilon, now.profit),
            price=jnp.where(sold, jnp.max(offer, axis=0), now.price),
        )
        return after, count + 1

    ended, _ = jax.lax.while_loop(active, one_round, (auction, jnp.zeros((), jnp.int32)))
    return ended._replace(profit=jnp.where(ended.good < 0, 0.0, ended.profit))


# Of gains [R, C], −∞ for forbidden pairs, and the range of the weights where as many pairs as possible are requested.
METHODS: dict[str, Callable[[jax.Array, jax.Array | None], jax.Array]] = {
    "exact": lambda gains, span: _hungarian(gains),
    "auction": _auction,
    "greedy": lambda gains, span: _greedy(gains),
}
