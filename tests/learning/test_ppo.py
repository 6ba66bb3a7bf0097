"""The clipped losses against NumPy, and the properties that minibatching and normalisation must have."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import marljax
from marljax.algos import ippo
from marljax.learning import ppo
from marljax.nn.running_stats import RunningStats
from marljax.training import mesh

SHAPE = (3, 4, 2)


def in_mesh(function):
    """Runs a function that uses collectives over the data axis."""
    spec = PartitionSpec()
    return jax.jit(jax.shard_map(function, mesh=mesh.make_mesh(), in_specs=spec, out_specs=spec, check_vma=False))


def random_batch():
    rng = np.random.default_rng(0)
    names = ("log_prob", "value", "advantage", "target")
    fields = {name: jnp.asarray(rng.normal(size=SHAPE), jnp.float32) for name in names}
    masks = {name: jnp.asarray(rng.random(SHAPE) < 0.6) for name in ("decides", "valued")}
    batch = ppo.Batch(inputs=None, sample=jnp.zeros(SHAPE), **fields, **masks)
    evaluation = ppo.Evaluation(*(jnp.asarray(rng.normal(size=SHAPE) * 0.3, jnp.float32) for _ in range(3)))
    return batch, evaluation._replace(log_prob=batch.log_prob + evaluation.log_prob)


@pytest.mark.parametrize("clip_values", [True, False])
@pytest.mark.parametrize("huber_delta", [0.0, 0.5])
def test_losses_equal_the_formulas(clip_values, huber_delta):
    batch, evaluation = random_batch()
    config = ppo.PPOConfig(clip_values=clip_values, huber_delta=huber_delta, num_envs=4, rollout_length=3, num_minibatches=1)
    stats = RunningStats(jnp.array(0.5), jnp.array(4.0), jnp.array(10.0))
    total, terms = in_mesh(lambda evaluation, batch: ppo.losses(config, evaluation, batch, stats))(evaluation, batch)

    b, e = (jax.tree.map(lambda x: np.asarray(x, np.float64), record) for record in (batch, evaluation))
    decides, valued = b.decides > 0, b.valued > 0
    advantage = (b.advantage - b.advantage[decides].mean()) / (b.advantage[decides].std() + 1e-8)
    ratio = np.exp(e.log_prob - b.log_prob)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)

    def huber(x):
        return np.where((huber_delta > 0) & (abs(x) > huber_delta), huber_delta * (abs(x) - huber_delta / 2), x**2 / 2)

    target = (b.target - 0.5) / 2.0
    error = huber(e.value - target)
    if clip_values:
        error = np.maximum(error, huber(b.value + np.clip(e.value - b.value, -0.2, 0.2) - target))
    assert float(terms["policy_loss"]) == pytest.approx(-surrogate[decides].mean(), rel=1e-4)
    assert float(terms["value_loss"]) == pytest.approx(error[valued].mean(), rel=1e-4)
    assert float(terms["entropy"]) == pytest.approx(e.entropy[decides].mean(), rel=1e-4)
    assert float(terms["clip_fraction"]) == pytest.approx((abs(ratio - 1) > 0.2)[decides].mean(), abs=1e-6)
    expected = terms["policy_loss"] + config.value_coef * terms["value_loss"] - config.entropy_coef * terms["entropy"]
    assert float(total) == pytest.approx(float(expected), rel=1e-5)


def test_a_sample_outside_the_loss_may_hold_anything():
    batch, evaluation = random_batch()
    config = ppo.PPOConfig(num_envs=4, rollout_length=3, num_minibatches=1)
    stats = RunningStats.create(())
    wild = evaluation._replace(log_prob=jnp.where(batch.decides, evaluation.log_prob, 1e4))
    gradient = in_mesh(jax.grad(lambda evaluation: ppo.losses(config, evaluation, batch, stats)[0]))
    np.testing.assert_array_equal(gradient(wild).log_prob, gradient(evaluation).log_prob)


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
def test_a_ratio_that_overflows_leaves_the_gradient_finite(log_ratio):
    batch, evaluation = random_batch()
    config = ppo.PPOConfig(num_envs=4, rollout_length=3, num_minibatches=1)
    far = evaluation._replace(log_prob=batch.log_prob + log_ratio)
    gradient = in_mesh(jax.grad(lambda evaluation: ppo.losses(config, evaluation, batch, RunningStats.create(()))[0]))(far)
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.all(jnp.isfinite(x))), gradient))


def test_clipped_values_start_where_the_critic_is():
    """In the first gradient step the critic has not moved, so nothing is clipped, however far the statistics of returns have."""
    batch, evaluation = random_batch()
    config = ppo.PPOConfig(clip_values=True, num_envs=4, rollout_length=3, num_minibatches=1)
    stats = RunningStats(jnp.array(30.0), jnp.array(100.0), jnp.array(1e4))  # of returns of 30 ± 10; before it they were 0 ± 1

    def loss(value):
        return ppo.losses(config, evaluation._replace(value=value), batch, stats)[0]

    gradient = in_mesh(jax.grad(loss))(batch.value)
    error = batch.value - (batch.target - 30.0) / 10.0
    np.testing.assert_allclose(gradient, config.value_coef * error * batch.valued / batch.valued.sum(), rtol=1e-4)


def test_advantages_normalised_per_agent():
    batch, _ = random_batch()
    batch = batch._replace(decides=jnp.ones(SHAPE, bool), advantage=batch.advantage * jnp.array([1.0, 50.0]))
    config = ppo.PPOConfig(normalize_advantages="per_agent", num_envs=4, rollout_length=3, num_minibatches=1)
    advantage = in_mesh(lambda batch: ppo._normalize_advantages(config, batch))(batch)
    np.testing.assert_allclose(advantage.mean((0, 1)), 0.0, atol=1e-6)
    np.testing.assert_allclose(advantage.std((0, 1)), 1.0, rtol=1e-4)


@pytest.mark.parametrize("core", ["mlp", "gru"])
def test_minibatches_hold_every_row_once(core):
    config = ppo.PPOConfig(core=core, num_envs=8, rollout_length=3, num_minibatches=4)
    rows = jnp.arange(8.0)[None, :, None] * jnp.ones((3, 1, 2))
    batch = ppo.Batch(None, rows, rows, rows, rows, rows, rows, rows)
    split, carry = ppo.minibatches(config, batch, jnp.arange(8.0)[:, None], jax.random.key(0))
    assert split.sample.shape == (4, 3, 2, 2)
    assert sorted(split.sample[:, 0, :, 0].ravel().tolist()) == list(range(8))
    np.testing.assert_array_equal(split.sample[:, 0, :, 0], carry[..., 0])


def test_running_statistics_equal_those_of_all_samples():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (50, 4)).astype(np.float32) for _ in range(4)]
    masks = [rng.random(50) < 0.5 for _ in range(4)]
    stats = RunningStats.create((4,))
    update = in_mesh(lambda stats, x, mask: stats.updated(x, mask))
    for x, mask in zip(batches, masks, strict=True):
        stats = update(stats, x, mask)
    kept = np.concatenate([x[mask] for x, mask in zip(batches, masks, strict=True)])
    np.testing.assert_allclose(stats.mean, kept.mean(0), rtol=1e-4)
    np.testing.assert_allclose(stats.var, kept.var(0), rtol=1e-3)
    np.testing.assert_allclose(stats.denormalize(stats.normalize(kept)), kept, atol=1e-4)


@pytest.mark.parametrize(("apart", "critic_rate"), [(True, 0.0), (True, 0.3), (False, 0.0), (False, 0.3)])
def test_a_steep_actor_leaves_the_critics_gradient_alone_unless_they_are_clipped_together(apart, critic_rate):
    """Adam's first step is rate · g / (|g| + eps), with the gradient as it was clipped."""
    rates = {"learning_rate": 0.1, "critic_learning_rate": critic_rate, "anneal_learning_rate": False}
    config = ippo.Config(max_grad_norm=0.5, adam_eps=1.0, clip_apart=apart, **rates)
    params = ippo.Params({"w": jnp.zeros(1)}, {"w": jnp.zeros(1)}, None, None)
    learner = ppo.new_learner(config, params, jax.random.key(0), None)
    gradients = {"actor": {"w": jnp.array([30.0])}, "critic": {"w": jnp.array([0.1])}}
    steps, _ = ppo.actor_critic_optimizer(config, learner.updates).update(gradients, learner.opt_state)
    actor, critic = 0.5, 0.1 if apart else 0.1 * 0.5 / 30
    np.testing.assert_allclose(steps["actor"]["w"], -0.1 * actor / (actor + 1), rtol=1e-4)
    np.testing.assert_allclose(steps["critic"]["w"], -(critic_rate or 0.1) * critic / (critic + 1), rtol=1e-4)


def test_running_statistics_with_a_horizon_forget():
    """After k batches of the same size the first has the weight (h / (h + 1))^(k - h) that a moving mean gives it."""
    stats, horizon = RunningStats.create(()), 3
    update = in_mesh(lambda stats, x: stats.updated(x, jnp.ones(8, bool), horizon))
    series = [5.0, *[1.0] * 9]
    for value in series:
        stats = update(stats, jnp.full(8, value))
    weight = (1 / 3) * (3 / 4) ** 7  # the third batch makes the mean one of three, and seven follow
    np.testing.assert_allclose(stats.mean, 1.0 + 4.0 * weight, rtol=1e-4)
    np.testing.assert_allclose(stats.var, 16.0 * weight * (1 - weight), rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 6, "rollout_length": 5, "num_minibatches": 4}, ("30", "4")),
        ({"core": "gru", "num_envs": 6, "num_minibatches": 4}, ("6", "4")),
        ({"gamma": 1.5}, ("gamma", "1.5")),
        ({"num_envs": 0}, ("num_envs", "0")),
        ({"core": "lstm"}, ("core", "lstm", "gru")),
        ({"hidden": (64,), "core": "gru"}, ("two hidden layers",)),
        ({"hidden": ()}, ("hidden=[]",)),
        ({"num_epochs": 2.5}, ("num_epochs", "int")),
        ({"gama": 1.0}, ("unknown hyperparameter 'gama'", "gamma")),
        ({"gamma": None}, ("gamma", "takes a number")),
        ({"gamma": "high"}, ("gamma=high", "takes a number")),
        ({"gamma": True}, ("gamma=true", "takes a number")),
        ({"gamma": [0.9, 0.99]}, ("gamma", "takes a number")),
        ({"gamma": jax.random.key(0)}, ("gamma", "takes a number")),
        ({"gamma": np.float32(2)}, ("gamma=2.0", "from 0 to 1")),
        ({"gamma": np.array(2.0)}, ("gamma=2.0", "from 0 to 1")),
        ({"gamma": jnp.array([0.9, 2.0])}, ("gamma", "from 0 to 1")),
        ({"learning_rate": np.nan}, ("learning_rate=nan", "finite")),
        ({"learning_rate": 10**400}, ("learning_rate", "finite")),
        ({"num_envs": 2**31}, ("num_envs", "up to 2147483647")),
        ({"num_envs": jnp.arange(3)}, ("num_envs=[0,1,2]", "an integer")),
        ({"num_envs": 2**30, "rollout_length": 8}, ("too large", "shorter rollouts")),
        ({"total_steps": 1e15}, ("too long", "total_steps")),
        ({"hidden": 64}, ("hidden=64", "a list")),
    ],
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(marljax.UserError) as error:
        ppo.PPOConfig(**changes)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_a_config_takes_what_the_command_line_takes_and_stays_a_pytree_of_its_traced_fields():
    given = ippo.Config(hidden=[64, 32], total_steps=1e6, num_envs=np.int64(8), agent_id=np.bool_(True), gamma=np.float32(0.5))
    same = ippo.Config(hidden=(64, 32), total_steps=1_000_000, num_envs=8, agent_id=True, gamma=0.5)
    assert given == same
    assert hash(given) == hash(same)
    assert pickle.loads(pickle.dumps(given)) == given
    leaves, structure = jax.tree.flatten(given)
    assert jax.tree.unflatten(structure, leaves) == given
    assert jax.tree.map(lambda leaf: None, given).gamma is None  # JAX may put anything there
    path, _ = jax.tree_util.tree_leaves_with_path(given)[0]
    assert jax.tree_util.keystr(path, simple=True) == "learning_rate"  # the name in checkpoints
    assert given.replace(gamma=jnp.float32(0.25)).gamma == 0.25
