"""What a learned policy for ``swarm`` must beat, and the tables that say whether it does.

    python baselines/swarm.py                  # all of baselines/results/swarm.md
    python baselines/swarm.py scripted         # one part: scripted or learned

Every cell of a table is kept in ``baselines/results/swarm/`` and every training in ``runs/tables/``: a command that was stopped
goes on where it was, and a finished cell is not computed again. Delete a cell's file to compute it anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marljax.baselines.harness import tables
from marljax.baselines.harness.result_cache import Cells, learned_apart, scripted_cell
from marljax.baselines.harness.tables import mean_interval
from marljax.baselines.policies.swarm import scripted_policies
from marljax.envs.swarm import Swarm

RUNS = Path(__file__).parents[1] / "runs" / "tables"
RESULTS = Path(__file__).parent / "results"
EPISODES = 256
AT_ONCE = 256  # episodes in one program
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
LEARNED = {"same goal": (), "coverage": ("tuned=coverage",)}  # and more words of the command line
ALGORITHM = "ippo"


# --- tables -----------------------------------------------------------------------------------------------------------


def scripted_table(cells: Cells) -> str:
    """Every scripted policy in every setting."""
    rows = []
    for setting, options in SETTINGS.items():
        env = Swarm(**options)
        for name, rival in scripted_policies(env, env.default_params).items():
            title = f"scripted {setting} {name}"
            cell = scripted_cell(cells, title, {"policy": name}, rival, EPISODES, AT_ONCE)
            rows.append((f"{setting}: {name}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


def learned_table(cells: Cells) -> str:
    """Five seeds of IPPO."""
    rows = []
    for setting, more in LEARNED.items():
        options = (f"env.{name}={value}" for name, value in SETTINGS[setting].items())
        words = ["env=swarm", *options, *more]
        cell = learned_apart(cells, f"{ALGORITHM} {setting}", ALGORITHM, words, RUNS, EPISODES, AT_ONCE, SEEDS)
        rows.append((f"{setting}: {ALGORITHM}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


COLUMNS = ("return", "success, %", "m to the goal", "collided, %", "crashed, %", "deadlock, %")


def columns(figures: Mapping[str, Any]) -> list[str]:
    """One policy's cells under ``COLUMNS``."""
    shares = [mean_interval(figures[name], scale=100) if name in figures else "–" for name in ("collision", "crash", "deadlock")]
    return [
        mean_interval(figures["return"], places=2),
        mean_interval(figures["success"], scale=100),
        mean_interval(figures["distance"], places=2),
        *shares,
    ]


PARTS = {"scripted": scripted_table, "learned": learned_table}

PAGE_TEXT = """# `swarm`: results

Made by `python baselines/swarm.py`; {versions}.

Eight quadrotors (coverage: five point masses), 15 s (coverage: 5 s). Means over drones, ± a 95 % t interval (over episodes for
scripted policies, over seeds for learned ones). *Success*: reached the goal (mean distance over some five steps below 0.5 m, or
1 m where it is the goal of all) and met no drone and no obstacle after the first 1.5 s; coverage: landmarks with a
drone within 0.5 m at the end. *m to the goal*: mean over the last second; coverage: from each landmark to the nearest drone.
*Deadlock*: met nothing and did not arrive.

## Scripted policies

{episodes} episodes. *PD* flies straight to the goal by the true state: place to acceleration, acceleration to thrust axis, axis
to body rates, rates to motors. *With repulsion* it is pushed away from drones and obstacles within 0.5 m, too. *Nearest landmark*
does the same with a force, each drone towards the landmark nearest to it.

{scripted}

## Learned policies

{seeds} seeds each (0–{last_seed}) of `python algos/{algorithm}.py env=swarm env.preset=…` with its tuned values
(`configs/tuned/{algorithm}_swarm.yaml`, coverage: `tuned=coverage`), greedy policies of the best evaluation, on the same
scenarios.

{learned}

Published for these quadrotors among obstacles (Huang et al. 2023; 8 drones, a fifth of the cells with an obstacle, 10⁹ agent
steps, K = 2): success 95 %, without collision replay 88 %, without attention as well 79 %.
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/swarm.md``."""
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        episodes=EPISODES,
        algorithm=ALGORITHM,
        seeds=SEEDS,
        last_seed=SEEDS - 1,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "swarm", PARTS, page)
