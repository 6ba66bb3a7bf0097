"""Parameters of ``ride_dispatch`` and its presets."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.envs.ride_dispatch import demand as demands
from marljax.envs.ride_dispatch.demand import Demand
from marljax.envs.ride_dispatch.fleet import Travel, Weights

FREE_FLOW = 34.0  # km/h, which reproduces the travel times of the papers' routing engine


class RideParams(struct.PyTreeNode):
    """Parameters of ``ride_dispatch``: change ``default_params`` with ``.replace(…)``, nothing is compiled again."""

    demand: Demand = dataclasses.field(default_factory=demands.manhattan)
    demand_scale: Any = param(1.0, low=0.0, high=1e4, help="multiplies the rate of orders")
    start: Any = param(19 * 60, low=0, high=demands.MINUTES - 1, unit="min", help="time of day at which an episode begins")
    duration: Any = param(30, low=1, unit="min")
    fleet: Any = param(1000, low=1, help="number of vehicles, at most the option vehicles")
    capacity: Any = param(3, low=1, help="orders that a vehicle carries, at most the option seats")
    patience: Any = param(5, low=1, unit="min", help="after which an unassigned order is lost")
    cancel: Any = param(0.0, low=0.0, high=1.0, help="probability per minute that an open order is cancelled")
    speed: Any = param(lambda: np.full(24, FREE_FLOW, np.float32), low=1.0, high=300.0, unit="km/h", help="by hour of the day")
    times: Any = None  # [Z, Z] min between the zones' centroids; requires travel=table
    floors: Any = param(True, help="legs are rounded down to whole minutes")
    jitter: Any = param(0.0, low=0.0, high=100.0, unit="km", help="of positions about the centroids of their zones, either way")
    stuck: Any = param(False, help="as in the published code, a vehicle with a pickup where it is stays busy until a drop-off")
    discount: Any = param(0.99, low=0.0, high=1.0, help="per minute, of the metric reward")
    weights: Weights = dataclasses.field(default_factory=Weights)


class Preset(NamedTuple):
    """Sizes, and parameters that differ from the defaults of ``RideParams``."""

    vehicles: int
    orders: int
    params: Mapping[str, Any]


_WITHIN_ZONES: dict[str, Any] = {"floors": False, "jitter": 0.4}
PRESETS: dict[str, Preset] = {
    "manhattan-1000": Preset(1000, 384, {}),
    "manhattan-400": Preset(400, 704, _WITHIN_ZONES),
    "manhattan-300": Preset(300, 704, _WITHIN_ZONES),
    "demo": Preset(32, 64, {"demand_scale": 0.08, **_WITHIN_ZONES}),
}


def free_flow_times(demand: Demand) -> np.ndarray:
    """[Z, Z] min between the centroids of its zones, without traffic."""
    zones = demands.Zones(np.arange(demand.num_zones), np.asarray(demand.up), np.asarray(demand.cross))
    return np.asarray((Travel.stretch * zones.distances() + Travel.offset) * 60.0 / FREE_FLOW, np.float32)
