"""Episode statistics of ``swarm`` and the metrics computed from them."""

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.swarm.params import WINDOW, SwarmParams
from marljax.envs.swarm.scenarios import ONE_GOAL, is_any

LAST = 1.0  # s at the end of an episode over which the distance to the goal is averaged
FAR = 1e3  # m, before anything has been measured


class StepEvents(struct.PyTreeNode):
    """Events of a step, [N] each."""

    collisions: jax.Array  # number of new contacts with drones
    crashed: jax.Array  # bool: new contact with an obstacle
    close: jax.Array  # sum over other drones of 1 - distance / (two diameters) where that is positive
    grounded: jax.Array  # bool: is on the floor


class Timing(struct.PyTreeNode):
    """What a step contributes to."""

    counts: jax.Array  # bool: contacts make the episode fail
    late: jax.Array  # bool: the distance is averaged
    near: jax.Array  # m within which a drone has arrived


class EpisodeStats(struct.PyTreeNode):
    """Sums and flags of the episode so far."""

    recent: jax.Array  # [WINDOW, N] m to the goal in the last steps; task ``landmarks``: from landmarks to the nearest drone
    arrived: jax.Array  # [N] bool: their mean has been small
    collided: jax.Array  # [N] bool: with a drone, after the grace period
    crashed: jax.Array  # [N] bool: into an obstacle, likewise
    late: jax.Array  # [N] m to the goal, summed over the last second
    floor: jax.Array  # [N] steps on the floor


def initial_stats(drones: int) -> EpisodeStats:
    """The statistics at the start of an episode."""
    no, zero = jnp.zeros(drones, bool), jnp.zeros(drones)
    return EpisodeStats(zero + jnp.full((WINDOW, 1), FAR), no, no, no, zero, zero)


def timing(step: jax.Array, kind: jax.Array, env_params: SwarmParams) -> Timing:
    """Of the transition that follows ``step`` in a scenario."""
    counts, late = step * env_params.period >= env_params.grace, step >= env_params.duration - _last_steps(env_params)
    return Timing(counts, late, jnp.where(is_any(kind, *ONE_GOAL), env_params.arrived_together, env_params.arrived))


def _last_steps(env_params: SwarmParams) -> jax.Array:
    return jnp.minimum(jnp.round(LAST / env_params.period), env_params.duration)


def update(stats: EpisodeStats, distance: jax.Array, events: StepEvents, timing: Timing) -> EpisodeStats:
    """The statistics after a step that ended at ``distance`` [N] m from the goals."""
    recent = jnp.concatenate([stats.recent[1:], distance[None]])
    return EpisodeStats(
        recent=recent,
        arrived=stats.arrived | (jnp.mean(recent, axis=0) < timing.near),
        collided=stats.collided | (timing.counts & (events.collisions > 0)),
        crashed=stats.crashed | (timing.counts & events.crashed),
        late=stats.late + jnp.where(timing.late, distance, 0.0),
        floor=stats.floor + events.grounded,
    )


def meanings(task: str) -> dict[str, str]:
    """What each metric measures."""
    found = {
        "collision": "drones that hit another after the first 1.5 s",
        "crash": "drones that hit an obstacle after the first 1.5 s",
    }
    if task == "landmarks":
        success = {"success": "landmarks with a drone nearby at the end, whatever it hit"}
        return success | {"distance": "from each landmark to the nearest drone, over the last second"} | found
    return found | {
        "success": "drones that reached their goal and hit nothing",
        "distance": "to the goal, over the last second",
        "deadlock": "drones that hit nothing and did not reach their goal",
        "floor": "time on the floor",
    }


def metrics(stats: EpisodeStats, task: str, flies: bool, env_params: SwarmParams) -> dict[str, jax.Array]:
    """Scalars of the episode so far: see ``meanings``. Less than 2 s on the floor opens a failure replay's published gate."""
    clean = ~(stats.collided | stats.crashed)
    shares = {"success": clean & stats.arrived, "deadlock": clean & ~stats.arrived}
    if task == "landmarks":
        shares = {"success": jnp.mean(stats.recent, axis=0) < env_params.arrived}
    shares |= {"collision": stats.collided, "crash": stats.crashed}
    means = {name: jnp.mean(part, dtype=stats.late.dtype) for name, part in shares.items()}
    means |= {"distance": jnp.mean(stats.late) / _last_steps(env_params)}
    return means | {"floor": jnp.mean(stats.floor) * env_params.period} if flies else means
