"""What a learned policy for ``merge`` must beat, and the tables that say whether it does.

    python baselines/merge.py                  # all of baselines/results/merge.md
    python baselines/merge.py scripted         # one part: scripted, learned or ablations

Every cell of a table is kept in ``baselines/results/merge/`` and every training in ``runs/tables/``: a command that was stopped
goes on where it was, and a finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from marljax.baselines.harness import result_cache, tables
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval, rate_spread
from marljax.baselines.policies.merge import HUMAN, scripted_policies
from marljax.config import compose
from marljax.envs.merge import Merge
from marljax.utils import stats

RUNS = Path(__file__).parents[1] / "runs" / "tables"
RESULTS = Path(__file__).parent / "results"
EPISODES = 1_000  # frozen scenarios per density
DENSITIES = ("easy", "medium", "hard")
ALGORITHMS = ("mappo", "ippo")
SEEDS = 5


# What the literature reports, read off a plot: MARL_CAVs (Chen et al. 2023) on its own simulator, its learner and its MAPPO
# baseline.
PUBLISHED = {"MARL_CAVs, published": ("74", "58", "32"), "MAPPO in MARL_CAVs, published": ("68", "37", "−2")}
# A crash costs ten times as much in training, and counts for longer: safer at hard, and slower.
CAUTIOUS = ("tuned=cautious",)  # of configs/tuned
# One factor at a time, MAPPO at hard, against the tuned settings with the same number of steps.
ABLATION_STEPS = 1_000_000
ABLATIONS: dict[str, tuple[str, ...]] = {
    "tuned, with local reward": (),
    "intents shared": ("env.intents=true",),
    "supervisor in training": ("env.safety=true",),
    "regional reward": ("env.reward=regional",),
    "global reward": ("env.reward=global",),
    "GRU": ("algo.core=gru",),
}


def scripted_table(cells: Cells) -> str:
    """Every scripted policy on every density."""
    env = Merge()
    rows = [
        (f"{density}: {name}", scripted_cell(cells, density, name))
        for density in DENSITIES
        for name in scripted_policies(env, env.default_params)
    ]
    return tables.by_row("policy", COLUMNS, columns, rows)


def scripted_cell(cells: Cells, density: str, name: str) -> Figures | None:
    """One scripted policy at one density."""
    env = Merge(density=density)
    rival = scripted_policies(env, env.default_params)[name]
    about = {"density": density, "policy": name}
    return result_cache.scripted_cell(cells, f"scripted {density} {name}", about, rival, EPISODES)


COLUMNS = ("return", "episodes with a crash", "CAVs crashed, %", "speed, m/s", "throughput, 1/s", "merged, %")


def columns(figures: Figures) -> list[str]:
    """One policy's cells under ``COLUMNS``."""
    return [
        mean_interval(figures["return"]),
        rate_spread(figures["crash"]),
        mean_interval(figures["crashed_cavs"], places=2, scale=100),
        mean_interval(figures["speed"]),
        mean_interval(figures["throughput"], places=3),
        mean_interval(figures["merged"], scale=100),
    ]


def learned_table(cells: Cells) -> str:
    """Every learner on every density, alone and under the supervisor; MAPPO and IPPO compared over all densities."""
    rows = []
    for density in DENSITIES:
        for algo in ALGORITHMS:
            rows += learned_rows(cells, f"{density}: {algo}", f"{algo} {density}", algo, (f"env.density={density}",))
        rows += learned_rows(cells, f"{density}: qmix", f"qmix {density}", "qmix", (f"env.density={density}",))
    for algo in ALGORITHMS:
        rows += learned_rows(cells, f"hard: {algo}, cautious", f"{algo} hard cautious", algo, ("env.density=hard", *CAUTIOUS))
    human = {density: scripted_cell(cells, density, HUMAN) for density in DENSITIES}
    text = tables.by_row("policy", COLUMNS, columns, rows)
    return f"{text}\n\n{over_densities(dict(rows), human)}"


def over_densities(learned: Mapping[str, Figures | None], human: Mapping[str, Figures | None]) -> str:
    """Interquartile means of the return over seeds × densities (Agarwal et al. 2021), human drivers' being 1.

    ``learned`` holds figures by ``learned_table``'s titles, ``human`` by density.
    """
    scores = {}
    for algo in ALGORITHMS:
        pairs = [(learned[f"{density}: {algo}"], human[density]) for density in DENSITIES]
        if any(figures is None for pair in pairs for figures in pair):
            return "Over all densities: not all cells are computed yet."
        relative = [np.divide(own["return"]["mean"], rival["return"]["mean"]) for own, rival in pairs if own and rival]
        scores[algo] = np.stack(relative, axis=-1)
    lines = [[algo, interval(stats.iqm_interval(score, np.random.default_rng(0)))] for algo, score in scores.items()]
    ours, theirs = ALGORITHMS
    better = stats.improvement_interval(scores[ours], scores[theirs], np.random.default_rng(0))
    chance = f"Probability that a run of {ours} returns more than one of {theirs}: {interval(better)}."
    header = ["over all densities", "return / human drivers' return, interquartile mean"]
    return f"{markdown_table(header, lines)}\n\n{chance}"


def interval(estimate: stats.Estimate) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def ablation_table(cells: Cells) -> str:
    """One factor at a time, MAPPO at hard."""
    rows = []
    for name, words in ABLATIONS.items():
        words = (*words, "env.density=hard", f"algo.total_steps={ABLATION_STEPS}")
        rows += learned_rows(cells, name, f"ablation {name}", "mappo", words)
    return tables.by_row("MAPPO, hard", COLUMNS, columns, rows)


def learned_rows(cells: Cells, title: str, name: str, algo: str, words: Sequence[str]) -> list[tuple[str, Figures | None]]:
    """Trains five seeds in one program and plays their best parameters, without and with the supervisor."""
    words = [
        "env=merge",
        *words,
        f"seeds={SEEDS}",
        "eval.episodes=128",
        f"runs={RUNS}",
        f"name={result_cache.file_name(name)}",
    ]

    about = result_cache.matters(compose.compose(algo, words)) | {"episodes": EPISODES}

    def play(safety: bool) -> Figures:
        run, folder = result_cache.train(algo, words, cells.console)
        assert isinstance(run.env, Merge)
        env = dataclasses.replace(run.env, safety=safety)
        # The standard numbers, whatever the training changed of them.
        return result_cache.play_learned(run, folder, env, env.default_params, EPISODES)

    alone = cells.get(name, about, lambda: play(False))
    return [(title, alone), (f"{title}, supervised", cells.get(f"{name} supervised", about, lambda: play(True)))]


PARTS = {"scripted": scripted_table, "learned": learned_table, "ablations": ablation_table}


PAGE_TEXT = """# `merge`: results

Made by `python baselines/merge.py`; {versions}.

Physics preset `marl_cavs`, homogeneous human drivers, connected lanes. Every policy plays the same {episodes:,} frozen scenarios
per density. Return: sum over decisions of the mean over CAVs of their own rewards (±: 95 % t interval, over episodes for scripted
policies, over seeds for learned ones). Episodes with a crash: Wilson's 95 % interval over the pooled episodes of all seeds, which
all play the same scenarios; then the lowest and the highest of the seeds' rates, which lie further apart than that interval.

## Scripted policies

{scripted}

## Learned policies

{seeds} seeds each (0–{last_seed}), trained in one vmapped program with `configs/tuned/<algo>_merge.yaml`, where a crash costs
more than it does here; greedy policies of the best of 21 evaluations (before training and after every twentieth of it).
*Supervised*: the priority-based safety supervisor corrects the trained policy's actions in evaluation. *Cautious*: trained with
`{cautious}` (a crash at 4,000, a discount of 0.99).

{learned}

QMIX trains a third of the steps of MAPPO and IPPO, 1 M; a second million did not help it.

Crashes at hard: human drivers get stuck at the end of the ramp (in the CAVs' place they leave as many unmerged as the first
table says), some of them across the through lane, and no CAV can go slower than 10 m/s. A CAV that arrives before the episode
ends has to have slowed down long before, which the supervisor, one second ahead, cannot do for it: only a policy that was trained
to can, at the price of speed. The tuned settings buy return with crashes; the cautious ones do the opposite.

Published, read off plots of MARL_CAVs (on its own simulator, which is not this one):

{published}

## Ablations

MAPPO at hard, {seeds} seeds, {ablation_steps:,} steps each, one factor changed at a time.

{ablations}
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/merge.md``."""
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        episodes=EPISODES,
        seeds=SEEDS,
        last_seed=SEEDS - 1,
        ablation_steps=ABLATION_STEPS,
        cautious=" ".join(CAUTIOUS),
        published=markdown_table(["return", *DENSITIES], [[name, *figures] for name, figures in PUBLISHED.items()]),
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "merge", PARTS, page)
