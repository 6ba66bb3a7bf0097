"""Observations, action masks and the global state of ``smax``.

Axis letters: N units of both teams, M observing units of one team, F features of a unit, n actions; trailing axes are free.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.smax.actions import FIRST_ATTACK
from marljax.envs.smax.battle import UNROLL, Kinds, Stats, Units
from marljax.envs.smax.units import NUM_KINDS, UNIT_NAMES, SmaxParams
from marljax.utils.batching import expand_trailing_dims, fold

OTHER = ("health", "x", "y", "moved x", "moved y", "action", "cooldown", *UNIT_NAMES)  # columns of another unit
OWN = ("health", "x", "y", "cooldown", *UNIT_NAMES)  # and of the observing one
SECTIONS, SLOTS = 32, 2  # of the conic view: directions, and units shown in each


class Board(NamedTuple):
    """All units as one team may observe them, [N, …] each."""

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

    def rows(self, index: Any) -> "Board":
        """Every field indexed along the units."""
        return Board(*(part[index] for part in self))


def make_board(units: Units, stats: Stats, kind: Kinds, is_ally: np.ndarray, team: int, env_params: SmaxParams) -> Board:
    """All units, allies first, with the last actions that ``team`` (0: the allies, static ``is_ally`` [N]) may observe."""
    largest = FIRST_ATTACK - 1.0 + np.where(is_ally, (~is_ally).sum(), is_ally.sum())
    observed = env_params.see_opponents_actions | expand_trailing_dims(is_ally == (team == 0), units.x)
    shot = units.shot / expand_trailing_dims(largest.astype(np.float32), units.x)
    return Board(
        x=units.x,
        y=units.y,
        alive=units.alive,
        range=stats.range,
        sight=stats.sight,
        health=units.health / stats.health,
        move_x=jnp.where(observed, units.move_x, 0.0),
        move_y=jnp.where(observed, units.move_y, 0.0),
        shot=jnp.where(observed, shot, 0.0),
        cooldown=jnp.clip(units.cooldown / stats.cooldown, 0.0, 1.0),
        kind=jnp.asarray(kind),
    )


def unit_list(board: Board, num_observers: int, env_params: SmaxParams) -> jax.Array:
    """[M, 13·(N − 1) + 10, …] for the first M units of the board: 13 features of every other unit, then those of the unit itself.

    Of another unit: health fraction, relative x and y over the sight range, last movement in x and y, last attack action over
    the largest action, cooldown fraction, type bits; all 0 unless both are alive and it is closer than the sight range.
    """
    me = board.rows(np.s_[:num_observers, None])
    before = np.arange(board.x.shape[0] - 1) < np.arange(num_observers)[:, None]

    def others(part: jax.Array) -> jax.Array:
        """[M, N - 1, …]: all units but the observer."""
        return jnp.where(expand_trailing_dims(before, part), part[:-1], part[1:])

    dx, dy = others(board.x) - me.x, others(board.y) - me.y
    visible = (dx * dx + dy * dy < me.sight**2) & me.alive & others(board.alive)
    rows = _features(board, dx / me.sight, dy / me.sight, others)
    features = jnp.stack([jnp.where(visible, row, 0.0) for row in rows], axis=2)
    listed = features.reshape(num_observers, -1, *features.shape[3:])
    return jnp.concatenate([listed, _own_features(board.rows(np.s_[:num_observers]), env_params)], axis=1)


def conic(board: Board, first: int, last: int, env_params: SmaxParams) -> jax.Array:
    """[M, 64·13 + 10, …] for units ``first`` to ``last - 1`` of a board that lists allies first.

    The surroundings are split into 32 sections of equal angle, counter-clockwise from −x. Each holds the features of
    ``unit_list`` for the first two units in it that are closer than the sight range, the dead included.
    """
    size = board.x.shape[0]
    me = board.rows(np.s_[first:last, None])
    dx, dy = (board.x - me.x) / me.sight, (board.y - me.y) / me.sight
    not_self = np.arange(size) != np.arange(first, last)[:, None]
    visible = (dx * dx + dy * dy < 1.0) & me.alive & expand_trailing_dims(not_self, board.x)
    section = jnp.floor((jnp.arctan2(dy, dx) / (2 * jnp.pi) + 0.5) * SECTIONS).astype(jnp.int32)
    section = jnp.where(visible, jnp.minimum(section, SECTIONS - 1), -1)
    number = expand_trailing_dims(np.arange(size), board.x)

    def precedes(unit: jax.Array, other: jax.Array) -> jax.Array:
        return ((other[:, None] == section) & (unit < number)).astype(section.dtype)

    units = np.arange(size, dtype=np.int32)
    earlier = fold(jnp.add, precedes, (units, jnp.swapaxes(section, 0, 1)), 0, UNROLL)
    slot = jnp.where((section >= 0) & (earlier < SLOTS), section * SLOTS + earlier, -1)
    features = jnp.stack(_features(board, dx, dy, lambda part: jnp.broadcast_to(part, dx.shape)), axis=2)
    chosen = (slot[:, :, None] == expand_trailing_dims(np.arange(SECTIONS * SLOTS), board.x)).astype(features.dtype)
    listed = jnp.einsum("mus...,muf...->msf...", chosen, features, precision=jax.lax.Precision.HIGHEST)
    own = _own_features(board.rows(np.s_[first:last]), env_params)
    return jnp.concatenate([listed.reshape(last - first, -1, *listed.shape[3:]), own], axis=1)


def action_mask(board: Board, num_observers: int, num_actions: int) -> jax.Array:
    """[M, n, …] bool: the living may move and shoot at living opponents in range, everyone may stop."""
    me, opponents = board.rows(np.s_[:num_observers, None]), board.rows(np.s_[num_observers:])
    dx, dy = opponents.x - me.x, opponents.y - me.y
    shoot = (dx * dx + dy * dy < me.range**2) & me.alive & opponents.alive
    moves = jnp.broadcast_to(me.alive, (num_observers, FIRST_ATTACK - 1, *me.alive.shape[2:]))
    padding = jnp.zeros_like(me.alive, shape=(num_observers, num_actions - FIRST_ATTACK - shoot.shape[1], *shoot.shape[2:]))
    return jnp.concatenate([moves, jnp.ones_like(me.alive), shoot, padding], axis=1)


def global_state(units: Units, stats: Stats, kind: Kinds, is_ally: np.ndarray) -> jax.Array:
    """[12·N, …]: ten features of each unit (0 for the dead), then the team number of each, then the type of each."""
    varying = units.health / stats.health, units.x, units.y, units.cooldown
    living = _stack_where(units.alive, (varying, _type_bits(kind)))
    team, kinds = (jnp.broadcast_to(part, units.x.shape) for part in (expand_trailing_dims(~is_ally, units.x), kind))
    return jnp.concatenate([living.reshape(-1, *units.x.shape[1:]), team.astype(units.x.dtype), kinds.astype(units.x.dtype)])


def _features(board: Board, dx: jax.Array, dy: jax.Array, spread: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """13 features of other units, at ``dx`` and ``dy`` over the sight range; ``spread`` gives the board's fields their shape."""
    fields = (board.health, board.move_x, board.move_y, board.shot, board.cooldown, *_type_bits(board.kind))
    health, *rest = map(spread, fields)
    return [health, dx, dy, *rest]


def _own_features(me: Board, env_params: SmaxParams) -> jax.Array:
    """[M, 10, …]: health fraction, x and y over the map's size, cooldown fraction, type bits; 0 for the dead."""
    varying = me.health, me.x / env_params.map_width, me.y / env_params.map_height, me.cooldown
    return _stack_where(me.alive, (varying, _type_bits(me.kind)))


def _type_bits(kind: Kinds) -> list[jax.Array]:
    return [jnp.asarray(kind == number, jnp.float32) for number in range(NUM_KINDS)]


def _stack_where(present: jax.Array, groups: Sequence[Sequence[jax.Array]]) -> jax.Array:
    """[M, F, …] the features of all groups, 0 where not ``present`` [M, …].

    XLA compiles a stack of at most eight arrays to one loop, and a larger one to a loop per array: at most eight a group.
    """
    stacks = [jnp.stack([jnp.broadcast_to(feature, present.shape) for feature in group], axis=1) for group in groups]
    return jnp.concatenate([jnp.where(present[:, None], stack, 0.0) for stack in stacks], axis=1)
