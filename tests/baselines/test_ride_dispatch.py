"""The matchings that learned dispatchers are compared with."""

import jax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from marljax.baselines.harness import result_cache
from marljax.baselines.policies import ride_dispatch as baselines
from marljax.baselines.ride_dispatch import VALUED, PlaceAndTime
from marljax.config import compose
from marljax.envs.ride_dispatch import RideDispatch, afterstates

KEY = jax.random.key(1)


@pytest.mark.parametrize("sizes", [(12, 24), (24, 12)])
def test_matchings_earn_what_scipys_do(sizes):
    env = RideDispatch("demo", vehicles=sizes[0], orders=sizes[1])
    params = env.default_params
    state, timestep = env.reset(KEY, params)
    free, opened = np.asarray(state.vehicles.free), np.asarray(state.orders.open)
    pairs = jax.tree.map(lambda part: np.asarray(part)[np.ix_(free, opened)], env.pairs(state, params))
    price = 0.2
    worth = {
        baselines.Worth(pickup=-1.0): -pairs.pickup,
        baselines.Worth(reward=1.0): pairs.reward,
        baselines.Worth(reward=1.0, busy=-price): np.maximum(pairs.reward - price * (pairs.pickup + pairs.ride), 0.0),
    }
    for rule, gains in worth.items():
        policy = baselines.matching(env, params, rule)
        action, _ = jax.jit(policy.policy)(KEY, state, timestep, ())
        matched = np.flatnonzero(np.asarray(action) < sizes[1])
        index = np.cumsum(free) - 1, np.cumsum(opened) - 1
        earned = gains[index[0][matched], index[1][np.asarray(action)[matched]]].sum()
        rows, columns = linear_sum_assignment(gains, maximize=True)
        np.testing.assert_allclose(earned, gains[rows, columns].sum(), rtol=1e-4, atol=1e-4, err_msg=str(rule))
        assert rule.busy < 0 or len(matched) == len(rows)


def test_seven_prices_of_empty_vehicles():
    """In the first minute no route, no seat and no passenger counts: by hand, matched by SciPy."""
    env, price = RideDispatch("demo", vehicles=12, orders=24, view="pairs"), baselines.Prices(to_demand=0.0, from_demand=0.0)
    params = env.default_params
    state, timestep = env.reset(KEY, params)
    free, opened = np.asarray(state.vehicles.free), np.asarray(state.orders.open)
    assert not np.asarray(state.vehicles.seated).any()
    pairs = jax.tree.map(lambda part: np.asarray(part)[np.ix_(free, opened)], env.pairs(state, params))
    until = np.minimum(pairs.pickup + pairs.ride, params.duration)
    gains = pairs.reward + price.pickup * np.minimum(pairs.pickup, params.duration) + (price.route + price.ride) * until
    action, _ = jax.jit(baselines.PricedMatcher(env))((params, price), KEY, state, timestep, ())
    chosen = np.asarray(action)[free]
    matched = chosen < env.orders
    earned = gains[np.flatnonzero(matched), (np.cumsum(opened) - 1)[chosen[matched]]].sum()
    rows, columns = linear_sum_assignment(np.maximum(gains, 0.0), maximize=True)
    assert 0 < matched.sum() < free.sum()
    np.testing.assert_allclose(earned, np.maximum(gains, 0.0)[rows, columns].sum(), rtol=1e-4)


def test_seven_prices_over_an_episode():
    """Worths of all pairs in eight minutes, by NumPy from the vehicles' plans, matched by SciPy."""
    env, price = RideDispatch("demo", vehicles=12, orders=24, view="pairs"), baselines.Prices()
    params = env.default_params.replace(demand_scale=0.1, capacity=2)
    policy, step, plan = (jax.jit(function) for function in (baselines.PricedMatcher(env), env.step, env.plan))

    def density(up, cross):
        km = np.abs(np.asarray(up)[:, None] - params.demand.up) + np.abs(np.asarray(cross)[:, None] - params.demand.cross)
        return 20 * (np.diff(params.demand.origin, prepend=0.0) * np.exp(-km / 0.8)).sum(axis=1)

    def worths(state):
        trip, seated = state.orders.trip, np.asarray(state.vehicles.seated)
        pickup, dropoff = density(trip.up, trip.cross), density(trip.to_up, trip.to_cross)
        load, left = seated.sum(axis=0), params.duration - int(state.minute)
        route = np.where(seated, state.vehicles.remaining, 0.0).max(axis=0)
        worth = np.zeros((12, 24))
        for order in np.flatnonzero(state.orders.open):
            planned = jax.tree.map(np.asarray, plan(state, np.full(12, order), params))
            for car in range(12):
                start, aboard = planned.pickup[car], planned.vehicles.seated[:, car]
                ends = start + planned.vehicles.remaining[aboard, car]
                until = np.minimum([start, ends.max(), route[car], start + planned.ride[car], ends.min()], left)
                worth[car, order] = planned.reward[car] + 0.06 * until[0] - 0.20 * (until[1] - until[2]) - 0.34 * until[3]
                worth[car, order] -= 0.24 * until[4] * (load[car] == 1)
                worth[car, order] += (0.20 * dropoff[order] + 0.21 * pickup[order] - 0.23 * load[car]) * left / params.duration
        return worth, load

    state, timestep = env.reset(KEY, params)
    matched_loads = []
    for minute in range(8):
        worth, load = worths(state)
        gains = np.where(timestep.action_mask[:, :-1], np.maximum(worth, 0.0), 0.0)
        action, _ = policy((params, price), KEY, state, timestep, ())
        matched = np.flatnonzero(np.asarray(action) < 24)
        rows, columns = linear_sum_assignment(gains, maximize=True)
        earned = gains[matched, np.asarray(action)[matched]].sum()
        np.testing.assert_allclose(earned, gains[rows, columns].sum(), rtol=1e-4, atol=1e-4)
        matched_loads += load[matched].tolist()
        state, timestep = step(jax.random.key(minute), state, action, params)
    assert matched_loads.count(0) > 4
    assert matched_loads.count(1) > 4


def test_every_rule_plays_whatever_the_agents_observe():
    env = RideDispatch("demo", vehicles=6, orders=8, view="candidates", candidates=3)
    known = baselines.scripted_policies(env, env.default_params)
    reward = {name: result_cache.play_scripted(policy, 4, 4)["reward"]["mean"][0] for name, policy in known.items()}
    assert [*reward] == ["random matching", "nearest pickup", "one-step reward", "minus opportunity cost (0.4/min)"]
    assert reward["nearest pickup"] > reward["random matching"] > 0


@pytest.mark.slow
def test_random_matching_is_the_published_one():
    """Reward 12.5–12.85 thousand, 3,455 of 3,726 orders served, pickup within 7.6 min (OSPO's logs), in four half hours."""
    env = RideDispatch("manhattan-1000")
    metrics = result_cache.play_scripted(baselines.scripted_policy(env, env.default_params, "random matching"), 4, 4)
    mean = {name: metric["mean"][0] for name, metric in metrics.items()}
    assert 12_500 * 0.97 < mean["reward"] < 12_850 * 1.03
    assert mean["service"] == pytest.approx(3_455 / 3_726, rel=0.02)
    assert mean["pickup"] == pytest.approx(7.6, abs=0.3)
    assert mean["overflow"] < 5


def test_place_and_time_are_learnt_with_the_tuned_values():
    plain, other = (
        compose.compose("values", [*VALUED[name][0], "env.preset=demo"])
        for name in ("marginal values", "marginal values of place and time")
    )
    for part in ("algo", "eval", "env_params"):
        assert plain.tree[part] == other.tree[part]


def test_place_and_time_tell_when_the_last_passenger_leaves_and_nothing_else():
    env = PlaceAndTime("demo", vehicles=12, orders=24, view="afterstates")
    state, timestep = env.reset(KEY, env.default_params)
    kept = np.isin(afterstates.names(env.seats), env.COLUMNS)
    full = RideDispatch("demo", vehicles=12, orders=24, view="afterstates").observe(state, env.default_params).obs
    features, decisions = np.asarray(timestep.obs["features"]), np.asarray(timestep.obs["decisions"])
    np.testing.assert_array_equal(features, np.asarray(full["features"]) * kept)
    np.testing.assert_array_equal(decisions[:, -1], env.default_params.duration - 1, "empty vehicles that wait")
    mask = np.asarray(timestep.action_mask)[:, :-1]
    assert mask.any()
    until = 10 * features[:, :-1, afterstates.COLUMNS.index("until last drop-off")][mask]
    expected = np.maximum(env.default_params.duration - np.maximum(np.ceil(until), 1), 0)
    np.testing.assert_array_equal(decisions[:, :-1][mask], expected)
    assert (decisions[:, :-1] <= np.asarray(full["decisions"])[:, :-1])[mask].all(), "it is given no order on the way"
