"""Vehicles and drivers of ``merge``: kinematics, controllers, car following, lane changes and collisions.

Everything is a structure of arrays ``[V, …]``, one per quantity: vehicles first, then any number of trailing axes (see
``utils.batching``). What happens between vehicles is a loop over the other one of a pair: elementwise code without ``[V, V]``
arrays, which is three times as fast on a CPU. Units are metres, seconds and radians.

Sources: the kinematic bicycle and the cascaded steering controller of highway-env (Leurent, 2018); the Intelligent Driver
Model, "IDM" (Treiber, Hennecke and Helbing, "Congested traffic states in empirical observations and microscopic simulations",
2000); "MOBIL" (Kesting, Treiber and Helbing, "General lane-changing model MOBIL for car-following models", 2007); the driver
types of iPLAN (Wu et al., 2023); the linear drivers of highway-env (``AggressiveVehicle``, ``DefensiveVehicle``), which
MAPPO-PIS (2024) uses on this road.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.envs.merge import road
from marljax.envs.merge.road import FAR_AWAY, VEHICLE_LENGTH
from marljax.utils.batching import expand_trailing_dims, loop, select

TIME_STEP = 1.0 / 15.0
SUBSTEPS = 3  # per decision
SPEED_GAIN = 1.0 / 0.6
LATERAL_GAIN = 1.0 / 0.6
HEADING_GAIN = 5.0
PURSUIT_TIME = 0.1  # s, lookahead for the lane's heading
MAX_STEERING = math.pi / 3
MAX_SPEED = 40.0
DRIVERS = ("base", "normal", "aggressive", "defensive", "linear_aggressive", "linear_defensive")


@dataclasses.dataclass(frozen=True)
class Physics:
    """The rules in which simulators of this road differ."""

    slip_correction: bool  # steering angle computed from the slip angle (highway-env 1.12.1), or set equal to it (MARL_CAVs)
    full_boxes: bool  # boxes collide at full size, or scaled by 0.9 and only with centres within 5 m
    heed_target_lane: bool  # a driver changing lanes follows the leaders of both lanes, or only that of the current one
    stops_at_end: bool  # the sub-step in which an episode ends is the last (MARL_CAVs), or the decision is completed
    connected_lanes: bool = True  # neighbours are also searched on the segments before and after

    @property
    def searched(self) -> tuple[int, ...]:
        """For each segment the bit mask of those on which its drivers search for neighbours."""
        return road.CONNECTED if self.connected_lanes else road.ALONE


class Vehicles(struct.PyTreeNode):
    """V vehicle slots; those with ``alive`` false are empty and affect nothing."""

    x: jax.Array  # [V] m, centre
    y: jax.Array  # [V] m
    heading: jax.Array  # [V] rad from +x
    speed: jax.Array  # [V] m/s
    lane: jax.Array  # [V] int32, nearest segment
    target_lane: jax.Array  # [V] int32, segment steered towards
    target_speed: jax.Array  # [V] m/s
    timer: jax.Array  # [V] s since the driver last considered a lane change
    crashed: jax.Array  # [V] bool
    alive: jax.Array  # [V] bool
    driver: jax.Array  # [V] int32, row of the driver table
    exponent: jax.Array  # [V] exponent of the IDM's free-road term


def column(*values: float, **metadata: Any) -> Any:
    """A ``param`` with one default for each type in ``DRIVERS``."""
    return param(lambda: np.array(values, float), **metadata)


class DriverTable(struct.PyTreeNode):
    """Parameters of drivers, one array each: [6] by type in ``DRIVERS``, or [V] by vehicle."""

    acceleration_limit: Any = column(6, 6, 9, 5, 6, 6, unit="m/s²", help="maximum magnitude of the commanded acceleration")
    acceleration: Any = column(3, 3, 6, 2, 3, 3, above=0.0, unit="m/s²", help="comfortable acceleration")
    braking: Any = column(5, 5, 9, 4, 5, 5, above=0.0, unit="m/s²", help="comfortable braking")
    jam_distance: Any = column(10, 10, 5.5, 18, 10, 10, unit="m", help="distance between centres at standstill")
    headway: Any = column(1.5, 1.5, 1.2, 1.8, 2.5, 2.5, unit="s", help="desired time headway")
    exponent_low: Any = column(4, 3.5, 4, 3, 4, 4, help="free-road exponent, drawn uniformly per vehicle: lower bound")
    exponent_high: Any = column(4, 4.5, 4, 4, 4, 4, help="upper bound")
    politeness: Any = column(0, 0.2, 0, 0.5, 0, 0, help="weight of the followers' advantage in a lane change")
    gain: Any = column(0.1, 0.2, 0.1, 0.3, 1, 1, unit="m/s²", help="minimum advantage for a lane change")
    imposed_braking: Any = column(9, 2, 9, 2, 9, 9, unit="m/s²", help="maximum braking imposed on the new follower")
    delay: Any = column(1, 1, 0.5, 1, 1, 1, above=0.0, unit="s", help="time between lane-change decisions")
    change_speed: Any = column(0, 0, 0, 0, 0, 0, unit="m/s", help="minimum speed for a lane change")
    linear: Any = column(0, 0, 0, 0, 1, 1, help="1: linear control of speed and steering instead of IDM and cascaded controller")
    weight_target: Any = column(0, 0, 0, 0, 0.8 / 7.5, 1.2 / 7.5, unit="1/s", help="linear control: of target speed − speed")
    weight_speed: Any = column(0, 0, 0, 0, 0.8 / 22.5, 1.2 / 22.5, unit="1/s", help="of min(leader's speed − speed, 0)")
    weight_gap: Any = column(0, 0, 0, 0, 0.5, 2, unit="1/s²", help="of min(gap − (jam_distance + headway · speed), 0)")


def drivers_of(table: DriverTable, driver: jax.Array) -> DriverTable:
    """The entries of a table by type for each vehicle ([V] int32 types), by one comparison per type: a gather is slow."""

    def entries(column: jax.Array) -> jax.Array:
        found = jnp.broadcast_to(column[:1], driver.shape)
        for number in range(1, len(DRIVERS)):
            found = jnp.where(driver == number, column[number], found)
        return found

    return jax.tree.map(lambda column: entries(jnp.asarray(column)), table)


# --- neighbours -------------------------------------------------------------------------------------------------------


class Leader(NamedTuple):
    """The nearest vehicle (or the obstacle) ahead, [V] each."""

    gap: jax.Array  # m, centre to centre; ``FAR_AWAY`` if absent
    along: jax.Array  # m/s, its speed along the ego's heading
    speed: jax.Array  # m/s, its speed along its own heading

    @property
    def present(self) -> jax.Array:
        return self.gap < FAR_AWAY


class Follower(NamedTuple):
    """The nearest vehicle behind, [V] each."""

    gap: jax.Array  # m, centre to centre; ``FAR_AWAY`` if absent
    heading: jax.Array
    speed: jax.Array  # m/s
    target_speed: jax.Array  # m/s

    @property
    def present(self) -> jax.Array:
        return self.gap < FAR_AWAY


def slots_like(values: jax.Array) -> np.ndarray:
    """The index of every vehicle, with the trailing axes of ``values`` [V, …]."""
    return expand_trailing_dims(np.arange(values.shape[0], dtype=np.int32), values)


def neighbours(vehicles: Vehicles, *searched: jax.Array) -> list[tuple[Leader, Follower]]:
    """Leader and follower of every vehicle on each set of ``searched`` segments ([V] bit masks). The obstacle at the end of the
    ramp is on ``bc1``."""
    x, heading, speed = vehicles.x, vehicles.heading, vehicles.speed
    cos, sin = jnp.cos(heading), jnp.sin(heading)
    vx, vy = speed * cos, speed * sin
    occupied = jnp.where(vehicles.alive, road.occupancy(x, vehicles.y), 0)
    slots = slots_like(x)

    def compare(other: jax.Array, nearest: list[tuple[Leader, Follower]]) -> list[tuple[Leader, Follower]]:
        dx = x[other] - x
        ahead = Leader(dx, cos * vx[other] + sin * vy[other], speed[other])
        behind = Follower(-dx, heading[other], speed[other], vehicles.target_speed[other])
        compared = []
        for (leader, follower), segments in zip(nearest, searched, strict=True):
            visible = (slots != other) & ((segments & occupied[other]) != 0)
            leads = visible & (dx >= 0) & (dx <= leader.gap)
            follows = visible & (dx < 0) & (-dx < follower.gap)
            compared.append((select(leads, ahead, leader), select(follows, behind, follower)))
        return compared

    absent, zero = jnp.full_like(x, FAR_AWAY), jnp.zeros_like(x)
    start = [(Leader(absent, zero, zero), Follower(absent, zero, zero, zero)) for _ in searched]
    nearest = loop(x.shape[0], compare, start)

    to_obstacle = jnp.where(x <= road.OBSTACLE_X, road.OBSTACLE_X - x, FAR_AWAY)
    obstacle = Leader(to_obstacle, zero, zero)
    blocked = [road.contains(segments, road.BC1) & (to_obstacle < FAR_AWAY) for segments in searched]
    return [
        (select(block & (to_obstacle <= leader.gap), obstacle, leader), follower)
        for block, (leader, follower) in zip(blocked, nearest, strict=True)
    ]


def is_contested(vehicles: Vehicles, drivers: DriverTable) -> jax.Array:
    """[V] bool: another vehicle, close ahead and not yet in the ego's target lane, is heading for that lane too."""
    x, lane, target, speed = vehicles.x, vehicles.lane, vehicles.target_lane, vehicles.speed
    cos, sin = jnp.cos(vehicles.heading), jnp.sin(vehicles.heading)
    vx, vy = speed * cos, speed * sin

    def compare(other: jax.Array, contested: jax.Array) -> jax.Array:
        dx, closing = x[other] - x, speed - (cos * vx[other] + sin * vy[other])
        close = (dx > 0) & (dx < desired_gap(drivers, speed, closing))
        return contested | (close & vehicles.alive[other] & (target[other] == target) & (lane[other] != target))

    return loop(x.shape[0], compare, jnp.zeros(x.shape, bool))


# --- drivers ----------------------------------------------------------------------------------------------------------


def nonzero(value: jax.Array) -> jax.Array:
    """``value`` with a magnitude of at least 0.01."""
    return jnp.where(jnp.abs(value) > 0.01, value, jnp.where(value >= 0, 0.01, -0.01))


def desired_gap(drivers: DriverTable, speed: jax.Array, closing: jax.Array) -> jax.Array:
    """The IDM's d*, in m between centres, for a closing speed in m/s."""
    return (
        drivers.jam_distance + speed * drivers.headway + speed * closing / (2 * jnp.sqrt(drivers.acceleration * drivers.braking))
    )


def accelerate(drivers: DriverTable, exponent: jax.Array, speed: jax.Array, target_speed: jax.Array, ahead: Leader) -> jax.Array:
    """Acceleration that a driver's model commands for a vehicle following ``ahead``, unclipped, in m/s².

    IDM: a [1 − (v/v0)^δ − (d*/d)²], with the leader's speed along the ego's heading. Linear: θ · [v0 − v, min(v_lead − v, 0),
    min(d − (d0 + T v), 0)], with the leader's speed along its own heading.
    """
    closing = speed - ahead.along
    interaction = drivers.acceleration * (desired_gap(drivers, speed, closing) / nonzero(ahead.gap)) ** 2
    ratio = jnp.maximum(speed, 0.0) / jnp.abs(nonzero(target_speed))
    free_road = drivers.acceleration * (1 - ratio**exponent)
    idm = free_road - jnp.where(ahead.present, interaction, 0.0)
    safe = drivers.jam_distance + jnp.maximum(speed, 0.0) * drivers.headway
    slower = jnp.minimum(ahead.speed - speed, 0.0)
    yielding = drivers.weight_speed * slower + drivers.weight_gap * jnp.minimum(ahead.gap - safe, 0.0)
    linear = drivers.weight_target * (target_speed - speed) + jnp.where(ahead.present, yielding, 0.0)
    return jnp.where(drivers.linear > 0, linear, idm)


def mobil(vehicles: Vehicles, drivers: DriverTable, here: tuple[Leader, Follower], there: tuple[Leader, Follower]) -> jax.Array:
    """[V] bool: MOBIL recommends the lane change from ``here``, the neighbours in the current lane, to ``there``.

    Safety: the new follower need not brake harder than the limit. Incentive: the ego's gain, plus politeness times the gains of
    the new and the old follower, reaches the threshold. The ego applies its own driver model to its followers.
    """

    def follower_accelerations(beyond: Leader, behind: Follower) -> list[jax.Array]:
        """Of the follower behind the ego, and with the ego gone; 0 where there is none."""
        ego = Leader(behind.gap, vehicles.speed * jnp.cos(vehicles.heading - behind.heading), vehicles.speed)
        gap = jnp.where(beyond.present, beyond.gap + behind.gap, FAR_AWAY)
        commands = [
            accelerate(drivers, vehicles.exponent, behind.speed, behind.target_speed, leader)
            for leader in (ego, beyond._replace(gap=gap))
        ]
        return [jnp.where(behind.present, command, 0.0) for command in commands]

    imposed, unimposed = follower_accelerations(*there)
    burdened, relieved = follower_accelerations(*here)
    after, before = (
        accelerate(drivers, vehicles.exponent, vehicles.speed, vehicles.target_speed, leader) for leader, _ in (there, here)
    )
    advantage = (after - before) + drivers.politeness * (imposed - unimposed + relieved - burdened)
    return (imposed >= -drivers.imposed_braking) & (advantage >= drivers.gain)


# --- controllers and motion -------------------------------------------------------------------------------------------


def tan_steering(vehicles: Vehicles, physics: Physics, linear: jax.Array | None = None) -> jax.Array:
    """[V] tangent of the steering angle that takes a vehicle to its target lane.

    A cascade of proportional laws: lateral offset → lateral speed → heading → heading rate → slip angle → steering angle. The
    angle itself is never computed; its tangent follows from its sine. For ``linear`` drivers ([V] bool) the angle is linear in
    the errors of heading and position, k_ψ L/v (ψ_lane − ψ) − k_ψ k_r L/v² r, under any physics.
    """
    speed = nonzero(vehicles.speed)
    offset = vehicles.y - road.centre_y(vehicles.target_lane, vehicles.x)
    lane_heading = road.heading(vehicles.target_lane, vehicles.x + vehicles.speed * PURSUIT_TIME)
    drift = -LATERAL_GAIN * offset / speed
    bound = math.sin(math.pi / 4)
    heading = lane_heading + jnp.arcsin(jnp.clip(drift, -bound, bound))
    rate = HEADING_GAIN * road.wrap(heading - vehicles.heading)
    sine = VEHICLE_LENGTH / 2 / speed * rate
    # δ = asin(sine), or tan δ = 2 tan(asin(sine)), is limited to MAX_STEERING by limiting the sine
    factor: jax.Array | float = 2.0 if physics.slip_correction else 1.0
    bound = math.sin(math.atan(math.tan(MAX_STEERING) / factor))
    sine = jnp.clip(sine, -bound, bound)
    if linear is not None:
        angle = VEHICLE_LENGTH / speed * HEADING_GAIN * (road.wrap(lane_heading - vehicles.heading) + drift)
        sine = jnp.where(linear, jnp.sin(jnp.clip(angle, -MAX_STEERING, MAX_STEERING)), sine)
        factor = jnp.where(linear, 1.0, factor)
    return factor * sine / jnp.sqrt(1 - sine**2)


def cruise(vehicles: Vehicles) -> jax.Array:
    """The speed controller's acceleration towards the target speed, in m/s²."""
    return SPEED_GAIN * (vehicles.target_speed - vehicles.speed)


def controls(
    vehicles: Vehicles, drivers: DriverTable, human: jax.Array, physics: Physics
) -> tuple[Vehicles, jax.Array, jax.Array]:
    """(vehicles with new targets, tangent of the steering angle [V], acceleration [V] in m/s²) of the next sub-step.

    All drivers decide simultaneously, so the order of vehicles does not matter. A lane change in progress is aborted when another
    vehicle, close ahead and not yet in the target lane, is heading for that lane too.
    """
    vehicles = vehicles.replace(target_lane=road.follow(vehicles.x, vehicles.target_lane))
    lane, target, speed = vehicles.lane, vehicles.target_lane, vehicles.speed
    segments = road.pick(lane, physics.searched)
    here, there = neighbours(vehicles, segments, jnp.full_like(segments, physics.searched[road.BC0]))

    changing = lane != target
    parallel = road.segments(road.BC0, road.BC1)
    same_road = road.contains(parallel, lane) & road.contains(parallel, target)
    abort = changing & same_road & is_contested(vehicles, drivers)
    considers = ~changing & (vehicles.timer > drivers.delay)
    possible = (lane == road.BC1) & road.through_reachable(vehicles.x, vehicles.y)
    moving = jnp.abs(speed) >= drivers.change_speed
    change = considers & possible & moving & mobil(vehicles, drivers, here, there)
    decides = human & ~vehicles.crashed
    vehicles = vehicles.replace(
        target_lane=jnp.where(decides, jnp.where(abort, lane, jnp.where(change, road.BC0, target)), target),
        timer=jnp.where(decides, jnp.where(considers, 0.0, vehicles.timer), vehicles.timer),
    )

    acceleration = accelerate(drivers, vehicles.exponent, speed, vehicles.target_speed, here[0])
    if physics.heed_target_lane:
        [(ahead, _)] = neighbours(vehicles, road.pick(vehicles.target_lane, physics.searched))
        other = accelerate(drivers, vehicles.exponent, speed, vehicles.target_speed, ahead)
        acceleration = jnp.where(lane == vehicles.target_lane, acceleration, jnp.minimum(acceleration, other))
    acceleration = jnp.clip(acceleration, -drivers.acceleration_limit, drivers.acceleration_limit)
    tangent = tan_steering(vehicles, physics, human & (drivers.linear > 0))
    return vehicles, tangent, jnp.where(human, acceleration, cruise(vehicles))


def move(vehicles: Vehicles, tangent: jax.Array, acceleration: jax.Array) -> Vehicles:
    """One explicit Euler step of the kinematic bicycle; a crashed vehicle brakes straight ahead.

    ``tangent`` [V] is tan δ of the steering angle, ``acceleration`` [V] in m/s². Position and heading advance at the old speed.
    """
    speed = vehicles.speed
    tangent = jnp.where(vehicles.crashed, 0.0, tangent)
    acceleration = jnp.where(vehicles.crashed, -speed, acceleration)
    acceleration = jnp.where(speed > MAX_SPEED, jnp.minimum(acceleration, MAX_SPEED - speed), acceleration)
    tan_slip = tangent / 2
    cos_slip = 1 / jnp.sqrt(1 + tan_slip**2)
    sin_slip = tan_slip * cos_slip
    cos, sin = jnp.cos(vehicles.heading), jnp.sin(vehicles.heading)
    x = vehicles.x + speed * (cos * cos_slip - sin * sin_slip) * TIME_STEP
    y = vehicles.y + speed * (sin * cos_slip + cos * sin_slip) * TIME_STEP
    heading = vehicles.heading + speed * sin_slip / (VEHICLE_LENGTH / 2) * TIME_STEP
    return vehicles.replace(
        x=x,
        y=y,
        heading=heading,
        speed=speed + acceleration * TIME_STEP,
        timer=vehicles.timer + TIME_STEP,
        lane=road.nearest_lane(x, y, heading),
    )


# --- collisions -------------------------------------------------------------------------------------------------------


class Pose(NamedTuple):
    """Positions and headings, arrays of one shape."""

    x: jax.Array | float  # m, centre
    y: jax.Array | float
    cos: jax.Array | float  # of the heading
    sin: jax.Array | float


VEHICLE_SIZE, OBSTACLE_SIZE = (VEHICLE_LENGTH, road.VEHICLE_WIDTH), (road.OBSTACLE_SIZE, road.OBSTACLE_SIZE)
OBSTACLE = Pose(road.OBSTACLE_X, road.OBSTACLE_Y, 1.0, 0.0)


def overlap(a: Pose, b: Pose, physics: Physics, size: tuple[float, float] = VEHICLE_SIZE) -> jax.Array:
    """Whether vehicles ``a`` collide with boxes ``b`` of (length, width) ``size``, by the separating-axis test; in MARL_CAVs'
    physics only with centres within 5 m. Shapes broadcast."""
    scale = (1.0 if physics.full_boxes else 0.9) / 2
    (a_length, a_width), (b_length, b_width) = ([scale * side for side in sides] for sides in (VEHICLE_SIZE, size))
    dx, dy = b.x - a.x, b.y - a.y
    turn_cos, turn_sin = jnp.abs(a.cos * b.cos + a.sin * b.sin), jnp.abs(a.sin * b.cos - a.cos * b.sin)
    meets = (
        (jnp.abs(dx * a.cos + dy * a.sin) <= a_length + b_length * turn_cos + b_width * turn_sin)
        & (jnp.abs(dy * a.cos - dx * a.sin) <= a_width + b_length * turn_sin + b_width * turn_cos)
        & (jnp.abs(dx * b.cos + dy * b.sin) <= b_length + a_length * turn_cos + a_width * turn_sin)
        & (jnp.abs(dy * b.cos - dx * b.sin) <= b_width + a_length * turn_sin + a_width * turn_cos)
    )
    return meets if physics.full_boxes else meets & (dx**2 + dy**2 <= VEHICLE_LENGTH**2)


def collisions(vehicles: Vehicles, physics: Physics) -> tuple[jax.Array, jax.Array]:
    """([V] bool: overlaps another vehicle or the obstacle, [V] m/s: least |speed| of the vehicle and those it overlaps)."""
    x, y, cos, sin = vehicles.x, vehicles.y, jnp.cos(vehicles.heading), jnp.sin(vehicles.heading)
    pose = Pose(x, y, cos, sin)
    magnitude, slots = jnp.abs(vehicles.speed), slots_like(x)

    def compare(other: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        touches = overlap(pose, Pose(x[other], y[other], cos[other], sin[other]), physics)
        touches = touches & vehicles.alive & vehicles.alive[other] & (slots != other)
        return found[0] | touches, jnp.minimum(found[1], jnp.where(touches, magnitude[other], FAR_AWAY))

    blocked = overlap(pose, OBSTACLE, physics, OBSTACLE_SIZE) & vehicles.alive
    return loop(magnitude.shape[0], compare, (blocked, jnp.where(blocked, 0.0, magnitude)))


def crash(vehicles: Vehicles, physics: Physics) -> Vehicles:
    """Marks vehicles in contact as crashed. In MARL_CAVs' physics both also take the smaller |speed|: 0 at the obstacle."""
    touched, slowest = collisions(vehicles, physics)
    vehicles = vehicles.replace(crashed=vehicles.crashed | touched)
    return vehicles if physics.full_boxes else vehicles.replace(speed=jnp.sign(vehicles.speed) * slowest)


def substep(vehicles: Vehicles, drivers: DriverTable, human: jax.Array, physics: Physics) -> Vehicles:
    """One physics step of 1/15 s: lane-change policies, controllers, motion, collisions.

    ``human`` [V] bool: driven by car-following and lane-change models; the others keep their target lane and speed.
    """
    return crash(move(*controls(vehicles, drivers, human, physics)), physics)
