"""Our loops and other libraries': the PPO and QMIX loops of both have the same settings and take the same steps."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import marljax
from marljax.algos import ppo, pqn, qmix
from marljax.baselines import cartpole, jaxmarl_compare, pqn_compare, qmix_compare
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Plan
from marljax.baselines.rivals import ippo as jaxmarl_ippo
from marljax.baselines.rivals import ppo as purejaxrl_ppo
from marljax.baselines.rivals import pqn as jaxmarl_pqn
from marljax.baselines.rivals import qmix as jaxmarl_qmix
from marljax.core.spaces import Discrete
from marljax.core.types import TimeStep
from marljax.learning.advantages import gae
from marljax.learning.rollout import Inputs, Step
from marljax.training import mesh
from marljax.utils import stats


@pytest.mark.parametrize("mixer", ["qmix", "vdn"])
def test_both_qmix_loops_run_at_the_same_settings(mixer):
    ours, theirs = qmix_compare.configs(Plan(), mixer)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update) == (4807, 208)
    assert ours.capacity * ours.num_envs == theirs.buffer_size
    begins = ours.learning_starts / ours.steps_per_update
    assert np.ceil(begins) == np.floor(theirs.learning_starts / theirs.steps_per_update) + 1, "the same first gradient step"


@pytest.mark.parametrize(("module", "sizes"), [(cartpole, (976, 512)), (jaxmarl_compare, (488, 2048))])
def test_both_ppo_loops_run_at_the_same_settings(module, sizes):
    ours, theirs = module.configs(module.PLAN)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update) == sizes


def test_a_difference_has_welchs_interval_over_seeds():
    gap = stats.difference([4.0, 8.0, 12.0], [2.0, 4.0, 6.0])
    line = loops.signed(loops.difference({"mean": [2.0, 4.0, 6.0]}, {"mean": [1.0, 2.0, 3.0]}, scale=2.0))
    assert line == f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


def test_the_limit_can_be_terminal():
    ending, cutting = jaxmarl_compare.our_env("end"), jaxmarl_compare.our_env()
    assert ending == marljax.make(f"jaxmarl/{jaxmarl_compare.NAME}")
    state, _ = jax.jit(ending.reset)(jax.random.key(0))
    state = state.replace(inner=state.inner.replace(step=jnp.array(25)))
    for env, terminated in ((ending, True), (cutting, False)):
        _, timestep = jax.jit(env.step)(jax.random.key(1), state, jnp.zeros(3, int))
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (terminated, not terminated)


def test_their_mixer_is_monotonic():
    """From any weights."""
    keys = jax.random.split(jax.random.key(0), 4)
    mixer = jaxmarl_qmix.Mixer(4, 8, 1.0)
    values, state = jax.random.normal(keys[0], (5, 7, 3)), jax.random.normal(keys[1], (5, 7, 6))

    @jax.jit
    def slopes_of(values):
        weights = jax.tree.map(lambda w: w + jax.random.normal(keys[2], w.shape), mixer.init(keys[3], values, state))
        return jax.grad(lambda values: mixer.apply(weights, values, state).sum())(values)

    slopes = slopes_of(values)
    assert (slopes >= 0).all()
    assert (slopes > 0).mean() > 0.5


def test_both_explore_alike(monkeypatch):
    """Over the first tenth of training, down to a twentieth."""
    ours, theirs = qmix_compare.configs(Plan(), "qmix")

    class Collects(Exception):
        """Carries the share of random actions."""

    def collects(env, config, params, epsilon, key):
        raise Collects(epsilon)

    monkeypatch.setattr(jaxmarl_qmix, "rollout", collects)
    tenth = theirs.num_updates / 10
    for update, share in ((0, 1.0), (round(tenth / 2), 0.525), (round(tenth + 1), 0.05), (theirs.num_updates, 0.05)):
        state = jaxmarl_qmix.RunState(None, None, None, None, jnp.array(update), jax.random.key(0))
        with pytest.raises(Collects) as raised:
            jaxmarl_qmix.update(None, theirs, state)
        np.testing.assert_allclose(raised.value.args[0], share, atol=1e-3)
        np.testing.assert_allclose(raised.value.args[0], qmix.exploration_rate(ours, jnp.array(update)), rtol=1e-5)


AGENTS, ACTIONS, SIZE = ["one", "two", "three"], 5, 4  # of the made-up rollouts


def on_one_device(function, *arguments):
    """Runs what uses the data axis."""
    replicated = PartitionSpec()
    program = jax.shard_map(function, mesh=mesh.make_mesh(), in_specs=replicated, out_specs=replicated, check_vma=False)
    return jax.jit(program)(*arguments)


def rollouts(length=8, rows=6):
    """A batch in their form and in ours, with ends of episodes anywhere; theirs does not train on the last step."""
    keys = iter(jax.random.split(jax.random.key(0), 5))
    obs = jax.random.normal(next(keys), (length, rows, len(AGENTS), SIZE))
    state = jax.random.normal(next(keys), (length, rows, 2 * SIZE))
    action = jax.random.randint(next(keys), (length, rows, len(AGENTS)), 0, ACTIONS)
    reward = jax.random.normal(next(keys), (length, rows, len(AGENTS)))
    done = jax.random.bernoulli(next(keys), 0.2, (length, rows))  # of the step before
    ids = jnp.broadcast_to(jnp.eye(len(AGENTS)), (length, rows, len(AGENTS), len(AGENTS)))

    def by_agent(values):
        return {agent: values[:, :, number] for number, agent in enumerate(AGENTS)}

    dones = dict.fromkeys([*AGENTS, "__all__"], done)
    views = by_agent(jnp.concatenate([obs, ids], -1)) | {"__all__": state}
    theirs = jaxmarl_qmix.Timestep(views, by_agent(action), {"__all__": reward.sum(-1)}, dones)
    present = jnp.ones((length, rows, len(AGENTS)), bool)
    mask = jnp.ones((length, rows, len(AGENTS), ACTIONS), bool)
    inputs = Inputs(obs, mask, jnp.broadcast_to(done[..., None], present.shape), present, state=state)
    never, recurrent = jnp.zeros((length - 1, rows), bool), jnp.zeros((rows, len(AGENTS), 64))
    return theirs, qmix.Rollout(inputs, never, action[:-1], reward[:-1], done[1:], done[1:], recurrent)


def gru_as_theirs(core):
    """Our GRU's weights in the structure of flax's."""
    parts = [jnp.split(part, 3, -1) for part in (core["input"]["kernel"], core["input"]["bias"], core["recurrent"])]
    cell = {}
    for gate, kernel, bias, recurrent in zip("rzn", *parts, strict=True):
        cell |= {f"i{gate}": {"kernel": kernel, "bias": bias}, f"h{gate}": {"kernel": recurrent}}
    cell["hn"]["bias"] = core["bias"]
    return {"GRUCell_0": cell}


def as_theirs(weights):
    """Our networks' weights, or their gradients, in the structure of JaxMARL's networks."""
    layers = weights["agent"]["params"]
    body = {"Dense_0": layers["Core_0"]["Dense_0"], "ScanResetGRU_0": gru_as_theirs(layers["Core_0"]["GRU_0"])}
    found = {"agent": {"params": {"Recurrent_0": body, "Dense_0": layers["Dense_0"]}}}
    if weights["mixer"]:
        names = ("first_hidden", "first", "bias", "second_hidden", "second", "offset_hidden", "offset")
        mixer = {f"Dense_{number}": weights["mixer"]["params"][name] for number, name in enumerate(names)}
        found["mixer"] = {"params": mixer}
    return found


def assert_close(mine, other):
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5), mine, other)


OUR_ENV = SimpleNamespace(num_agents=len(AGENTS), action_space=Discrete(ACTIONS))
THEIR_ENV = SimpleNamespace(agents=AGENTS, action_space=lambda agent: Discrete(ACTIONS))


def random_weights(networks, batch):
    """Two draws for our networks: all parameters of a policy for this batch, and weights."""

    @jax.jit
    def draw(key):
        keys = jax.random.split(key, 3)
        params = networks.init(*keys[:2], batch.inputs)
        weights = {"agent": params.agent, "mixer": params.mixer}
        return params, jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(keys[2], leaf.shape), weights)

    return [draw(key) for key in jax.random.split(jax.random.key(1))]


@pytest.mark.parametrize("mixer", ["qmix", "vdn"])
def test_both_qmix_loops_learn_the_same_from_the_same_rollouts(mixer):
    """The loss and its gradient, of any weights: two programs written apart."""
    ours, theirs = qmix_compare.configs(Plan(), mixer)
    networks, (timesteps, batch) = qmix.make_networks(OUR_ENV, ours), rollouts()
    (params, weights), (_, target) = random_weights(networks, batch)

    def our_loss(weights, target, batch):
        return qmix.td_loss(weights, ours, networks, params, target, batch)[0]

    def their_loss(weights, target, timesteps):
        return jaxmarl_qmix.loss(weights, THEIR_ENV, theirs, target, timesteps)

    mine = on_one_device(jax.value_and_grad(our_loss), weights, target, batch)
    loss, gradient = jax.jit(jax.value_and_grad(their_loss))(as_theirs(weights), as_theirs(target), timesteps)
    assert_close((mine[0], as_theirs(mine[1])), (loss, gradient))
    assert loss > 0.1


def test_both_pqn_loops_learn_the_same_from_the_same_rollout():
    """The loss of the first gradient step and its gradient: λ-returns and networks, in two programs written apart. Theirs does
    not train on the last step of a rollout, whose value it only bootstraps."""
    found = pqn_compare.configs(pqn_compare.PROBLEMS["simple_spread"], Plan())
    ours, theirs = found["ours"].replace(hidden=(32, 32, 32)), dataclasses.replace(found["theirs"], hidden=32)
    assert (ours.num_updates, ours.steps_per_update) == (theirs.num_updates, theirs.steps_per_update)
    assert not ours.normalize_values
    timesteps, batch = rollouts()
    inputs = jax.tree.map(lambda leaf: leaf[:-1], batch.inputs)._replace(state=batch.inputs.state[:-1, :, :0])
    length, rows = batch.terminated.shape
    ends = batch.terminated
    networks = pqn.make_networks(OUR_ENV, ours)
    params = jax.jit(lambda key: networks.init(key, key, inputs))(jax.random.key(1))
    carry = jax.random.normal(jax.random.key(2), (rows, len(AGENTS), 32))
    steps = Step(batch.reward, inputs.alive, ends, ends)

    def our_loss(weights):
        now = params._replace(**weights)
        best = networks.mix(now, networks.action_values(now, inputs, carry)[1].max(-1), inputs)
        whole = pqn.Transition(inputs, batch.last, batch.action, jax.lax.stop_gradient(best))
        rollout, trained = jax.tree.map(lambda leaf: leaf[:-1], (whole, steps))
        team, mask = pqn.team_rewards(ours, rollout, trained)
        _, target = gae(team, rollout.team_value, whole.team_value[-1], ours.gamma, ours.td_lambda)
        return pqn.td_loss(weights, ours, networks, params, pqn.Batch(rollout, mask, target), carry)[0]

    def by_row(values):
        """[T, A·E, …] as theirs."""
        return jnp.moveaxis(values, 2, 1).reshape(length, -1, *values.shape[3:])

    flat_carry = jnp.moveaxis(carry, 1, 0).reshape(1, -1, 32)
    obs = jnp.concatenate([timesteps.obs[agent] for agent in AGENTS], axis=1)[:-1]
    mask = by_row(inputs.action_mask)
    reward = theirs.reward_scale * batch.reward.sum(-1)
    their_batch = jaxmarl_pqn.Transition(flat_carry, obs, by_row(inputs.first), mask, by_row(batch.action), reward, ends)
    env = SimpleNamespace(agents=AGENTS, num_agents=len(AGENTS), action_space=THEIR_ENV.action_space)

    def structured(weights):
        layers = weights["agent"]["params"]
        core = {name: layer for name, layer in layers["Core_0"].items() if name != "GRU_0"}
        return core | {"ScanResetGRU_0": gru_as_theirs(layers["Core_0"]["GRU_0"]), "Dense_2": layers["Dense_0"]}

    weights = {"agent": params.agent, "mixer": {}}
    mine = on_one_device(jax.value_and_grad(our_loss), weights)
    (loss, _), gradient = jax.jit(jax.value_and_grad(lambda w: jaxmarl_pqn.loss(w, env, theirs, {}, their_batch), has_aux=True))(
        structured(weights)
    )
    assert_close((mine[0], structured(mine[1])), (loss, gradient))
    assert loss > 0.1


def test_both_greedy_policies_act_alike():
    """Across resets: the frozen ones are played by the trained policy."""
    ours, theirs = qmix_compare.configs(Plan(), "vdn")
    _, batch = rollouts(length=20)
    params, weights = random_weights(qmix.make_networks(OUR_ENV, ours), batch)[0]
    inputs = jax.tree.map(lambda leaf: leaf[:, 0], batch.inputs)  # [T, A, …] of one environment
    never = jnp.zeros(len(inputs.obs), bool)
    timesteps = TimeStep(inputs.obs, inputs.action_mask, None, inputs.first[:, 0], never, never, inputs.alive, {})

    def played(act, env, config, params):
        def step(carry, timestep):
            action, carry = act(env, config, params, timestep, carry, jax.random.key(0), True)
            return carry, action

        return jax.jit(lambda: jax.lax.scan(step, jnp.zeros((len(AGENTS), 64)), timesteps)[1])()

    mine = played(qmix.act, OUR_ENV, ours, params._replace(**weights))
    its = played(jaxmarl_qmix.act, OUR_ENV, theirs, as_theirs(weights))
    np.testing.assert_array_equal(mine, its)
    assert len(np.unique(mine)) > 1


def test_both_ppo_loops_take_the_same_steps_from_the_same_rollout(monkeypatch):
    """Advantages, losses, gradients and Adam's steps; ends are terminal, for there no loop bootstraps."""
    ours, theirs = cartpole.configs(cartpole.PLAN)
    ours, theirs = ours.replace(num_minibatches=1, num_epochs=3), dataclasses.replace(theirs, num_minibatches=1, update_epochs=3)
    env, shape = marljax.make("gymnax/CartPole-v1"), (theirs.num_steps, theirs.num_envs)
    keys = jax.random.split(jax.random.key(0), 6)
    obs, key = jax.random.normal(keys[0], (*shape, 4)), keys[1]
    reward, value = jax.random.normal(keys[2], (2, *shape))
    done, action = jax.random.bernoulli(keys[3], 0.1, shape), jax.random.randint(keys[4], shape, 0, 2)
    log_prob = -jax.random.uniform(keys[5], shape, minval=0.3, maxval=1.2)  # so that some ratios leave the clipping range

    yes = jnp.ones((*shape, 1), bool)
    inputs = Inputs(obs[:, :, None], jnp.ones((*shape, 1, 2), bool), ~yes, yes)
    rollout = ppo.Transition(inputs, ~yes[..., 0], action[..., None], log_prob[..., None])
    steps = Step(reward[..., None], yes, done, done)
    monkeypatch.setattr(ppo, "collect", lambda vec, env_params, policy, actors, key, length: (actors, rollout, steps, {}))
    monkeypatch.setattr(ppo, "over_time", lambda network, inputs, carry: (carry, value[..., None]))

    def update(key):
        state = ppo.init(env, env.default_params, ours, key)
        params, last_inputs = state.learner.params, ppo.get_inputs(env, ours, env.default_params, state.actors.timestep)
        _, last_value = ppo.make_networks(env, ours).value(params, last_inputs, ppo.Carry((), ()))
        advantage, _ = ppo.estimate_advantages(env, ours, params.value_stats, rollout, steps, value[..., None], last_value[0])
        return params, last_value[0, :, 0], advantage[..., 0], ppo.update(env, ours, state)[0].learner.params

    params, last_value, advantage, after = on_one_device(update, key)
    transitions = purejaxrl_ppo.Transition(done, action, value, reward, log_prob, obs)
    their_advantage = purejaxrl_ppo.gae(theirs, transitions, last_value, unroll=16)
    np.testing.assert_allclose(advantage, their_advantage, rtol=1e-4, atol=1e-4)
    before = both_towers(params)
    opt_state = purejaxrl_ppo.optimizer(theirs).init(before)
    their_fit = jax.jit(
        functools.partial(jaxmarl_ippo.fit, SimpleNamespace(agents=[0], action_space=lambda agent: Discrete(2)), theirs)
    )
    found, _ = their_fit(before, opt_state, (transitions, their_advantage, their_advantage + value), key)
    assert_close(both_towers(after), found)
    moved = jax.tree.map(lambda old, new: float(jnp.abs(old - new).max()), before, found)
    assert min(jax.tree.leaves(moved)) > 1e-4


def both_towers(params):
    """Our actor and critic as PureJaxRL's one network."""
    towers = [tower["params"] for tower in (params.actor, params.critic)]
    layers = [layer for tower in towers for layer in (*tower["Core_0"].values(), tower["Dense_0"])]
    return {"params": {f"Dense_{number}": layer for number, layer in enumerate(layers)}}


@pytest.mark.slow
def test_the_rival_of_pqn_learns_overcookeds_shaped_rewards():
    """The sum over agents, times a weight that is 1 at first."""
    problem = pqn_compare.PROBLEMS["cramped_room"]
    config = jaxmarl_pqn.Config(**(dict(problem.settings) | {"num_envs": 8, "hidden": 8}))
    env = problem.make_theirs()

    @jax.jit
    def rewards(shaping):
        state = jaxmarl_pqn.init(env, config, jax.random.key(0))
        random = jnp.ones(())
        played = jaxmarl_pqn.rollout(env, config, state.params, random, shaping, state.actors, jax.random.key(1), 200)
        return played[1].reward, sum(played[2]["shaped_reward"].values())

    (plain, shaped), (with_shaped, _) = rewards(0.0), rewards(1.0)
    assert (shaped > 0).any()
    np.testing.assert_allclose(with_shaped, plain + shaped, atol=1e-6)
