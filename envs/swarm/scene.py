"""How ``swarm`` is drawn: the room from one of its corners, in perspective, made of flat shapes.

Drones are drawn larger than life (``ENLARGED``), with a shadow below them and a stem that tells their height. Whatever lies
farther from the camera is painted first. Distance along the floor decides what is farther: along a ray from a camera that looks
down it grows as the distance itself does, and upright cylinders have one distance at all heights.

Vectors are ``[3, K]``, components first, in m. Axis letters: N drones, M obstacles, P parts of a drone, V corners.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.scene import Boxes, Circles, Colour, Labels, Polygons, Scene, Segments, Trails, empty
from marljax.envs.swarm.contacts import distances, nearest_obstacle
from marljax.envs.swarm.quadrotor import Body, norm

# one for each drone, again and again; without red, which is for contacts, and grey
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

EYE = 4.5, math.radians(-62.0), math.radians(18.0)  # of the camera: distance in reaches of the view, direction, elevation
LEAST_UP = 4.0  # m that the view goes up at least
MARGIN = 0.4, 0.15  # m left of the view, for the scale, and on the other sides
LINES = 10  # grid lines either way from the middle, 1 m apart, as far as the room goes
ENLARGED = 3.0, 2.0  # times life size: up to eight drones, and very many
TRAIL = 1.2  # s
V = 32  # corners of a polygon


class Status(NamedTuple):
    """How the drones fare, [] each."""

    at_the_goal: jax.Array  # drones that are near theirs now
    collided: jax.Array  # with another drone, so far
    crashed: jax.Array  # into an obstacle, so far
    m_to_the_goal: jax.Array  # mean


class Camera(NamedTuple):
    """A pinhole camera whose film stands upright, as architects take pictures: what is upright in the room is so in them."""

    eye: jax.Array  # [3] m
    axes: jax.Array  # [3, 3]: right, up and forwards in rows; forwards is level
    focal: jax.Array  # [] m: what lies this far ahead is drawn in its size
    drop: jax.Array  # [] m of the target below the eye


class Marks(NamedTuple):
    """What is told of drones, [N] bool each, in the order of the legend."""

    touches: jax.Array
    collided: jax.Array  # after the first moments
    lying: jax.Array
    outside: jax.Array  # of the picture: drawn at its edge


class Layer(NamedTuple):
    """Polygons and what decides their order; those of K bodies with P parts are part after part."""

    corners: jax.Array  # [P * K, V, 2]
    colour: jax.Array  # [P * K, 4]
    away: jax.Array  # [P * K] m along the floor from the camera to the body
    nearer: jax.Array  # [P * K] the order within a body: those of its parts last that are above others, as seen from the camera

    def moved(self, way: jax.Array) -> "Layer":
        """With the bodies elsewhere in the picture, by ``way`` [2, K]."""
        parts = len(self.corners) // way.shape[1]
        return self._replace(corners=self.corners + jnp.tile(way.T, (parts, 1))[:, None])


def camera(eye: jax.Array, target: jax.Array) -> Camera:
    """A camera at ``eye`` [3] that shows ``target`` [3], which is not above or below it, as the origin."""
    x, y, z = target - eye
    ahead = jnp.sqrt(x * x + y * y)
    forwards = jnp.stack([x / ahead, y / ahead, jnp.zeros_like(ahead)])
    right, up = jnp.stack([forwards[1], -forwards[0], jnp.zeros_like(ahead)]), jnp.array([0.0, 0.0, 1.0])
    return Camera(eye, jnp.stack([right, up, forwards]), ahead, -z)


def project(camera: Camera, points: jax.Array) -> jax.Array:
    """[2, …] where points [3, …] appear, in m at the distance of the target."""
    right, up, ahead = seen(camera, points)
    shrink = camera.focal / ahead
    return jnp.stack([right * shrink, up * shrink + camera.drop])


def seen(camera: Camera, points: jax.Array) -> jax.Array:
    """[3, …] points in the camera's frame: right, up, ahead."""
    eye = camera.eye.reshape(3, *[1] * (points.ndim - 1))
    return jnp.einsum("ij,j...->i...", camera.axes, points - eye)


def reach(drones: int, has_obstacles: bool, room: Any) -> tuple[jax.Array, jax.Array]:
    """m from the middle of the room, and m up, that a picture holds: where few drones fly, or all that have obstacles."""
    aside = 4.0 if has_obstacles else min(5.0, max(2.6, 1.3 * drones ** (1 / 3)))
    return jnp.minimum(room.half, aside), jnp.minimum(room.height, max(LEAST_UP, aside))


def room_camera(aside: jax.Array, up: jax.Array) -> Camera:
    """The one that a picture which reaches so far is taken with."""
    distance, direction, elevation = EYE
    across = distance * math.cos(elevation)
    offset = jnp.array([across * math.cos(direction), across * math.sin(direction), distance * math.sin(elevation)])
    target = jnp.stack([jnp.zeros(()), jnp.zeros(()), 0.35 * up])
    return camera(target + offset * aside, target)


def bounds(view: Camera, aside: jax.Array, up: jax.Array) -> jax.Array:
    """[4] of the picture."""
    corners = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (0, 1)], float).T
    x, y = project(view, _column(aside, aside, up) * corners)
    return jnp.stack([jnp.min(x) - MARGIN[0], jnp.max(x) + MARGIN[1], jnp.min(y) - MARGIN[1], jnp.max(y) + MARGIN[1]])


def shift(view: Camera, place: jax.Array, edges: jax.Array, size: Any) -> jax.Array:
    """[2, K] m to move what is at ``place`` [3, K] and reaches ``size`` m in all directions, to have it in the picture."""
    x, y = project(view, place)
    margin = size * view.focal / seen(view, place)[2]
    inside = jnp.clip(x, edges[0] + margin, edges[1] - margin), jnp.clip(y, edges[2] + margin, edges[3] - margin)
    return jnp.stack([inside[0] - x, inside[1] - y])


# --- plans: shapes of V corners in a frame of three axes ------------------------------------------------------------------


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
    """[V, 3] from the origin to a place."""
    end = np.array([x, y])
    aside = np.array([-y, x]) / math.hypot(x, y) * width / 2
    corners = np.array([-aside, aside, end + aside, end - aside])
    return np.append(corners[np.arange(V) * 4 // V], np.zeros((V, 1)), axis=1)


def _cylinder(low: float, high: float) -> np.ndarray:
    """[V, 3] outline of an upright cylinder of radius 1 and height 1, from one share of its width (-1 to 1) to another.

    The axes are to the right, towards the camera, and up: the near half of its foot, then the far half of its top.
    """
    right = np.linspace(low, high, V // 2)
    toward = np.sqrt(1 - right**2)
    foot = np.stack([right, toward, np.zeros(V // 2)], axis=1)
    return np.append(foot, (foot * [1, -1, 0] + [0, 0, 1])[::-1], axis=0)


def _shapes(view: Camera, centre: jax.Array, axes: jax.Array, plans: np.ndarray) -> jax.Array:
    """[P, K, V, 2] corners of plans [P, V, 3] at ``centre`` [3, K] along ``axes`` [3, 3, K] (in columns)."""
    points = centre[:, None, :, None] + jnp.einsum("ijk,pvj->ipkv", axes, plans)
    return jnp.moveaxis(project(view, points), 0, -1)


def _layer(view: Camera, centre: jax.Array, axes: jax.Array, plans: np.ndarray, colours: jax.Array) -> Layer:
    """Of K bodies, each made of P plans, one above the other along their third axis; ``colours`` [P, K, 4]."""
    to_eye = view.eye[:, None] - centre
    away = jnp.broadcast_to(jnp.hypot(to_eye[0], to_eye[1]), colours.shape[:2])
    nearer = plans[..., 2].mean(axis=1)[:, None] * jnp.sum(axes[:, 2] * to_eye, axis=0)
    return Layer(
        _shapes(view, centre, axes, plans).reshape(-1, V, 2), colours.reshape(-1, 4), away.reshape(-1), nearer.reshape(-1)
    )


# --- what is in the room --------------------------------------------------------------------------------------------------


def _quadrotors(view: Camera, body: Any, size: Any, own: jax.Array, marks: Marks) -> Layer:
    """Four arms in the drones' planes, a rotor at the end of each (those in front are paler), and a hub.

    Args:
        view: the camera.
        body: the drones.
        size: m from the hub to a rotor's axis.
        own: [N, 4] their colours.
        marks: what is told of them.
    """
    colour = _marked(own, marks)
    hub = jnp.where(marks.collided[:, None], jnp.array(COLLIDED), _mixed(colour, 0.0, 0.3))
    dark, pale = _mixed(colour, 0.0, 0.45), _mixed(colour, 1.0, 0.55)
    signs = np.array([(1, -1), (-1, -1), (-1, 1), (1, 1)]) / math.sqrt(2)
    arms = [_bar(x, y, 0.22) for x, y in signs]
    rotors = [_circle(0.47, x, y, 0.18) for x, y in signs]
    plans = np.stack([*arms, *rotors, _circle(0.45, z=0.07)])
    return _layer(view, body.position, size * body.rotation, plans, jnp.stack([dark] * 4 + [pale, colour, colour, pale, hub]))


def _points(view: Camera, place: jax.Array, size: Any, own: jax.Array, marks: Marks) -> Layer:
    """A ball each, of radius ``size`` m, its middle dark where it has collided."""
    colour = _marked(own, marks)
    light = jnp.where(marks.collided[:, None], jnp.array(COLLIDED), _mixed(colour, 1.0, 0.45))
    plans = np.stack([_circle(1.0), _circle(0.45, -0.25, 0.3)])
    layer = _layer(view, place, _facing(view, size, place.shape[1]), plans, jnp.stack([colour, light]))
    return layer._replace(nearer=jnp.repeat(jnp.arange(2.0), place.shape[1]))


def _marked(own: jax.Array, marks: Marks) -> jax.Array:
    """[N, 4] colours of drones."""
    colour = jnp.where(marks.lying[:, None], jnp.array(LYING), own)
    colour = jnp.where(marks.touches[:, None], jnp.array(TOUCHES), colour)
    return jnp.where(marks.outside[:, None], _faded(colour, OUTSIDE[3]), colour)


def _halos(view: Camera, place: jax.Array, size: Any, marks: Marks) -> Layer:
    """A red glow behind drones that touch something."""
    colour = jnp.where(marks.touches[:, None], _faded(jnp.array([TOUCHES]), 0.3), 0.0)
    layer = _layer(view, place, _facing(view, size, place.shape[1]), _circle(1.0)[None], colour[None])
    return layer._replace(nearer=jnp.full_like(layer.nearer, -jnp.inf))


def _obstacles(view: Camera, obstacles: Any, height: jax.Array) -> Layer:
    """Translucent cylinders up to ``height``, darker on one side."""
    centre = jnp.stack([obstacles.x, obstacles.y, jnp.zeros_like(obstacles.x)])
    toward = view.eye[:2, None] - centre[:2]
    toward = toward / jnp.sqrt(jnp.sum(toward**2, axis=0)) * obstacles.radius
    zero = jnp.zeros_like(obstacles.x)
    axes = jnp.stack(
        [
            jnp.stack([-toward[1], toward[0], zero]),
            jnp.stack([toward[0], toward[1], zero]),
            jnp.stack([zero, zero, zero + height]),
        ],
        axis=1,
    )
    plans = np.stack([_circle(1.0), _cylinder(-1, 1), _cylinder(0.1, 1), _cylinder(0.65, 1), _circle(1.0, z=1.0)])
    fewer = min(1.0, math.sqrt(16 / len(obstacles.x)))  # many that stand one behind the other shall not hide everything
    shares = fewer * np.array([1.0, 0.7, 0.35, 0.35, 0.5])[:, None, None] * [0, 0, 0, 1] + [1, 1, 1, 0]
    there = (obstacles.radius > 0)[:, None]
    return _layer(view, centre, axes, plans, jnp.where(there, jnp.array(OBSTACLE), 0.0) * shares)


def _goals(view: Camera, goal: jax.Array, own: jax.Array, size: Any, shared: jax.Array) -> Layer:
    """Open rings that face the camera; one target instead where all drones have the same goal."""
    first = (jnp.arange(goal.shape[1]) == 0)[:, None]
    faint, rings = (jnp.where(shared, 0.0, _faded(own, alpha)) for alpha in (0.18, 0.9))
    target = jnp.where(shared & first, jnp.array(SHARED), 0.0)
    plans = np.stack([_circle(1.0), _ring(1.0, 0.75), _ring(1.5, 1.38), _ring(0.85, 0.73), _circle(0.2)])
    axes = _facing(view, size, goal.shape[1])
    return _layer(view, goal, axes, plans, jnp.stack([faint, rings, target, target, target]))


def _goal_stems(own: jax.Array, shared: jax.Array) -> jax.Array:
    """[N, 4] colours."""
    first = (jnp.arange(len(own)) == 0)[:, None]
    return jnp.where(shared, jnp.where(first, jnp.array(SHARED), 0.0), _faded(own, 0.25))


def _shadows(view: Camera, place: jax.Array, size: Any) -> Polygons:
    """Discs on the floor, below which nothing lies."""
    on_floor = place * _column(1.0, 1.0, 0.0)
    axes = jnp.broadcast_to(size * jnp.eye(3)[..., None], (3, 3, place.shape[1]))
    corners = _shapes(view, on_floor, axes, _circle(1.0)[None])[0]
    return Polygons(corners, jnp.tile(jnp.array([SHADOW]), (place.shape[1], 1)))


def _facing(view: Camera, size: Any, count: int) -> jax.Array:
    """[3, 3, K] axes of what faces the camera: right, up, away."""
    return jnp.broadcast_to(size * view.axes.T[..., None], (3, 3, count))


def _room(view: Camera, room: Any) -> Segments:
    """The floor's grid, 1 m wide, and the room's edges, but for those in front."""
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
    there = (number <= up)[:, None]
    place = jnp.stack([jnp.zeros(len(number)) - aside, jnp.zeros(len(number)) - aside, jnp.asarray(number)])
    x, y = project(view, place)
    left = jnp.append(jnp.stack([x - 0.08, y]), jnp.stack([x[:1], y[:1]]), axis=1)
    top = project(view, jnp.stack([-aside, -aside, up]))
    right = jnp.append(jnp.stack([x, y]), top[:, None], axis=1)
    colour = jnp.where(jnp.append(there, jnp.array([[True]]), axis=0), jnp.array(SCALE), 0.0)
    label = Labels(jnp.stack([x - 0.22, y], axis=1), jnp.asarray(number, jnp.int32), colour[:-1])
    return Segments(left.T, right.T, jnp.full(len(colour), 0.8), colour), label


def _stems(view: Camera, place: jax.Array, head: jax.Array, colour: jax.Array, width: float) -> Segments:
    """From the floor below ``place`` [3, K] to ``head`` [2, K] in the picture."""
    floor = project(view, place * _column(1.0, 1.0, 0.0))
    return Segments(floor.T, head.T, jnp.full(place.shape[1], width), colour)


def _mixed(colour: jax.Array, light: float, share: float) -> jax.Array:
    """[K, 4] colours with a share of black (0) or white (1)."""
    return jnp.append((1 - share) * colour[:, :3] + share * light, colour[:, 3:], axis=1)


def _faded(colour: jax.Array, alpha: float) -> jax.Array:
    """[K, 4] colours, less opaque."""
    return colour * jnp.array([1.0, 1.0, 1.0, alpha])


def _column(*parts: Any) -> jax.Array:
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])[:, None]


def enlarged(drones: int) -> float:
    """How many times larger than life drones are drawn."""
    most, least = ENLARGED
    return min(most, max(least, most * (8 / drones) ** 0.25))


# --- the whole ------------------------------------------------------------------------------------------------------------


def draw(state: Any, env_params: Any, landmarks: bool = False) -> Scene:
    """The scene, in m at the distance of the room's middle.

    Args:
        state: of the episode.
        env_params: the room, the drones' size, and what counts as arrived.
        landmarks: whether goals belong to nobody.
    """
    body, goal, place, count = state.body, state.goal, state.body.position, state.body.position.shape[1]
    aside, up = reach(count, state.obstacles is not None or landmarks, env_params.room)
    view, flies = room_camera(aside, up), isinstance(body, Body)
    edges, size = bounds(view, aside, up), (enlarged(count) if flies else 1.0) * env_params.drone.arm
    moved, moved_goal = (shift(view, part, edges, 2.2 * size) for part in (place, goal))
    lying = body.grounded if flies else jnp.zeros(count, bool)
    met = state.tally.collided | state.tally.crashed
    marks = Marks(touches(state, env_params), met, lying, jnp.any(moved != 0, axis=0))
    own = jnp.append(jnp.asarray(PALETTE[np.arange(count) % len(PALETTE)], jnp.float32), jnp.ones((count, 1)), axis=1)
    goal_colour = jnp.broadcast_to(jnp.array(SHARED), own.shape) if landmarks else own
    shared = jnp.max(jnp.abs(goal - goal[:, :1])) < 1e-3
    has_obstacles = jnp.array(False) if state.obstacles is None else jnp.any(state.obstacles.radius > 0)
    layers = [
        _goals(view, goal, goal_colour, 1.3 * size, shared).moved(moved_goal),
        _halos(view, place, 2.0 * size, marks).moved(moved),
        (_quadrotors(view, body, size, own, marks) if flies else _points(view, place, size, own, marks)).moved(moved),
    ]
    if state.obstacles is not None:
        layers.append(_obstacles(view, state.obstacles, up))
    heads, goal_heads = project(view, place) + moved, project(view, goal) + moved_goal
    scale, labels = _scale(view, aside, up)
    goal_stems = _stems(view, goal, goal_heads, _goal_stems(goal_colour, shared), 0.7)
    stems = _stems(view, place, heads, _faded(own, 0.55), 0.9)
    return Scene(
        segments=_joined(Segments, [_room(view, env_params.room), scale, goal_stems, stems]),
        boxes=empty(Boxes),
        circles=empty(Circles),
        labels=labels,
        bounds=edges,
        time=state.step * env_params.period,
        status=_status(state, env_params, landmarks),
        listed=jnp.stack(
            [
                jnp.array(not landmarks),
                jnp.array(landmarks),
                shared & ~jnp.array(landmarks),
                has_obstacles,
                *(jnp.any(mark) for mark in marks),
            ]
        ),
        polygons=_joined(Polygons, [_shadows(view, place, 1.1 * size), _sorted(layers)]),
        trails=Trails(heads.T, jnp.full(count, 1.6), jnp.full(count, TRAIL), _faded(own, 0.8)),
        axis=jnp.array(False),
    )


def _status(state: Any, env_params: Any, landmarks: bool) -> Status:
    distance, tally = norm(state.body.position - state.goal), state.tally
    if landmarks:
        distance = jnp.min(norm(state.body.position[:, :, None] - state.goal[:, None]), axis=0)
    near = jnp.sum(distance < env_params.arrived)
    return Status(near, jnp.sum(tally.collided), jnp.sum(tally.crashed), jnp.round(jnp.mean(distance), 2))


def touches(state: Any, env_params: Any) -> jax.Array:
    """[N] bool: in contact with a drone, an obstacle or a wall."""
    arm, room, (x, y, z) = env_params.drone.arm, env_params.room, state.body.position
    touching = jnp.any(distances(state.body.position) <= 2.0 * arm, axis=1)
    touching |= (jnp.maximum(jnp.abs(x), jnp.abs(y)) >= room.half) | (z >= room.height)
    if state.obstacles is None:
        return touching
    return touching | (nearest_obstacle(state.body.position, state.obstacles)[0] <= arm)


def _sorted(layers: list[Layer]) -> Polygons:
    """What is farther away first."""
    whole = _joined(Layer, layers)
    order = jnp.lexsort((whole.nearer, -whole.away))
    return Polygons(whole.corners[order], whole.colour[order])


def _joined(kind: Any, records: list[Any]) -> Any:
    return kind(*(jnp.concatenate(parts) for parts in zip(*records, strict=True)))
