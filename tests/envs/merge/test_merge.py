"""The ``merge`` environment: rewards, masks, endings, metrics, invariances and pictures."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.core.vector import vectorize
from marljax.envs.merge import Merge, road, traffic
from marljax.envs.merge import reward as rewards
from marljax.envs.merge.actions import FASTER, IDLE, LEFT, RIGHT, SLOWER
from marljax.envs.merge.params import DENSITIES, MIXES
from marljax.envs.merge.scene import LEGEND
from marljax.errors import UserError
from marljax.testing import check_env

ENV = Merge()
PARAMS = ENV.default_params
KEY = jax.random.key(0)
step = jax.jit(ENV.step)
observe = jax.jit(ENV.observe)
IDLING = jnp.full(6, IDLE)
base_state, _ = ENV.reset(KEY, PARAMS)


def scene(cavs, hdvs=(), **others):
    """A state with these vehicles, ``(x, y, speed)`` each, aligned with their lanes."""
    rows = np.full((12, 3), -1.0)
    rows[: len(cavs)], rows[6 : 6 + len(hdvs)] = np.array(cavs).reshape(-1, 3), np.array(hdvs).reshape(-1, 3)
    alive = rows[:, 0] >= 0
    x, y, speed = jnp.array(np.where(alive[:, None], rows, 0.0), jnp.float32).T
    lane = road.nearest_lane(x, y, jnp.zeros(12))
    vehicles = base_state.vehicles.replace(
        x=x, y=y, speed=speed, lane=lane, target_lane=lane, target_speed=speed, alive=jnp.array(alive), timer=jnp.zeros(12)
    )
    on_ramp = jnp.array(alive[:6] & (rows[:6, 1] > 2))
    stats = base_state.stats.replace(cavs=jnp.float32(alive[:6].sum()), ramp_cavs=jnp.float32(on_ramp.sum()))
    return base_state.replace(vehicles=vehicles.replace(**others), on_ramp=on_ramp, stats=stats)


@functools.partial(jax.jit, static_argnums=1)
def own_rewards(state, mode="local"):
    vehicles = state.vehicles
    own = rewards.neighbours(vehicles, vehicles.lane[:6])
    local = rewards.local_reward(vehicles, own, PARAMS)
    return rewards.share(local, mode, vehicles, own, vehicles.alive[:6])


@functools.cache
def episodes():
    """A compiled rollout of random available actions, or of a ``fixed`` one: (key, env_params, fixed) -> timesteps [T, E, …]."""
    vec = vectorize(ENV, 32)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(key, env_params, fixed):
        key_reset, key_steps = jax.random.split(key)

        def body(carry, key):
            state, timestep = carry
            key_step, key_action = jax.random.split(key)
            drawn = jax.random.uniform(key_action, timestep.action_mask.shape)
            action = jnp.argmax(jnp.where(timestep.action_mask, drawn, -1.0), axis=-1)
            carry = vec.step(key_step, state, jnp.where(fixed >= 0, fixed, action), env_params)
            return carry, carry[1]

        return jax.lax.scan(body, vec.reset(key_reset, env_params), jax.random.split(key_steps, 101))[1]

    return run


def mean_at_end(timesteps, name) -> float:
    return float(jnp.sum(timesteps.metrics[name] * timesteps.last) / jnp.sum(timesteps.last))


def test_invalid_options():
    with pytest.raises(UserError, match="horizon"):
        Merge(horizon=0)
    with pytest.raises(UserError, match=r"density.*medium"):
        ENV.preset_params("mediun")


def test_contract():
    check_env(ENV, PARAMS.replace(duration=20), num_steps=24)


@pytest.mark.parametrize(
    "options",
    [
        {"reward": "local", "connected_lanes": False, "drivers": "linear"},
        {"reward": "global", "physics": "highway_env", "connected_lanes": False},
        {"continue_after_crash": True, "drivers": "chaotic", "density": "pis_mixed_hard"},
        {"intents": True, "density": "easy"},
        {"safety": True, "drivers": "mild", "physics": "highway_env"},
        {"safety": True, "intents": True, "horizon": 2, "density": "pis_hard"},
        {"open_inflow": True, "density": "medium", "reward_kind": "progress"},
        {"open_inflow": True, "continue_after_crash": True, "safety": True, "drivers": "very_hard"},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
@pytest.mark.slow
def test_contract_of_options(options):
    """Every value of every option at least once."""
    check_env(Merge(**options), num_steps=101)


def test_local_reward():
    """Cruising freely, following too closely, and close to the end of the merging lane; a crash; standing."""
    far, close, ending = scene([(100, 0, 25)]), scene([(100, 0, 25)], [(120, 0, 25)]), scene([(400, 4, 20)])
    np.testing.assert_allclose([own_rewards(state)[0] for state in (far, close, ending)], [0.75, -0.87186, -2.18128], atol=1e-5)
    crashed = scene([(100, 0, 25)], crashed=jnp.arange(12) == 0)
    np.testing.assert_allclose(own_rewards(crashed)[0], -199.25, atol=1e-3)
    standing = scene([(100, 0, 0)], [(103, 0, 0)])
    assert own_rewards(standing)[0] == 0.0


def test_headway_reaches_into_the_next_segment_but_not_past_the_ramp():
    state = scene([(310, 0, 25), (410, 4, 25), (200, 10.5, 25)], [(330, 0, 25), (430, 0, 25), (235, 10.3, 25)])
    front = jax.jit(rewards.neighbours)(state.vehicles, state.vehicles.lane[:6]).front[:3]
    np.testing.assert_allclose(front, [20.0, road.FAR_AWAY, 35.0], atol=1e-3)


def test_reward_sharing():
    """Four CAVs and one human driver around the converging ramp; means computed by hand."""
    curve = float(road.curve_y(jnp.array(260.0)))
    # ahead of 0: the human driver, who has no reward; 1 ahead in the adjacent lane, the ramp; 3 behind
    state = scene([(250, 0, 20), (260, curve, 15), (150, 10.5, 30), (200, 0, 25)], [(290, 0, 25)])
    local = np.asarray(own_rewards(state))
    assert np.all(local[4:] == 0)
    expected = {
        "local": local,
        "global": [local[:4].mean()] * 4 + [0, 0],
        # 0: itself, 3 behind, 1 and 2 in the adjacent lane. 1: itself, 2 behind, 0 in the adjacent lane. 2: itself and 1 ahead;
        # jk has no adjacent lane. 3: itself and 0 ahead; the ramp is not adjacent to ab before it converges.
        "regional": [local[:4].mean(), local[:3].mean(), local[1:3].mean(), local[[0, 3]].mean(), 0, 0],
    }
    for mode, means in expected.items():
        np.testing.assert_allclose(own_rewards(state, mode), means, atol=1e-6)


def test_actions_set_targets():
    state = scene(
        [(350, 4, 25), (350, 0, 22.6), (100, 0, 12.4), (200, 10.5, 17.5), (100, 10.5, 22.5)], target_speed=jnp.full(12, 20.0)
    )
    _, idle = step(KEY, state, IDLING, PARAMS)
    after, _ = step(KEY, state, jnp.array([LEFT, FASTER, SLOWER, FASTER, SLOWER, FASTER]), PARAMS)
    assert int(after.vehicles.target_lane[0]) == road.BC0
    # 22.6 is nearest to 25, 12.4 to 10; 17.5 and 22.5 are ties, which round to the even level: 20 and 20
    np.testing.assert_allclose(after.vehicles.target_speed[1:5], [30.0, 10.0, 25.0, 15.0])
    unavailable = jnp.array([RIGHT, LEFT, LEFT, RIGHT, LEFT, FASTER])
    ignored, timestep = step(KEY, state, unavailable, PARAMS)
    chex.assert_trees_all_close(timestep.obs, idle.obs, atol=1e-6)
    np.testing.assert_allclose(ignored.vehicles.target_speed, state.vehicles.target_speed)


def test_a_cav_stops_where_its_target_speed_may_be_0_and_drives_on():
    params = PARAMS.replace(speed_lowest=0.0, speed_levels=7)
    state, speeds, slower = scene([(50, 0, 12.0)]), [], []
    for action in [SLOWER] * 25 + [IDLE] * 5 + [FASTER] * 10:
        state, timestep = step(KEY, state, jnp.full(6, action), params)
        speeds.append(float(state.vehicles.speed[0]))
        slower.append(bool(timestep.action_mask[0, SLOWER]))
    assert min(speeds) >= 0.0
    np.testing.assert_allclose(speeds[24:30], 0.0, atol=0.1)
    assert slower[0]
    assert not any(slower[24:30])
    assert speeds[-1] > 5.0


def test_a_cav_crash_ends_the_episode_and_a_crash_of_others_does_not():
    """Two human drivers collide; then a CAV runs into the end of the ramp."""
    state = scene([(100, 0, 25)], [(300, 0, 25), (303, 0, 5)])
    after, timestep = step(KEY, state, IDLING, PARAMS)
    assert after.vehicles.crashed.tolist() == [False] * 6 + [True] * 2 + [False] * 4
    assert (bool(timestep.last), float(timestep.metrics["crash"])) == (False, 0.0)
    state = scene([(413, 4, 25), (100, 10.5, 25)])
    after, timestep = step(KEY, state, IDLING, PARAMS)
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (True, False)
    assert [float(timestep.metrics[name]) for name in ("crash", "crashed_cavs", "merged")] == [1.0, 0.5, 0.0]
    np.testing.assert_allclose(
        timestep.reward[:2], [-200 - 4 * np.exp(-((float(after.vehicles.x[0]) - 420) ** 2) / 1000), 0.75], atol=0.02
    )


def test_the_return_uses_the_published_crash_penalty():
    state = scene([(413, 4, 25), (100, 10.5, 25)])
    ends = [step(KEY, state, IDLING, PARAMS.replace(crash_penalty=cost))[1] for cost in (200.0, 2000.0)]
    assert float(ends[1].reward[0] - ends[0].reward[0]) == pytest.approx(-1800, abs=0.01)
    assert float(ends[1].metrics["return"]) == pytest.approx(float(ends[0].metrics["return"]), abs=0.01)
    assert float(ends[0].metrics["return"]) < -99


def test_progress_is_the_share_of_the_road_where_the_headway_is_long_enough():
    """A decision at 25 m/s is 5 of 520 m; with a headway of h m it counts h / (1.2 · 25)."""
    env = Merge(reward_kind="progress", reward="local")
    progress = jax.jit(env.step)
    free, whole = 500 / 520, PARAMS.replace(progress_headway=0.0)
    cases = [
        (scene([(100, 0, 25)]), PARAMS, free),
        (scene([(100, 0, 25)], [(110, 0, 25)]), PARAMS, free * 10 / 30),
        (scene([(100, 0, 25)], [(110, 0, 25)]), whole, free),
        (scene([(518, 0, 25)]), PARAMS, 200 / 520),  # to the end of the road
    ]
    for state, env_params, expected in cases:
        assert float(progress(KEY, state, IDLING, env_params)[1].reward[0]) == pytest.approx(expected, abs=0.01)
    crashing = scene([(413, 4, 25), (100, 10.5, 25)])
    ends = [progress(KEY, crashing, IDLING, PARAMS.replace(crash_hint=cost))[1] for cost in (0.0, 3.0)]
    assert float(ends[0].reward[0] - ends[1].reward[0]) == pytest.approx(3.0, abs=1e-4)
    published = step(KEY, crashing, IDLING, PARAMS)[1]
    assert float(ends[0].metrics["return"]) == pytest.approx(float(published.metrics["return"]), abs=0.01)


def test_crashed_cavs_are_no_longer_agents_with_continue_after_crash():
    continued = jax.jit(Merge(continue_after_crash=True).step)
    state, first = continued(KEY, scene([(413, 4, 25), (100, 10.5, 25)]), IDLING, PARAMS)
    assert (bool(first.last), first.alive.tolist()[:2], float(first.reward[0]) < -199) == (False, [False, True], True)
    _, second = continued(KEY, state, IDLING, PARAMS)
    assert (float(second.reward[0]), float(second.metrics["crashed_cavs"])) == (0.0, 0.5)
    assert bool(continued(KEY, scene([(413, 4, 25)]), IDLING, PARAMS)[1].terminated)


def test_metrics():
    """For a second, a CAV cruises at 25 m/s behind a slower leader and another one merges."""
    state = scene([(300, 0, 25), (395, 2.5, 20)], [(340, 0, 15), (418, 0, 20)])
    merging = state.vehicles.target_lane.at[1].set(road.BC0)
    state = state.replace(vehicles=state.vehicles.replace(target_lane=merging))
    speeds = []
    for _ in range(5):
        state, timestep = step(KEY, state, IDLING, PARAMS)
        speeds.append(float(jnp.mean(state.vehicles.speed[:2])))
    np.testing.assert_allclose(timestep.metrics["speed"], np.mean(speeds), atol=1e-4)
    np.testing.assert_allclose(timestep.metrics["throughput"], 1.0, atol=1e-5)
    assert float(timestep.metrics["merged"]) == 1.0
    gap, closing = float(state.vehicles.x[6] - state.vehicles.x[0]) - 5, 25 - float(state.vehicles.speed[6])
    np.testing.assert_allclose(timestep.metrics["min_ttc"], gap / closing, rtol=1e-3)


def test_observation():
    """Own row absolute, then the four nearest in |Δx| relative to it, without a fifth or one beyond 180 m."""
    state = scene([(200, 0, 20), (190, 10.5, 22)], [(205, 0, 25), (230, 0, 18), (150, 0, 30), (260, 0, 20), (400, 0, 20)])
    row = np.asarray(observe(state, PARAMS).obs[0]).reshape(5, 5)
    scale = np.array([1, 150, 12, 45, 45])
    expected = [[1, 200, 0, 20, 0], [1, 5, 0, 5, 0], [1, -10, 10.5, 2, 0], [1, 30, 0, -2, 0], [1, -50, 0, 10, 0]]
    np.testing.assert_allclose(row * scale, expected, atol=1e-4)
    far = np.asarray(observe(scene([(200, 0, 20)], [(385, 0, 25)]), PARAMS).obs)
    assert far[0, 5:].tolist() == [0.0] * 20
    assert not far[1:].any()


def test_order_of_human_drivers_and_empty_slots_do_not_matter():
    """Human drivers in other slots, and arbitrary values in empty ones, change nothing for the agents."""
    cavs = [(50, 0, 25), (30, 10.5, 25), (70, 10.5, 25)]
    hdvs = [(10, 0, 26), (90, 0, 25), (110, 10.5, 26), (140, 0, 25)]
    plain = scene(cavs, hdvs)
    order = jnp.array([0, 1, 2, 3, 4, 5, 9, 11, 6, 8, 7, 10])
    shuffled = plain.replace(vehicles=jax.tree.map(lambda leaf: leaf[order], plain.vehicles))
    empty = ~plain.vehicles.alive
    values = {"x": 60.0, "speed": 5.0, "target_lane": road.BC0}
    filled = {name: jnp.where(empty, value, getattr(plain.vehicles, name)) for name, value in values.items()}
    arbitrary = plain.replace(vehicles=plain.vehicles.replace(**filled))

    @jax.jit
    def course(state):
        def body(state, _):
            mask = ENV.observe(state, PARAMS).action_mask
            state, timestep = ENV.step(KEY, state, jnp.where(mask[:, LEFT], LEFT, IDLE), PARAMS)
            return state, (timestep.obs, timestep.reward, timestep.metrics)

        return jax.lax.scan(body, state, length=80)[1]

    expected = course(plain)
    assert float(expected[2]["merged"][-1]) > 0
    for other in (shuffled, arbitrary):
        chex.assert_trees_all_equal(course(other), expected)


initial = jax.jit(jax.vmap(ENV.initial, in_axes=(0, None)))


@pytest.mark.parametrize("density", DENSITIES)
def test_spawn(density):
    cavs_min, cavs_max, hdvs_min, hdvs_max, pair = DENSITIES[density]
    keys = jax.random.split(jax.random.key(3), 400)
    vehicles = jax.device_get(initial(keys, ENV.preset_params(density)).vehicles)
    cavs, hdvs = vehicles.alive[:, :6].sum(axis=1), vehicles.alive[:, 6:].sum(axis=1) - 2 * pair
    assert (cavs.min(), cavs.max(), hdvs.min(), hdvs.max()) == (cavs_min, cavs_max, hdvs_min, hdvs_max)
    ramp = vehicles.lane == road.JK
    np.testing.assert_array_equal((ramp & vehicles.alive)[:, :6].sum(axis=1), cavs - cavs // 2)
    np.testing.assert_array_equal((ramp & vehicles.alive)[:, 6:].sum(axis=1), hdvs - hdvs // 2 + pair)
    own_lane = ramp[:, :, None] == ramp[:, None, :]
    both = vehicles.alive[:, :, None] & vehicles.alive[:, None, :] & own_lane & ~np.eye(12, dtype=bool)
    distance = np.abs(vehicles.x[:, :, None] - vehicles.x[:, None, :])
    assert distance[both].min() >= (7.0 if pair else 37.0)
    assert ((vehicles.speed >= 25) & (vehicles.speed <= 27))[vehicles.alive].all()
    np.testing.assert_array_equal(vehicles.driver[:, 10][pair * vehicles.alive[:, 10]], [4] * (400 * pair))


def test_driver_mixes():
    """Shares and exponents of human drivers; CAVs are always base drivers."""
    keys = jax.random.split(jax.random.key(3), 2000)
    vehicles = initial(keys, Merge(drivers="chaotic").default_params).vehicles
    kinds = np.asarray(vehicles.driver[:, 6:]).ravel()
    np.testing.assert_allclose(np.bincount(kinds, minlength=6) / kinds.size, MIXES["chaotic"], atol=0.02)
    exponents = np.asarray(vehicles.exponent[:, 6:]).ravel()
    for kind, (low, high) in {1: (3.5, 4.5), 2: (4.0, 4.0), 3: (3.0, 4.0)}.items():
        drawn = exponents[kinds == kind]
        np.testing.assert_allclose([drawn.min(), drawn.max()], [low, high], atol=0.01)
    assert not np.asarray(vehicles.driver[:, :6]).any()


def test_one_program_serves_all_densities_and_mixes():
    """Environments of equal structure are equal, and their parameters go through one compiled rollout, which is traced once."""
    for density, drivers in [(density, "homogeneous") for density in DENSITIES] + [("hard", drivers) for drivers in MIXES]:
        env = Merge(density=density, drivers=drivers)
        env.check_params(env.default_params)
        assert env == ENV
        assert jax.tree.map(type, env.default_params) == jax.tree.map(type, PARAMS)
    for options in ({"density": "pis_mixed_hard"}, {"drivers": "linear"}):
        obs = episodes()(KEY, Merge(**options).default_params, jnp.int32(-1)).obs
        assert np.isfinite(np.asarray(obs)).all()
    assert Merge(reward="local") != ENV
    assert dataclasses.replace(ENV, physics="highway_env") != ENV


def test_scripted_returns():
    """Human drivers reach the return and speed measured in highway-env on this road; random actions earn far less.

    Measured over 30 episodes; the interval of our own 32 episodes adds about 5.
    """
    run = episodes()
    measured = {"easy": (64.9, 3.1, 23.4), "medium": (40.9, 8.8, 21.4), "hard": (28.2, 7.2, 19.9)}
    for density, (value, interval, speed) in measured.items():
        env_params = ENV.preset_params(density).replace(cavs_drive_as_humans=True)
        timestep = run(jax.random.key(1), env_params, jnp.int32(IDLE))
        assert abs(mean_at_end(timestep, "return") - value) < interval + 5.0
        assert abs(mean_at_end(timestep, "speed") - speed) < 0.9
    random = run(jax.random.key(1), PARAMS, jnp.int32(-1))
    assert mean_at_end(random, "return") < mean_at_end(timestep, "return") - 30
    assert mean_at_end(random, "crash") > 0.15


def test_cruising_alone_earns_75():
    """0.75 a decision, until the episode is truncated after 100."""
    state = scene([(10, 0, 25)])
    rewards, lasts = [], []
    for _ in range(100):
        state, timestep = step(KEY, state, IDLING, PARAMS)
        rewards.append(timestep.reward[0])
        lasts.append(bool(timestep.last))
    assert (round(float(sum(rewards)), 3), lasts.index(True), bool(timestep.truncated)) == (75.0, 99, True)


def test_driver_types_differ():
    """Behind the same slow leader, aggressive drivers keep less distance than defensive ones."""
    gaps = []
    for kind in ("aggressive", "normal", "defensive"):
        driver = jnp.zeros(12, jnp.int32).at[6].set(traffic.DRIVERS.index(kind))
        state = scene([], [(100, 0, 25), (160, 0, 15)], driver=driver)
        for _ in range(50):
            state, _ = step(KEY, state, IDLING, PARAMS)
        gaps.append(float(state.vehicles.x[7] - state.vehicles.x[6]))
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[2] - 5


def test_scene_shows_every_vehicle():
    state = scene([(100, 0, 25), (330, 4, 25)], [(150, 10.5, 25)], crashed=jnp.arange(12) == 1)
    draw = jax.jit(ENV.scene)
    drawn = draw(state, PARAMS)
    shown = np.asarray(drawn.boxes.colour[1:, 3]) > 0
    np.testing.assert_array_equal(shown, state.vehicles.alive)
    np.testing.assert_allclose(drawn.boxes.centre[1:3], [[100, 0], [330, -4]])
    legend = dict(ENV.display.legend)
    np.testing.assert_allclose(drawn.boxes.colour[1], LEGEND[0][1], atol=1e-6)
    np.testing.assert_allclose(drawn.boxes.colour[2], legend["crashed"], atol=1e-6)
    assert np.asarray(drawn.labels.colour[:, 3] > 0).tolist() == [True, True] + [False] * 10
    assert drawn.labels.value[0] == 25
    names = [name for (name, _), listed in zip(ENV.display.legend, drawn.listed, strict=True) if listed]
    assert names == [LEGEND[0][0], "human driver", "crashed", "end of ramp"]
    mixed = state.replace(vehicles=state.vehicles.replace(driver=state.vehicles.driver.at[6].set(2)))
    assert np.asarray(draw(mixed, PARAMS).listed).tolist() == [True, False, True, False, True, True]


@functools.cache
def course(open_inflow: bool):
    """States, timesteps and scenes [T] of six CAVs driven as humans."""
    env, duration = Merge(open_inflow=open_inflow), 390 if open_inflow else 100
    env_params = PARAMS.replace(cavs_min=6, cavs_drive_as_humans=True, duration=duration)

    @jax.jit
    def run(key):
        def body(state, key):
            state, timestep = env.step(key, state, IDLING, env_params)
            return state, (state, timestep, env.scene(state, env_params))

        return jax.lax.scan(body, env.initial(key, env_params), jax.random.split(key, duration))[1]

    return jax.device_get(run(jax.random.key(4)))


@pytest.mark.parametrize("open_inflow", [False, True])
def test_every_cav_is_in_the_picture_or_accounted_for(open_inflow):
    """The parts of the status add up to all CAVs; on the closed road the view moves along and loses those in front."""
    states, _, scenes = course(open_inflow)
    status, drawn = scenes.status, scenes.labels.colour[..., 3] > 0
    left, right = scenes.bounds[:, :2, None].transpose(1, 0, 2)
    in_view = (scenes.labels.position[..., 0] >= left) & (scenes.labels.position[..., 0] <= right)
    np.testing.assert_array_equal(sum(status[1:]), status.CAVs)
    np.testing.assert_array_equal(status.CAVs - status.out_of_view, (drawn & in_view).sum(-1))
    np.testing.assert_array_equal(status.crashed, (states.vehicles.crashed & states.vehicles.alive)[:, :6].sum(-1))
    assert status.on_the_ramp[0] == (states.on_ramp & states.vehicles.alive[:, :6])[0].sum() > 0
    assert status.merged[0] == 0 < status.merged.max()
    assert open_inflow or np.all(scenes.labels.position[:, :6, 0] >= left + 10)
    assert status.out_of_view[0] == 0 < status.out_of_view[-1]
    assert (np.ptp(left) == 0) == open_inflow
    assert np.ptp(right - left) < 1e-3
    assert np.abs(np.diff(left[:, 0])).max() < 10  # m in 0.2 s: without jumps


def test_open_inflow():
    """Vehicles enter at both entries if there is room, leave at the end, and none jumps."""
    states, timesteps, _ = course(open_inflow=True)
    vehicles = states.vehicles
    before, after = vehicles.alive[:-1], vehicles.alive[1:]
    entered, left = ~before & after, before & ~after
    assert entered[:, :6].sum() > 3
    assert entered[:, 6:].sum() > 3
    lanes = []
    for number, slot in np.argwhere(entered):
        x, lane = vehicles.x[number + 1], vehicles.lane[number + 1]
        same = after[number] & (lane == lane[slot]) & (np.arange(12) != slot)
        assert x[slot] == 0.0
        assert x[same].min(initial=100.0) >= 15.0
        lanes.append(int(lane[slot]))
    assert set(lanes) == {road.AB, road.JK}
    moved = vehicles.x[1:] - vehicles.x[:-1]
    assert np.all(moved[before & after] > -1.0)
    assert left.sum() > 6
    assert np.all(vehicles.x[:-1][left] > road.ROAD_END - 10)
    np.testing.assert_array_equal(states.stats.cavs, states.stats.cavs[0] + np.r_[0, entered[:, :6].sum(axis=1).cumsum()])
    assert 0.3 < float(timesteps.metrics["merged"][-1]) <= 1.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"cavs_max": 7}, "cavs_max"),
        ({"cavs_min": 5, "cavs_max": 4}, "cavs_min=5.*cavs_max=4"),
        ({"hdvs_max": 5, "linear_pair": True}, "hdvs_max=5.*linear_pair"),
        ({"reward_speed_low": 30}, "reward_speed_low"),
        ({"driver_shares": np.zeros(6)}, "driver_shares"),
        ({"drivers": PARAMS.drivers.replace(delay=np.zeros(6))}, "drivers.delay"),
        ({"speed_levels": 8}, "speed_levels=8.*at most 7"),
        ({"position_noise": 3.0, "linear_pair": True, "hdvs_max": 4}, "position_noise=3.*at most 2.5"),
    ],
)
def test_invalid_params(changes, name):
    with pytest.raises(UserError, match=name):
        ENV.check_params(PARAMS.replace(**changes))
