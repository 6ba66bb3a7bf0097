"""JaxMARL's environments keep the contract and match JaxMARL step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marljax
from marljax.algos import ippo, mappo
from marljax.core.spaces import Box, Discrete
from marljax.errors import UserError
from marljax.testing.conformance import check_env, sample_action
from marljax.wrappers import jaxmarl_families
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    import jaxmarl
    from jaxmarl.environments import overcooked_layouts
    from jaxmarl.environments.smax import map_name_to_scenario

SLOW = [
    ("MPE_simple_spread_v3", {"num_agents": 5, "max_steps": 10}),
    ("MPE_simple_tag_v3", {"max_steps": 10}),
    ("MPE_simple_world_comm_v3", {"max_steps": 10}),
    ("HeuristicEnemySMAX", {"scenario": "3m", "max_steps": 15}),
    ("SMAX", {"scenario": "5m_vs_6m", "max_steps": 15}),
    ("overcooked", {"max_steps": 20}),
    ("overcooked_v2", {"max_steps": 20}),
    ("hanabi", {}),
    ("coin_game", {"num_inner_steps": 3, "num_outer_steps": 4}),
    ("jaxnav", {"max_steps": 20}),
]
ALIKE = ("MPE_simple_spread_v3", "SMAX", "overcooked_v2")  # similar to others of their family, so not in check_env
PADDED = ("MPE_simple_speaker_listener_v4", {"max_steps": 8, "action_type": "Continuous"})  # actions of 3 and of 5 numbers
QUICK = [("switch_riddle", {"num_agents": 4}), ("MPE_simple_speaker_listener_v4", {"max_steps": 8}), PADDED]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
NUM_STEPS = 50  # enough for an episode of every case


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if getattr(case, "values", case)[0] not in ALIKE])
def test_conformance(name, options):
    check_env(marljax.make(f"jaxmarl/{name}", **options), num_steps=NUM_STEPS)


def make_jaxmarl(name, options):
    """JaxMARL's own object."""
    objects = {"scenario": map_name_to_scenario, "layout": lambda name: overcooked_layouts[name]}
    with quiet():
        return jaxmarl.make(name, **{key: objects.get(key, lambda same: same)(value) for key, value in options.items()})


def jaxmarl_action(env, action):
    """Actions [A, …] as a dictionary by agent; continuous ones rescaled to the agent's bounds."""
    actions = {}
    for agent, own in zip(env.agents, action, strict=True):
        space = env.action_space(agent)
        if hasattr(space, "n"):
            actions[agent] = own
            continue
        low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
        actions[agent] = low + (high - low) * (own[: len(low)] + 1) / 2
    return actions


@pytest.mark.parametrize(("name", "options"), CASES)
def test_steps_match_jaxmarl_to_the_end_of_the_episode(name, options):
    ours, own = marljax.make(f"jaxmarl/{name}", **options, limit="truncate"), make_jaxmarl(name, options)
    env_params = ours.default_params.replace(shaped_reward=0.0) if ours._wrapped.shaped else ours.default_params

    @jax.jit
    def play(key):
        key_reset, key_steps = jax.random.split(key)

        def step(carry, key):
            key_action, key_step = jax.random.split(key)
            state, timestep, their_state = carry
            action = sample_action(ours, key_action, timestep.action_mask)
            state, timestep = ours.step(key_step, state, action, env_params)
            with quiet():
                their_obs, their_state, reward, done, _ = own.step_env(key_step, their_state, jaxmarl_action(own, action))
            world = ours.global_state(state, ours.default_params)
            return (state, timestep, their_state), (timestep, world, their_obs, reward, done)

        state, first = ours.reset(key_reset)
        their_obs, their_state = own.reset(key_reset)
        _, steps = jax.lax.scan(step, (state, first, their_state), jax.random.split(key_steps, NUM_STEPS))
        return first, their_obs, steps

    first, their_first, (timestep, world, their_obs, reward, done) = jax.device_get(play(jax.random.key(3)))
    ended = done["__all__"]
    length = int(np.argmax(ended)) + 1
    assert ended.any()
    np.testing.assert_array_equal((timestep.terminated | timestep.truncated)[:length], ended[:length])
    longest = ours.max_episode_steps(env_params)
    assert (length == longest) if timestep.truncated[length - 1] else (longest is None or length <= longest)
    for index, agent in enumerate(own.agents):
        size = their_first[agent].size
        np.testing.assert_array_equal(first.obs[index, :size], their_first[agent].ravel())
        np.testing.assert_allclose(timestep.obs[:length, index, :size], their_obs[agent].reshape(NUM_STEPS, -1)[:length], 1e-6)
        np.testing.assert_allclose(timestep.reward[:length, index], reward[agent][:length], 1e-6)
    padded = max(space.size for space in jax.tree.leaves(their_first))
    if "world_state" in their_obs:
        np.testing.assert_allclose(world, their_obs["world_state"].reshape(NUM_STEPS, -1), 1e-6)
    elif not hasattr(own, "get_world_state"):
        np.testing.assert_array_equal(world, timestep.obs[..., :padded].reshape(NUM_STEPS, -1))


def end_of_episode(env, action, key=0):
    """(terminated, truncated, steps) of an episode in which every agent repeats ``action``."""
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(jax.random.key(key))
    steps = 0
    while not timestep.last:
        state, timestep = step(jax.random.fold_in(jax.random.key(key), steps), state, jnp.full(env.num_agents, action))
        steps += 1
    return bool(timestep.terminated), bool(timestep.truncated), steps


def test_the_step_limit_truncates_only_with_limit_truncate():
    riddle = marljax.make("jaxmarl/switch_riddle", limit="truncate")
    nothing, tell = 0, 2
    assert end_of_episode(marljax.make("jaxmarl/switch_riddle"), nothing) == (True, False, 6)
    assert end_of_episode(riddle, nothing) == (False, True, 6)
    assert end_of_episode(riddle, tell) == (True, False, 1)
    # Telling in the last step ends the episode before the limit does.
    last = jax.jit(riddle.reset)(jax.random.key(0))[0]
    last = last.replace(inner=last.inner.replace(step=jnp.array(5)))
    for action, terminated in ((tell, True), (nothing, False)):
        _, timestep = jax.jit(riddle.step)(jax.random.key(1), last, jnp.full(3, action))
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (terminated, not terminated)
        assert timestep.alive.all()
    # JaxMARL's MPE tests its limit before it counts the step.
    for limit in ("end", "truncate"):
        env = marljax.make("jaxmarl/MPE_simple_speaker_listener_v4", max_steps=8, limit=limit)
        assert end_of_episode(env, 0) == (limit == "end", limit == "truncate", 9)
        assert env.max_episode_steps(env.default_params) == 9
    assert marljax.make("jaxmarl/coin_game", num_inner_steps=3, num_outer_steps=4).max_episode_steps(()) == 12
    assert marljax.make("jaxmarl/hanabi").max_episode_steps(()) is None
    with pytest.raises(UserError, match=r"limit=ends.*did you mean end"):
        marljax.make("jaxmarl/switch_riddle", limit="ends")


def test_agents_with_different_spaces_are_padded_and_have_ids():
    env = marljax.make("jaxmarl/MPE_simple_speaker_listener_v4", max_steps=8)
    assert (env.num_agents, env.action_space, env.observation_space) == (2, Discrete(5), Box((11 + 2,)))
    _, timestep = jax.jit(env.reset)(jax.random.key(0))
    np.testing.assert_array_equal(timestep.obs[:, 11:], np.eye(2))
    np.testing.assert_array_equal(timestep.obs[0, 3:11], 0)  # the speaker observes the goal's colour only
    np.testing.assert_array_equal(timestep.action_mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    plain = marljax.make("jaxmarl/MPE_simple_speaker_listener_v4", agent_id=False)
    assert plain.observation_space == Box((11,))
    assert marljax.make("jaxmarl/switch_riddle", agent_id=True).observation_space == Box((2 + 3,))
    assert marljax.make("jaxmarl/MPE_simple_tag_v3").teams == (0, 0, 0, 1)


def test_environments_with_auto_reset_are_refused(monkeypatch):
    env = jaxmarl.make("switch_riddle")
    env.auto_reset = True
    monkeypatch.setattr(jaxmarl_families, "_make", lambda name, options: env)
    with pytest.raises(UserError, match="ant_4x2 restarts episodes within their last step"):
        jaxmarl_families.wrapped_env("ant_4x2", ())


def test_actions_outside_the_space_are_the_noop():
    env = marljax.make("jaxmarl/switch_riddle")
    state, _ = env.reset(jax.random.key(0))
    steps = [env.step(jax.random.key(1), state, jnp.full(3, action))[0].inner for action in (env.noop, 3, 7, -1)]
    for other in steps[1:]:
        jax.tree.map(np.testing.assert_array_equal, steps[0], other)


def test_a_shaped_reward_falls_to_0_over_half_of_training():
    env = marljax.make("jaxmarl/overcooked")
    for changes, weights in (
        ({}, (1, 0.5, 0, 0)),
        ({"shaped_reward": 4.0, "shaped_until": 1.0}, (4, 3, 2, 0)),
        ({"shaped_until": 0.0}, (1,) * 4),
    ):
        env_params = env.default_params.replace(**changes)
        found = [env.anneal(env_params, jnp.float32(progress)).shaped_reward for progress in (0.0, 0.25, 0.5, 1.0)]
        np.testing.assert_allclose(found, weights)
    with pytest.raises(UserError, match="shaped_until=2 "):
        env.check_params(env.default_params.replace(shaped_until=2.0))
    assert marljax.make("jaxmarl/switch_riddle").anneal((), jnp.float32(0.5)) == ()


def fed(monkeypatch, max_steps):
    """Overcooked, adapted and JaxMARL's own, that pays 20 when the first agent interacts: random play never delivers anything."""
    own = make_jaxmarl("overcooked", {"max_steps": max_steps})

    def step_env(self, key, state, actions):
        obs, state, reward, done, info = type(own).__base__.step_env(self, key, state, actions)
        return obs, state, {agent: value + 20.0 * (actions["agent_0"] == 5) for agent, value in reward.items()}, done, info

    own.__class__ = type("Fed", (type(own),), {"step_env": step_env})
    monkeypatch.setattr(jaxmarl_families, "_make", lambda name, options: own)
    return marljax.make("jaxmarl/overcooked", max_steps=max_steps), own


@pytest.mark.slow
def test_a_shaped_reward_is_added_and_the_return_is_without_it(monkeypatch):
    """Alone, and of all agents as one."""
    env, own = fed(monkeypatch, 79)
    env_params = env.default_params.replace(shaped_reward=2.0)
    vecs = [marljax.vectorize(one, 1) for one in (env, marljax.joint(env))]

    @jax.jit
    @jax.vmap
    def play(key):
        def step(states, key):
            action = jax.random.randint(key, (2,), 0, 6)
            inner = jax.tree.map(lambda leaf: leaf[0], states[0].env.inner)
            _, _, reward, _, info = own.step_env(key, inner, dict(zip(own.agents, action, strict=True)))
            shaped, plain = (jnp.stack([by[agent] for agent in own.agents]) for by in (info["shaped_reward"], reward))
            given = action[None], action[None, None]
            after = [vec.step(key, *one, env_params) for vec, *one in zip(vecs, states, given, strict=True)]
            return [state for state, _ in after], ([timestep for _, timestep in after], plain, shaped)

        return jax.lax.scan(step, [vec.reset(key, env_params)[0] for vec in vecs], jax.random.split(key, 79))[1]

    timesteps, plain, shaped = play(jax.random.split(jax.random.key(0), 32))
    np.testing.assert_allclose(timesteps[0].reward[:, :, 0], plain + 2.0 * shaped)
    assert shaped.sum() > 0
    assert plain.sum() > 0
    for timestep in timesteps:
        assert timestep.last[:, -1].all()
        np.testing.assert_allclose(timestep.metrics["return"][:, -1, 0], plain.sum(1).mean(-1))


@pytest.mark.parametrize("algorithm", [pytest.param(ippo, marks=pytest.mark.slow), mappo], ids=["ippo", "mappo"])
def test_training_runs(algorithm):
    env = marljax.make("jaxmarl/MPE_simple_speaker_listener_v4", max_steps=8)
    sizes = {"num_envs": 4, "rollout_length": 16, "num_epochs": 1, "num_minibatches": 2, "hidden": (8,)}
    config = algorithm.Config(total_steps=256, stagger=True, **sizes)
    result = jax.jit(marljax.make_train(algorithm, env, config))(jax.random.key(0))
    assert int(result.diverged_at) == -1
    np.testing.assert_array_equal(result.metrics["sum_length"], 9 * result.metrics["episodes"])
    assert result.metrics["episodes"].sum() > 0
