"""``ride_dispatch``: a fleet is offered orders minute by minute; each vehicle is an agent and may carry up to three."""

from marljax.envs.ride_dispatch.demand import Demand, Zones, read_times
from marljax.envs.ride_dispatch.env import RideDispatch
from marljax.envs.ride_dispatch.params import FREE_FLOW, RideParams
from marljax.envs.ride_dispatch.trips import demand_from_trips

__all__ = ["FREE_FLOW", "Demand", "RideDispatch", "RideParams", "Zones", "demand_from_trips", "read_times"]
