"""Vehicles and drivers of ``merge``: kinematics, controllers, car following, lane changes and collisions.

Everything works on a structure of arrays: a vehicle quantity is one [V] array, and what happens between vehicles is [V, V],
row for the vehicle that looks, column for the one that is seen. Units are metres, seconds and radians.

Sources: the kinematic bicycle and the cascaded steering controller of highway-env (Leurent, 2018); the Intelligent Driver
Model, "IDM" (Treiber, Hennecke and Helbing, "Congested traffic states in empirical observations and microscopic simulations",
2000); "MOBIL" (Kesting, Treiber and Helbing, "General lane-changing model MOBIL for car-following models", 2007); driver
types of iPLAN (Wu et al., 2023); the linear drivers of highway-env (``AggressiveVehicle``, ``DefensiveVehicle``), which
MAPPO-PIS (2024) puts on this road.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.envs.merge import road

TIME_STEP = 1.0 / 15.0
SUBSTEPS = 3  # per decision
SPEED_GAIN = 1.0 / 0.6
LATERAL_GAIN = 1.0 / 0.6
HEADING_GAIN = 5.0
PURSUIT_TIME = 0.1  # s ahead at which the lane's direction is read
MAX_STEERING = math.pi / 3
MAX_SPEED = 40.0
FAR = 1e4  # stands for "nobody there" where infinity would breed NaN

Column = Any  # an array of jax or numpy

DRIVERS = ("base", "normal", "aggressive", "defensive", "linear_aggressive", "linear_defensive")


@dataclasses.dataclass(frozen=True)
class Physics:
    """The choices in which simulators of this road differ."""

    slip_correction: bool  # steering angle from the slip angle (highway-env 1.12.1), or taken for it (MARL_CAVs)
    full_boxes: bool  # boxes collide at full size, or scaled by 0.9 and only with centres within 5 m
    heed_target_lane: bool  # a driver who changes lane follows the leader of either lane, or of the current one
    connected_lanes: bool  # neighbours are also sought on the segments before and after
    stops_at_end: bool  # the sub-step in which an episode ends is its last (MARL_CAVs), or the decision is finished


class Vehicles(struct.PyTreeNode):
    """V vehicles; slots with ``alive`` false are empty and take part in nothing."""

    x: jax.Array  # [V] m, centre
    y: jax.Array  # [V] m
    heading: jax.Array  # [V] rad from +x
    speed: jax.Array  # [V] m/s
    lane: jax.Array  # [V] int32, nearest segment
    target_lane: jax.Array  # [V] int32, segment steered for
    target_speed: jax.Array  # [V] m/s
    timer: jax.Array  # [V] s since the driver last considered a lane change
    crashed: jax.Array  # [V] bool
    alive: jax.Array  # [V] bool
    driver: jax.Array  # [V] int32, row of the driver table
    exponent: jax.Array  # [V] exponent of the IDM's free-road term


class DriverTable(struct.PyTreeNode):
    """What distinguishes drivers, one array per quantity: [6] by type in ``DRIVERS``, or [V] by vehicle."""

    acceleration_limit: Column  # m/s², bound of the command either way
    acceleration: Column  # m/s², comfortable
    braking: Column  # m/s², comfortable, positive
    jam_distance: Column  # m, centre to centre at standstill
    headway: Column  # s
    exponent_low: Column  # range of the free-road exponent, drawn per vehicle
    exponent_high: Column  # its upper end
    politeness: Column  # weight of the followers' advantage in a lane change
    gain: Column  # m/s², least advantage for a lane change
    imposed_braking: Column  # m/s², most braking forced on the new follower, positive
    delay: Column  # s between lane-change decisions
    change_speed: Column  # m/s, least speed for a lane change
    linear: Column  # 1 for linear controllers of speed and steering in place of the IDM and the cascaded controller
    weight_target: Column  # 1/s, linear controller: on target speed − speed
    weight_speed: Column  # 1/s: on min(leader's speed − speed, 0)
    weight_gap: Column  # 1/s²: on min(gap − (jam_distance + headway · speed), 0)


def driver_table(imposed_braking: float, gain: float, change_speed: float) -> DriverTable:
    """The six types; the arguments are the MOBIL limits of the base driver, in which the physics presets differ."""
    return DriverTable(
        acceleration_limit=np.array([6.0, 6.0, 9.0, 5.0, 6.0, 6.0]),
        acceleration=np.array([3.0, 3.0, 6.0, 2.0, 3.0, 3.0]),
        braking=np.array([5.0, 5.0, 9.0, 4.0, 5.0, 5.0]),
        jam_distance=np.array([10.0, 10.0, 5.5, 18.0, 10.0, 10.0]),
        headway=np.array([1.5, 1.5, 1.2, 1.8, 2.5, 2.5]),
        exponent_low=np.array([4.0, 3.5, 4.0, 3.0, 4.0, 4.0]),
        exponent_high=np.array([4.0, 4.5, 4.0, 4.0, 4.0, 4.0]),
        politeness=np.array([0.0, 0.2, 0.0, 0.5, 0.0, 0.0]),
        gain=np.array([gain, 0.2, 0.1, 0.3, 1.0, 1.0]),
        imposed_braking=np.array([imposed_braking, 2.0, 9.0, 2.0, imposed_braking, imposed_braking]),
        delay=np.array([1.0, 1.0, 0.5, 1.0, 1.0, 1.0]),
        change_speed=np.full(6, change_speed),
        linear=np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0]),
        weight_target=np.array([0.0, 0.0, 0.0, 0.0, 0.8 / 7.5, 1.2 / 7.5]),
        weight_speed=np.array([0.0, 0.0, 0.0, 0.0, 0.8 / 22.5, 1.2 / 22.5]),
        weight_gap=np.array([0.0, 0.0, 0.0, 0.0, 0.5, 2.0]),
    )


def drivers_of(table: DriverTable, driver: jax.Array) -> DriverTable:
    """The table's rows for each vehicle, [V]."""
    return jax.tree.map(lambda column: jnp.asarray(column)[driver], table)


class Pairs(NamedTuple):
    """What every vehicle sees of every other at one instant."""

    dx: jax.Array  # [V, V] m, seen minus own
    along: jax.Array  # [V, V] m/s, speed of the seen along the own heading
    speed: jax.Array  # [V] m/s
    other: jax.Array  # [V, V] bool, not the same vehicle
    occupancy: jax.Array  # [V] int32, segments on which it is seen; none for empty slots
    to_obstacle: jax.Array  # [V] m, to the end of the ramp


class Leader(NamedTuple):
    """The nearest vehicle (or the obstacle) ahead, [V] each; gap ``FAR`` where there is none."""

    present: jax.Array
    gap: jax.Array  # m, centre to centre
    along: jax.Array  # m/s, its speed along the own heading
    speed: jax.Array  # m/s, its speed along its own heading


class Follower(NamedTuple):
    """The nearest vehicle behind, [V] each."""

    present: jax.Array
    gap: jax.Array  # m, centre to centre
    speed: jax.Array  # m/s
    target_speed: jax.Array  # m/s
    ahead_speed: jax.Array  # m/s, the own speed along that vehicle's heading


def pairs_of(vehicles: Vehicles) -> Pairs:
    """Everything between vehicles that one sub-step needs."""
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
    """Who is ahead on the ``searched`` segments ([V] bit masks); the obstacle stands on ``bc1``."""
    seen = pairs.other & ((searched[:, None] & pairs.occupancy[None, :]) != 0) & (pairs.dx >= 0)
    gap = jnp.min(jnp.where(seen, pairs.dx, FAR), axis=1)
    nearest = seen & (pairs.dx <= gap[:, None])
    along = jnp.max(jnp.where(nearest, pairs.along, -FAR), axis=1)
    speed = jnp.max(jnp.where(nearest, pairs.speed[None, :], -FAR), axis=1)
    blocked = road.contains(searched, road.BC1) & (pairs.to_obstacle >= 0) & (pairs.to_obstacle <= gap)
    gap = jnp.where(blocked, pairs.to_obstacle, gap)
    return Leader(gap < FAR, gap, jnp.where(blocked, 0.0, along), jnp.where(blocked, 0.0, speed))


def follower(pairs: Pairs, vehicles: Vehicles, searched: jax.Array) -> Follower:
    """Who is behind on the ``searched`` segments ([V] bit masks)."""
    seen = pairs.other & ((searched[:, None] & pairs.occupancy[None, :]) != 0) & (pairs.dx < 0)
    gap = jnp.min(jnp.where(seen, -pairs.dx, FAR), axis=1)
    # the number of the nearest as a float maximum: both reductions vectorise, where an argmin does not
    slots = jnp.arange(gap.shape[0], dtype=gap.dtype)
    who = jnp.max(jnp.where(seen & (-pairs.dx <= gap[:, None]), slots, 0.0), axis=1).astype(jnp.int32)
    heading_there, speed = vehicles.heading[who], vehicles.speed
    return Follower(
        present=gap < FAR,
        gap=gap,
        speed=speed[who],
        target_speed=vehicles.target_speed[who],
        ahead_speed=speed * jnp.cos(vehicles.heading - heading_there),
    )


def nonzero(value: jax.Array) -> jax.Array:
    """``value``, kept at least 0.01 away from 0."""
    return jnp.where(jnp.abs(value) > 0.01, value, jnp.where(value >= 0, 0.01, -0.01))


def desired_gap(drivers: DriverTable, speed: jax.Array, closing: jax.Array) -> jax.Array:
    """The IDM's d*: m, centre to centre, for a closing speed in m/s."""
    return (
        drivers.jam_distance + speed * drivers.headway + speed * closing / (2 * jnp.sqrt(drivers.acceleration * drivers.braking))
    )


def free_road(drivers: DriverTable, exponent: jax.Array, speed: jax.Array, target_speed: jax.Array) -> jax.Array:
    """The IDM's acceleration with nobody ahead, a [1 − (v/v0)^δ], m/s²."""
    ratio = jnp.maximum(speed, 0.0) / jnp.abs(nonzero(target_speed))
    return drivers.acceleration * (1 - ratio**exponent)


def accelerate(drivers: DriverTable, exponent: jax.Array, speed: jax.Array, target_speed: jax.Array, ahead: Leader) -> jax.Array:
    """What a driver's model commands for a vehicle behind ``ahead``, unclipped, m/s².

    IDM: a [1 − (v/v0)^δ − (d*/d)²]. Linear: θ · [v0 − v, min(v_lead − v, 0), min(d − (d0 + T v), 0)]. The IDM sees the leader's
    speed along the own heading, the linear controller the speed itself.
    """
    closing = speed - ahead.along
    interaction = drivers.acceleration * (desired_gap(drivers, speed, closing) / nonzero(ahead.gap)) ** 2
    idm = free_road(drivers, exponent, speed, target_speed) - jnp.where(ahead.present, interaction, 0.0)
    safe = drivers.jam_distance + jnp.maximum(speed, 0.0) * drivers.headway
    slower = jnp.minimum(ahead.speed - speed, 0.0)
    yielding = drivers.weight_speed * slower + drivers.weight_gap * jnp.minimum(ahead.gap - safe, 0.0)
    linear = drivers.weight_target * (target_speed - speed) + jnp.where(ahead.present, yielding, 0.0)
    return jnp.where(drivers.linear > 0, linear, idm)


def searched_segments(lane: jax.Array, physics: Physics) -> jax.Array:
    """Bit mask of the segments on which a driver on ``lane`` looks for neighbours."""
    return road.pick(lane, road.CONNECTED if physics.connected_lanes else road.ALONE)


def mobil(vehicles: Vehicles, drivers: DriverTable, pairs: Pairs, ahead: Leader, physics: Physics) -> jax.Array:
    """[V] bool: the MOBIL model recommends the lane change to ``bc0``.

    Safe: the new follower need not brake harder than the limit. Worth it: the own gain, plus politeness times what the new
    and the old follower gain, reaches the threshold. The decider judges followers by its own model, and what they would see
    ahead along its heading.
    """
    here = searched_segments(vehicles.lane, physics)
    there = jnp.full_like(here, (road.CONNECTED if physics.connected_lanes else road.ALONE)[road.BC0])
    new_ahead = leader(pairs, there)

    def command(speed: jax.Array, target_speed: jax.Array, leading: Leader) -> jax.Array:
        return accelerate(drivers, vehicles.exponent, speed, target_speed, leading)

    def commands_behind(behind: Follower, beyond: Leader) -> tuple[jax.Array, jax.Array]:
        """The follower's acceleration behind the decider, and with the decider gone."""
        with_me = Leader(behind.present, behind.gap, behind.ahead_speed, vehicles.speed)
        without_me = Leader(beyond.present, beyond.gap + behind.gap, beyond.along, beyond.speed)
        commands = (command(behind.speed, behind.target_speed, seen) for seen in (with_me, without_me))
        burden, relief = (jnp.where(behind.present, value, 0.0) for value in commands)
        return burden, relief

    imposed, unimposed = commands_behind(follower(pairs, vehicles, there), new_ahead)
    burdened, relieved = commands_behind(follower(pairs, vehicles, here), ahead)
    own = command(vehicles.speed, vehicles.target_speed, new_ahead) - command(vehicles.speed, vehicles.target_speed, ahead)
    advantage = own + drivers.politeness * (imposed - unimposed + relieved - burdened)
    return (imposed >= -drivers.imposed_braking) & (advantage >= drivers.gain)


def change_lanes(
    vehicles: Vehicles, drivers: DriverTable, pairs: Pairs, ahead: Leader, physics: Physics
) -> tuple[jax.Array, jax.Array]:
    """The human drivers' lane-change policy: new (target_lane [V], timer [V]).

    All decide at once from the targets of the sub-step's beginning, so the order of vehicles does not matter. A change under
    way is given up when another vehicle, close ahead and not yet in the target lane, is heading for it too.
    """
    lane, target, timer = vehicles.lane, vehicles.target_lane, vehicles.timer
    changing = lane != target
    parallel = road.segments(road.BC0, road.BC1)
    same_road = road.contains(parallel, lane) & road.contains(parallel, target)
    rival = pairs.other & (vehicles.target_lane[None, :] == target[:, None]) & (lane[None, :] != target[:, None])
    closing = vehicles.speed[:, None] - pairs.along
    wanted = desired_gap(jax.tree.map(lambda column: column[:, None], drivers), vehicles.speed[:, None], closing)
    rival = rival & vehicles.alive[None, :] & (pairs.dx > 0) & (pairs.dx < wanted)
    abort = changing & same_road & jnp.any(rival, axis=1)

    considers = ~changing & (timer > drivers.delay)
    possible = (lane == road.BC1) & road.through_reachable(vehicles.x, vehicles.y)
    moving = jnp.abs(vehicles.speed) >= drivers.change_speed
    change = considers & possible & moving & mobil(vehicles, drivers, pairs, ahead, physics)
    target = jnp.where(abort, lane, jnp.where(change, road.BC0, target))
    return target, jnp.where(considers, 0.0, timer)


def tan_steering(vehicles: Vehicles, physics: Physics, linear: jax.Array | None = None) -> jax.Array:
    """Tangent of the front wheels' angle that brings a vehicle to its target lane, [V].

    Lateral offset → lateral speed → heading → heading rate → slip angle → steering angle, each by a proportional law. The
    angle itself is never needed: tangents and sines of it follow from each other. ``linear`` [V] bool are drivers whose angle is
    linear in the errors of heading and place, k_ψ L/v (ψ_lane − ψ) − k_ψ k_r L/v² r, whatever the physics.
    """
    speed = nonzero(vehicles.speed)
    offset = vehicles.y - road.centre_y(vehicles.target_lane, vehicles.x)
    lane_heading = road.heading(vehicles.target_lane, vehicles.x + vehicles.speed * PURSUIT_TIME)
    drift = -LATERAL_GAIN * offset / speed
    bound = math.sin(math.pi / 4)
    wanted = lane_heading + jnp.arcsin(jnp.clip(drift, -bound, bound))
    rate = HEADING_GAIN * road.wrap(wanted - vehicles.heading)
    sine = road.VEHICLE_LENGTH / 2 / speed * rate
    # δ = asin(sine), or tan δ = 2 tan(asin(sine)), is bounded by MAX_STEERING: bound the sine instead
    factor: jax.Array | float = 2.0 if physics.slip_correction else 1.0
    bound = math.sin(math.atan(math.tan(MAX_STEERING) / factor))
    sine = jnp.clip(sine, -bound, bound)
    if linear is not None:
        angle = road.VEHICLE_LENGTH / speed * HEADING_GAIN * (road.wrap(lane_heading - vehicles.heading) + drift)
        sine = jnp.where(linear, jnp.sin(jnp.clip(angle, -MAX_STEERING, MAX_STEERING)), sine)
        factor = jnp.where(linear, 1.0, factor)
    return factor * sine / jnp.sqrt(1 - sine**2)


def cruise(vehicles: Vehicles) -> jax.Array:
    """The speed controller's acceleration towards the target speed, m/s²."""
    return SPEED_GAIN * (vehicles.target_speed - vehicles.speed)


def move(vehicles: Vehicles, tangent: jax.Array, acceleration: jax.Array) -> Vehicles:
    """One explicit Euler step of the kinematic bicycle; a crashed vehicle brakes straight ahead.

    ``tangent`` is tan δ of the steering angle, ``acceleration`` in m/s², [V] both. Position and heading advance with the old
    speed.
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
    heading = vehicles.heading + speed * sin_slip / (road.VEHICLE_LENGTH / 2) * TIME_STEP
    return vehicles.replace(
        x=x,
        y=y,
        heading=heading,
        speed=speed + acceleration * TIME_STEP,
        timer=vehicles.timer + TIME_STEP,
        lane=road.nearest_lane(x, y, heading),
    )


class Boxes(NamedTuple):
    """Oriented rectangles of one size, arrays of one shape; shapes broadcast against each other."""

    x: jax.Array | float  # centre, m
    y: jax.Array | float
    cos: jax.Array | float  # of the heading
    sin: jax.Array | float
    length: float  # half of it, m
    width: float  # half of it, m


def box(x: jax.Array, y: jax.Array, cos: jax.Array, sin: jax.Array, physics: Physics) -> Boxes:
    """Vehicles as they collide, from their centres and headings."""
    scale = (1.0 if physics.full_boxes else 0.9) / 2
    return Boxes(x, y, cos, sin, scale * road.VEHICLE_LENGTH, scale * road.VEHICLE_WIDTH)


def obstacle(physics: Physics) -> Boxes:
    """The end of the ramp as it collides."""
    half = (1.0 if physics.full_boxes else 0.9) / 2 * road.OBSTACLE_SIZE
    return Boxes(road.OBSTACLE_X, road.OBSTACLE_Y, 1.0, 0.0, half, half)


def overlap(a: Boxes, b: Boxes, physics: Physics) -> jax.Array:
    """Whether boxes collide, by the separating axes of both; in MARL_CAVs' physics also only with centres within 5 m."""
    dx, dy = b.x - a.x, b.y - a.y
    turn_cos, turn_sin = jnp.abs(a.cos * b.cos + a.sin * b.sin), jnp.abs(a.sin * b.cos - a.cos * b.sin)
    meets = (
        (jnp.abs(dx * a.cos + dy * a.sin) <= a.length + b.length * turn_cos + b.width * turn_sin)
        & (jnp.abs(dy * a.cos - dx * a.sin) <= a.width + b.length * turn_sin + b.width * turn_cos)
        & (jnp.abs(dx * b.cos + dy * b.sin) <= b.length + a.length * turn_cos + a.width * turn_sin)
        & (jnp.abs(dy * b.cos - dx * b.sin) <= b.width + a.length * turn_sin + a.width * turn_cos)
    )
    return meets if physics.full_boxes else meets & (dx**2 + dy**2 <= road.VEHICLE_LENGTH**2)


def collisions(vehicles: Vehicles, physics: Physics) -> tuple[jax.Array, jax.Array]:
    """([V, V] bool, which vehicles overlap; [V] bool, which overlap the obstacle)."""
    cos, sin = jnp.cos(vehicles.heading), jnp.sin(vehicles.heading)

    def boxes(*index: slice | None) -> Boxes:
        return box(vehicles.x[index], vehicles.y[index], cos[index], sin[index], physics)

    everyone = slice(None)
    touch = overlap(boxes(everyone, None), boxes(None, everyone), physics)
    both = vehicles.alive[:, None] & vehicles.alive[None, :] & ~jnp.eye(vehicles.x.shape[0], dtype=bool)
    blocked = overlap(boxes(everyone), obstacle(physics), physics)
    return touch & both, blocked & vehicles.alive


def crash(vehicles: Vehicles, physics: Physics) -> Vehicles:
    """Marks vehicles in contact as crashed. In MARL_CAVs' physics both also take the smaller |speed|, against the obstacle
    0."""
    touch, blocked = collisions(vehicles, physics)
    crashed = vehicles.crashed | jnp.any(touch, axis=1) | blocked
    if physics.full_boxes:
        return vehicles.replace(crashed=crashed)
    magnitude = jnp.abs(vehicles.speed)
    least = jnp.min(jnp.where(touch, magnitude[None, :], FAR), axis=1)
    least = jnp.where(blocked, 0.0, jnp.minimum(magnitude, least))
    return vehicles.replace(crashed=crashed, speed=jnp.sign(vehicles.speed) * least)


def controls(
    vehicles: Vehicles, drivers: DriverTable, human: jax.Array, physics: Physics
) -> tuple[Vehicles, jax.Array, jax.Array]:
    """What every vehicle does next: (vehicles with new targets, tangent of the steering angle [V], acceleration [V] in m/s²)."""
    pairs = pairs_of(vehicles)
    vehicles = vehicles.replace(target_lane=road.follow(vehicles.x, vehicles.target_lane))
    ahead = leader(pairs, searched_segments(vehicles.lane, physics))
    target, timer = change_lanes(vehicles, drivers, pairs, ahead, physics)
    decides = human & ~vehicles.crashed
    vehicles = vehicles.replace(
        target_lane=jnp.where(decides, target, vehicles.target_lane),
        timer=jnp.where(decides, timer, vehicles.timer),
    )
    acceleration = accelerate(drivers, vehicles.exponent, vehicles.speed, vehicles.target_speed, ahead)
    if physics.heed_target_lane:
        beyond = leader(pairs, searched_segments(vehicles.target_lane, physics))
        other = accelerate(drivers, vehicles.exponent, vehicles.speed, vehicles.target_speed, beyond)
        same = vehicles.lane == vehicles.target_lane
        acceleration = jnp.where(same, acceleration, jnp.minimum(acceleration, other))
    acceleration = jnp.clip(acceleration, -drivers.acceleration_limit, drivers.acceleration_limit)
    tangent = tan_steering(vehicles, physics, human & (drivers.linear > 0))
    return vehicles, tangent, jnp.where(human, acceleration, cruise(vehicles))


def substep(vehicles: Vehicles, drivers: DriverTable, human: jax.Array, physics: Physics) -> Vehicles:
    """One physics step of 1/15 s: lane policies, controllers, motion, collisions.

    ``human`` [V] bool: driven by car-following and lane-change models; the others hold their target lane and speed.
    """
    return crash(move(*controls(vehicles, drivers, human, physics)), physics)
