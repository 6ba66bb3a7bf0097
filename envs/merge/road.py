"""The road of ``merge``: a through lane and a ramp that joins it, as six lane segments.

Lengths in metres, angles in radians. x runs along the road, y to the right of the direction of travel, so that the through
lane lies at y = 0 and the ramp comes in from y = 10.5. Every segment runs along +x, the sine of the ramp included: its
lateral offset is measured along y, and a longitudinal distance is a difference of x. Road and conventions are those of
MARL_CAVs (Chen et al., "Deep Multi-agent Reinforcement Learning for Highway On-Ramp Merging in Mixed Traffic", 2023), built
on highway-env.

======== ======= ======== ==================================== ======= =====================
segment  number  x        centre y                             next    lane change
======== ======= ======== ==================================== ======= =====================
``ab``   0       0–320    0                                    ``bc0``
``bc0``  1       320–420  0                                    ``cd``  (to ``bc1`` forbidden)
``bc1``  2       320–420  4                                    ``cd``  to ``bc0``
``cd``   3       420–520  0                                    –
``jk``   4       0–220    10.5                                 ``kb``
``kb``   5       220–320  7.25 + 3.25 cos(π (x − 220) / 100)   ``bc1``
======== ======= ======== ==================================== ======= =====================

A lane is an int32 segment number. Sets of segments are int32 bit masks, bit n for segment n.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

AB, BC0, BC1, CD, JK, KB = range(6)
NAMES = ("ab", "bc0", "bc1", "cd", "jk", "kb")
START = (0.0, 320.0, 320.0, 420.0, 0.0, 220.0)
END = (320.0, 420.0, 420.0, 520.0, 220.0, 320.0)
NEXT = (BC0, CD, CD, CD, KB, BC1)
ROAD_END = 520.0
RAMP_Y, MERGE_Y, THROUGH_Y = 10.5, 4.0, 0.0
CURVE_Y, AMPLITUDE, PULSATION = 7.25, 3.25, math.pi / 100.0
LANE_WIDTH = 4.0
OBSTACLE_X, OBSTACLE_Y, OBSTACLE_SIZE = 420.0, 4.0, 2.0  # where the ramp ends
VEHICLE_LENGTH, VEHICLE_WIDTH = 5.0, 2.0
MARGIN = 1.0  # m beside the lane in which a vehicle still counts as on it


def segments(*members: int) -> int:
    """The bit mask of a set of segments."""
    return sum(1 << member for member in members)


ALONE = tuple(segments(lane) for lane in range(6))
# Where highway-env 1.12.1 looks for neighbours when it searches connected lanes: the segment, those that follow and those
# that lead to it, paired by their index across the road. So the ramp curve looks on into the through lane, which is how ramp
# drivers make room early.
CONNECTED = (
    segments(AB, BC0),
    segments(BC0, CD, AB, KB),
    segments(BC1, CD, AB, KB),
    segments(CD, BC0),
    segments(JK, KB),
    segments(KB, BC0, JK),
)


def pick(lane: jax.Array, values: Sequence[float]) -> jax.Array:
    """``values[lane]`` for six constants; selects vectorise where a gather does not."""
    picked = jnp.full_like(lane, values[0]) if isinstance(values[0], int) else jnp.full(lane.shape, values[0])
    for number, value in enumerate(values):
        if value != values[0]:
            picked = jnp.where(lane == number, value, picked)
    return picked


def contains(mask: jax.Array | int, lane: jax.Array | int) -> jax.Array:
    """Whether a segment belongs to a set of segments."""
    return jnp.asarray((mask >> lane) & 1) == 1


def curve_y(x: jax.Array) -> jax.Array:
    """Centre of the ramp's sine, continued beyond its ends."""
    return CURVE_Y + AMPLITUDE * jnp.cos(PULSATION * (x - START[KB]))


def curve_heading(x: jax.Array) -> jax.Array:
    """Direction of the ramp's sine, at most 0.10175 rad from +x."""
    return jnp.arctan(-AMPLITUDE * PULSATION * jnp.sin(PULSATION * (x - START[KB])))


def centre_y(lane: jax.Array, x: jax.Array) -> jax.Array:
    """y of a segment's centre line at ``x``."""
    straight = pick(lane, (THROUGH_Y, THROUGH_Y, MERGE_Y, THROUGH_Y, RAMP_Y, THROUGH_Y))
    return jnp.where(lane == KB, curve_y(x), straight)


def heading(lane: jax.Array, x: jax.Array) -> jax.Array:
    """Direction of a segment's centre line at ``x``."""
    return jnp.where(lane == KB, curve_heading(x), 0.0)


def wrap(angle: jax.Array) -> jax.Array:
    """The same angle in [-π, π)."""
    return angle - 2 * math.pi * jnp.floor((angle + math.pi) / (2 * math.pi))


def overshoot(x: jax.Array, start: float, end: float) -> jax.Array:
    """How far ``x`` lies outside [start, end]."""
    return jnp.maximum(start - x, 0.0) + jnp.maximum(x - end, 0.0)


def nearest_lane(x: jax.Array, y: jax.Array, direction: jax.Array) -> jax.Array:
    """The segment a vehicle is on: least |lateral offset| + longitudinal overshoot + |heading error|.

    The three segments of the through lane are one straight line, so among them ``x`` decides.
    """
    turn = jnp.abs(wrap(direction))
    through = jnp.where(x <= END[AB], AB, jnp.where(x <= END[BC0], BC0, CD)).astype(jnp.int32)
    candidates = (
        (BC1, jnp.abs(y - MERGE_Y) + overshoot(x, START[BC1], END[BC1]) + turn),
        (JK, jnp.abs(y - RAMP_Y) + overshoot(x, START[JK], END[JK]) + turn),
        (KB, jnp.abs(y - curve_y(x)) + overshoot(x, START[KB], END[KB]) + jnp.abs(wrap(direction - curve_heading(x)))),
    )
    lane, least = through, jnp.abs(y) + overshoot(x, START[AB], END[CD]) + turn
    for number, distance in candidates:
        lane, least = jnp.where(distance < least, number, lane), jnp.minimum(distance, least)
    return lane


def occupancy(x: jax.Array, y: jax.Array) -> jax.Array:
    """Bit mask of the segments on which a driver sees a vehicle: within a margin of the lane, and 5 m beyond its ends."""
    beside = LANE_WIDTH / 2 + MARGIN
    rows = (
        (jnp.abs(y - THROUGH_Y) <= beside, (AB, BC0, CD)),
        (jnp.abs(y - MERGE_Y) <= beside, (BC1,)),
        (jnp.abs(y - RAMP_Y) <= beside, (JK,)),
        (jnp.abs(y - curve_y(x)) <= beside, (KB,)),
    )
    mask = jnp.zeros(x.shape, jnp.int32)
    for near, lanes in rows:
        for lane in lanes:
            along = (x >= START[lane] - VEHICLE_LENGTH) & (x < END[lane] + VEHICLE_LENGTH)
            mask = mask | jnp.where(near & along, jnp.int32(1 << lane), jnp.int32(0))
    return mask


def through_reachable(x: jax.Array, y: jax.Array) -> jax.Array:
    """Whether a lane change to ``bc0``, the only one that is allowed, is possible from here."""
    ahead = x - START[BC0]
    return (jnp.abs(y) <= 2 * LANE_WIDTH) & (ahead >= 0) & (ahead < END[BC0] - START[BC0] + VEHICLE_LENGTH)


def follow(x: jax.Array, target_lane: jax.Array) -> jax.Array:
    """The segment to steer for: the next one from half a vehicle's length before a segment ends."""
    ends = (*END[:CD], math.inf, *END[CD + 1 :])
    return jnp.where(x > pick(target_lane, ends) - VEHICLE_LENGTH / 2, pick(target_lane, NEXT), target_lane)
