import functools
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.core.spaces import Part
from marljax.nn.gru import GRU
from marljax.nn.layers import EncoderSizes, Sizes, orthogonal
from marljax.nn.networks import Actor, ActorCritic, CentralCritic, PerAgent, initial_carry
from marljax.nn.scorers import AttentionScorer, PairScorer, TwoTowers, sum_of_pairs

INITIALISE_MANY_SEEDS = """
import jax, jax.numpy as jnp
from marljax.nn.layers import Sizes
from marljax.nn.networks import Core, initial_carry

model, x, flags = Core(Sizes("gru", (32, 32, 32), (), "tanh")), jnp.zeros((1, 2, 3, 5)), jnp.ones((1, 2, 3), bool)
init = jax.jit(jax.vmap(lambda key: model.init(key, initial_carry("gru", 32, (2, 3)), x, flags, flags)))
jax.block_until_ready(init(jax.random.split(jax.random.key(0), 4)))
"""


def test_initialising_many_seeds_in_one_program_does_not_hang():
    """JAX 0.10 on CPU hangs on several batched QR decompositions in one program; a hang raises TimeoutExpired."""
    done = subprocess.run([sys.executable, "-c", INITIALISE_MANY_SEEDS], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_orthogonal_rows_and_scale():
    weights = jax.vmap(lambda key: orthogonal(2.0)(key, (8, 4)))(jax.random.split(jax.random.key(0), 3))
    for weight in weights:
        np.testing.assert_allclose(weight.T @ weight, 4.0 * np.eye(4), atol=1e-5)
    assert not np.allclose(weights[0], weights[1])


def test_central_critic_is_a_layer_on_state_and_features_concatenated():
    key_state, key_features, key_init = jax.random.split(jax.random.key(0), 3)
    state, features = jax.random.normal(key_state, (2, 3, 7)), jax.random.normal(key_features, (2, 3, 4, 5))
    flags = jnp.ones((2, 3, 4), bool)
    critic = CentralCritic(Sizes("mlp", (16, 8), (), "tanh"))
    params = critic.init(key_init, (), state, features, flags, flags)
    _, values = critic.apply(params, (), state, features, flags, flags)
    layers = params["params"]
    tiled = jnp.concatenate([jnp.broadcast_to(state[:, :, None], (2, 3, 4, 7)), features], -1)
    first = jnp.concatenate([layers["state"]["kernel"], layers["features"]["kernel"]])
    x = jnp.tanh(tiled @ first + layers["state"]["bias"])
    x = jnp.tanh(x @ layers["Core_0"]["Dense_0"]["kernel"] + layers["Core_0"]["Dense_0"]["bias"])
    expected = (x @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])[..., 0]
    np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("hidden", [(16,), (16, 8)], ids=str)
def test_pair_scorer_is_an_mlp_of_agent_and_item_concatenated(hidden):
    own, items = jax.random.normal(jax.random.key(0), (2, 4, 5)), jax.random.normal(jax.random.key(2), (2, 3, 7))
    module = PairScorer(Sizes("mlp", hidden, (), "relu"))
    params = module.init(jax.random.key(1), own, items)
    scores, noop = module.apply(params, own, items)
    layers = params["params"]
    pairs = [jnp.broadcast_to(own[:, :, None], (2, 4, 3, 5)), jnp.broadcast_to(items[:, None], (2, 4, 3, 7))]
    first = jnp.concatenate([layers["agent"]["kernel"], layers["item"]["kernel"]])
    x = nn.relu(jnp.concatenate(pairs, -1) @ first + layers["agent"]["bias"])
    if len(hidden) > 1:
        x = nn.relu(x @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        expected = (x @ layers["score"]["kernel"] + layers["score"]["bias"])[..., 0]
    else:
        expected = (x @ layers["score"])[..., 0]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert noop.shape == (2, 4)


@pytest.mark.parametrize("act", [nn.relu, jnp.tanh], ids=["relu", "tanh"])
def test_gradient_of_a_sum_over_pairs(act):
    shapes, keys = ((5,), (2, 3, 5), (2, 4, 5), (2, 3, 4)), jax.random.split(jax.random.key(0), 4)
    weights, rows, columns, out = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))

    def plain(weights, rows, columns):
        return act(rows[:, :, None] + columns[:, None]) @ weights

    value, pull = jax.vjp(functools.partial(sum_of_pairs, act), weights, rows, columns)
    expected, plain_pull = jax.vjp(plain, weights, rows, columns)
    np.testing.assert_allclose(value, expected, atol=1e-5)
    for mine, theirs in zip(pull(out), plain_pull(out), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_two_towers_meet_in_a_product():
    own, items = jax.random.normal(jax.random.key(0), (2, 4, 5)), jax.random.normal(jax.random.key(1), (2, 3, 7))
    module = TwoTowers(Sizes("mlp", (16, 16), (), "relu"), 8)
    params = module.init(jax.random.key(2), own, items)
    scores, noop = module.apply(params, own, items)
    assert (scores.shape, noop.shape) == ((2, 4, 3), (2, 4))
    swapped, _ = module.apply(params, own[:, ::-1], items[:, [2, 0, 1]])
    np.testing.assert_allclose(swapped, scores[:, ::-1][:, :, [2, 0, 1]], atol=1e-6)


@pytest.mark.parametrize("kind", ["pairs", "two towers"])
def test_scores_with_attention_depend_on_whoever_competes(kind):
    """They follow agents and items into another order, and only agents that can take an item and open items count."""
    keys = jax.random.split(jax.random.key(0), 4)
    own, items = jax.random.normal(keys[0], (2, 4, 5)), jax.random.normal(keys[1], (2, 3, 7))
    able, is_open = jnp.array([[True, True, False, True]] * 2), jnp.array([[True, False, True]] * 2)
    sizes = Sizes("mlp", (16,), (), "relu")
    scorer = PairScorer(sizes) if kind == "pairs" else TwoTowers(sizes, 8)
    module = AttentionScorer(scorer, layers=2, width=8, heads=2, activation="relu")
    params = module.init(keys[2], own, items, able, is_open)
    scores, noop = module.apply(params, own, items, able, is_open)
    assert (scores.shape, noop.shape) == ((2, 4, 3), (2, 4))

    agents, offered = jnp.array([2, 0, 3, 1]), jnp.array([2, 0, 1])
    moved = module.apply(params, own[:, agents], items[:, offered], able[:, agents], is_open[:, offered])
    np.testing.assert_allclose(moved[0], scores[:, agents][:, :, offered], atol=1e-5)
    np.testing.assert_allclose(moved[1], noop[:, agents], atol=1e-5)

    changed, _ = module.apply(params, own.at[:, 2].add(1.0), items.at[:, 1].add(1.0), able, is_open)
    counted = np.ix_(range(2), [0, 1, 3], [0, 2])
    np.testing.assert_array_equal(changed[counted], scores[counted])
    changed, _ = module.apply(params, own.at[:, 3].add(1.0), items, able, is_open)
    assert np.all(np.abs(changed - scores)[:, :3].max(-1) > 1e-4)


def flax_gru(params, carry, x, first, alive):
    """The same sequence through flax's cell, step by step."""
    layers, width = params["params"], carry.shape[-1]
    kernels, biases, recurrent = (
        jnp.split(part, 3, axis=-1) for part in (layers["input"]["kernel"], layers["input"]["bias"], layers["recurrent"])
    )
    cell = {f"i{g}": {"kernel": k, "bias": b} for g, k, b in zip("rzn", kernels, biases, strict=True)}
    cell |= {f"h{g}": {"kernel": k} for g, k in zip("rzn", recurrent, strict=True)}
    cell["hn"]["bias"] = layers["bias"]
    outputs = []
    for t in range(len(x)):
        carry = jnp.where(first[t][..., None], 0.0, carry)
        carry, output = nn.GRUCell(width).apply({"params": cell}, carry, x[t])
        carry = jnp.where(alive[t][..., None], carry, 0.0)
        outputs.append(output)
    return carry, jnp.stack(outputs)


def test_gru_and_its_gradient_are_those_of_flax():
    keys = jax.random.split(jax.random.key(2), 7)
    x, carry = jax.random.normal(keys[0], (6, 3, 2, 5)), jax.random.normal(keys[1], (3, 2, 4))
    first, alive = (jax.random.bernoulli(key, p, (6, 3, 2)) for key, p in zip(keys[2:4], (0.3, 0.8), strict=True))
    params = GRU(4).init(keys[4], carry, x, first, alive)
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(keys[5], leaf.shape), params)  # biases other than 0
    weight_last, weight_all = jax.random.normal(keys[6], (3, 2, 4)), jax.random.normal(keys[6], (6, 3, 2, 4))

    def loss(apply, params, carry, x):
        last, outputs = apply(params, carry, x, first, alive)
        return (last * weight_last).sum() + (outputs * weight_all).sum()

    ours, theirs = (jax.value_and_grad(loss, argnums=(1, 2, 3))(apply, params, carry, x) for apply in (GRU(4).apply, flax_gru))
    jax.tree.map(lambda own, other: np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5), ours, theirs)


def attentive_scorer(sizes):
    return AttentionScorer(PairScorer(sizes), 1, 16, 2, sizes.activation, sizes.dtype)


def low_precision_cases():
    """Networks and their inputs."""
    keys = jax.random.split(jax.random.key(3), 5)
    x, flags = jax.random.normal(keys[0], (6, 3, 5, 7)), jnp.ones((6, 3, 5), bool)
    state, carry = jax.random.normal(keys[1], (6, 3, 9)), jax.random.normal(keys[2], (3, 5, 16))
    own, items = jax.random.normal(keys[3], (2, 4, 5)), jax.random.normal(keys[4], (2, 3, 7))
    mlp, gru = Sizes("mlp", (32, 16), (8,), "tanh"), Sizes("gru", (32, 16), (8,), "relu")
    kinds = Part("other", 1, 2), Part("wall", 1, 1)
    return {
        "mlp": (functools.partial(Actor, 4), mlp, ((), x, flags, flags)),
        "gru": (functools.partial(ActorCritic, 4), gru, (carry, x, flags, flags)),
        "attention": (functools.partial(Actor, 4), mlp._replace(encoder=EncoderSizes(kinds, 8, 2)), ((), x, flags, flags)),
        "central critic": (CentralCritic, gru, (carry, state, x, flags, flags)),
        "two towers": (functools.partial(TwoTowers, embedding=8), mlp, (own, items)),
        "pairs": (PairScorer, mlp, (own, items)),
        "pairs, one layer": (PairScorer, mlp._replace(hidden=(32,)), (own, items)),
        "pairs, attention": (attentive_scorer, mlp, (own, items, jnp.ones((2, 4), bool), jnp.ones((2, 3), bool))),
    }


@pytest.mark.parametrize("name", low_precision_cases())
def test_hidden_layers_in_bfloat16(name):
    make, sizes, inputs = low_precision_cases()[name]
    full, half = make(sizes=sizes), make(sizes=sizes._replace(dtype="bfloat16"))
    params = half.init(jax.random.key(0), *inputs)
    jax.tree.map(np.testing.assert_array_equal, params, full.init(jax.random.key(0), *inputs))

    def loss(module, params):
        outputs = jax.tree.leaves(module.apply(params, *inputs))
        assert all(part.dtype == jnp.float32 for part in outputs)
        return sum(jnp.sum(jnp.square(part + 1.0)) for part in outputs)

    precise, rough = (jax.grad(functools.partial(loss, module))(params) for module in (full, half))
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]) for found in (precise, rough))
    assert a.dtype == b.dtype == np.float32
    assert 0 < np.linalg.norm(a - b) < 0.03 * np.linalg.norm(a)


def test_an_actor_takes_the_parameters_of_a_shared_body():
    sizes = Sizes("gru", (8, 6), (5, 4), "relu")
    x, flags = jax.random.normal(jax.random.key(0), (2, 3, 5, 7)), jnp.ones((2, 3, 5), bool)
    carry = initial_carry("gru", 6, (3, 5))
    params = ActorCritic(4, sizes).init(jax.random.key(1), carry, x, flags, flags)
    _, (outputs, values) = ActorCritic(4, sizes).apply(params, carry, x, flags, flags)
    assert values.shape == (2, 3, 5)
    layers = params["params"]
    assert [layers[name]["kernel"].shape for name in ("value_0", "value_1", "value")] == [(6, 5), (5, 4), (4, 1)]
    np.testing.assert_array_equal(outputs, Actor(4, sizes).apply(params, carry, x, flags, flags)[1])


@pytest.mark.parametrize("core", ["mlp", "gru"])
def test_normalised_layers_do_not_change_with_the_scale_of_their_weights(core):
    """Scaled dense weights of the core leave the outputs as they are with layer normalisation, and change them without."""
    obs, flags, carry = jax.random.normal(jax.random.key(0), (2, 3, 4, 5)), jnp.ones((2, 3, 4), bool), jnp.zeros((3, 4, 8))
    carry = carry if core == "gru" else ()
    for layer_norm in (True, False):
        actor = Actor(2, Sizes(core, (16, 8), (), "relu", layer_norm=layer_norm), scale=1.0)
        params = actor.init(jax.random.key(1), carry, obs, flags, flags)
        layers = params["params"]["Core_0"]
        assert ("LayerNorm_0" in layers) == layer_norm
        scaled = layers | {"Dense_0": {"kernel": 3.0 * layers["Dense_0"]["kernel"], "bias": 3.0 * layers["Dense_0"]["bias"]}}
        again = {"params": params["params"] | {"Core_0": scaled}}
        outputs, others = (actor.apply(weights, carry, obs, flags, flags)[1] for weights in (params, again))
        assert np.allclose(outputs, others, atol=1e-4) == layer_norm


def test_parameters_per_agent():
    actor = Actor(4, Sizes("gru", (8, 6), (5,), "relu"))
    x, flags = jax.random.normal(jax.random.key(0), (2, 3, 5, 7)), jnp.ones((2, 3, 5), bool)
    carry = initial_carry("gru", 6, (3, 5))
    network = PerAgent(actor, 5, shared=False)
    params = network.init(jax.random.key(1), carry, x, flags, flags)
    new_carry, outputs = network(params, carry, x, flags, flags)
    assert outputs.shape == (2, 3, 5, 4)
    for agent in range(5):
        own = jax.tree.map(lambda leaf, agent=agent: leaf[agent], params)
        pick = slice(agent, agent + 1)
        own_carry, own_outputs = actor.apply(own, carry[:, pick], x[:, :, pick], flags[:, :, pick], flags[:, :, pick])
        np.testing.assert_allclose(outputs[:, :, pick], own_outputs, atol=1e-6)
        np.testing.assert_allclose(new_carry[:, pick], own_carry, atol=1e-6)
