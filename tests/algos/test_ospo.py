"""OSPO and GRPO: advantages by hand, policies that choose among items, and learning on problems with known answers."""

import functools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from devices import StubPolicy, on_one_device

import marljax
from marljax.algos import ippo, ospo
from marljax.learning.rollout import Learner, Step
from marljax.training import mesh
from marljax.training.evaluation import Evaluator
from marljax.training.trainer import Trainer, make_train

SMALL = {"num_envs": 4, "rollout_length": 31, "hidden": (16,), "embedding": 8, "num_minibatches": 2, "total_steps": 248}
KEY = jax.random.key(0)
IN_GROUP = np.array([[[1, 1, 1, 0], [1, 0, 1, 1]], [[1, 1, 1, 1], [0, 0, 0, 0]]], bool)  # [T, E, A]
REWARD = np.array([[[1, 2, 6, 50], [4, 50, 8, 0]], [[3, 3, 5, 9], [50, 50, 50, 50]]], np.float32)


def groups(normalize):
    """Masks [T, E, A] of each group."""
    index = np.stack(np.meshgrid(*map(np.arange, IN_GROUP.shape), indexing="ij"), -1)
    name = {"step": index[..., 0] * 10 + index[..., 1], "buffer": 0 * index[..., 0], "agent": index[..., 2]}[normalize]
    return [IN_GROUP & (name == group) for group in np.unique(name)]


@pytest.mark.parametrize("baseline", ["mean", "median"])
@pytest.mark.parametrize("normalize", ["step", "buffer", "agent"])
def test_values_are_compared_within_their_group(normalize, baseline):
    config = ospo.Config(normalize=normalize, baseline=baseline)
    standardize = functools.partial(ospo.standardize, config)
    found, informative = on_one_device(standardize, jnp.array(REWARD), jnp.array(IN_GROUP))
    expected, differs = np.zeros(IN_GROUP.shape), IN_GROUP.copy()
    for group in groups(normalize):
        if not group.any():
            continue
        values = REWARD[group]
        if baseline == "mean":
            expected[group] = (values - values.mean()) / (values.std() + 1e-8)
        else:
            away = values - np.median(values)
            expected[group] = away / (np.abs(away).mean() + 1e-3)
            differs[group] = away != 0
    np.testing.assert_array_equal(informative, differs)
    np.testing.assert_allclose(found[IN_GROUP], expected[IN_GROUP], rtol=1e-5, atol=1e-6)
    assert np.isfinite(found).all()


def test_agents_with_equal_rewards_have_no_advantage():
    """Though their mean, rounded, differs from them."""
    for count, value in ((100, 3.7), (7, 0.1)):
        rewards = jnp.full((2, 3, count), value)
        found, _ = ospo.standardize(ospo.Config(), rewards, jnp.ones(rewards.shape, bool))
        np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize(
    ("waiting", "explore"), [("never", "softmax"), ("compared", "softmax"), ("learnt", "softmax"), ("ignored", "epsilon")]
)
def test_agents_in_the_group_and_in_the_loss(waiting, explore):
    """With samples of each agent, and with a matching that leaves most vehicles without an order."""
    env = marljax.make("ride_dispatch", preset="demo", vehicles=12, orders=16)
    env_params = env.default_params.replace(fleet=10, demand_scale=0.03)
    config = ospo.Config(**SMALL, waiting=waiting, explore=explore)

    def once(key):
        learner, actors = ospo.init(env, env_params, config, key)
        inputs = ospo.get_inputs(env, actors.timestep)
        pi = ospo.make_networks(env, config).policy(learner.params, inputs)
        sample = ospo.choose_actions(env, config, pi, key, greedy=False)
        return sample, ospo.masks(env, config, actors.timestep, inputs, sample), actors

    sample, (in_group, in_loss), actors = on_one_device(once, KEY)
    mask, opened = actors.timestep.action_mask, actors.env_state.env.orders.open
    able = mask[..., :-1].any(axis=-1) & (opened.sum(axis=1) > (waiting == "never"))[:, None]  # agents with a choice
    asked = able & (sample[0] != env.noop)
    assert actors.timestep.alive.sum() == 40
    if explore == "softmax":
        assert waiting != "never" or (asked == able).all()
    else:
        assert asked.sum() <= opened.sum() < able.sum()
    np.testing.assert_array_equal(in_group[0], asked if waiting in ("never", "ignored") else able)
    np.testing.assert_array_equal(in_loss[0], able if waiting == "learnt" else asked)


def steps_of(reward, cut):
    """Without terminations; the second agent of four leaves after the first step."""
    alive = np.ones(reward.shape, bool)
    alive[0, :, 1] = False
    return Step(jnp.array(reward), jnp.array(alive), jnp.zeros(cut.shape, bool), jnp.array(cut))


def test_rewards_to_go_stop_where_an_episode_or_an_agent_does():
    reward = np.arange(24.0, dtype=np.float32).reshape(3, 2, 4)
    cut = np.array([[False, True], [False, False], [False, False]])
    found = np.asarray(ospo.to_go(ospo.Config(gamma=0.5), steps_of(reward, cut)))
    expected = reward.copy()
    expected[1] += 0.5 * reward[2]
    expected[0] += 0.5 * expected[1] * ~cut[0][:, None]
    expected[0, :, 1] = reward[0, :, 1]
    np.testing.assert_allclose(found, expected)


def test_the_share_of_truncated_returns():
    cut = np.array([[True, False], [False, False]])  # 3 compared at its end, 4 and 3 in the other steps of IN_GROUP
    share = functools.partial(ospo.truncated_share, ospo.Config(advantage="to_go"))
    found = on_one_device(share, steps_of(REWARD, cut), jnp.array(IN_GROUP))
    assert float(found["cut_returns"]) == pytest.approx(IN_GROUP[~cut].sum() / IN_GROUP.sum())
    assert ospo.truncated_share(ospo.Config(), steps_of(REWARD, cut), jnp.array(IN_GROUP)) == {}


def test_grpo_sums_compared_rewards_and_to_go_compares_sums():
    cut, config = np.zeros((2, 2), bool), ospo.Config(advantage="group", normalize="buffer", gamma=0.9)
    steps, in_group = steps_of(REWARD, cut), jnp.array(IN_GROUP)
    advantage, _ = on_one_device(functools.partial(ospo.estimate_advantages, config), steps, in_group)
    scores = (REWARD - REWARD[IN_GROUP].mean()) / REWARD[IN_GROUP].std() * IN_GROUP
    expected = scores.copy()
    expected[0] += 0.9 * scores[1] * np.array([1, 0, 1, 1])
    np.testing.assert_allclose(advantage, expected, rtol=1e-5)
    config = config.replace(advantage="to_go")
    sums, _ = on_one_device(functools.partial(ospo.estimate_advantages, config), steps, in_group)
    totals = REWARD.copy()
    totals[0] += 0.9 * REWARD[1] * np.array([1, 0, 1, 1])
    expected = (totals - totals[IN_GROUP].mean()) / totals[IN_GROUP].std()
    np.testing.assert_allclose(sums[IN_GROUP], expected[IN_GROUP], rtol=1e-5)


def test_the_equity_penalty_is_the_growth_of_the_spread():
    present = np.array([[[1, 1, 1, 0]], [[0, 0, 0, 0]]], bool)
    returns = np.array([[[1, 2, 6, 50]], [[1, 2, 3, 4]]], np.float32)
    reward = np.array([[[0, 0, 3, 7]], [[1, 0, 0, 0]]], np.float32)
    found = np.asarray(ospo.equity_penalty(jnp.array(reward), jnp.array(returns), jnp.array(present)))
    np.testing.assert_allclose(found[:, 0, 0], [np.std([1, 2, 9]) - np.std([1, 2, 6]), 0.0], rtol=1e-6)


def test_a_random_subset_of_the_agents_in_the_loss():
    """At most ``samples`` of a step, none outside the loss, and every field of the same agents."""
    shape, number = (3, 2, 9), jnp.arange(54.0).reshape(3, 2, 9)
    mask = jnp.array(np.random.default_rng(0).random(shape) < 0.6)
    inputs = ospo.Inputs(number[..., None], (), (), (number > 20)[..., None])
    batch = ospo.Batch(inputs, number.astype(int), -number, mask, 2 * number)
    subsample = functools.partial(ospo.subsample_agents, SimpleNamespace(items="orders"))
    few = jax.jit(functools.partial(subsample, ospo.Config(samples=4)))(batch, jax.random.key(0))
    np.testing.assert_array_equal(np.asarray(few.mask).sum(-1), np.minimum(np.asarray(mask).sum(-1), 4))
    chosen = np.asarray(few.sample)
    assert all(len(set(row.tolist())) == 4 for row in chosen.reshape(-1, 4))
    np.testing.assert_array_equal(few.inputs.own[..., 0], chosen)
    np.testing.assert_array_equal(few.inputs.mask[..., 0], chosen > 20)
    np.testing.assert_array_equal(few.log_prob, -chosen)
    np.testing.assert_array_equal(few.advantage, 2 * chosen)
    assert np.asarray(mask).reshape(-1)[chosen[np.asarray(few.mask)]].all()
    for everyone in (dict(samples=9), dict(samples=0), dict(samples=4, attention_layers=1)):
        assert subsample(ospo.Config(**everyone), batch, jax.random.key(0)) is batch


def test_attention_needs_heads_of_equal_width():
    with pytest.raises(marljax.UserError, match=r"embedding.*attention_heads"):
        ospo.Config(attention_layers=1, attention_heads=3)


def test_attention_among_items_changes_nothing_where_there_are_none():
    configs = [ospo.Config(**SMALL, normalize="buffer", attention_layers=layers) for layers in (0, 1)]
    with_none, with_one = (
        on_one_device(functools.partial(ospo.init, probes.Probe(), probes.ProbeParams(), config), KEY) for config in configs
    )
    chex.assert_trees_all_equal(with_none.learner.params, with_one.learner.params)


def test_minibatches_hold_every_row_once():
    rows = jnp.arange(12.0)[None, :, None] * jnp.ones((1, 12, 3))
    batch = ospo.Batch(ospo.Inputs(rows, (), (), rows), rows, rows, rows, rows)
    batches = ospo.split_minibatches(ospo.Config(num_minibatches=4), batch, jax.random.key(0))
    assert batches.sample.shape == (4, 1, 3, 3)
    assert sorted(batches.sample[..., 0].ravel().tolist()) == list(range(12))
    for leaf in jax.tree.leaves(batches):
        np.testing.assert_array_equal(leaf, batches.sample)


def random_batch():
    """A batch, and a policy's outputs for it."""
    rng = np.random.default_rng(0)
    old, change, entropy, advantage = (jnp.asarray(rng.normal(size=(1, 40, 2)), jnp.float32) for _ in range(4))
    mask = jnp.asarray(rng.random((1, 40, 2)) < 0.6)
    return ospo.Batch(None, jnp.zeros_like(old), old, mask, advantage), StubPolicy(old + 0.3 * change, 1.0 + entropy)


def surrogate_loss(config, pi, batch):
    """``ospo_loss`` of a policy whose parameters are its outputs, and the metrics."""
    networks, params = ospo.Networks(None, lambda params, inputs: params.actor, None), ospo.Params(None, None, None)
    loss, (_, metrics) = ospo.ospo_loss(pi, config, networks, params, params, jnp.zeros(()), batch, KEY)
    return loss, metrics


def test_the_loss_equals_the_formula():
    config, (batch, pi) = ospo.Config(entropy_coef=0.1), random_batch()
    loss, metrics = on_one_device(functools.partial(surrogate_loss, config), pi, batch)
    mask, advantage, entropy = np.asarray(batch.mask), np.asarray(batch.advantage), np.asarray(pi.entropies)
    log_ratio = np.asarray(pi.log_probs - batch.log_prob)
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)
    assert float(metrics["policy_loss"]) == pytest.approx(-surrogate[mask].mean(), rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(entropy[mask].mean(), rel=1e-4)
    assert float(metrics["approx_kl"]) == pytest.approx((ratio - 1 - log_ratio)[mask].mean(), rel=1e-4)
    assert float(metrics["clip_fraction"]) == pytest.approx(((ratio < 0.8) | (ratio > 1.28))[mask].mean(), abs=1e-6)
    assert float(loss) == pytest.approx(float(metrics["policy_loss"] - 0.1 * metrics["entropy"]), rel=1e-5)


def test_no_sample_overflows_in_the_gradient():
    """A masked one is arbitrary, and a policy may move far."""
    config, (batch, pi) = ospo.Config(), random_batch()
    gradient = functools.partial(on_one_device, jax.grad(lambda pi: surrogate_loss(config, pi, batch)[0]))
    for anything in (1e4, jnp.nan):
        wild = pi._replace(log_probs=jnp.where(batch.mask, pi.log_probs, anything))
        np.testing.assert_array_equal(gradient(wild).log_probs, gradient(pi).log_probs)
    for log_ratio in (100.0, -100.0):
        assert np.isfinite(gradient(pi._replace(log_probs=batch.log_prob + log_ratio)).log_probs).all()


@pytest.mark.parametrize(("algorithm", "view"), [(ospo, "pairs"), pytest.param(ippo, "candidates", marks=pytest.mark.slow)])
def test_fleets_and_demands_are_swept_in_one_program(algorithm, view):
    env = marljax.make("ride_dispatch", preset="demo", vehicles=8, orders=16, view=view, candidates=4)
    config = algorithm.Config(num_envs=4, rollout_length=31, hidden=(16,), num_minibatches=2, num_epochs=1, total_steps=248)
    sweep = {"env.fleet": jnp.array([3, 8, 8]), "env.demand_scale": jnp.array([0.03, 0.03, 0.06])}
    result = jax.jit(jax.vmap(make_train(algorithm, env, config)))(jnp.stack([KEY] * 3), sweep)
    served, arrived = (np.asarray(result.metrics[f"sum_{name}"][:, 0]) for name in ("served", "arrived"))
    assert served[0] < served[1]
    assert arrived[0] == arrived[1] < arrived[2]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.learner.params))


@pytest.mark.parametrize("advantage", ["one_step", "group", "to_go"])
def test_discrete_policies_find_the_best_actions(advantage):
    """Also: the arbitrary rewards of an agent that is absent half of the time have no effect."""
    config = ospo.Config(
        total_steps=40_000, num_envs=64, rollout_length=16, hidden=(32, 32), learning_rate=5e-3, advantage=advantage,
        normalize="buffer", gamma=0.9,
    )  # fmt: skip
    train = jax.jit(jax.vmap(make_train(ospo, probes.Probe(), config), in_axes=(None, 0)))
    variants = jnp.array([probes.CHOICE, probes.ABSENT])
    metrics = train(jax.random.key(0), {"env.variant": variants, "env.garbage": jnp.array([0.0, 100.0])}).metrics
    lengths = metrics["episodes"][:, -10:].sum(1)
    choice, absent = metrics["sum_return"][:, -10:].sum(1) / lengths
    assert choice > 0.95
    assert absent > 0.95


def test_continuous_policies_reach_their_targets():
    config = ospo.Config(
        total_steps=120_000, num_envs=64, rollout_length=16, hidden=(32, 32), learning_rate=5e-3, entropy_coef=0.0,
        normalize="buffer", activation="tanh",
    )  # fmt: skip
    metrics = jax.jit(make_train(ospo, probes.Aim(), config))(jax.random.key(0)).metrics
    returns = metrics["sum_return"] / metrics["episodes"]
    assert returns[-1] > -0.03 > -0.3 > returns[0]


@pytest.fixture(scope="module")
def dispatched():
    """A policy for items after two updates."""
    env = marljax.make("ride_dispatch", preset="demo", vehicles=6, orders=8)
    config = ospo.Config(waiting="learnt", stay_near_best=True, samples=4, **SMALL)
    trainer = Trainer(ospo, env, config, mesh.make_mesh())
    replicas = trainer.init(jax.random.split(jax.random.key(0), 1), env.default_params.replace(demand_scale=0.05))
    first = jax.device_get(replicas.state.learner.opt_state)
    replicas, metrics = trainer.run(replicas, 2)
    return env, config, jax.tree.map(lambda x: x[0], jax.device_get(replicas.state)), jax.device_get(metrics), first


def test_greedy_agents_get_different_items(dispatched):
    env, config, state, _, _ = dispatched
    timestep, params = state.actors.timestep, state.learner.params
    for waiting, weight in (("never", "probability"), ("compared", "logit"), ("learnt", "logit")):
        changed = config.replace(waiting=waiting, matching_weight=weight)
        act = functools.partial(ospo.act, env, changed, params, greedy=True)
        action = np.asarray(jax.jit(jax.vmap(lambda one, act=act: act(one, (), KEY)[0]))(timestep))
        allowed = np.take_along_axis(timestep.action_mask, action[..., None], axis=-1)
        assert allowed.all()
        for row, mask in zip(action, np.asarray(timestep.action_mask)[..., :-1], strict=True):
            taken = row[row < env.noop]
            assert len(set(taken.tolist())) == len(taken)
            if waiting != "learnt":  # nobody waits while there is something left to take
                assert len(taken) == min(mask.any(1).sum(), mask.any(0).sum())


def test_huge_weights_at_random_change_the_matching(dispatched):
    env, config, state, _, _ = dispatched
    pi = ospo.make_networks(env, config).policy(state.learner.params, ospo.get_inputs(env, state.actors.timestep))
    usual = ospo.choose_actions(env, config, pi, jax.random.key(0), greedy=True)
    for epsilon, changes in ((0.0, False), (0.5, True)):
        exploring = config.replace(explore="epsilon", epsilon=epsilon)
        drawn = ospo.choose_actions(env, exploring, pi, jax.random.key(0), greedy=False)
        assert bool(jnp.any(drawn != usual)) == changes


def test_named_outputs_are_finite_and_the_best_policy_is_remembered(dispatched):
    _, config, state, metrics, first = dispatched
    expected = {"policy_loss", "entropy", "approx_kl", "clip_fraction", "kl_to_best", "kl_coef", "grad_norm"}
    assert expected | {"episodes", "sum_reward", "sum_return"} <= set(metrics)
    assert all(np.isfinite(values).all() for values in metrics.values())
    remembered = state.learner.opt_state
    assert first.best_score == -np.inf
    assert first.kl_coef == 0
    assert np.isfinite(remembered.best_score)
    assert remembered.kl_coef in (0.0, *(config.kl_coef * 2.0**doubled for doubled in range(5)))


def test_the_penalty_begins_with_the_first_update_that_is_no_improvement():
    config, found = ospo.Config(), []
    state = ospo.OptState(None, ospo.Params({"w": jnp.zeros(1)}, None, None), jnp.array(-jnp.inf), jnp.zeros(()))
    for number, reward in enumerate((1.0, 2.0, 1.5, 3.0)):
        params = ospo.Params({"w": jnp.full(1, float(number))}, None, None)
        steps = Step(jnp.full((1, 1, 2), reward), None, None, None)
        state = on_one_device(functools.partial(ospo.track_best, config), params, state, steps)
        found.append((float(state.best.actor["w"][0]), float(state.best_score), float(state.kl_coef)))
    assert found == [(0.0, 1.0, 0.0), (1.0, 2.0, 0.0), (1.0, 2.0, 0.5), (3.0, 3.0, 0.5)]


def test_the_penalty_keeps_a_policy_near_the_best(dispatched):
    """Beyond the limit only the penalty counts, and its weight doubles."""
    env, config, state, _, _ = dispatched
    best, networks = state.learner.params, ospo.make_networks(env, config)
    away = jax.tree.map(lambda x: x + 0.3, best.actor)
    inputs = ospo.get_inputs(env, state.actors.timestep)
    mask = jnp.ones(inputs.mask.shape[:-1], bool)
    sample = jnp.full(mask.shape, env.noop)
    batch = ospo.Batch(inputs, sample, jnp.zeros(mask.shape), mask, jnp.full(mask.shape, 1e3))

    def loss(actor, kl_coef):
        return ospo.ospo_loss(actor, config, networks, best, best, kl_coef, batch, jax.random.key(0))

    program = functools.partial(on_one_device, jax.value_and_grad(loss, has_aux=True))
    (total, (doubled, metrics)), grads = program(away, jnp.array(0.5))
    kl = metrics["kl_to_best"]
    assert kl > config.kl_limit
    assert doubled == 1.0
    np.testing.assert_allclose(total, kl, rtol=1e-5)
    nearer = jax.tree.map(lambda x, g: x - 1e-3 * g, away, grads)
    (_, (_, metrics)), _ = program(nearer, jnp.array(0.5))
    assert metrics["kl_to_best"] < kl
    (free, (same, _)), _ = program(away, jnp.array(0.0))
    assert same == 0.0
    assert abs(free) > 10 * kl


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorer", "width", "layers"),
    [("two_tower", 64, 0), *(pytest.param("pair_mlp", 16, layers, marks=pytest.mark.exhaustive) for layers in (0, 1))],
)
def test_ospo_learns_to_dispatch(scorer, width, layers):
    """It ends well above the untrained policy, and near one-step matching's 800 or so."""
    env = marljax.make("ride_dispatch", preset="demo")
    config = ospo.Config(
        total_steps=100 * 248, hidden=(width,), scorer=scorer, learning_rate=2e-3, entropy_coef=0.03, attention_layers=layers,
        samples=0,
    )  # fmt: skip
    result = jax.jit(make_train(ospo, env, config))(jax.random.key(0))
    play = functools.partial(Evaluator(env, 16).learned, ospo, config, env_params=env.default_params, key=jax.random.key(1))
    fresh = Trainer(ospo, env, config, mesh.make_mesh()).init(jax.random.split(jax.random.key(0), 1), env.default_params)
    before = play(params=fresh.state.learner.params)["reward"].mean()
    after = play(params=jax.tree.map(lambda x: x[None], result.state.learner.params))["reward"].mean()
    assert before < 550 < 780 < after


def test_the_given_policy_of_a_warm_start_is_the_best_so_far():
    params = ospo.Params({"w": jnp.arange(2.0)}, None, None)
    new = Learner(None, ospo.OptState("fresh", None, -jnp.inf, 0.0), 0, KEY, None)
    started = ospo.with_params(new, params)
    np.testing.assert_array_equal(started.opt_state.best.actor["w"], params.actor["w"])
    assert (started.params, started.opt_state.adam) == (params, "fresh")
    assert started.opt_state.best.actor["w"] is not params.actor["w"]  # the training program takes both over
