"""Pictures of ``ride_dispatch``: a disc per vehicle, lines along its route, pickups of open orders, drop-offs ahead and due.

The first axis of the city's grid runs to the right: uptown is right, the east side below. Zones are grey discs, sized by the
number of orders that start there. The view holds the busy zones and leaves out where hardly anybody rides.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marljax.core.scene import Boxes, Circles, Colour, Labels, Scene, Segments, empty

EMPTY: Colour = (0.13, 0.47, 0.71, 1.0)
LADEN: Colour = (0.96, 0.62, 0.16, 1.0)
FULL: Colour = (0.80, 0.33, 0.05, 1.0)
WAITING: Colour = (0.84, 0.10, 0.11, 1.0)
DROP: Colour = (0.20, 0.55, 0.24, 0.9)
DUE: Colour = (0.35, 0.80, 0.40, 0.55)
WAY: Colour = (0.20, 0.55, 0.24, 0.35)
ZONE: Colour = (0.45, 0.45, 0.45, 0.15)  # the lines below are seen through it
LEGEND = (
    ("empty", EMPTY),
    ("a seat left", LADEN),
    ("full", FULL),
    ("waiting for a vehicle", WAITING),
    ("drop-off", DROP),
    ("dropped off within a minute", DUE),
)
MARGIN = 0.6  # km
BUSY = 0.05  # of the busiest zone's orders: fewer start in zones that the view need not hold
LARGEST_ZONE = 0.45  # km, radius
SIZES = {"vehicle": 0.07, "order": 0.055, "drop": 0.08, "due": 0.13}  # km, for a thousand vehicles; fewer are drawn larger


class Queue(NamedTuple):
    """Numbers of orders, and of vehicles outside of the view."""

    waiting: jax.Array
    assigned: jax.Array  # so far, to a vehicle
    dropped_off: jax.Array  # of these
    lost: jax.Array
    vehicles_out_of_view: jax.Array


def draw(state: Any, env_params: Any, present: jax.Array) -> Scene:
    """The scene, in km and minutes.

    Args:
        state: of the episode.
        env_params: the zones.
        present: [N] bool, slots with a vehicle.
    """
    vehicles, orders, demand = state.vehicles, state.orders, env_params.demand
    scale = min(2.0, (1000 / len(present)) ** 0.25)
    zones = _points(demand.up, demand.cross)
    share = jnp.diff(jnp.asarray(demand.origin), prepend=0.0)
    busy = (share >= BUSY * jnp.max(share))[:, None]
    low, high = (
        jnp.min(jnp.where(busy, zones, jnp.inf), axis=0) - MARGIN,
        jnp.max(jnp.where(busy, zones, -jnp.inf), axis=0) + MARGIN,
    )
    position = _points(vehicles.up, vehicles.cross)
    outside = present & jnp.any((position < low) | (position > high), axis=1)
    load = jnp.sum(vehicles.seated, axis=0)
    laden = jnp.where((load >= len(vehicles.seated))[:, None], jnp.array(FULL), jnp.array(LADEN))
    colour = jnp.where((load > 0)[:, None], laden, jnp.array(EMPTY))
    drops = _points(vehicles.to_up, vehicles.to_cross).reshape(-1, 2)
    due = (vehicles.seated & (vehicles.pickup_left + vehicles.remaining <= 1.0)).reshape(-1, 1)
    circles = (
        Circles(zones, LARGEST_ZONE * jnp.sqrt(share / jnp.max(share)), jnp.tile(jnp.array([ZONE]), (len(share), 1))),
        Circles(drops, jnp.full(len(drops), scale * SIZES["due"]), jnp.where(due, jnp.array(DUE), 0.0)),
        Circles(
            _points(orders.trip.up, orders.trip.cross),
            jnp.full(len(orders.open), scale * SIZES["order"]),
            jnp.where(orders.open[:, None], jnp.array(WAITING), 0.0),
        ),
        Circles(
            position,
            jnp.full(len(present), scale * SIZES["vehicle"]),
            jnp.where(present[:, None], colour, 0.0),
        ),
    )
    boxes = Boxes(
        centre=drops,
        size=jnp.full((len(drops), 2), scale * SIZES["drop"]),
        heading=jnp.zeros(len(drops)),
        colour=jnp.where(vehicles.seated.reshape(-1)[:, None], jnp.array(DROP), 0.0),
    )
    return Scene(
        segments=_routes(vehicles),
        boxes=boxes,
        circles=Circles(*map(jnp.concatenate, zip(*circles, strict=True))),
        labels=empty(Labels),
        bounds=jnp.stack([low, high], axis=1).reshape(-1),
        time=state.minute.astype(float),
        agents=position,
        status=Queue(jnp.sum(orders.open), state.stats.served, state.stats.finished, state.stats.lost, jnp.sum(outside)),
    )


def between(vehicles: Any, after: Any, share: Any) -> Any:
    """The vehicles at a share of the way from one minute's positions to the next."""
    moved = {name: (1 - share) * getattr(vehicles, name) + share * getattr(after, name) for name in ("up", "cross")}
    return vehicles.replace(**moved)


def _points(up: Any, cross: Any) -> jax.Array:
    """In the picture: the city turned by 90° to the right."""
    return jnp.stack([jnp.asarray(up), -jnp.asarray(cross)], axis=-1)


def _routes(vehicles: Any) -> Segments:
    """From each vehicle to its drop-offs in their order, along both axes."""
    start = _points(vehicles.up, vehicles.cross)
    order = jnp.argsort(jnp.where(vehicles.seated, vehicles.remaining, jnp.inf), axis=0)
    stops = _points(*(jnp.take_along_axis(part, order, axis=0) for part in (vehicles.to_up, vehicles.to_cross)))
    starts, ends, shown = [], [], []
    for stop, seated in zip(stops, jnp.take_along_axis(vehicles.seated, order, axis=0), strict=True):
        corner = jnp.stack([stop[:, 0], start[:, 1]], axis=-1)  # along an avenue first
        starts += [start, corner]
        ends += [corner, stop]
        shown += [seated, seated]
        start = jnp.where(seated[:, None], stop, start)
    visible = jnp.concatenate(shown)
    colour = jnp.where(visible[:, None], jnp.array(WAY), 0.0)
    return Segments(jnp.concatenate(starts), jnp.concatenate(ends), jnp.full(len(visible), 0.8), colour)
