"""Attention over entities: against NumPy and flax, invariances, and in every network of the PPO family."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path as leaves_with_paths
from toys import Crowd, Points

import marljax
from marljax.algos import ippo, mappo, ppo
from marljax.core import layout
from marljax.core.spaces import Part
from marljax.learning.rollout import Inputs
from marljax.nn import encoder
from marljax.nn.encoder import Encoder, attend
from marljax.nn.layers import EncoderSizes

LAYOUT = (Part("own", 1, 2), Part("others", 4, 3), Part("gates", 2, 2, ordered=True), Part("map", 1, 5))
SIZES = EncoderSizes(layout.kinds(LAYOUT), 8, 2)
OWN, OTHERS, GATES, MAP = slice(0, 2), slice(2, 14), slice(14, 18), slice(18, 23)


def observations():
    """[6, 23]; every kind is absent somewhere, in the first row all are, in the last none."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(6, 23)).astype(np.float32)
    obs[1:5, OTHERS].reshape(4, 4, 3)[rng.random((4, 4)) < 0.5] = 0.0
    obs[2, OTHERS] = obs[3, GATES] = obs[4, MAP] = 0.0
    obs[1, 14:16] = 0.0
    obs[0, 2:] = 0.0
    return obs


@pytest.fixture(scope="module")
def encoded():
    """Parameters, with biases other than 0, and the compiled encoder of raw observations."""
    module = Encoder(SIZES, "tanh")
    x = encoder.arrange(LAYOUT, jnp.asarray(observations()), None)
    params = module.init(jax.random.key(0), x)
    noise = jax.random.normal(jax.random.key(1), (8,))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * noise[: leaf.shape[-1]], params)
    return params, jax.jit(lambda params, obs: module.apply(params, encoder.arrange(LAYOUT, obs, None)))


def by_hand(params, obs):
    """One observation through loops over the present entities."""
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])

    def embed(name, x):
        for number in range(2):
            x = np.tanh(x @ layers[f"{name}_{number}"]["kernel"] + layers[f"{name}_{number}"]["bias"])
        return x

    there = []  # kind, place, embedding
    for name, rows in (("others", obs[OTHERS].reshape(4, 3)), ("gates", obs[GATES].reshape(2, 2)), ("map", obs[MAP][None])):
        there += [(name, place, embed(name, row)) for place, row in enumerate(rows) if row.any()]
    rows = {"others": [], "gates": [], "map": []}
    for name, place, token in there:
        heard = []
        for head in (slice(0, 4), slice(4, 8)):
            query = token @ layers["query"]["kernel"][:, head]
            scores = np.array([query @ (other @ layers["key"]["kernel"][:, head]) / 2.0 for _, _, other in there])
            weights = np.exp(scores) / np.exp(scores).sum()
            values = [other @ layers["value"]["kernel"][:, head] for _, _, other in there]
            heard.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        rows[name].append((place, token + np.concatenate(heard) @ layers["heard"]["kernel"]))
    mean = {name: sum(row for _, row in found) / max(len(found), 1) + np.zeros(8) for name, found in rows.items()}
    gates, open_gates = np.zeros((2, 8)), np.zeros(2)
    for place, row in rows["gates"]:
        gates[place], open_gates[place] = row, 1.0
    shares = [[len(rows["others"]) / 4], open_gates, [float(len(rows["map"]))]]
    return np.concatenate([embed("own", obs[OWN]), mean["others"], *gates, mean["map"], *shares])


def test_the_encoder_equals_loops_over_entities(encoded):
    params, encode = encoded
    found = encode(params, jnp.asarray(observations()))
    assert found.shape == (6, 8 + 8 + 16 + 8 + 4)
    for row, obs in zip(found, observations(), strict=True):
        np.testing.assert_allclose(row, by_hand(params, obs), atol=1e-5)


def test_attention_is_that_of_flax():
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value = (jax.random.normal(key, (3, 5, 8)) for key in keys[:3])
    present = jax.random.bernoulli(keys[3], 0.6, (3, 5)).at[:, 0].set(True)
    parts = (part.reshape(3, 5, 2, 4) for part in (query, key, value))
    expected = nn.dot_product_attention(*parts, mask=present[:, None, None, :]).reshape(3, 5, 8)
    np.testing.assert_allclose(attend(query, key, value, present.astype(float), 2), expected, atol=1e-6)


def test_absent_entities_have_no_effect(encoded):
    """Whatever is in their columns; without any entity gradients are finite, and 0 for all but the agent's own columns."""
    params, _ = encoded
    module = Encoder(SIZES, "tanh")
    x = encoder.arrange(LAYOUT, jnp.asarray(observations()), None)
    rows, there, _ = encoder.split_columns(SIZES.kinds, x)
    garbage = [jnp.where(bits[..., None] > 0, row, 1e3) for row, bits in zip(rows, there, strict=True)]
    columns = sum(kind.count * kind.width for kind in SIZES.kinds)
    wild = jnp.concatenate([*(row.reshape(6, -1) for row in garbage), x[:, columns:]], axis=-1)
    apply = jax.jit(module.apply)
    np.testing.assert_array_equal(apply(params, wild), apply(params, x))
    grads = jax.jit(jax.grad(lambda params: jnp.sum(module.apply(params, wild[:1]) ** 2)))(params)["params"]
    for name, layer in grads.items():
        for leaf in jax.tree.leaves(layer):
            assert np.isfinite(leaf).all()
            assert np.any(leaf) == name.startswith("own")


TINY = dict(total_steps=24, num_envs=4, rollout_length=6, num_minibatches=2, num_epochs=1, hidden=(8, 8), encoder_width=8)
CHOICES = {
    "ippo-body-each": (ippo, dict(share_body=True, share_parameters=False, agent_id=True, head=(8,))),
    "mappo-gru-both": (mappo, dict(core="gru", critic_features="both", normalize_observations=True, activation="relu")),
    "mappo-id": (mappo, dict(critic_features="id", hidden=(8,))),
}


def outputs(algorithm, config, params, timestep, state):
    """Greedy actions [E, A, 2] and values [E, A]."""
    networks = (mappo if algorithm is mappo else ppo).make_networks(Crowd(), config)
    inputs, carry = Inputs.of(timestep), algorithm.initial_carry(Crowd(), config, len(timestep.alive))
    if algorithm is mappo:
        _, pi = networks.policy(params, inputs, carry)
        _, value = networks.value(params, inputs._replace(state=state[None]), carry)
    else:
        pi, value = networks.policy_and_value(params, inputs, ppo.Carry(carry, carry))
    return pi.mode()[0], value[0]


@pytest.mark.parametrize("choice", CHOICES)
def test_policies_and_critics_ignore_the_order(choice):
    """After an update, which changes the statistics."""
    algorithm, options = CHOICES[choice]
    config, env = algorithm.Config(encoder="attention", **(TINY | options)), Crowd()
    result = jax.jit(marljax.make_train(algorithm, env, config))(jax.random.key(0))
    assert int(result.diverged_at) == -1

    @jax.jit
    def look(params):
        vec, order = marljax.vectorize(env, 4), jnp.array([2, 0, 1])
        env_state, timestep = vec.reset(jax.random.key(1))
        state = vec.global_state(env_state, env.default_params)
        obs = timestep.obs
        torn = obs.at[..., :9].set(obs[..., :9].reshape(4, 4, 3, 3)[:, :, order].reshape(4, 4, 9))
        turned = torn.at[..., -3:].set(obs[..., -3:][..., order])
        thrice = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * 3), (timestep, state))
        found = outputs(algorithm, config, params, thrice[0].replace(obs=jnp.concatenate([obs, turned, torn])), thrice[1])
        return jax.tree.map(lambda leaf: leaf.reshape(3, 4, *leaf.shape[1:]), found), layout.present(obs[..., 2:9:3, None])

    (actions, values), there = look(result.state.learner.params)
    assert 0.2 < there.mean() < 0.9
    np.testing.assert_allclose(actions[1], actions[0], atol=1e-5)
    np.testing.assert_allclose(values[1], values[0], atol=1e-5)
    assert not np.allclose(actions[2], actions[0], atol=1e-5)
    assert np.allclose(values[2], values[0], atol=1e-5) == (choice == "mappo-id")  # whose critic has no observations


def test_flat_networks_do_not_depend_on_layouts():
    config = mappo.Config(normalize_observations=True, **TINY)
    params = jax.eval_shape(marljax.make_train(mappo, Crowd(), config), jax.random.key(0)).state.learner.params
    assert params.obs_stats.mean.shape == (17,)
    layers = {jax.tree_util.keystr(path[1:-1], simple=True, separator=".") for path, _ in leaves_with_paths(params.actor)}
    assert layers == {"Core_0.Dense_0", "Core_0.Dense_1", "Dense_0"}


class Miscounted(Crowd):
    obs_layout = (Part("own", 1, 2), Part("others", 3, 4))


@pytest.mark.parametrize(
    ("env", "message"),
    [(Points(), "encoder=flat"), (Miscounted(), "14 columns of an observation of 17")],
    ids=["none", "wrong"],
)
def test_environments_without_entities_are_rejected(env, message):
    with pytest.raises(marljax.UserError, match=message):
        jax.eval_shape(marljax.make_train(mappo, env, mappo.Config(encoder="attention", **TINY)), jax.random.key(0))


def test_the_width_of_an_encoder_divides_into_heads():
    with pytest.raises(marljax.UserError, match=r"encoder_width.*encoder_heads"):
        ippo.Config(encoder="attention", encoder_width=10)
