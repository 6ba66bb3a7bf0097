"""Pictures show positions, attitudes, contacts and goals of the drones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.swarm import Swarm, scene
from marljax.envs.swarm.contacts import Obstacles
from marljax.envs.swarm.quadrotor import Room, yaw_rotation
from marljax.viz import animation

ENV = Swarm(preset="obstacles")
PARAMS = ENV.default_params
DRAW = jax.jit(ENV.scene)
PARTS = 9  # of a drone
LEVEL = yaw_rotation(jnp.ones(8), jnp.zeros(8))


@pytest.fixture(scope="module")
def state():
    """Drones 0.5 m apart along x, 2 m up, each with a goal of its own 0.3 m above it; one obstacle in the middle."""
    state = jax.jit(ENV.initial)(jax.random.key(0), PARAMS)
    number = jnp.arange(8.0)
    position = jnp.stack([0.5 * number - 1.75, jnp.full(8, -1.0), jnp.full(8, 2.0)])
    there = jnp.arange(16) == 0
    obstacles = Obstacles(jnp.zeros(16), jnp.zeros(16), jnp.where(there, 0.3, 0.0))
    body = state.body.replace(position=position, rotation=LEVEL)
    return state.replace(body=body, goal=position + jnp.array([[0.0], [0.0], [0.3]]), obstacles=obstacles)


def moved(state, drone, *position):
    moved = state.body.position.at[:, drone].set(jnp.array(position))
    return state.replace(body=state.body.replace(position=moved))


def polygons_of(drawn, colour):
    """[K, V, 2] corners of the polygons of a colour."""
    alike = np.abs(np.asarray(drawn.polygons.colour) - np.array(colour)).max(axis=1) < 1e-3
    return np.asarray(drawn.polygons.corners)[alike]


def own_colour(drone):
    return (*scene.PALETTE[drone % len(scene.PALETTE)], 1.0)


def listed(drawn):
    return {name for (name, _), needed in zip(ENV.display.legend, np.asarray(drawn.listed), strict=True) if needed}


def test_a_camera_projects_as_computed_by_hand():
    """From 10 m before the target and 4 m above it: at the target's distance lengths are true, twice as far they are half."""
    view = scene.camera(jnp.array([0.0, -10.0, 6.0]), jnp.array([0.0, 0.0, 2.0]))
    points = jnp.array([[0, 0, 2], [1, 0, 2], [0, 0, 5], [3, 10, 2], [0, 10, 6], [-1, -5, 0]], float).T
    expected = [[0, 0], [1, 0], [0, 3], [1.5, 2], [0, 4], [-2, -8]]
    np.testing.assert_allclose(scene.project(view, points).T, expected, atol=1e-6)
    # from the east, north is right
    view = scene.camera(jnp.array([10.0, 0.0, 2.0]), jnp.array([0.0, 0.0, 2.0]))
    np.testing.assert_allclose(scene.project(view, jnp.array([0.0, 1.0, 3.0])), [1, 1], atol=1e-6)


@pytest.mark.parametrize(("drones", "obstacles"), [(1, False), (8, False), (8, True), (128, False)])
def test_the_picture_holds_the_part_of_the_room_in_view(drones, obstacles):
    aside, up = scene.reach(drones, obstacles, Room())
    view = scene.room_camera(aside, up)
    left, right, bottom, top = scene.bounds(view, aside, up)
    corners = np.array([(x, y, z) for x in (-aside, aside) for y in (-aside, aside) for z in (0.0, up)]).T
    x, y = scene.project(view, jnp.asarray(corners))
    assert left < x.min() < x.max() < right
    assert bottom < y.min() < y.max() < top
    assert 1.0 < (right - left) / (top - bottom) < 1.6
    if drones == 128:
        assert (aside, up) == (5.0, 5.0)
    small = scene.reach(drones, obstacles, Room(half=2.0, height=1.5))
    np.testing.assert_allclose(small, [2.0, 1.5])


def test_every_drone_is_in_the_picture(state):
    """Bodies, goals and heads of stems are within the bounds; those that were shifted there are pale."""
    position = jax.random.uniform(jax.random.key(1), (64, 3, 8), minval=-5.0, maxval=5.0) + jnp.array([[0.0], [0.0], [5.0]])
    states = jax.vmap(lambda position: state.replace(body=state.body.replace(position=position)))(position)
    drawn = jax.tree.map(np.asarray, jax.jit(jax.vmap(ENV.scene, (0, None)))(states, PARAMS))
    left, right, bottom, top = drawn.bounds[0]
    np.testing.assert_array_equal(drawn.bounds, np.tile(drawn.bounds[0], (64, 1)))
    corners = drawn.polygons.corners[:, 8:][drawn.polygons.colour[:, 8:, 3] > 0]  # shadows come first
    assert left <= corners[..., 0].min() < corners[..., 0].max() <= right
    assert bottom <= corners[..., 1].min() < corners[..., 1].max() <= top
    aside, up = scene.reach(8, True, PARAMS.room)
    view = scene.room_camera(aside, up)
    true = np.asarray(scene.project(view, jnp.moveaxis(position, 1, 0))).transpose(1, 2, 0)
    kept = np.abs(drawn.trails.position - true).max(axis=-1) < 1e-4
    paled = np.abs(drawn.polygons.colour[..., 3] - scene.OUTSIDE[3]).reshape(64, -1) < 1e-3
    np.testing.assert_array_equal(paled.sum(axis=1), PARTS * (~kept).sum(axis=1))
    assert 0.2 < kept.mean() < 0.9
    np.testing.assert_array_equal(drawn.listed[:, -1], ~kept.all(axis=1))


def test_a_drone_is_drawn_larger_than_life_with_its_position_and_attitude(state):
    aside, up = scene.reach(8, True, PARAMS.room)
    view = scene.room_camera(aside, up)
    state = moved(state, 0, 0.0, -2.0, 2.0)
    assert (scene.enlarged(1), scene.enlarged(8), scene.enlarged(10**6)) == (3.0, 3.0, 2.0)
    for yaw in (0.0, 2.0):
        turn = yaw_rotation(jnp.full(8, jnp.cos(yaw)), jnp.full(8, jnp.sin(yaw)))
        body = state.body.replace(rotation=turn)
        rotors = polygons_of(DRAW(state.replace(body=body), PARAMS), own_colour(0)).mean(axis=1)
        axes = 3.0 * PARAMS.drone.offset * np.array([[-1, -1, 0.255], [-1, 1, 0.255]]).T  # the two behind; the others are paler
        behind = body.position[:, :1] + turn[..., 0] @ axes
        expected = np.asarray(scene.project(view, behind)).T
        np.testing.assert_allclose(np.sort(rotors, axis=0), np.sort(expected, axis=0), atol=0.01)


def test_contacts_landings_and_flights_out_of_the_picture_are_marked(state):
    plain = DRAW(state, PARAMS)
    assert listed(plain) == {"drone and its goal", "obstacle"}
    assert plain.status._asdict() == {"at_the_goal": 8, "collided": 0, "crashed": 0, "m_to_the_goal": pytest.approx(0.3)}
    assert len(polygons_of(plain, own_colour(3))) == 2
    high = jnp.array(PARAMS.room.height)
    for position, drones in (
        ((0.33, -1.0, 2.0), (3, 4)),
        ((0.33, 0.0, 2.0), (3,)),
        ((0.0, 5.0, 2.0), (3,)),
        ((0.0, -1.0, high), (3,)),
    ):
        drawn = DRAW(moved(state, 3, *position), PARAMS)
        assert listed(drawn) - listed(plain) - {"outside of the picture"} == {"touches something"}
        halo = polygons_of(drawn, (*scene.TOUCHES[:3], 0.3))
        np.testing.assert_allclose(
            np.sort(halo.mean(axis=1), axis=0), np.sort(drawn.trails.position[np.array(drones)], axis=0), atol=1e-3
        )
        assert [len(polygons_of(drawn, own_colour(drone))) for drone in (3, 4)] == [0, 2 - 2 * (4 in drones)]
    stats = state.stats.replace(collided=state.stats.collided.at[3].set(True), crashed=state.stats.crashed.at[2:4].set(True))
    drawn = DRAW(state.replace(stats=stats), PARAMS)
    assert listed(drawn) - listed(plain) == {"has collided"}
    assert len(polygons_of(drawn, scene.COLLIDED)) == 2
    assert (drawn.status.collided, drawn.status.crashed) == (1, 2)
    body = state.body.replace(grounded=state.body.grounded.at[3].set(True))
    drawn = DRAW(state.replace(body=body), PARAMS)
    assert listed(drawn) - listed(plain) == {"lies on the floor"}
    assert len(polygons_of(drawn, scene.LYING)) == 2
    drawn = DRAW(moved(state, 3, 0.0, 2.0, 9.0), PARAMS)
    assert listed(drawn) - listed(plain) == {"outside of the picture"}
    assert drawn.status.at_the_goal == 7


def test_a_shared_goal_is_one_mark(state):
    drawn = DRAW(state, PARAMS)
    assert len(polygons_of(drawn, scene.SHARED)) == 0
    assert [len(polygons_of(drawn, (*own_colour(drone)[:3], 0.9))) for drone in range(8)] == [1] * 8
    drawn = DRAW(state.replace(goal=jnp.broadcast_to(state.goal[:, :1], state.goal.shape)), PARAMS)
    assert len(polygons_of(drawn, scene.SHARED)) == 3
    assert [len(polygons_of(drawn, (*own_colour(drone)[:3], 0.9))) for drone in range(8)] == [0] * 8
    assert "goal of all" in listed(drawn)


def test_farther_shapes_are_painted_first(state):
    """Of a drone and a cylinder, and of two drones one above the other."""
    aside, up = scene.reach(8, True, PARAMS.room)
    eye = np.asarray(scene.room_camera(aside, up).eye)
    toward = eye[:2] / np.hypot(*eye[:2])

    def rank(drawn, colour):
        return np.flatnonzero(np.abs(np.asarray(drawn.polygons.colour) - np.array(colour)).max(axis=1) < 1e-3)

    foot = scene.OBSTACLE
    for side in (1.0, -1.0):
        drawn = DRAW(moved(state, 0, *(side * toward), 1.0), PARAMS)
        obstacle, drone = rank(drawn, foot), rank(drawn, own_colour(0))
        assert len(obstacle) == 1
        assert len(drone) == 2
        assert np.all(drone > obstacle) == (side > 0)
    for height in (0.5, 3.5):
        drawn = DRAW(moved(moved(state, 0, *(1.5 + 0.2 * toward), height), 1, 1.5, 1.5, 2.0), PARAMS)
        assert rank(drawn, own_colour(0)).min() > rank(drawn, own_colour(1)).max()


def test_rotors_hide_arms_from_above_and_arms_hide_rotors_from_below(state):
    for turn in (1.0, -1.0):
        rotation = LEVEL * jnp.array([1.0, turn, turn])[:, None]
        drawn = DRAW(state.replace(body=state.body.replace(rotation=rotation)), PARAMS)
        colours = np.asarray(drawn.polygons.colour)
        arm = (*(0.55 * scene.PALETTE[3]), 1.0)
        arms, rotors = (np.flatnonzero(np.abs(colours - c).max(axis=1) < 1e-3) for c in (arm, own_colour(3)))
        assert (len(arms), len(rotors)) == (4, 2)
        assert np.all(rotors[:, None] > arms) if turn > 0 else np.all(rotors[:, None] < arms)


@pytest.mark.parametrize(("env", "obstacles"), [(Swarm(drones=1), 0), (Swarm(preset="obstacles", drones=12, obstacles=2), 2)])
def test_scenes_of_all_sizes_keep_the_renderers_contract(env, obstacles, tmp_path):
    env_params, count = env.default_params, env.num_agents

    @jax.jit
    def episode(key):
        states = jax.vmap(env.initial, (0, None))(jax.random.split(key, 2), env_params)
        return states, jax.vmap(env.scene, (0, None))(states, env_params)

    states, scenes = jax.tree.map(np.asarray, episode(jax.random.key(0)))
    shapes = count + (5 + 1 + PARTS) * count + 5 * obstacles
    assert scenes.polygons.corners.shape == (2, shapes, scene.V, 2)
    assert scenes.polygons.colour.shape == (2, shapes, 4)
    assert scenes.trails.position.shape == (2, count, 2)
    assert scenes.listed.shape == (2, len(env.display.legend))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(scenes))
    alone = jax.jit(env.scene)(jax.tree.map(lambda leaf: leaf[1], states), env_params)
    jax.tree.map(lambda one, many: np.testing.assert_allclose(one, many[1], atol=1e-4), alone, scenes)
    assert animation.picture(env, alone, tmp_path / "swarm.png").stat().st_size > 10_000


def test_point_masses_are_balls_and_landmarks_have_no_owner():
    env = Swarm(preset="coverage")
    state = jax.jit(env.initial)(jax.random.key(3), env.default_params)
    state = state.replace(goal=state.body.position.at[:, 0].add(jnp.array([1.0, 0.0, 0.0])))
    drawn = jax.jit(env.scene)(state, env.default_params)
    assert listed(drawn) == {"landmark"}
    assert drawn.status.at_the_goal == env.drones - 1
    balls = polygons_of(drawn, own_colour(0))
    assert len(balls) == 1
    np.testing.assert_allclose(np.ptp(balls[0], axis=0), [0.2, 0.2], rtol=0.01)
    np.testing.assert_allclose(balls[0].mean(axis=0), state.body.position[:2, 0], atol=1e-3)  # seen from above
    assert drawn.axis
    assert len(polygons_of(drawn, (*scene.SHARED[:3], 0.72))) == env.drones
