"""Environments with JaxMARL's API: its wrappers and loops play the same episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import STAY, Corridor, Points

import marljax
from marljax.testing.conformance import sample_action
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    import jaxmarl
    from jaxmarl.environments import MultiAgentEnv
    from jaxmarl.wrappers.baselines import LogWrapper, SMAXLogWrapper

NUM_ENVS, NUM_STEPS = 3, 130


def loop(env, key, act):
    """A rollout as in JaxMARL's loops: vmap over environments, scan over steps, dictionaries by agent."""
    key_reset, key_steps = jax.random.split(key)
    obs, state = jax.vmap(env.reset)(jax.random.split(key_reset, NUM_ENVS))

    def step(carry, key):
        state, obs = carry
        key_action, key_step = jax.random.split(key)
        available = jax.vmap(env.get_avail_actions)(state.env_state)
        actions = jax.vmap(act)(jax.random.split(key_action, NUM_ENVS), available)
        obs, state, reward, done, info = jax.vmap(env.step)(jax.random.split(key_step, NUM_ENVS), state, actions)
        return (state, obs), (obs, reward, done, info)

    _, steps = jax.lax.scan(step, (state, obs), jax.random.split(key_steps, NUM_STEPS))
    return steps


def uniform(key, available):
    """One of the available actions of each agent."""
    keys = jax.random.split(key, len(available))
    pairs = zip(keys, available.items(), strict=True)
    return {agent: jax.random.categorical(own, jnp.where(mask, 0.0, -jnp.inf)) for own, (agent, mask) in pairs}


def plain_episodes(env, key):
    """Returns [T, E, A] and lengths [T, E] of the episodes that end at each step, from ``env.reset`` and ``env.step``."""
    key_reset, key_steps = jax.random.split(key)
    agents = [f"agent_{index}" for index in range(env.num_agents)]

    def step(carry, key):
        key_action, key_step = jax.random.split(key)

        def one(key_action, key_step, state, timestep, total, length):
            mask = dict(zip(agents, jnp.where(timestep.alive[:, None], timestep.action_mask, noop), strict=True))
            action = jnp.stack(list(uniform(key_action, mask).values()))
            key_transition, key_restart = jax.random.split(key_step)
            state, timestep = env.step(key_transition, state, action)
            total, length, ended = total + timestep.reward, length + 1, timestep.last
            fresh = env.reset(key_restart)
            state, timestep = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, (state, timestep))
            return (state, timestep, total * ~ended, length * ~ended), (ended, total, length)

        keys = jax.random.split(key_action, NUM_ENVS), jax.random.split(key_step, NUM_ENVS)
        return jax.vmap(one)(*keys, *carry)

    noop = jnp.arange(env.action_space.n) == env.noop
    state, timestep = jax.vmap(env.reset)(jax.random.split(key_reset, NUM_ENVS))
    start = (state, timestep, jnp.zeros((NUM_ENVS, env.num_agents)), jnp.zeros(NUM_ENVS))
    return jax.lax.scan(step, start, jax.random.split(key_steps, NUM_STEPS))[1]


@pytest.mark.parametrize(
    "env",
    [Corridor(), pytest.param(marljax.make("smax", scenario="3m"), marks=pytest.mark.slow), marljax.make("merge")],
    ids=["corridor", "smax", "merge"],
)
def test_the_log_wrapper_reports_the_same_episodes(env):
    key = jax.random.key(5)
    wrapped = LogWrapper(marljax.to_jaxmarl(env))
    obs, _, done, info = jax.jit(lambda key: loop(wrapped, key, uniform))(key)
    ended, total, length = jax.jit(lambda key: plain_episodes(env, key))(key)
    assert ended.sum() >= NUM_ENVS
    np.testing.assert_array_equal(done["__all__"], ended)
    np.testing.assert_array_equal(info["returned_episode"], np.repeat(ended[..., None], env.num_agents, -1))
    np.testing.assert_allclose(info["returned_episode_returns"][ended], total[ended], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(info["returned_episode_lengths"][ended], np.repeat(length[ended][:, None], env.num_agents, 1))
    assert obs["agent_0"].shape == (NUM_STEPS, NUM_ENVS, *wrapped.observation_space("agent_0").shape)
    assert obs["world_state"].shape == (NUM_STEPS, NUM_ENVS, wrapped.world_state_size)


def test_a_round_trip_changes_nothing():
    own = jaxmarl.make("switch_riddle")
    again = marljax.to_jaxmarl(marljax.make("jaxmarl/switch_riddle"))

    @jax.jit
    def play(key):
        def step(states, key):
            key_action, key_step = jax.random.split(key)
            keys = jax.random.split(key_action, 3)
            actions = {agent: own.action_space(agent).sample(keys[index]) for index, agent in enumerate(own.agents)}
            theirs, ours = own.step(key_step, states[0], actions), again.step(key_step, states[1], actions)
            return (theirs[1], ours[1]), (theirs, ours)

        starts = own.reset(key), again.reset(key)
        _, steps = jax.lax.scan(step, (starts[0][1], starts[1][1]), jax.random.split(key, 60))
        return starts, steps

    starts, (theirs, ours) = play(jax.random.key(2))
    for agent in own.agents:
        np.testing.assert_array_equal(starts[1][0][agent], starts[0][0][agent])
        for part in (0, 2, 3):  # observations, rewards, dones
            np.testing.assert_array_equal(ours[part][agent], theirs[part][agent])
    np.testing.assert_array_equal(ours[3]["__all__"], theirs[3]["__all__"])
    assert theirs[3]["__all__"].sum() > 5


def test_agents_that_leave_are_done_and_have_the_noop_only():
    env = marljax.to_jaxmarl(Corridor(length=1), Corridor().default_params.replace(slip=0.0))
    assert isinstance(env, MultiAgentEnv)
    assert (env.name, env.agents, env.num_agents) == ("Corridor", ["agent_0", "agent_1", "agent_2"], 3)
    assert env.agent_classes == {"team_0": env.agents}
    _, state = env.reset(jax.random.key(0))
    state = state.replace(env=state.env.replace(alive=jnp.array([True, True, False])))
    forth_and_stay = {"agent_0": jnp.array(2), "agent_1": jnp.array(STAY), "agent_2": jnp.array(2)}
    obs, state, reward, done, info = env.step_env(jax.random.key(1), state, forth_and_stay)
    np.testing.assert_array_equal([done[agent] for agent in (*env.agents, "__all__")], [True, False, True, False])
    np.testing.assert_allclose([reward[agent] for agent in env.agents], [0.95, -0.05, 0.0], rtol=1e-6)
    available = env.get_avail_actions(state)
    np.testing.assert_array_equal(available["agent_0"], [1, 0, 0])
    np.testing.assert_array_equal(available["agent_1"], [1, 0, 1])
    np.testing.assert_array_equal(obs["world_state"], env.get_world_state(state))
    np.testing.assert_array_equal(obs["agent_1"], env.get_obs(state)["agent_1"])
    assert (info["arrived"].shape, bool(info["truncated"].any()), int(state.step)) == ((3,), False, 1)


def test_sizes_for_jaxmarls_scripts_are_available_through_wrappers():
    env = marljax.make("smax", scenario="5m_vs_6m")
    wrapped = SMAXLogWrapper(LogWrapper(marljax.to_jaxmarl(env)))
    own = jaxmarl.make("HeuristicEnemySMAX", scenario=jaxmarl.environments.smax.map_name_to_scenario("5m_vs_6m"))
    assert (wrapped.num_allies, wrapped.num_agents) == (own.num_allies, own.num_agents) == (5, 5)
    obs, _ = jax.eval_shape(wrapped.reset, jax.random.PRNGKey(0))
    assert obs["world_state"].shape == (wrapped.state_size,) == (wrapped.world_state_size,)
    assert wrapped.name.lower().startswith("smax")  # which CTRolloutManager tests
    both = marljax.to_jaxmarl(marljax.make("smax", scenario="5m_vs_6m", mode="self_play"))
    assert (both.num_allies, both.num_agents) == (5, 11)


def test_shared_parts_of_an_observation_are_repeated_and_actions_are_continuous():
    env = Points()
    wrapped = marljax.to_jaxmarl(env)
    assert wrapped.action_space("agent_0").shape == (2,)
    _, timestep = env.reset(jax.random.key(0))
    obs, state = wrapped.reset(jax.random.key(0))
    for index, agent in enumerate(wrapped.agents):
        np.testing.assert_array_equal(obs[agent], np.concatenate([timestep.obs["own"][index], timestep.obs["shared"]]))
        np.testing.assert_array_equal(wrapped.get_avail_actions(state)[agent], np.ones(2))
    action = sample_action(env, jax.random.key(1), timestep.action_mask)
    after, state, reward, _, _ = wrapped.step_env(jax.random.key(2), state, dict(zip(wrapped.agents, action, strict=True)))
    _, timestep = env.step(jax.random.key(2), env.reset(jax.random.key(0))[0], action)
    np.testing.assert_allclose([reward[agent] for agent in wrapped.agents], timestep.reward, rtol=1e-6)
    np.testing.assert_allclose(after["agent_1"][:2], timestep.obs["own"][1], rtol=1e-6)
    assert isinstance(state.done, jax.Array)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("smax", None, "to_jaxmarl got 'smax'"),
        (marljax.make("smax"), {"duration": -5}, "duration=-5 "),
        (marljax.make("smax"), {"speed": np.ones(5)}, r"speed=.*shape \[5\]"),
        (marljax.make("smax"), "hard", "str; give SmaxParams"),
    ],
)
def test_other_environments_and_params_are_refused(env, changes, message):
    with pytest.raises(marljax.UserError, match=message):
        marljax.to_jaxmarl(env, env.default_params.replace(**changes) if isinstance(changes, dict) else changes)
