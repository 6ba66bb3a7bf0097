"""The scripted policies behave as measured in highway-env on this road (30 episodes there: ± is its interval)."""

import jax
import numpy as np
import pytest

from marljax.baselines.merge import ALGORITHMS, DENSITIES, SUPERVISORS, learned_results, over_densities
from marljax.baselines.policies.merge import scripted_policies
from marljax.config.compose import compose
from marljax.envs.merge import Merge
from marljax.training.evaluation import Evaluator

MEASURED = {"easy": (64.9, 3.1, 23.4), "medium": (40.9, 8.8, 21.4), "hard": (28.2, 7.2, 19.9)}
EPISODES = 300


@pytest.fixture(scope="module")
def metrics():
    """Mean metrics by density and policy; the densities share each policy's program."""
    results = {}
    for density in MEASURED:
        env = Merge(density=density, reward="local")
        for name, policy in scripted_policies(env, env.default_params).items():
            played = Evaluator(policy.env, EPISODES).scripted(policy.policy, policy.env_params, jax.random.key(0))
            results[density, name] = {key: float(value.mean()) for key, value in played.items()}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("density", MEASURED)
def test_human_drivers_as_measured_elsewhere(metrics, density):
    value, interval, speed = MEASURED[density]
    human = metrics[density, "human drivers (IDM + MOBIL)"]
    assert human["return"] == pytest.approx(value, abs=interval + 4.0)
    assert human["speed"] == pytest.approx(speed, abs=0.8)
    assert human["crash"] <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("density", MEASURED)
def test_the_supervisor_prevents_most_crashes_of_random_actions(metrics, density):
    alone, supervised = metrics[density, "random"], metrics[density, "random, supervised"]
    assert supervised["crash"] < 0.5 * alone["crash"]
    assert 0.0 < supervised["intervened"] < 0.3
    assert alone["intervened"] == 0.0
    assert supervised["return"] > alone["return"]


def test_learners_are_compared_relative_to_human_drivers():
    human = {density: {"return": {"mean": [value]}} for density, value in zip(DENSITIES, (60.0, 40.0, 20.0), strict=True)}
    learned = {
        f"{density}: {algo}": {"return": {"mean": [factor * human[density]["return"]["mean"][0]] * 5}}
        for density in DENSITIES
        for algo, factor in zip(ALGORITHMS, (1.5, 1.25), strict=True)
    }
    text = over_densities(learned, human)
    assert "| mappo | 1.50 [1.50, 1.50] |" in text
    assert "| ippo | 1.25 [1.25, 1.25] |" in text
    assert "has a higher return than one of ippo: 1.00 [1.00, 1.00]." in text
    assert "not all results" in over_densities(learned | {"easy: ippo": None}, human)


def test_learners_are_judged_by_the_standard_rewards_under_each_supervisor():
    """Whatever the training changed, but for the speeds that vehicles can choose."""
    adapted = []

    class Cache:
        def learned(self, name, algo, overrides, episodes, adapt, about, run_name):
            adapted.append(adapt(compose(algo, overrides)))

    learned_results(Cache(), "row", "name", "ippo", ("tuned=braking", "env.density=hard"), 1, [*SUPERVISORS])
    standard = Merge(density="hard").default_params
    for run, (safety, horizon, room) in zip(adapted, [(False, 5, 0.0), (True, 5, 0.0), (True, 10, 1_000.0)], strict=True):
        assert (run.env.density, run.env.safety, run.env.horizon) == ("hard", safety, horizon)
        speeds = {"speed_lowest": 0.0, "speed_levels": run.env_params.speed_levels}
        jax.tree.map(np.testing.assert_array_equal, run.env_params, standard.replace(**speeds, collision_room=room))
        assert run.env_params.speed_levels > standard.speed_levels
