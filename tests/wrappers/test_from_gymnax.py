"""gymnax's environments keep the contract and match gymnax step by step."""

import functools
import inspect

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from gymnax.utils import load_mnist

import marljax
from marljax.algos import mappo
from marljax.core.spaces import Box, Discrete
from marljax.errors import UserError
from marljax.testing.conformance import check_env, sample_action
from marljax.wrappers import from_gymnax

DOWNLOADS = "MNISTBandit-bsuite"
NAMES = [name for name in from_gymnax.names() if name != DOWNLOADS]
# Costly in check_env, and similar to others.
ALIKE = ("Acrobot-v1", "Asterix-MinAtar", "Freeway-MinAtar", "GaussianBandit-misc", "Seaquest-MinAtar")
NUM_STEPS = 40
LIMIT = 15  # steps of an episode, so that every environment truncates
# Discrete, continuous with bounds that are params, images, and one whose episodes end by themselves in the step of their limit.
QUICK = ("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "DeepSea-bsuite")


def shortened(params):
    limit = params.max_steps_in_episode
    return params.replace(max_steps_in_episode=type(limit)(min(limit, LIMIT)))


KINDS = [name for name in NAMES if name not in ALIKE]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "Pendulum-v1" else pytest.mark.slow) for name in KINDS])
def test_conformance(name):
    env = marljax.make(f"gymnax/{name}")
    check_env(env, shortened(env.default_params), num_steps=NUM_STEPS)


@pytest.mark.slow
def test_conformance_of_mnist_bandit(monkeypatch):
    images, labels = np.arange(20 * 28 * 28, dtype=np.int8).reshape(20, 28, 28), np.arange(20, dtype=np.uint8) % 10
    monkeypatch.setattr(load_mnist, "load_mnist", lambda: ((images, labels), (images, labels)))
    env = marljax.make(f"gymnax/{DOWNLOADS}")
    assert env.observation_space == Box((28 * 28,))
    check_env(env, num_steps=NUM_STEPS)


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_an_option(name):
    arguments = set(inspect.signature(type(gymnax.make(name)[0])).parameters)
    assert arguments - set(from_gymnax.options_of(name)) <= {"action_mapping_key"}


def gymnax_action(space, action):
    """The action of the agent in gymnax's space."""
    if hasattr(space, "n"):
        return action
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    return low + (high - low) * (action + 1) / 2


def flatten(space, obs):
    """gymnax's observation as a vector; an integer as one-hot."""
    return jnp.asarray(jnp.arange(space.n) == obs if hasattr(space, "n") else jnp.ravel(obs), jnp.float32)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES])
def test_steps_match_gymnax_over_several_episodes(name):
    """The same keys in ``step`` and in gymnax's own, which restarts: rewards, both kinds of end, final observations."""
    ours = marljax.make(f"gymnax/{name}")
    own, params = gymnax.make(name)
    params = shortened(params)
    assert type(ours.default_params) is type(params)
    space, obs_space = own.action_space(params), own.observation_space(params)

    @jax.jit
    def play(key):
        key_reset, key_steps = jax.random.split(key)

        def step(carry, key):
            key_action, key_step = jax.random.split(key)
            (state, timestep), their_state = carry
            action = sample_action(ours, key_action, timestep.action_mask)
            # gymnax's step splits its key: one part is for the transition, the other for the next episode.
            key_transition, key_restart = jax.random.split(key_step)
            state, timestep = ours.step(key_transition, state, action, params)
            _, their_state, reward, terminated, truncated, info = own.step(
                key_step, their_state, gymnax_action(space, action[0]), params
            )
            fresh = ours.reset(key_restart, params)
            now = jax.tree.map(lambda new, old: jnp.where(timestep.last, new, old), fresh, (state, timestep))
            theirs = (flatten(obs_space, info["final_observation"]), reward, terminated, truncated)
            return (now, their_state), (timestep, ours.global_state(state, params), theirs)

        start = ours.reset(key_reset, params)
        their_obs, their_state = own.reset(key_reset, params)
        _, steps = jax.lax.scan(step, (start, their_state), jax.random.split(key_steps, NUM_STEPS))
        return start[1].obs, flatten(obs_space, their_obs), steps

    first, their_first, (timestep, world, (their_obs, reward, terminated, truncated)) = jax.device_get(play(jax.random.key(3)))
    assert (terminated | truncated).any()
    np.testing.assert_array_equal(first[0], their_first)
    np.testing.assert_array_equal(timestep.terminated, terminated)
    np.testing.assert_array_equal(timestep.truncated, truncated & ~terminated)
    np.testing.assert_allclose(timestep.reward[:, 0], reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(timestep.obs[:, 0], their_obs, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(world, timestep.obs[:, 0])
    assert timestep.alive.all()
    assert timestep.action_mask.all()


def end_of_episode(env, action, **changes):
    """(terminated, truncated, steps) of an episode in which ``action`` is repeated."""
    env_params, step = env.default_params.replace(**changes), jax.jit(env.step)
    state, timestep = env.reset(jax.random.key(0), env_params)
    steps = 0
    while not timestep.last:
        state, timestep = step(jax.random.fold_in(jax.random.key(0), steps), state, jnp.array([action]), env_params)
        steps += 1
    return bool(timestep.terminated), bool(timestep.truncated), steps


def test_the_limit_truncates_and_everything_else_terminates():
    cart = marljax.make("gymnax/CartPole-v1")
    falls = end_of_episode(cart, 1)
    assert falls[:2] == (True, False)
    assert end_of_episode(cart, 1, max_steps_in_episode=falls[2] - 1) == (False, True, falls[2] - 1)
    assert end_of_episode(cart, 1, max_steps_in_episode=falls[2]) == falls  # both at once: nothing follows
    assert cart.max_episode_steps(cart.default_params) == 500
    assert end_of_episode(marljax.make("gymnax/Catch-bsuite", rows=6), 0) == (True, False, 5)
    # gymnax's DeepSea sets both flags here.
    assert end_of_episode(marljax.make("gymnax/DeepSea-bsuite", size=5), 0) == (True, False, 5)


def test_spaces():
    cases = {
        "Pendulum-v1": (Box((1,), -1.0, 1.0), 3),
        "Breakout-MinAtar": (Discrete(3), 10 * 10 * 4),
        "FrozenLake-misc": (Discrete(4), 16),
    }
    for name, (action_space, size) in cases.items():
        env = marljax.make(f"gymnax/{name}")
        assert (env.num_agents, env.action_space, env.observation_space) == (1, action_space, Box((size,)))
    np.testing.assert_array_equal(env.reset(jax.random.key(0))[1].obs, [np.arange(16) == 0])  # one-hot


def test_continuous_actions_are_rescaled_to_bounds_that_are_params():
    env = marljax.make("gymnax/Pendulum-v1")
    state, _ = env.reset(jax.random.key(0))
    for torque in (2.0, 0.5):
        env_params = env.default_params.replace(max_torque=torque)
        for action, reached in ((-1.0, -torque), (0.25, 0.25 * torque), (1.0, torque), (7.0, torque)):
            after, _ = env.step(jax.random.key(1), state, jnp.full((1, 1), action), env_params)
            np.testing.assert_allclose(after.inner.last_u, reached, rtol=1e-6)


def test_actions_outside_the_space_are_action_0():
    env = marljax.make("gymnax/MountainCar-v0")
    state, _ = env.reset(jax.random.key(0))
    steps = [env.step(jax.random.key(1), state, jnp.array([action]))[0].inner for action in (0, 3, -1, 1)]
    for other in steps[1:3]:
        jax.tree.map(np.testing.assert_array_equal, steps[0], other)
    assert steps[3].velocity != steps[0].velocity


def test_a_failed_download_is_a_user_error(monkeypatch):
    def offline(name, **options):
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr(gymnax, "make", offline)
    with pytest.raises(UserError, match="Name or service not known"):
        from_gymnax.wrapped_env(DOWNLOADS, ())


@struct.dataclass
class FieldState(environment.EnvState):
    key: jax.Array  # a typed key, such as states may hold


class Field(environment.Environment):
    """A user's environment with a tree of observations and actions of shape [2, 1] with their own bounds."""

    low, high, layouts = -1.0, jnp.array([[3.0], [5.0]]), ("wide", "long")

    def __init__(self, size: "Unknown" = 2, obs_layout: str = "wide", keys: dict | None = None):  # noqa: F821
        self.size = size

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=3)

    def reset_env(self, key, params):
        return self.obs(0), FieldState(time=0, key=key)

    def step_env(self, key, state, action, params):
        after = FieldState(time=state.time + 1, key=jax.random.fold_in(state.key, 0))
        return self.obs(after.time), after, jnp.sum(action, keepdims=True), False, {}

    def obs(self, time):
        return {"clock": time, "image": jnp.ones((self.size, self.size), jnp.uint8)}

    def action_space(self, params):
        return spaces.Box(self.low, self.high, (2, 1))

    def observation_space(self, params):
        return spaces.Dict({"clock": spaces.Discrete(9), "image": spaces.Box(0, 255, (self.size, self.size))})


class Unbounded(Field):
    high = np.finfo(np.float32).max


class Pair(Field):
    def action_space(self, params):
        return spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))


def test_environments_registered_by_users_are_in_the_suite():
    for factory in (Field, Unbounded, Pair):
        if factory.__name__ not in gymnax.registered_envs:
            gymnax.register(factory.__name__, factory)
    env = marljax.make("gymnax/Field", size=3)
    assert from_gymnax.options_of("Field") == {"size": (int, 2)}  # obs_layout would hide that of Environment
    assert from_gymnax.options_of("FrozenLake-misc")["reward_schedule"] == (tuple[float, ...], (1.0, 0.0, 0.0))
    assert (env.action_space, env.observation_space, env.obs_layout) == (Box((2, 1), -1.0, 1.0), Box((1 + 9,)), ())
    state, _ = env.reset(jax.random.key(0))
    _, timestep = env.step(jax.random.key(0), state, jnp.array([[[-1.0], [1.0]]]))
    np.testing.assert_array_equal(timestep.obs, [[1, *[1] * 9]])
    np.testing.assert_array_equal(timestep.reward, [-1.0 + 5.0])
    assert end_of_episode(env, [[0.0], [0.0]]) == (False, True, 3)
    for name, message in (("Unbounded", "no bounds"), ("Pair", r"Tuple\(.*\); only Discrete and a Box")):
        with pytest.raises(UserError, match=f"{name}: .*{message}"):
            marljax.make(f"gymnax/{name}")


def test_params_can_be_vmapped():
    """One program; each episode is that of gymnax's own environment with this gravity."""
    env, (own, params) = marljax.make("gymnax/CartPole-v1"), gymnax.make("CartPole-v1")
    gravities, key = jnp.array([1.0, 9.8, 2000.0]), jax.random.key(0)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def play(key, gravity):
        env_params = params.replace(gravity=gravity)

        def step(states, key):
            ours, timestep = env.step(key, states[0], jnp.ones(1, jnp.int32), env_params)
            obs, theirs, _, terminated, _ = own.step_env(key, states[1], 1, env_params)
            return (ours, theirs), (timestep.obs[0], obs, timestep.terminated, terminated)

        start = env.reset(key, env_params)[0], own.reset(key, env_params)[1]
        return jax.lax.scan(step, start, jax.random.split(key, 12))[1]

    obs, their_obs, terminated, their_terminated = play(key, gravities)
    np.testing.assert_allclose(obs, their_obs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(terminated, their_terminated)
    assert (np.diff(terminated.sum(1)) > 0).any()


@pytest.fixture(scope="module")
def train():
    config = mappo.Config(total_steps=256, num_envs=4, rollout_length=32, num_epochs=1, num_minibatches=2, hidden=(8,))
    return marljax.make_train(mappo, marljax.make("gymnax/CartPole-v1"), config)


SWEPT = {"env.gravity": jnp.array([9.8, 2000.0])}


def test_training_takes_params_of_gymnax(train):
    result = jax.eval_shape(jax.vmap(train, (None, 0)), jax.random.key(0), SWEPT)
    assert result.metrics["sum_length"].shape == (2, 2)
    with pytest.raises(UserError, match="'gravty'; did you mean gravity"):
        train(jax.random.key(0), {"env.gravty": 1.0})


@pytest.mark.slow
def test_params_are_swept_in_training(train):
    swept = jax.jit(jax.vmap(train, (None, 0)))(jax.random.key(0), SWEPT)
    assert (swept.diverged_at == -1).all()
    lengths = swept.metrics["sum_length"].sum(1) / swept.metrics["episodes"].sum(1)
    assert lengths[1] < lengths[0] / 2
