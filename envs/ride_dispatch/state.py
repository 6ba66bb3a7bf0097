"""State and statistics of an episode of ``ride_dispatch``.

Axis letters: N vehicles, M orders, K seats, C offers.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.ride_dispatch.demand import Trips
from marljax.envs.ride_dispatch.fleet import Vehicles

WAITS = 21  # bins of the histogram of waits


class Orders(struct.PyTreeNode):
    """The table of open orders, [M] each."""

    trip: Trips
    request: jax.Array  # [M] int32 minute of the episode
    open: jax.Array  # [M] bool


class EpisodeStats(struct.PyTreeNode):
    """Sums over the episode so far."""

    reward: jax.Array  # discounted
    arrived: jax.Array
    served: jax.Array
    lost: jax.Array
    cancelled: jax.Array
    overflow: jax.Array  # orders that found the table full
    pickup: jax.Array  # min, of served orders
    confirmation: jax.Array  # min, of served orders
    finished: jax.Array  # orders dropped off
    delivery: jax.Array  # min, of finished orders
    detour: jax.Array  # min, of finished orders
    waits: jax.Array  # [WAITS] served orders by whole minutes from request to pickup; the last bin holds all longer waits


class RideState(struct.PyTreeNode):
    """Complete state of an episode."""

    vehicles: Vehicles
    orders: Orders
    minute: jax.Array  # int32 since the start
    stats: EpisodeStats
    offers: Any  # [N, C] int32 orders offered to each vehicle, M for none; None with other views than candidates


class Assignments(NamedTuple):
    """The assignments of a minute."""

    taken: jax.Array  # [N] bool: the vehicle got an order
    order: jax.Array  # [N] int32: which
    gone: jax.Array  # [M] bool: the order has a vehicle
    reward: jax.Array  # [N], 0 without an order
    pickup: jax.Array  # [N] min


def expire(key: jax.Array, state: RideState, patience: Any, cancel: Any) -> RideState:
    """Orders that waited too long are lost; some customers cancel earlier, but not in the minute of their request."""
    orders = state.orders
    late = orders.open & (orders.request <= state.minute - patience)
    cancelled = orders.open & ~late & (orders.request < state.minute)
    cancelled &= jax.random.uniform(key, orders.open.shape) < cancel
    stats = state.stats.replace(lost=state.stats.lost + jnp.sum(late), cancelled=state.stats.cancelled + jnp.sum(cancelled))
    return state.replace(orders=orders.replace(open=orders.open & ~late & ~cancelled), stats=stats)


def update(state: RideState, assigned: Assignments, before: Vehicles, dropped: jax.Array, discount: jax.Array) -> EpisodeStats:
    """The statistics after a minute; ``before`` are the vehicles at its start, ``dropped`` [K, N] the drop-offs at its end."""
    stats, request = state.stats, state.orders.request
    waited = jnp.where(assigned.gone, state.minute - request, 0)
    until_pickup = state.minute - request[jnp.clip(assigned.order, 0, len(request) - 1)] + assigned.pickup
    bins = jnp.clip(until_pickup.astype(jnp.int32), 0, WAITS - 1)
    return stats.replace(
        reward=stats.reward + discount**state.minute * jnp.sum(assigned.reward),
        served=stats.served + jnp.sum(assigned.taken),
        pickup=stats.pickup + jnp.sum(jnp.where(assigned.taken, assigned.pickup, 0.0)),
        confirmation=stats.confirmation + jnp.sum(waited),
        finished=stats.finished + jnp.sum(dropped),
        delivery=stats.delivery + jnp.sum(jnp.where(dropped, before.total, 0.0)),
        detour=stats.detour + jnp.sum(jnp.where(dropped, before.total - before.direct, 0.0)),
        waits=stats.waits + jnp.sum((bins[:, None] == jnp.arange(WAITS)) & assigned.taken[:, None], axis=0),
    )


def metrics(stats: EpisodeStats) -> dict[str, jax.Array]:
    """See ``RideDispatch``."""
    served, finished = jnp.maximum(stats.served, 1), jnp.maximum(stats.finished, 1)
    counts = {name: getattr(stats, name) for name in ("reward", "arrived", "served", "lost", "cancelled", "overflow")}
    means = {name: getattr(stats, name) / served for name in ("pickup", "confirmation")}
    means |= {name: getattr(stats, name) / finished for name in ("delivery", "detour")}
    return counts | means | {"service": stats.served / jnp.maximum(stats.arrived, 1)}
