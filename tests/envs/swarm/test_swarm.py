"""``swarm``: contract, hover, rewards and thresholds, observations, permutations of drones, long random flights, bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marljax
from marljax.envs.swarm import Swarm, contacts
from marljax.envs.swarm import stats as statistics
from marljax.envs.swarm import view as views
from marljax.envs.swarm.params import RewardWeights, shares
from marljax.envs.swarm.point_mass import PointMass
from marljax.envs.swarm.quadrotor import Quadrotor, Room
from marljax.envs.swarm.scenarios import Ranges
from marljax.errors import UserError
from marljax.testing import check_env

HOVER = 1 / 1.9
ARM = 0.0325 * 2**0.5


@pytest.fixture(scope="module")
def env():
    return Swarm(preset="obstacles", drones=6)


@pytest.fixture(scope="module")
def step(env):
    return jax.jit(env.step)


def silent(env):
    """Parameters without any noise."""
    params = env.default_params.replace(position_noise=0.0, velocity_noise=0.0, gyro_noise=0.0)
    return params.replace(drone=params.drone.replace(noise=0.0)) if env.dynamics == "quadrotor" else params


def placed(env, position, goal=None, obstacles=None):
    """A state with drones at ``position`` [3, N], level and hovering."""
    env_params = silent(env)
    state, _ = env.reset(jax.random.key(0), env_params)
    position = jnp.asarray(position, state.goal.dtype)
    body = state.body.replace(position=position, velocity=jnp.zeros_like(position))
    body = body.replace(rotation=jnp.broadcast_to(jnp.eye(3)[:, :, None], body.rotation.shape))
    body = body.replace(motor=jnp.full(body.motor.shape, HOVER**0.5))
    goal = position if goal is None else jnp.asarray(goal, position.dtype)
    goals = state.goals.replace(phases=jnp.broadcast_to(goal, state.goals.phases.shape), kind=jnp.zeros((), jnp.int32))
    state = state.replace(body=body, goal=goal, goals=goals.replace(drift=jnp.zeros(())))
    if env.obstacles:
        x, y, radius = obstacles or (jnp.full(env.obstacles, 4.0), jnp.full(env.obstacles, 4.0), jnp.zeros(env.obstacles))
        state = state.replace(obstacles=contacts.Obstacles(*(jnp.asarray(part, position.dtype) for part in (x, y, radius))))
    return state, env_params


def apart(count, metres=1.0):
    """[3, N] positions in a row at a height of 2 m."""
    return np.stack([metres * (np.arange(count) - 0.5 * (count - 1)), np.zeros(count), np.full(count, 2.0)])


HOVERING = jnp.full((6, 4), 2 * HOVER - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "obstacles", "drones": 3},
        {"preset": "coverage", "drones": 3, "history": 2},
        pytest.param({"preset": "open", "dynamics": "point3d"}, marks=pytest.mark.slow),
        pytest.param({"preset": "coverage", "dynamics": "point3d", "obstacles": 8}, marks=pytest.mark.slow),
        pytest.param({"preset": "open", "drones": 3, "integrator": "rk4"}, marks=pytest.mark.slow),
        pytest.param({"drones": 3, "history": 3, "motors": "observed"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_keeps_the_contract(options):
    env = Swarm(**options)
    check_env(env, env.default_params.replace(duration=20), num_steps=50)


def test_a_perfect_hover_returns_what_the_reference_says():
    """In float64: nobody steers, and float32's rounding would tip the drones over some seconds."""
    env = Swarm(drones=2)

    def one(state, key):
        state, timestep = env.step(key, state, HOVERING[:2], env_params)
        return state, (timestep.reward, timestep.truncated, timestep.metrics)

    with jax.enable_x64(True):
        state, env_params = placed(env, apart(2))
        keys = jax.random.split(jax.random.key(0), 1500)
        _, (rewards, cut, metrics) = jax.jit(lambda state: jax.lax.scan(one, state, keys))(state)
        rewards, cut, metrics = jax.tree.map(np.asarray, (rewards, cut, metrics))
    np.testing.assert_allclose(rewards.sum(axis=0), 1500 / 200 * (1 - 0.05 * (2 * HOVER - 1) * 2), atol=1e-6)
    np.testing.assert_allclose(rewards.sum(axis=0), 7.4605, atol=5e-5)
    np.testing.assert_array_equal(cut, np.arange(1500) == 1499)
    assert metrics["success"][-1] == 1
    assert metrics["distance"][-1] < 1e-6


def test_coverage_ends_at_its_limit():
    env = Swarm(preset="coverage", drones=2)
    step = jax.jit(env.step)
    state, _ = env.reset(jax.random.key(0))
    state = state.replace(step=jnp.asarray(env.default_params.duration - 2, jnp.int32))
    for is_last in (False, True):
        state, timestep = step(jax.random.key(1), state, jnp.zeros((2, 2)))
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (is_last, False)


def test_a_preset_only_fills_in_options_that_are_not_given():
    assert Swarm(preset="coverage") == Swarm(preset="coverage", limit="end") != Swarm(preset="coverage", limit="truncate")
    assert dataclasses.replace(Swarm(), preset="coverage").limit == "truncate"
    assert Swarm(preset="open", dynamics="point2d").limit_ends is False
    assert Swarm(preset="swap") == Swarm(preset="lissajous") != Swarm(preset="swap", drones=4)
    assert dataclasses.replace(Swarm(preset="swap"), preset="open").default_params.mix.max() == pytest.approx(1 / 9)


def test_rewards_are_those_of_the_formula(env, step):
    """Against NumPy: motion and position, proximity, new contacts of drones and with obstacles."""
    position = apart(6, 1.0)
    position[0, 1] = position[0, 0] + 2 * ARM - 0.002  # touch
    position[0, 3] = position[0, 2] + 4 * ARM - 0.02  # are near
    middle = 0.5 * (position[0, 4] + position[0, 5])
    radius = 0.5 * (position[0, 5] - position[0, 4]) - ARM + 0.001  # both touch it
    obstacles = (np.array([middle] + [4.0] * 15), np.zeros(16), np.array([radius] + [0.0] * 15))
    goal = position + np.array([[0.3], [-0.4], [1.2]])
    state, env_params = placed(env, position, goal=goal, obstacles=obstacles)
    before = state.body.position.at[0].add(jnp.array([0.0, 0.01, 0.0, 0.0, -0.01, 0.01]))  # a step earlier nobody touched
    velocity = (state.body.position - before) / 0.01
    action = HOVERING.at[:, 0].add(0.3)
    moving = state.replace(body=state.body.replace(position=before, velocity=velocity))
    after, timestep = step(jax.random.key(3), moving, action, env_params)
    body = jax.tree.map(np.asarray, after.body)
    away = np.linalg.norm(body.position - goal, axis=0)
    cost = away + 0.05 * np.linalg.norm(action, axis=1) - body.rotation[2, 2] + 0.1 * np.linalg.norm(body.spin, axis=0)
    distance = np.linalg.norm(body.position[:, :, None] - body.position[:, None], axis=0) + 9 * np.eye(6)
    near = np.maximum(1 - distance / 0.18385, 0).sum(axis=1)
    fresh = np.array([1, 1, 0, 0, 0, 0]), np.array([0, 0, 0, 0, 1, 1])
    expected = -cost / 200 - 0.01 * 4 * near - 5 * fresh[0] - 5 * fresh[1]
    # the spin after a contact is part of the same step's costs
    np.testing.assert_allclose(timestep.reward, expected, atol=2e-4)
    _, timestep = step(jax.random.key(4), after.replace(body=after.body.replace(velocity=0 * velocity)), action, env_params)
    assert (timestep.reward > -4).all(), "a lasting contact costs nothing again"


@pytest.mark.parametrize(("gap", "touches"), [(2 * ARM - 1e-4, True), (2 * ARM + 1e-4, False)])
def test_drones_touch_at_twice_the_arm(env, step, gap, touches):
    position = apart(6)
    position[0, 1] = position[0, 0] + gap
    state, env_params = placed(env, position)
    state = state.replace(body=state.body.replace(position=state.body.position.at[0, 1].add(0.05)))
    moved = state.replace(body=state.body.replace(velocity=state.body.velocity.at[0, 1].set(-5.0)))
    _, timestep = step(jax.random.key(0), moved, HOVERING, env_params)
    assert (np.asarray(timestep.reward)[:2] < -4).all() == touches


def test_neighbours_are_ranked_by_distance_and_closing_speed():
    rng = np.random.default_rng(0)
    position, velocity = rng.normal(size=(3, 7)), rng.normal(size=(3, 7)) * 2
    position[:, 6] = [30.0, 0.0, 0.0]
    found = np.asarray(views.neighbours(jnp.asarray(position), jnp.asarray(velocity), 6)).reshape(6, 6, 7)
    for own in range(7):
        offset, relative = position - position[:, [own]], velocity - velocity[:, [own]]
        distance = np.linalg.norm(offset, axis=0)
        rank = distance + (offset * relative).sum(axis=0) / np.maximum(distance, 1e-9)
        order = [other for other in np.argsort(rank) if other != own]
        expected = [np.concatenate([np.clip(offset[:, j], -10, 10), np.clip(relative[:, j], -6, 6)]) for j in order]
        np.testing.assert_allclose(found[:, :, own], expected, atol=1e-5)


def test_sensor_noise_has_the_declared_deviations(env):
    def errors(key):
        state, timestep = env.reset(key, env.default_params)
        body, position = state.body, timestep.obs[:, :3].T + state.goal
        return position - body.position, timestep.obs[:, 3:6].T - body.velocity, timestep.obs[:, 15:18].T - body.spin

    for found, deviation in zip(
        jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(0), 500)), (5e-3, 1e-2, 1.75e-4), strict=True
    ):
        np.testing.assert_allclose([found.mean(), found.std()], [0, deviation], atol=0.03 * deviation)


def test_motors_and_the_last_actions_are_observed():
    env = Swarm(drones=2, neighbours=0, history=2, motors="observed")
    state, timestep = env.reset(jax.random.key(0), env.default_params)
    np.testing.assert_array_equal(timestep.obs[:, 19:], np.zeros((2, 12)))
    actions = jax.random.uniform(jax.random.key(1), (3, 2, 4), minval=-1.5, maxval=1.5)
    for number, action in enumerate(actions):
        state, timestep = env.step(jax.random.key(number), state, action, env.default_params)
    np.testing.assert_array_equal(timestep.obs[:, 19:23], state.body.motor.T)
    np.testing.assert_array_equal(timestep.obs[:, 23:], jnp.clip(jnp.concatenate([actions[2], actions[1]], axis=1), -1.0, 1.0))
    assert env.obs_layout[0].width == 19 + 4 + 8
    seen = env.global_state(state, env.default_params).reshape(-1)[:-1].reshape(2, -1)
    np.testing.assert_array_equal(seen[:, -4:], state.body.motor.T)
    hidden = Swarm(drones=2, neighbours=0).global_state(state, env.default_params).reshape(-1)[:-1].reshape(2, -1)
    np.testing.assert_array_equal(hidden, seen[:, :-4])


def test_landmarks_come_with_the_distance_of_the_nearest_other_drone():
    rng = np.random.default_rng(3)
    position, marks = rng.normal(size=(2, 4)), rng.normal(size=(2, 5))
    found = np.asarray(views.landmarks(jnp.asarray(position), jnp.asarray(marks), 3)).reshape(3, 3, 4)
    distance = np.linalg.norm(marks[:, None] - position[:, :, None], axis=0)  # [drones, landmarks]
    for own in range(4):
        nearest = np.argsort(distance[own])[:3]
        others = np.delete(distance, own, axis=0).min(axis=0)
        expected = [[*(marks[:, mark] - position[:, own]), others[mark]] for mark in nearest]
        np.testing.assert_allclose(found[:, :, own], expected, atol=1e-6)


def test_the_field_is_the_distance_to_the_nearest_obstacle():
    rng = np.random.default_rng(1)
    x, y, radius = rng.normal(size=5) * 2, rng.normal(size=5) * 2, np.array([0.3, 0.2, 0.4, 0.0, 0.3])
    position = rng.normal(size=(3, 4))
    found = np.asarray(views.field(jnp.asarray(position), contacts.Obstacles(*map(jnp.asarray, (x, y, radius)))))
    for drone in range(4):
        for number in range(9):
            at = position[:2, drone] + 0.1 * np.array([number // 3 - 1, number % 3 - 1])
            expected = min(np.hypot(*(at - (x[k], y[k]))) - radius[k] for k in range(5) if radius[k])
            assert found[number, drone] == pytest.approx(expected, abs=1e-5)


def test_permuting_drones_permutes_everything(env, monkeypatch):
    """Together with their random numbers."""
    order = np.array([3, 1, 5, 0, 2, 4])
    rng = np.random.default_rng(2)
    inwards = np.array([[0.1, 0, 0], [-0.1, 0, 0], [0, 0.1, 0], [0, -0.1, 0], [0, 0, 0.1], [0, 0, -0.1]]).T
    crowd = inwards + rng.uniform(-0.01, 0.01, (3, 6)) + np.array([[0.3], [0.0], [2.0]])  # contacts, downwash and an obstacle
    state, env_params = placed(env, crowd, obstacles=(np.zeros(16), np.zeros(16), np.array([0.2] + [0.0] * 15)))
    state = state.replace(body=state.body.replace(velocity=jnp.asarray(-5.0 * (inwards / 0.1), jnp.float32)))
    draws = jax.random.normal(jax.random.key(5), (4 * 6,)), jax.random.uniform(jax.random.key(6), (6,))
    action = jax.random.uniform(jax.random.key(7), (4, 6), minval=-1.0)
    drawn, permuted = contacts.draw, lambda leaf: leaf[..., order] if leaf.ndim and leaf.shape[-1] == 6 else leaf
    timing = statistics.timing(jnp.array(200), state.goals.kind, env_params)

    def after(state, thrust, landing, action):
        draws = thrust, landing, jax.random.key_data(jax.random.key(8))
        given = draws, action, state.body, state.goal, state.obstacles, state.stats, timing, env_params
        moved = env._advance(jax.random.key_impl(jax.random.key(0)), *given)
        obs = env.observe(state.replace(body=moved[0], sensed=jnp.zeros((9, 6))), env_params).obs.T
        return moved, obs

    usual = jax.jit(lambda *given: after(*given))(state, *draws, action)  # a lambda each: the second is traced with other draws
    monkeypatch.setattr(contacts, "draw", lambda drones, key: jax.tree.map(permuted, drawn(drones, key)))
    swapped = jax.tree.map(permuted, state.replace(obstacles=None)).replace(obstacles=state.obstacles)
    thrust = draws[0].reshape(4, 6)[:, order].reshape(-1)
    other = jax.jit(lambda *given: after(*given))(swapped, thrust, draws[1][order], action[:, order])
    assert (usual[0][2] < -4).all(), "the crowd should collide"
    for one, two in zip(jax.tree.leaves(usual), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(one, float)[..., order], np.asarray(two, float), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("drones", "neighbours", "steps"),
    [(6, 2, 300), pytest.param(128, 127, 100, marks=pytest.mark.slow)],
)
def test_long_random_flights_stay_finite_and_in_the_room(drones, neighbours, steps):
    env = Swarm(preset="obstacles", drones=drones, neighbours=neighbours)
    vec = marljax.vectorize(env, 4)
    env_params = env.default_params.replace(mix=shares(("obstacles_same", "swap", "lissajous")))

    def one(carried, key):
        state, worst = carried
        key_action, key_step = jax.random.split(key)
        # thrust that mostly carries the drone, so that it flies, meets others and falls
        action = jnp.clip(0.1 + 0.4 * jax.random.normal(key_action, (4, drones, 4)), -1, 1)
        state, timestep = vec.step(key_step, state, action, env_params)
        body = state.env.body
        square = jnp.einsum("eijn,eikn->ejkn", body.rotation, body.rotation) - jnp.eye(3)[:, :, None]
        finite = jnp.all(
            jnp.array([jnp.isfinite(leaf).all() for leaf in (timestep.obs, timestep.reward, *jax.tree.leaves(body))])
        )
        position = body.position
        outside = jnp.maximum(jnp.abs(position[:, :2]).max() - 5, jnp.maximum(position[:, 2].max() - 10, -position[:, 2].min()))
        now = jnp.stack([jnp.abs(square).max(), outside, 1.0 - finite, jnp.abs(body.spin).max()])
        return (state, jnp.maximum(worst, now)), None

    state, _ = vec.reset(jax.random.key(0), env_params)
    keys = jax.random.split(jax.random.key(1), steps)
    _, worst = jax.jit(lambda s: jax.lax.scan(one, (s, jnp.zeros(4)), keys)[0])(state)
    skew, outside, broken, spin = (float(part) for part in worst)
    assert broken == 0
    assert skew < 1e-5
    assert outside <= 1e-6
    assert spin < 40 + 63 + 4  # contacts with a drone and an obstacle add to the fastest spin of flight until the next step


def test_metrics_count_outcomes(env, step):
    position = apart(6) + jnp.array([0.0, 0.0, 5.0])[:, None]  # high enough not to fall to the floor within 1 s
    state, env_params = placed(env, position, goal=position + np.array([[0, 0, 0, 0, 0, 3.0], [0] * 6, [0] * 6]))
    velocity = jnp.zeros((3, 6)).at[0, 1].set(-3.0)  # the second flies into the first
    state = state.replace(body=state.body.replace(position=state.body.position.at[0, 1].add(-0.88), velocity=velocity))
    late = state.replace(step=jnp.array(1400, jnp.int32))

    def end(state):
        for key in jax.random.split(jax.random.key(0), 100):
            state, timestep = step(key, state, HOVERING, env_params)
        return jax.tree.map(float, timestep.metrics)

    lying = state.replace(body=state.body.replace(position=state.body.position.at[2, :2].set(0.01)))
    assert end(lying)["floor"] == pytest.approx(2 / 6, abs=0.01)  # two of six, for 1 s
    found = end(late)
    assert found["floor"] == 0
    assert found["collision"] == pytest.approx(2 / 6)
    assert found["deadlock"] == pytest.approx(1 / 6)  # the one whose goal is 3 m away
    assert found["success"] == pytest.approx(3 / 6)
    assert found["crash"] == 0
    early = end(state.replace(step=jnp.array(0, jnp.int32)))
    assert early["collision"] == 0, "contacts in the first 1.5 s do not count"


def pushed(position, action, steps):
    """Positions and velocities of two point masses and one before an obstacle (x = 2, radius 0.3), on a line, steps of 10 ms."""
    velocity = np.zeros(3)
    for _ in range(steps):
        depth = np.array([0.2 - (position[1] - position[0]), 0.4 - (2.0 - position[2])])
        force = 500 * 0.001 * np.logaddexp(depth / 0.001, 0)
        velocity = velocity + 0.01 * (5 * action + [-force[0], force[0], -force[1]] - velocity)
        position = position + 0.01 * velocity
    return position, velocity


def test_point_masses_push_one_another_off_and_stay_in_their_plane():
    env = Swarm(preset="coverage", drones=3, obstacles=1)
    env_params = silent(env)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env_params)
    obstacles = contacts.Obstacles(jnp.array([2.0]), jnp.array([0.0]), jnp.array([0.3]))
    start, action = np.array([0.0, 0.19, 1.62]), np.array([0.4, 0.0, -1.0])
    position = jnp.stack([jnp.asarray(start), jnp.zeros(3), jnp.zeros(3)]).astype(jnp.float32)
    state = state.replace(body=state.body.replace(position=position), obstacles=obstacles)
    after, timestep = jax.jit(env.step)(jax.random.key(0), state, jnp.zeros((3, 2)).at[:, 0].set(action), env_params)
    expected = pushed(start, action, 5)
    found = np.asarray(after.body.position), np.asarray(after.body.velocity)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[0], other, atol=1e-5)
        assert (one[1:] == 0).all()
    apart = np.linalg.norm(found[0][:2, :, None] - np.asarray(after.goal)[:2, None], axis=0)
    close = max(1 - (expected[0][1] - expected[0][0]) / 0.4, 0)
    reward = -0.05 * (0.5 * apart.min(axis=0).mean() + 0.5 * close * np.array([1, 1, 0]))
    np.testing.assert_allclose(timestep.reward, reward, atol=1e-5)


def test_the_integrator_is_an_option():
    """A step of a tumbling drone, motors off."""
    state, env_params = placed(Swarm(drones=1), apart(1))
    body = state.body.replace(spin=jnp.array([[5.0], [8.0], [-6.0]]), motor=jnp.zeros((4, 1)))
    euler, rk4 = (
        Swarm(drones=1, integrator=name).step(jax.random.key(0), state.replace(body=body), jnp.full((1, 4), -1.0), env_params)[0]
        for name in ("euler", "rk4")
    )
    assert 1e-5 < np.abs(euler.body.rotation - rk4.body.rotation).max() < 1e-2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"preset": "swapp"}, "preset.*did you mean"),
        ({"drones": 4, "neighbours": 4}, "neighbours=4.*drones=4"),
        ({"obstacles": 64}, "obstacles=64.*63"),
        ({"preset": "coverage", "dynamics": "quadrotor"}, "dynamics=point2d"),
        ({"preset": "coverage", "integrator": "rk4"}, "integrator=rk4.*dynamics=quadrotor"),
        ({"preset": "coverage", "motors": "critic"}, "motors=critic.*dynamics=quadrotor"),
    ],
    ids=str,
)
def test_invalid_options_are_one_clear_line(options, says):
    with pytest.raises(UserError, match=says) as caught:
        Swarm(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["start_near", "near_share"])
def test_drones_start_near_goals_but_not_near_landmarks_to_cover(name):
    env = Swarm(preset="coverage", drones=2)
    with pytest.raises(UserError, match="set start_near and near_share to 0"):
        env.check_params(env.default_params.replace(**{name: 0.5}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"density": 0.51}, "density=0.51.*give obstacles=32"),
        ({"density": 1.0}, r"density=1.*0\.9843$"),
        ({"ranges": Ranges(density_high=0.51)}, "ranges.density_high=0.51.*give obstacles=32"),
        ({"obstacle_size": 0.95}, "obstacle_size.*at most 0.908"),
        ({"ranges": Ranges(size_high=0.95)}, "ranges.size_high=0.95.*at most 0.908"),
        ({"ranges": Ranges(swap_low=0.9)}, "ranges.swap_low=0.9.*ranges.swap_high=0.8"),
        ({"ranges": Ranges(centre=5.0)}, "room.half=5.*at least 5.55"),
        ({"room": Room(height=3.0)}, "room.height=3.*at least 3.55"),
        ({"weights": RewardWeights(collision=-1.0)}, "weights.collision=-1"),
        ({"drone": Quadrotor(offset=0.6)}, "make them smaller"),
        ({"drone": PointMass()}, "structure"),
        ({"mix": np.zeros(11)}, "mix"),
    ],
    ids=str,
)
def test_invalid_params_are_one_clear_line(env, changes, says):
    with pytest.raises(UserError, match=says) as caught:
        env.check_params(env.default_params.replace(**changes))
    assert "\n" not in str(caught.value)


def test_obstacle_scenarios_need_obstacles():
    for env in (Swarm(preset="static_same"), Swarm(preset="obstacles", obstacles=0)):
        with pytest.raises(UserError, match="give obstacles=16"):
            env.check_params(env.default_params.replace(mix=shares(("obstacles_random",))))
    Swarm(preset="coverage").check_params(Swarm(preset="coverage").default_params)
