"""The clipped losses of PPO and MAPPO against NumPy, and the properties that minibatching and normalisation must have."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import StubPolicy, on_one_device

from marljax.algos import mappo, ppo
from marljax.nn.running_stats import RunningStats

SHAPE = (3, 4, 2)  # [T, E, A]

pytestmark = pytest.mark.parametrize("module", [ppo, mappo], ids=["ppo", "mappo"])


def make_config(module, **changes):
    return module.Config(**({"num_envs": 4, "rollout_length": 3, "num_minibatches": 1} | changes))


def make_stub_networks(module):
    """Networks whose parameters are their outputs: a gradient is one by the outputs."""
    if module is mappo:
        return mappo.Networks(
            init=None,
            policy=lambda params, inputs, carry: (carry, params.actor),
            value=lambda params, inputs, carry: (carry, params.critic),
            update_stats=None,
        )
    return ppo.Networks(
        init=None,
        policy=None,
        value=None,
        policy_and_value=lambda params, inputs, carry: (params.actor, params.critic),
        update_stats=None,
    )


def random_batch(module):
    """A batch, and outputs of the networks as the weights of the stubs."""
    rng = np.random.default_rng(0)

    def normal(scale=1.0):
        return jnp.asarray(scale * rng.normal(size=SHAPE), jnp.float32)

    def mask():
        return jnp.asarray(rng.random(SHAPE) < 0.6)

    transition = module.Transition(inputs=None, last=None, sample=jnp.zeros(SHAPE), log_prob=normal())
    batch = module.Batch(transition, mask(), mask(), value=normal(), advantage=normal(), target=normal())
    return batch, {"actor": StubPolicy(transition.log_prob + normal(0.3), normal(0.3)), "critic": normal(0.3)}


def make_loss(module, config, value_stats=None):
    """``ppo_loss`` as a compiled function of weights and batch."""

    def loss(weights, batch):
        stats = RunningStats.create(()) if value_stats is None else value_stats
        params = module.Params(**dict.fromkeys(module.Params._fields))._replace(value_stats=stats)
        networks, carry = make_stub_networks(module), module.Carry((), ())
        return module.ppo_loss(weights, config, networks, params, batch, carry, jax.random.key(0))

    return loss


def gradient(loss, weights, batch):
    return on_one_device(jax.grad(lambda weights, batch: loss(weights, batch)[0]), weights, batch)


@pytest.mark.parametrize(("clip_values", "normalize"), [(True, "minibatch"), (False, "per_agent"), (True, "none")])
def test_losses_equal_the_formulas(module, clip_values, normalize):
    batch, weights = random_batch(module)
    batch = batch._replace(advantage=batch.advantage * jnp.array([1.0, 50.0]))
    config = make_config(module, clip_values=clip_values, normalize_advantages=normalize)
    stats = RunningStats(jnp.array(0.5), jnp.array(4.0), jnp.array(10.0))
    total, metrics = on_one_device(make_loss(module, config, stats), weights, batch)

    def in_numpy(*arrays):
        return [np.asarray(x, np.float64) for x in arrays]

    acting, valued = np.asarray(batch.policy_mask), np.asarray(batch.value_mask)
    advantage, target, old_log_prob, old_value = in_numpy(batch.advantage, batch.target, batch.transition.log_prob, batch.value)
    log_prob, entropy, value = in_numpy(*weights["actor"], weights["critic"])
    if normalize != "none":
        axes = (0, 1) if normalize == "per_agent" else None
        mean, std = (f(advantage, axes, where=acting, keepdims=True) for f in (np.mean, np.std))
        advantage = (advantage - mean) / std
    log_ratio = log_prob - old_log_prob
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    target = (target - 0.5) / 2.0
    error = (value - target) ** 2 / 2
    if clip_values:
        error = np.maximum(error, (old_value + np.clip(value - old_value, -0.2, 0.2) - target) ** 2 / 2)
    expected = {
        "policy_loss": -surrogate[acting].mean(),
        "value_loss": error[valued].mean(),
        "entropy": entropy[acting].mean(),
        "approx_kl": (ratio - 1 - log_ratio)[acting].mean(),
        "clip_fraction": (abs(ratio - 1) > 0.2)[acting].mean(),
    }
    for name, answer in expected.items():
        assert float(metrics[name]) == pytest.approx(answer, rel=1e-4, abs=1e-6), name
    loss = expected["policy_loss"] + config.value_coef * expected["value_loss"] - config.entropy_coef * expected["entropy"]
    assert float(total) == pytest.approx(loss, rel=1e-4)


def test_no_sample_overflows_in_the_gradient(module):
    """A masked one is arbitrary, and a policy may move far."""
    batch, weights = random_batch(module)
    loss, actor = make_loss(module, make_config(module)), weights["actor"]
    expected = gradient(loss, weights, batch)["actor"].log_probs
    for anything in (1e4, jnp.nan):
        wild = actor._replace(log_probs=jnp.where(batch.policy_mask, actor.log_probs, anything))
        np.testing.assert_array_equal(gradient(loss, weights | {"actor": wild}, batch)["actor"].log_probs, expected)
    for log_ratio in (100.0, -100.0):
        far = actor._replace(log_probs=batch.transition.log_prob + log_ratio)
        chex.assert_tree_all_finite(gradient(loss, weights | {"actor": far}, batch))


def test_clipped_values_start_where_the_critic_is(module):
    """In the first gradient step the critic has not moved, so nothing is clipped, however far the statistics of returns have."""
    batch, weights = random_batch(module)
    config = make_config(module, clip_values=True)
    stats = RunningStats(jnp.array(30.0), jnp.array(100.0), jnp.array(1e4))  # of returns of 30 ± 10; before it they were 0 ± 1
    value = batch.value
    found = gradient(make_loss(module, config, stats), weights | {"critic": value}, batch)["critic"]
    error = value - (batch.target - 30.0) / 10.0
    np.testing.assert_allclose(found, config.value_coef * error * batch.value_mask / batch.value_mask.sum(), rtol=1e-4)


def test_minibatches_hold_every_row_once(module):
    config = make_config(module, num_envs=8, num_minibatches=4)
    rows = jnp.arange(8.0)[None, :, None] * jnp.ones((3, 1, 2))
    batch = module.Batch(module.Transition(None, rows[..., 0], rows, rows), rows, rows, rows, rows, rows)
    carry = module.Carry(jnp.arange(8.0)[:, None], ())
    batches, carries = module.split_minibatches(config, batch, carry, jax.random.key(0))
    assert batches.transition.sample.shape == (4, 3, 2, 2)
    order = batches.transition.sample[:, 0, :, 0]
    assert sorted(order.ravel().tolist()) == list(range(8))
    np.testing.assert_array_equal(order, carries.actor[..., 0])
    for rows in jax.tree.leaves(batches):
        np.testing.assert_array_equal(rows.reshape(4, 3, 2, -1)[..., 0], jnp.broadcast_to(order[:, None], (4, 3, 2)))
