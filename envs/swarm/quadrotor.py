"""The body of ``swarm``: a quadrotor with four lagging, noisy motors.

Vectors are ``[3, N, …]``, rotations ``[3, 3, N, …]``: components first, then drones, then any trailing axes (see
``marljax.utils.batching``). Units are m, s, rad, kg, N.

The quadrotor is a Crazyflie as simulated in "Collision Avoidance and Navigation for a Quadrotor Swarm Using End-to-end Deep
Reinforcement Learning" (Huang et al. 2023).

How it turns is integrated by explicit Euler steps, as there, which add energy to a body that tumbles: in 5 s at 11.5 rad/s,
without any torque, up to as much again. ``INTEGRATORS`` names another method, which keeps energy and angular momentum.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.utils.batching import expand_trailing_dims

MOTORS = 4  # front right, back right, back left, front left
MOTOR_X, MOTOR_Y = np.array([1.0, -1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0, 1.0])  # signs of their places
YAW = np.array([-1.0, 1.0, -1.0, 1.0])  # signs of the torque about the axis of thrust
SUBSTEPS = 2  # of a control step
NOISE_DECAY = 0.15  # of the thrust noise, per control step
INTEGRATORS = ("euler", "rk4")  # of attitude and spin


class Body(struct.PyTreeNode):
    """Where the drones are and how they move."""

    position: jax.Array  # [3, N]
    velocity: jax.Array  # [3, N]
    rotation: jax.Array  # [3, 3, N] from the drone's frame (forwards, left, up) to the world's
    spin: jax.Array  # [3, N] in the drone's frame
    motor: jax.Array  # [4, N] square root of the thrust, 0 to 1
    noise: jax.Array  # [4, N] of the thrust, relative to what is commanded
    grounded: jax.Array  # [N] bool


class Quadrotor(struct.PyTreeNode):
    """A drone's numbers."""

    mass: Any = 0.028
    inertia_x: Any = 1.36692321e-5  # kg m²
    inertia_y: Any = 1.43567321e-5
    inertia_z: Any = 2.65615833e-5
    offset: Any = 0.0325  # of the motors from the centre, along both axes
    thrust_to_weight: Any = 1.9
    torque_to_thrust: Any = 0.006  # m
    lag: Any = 0.15  # s until a motor has settled
    noise: Any = 0.01  # standard deviation of what is added to the thrust noise per control step
    gravity: Any = 9.81
    friction: Any = 0.6  # on the floor
    fastest_spin: Any = 40.0  # rad/s, about each axis
    timestep: Any = 0.005  # s, half a control step

    @property
    def period(self) -> Any:
        """s of a control step."""
        return SUBSTEPS * self.timestep

    @property
    def arm(self) -> jax.Array:
        """From the centre to a motor: a drone is a sphere of this radius."""
        return jnp.sqrt(2.0) * self.offset

    @property
    def thrust(self) -> jax.Array:
        """A motor's at most."""
        return self.mass * self.gravity * self.thrust_to_weight / MOTORS


class Room(struct.PyTreeNode):
    """A box on the floor."""

    half: Any = 5.0  # x and y from -half to half
    height: Any = 10.0


def level(position: jax.Array, yaw: jax.Array) -> Body:
    """Drones at rest at ``position`` [3, N], motors off; ``yaw`` [N] is where they look."""
    still, off = jnp.zeros_like(position), jnp.zeros((MOTORS, *yaw.shape), yaw.dtype)
    return Body(position, still, turned(yaw), still, off, off, jnp.zeros(yaw.shape, bool))


def turned(yaw: jax.Array) -> jax.Array:
    """[3, 3, N] rotations about the vertical."""
    return _about_vertical(jnp.cos(yaw), jnp.sin(yaw))


def _about_vertical(cos: jax.Array, sin: jax.Array) -> jax.Array:
    zero, one = jnp.zeros_like(cos), jnp.ones_like(cos)
    return jnp.stack([jnp.stack([cos, -sin, zero]), jnp.stack([sin, cos, zero]), jnp.stack([zero, zero, one])])


def fly(
    body: Body,
    command: jax.Array,
    noise: jax.Array,
    landing: jax.Array,
    drone: Quadrotor,
    room: Room,
    integrator: str = "euler",
) -> Body:
    """A control step of two sub-steps.

    Args:
        body: of the drones.
        command: [4, N] thrust of each motor, 0 to 1.
        noise: [4, N] normal draws.
        landing: [N] uniform draws in [0, 1): where a drone that falls on its back looks afterwards.
        drone: its numbers.
        room: that it stays in.
        integrator: one of ``INTEGRATORS``.
    """
    body = body.replace(noise=body.noise - NOISE_DECAY * body.noise + drone.noise * noise)
    root = jnp.sqrt(command)
    look = 2.0 * jnp.pi * landing
    look = jnp.stack([jnp.cos(look), jnp.sin(look)])
    lag = jnp.minimum(4.0 * drone.timestep / (drone.lag + 1e-6), 1.0)
    for _ in range(SUBSTEPS):
        motor = body.motor + lag * (root - body.motor)
        thrust = drone.thrust * (motor**2 + command * body.noise)
        body = _substep(body.replace(motor=motor), thrust, look, drone, room, integrator)
    return body.replace(rotation=orthogonal(body.rotation))


def _substep(body: Body, thrust: jax.Array, look: jax.Array, drone: Quadrotor, room: Room, integrator: str) -> Body:
    """Attitude, spin and place from what held before, then the velocity from the new attitude; ``look`` as in ``_on_floor``."""
    time = drone.timestep
    angle, spin = (_runge_kutta if integrator == "rk4" else _euler)(body.spin, thrust, drone)
    rotation = turn(body.rotation, angle)
    spin = jnp.clip(spin, -drone.fastest_spin, drone.fastest_spin)
    x, y, z = body.position + time * body.velocity
    place = jnp.stack([jnp.clip(x, -room.half, room.half), jnp.clip(y, -room.half, room.half), jnp.clip(z, 0.0, room.height)])
    moved = body.replace(position=place, rotation=rotation, spin=spin)
    moved, lands = _on_floor(moved, look, drone)
    pull = jnp.where(lands, 0.0, thrust[0] + thrust[1] + thrust[2] + thrust[3]) / drone.mass
    ax, ay, az = moved.rotation[:, 2] * pull
    az = az - drone.gravity
    az = jnp.where(moved.grounded, jnp.maximum(az, 0.0), az)
    return moved.replace(velocity=_slowed(moved, jnp.stack([ax, ay, az]) * time, drone))


def _euler(spin: jax.Array, thrust: jax.Array, drone: Quadrotor) -> tuple[jax.Array, jax.Array]:
    """A sub-step: by what angle [3, N] the drones turn, in their own frames at its beginning, and their spin [3, N] after it."""
    return spin * drone.timestep, spin + drone.timestep * _angular_acceleration(spin, thrust, drone)


def _runge_kutta(spin: jax.Array, thrust: jax.Array, drone: Quadrotor) -> tuple[jax.Array, jax.Array]:
    """``_euler`` of fourth order.

    The spin is Runge and Kutta's. The angle is Magnus' series, ∫ω dt + h²/12 ω₀ × ω₁ with the integral by the same stages: turned
    by its exponential, a rotation stays one (Iserles et al., "Lie-group methods", 2000).
    """
    time = drone.timestep
    inertia = drone.inertia_x, drone.inertia_y, drone.inertia_z
    gyro = [(inertia[axis - 1] - inertia[axis - 2]) / inertia[axis] for axis in range(3)]
    pushed = _angular_acceleration(jnp.zeros_like(spin), thrust, drone)

    # Component by component this adds 5 % to an environment step on a CPU; with vectors of [3, N] it was 24 %.
    def change(spin: Sequence[jax.Array]) -> list[jax.Array]:
        return [pushed[axis] - gyro[axis] * spin[axis - 2] * spin[axis - 1] for axis in range(3)]

    def ahead(time: Any, slope: Sequence[jax.Array]) -> list[jax.Array]:
        return [own + time * each for own, each in zip(spin, slope, strict=True)]

    first = change(list(spin))
    second = change(ahead(0.5 * time, first))
    third = change(ahead(0.5 * time, second))
    last = change(ahead(time, third))
    early = [sum(slopes) for slopes in zip(first, second, third, strict=True)]
    late = [sum(slopes) for slopes in zip(second, third, last, strict=True)]
    after = jnp.stack([own + time / 6.0 * (a + b) for own, a, b in zip(spin, early, late, strict=True)])
    angle = jnp.stack([time * own + time**2 / 6.0 * a for own, a in zip(spin, early, strict=True)])
    return angle + time**2 / 12.0 * cross(spin, after), after


def _angular_acceleration(spin: jax.Array, thrust: jax.Array, drone: Quadrotor) -> jax.Array:
    """[3, N] by Euler's equations."""
    signs = (expand_trailing_dims(part, thrust) for part in (MOTOR_X, MOTOR_Y, YAW))
    along, aside, yaw = (dot(sign, thrust) for sign in signs)
    p, q, r = spin
    inertia = drone.inertia_x, drone.inertia_y, drone.inertia_z
    torque = drone.offset * aside, -drone.offset * along, drone.torque_to_thrust * yaw
    gyro = (inertia[2] - inertia[1]) * q * r, (inertia[0] - inertia[2]) * r * p, (inertia[1] - inertia[0]) * p * q
    return jnp.stack([(force - own) / moment for force, own, moment in zip(torque, gyro, inertia, strict=True)])


def _on_floor(body: Body, look: jax.Array, drone: Quadrotor) -> tuple[Body, jax.Array]:
    """Whoever is down lies level; whoever has just come down lies still, with its motors off: [N] bool.

    ``look`` [2, N] is where a drone looks, once it is down, that fell on its back or on its nose.
    """
    x, y, z = body.position
    down = z <= drone.arm
    lands = down & ~body.grounded
    front = body.rotation[:2, 0]
    length = norm(front)
    lost = (lands & (body.rotation[2, 2] < 0)) | (length < 1e-6)
    cos, sin = jnp.where(lost, look, front / jnp.maximum(length, 1e-6))

    def still(part: jax.Array) -> jax.Array:
        return jnp.where(lands, 0.0, part)

    lying = body.replace(
        position=jnp.stack([x, y, jnp.where(down, drone.arm, z)]),
        velocity=still(body.velocity),
        rotation=jnp.where(down, _about_vertical(cos, sin), body.rotation),
        spin=still(body.spin),
        motor=still(body.motor),
        grounded=down,
    )
    return lying, lands


def _slowed(body: Body, change: jax.Array, drone: Quadrotor) -> jax.Array:
    """[3, N] velocity after ``change``; on the floor friction takes from the horizontal part, at most all of it."""
    x, y, z = body.velocity + change
    speed = jnp.sqrt(x * x + y * y)
    lost = jnp.where(body.grounded, drone.friction * drone.gravity * drone.timestep, 0.0)
    kept = jnp.maximum(speed - lost, 0.0) / jnp.maximum(speed, 1e-9)
    kept = jnp.where(body.grounded, kept, 1.0)
    return jnp.stack([x * kept, y * kept, jnp.where(body.grounded, jnp.maximum(z, 0.0), z)])


def turn(rotation: jax.Array, angle: jax.Array) -> jax.Array:
    """[3, 3, N] rotations turned by ``angle`` [3, N], a vector in their own frame (Rodrigues), of up to about 1 rad."""
    square = dot(angle, angle)
    sine, cosine = _series(square, 1), _series(square, 2)  # sin(a) / a and (1 - cos(a)) / a²
    x, y, z = to_world(rotation, angle)

    def crossed(columns: jax.Array) -> jax.Array:
        a, b, c = columns
        return jnp.stack([y * c - z * b, z * a - x * c, x * b - y * a])

    once = crossed(rotation)
    return rotation + sine * once + cosine * crossed(once)


def _series(square: jax.Array, first: int) -> jax.Array:
    """1/n! - a²/(n + 2)! + … with n = ``first``, given a²: no root, sine or quotient, and within 1e-7 up to 1 rad."""
    total = jnp.zeros_like(square)
    for order in reversed(range(5)):
        total = total * square + (-1) ** order / math.factorial(first + 2 * order)
    return total


def orthogonal(rotation: jax.Array) -> jax.Array:
    """[3, 3, N] the nearest rotation, nearly: Gram and Schmidt, from the axis of thrust on."""
    up = unit(rotation[:, 2])
    front = rotation[:, 0]
    front = unit(front - dot(front, up) * up)
    return jnp.stack([front, cross(up, front), up], axis=1)


# Sums over components are written out: XLA's reductions over an outer axis are several times slower on a CPU.


def to_world(rotation: jax.Array, vector: jax.Array) -> jax.Array:
    """[3, …] vectors of the drones' frames [3, …], by their rotations [3, 3, …]."""
    return rotation[:, 0] * vector[0] + rotation[:, 1] * vector[1] + rotation[:, 2] * vector[2]


def to_drone(rotation: jax.Array, vector: jax.Array) -> jax.Array:
    """[3, …] vectors of the world [3, …] in the drones' frames, by their rotations [3, 3, …]."""
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
