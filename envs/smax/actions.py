"""From actions to orders in ``smax``: discrete and continuous actions, of either team.

Axis letters: M units of one team, N of both; trailing axes are free. A team counts its opponents in its own order: allies
from the first enemy on, enemies from the last ally on.
"""

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.smax.battle import UNROLL, Order, Stats, Units, aim

UP, RIGHT, DOWN, LEFT, STOP = range(5)
FIRST_ATTACK = 5  # action 5 + k shoots at opponent k
CONTINUOUS_SIZE = 4  # new target, move, distance, angle

Part = tuple[jax.Array, jax.Array, jax.Array]  # of one team: movement in x and y, attack action (0 for none), [M, …] each


def discrete(action: jax.Array) -> Part:
    """Orders of one team from actions [M, …] int32."""
    x = (action == RIGHT).astype(float) - (action == LEFT)
    y = (action == UP).astype(float) - (action == DOWN)
    return x, y, jnp.where(action >= FIRST_ATTACK, action, 0)


def continuous(action: jax.Array, draws: jax.Array, own: Units, opponents: Units) -> Part:
    """Orders of one team from actions in [-1, 1].

    Args:
        action: [M, 4, …]; each number is mapped to [0, 1]. The first is the probability of choosing a new target, the second of
            moving instead of shooting; the others are polar coordinates, a length in map units and an angle in turns: the
            movement, or the place next to which the new target stands.
        draws: [2, M, …] uniform in [0, 1).
        own: [M, …] units of the team.
        opponents: in the order in which the team counts them.
    """
    renews, moves, length, turns = jnp.moveaxis(jnp.clip((action + 1) / 2, 0.0, 1.0), 1, 0)
    x, y = length * jnp.cos(2 * jnp.pi * turns), length * jnp.sin(2 * jnp.pi * turns)
    moves = draws[0] < moves

    def look(number: int, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        shot, nearest = best
        distance = (opponents.x[number] - own.x - x) ** 2 + (opponents.y[number] - own.y - y) ** 2
        return jnp.where(distance < nearest, FIRST_ATTACK + number, shot), jnp.minimum(distance, nearest)

    shape = jnp.broadcast_shapes(x.shape, own.x.shape)
    start = jnp.zeros(shape, jnp.int32), jnp.full(shape, jnp.inf, x.dtype)
    shot, _ = jax.lax.fori_loop(0, opponents.x.shape[0], look, start, unroll=UNROLL)
    shot = jnp.where(draws[1] < renews, shot, own.shot)
    return jnp.where(moves, x, 0.0), jnp.where(moves, y, 0.0), jnp.where(moves, 0, shot)


def mirrored(action: jax.Array, num_opponents: int) -> jax.Array:
    """Discrete actions [M] int32 chosen on the mirrored board, where the opponents are counted the other way; its own inverse."""
    moves = jnp.where(action == LEFT, RIGHT, jnp.where(action == RIGHT, LEFT, action))
    return jnp.where(action >= FIRST_ATTACK, 2 * FIRST_ATTACK + num_opponents - 1 - action, moves)


def mirrored_continuous(action: jax.Array) -> jax.Array:
    """Continuous actions [M, 4] chosen on the mirrored board: the angle is reflected; its own inverse."""
    turns = (jnp.clip(action[:, 3:], -1.0, 1.0) + 1) / 2
    return jnp.concatenate([action[:, :3], 2 * ((0.5 - turns) % 1.0) - 1], axis=1)


def combine(units: Units, allies: Part, enemies: Part) -> Order:
    """The orders of all units; the dead get none."""
    num_allies = allies[0].shape[0]
    none = -jnp.ones_like(allies[2]), -jnp.ones_like(enemies[2])
    targets = (
        jnp.where(allies[2] > 0, allies[2] - FIRST_ATTACK, none[0]),
        jnp.where(enemies[2] > 0, num_allies - 1 - (enemies[2] - FIRST_ATTACK), none[1]),
    )
    move_x, move_y, shot = (_join(*both) for both in zip(allies, enemies, strict=True))
    alive = units.alive
    return Order(
        move_x=jnp.where(alive, move_x, 0.0),
        move_y=jnp.where(alive, move_y, 0.0),
        target=jnp.where(alive, _join(*targets), -1),
        shot=jnp.where(alive, shot, 0),
    )


def _join(allies: jax.Array, enemies: jax.Array) -> jax.Array:
    """[N, …]: both teams; a trailing axis may have size 1 in one of them, where only the other was mapped."""
    trailing = jnp.broadcast_shapes(allies.shape[1:], enemies.shape[1:])
    return jnp.concatenate([jnp.broadcast_to(team, (team.shape[0], *trailing)) for team in (allies, enemies)])


def available_only(order: Order, units: Units, stats: Stats, num_allies: int, free: np.ndarray) -> Order:
    """The orders without shots at opponents that are out of range now, but those of units that are ``free`` to, [N, …] bool."""
    legal = free | (aim(units, order.target, num_allies) < stats.range**2)
    return order._replace(target=jnp.where(legal, order.target, -1), shot=jnp.where(legal, order.shot, 0))
