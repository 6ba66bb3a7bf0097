"""Road, lane changes, collisions and standstill of ``merge`` where whole scenes in highway-env do not cover them, in float64."""

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
from marljax.envs.merge.traffic import DriverTable, Follower, Leader, Physics, Vehicles

MARL_CAVS, HIGHWAY_ENV = PHYSICS["marl_cavs"], PHYSICS["highway_env"]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


SIZE = 4  # vehicle slots in a scene, so that all scenes share compiled programs
tan_steering = jax.jit(traffic.tan_steering, static_argnums=1)
mobil = jax.jit(traffic.mobil)


@functools.partial(jax.jit, static_argnums=1)
def neighbours(vehicles: Vehicles, physics: Physics) -> list[tuple[Leader, Follower]]:
    """In the current lane, and on the through lane."""
    here = road.pick(vehicles.lane, physics.searched)
    return traffic.neighbours(vehicles, here, jnp.full_like(here, physics.searched[road.BC0]))


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


def test_steering_angle_is_bounded_and_defined_at_rest():
    vehicles = place([330.0] * 3, [-4.0, 4.0, 3.0], [0.0, 1e-9, 0.5], [road.BC0] * 3, heading=[0.0, 1.0, -2.0])
    for physics in (MARL_CAVS, HIGHWAY_ENV):
        tangent = tan_steering(vehicles, physics)[:3]
        np.testing.assert_allclose(jnp.abs(tangent), math.tan(math.pi / 3), rtol=1e-9)


def test_politeness_weighs_the_new_follower():
    """A gain that suffices for a selfish driver does not if the new follower's loss has weight."""
    vehicles = place(
        [385.0, 415.0, 330.0],
        [4.0, 4.0, 0.0],
        [25.0, 24.0, 28.0],
        [road.BC1, road.BC1, road.BC0],
        target_speed=[28.0, 24.0, 30.0],
    )
    here, there = neighbours(vehicles, MARL_CAVS)
    chosen = []
    for politeness in (0.0, 4.0):
        drivers = traffic.drivers_of(DriverTable(), vehicles.driver)
        drivers = drivers.replace(politeness=jnp.full(SIZE, politeness))
        chosen.append(bool(mobil(vehicles, drivers, here, there)[0]))
    assert chosen == [True, False]


def test_a_lane_change_is_aborted_for_a_vehicle_ahead():
    """Two drivers on the merging lane head for the through lane; the rear one, if too close, goes back."""
    for gap, expected in ((15.0, [road.BC1, road.BC0]), (60.0, [road.BC0, road.BC0])):
        vehicles = place([345.0, 345.0 + gap], [4.0] * 2, [25.0] * 2, [road.BC1] * 2, target_lane=[road.BC0] * 2)
        assert drive(vehicles, [True, True], MARL_CAVS).target_lane[0, :2].tolist() == expected


def test_drivers_search_other_segments_only_if_lanes_are_connected():
    vehicles = place([300.0, 330.0], [0.0, 0.0], [25.0, 10.0], [road.AB, road.BC0])
    for connected in (True, False):
        (ahead, _), _ = neighbours(vehicles, dataclasses.replace(MARL_CAVS, connected_lanes=connected))
        assert bool(ahead.present[0]) == connected


@pytest.mark.parametrize("physics", [MARL_CAVS, HIGHWAY_ENV])
def test_collisions_are_overlaps_of_boxes(physics):
    rng = np.random.default_rng(0)
    x, y, heading = 418 + 8 * rng.random(40), 8 * rng.random(40), 2 * np.pi * rng.random(40)
    speed = 30 * rng.random(40)
    vehicles = place(x, y, speed, [road.BC1] * 40, heading=heading)
    touched, slowest = jax.device_get(jax.jit(traffic.collisions, static_argnums=1)(vehicles, physics))
    scale = 1.0 if physics.full_boxes else 0.9
    boxes = [((x[i], y[i]), 5 * scale, 2 * scale, heading[i]) for i in range(40)]
    obstacle = ((420.0, 4.0), 2 * scale, 2 * scale, 0.0)

    def collide(box, other):
        return bool((physics.full_boxes or math.dist(box[0], other[0]) <= 5) and boxes_overlap(box, other))

    for i, box in enumerate(boxes):
        speeds = [speed[j] for j in range(40) if i != j and collide(box, boxes[j])] + [0.0] * collide(box, obstacle)
        assert touched[i] == bool(speeds)
        assert slowest[i] == min([speed[i], *speeds])


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
