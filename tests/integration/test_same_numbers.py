"""Three updates of every algorithm on small settings give the recorded metrics and parameters.

After a change that is meant to change them, ``python tests/integration/test_same_numbers.py`` records them again in
``tests/data/three_updates.json``. Reordered sums, and other processors, round differently: hence the tolerance.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import conftest  # noqa: F401  XLA's flags in all tests, which round differently from the standard ones

import jax
import numpy as np
import pytest

import marljax
from marljax import registry

DATA = Path(__file__).parents[1] / "data" / "three_updates.json"
ENVIRONMENTS = {
    "cartpole": ("gymnax/CartPole-v1", {}),
    "smax": ("smax", {"scenario": "3m"}),
    "swarm": ("swarm", {}),
    "collective": ("collective", {}),
    "candidates": ("ride_dispatch", {"preset": "demo", "view": "candidates"}),
    "items": ("ride_dispatch", {"preset": "demo"}),
    "afterstates": ("ride_dispatch", {"preset": "demo", "view": "afterstates"}),
}
ROLLOUTS = {"total_steps": 768, "num_envs": 8, "rollout_length": 32, "learning_rate": 1e-3}
PPO = ROLLOUTS | {
    "num_epochs": 2,
    "num_minibatches": 4,
    "hidden": (32, 32),
    "activation": "tanh",
    "clip_actor_critic_separately": False,
    "clip_values": False,
}
QMIX = ROLLOUTS | {
    "gradient_steps": 2,
    "batch_size": 8,
    "learning_starts": 256,
    "buffer_size": 2048,
    "core": "mlp",
    "td_lambda": 0.5,
    "target_interval": 1,
    "mixer_slope": 0.0,
    "hidden": (32, 32),
}
OSPO = {
    "total_steps": 744,
    "num_envs": 8,
    "rollout_length": 31,
    "num_epochs": 2,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "normalize_observations": False,
}
PQN = ROLLOUTS | {"num_epochs": 2, "num_minibatches": 4, "hidden": (32, 32), "epsilon_decay": 0.1, "td_lambda": 0.65}
CASES = {
    "ppo cartpole": PPO,
    "ppo cartpole gru": PPO | {"core": "gru", "share_body": True},
    "ippo smax": PPO,
    "ippo smax apart": PPO
    | {"clip_actor_critic_separately": True, "share_parameters": False, "normalize_advantages": "per_agent"},
    "ippo swarm": PPO | {"agent_id": True},
    "mappo smax": PPO | {"critic_features": "both"},
    "mappo smax gru": PPO | {"core": "gru"},
    "mappo smax attention": PPO | {"encoder": "attention", "encoder_width": 16, "encoder_heads": 2},
    "mappo candidates": PPO,
    "mappo collective": PPO,
    "qmix smax": QMIX,
    "qmix smax gru vdn": QMIX | {"core": "gru", "mixer": "vdn"},
    "qmix smax none": QMIX | {"mixer": "none", "double_q": False},
    "pqn smax": PQN | {"normalize_observations": True},
    "pqn smax qmix": PQN | {"mixer": "qmix", "core": "mlp"},
    "ospo items": OSPO,
    "ospo items group": OSPO | {"advantage": "group", "normalize": "buffer", "scorer": "pair_mlp", "equity_coef": 0.1},
    "ospo candidates": OSPO | {"stay_near_best": True},
    "values afterstates": {"total_steps": 372, "num_envs": 4, "rollout_length": 31, "batch_size": 512},
    "values afterstates own": {"total_steps": 372, "num_envs": 4, "rollout_length": 31, "batch_size": 512, "learn_from": "own"},
}
# Updates after which the rounding of another processor has grown beyond the tolerance
CHAOTIC = {"mappo collective": 1, "values afterstates": 2, "values afterstates own": 2}


def three_updates(case):
    """Metrics [3] by name, and the sum of the absolute values of all parameters."""
    algo, env_name, *_ = case.split()
    algorithm = registry.algorithm(algo)
    target, options = ENVIRONMENTS[env_name]
    train = marljax.make_train(algorithm, marljax.make(target, **options), algorithm.Config(**CASES[case]))
    result = jax.jit(train)(jax.random.key(3))
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(result.state.learner.params)]
    metrics = {name: np.asarray(values, np.float64).tolist() for name, values in sorted(result.metrics.items())}
    return {"metrics": metrics, "params": float(sum(np.abs(leaf).sum() for leaf in leaves)), "count": sum(map(np.size, leaves))}


def test_every_case_is_recorded():
    assert set(json.loads(DATA.read_text(encoding="utf-8"))) == set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_three_updates_give_the_recorded_numbers(case):
    found, recorded = three_updates(case), json.loads(DATA.read_text(encoding="utf-8"))[case]
    assert found["count"] == recorded["count"]
    assert found["params"] == pytest.approx(recorded["params"], rel=1e-3 if case.startswith("values") else 1e-5)
    assert set(found["metrics"]) == set(recorded["metrics"])
    for name, values in recorded["metrics"].items():
        count = CHAOTIC.get(case, len(values))
        np.testing.assert_allclose(found["metrics"][name][:count], values[:count], rtol=1e-2, atol=1e-3, err_msg=name)


if __name__ == "__main__":
    numbers = {case: three_updates(case) for case in CASES}
    DATA.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
