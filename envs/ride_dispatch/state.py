"""What an episode of ``ride_dispatch`` consists of, and what is counted of it.

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


class Tally(struct.PyTreeNode):
    """Sums over the episode so far."""

    reward: jax.Array  # discounted
    arrived: jax.Array
    served: jax.Array
    lost: jax.Array
    cancelled: jax.Array
    overflow: jax.Array  # orders that found no place in the table
    pickup: jax.Array  # min, of served orders
    confirmation: jax.Array  # min, of served orders
    finished: jax.Array  # orders dropped off
    delivery: jax.Array  # min, of finished orders
    detour: jax.Array  # min, of finished orders
    waits: jax.Array  # [WAITS] served orders by whole minutes from request to pickup; the last holds all longer ones


class RideState(struct.PyTreeNode):
    """Everything that an episode consists of."""

    vehicles: Vehicles
    orders: Orders
    minute: jax.Array  # int32 since the start
    tally: Tally
    offers: Any  # [N, C] int32 orders that each vehicle is offered, M for none; None with the view ``pairs``


class Served(NamedTuple):
    """The assignments of a minute."""

    taken: jax.Array  # [N] bool: the vehicle got an order
    order: jax.Array  # [N] int32: which
    gone: jax.Array  # [M] bool: the order has a vehicle
    reward: jax.Array  # [N], 0 without an order
    pickup: jax.Array  # [N] min


def expiry(key: jax.Array, state: RideState, patience: Any, cancel: Any) -> RideState:
    """Orders that waited too long are lost; some customers cancel before, never in the minute of their request."""
    orders = state.orders
    late = orders.open & (orders.request <= state.minute - patience)
    withdrawn = orders.open & ~late & (orders.request < state.minute)
    withdrawn &= jax.random.uniform(key, orders.open.shape) < cancel
    tally = state.tally.replace(lost=state.tally.lost + jnp.sum(late), cancelled=state.tally.cancelled + jnp.sum(withdrawn))
    return state.replace(orders=orders.replace(open=orders.open & ~late & ~withdrawn), tally=tally)


def count(state: RideState, served: Served, before: Vehicles, dropped: jax.Array, discount: jax.Array) -> Tally:
    """The sums after a minute; ``before`` are the vehicles that drove it, ``dropped`` [K, N] what they brought to its end."""
    tally, request = state.tally, state.orders.request
    waited = jnp.where(served.gone, state.minute - request, 0)
    until_pickup = state.minute - request[jnp.clip(served.order, 0, len(request) - 1)] + served.pickup
    bins = jnp.clip(until_pickup.astype(jnp.int32), 0, WAITS - 1)
    return tally.replace(
        reward=tally.reward + discount**state.minute * jnp.sum(served.reward),
        served=tally.served + jnp.sum(served.taken),
        pickup=tally.pickup + jnp.sum(jnp.where(served.taken, served.pickup, 0.0)),
        confirmation=tally.confirmation + jnp.sum(waited),
        finished=tally.finished + jnp.sum(dropped),
        delivery=tally.delivery + jnp.sum(jnp.where(dropped, before.total, 0.0)),
        detour=tally.detour + jnp.sum(jnp.where(dropped, before.total - before.direct, 0.0)),
        waits=tally.waits + jnp.sum((bins[:, None] == jnp.arange(WAITS)) & served.taken[:, None], axis=0),
    )


def metrics(tally: Tally) -> dict[str, jax.Array]:
    """See ``RideDispatch``."""
    served, finished = jnp.maximum(tally.served, 1), jnp.maximum(tally.finished, 1)
    counts = {name: getattr(tally, name) for name in ("reward", "arrived", "served", "lost", "cancelled", "overflow")}
    means = {name: getattr(tally, name) / served for name in ("pickup", "confirmation")}
    means |= {name: getattr(tally, name) / finished for name in ("delivery", "detour")}
    return counts | means | {"service": tally.served / jnp.maximum(tally.arrived, 1)}
