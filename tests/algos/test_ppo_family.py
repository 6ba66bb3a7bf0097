"""PPO, IPPO and MAPPO on problems with known answers, and the properties that all must have."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from devices import on_one_device
from probes import CHOICE, Aim, Probe

import marljax
from marljax.algos import ippo, mappo, ospo, ppo
from marljax.core.spaces import Box
from marljax.core.vector import vectorize
from marljax.errors import UserError
from marljax.learning.rollout import Inputs
from marljax.testing import check_env
from marljax.training import mesh
from marljax.training.trainer import Trainer, make_train

GAMMA = 0.9
ALGORITHMS = {"ppo": ppo, "ippo": ippo, "mappo": mappo}


def make_config(algorithm, core, **changes):
    if algorithm is ppo:
        changes.pop("agent_id", None)
    settings = dict(total_steps=12_500, num_envs=16, rollout_length=16, num_minibatches=2, core=core, hidden=(32, 32))
    settings |= dict(activation="tanh", learning_rate=5e-3, gamma=GAMMA, entropy_coef=0.003)
    return algorithm.Config(**(settings | changes))


class Trained(NamedTuple):
    """Results of a training program, with a leading axis of probe variants."""

    config: ppo.Config
    metrics: dict  # each [8, num_updates]
    values: jax.Array  # [8, E, A] of first timesteps
    obs: jax.Array  # [8, E, A, O] they belong to


OFTEN = [("ppo", "mlp"), ("mappo", "gru")]
SELDOM = [("mappo", "mlp"), ("ippo", "gru", "share_body"), ("ppo", "gru")]
SLOW = [pytest.param(network, marks=pytest.mark.slow) for network in SELDOM]


def test_values_stay_possible_where_the_limit_is_an_end():
    """The worst return in ``Drift`` is −28.25. Bootstrapped from final observations, values exceed any policy's return, which is
    at worst −1.25 / (1 − γ)."""
    usual = dict(total_steps=75_000, num_envs=16, rollout_length=25, num_minibatches=2, hidden=(32, 32), learning_rate=1e-3)
    metrics = {}
    for bootstrap_limit in (False, True):
        config = ippo.Config(**usual, bootstrap_limit=bootstrap_limit)
        train = jax.jit(jax.vmap(make_train(ippo, probes.Drift(), config)))
        metrics[bootstrap_limit] = jax.device_get(train(jax.random.split(jax.random.key(0), 2)).metrics)
    assert metrics[False]["max_value"][:, -1].max() < 30
    assert metrics[True]["max_value"].max() > 1.2 * 125


class Fade(probes.Drift):
    """``Drift`` without the time in observations, and with episodes of 25 steps because the task is that long."""

    limit_ends = True
    observation_space = Box((1,))

    def transition(self, key, state, action, env_params):
        state, outcome = super().transition(key, state, action, env_params)
        return state, outcome._replace(terminated=outcome.truncated, truncated=outcome.terminated)

    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(obs=view.obs[:, :1])

    def max_episode_steps(self, env_params):
        return 25


def test_a_critic_with_the_time_does_not_reward_its_passing():
    """Without it, a critic reads the time from x, which grows in an episode: less is left to lose where x is large, and so the
    policy walks away although that costs."""
    usual = dict(total_steps=75_000, num_envs=16, rollout_length=50, num_minibatches=2, hidden=(32, 32), learning_rate=3e-3)
    returns = {}
    for with_time in (True, False):
        train = jax.jit(jax.vmap(make_train(ippo, Fade(), ippo.Config(**usual, time_for_critic=with_time))))
        metrics = train(jax.random.split(jax.random.key(0), 2)).metrics
        returns[with_time] = metrics["sum_return"][:, -10:].sum(1) / metrics["episodes"][:, -10:].sum(1)
    assert (returns[True] > -25.3).all()
    assert (returns[False] < -27.0).any()


@pytest.mark.parametrize("algorithm", [ppo, mappo], ids=["ppo", "mappo"])
def test_the_time_is_a_critic_input_where_the_limit_ends_episodes(algorithm):
    """One input more than without; none for the actor, which has to act where nobody measures the time."""

    def sizes(env, **changes):
        config = algorithm.Config(num_envs=4, rollout_length=8, hidden=(8,), **changes)
        init = functools.partial(on_one_device, lambda key: algorithm.init(env, None, config, key).learner.params)
        params = jax.eval_shape(init, jax.random.key(0))
        return [sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (params.actor, params.critic)]

    actor, critic = sizes(Fade(), time_for_critic=False)
    assert sizes(Fade()) == [actor, critic + 8]
    assert sizes(probes.Drift()) == sizes(probes.Drift(), time_for_critic=False)  # its limit cuts off


@pytest.mark.parametrize("algorithm", [ippo, mappo, ospo], ids=["ippo", "mappo", "ospo"])
def test_the_first_rollout_only_initialises_the_statistics(algorithm):
    """It was collected with unnormalised observations: gradients would be those of other inputs."""
    config = algorithm.Config(
        total_steps=320, num_envs=8, rollout_length=20, num_minibatches=2, hidden=(8,), normalize_observations=True
    )
    trainer = Trainer(algorithm, Probe(), config, mesh.make_mesh())
    replicas, found = trainer.init(jax.random.split(jax.random.key(0), 1), probes.ProbeParams(variant=CHOICE)), []
    found.append(jax.tree.map(np.array, replicas.state.learner.params))  # a copy: ``run`` donates its replicas
    for _ in range(2):
        replicas, _ = trainer.run(replicas, 1)
        found.append(jax.tree.map(np.array, replicas.state.learner.params))
    chex.assert_trees_all_equal(found[0].actor, found[1].actor)
    changed = jax.tree.map(lambda one, two: bool((one != two).any()), found[1].actor, found[2].actor)
    assert any(jax.tree.leaves(changed))
    stats = "own_stats" if algorithm is ospo else "obs_stats"
    assert getattr(found[1], stats).weight > getattr(found[0], stats).weight + 100


def probe(algorithm):
    """Two agents, or for PPO one controller of both."""
    return marljax.joint(Probe()) if algorithm is ppo else Probe()


@pytest.fixture(scope="module", params=[*OFTEN, *SLOW], ids="-".join)
def trained(request):
    """Every probe trained in one vmapped program: the variant is an env param."""
    name, core, *switches = request.param
    algorithm, config = ALGORITHMS[name], make_config(ALGORITHMS[name], core, **dict.fromkeys(switches, True))
    train = make_train(algorithm, probe(algorithm), config)
    variants = jnp.arange(8)
    result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 8), {"env.variant": variants})
    value = jax.jit(jax.vmap(functools.partial(first_values, algorithm, config)))
    return Trained(config, result.metrics, *value(result.state.learner.params, variants))


def first_values(algorithm, config, params, variant):
    """The critic's values [E, A] of first timesteps, and the observations [E, A, O] they belong to."""
    env, env_params = probe(algorithm), probes.ProbeParams(variant=variant)
    env_state, timestep = vectorize(env, 64).reset(jax.random.key(1), env_params)
    if algorithm is mappo:
        inputs = mappo.get_inputs(env, config, env_params, env_state, timestep)
    else:
        inputs = ppo.get_inputs(env, config, env_params, timestep)
    memory = ppo.initial_carry(env, config, 64)
    networks = loop_of(algorithm).make_networks(env, config)
    _, value = policy_and_value(networks, params, inputs, ppo.Carry(memory, memory))
    return params.value_stats.denormalize(value[0]), timestep.obs


def loop_of(algorithm):
    """The module of an algorithm's training loop, networks and loss."""
    return mappo if algorithm is mappo else ppo


def policy_and_value(networks, params, inputs, carry):
    """Distributions and values [T, E, A] of either kind of ``Networks``."""
    if isinstance(networks, ppo.Networks):
        return networks.policy_and_value(params, inputs, carry)
    return networks.policy(params, inputs, carry.actor)[1], networks.value(params, inputs, carry.critic)[1]


@pytest.mark.parametrize(
    ("variant", "answer"),
    [(probes.CONSTANT, 1.0), (probes.DELAYED, GAMMA), (probes.TRUNCATED, 1.0 / (1.0 - GAMMA))],
    ids=["constant", "delayed", "truncated"],
)
def test_value_of_the_first_state(trained, variant, answer):
    np.testing.assert_allclose(trained.values[variant], answer, rtol=0.05)


def test_value_tracks_the_observation(trained):
    obs = trained.obs[probes.TRACKING]
    cue = obs[..., 0] if obs.shape[-1] == 2 else obs[..., ::2].mean(-1)  # one controller earns the mean of both agents
    np.testing.assert_allclose(trained.values[probes.TRACKING], cue, atol=0.1)


@pytest.mark.parametrize("variant", [CHOICE, probes.COORDINATION, probes.ABSENT], ids=["choice", "coordination", "absent"])
def test_policy_finds_the_best_actions(trained, variant):
    assert probes.final_return(trained.metrics, variant) > 0.95


def test_only_a_gru_remembers(trained):
    reached = probes.final_return(trained.metrics, probes.MEMORY)
    assert reached > 0.95 if trained.config.core == "gru" else 0.4 < reached < 0.6


@pytest.mark.parametrize("algorithm", [pytest.param(ippo, marks=pytest.mark.slow), mappo], ids=["ippo", "mappo"])
def test_continuous_actions_reach_their_targets(algorithm):
    """Also: actions of rank 2, and an observation with a part that the agents share."""
    check_env(Aim())
    train = make_train(algorithm, Aim(), make_config(algorithm, "mlp", entropy_coef=0.0, total_steps=60_000, num_envs=32))
    metrics = jax.jit(train)(jax.random.key(0)).metrics
    returns = metrics["sum_return"] / metrics["episodes"]
    assert returns[0] < -0.3
    assert returns[-1] > -0.02


def test_ppo_controls_one_agent():
    with pytest.raises(UserError, match=r"one agent.*marljax\.joint\(env\)"):
        jax.eval_shape(make_train(ppo, Probe(), make_config(ppo, "mlp")), jax.random.key(0))
    assert ppo.present(Probe()) == marljax.joint(Probe())
    assert ppo.present(marljax.joint(Probe())) == marljax.joint(Probe())


@pytest.mark.parametrize("module", [ppo, mappo], ids=["ppo", "mappo"])
def test_a_controller_without_a_choice_leaves_the_actors_loss(module):
    """As an agent does; a mask of several parts leaves no choice when each part leaves none."""
    env, config = marljax.joint(Probe()), make_config(module, "mlp")
    mask = jnp.array([[[[True, False, False, True]]], [[[True, False, True, True]]]])  # [T, E, A, n]
    ones = jnp.ones((2, 1, 1), bool)
    rollout = module.Transition(Inputs(None, mask, ones, ones), jnp.zeros((2, 1), bool), None, None)
    policy_mask, value_mask = module.loss_masks(env, config, rollout)
    assert policy_mask.ravel().tolist() == [False, True]
    assert value_mask.all()


def test_the_features_of_the_central_critic():
    """With the state [G = 4] and two agents: widths of the first layer's inputs."""
    widths = {"observation": 4, "id": 2, "both": 4, "none": 0}
    for features, width in widths.items():
        config = make_config(mappo, "gru", critic_features=features, agent_id=True)
        result = jax.eval_shape(make_train(mappo, Probe(), config), jax.random.key(0))
        layers = result.state.learner.params.critic["params"]
        shapes = [layers[name]["kernel"].shape for name in ("state", "features") if name in layers]
        assert shapes == ([(4, 32), (width, 32)] if width else [(4, 32)])


def test_a_shared_body_has_no_learning_rate_for_the_critic():
    with pytest.raises(UserError, match="critic_learning_rate"):
        ippo.Config(share_body=True, critic_learning_rate=1e-3)


def test_every_named_output_is_finite(trained):
    expected = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm"}
    assert expected | {"episodes", "sum_return", "sum_length"} <= set(trained.metrics)
    chex.assert_tree_all_finite(trained.metrics)


@pytest.mark.parametrize("algorithm", [pytest.param(ippo, marks=pytest.mark.slow), mappo], ids=["ippo", "mappo"])
def test_absent_agents_never_reach_the_loss(algorithm):
    """Whatever an absent agent observes or earns, the learned parameters are the same, bit for bit."""
    config = make_config(algorithm, "gru", total_steps=3_072)
    train = jax.jit(make_train(algorithm, Probe(), config))
    runs = [train(jax.random.key(0), {"env.variant": probes.ABSENT, "env.garbage": garbage}) for garbage in (0.0, 100.0)]
    chex.assert_trees_all_equal(*(run.state.learner.params for run in runs))


@pytest.mark.parametrize("network", [("mappo", "gru"), ("ppo", "gru"), ("ippo", "gru", "share_body")], ids="-".join)
def test_probability_ratio_is_one_before_the_first_gradient_step(network, monkeypatch):
    """Replaying a rollout reproduces it, across episode boundaries and from recurrent states in mid-episode."""
    name, core, *switches = network
    algorithm, changes = ALGORITHMS[name], dict.fromkeys(switches, True)
    changes |= {"rollout_length": 11, "normalize_observations": True, "agent_id": True, "num_epochs": 1}
    config = make_config(algorithm, core, **changes)
    env, env_params = probe(algorithm), probes.ProbeParams(variant=probes.MEMORY)

    def measure(weights, config, networks, params, batch, carry, key):
        """In place of the loss: the differences of the networks' outputs from those in the rollout."""
        pi, value = policy_and_value(networks, params._replace(**weights), batch.transition.inputs, carry)
        ratio = jnp.exp(pi.log_prob(batch.transition.sample) - batch.transition.log_prob)
        errors = {"ratio_error": ratio - 1.0, "value_error": value - batch.value}
        return jnp.zeros(()), jax.tree.map(lambda error: jnp.max(jnp.abs(error)), errors)

    def replay(key):
        state = algorithm.init(env, env_params, config, key)
        state, _ = algorithm.update(env, config, state)  # leaves episodes half played
        _, metrics = algorithm.update(env, config, state)
        return metrics["ratio_error"], metrics["value_error"]

    monkeypatch.setattr(loop_of(algorithm), "ppo_loss", measure)
    ratio_error, value_error = on_one_device(replay, jax.random.key(3))
    np.testing.assert_allclose(ratio_error, 0.0, atol=1e-5)
    np.testing.assert_allclose(value_error, 0.0, atol=1e-4)


def test_only_the_diverged_run_freezes():
    trainer = Trainer(ippo, Probe(), make_config(ippo, "mlp", total_steps=4_096), mesh.make_mesh())
    keys, rates = jax.random.split(jax.random.key(0), 2), {"learning_rate": jnp.array([5e-3, 1e38])}
    replicas, metrics = trainer.run(trainer.init(keys, probes.ProbeParams(variant=CHOICE), rates), 3)
    assert replicas.diverged_at.tolist() == [-1, 0]
    assert trainer.quantities[int(replicas.diverged_in[1])] == "policy_loss"  # a loss is named before its consequences
    assert np.isfinite(metrics["policy_loss"][0]).all()
    assert np.isnan(metrics["policy_loss"][1]).all()
    chex.assert_tree_all_finite(replicas.state.learner.params)
    assert replicas.state.learner.updates.tolist() == [3, 0]
