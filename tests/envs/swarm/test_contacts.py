"""Contacts: exchange of velocities, choice of partners, obstacles, walls, downwash."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from marljax.envs.swarm import contacts
from marljax.envs.swarm.quadrotor import Room, level

QUIET = contacts.Bounces(apart=0.0, own=0.0, off_obstacle=0.0, low=1.0, high=1.0)
USUAL = contacts.Bounces()


def bodies(position, velocity):
    position, velocity = (jnp.asarray(part, jnp.float32) for part in (position, velocity))
    return level(position, jnp.zeros(position.shape[1])).replace(velocity=velocity)


@functools.partial(jax.jit, static_argnums=0)
def drawn(count, seed=0):
    return contacts.draw(count, jax.random.key(seed))


@jax.jit
def respond(body, met):
    return contacts.respond(body, met, lambda: drawn(met.crashed.size), Room(), USUAL, contacts.Downwash())


def test_partners_are_the_nearest_new_contacts():
    rng = np.random.default_rng(0)
    for _ in range(20):
        position = rng.normal(size=(3, 6)).astype(np.float32)
        distance = np.array(contacts.distances(jnp.asarray(position)))
        assert np.isinf(np.diag(distance)).all()
        fresh = rng.random((6, 6)) < 0.4
        fresh = np.triu(fresh, 1) | np.triu(fresh, 1).T
        chosen, meets = contacts.partners(jnp.asarray(fresh), jnp.asarray(distance))
        nearest = [min((j for j in range(6) if fresh[i, j]), key=lambda j: distance[i, j], default=None) for i in range(6)]
        for drone, partner in enumerate(nearest):
            mutual = partner is not None and nearest[partner] == drone
            assert bool(meets[drone]) == mutual
            assert not mutual or chosen[drone] == partner


def test_without_noise_two_drones_collide_like_elastic_spheres():
    position = np.array([[0.0, 0.05, 3.0], [0.0, 0.05, 0.0], [1.0, 1.0, 1.0]])
    velocity = np.array([[1.0, -0.5, 7.0], [0.5, 0.0, 0.0], [0.2, 0.3, 0.0]])
    after = jax.jit(contacts.bounce)(
        bodies(position, velocity),
        jnp.array([1, 0, 0]),
        jnp.array([True, True, False]),
        drawn(3),
        QUIET.replace(spin_high=31.41593),
    )
    normal = np.array([-1.0, -1.0, 0.0]) / 2**0.5
    along = velocity[:, :2].T @ normal
    expected = velocity[:, :2] + normal[:, None] * (along[::-1] - along)
    fastest = np.linalg.norm(velocity[:, :2], axis=0).max()
    expected *= np.minimum(1, fastest / np.linalg.norm(expected, axis=0))  # the second would get faster than either was
    np.testing.assert_allclose(after.velocity[:, :2], expected, atol=1e-5)
    np.testing.assert_array_equal(after.velocity[:, 2], velocity[:, 2])
    spin = np.asarray(after.spin)
    np.testing.assert_allclose(np.linalg.norm(spin, axis=0), [31.41593, 31.41593, 0.0], rtol=1e-5)
    np.testing.assert_allclose(spin[:, 0], -spin[:, 1], rtol=1e-5)


def test_bounces_separate_two_drones_and_make_none_faster():
    position = np.array([[0.0, 0.08], [0.0, 0.0], [1.0, 1.0]])
    velocity = np.array([[1.5, -1.5], [0.0, 0.0], [0.0, 0.0]]) + np.random.default_rng(1).normal(size=(200, 3, 2)) * 0.3
    pair = jnp.array([1, 0]), jnp.full(2, True)
    collide = jax.vmap(lambda seed, velocity: contacts.bounce(bodies(position, velocity), *pair, drawn(2, seed), USUAL))
    after = jax.tree.map(np.asarray, jax.jit(collide)(jnp.arange(200), jnp.asarray(velocity)))
    fastest, speed = np.linalg.norm(velocity, axis=1).max(axis=1), np.linalg.norm(after.velocity, axis=1)
    assert (speed <= fastest[:, None] + 1e-5).all()
    assert 0.3 < (speed / fastest[:, None]).mean() < 0.75
    assert (after.velocity[:, 0, 1] > after.velocity[:, 0, 0]).mean() > 0.95
    spin = np.linalg.norm(after.spin, axis=1)
    np.testing.assert_allclose(spin[:, 0], spin[:, 1], rtol=1e-4)
    assert ((spin >= 10 * np.pi - 1e-3) & (spin <= 20 * np.pi + 1e-3)).all()


def test_drones_bounce_off_obstacles_along_the_normal():
    obstacles = contacts.Obstacles(jnp.array([0.0, 1.0, 5.0]), jnp.array([0.0, 0.0, 0.0]), jnp.array([0.3, 0.3, 0.0]))
    position = np.array([[0.0, 0.68, 5.0], [0.33, 0.0, 0.0], [1.0, 2.0, 1.0]])
    gap, normal = contacts.nearest_obstacle(jnp.asarray(position), obstacles)
    np.testing.assert_allclose(gap, [0.03, 0.02, 3.7], atol=1e-6)  # the third slot has none: 4 m to the second
    np.testing.assert_allclose(np.asarray(normal)[:, :2], [[0, -1], [1, 0], [0, 0]], atol=1e-6)
    velocity = np.array([[0.3, 2.0, 1.0], [-1.0, 0.0, 0.0], [0.4, 0.0, 0.0]])
    crashed = jnp.array([True, True, False])
    after = jax.jit(contacts.off_obstacle)(bodies(position, velocity), normal, crashed, drawn(3), QUIET)
    speed = np.linalg.norm(velocity, axis=0)
    np.testing.assert_allclose(after.velocity, np.stack([[0, speed[0], 0], [-speed[1], 0, 0], velocity[:, 2]], axis=1), atol=1e-5)
    spin = np.linalg.norm(after.spin, axis=0)
    assert ((spin[:2] >= np.pi / 2 - 1e-4) & (spin[:2] <= np.pi + 1e-4)).all()


def test_walls_and_the_ceiling_send_drones_inwards_and_down():
    count = 400
    position = jax.random.uniform(jax.random.key(0), (3, count), minval=-4.0, maxval=4.0).at[2].add(5.0)
    position = position.at[0, :100].set(5.0).at[1, 100:200].set(-5.0).at[2, 200:300].set(10.0)
    velocity = 3 * jax.random.normal(jax.random.key(1), (3, count))
    no = jnp.zeros((count, count), bool)
    met = contacts.Contacts(no, contacts.distances(position), no[0], jnp.zeros((3, count)), no)
    body = bodies(position, velocity)
    after = respond(body, met)
    vx, vy, vz = np.asarray(after.velocity)
    assert (vx[:100] < 0).all()
    assert (vy[100:200] > 0).all()
    assert (vz[:300] < 0).all()
    np.testing.assert_array_equal(after.velocity[:, 300:], velocity[:, 300:])
    before, speed = np.linalg.norm(velocity, axis=0), np.linalg.norm(after.velocity, axis=0)
    assert ((speed[:300] >= 0.1 - 1e-6) & (speed[:300] <= np.maximum(0.8 * before[:300], 0.1) + 1e-5)).all()
    np.testing.assert_array_equal(after.spin, body.spin)


def test_downwash_pushes_along_the_thrust_axis():
    position = np.array([[0.0, 0.05, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.7, 1.7, 1.2]])
    body = bodies(position, np.zeros((3, 4)))
    distance = contacts.distances(body.position)
    below = np.asarray(jax.jit(contacts.in_downwash)(body, distance, contacts.Downwash()))
    expected = np.zeros((4, 4), bool)
    expected[0, 1] = True  # 0.3 m below the first; the third is beside it, the fourth 0.8 m below
    expected[1, 3] = True  # 0.5 m below the second
    np.testing.assert_array_equal(below, expected)
    steady = contacts.Downwash(push_noise=0.0, twist_noise=0.0)
    after = jax.jit(contacts.blow)(body, jnp.asarray(below), distance, drawn(4), steady)
    distance = np.array([np.hypot(0.05, 0.3), np.hypot(0.05, 0.5)])
    push = np.maximum(0.01 * 6 / 17 * (7 - 10 * distance), 0)
    np.testing.assert_allclose(after.velocity, [[0] * 4, [0] * 4, [0, -push[0], 0, -push[1]]], atol=1e-6)
    twist = 0.01 * 0.3 * (distance - 1) ** 2
    np.testing.assert_allclose(np.linalg.norm(after.spin, axis=0), [0, twist[0], 0, twist[1]], rtol=1e-4)


def test_a_step_without_contacts_draws_nothing_and_changes_nothing():
    position = np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    body, no = bodies(position, np.ones((3, 2))), jnp.zeros((2, 2), bool)
    met = contacts.Contacts(no, contacts.distances(body.position), no[0], jnp.zeros((3, 2)), no)
    after = respond(body, met)
    jax.tree.map(np.testing.assert_array_equal, after, body)
