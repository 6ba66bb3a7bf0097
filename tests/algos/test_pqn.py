"""PQN: λ-returns, replay of the rollout, and learning on problems with known answers."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from devices import on_one_device
from probes import Probe
from toys import Corridor, Points

import marljax
from marljax.algos import pqn
from marljax.baselines import games
from marljax.config import compose
from marljax.errors import UserError
from marljax.learning import Inputs, Step, gae
from marljax.training import mesh
from marljax.training.evaluation import Evaluator
from marljax.training.trainer import Trainer, make_train
from marljax.utils.pytrees import to_host

GAMMA = 0.9
LARGE = 200.0  # scale of the rewards in the second half of the runs
KEY = jax.random.key(0)
SMALL = dict(num_envs=4, rollout_length=5, hidden=(16, 16), num_epochs=2, num_minibatches=2)

NETWORKS = [("qmix", "mlp"), ("vdn", "gru"), pytest.param(("none", "mlp"), marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=NETWORKS, ids="-".join)
def trained(request):
    """Every probe trained in one vmapped program: the variant is an env param."""
    mixer, core = request.param
    usual = dict(total_steps=24_000, num_envs=16, rollout_length=8, num_minibatches=2, learning_rate=5e-3, epsilon_decay=0.3)
    config = pqn.Config(**usual, mixer=mixer, core=core, hidden=(32, 32), gamma=GAMMA)
    train = jax.jit(jax.vmap(make_train(pqn, Probe(), config)))
    variants, scales = jnp.tile(jnp.arange(8), 2), jnp.repeat(jnp.array([1.0, LARGE]), 8)
    result = train(jax.random.split(KEY, 16), {"env.variant": variants, "reward_scale": scales})
    return config, result.metrics, on_one_device(jax.vmap(functools.partial(first_values, config)), result, variants)


def first_values(config, result, variant):
    """Values of the best actions [E, A or 1] in first timesteps, and the observations [E, A, O] they belong to."""
    params, env_params = result.state.learner.params, probes.ProbeParams(variant=variant)
    env_state, timestep = marljax.vectorize(Probe(), 64).reset(KEY, env_params)
    networks, inputs = pqn.make_networks(Probe(), config), pqn.get_inputs(Probe(), config, env_params, env_state, timestep)
    _, values = networks.action_values(params, inputs, pqn.initial_carry(Probe(), config, 64))
    return params.value_stats.denormalize(networks.mix(params, values.max(-1), inputs)[0]), timestep.obs


@pytest.mark.parametrize(
    ("variant", "answer"),
    [(probes.CONSTANT, 1.0), (probes.DELAYED, GAMMA), (probes.TRUNCATED, 1.0 / (1.0 - GAMMA))],
    ids=["constant", "delayed", "truncated"],
)
def test_value_of_the_first_state(trained, variant, answer):
    config, _, (values, _) = trained
    # where every agent has the same value: rewards of a team, too, are means over agents
    for index, scale in ((variant, 1.0), (8 + variant, LARGE)):
        np.testing.assert_allclose(values[index] / scale, np.full((64, 2 if config.mixer == "none" else 1), answer), rtol=0.05)


def test_value_tracks_the_observation(trained):
    config, _, (values, obs) = trained
    cue = obs[probes.TRACKING][..., 0]
    expected = cue if config.mixer == "none" else cue.mean(-1, keepdims=True)
    np.testing.assert_allclose(values[probes.TRACKING], expected, atol=0.1)


@pytest.mark.parametrize("variant", [probes.CHOICE, probes.COORDINATION, probes.ABSENT], ids=["choice", "coordination", "absent"])
def test_policy_finds_the_best_actions(trained, variant):
    """While 5 % of its actions are random, each of which is wrong half of the time."""
    assert probes.final_return(trained[1], variant) > 0.92
    assert probes.final_return(trained[1], 8 + variant) > 0.92


def test_only_a_gru_remembers(trained):
    reached = probes.final_return(trained[1], probes.MEMORY)
    assert reached > 0.92 if trained[0].core == "gru" else 0.4 < reached < 0.6


@pytest.mark.parametrize("core", ["mlp", "gru"])
@pytest.mark.parametrize("mixer", ["qmix", "vdn", "none"])
def test_the_first_gradient_step_sees_the_values_of_the_rollout(core, mixer, monkeypatch):
    """Across starts of episodes, and from recurrent states in mid-episode; without exploration the actions are the best."""
    loss = pqn.td_loss

    def with_gap(weights, config, networks, params, batch, carry):
        _, values = networks.action_values(params, batch.transition.inputs, carry)
        chosen = jnp.take_along_axis(values, batch.transition.action[..., None], axis=-1)[..., 0]
        gap = jnp.abs(networks.mix(params, chosen, batch.transition.inputs) - batch.transition.team_value)
        total, metrics = loss(weights, config, networks, params, batch, carry)
        first = jnp.any(batch.transition.inputs.first)
        return total, metrics | {"gap": jnp.max(jnp.where(batch.mask, gap, 0.0)), "starts": 1.0 * first}

    monkeypatch.setattr(pqn, "td_loss", with_gap)
    changes = dict(core=core, mixer=mixer, epsilon_start=0.0, epsilon_end=0.0, num_epochs=1, num_minibatches=1, total_steps=120)
    changes["normalize_values"] = False  # the loss has other statistics than the rollout
    metrics = jax.jit(make_train(pqn, Corridor(), pqn.Config(**(SMALL | changes))))(KEY).metrics
    assert metrics["starts"].max() == 1.0
    np.testing.assert_allclose(metrics["gap"], 0.0, atol=1e-5)


@pytest.mark.parametrize("mixer", ["vdn", "none"])
def test_targets_are_the_papers_lambda_returns(mixer):
    """Against the recursion of Gallici et al. 2024 in NumPy, with terminations, truncations and dead agents anywhere."""
    steps, rows, agents, td_lambda = 7, 5, 3, 0.6
    config, rng = pqn.Config(mixer=mixer, reward_scale=2.0), np.random.default_rng(0)
    alive = rng.random((steps + 1, rows, agents)) < 0.8
    alive[3, 2] = False
    terminated, truncated, last = rng.random((3, steps, rows)) < 0.2
    reward = rng.normal(size=(steps, rows, agents)) * alive[:-1]
    value = rng.normal(size=(steps + 1, rows, agents if mixer == "none" else 1))
    rollout = pqn.Transition(Inputs(None, None, None, alive[:-1]), last, None, value[:-1])
    step, mask = pqn.team_rewards(config, rollout, Step(reward, alive[1:], terminated, terminated | truncated))
    _, target = gae(step, jnp.array(value[:-1]), jnp.array(value[-1]), GAMMA, td_lambda)

    earned, lives = 2.0 * reward, alive[1:]
    if mixer == "vdn":
        earned, lives = earned.sum(-1, keepdims=True) / agents, np.ones((steps, rows, 1), bool)
    present = alive[:-1] if mixer == "none" else alive[:-1].any(-1, keepdims=True)
    np.testing.assert_array_equal(mask, ~last[..., None] & present)
    expected = np.zeros(earned.shape)
    for t, row, agent in reversed(list(np.ndindex(*earned.shape))):
        ahead = value[t + 1, row, agent]
        if t + 1 < steps and not truncated[t, row]:
            ahead = (1 - td_lambda) * ahead + td_lambda * expected[t + 1, row, agent]
        expected[t, row, agent] = earned[t, row, agent] + GAMMA * (lives[t, row, agent] and not terminated[t, row]) * ahead
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bootstrap_limit", [True, False])
def test_targets_do_not_bootstrap_a_limit_that_counts_as_the_end(bootstrap_limit, monkeypatch):
    """Without rewards, and with episodes of one step, every target is then 0; the networks' values are not."""
    loss = pqn.td_loss

    def with_target(weights, config, networks, params, batch, carry):
        total, metrics = loss(weights, config, networks, params, batch, carry)
        return total, metrics | {"target": jnp.max(jnp.abs(batch.target) * batch.mask)}

    monkeypatch.setattr(pqn, "td_loss", with_target)
    config = pqn.Config(**SMALL, core="mlp", output_scale=1.0, bootstrap_limit=bootstrap_limit, total_steps=20)
    metrics = jax.jit(make_train(pqn, Corridor(), config))(KEY, {"env.limit": 1, "env.step_cost": 0.0}).metrics
    assert (metrics["target"] == 0).all() == (not bootstrap_limit)


def test_a_team_of_nobody_is_worth_nothing(monkeypatch):
    """As after the last arrival: the mean of the returns, which standardised values of 0 stand for, would be wrong."""
    loss = pqn.td_loss

    def with_worth(weights, config, networks, params, batch, carry):
        total, metrics = loss(weights, config, networks, params, batch, carry)
        alive = jnp.any(batch.transition.inputs.alive, axis=-1, keepdims=True)
        somebody, nobody = (jnp.max(jnp.abs(batch.transition.team_value) * rows) for rows in (alive, ~alive))
        return total, metrics | {"somebody": somebody, "nobody": nobody, "gone": jnp.mean(~alive)}

    monkeypatch.setattr(pqn, "td_loss", with_worth)
    metrics = jax.jit(make_train(pqn, Corridor(length=1), pqn.Config(**SMALL, core="mlp", total_steps=80)))(KEY).metrics
    assert metrics["gone"].max() > 0
    assert metrics["somebody"][-1] > 0.1
    np.testing.assert_array_equal(metrics["nobody"], 0.0)


def test_a_teams_first_values_are_small_beside_its_rewards():
    """Else they would be bootstrapped on, and their spread would stay in the statistics of returns."""
    env, config = marljax.make("smax", scenario="3s5z"), pqn.Config(**SMALL, total_steps=20)
    learner, actors = on_one_device(functools.partial(pqn.init, env, env.default_params, config), KEY)
    inputs, networks = Inputs.of(actors.timestep), pqn.make_networks(env, config)
    _, values = networks.action_values(learner.params, inputs, actors.carry)
    assert jnp.all(jnp.abs(networks.mix(learner.params, values.max(-1), inputs)) < 0.25)  # a victory earns a return of 2


def test_one_agent_is_mixed_with_nobody():
    configs = [pqn.Config(**SMALL, mixer=mixer, total_steps=200) for mixer in ("vdn", "none")]
    mixed, alone = (jax.jit(make_train(pqn, probes.Drift(), config))(KEY) for config in configs)
    chex.assert_trees_all_equal(mixed.state.learner.params, alone.state.learner.params)


def test_the_first_rollout_only_initialises_the_statistics_of_observations():
    config = pqn.Config(**SMALL, normalize_observations=True, total_steps=40)
    trainer = Trainer(pqn, Corridor(), config, mesh.make_mesh())
    replicas, params = trainer.init(jax.random.split(KEY, 1), Corridor().default_params), []
    for _ in range(3):
        params.append(jax.device_get(replicas.state.learner.params))
        replicas, _ = trainer.run(replicas, 1)
    fresh, first, second = params
    chex.assert_trees_all_equal(first.agent, fresh.agent)
    assert not np.allclose(first.obs_stats.mean, fresh.obs_stats.mean)
    assert not all(np.array_equal(*leaves) for leaves in zip(*map(jax.tree.leaves, (second.agent, first.agent)), strict=True))


@pytest.mark.parametrize(
    ("env", "changes", "line"),
    [
        (Points(), {}, "discrete actions.*ippo or mappo"),
        (Corridor(compete=True), {}, "mixer=none"),
        (Corridor(), {"core": "gru", "hidden": (16,)}, "core=gru"),
        (Corridor(), {"num_minibatches": 3}, "num_minibatches"),
    ],
    ids=["continuous", "teams", "gru", "minibatches"],
)
def test_user_errors(env, changes, line):
    with pytest.raises(UserError, match=line):
        jax.eval_shape(make_train(pqn, env, pqn.Config(**(SMALL | changes))), KEY)


def test_chunks_of_any_size_give_the_same_run():
    config = pqn.Config(**SMALL, core="gru", mixer="qmix", normalize_observations=True, total_steps=160)
    trainer, ends = Trainer(pqn, Corridor(), config, mesh.make_mesh()), []
    for chunks in ((4, 4), (1, 5, 2)):
        replicas = trainer.init(jax.random.split(KEY, 2), Corridor().default_params)
        for size in chunks:
            replicas, _ = trainer.run(replicas, size)
        ends.append(replicas)
    chex.assert_trees_all_equal(*(jax.tree.map(to_host, end) for end in ends))


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "answer"), [("qmix", 8.0), ("vdn", 7.0)])
def test_the_two_step_game(mixer, answer):
    """Of Rashid et al. 2018: a sum of values settles for 7, a monotonic mixture finds 8. As in the paper all actions are random;
    λ-returns would be those of random second actions, so targets are one-step ones."""
    run = compose.compose("pqn", ["env=custom", *games.PLAYED["two-step"][0], f"algo.mixer={mixer}", "algo.core=mlp"])
    config = run.config.replace(total_steps=60_000, num_envs=64, rollout_length=4, epsilon_end=1.0, td_lambda=0.0)
    params = jax.jit(jax.vmap(make_train(pqn, run.env, config)))(jax.random.split(KEY, 2)).state.learner.params
    played = Evaluator(run.env, 1).learned(pqn, config, params, run.env_params, KEY)
    np.testing.assert_array_equal(played["return"], np.full((2, 1), answer))
