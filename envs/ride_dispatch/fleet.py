"""The vehicles of ``ride_dispatch``: travel times, routes over the drop-offs, what an order is worth, a minute of driving.

Axis letters: N vehicles, K seats; a vehicle's drop-offs are ``[K, N]``. Units are km and minutes.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.envs.ride_dispatch.demand import Trips

ROUNDING = 1e-3  # min, of sums that should be whole
MOST_SEATS = 4  # all orders of the drop-offs are tried


class Vehicles(struct.PyTreeNode):
    """Where the fleet is and whom it carries."""

    up: jax.Array  # [N] km; the pickup's place from the assignment on
    cross: jax.Array  # [N]
    zone: jax.Array  # [N] int32 of the last stop; with a table of times, of what lies nearest on the way
    pickup_left: jax.Array  # [N] min until the last assigned order is aboard
    free: jax.Array  # [N] bool: may be given an order
    seated: jax.Array  # [K, N] bool: the seat is taken, also by an order that is not aboard yet
    to_up: jax.Array  # [K, N] km drop-off
    to_cross: jax.Array  # [K, N]
    to_zone: jax.Array  # [K, N] int32
    remaining: jax.Array  # [K, N] min of driving until it is dropped off
    total: jax.Array  # [K, N] min estimated from assignment to drop-off
    direct: jax.Array  # [K, N] min total at assignment to an empty vehicle would have been: pickup and direct ride
    earned: jax.Array  # [N] rewards so far
    stuck: jax.Array  # [N] bool: with ``env_params.stuck``, not free before the next drop-off

    @property
    def place(self) -> "Place":
        """[N] where the vehicles are."""
        return Place(self.up, self.cross, self.zone)

    @property
    def stops(self) -> "Place":
        """[K, N] where they bring their riders."""
        return Place(self.to_up, self.to_cross, self.to_zone)


def parked(up: jax.Array, cross: jax.Array, zone: jax.Array, present: jax.Array, seats: int) -> Vehicles:
    """Empty vehicles at these places, [N]."""
    none = jnp.zeros((seats, *up.shape))
    zones, seated, zero = none.astype(jnp.int32), none > 0, jnp.zeros_like(up)
    return Vehicles(up, cross, zone, zero, present, seated, none, none, zones, none, none, none, zero, zero > 0)


def free(vehicles: Vehicles, capacity: jax.Array) -> jax.Array:
    """[N] bool: nobody is to be picked up, and there is room for one more."""
    return (vehicles.pickup_left <= 0) & (jnp.sum(vehicles.seated, axis=0) < capacity)


class Plan(NamedTuple):
    """What taking an order would mean for each vehicle."""

    reward: jax.Array  # [N]
    pickup: jax.Array  # [N] min
    ride: jax.Array  # [N] min, the direct way
    vehicles: Vehicles  # the fleet if all took theirs


class Place(NamedTuple):
    """Where something is, […] each."""

    up: jax.Array  # km
    cross: jax.Array  # km
    zone: jax.Array  # int32


class Table(NamedTuple):
    """A city's times between its zones."""

    beyond: jax.Array  # [Z, Z] min from centroid to centroid, less what their kilometres take at the speed of what lies off them
    centroids: Place  # [Z]

    def nearest(self, place: Place) -> jax.Array:
        """[…] int32 zone whose centroid is nearest."""
        apart = jnp.abs(place.up[..., None] - self.centroids.up) + jnp.abs(place.cross[..., None] - self.centroids.cross)
        return jnp.argmin(apart, axis=-1).astype(jnp.int32)


class Travel(struct.PyTreeNode):
    """How long a leg takes."""

    minutes_per_km: Any
    floors: Any  # bool: each leg is rounded down to whole minutes
    table: Table | None = None  # by kilometres alone without
    stretch: Any = 1.065  # network km per km of |up| + |cross|
    offset: Any = 0.01  # km

    def km(self, start: Place, end: Place) -> jax.Array:
        """Along the streets."""
        return self.stretch * (jnp.abs(end.up - start.up) + jnp.abs(end.cross - start.cross)) + self.offset

    def minutes(self, start: Place, end: Place) -> jax.Array:
        """Of a leg, as plans count it."""
        time = self.exactly(start, end)
        slack = 0.0 if self.table is None else ROUNDING
        return jnp.where(self.floors, jnp.floor(time + slack), time)

    def exactly(self, start: Place, end: Place) -> jax.Array:
        """Minutes of a leg, as it is driven; how far places are off the centroids of a table counts by kilometres."""
        time = self.km(start, end) * self.minutes_per_km
        return time if self.table is None else jnp.maximum(time + self.table.beyond[start.zone, end.zone], 0.0)

    def by_table(self, times: jax.Array, centroids: Place) -> "Travel":
        """With ``times`` [Z, Z] min between the centroids [Z]."""
        apart = self.km(*(Place(*(part[index] for part in centroids)) for index in (np.s_[:, None], np.s_[None])))
        return self.replace(table=Table(times - apart * self.minutes_per_km, centroids))


class Weights(struct.PyTreeNode):
    """Of the reward of an assignment."""

    order: Any = 3.0  # per order
    km: Any = 1.0  # per km of the direct way
    pickup: Any = 3.0  # per hour until the pickup
    late: Any = 1.0  # per order aboard whose total time exceeds the threshold
    delay: Any = 3.0  # per hour added to the total times of all aboard, the new order's own included
    excess: Any = 5.0  # per hour of delay beyond the threshold
    threshold: Any = 40.0  # min

    def reward(self, km: jax.Array, pickup: jax.Array, delay: jax.Array, late: jax.Array) -> jax.Array:
        """[…] of an assignment: km of the direct way, minutes of pickup and delay, and how many aboard are late."""
        lost = self.pickup * pickup + self.delay * delay + self.excess * jnp.maximum(delay - self.threshold, 0.0)
        return self.order + self.km * km - self.late * late - lost / 60


def route(start: Place, stops: Place, seated: jax.Array, travel: Travel) -> jax.Array:
    """[K, N] minutes until each of ``stops`` [K, N] on the shortest open path over those of ``seated``; the first of equal
    orders."""
    seats = len(seated)
    best, length = jnp.zeros_like(stops.up), jnp.full(start.up.shape, jnp.inf, start.up.dtype)
    for order in itertools.permutations(range(seats)):
        place, time = start, jnp.zeros_like(start.up)
        arrivals: dict[int, jax.Array] = {}
        for seat in order:
            there = Place(*(part[seat] for part in stops))
            time = time + jnp.where(seated[seat], travel.minutes(place, there), 0.0)
            place = Place(*(jnp.where(seated[seat], new, old) for new, old in zip(there, place, strict=True)))
            arrivals[seat] = time
        shorter = time < length
        length = jnp.minimum(time, length)
        best = jnp.where(shorter, jnp.stack([arrivals[seat] for seat in range(seats)]), best)
    return best


def plan(vehicles: Vehicles, offers: Trips, travel: Travel, weights: Weights) -> Plan:
    """What each vehicle would do with its offer; it sits in the first empty seat."""
    start, end = Place(offers.up, offers.cross, offers.origin), Place(offers.to_up, offers.to_cross, offers.destination)
    pickup, ride = travel.minutes(vehicles.place, start), travel.minutes(start, end)
    seat = np.arange(vehicles.seated.shape[0])[:, None]
    new = seat == jnp.argmin(vehicles.seated, axis=0)

    def put(offered: jax.Array, kept: jax.Array) -> jax.Array:
        return jnp.where(new, offered, kept)

    stops = Place(*(put(offered, kept) for offered, kept in zip(end, vehicles.stops, strict=True)))
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
        direct=put(pickup + ride, vehicles.direct),
        earned=vehicles.earned + reward,
    )
    return Plan(reward, pickup, ride, after)


def rewards_if_empty(vehicles: Vehicles, offers: Trips, travel: Travel, weights: Weights) -> jax.Array:
    """[N, M] what every order would earn every vehicle if nobody were aboard: cheap beside ``plan``, which looks for routes."""
    start, end = Place(offers.up, offers.cross, offers.origin), Place(offers.to_up, offers.to_cross, offers.destination)
    pickup = travel.minutes(Place(*(part[:, None] for part in vehicles.place)), start)
    delay = pickup + travel.minutes(start, end)
    return weights.reward(travel.km(start, end), pickup, delay, delay > weights.threshold)


def drive(vehicles: Vehicles, travel: Travel) -> tuple[Vehicles, jax.Array]:
    """A minute: first to the pickup, its rest along the drop-offs; and which orders were dropped off, [K, N] bool."""
    fetching = vehicles.pickup_left > 1
    budget = jnp.where(fetching, 0.0, 1.0 - vehicles.pickup_left)
    place, left, passed = vehicles.place, budget, jnp.zeros_like(budget)
    waits = jnp.where(vehicles.seated, vehicles.remaining, jnp.inf)
    for _ in range(len(waits)):  # along the stops, in the order of the plan
        nearest = jnp.min(waits, axis=0)
        chosen = np.arange(len(waits))[:, None] == jnp.argmin(waits, axis=0)
        stop = Place(*(jnp.sum(jnp.where(chosen, there, 0), axis=0) for there in vehicles.stops))
        # A table says when a stop is reached, not where the vehicle is on its way: evenly between the two.
        time = travel.exactly(place, stop) if travel.table is None else nearest - passed
        share = jnp.where(jnp.isfinite(nearest), jnp.clip(left / jnp.maximum(time, 1e-6), 0.0, 1.0), 0.0)
        up, cross = (old + share * (new - old) for new, old in zip(stop[:2], place[:2], strict=True))
        place = place._replace(up=up, cross=cross)
        left, passed = jnp.maximum(left - time, 0.0), nearest
        waits = jnp.where(chosen, jnp.inf, waits)
    remaining = jnp.where(vehicles.seated, vehicles.remaining - budget, 0.0)
    dropped = vehicles.seated & (remaining <= 0) & ~fetching
    last = jnp.argmax(jnp.where(dropped, vehicles.remaining, -jnp.inf), axis=0)
    zone = jnp.where(jnp.any(dropped, axis=0), jnp.take_along_axis(vehicles.to_zone, last[None], axis=0)[0], vehicles.zone)
    seated = vehicles.seated & ~dropped
    if travel.table is not None:
        under_way = jnp.any(seated, axis=0) & ((place.up != vehicles.up) | (place.cross != vehicles.cross))
        zone = jnp.where(under_way, travel.table.nearest(place), zone)
    pickup_left = jnp.where(fetching, vehicles.pickup_left - 1.0, 0.0)
    vehicles = vehicles.replace(up=place.up, cross=place.cross, zone=zone, pickup_left=pickup_left, seated=seated)
    return vehicles.replace(remaining=jnp.maximum(remaining, 0.0)), dropped
