"""What a learned policy for ``swarm`` must beat, and the tables that say whether it does.

    python baselines/swarm.py                  # all of baselines/results/swarm.md
    python baselines/swarm.py scripted         # one part: scripted or learned

Every cell of a table is kept in ``baselines/results/swarm/`` and every training in ``runs/tables/``: a command that was stopped
goes on where it was, and a finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.tree_util import Partial

from marljax.baselines import tables
from marljax.baselines.tables import Cells, mean_interval
from marljax.environment import EnvParams, TimeStep
from marljax.envs.swarm import Swarm, SwarmState
from marljax.envs.swarm_body import MOTOR_X, MOTOR_Y, YAW, Body, cross, dot, norm, to_drone, unit
from marljax.evaluate import RandomPolicy, Rival

RUNS = Path(__file__).parents[1] / "runs" / "tables"
RESULTS = Path(__file__).parent / "results"
EPISODES = 256
AT_ONCE = 256  # episodes in one program
SEEDS = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "same goal": {"preset": "static_same"},
    "own goals": {"preset": "static_different"},
    "swap": {"preset": "swap"},
    "the nine without obstacles": {"preset": "open"},
    "obstacles, own goals": {"preset": "obstacles_random"},
    "obstacles, same goal": {"preset": "obstacles_same"},
    "coverage": {"preset": "coverage"},
    "coverage in three dimensions": {"preset": "coverage", "dynamics": "point3d"},
}
LEARNED = {"same goal": (), "coverage": ("tuned=coverage", "env.limit=truncate")}  # and more words of the command line
ALGORITHM = "ippo"


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


def rivals(env: Swarm, env_params: EnvParams) -> dict[str, Rival]:
    """By name: random actions, a cascaded PD controller that flies to the goal, and one that keeps its distance as well.

    With the task ``landmarks``: each drone to the landmark nearest to it, and the same while keeping its distance.
    """
    name = "nearest landmark" if env.task == "landmarks" else "PD"
    alone = Gains(drone_push=0.0, obstacle_push=0.0)
    return {
        "random": Rival(env, env_params, RandomPolicy(env)),
        name: Rival(env, env_params, Partial(Pilot(env), env_params, alone)),
        f"{name}, with repulsion": Rival(env, env_params, Partial(Pilot(env), env_params, Gains())),
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


# --- tables -----------------------------------------------------------------------------------------------------------


def scripted_table(cells: Cells) -> str:
    """Every scripted policy in every setting."""
    rows = []
    for setting, options in SETTINGS.items():
        env = Swarm(**options)
        for name, rival in rivals(env, env.default_params).items():
            title = f"scripted {setting} {name}"
            cell = tables.scripted_cell(cells, title, {"policy": name}, rival, EPISODES, AT_ONCE)
            rows.append((f"{setting}: {name}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


def learned_table(cells: Cells) -> str:
    """Five seeds of IPPO."""
    rows = []
    for setting, more in LEARNED.items():
        options = (f"env.{name}={value}" for name, value in SETTINGS[setting].items())
        words = ["env=swarm", *options, *more]
        cell = tables.learned_apart(cells, f"{ALGORITHM} {setting}", ALGORITHM, words, RUNS, EPISODES, AT_ONCE, SEEDS)
        rows.append((f"{setting}: {ALGORITHM}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


COLUMNS = ("return", "success, %", "m to the goal", "collided, %", "crashed, %", "deadlock, %")


def columns(figures: Mapping[str, Any]) -> list[str]:
    """One policy's cells under ``COLUMNS``."""
    shares = [mean_interval(figures[name], scale=100) if name in figures else "–" for name in ("collision", "crash", "deadlock")]
    return [
        mean_interval(figures["return"], places=2),
        mean_interval(figures["success"], scale=100),
        mean_interval(figures["distance"], places=2),
        *shares,
    ]


PARTS = {"scripted": scripted_table, "learned": learned_table}

PAGE_TEXT = """# `swarm`: results

Made by `python baselines/swarm.py`; {versions}.

Eight quadrotors (coverage: five point masses), 15 s (coverage: 5 s). Means over drones, ± a 95 % t interval (over episodes for
scripted policies, over seeds for learned ones). *Success*: reached the goal (mean distance over some five steps below 0.5 m, or
1 m where it is the goal of all) and met no drone and no obstacle after the first 1.5 s; coverage: landmarks with a
drone within 0.5 m at the end. *m to the goal*: mean over the last second; coverage: from each landmark to the nearest drone.
*Deadlock*: met nothing and did not arrive.

## Scripted policies

{episodes} episodes. *PD* flies straight to the goal by the true state: place to acceleration, acceleration to thrust axis, axis
to body rates, rates to motors. *With repulsion* it is pushed away from drones and obstacles within 0.5 m, too. *Nearest landmark*
does the same with a force, each drone towards the landmark nearest to it.

{scripted}

## Learned policies

{seeds} seeds each (0–{last_seed}) of `python algos/{algorithm}.py env=swarm env.preset=…` with its tuned values
(`configs/tuned/{algorithm}_swarm.yaml`, coverage: `tuned=coverage env.limit=truncate`), greedy policies of the best evaluation,
on the same scenarios.

{learned}

Published for these quadrotors among obstacles (Huang et al. 2023; 8 drones, a fifth of the cells with an obstacle, 10⁹ agent
steps, K = 2): success 95 %, without collision replay 88 %, without attention as well 79 %.
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/swarm.md``."""
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        episodes=EPISODES,
        algorithm=ALGORITHM,
        seeds=SEEDS,
        last_seed=SEEDS - 1,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "swarm", PARTS, page)
