"""What drones do to one another: exchange of speeds, who meets whom, obstacles, walls, the air below others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.swarm import contacts
from marljax.envs.swarm.quadrotor import Room, level

QUIET = contacts.Bounces(apart=0.0, own=0.0, off_obstacle=0.0, low=1.0, high=1.0)
USUAL = contacts.Bounces()


def bodies(place, velocity):
    place, velocity = (jnp.asarray(part, jnp.float32) for part in (place, velocity))
    return level(place, jnp.zeros(place.shape[1])).replace(velocity=velocity)


def drawn(count, seed=0):
    return contacts.draw(count, jax.random.key(seed))


def test_each_meets_the_nearest_of_those_that_it_has_just_come_to_touch():
    rng = np.random.default_rng(0)
    for _ in range(20):
        place = rng.normal(size=(3, 6)).astype(np.float32)
        apart = np.array(contacts.distances(jnp.asarray(place)))
        assert np.isinf(np.diag(apart)).all()
        fresh = rng.random((6, 6)) < 0.4
        fresh = np.triu(fresh, 1) | np.triu(fresh, 1).T
        chosen, meets = contacts.partners(jnp.asarray(fresh), jnp.asarray(apart))
        nearest = [min((j for j in range(6) if fresh[i, j]), key=lambda j: apart[i, j], default=None) for i in range(6)]
        for drone, partner in enumerate(nearest):
            mutual = partner is not None and nearest[partner] == drone
            assert bool(meets[drone]) == mutual
            assert not mutual or chosen[drone] == partner


def test_without_chance_two_drones_exchange_what_lies_between_them():
    """As two equal elastic spheres do."""
    place = np.array([[0.0, 0.05, 3.0], [0.0, 0.05, 0.0], [1.0, 1.0, 1.0]])
    velocity = np.array([[1.0, -0.5, 7.0], [0.5, 0.0, 0.0], [0.2, 0.3, 0.0]])
    after = contacts.bounce(
        bodies(place, velocity), jnp.array([1, 0, 0]), jnp.array([True, True, False]), drawn(3), QUIET.replace(spin_high=31.41593)
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


def test_bounces_part_two_drones_and_make_none_faster():
    count, rng = 2, np.random.default_rng(1)
    parted, shares = [], []
    for seed in range(200):
        place = np.array([[0.0, 0.08], [0.0, 0.0], [1.0, 1.0]])
        velocity = np.array([[1.5, -1.5], [0.0, 0.0], [0.0, 0.0]]) + rng.normal(size=(3, 2)) * 0.3
        after = contacts.bounce(bodies(place, velocity), jnp.array([1, 0]), jnp.full(count, True), drawn(2, seed), USUAL)
        fastest = np.linalg.norm(velocity, axis=0).max()
        speed = np.linalg.norm(after.velocity, axis=0)
        assert (speed <= fastest + 1e-5).all()
        shares.append(speed / fastest)
        parted.append(after.velocity[0, 1] > after.velocity[0, 0])
        spin = np.linalg.norm(after.spin, axis=0)
        assert spin[0] == pytest.approx(spin[1], rel=1e-4)
        assert 10 * np.pi - 1e-3 <= spin[0] <= 20 * np.pi + 1e-3
    assert np.mean(parted) > 0.95
    assert 0.3 < np.mean(shares) < 0.75


def test_obstacles_throw_drones_back_along_their_normal():
    obstacles = contacts.Obstacles(jnp.array([0.0, 1.0, 5.0]), jnp.array([0.0, 0.0, 0.0]), jnp.array([0.3, 0.3, 0.0]))
    place = np.array([[0.0, 0.68, 5.0], [0.33, 0.0, 0.0], [1.0, 2.0, 1.0]])
    gap, normal = contacts.nearest_obstacle(jnp.asarray(place), obstacles)
    np.testing.assert_allclose(gap, [0.03, 0.02, 3.7], atol=1e-6)  # the third slot has none: 4 m to the second
    np.testing.assert_allclose(np.asarray(normal)[:, :2], [[0, -1], [1, 0], [0, 0]], atol=1e-6)
    velocity = np.array([[0.3, 2.0, 1.0], [-1.0, 0.0, 0.0], [0.4, 0.0, 0.0]])
    after = contacts.off_obstacle(bodies(place, velocity), normal, jnp.array([True, True, False]), drawn(3), QUIET)
    speed = np.linalg.norm(velocity, axis=0)
    np.testing.assert_allclose(after.velocity, np.stack([[0, speed[0], 0], [-speed[1], 0, 0], velocity[:, 2]], axis=1), atol=1e-5)
    spin = np.linalg.norm(after.spin, axis=0)
    assert ((spin[:2] >= np.pi / 2 - 1e-4) & (spin[:2] <= np.pi + 1e-4)).all()


def test_walls_and_the_ceiling_send_drones_inwards_and_down():
    count = 400
    place = jax.random.uniform(jax.random.key(0), (3, count), minval=-4.0, maxval=4.0).at[2].add(5.0)
    place = place.at[0, :100].set(5.0).at[1, 100:200].set(-5.0).at[2, 200:300].set(10.0)
    velocity = 3 * jax.random.normal(jax.random.key(1), (3, count))
    met = contacts.Met(
        jnp.zeros((count, count), bool),
        contacts.distances(place),
        jnp.zeros(count, bool),
        jnp.zeros((3, count)),
        jnp.zeros((count, count), bool),
    )
    body = bodies(place, velocity)
    after = contacts.respond(body, met, lambda: drawn(count), Room(), USUAL, contacts.Downwash())
    vx, vy, vz = np.asarray(after.velocity)
    assert (vx[:100] < 0).all()
    assert (vy[100:200] > 0).all()
    assert (vz[:300] < 0).all()
    np.testing.assert_array_equal(after.velocity[:, 300:], velocity[:, 300:])
    before, speed = np.linalg.norm(velocity, axis=0), np.linalg.norm(after.velocity, axis=0)
    assert ((speed[:300] >= 0.1 - 1e-6) & (speed[:300] <= np.maximum(0.8 * before[:300], 0.1) + 1e-5)).all()
    np.testing.assert_array_equal(after.spin, body.spin)


def test_the_air_below_a_drone_pushes_along_its_thrust_axis():
    place = np.array([[0.0, 0.05, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.7, 1.7, 1.2]])
    body = bodies(place, np.zeros((3, 4)))
    apart = contacts.distances(body.position)
    below = np.asarray(contacts.in_downwash(body, apart, contacts.Downwash()))
    expected = np.zeros((4, 4), bool)
    expected[0, 1] = True  # 0.3 m below the first; the third is aside, the fourth 0.8 m below
    expected[1, 3] = True  # 0.5 m below the second
    np.testing.assert_array_equal(below, expected)
    steady = contacts.Downwash(push_noise=0.0, twist_noise=0.0)
    after = contacts.blow(body, jnp.asarray(below), apart, drawn(4), steady)
    distance = np.array([np.hypot(0.05, 0.3), np.hypot(0.05, 0.5)])
    push = np.maximum(0.01 * 6 / 17 * (7 - 10 * distance), 0)
    np.testing.assert_allclose(after.velocity, [[0] * 4, [0] * 4, [0, -push[0], 0, -push[1]]], atol=1e-6)
    twist = 0.01 * 0.3 * (distance - 1) ** 2
    np.testing.assert_allclose(np.linalg.norm(after.spin, axis=0), [0, twist[0], 0, twist[1]], rtol=1e-4)


def test_a_step_without_contacts_draws_nothing_and_changes_nothing():
    place = np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    body, no = bodies(place, np.ones((3, 2))), jnp.zeros((2, 2), bool)
    met = contacts.Met(no, contacts.distances(body.position), no[0], jnp.zeros((3, 2)), no)
    after = contacts.respond(body, met, lambda: drawn(2), Room(), USUAL, contacts.Downwash())
    jax.tree.map(np.testing.assert_array_equal, after, body)
