"""``ride_dispatch``: a fleet is offered orders minute by minute; each vehicle is an agent and may carry up to three.

The task is that of OSPO ("One Step is Enough: Multi-Agent Reinforcement Learning based on One-Step Policy Optimization for Order
Dispatch on Ride-Sharing Platforms") and Triple-BERT ("Do We Really Need MARL for Order Dispatch on Ride-Sharing Platforms?"),
with the rewards and the simulator of their experiments in Manhattan.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core import fields
from marljax.core.environment import Display, Environment
from marljax.core.fields import option
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, Part
from marljax.core.types import Outcome, View
from marljax.envs.ride_dispatch import afterstates, charts, fleet
from marljax.envs.ride_dispatch import demand as demands
from marljax.envs.ride_dispatch import scene as scenes
from marljax.envs.ride_dispatch import state as states
from marljax.envs.ride_dispatch.afterstates import Afterstate, Densities
from marljax.envs.ride_dispatch.demand import MINUTES, Demand
from marljax.envs.ride_dispatch.fleet import MOST_SEATS, Plan, Position, Travel, Vehicles
from marljax.envs.ride_dispatch.params import PRESETS, RideParams, free_flow_times
from marljax.envs.ride_dispatch.state import WAITS, Assignments, EpisodeStats, Orders, RideState
from marljax.envs.ride_dispatch.trips import DAYS, ELSEWHERE, cached_demand, cached_times
from marljax.errors import UserError, unknown
from marljax.utils.random import flat

# Columns of an observation: of a vehicle, of each of its seats, of an order, and of an offered one.
VEHICLE = ("up", "cross", "empty seats", "pickup left", "unavailable", "time", "earned", "fleet's mean")
SEAT = ("to up", "to cross", "remaining", "total", "added")
ORDER = ("up", "cross", "to up", "to cross", "waited")
OFFER = ("present", "reward", "pickup", "ride", "to up", "to cross", "waited", "free vehicles")
SHARE_ERROR = 1e-3  # rounding of cumulative shares
MEANINGS = {
    "reward": "sum over the fleet, discounted by 0.99 a minute, as the papers report it",
    "service": "orders served, of those that arrived",
    "arrived": "orders that passengers placed",
    "served": "orders that a vehicle took",
    "lost": "orders that nobody took in time",
    "cancelled": "orders that their passengers cancelled",
    "overflow": "orders turned away because the table of open orders was full",
    "confirmation": "from request to assignment, of served orders",
    "pickup": "from assignment to pickup, of served orders",
    "delivery": "from assignment to drop-off, of those dropped off",
    "detour": "delivery beyond pickup and direct ride, of those dropped off",
}
PAIRS_AT_ONCE = 32  # orders that are planned for the whole fleet together


class Pairs(NamedTuple):
    """Consequences of every vehicle taking every order, [N, M] each."""

    reward: jax.Array
    pickup: jax.Array  # min
    ride: jax.Array  # min of the direct ride


@dataclasses.dataclass(frozen=True)
class RideDispatch(Environment):
    """Every minute, vehicles with an empty seat may take one more order each; orders that nobody takes are lost after a while.

    ``view="pairs"`` is for policies that score every vehicle with every order: actions 0 … M − 1 request the order at that index
    of the table, M waits. With ``view="afterstates"`` actions are the same, and vehicles observe the state after each, for
    policies that value the vehicle after the decision. With ``view="candidates"`` each vehicle is offered the C orders with the
    highest reward if it were empty, best first: actions 0 … C − 1 request one of them, C waits. Of several vehicles that request
    the same order the one with the highest reward gets it, the first of equals; the others wait.

    A vehicle's reward for an order (minutes, km; weights of OSPO and Triple-BERT): 3 + direct km − 3·pickup / 60 − orders aboard
    whose total time exceeds 40 − 3·Δ / 60 − 5·max(Δ − 40, 0) / 60, where Δ is the order's addition to the total times of all
    aboard, its own included. The vehicle drives to the pickup first, while the clocks of those aboard stand still, and then takes
    the shortest open path over all drop-offs. It can take the next order after the pickup, if a seat is empty.

    With ``travel="table"`` positions off the centroids of zones add their distance at ``env_params.speed``.

    Observation ``pairs``: ``own`` [N, 8 + 5 K]: position (up, cross, 10 km), empty seats (fraction), pickup time left (10 min),
    unavailable, time (fraction), rewards so far and the fleet's mean (10); of each seat drop-off (10 km), remaining, estimated
    total and added time (10 min). ``shared.orders`` [M, 5]: pickup, drop-off (10 km), minutes since the request (10);
    ``shared.open`` [M]. ``candidates``: ``own`` and of each offer 1, reward (10), pickup and ride time (10 min), drop-off
    relative to the vehicle (10 km), minutes since the request (10) and number of free vehicles with the same offer (10).
    ``afterstates``: by action [N, M + 1] its ``reward``, the ``decisions`` that are left and the ``features`` [N, M + 1,
    12 + 2 K] of the vehicle after it (``afterstates.describe``), 0 for orders that are not open.

    Global state: by zone open orders, free and busy vehicles, then vehicles by load, all over the fleet's size, and the time.
    Metrics: see ``MEANINGS``.
    """

    preset: str = option(
        "manhattan-1000",
        choices=tuple(PRESETS),
        preset=True,
        help="the papers' experiment (1000); few vehicles, positions within zones, exact times (400, 300); 32 vehicles (demo)",
    )
    vehicles: int = option(0, low=0, help="N, slots for vehicles; 0: the preset's")
    orders: int = option(0, low=0, help="M, size of the table of open orders; 0: the preset's")
    seats: int = option(3, low=1, high=MOST_SEATS, help="K, of a vehicle")
    view: str = option(
        "pairs",
        choices=("pairs", "candidates", "afterstates"),
        help="agents choose among all orders, or among their best, or observe the state after each order",
    )
    candidates: int = option(8, low=1, help="C, orders that a vehicle is offered with view=candidates")
    travel: str = option(
        "free_flow",
        choices=("free_flow", "hourly", "table"),
        help="speed without traffic or by hour of a weekday, or a table of times between zones",
    )
    trips_file: str = option("", preset=True, help="trip records to estimate the demand from; see demand_from_trips")
    zones_file: str = option("", preset=True, help="their zones; empty: Manhattan's")
    elsewhere: str = option("refuse", choices=ELSEWHERE, preset=True, help="trips outside of the zones")
    days: str = option("all", choices=DAYS, preset=True, help="days whose trips are used")
    times_file: str = option("", preset=True, help="minutes between the zones for travel=table; empty: free flow")

    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in ("vehicles", "orders"):
            object.__setattr__(self, size, getattr(self, size) or getattr(PRESETS[self.preset], size))
        if self.view == "candidates" and self.candidates > self.orders:
            raise UserError(f"candidates={self.candidates} must not exceed orders={self.orders}")
        for name, default in (("zones_file", ""), ("elsewhere", "refuse"), ("days", "all")):
            if getattr(self, name) != default and not self.trips_file:
                raise UserError(f"{name} requires trips_file; give both")
        if self.times_file and self.travel != "table":
            raise UserError("times_file requires travel='table'; give both or neither")
        if self.trips_file or self.times_file:
            self.preset_params(self.preset)  # reports errors in the files early

    @property
    def num_agents(self) -> int:
        return self.vehicles

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.noop + 1)

    @property
    def noop(self) -> int:
        return self.candidates if self.view == "candidates" else self.orders

    @property
    def items(self) -> str | None:
        return "orders" if self.view == "pairs" else None

    @property
    def afterstates(self) -> bool:
        return self.view == "afterstates"

    @property
    def observation_space(self) -> Any:
        own = len(VEHICLE) + len(SEAT) * self.seats
        if self.view == "candidates":
            return Box((own + len(OFFER) * self.candidates,))
        if self.view == "afterstates":
            by_action, features = (self.orders + 1,), len(afterstates.names(self.seats))
            return {"reward": Box(by_action), "decisions": Box(by_action, 0.0), "features": Box((*by_action, features))}
        shared = {"orders": Box((self.orders, len(ORDER))), "open": Box((self.orders,), 0.0, 1.0)}
        return {"own": Box((own,)), "shared": shared}

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        if self.view == "afterstates":  # in the order of the observation's names
            columns = ("decisions",), afterstates.names(self.seats), ("reward",)
            return tuple(Part("actions", self.orders + 1, len(part), ordered=True, columns=part) for part in columns)
        own = (*VEHICLE, *(f"seat {seat} {column}" for seat in range(self.seats) for column in SEAT))
        parts = [Part("own", 1, len(own), columns=own)]
        if self.view == "candidates":
            return (*parts, Part("offers", self.candidates, len(OFFER), ordered=True, columns=OFFER))
        is_open = Part("orders", self.orders, 1, ordered=True, columns=("open",))
        return (*parts, is_open, Part("orders", self.orders, len(ORDER), ordered=True, columns=ORDER))

    @property
    def default_params(self) -> RideParams:
        """The preset's parameters, with a vehicle in every slot."""
        return self.preset_params(self.preset).replace(fleet=self.vehicles)

    def preset_params(self, preset: str) -> RideParams:
        """The parameters of another preset, with its number of vehicles or as many as there are slots."""
        if preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        fleet_size = min(PRESETS[preset].vehicles, self.vehicles)
        params = RideParams(fleet=fleet_size, capacity=self.seats, **PRESETS[preset].params)
        if self.trips_file:
            params = params.replace(demand=cached_demand(self.trips_file, self.zones_file, self.elsewhere, self.days))
        if self.travel == "hourly":
            params = params.replace(speed=demands.HOURLY_SPEED.astype(np.float32))
        if self.travel == "table":
            times = cached_times(self.times_file, self.zones_file) if self.times_file else free_flow_times(params.demand)
            params = params.replace(times=times)
        return params

    def check_params(self, env_params: RideParams) -> None:
        if not isinstance(env_params.demand, Demand):
            raise UserError(f"demand is a {type(env_params.demand).__name__}; give a Demand, such as demand_from_trips(path)")
        if (env_params.times is None) == (self.travel == "table"):
            raise UserError("times requires travel='table'; give both or neither")
        zones = np.size(env_params.demand.up)  # another city may have more or fewer
        shapes = ((zones,), (zones,), (zones,), (zones, zones), (MINUTES,))
        expected = self.default_params.replace(demand=Demand(*(np.zeros(shape, np.float32) for shape in shapes)))
        if self.travel == "table":
            expected = expected.replace(times=np.zeros((zones, zones), np.float32))
        fields.check_params(env_params, expected)
        for name, slots in (("fleet", "vehicles"), ("capacity", "seats")):
            if getattr(env_params, name) > getattr(self, slots):
                raise UserError(f"{name}={getattr(env_params, name)} must not exceed {slots}={getattr(self, slots)}")
        if self.travel == "table" and (np.asarray(env_params.times) < 0).any():
            raise UserError("times must not be negative")
        for name in ("origin", "destination"):
            table = np.asarray(getattr(env_params.demand, name))
            if (np.diff(table, prepend=0.0, axis=-1) < -SHARE_ERROR).any() or (np.abs(table[..., -1] - 1) > SHARE_ERROR).any():
                raise UserError(f"demand.{name} must be cumulative shares up to 1; create it with demand.demand_from_shares")

    def initial(self, key: jax.Array, env_params: RideParams) -> RideState:
        key_fleet, key_orders = jax.random.split(key)
        draws = jax.random.uniform(key_fleet, (3, self.vehicles))
        zone = jnp.floor(draws[0] * env_params.demand.num_zones).astype(jnp.int32)
        position = demands.draw_positions(zone, draws[1:], env_params.demand, env_params.jitter)
        vehicles = fleet.parked(*position, zone, self._present(env_params), self.seats)
        empty = jnp.zeros(self.orders)
        zones = empty.astype(jnp.int32)
        orders = Orders(demands.Trips(zones, zones, empty, empty, empty, empty), zones, empty > 0)
        zeros = {field.name: jnp.zeros(()) for field in dataclasses.fields(EpisodeStats)}
        stats = EpisodeStats(**zeros | {"waits": jnp.zeros(WAITS)})
        state = RideState(vehicles, orders, jnp.zeros((), jnp.int32), stats, None)
        return self._offer(self._arrivals(key_orders, state, jnp.array(True), env_params), env_params)

    def transition(
        self, key: jax.Array, state: RideState, action: jax.Array, env_params: RideParams
    ) -> tuple[RideState, Outcome]:
        key_arrivals, key_cancel = jax.random.split(key)
        order = self._requested_orders(state, action)
        planned = self.plan(state, order, env_params)
        taken, gone = self._assign(state, order, planned.reward)
        before = jax.tree.map(lambda new, old: jnp.where(taken, new, old), planned.vehicles, state.vehicles)
        reward = jnp.where(taken, planned.reward, 0.0)
        vehicles, dropped = fleet.drive(before, self._travel(state, env_params))
        stuck = env_params.stuck & jnp.where(taken, planned.pickup <= 0, before.stuck) & ~jnp.any(dropped, axis=0)
        has_seat = (vehicles.pickup_left <= 0) & (jnp.sum(vehicles.seated, axis=0) < env_params.capacity)
        vehicles = vehicles.replace(free=has_seat & self._present(env_params) & ~stuck, stuck=stuck)
        assigned = Assignments(taken, order, gone, reward, planned.pickup)
        stats = states.update(state, assigned, before, dropped, env_params.discount)
        orders = state.orders.replace(open=state.orders.open & ~gone)
        state = RideState(vehicles, orders, state.minute + 1, stats, None)
        over = state.minute >= env_params.duration
        state = self._arrivals(key_arrivals, state, ~over, env_params)
        state = self._offer(states.expire(key_cancel, state, env_params.patience, env_params.cancel), env_params)
        return state, Outcome(reward, jnp.array(False), over)

    def plan(self, state: RideState, order: jax.Array, env_params: RideParams) -> Plan:
        """Each vehicle with the order [N] at an index of the table, whether or not it may take it."""
        trip = jax.tree.map(lambda column: column[jnp.clip(order, 0, self.orders - 1)], state.orders.trip)
        return fleet.plan(state.vehicles, trip, self._travel(state, env_params), env_params.weights)

    def pairs(self, state: RideState, env_params: RideParams) -> Pairs:
        """Every vehicle with every open order, whether or not it may take it; 0 where no order is open."""

        def plan_one(order: jax.Array) -> Pairs:
            planned = self.plan(state, jnp.full(self.vehicles, order), env_params)
            return Pairs(planned.reward, planned.pickup, planned.ride)

        found = self.for_open_orders(plan_one, state)
        return jax.tree.map(lambda part: jnp.where(state.orders.open, part[: self.orders].T, 0.0), found)

    def possible_afterstates(self, state: RideState, env_params: RideParams) -> Afterstate:
        """Of every vehicle with every order, and of waiting, [N, M + 1, …]; 0 where no order is open and for empty slots."""
        near = Densities.of(state.vehicles, state.orders.trip, env_params.demand)

        def plan_one(order: jax.Array) -> tuple[jax.Array, Vehicles]:
            planned = self.plan(state, jnp.full(self.vehicles, order), env_params)
            return planned.reward, planned.vehicles

        def describe(reward: jax.Array, vehicles: Vehicles, near: Densities) -> Afterstate:
            return afterstates.describe(reward, vehicles, near, state.minute, env_params)

        # All plans first: fused with them, each column of the features would search the routes again.
        reward, after = jax.tree.map(lambda part: part[: self.orders], self.for_open_orders(plan_one, state))
        near_taken = jax.vmap(lambda order: near.with_order(state.vehicles, order))(jnp.arange(self.orders))
        taken = jax.vmap(describe)(reward, after, near_taken)
        waiting = describe(jnp.zeros(self.vehicles), state.vehicles, near)

        def by_vehicle(taken: jax.Array, waiting: jax.Array) -> jax.Array:
            """[N, M + 1, …] from [M, …, N] and […, N]."""
            is_open = state.orders.open.reshape(-1, *[1] * waiting.ndim)
            rows = jnp.concatenate([jnp.where(is_open, taken, 0.0), waiting[None]])
            return jnp.moveaxis(jnp.where(self._present(env_params), rows, 0.0), -1, 0)

        return jax.tree.map(by_vehicle, taken, waiting)

    def for_open_orders(self, plan_one: Callable[[jax.Array], Any], state: RideState) -> Any:
        """``plan_one(order)``, arrays [..., N], of every order up to the last open one, stacked to [≥ M, …, N]; then 0."""
        size = min(PAIRS_AT_ONCE, self.orders)
        indices = jnp.arange(-(-self.orders // size) * size)
        # New orders take the first empty rows of the table: nothing after the last open one is computed.
        end = jnp.max(jnp.where(state.orders.open, jnp.arange(1, self.orders + 1), 0))

        def plan_chunk(chunk: jax.Array, kept: Any) -> Any:
            first = chunk * size
            found = jax.vmap(plan_one)(jax.lax.dynamic_slice_in_dim(indices, first, size))
            return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0), kept, found)

        shapes = jax.eval_shape(plan_one, indices[0])
        blank = jax.tree.map(lambda leaf: jnp.zeros((len(indices), *leaf.shape), leaf.dtype), shapes)
        return jax.lax.fori_loop(0, -(-end // size), plan_chunk, blank)

    def observe(self, state: RideState, env_params: RideParams) -> View:
        present, is_open = self._present(env_params), state.orders.open
        mask = state.vehicles.free[:, None] & is_open
        obs: Any
        if self.view == "afterstates":
            obs = self.possible_afterstates(state, env_params)._asdict()
        else:
            own = jnp.where(present[:, None], own_features(state, present, env_params), 0.0)
        if self.view == "candidates":
            index = jnp.where(state.offers < self.orders, state.offers, 0)
            mask = (state.offers < self.orders) & state.vehicles.free[:, None] & is_open[index]
            offers = self._offer_features(state, mask, env_params)
            obs = jnp.concatenate([own, offers.reshape(self.vehicles, -1)], axis=1)
        elif self.view == "pairs":
            trip = state.orders.trip
            columns = trip.up, trip.cross, trip.to_up, trip.to_cross, state.minute - state.orders.request
            orders = jnp.where(is_open[:, None], jnp.stack(columns, axis=1) / 10, 0.0)
            obs = {"own": own, "shared": {"orders": orders, "open": is_open.astype(own.dtype)}}
        waits = jnp.ones((self.vehicles, 1), bool)
        return View(obs, jnp.concatenate([mask, waits], axis=1), present, states.metrics(state.stats))

    def global_state(self, state: RideState, env_params: RideParams) -> jax.Array:
        present, zones = self._present(env_params), jnp.arange(env_params.demand.num_zones)
        waiting = jnp.sum((state.orders.trip.origin[:, None] == zones) & state.orders.open[:, None], axis=0)
        inside = (state.vehicles.zone[:, None] == zones) & present[:, None]
        by_zone = [jnp.sum(inside & side[:, None], axis=0) for side in (state.vehicles.free, ~state.vehicles.free)]
        load = jnp.sum(state.vehicles.seated, axis=0)
        loads = jnp.sum((load[:, None] == jnp.arange(self.seats + 1)) & present[:, None], axis=0)
        counts = jnp.concatenate([waiting, *by_zone, loads]) / jnp.maximum(env_params.fleet, 1)
        return jnp.concatenate([counts, state.minute[None] / env_params.duration])

    def scene(self, state: RideState, env_params: RideParams) -> Scene:
        return scenes.draw(state, env_params, self._present(env_params))

    @property
    def display(self) -> Display:
        minutes = dict.fromkeys(("pickup", "delivery", "detour", "confirmation", "time"), "min")
        return Display(
            metrics=("reward", "service", "pickup", "delivery", "detour", "confirmation"),
            meanings=MEANINGS,
            lowest=("pickup", "delivery", "detour", "confirmation", "lost", "cancelled"),
            warnings={"overflow": "the table of orders was full; raise env.orders"},
            units={"service": "%", "distance": "km"} | minutes,
            legend=scenes.LEGEND,
            decisions_per_second=4.0,
            between=lambda state, after, share: state.replace(vehicles=scenes.between(state.vehicles, after.vehicles, share)),
            charts=lambda episode, env_params: charts.draw(episode, env_params, np.asarray(self._present(env_params))),
        )

    def _present(self, env_params: RideParams) -> jax.Array:
        """[N] bool: slots with a vehicle."""
        return jnp.arange(self.vehicles) < env_params.fleet

    def _travel(self, state: RideState, env_params: RideParams) -> Travel:
        hour = (jnp.asarray(env_params.start + state.minute, jnp.int32) // 60) % 24
        travel = Travel(60.0 / jnp.asarray(env_params.speed)[hour], env_params.floors)
        if self.travel != "table":
            return travel
        up, cross = jnp.asarray(env_params.demand.up), jnp.asarray(env_params.demand.cross)
        return travel.by_table(jnp.asarray(env_params.times), Position(up, cross, jnp.arange(len(up))))

    def _requested_orders(self, state: RideState, action: jax.Array) -> jax.Array:
        """[N] int32 index in the table of each vehicle's requested order, M for none, also for an action out of range."""
        if self.view != "candidates":
            return jnp.where((action >= 0) & (action < self.orders), action, self.orders)
        chosen = jnp.arange(self.candidates) == action[:, None]
        return jnp.min(jnp.where(chosen, state.offers, self.orders), axis=1)

    def _assign(self, state: RideState, order: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[N] bool: vehicles that get their requested order; [M] bool: orders that are taken."""
        index = jnp.clip(order, 0, self.orders - 1)
        valid = state.vehicles.free & (order < self.orders) & state.orders.open[index]
        index, vehicle = jnp.where(valid, index, self.orders), jnp.arange(self.vehicles)
        best = jax.ops.segment_max(reward, index, self.orders + 1)
        first = jax.ops.segment_min(jnp.where(reward == best[index], vehicle, self.vehicles), index, self.orders + 1)
        return valid & (first[index] == vehicle), jnp.isfinite(best[:-1])

    def _arrivals(self, key: jax.Array, state: RideState, runs: jax.Array, env_params: RideParams) -> RideState:
        """The minute's new orders, in the first empty rows of the table; none unless the episode ``runs``."""
        key_count, key_trips = jax.random.split(key)
        minute = jnp.asarray(env_params.start + state.minute, jnp.int32) % MINUTES
        rate = jnp.asarray(env_params.demand.rate)[minute] * env_params.demand_scale
        number = jnp.where(runs, jax.random.poisson(key_count, rate), 0)
        draws = flat(jax.random.uniform, key_trips, (6, self.orders))
        trip = demands.draw_trips(draws, env_params.demand, env_params.jitter)
        orders, empty = state.orders, ~state.orders.open
        fills = empty & (jnp.cumsum(empty) <= number)
        trip = jax.tree.map(lambda new, old: jnp.where(fills, new, old), trip, orders.trip)
        orders = Orders(trip, jnp.where(fills, state.minute, orders.request), orders.open | fills)
        overflow = jnp.maximum(number - jnp.sum(empty), 0)
        stats = state.stats.replace(arrived=state.stats.arrived + number, overflow=state.stats.overflow + overflow)
        return state.replace(orders=orders, stats=stats)

    def _offer(self, state: RideState, env_params: RideParams) -> RideState:
        """Chooses the offers of each vehicle."""
        if self.view != "candidates":
            return state
        allowed = state.vehicles.free[:, None] & state.orders.open
        reward = fleet.rewards_if_empty(state.vehicles, state.orders.trip, self._travel(state, env_params), env_params.weights)
        best, order = jax.lax.top_k(jnp.where(allowed, reward, -jnp.inf), self.candidates)
        return state.replace(offers=jnp.where(jnp.isfinite(best), order, self.orders))

    def _offer_features(self, state: RideState, mask: jax.Array, env_params: RideParams) -> jax.Array:
        """[N, C, 8]: see ``RideDispatch``."""
        index = jnp.where(mask, state.offers, 0)
        planned = jax.vmap(lambda order: self.plan(state, order, env_params), in_axes=1)(index)
        reward, pickup, ride = planned.reward.T, planned.pickup.T, planned.ride.T
        same = jnp.zeros(self.orders).at[index.reshape(-1)].add(mask.reshape(-1).astype(jnp.float32))
        trip = jax.tree.map(lambda column: column[index], state.orders.trip)
        offset = trip.to_up - state.vehicles.up[:, None], trip.to_cross - state.vehicles.cross[:, None]
        waited = state.minute - state.orders.request[index]
        parts = (jnp.ones_like(reward), *(part / 10 for part in (reward, pickup, ride, *offset, waited, same[index])))
        return jnp.where(mask[..., None], jnp.stack(parts, axis=-1), 0.0)


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
