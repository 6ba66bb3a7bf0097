"""Vehicles right after a decision, before time moves: the observation of ``view="afterstates"``.

It holds every vehicle with every order, so that policies need nothing but the observation: 17 MB an environment for 300 vehicles
and 704 orders, 31 MB for 1000 and 384, also in checkpoints, and in recordings at every step.

Axis letters: N vehicles, K seats, Z zones.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.ride_dispatch.demand import Demand, Trips
from marljax.envs.ride_dispatch.fleet import Position, Vehicles
from marljax.envs.ride_dispatch.params import RideParams

NEARBY_KM = 0.8  # distance over which the weight of a zone's demand falls by e
DENSITY_SCALE = 20.0  # brings densities to the size of the other columns
COLUMNS = (
    "until free",
    "decisions left",
    "route left",
    "until last drop-off",
    "up",
    "cross",
    "demand here",
    "last stop up",
    "last stop cross",
    "demand at last stop",
    "time",
)


def names(seats: int) -> tuple[str, ...]:
    """Names of the columns of ``Afterstate.features``."""
    loads = tuple(f"{load} aboard" for load in range(seats + 1))
    return (*COLUMNS, *loads, *(f"remaining {number}" for number in range(seats)))


class Afterstate(NamedTuple):
    """Of each vehicle, if it takes an order or waits."""

    reward: jax.Array  # [N] of the order
    decisions: jax.Array  # [N] minutes of the episode in which it may still be given orders
    features: jax.Array  # [F, N]


def density(position: Position, demand: Demand) -> jax.Array:
    """[…] share of all pickups near a position."""
    share = jnp.diff(jnp.asarray(demand.origin), prepend=0.0)
    km = jnp.abs(position.up[..., None] - demand.up) + jnp.abs(position.cross[..., None] - demand.cross)
    return DENSITY_SCALE * jnp.sum(share * jnp.exp(-km / NEARBY_KM), axis=-1)


class Densities(NamedTuple):
    """Demand at positions, computed once per minute: the features of all pairs need it."""

    here: jax.Array  # [N] at the vehicles
    stops: jax.Array  # [K, N] at their drop-offs
    pickup: jax.Array  # [M] at the orders'
    dropoff: jax.Array  # [M]

    @classmethod
    def of(cls, vehicles: Vehicles, trips: Trips, demand: Demand) -> "Densities":
        start, end = Position(trips.up, trips.cross, trips.origin), Position(trips.to_up, trips.to_cross, trips.destination)
        return cls(*(density(position, demand) for position in (vehicles.position, vehicles.stops, start, end)))

    def with_order(self, vehicles: Vehicles, order: jax.Array) -> "Densities":
        """If every one of ``vehicles`` takes the order at this index, in its first empty seat."""
        new = np.arange(len(vehicles.seated))[:, None] == jnp.argmin(vehicles.seated, axis=0)
        here = jnp.broadcast_to(self.pickup[order], self.here.shape)
        return self._replace(here=here, stops=jnp.where(new, self.dropoff[order], self.stops))


def ascending(rows: jax.Array) -> list[jax.Array]:
    """The rows of [K, N] sorted for each column, by comparisons of neighbours: ``jnp.sort`` takes longer than all else here."""
    found = list(rows)
    for length in range(len(found) - 1, 0, -1):
        for low in range(length):
            pair = found[low : low + 2]
            found[low : low + 2] = jnp.minimum(*pair), jnp.maximum(*pair)
    return found


def describe(reward: jax.Array, vehicles: Vehicles, near: Densities, minute: jax.Array, env_params: RideParams) -> Afterstate:
    """Of ``vehicles`` as they are after decisions at ``minute``, which earn ``reward`` [N].

    Features, in units of 10 min and 10 km (cross: 3 km) as far as they have one: minutes until the vehicle may be given another
    order; share of the episode in which it still may; driving time of the route after the pickup; minutes until the last
    drop-off, at most those that are left of the episode; position; demand there; position of the last drop-off (its own if
    empty); demand there; share of the episode so far; one-hot number of orders aboard; driving times to the drop-offs,
    ascending. ``env_params.stuck`` is not considered.
    """
    load, route = jnp.sum(vehicles.seated, axis=0), jnp.where(vehicles.seated, vehicles.remaining, 0.0)
    first = jnp.min(jnp.where(vehicles.seated, vehicles.remaining, jnp.inf), axis=0)
    busy = vehicles.pickup_left + jnp.where(load >= env_params.capacity, first, 0.0)
    left = env_params.duration - minute
    decisions = jnp.maximum(left - jnp.maximum(jnp.ceil(busy), 1.0), 0.0)

    length = jnp.max(route, axis=0)
    last = np.arange(len(route))[:, None] == jnp.argmax(route, axis=0)

    def at_last(stops: jax.Array, own: jax.Array) -> jax.Array:
        return jnp.where(load > 0, jnp.sum(jnp.where(last, stops, 0.0), axis=0), own)

    end_up, end_cross = at_last(vehicles.to_up, vehicles.up), at_last(vehicles.to_cross, vehicles.cross)
    until_end = vehicles.pickup_left + length
    columns: list[Any] = [busy / 10, decisions / env_params.duration, length / 10, jnp.minimum(until_end, left) / 10]
    columns += [vehicles.up / 10, vehicles.cross / 3, near.here, end_up / 10, end_cross / 3, at_last(near.stops, near.here)]
    columns += [minute / env_params.duration, *(load == count for count in range(len(route) + 1))]
    columns += [time / 10 for time in ascending(route)]
    dtype, shape = vehicles.up.dtype, vehicles.up.shape
    features = jnp.stack([jnp.broadcast_to(column, shape).astype(dtype) for column in columns])
    return Afterstate(reward, decisions.astype(dtype), features)
