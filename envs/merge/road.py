"""The road of ``merge``: a through lane and a ramp that joins it, as six lane segments.

Lengths are in metres, angles in radians. x runs along the road and y to the right of the direction of travel: the through
lane lies at y = 0, and the ramp comes in from y = 10.5. Every segment runs along +x, including the sine of the ramp: lateral
offsets are measured along y, longitudinal distances along x. Road and conventions are those of MARL_CAVs (Chen et al., "Deep
Multi-agent Reinforcement Learning for Highway On-Ramp Merging in Mixed Traffic", 2023), which builds on highway-env.

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

A lane is an int32 segment number; a set of segments is an int32 bit mask, with bit n for segment n.
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
MARGIN = 1.0  # m beyond the lane's edge within which a vehicle is still on it
FAR_AWAY = 1e4  # distance, or speed, of a vehicle that does not exist; infinity would produce NaN


def segments(*lanes: int) -> int:
    """The bit mask of a set of segments."""
    return sum(1 << lane for lane in lanes)


ALONE = tuple(segments(lane) for lane in range(6))
# Segments that highway-env 1.12.1 searches for neighbours when lanes are connected: the segment, its successors and its
# predecessors, paired by their index across the road. The ramp's curve is therefore followed by the through lane, which is how
# ramp drivers make room early.
CONNECTED = (
    segments(AB, BC0),
    segments(BC0, CD, AB, KB),
    segments(BC1, CD, AB, KB),
    segments(CD, BC0),
    segments(JK, KB),
    segments(KB, BC0, JK),
)


def pick(lane: jax.Array, values: Sequence[float]) -> jax.Array:
    """``values[lane]`` for six constants, as selects: they vectorise on CPUs, a gather does not."""
    picked = jnp.full_like(lane, values[0]) if isinstance(values[0], int) else jnp.full(lane.shape, values[0])
    for number, value in enumerate(values):
        if value != values[0]:
            picked = jnp.where(lane == number, value, picked)
    return picked


def contains(mask: jax.Array | int, lane: jax.Array | int) -> jax.Array:
    """Whether a set of segments contains a segment."""
    return jnp.asarray((mask >> lane) & 1) == 1


def curve_y(x: jax.Array) -> jax.Array:
    """y of the centre of the ramp's sine, extended beyond its ends."""
    return CURVE_Y + AMPLITUDE * jnp.cos(PULSATION * (x - START[KB]))


def curve_heading(x: jax.Array) -> jax.Array:
    """Heading of the ramp's sine, within 0.10175 rad of +x."""
    return jnp.arctan(-AMPLITUDE * PULSATION * jnp.sin(PULSATION * (x - START[KB])))


def centre_y(lane: jax.Array, x: jax.Array) -> jax.Array:
    """y of a segment's centre line at ``x``."""
    straight = pick(lane, (THROUGH_Y, THROUGH_Y, MERGE_Y, THROUGH_Y, RAMP_Y, THROUGH_Y))
    return jnp.where(lane == KB, curve_y(x), straight)


def heading(lane: jax.Array, x: jax.Array) -> jax.Array:
    """Heading of a segment's centre line at ``x``."""
    return jnp.where(lane == KB, curve_heading(x), 0.0)


def wrap(angle: jax.Array) -> jax.Array:
    """The equivalent angle in [-π, π)."""
    return angle - 2 * math.pi * jnp.floor((angle + math.pi) / (2 * math.pi))


def overshoot(x: jax.Array, start: float, end: float) -> jax.Array:
    """Distance of ``x`` from [start, end]; 0 inside."""
    return jnp.maximum(start - x, 0.0) + jnp.maximum(x - end, 0.0)


def nearest_lane(x: jax.Array, y: jax.Array, direction: jax.Array) -> jax.Array:
    """The segment a vehicle is on, which minimises |lateral offset| + longitudinal overshoot + |heading error|.

    The three segments of the through lane form one straight line, so ``x`` alone decides among them.
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
    """Bit mask of the segments that a vehicle occupies: it is within ``MARGIN`` of the lane and 5 m of its ends."""
    reach = LANE_WIDTH / 2 + MARGIN
    rows = (
        (jnp.abs(y - THROUGH_Y) <= reach, (AB, BC0, CD)),
        (jnp.abs(y - MERGE_Y) <= reach, (BC1,)),
        (jnp.abs(y - RAMP_Y) <= reach, (JK,)),
        (jnp.abs(y - curve_y(x)) <= reach, (KB,)),
    )
    mask = jnp.zeros(x.shape, jnp.int32)
    for near, lanes in rows:
        for lane in lanes:
            along = (x >= START[lane] - VEHICLE_LENGTH) & (x < END[lane] + VEHICLE_LENGTH)
            mask = mask | jnp.where(near & along, jnp.int32(1 << lane), jnp.int32(0))
    return mask


def through_reachable(x: jax.Array, y: jax.Array) -> jax.Array:
    """Whether a lane change to ``bc0``, the only one allowed, is possible from this position."""
    ahead = x - START[BC0]
    return (jnp.abs(y) <= 2 * LANE_WIDTH) & (ahead >= 0) & (ahead < END[BC0] - START[BC0] + VEHICLE_LENGTH)


def follow(x: jax.Array, target_lane: jax.Array) -> jax.Array:
    """The segment to steer towards: the next one starting half a vehicle length before ``target_lane`` ends."""
    ends = (*END[:CD], math.inf, *END[CD + 1 :])
    return jnp.where(x > pick(target_lane, ends) - VEHICLE_LENGTH / 2, pick(target_lane, NEXT), target_lane)
