"""Environments with gymnax's API: its wrappers and loops play the same episodes."""

import copy

import gymnax
import gymnax.wrappers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces
from gymnax.experimental.rollout import RolloutWrapper
from toys import Bumps, Corridor, Points

import marljax
from marljax.baselines.rivals import ppo
from marljax.wrappers.to_gymnax import MultiDiscreteBox

NUM_ENVS, NUM_STEPS = 3, 60


def uniform(key, mask, nvec):
    """[K] actions among those that ``mask`` [sum n] allows; the parts of equal size."""
    return jax.random.categorical(key, jnp.where(mask.reshape(len(nvec), -1), 0.0, -jnp.inf))


def loop(env, params, nvec, key):
    """A rollout as gymnax's users write it: vmap over environments, scan over steps, the log in ``info``."""
    key_reset, key_steps = jax.random.split(key)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key_reset, NUM_ENVS), params)

    def step(state, key):
        key_action, key_step = jax.random.split(key)
        masks = jax.vmap(env.action_mask, in_axes=(0, None))(state.env_state, params)
        action = jax.vmap(lambda key, mask: uniform(key, mask, nvec))(jax.random.split(key_action, NUM_ENVS), masks)
        keys = jax.random.split(key_step, NUM_ENVS)
        obs, state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        return state, (obs, reward, terminated, truncated, info)

    return jax.lax.scan(step, state, jax.random.split(key_steps, NUM_STEPS))[1]


def plain_episodes(env, env_params, nvec, key):
    """Each step's last timestep, and returns [T, E] and lengths [T, E] so far, from ``env.reset`` and ``env.step``."""
    key_reset, key_steps = jax.random.split(key)

    def one(key_action, key_step, state, timestep, total, length):
        action = uniform(key_action, timestep.action_mask[0], nvec)
        key_transition, key_restart = jax.random.split(key_step)
        state, timestep = env.step(key_transition, state, action[None], env_params)
        total, length = total + timestep.reward[0], length + 1
        fresh = env.reset(key_restart, env_params)
        now = jax.tree.map(lambda new, old: jnp.where(timestep.last, new, old), fresh, (state, timestep))
        return (*now, total * ~timestep.last, length * ~timestep.last), (timestep, total, length)

    def step(carry, key):
        key_action, key_step = jax.random.split(key)
        return jax.vmap(one)(jax.random.split(key_action, NUM_ENVS), jax.random.split(key_step, NUM_ENVS), *carry)

    start = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key_reset, NUM_ENVS), env_params)
    return jax.lax.scan(step, (*start, jnp.zeros(NUM_ENVS), jnp.zeros(NUM_ENVS)), jax.random.split(key_steps, NUM_STEPS))[1]


def test_the_log_wrapper_reports_the_same_episodes():
    env, key = marljax.joint(marljax.make("merge")), jax.random.key(5)
    env_params, nvec = env.default_params.replace(duration=20), env.action_space.nvec
    presented = marljax.to_gymnax(env, env_params)
    wrapped = gymnax.wrappers.LogWrapper(presented)
    obs, reward, terminated, truncated, info = jax.jit(lambda key: loop(wrapped, presented.default_params, nvec, key))(key)
    timestep, total, length = jax.jit(lambda key: plain_episodes(env, env_params, nvec, key))(key)
    ended = timestep.last
    assert ended.sum() >= NUM_ENVS
    np.testing.assert_array_equal(terminated, timestep.terminated)
    np.testing.assert_array_equal(truncated, timestep.truncated)
    np.testing.assert_array_equal(info["returned_episode"], ended)
    np.testing.assert_allclose(reward, timestep.reward[..., 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(info["returned_episode_returns"][ended], total[ended], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(info["returned_episode_lengths"][ended], length[ended])
    np.testing.assert_allclose(info["final_observation"], timestep.obs[:, :, 0], rtol=1e-5, atol=1e-5)
    for name, value in timestep.metrics.items():
        np.testing.assert_allclose(info[name], value, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(info["discount"], 1.0 - terminated)
    assert obs.shape == (NUM_STEPS, NUM_ENVS, *presented.observation_space(presented.default_params).shape)


def test_a_round_trip_changes_nothing():
    own, params = gymnax.make("CartPole-v1")
    again = marljax.to_gymnax(marljax.make("gymnax/CartPole-v1"))
    limits = jnp.array([9, 500])  # cut off, or not

    @jax.jit
    def play(key, limit):
        theirs_params = params.replace(max_steps_in_episode=limit)
        ours_params = again.default_params.replace(env_params=theirs_params)

        def step(states, key):
            key_action, key_step = jax.random.split(key)
            action = again.action_space(ours_params).sample(key_action)
            theirs = own.step(key_step, states[0], action, theirs_params)
            ours = again.step(key_step, states[1], action, ours_params)
            return (theirs[1], ours[1]), (theirs, ours)

        starts = own.reset(key, theirs_params), again.reset(key, ours_params)
        _, steps = jax.lax.scan(step, (starts[0][1], starts[1][1]), jax.random.split(key, NUM_STEPS))
        return starts, steps

    starts, (theirs, ours) = jax.vmap(play, in_axes=(None, 0))(jax.random.key(2), limits)
    np.testing.assert_array_equal(starts[1][0], starts[0][0])
    for part in (0, 2, 3):  # observations, rewards, terminations
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ours[4], theirs[4] & ~theirs[3])
    np.testing.assert_array_equal(ours[1].time, theirs[1].time)
    for name in ("final_observation", "discount"):
        np.testing.assert_allclose(ours[5][name], theirs[5][name], rtol=1e-5, atol=1e-5)
    assert theirs[3].sum() > 2
    assert ours[4][0].sum() > 2
    assert not ours[4][1].any()


def test_env_params_can_be_vmapped_inside_gymnax_params():
    env = marljax.to_gymnax(Bumps())
    assert isinstance(env, environment.Environment)
    params = env.default_params
    pays = jnp.array([1.0, -2.0])
    batch = params.replace(env_params=params.env_params.replace(pay=pays))
    axes = params.replace(max_steps_in_episode=None, env_params=params.env_params.replace(pay=0, limit=None))
    obs, state = env.reset(jax.random.key(0), params)
    reward = jax.jit(jax.vmap(env.step, in_axes=(None, None, None, axes)))(jax.random.key(1), state, 0, batch)[2]
    np.testing.assert_array_equal(reward, pays)
    np.testing.assert_array_equal(obs, env.observe(jax.random.key(0), state, None, params))


def length(env, params):
    """(steps, terminated, truncated) of an episode."""
    _, state = env.reset(jax.random.key(0), params)
    for steps in range(1, 100):
        _, state, _, terminated, truncated, _ = env.step(jax.random.key(steps), state, 0, params)
        if terminated | truncated:
            return steps, bool(terminated), bool(truncated)
    return None


def test_the_limit_in_gymnax_params_only_truncates():
    env = marljax.to_gymnax(marljax.make("gymnax/Catch-bsuite", rows=8))
    params = env.default_params
    assert params.max_steps_in_episode == 1000
    assert length(env, params) == (7, True, False)
    assert length(env, params.replace(max_steps_in_episode=7)) == (7, True, False)
    assert length(env, params.replace(max_steps_in_episode=5)) == (5, False, True)
    # Params with longer episodes are not truncated by the limit that followed from the old ones.
    env = marljax.to_gymnax(
        marljax.make("gymnax/MountainCar-v0"), gymnax.make("MountainCar-v0")[1].replace(max_steps_in_episode=4)
    )
    params = env.default_params
    assert length(env, params) == (4, False, True)
    assert length(env, params.replace(env_params=params.env_params.replace(max_steps_in_episode=9))) == (9, False, True)
    assert marljax.to_gymnax(marljax.joint(Corridor())).default_params.max_steps_in_episode == 2**31 - 1  # unknown


def test_spaces_are_those_that_gymnax_wrappers_sample_and_convert():
    joint = marljax.to_gymnax(marljax.joint(Corridor()))
    space = joint.action_space(joint.default_params)
    assert isinstance(space, MultiDiscreteBox)
    drawn = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 200))
    assert (drawn.dtype, drawn.shape) == (jnp.int32, (200, 3))
    np.testing.assert_array_equal(np.unique(drawn), [0, 1, 2])
    assert jax.vmap(space.contains)(drawn).all()
    assert not space.contains(drawn[0] + 3)
    converted = spaces.gymnax_space_to_gym_space(space)
    assert (converted.shape, converted.dtype, int(converted.high.max())) == ((3,), np.int32, 2)
    uneven = spaces.gymnax_space_to_gym_space(MultiDiscreteBox((2, 5)))
    np.testing.assert_array_equal(uneven.high, [1, 4])
    points = marljax.to_gymnax(marljax.joint(Points()))
    box = points.action_space()
    assert (box.shape, box.low, box.high, points.num_actions) == ((4,), -1.0, 1.0, 4)
    single = marljax.to_gymnax(Bumps())
    assert (single.action_space().n, single.num_actions, single.name) == (2, 2, "Bumps")
    assert joint.observation_space().shape == (3 + 3 + 1,)


def test_masks_of_a_state():
    env = marljax.to_gymnax(marljax.joint(Corridor()), Corridor().default_params.replace(slip=0.0))
    _, state = env.reset(jax.random.key(0), env.default_params)
    state = state.replace(env=state.env.replace(env=state.env.env.replace(alive=jnp.array([True, True, False]))))
    np.testing.assert_array_equal(env.action_mask(state), [1, 0, 1, 1, 0, 1, 1, 0, 0])
    state = env.step_env(jax.random.key(1), state, np.array([2, 0, 0]), env.default_params)[1]
    np.testing.assert_array_equal(env.action_mask(state, env.default_params), [1, 1, 1, 1, 0, 1, 1, 0, 0])


def test_wrappers_of_gymnax_work():
    env = marljax.to_gymnax(marljax.joint(Points(agents=1)))
    gym = gymnax.wrappers.GymnaxToGymWrapper(env, seed=1)
    first, _ = gym.reset(seed=2)
    assert gym.observation_space.shape == first.shape
    obs, reward, terminated, truncated, info = gym.step(gym.action_space.sample())
    assert (obs.shape, reward.shape, bool(terminated), bool(truncated)) == (first.shape, (), False, False)
    assert "spread" in info
    single = marljax.to_gymnax(marljax.make("gymnax/Catch-bsuite", rows=5))
    single_params = single.default_params.replace(max_steps_in_episode=3)
    rollout = RolloutWrapper(env=single, env_params=single_params)
    obs, _, _, _, done, _ = rollout.single_rollout(jax.random.key(0), None)
    assert obs.shape == (3, *rollout.input_shape)
    np.testing.assert_array_equal(done, [False, False, True])
    sticky = gymnax.wrappers.StickyActionWrapper(single, 0.5)
    _, state = sticky.reset(jax.random.key(0), single_params)
    assert sticky.step(jax.random.key(1), state, 1, single_params)[0].shape == rollout.input_shape


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("merge", None, "to_gymnax got 'merge'"),
        (marljax.make("merge"), None, r"Merge has 6 agents .*marljax.joint\(env\)"),
        (marljax.joint(marljax.make("merge")), {"duration": -5}, "duration=-5 "),
        (marljax.joint(marljax.make("merge")), "hard", "str; give MergeParams"),
    ],
)
def test_other_environments_and_params_are_refused(env, changes, message):
    with pytest.raises(marljax.UserError, match=message):
        marljax.to_gymnax(env, env.default_params.replace(**changes) if isinstance(changes, dict) else changes)


def test_wrong_arguments_are_user_errors():
    key, env, team = jax.random.key(0), marljax.to_gymnax(Bumps()), marljax.to_gymnax(marljax.joint(Corridor()))
    with pytest.raises(marljax.UserError, match=r"BumpsParams; give .*replace\(env_params=…\)"):
        env.reset(key, Bumps().default_params)
    with pytest.raises(marljax.UserError, match=r"give \[1\]"):
        env.step(key, env.reset(key)[1], jnp.zeros(2, jnp.int32))
    with pytest.raises(marljax.UserError, match="flat=True"):  # for loops without multi-discrete actions
        team.step(key, team.reset(key)[1], jnp.zeros(3))
    with pytest.raises(marljax.UserError, match=r"api.*1\.x"):
        marljax.to_gymnax(Bumps(), api="1.0")


@pytest.mark.parametrize("limit", [5, 2**31 - 1], ids=["cut off", "whole"])
def test_the_old_api_gives_the_same_episodes_in_five_values(limit):
    env = marljax.joint(Corridor(), flat=True)
    new, old = marljax.to_gymnax(env), marljax.to_gymnax(env, api="0.x")
    params = new.default_params.replace(max_steps_in_episode=limit)

    @jax.jit
    def play(key):
        def step(states, key):
            action = new.action_space(params).sample(key)
            six, five = new.step(key, states[0], action, params), old.step(key, states[1], action, params)
            one = old.step_env(key, states[1], action, params)
            return (six[1], five[1]), (six, five, (one[3], old.is_terminal(one[1], params), one[4]["discount"]))

        first = new.reset(key, params)[1], old.reset(key, params)[1]
        return jax.lax.scan(step, first, jax.random.split(key, NUM_STEPS))[1]

    six, five, (done, terminal, discount) = play(jax.random.key(3))
    assert len(five) == 5
    for part in range(3):  # observations, states, rewards
        jax.tree.map(np.testing.assert_array_equal, five[part], six[part])
    np.testing.assert_array_equal(five[3], six[3] | six[4])
    assert five[3].sum() > 2
    for name in ("terminated", "truncated", "arrived"):
        np.testing.assert_array_equal(five[4][name], six[5][name])
    assert "final_observation" not in five[4]
    for ends in (done, terminal, 1 - discount):
        np.testing.assert_array_equal(ends, five[3])


def five_value_ppo(env, env_params, config, key):
    """How rejax 0.1 and PureJaxRL use an environment: a copy of it as a static field, ``params`` in every call, vmapped ``reset``
    and ``step`` with ``in_axes=None`` for them, one ``Discrete``, five values. Parameters before and after an update, and the
    rollout."""
    env = copy.deepcopy(env)
    assert isinstance(env.action_space(env_params), spaces.Discrete)
    assert isinstance(env.observation_space(env_params), spaces.Box)
    key_network, key_reset, key_rollout, key_fit = jax.random.split(key, 4)
    reset, step = jax.vmap(env.reset, in_axes=(0, None)), jax.vmap(env.step, in_axes=(0, 0, 0, None))
    network = ppo.ActorCritic(env.action_space(env_params).n, config.hidden)
    params = network.init(key_network, jnp.zeros(env.observation_space(env_params).shape))

    def act(carry, key):
        obs, state = carry
        key_action, key_step = jax.random.split(key)
        logits, value = network.apply(params, obs)
        action = jax.random.categorical(key_action, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=1)[:, 0]
        after, state, reward, done, info = step(jax.random.split(key_step, config.num_envs), state, action, env_params)
        return (after, state), (ppo.Transition(done, action, value, reward, log_prob, obs), info)

    start = reset(jax.random.split(key_reset, config.num_envs), env_params)
    (obs, _), (rollout, info) = jax.lax.scan(act, start, jax.random.split(key_rollout, config.num_steps))
    advantages = ppo.gae(config, rollout, network.apply(params, obs)[1])
    batch = (rollout, advantages, advantages + rollout.value)
    first = ppo.optimizer(config).init(params)
    return params, ppo.fit(env, config, params, first, batch, key_fit)[0], rollout, info


def five_value_episode(env, env_params, act, key):
    """(length, return) of one episode as rejax evaluates: a ``while_loop`` to ``done`` or ``params.max_steps_in_episode``."""

    def step(carry):
        key, state, obs, _, total, length = carry
        key, key_act, key_step = jax.random.split(key, 3)
        obs, state, reward, done, _ = env.step(key_step, state, act(obs, key_act), env_params)
        return key, state, obs, done, total + reward.squeeze(), length + 1

    key_reset, key = jax.random.split(key)
    obs, state = env.reset(key_reset, env_params)
    start = key, state, obs, jnp.array(False), 0.0, 0
    played = jax.lax.while_loop(lambda now: (now[5] < env_params.max_steps_in_episode) & ~now[3], step, start)
    return played[5], played[4]


SMALL = ppo.Config(total_timesteps=256, num_envs=8, num_steps=32, hidden=16)


def moved(before, after):
    """Whether the parameters are finite and changed."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return all(np.isfinite(new).all() and not np.array_equal(old, new) for old, new in pairs)


def test_loops_of_five_values_train_on_a_flat_team():
    env = marljax.to_gymnax(marljax.joint(Corridor(), flat=True), api="0.x")
    train = jax.jit(lambda key: five_value_ppo(env, env.default_params, SMALL, key))
    before, after, rollout, info = train(jax.random.PRNGKey(0))
    assert moved(before, after)
    assert rollout.done.sum() > SMALL.num_envs
    assert info["arrived"].shape == (SMALL.num_steps, SMALL.num_envs)
    act = lambda obs, key: env.action_space(env.default_params).sample(key)  # noqa: E731
    length, total = jax.vmap(lambda key: five_value_episode(env, env.default_params, act, key))(
        jax.random.split(jax.random.PRNGKey(1), 4)
    )
    assert (length > 0).all()
    assert (length <= 12).all()
    assert jnp.isfinite(total).all()


def test_purejaxrls_ppo_trains_on_a_flat_team():
    env = marljax.to_gymnax(marljax.joint(Corridor(), flat=True))
    state = ppo.init(env, SMALL, jax.random.key(0))
    after, metrics = jax.jit(lambda state: ppo.update(env, SMALL, state))(state)
    assert moved(state.params, after.params)
    assert metrics["episodes"] > SMALL.num_envs
    assert jnp.isfinite(metrics["sum_return"])
