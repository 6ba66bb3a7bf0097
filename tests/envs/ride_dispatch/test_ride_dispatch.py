"""``ride_dispatch``: whole episodes against a slow reference, offers, travel, conservation, invalid input."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.ride_dispatch import RideDispatch, afterstates, fleet
from marljax.envs.ride_dispatch.charts import by_zone
from marljax.envs.ride_dispatch.demand import Trips, Zones, demand_from_shares, draw_trips, read_times
from marljax.envs.ride_dispatch.fleet import Position
from marljax.envs.ride_dispatch.scene import DUE
from marljax.errors import UserError
from marljax.testing import check_env

ENV = RideDispatch("demo", vehicles=12, orders=24)
TABLED = RideDispatch("demo", vehicles=12, orders=24, travel="table")
KEY = jax.random.key(0)
PARAMS = {
    "jitter": ENV.default_params.replace(fleet=12),
    "floors": ENV.default_params.replace(fleet=10, floors=True, jitter=0.0, patience=3),
    "slow": ENV.default_params.replace(fleet=12, speed=np.full(24, 12.0, np.float32), capacity=2),
    "table": TABLED.default_params.replace(times=np.random.default_rng(0).uniform(1, 25, (69, 69)).astype(np.float32)),
    "whole table": TABLED.default_params.replace(
        times=np.random.default_rng(1).integers(1, 25, (69, 69)).astype(np.float32), floors=True, jitter=0.0
    ),
    "stuck": ENV.default_params.replace(fleet=12, floors=True, stuck=True, jitter=0.0),
}


def test_the_scene_shows_who_arrives_soon_and_who_is_out_of_view():
    """Of two passengers in vehicle 0 one arrives within a minute; in vehicle 1 one would, but for a pickup before that."""
    state = jax.jit(ENV.initial)(KEY, PARAMS["jitter"])
    vehicles = state.vehicles
    seated = np.zeros((3, 12), bool)
    seated[:2, 0] = seated[2, 1] = True
    remaining, pickup_left, up = np.full((3, 12), 0.5), np.zeros(12), np.zeros(12)
    remaining[1, 0], pickup_left[1], up[2] = 5.0, 2.0, 20.0
    vehicles = vehicles.replace(seated=seated, remaining=remaining, pickup_left=pickup_left, up=up, cross=np.zeros(12))
    scene = jax.jit(ENV.scene)(state.replace(vehicles=vehicles), PARAMS["jitter"])
    due = np.abs(np.asarray(scene.circles.colour) - np.array(DUE)).max(axis=1) < 1e-6
    expected = [vehicles.to_up[0, 0], -vehicles.to_cross[0, 0]]
    np.testing.assert_allclose(scene.circles.centre[due], [expected])
    assert (np.asarray(scene.boxes.colour)[:, 3] > 0).sum() == 3
    assert scene.status.vehicles_out_of_view == 1


@dataclasses.dataclass
class Rider:
    """An order aboard."""

    to: tuple[float, float]
    remaining: float
    total: float
    direct: float


class Car:
    """A vehicle as in the papers' simulator, one at a time; a position is (up, cross, zone)."""

    def __init__(self, position, params):
        self.position, self.params = position, params
        self.pickup_left, self.riders, self.free, self.stuck = 0.0, [], True, False
        self.centroids = list(zip(params.demand.up, params.demand.cross, strict=True))

    def km(self, one, other):
        return 1.065 * (abs(one[0] - other[0]) + abs(one[1] - other[1])) + 0.01

    def minutes(self, one, other):
        time = self.exact_minutes(one, other)
        return math.floor(time + 1e-4) if self.params.floors else time

    def exact_minutes(self, one, other):
        pace, table = 60 / float(self.params.speed[19]), self.params.times
        if table is None:
            return self.km(one, other) * pace
        off = self.km(one, other) - self.km(self.centroids[one[2]], self.centroids[other[2]])
        return max(float(table[one[2], other[2]]) + off * pace, 0.0)

    def nearest(self):
        apart = [abs(up - self.position[0]) + abs(cross - self.position[1]) for up, cross in self.centroids]
        return apart.index(min(apart))

    def take(self, start, end):
        """The reward of an order, and the pickup time."""
        pickup, ride = self.minutes(self.position, start), self.minutes(start, end)
        before = sum(rider.total for rider in self.riders)
        for rider in self.riders:
            rider.total += pickup - rider.remaining
        new = Rider(end, 0.0, pickup, pickup + ride)
        riders = [*self.riders, new]

        def arrivals(order):
            times, position, time = [], start, 0.0
            for rider in order:
                time += self.minutes(position, rider.to)
                position = rider.to
                times.append(time)
            return times

        shortest = min(itertools.permutations(riders), key=lambda order: arrivals(order)[-1])
        for rider, time in zip(shortest, arrivals(shortest), strict=True):
            rider.remaining = time
            rider.total += time
        delay = sum(rider.total for rider in riders) - before
        late = sum(rider.total > 40 for rider in riders)
        reward = 3 + self.km(start, end) - 3 * pickup / 60 - late - 3 * delay / 60 - 5 * max(delay - 40, 0) / 60
        self.position, self.pickup_left, self.riders, self.free = start, pickup, riders, False
        self.stuck = bool(self.params.stuck) and pickup == 0
        return reward, pickup

    def drive(self):
        """A minute; returns the riders dropped off."""
        gone = []
        if self.pickup_left > 1:
            self.pickup_left -= 1
        else:
            budget, begun = 1 - self.pickup_left, self.position
            self.pickup_left, left = 0.0, budget
            passed = 0.0
            for rider in sorted(self.riders, key=lambda rider: rider.remaining):
                by_clock = rider.remaining - passed
                time = self.exact_minutes(self.position, rider.to) if self.params.times is None else by_clock
                share = min(left / max(time, 1e-6), 1.0)
                moved = (own + share * (other - own) for own, other in zip(self.position[:2], rider.to[:2], strict=True))
                self.position = *moved, self.position[2]
                left, passed = max(left - time, 0.0), rider.remaining
            for rider in self.riders:
                rider.remaining -= budget
            gone = [rider for rider in self.riders if rider.remaining <= 1e-5]
            if gone:
                self.position = *self.position[:2], max(gone, key=lambda rider: rider.remaining).to[2]
            self.riders = [rider for rider in self.riders if rider.remaining > 1e-5]
            if self.params.times is not None and self.riders and self.position[:2] != begun[:2]:
                self.position = *self.position[:2], self.nearest()
        self.stuck &= not gone
        self.free = self.pickup_left == 0 and len(self.riders) < self.params.capacity and not self.stuck
        return gone


def random_actions(seen, seed):
    """Mostly available ones."""
    draw = np.random.default_rng(seed)
    mask = np.asarray(seen.action_mask).copy()
    mask[:, -1] = ~mask[:, :-1].any(axis=1)
    return np.array([draw.choice(np.flatnonzero(row)) if draw.random() < 0.9 else draw.integers(ENV.orders + 1) for row in mask])


@pytest.mark.parametrize("name", PARAMS)
def test_episodes_are_those_of_a_slow_reference(name):
    params = PARAMS[name]
    env = TABLED if params.times is not None else ENV
    state, seen = env.reset(KEY, params)
    size = int(params.fleet)
    positions = zip(*(np.asarray(part).tolist() for part in state.vehicles.position), strict=True)
    cars = [Car(position, params) for position in itertools.islice(positions, size)]
    reward = served = pickups = confirmation = finished = delivery = detour = 0.0
    for minute in range(int(params.duration)):
        action = random_actions(seen, minute)
        trip = jax.tree.map(np.asarray, state.orders.trip)
        opened, request = np.asarray(state.orders.open), np.asarray(state.orders.request)
        offers = {}
        for number, car in enumerate(cars):
            order = action[number]
            if car.free and order < ENV.orders and opened[order]:
                start = trip.up[order], trip.cross[order], trip.origin[order]
                ends = start, (trip.to_up[order], trip.to_cross[order], trip.destination[order])
                trial = Car(car.position, params)
                trial.riders = [dataclasses.replace(rider) for rider in car.riders]
                worth, pickup = trial.take(*ends)
                if order not in offers or worth > offers[order][0] + 1e-5:
                    offers[order] = worth, pickup, number, trial
        paid = np.zeros(ENV.vehicles)
        for order, (worth, pickup, number, trial) in offers.items():
            cars[number], paid[number] = trial, worth
            served, pickups, confirmation = served + 1, pickups + pickup, confirmation + minute - request[order]
        reward += 0.99**minute * paid.sum()
        for car in cars:
            for rider in car.drive():
                finished, delivery, detour = finished + 1, delivery + rider.total, detour + rider.total - rider.direct
        state, seen = env.step(jax.random.key(minute), state, action, params)
        np.testing.assert_allclose(seen.reward, paid, atol=1e-4)
        np.testing.assert_allclose(
            np.stack([state.vehicles.up, state.vehicles.cross], 1)[:size], [car.position[:2] for car in cars], atol=1e-4
        )
        assert np.asarray(state.vehicles.free).tolist() == [car.free for car in cars] + [False] * (ENV.vehicles - size)
        assert np.asarray(state.vehicles.seated).sum(axis=0)[:size].tolist() == [len(car.riders) for car in cars]
        kept = opened & ~np.isin(np.arange(ENV.orders), list(offers)) & (request > minute + 1 - params.patience)
        assert np.asarray(state.orders.open)[kept].all()
        new = np.asarray(state.orders.open) & ~kept
        assert (np.asarray(state.orders.request)[new] == minute + 1).all()
    assert bool(seen.truncated)
    metrics = {name: float(value) for name, value in seen.metrics.items()}
    expected = {"reward": reward, "served": served, "pickup": pickups / served, "confirmation": confirmation / served}
    expected |= {"delivery": delivery / finished, "detour": detour / finished}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-4, err_msg=name)
    opened = float(np.asarray(state.orders.open).sum())
    assert metrics["arrived"] == served + metrics["lost"] + metrics["cancelled"] + metrics["overflow"] + opened
    assert served > 15
    assert finished > 0


@pytest.mark.parametrize(
    "options",
    [{}, {"seats": 2, "travel": "table", "view": "candidates", "candidates": 3}, {"seats": 2, "view": "afterstates"}],
    ids=("pairs", "candidates", "afterstates"),
)
def test_contract(options):
    check_env(RideDispatch("demo", vehicles=4, orders=6, **options), num_steps=32)


@dataclasses.dataclass(frozen=True)
class Choosy(RideDispatch):
    """The first vehicle may not take the first order."""

    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(action_mask=view.action_mask.at[0, 0].set(False))


def test_a_mask_that_does_not_follow_the_items_is_reported():
    with pytest.raises(AssertionError, match="action mask"):
        check_env(Choosy("demo", vehicles=4, orders=6, seats=1), num_steps=10)


def test_traffic_changes_with_the_hour():
    """From 7 h to 8 h a leg takes longer, at the speeds of a weekday."""
    env = RideDispatch("demo", vehicles=12, orders=24, travel="hourly")
    params = env.default_params.replace(start=7 * 60 + 59)
    state, _ = env.reset(KEY, params)
    later = state.replace(minute=state.minute + 1)
    first, second = (np.asarray(env.pairs(one, params).ride)[:, np.asarray(state.orders.open)] for one in (state, later))
    np.testing.assert_allclose(second / first, 19.5 / 14.2, rtol=1e-5)


def test_customers_do_not_cancel_in_the_minute_of_their_request():
    params = PARAMS["jitter"].replace(cancel=1.0)
    state, seen = ENV.reset(KEY, params)
    for minute in range(6):
        came = np.asarray(state.orders.open).sum()
        state, seen = ENV.step(jax.random.key(minute), state, np.full(12, ENV.noop), params)
        assert (np.asarray(state.orders.request)[np.asarray(state.orders.open)] == minute + 1).all()
    metrics = {name: float(value) for name, value in seen.metrics.items()}
    assert metrics["cancelled"] > came > 0
    assert metrics["arrived"] == metrics["cancelled"] + metrics["overflow"] + np.asarray(state.orders.open).sum()
    assert metrics["lost"] == 0


def test_candidates_are_the_best_orders_and_their_actions_request_them():
    views = [RideDispatch("demo", vehicles=12, orders=24, view=view, candidates=4) for view in ("pairs", "candidates")]
    params = PARAMS["jitter"]
    (state, all_pairs), (offered, seen) = (env.reset(KEY, params) for env in views)
    rewards = jax.jit(lambda state: views[0].pairs(state, params).reward)
    for minute in range(8):
        empty = state.replace(vehicles=state.vehicles.replace(seated=np.zeros((3, 12), bool)))
        worth = np.where(np.asarray(all_pairs.action_mask)[:, :-1], rewards(empty), -np.inf)
        best = np.argsort(-worth, axis=1, kind="stable")[:, :4]
        expected = np.where(np.isfinite(np.take_along_axis(worth, best, axis=1)), best, 24)
        np.testing.assert_array_equal(offered.offers, expected)
        np.testing.assert_array_equal(seen.action_mask[:, :-1], expected < 24)
        choice = np.random.default_rng(minute).integers(0, 5, 12)
        order = np.append(expected, np.full((12, 1), 24), axis=1)[np.arange(12), choice]
        key = jax.random.key(minute)
        state, all_pairs = views[0].step(key, state, order, params)
        offered, seen = views[1].step(key, offered, choice, params)
        same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(same, state, offered.replace(offers=None))


def test_afterstates_are_what_vehicles_become():
    """Rewards are those of the pairs; the features of the action that is taken tell when the vehicle is free again."""
    env, params = RideDispatch("demo", vehicles=12, orders=24, view="afterstates"), PARAMS["jitter"].replace(fleet=10, capacity=2)
    names, present = afterstates.names(3), 10
    column = {name: names.index(name) for name in names}
    state, seen = env.reset(KEY, params)
    for minute in range(25):
        obs, vehicles = seen.obs, state.vehicles
        np.testing.assert_allclose(obs["reward"][:present, :-1], env.pairs(state, params).reward[:present], rtol=1e-5, atol=1e-5)
        assert not any(np.asarray(part)[present:].any() for part in obs.values())
        for vehicle in range(present):  # waiting
            row, load = np.asarray(obs["features"][vehicle, -1]), int(vehicles.seated[:, vehicle].sum())
            assert row[[column[f"{count} aboard"] for count in range(4)]].argmax() == load
            remaining = np.sort(np.where(vehicles.seated, vehicles.remaining, 0.0)[:, vehicle])
            np.testing.assert_allclose(10 * row[[column[f"remaining {number}"] for number in range(3)]], remaining, atol=1e-4)
            stops = np.stack([vehicles.to_up, vehicles.to_cross])[:, :, vehicle]
            last = stops[:, np.argmax(np.where(vehicles.seated, vehicles.remaining, -1)[:, vehicle])]
            last = last if load else np.array([vehicles.up[vehicle], vehicles.cross[vehicle]])
            np.testing.assert_allclose(row[[column["last stop up"], column["last stop cross"]]], last / [10, 3], atol=1e-5)
        action = random_actions(seen, minute)
        state, seen = env.step(jax.random.key(minute), state, action, params)
        taken = np.where(np.asarray(seen.reward) != 0, action, env.noop)
        decisions = np.take_along_axis(np.asarray(obs["decisions"]), taken[:, None], axis=1)[:present, 0]
        free_at = params.duration - decisions  # at the end, if not in this episode
        np.testing.assert_array_equal(state.vehicles.free[:present], free_at == minute + 1, err_msg=str(minute))


def test_density_sums_the_shares_of_zones_by_distance():
    demand = PARAMS["jitter"].demand
    zones = Position(demand.up, demand.cross, jnp.arange(len(demand.up)))
    share = np.diff(np.asarray(demand.origin), prepend=0.0)
    km = np.abs(np.subtract.outer(demand.up, demand.up)) + np.abs(np.subtract.outer(demand.cross, demand.cross))
    np.testing.assert_allclose(afterstates.density(zones, demand), 20 * np.exp(-km / 0.8) @ share, rtol=1e-4)


def test_the_best_paid_vehicle_gets_the_order():
    params = PARAMS["jitter"]
    state, _ = ENV.reset(KEY, params)
    worth = np.asarray(ENV.pairs(state, params).reward)[:, 0]
    _, seen = ENV.step(KEY, state, np.zeros(12, np.int32), params)
    assert np.flatnonzero(seen.reward).tolist() == [worth.argmax()]
    np.testing.assert_allclose(seen.reward[worth.argmax()], worth.max(), rtol=1e-5)


def test_charts_show_orders_and_free_vehicles_by_zone_and_all_waits():
    params = PARAMS["floors"]
    state, seen = ENV.reset(KEY, params)
    states = [state]
    for minute in range(15):
        state, seen = ENV.step(jax.random.key(minute), state, random_actions(seen, minute), params)
        states.append(state)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    present = np.arange(12) < 10
    came, free = by_zone(stacked, 69, present)
    arrived = [np.asarray(one.orders.open & (one.orders.request == one.minute)).sum() for one in states[:-1]]
    assert came.sum() * 15 == pytest.approx(sum(arrived))
    assert free.sum() * 15 == pytest.approx(sum(int(np.asarray(one.vehicles.free).sum()) for one in states[:-1]))
    assert stacked.stats.waits[-1].sum() == stacked.stats.served[-1] > 0
    figure = ENV.display.charts(stacked, params)
    assert [bool(axes.get_title(loc="left")) for axes in figure.axes] == [True, True, True, False]  # the last is a colour bar


def test_a_full_table_counts_the_overflow():
    crowded = PARAMS["jitter"].replace(demand_scale=1.0)
    _, seen = jax.jit(jax.vmap(lambda key: ENV.reset(key, crowded)))(jax.random.split(KEY, 200))
    metrics = jax.tree.map(np.asarray, seen.metrics)
    np.testing.assert_array_equal(metrics["overflow"], metrics["arrived"] - 24)
    np.testing.assert_allclose(metrics["arrived"].mean(), 124.2, atol=4)
    assert "env.orders" in ENV.display.warnings["overflow"]


def test_demand_follows_its_tables():
    """Shares of pickups, the mean trip and the rate by hour, from the published statistics."""
    demand, count = ENV.default_params.demand, 40_000
    trips = jax.jit(lambda draws: draw_trips(draws, demand, 0.0))(jax.random.uniform(KEY, (6, count)))
    found = np.bincount(trips.origin, minlength=69) / count
    np.testing.assert_allclose(found, np.diff(demand.origin, prepend=0.0), atol=0.006)
    km = 1.065 * (np.abs(trips.up - trips.to_up) + np.abs(trips.cross - trips.to_cross)) + 0.01
    assert abs(km.mean() - 2.98) < 0.15
    assert abs(np.median(km) - 2.29) < 0.25
    assert abs(demand.rate[19 * 60 : 19 * 60 + 30].sum() - 3726) < 1


def test_a_table_of_free_flow_times_changes_nothing():
    params = PARAMS["jitter"]
    tabled = params.replace(times=TABLED.default_params.times)
    (state, seen), (same, likewise) = ENV.reset(KEY, params), TABLED.reset(KEY, tabled)
    for minute in range(10):
        action, key = random_actions(seen, minute), jax.random.key(minute)
        (state, seen), (same, likewise) = ENV.step(key, state, action, params), TABLED.step(key, same, action, tabled)
        np.testing.assert_allclose(seen.reward, likewise.reward, atol=1e-3)
        np.testing.assert_allclose(seen.obs["own"], likewise.obs["own"], atol=1e-3)


def test_remaining_time_by_a_table_falls_by_a_minute_per_minute():
    """At half the speed, from the first of six zones in a row to the last."""
    far, none = np.arange(0.0, 12.0, 2.0, np.float32), np.zeros(6, np.float32)
    minutes = 2 * np.abs(far[:, None] - far)
    travel = fleet.Travel(0.94, False).by_table(minutes, fleet.Position(far, none, np.arange(6)))
    start, end = (
        fleet.Position(np.float32([up]), np.zeros(1, np.float32), np.array([zone])) for up, zone in ((0.0, 0), (10.0, 5))
    )
    trip = Trips(start.zone, end.zone, *start[:2], *end[:2])
    vehicles = jax.jit(fleet.plan)(fleet.parked(*start, np.ones(1, bool), seats=2), trip, travel, fleet.Weights()).vehicles
    drive = jax.jit(fleet.drive)
    for left in range(19, -1, -1):
        vehicles, dropped = drive(vehicles, travel)
        np.testing.assert_allclose(vehicles.remaining[0], left, atol=1e-4)
        by_speed = travel.exact_minutes(vehicles.position, end)  # from the nearest centroid on
        np.testing.assert_allclose(by_speed, left, atol=1.1)
    assert dropped[0]


def test_riders_are_conserved_for_any_number_of_seats():
    for seats in (1, 4):
        env = RideDispatch("demo", vehicles=6, orders=24, seats=seats)
        state, seen = env.reset(KEY)
        for minute in range(30):
            state, seen = env.step(jax.random.key(minute), state, random_actions(seen, minute))
        aboard = int(state.vehicles.seated.sum())
        assert float(state.stats.served) == float(state.stats.finished) + aboard
        assert aboard <= 6 * seats


def test_times_are_read_from_a_file(tmp_path):
    zones = Zones(np.array([7, 9]), np.zeros(2), np.zeros(2))
    path = tmp_path / "times.csv"
    header, rows = "from_zone,to_zone,minutes", ["7,7,2", "7,9,11", "9,9,3", "9,7,12", "1,7,5"]
    path.write_text("\n".join([header, *rows]))
    assert read_times(path, zones).tolist() == [[2, 11], [12, 3]]
    for text, message in (
        ([header, *rows[:3]], "lacks 1 of 4 pairs.*from 9 to 7"),
        ([header, *rows[:3], "9,7,-1"], "minutes must be"),
        ([header, "7,7,soon"], "give a CSV file with columns"),
        ([header, *rows, "7,9,3"], "from zone 7 to 9; give one"),
    ):
        path.write_text("\n".join(text))
        with pytest.raises(UserError, match=message):
            read_times(path, zones)


def test_the_global_state_counts_orders_and_vehicles_by_zone():
    params = PARAMS["floors"]
    state, seen = ENV.reset(KEY, params)
    for minute in range(4):
        state, seen = ENV.step(jax.random.key(minute), state, random_actions(seen, minute), params)
    fleet_size, zones = int(params.fleet), range(69)
    opened = np.asarray(state.orders.trip.origin)[np.asarray(state.orders.open)]
    zone, idle = np.asarray(state.vehicles.zone)[:fleet_size], np.asarray(state.vehicles.free)[:fleet_size]
    load = np.asarray(state.vehicles.seated).sum(axis=0)[:fleet_size]
    counts = [(opened == zone_).sum() for zone_ in zones]
    counts += [((zone == zone_) & side).sum() for side in (idle, ~idle) for zone_ in zones]
    counts += [(load == riders).sum() for riders in range(4)]
    expected = [*(np.array(counts) / fleet_size), 4 / 30]
    np.testing.assert_allclose(ENV.global_state(state, params), expected, rtol=1e-6)


def test_another_city_has_other_zones():
    city = demand_from_shares(np.arange(3.0), np.zeros(3), np.ones(3), np.ones((3, 3)), np.full(1440, 5.0))
    params = PARAMS["jitter"].replace(demand=city)
    ENV.check_params(params)
    TABLED.check_params(params.replace(times=np.ones((3, 3), np.float32)))
    _, seen = ENV.reset(KEY, params)
    assert np.isfinite(seen.obs["own"]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleet": 13}, "fleet=13.*vehicles=12"),
        ({"cancel": 1.5}, "cancel=1.5.*from 0 to 1"),
        ({"speed": 30.0}, r"speed=30.0.*\[24\]"),
        ({"times": np.ones((69, 69))}, "times.*travel='table'"),
        ({"demand": ENV.default_params.demand.replace(rate=np.full(1440, -1.0))}, "demand.rate"),
        ({"demand": ENV.default_params.demand.replace(origin=np.full(69, 0.5))}, "demand.origin.*demand_from_shares"),
        ({"demand": np.ones(3)}, "demand_from_trips"),
    ],
)
def test_invalid_params_are_reported(changes, message):
    with pytest.raises(UserError, match=message):
        ENV.check_params(PARAMS["jitter"].replace(**changes))


@pytest.mark.parametrize("times", [None, np.full((69, 69), -1.0)])
def test_a_table_of_times_is_checked(times):
    with pytest.raises(UserError, match="times"):
        TABLED.check_params(TABLED.default_params.replace(times=times))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "manhatan-400"}, "preset.*manhattan-400"),
        ({"view": "candidates", "candidates": 30, "orders": 20}, "candidates=30.*orders=20"),
    ],
)
def test_invalid_options_are_reported(options, message):
    with pytest.raises(UserError, match=message):
        RideDispatch(**options)
