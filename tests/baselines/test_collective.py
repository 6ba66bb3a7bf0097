"""The scripted policies of ``collective`` do what their names say, from the observations of a learned policy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.baselines.policies.collective import scripted_policies
from marljax.envs.collective import Collective
from marljax.training.evaluation import Evaluator

KEY = jax.random.key(3)


def play(env, name, episodes=4, **params):
    env_params = env.default_params.replace(**params)
    policy = scripted_policies(env, env_params)[name]
    metrics = Evaluator(env, episodes).scripted(policy.policy, policy.env_params, KEY, policy.carry)
    return {metric: float(jnp.mean(values)) for metric, values in metrics.items()}


@pytest.mark.parametrize("control", ["add", "replace"])
def test_one_direction_reaches_its_bound(control):
    """Headings that are set to one direction have a mean of length sin(η/2)/(η/2), the noise being uniform in ±η/2."""
    env = Collective(agents=400, control=control, bins=0)
    assert play(env, "one direction", max_turn=math.pi, duration=24)["polarisation"] == pytest.approx(math.sin(2) / 2, abs=0.02)


@pytest.mark.parametrize("absolute", [True, False])
def test_aligning_by_turns_is_what_uncontrolled_particles_do(absolute):
    after = []
    for control, name in (("add", "uncontrolled"), ("replace", "align with neighbours")):
        env = Collective(control=control, absolute=absolute, agents=50, bins=0)
        env_params = env.default_params.replace(noise=1.0)
        state, timestep = env.reset(KEY, env_params)
        action, _ = scripted_policies(env, env_params)[name].policy(KEY, state, timestep, ())
        after.append(env.step(KEY, state, action, env_params)[0].particles)
    np.testing.assert_allclose(after[0].cos, after[1].cos, atol=1e-5)
    np.testing.assert_allclose(after[0].y, after[1].y, atol=1e-5)


def test_cancelled_frequencies_leave_oscillators_to_their_coupling():
    """Without a limit on the rate all have the frequency 0, and any coupling brings them together."""
    env = Collective(task="kuramoto", agents=30, frequencies="normal")
    assert play(env, "cancel own frequency", max_rate=50.0, duration=200)["order_end"] == pytest.approx(1.0, abs=1e-2)


def test_the_middle_gathers_all_and_neighbours_do_not():
    env = Collective(task="aggregation", agents=60)
    assert play(env, "to the middle", duration=40)["distance_end"] == pytest.approx(0.0, abs=1e-3)
    assert play(env, "to the neighbours", duration=40)["distance_end"] > 0.5
