"""A team as one agent: the same dynamics; masks, rewards and metrics follow from those of the agents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, Padded, Points

import marljax
from marljax.core.spaces import Box, Discrete, MultiDiscrete
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.training.evaluation import RandomPolicy


@pytest.mark.parametrize(
    ("env", "flat"), [(Corridor(), False), (Points(), False), (Padded(), False), (Corridor(), True)], ids=repr
)
def test_conformance(env, flat):
    check_env(marljax.joint(env, flat), num_steps=30)


def test_spaces_and_identity():
    joint = marljax.joint(Corridor())
    assert joint.action_space == MultiDiscrete((3, 3, 3))
    assert joint.observation_space == Box((7,))
    assert marljax.joint(Points()).action_space == Box((4,), -1.0, 1.0)
    assert (joint.presets, joint.version, joint.noop) == (Corridor().presets, Corridor().version, 0)
    assert joint == marljax.joint(Corridor(preset="slow"))
    assert hash(joint) == hash(marljax.joint(Corridor(preset="slow")))
    assert joint != marljax.joint(Corridor(length=5))
    nested = marljax.joint(joint)
    assert nested.action_space == joint.action_space


def test_padding_is_masked_everywhere():
    """It is 0 in random actions, and false in the masks of the joint agent and of other APIs."""
    env = Padded()
    usable = np.array([[True, True], [True, False]])
    state, timestep = env.reset(jax.random.key(0))
    action, _ = RandomPolicy(env)(jax.random.key(1), state, timestep, ())
    np.testing.assert_array_equal(action != 0, usable)
    joint = marljax.joint(env)
    np.testing.assert_array_equal(joint.reset(jax.random.key(0))[1].action_mask, usable.reshape(1, 4))
    np.testing.assert_array_equal(marljax.joint(Points()).reset(jax.random.key(0))[1].action_mask, [[True]])
    single = marljax.to_gymnax(joint)
    np.testing.assert_array_equal(single.action_mask(single.reset(jax.random.key(0), single.default_params)[1]), usable.ravel())
    several = marljax.to_jaxmarl(env)
    masks = several.get_avail_actions(several.reset(jax.random.key(0))[1])
    np.testing.assert_array_equal([masks[agent] for agent in several.agents], usable)


def test_reward_is_the_mean_over_the_agents_present_and_absent_slots_have_the_noop():
    env = Corridor(length=1)
    joint = marljax.joint(env)
    env_params = env.default_params.replace(slip=0.0)
    state = joint.initial(jax.random.key(0), env_params)
    state = state.replace(env=state.env.replace(alive=jnp.array([True, True, False])))
    _, timestep = joint.step(jax.random.key(1), state, jnp.array([[2, 0, 2]]), env_params)
    # the first agent arrives (1 - 0.05), the second stays (-0.05), the third was never there
    np.testing.assert_allclose(timestep.reward, [(0.95 - 0.05) / 2], rtol=1e-6)
    np.testing.assert_array_equal(timestep.action_mask, [[1, 0, 0, 1, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(timestep.alive, [True])
    assert float(timestep.metrics["arrived"]) == 1.0


@pytest.mark.parametrize("env", [Corridor(), Points()], ids=repr)
def test_a_step_is_that_of_the_agents(env):
    joint = marljax.joint(env)
    state, timestep = joint.reset(jax.random.key(3))
    inner_state, inner = env.reset(jax.random.key(3))
    action = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(4), env.num_agents))
    after, timestep = joint.step(jax.random.key(5), state, action.reshape(1, -1))
    inner_after, inner = env.step(jax.random.key(5), inner_state, action)
    jax.tree.map(np.testing.assert_array_equal, after.env, inner_after)
    np.testing.assert_array_equal(timestep.obs[0], env.global_state(inner_after, env.default_params))
    np.testing.assert_array_equal(timestep.obs[0], joint.global_state(after, env.default_params))
    assert bool(timestep.terminated) == bool(inner.terminated)


def test_its_return_is_that_of_the_agents():
    """They earn unequally and leave: the same episodes, of several agents and of one, have the same metrics."""
    env, count = Corridor(), 8
    vecs = [marljax.vectorize(one, count) for one in (env, marljax.joint(env))]
    (state, timestep), (joint_state, joint_timestep) = (vec.reset(jax.random.key(0)) for vec in vecs)
    steps = [jax.jit(vec.step) for vec in vecs]
    ended = 0
    for key in jax.random.split(jax.random.key(1), 30):
        key_action, key_step = jax.random.split(key)
        action = jax.random.randint(key_action, (count, env.num_agents), 0, 3)
        state, timestep = steps[0](key_step, state, action)
        joint_state, joint_timestep = steps[1](key_step, joint_state, action[:, None])
        for name in ("return", "length", "arrived"):
            np.testing.assert_allclose(joint_timestep.metrics[name], timestep.metrics[name], rtol=1e-5, atol=1e-6)
        ended += int(timestep.last.sum())
    assert ended > count


@pytest.mark.parametrize(
    ("env", "flat", "message"),
    [
        (3, False, "joint got 3; "),
        (Corridor(compete=True), False, "Corridor has 2 teams"),
        (Corridor(agents=8), True, r"3\^8 joint actions, .*flat=True"),
        (Points(), True, "flat=True .*continuous"),
        (Corridor(), 1, "flat=1 "),
    ],
    ids=str,
)
def test_other_environments_are_refused(env, flat, message):
    with pytest.raises(UserError, match=message):
        marljax.joint(env, flat)


def test_a_flat_action_is_that_of_every_agent():
    """The same episodes by one integer as by one entry per agent; the mask is the product of theirs."""
    env = Corridor(length=2)
    flat, parts = marljax.joint(env, flat=True), marljax.joint(env)
    assert (flat.action_space, flat.noop, flat.observation_space) == (Discrete(27), 0, parts.observation_space)
    assert flat != parts
    (state, timestep), (_, by_part) = flat.reset(jax.random.key(0)), parts.reset(jax.random.key(0))
    for key in jax.random.split(jax.random.key(1), 12):
        masks = np.asarray(by_part.action_mask).reshape(3, 3)
        product = np.einsum("a,b,c->abc", *masks)
        np.testing.assert_array_equal(timestep.action_mask[0], product.ravel())
        action = jax.random.categorical(key, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
        entries = np.stack(np.unravel_index(np.asarray(action), (3, 3, 3)), axis=-1)
        _, by_part = parts.step(key, state, entries)
        state, timestep = flat.step(key, state, action)
        np.testing.assert_array_equal(timestep.reward, by_part.reward)
        jax.tree.map(np.testing.assert_array_equal, timestep.metrics, by_part.metrics)
    assert float(timestep.metrics["arrived"]) > 0


def test_the_flat_noop_is_the_noop_of_all_agents():
    env = marljax.make("smax", scenario="3m")
    flat = marljax.joint(env, flat=True)
    assert flat.action_space == Discrete(8**3)
    np.testing.assert_array_equal(np.unravel_index(flat.noop, (8, 8, 8)), [env.noop] * 3)
