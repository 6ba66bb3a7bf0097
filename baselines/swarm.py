"""Scripted and learned policies on ``swarm``: ``python baselines/swarm.py [table …]`` writes baselines/results/swarm.md."""

from typing import Any

from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, interval, policy_table
from marljax.baselines.policies.swarm import scripted_policies
from marljax.envs.swarm import Swarm

EPISODES = 256
BATCH = 256  # episodes of one program
SEEDS = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "same goal": {"preset": "static_same"},
    "own goals": {"preset": "static_different"},
    "swap": {"preset": "swap"},
    "the nine without obstacles": {"preset": "open"},
    "obstacles, own goals": {"preset": "obstacles_random"},
    "obstacles, same goal": {"preset": "obstacles_same"},
    "coverage": {"preset": "coverage"},
    "coverage in three dimensions": {"preset": "coverage", "dynamics": "point3d"},
}
LEARNED = {"same goal": (), "coverage": ("tuned=coverage",)}  # and more overrides
ALGORITHM = "ippo"
COLUMNS = {
    "return": interval("return", places=2),
    "success, %": interval("success", scale=100),
    "m to the goal": interval("distance", places=2),
    "collided, %": interval("collision", scale=100),
    "crashed, %": interval("crash", scale=100),
    "deadlock, %": interval("deadlock", scale=100),
}


def scripted_table(cache: ResultCache) -> str:
    """Every scripted policy in every setting."""
    envs = {setting: Swarm(**options) for setting, options in SETTINGS.items()}
    return policy_table("policy", COLUMNS, cache.all_scripted(envs, scripted_policies, EPISODES, BATCH))


def learned_table(cache: ResultCache) -> str:
    """Five seeds of IPPO."""
    results = []
    for setting, more in LEARNED.items():
        overrides = ["env=swarm", *(f"env.{name}={value}" for name, value in SETTINGS[setting].items()), *more]
        metrics = cache.learned_by_seed(f"{ALGORITHM} {setting}", ALGORITHM, overrides, EPISODES, BATCH, SEEDS)
        results.append((f"{setting}: {ALGORITHM}", metrics))
    return policy_table("policy", COLUMNS, results)


PAGE = Page(
    name="swarm",
    title="`swarm`: results",
    intro="""Eight quadrotors (coverage: five point masses), 15 s (coverage: 5 s). Means over drones, ± a 95 % t interval (over
episodes for scripted policies, over seeds for learned ones). *Success*: reached the goal (mean distance over some five steps
below 0.5 m, or 1 m where it is the goal of all) and hit no drone and no obstacle after the first 1.5 s; coverage: landmarks
with a drone within 0.5 m at the end. *m to the goal*: mean over the last second; coverage: from each landmark to the nearest
drone. *Deadlock*: hit nothing and did not arrive.""",
    sections=(
        Section(
            "Scripted policies",
            f"""{EPISODES} episodes. *PD* flies straight to the goal by the true state: position to acceleration, acceleration to
thrust axis, axis to body rates, rates to motors. *With repulsion* it is also pushed away from drones and obstacles within 0.5 m.
*Nearest landmark* does the same with a force, each drone towards the landmark nearest to it.""",
            {"scripted": scripted_table},
        ),
        Section(
            "Learned policies",
            f"""{SEEDS} seeds each (0–{SEEDS - 1}) of `python algos/{ALGORITHM}.py env=swarm env.preset=…` with its tuned values
(`configs/tuned/{ALGORITHM}_swarm.yaml`, coverage: `tuned=coverage`), greedy policies of the best evaluation, on the same
scenarios.""",
            {"learned": learned_table},
            """Published for these quadrotors among obstacles (Huang et al. 2023; 8 drones, a fifth of the cells with an
obstacle, 10⁹ agent steps, K = 2): success 95 %, without collision replay 88 %, without attention as well 79 %.""",
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
