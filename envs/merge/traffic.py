"""Vehicles and drivers of ``merge``: kinematics, controllers, car following, lane changes and collisions.

Everything is a structure of arrays: a quantity of each vehicle is [V], one of each pair [V, V] with the ego vehicle as row and
the other one as column. Units are metres, seconds and radians.

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
    """The table's rows for each vehicle, [V]."""
    return jax.tree.map(lambda column: jnp.asarray(column)[driver], table)


# --- neighbours -------------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairwise quantities of all vehicles at one sub-step."""

    dx: jax.Array  # [V, V] m, other minus ego
    along: jax.Array  # [V, V] m/s, the other's speed along the ego's heading
    speed: jax.Array  # [V] m/s
    other: jax.Array  # [V, V] bool, two different vehicles
    occupancy: jax.Array  # [V] int32, segments that a vehicle occupies; none for empty slots
    to_obstacle: jax.Array  # [V] m, to the end of the ramp


class Leader(NamedTuple):
    """The nearest vehicle (or the obstacle) ahead, [V] each."""

    present: jax.Array  # bool
    gap: jax.Array  # m, centre to centre; ``FAR_AWAY`` if absent
    along: jax.Array  # m/s, its speed along the ego's heading
    speed: jax.Array  # m/s, its speed along its own heading


class Follower(NamedTuple):
    """The nearest vehicle behind, [V] each."""

    present: jax.Array  # bool
    gap: jax.Array  # m, centre to centre
    speed: jax.Array  # m/s
    target_speed: jax.Array  # m/s
    ahead_speed: jax.Array  # m/s, the ego's speed along the follower's heading


def pairs_of(vehicles: Vehicles) -> Pairs:
    """The pairwise quantities that one sub-step needs."""
    cos, sin = jnp.cos(vehicles.heading), jnp.sin(vehicles.heading)
    vx, vy = vehicles.speed * cos, vehicles.speed * sin
    return Pairs(
        dx=vehicles.x[None, :] - vehicles.x[:, None],
        along=cos[:, None] * vx[None, :] + sin[:, None] * vy[None, :],
        speed=vehicles.speed,
        other=~jnp.eye(vehicles.x.shape[0], dtype=bool),
        occupancy=jnp.where(vehicles.alive, road.occupancy(vehicles.x, vehicles.y), 0),
        to_obstacle=road.OBSTACLE_X - vehicles.x,
    )


def leader(pairs: Pairs, searched: jax.Array) -> Leader:
    """The leader on the ``searched`` segments ([V] bit masks); the obstacle is on ``bc1``."""
    ahead = pairs.other & ((searched[:, None] & pairs.occupancy[None, :]) != 0) & (pairs.dx >= 0)
    gap = jnp.min(jnp.where(ahead, pairs.dx, FAR_AWAY), axis=1)
    nearest = ahead & (pairs.dx <= gap[:, None])
    along = jnp.max(jnp.where(nearest, pairs.along, -FAR_AWAY), axis=1)
    speed = jnp.max(jnp.where(nearest, pairs.speed[None, :], -FAR_AWAY), axis=1)
    blocked = road.contains(searched, road.BC1) & (pairs.to_obstacle >= 0) & (pairs.to_obstacle <= gap)
    gap = jnp.where(blocked, pairs.to_obstacle, gap)
    return Leader(gap < FAR_AWAY, gap, jnp.where(blocked, 0.0, along), jnp.where(blocked, 0.0, speed))


def follower(pairs: Pairs, vehicles: Vehicles, searched: jax.Array) -> Follower:
    """The follower on the ``searched`` segments ([V] bit masks)."""
    behind = pairs.other & ((searched[:, None] & pairs.occupancy[None, :]) != 0) & (pairs.dx < 0)
    gap = jnp.min(jnp.where(behind, -pairs.dx, FAR_AWAY), axis=1)
    # index of the nearest as a float maximum: both reductions vectorise, an argmin does not
    slots = jnp.arange(gap.shape[0], dtype=gap.dtype)
    nearest = jnp.max(jnp.where(behind & (-pairs.dx <= gap[:, None]), slots, 0.0), axis=1).astype(jnp.int32)
    heading, speed = vehicles.heading[nearest], vehicles.speed
    return Follower(
        present=gap < FAR_AWAY,
        gap=gap,
        speed=speed[nearest],
        target_speed=vehicles.target_speed[nearest],
        ahead_speed=speed * jnp.cos(vehicles.heading - heading),
    )


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


def mobil(vehicles: Vehicles, drivers: DriverTable, pairs: Pairs, ahead: Leader, physics: Physics) -> jax.Array:
    """[V] bool: MOBIL recommends the lane change to ``bc0``.

    Safety: the new follower need not brake harder than the limit. Incentive: the ego's gain, plus politeness times the gains of
    the new and the old follower, reaches the threshold. The ego applies its own driver model to its followers.
    """
    here = road.pick(vehicles.lane, physics.searched)
    there = jnp.full_like(here, physics.searched[road.BC0])
    new_ahead = leader(pairs, there)

    def follower_accelerations(behind: Follower, beyond: Leader) -> list[jax.Array]:
        """Of the follower behind the ego, and with the ego gone; 0 where there is none."""
        with_ego = Leader(behind.present, behind.gap, behind.ahead_speed, vehicles.speed)
        without_ego = Leader(beyond.present, beyond.gap + behind.gap, beyond.along, beyond.speed)
        commands = [
            accelerate(drivers, vehicles.exponent, behind.speed, behind.target_speed, leading)
            for leading in (with_ego, without_ego)
        ]
        return [jnp.where(behind.present, command, 0.0) for command in commands]

    imposed, unimposed = follower_accelerations(follower(pairs, vehicles, there), new_ahead)
    burdened, relieved = follower_accelerations(follower(pairs, vehicles, here), ahead)
    after, before = (
        accelerate(drivers, vehicles.exponent, vehicles.speed, vehicles.target_speed, leading) for leading in (new_ahead, ahead)
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
    pairs = pairs_of(vehicles)
    vehicles = vehicles.replace(target_lane=road.follow(vehicles.x, vehicles.target_lane))
    lane, target, speed = vehicles.lane, vehicles.target_lane, vehicles.speed
    ahead = leader(pairs, road.pick(lane, physics.searched))

    changing = lane != target
    parallel = road.segments(road.BC0, road.BC1)
    same_road = road.contains(parallel, lane) & road.contains(parallel, target)
    contender = pairs.other & (target[None, :] == target[:, None]) & (lane[None, :] != target[:, None])
    closing = speed[:, None] - pairs.along
    desired = desired_gap(jax.tree.map(lambda column: column[:, None], drivers), speed[:, None], closing)
    contender = contender & vehicles.alive[None, :] & (pairs.dx > 0) & (pairs.dx < desired)
    abort = changing & same_road & jnp.any(contender, axis=1)
    considers = ~changing & (vehicles.timer > drivers.delay)
    possible = (lane == road.BC1) & road.through_reachable(vehicles.x, vehicles.y)
    moving = jnp.abs(speed) >= drivers.change_speed
    change = considers & possible & moving & mobil(vehicles, drivers, pairs, ahead, physics)
    decides = human & ~vehicles.crashed
    vehicles = vehicles.replace(
        target_lane=jnp.where(decides, jnp.where(abort, lane, jnp.where(change, road.BC0, target)), target),
        timer=jnp.where(decides, jnp.where(considers, 0.0, vehicles.timer), vehicles.timer),
    )

    acceleration = accelerate(drivers, vehicles.exponent, speed, vehicles.target_speed, ahead)
    if physics.heed_target_lane:
        ahead = leader(pairs, road.pick(vehicles.target_lane, physics.searched))
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
    """([V, V] bool: two vehicles overlap, [V] bool: a vehicle overlaps the obstacle)."""
    pose = (vehicles.x, vehicles.y, jnp.cos(vehicles.heading), jnp.sin(vehicles.heading))
    touch = overlap(Pose(*(leaf[:, None] for leaf in pose)), Pose(*(leaf[None, :] for leaf in pose)), physics)
    both = vehicles.alive[:, None] & vehicles.alive[None, :] & ~jnp.eye(vehicles.x.shape[0], dtype=bool)
    return touch & both, overlap(Pose(*pose), OBSTACLE, physics, OBSTACLE_SIZE) & vehicles.alive


def crash(vehicles: Vehicles, physics: Physics) -> Vehicles:
    """Marks vehicles in contact as crashed. In MARL_CAVs' physics both also take the smaller |speed|: 0 at the obstacle."""
    touch, blocked = collisions(vehicles, physics)
    crashed = vehicles.crashed | jnp.any(touch, axis=1) | blocked
    if physics.full_boxes:
        return vehicles.replace(crashed=crashed)
    magnitude = jnp.abs(vehicles.speed)
    least = jnp.min(jnp.where(touch, magnitude[None, :], FAR_AWAY), axis=1)
    least = jnp.where(blocked, 0.0, jnp.minimum(magnitude, least))
    return vehicles.replace(crashed=crashed, speed=jnp.sign(vehicles.speed) * least)


def substep(vehicles: Vehicles, drivers: DriverTable, human: jax.Array, physics: Physics) -> Vehicles:
    """One physics step of 1/15 s: lane-change policies, controllers, motion, collisions.

    ``human`` [V] bool: driven by car-following and lane-change models; the others keep their target lane and speed.
    """
    return crash(move(*controls(vehicles, drivers, human, physics)), physics)
