"""Discrete and continuous actions of ``smax``, and the orders to units that follow from them.

Axis letters: M units of one team, K opponents, N units of both teams; trailing axes are free. Allies number their opponents from
the first enemy up, enemies from the last ally down.
"""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.smax.battle import UNROLL, Order, Stats, Units, aim
from marljax.utils.batching import loop

UP, RIGHT, DOWN, LEFT, STOP = range(5)
NAMES = ("up", "right", "down", "left", "stop")
FIRST_ATTACK = 5  # action 5 + k shoots at opponent k
CONTINUOUS_SIZE = 4  # new target, move, distance, angle

TeamOrder = tuple[jax.Array, jax.Array, jax.Array]  # movement in x and y, attack action (0 for none), [M, …] each


def discrete(action: jax.Array) -> TeamOrder:
    """Orders of one team from actions [M, …] int32."""
    x = (action == RIGHT).astype(float) - (action == LEFT)
    y = (action == UP).astype(float) - (action == DOWN)
    return x, y, jnp.where(action >= FIRST_ATTACK, action, 0)


def continuous(action: jax.Array, draws: jax.Array, own: Units, opponents: Units) -> TeamOrder:
    """Orders of one team from actions in [-1, 1].

    Args:
        action: [M, 4, …], mapped to [0, 1]: the probability of choosing a new target; the probability of moving instead of
            shooting; a distance in map units and an angle in turns, which are the movement, or point at the new target.
        draws: [2, M, …] uniform in [0, 1).
        own: [M, …] units of the team.
        opponents: [K, …] in the order in which the team numbers them.
    """
    retarget, move, length, turns = jnp.moveaxis(jnp.clip((action + 1) / 2, 0.0, 1.0), 1, 0)
    x, y = length * jnp.cos(2 * jnp.pi * turns), length * jnp.sin(2 * jnp.pi * turns)
    move = draws[0] < move

    def closer(number: int, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        shot, nearest = best
        distance = (opponents.x[number] - own.x - x) ** 2 + (opponents.y[number] - own.y - y) ** 2
        return jnp.where(distance < nearest, FIRST_ATTACK + number, shot), jnp.minimum(distance, nearest)

    shape = jnp.broadcast_shapes(x.shape, own.x.shape)
    start = jnp.zeros(shape, jnp.int32), jnp.full(shape, jnp.inf, x.dtype)
    shot, _ = loop(opponents.x.shape[0], closer, start, UNROLL)
    shot = jnp.where(draws[1] < retarget, shot, own.shot)
    return jnp.where(move, x, 0.0), jnp.where(move, y, 0.0), jnp.where(move, 0, shot)


def mirrored(action: jax.Array, num_opponents: int) -> jax.Array:
    """Actions [M] or [M, 4] chosen on the mirrored board, where opponents are numbered in reverse; its own inverse."""
    if jnp.issubdtype(action.dtype, jnp.integer):
        moves = jnp.where(action == LEFT, RIGHT, jnp.where(action == RIGHT, LEFT, action))
        return jnp.where(action >= FIRST_ATTACK, 2 * FIRST_ATTACK + num_opponents - 1 - action, moves)
    turns = (jnp.clip(action[:, 3:], -1.0, 1.0) + 1) / 2
    return jnp.concatenate([action[:, :3], 2 * ((0.5 - turns) % 1.0) - 1], axis=1)


def combine(units: Units, allies: TeamOrder, enemies: TeamOrder) -> Order:
    """The orders [N, …] of all units; none for the dead."""

    def join(*teams: jax.Array) -> jax.Array:
        # a trailing axis may have size 1 in one team where only the other was mapped
        trailing = jnp.broadcast_shapes(*(team.shape[1:] for team in teams))
        return jnp.concatenate([jnp.broadcast_to(team, (team.shape[0], *trailing)) for team in teams])

    num_allies, alive = allies[0].shape[0], units.alive
    move_x, move_y, shot = map(join, allies, enemies)
    target = join(
        jnp.where(allies[2] > 0, allies[2] - FIRST_ATTACK, -1),
        jnp.where(enemies[2] > 0, num_allies - 1 - (enemies[2] - FIRST_ATTACK), -1),
    )
    return Order(
        move_x=jnp.where(alive, move_x, 0.0),
        move_y=jnp.where(alive, move_y, 0.0),
        target=jnp.where(alive, target, -1),
        shot=jnp.where(alive, shot, 0),
    )


def available_only(order: Order, units: Units, stats: Stats, num_allies: int, exempt: np.ndarray) -> Order:
    """The orders without shots at opponents out of range, except those of ``exempt`` units ([N, …] bool)."""
    legal = exempt | (aim(units, order.target, num_allies) < stats.range**2)
    return order._replace(target=jnp.where(legal, order.target, -1), shot=jnp.where(legal, order.shot, 0))
