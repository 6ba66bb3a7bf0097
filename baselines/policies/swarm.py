"""Scripted policies for ``swarm``."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.tree_util import Partial

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.swarm import Swarm, SwarmState
from marljax.envs.swarm.quadrotor import MOTOR_X, MOTOR_Y, YAW, Body, cross, dot, norm, to_drone, unit
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy


class Gains(struct.PyTreeNode):
    """Of the cascaded controller and of what pushes drones apart."""

    stiffness: Any = 3.5  # 1/s², place to acceleration
    damping: Any = 3.2  # 1/s, velocity to acceleration
    farthest: Any = 1.2  # m: a larger error counts as this much, which bounds the speed
    lean: Any = 0.7  # of gravity, the most that a drone accelerates sideways
    climb: Any = 0.6  # of gravity, the most that it accelerates up or down
    attitude: Any = 9.0  # 1/s, thrust axis to body rates
    rate: Any = 22.0  # 1/s, body rates to their derivatives
    drone_push: Any = 7.0  # m/s², of another drone at no distance
    obstacle_push: Any = 9.0
    reach: Any = 0.5  # m, from which on they push
    aside: Any = 0.5  # of a push that goes to the right, so that two that meet head on do not stay


def scripted_policies(env: Swarm, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: random actions, a cascaded PD controller that flies to the goal, and one that keeps its distance as well.

    With the task ``landmarks``: each drone to the landmark nearest to it, and the same while keeping its distance.
    """
    name = "nearest landmark" if env.task == "landmarks" else "PD"
    alone = Gains(drone_push=0.0, obstacle_push=0.0)
    return {
        "random": ScriptedPolicy(env, env_params, RandomPolicy(env)),
        name: ScriptedPolicy(env, env_params, Partial(Pilot(env), env_params, alone)),
        f"{name}, with repulsion": ScriptedPolicy(env, env_params, Partial(Pilot(env), env_params, Gains())),
    }


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Flies by the true state: place to acceleration, acceleration to thrust axis, axis to body rates, rates to motors."""

    env: Swarm

    def __call__(
        self, env_params: EnvParams, gains: Gains, key: jax.Array, state: SwarmState, timestep: TimeStep, carry: Any
    ) -> tuple[jax.Array, Any]:
        del key, timestep
        body, goal = state.body, state.goal
        if self.env.task == "landmarks":
            goal = goal[:, jnp.argmin(norm(body.position[:, :, None] - goal[:, None]), axis=1)]
        error = goal - body.position
        error = error * jnp.minimum(1.0, gains.farthest / jnp.maximum(norm(error), 1e-6))
        wanted = gains.stiffness * error - gains.damping * body.velocity + repulsion(state, gains)
        if isinstance(body, Body):
            return motors(body, wanted, env_params.drone, gains).T, carry
        return jnp.clip(wanted[: self.env.dimensions] / env_params.drone.push, -1.0, 1.0).T, carry


def repulsion(state: SwarmState, gains: Gains) -> jax.Array:
    """[3, N] m/s² away from drones and obstacles that are near, and a little to the right of them."""
    place, obstacles = state.body.position, state.obstacles
    apart = place[:, :, None] - place[:, None]
    way = unit(apart)
    strength = gains.drone_push * jnp.maximum(1.0 - norm(apart) / gains.reach, 0.0) ** 2
    push = jnp.sum(strength * (way + gains.aside * _right(way)), axis=2)
    if obstacles is None:
        return push
    apart = jnp.stack([place[0][:, None] - obstacles.x, place[1][:, None] - obstacles.y])
    way, gap = unit(apart), norm(apart) - obstacles.radius
    strength = gains.obstacle_push * jnp.maximum(1.0 - gap / gains.reach, 0.0) ** 2 * (obstacles.radius > 0)
    along, across = jnp.sum(strength * (way + gains.aside * _right(way)), axis=2)
    return push + jnp.stack([along, across, jnp.zeros_like(along)])


def _right(way: jax.Array) -> jax.Array:
    """[D, …] horizontal vectors at right angles to ``way``."""
    return jnp.stack([-way[1], way[0], *(jnp.zeros_like(part) for part in way[2:])])


def motors(body: Body, wanted: jax.Array, drone: Any, gains: Gains) -> jax.Array:
    """[4, N] actions that bring drones to an acceleration [3, N] m/s²."""
    flat = wanted[:2] * jnp.minimum(1.0, gains.lean * drone.gravity / jnp.maximum(norm(wanted[:2]), 1e-6))
    climb = jnp.clip(wanted[2], -gains.climb * drone.gravity, gains.climb * drone.gravity) + drone.gravity
    thrust = jnp.stack([*flat, climb])
    up, axis = body.rotation[:, 2], unit(thrust)
    turn = to_drone(body.rotation, cross(up, axis))
    turn = jnp.where(dot(up, axis) < 0, unit(turn), turn)  # on its back: as fast as from the side
    rates = gains.attitude * turn.at[2].set(0.0)
    inertia = jnp.stack([drone.inertia_x, drone.inertia_y, drone.inertia_z])[:, None]
    torque = inertia * gains.rate * (rates - body.spin) + cross(body.spin, inertia * body.spin)
    return mixed(drone.mass * jnp.maximum(dot(thrust, up), 0.0), torque, drone)


def mixed(force: jax.Array, torque: jax.Array, drone: Any) -> jax.Array:
    """[4, N] actions for a force [N] in N and torques [3, N] in N m: the inverse of what motors do; yaw gives way first."""
    along, aside, yaw = (sign[:, None] for sign in (MOTOR_X, MOTOR_Y, YAW))
    thrust = 0.25 * (force + aside * torque[0] / drone.offset - along * torque[1] / drone.offset)
    thrust += yaw * jnp.clip(0.25 * torque[2] / drone.torque_to_thrust, -0.15 * drone.thrust, 0.15 * drone.thrust)
    return 2.0 * jnp.clip(thrust / drone.thrust, 0.0, 1.0) - 1.0
