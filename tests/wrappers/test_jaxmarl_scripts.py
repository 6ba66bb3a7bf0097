"""JaxMARL's training scripts train on marljax environments.

The package ``jaxmarl`` has the environments and their wrappers, not the scripts of its repository (``baselines/``). The loops
here use an environment and the packaged wrappers as each of these scripts does, with ``PRNGKey``s and the same shapes, orders and
dtypes. Every episode of a loop is then replayed with ``env.step``.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import marljax
from marljax.baselines.rivals import ippo, qmix, rnn_ppo
from marljax.envs.smax import Scenario, register_scenario
from marljax.wrappers.jaxmarl_families import quiet

with quiet():
    from jaxmarl.wrappers.baselines import (
        CTRolloutManager,
        JaxMARLWrapper,
        LogWrapper,
        MPELogWrapper,
        SMAXLogWrapper,
        load_params,
        save_params,
    )

pytestmark = pytest.mark.slow

NUM_ENVS, NUM_STEPS = 4, 24
BATTLE = "three_marauders_vs_one_zergling"  # which chance wins more often than not
CASES = {
    "merge": ({}, {"duration": 8}),
    "smax": ({"scenario": BATTLE}, {"duration": 20}),
    "ride_dispatch": ({"view": "candidates", "preset": "demo", "vehicles": 3, "orders": 16, "candidates": 4}, {"duration": 8}),
}


class Case(NamedTuple):
    env: Any
    env_params: Any
    theirs: Any  # with JaxMARL's API


@functools.cache
def case(name):
    options, changes = CASES[name]
    register_scenario(BATTLE, Scenario((*["marauder"] * 3, "zergling"), 3, 1))
    env = marljax.make(name, **options)
    env_params = env.default_params.replace(**changes)
    return Case(env, env_params, marljax.to_jaxmarl(env, env_params))


class Log(NamedTuple):
    """One step of all environments as a loop receives it; [T, …] of a rollout."""

    keys: Any  # [E], given to ``step``
    action: Any  # [E, A]
    reward: Any  # [E, A]
    done: Any  # [E, A]
    over: Any  # [E], ``done["__all__"]``
    info: dict  # [E, A]


@functools.cache
def replayer(name):
    """Episodes of ``env.step``, compiled: (reset keys [E], step keys [T, E], actions [T, E, A]) → [T, E, …] rewards, alive, ends,
    returns so far, present, metrics."""
    env, env_params, _ = case(name)
    joint = marljax.joint(env)

    def one(key, keys, actions):
        def step(state, given):
            key_step, key_reset = jax.random.split(given[0])  # as JaxMARL's ``step`` does
            after, timestep = joint.step(key_step, state, given[1].reshape(1, -1), env_params)
            alive = env.observe(after.env, env_params).alive
            fresh, _ = joint.reset(key_reset, env_params)
            reward = after.returns - state.returns
            record = (reward, alive, timestep.last, after.returns, after.present, timestep.metrics)
            return jax.tree.map(lambda new, old: jnp.where(timestep.last, new, old), fresh, after), record

        return jax.lax.scan(step, joint.reset(key, env_params)[0], (keys, actions))[1]

    return jax.jit(jax.vmap(one, in_axes=(0, 1, 1), out_axes=1))


def check_against_ours(name, reset_keys, log, scale=1.0):
    """A loop's rewards, ends and metrics are those of ``env.step``, and so are its wrapper's returns (times ``scale``)."""
    reward, alive, over, returns, present, metrics = replayer(name)(reset_keys, log.keys, log.action)
    np.testing.assert_allclose(log.reward, reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(log.over, over)
    np.testing.assert_array_equal(log.done, over[..., None] | ~alive)
    assert over.sum() >= NUM_ENVS
    np.testing.assert_array_equal(log.info["returned_episode"], np.broadcast_to(over[..., None], log.reward.shape))
    logged = log.info["returned_episode_returns"]
    np.testing.assert_allclose(logged[over], scale * returns[over], rtol=1e-4, atol=1e-4)
    team = (logged * present).sum(-1) / present.sum(-1) / scale
    if name != "merge":  # which reports the published return, of rewards before sharing
        np.testing.assert_allclose(team[over], metrics["return"][over], rtol=1e-4, atol=1e-4)
    for key in metrics.keys() & log.info.keys():
        np.testing.assert_allclose(log.info[key][..., 0], metrics[key], rtol=1e-4, atol=1e-4)
    if "returned_won_episode" in log.info and "won" in metrics:
        won = np.repeat(metrics["won"][over][:, None], log.reward.shape[-1], axis=1)
        np.testing.assert_array_equal(log.info["returned_won_episode"][over], won)
        assert won.any()


def check_learnt(before, after):
    """Parameters are finite, and nearly all of them changed."""
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    assert all(np.isfinite(new).all() for _, new in pairs)
    assert np.mean([not np.array_equal(old, new) for old, new in pairs]) > 0.8


def rows(agents, values):
    """[A·E, F] of [E, …] by agent, agents one after the other."""
    together = jnp.stack([values[agent] for agent in agents])
    return together.reshape(len(agents) * NUM_ENVS, -1)


def by_env(agents, values):
    """[E, A] of [E] by agent."""
    return jnp.stack([values[agent] for agent in agents], axis=-1)


def infos_as_the_scripts_shape_them(agents, info):
    """They flatten every entry to [A·E], so each must have that size."""
    flat = jax.tree.map(lambda x: x.reshape(len(agents) * NUM_ENVS), info)
    return jax.tree.map(lambda x: x.reshape(NUM_ENVS, len(agents)), flat)


# --- IPPO, feed-forward ---------------------------------------------------------------------------------------------------

IPPO = ippo.Config(total_timesteps=2 * NUM_ENVS * NUM_STEPS, num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden=16)


def ippo_ff_update(env, state):
    """Like ``IPPO/ippo_ff_mpe.py``: no masks; actions are [E, 1]; an agent's own ``done`` ends its advantages."""
    agents = env.agents
    key, key_rollout, key_fit = jax.random.split(state.key, 3)

    def step(carry, key):
        env_state, last_obs = carry
        key_action, key_step = jax.random.split(key)
        obs = rows(agents, last_obs)
        logits, value = ippo.outputs(env.action_space(agents[0]).n, IPPO, state.params, obs)
        action = jax.random.categorical(key_action, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=1)[:, 0]
        given = action.reshape(env.num_agents, NUM_ENVS, -1)
        actions = {agent: given[index] for index, agent in enumerate(agents)}
        keys = jax.random.split(key_step, NUM_ENVS)
        obs_after, env_state, reward, done, info = jax.vmap(env.step)(keys, env_state, actions)
        info = infos_as_the_scripts_shape_them(agents, info)
        flat_reward, flat_done = rows(agents, reward).squeeze(), rows(agents, done).squeeze()
        kept = ippo.Transition(flat_done, action, value, flat_reward, log_prob, obs)
        log = Log(keys, given[..., 0].T, by_env(agents, reward), by_env(agents, done), done["__all__"], info)
        return (env_state, obs_after), (kept, log)

    start = state.env_state, state.obs
    (env_state, obs), (kept, log) = jax.lax.scan(step, start, jax.random.split(key_rollout, NUM_STEPS))
    _, last_value = ippo.outputs(env.action_space(agents[0]).n, IPPO, state.params, rows(agents, obs))
    advantages = ippo.gae(IPPO, kept, last_value)
    batch = (kept, advantages, advantages + kept.value)
    loss = ippo.loss(state.params, env, IPPO, *jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch))
    params, opt_state = ippo.fit(env, IPPO, state.params, state.opt_state, batch, key_fit)
    return ippo.RunState(params, opt_state, env_state, obs, key), (log, loss)


@pytest.mark.parametrize("name", CASES)
def test_ippo_ff(name):
    env = MPELogWrapper(case(name).theirs)
    key = jax.random.PRNGKey(0)
    start = ippo.init(env, IPPO, key)
    reset_keys = jax.random.split(jax.random.split(key, 3)[1], NUM_ENVS)
    end, (log, losses) = jax.jit(lambda state: jax.lax.scan(lambda now, _: ippo_ff_update(env, now), state, None, 2))(start)
    assert np.isfinite(losses).all()
    check_learnt(start.params, end.params)
    log = jax.tree.map(lambda x: x.reshape(2 * NUM_STEPS, *x.shape[2:]), log)
    check_against_ours(name, reset_keys, log, scale=env.num_agents)  # which MPELogWrapper multiplies by


# --- IPPO and MAPPO, recurrent --------------------------------------------------------------------------------------------


class SmaxWorldState(JaxMARLWrapper):
    """The wrapper of ``MAPPO/mappo_rnn_smax.py``: the world state for every agent, with or without the agent's id."""

    def __init__(self, env, with_agent_id=True):
        super().__init__(env)
        self.with_agent_id = with_agent_id
        self._size = self._env.state_size + (self._env.num_allies if with_agent_id else 0)

    def world_state_size(self):
        return self._size

    def _with_world_state(self, obs):
        world = jnp.repeat(obs["world_state"][None], self._env.num_allies, axis=0)
        if self.with_agent_id:
            world = jnp.concatenate([world, jnp.eye(self._env.num_allies)], axis=1)
        return {**obs, "world_state": world}

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key):
        obs, state = self._env.reset(key)
        return self._with_world_state(obs), state

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, key, state, action):
        obs, state, reward, done, info = self._env.step(key, state, action)
        return self._with_world_state(obs), state, reward, done, info


class MpeWorldState(SmaxWorldState):
    """The wrapper of ``MAPPO/mappo_rnn_mpe.py``: all observations concatenated, for every agent."""

    def __init__(self, env):
        JaxMARLWrapper.__init__(self, env)

    def world_state_size(self):
        return sum(self._env.observation_space(agent).shape[-1] for agent in self._env.agents)

    def _with_world_state(self, obs):
        together = jnp.concatenate([obs[agent] for agent in self._env.agents])
        return {**obs, "world_state": jnp.repeat(together[None], self._env.num_agents, axis=0)}


class RecurrentLoop(rnn_ppo.Trainer):
    """Like ``IPPO/ippo_rnn_smax.py`` and, with ``central``, the two MAPPO scripts: ``get_avail_actions`` of
    ``env_state.env_state``, as ``1 - mask``; an agent's ``done`` resets its memory, ``__all__`` ends advantages; [E] actions."""

    def __init__(self, settings, env, masked=True):
        super().__init__(settings, env)
        self.masked = masked

    def get_inputs(self, obs, env_state, done):
        num_actions = self.env.action_space(self.agents[0]).n
        mask = jnp.ones((self.num_actors, num_actions))
        if self.masked:
            mask = 1 - (1 - rows(self.agents, jax.vmap(self.env.get_avail_actions)(env_state.env_state)))
        world = jnp.zeros((self.num_actors, 0))
        if self.settings.central:
            world = obs["world_state"].swapaxes(0, 1).reshape(self.num_actors, -1)
            assert world.shape[-1] == self.env.world_state_size()
        local = rows(self.agents, obs)
        assert local.shape[-1] == self.env.observation_space(self.agents[0]).shape[0]
        return rnn_ppo.Inputs(local, world, mask, done)

    def play(self, params, carried, key):
        """One step: the next carry, the transition, its log."""
        env_state, last_obs, last_done, carry = carried
        key_action, key_step = jax.random.split(key)
        inputs = self.get_inputs(last_obs, env_state, last_done)
        carry, logits, value = self.apply(params, carry, jax.tree.map(lambda x: x[None], inputs))
        action = jax.random.categorical(key_action, logits[0])
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits[0]), action[:, None], axis=1)[:, 0]
        given = action.reshape(self.env.num_agents, NUM_ENVS, -1)
        actions = {agent: given[index].squeeze() for index, agent in enumerate(self.agents)}
        keys = jax.random.split(key_step, NUM_ENVS)
        obs, env_state, reward, done, info = jax.vmap(self.env.step, in_axes=(0, 0, 0))(keys, env_state, actions)
        info = infos_as_the_scripts_shape_them(self.agents, info)
        over = jnp.tile(done["__all__"], self.env.num_agents)
        transition = rnn_ppo.Transition(inputs, action, log_prob, value[0], rows(self.agents, reward).squeeze(), over)
        log = Log(keys, by_env(self.agents, actions), *(by_env(self.agents, x) for x in (reward, done)), done["__all__"], info)
        return (env_state, obs, rows(self.agents, done).squeeze(), carry), (transition, log)

    def step(self, params, carried, key):
        carried, (transition, log) = self.play(params, carried, key)
        return carried, (transition, {"won": log.over, "episodes": log.over})


def check_recurrent(name, loop):
    key = jax.random.PRNGKey(1)
    start = loop.init(key)
    reset_keys = jax.random.split(jax.random.split(key, 3)[1], NUM_ENVS)

    @jax.jit
    def train(state):
        carried = (state.env, state.obs, state.done, state.carry)
        keys = jax.random.split(jax.random.PRNGKey(2), 2 * NUM_STEPS)
        log = jax.lax.scan(functools.partial(loop.play, state.params), carried, keys)[1][1]
        return jax.lax.scan(lambda now, _: loop.update(now), state, None, 2), log

    (end, metrics), log = train(start)
    check_learnt(start.params, end.params)
    assert metrics["episodes"].sum() >= NUM_ENVS
    return reset_keys, log


def settings(central):
    return rnn_ppo.Settings(
        BATTLE, central, 2 * NUM_ENVS * NUM_STEPS, NUM_ENVS, NUM_STEPS, num_epochs=2, num_minibatches=2, width=16
    )


@pytest.mark.parametrize("name", CASES)
def test_ippo_rnn(name):
    loop = RecurrentLoop(settings(central=False), SMAXLogWrapper(case(name).theirs))
    check_against_ours(name, *check_recurrent(name, loop))


@pytest.mark.parametrize("name", CASES)
def test_mappo_rnn_as_on_smax(name):
    env = SMAXLogWrapper(SmaxWorldState(case(name).theirs))
    assert env.world_state_size() == SmaxWorldState(case(name).theirs, with_agent_id=False).world_state_size() + env.num_agents
    check_against_ours(name, *check_recurrent(name, RecurrentLoop(settings(central=True), env)))


def test_mappo_rnn_as_on_mpe():
    env = MPELogWrapper(MpeWorldState(case("merge").theirs))
    loop = RecurrentLoop(settings(central=True), env, masked=False)
    check_against_ours("merge", *check_recurrent("merge", loop), scale=env.num_agents)


# --- Q-learning -----------------------------------------------------------------------------------------------------------


def logged(name):
    """The environment in the wrapper that the Q-learning scripts' ``env_from_config`` takes, by name."""
    theirs = case(name).theirs
    return SMAXLogWrapper(theirs) if "smax" in theirs.name.lower() else LogWrapper(theirs)


def check_team(name, obs, rewards):
    """The state and the reward of the team are those that ``ToJaxMARL`` documents for ``CTRolloutManager``."""
    theirs = case(name).theirs
    agents = theirs.agents
    if "smax" in theirs.name.lower():
        np.testing.assert_array_equal(rewards["__all__"], rewards[agents[0]])
        assert obs["__all__"].shape[-1] == theirs.state_size
    else:
        np.testing.assert_allclose(rewards["__all__"], sum(rewards[agent] for agent in agents), rtol=1e-5, atol=1e-5)
        assert obs["__all__"].shape[-1] == sum(theirs.observation_space(agent).shape[-1] for agent in agents)


def q_config(mixer):
    return qmix.Config(
        mixer=mixer,
        total_timesteps=4 * NUM_ENVS * NUM_STEPS,
        num_envs=NUM_ENVS,
        num_steps=NUM_STEPS,
        buffer_size=32,
        buffer_batch_size=2,
        hidden=16,
        mixer_embedding=8,
        hyper_hidden=8,
        mixer_init_scale=0.1,
        learning_starts=0,
        target_update_interval=1,
    )


@pytest.mark.parametrize(("name", "mixer"), [("merge", "vdn"), ("smax", "qmix"), ("ride_dispatch", "qmix")])
def test_qmix_and_vdn_rnn(name, mixer, tmp_path):
    """Like ``QLearning/qmix_rnn.py`` and ``vdn_rnn.py``, as in ``baselines.rivals.qmix``: ``batch_reset`` for every
    rollout, ``get_valid_actions`` of ``env_state.env_state``, ``batch_step``, whole rollouts in a buffer, and safetensors."""
    env, config = logged(name), q_config(mixer)
    start = jax.jit(functools.partial(qmix.init, env, config))(jax.random.PRNGKey(3))
    key = jax.random.PRNGKey(4)

    @jax.jit
    def train(state):
        played = qmix.rollout(env, config, state.params, jnp.ones(()), key)
        return jax.lax.scan(lambda now, _: qmix.update(env, config, now), state, None, 3), played

    (end, metrics), (moments, info) = train(start)
    check_learnt(start.params, end.params)
    assert metrics["episodes"].sum() >= NUM_ENVS
    check_team(name, moments.obs, moments.rewards)
    key_reset, key_steps = jax.random.split(key)
    keys = [jax.random.split(jax.random.split(step, 3)[2], NUM_ENVS) for step in jax.random.split(key_steps, NUM_STEPS)]
    actions, rewards = by_env(env.agents, moments.actions), by_env(env.agents, moments.rewards)
    log = Log(jnp.stack(keys), actions, rewards, rewards, info["returned_episode"][..., 0], info)
    following = by_env(env.agents, moments.dones)[1:]  # the done of a step is kept with the next
    log = jax.tree.map(lambda x: x[:-1], log)._replace(done=following)
    check_against_ours(name, jax.random.split(key_reset, NUM_ENVS), log)
    save_params(end.params, tmp_path / "params.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "params.safetensors"), end.params)


class QNetwork(nn.Module):
    """LayerNorm instead of a target network, with or without memory."""

    num_actions: int
    memory: bool

    @nn.compact
    def __call__(self, carry, obs, first):
        x = nn.relu(nn.LayerNorm()(nn.Dense(16)(obs)))
        if self.memory:
            carry, x = rnn_ppo.Recurrent(16)(carry, x, first)
        return carry, nn.Dense(self.num_actions)(x)


class PqnLoop:
    """Like ``QLearning/pqn_vdn_rnn.py`` and ``pqn_vdn_ff.py``: environments continue from update to update, ``batch_sample``
    for random actions, λ-returns of the sum of the agents' best available values, and a second manager for greedy play."""

    def __init__(self, env, memory):
        self.env, self.agents = env, env.agents
        self.manager = CTRolloutManager(env, batch_size=NUM_ENVS, preprocess_obs=True)
        self.greedy = CTRolloutManager(env, batch_size=NUM_ENVS, preprocess_obs=True)
        self.network = QNetwork(self.manager.max_action_space, memory)
        self.transform = optax.chain(optax.clip_by_global_norm(1.0), optax.radam(1e-3))

    def together(self, values):
        """[A, E, …]"""
        return jnp.stack([values[agent] for agent in self.agents])

    def values(self, params, carry, obs, first):
        """Memory and [A, E, n] of one step."""
        apply = jax.vmap(self.network.apply, in_axes=(None, 0, 0, 0))
        carry, values = apply(params, carry, self.together(obs)[:, None], self.together(first)[:, None])
        return carry, values[:, 0]

    def begin(self, manager, key):
        obs, env_state = manager.batch_reset(key)
        dones = {agent: jnp.zeros(NUM_ENVS, bool) for agent in [*self.agents, "__all__"]}
        return jnp.zeros((len(self.agents), NUM_ENVS, 16)), obs, dones, env_state

    def play(self, manager, params, epsilon, carried, key):
        """One step with ε-greedy actions."""
        carry, obs, dones, env_state = carried
        key_which, key_random, key_step = jax.random.split(key, 3)
        carry_after, values = self.values(params, carry, obs, dones)
        valid = self.together(manager.get_valid_actions(env_state.env_state))
        greedy = jnp.argmax(values - (1 - valid) * 1e10, axis=-1)
        sampled = {agent: manager.batch_sample(key_random, agent) for agent in self.agents}
        action = jnp.where(jax.random.uniform(key_which, greedy.shape) < epsilon, self.together(sampled), greedy)
        actions = {agent: action[index] for index, agent in enumerate(self.agents)}
        obs_after, env_state, rewards, dones_after, info = manager.batch_step(key_step, env_state, actions)
        by_row = [by_env(self.agents, x) for x in (actions, rewards, dones_after)]
        log = Log(jax.random.split(key_step, NUM_ENVS), *by_row, dones_after["__all__"], info)
        seen = carry, self.together(obs), self.together(dones), valid
        return (carry_after, obs_after, dones_after, env_state), (seen, rewards, obs_after, log)

    def loss(self, params, seen, rewards, log):
        carry, obs, first, valid = seen
        flat = lambda x: jnp.moveaxis(x, 1, 0).reshape(len(self.agents), NUM_STEPS, NUM_ENVS, *x.shape[3:])  # noqa: E731
        apply = jax.vmap(self.network.apply, in_axes=(None, 0, 0, 0))
        values = jnp.moveaxis(apply(params, carry[0], flat(obs), flat(first))[1], 0, 1)  # [T, A, E, n]
        best = jax.lax.stop_gradient(jnp.max(values - (1 - valid) * 1e10, axis=-1).sum(axis=1))  # [T, E]

        def backward(following, now):
            goal, best_after = following
            reward, over, best = now
            goal = reward + 0.99 * (1 - over) * (0.5 * goal + 0.5 * best_after)
            return (goal, best), goal

        steps = rewards["__all__"][:-1], log.over[:-1], best[:-1]
        goals = jax.lax.scan(backward, (best[-1], best[-1]), steps, reverse=True)[1]
        action = jnp.swapaxes(log.action, 1, 2)
        chosen = jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0].sum(axis=1)
        return jnp.mean(jnp.square(chosen[:-1] - goals))

    def train(self, key):
        key_network, key_reset, key_updates, key_test = jax.random.split(key, 4)
        start = jnp.zeros((1, 16)), jnp.zeros((1, 1, self.manager.obs_size)), jnp.zeros((1, 1))
        params = self.network.init(key_network, *start)

        def update(state, key):
            params, opt_state, carried = state
            step = functools.partial(self.play, self.manager, params, 0.5)
            carried, (seen, rewards, obs, log) = jax.lax.scan(step, carried, jax.random.split(key, NUM_STEPS))
            loss, grads = jax.value_and_grad(self.loss)(params, seen, rewards, log)
            updates, opt_state = self.transform.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state, carried), (loss, rewards, obs, log)

        state = params, self.transform.init(params), self.begin(self.manager, key_reset)
        (after, _, _), played = jax.lax.scan(update, state, jax.random.split(key_updates, 2))
        step = functools.partial(self.play, self.greedy, after, 0.0)
        test = jax.lax.scan(step, self.begin(self.greedy, key_test), jax.random.split(key_test, NUM_STEPS))[1][3].info
        means = jax.tree.map(lambda x: jnp.nanmean(jnp.where(test["returned_episode"], x, jnp.nan)), test)
        return params, after, played, means, jax.random.split(key_reset, NUM_ENVS)


@pytest.mark.parametrize(("name", "memory"), [("merge", True), ("smax", True), ("ride_dispatch", True), ("smax", False)])
def test_pqn_vdn(name, memory):
    loop = PqnLoop(logged(name), memory)
    before, after, (losses, rewards, obs, log), means, reset_keys = jax.jit(loop.train)(jax.random.PRNGKey(5))
    assert np.isfinite(losses).all()
    assert all(np.isfinite(mean) for mean in means.values())
    check_learnt(before, after)
    check_team(name, obs, rewards)
    log = jax.tree.map(lambda x: x.reshape(2 * NUM_STEPS, *x.shape[2:]), log)
    check_against_ours(name, reset_keys, log)


def test_a_manager_can_be_given_masks():
    theirs = case("merge").theirs
    manager = CTRolloutManager(LogWrapper(theirs), batch_size=NUM_ENVS)
    _, state = manager.batch_reset(jax.random.PRNGKey(0))
    assert all(valid.all() for valid in manager.get_valid_actions(state.env_state).values())
    manager.get_valid_actions = jax.vmap(manager.get_avail_actions)
    valid = manager.get_valid_actions(state.env_state)
    own = jax.vmap(theirs.get_avail_actions)(state.env_state)
    jax.tree.map(np.testing.assert_array_equal, valid, own)
    assert not all(mask.all() for mask in own.values())
