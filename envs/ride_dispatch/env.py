"""``ride_dispatch``: a fleet is offered orders minute by minute; each vehicle is an agent and may carry up to three.

The task is that of OSPO ("One Step is Enough: Multi-Agent Reinforcement Learning based on One-Step Policy Optimization for Order
Dispatch on Ride-Sharing Platforms") and Triple-BERT ("Do We Really Need MARL for Order Dispatch on Ride-Sharing Platforms?"),
with the rewards and the simulator of their experiments in Manhattan.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete
from marljax.core.types import Outcome, View
from marljax.envs.ride_dispatch import charts as ride_dispatch_charts
from marljax.envs.ride_dispatch import demand as demands
from marljax.envs.ride_dispatch import scene as ride_dispatch_scene
from marljax.envs.ride_dispatch.demand import Demand
from marljax.envs.ride_dispatch.fleet import MOST_SEATS, Place, Plan, Travel, Weights, drive, free, parked, plan, rewards_if_empty
from marljax.envs.ride_dispatch.state import WAITS, Orders, RideState, Served, Tally, count, expiry, metrics
from marljax.envs.ride_dispatch.trips import DAYS, ELSEWHERE, of_files, times_of_file
from marljax.errors import UserError, unknown
from marljax.utils.random import flat
from marljax.utils.validation import check_numbers, check_ranges

FREE_FLOW = 34.0  # km/h, which reproduces the travel times of the papers' routing engine
ORDER_FEATURES = 5
SHARE_ERROR = 1e-3  # of rounding
PAIRS_AT_ONCE = 32  # orders that are planned for the whole fleet together


class Pairs(NamedTuple):
    """What every vehicle would do with every order, [N, M] each."""

    reward: jax.Array
    pickup: jax.Array  # min
    ride: jax.Array  # min, the direct way


class RideParams(struct.PyTreeNode):
    """The numbers of ``ride_dispatch``: take ``default_params`` and change them with ``.replace(…)``, without compiling."""

    demand: Demand = dataclasses.field(default_factory=demands.manhattan)
    demand_scale: Any = 1.0  # multiplies the rate
    start: Any = 19 * 60  # minute of the day at which an episode begins
    duration: Any = 30  # min
    fleet: Any = 1000  # vehicles, at most the environment's
    capacity: Any = 3  # orders a vehicle carries, at most the environment's seats
    patience: Any = 5  # min after which an order that nobody took is lost
    cancel: Any = 0.0  # probability per minute that an open order is withdrawn
    speed: Any = dataclasses.field(default_factory=lambda: np.full(24, FREE_FLOW, np.float32))  # km/h by hour of the day
    times: Any = None  # [Z, Z] min between the zones' centroids, for ``travel="table"``
    floors: Any = True  # legs are rounded down to whole minutes
    jitter: Any = 0.0  # km either way, of places about the centroids of their zones
    stuck: Any = False  # the published code's: a vehicle at its pickup's place is not free before its next drop-off
    discount: Any = 0.99  # per minute, of the metric ``reward``
    weights: Weights = dataclasses.field(default_factory=Weights)


class Preset(NamedTuple):
    """Sizes, and numbers that differ from ``RideParams``'s own."""

    vehicles: int
    orders: int
    numbers: Mapping[str, Any]


_MOVED: dict[str, Any] = {"floors": False, "jitter": 0.4}
PRESETS: dict[str, Preset] = {
    "manhattan-1000": Preset(1000, 384, {}),
    "manhattan-400": Preset(400, 704, _MOVED),
    "manhattan-300": Preset(300, 704, _MOVED),
    "demo": Preset(32, 64, {"demand_scale": 0.08, **_MOVED}),
}
CHOICES = {
    "preset": PRESETS,
    "view": ("pairs", "candidates"),
    "travel": ("free_flow", "hourly", "table"),
    "elsewhere": ELSEWHERE,
    "days": DAYS,
}
OFFER_FEATURES = 8


@dataclasses.dataclass(frozen=True)
class RideDispatch(Environment):
    """Every minute, vehicles with an empty seat may take one more order each, and orders that nobody takes soon are lost.

    Options:

    - ``preset``: ``manhattan-1000`` (the papers' experiment: places are centroids of zones, travel times whole minutes),
      ``manhattan-400`` and ``manhattan-300`` (vehicles are scarce; places within zones, exact times), ``demo`` (32 vehicles).
    - ``vehicles``, ``orders``, ``seats``: sizes of the arrays, N, M and K; 0: the preset's. ``env_params.fleet`` and
      ``env_params.capacity`` may be smaller.
    - ``view``: ``pairs``, for policies that score every vehicle with every order: actions 0 … M − 1 ask for the order in that
      place of the table, M waits. ``candidates``, for all others: each vehicle is offered its C best orders by what they would
      earn it if it were empty, best first; actions 0 … C − 1 ask for one of them, C waits.
    - ``candidates``: C.
    - ``travel``: ``free_flow`` and ``hourly`` choose the default of ``env_params.speed``, the latter a weekday's traffic. With
      ``table`` ``env_params.times`` says how long it takes between zones, such as ``ride_dispatch_demand.read_times`` gives;
      places off the centroids add their kilometres at ``env_params.speed``.
    - ``trips_file``: trip records to take ``env_params.demand`` from, of the zones in ``zones_file`` (default: Manhattan's), as
      ``demand_from_trips`` does with ``elsewhere`` and ``days``. ``times_file``: what ``read_times`` reads for
      ``travel="table"``; without, times of free flow.

    Of several vehicles that ask for the same order the one whose reward is highest gets it, the first of equals, as a matching
    of largest total reward decides between two; the others wait.

    A vehicle's reward for an order (minutes, km; weights of OSPO and Triple-BERT): 3 + direct km − 3·pickup / 60 − orders aboard
    whose total time exceeds 40 − 3·Δ / 60 − 5·max(Δ − 40, 0) / 60, where Δ is what the order adds to the total times of all
    aboard, its own included. It goes to the pickup first, while the clocks of those aboard stand still, and then takes the
    shortest open path over all drop-offs. It may be given the next order once it has been to the pickup, if a seat is empty.

    Observation ``pairs``: ``own`` [N, 8 + 5 K]: place (up, cross, 10 km), empty seats (fraction), pickup time left (10 min),
    unavailable, time (fraction), rewards so far and the fleet's mean (10); of each seat drop-off (10 km), remaining, estimated
    total and added time (10 min). ``shared.orders`` [M, 5]: pickup, drop-off (10 km), minutes since the request (10);
    ``shared.open`` [M]. ``candidates``: ``own`` and of each offer 1, reward (10), pickup and ride time (10 min), drop-off
    relative to the vehicle (10 km), the minutes waited (10) and how many free vehicles are offered it (10).

    Global state: by zone open orders, free and busy vehicles, then vehicles by load, all over the fleet's size, and the time.
    Metrics: ``reward`` (the papers': sum over the fleet, discounted by 0.99 a minute), ``service`` (served of arrived), counts of
    orders ``arrived``, ``served``, ``lost`` (nobody took them in time), ``cancelled`` and ``overflow`` (the table was full), and
    means in minutes: ``pickup`` and ``confirmation`` (request to assignment) of served orders, ``delivery`` (assignment to
    drop-off) and ``detour`` (beyond pickup and direct ride) of those dropped off.
    """

    preset: str = dataclasses.field(default="manhattan-1000", compare=False)
    vehicles: int = 0  # N, slots for vehicles; 0: the preset's
    orders: int = 0  # M, places in the table of open orders; 0: the preset's
    seats: int = 3  # K, of a vehicle
    view: str = "pairs"
    candidates: int = 8  # C, orders that a vehicle is offered with view=candidates
    travel: str = "free_flow"
    trips_file: str = dataclasses.field(default="", compare=False)  # trip records that the demand comes from
    zones_file: str = dataclasses.field(default="", compare=False)  # its zones; none: Manhattan's
    elsewhere: str = dataclasses.field(default="refuse", compare=False)  # refuse | drop trips outside of the zones
    days: str = dataclasses.field(default="all", compare=False)  # all | weekdays | weekends of its trips
    times_file: str = dataclasses.field(default="", compare=False)  # minutes between the zones for travel=table; none: free flow

    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)

    def __post_init__(self) -> None:
        for option, choices in CHOICES.items():
            if (choice := str(getattr(self, option))) not in choices:
                raise unknown(f"{option} of ride_dispatch", choice, choices)
        for size in ("vehicles", "orders"):
            object.__setattr__(self, size, getattr(self, size) or getattr(PRESETS[self.preset], size))
        for option in ("vehicles", "orders", "seats", "candidates"):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                usual = " (0: the preset's)" if option in ("vehicles", "orders") else ""
                raise UserError(f"{option} of ride_dispatch is {value!r}; give an integer of at least 1{usual}")
        if self.seats > MOST_SEATS:
            raise UserError(f"seats={self.seats} of ride_dispatch is out of range; routes are found for up to {MOST_SEATS}")
        if self.view == "candidates" and self.candidates > self.orders:
            raise UserError(f"candidates={self.candidates} of ride_dispatch is more than its {self.orders} orders; give fewer")
        for option, usual in (("zones_file", ""), ("elsewhere", "refuse"), ("days", "all")):
            if getattr(self, option) != usual and not self.trips_file:
                raise UserError(f"{option} of ride_dispatch says how trips_file is read; give that, too")
        if self.times_file and self.travel != "table":
            raise UserError("times_file of ride_dispatch goes with travel='table'; give both or neither")
        if self.trips_file or self.times_file:
            self.preset_params(self.preset)  # what is wrong with a file is said now

    @property
    def num_agents(self) -> int:
        return self.vehicles

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.noop + 1)

    @property
    def noop(self) -> int:
        return self.orders if self.view == "pairs" else self.candidates

    @property
    def items(self) -> str | None:
        return "orders" if self.view == "pairs" else None

    @property
    def observation_space(self) -> Any:
        own = 8 + 5 * self.seats
        if self.view == "candidates":
            return Box((own + OFFER_FEATURES * self.candidates,))
        shared = {"orders": Box((self.orders, ORDER_FEATURES)), "open": Box((self.orders,), 0.0, 1.0)}
        return {"own": Box((own,)), "shared": shared}

    @property
    def default_params(self) -> RideParams:
        """The preset's numbers, with a vehicle in every slot."""
        return self.preset_params(self.preset).replace(fleet=self.vehicles)

    def preset_params(self, preset: str) -> RideParams:
        """The numbers of another preset, with as many of its vehicles as there are slots."""
        if preset not in PRESETS:
            raise unknown("preset of ride_dispatch", preset, PRESETS)
        fleet = min(PRESETS[preset].vehicles, self.vehicles)
        numbers = RideParams(fleet=fleet, capacity=self.seats, **PRESETS[preset].numbers)
        if self.trips_file:
            numbers = numbers.replace(demand=of_files(self.trips_file, self.zones_file, self.elsewhere, self.days))
        if self.travel == "hourly":
            numbers = numbers.replace(speed=demands.HOURLY_SPEED.astype(np.float32))
        if self.travel == "table":
            given = times_of_file(self.times_file, self.zones_file) if self.times_file else free_flow_times(numbers.demand)
            numbers = numbers.replace(times=given)
        return numbers

    def check_params(self, env_params: RideParams) -> None:
        """Raises ``UserError`` for numbers that no episode can have."""
        if not isinstance(env_params.demand, Demand):
            given = type(env_params.demand).__name__
            raise UserError(f"demand of ride_dispatch is a {given}; give a Demand, such as demand_from_trips(path)")
        if (env_params.times is None) == (self.travel == "table"):
            raise UserError("times of ride_dispatch go with travel='table'; give both or neither")
        usual, zones = self.default_params, np.size(env_params.demand.up)  # another city may have more or fewer
        tables = {"times": np.zeros((zones, zones), np.float32)} if self.travel == "table" else {}
        check_numbers(env_params, usual.replace(demand=demands.blank(zones), **tables), "ride_dispatch")
        check_ranges(env_params, self._ranges, "ride_dispatch")
        if (np.asarray(env_params.demand.rate) < 0).any():
            raise UserError("demand of ride_dispatch has a rate below 0; orders per minute are 0 or more")
        for table in (env_params.demand.origin, env_params.demand.destination):
            shares = np.diff(table, prepend=0.0, axis=-1)
            if (shares < -SHARE_ERROR).any() or (np.abs(np.asarray(table)[..., -1] - 1) > SHARE_ERROR).any():
                raise UserError(
                    "demand of ride_dispatch holds shares that do not add up to 1; make it with ride_dispatch_demand.of_shares"
                )

    @property
    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Of the numbers."""
        ranges = {"demand_scale": (0.0, 1e4), "jitter": (0.0, 100.0), "cancel": (0.0, 1.0), "discount": (0.0, 1.0)}
        sizes = {"fleet": (1, self.vehicles), "capacity": (1, self.seats), "start": (0, demands.MINUTES - 1)}
        ranges |= {"times": (0.0, np.inf)} if self.travel == "table" else {}
        return ranges | sizes | {"duration": (1, np.inf), "patience": (1, np.inf), "speed": (1.0, 300.0)}

    def initial(self, key: jax.Array, env_params: RideParams) -> RideState:
        key_fleet, key_orders = jax.random.split(key)
        draws = jax.random.uniform(key_fleet, (3, self.vehicles))
        zone = demands.uniform_zones(draws[0], env_params.demand)
        place = demands.draw_places(zone, draws[1:], env_params.demand, env_params.jitter)
        vehicles = parked(*place, zone, self._present(env_params), self.seats)
        nobody = jnp.zeros(self.orders)
        zones = nobody.astype(jnp.int32)
        orders = Orders(demands.Trips(zones, zones, nobody, nobody, nobody, nobody), zones, nobody > 0)
        tally = Tally(**{field.name: jnp.zeros(()) for field in dataclasses.fields(Tally)}).replace(waits=jnp.zeros(WAITS))
        state = RideState(vehicles, orders, jnp.zeros((), jnp.int32), tally, None)
        return self._offer(self._arrivals(key_orders, state, jnp.array(True), env_params), env_params)

    def transition(
        self, key: jax.Array, state: RideState, action: jax.Array, env_params: RideParams
    ) -> tuple[RideState, Outcome]:
        key_arrivals, key_cancel = jax.random.split(key)
        order = self._asked(state, action)
        planned = self.plan(state, order, env_params)
        taken, gone = self._awarded(state, order, planned.reward)
        before = jax.tree.map(lambda new, old: jnp.where(taken, new, old), planned.vehicles, state.vehicles)
        reward = jnp.where(taken, planned.reward, 0.0)
        vehicles, dropped = drive(before, self._travel(state, env_params))
        stuck = env_params.stuck & jnp.where(taken, planned.pickup <= 0, before.stuck) & ~jnp.any(dropped, axis=0)
        available = free(vehicles, env_params.capacity) & self._present(env_params) & ~stuck
        vehicles = vehicles.replace(free=available, stuck=stuck)
        served = Served(taken, order, gone, reward, planned.pickup)
        tally = count(state, served, before, dropped, env_params.discount)
        orders = state.orders.replace(open=state.orders.open & ~gone)
        state = RideState(vehicles, orders, state.minute + 1, tally, None)
        over = state.minute >= env_params.duration
        state = self._arrivals(key_arrivals, state, ~over, env_params)
        state = self._offer(expiry(key_cancel, state, env_params.patience, env_params.cancel), env_params)
        return state, Outcome(reward, jnp.array(False), over)

    def plan(self, state: RideState, order: jax.Array, env_params: RideParams) -> Plan:
        """What each vehicle would do with the order [N] of the table that it is offered, whether or not it may take it."""
        trip = jax.tree.map(lambda column: column[jnp.clip(order, 0, self.orders - 1)], state.orders.trip)
        return plan(state.vehicles, trip, self._travel(state, env_params), env_params.weights)

    def pairs(self, state: RideState, env_params: RideParams) -> Pairs:
        """Every vehicle with every open order, whether or not it may take it; 0 where no order is open."""
        size = min(PAIRS_AT_ONCE, self.orders)
        places = jnp.arange(-(-self.orders // size) * size)
        # New orders take the first empty places: nothing is open behind the last one.
        end = jnp.max(jnp.where(state.orders.open, jnp.arange(1, self.orders + 1), 0))

        def one(order: jax.Array) -> Pairs:
            planned = self.plan(state, jnp.full(self.vehicles, order), env_params)
            return Pairs(planned.reward, planned.pickup, planned.ride)

        def some(number: jax.Array, kept: Pairs) -> Pairs:
            first = number * size
            found = jax.vmap(one)(jax.lax.dynamic_slice_in_dim(places, first, size))
            return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0), kept, found)

        blank = Pairs(*(jnp.zeros((len(places), self.vehicles)),) * len(Pairs._fields))
        found = jax.lax.fori_loop(0, -(-end // size), some, blank)
        return Pairs(*(jnp.where(state.orders.open, part[: self.orders].T, 0.0) for part in found))

    def observe(self, state: RideState, env_params: RideParams) -> View:
        present = self._present(env_params)
        own = jnp.where(present[:, None], own_features(state, present, env_params), 0.0)
        if self.view == "candidates":
            chosen = jnp.where(state.offers < self.orders, state.offers, 0)
            mask = (state.offers < self.orders) & state.vehicles.free[:, None] & state.orders.open[chosen]
            offered = self._offer_features(state, mask, env_params)
            obs: Any = jnp.concatenate([own, offered.reshape(self.vehicles, -1)], axis=1)
        else:
            mask = state.vehicles.free[:, None] & state.orders.open
            obs = {"own": own, "shared": {"orders": order_features(state), "open": state.orders.open.astype(own.dtype)}}
        waits = jnp.ones((self.vehicles, 1), bool)
        return View(obs, jnp.concatenate([mask, waits], axis=1), present, metrics(state.tally))

    def global_state(self, state: RideState, env_params: RideParams) -> jax.Array:
        present, zones = self._present(env_params), jnp.arange(env_params.demand.num_zones)
        waiting = jnp.sum((state.orders.trip.origin[:, None] == zones) & state.orders.open[:, None], axis=0)
        inside = (state.vehicles.zone[:, None] == zones) & present[:, None]
        fleet = [jnp.sum(inside & side[:, None], axis=0) for side in (state.vehicles.free, ~state.vehicles.free)]
        load = jnp.sum(state.vehicles.seated, axis=0)
        loads = jnp.sum((load[:, None] == jnp.arange(self.seats + 1)) & present[:, None], axis=0)
        counts = jnp.concatenate([waiting, *fleet, loads]) / jnp.maximum(env_params.fleet, 1)
        return jnp.concatenate([counts, state.minute[None] / env_params.duration])

    def scene(self, state: RideState, env_params: RideParams) -> Scene:
        return ride_dispatch_scene.draw(state, env_params, self._present(env_params))

    @property
    def display(self) -> Display:
        def charts(states: RideState, env_params: RideParams) -> Any:
            return ride_dispatch_charts.draw(states, env_params, np.asarray(self._present(env_params)))

        return Display(
            metrics=("reward", "service", "pickup", "delivery", "detour", "confirmation"),
            warnings={"overflow": "orders found no place in the table; raise env.orders"},
            units={"service": "%", "distance": "km"}
            | dict.fromkeys(("pickup", "delivery", "detour", "confirmation", "time"), "min"),
            legend=ride_dispatch_scene.LEGEND,
            charts=charts,
        )

    # --- parts ----------------------------------------------------------------------------------------------------------

    def _present(self, env_params: RideParams) -> jax.Array:
        """[N] bool: slots with a vehicle."""
        return jnp.arange(self.vehicles) < env_params.fleet

    def _travel(self, state: RideState, env_params: RideParams) -> Travel:
        hour = (jnp.asarray(env_params.start + state.minute, jnp.int32) // 60) % 24
        travel = Travel(60.0 / jnp.asarray(env_params.speed)[hour], env_params.floors)
        if self.travel != "table":
            return travel
        up, cross = jnp.asarray(env_params.demand.up), jnp.asarray(env_params.demand.cross)
        return travel.by_table(jnp.asarray(env_params.times), Place(up, cross, jnp.arange(len(up))))

    def _asked(self, state: RideState, action: jax.Array) -> jax.Array:
        """[N] int32 order of the table that each vehicle asks for, M for none; an action outside of the space waits."""
        if self.view == "pairs":
            return jnp.where((action >= 0) & (action < self.orders), action, self.orders)
        chosen = jnp.arange(self.candidates) == action[:, None]
        return jnp.min(jnp.where(chosen, state.offers, self.orders), axis=1)

    def _awarded(self, state: RideState, order: jax.Array, worth: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[N] which vehicles get the order that they ask for; [M] which orders are taken."""
        place = jnp.clip(order, 0, self.orders - 1)
        asks = state.vehicles.free & (order < self.orders) & state.orders.open[place]
        place, number = jnp.where(asks, place, self.orders), jnp.arange(self.vehicles)
        most = jax.ops.segment_max(worth, place, self.orders + 1)
        first = jax.ops.segment_min(jnp.where(worth == most[place], number, self.vehicles), place, self.orders + 1)
        return asks & (first[place] == number), jnp.isfinite(most[:-1])

    def _arrivals(self, key: jax.Array, state: RideState, wanted: jax.Array, env_params: RideParams) -> RideState:
        """The minute's new orders, in the first empty places of the table; what finds none is counted."""
        key_count, key_trips = jax.random.split(key)
        minute = jnp.asarray(env_params.start + state.minute, jnp.int32) % demands.MINUTES
        rate = jnp.asarray(env_params.demand.rate)[minute] * env_params.demand_scale
        number = jnp.where(wanted, jax.random.poisson(key_count, rate), 0)
        draws = flat(jax.random.uniform, key_trips, (6, self.orders))
        trip = demands.draw_trips(draws, env_params.demand, env_params.jitter)
        orders, empty = state.orders, ~state.orders.open
        fills = empty & (jnp.cumsum(empty) <= number)
        kept = jax.tree.map(lambda new, old: jnp.where(fills, new, old), trip, orders.trip)
        orders = Orders(kept, jnp.where(fills, state.minute, orders.request), orders.open | fills)
        too_many = jnp.maximum(number - jnp.sum(empty), 0)
        tally = state.tally.replace(arrived=state.tally.arrived + number, overflow=state.tally.overflow + too_many)
        return state.replace(orders=orders, tally=tally)

    def _offer(self, state: RideState, env_params: RideParams) -> RideState:
        """Draws up what each vehicle is offered."""
        if self.view == "pairs":
            return state
        allowed = state.vehicles.free[:, None] & state.orders.open
        worth = rewards_if_empty(state.vehicles, state.orders.trip, self._travel(state, env_params), env_params.weights)
        worth = jnp.where(allowed, worth, -jnp.inf)
        best, order = jax.lax.top_k(worth, self.candidates)
        return state.replace(offers=jnp.where(jnp.isfinite(best), order, self.orders))

    def _offer_features(self, state: RideState, mask: jax.Array, env_params: RideParams) -> jax.Array:
        """[N, C, 8]: see ``RideDispatch``."""
        place = jnp.where(mask, state.offers, 0)
        planned = jax.vmap(lambda order: self.plan(state, order, env_params), in_axes=1)(place)
        reward, pickup, ride = planned.reward.T, planned.pickup.T, planned.ride.T
        asked = jnp.zeros(self.orders).at[place.reshape(-1)].add(mask.reshape(-1).astype(jnp.float32))
        trip = jax.tree.map(lambda column: column[place], state.orders.trip)
        far = trip.to_up - state.vehicles.up[:, None], trip.to_cross - state.vehicles.cross[:, None]
        waited = state.minute - state.orders.request[place]
        parts = (jnp.ones_like(reward), *(part / 10 for part in (reward, pickup, ride, *far, waited, asked[place])))
        return jnp.where(mask[..., None], jnp.stack(parts, axis=-1), 0.0)


def free_flow_times(demand: Demand) -> np.ndarray:
    """[Z, Z] min between the centroids of its zones, without traffic."""
    apart = demands.Zones(np.arange(demand.num_zones), np.asarray(demand.up), np.asarray(demand.cross)).apart()
    return np.asarray((Travel.stretch * apart + Travel.offset) * 60.0 / FREE_FLOW, np.float32)


def own_features(state: RideState, present: jax.Array, env_params: RideParams) -> jax.Array:
    """[N, 8 + 5 K]: see ``RideDispatch``."""
    vehicles = state.vehicles
    mean = jnp.sum(jnp.where(present, vehicles.earned, 0.0)) / jnp.maximum(env_params.fleet, 1)
    empty = jnp.mean(~vehicles.seated, axis=0, dtype=vehicles.up.dtype)
    time = state.minute / env_params.duration
    own = [vehicles.up / 10, vehicles.cross / 10, empty, vehicles.pickup_left / 10, ~vehicles.free, time]
    own += [vehicles.earned / 10, mean / 10]
    added = vehicles.total - vehicles.direct
    aboard = (vehicles.to_up, vehicles.to_cross, vehicles.remaining, vehicles.total, added)
    seats = [jnp.where(vehicles.seated, part, 0.0)[seat] / 10 for seat in range(len(vehicles.seated)) for part in aboard]
    return jnp.stack([jnp.broadcast_to(part, vehicles.up.shape).astype(vehicles.up.dtype) for part in own + seats], axis=1)


def order_features(state: RideState) -> jax.Array:
    """[M, 5], 0 where no order is open: see ``RideDispatch``."""
    trip = state.orders.trip
    columns = trip.up, trip.cross, trip.to_up, trip.to_cross, state.minute - state.orders.request
    return jnp.where(state.orders.open[:, None], jnp.stack(columns, axis=1) / 10, 0.0)
