"""Road, kinematics, controllers and driver models of ``merge`` against values computed in float64 from their definitions."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from merge_reference import boxes_overlap

from marljax.envs.merge import road, traffic
from marljax.envs.merge.params import PHYSICS
from marljax.envs.merge.traffic import DriverTable, Leader, Physics, Vehicles

MARL_CAVS, HIGHWAY_ENV = PHYSICS["marl_cavs"], PHYSICS["highway_env"]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


SIZE = 4  # vehicle slots in a scene, so that all scenes share compiled programs
tan_steering = jax.jit(traffic.tan_steering, static_argnums=1)
crash = jax.jit(traffic.crash, static_argnums=1)
move = jax.jit(traffic.move)
pairs_of = jax.jit(traffic.pairs_of)
mobil = jax.jit(traffic.mobil, static_argnums=4)
follower = jax.jit(traffic.follower)
accelerate = jax.jit(traffic.accelerate)


@functools.partial(jax.jit, static_argnums=1)
def leader(vehicles: Vehicles, physics: Physics) -> Leader:
    return traffic.leader(traffic.pairs_of(vehicles), road.pick(vehicles.lane, physics.searched))


def place(x, y, speed, lane, **others) -> Vehicles:
    """Vehicles aligned with their lanes, with base drivers; other slots are empty."""
    count, size = len(x), max(SIZE, len(x))
    fields = {"x": x, "y": y, "speed": speed, "target_speed": speed, "lane": lane, "target_lane": lane} | others
    integers = ("lane", "target_lane", "driver")
    columns = {}
    for name in ("x", "y", "speed", "target_speed", "heading", "timer", *integers):
        columns[name] = np.zeros(size, np.int32 if name in integers else float)
        columns[name][:count] = fields.get(name, 0)
    return Vehicles(crashed=np.zeros(size, bool), alive=np.arange(size) < count, exponent=np.full(size, 4.0), **columns)


@functools.partial(jax.jit, static_argnums=2)
def run(vehicles: Vehicles, human, physics: Physics) -> Vehicles:
    drivers = traffic.drivers_of(DriverTable(), vehicles.driver)

    def step(moving, _):
        moving = traffic.substep(moving, drivers, human, physics)
        return moving, moving

    return jax.lax.scan(step, vehicles, length=150)[1]


def drive(vehicles: Vehicles, human, physics: Physics) -> Vehicles:
    """The vehicles after each of 150 physics steps, leading [150]; ``human`` is a bool for each that is present."""
    return run(vehicles, jnp.array([*human, *[False] * (SIZE - len(human))]), physics)


def test_ramp_curve():
    x = jnp.array([245.0, 270.0])
    np.testing.assert_allclose(road.centre_y(jnp.full(2, road.KB), x), [9.548097, 7.25], atol=1e-6)
    np.testing.assert_allclose(road.heading(jnp.full(2, road.KB), x), [-0.072072, -0.101749], atol=1e-6)


def test_nearest_lane_is_the_argmin_over_all_segments():
    """Against the definition, segment by segment, over the whole road and beyond its ends."""
    x, y, heading = np.meshgrid(np.linspace(-20, 560, 233), np.linspace(-3.3, 13.1, 41), [-0.3, -0.07, 0.0, 0.2], indexing="ij")
    x, y, heading = x.ravel(), y.ravel(), heading.ravel()
    distances = []
    for lane in range(6):
        lanes = jnp.full(x.shape, lane)
        offset = np.abs(y - road.centre_y(lanes, x)) + np.abs(heading - road.heading(lanes, x))
        distances.append(offset + np.maximum(road.START[lane] - x, 0) + np.maximum(x - road.END[lane], 0))
    found = np.asarray(road.nearest_lane(x, y, heading))
    distances = np.stack(distances)
    np.testing.assert_allclose(distances[found, np.arange(len(x))], distances.min(axis=0), atol=1e-9)
    assert set(np.unique(found)) == set(range(6))


def test_following_the_road_retargets_before_the_segment_ends():
    lane = jnp.array([road.BC1, road.BC1, road.AB, road.JK, road.KB, road.CD])
    x = jnp.array([417.4, 417.6, 317.6, 217.6, 317.6, 600.0])
    expected = [road.BC1, road.CD, road.BC0, road.KB, road.BC1, road.CD]
    assert road.follow(x, lane).tolist() == expected


def test_bicycle():
    vehicles = place([0.0], [0.0], [20.0], [road.AB], heading=[0.1])
    for _ in range(15):
        vehicles = move(vehicles, jnp.full(SIZE, math.tan(0.05)), jnp.ones(SIZE))
    state = [vehicles.x[0], vehicles.y[0], vehicles.heading[0], vehicles.speed[0]]
    np.testing.assert_allclose(state, [19.936189, 4.470161, 0.304773, 21.0], atol=1e-6)


def test_steering_angle():
    vehicles = place([330.0], [-4.0], [25.0], [road.BC0])
    for physics, angle in ((MARL_CAVS, 0.13538), (HIGHWAY_ENV, 0.265971)):
        np.testing.assert_allclose(jnp.arctan(tan_steering(vehicles, physics))[0], angle, atol=1e-5)


def test_steering_angle_is_bounded_and_defined_at_rest():
    vehicles = place([330.0] * 3, [-4.0, 4.0, 3.0], [0.0, 1e-9, 0.5], [road.BC0] * 3, heading=[0.0, 1.0, -2.0])
    for physics in (MARL_CAVS, HIGHWAY_ENV):
        tangent = tan_steering(vehicles, physics)[:3]
        np.testing.assert_allclose(jnp.abs(tangent), math.tan(math.pi / 3), rtol=1e-9)


def test_lane_change():
    start = place([320.0], [0.0], [25.0], [road.BC0], target_lane=[road.BC1])
    corrected = drive(start, [False], HIGHWAY_ENV)
    after = [corrected.x[14, 0] - 320, corrected.y[14, 0], corrected.heading[14, 0], corrected.y[44, 0]]
    np.testing.assert_allclose(after, [24.74233, 3.408175, 0.066813, 3.996838], atol=1e-5)
    plain = drive(start, [False], MARL_CAVS)
    np.testing.assert_allclose([plain.y[14, 0], plain.y[29, 0]], [3.3315, 4.2221], atol=1e-4)


def test_car_following():
    """A driver with a target speed of 30 m/s closes in on a leader at a constant 15."""
    start = place([0.0, 60.0], [0.0, 0.0], [25.0, 15.0], [road.AB] * 2, target_speed=[30.0, 15.0])
    driven = drive(start, [True, False], MARL_CAVS)
    np.testing.assert_allclose((driven.speed[0, 0] - 25) * 15, -3.750116, atol=1e-6)
    np.testing.assert_allclose(driven.speed[[0, 74, 149], 0], [24.749992, 16.647138, 15.018675], atol=1e-6)
    np.testing.assert_allclose(driven.x[[74, 149], 0], [98.896062, 176.840577], atol=1e-6)


@pytest.mark.parametrize(
    ("gap", "braking", "cautious", "bold"),
    [(20, -28.897, False, False), (40, -6.682, False, True), (60, -2.568, False, True), (80, -1.128, True, True)],
)
def test_lane_change_decision(gap, braking, cautious, bold):
    """Ego on the merging lane behind a slow leader, with a faster follower ``gap`` behind on the through lane."""
    ego = 400.0 - 60.0
    vehicles = place(
        [ego, ego + 30, ego - gap],
        [4.0, 4.0, 0.0],
        [25.0, 18.0, 28.0],
        [road.BC1, road.BC1, road.BC0 if ego - gap > 320 else road.AB],
        target_speed=[28.0, 18.0, 30.0],
    )
    pairs, ahead = pairs_of(vehicles), leader(vehicles, MARL_CAVS)
    behind = follower(pairs, vehicles, jnp.full(SIZE, road.CONNECTED[road.BC0], jnp.int32))
    for limit, expected in ((2.0, cautious), (9.0, bold)):
        drivers = traffic.drivers_of(DriverTable(imposed_braking=np.full(6, limit)), vehicles.driver)
        following = Leader(behind.present, behind.gap, behind.ahead_speed, vehicles.speed)
        imposed = accelerate(drivers, vehicles.exponent, behind.speed, behind.target_speed, following)
        np.testing.assert_allclose(imposed[0], braking, atol=1e-3)
        assert bool(mobil(vehicles, drivers, pairs, ahead, MARL_CAVS)[0]) == expected


def test_politeness_weighs_the_new_follower():
    """A gain that suffices for a selfish driver does not if the new follower's loss has weight."""
    vehicles = place(
        [385.0, 415.0, 330.0],
        [4.0, 4.0, 0.0],
        [25.0, 24.0, 28.0],
        [road.BC1, road.BC1, road.BC0],
        target_speed=[28.0, 24.0, 30.0],
    )
    pairs, ahead = pairs_of(vehicles), leader(vehicles, MARL_CAVS)
    chosen = []
    for politeness in (0.0, 4.0):
        drivers = traffic.drivers_of(DriverTable(), vehicles.driver)
        drivers = drivers.replace(politeness=jnp.full(SIZE, politeness))
        chosen.append(bool(mobil(vehicles, drivers, pairs, ahead, MARL_CAVS)[0]))
    assert chosen == [True, False]


def test_linear_driver():
    """θ · [v0 − v, min(v_lead − v, 0), min(d − (10 + 2.5 v), 0)], by hand."""
    types = jnp.array([traffic.DRIVERS.index("linear_aggressive"), traffic.DRIVERS.index("linear_defensive")])
    drivers = traffic.drivers_of(DriverTable(), types)
    speed = jnp.array([20.0, 20.0])
    ahead = Leader(jnp.array([True, True]), jnp.array([50.0, 50.0]), jnp.array([12.0, 12.0]), jnp.array([18.0, 18.0]))
    found = accelerate(drivers, jnp.full(2, 4.0), speed, jnp.array([26.0, 26.0]), ahead)
    features = np.array([6.0, -2.0, -10.0])
    expected = [np.dot([0.8 / 7.5, 0.8 / 22.5, 0.5], features), np.dot([0.16, 1.2 / 22.5, 2.0], features)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_lane_change_is_aborted_for_a_vehicle_ahead():
    """Two drivers on the merging lane head for the through lane; the rear one, if too close, goes back."""
    for gap, expected in ((15.0, [road.BC1, road.BC0]), (60.0, [road.BC0, road.BC0])):
        vehicles = place([345.0, 345.0 + gap], [4.0] * 2, [25.0] * 2, [road.BC1] * 2, target_lane=[road.BC0] * 2)
        assert drive(vehicles, [True, True], MARL_CAVS).target_lane[0, :2].tolist() == expected


def test_lane_changes_are_considered_at_intervals():
    """The timer runs up to the delay and restarts with a decision."""
    vehicles = place([20.0], [0.0], [25.0], [road.AB], timer=[0.97])
    timers = drive(vehicles, [True], MARL_CAVS).timer[:3, 0]
    np.testing.assert_allclose(timers, [0.97 + 1 / 15, 1 / 15, 2 / 15], atol=1e-12)


def test_drivers_search_other_segments_only_if_lanes_are_connected():
    vehicles = place([300.0, 330.0], [0.0, 0.0], [25.0, 10.0], [road.AB, road.BC0])
    for connected in (True, False):
        ahead = leader(vehicles, dataclasses.replace(MARL_CAVS, connected_lanes=connected))
        assert bool(ahead.present[0]) == connected


def test_obstacle_leads_on_the_merging_lane():
    vehicles = place([390.0, 390.0], [4.0, 0.0], [10.0, 10.0], [road.BC1, road.BC0])
    ahead = leader(vehicles, MARL_CAVS)
    assert ahead.present[:2].tolist() == [True, False]
    assert (float(ahead.gap[0]), float(ahead.along[0])) == (30.0, 0.0)


@pytest.mark.parametrize("physics", [MARL_CAVS, HIGHWAY_ENV])
def test_collisions_are_overlaps_of_boxes(physics):
    rng = np.random.default_rng(0)
    x, y, heading = 418 + 8 * rng.random(40), 8 * rng.random(40), 2 * np.pi * rng.random(40)
    vehicles = place(x, y, np.full(40, 20.0), [road.BC1] * 40, heading=heading)
    touch, blocked = jax.device_get(jax.jit(traffic.collisions, static_argnums=1)(vehicles, physics))
    scale = 1.0 if physics.full_boxes else 0.9
    boxes = [((x[i], y[i]), 5 * scale, 2 * scale, heading[i]) for i in range(40)]
    obstacle = ((420.0, 4.0), 2 * scale, 2 * scale, 0.0)

    def collide(box, other):
        return bool((physics.full_boxes or math.dist(box[0], other[0]) <= 5) and boxes_overlap(box, other))

    assert touch.tolist() == [[i != j and collide(boxes[i], boxes[j]) for j in range(40)] for i in range(40)]
    assert blocked.tolist() == [collide(box, obstacle) for box in boxes]


def test_crash_takes_the_smaller_speed_and_brakes():
    vehicles = place([400.0, 404.0, 200.0], [0.0, 0.0, 0.0], [25.0, 12.0, 25.0], [road.BC0, road.BC0, road.AB])
    after = crash(vehicles, MARL_CAVS)
    assert after.crashed[:3].tolist() == [True, True, False]
    np.testing.assert_allclose(after.speed[:3], [12.0, 12.0, 25.0])
    driven = drive(after, [True, False, True], MARL_CAVS)
    np.testing.assert_allclose(driven.speed[:2, 0], 12.0 * np.array([1 - 1 / 15, (1 - 1 / 15) ** 2]), atol=1e-12)
    against = crash(place([417.0], [4.0], [20.0], [road.BC1]), MARL_CAVS)
    assert (bool(against.crashed[0]), float(against.speed[0])) == (True, 0.0)


def test_finite_at_rest():
    """Vehicles that stand still, reverse, or overlap keep finite values."""
    vehicles = place(
        [380.0, 380.0, 390.0, 417.0],
        [4.0, 0.0, 4.0, 4.0],
        [0.0, 0.0, -1e-12, 0.0],
        [road.BC1, road.BC0, road.BC1, road.BC1],
        target_speed=[0.0, 25.0, 0.0, 25.0],
        driver=[0, 1, 3, 4],
    )
    for physics in (MARL_CAVS, HIGHWAY_ENV):
        driven = drive(vehicles, [True] * 4, physics)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(driven))
