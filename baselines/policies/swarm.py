"""Scripted policies for ``swarm``."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.tree_util import Partial

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.swarm import Swarm, SwarmState
from marljax.envs.swarm.quadrotor import MOTOR_X, MOTOR_Y, YAW, Body, cross, dot, norm, to_body, unit
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy


class Gains(struct.PyTreeNode):
    """Of the cascaded controller and of the repulsion between drones."""

    stiffness: Any = 3.5  # 1/s², position error to acceleration
    damping: Any = 3.2  # 1/s, velocity to acceleration
    farthest: Any = 1.2  # m, bound of the position error and so of the speed
    lean: Any = 0.7  # of gravity, bound of the horizontal acceleration
    climb: Any = 0.6  # of gravity, bound of the vertical acceleration
    attitude: Any = 9.0  # 1/s, thrust axis to body rates
    rate: Any = 22.0  # 1/s, body rates to their derivatives
    drone_push: Any = 7.0  # m/s², from another drone at distance 0
    obstacle_push: Any = 9.0
    reach: Any = 0.5  # m, range of the repulsion
    aside: Any = 0.5  # share of a push that goes to the right, so that drones that meet head on do not stall


def scripted_policies(env: Swarm, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: random actions, a cascaded PD controller that flies to the goal, and the same with repulsion.

    With the task ``landmarks`` each drone flies to the landmark nearest to it.
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
    """Flies by the true state: position to acceleration, acceleration to thrust axis, axis to body rates, rates to motors."""

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
        target = gains.stiffness * error - gains.damping * body.velocity + repulsion(state, gains)
        if isinstance(body, Body):
            return motors(body, target, env_params.drone, gains).T, carry
        return jnp.clip(target[: self.env.dimensions] / env_params.drone.push, -1.0, 1.0).T, carry


def repulsion(state: SwarmState, gains: Gains) -> jax.Array:
    """[3, N] m/s² away from nearby drones and obstacles, and to the right of them."""

    def push(direction: jax.Array, strength: jax.Array) -> jax.Array:
        right = jnp.stack([-direction[1], direction[0], *(jnp.zeros_like(part) for part in direction[2:])])
        return jnp.sum(strength * (direction + gains.aside * right), axis=2)

    position, obstacles = state.body.position, state.obstacles
    offset = position[:, :, None] - position[:, None]
    total = push(unit(offset), gains.drone_push * jnp.maximum(1.0 - norm(offset) / gains.reach, 0.0) ** 2)
    if obstacles is None:
        return total
    offset = jnp.stack([position[0][:, None] - obstacles.x, position[1][:, None] - obstacles.y])
    gap = norm(offset) - obstacles.radius
    x, y = push(unit(offset), gains.obstacle_push * jnp.maximum(1.0 - gap / gains.reach, 0.0) ** 2 * (obstacles.radius > 0))
    return total + jnp.stack([x, y, jnp.zeros_like(x)])


def motors(body: Body, target: jax.Array, drone: Any, gains: Gains) -> jax.Array:
    """[4, N] actions that steer drones towards an acceleration [3, N] m/s²."""
    horizontal = target[:2] * jnp.minimum(1.0, gains.lean * drone.gravity / jnp.maximum(norm(target[:2]), 1e-6))
    climb = jnp.clip(target[2], -gains.climb * drone.gravity, gains.climb * drone.gravity) + drone.gravity
    thrust = jnp.stack([*horizontal, climb])
    up, axis = body.rotation[:, 2], unit(thrust)
    turn = to_body(body.rotation, cross(up, axis))
    turn = jnp.where(dot(up, axis) < 0, unit(turn), turn)  # upside down: as fast as from the side
    rates = gains.attitude * turn.at[2].set(0.0)
    inertia = jnp.stack([drone.inertia_x, drone.inertia_y, drone.inertia_z])[:, None]
    torque = inertia * gains.rate * (rates - body.spin) + cross(body.spin, inertia * body.spin)
    return motor_commands(drone.mass * jnp.maximum(dot(thrust, up), 0.0), torque, drone)


def motor_commands(force: jax.Array, torque: jax.Array, drone: Any) -> jax.Array:
    """[4, N] actions for a force [N] in N and torques [3, N] in N m: the inverse of the motors' effect; yaw is clipped first."""
    x, y, yaw = (sign[:, None] for sign in (MOTOR_X, MOTOR_Y, YAW))
    thrust = 0.25 * (force + y * torque[0] / drone.offset - x * torque[1] / drone.offset)
    thrust += yaw * jnp.clip(0.25 * torque[2] / drone.torque_to_thrust, -0.15 * drone.thrust, 0.15 * drone.thrust)
    return 2.0 * jnp.clip(thrust / drone.thrust, 0.0, 1.0) - 1.0
