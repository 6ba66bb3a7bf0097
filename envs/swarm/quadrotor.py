"""Quadrotors of ``swarm``: rigid bodies with four lagging, noisy motors.

Vectors are ``[3, N, …]``, rotations ``[3, 3, N, …]``: components first, then drones, then any trailing axes (see
``marljax.utils.batching``). Units are m, s, rad, kg, N.

The model is the Crazyflie simulated in "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep
Reinforcement Learning" (Huang et al. 2023). Attitude is integrated by explicit Euler steps, as there, or by ``rk4``, which
conserves energy and angular momentum.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.fields import param
from marljax.utils.batching import expand_trailing_dims

MOTORS = 4  # front right, back right, back left, front left
MOTOR_X, MOTOR_Y = np.array([1.0, -1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0, 1.0])  # signs of their positions
YAW = np.array([-1.0, 1.0, -1.0, 1.0])  # signs of the torque about the thrust axis
SUBSTEPS = 2  # per control step
NOISE_DECAY = 0.15  # of the thrust noise, per control step
INTEGRATORS = ("euler", "rk4")
LARGE = 1e6  # upper bound of parameters without a tighter one
LONGEST_STEP = 0.05  # s; with longer physics steps drones tunnel through one another


class Body(struct.PyTreeNode):
    """State of the drones."""

    position: jax.Array  # [3, N]
    velocity: jax.Array  # [3, N]
    rotation: jax.Array  # [3, 3, N] from the body frame (forward, left, up) to the world frame
    spin: jax.Array  # [3, N] angular velocity in the body frame
    motor: jax.Array  # [4, N] square root of the thrust, 0 to 1
    noise: jax.Array  # [4, N] of the thrust, relative to the command
    grounded: jax.Array  # [N] bool


class Quadrotor(struct.PyTreeNode):
    """Parameters of a drone."""

    mass: Any = param(0.028, above=0.0, high=LARGE, unit="kg")
    inertia_x: Any = param(1.36692321e-5, above=0.0, high=LARGE, unit="kg m²")
    inertia_y: Any = param(1.43567321e-5, above=0.0, high=LARGE, unit="kg m²")
    inertia_z: Any = param(2.65615833e-5, above=0.0, high=LARGE, unit="kg m²")
    offset: Any = param(0.0325, above=0.0, high=LARGE, unit="m", help="from the centre to a motor along both axes")
    thrust_to_weight: Any = param(1.9, above=1.0, high=100.0, help="at full thrust")
    torque_to_thrust: Any = param(0.006, low=0.0, high=LARGE, unit="m")
    lag: Any = param(0.15, low=0.0, high=LARGE, unit="s", help="settling time of a motor")
    noise: Any = param(0.01, low=0.0, high=LARGE, help="standard deviation of the thrust noise's increments per control step")
    gravity: Any = param(9.81, above=0.0, high=LARGE, unit="m/s²")
    friction: Any = param(0.6, low=0.0, high=LARGE, help="coefficient on the floor")
    fastest_spin: Any = param(40.0, low=0.0, high=LARGE, unit="rad/s", help="limit about each axis")
    timestep: Any = param(0.005, above=0.0, high=LONGEST_STEP, unit="s", help="half a control step")

    @property
    def period(self) -> Any:
        """Control step in s."""
        return SUBSTEPS * self.timestep

    @property
    def arm(self) -> jax.Array:
        """Distance in m from the centre to a motor, the radius of the drone's collision sphere."""
        return jnp.sqrt(2.0) * self.offset

    @property
    def thrust(self) -> jax.Array:
        """Maximum of a motor in N."""
        return self.mass * self.gravity * self.thrust_to_weight / MOTORS


class Room(struct.PyTreeNode):
    """A box that stands on the floor."""

    half: Any = param(5.0, above=0.0, high=LARGE, unit="m", help="x and y range from -half to half")
    height: Any = param(10.0, above=0.0, high=LARGE, unit="m")


def level(position: jax.Array, yaw: jax.Array) -> Body:
    """Level drones at rest at ``position`` [3, N] with heading ``yaw`` [N], motors off."""
    zero, off = jnp.zeros_like(position), jnp.zeros((MOTORS, *yaw.shape), yaw.dtype)
    return Body(position, zero, yaw_rotation(jnp.cos(yaw), jnp.sin(yaw)), zero, off, off, jnp.zeros(yaw.shape, bool))


def yaw_rotation(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[3, 3, N] rotations about the vertical by angles with these cosines and sines [N]."""
    zero, one = jnp.zeros_like(cos), jnp.ones_like(cos)
    return jnp.stack([jnp.stack([cos, -sin, zero]), jnp.stack([sin, cos, zero]), jnp.stack([zero, zero, one])])


def step(
    body: Body,
    command: jax.Array,
    noise: jax.Array,
    landing: jax.Array,
    drone: Quadrotor,
    room: Room,
    integrator: str = "euler",
) -> Body:
    """Advances the drones by one control step.

    Args:
        body: state of the drones.
        command: [4, N] thrust of each motor, 0 to 1.
        noise: [4, N] standard normal.
        landing: [N] uniform in [0, 1): heading of a drone that has landed upside down.
        drone: its parameters.
        room: bounds of the positions.
        integrator: one of ``INTEGRATORS``.
    """
    body = body.replace(noise=body.noise - NOISE_DECAY * body.noise + drone.noise * noise)
    root = jnp.sqrt(command)
    yaw = 2.0 * jnp.pi * landing
    heading = jnp.stack([jnp.cos(yaw), jnp.sin(yaw)])
    lag = jnp.minimum(4.0 * drone.timestep / (drone.lag + 1e-6), 1.0)
    for _ in range(SUBSTEPS):
        motor = body.motor + lag * (root - body.motor)
        thrust = drone.thrust * (motor**2 + command * body.noise)
        body = _substep(body.replace(motor=motor), thrust, heading, drone, room, integrator)
    return body.replace(rotation=orthogonal(body.rotation))


def _substep(body: Body, thrust: jax.Array, heading: jax.Array, drone: Quadrotor, room: Room, integrator: str) -> Body:
    """Attitude, spin and position from the previous state, then the velocity from the new attitude.

    Drones on the floor lie level; one that has just landed is stopped and its motors are turned off. One that landed upside down
    or on its nose turns to ``heading`` [2, N].
    """
    time = drone.timestep
    if integrator == "rk4":
        angle, spin = _runge_kutta(body.spin, thrust, drone)
    else:
        angle, spin = body.spin * time, body.spin + time * angular_acceleration(body.spin, thrust, drone)
    rotation = rotate(body.rotation, angle)
    spin = jnp.clip(spin, -drone.fastest_spin, drone.fastest_spin)
    x, y, z = body.position + time * body.velocity
    x, y, z = jnp.clip(x, -room.half, room.half), jnp.clip(y, -room.half, room.half), jnp.clip(z, 0.0, room.height)

    grounded = z <= drone.arm
    lands = grounded & ~body.grounded
    front = rotation[:2, 0]
    length = norm(front)
    lost = (lands & (rotation[2, 2] < 0)) | (length < 1e-6)
    cos, sin = jnp.where(lost, heading, front / jnp.maximum(length, 1e-6))
    rotation = jnp.where(grounded, yaw_rotation(cos, sin), rotation)
    velocity, spin, motor = (jnp.where(lands, 0.0, part) for part in (body.velocity, spin, body.motor))

    ax, ay, az = rotation[:, 2] * (jnp.where(lands, 0.0, thrust[0] + thrust[1] + thrust[2] + thrust[3]) / drone.mass)
    az = az - drone.gravity
    az = jnp.where(grounded, jnp.maximum(az, 0.0), az)
    vx, vy, vz = velocity + jnp.stack([ax, ay, az]) * time
    speed = jnp.sqrt(vx * vx + vy * vy)
    friction = jnp.where(grounded, drone.friction * drone.gravity * time, 0.0)
    kept = jnp.where(grounded, jnp.maximum(speed - friction, 0.0) / jnp.maximum(speed, 1e-9), 1.0)
    return body.replace(
        position=jnp.stack([x, y, jnp.where(grounded, drone.arm, z)]),
        velocity=jnp.stack([vx * kept, vy * kept, jnp.where(grounded, jnp.maximum(vz, 0.0), vz)]),
        rotation=rotation,
        spin=spin,
        motor=motor,
        grounded=grounded,
    )


def _runge_kutta(spin: jax.Array, thrust: jax.Array, drone: Quadrotor) -> tuple[jax.Array, jax.Array]:
    """A fourth-order substep: rotation angle [3, N] in the body frame at its start, and spin [3, N] at its end.

    The angle is the Magnus series ∫ω dt + h²/12 ω₀ × ω₁ with the integral from the same stages: the exponential of it keeps
    rotations orthogonal (Iserles et al., "Lie-group methods", 2000).
    """
    time = drone.timestep
    inertia = drone.inertia_x, drone.inertia_y, drone.inertia_z
    gyro = [(inertia[axis - 1] - inertia[axis - 2]) / inertia[axis] for axis in range(3)]
    torque = angular_acceleration(jnp.zeros_like(spin), thrust, drone)

    # Component by component this adds 5 % to an environment step on a CPU; with vectors of [3, N] it was 24 %.
    def slope(spin: Sequence[jax.Array]) -> list[jax.Array]:
        return [torque[axis] - gyro[axis] * spin[axis - 2] * spin[axis - 1] for axis in range(3)]

    def euler(time: Any, slopes: Sequence[jax.Array]) -> list[jax.Array]:
        return [own + time * each for own, each in zip(spin, slopes, strict=True)]

    first = slope(list(spin))
    second = slope(euler(0.5 * time, first))
    third = slope(euler(0.5 * time, second))
    last = slope(euler(time, third))
    early = [sum(slopes) for slopes in zip(first, second, third, strict=True)]
    late = [sum(slopes) for slopes in zip(second, third, last, strict=True)]
    after = jnp.stack([own + time / 6.0 * (a + b) for own, a, b in zip(spin, early, late, strict=True)])
    angle = jnp.stack([time * own + time**2 / 6.0 * a for own, a in zip(spin, early, strict=True)])
    return angle + time**2 / 12.0 * cross(spin, after), after


def angular_acceleration(spin: jax.Array, thrust: jax.Array, drone: Quadrotor) -> jax.Array:
    """[3, N] from Euler's equations, for motor thrusts [4, N]."""
    roll, pitch, yaw = (dot(expand_trailing_dims(sign, thrust), thrust) for sign in (MOTOR_Y, MOTOR_X, YAW))
    p, q, r = spin
    inertia = drone.inertia_x, drone.inertia_y, drone.inertia_z
    torque = drone.offset * roll, -drone.offset * pitch, drone.torque_to_thrust * yaw
    gyro = (inertia[2] - inertia[1]) * q * r, (inertia[0] - inertia[2]) * r * p, (inertia[1] - inertia[0]) * p * q
    return jnp.stack([(force - own) / moment for force, own, moment in zip(torque, gyro, inertia, strict=True)])


def rotate(rotation: jax.Array, angle: jax.Array) -> jax.Array:
    """[3, 3, N] rotations followed by rotation vectors ``angle`` [3, N] in the body frame (Rodrigues), up to about 1 rad."""
    square = dot(angle, angle)

    def series(first: int) -> jax.Array:
        """1/n! - a²/(n + 2)! + … with n = ``first``: no root, sine or quotient, and within 1e-7 up to 1 rad."""
        total = jnp.zeros_like(square)
        for order in reversed(range(5)):
            total = total * square + (-1) ** order / math.factorial(first + 2 * order)
        return total

    axis = (rotation[:, 0] * angle[0] + rotation[:, 1] * angle[1] + rotation[:, 2] * angle[2])[:, None]  # world frame
    once = cross(axis, rotation)
    return rotation + series(1) * once + series(2) * cross(axis, once)  # sin(a) / a and (1 - cos(a)) / a²


def orthogonal(rotation: jax.Array) -> jax.Array:
    """[3, 3, N] orthonormal rotations by Gram–Schmidt, starting with the thrust axis."""
    up = unit(rotation[:, 2])
    front = rotation[:, 0]
    front = unit(front - dot(front, up) * up)
    return jnp.stack([front, cross(up, front), up], axis=1)


# Sums over components are written out: XLA's reductions over an outer axis are several times slower on a CPU.


def to_body(rotation: jax.Array, vector: jax.Array) -> jax.Array:
    """World vectors [3, …] in the body frames with rotations [3, 3, …]."""
    return rotation[0] * vector[0] + rotation[1] * vector[1] + rotation[2] * vector[2]


def cross(a: jax.Array, b: jax.Array) -> jax.Array:
    """[3, …]."""
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def dot(a: jax.Array | np.ndarray, b: jax.Array) -> jax.Array:
    """[…] of vectors [D, …]."""
    return functools.reduce(jnp.add, (one * other for one, other in zip(a, b, strict=True)))


def norm(vector: jax.Array) -> jax.Array:
    """[…] lengths of vectors [D, …]."""
    return jnp.sqrt(dot(vector, vector))


def unit(vector: jax.Array) -> jax.Array:
    """[D, …] vectors of length 1; 0 stays 0."""
    return vector / jnp.maximum(norm(vector), 1e-9)
