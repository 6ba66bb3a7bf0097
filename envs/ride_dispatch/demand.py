"""Demand by time and place: zones of a city, rates by minute and an origin–destination table.

The embedded demand is Manhattan's: shares of 69 taxi zones computed from public trip records of New York's Taxi and Limousine
Commission (yellow taxis), destinations by a gravity model, rates by the weekday share of each hour.

Axis letters: Z zones, M orders.
"""

import csv
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.errors import UserError

MANHATTAN_FILE = Path(__file__).parent / "data" / "manhattan_zones.csv"
MINUTES = 24 * 60
WIDEST = 1_000.0  # km from a city's origin
GRAVITY_KM = 3.0  # distance over which a destination's weight falls by e
ORDERS_AT_19 = 7_452.0  # orders per hour at 19 h, 3,726 in the half hour of the papers' logs
HOURLY_SHARE = np.array(  # per cent of a weekday's orders, 0–23 h
    [1.8, 0.8, 0.7, 0.4, 0.4, 0.7, 2.7, 4.4, 6.3, 5.4, 5.0, 4.0, 4.9, 4.7, 5.3, 5.5, 4.8, 6.2, 7.1, 6.5, 6.3, 6.1, 5.5, 4.7]
)
HOURLY_SPEED = np.array(  # km/h of a weekday's traffic, 0–23 h
    [21.5, 22.8, 26.1, 24.1, 27.4, 22.9, 22.6, 19.5, 14.2, 12.9, 13.6, 13.6,
     13.7, 13.5, 12.9, 13.8, 13.3, 13.7, 14.1, 15.8, 17.0, 17.6, 18.4, 18.4]
)  # fmt: skip


class Zones(NamedTuple):
    """Zones of a city, [Z] each."""

    zone_id: np.ndarray
    up: np.ndarray  # km, centroids along the first axis of the city's grid
    cross: np.ndarray  # km, along the second

    def distances(self) -> np.ndarray:
        """[Z, Z] km between centroids along both axes."""
        return np.abs(self.up[:, None] - self.up) + np.abs(self.cross[:, None] - self.cross)

    @classmethod
    def read(cls, path: str | Path) -> "Zones":
        """From a CSV file with columns ``zone_id``, ``up_km`` and ``cross_km``."""
        try:
            rows = read_rows(path)
            columns = (("zone_id", int), ("up_km", float), ("cross_km", float))
            zones = cls(*(np.array([kind(row[name]) for row in rows]) for name, kind in columns))
        except (OSError, KeyError, TypeError, ValueError) as error:
            names = "zone_id, up_km, cross_km"
            raise UserError(f"cannot read {path} as zones ({error!r}); give a CSV file with columns {names}") from error
        found, count = np.unique(zones.zone_id, return_counts=True)
        if not len(found):
            raise UserError(f"{path} has no zones; give a row for each")
        if (count > 1).any():
            raise UserError(f"{path} has zone {found[count > 1][0]} more than once; give one row for each")
        for name, column in (("up_km", zones.up), ("cross_km", zones.cross)):
            if (wrong := ~(np.abs(column) <= WIDEST)).any():
                raise UserError(f"{path}: {name} of zone {zones.zone_id[wrong][0]} must lie between -{WIDEST:g} and {WIDEST:g}")
        return zones


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Rows of a CSV file, with or without a byte order mark."""
    return list(csv.DictReader(Path(path).read_text(encoding="utf-8-sig").splitlines()))


class Demand(struct.PyTreeNode):
    """Tables that orders are drawn from."""

    up: Any = param(unit="km", help="[Z] centroids of the zones along the first axis of the city's grid")
    cross: Any = param(unit="km", help="[Z] along the second")
    origin: Any = param(help="[Z] cumulative share of pickups")
    destination: Any = param(help="[Z, Z] cumulative share of drop-offs, by origin")
    rate: Any = param(low=0.0, help="[1440] orders per minute of the day")

    @property
    def num_zones(self) -> int:
        """Z."""
        return self.up.shape[-1]


class Trips(struct.PyTreeNode):
    """Pickups and drop-offs of orders, [M] each."""

    origin: jax.Array  # int32 zone
    destination: jax.Array  # int32 zone
    up: jax.Array  # km, pickup
    cross: jax.Array
    to_up: jax.Array  # km, drop-off
    to_cross: jax.Array


@functools.cache
def manhattan_zones() -> Zones:
    """The 69 taxi zones of Manhattan."""
    return Zones.read(MANHATTAN_FILE)


@functools.cache
def manhattan() -> Demand:
    """The embedded demand."""
    zones = manhattan_zones()
    rows = read_rows(MANHATTAN_FILE)
    pickup, dropoff = (np.array([float(row[name]) for row in rows]) for name in ("pickup_share", "dropoff_share"))
    rate = np.repeat(HOURLY_SHARE / HOURLY_SHARE[19] * ORDERS_AT_19 / 60, 60)
    return demand_from_shares(zones.up, zones.cross, pickup, dropoff * np.exp(-zones.distances() / GRAVITY_KM), rate)


def demand_from_shares(up: np.ndarray, cross: np.ndarray, origin: np.ndarray, flows: np.ndarray, rate: np.ndarray) -> Demand:
    """Demand from shares of origins [Z], of destinations by origin [Z, Z], of any positive sum, and orders per minute [1440].

    Raises:
        UserError: for negative shares, or shares that are all 0.
    """
    for shares in (origin, flows):
        if (shares < 0).any() or not (shares.sum(axis=-1) > 0).all():
            raise UserError("shares of origins and destinations must not be negative, and some must be positive in each row")
    cumulative = [np.cumsum(shares / shares.sum(axis=-1, keepdims=True), axis=-1) for shares in (origin, flows)]
    return Demand(*(np.asarray(table, np.float32) for table in (up, cross, *cumulative, rate)))


def read_times(path: str | Path, zones: Zones | None = None) -> np.ndarray:
    """[Z, Z] minutes from zone to zone, for ``RideParams.times``.

    Args:
        path: CSV file with columns ``from_zone``, ``to_zone`` and ``minutes``, a row for every pair of zones.
        zones: of the table; default: Manhattan's.

    Raises:
        UserError: for a file that cannot be read, that lacks pairs, or that has a negative time.
    """
    zones = manhattan_zones() if zones is None else zones
    index = {zone: position for position, zone in enumerate(zones.zone_id.tolist())}
    times, twice = np.full((len(index), len(index)), np.nan, np.float32), None
    try:
        for row in read_rows(path):
            ends = int(row["from_zone"]), int(row["to_zone"])
            if all(end in index for end in ends):
                pair = index[ends[0]], index[ends[1]]
                twice = ends if not np.isnan(times[pair]) else twice
                times[pair] = float(row["minutes"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        columns = "from_zone, to_zone, minutes"
        raise UserError(f"cannot read {path} as travel times ({error!r}); give a CSV file with columns {columns}") from error
    if twice:
        raise UserError(f"{path} has several times from zone {twice[0]} to {twice[1]}; give one")
    if (missing := np.isnan(times)).any():
        start, end = (zones.zone_id[position] for position in np.argwhere(missing)[0])
        raise UserError(f"{path} lacks {missing.sum()} of {times.size} pairs of zones, such as from {start} to {end}")
    if not ((times >= 0) & np.isfinite(times)).all():
        raise UserError(f"{path} has an invalid time; minutes must be finite and not negative")
    return times


def draw_positions(zone: jax.Array, offsets: jax.Array, demand: Demand, jitter: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[M] km up and across: the centroids of zones, moved by ``jitter`` km either way; ``offsets`` [2, M] uniform in [0, 1)."""
    moved = jitter * (2 * offsets - 1)
    return jnp.asarray(demand.up)[zone] + moved[0], jnp.asarray(demand.cross)[zone] + moved[1]


def draw_trips(draws: jax.Array, demand: Demand, jitter: jax.Array) -> Trips:
    """[M] trips from uniform draws [6, M]."""

    def draw_zones(draws: jax.Array, cumulative: jax.Array) -> jax.Array:
        return jnp.minimum(jnp.sum(draws[:, None] >= cumulative, axis=-1), demand.num_zones - 1).astype(jnp.int32)

    origin = draw_zones(draws[0], jnp.asarray(demand.origin))
    destination = draw_zones(draws[1], jnp.asarray(demand.destination)[origin])
    start, end = draw_positions(origin, draws[2:4], demand, jitter), draw_positions(destination, draws[4:6], demand, jitter)
    return Trips(origin, destination, *start, *end)
