"""Measurements for the speed page of ``ride_dispatch``, at tiny sizes."""

import numpy as np
import pytest

from marljax.baselines import ride_dispatch_speed
from marljax.baselines.rivals import ride_gym
from marljax.envs.ride_dispatch import RideDispatch


def test_ride_gym_has_the_same_fleet():
    pytest.importorskip("ride_gym")
    env = RideDispatch("demo")
    simulator = ride_gym.ride_gym(env, env.default_params)
    assert simulator.num_drivers == 32
    rng = np.random.default_rng(0)
    assert ride_gym.ride_gym_episode(simulator, rng) == 30
    served = [order for order in simulator.orders.values() if order.status.name not in ("PENDING", "CANCELLED")]
    assert len(served) > 30


def test_measurements_of_a_fleet_and_of_matchings(monkeypatch):
    for name, value in {"FLEETS": (40,), "MATCHED": ("demo",), "STEPS": 4, "CALLS": 1}.items():
        monkeypatch.setattr(ride_dispatch_speed, name, value)
    fleet, matched = ride_dispatch_speed.measure_fleet(40), ride_dispatch_speed.measure_matching("demo")
    assert fleet["orders"] == 32
    assert min(fleet["step_ms"], fleet["pairs_ms"], fleet["state_kib"]) > 0
    assert matched["exact_share"] == 1.0
    assert 0.5 <= matched["greedy_share"] <= 1.0 + 1e-6
    text = "\n".join(ride_dispatch_speed.describe([fleet], [matched]))
    assert "| 40 | 32 |" in text
    assert "| demo | " in text
