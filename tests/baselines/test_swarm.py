"""Scripted pilots of ``swarm``: correct motor commands, drones that arrive, and keep their distance with repulsion."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.baselines import swarm
from marljax.baselines.harness import result_cache
from marljax.baselines.policies.swarm import motor_commands, scripted_policies
from marljax.envs.swarm import Swarm
from marljax.envs.swarm import quadrotor as bodies
from marljax.training.evaluation import Evaluator


def test_mixed_motors_give_the_requested_force_and_torque():
    drone = bodies.Quadrotor()
    force = jnp.array([0.25, 0.3])
    torque = jnp.array([[1e-3, -2e-3], [5e-4, 1e-3], [1e-4, -2e-4]])
    thrust = drone.thrust * 0.5 * (motor_commands(force, torque, drone) + 1.0)
    np.testing.assert_allclose(thrust.sum(axis=0), force, rtol=1e-5)
    change = bodies.angular_acceleration(jnp.zeros((3, 2)), thrust, drone)
    inertia = np.array([drone.inertia_x, drone.inertia_y, drone.inertia_z])[:, None]
    np.testing.assert_allclose(change, torque / inertia, rtol=1e-4)


@pytest.fixture(scope="module")
def played():
    """Metrics by setting and pilot, over eight episodes of 5 or 6 s, or 24 of 9 s."""

    def play(env, episodes=8, **changes):
        metrics = {}
        for name, pilot in scripted_policies(env, env.default_params.replace(**changes)).items():
            if name != "random":
                played = Evaluator(pilot.env, episodes).scripted(pilot.policy, pilot.env_params, jax.random.key(0))
                metrics[name] = {key: float(np.mean(value)) for key, value in played.items()}
        return metrics

    return {
        "same": play(Swarm(drones=5), duration=600),
        "obstacles": play(Swarm(preset="obstacles_random", drones=5), 24, duration=900),
        "coverage": play(Swarm(preset="coverage")),
    }


def test_pilots_arrive_and_repulsion_keeps_them_apart(played):
    alone, apart = played["same"]["PD"], played["same"]["PD, with repulsion"]
    assert alone["collision"] > 0.9
    assert apart["collision"] == 0
    assert apart["success"] == 1
    assert apart["distance"] < 0.4
    assert apart["return"] > alone["return"] + 10


def test_repulsion_keeps_pilots_off_obstacles(played):
    alone, apart = played["obstacles"]["PD"], played["obstacles"]["PD, with repulsion"]
    assert apart["crash"] < alone["crash"]
    assert apart["success"] > alone["success"] > 0.4
    assert apart["distance"] < 0.1
    assert apart["return"] > alone["return"]


def test_the_nearest_landmark_leaves_others_alone(played):
    alone, apart = played["coverage"]["nearest landmark"], played["coverage"]["nearest landmark, with repulsion"]
    assert 0.4 < alone["success"] < 0.9
    assert apart["collision"] == 0 < alone["collision"]
    assert apart["return"] > alone["return"]


def test_learning_is_read_from_the_evaluations_of_a_run(monkeypatch):
    """Evaluations come shortly after every twentieth of training, and not in every row."""
    rows = [{"env_steps": 50 * part + 2, "eval_success": part, "eval_distance": 1.0 / (1 + part)} for part in range(21)]
    monkeypatch.setattr(swarm, "read_rows", lambda folder: [*rows, {"env_steps": 1_004}])
    monkeypatch.setattr(result_cache, "play_learned", lambda *given: {})
    found = swarm.success_over_training(SimpleNamespace(config=SimpleNamespace(total_steps=1_000)), Path())
    assert [metric["mean"] for metric in found.values()] == [[2.5], [7.5], [12.5], [17.5]]
    found = swarm.steps_until_near(None, Path())
    assert found["distance"]["mean"] == [pytest.approx(1 / 21)]
    assert found["until 0.3"]["mean"] == [pytest.approx(152e-6)]
    monkeypatch.setattr(swarm, "NEAR", (0.01,))
    never = swarm.steps_until_near(None, Path())["until 0.01"]
    seeds = {"until 0.01": {"mean": [0.5, *never["mean"], 0.7, *never["mean"], 0.6], "std": [0.0] * 5, "count": 1}}
    assert swarm.steps_interval("until 0.01")(seeds) == "2 of 5 seeds never, others 0.60"
