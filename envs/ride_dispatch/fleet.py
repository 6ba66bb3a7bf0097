"""Vehicles of ``ride_dispatch``: travel times, routes over the drop-offs, the reward of an order, a minute of driving.

Axis letters: N vehicles, K seats; a vehicle's drop-offs are ``[K, N]``. Units are km and minutes.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.envs.ride_dispatch.demand import Trips

ROUNDING = 1e-3  # min, of sums that should be whole
MOST_SEATS = 4  # all permutations of the drop-offs are tried


class Position(NamedTuple):
    """A position in the city, […] each."""

    up: jax.Array  # km
    cross: jax.Array  # km
    zone: jax.Array  # int32


class Vehicles(struct.PyTreeNode):
    """Vehicle positions and passengers."""

    up: jax.Array  # [N] km; of the pickup as soon as it is assigned
    cross: jax.Array  # [N]
    zone: jax.Array  # [N] int32 of the last stop; with a table of times, the nearest one on the way
    pickup_left: jax.Array  # [N] min until the last assigned order is aboard
    free: jax.Array  # [N] bool: may be assigned an order
    seated: jax.Array  # [K, N] bool: the seat is taken, also by an order that is not aboard yet
    to_up: jax.Array  # [K, N] km drop-off
    to_cross: jax.Array  # [K, N]
    to_zone: jax.Array  # [K, N] int32
    remaining: jax.Array  # [K, N] min of driving until it is dropped off
    total: jax.Array  # [K, N] min estimated from assignment to drop-off
    direct: jax.Array  # [K, N] min total in an empty vehicle: pickup and direct ride
    earned: jax.Array  # [N] rewards so far
    stuck: jax.Array  # [N] bool: with ``env_params.stuck``, not free before the next drop-off

    @property
    def position(self) -> Position:
        """[N]."""
        return Position(self.up, self.cross, self.zone)

    @property
    def stops(self) -> Position:
        """[K, N] drop-offs."""
        return Position(self.to_up, self.to_cross, self.to_zone)


def parked(up: jax.Array, cross: jax.Array, zone: jax.Array, present: jax.Array, seats: int) -> Vehicles:
    """Empty vehicles at these positions, [N]."""
    none = jnp.zeros((seats, *up.shape))
    zones, seated, zero = none.astype(jnp.int32), none > 0, jnp.zeros_like(up)
    return Vehicles(up, cross, zone, zero, present, seated, none, none, zones, none, none, none, zero, zero > 0)


class Plan(NamedTuple):
    """Consequences of an assignment for each vehicle."""

    reward: jax.Array  # [N]
    pickup: jax.Array  # [N] min
    ride: jax.Array  # [N] min of the direct ride
    vehicles: Vehicles  # the fleet if all took their orders


class Table(NamedTuple):
    """A city's travel times between its zones."""

    beyond: jax.Array  # [Z, Z] min from centroid to centroid, less the time of their distance at the speed off the centroids
    centroids: Position  # [Z]

    def nearest(self, position: Position) -> jax.Array:
        """[…] int32 zone with the nearest centroid."""
        up, cross = position.up[..., None] - self.centroids.up, position.cross[..., None] - self.centroids.cross
        return jnp.argmin(jnp.abs(up) + jnp.abs(cross), axis=-1).astype(jnp.int32)


class Travel(struct.PyTreeNode):
    """Distances and travel times of legs."""

    minutes_per_km: Any
    floors: Any  # bool: each leg is rounded down to whole minutes
    table: Table | None = None  # without, times follow from distances
    stretch: Any = 1.065  # network km per km of |up| + |cross|
    offset: Any = 0.01  # km

    def km(self, start: Position, end: Position) -> jax.Array:
        """Along the streets."""
        return self.stretch * (jnp.abs(end.up - start.up) + jnp.abs(end.cross - start.cross)) + self.offset

    def minutes(self, start: Position, end: Position) -> jax.Array:
        """Planned time of a leg."""
        time = self.exact_minutes(start, end)
        slack = 0.0 if self.table is None else ROUNDING
        return jnp.where(self.floors, jnp.floor(time + slack), time)

    def exact_minutes(self, start: Position, end: Position) -> jax.Array:
        """Driven time of a leg; with a table, distances from the centroids are added at the speed."""
        time = self.km(start, end) * self.minutes_per_km
        return time if self.table is None else jnp.maximum(time + self.table.beyond[start.zone, end.zone], 0.0)

    def by_table(self, times: jax.Array, centroids: Position) -> "Travel":
        """With ``times`` [Z, Z] min between the centroids [Z]."""
        start, end = (Position(*(part[index] for part in centroids)) for index in (np.s_[:, None], np.s_[None]))
        return self.replace(table=Table(times - self.km(start, end) * self.minutes_per_km, centroids))


class Weights(struct.PyTreeNode):
    """Reward of an assignment."""

    order: Any = param(3.0, help="per order")
    km: Any = param(1.0, help="per km of the direct ride")
    pickup: Any = param(3.0, help="cost per hour until the pickup")
    late: Any = param(1.0, help="cost per order aboard whose total time exceeds threshold")
    delay: Any = param(3.0, help="cost per hour added to the total times of all aboard, including the new order's own")
    excess: Any = param(5.0, help="cost per hour of delay beyond threshold")
    threshold: Any = param(40.0, unit="min")

    def reward(self, km: jax.Array, pickup: jax.Array, delay: jax.Array, late: jax.Array) -> jax.Array:
        """[…] from km of the direct ride, minutes of pickup and delay, and the number of late orders aboard."""
        lost = self.pickup * pickup + self.delay * delay + self.excess * jnp.maximum(delay - self.threshold, 0.0)
        return self.order + self.km * km - self.late * late - lost / 60


def route(start: Position, stops: Position, seated: jax.Array, travel: Travel) -> jax.Array:
    """[K, N] minutes until each of ``stops`` [K, N] on the shortest open path over the ``seated`` ones; ties go to the first
    permutation."""
    seats = len(seated)
    best, length = jnp.zeros_like(stops.up), jnp.full(start.up.shape, jnp.inf, start.up.dtype)
    for order in itertools.permutations(range(seats)):
        position, time = start, jnp.zeros_like(start.up)
        arrivals: dict[int, jax.Array] = {}
        for seat in order:
            stop = Position(*(part[seat] for part in stops))
            time = time + jnp.where(seated[seat], travel.minutes(position, stop), 0.0)
            position = Position(*(jnp.where(seated[seat], new, old) for new, old in zip(stop, position, strict=True)))
            arrivals[seat] = time
        shorter = time < length
        length = jnp.minimum(time, length)
        best = jnp.where(shorter, jnp.stack([arrivals[seat] for seat in range(seats)]), best)
    return best


def plan(vehicles: Vehicles, offers: Trips, travel: Travel, weights: Weights) -> Plan:
    """Each vehicle with its offer, which takes the first empty seat."""
    start, end = Position(offers.up, offers.cross, offers.origin), Position(offers.to_up, offers.to_cross, offers.destination)
    pickup, ride = travel.minutes(vehicles.position, start), travel.minutes(start, end)
    new = np.arange(vehicles.seated.shape[0])[:, None] == jnp.argmin(vehicles.seated, axis=0)
    stops = Position(*(jnp.where(new, offered, kept) for offered, kept in zip(end, vehicles.stops, strict=True)))
    seated = vehicles.seated | new
    remaining = route(start, stops, seated, travel)
    old = jnp.where(vehicles.seated, vehicles.total, 0.0)
    ridden = jnp.where(vehicles.seated, vehicles.total - vehicles.remaining, 0.0)
    total = jnp.where(seated, ridden + pickup + remaining, 0.0)
    delay = jnp.sum(total, axis=0) - jnp.sum(old, axis=0)
    reward = weights.reward(travel.km(start, end), pickup, delay, jnp.sum(seated & (total > weights.threshold), axis=0))
    after = vehicles.replace(
        up=start.up,
        cross=start.cross,
        zone=start.zone,
        pickup_left=pickup,
        free=jnp.zeros_like(vehicles.free),
        seated=seated,
        to_up=stops.up,
        to_cross=stops.cross,
        to_zone=stops.zone,
        remaining=remaining,
        total=total,
        direct=jnp.where(new, pickup + ride, vehicles.direct),
        earned=vehicles.earned + reward,
    )
    return Plan(reward, pickup, ride, after)


def rewards_if_empty(vehicles: Vehicles, offers: Trips, travel: Travel, weights: Weights) -> jax.Array:
    """[N, M] reward of every order in every vehicle if it were empty: much cheaper than ``plan``, which searches routes."""
    start, end = Position(offers.up, offers.cross, offers.origin), Position(offers.to_up, offers.to_cross, offers.destination)
    pickup = travel.minutes(Position(*(part[:, None] for part in vehicles.position)), start)
    delay = pickup + travel.minutes(start, end)
    return weights.reward(travel.km(start, end), pickup, delay, delay > weights.threshold)


def drive(vehicles: Vehicles, travel: Travel) -> tuple[Vehicles, jax.Array]:
    """A minute: first to the pickup, the rest along the drop-offs. Also returns the orders dropped off, [K, N] bool."""
    fetching = vehicles.pickup_left > 1
    budget = jnp.where(fetching, 0.0, 1.0 - vehicles.pickup_left)
    position, left, passed = vehicles.position, budget, jnp.zeros_like(budget)
    waits = jnp.where(vehicles.seated, vehicles.remaining, jnp.inf)
    for _ in range(len(waits)):  # along the stops, in planned order
        nearest = jnp.min(waits, axis=0)
        chosen = np.arange(len(waits))[:, None] == jnp.argmin(waits, axis=0)
        stop = Position(*(jnp.sum(jnp.where(chosen, part, 0), axis=0) for part in vehicles.stops))
        # A table has the time of arrival at a stop but no positions on the way: these are interpolated linearly.
        time = travel.exact_minutes(position, stop) if travel.table is None else nearest - passed
        share = jnp.where(jnp.isfinite(nearest), jnp.clip(left / jnp.maximum(time, 1e-6), 0.0, 1.0), 0.0)
        up, cross = (old + share * (new - old) for new, old in zip(stop[:2], position[:2], strict=True))
        position = position._replace(up=up, cross=cross)
        left, passed = jnp.maximum(left - time, 0.0), nearest
        waits = jnp.where(chosen, jnp.inf, waits)
    remaining = jnp.where(vehicles.seated, vehicles.remaining - budget, 0.0)
    dropped = vehicles.seated & (remaining <= 0) & ~fetching
    last = jnp.argmax(jnp.where(dropped, vehicles.remaining, -jnp.inf), axis=0)
    zone = jnp.where(jnp.any(dropped, axis=0), jnp.take_along_axis(vehicles.to_zone, last[None], axis=0)[0], vehicles.zone)
    seated = vehicles.seated & ~dropped
    if travel.table is not None:
        moving = jnp.any(seated, axis=0) & ((position.up != vehicles.up) | (position.cross != vehicles.cross))
        zone = jnp.where(moving, travel.table.nearest(position), zone)
    after = vehicles.replace(
        up=position.up,
        cross=position.cross,
        zone=zone,
        pickup_left=jnp.where(fetching, vehicles.pickup_left - 1.0, 0.0),
        seated=seated,
        remaining=jnp.maximum(remaining, 0.0),
    )
    return after, dropped
