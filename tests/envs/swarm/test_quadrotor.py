"""Quadrotors: golden values of the reference simulator, conservation laws, motor noise, the floor."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.swarm import quadrotor as bodies

DRONE, ROOM = bodies.Quadrotor(noise=0.0), bodies.Room()
HOVER = 1 / 1.9
GOLDEN = [  # of a drone that starts at rest at (0, 0, 5), motors cold: command, control steps, values
    ([HOVER] * 4, 1, {"z": 4.999759, "vz": -0.094190, "thrust": 0.032603}),
    ([HOVER] * 4, 10, {"z": 4.970619, "vz": -0.453666}),
    ([HOVER] * 4, 100, {"z": 4.531311, "vz": -0.489628}),
    ([0.55, 0.5, 0.55, 0.5], 50, {"z": 4.773649, "vz": -0.500666, "spin z": -1.326528}),
    (
        [0.6, 0.6, 0.5, 0.5],
        30,
        {"y": 0.095863, "z": 4.849730, "vy": 1.317212, "spin x": -15.516915, "upright": -0.369062},
    ),
    ([0.0] * 4, 50, {"z": 3.786013, "vz": -4.905}),
]


@functools.partial(jax.jit, static_argnames="integrator")
def flown(start, command, steps, drone=DRONE, key=None, integrator="euler"):
    """The body after some control steps of constant command [4, N]."""

    def step(index, body):
        shape = body.motor.shape
        noise = jnp.zeros(shape) if key is None else jax.random.normal(jax.random.fold_in(key, index), shape)
        return bodies.step(body, command, noise, jnp.zeros(shape[1:]), drone, ROOM, integrator)

    return jax.lax.fori_loop(0, steps, step, start)


def at(height, count=1):
    position = jnp.zeros((3, count)).at[2].set(height)
    return bodies.level(position, jnp.zeros(count))


def values(body):
    (x, y, z), (vx, vy, vz), spin = (np.asarray(part)[:, 0] for part in (body.position, body.velocity, body.spin))
    names = dict(zip(("spin x", "spin y", "spin z"), spin, strict=True))
    names |= {"x": x, "y": y, "z": z, "vx": vx, "vy": vy, "vz": vz}
    return names | {"thrust": np.asarray(body.motor)[0, 0] ** 2, "upright": np.asarray(body.rotation)[2, 2, 0]}


@pytest.mark.parametrize(("command", "steps", "expected"), GOLDEN)
def test_flights_are_those_of_the_reference(command, steps, expected):
    """By rk4 only tilted ones differ: at a constant torque Euler's angle lags half a substep, 0.04 rad at 15.5 rad/s."""
    command = np.array(command)[:, None]
    found = values(flown(at(5.0), command, steps))
    with jax.enable_x64(True):
        wide, rk4 = (values(flown(at(5.0), command, steps, integrator=name)) for name in bodies.INTEGRATORS)
    tilts = "upright" in expected
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(wide[name], value, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(rk4[name], value, atol=0.05 if tilts and name != "spin x" else 1e-6, err_msg=name)
    assert not tilts or rk4["upright"] < expected["upright"] - 0.02


@pytest.mark.parametrize("wide", [True, False])
def test_a_free_body_keeps_its_energy_and_angular_momentum_by_rk4(wide):
    """It tumbles at 11.5 rad/s without any torque for 5 s, which doubles the energy by Euler steps."""
    count, rate = 65, 11.5
    axes = np.random.default_rng(0).normal(size=(3, count))
    axes[:, 0] = 0.442, 7.110, 9.028  # where Euler gains most
    inertia = np.array([DRONE.inertia_x, DRONE.inertia_y, DRONE.inertia_z])[:, None]
    with jax.enable_x64(wide):
        spin = rate * axes / np.linalg.norm(axes, axis=0)
        start = at(9.0, count).replace(spin=jnp.asarray(spin))
        floating = dataclasses.replace(DRONE, gravity=1e-9)  # scales the thrust, too
        ends = {name: flown(start, jnp.zeros((4, count)), 500, floating, integrator=name) for name in bodies.INTEGRATORS}
        rk4, euler = (jax.tree.map(np.asarray, ends[name]) for name in ("rk4", "euler"))

    def energy(spin):
        return np.sum(inertia * spin**2, axis=0)

    gained = energy(euler.spin) / energy(spin) - 1
    assert gained[0] == pytest.approx(1.03, abs=0.01)
    tolerance = 1e-7 if wide else 1e-5
    np.testing.assert_allclose(energy(rk4.spin), energy(spin), rtol=tolerance)
    before, after = inertia * spin, np.einsum("ijn,jn->in", rk4.rotation, inertia * rk4.spin)
    assert (np.linalg.norm(after - before, axis=0) < tolerance * np.linalg.norm(before, axis=0)).all()
    product = np.einsum("ijn,ikn->njk", rk4.rotation, rk4.rotation)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(3), product.shape), atol=1e-12 if wide else 1e-6)
    assert (euler.position == rk4.position).all()


def test_thrust_noise_is_an_autoregression_that_scales_with_the_command():
    """n ← 0.85 n + 0.01 N(0, 1) once per control step, and u n on top of the settled thrust u."""
    drone, half = bodies.Quadrotor(), jnp.full((4, 4_000), 0.5)
    end = flown(at(5.0, 4_000), half, 60, drone, jax.random.key(0)).noise
    np.testing.assert_allclose([end.mean(), end.std()], [0, 0.01 / np.sqrt(1 - 0.85**2)], atol=4e-4)
    noisy = at(5.0).replace(noise=jnp.ones((4, 1)))
    np.testing.assert_allclose(flown(noisy, half[:, :1], 3).noise, 0.85**3, rtol=1e-5)
    level = at(5.0).replace(motor=jnp.full((4, 1), 0.5**0.5))
    step = jax.jit(lambda noise: bodies.step(level, half[:, :1], jnp.full((4, 1), noise), jnp.zeros(1), drone, ROOM))
    assert values(step(2.0))["vz"] - values(step(0.0))["vz"] == pytest.approx(0.01 * 9.81 * 1.9 * 0.5 * 0.02, rel=1e-3)


def test_a_drone_lands_level_and_can_take_off_again():
    rolled = at(0.3).replace(rotation=bodies.rotate(at(0.3).rotation, jnp.array([[2.5], [0.0], [0.4]])))
    down = flown(rolled, jnp.zeros((4, 1)), 60)
    assert bool(down.grounded[0])
    np.testing.assert_allclose(np.asarray(down.rotation)[:, 2, 0], [0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(np.asarray(down.velocity), 0, atol=1e-6)
    assert values(down)["z"] == pytest.approx(float(DRONE.arm))
    up = flown(down, jnp.full((4, 1), 0.9), 60)
    assert values(up)["z"] > 0.2
    assert not bool(up.grounded[0])


def test_friction_stops_a_drone_that_slides():
    sliding = at(0.0).replace(velocity=jnp.array([[1.0], [0.0], [0.0]]), grounded=jnp.array([True]))
    after = flown(sliding, jnp.zeros((4, 1)), 10)
    assert values(after)["vx"] == pytest.approx(1 - 0.6 * 9.81 * 0.1, abs=1e-4)
    np.testing.assert_allclose(np.asarray(flown(after, jnp.zeros((4, 1)), 10).velocity), 0, atol=1e-6)
