"""``collective``: its neighbours against brute force, its physics against published and analytic values, its symmetries."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marljax
from marljax.config import compose
from marljax.envs.collective import Collective, population
from marljax.envs.collective.neighbours import Search
from marljax.errors import UserError
from marljax.testing import check_env

KEY = jax.random.key(0)
TASKS = ("vicsek", "kuramoto", "aggregation")
OPTIONS = [
    {"neighbours": "sorted", "agents": 64, "chunk": 8, "window": 40},
    {"reward": "global", "control": "replace", "absolute": False},
    {"task": "kuramoto", "frequencies": "normal", "reward": "global", "absolute": False},
    {"task": "aggregation", "reward": "global", "absolute": False},
    {"bins": 0, "grid": 2},
]


@functools.partial(jax.jit, static_argnums=0)
def step(env, state, action, params):
    """The next state, its reward, view and global state."""
    state, outcome = env.transition(KEY, state, action, params)
    return state, outcome.reward, env.observe(state, params), env.global_state(state, params)


def start(env, scale=1.0, **changes):
    """Parameters, an initial state and actions uniform in ±``scale``."""
    params = env.default_params.replace(**changes)
    actions = jax.random.uniform(KEY, (env.num_agents, *env.action_space.shape), minval=-scale, maxval=scale)
    return params, jax.jit(env.initial)(KEY, params), actions


@pytest.mark.parametrize(
    "options",
    [*({"task": task, "agents": 24} for task in TASKS), *(pytest.param(options, marks=pytest.mark.slow) for options in OPTIONS)],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_contract(options):
    env = Collective(**options)
    check_env(env, env.default_params.replace(duration=8), num_steps=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "viscek"}, "task.*did you mean vicsek"),
        ({"agents": -5}, "agents=-5"),
        ({"bins": 2}, "bins=2.* 0, or 3 to 32"),
        ({"neighbours": "sorted"}, "window=100.*neighbours=dense"),
        ({"neighbours": "sorted", "agents": 1000, "window": 90}, "window=90.* 129 to 1000"),
        ({"neighbours": "sorted", "task": "kuramoto"}, "neighbours=sorted.*task=vicsek"),
        ({"frequencies": "normal"}, "frequencies=normal.*task=kuramoto"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        Collective(**options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("env.noise=7", "env.noise=7"),
        ("env.duration=1", "env.duration=1"),
        ("env.task=kuramoto env.timestep=0", "env.timestep=0"),
        ("env.coupling=2", "unknown setting 'env.coupling'"),  # a parameter of another task
    ],
)
def test_invalid_params_are_rejected(overrides, message):
    with pytest.raises(UserError, match=message):
        compose.compose("ippo", ["env=collective", "tuned=none", *overrides.split()])


# --- neighbours -------------------------------------------------------------------------------------------------------

COUNT, LENGTH, RADIUS = 50, 8.0, 1.25


@pytest.fixture(scope="module")
def crowd():
    """Positions on a grid of 2^-6, whose distances float32 holds exactly, values to sum, and the sums by brute force."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, int(LENGTH) * 64, (2, COUNT)) / 64
    values = rng.standard_normal((3, COUNT))

    def sums(box):
        gaps = np.abs(x[:, None] - x), np.abs(y[:, None] - y)
        squared = sum(np.minimum(gap, box - gap) ** 2 if box else gap**2 for gap in gaps)
        return values @ (squared <= RADIUS**2)

    arrays = (jnp.array(part, jnp.float32) for part in (x, y, values))
    return *arrays, {None: sums(None), LENGTH: sums(LENGTH)}


@pytest.mark.parametrize(
    ("method", "chunk", "window", "box"),
    [
        *(("dense", chunk, 0, box) for chunk, box in ((1, None), (7, LENGTH), (7, None), (25, LENGTH), (50, None), (50, LENGTH))),
        *(("sorted", chunk, window, LENGTH) for chunk, window in ((1, 30), (6, 40), (10, 50), (49, 50))),
    ],
)
def test_neighbours_equal_brute_force(crowd, method, chunk, window, box):
    x, y, values, expected = crowd
    found = jax.jit(Search(method, COUNT, chunk, window).sums)(x, y, values, RADIUS, box)
    assert window == COUNT or found.missed == 0
    np.testing.assert_allclose(found.total, expected[box], atol=1e-5)


def test_overflow_is_counted_where_a_window_is_too_small(crowd):
    """All particles of a chunk with more candidates than the window are counted; the others' sums are right."""
    x, y, values, expected = crowd
    chunk, window = 4, 22
    found = jax.jit(Search("sorted", COUNT, chunk, window).sums)(x, y, values, RADIUS, LENGTH)
    order = np.argsort(np.asarray(y), kind="stable")
    height = np.asarray(y)[order]
    copies = np.concatenate([height - LENGTH, height, height + LENGTH])
    fits = np.zeros(COUNT, bool)
    for first in range(0, COUNT, chunk):
        rows = height[first : first + chunk]
        candidates = np.sum((copies >= rows[0] - RADIUS) & (copies <= rows[-1] + RADIUS))
        fits[order[first : first + chunk]] = candidates <= window
    assert 0 < found.missed == np.sum(~fits) < COUNT
    np.testing.assert_allclose(np.asarray(found.total)[:, fits], expected[LENGTH][:, fits], atol=1e-5)


def test_overflow_reaches_the_metrics_and_the_warnings():
    env = Collective(agents=64, neighbours="sorted", chunk=8, window=16, bins=0)
    params, state, actions = start(env, noise=0.0)
    one, zeros = state.particles, jnp.zeros(64)
    line = one.replace(y=zeros + 1, cos=zeros + 1, sin=zeros, mean_cos=zeros[None] + 1, mean_sin=zeros[None])
    _, _, view, _ = step(env, state.replace(particles=line), 0 * actions, params)
    assert view.metrics["overflow"] == 64
    assert set(env.display.warnings) <= set(view.metrics)


# --- densities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [3, 8])
def test_a_histogram_counts_with_raised_cosines_that_add_up_to_one(bins):
    angle = np.random.default_rng(1).uniform(-math.pi, math.pi, 40)
    harmonics = population.powers(jnp.cos(angle), jnp.sin(angle), bins - 1)
    found = np.asarray(population.shares(*(part.mean(axis=1, keepdims=True) for part in harmonics), bins))[:, 0]
    kernel = np.cos((angle - 2 * math.pi * np.arange(bins)[:, None] / bins) / 2) ** (2 * bins - 2)
    np.testing.assert_allclose(kernel.sum(axis=0), kernel.sum(axis=0).mean(), rtol=1e-9)
    np.testing.assert_allclose(found, (kernel / kernel.sum(axis=0)).mean(axis=1), atol=1e-5)


def test_an_even_population_has_density_one():
    position = np.linspace(-1.0, 1.0, 4001)
    circle = population.on_circle(jnp.cos(math.pi * position), jnp.sin(math.pi * position), 5)
    np.testing.assert_allclose(np.trapezoid(circle, position) / 2, np.ones(5), rtol=1e-4)
    line = population.on_line(jnp.array(3.0 * position), jnp.array(3.0), 8)
    np.testing.assert_allclose((np.trapezoid(line, position) / 2)[2:-2], np.ones(4), rtol=1e-4)
    np.testing.assert_allclose(population.joint(line, circle), np.asarray(line @ circle.T).reshape(-1) / 4001, rtol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_the_global_state_has_one_size_whatever_the_number_of_agents(task):
    sizes = set()
    for agents in (3, 50):
        env = Collective(task=task, agents=agents)
        sizes.add(
            jax.eval_shape(lambda env=env: env.global_state(env.initial(KEY, env.default_params), env.default_params)).shape
        )
    assert sizes == {(64,)}


# --- symmetries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_permuting_particles_permutes_everything_and_changes_nothing_else(task):
    env = Collective(task=task, agents=40, chunk=16)
    params, state, actions = start(env, **({"noise": 0.0} if task == "vicsek" else {}))
    order = jax.random.permutation(KEY, 40)

    def permute(tree):
        return jax.tree.map(lambda leaf: leaf[..., order] if leaf.ndim else leaf, tree)

    after, reward, view, global_state = step(env, state, actions, params)
    found = step(env, permute(state), actions[order], params)
    expected = permute(after), reward[order], view._replace(obs=view.obs[order]), global_state
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), found, expected)


@pytest.mark.parametrize("control", ["add", "replace"])
def test_without_absolute_headings_a_rotated_flock_observes_the_same(control):
    env = Collective(agents=40, absolute=False, control=control)
    params, state, actions = start(env, noise=0.0)
    one = state.particles
    quarter = env._task.with_neighbours(params.box - one.y, one.x, -one.sin, one.cos, params)
    after, reward, view, _ = step(env, state, actions, params)
    rotated, rotated_reward, rotated_view, _ = step(env, state.replace(particles=quarter), actions, params)
    np.testing.assert_allclose(rotated_view.obs, view.obs, atol=2e-4)
    np.testing.assert_allclose(rotated_reward, reward, atol=2e-5)
    np.testing.assert_allclose(rotated.particles.cos, -after.particles.sin, atol=2e-5)


# --- dynamics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control", ["add", "replace"])
def test_a_step_of_vicsek_in_double_precision(control):
    env = Collective(agents=30, control=control, bins=3)
    params, state, actions = start(env, speed=0.3)
    noise = jax.random.uniform(jax.random.key(1), (30,), minval=-2.0, maxval=2.0)
    after = jax.jit(env._task.move_with_noise)(noise, state.particles, actions.T, params)
    x, y, cos, sin = (np.asarray(getattr(state.particles, name), float) for name in ("x", "y", "cos", "sin"))

    def near(x, y):
        gaps = (np.abs(part[:, None] - part) for part in (x, y))
        return sum(np.minimum(gap, params.box - gap) ** 2 for gap in gaps) <= 1.0

    heading = np.arctan2(near(x, y) @ sin, near(x, y) @ cos) if control == "add" else np.arctan2(sin, cos)
    heading += params.max_turn * np.asarray(actions[:, 0], float) + np.asarray(noise)
    x, y = (x + 0.3 * np.cos(heading)) % params.box, (y + 0.3 * np.sin(heading)) % params.box
    np.testing.assert_allclose([after.x, after.y, after.cos], [x, y, np.cos(heading)], atol=1e-4)
    counts = near(x, y).sum(axis=1)
    local = np.abs(near(x, y) @ np.exp(1j * heading)) / counts
    np.testing.assert_allclose(env._task.evaluate(after, params)[0], local, atol=1e-4)
    observed = env._task.observations(after, params)[4]
    np.testing.assert_allclose(observed, counts / (30 * math.pi / params.box**2), rtol=1e-4)


ETAS = (0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
# Without control, v = 0.03, r = 1, parallel updates, mean of 800 steps after the first 800; computed by another program.
REFERENCE = {
    (100, 5.0): (1.00, 0.953, 0.817, 0.612, 0.343, 0.123, 0.091),
    (400, 10.0): (0.999, 0.944, 0.786, 0.553, 0.232, 0.063, 0.044),
}


@functools.partial(jax.jit, static_argnums=(0, 2))
def uncontrolled(env, params, instances):
    """Final metrics of episodes without control, [instances]."""

    def episode(key):
        key_start, key_steps = jax.random.split(key)
        action = jnp.zeros((env.num_agents, env.action_space.shape[0]))

        def advance(count, state):
            return env.transition(jax.random.fold_in(key_steps, count), state, action, params)[0]

        state = jax.lax.fori_loop(0, params.duration, advance, env.initial(key_start, params))
        return env.observe(state, params).metrics

    return jax.vmap(episode)(jax.random.split(KEY, instances))


def mean_polarisation(agents, eta, instances, duration=1600):
    env = Collective(agents=agents, bins=0)
    params = env.default_params.replace(noise=eta, duration=duration)
    return float(jnp.mean(uncontrolled(env, params, instances)["polarisation"]))


def test_polarisation_of_a_flock_with_noise():
    assert mean_polarisation(100, 2.0, 4, 800) == pytest.approx(0.817, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "box"), [pytest.param(*case, marks=[pytest.mark.exhaustive] * (case[0] == 400)) for case in REFERENCE]
)
def test_polarisation_against_noise(agents, box):
    assert Collective(agents=agents).default_params.box == box
    for eta, expected in zip(ETAS, REFERENCE[agents, box], strict=True):
        assert mean_polarisation(agents, eta, 8) == pytest.approx(expected, abs=0.08 if eta == 4.0 else 0.04), eta


def test_polarisation_without_order_is_that_of_independent_headings():
    """√(π/4N): the mean length of a sum of N independent directions over N."""
    for agents in (100, 25):
        found = mean_polarisation(agents, 2 * math.pi, 8, 600)
        assert found == pytest.approx(math.sqrt(math.pi / (4 * agents)), rel=0.05)


def test_the_pull_on_an_oscillator_is_the_sum_over_all_pairs():
    env = Collective(task="kuramoto", agents=30)
    params, state, actions = start(env, timestep=1e-3, coupling=2.5)
    after, _, _, _ = step(env, state, actions, params)
    phase, rank = (np.asarray(leaf, float) for leaf in (state.particles.phase, state.particles.rank))
    rate = np.tan(math.pi * rank / 2) + 2.5 * np.sin(phase - phase[:, None]).mean(axis=1) + 2.0 * np.asarray(actions[:, 0])
    moved = np.angle(np.exp(1j * (np.asarray(after.particles.phase, float) - phase)))
    np.testing.assert_allclose(moved, 1e-3 * rate, atol=2e-5, rtol=5e-3)


@pytest.mark.parametrize("coupling", [3.0, 4.0])
def test_order_of_lorentzian_oscillators(coupling):
    """r = √(1 − 2/K) for N → ∞; 2,000 oscillators leave a deviation of 0.012 per episode, four of them half of it."""
    env = Collective(task="kuramoto", agents=2000)
    found = uncontrolled(env, env.default_params.replace(coupling=coupling, duration=300), 4)["order"]
    assert float(jnp.mean(found)) == pytest.approx(math.sqrt(1 - 2 / coupling), abs=0.03)


def test_particles_that_gather_keep_within_their_speed_and_their_square():
    env = Collective(task="aggregation", agents=40)
    params, state, actions = start(env, cost=0.5)
    after, reward, _, _ = step(env, state, actions, params)
    before, now = (np.stack([one.particles.x, one.particles.y]).astype(float) for one in (state, after))
    speed = 0.2 * np.asarray(actions.T, float)
    speed /= np.maximum(np.hypot(*speed) / 0.2, 1.0)
    np.testing.assert_allclose(now, np.clip(before + speed, -2.0, 2.0), atol=1e-6)
    distance = np.hypot(*(now - now.mean(axis=1, keepdims=True)))
    np.testing.assert_allclose(reward, -distance - 0.5 * (speed**2).sum(axis=0), atol=1e-5)


# --- rewards and metrics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "success", "largest"),
    [("vicsek", "polarisation_end", math.pi / 4), ("kuramoto", "order_end", 2.0), ("aggregation", "distance_end", 0.2)],
)
def test_a_global_reward_is_the_population_s_success_minus_its_mean_cost(task, success, largest):
    env = Collective(task=task, agents=20, reward="global")
    params, state, actions = start(env, scale=0.7, cost=0.3)
    _, reward, view, _ = step(env, state, actions, params)
    cost = 0.3 * np.mean(np.sum((largest * np.asarray(actions)) ** 2, axis=1))
    sign = -1 if task == "aggregation" else 1
    np.testing.assert_allclose(reward, sign * view.metrics[success] - cost, atol=1e-5)


@pytest.mark.parametrize(("duration", "limit"), [(6, "end"), (7, "truncate")])
def test_metrics_are_means_over_the_second_half(duration, limit):
    env = marljax.make("collective", task="aggregation", agents=20, limit=limit)
    params, state, actions = start(env, duration=duration)
    distances = []
    for _ in range(duration):
        state, timestep = env.step(KEY, state, 0 * actions + 0.5, params)
        distances.append(float(timestep.metrics["distance_end"]))
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (limit == "end", limit == "truncate")
    assert float(timestep.metrics["distance"]) == pytest.approx(np.mean(distances[duration // 2 :]), rel=1e-5)
    assert float(timestep.metrics["effort"]) == pytest.approx(0.5, rel=1e-5)


def test_arrows_point_where_particles_fly():
    params, state, _ = start(Collective(agents=16))
    scene = jax.jit(Collective(agents=16).scene)(state, params)
    corners, agents = np.asarray(scene.polygons.corners), np.asarray(scene.agents)
    np.testing.assert_allclose(agents, np.stack([state.particles.x, state.particles.y], axis=1))
    tip = corners[:, 0] - agents
    heading = np.stack([state.particles.cos, state.particles.sin], axis=1)
    np.testing.assert_allclose(tip / np.linalg.norm(tip, axis=1, keepdims=True), heading, atol=1e-4)
