"""What a dispatcher wants to know of an episode of ``ride_dispatch``: orders over time, how long customers waited, and where
vehicles were too few.

Axis letters: T minutes, Z zones, B bins.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from marljax.core.style import BLUE, FAINT, INK, ORANGE, REFERENCES, blank, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREEN = REFERENCES[0]
WORST = 4.0  # orders for each free vehicle, or vehicles for each order, at the ends of the scale


def draw(states: Any, env_params: Any, present: np.ndarray) -> "Figure":
    """Three charts of the states [T + 1] of an episode; ``present`` [N] bool are the slots with a vehicle."""
    figure = blank(6.4)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.15, 1.0])
    _over_time(_panel(figure.add_subplot(grid[0, 0]), "orders over time"), states)
    _waits(_panel(figure.add_subplot(grid[0, 1]), "wait from request to pickup"), states.tally.waits[-1])
    axes = _panel(figure.add_subplot(grid[1, :]), "demand against supply, by zone")
    shown = _zones(axes, env_params.demand, *by_zone(states, env_params.demand.num_zones, present))
    bar = figure.colorbar(shown, ax=axes, shrink=0.9, pad=0.01)
    bar.set_ticks([-1.0, 0.0, 1.0], labels=[f"{WORST:g} vehicles\nan order", "even", f"{WORST:g} orders\na vehicle"])
    bar.ax.tick_params(labelsize=8, color=FAINT, labelcolor=INK)
    bar.outline.set_visible(False)
    return figure


def by_zone(states: Any, zones: int, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orders that came in a minute, and vehicles that might have been given one, [Z] each: means over the episode's decisions."""
    orders, vehicles = states.orders, states.vehicles
    minute = np.asarray(states.minute)
    came = np.asarray(orders.open) & (np.asarray(orders.request) == minute[:, None])
    free = np.asarray(vehicles.free) & present

    def mean(zone: Any, counts: np.ndarray) -> np.ndarray:
        return np.bincount(np.asarray(zone)[:-1][counts[:-1]], minlength=zones) / max(len(minute) - 1, 1)

    return mean(orders.trip.origin, came), mean(vehicles.zone, free)


def _panel(axes: "Axes", title: str) -> "Axes":
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    plain(axes)
    return axes


def _over_time(axes: "Axes", states: Any) -> None:
    """How many came, were served, were lost for whatever reason, and wait."""
    tally, minute = states.tally, np.asarray(states.minute)
    gone = np.asarray(tally.lost) + np.asarray(tally.cancelled) + np.asarray(tally.overflow)
    lines = {
        "arrived": (np.asarray(tally.arrived), FAINT),
        "served": (np.asarray(tally.served), GREEN),
        "lost for any reason": (gone, ORANGE),
        "waiting": (np.asarray(states.orders.open).sum(axis=1), BLUE),
    }
    for name, (count, colour) in lines.items():
        axes.plot(minute, count, color=colour, linewidth=1.8, label=name)
    axes.set_xlabel("minute", fontsize=8, color=INK)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)


def _waits(axes: "Axes", counts: Any) -> None:
    """Share of the served orders by minutes; the last bin holds all that waited longer."""
    share = 100 * np.asarray(counts) / max(float(np.sum(counts)), 1.0)
    axes.bar(np.arange(len(share)) + 0.5, share, width=0.9, color=GREEN)
    axes.set_xlabel(f"minutes; the last bar: {len(share) - 1} or more", fontsize=8, color=INK)
    axes.set_ylabel("served orders, %", fontsize=8, color=INK)


def _zones(axes: "Axes", demand: Any, came: np.ndarray, free: np.ndarray) -> Any:
    """The city turned as in animations: a disc for each zone, the larger the more orders start there."""
    ratio = np.log((came + 0.05) / (free + 0.05)) / np.log(WORST)
    size = 450 * came / max(came.max(), 1e-6) + 8
    style: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0, "edgecolors": FAINT, "linewidths": 0.6}
    shown = axes.scatter(np.asarray(demand.up), -np.asarray(demand.cross), size, ratio, **style)
    axes.margins(0.06)  # for discs at the edge
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("km along the city's first axis (Manhattan: uptown); larger discs: more orders", fontsize=8, color=INK)
    return shown
