"""Pictures of ``swarm``: the room in perspective from one of its corners, drawn as flat shapes; a plane from above.

Drones are drawn larger than life (``ENLARGED``), with a shadow below them and a stem that shows their height. Shapes farther from
the camera are painted first, by distance along the floor: along a ray from a camera that looks down it grows with the true
distance, and an upright cylinder has one value at all heights.

Vectors are ``[3, K]``, components first, in m. Axis letters: N drones, M obstacles, P parts of a drone, V corners.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Polygons, Scene, Segments, Trails, empty
from marljax.envs.swarm import space as spaces
from marljax.envs.swarm.contacts import distances, nearest_obstacle
from marljax.envs.swarm.quadrotor import Body, norm
from marljax.envs.swarm.space import LINES, faded, mixed

# of the drones, cyclic; without red, which marks contacts, and grey
PALETTE = np.array(
    [
        (0.12, 0.42, 0.75),
        (0.95, 0.58, 0.10),
        (0.16, 0.60, 0.28),
        (0.55, 0.34, 0.72),
        (0.10, 0.68, 0.72),
        (0.86, 0.45, 0.70),
        (0.60, 0.42, 0.22),
        (0.62, 0.68, 0.12),
        (0.20, 0.26, 0.52),
        (0.42, 0.72, 0.94),
    ]
)
TOUCHES: Colour = (0.90, 0.05, 0.10, 1.0)
COLLIDED: Colour = (0.62, 0.02, 0.08, 1.0)
LYING: Colour = (0.45, 0.45, 0.45, 1.0)
SHARED: Colour = (0.15, 0.15, 0.15, 0.8)
OBSTACLE: Colour = (0.36, 0.42, 0.50, 0.20)
GRID: Colour = (0.86, 0.87, 0.89, 1.0)
EDGE: Colour = (0.62, 0.64, 0.68, 1.0)
SCALE: Colour = (0.45, 0.47, 0.50, 1.0)
SHADOW: Colour = (0.20, 0.22, 0.28, 0.28)
STYLE = GRID, EDGE, OBSTACLE
OUTSIDE: Colour = (0.12, 0.42, 0.75, 0.35)
LEGEND: tuple[tuple[str, Colour], ...] = (
    ("drone and its goal", (0.12, 0.42, 0.75, 1.0)),
    ("landmark", SHARED),
    ("goal of all", SHARED),
    ("obstacle", OBSTACLE),
    ("touches something", TOUCHES),
    ("has collided", COLLIDED),
    ("lies on the floor", LYING),
    ("outside of the picture", OUTSIDE),
)

# Camera: distance in multiples of the view's half width, azimuth, elevation.
EYE = 4.5, math.radians(-62.0), math.radians(18.0)
LEAST_UP = 4.0  # m, minimum height of the view
ABOVE = 1e3  # m, height of the camera over a plane: parallel rays, nearly
MARGIN = 0.4, 0.15  # m left of the view, for the scale, and on the other sides
ENLARGED = 3.0, 2.0  # times life size: up to eight drones, and very many
TRAIL = 1.2  # s
V = 32  # corners of a polygon


class Status(NamedTuple):
    """Numbers shown with the picture, [] each."""

    at_the_goal: jax.Array  # drones near their goals
    collided: jax.Array  # with another drone, so far
    crashed: jax.Array  # into an obstacle, so far
    m_to_the_goal: jax.Array  # mean


class Camera(NamedTuple):
    """A pinhole camera with an upright image plane, which keeps vertical lines vertical."""

    eye: jax.Array  # [3] m
    axes: jax.Array  # [3, 3] rows: right, up and forward, which is horizontal
    focal: jax.Array  # [] m, distance at which lengths are true
    drop: jax.Array  # [] m of the target below the eye


class Marks(NamedTuple):
    """Highlighted drones, [N] bool each, in the order of the legend."""

    touches: jax.Array
    collided: jax.Array  # after the grace period
    lying: jax.Array
    outside: jax.Array  # of the picture: drawn at its edge


class Layer(NamedTuple):
    """Polygons and their depth order; those of K bodies with P parts are part after part."""

    corners: jax.Array  # [P * K, V, 2]
    colour: jax.Array  # [P * K, 4]
    away: jax.Array  # [P * K] m along the floor from the camera to the body
    nearer: jax.Array  # [P * K] order within a body: parts facing the camera last

    def moved(self, shift: jax.Array) -> "Layer":
        """With the bodies shifted in the picture by ``shift`` [2, K]."""
        parts = len(self.corners) // shift.shape[1]
        return self._replace(corners=self.corners + jnp.tile(shift.T, (parts, 1))[:, None])


def camera(eye: jax.Array, target: jax.Array) -> Camera:
    """A camera at ``eye`` [3] that shows ``target`` [3], which is not above or below it, as the origin."""
    x, y, z = target - eye
    ahead = jnp.sqrt(x * x + y * y)
    forward = jnp.stack([x / ahead, y / ahead, jnp.zeros_like(ahead)])
    right, up = jnp.stack([forward[1], -forward[0], jnp.zeros_like(ahead)]), jnp.array([0.0, 0.0, 1.0])
    return Camera(eye, jnp.stack([right, up, forward]), ahead, -z)


def to_camera(camera: Camera, points: jax.Array) -> jax.Array:
    """[3, …] points in the camera's frame: right, up, ahead."""
    eye = camera.eye.reshape(3, *[1] * (points.ndim - 1))
    return jnp.einsum("ij,j...->i...", camera.axes, points - eye)


def project(camera: Camera, points: jax.Array) -> jax.Array:
    """[2, …] picture coordinates of points [3, …], in m at the distance of the target."""
    right, up, ahead = to_camera(camera, points)
    shrink = camera.focal / ahead
    return jnp.stack([right * shrink, up * shrink + camera.drop])


def reach(drones: int, has_obstacles: bool, room: Any) -> tuple[jax.Array, jax.Array]:
    """Half width and height in m of the part of the room in view: where few drones fly, or the whole area with obstacles."""
    aside = 4.0 if has_obstacles else min(5.0, max(2.6, 1.3 * drones ** (1 / 3)))
    return jnp.minimum(room.half, aside), jnp.minimum(room.height, max(LEAST_UP, aside))


def room_camera(aside: jax.Array, up: jax.Array) -> Camera:
    """The camera for a view of this half width and height."""
    distance, azimuth, elevation = EYE
    across = distance * math.cos(elevation)
    offset = jnp.array([across * math.cos(azimuth), across * math.sin(azimuth), distance * math.sin(elevation)])
    target = jnp.stack([jnp.zeros(()), jnp.zeros(()), 0.35 * up])
    return camera(target + offset * aside, target)


def camera_above() -> Camera:
    """A camera that looks down, with x to the right and y up."""
    down = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
    return Camera(jnp.array([0.0, 0.0, ABOVE]), down, jnp.array(ABOVE), jnp.zeros(()))


def bounds(view: Camera, aside: jax.Array, up: jax.Array) -> jax.Array:
    """[4] of the picture."""
    corners = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (0, 1)], float).T
    x, y = project(view, _column(aside, aside, up) * corners)
    return jnp.stack([jnp.min(x) - MARGIN[0], jnp.max(x) + MARGIN[1], jnp.min(y) - MARGIN[1], jnp.max(y) + MARGIN[1]])


# --- shapes: V corners in a body's frame ----------------------------------------------------------------------------------


def _circle(radius: float, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> np.ndarray:
    """[V, 3] in the plane of the first two axes."""
    angle = np.linspace(0, 2 * np.pi, V, endpoint=False)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle), np.full(V, z)], axis=1)


def _ring(outer: float, inner: float) -> np.ndarray:
    """[V, 3] once around outside, once back inside."""
    angle = np.linspace(0, 2 * np.pi, V // 2)
    angle, radius = np.append(angle, angle[::-1]), np.repeat([outer, inner], V // 2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(V)], axis=1)


def _bar(x: float, y: float, width: float) -> np.ndarray:
    """[V, 3] from the origin to a point."""
    end = np.array([x, y])
    aside = np.array([-y, x]) / math.hypot(x, y) * width / 2
    corners = np.array([-aside, aside, end + aside, end - aside])
    return np.append(corners[np.arange(V) * 4 // V], np.zeros((V, 1)), axis=1)


def _cylinder(low: float, high: float) -> np.ndarray:
    """[V, 3] outline of an upright cylinder of radius 1 and height 1, between two fractions of its width (-1 to 1).

    The axes are right, towards the camera, and up: the near half of its foot, then the far half of its top.
    """
    right = np.linspace(low, high, V // 2)
    foot = np.stack([right, np.sqrt(1 - right**2), np.zeros(V // 2)], axis=1)
    return np.append(foot, (foot * [1, -1, 0] + [0, 0, 1])[::-1], axis=0)


def _corners(view: Camera, centre: jax.Array, axes: jax.Array, shapes: np.ndarray) -> jax.Array:
    """[P, K, V, 2] of shapes [P, V, 3] at ``centre`` [3, K] along ``axes`` [3, 3, K] (in columns)."""
    points = centre[:, None, :, None] + jnp.einsum("ijk,pvj->ipkv", axes, shapes)
    return jnp.moveaxis(project(view, points), 0, -1)


def _layer(view: Camera, centre: jax.Array, axes: jax.Array, shapes: np.ndarray, colours: jax.Array) -> Layer:
    """K bodies of P shapes each, stacked along their third axis; ``colours`` [P, K, 4]."""
    to_eye = view.eye[:, None] - centre
    away = jnp.broadcast_to(jnp.hypot(to_eye[0], to_eye[1]), colours.shape[:2]).reshape(-1)
    nearer = (shapes[..., 2].mean(axis=1)[:, None] * jnp.sum(axes[:, 2] * to_eye, axis=0)).reshape(-1)
    return Layer(_corners(view, centre, axes, shapes).reshape(-1, V, 2), colours.reshape(-1, 4), away, nearer)


# --- contents of the room -------------------------------------------------------------------------------------------------


def _drones(view: Camera, body: Any, size: Any, own: jax.Array, marks: Marks) -> Layer:
    """Quadrotors: four arms in the body's plane, a rotor at the end of each (paler in front), and a hub; point masses: balls.

    Args:
        view: the camera.
        body: the drones.
        size: m from the hub to a rotor's axis, or radius of a ball.
        own: [N, 4] their colours.
        marks: highlighted drones; the hub or middle of those that have collided is dark.
    """
    colour = _marked(own, marks)
    colour = jnp.where(marks.outside[:, None], faded(colour, OUTSIDE[3]), colour)
    collided, count = marks.collided[:, None], len(own)
    if not isinstance(body, Body):
        light = jnp.where(collided, jnp.array(COLLIDED), mixed(colour, 1.0, 0.45))
        shapes = np.stack([_circle(1.0), _circle(0.45, -0.25, 0.3)])
        layer = _layer(view, body.position, _facing(view, size, count), shapes, jnp.stack([colour, light]))
        return layer._replace(nearer=jnp.repeat(jnp.arange(2.0), count))
    hub = jnp.where(collided, jnp.array(COLLIDED), mixed(colour, 0.0, 0.3))
    dark, pale = mixed(colour, 0.0, 0.45), mixed(colour, 1.0, 0.55)
    signs = np.array([(1, -1), (-1, -1), (-1, 1), (1, 1)]) / math.sqrt(2)
    arms, rotors = [_bar(x, y, 0.22) for x, y in signs], [_circle(0.47, x, y, 0.18) for x, y in signs]
    shapes, colours = np.stack([*arms, *rotors, _circle(0.45, z=0.07)]), jnp.stack([dark] * 4 + [pale, colour, colour, pale, hub])
    return _layer(view, body.position, size * body.rotation, shapes, colours)


def _marked(own: jax.Array, marks: Marks) -> jax.Array:
    """[N, 4] colours of drones, of those that lie on the floor or touch something another."""
    colour = jnp.where(marks.lying[:, None], jnp.array(LYING), own)
    return jnp.where(marks.touches[:, None], jnp.array(TOUCHES), colour)


def _halos(view: Camera, position: jax.Array, size: Any, marks: Marks) -> Layer:
    """A red glow behind drones in contact."""
    colour = jnp.where(marks.touches[:, None], faded(jnp.array([TOUCHES]), 0.3), 0.0)
    layer = _layer(view, position, _facing(view, size, position.shape[1]), _circle(1.0)[None], colour[None])
    return layer._replace(nearer=jnp.full_like(layer.nearer, -jnp.inf))


def _obstacles(view: Camera, obstacles: Any, height: jax.Array) -> Layer:
    """Translucent cylinders up to ``height``, darker on one side."""
    zero = jnp.zeros_like(obstacles.x)
    centre = jnp.stack([obstacles.x, obstacles.y, zero])
    toward = view.eye[:2, None] - centre[:2]
    x, y = toward / jnp.sqrt(jnp.sum(toward**2, axis=0)) * obstacles.radius
    axes = jnp.stack([jnp.stack([-y, x, zero]), jnp.stack([x, y, zero]), jnp.stack([zero, zero, zero + height])], axis=1)
    shapes = np.stack([_circle(1.0), _cylinder(-1, 1), _cylinder(0.1, 1), _cylinder(0.65, 1), _circle(1.0, z=1.0)])
    fainter = min(1.0, math.sqrt(16 / len(obstacles.x)))  # so that many in a row do not hide everything
    alpha = fainter * np.array([1.0, 0.7, 0.35, 0.35, 0.5])[:, None, None] * [0, 0, 0, 1] + [1, 1, 1, 0]
    present = (obstacles.radius > 0)[:, None]
    return _layer(view, centre, axes, shapes, jnp.where(present, jnp.array(OBSTACLE), 0.0) * alpha)


def _discs(view: Camera, obstacles: Any) -> Layer:
    """Obstacles from above."""
    centre = jnp.stack([obstacles.x, obstacles.y, jnp.zeros_like(obstacles.x)])
    colour = jnp.where((obstacles.radius > 0)[:, None], jnp.array(OBSTACLE) * jnp.array([1.0, 1.0, 1.0, 3.0]), 0.0)
    return _layer(view, centre, _facing(view, obstacles.radius, len(obstacles.x)), _circle(1.0)[None], colour[None])


def _goals(view: Camera, goal: jax.Array, own: jax.Array, size: Any, shared: jax.Array) -> Layer:
    """Open rings that face the camera; one target instead where all drones share a goal."""
    first = (jnp.arange(goal.shape[1]) == 0)[:, None]
    faint, rings = (jnp.where(shared, 0.0, faded(own, alpha)) for alpha in (0.18, 0.9))
    target = jnp.where(shared & first, jnp.array(SHARED), 0.0)
    shapes = np.stack([_circle(1.0), _ring(1.0, 0.75), _ring(1.5, 1.38), _ring(0.85, 0.73), _circle(0.2)])
    return _layer(view, goal, _facing(view, size, goal.shape[1]), shapes, jnp.stack([faint, rings, target, target, target]))


def _facing(view: Camera, size: Any, count: int) -> jax.Array:
    """[3, 3, K] axes of bodies that face the camera: right, up, away."""
    return jnp.broadcast_to(size * view.axes.T[..., None], (3, 3, count))


def _room(view: Camera, room: Any) -> Segments:
    """The floor's grid of 1 m, and the room's edges except those in front."""
    number = np.arange(-LINES, LINES + 1.0)
    edge, none = jnp.zeros(2 * LINES + 1) + room.half, jnp.zeros(2 * LINES + 1)
    along = jnp.stack([-edge, number + none, none]), jnp.stack([edge, number + none, none])
    across = jnp.stack([number + none, -edge, none]), jnp.stack([number + none, edge, none])
    ends = [(-1, -1, 0, 1, -1, 0), (1, -1, 0, 1, 1, 0), (1, 1, 0, -1, 1, 0), (-1, 1, 0, -1, -1, 0)]
    ends += [(x, y, 0, x, y, 1) for x, y in ((-1, -1), (-1, 1), (1, 1))]
    ends += [(-1, -1, 1, -1, 1, 1), (-1, 1, 1, 1, 1, 1)]
    box = np.array(ends, float).T
    size = _column(room.half, room.half, room.height)
    start = jnp.concatenate([along[0], across[0], box[:3] * size], axis=1)
    end = jnp.concatenate([along[1], across[1], box[3:] * size], axis=1)
    grid = jnp.where((jnp.abs(number) < room.half)[:, None], jnp.array(GRID), 0.0)
    colour = jnp.concatenate([grid, grid, jnp.tile(jnp.array([EDGE]), (len(ends), 1))])
    return Segments(project(view, start).T, project(view, end).T, jnp.full(len(colour), 0.8), colour)


def _scale(view: Camera, aside: jax.Array, up: jax.Array) -> tuple[Segments, Labels]:
    """Heights in m at the left end of the view."""
    number = np.arange(0.0, LINES + 1)
    present = jnp.append((number <= up)[:, None], jnp.array([[True]]), axis=0)
    x, y = project(view, jnp.stack([jnp.zeros(len(number)) - aside, jnp.zeros(len(number)) - aside, jnp.asarray(number)]))
    left = jnp.append(jnp.stack([x - 0.08, y]), jnp.stack([x[:1], y[:1]]), axis=1)
    right = jnp.append(jnp.stack([x, y]), project(view, jnp.stack([-aside, -aside, up]))[:, None], axis=1)
    colour = jnp.where(present, jnp.array(SCALE), 0.0)
    labels = Labels(jnp.stack([x - 0.22, y], axis=1), jnp.asarray(number, jnp.int32), colour[:-1])
    return Segments(left.T, right.T, jnp.full(len(colour), 0.8), colour), labels


def _stems(view: Camera, position: jax.Array, head: jax.Array, colour: jax.Array, width: float) -> Segments:
    """From the floor below ``position`` [3, K] to ``head`` [2, K] in the picture."""
    floor = project(view, position * _column(1.0, 1.0, 0.0))
    return Segments(floor.T, head.T, jnp.full(position.shape[1], width), colour)


def _column(*parts: Any) -> jax.Array:
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])[:, None]


def enlarged(drones: int) -> float:
    """Factor by which drones are drawn larger than life."""
    most, least = ENLARGED
    return min(most, max(least, most * (8 / drones) ** 0.25))


def _joined(kind: Any, records: list[Any]) -> Any:
    return kind(*(jnp.concatenate(parts) for parts in zip(*records, strict=True)))


def draw(state: Any, env_params: Any, landmarks: bool = False, plane: bool = False) -> Scene:
    """The scene, in m at the distance of the room's middle.

    Args:
        state: of the episode.
        env_params: the room, the drones' size, and the distance that counts as arrived.
        landmarks: whether goals belong to no particular drone.
        plane: whether all positions are on the floor.
    """
    body, goal, position, stats, obstacles = state.body, state.goal, state.body.position, state.stats, state.obstacles
    count, flies = position.shape[1], isinstance(body, Body)
    aside, up = reach(count, obstacles is not None or landmarks, env_params.room)
    view = camera_above() if plane else room_camera(aside, up)
    edges, arm, room = bounds(view, aside, up), env_params.drone.arm, env_params.room
    size = (enlarged(count) if flies else 1.0) * arm

    def shift_inside(position: jax.Array) -> jax.Array:
        """[2, K] m by which bodies at ``position`` [3, K] have to be shifted to be in the picture."""
        x, y = project(view, position)
        margin = 2.2 * size * view.focal / to_camera(view, position)[2]
        inside = jnp.clip(x, edges[0] + margin, edges[1] - margin), jnp.clip(y, edges[2] + margin, edges[3] - margin)
        return jnp.stack([inside[0] - x, inside[1] - y])

    shift, goal_shift = shift_inside(position), shift_inside(goal)
    x, y, z = position
    touches = jnp.any(distances(position) <= 2.0 * arm, axis=1)
    touches |= (jnp.maximum(jnp.abs(x), jnp.abs(y)) >= room.half) | (z >= room.height)
    if obstacles is not None:
        touches |= nearest_obstacle(position, obstacles)[0] <= arm
    lying = body.grounded if flies else jnp.zeros(count, bool)
    marks = Marks(touches, stats.collided | stats.crashed, lying, jnp.any(shift != 0, axis=0))

    own = jnp.append(jnp.asarray(PALETTE[np.arange(count) % len(PALETTE)], jnp.float32), jnp.ones((count, 1)), axis=1)
    goal_colour = jnp.broadcast_to(jnp.array(SHARED), own.shape) if landmarks else own
    shared = jnp.max(jnp.abs(goal - goal[:, :1])) < 1e-3
    first = (jnp.arange(count) == 0)[:, None]
    stem_colour = jnp.where(shared, jnp.where(first, jnp.array(SHARED), 0.0), faded(goal_colour, 0.25))

    layers = [
        _goals(view, goal, goal_colour, 1.3 * size, shared).moved(goal_shift),
        _halos(view, position, 2.0 * size, marks).moved(shift),
        _drones(view, body, size, own, marks).moved(shift),
    ]
    if obstacles is not None:
        layers = [_discs(view, obstacles), *layers] if plane else [*layers, _obstacles(view, obstacles, up)]
    whole = _joined(Layer, layers)
    order = jnp.argsort(whole.nearer) if plane else jnp.lexsort((whole.nearer, -whole.away))  # the farthest first
    discs = jnp.broadcast_to(1.1 * size * jnp.eye(3)[..., None], (3, 3, count))
    shadows = Polygons(
        _corners(view, position * _column(1.0, 1.0, 0.0), discs, _circle(1.0)[None])[0],
        jnp.tile(jnp.array([SHADOW]), (count, 1)),
    )
    heads, goal_heads = project(view, position) + shift, project(view, goal) + goal_shift
    scale, labels = (empty(Segments), empty(Labels)) if plane else _scale(view, aside, up)
    goal_stems = _stems(view, goal, goal_heads, stem_colour, 0.7)
    stems = _stems(view, position, heads, faded(own, 0.55), 0.9)

    distance = norm(position - goal)
    if landmarks:
        distance = jnp.min(norm(position[:, :, None] - goal[:, None]), axis=0)
    near = jnp.sum(distance < env_params.arrived)
    has_obstacles = jnp.array(False) if obstacles is None else jnp.any(obstacles.radius > 0)
    listed = [jnp.array(not landmarks), jnp.array(landmarks), shared & ~jnp.array(landmarks), has_obstacles]
    return Scene(
        segments=_joined(Segments, [_room(view, room), scale, goal_stems, stems]),
        boxes=empty(Boxes),
        circles=empty(Circles),
        labels=labels,
        bounds=edges,
        time=state.step * env_params.period,
        status=Status(near, jnp.sum(stats.collided), jnp.sum(stats.crashed), jnp.round(jnp.mean(distance), 2)),
        listed=jnp.stack([*listed, *(jnp.any(mark) for mark in marks)]),
        polygons=_joined(Polygons, [shadows, Polygons(whole.corners[order], whole.colour[order])]),
        trails=Trails(heads.T, jnp.full(count, 1.6), jnp.full(count, TRAIL), faded(own, 0.8)),
        agents=heads.T,
        axis=jnp.array(plane),
        space=() if plane else spaces.draw(body, size, _marked(own, marks), goal, own, obstacles, (aside, up), STYLE),
    )
