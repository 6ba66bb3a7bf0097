"""Segments and boxes of ``merge`` in plain Python and by highway-env, shared by the tests that compare with them."""

import numpy as np
from highway_env.utils import are_polygons_intersecting, rect_corners

FOLLOWING = {"ab": ("bc0",), "bc0": ("cd",), "bc1": (), "cd": (), "jk": ("kb",), "kb": ("bc1",)}
LEADING = {"ab": (), "bc0": ("ab",), "bc1": ("kb",), "cd": ("bc0", "bc1"), "jk": (), "kb": ("jk",)}


def adjacent(lane, x):
    """The segment next to a vehicle, or None."""
    if lane == "ab":
        return "kb" if x > 220 else None
    return {"bc0": "bc1", "bc1": "bc0", "kb": "ab"}.get(lane)


def is_front(lane, x, other_lane, other_x) -> bool:
    return lane is not None and other_x > x and other_lane in (lane, *FOLLOWING[lane])


def is_rear(lane, x, other_lane, other_x) -> bool:
    return lane is not None and other_x <= x and other_lane in (lane, *LEADING[lane])


def boxes_overlap(*boxes) -> bool:
    """Highway-env's separating-axis test of two boxes (centre, length, width, heading)."""
    first, second = (np.vstack([corners, corners[:1]]) for corners in (rect_corners(*box) for box in boxes))
    return bool(are_polygons_intersecting(first, second, np.zeros(2), np.zeros(2))[0])
