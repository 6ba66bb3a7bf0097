"""Scripted pilots of ``swarm``: motors that do what is asked, drones that arrive, and keep their distance where they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.baselines import swarm
from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import Cells, summarise
from marljax.baselines.policies.swarm import mixed, scripted_policies
from marljax.envs.swarm import Swarm
from marljax.envs.swarm import quadrotor as bodies
from marljax.training.evaluation import Evaluator


def test_mixed_motors_give_the_force_and_torque_that_were_asked_for():
    drone = bodies.Quadrotor()
    force = jnp.array([0.25, 0.3])
    torque = jnp.array([[1e-3, -2e-3], [5e-4, 1e-3], [1e-4, -2e-4]])
    thrust = drone.thrust * 0.5 * (mixed(force, torque, drone) + 1.0)
    np.testing.assert_allclose(thrust.sum(axis=0), force, rtol=1e-5)
    change = bodies._angular_acceleration(jnp.zeros((3, 2)), thrust, drone)
    inertia = np.array([drone.inertia_x, drone.inertia_y, drone.inertia_z])[:, None]
    np.testing.assert_allclose(change, torque / inertia, rtol=1e-4)


@pytest.fixture(scope="module")
def played():
    """Metrics by setting and pilot, over eight episodes of 5 or 6 s, or 64 of 9 s."""

    def of(env, episodes=8, **changes):
        env_params = env.default_params.replace(**changes)
        pilots = scripted_policies(env, env_params)
        return {
            name: {key: float(np.mean(value)) for key, value in _play(rival, episodes).items()}
            for name, rival in pilots.items()
            if name != "random"
        }

    def _play(rival, episodes):
        return Evaluator(rival.env, episodes).scripted(rival.policy, rival.env_params, jax.random.key(0))

    return {
        "same": of(Swarm(drones=5), duration=600),
        "obstacles": of(Swarm(preset="obstacles_random", drones=5), 64, duration=900),
        "coverage": of(Swarm(preset="coverage")),
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


def test_the_page_has_a_row_for_every_pilot(tmp_path, monkeypatch):
    """From kept cells, without playing."""
    monkeypatch.setattr(result_cache, "play_scripted", lambda rival, *_: _figures(rival))
    monkeypatch.setattr(swarm, "LEARNED", {})
    from rich.console import Console

    cells = Cells(tmp_path, Console(quiet=True))
    text = swarm.page({name: fill(cells) for name, fill in swarm.PARTS.items()})
    for setting in swarm.SETTINGS:
        assert f"| {setting}: random | 1.50 ± " in text
    assert "| coverage: nearest landmark | 1.50 ± 0.95 | 50.0 ± 127.1 | 1.50 ± 0.95 | 50.0 ± 127.1 | 0.0 ± 0.0 | – |" in text


def _figures(rival):
    """Two episodes' worth of every metric."""
    shares = {"success": [0.4, 0.6], "collision": [0.4, 0.6], "crash": [0.0, 0.0]}
    names = {} if rival.env.task == "landmarks" else {"deadlock": [0.0, 0.0]}
    return summarise({"return": [1.425, 1.575], "distance": [1.425, 1.575], **shares, **names})
