"""Charts of an episode of ``ride_dispatch``: orders over time, waits of customers, and demand against supply by zone.

Axis letters: T minutes, Z zones, B bins.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.style import BLUE, FAINT, INK, ORANGE, REFERENCES, blank, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = REFERENCES[0]
WORST = 4.0  # orders per free vehicle, or vehicles per order, at the ends of the colour scale


def draw(states: Any, env_params: Any, present: np.ndarray) -> "Figure":
    """Three charts of the states [T + 1] of an episode; ``present`` [N] bool are the slots with a vehicle."""
    figure = blank(6.4)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.15, 1.0])
    orders, waits, zones = (figure.add_subplot(place) for place in (grid[0, 0], grid[0, 1], grid[1, :]))
    titles = "orders over time", "wait from request to pickup", "demand against supply, by zone"
    for axes, title in zip((orders, waits, zones), titles, strict=True):
        axes.set_title(title, fontsize=10, loc="left", color=INK)
        plain(axes)

    stats, minute = states.stats, np.asarray(states.minute)
    lines = {
        "arrived": (np.asarray(stats.arrived), FAINT),
        "served": (np.asarray(stats.served), GREEN),
        "lost for any reason": (np.asarray(stats.lost) + np.asarray(stats.cancelled) + np.asarray(stats.overflow), ORANGE),
        "waiting": (np.asarray(states.orders.open).sum(axis=1), BLUE),
    }
    for name, (count, colour) in lines.items():
        orders.plot(minute, count, color=colour, linewidth=1.8, label=name)
    orders.set_xlabel("minute", fontsize=8, color=INK)
    orders.set_ylim(bottom=0)
    orders.legend(frameon=False, fontsize=8, labelcolor=INK)

    counts = stats.waits[-1]
    share = 100 * np.asarray(counts) / max(float(np.sum(counts)), 1.0)
    waits.bar(np.arange(len(share)) + 0.5, share, width=0.9, color=GREEN)
    waits.set_xlabel(f"minutes; the last bar: {len(share) - 1} or more", fontsize=8, color=INK)
    waits.set_ylabel("served orders, %", fontsize=8, color=INK)

    # the city turned as in animations, a disc for each zone
    demand = env_params.demand
    arrived, free = by_zone(states, demand.num_zones, present)
    ratio = np.log((arrived + 0.05) / (free + 0.05)) / np.log(WORST)
    size = 450 * arrived / max(arrived.max(), 1e-6) + 8
    style: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0, "edgecolors": FAINT, "linewidths": 0.6}
    points = zones.scatter(np.asarray(demand.up), -np.asarray(demand.cross), size, ratio, **style)
    zones.margins(0.06)  # for discs at the edge
    zones.set_aspect("equal", adjustable="datalim")
    zones.set_xlabel("km along the city's first axis (Manhattan: uptown); larger discs: more orders", fontsize=8, color=INK)
    bar = figure.colorbar(points, ax=zones, shrink=0.9, pad=0.01)
    bar.set_ticks([-1.0, 0.0, 1.0], labels=[f"{WORST:g} vehicles\nan order", "even", f"{WORST:g} orders\na vehicle"])
    bar.ax.tick_params(labelsize=8, color=FAINT, labelcolor=INK)
    bar.outline.set_visible(False)
    return figure


def by_zone(states: Any, zones: int, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[Z] new orders per minute, and [Z] free vehicles: means over the episode's decisions."""
    orders, vehicles = states.orders, states.vehicles
    minute = np.asarray(states.minute)
    arrived = np.asarray(orders.open) & (np.asarray(orders.request) == minute[:, None])
    free = np.asarray(vehicles.free) & present

    def mean(zone: Any, counts: np.ndarray) -> np.ndarray:
        return np.bincount(np.asarray(zone)[:-1][counts[:-1]], minlength=zones) / max(len(minute) - 1, 1)

    return mean(orders.trip.origin, arrived), mean(vehicles.zone, free)
