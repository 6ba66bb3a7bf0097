"""What is remembered of an episode of ``swarm``, and what is reported of it."""

import jax
import jax.numpy as jnp
from flax import struct

from marljax.envs.swarm.params import WINDOW, SwarmParams
from marljax.envs.swarm.scenarios import TOGETHER, is_any

LAST = 1.0  # s at the end, of which the distance to the goal is reported
FAR = 1e3  # m, before anything has been measured


class Fresh(struct.PyTreeNode):
    """What has begun in a step, [N] each."""

    collisions: jax.Array  # with how many drones
    crashed: jax.Array  # bool: into an obstacle
    close: jax.Array  # sum over other drones of how far they are inside of two diameters, as a share
    grounded: jax.Array  # bool: lies on the floor


class Timing(struct.PyTreeNode):
    """What a step counts for."""

    counts: jax.Array  # bool: contacts make an episode fail
    late: jax.Array  # bool: the distance is reported
    near: jax.Array  # m that count as arrived


class Tally(struct.PyTreeNode):
    """What an episode's metrics are made of."""

    recent: jax.Array  # [WINDOW, N] m to the goal in the last steps; with ``landmarks`` from a landmark to the nearest drone
    arrived: jax.Array  # [N] bool: the mean of those has been small
    collided: jax.Array  # [N] bool: with a drone, after the first 1.5 s
    crashed: jax.Array  # [N] bool: into an obstacle, likewise
    late: jax.Array  # [N] m to the goal, summed over the last second
    floor: jax.Array  # [N] steps on the floor


def nothing(drones: int) -> Tally:
    """Before an episode."""
    no, zero = jnp.zeros(drones, bool), jnp.zeros(drones)
    return Tally(zero + jnp.full((WINDOW, 1), FAR), no, no, no, zero, zero)


def timing(step: jax.Array, kind: jax.Array, env_params: SwarmParams) -> Timing:
    """Of the transition from ``step`` to the next in a scenario."""
    counts, late = step * env_params.period >= env_params.grace, step >= env_params.duration - _last(env_params)
    return Timing(counts, late, jnp.where(is_any(kind, *TOGETHER), env_params.arrived_together, env_params.arrived))


def _last(env_params: SwarmParams) -> jax.Array:
    """Control steps whose distance is reported."""
    return jnp.minimum(jnp.round(LAST / env_params.period), env_params.duration)


def count(tally: Tally, away: jax.Array, fresh: Fresh, timing: Timing) -> Tally:
    """The tally after a step that ended ``away`` [N] m from the goals."""
    recent = jnp.concatenate([tally.recent[1:], away[None]])
    return Tally(
        recent=recent,
        arrived=tally.arrived | (jnp.mean(recent, axis=0) < timing.near),
        collided=tally.collided | (timing.counts & (fresh.collisions > 0)),
        crashed=tally.crashed | (timing.counts & fresh.crashed),
        late=tally.late + jnp.where(timing.late, away, 0.0),
        floor=tally.floor + fresh.grounded,
    )


def metrics(tally: Tally, task: str, flies: bool, env_params: SwarmParams) -> dict[str, jax.Array]:
    """Shares of drones, m and s.

    ``success``: reached the goal, and met nothing after the first 1.5 s. ``deadlock``: met nothing, and did not reach it.
    ``collision``: met a drone; ``crash``: met an obstacle. ``distance``: mean over the last second. ``floor``: s on the floor,
    of quadrotors; below 2 it opens the published gate of a failure replay (``gate="floor"``). With the task ``landmarks``
    ``success`` is the share of landmarks that a drone is near at the end, whatever it met on the way, and there is no
    ``deadlock``.
    """
    clean = ~(tally.collided | tally.crashed)
    shares = {"success": clean & tally.arrived, "deadlock": clean & ~tally.arrived}
    if task == "landmarks":
        shares = {"success": jnp.mean(tally.recent, axis=0) < env_params.arrived}
    shares |= {"collision": tally.collided, "crash": tally.crashed}
    means = {name: jnp.mean(part, dtype=tally.late.dtype) for name, part in shares.items()}
    means |= {"distance": jnp.mean(tally.late) / _last(env_params)}
    return means | {"floor": jnp.mean(tally.floor) * env_params.period} if flies else means
