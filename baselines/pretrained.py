"""Trains the policies that come with marljax: ``python baselines/pretrained.py [name …]``.

Each comes from one seed of a tuned command: the best evaluation of its training or the end, whichever returns more on fresh
episodes, because several evaluations may share the best return, and the first of them is kept. A card names the command, the
result on other episodes, and the versions; ``python baselines/pretrained.py --list`` prints the cards.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marljax.baselines.harness import result_cache
from marljax.baselines.harness.tables import describe_versions
from marljax.errors import unknown
from marljax.io import terminal
from marljax.reporting import report
from marljax.training import evaluation, load, policy_file
from marljax.utils import stats

EPISODES = 320  # of the suite that ``marljax evaluate`` plays
CHECKED = 32  # of these, the first, whose means a test plays again
COMMANDS = {
    **{f"merge-{density}-mappo": f"mappo env=merge env.density={density}" for density in ("easy", "medium", "hard")},
    **{f"smax-{scenario}-mappo": f"mappo env=smax env.scenario={scenario}" for scenario in ("3m", "2s3z")},
    "pathfinding-random-ippo": "ippo env=pathfinding env.collision=pibt",
    "ride_dispatch-ospo": "ospo env=ride_dispatch env.preset=manhattan-300 tuned=ahead",
    "swarm-hover-ippo": "ippo env=swarm env.preset=static_same env.drones=1",
    "swarm-coverage-ippo": "ippo env=swarm env.preset=coverage tuned=coverage",
}


def main(arguments: list[str]) -> None:
    """Trains the named policies, or all."""
    if arguments == ["--list"]:
        for name, path in policy_file.pretrained().items():
            print(f"{name}: {json.dumps(policy_file.card(path), indent=1)}")
        return
    for name in arguments or COMMANDS:
        if name not in COMMANDS:
            raise unknown("policy", name, COMMANDS)
        with tempfile.TemporaryDirectory() as runs:
            train(name, Path(runs))


def train(name: str, runs: Path) -> None:
    """Trains a policy and writes it to the package."""
    algo, *overrides = COMMANDS[name].split()
    command = f"marljax train {COMMANDS[name]}"
    print(f"{name}: {command}", flush=True)
    _, folder = result_cache.train(algo, [*overrides, f"runs={runs}", f"name={name}"], terminal.screen())
    policies = [load.load(folder, which=which) for which in ("best", "last")]
    policy = max(policies, key=lambda policy: played(policy, 1)["return"].mean())
    card = {"command": command, "seed": policy.seed, "update": policy.update, "versions": describe_versions(), **results(policy)}
    policy.save(Path(policy_file.__file__).parents[1] / policy_file.PRETRAINED / f"{name}{policy_file.SUFFIX}", card)


def results(policy: load.TrainedPolicy) -> dict[str, Any]:
    """The policy's metrics on fresh episodes: mean and 95 % interval of all, and means of the first ``CHECKED``."""
    metrics = played(policy, 0)
    shown = dict.fromkeys(name for name in (*policy.env.display.metrics, "return") if name in metrics)
    units = policy.env.display.units
    result = {name: [round(value, 4) for value in estimate(metrics[name], units.get(name) == "%")] for name in shown}
    first = {name: round(float(np.mean(metrics[name][0, :CHECKED])), 4) for name in shown}
    return {"episodes": EPISODES, "result": result, "checked": CHECKED, "first": first}


def played(policy: load.TrainedPolicy, suite: int, episodes: int = EPISODES) -> dict[str, np.ndarray]:
    """The policy's metrics [1, episodes] in the first of a suite of fresh episodes."""
    params = jax.tree.map(lambda leaf: leaf[None], policy.params)
    return report.learned(policy.settings, params, evaluation.fresh_part(suite), episodes)


def estimate(values: np.ndarray, is_share: bool) -> stats.Estimate:
    """The mean with its interval: Wilson's for a rate, else Student's t, that of a share clipped to [0, 1]."""
    if np.isin(values, (0.0, 1.0)).all():
        return stats.wilson(int(values.sum()), values.size)
    return stats.mean(values, 0.0, 1.0) if is_share else stats.mean(values)


if __name__ == "__main__":
    main(sys.argv[1:])
