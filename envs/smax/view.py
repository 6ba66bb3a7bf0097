"""What can be seen in ``smax``: observations, action masks and the global state.

Axis letters: N units of both teams, M units of the team that looks, K its opponents, F features of a unit, n actions; trailing
axes are free. A board lists all units in the order in which a team counts them: its own first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.smax.actions import FIRST_ATTACK
from marljax.envs.smax.battle import UNROLL, Kinds, Stats, Units
from marljax.envs.smax.units import NUM_KINDS, SmaxParams
from marljax.utils.batching import expand_trailing_dims

OTHER_FEATURES = 7 + NUM_KINDS
OWN_FEATURES = 4 + NUM_KINDS
SECTIONS, SLOTS = 32, 2  # of the conic view: directions, and units seen in each


class Board(NamedTuple):
    """All units as one team may see them, [N, …] each."""

    x: jax.Array
    y: jax.Array
    alive: jax.Array
    range: jax.Array
    sight: jax.Array
    health: jax.Array  # fraction
    move_x: jax.Array
    move_y: jax.Array
    shot: jax.Array  # last attack action over the largest action
    cooldown: jax.Array  # fraction, in [0, 1]
    kind: jax.Array  # int32


def board(units: Units, stats: Stats, kind: Kinds, num_allies: int) -> Board:
    """Everything about all units, allies first."""
    size = units.x.shape[0]
    is_ally = np.arange(size) < num_allies
    largest = FIRST_ATTACK - 1.0 + np.where(is_ally, size - num_allies, num_allies)
    return Board(
        x=units.x,
        y=units.y,
        alive=units.alive,
        range=stats.range,
        sight=stats.sight,
        health=units.health / stats.health,
        move_x=units.move_x,
        move_y=units.move_y,
        shot=units.shot / expand_trailing_dims(largest.astype(np.float32), units.x),
        cooldown=jnp.clip(units.cooldown / stats.cooldown, 0.0, 1.0),
        kind=jnp.asarray(kind),
    )


def reverse(seen: Board) -> Board:
    """The board in the order in which the enemies count: from the last enemy to the first ally."""
    return Board(*(part[::-1] for part in seen))


def hide_actions(seen: Board, own: np.ndarray, env_params: SmaxParams) -> Board:
    """The board without the opponents' last actions, unless those may be seen; ``own`` is static [N] bool."""
    shown = env_params.see_opponents_actions | expand_trailing_dims(own, seen.x)
    hidden = {name: jnp.where(shown, getattr(seen, name), 0.0) for name in ("move_x", "move_y", "shot")}
    return seen._replace(**hidden)


def others(part: jax.Array, num_observers: int) -> jax.Array:
    """[M, N - 1, …]: for each of the first M units the row of all units but itself."""
    number = np.arange(part.shape[0] - 1)
    before = number < np.arange(num_observers)[:, None]
    return jnp.where(expand_trailing_dims(before, part), part[:-1], part[1:])


def type_bits(kind: Kinds) -> list[jax.Array]:
    return [jnp.asarray(kind == number, jnp.float32) for number in range(NUM_KINDS)]


def shown_where(shown: jax.Array, groups: Sequence[Sequence[jax.Array]], axis: int) -> jax.Array:
    """All features of all groups along a new axis, 0 where they are not shown.

    XLA makes one loop of a stack of at most eight arrays, and one for each array of a larger stack: eight a group at most.
    """
    shape = shown.shape
    stacks = [jnp.stack([jnp.broadcast_to(feature, shape) for feature in group], axis) for group in groups]
    return jnp.concatenate([jnp.where(jnp.expand_dims(shown, axis), stack, 0.0) for stack in stacks], axis)


def _features(seen: Board, dx: jax.Array, dy: jax.Array, spread: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """13 features of other units, at ``dx`` and ``dy`` over the own sight; ``spread`` gives columns of the board their shape."""
    shown = (seen.health, seen.move_x, seen.move_y, seen.shot, seen.cooldown, *type_bits(seen.kind))
    health, *rest = map(spread, shown)
    return [health, dx, dy, *rest]


def own_features(seen: Board, num_observers: int, env_params: SmaxParams) -> jax.Array:
    """[M, 10, …]: health fraction, x and y over the map's size, cooldown fraction, type bits; 0 for the dead."""
    me = Board(*(part[:num_observers] for part in seen))
    changing = me.health, me.x / env_params.map_width, me.y / env_params.map_height, me.cooldown
    return shown_where(me.alive, (changing, type_bits(me.kind)), axis=1)


def unit_list(seen: Board, num_observers: int, env_params: SmaxParams) -> jax.Array:
    """[M, 13·(N − 1) + 10, …] for the first M units of the board: 13 features of every other unit, then the own ones.

    Of another unit: health fraction, relative x and y over the own sight, last movement in x and y, last attack action over the
    largest action, cooldown fraction, type bits; all 0 unless both are alive and it is closer than the own sight.
    """
    me = Board(*(part[:num_observers, None] for part in seen))
    dx, dy = others(seen.x, num_observers) - me.x, others(seen.y, num_observers) - me.y
    visible = (dx * dx + dy * dy < me.sight**2) & me.alive & others(seen.alive, num_observers)
    rows = _features(seen, dx / me.sight, dy / me.sight, lambda part: others(part, num_observers))
    features = jnp.stack([jnp.where(visible, row, 0.0) for row in rows], axis=2)
    listed = features.reshape(num_observers, -1, *features.shape[3:])
    return jnp.concatenate([listed, own_features(seen, num_observers, env_params)], axis=1)


def conic(seen: Board, first: int, last: int, env_params: SmaxParams) -> jax.Array:
    """[M, 64·13 + 10, …] for units ``first`` to ``last - 1`` of a board that lists allies first.

    The surroundings are cut into 32 sections of equal angle, counter-clockwise from −x. Each shows the features of
    ``unit_list`` for the first two units in it that are closer than the own sight, the dead included.
    """
    size = seen.x.shape[0]
    me = Board(*(part[first:last, None] for part in seen))
    dx, dy = (seen.x - me.x) / me.sight, (seen.y - me.y) / me.sight
    not_self = np.arange(size) != np.arange(first, last)[:, None]
    visible = (dx * dx + dy * dy < 1.0) & me.alive & expand_trailing_dims(not_self, seen.x)
    section = jnp.floor((jnp.arctan2(dy, dx) / (2 * jnp.pi) + 0.5) * SECTIONS).astype(jnp.int32)
    section = jnp.where(visible, jnp.minimum(section, SECTIONS - 1), -1)
    number = expand_trailing_dims(np.arange(size), seen.x)

    def count(unit: int, earlier: jax.Array) -> jax.Array:
        return earlier + ((section[:, unit, None] == section) & (unit < number))

    earlier = jax.lax.fori_loop(0, size, count, jnp.zeros_like(section), unroll=UNROLL)
    slot = jnp.where((section >= 0) & (earlier < SLOTS), section * SLOTS + earlier, -1)
    features = jnp.stack(_features(seen, dx, dy, lambda part: jnp.broadcast_to(part, dx.shape)), axis=2)
    place = expand_trailing_dims(np.arange(SECTIONS * SLOTS), seen.x)
    chosen = (slot[:, :, None] == place).astype(features.dtype)
    shown = jnp.einsum("mus...,muf...->msf...", chosen, features, precision=jax.lax.Precision.HIGHEST)
    own = own_features(Board(*(part[first:last] for part in seen)), last - first, env_params)
    return jnp.concatenate([shown.reshape(last - first, -1, *shown.shape[3:]), own], axis=1)


def action_mask(seen: Board, num_observers: int, num_actions: int) -> jax.Array:
    """[M, n, …] bool: the living may move and shoot at living opponents in range, everyone may stop."""
    me = Board(*(part[:num_observers, None] for part in seen))
    opponents = Board(*(part[num_observers:] for part in seen))
    dx, dy = opponents.x - me.x, opponents.y - me.y
    shoot = (dx * dx + dy * dy < me.range**2) & me.alive & opponents.alive
    moves = jnp.broadcast_to(me.alive, (num_observers, FIRST_ATTACK - 1, *me.alive.shape[2:]))
    stop = jnp.ones_like(me.alive)
    padding = jnp.zeros_like(me.alive, shape=(num_observers, num_actions - FIRST_ATTACK - shoot.shape[1], *shoot.shape[2:]))
    return jnp.concatenate([moves, stop, shoot, padding], axis=1)


def global_state(units: Units, stats: Stats, kind: Kinds, num_allies: int) -> jax.Array:
    """[12·N, …]: ten features of each unit (0 for the dead), then all team numbers, then all types."""
    changing = units.health / stats.health, units.x, units.y, units.cooldown
    living = shown_where(units.alive, (changing, type_bits(kind)), axis=1)
    team = jnp.broadcast_to(expand_trailing_dims(np.arange(units.x.shape[0]) >= num_allies, units.x), units.x.shape).astype(
        units.x.dtype
    )
    kinds = jnp.broadcast_to(kind, units.x.shape).astype(units.x.dtype)
    return jnp.concatenate([living.reshape(-1, *units.x.shape[1:]), team, kinds])
