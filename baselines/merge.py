"""What a learned policy for ``merge`` must beat, and the tables that say whether it does.

    python baselines/merge.py                  # all of baselines/results/merge.md
    python baselines/merge.py scripted         # one part: scripted, learned or ablations

Every cell of a table is kept in ``baselines/results/merge/`` and every training in ``runs/tables/``: a command that was stopped
goes on where it was, and a finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from marljax.baselines import tables
from marljax.baselines.tables import Cells, Figures, markdown_table, mean_interval, rate_interval
from marljax.environment import Environment, EnvParams, TimeStep
from marljax.envs.merge import IDLE, LEFT, Merge
from marljax.errors import UserError
from marljax.evaluate import Policy

RUNS = Path("runs/tables")
RESULTS = Path(__file__).parent / "results"
EPISODES = 1_000  # frozen scenarios per density
DENSITIES = ("easy", "medium", "hard")
ALGORITHMS = ("mappo", "ippo")
SEEDS = 5
# What the literature reports, read off a plot: MARL_CAVs (Chen et al. 2023) on its own simulator, its learner and its MAPPO
# baseline.
PUBLISHED = {"MARL_CAVs, published": ("74", "58", "32"), "MAPPO in MARL_CAVs, published": ("68", "37", "−2")}
# One factor at a time, MAPPO at hard, against the tuned settings with the same number of steps.
ABLATION_STEPS = 1_000_000
ABLATIONS: dict[str, tuple[str, ...]] = {
    "tuned": (),
    "intents shared": ("env.intents=true",),
    "supervisor in training": ("env.safety=true",),
    "local reward": ("env.reward=local",),
    "global reward": ("env.reward=global",),
    "GRU": ("algo.core=gru",),
}


def idle(key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
    """Keeps lane and target speed; the action is ignored where CAVs drive as humans."""
    del key, state
    return jnp.full(timestep.alive.shape, IDLE), carry


def random(key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
    """Uniform over the available actions."""
    del state
    return jax.random.categorical(key, jnp.where(timestep.action_mask, 0.0, -jnp.inf)), carry


def always_left(key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
    """Merges as soon as the lane change is possible, at the speed it came with."""
    del key, state
    return jnp.full(timestep.alive.shape, LEFT), carry


def rivals(env: Merge, env_params: EnvParams) -> dict[str, tuple[Environment, EnvParams, Policy]]:
    """(environment, numbers, policy) by name: human drivers in the CAVs' place, and simple rules."""
    supervised = dataclasses.replace(env, safety=True)
    return {
        "human drivers (IDM + MOBIL)": (env, env_params.replace(cavs_drive_as_humans=True), idle),
        "random": (env, env_params, random),
        "always left": (env, env_params, always_left),
        "random, supervised": (supervised, env_params, random),
    }


def scripted_table(cells: Cells) -> str:
    """Every scripted policy on every density."""
    rows = []
    for density in DENSITIES:
        env = Merge(density=density)
        for name, (other, env_params, policy) in rivals(env, env.default_params).items():
            play = functools.partial(tables.play_scripted, other, env_params, policy, EPISODES)
            figures = cells.get(f"scripted {density} {name}", play)
            rows.append([f"{density}: {name}", *columns(figures)])
    return markdown_table(["policy", *COLUMNS], rows)


COLUMNS = ("return", "episodes with a crash", "CAVs crashed, %", "speed, m/s", "throughput, 1/s", "merged, %")


def columns(figures: Figures) -> list[str]:
    """One policy's cells under ``COLUMNS``."""
    return [
        mean_interval(figures["own_return"]),
        rate_interval(figures["crash"]),
        mean_interval(figures["crashed_cavs"], places=2, scale=100),
        mean_interval(figures["speed"]),
        mean_interval(figures["throughput"], places=3),
        mean_interval(figures["merged"], scale=100),
    ]


def learned_table(cells: Cells, console: Console) -> str:
    """MAPPO and IPPO on every density, alone and under the supervisor."""
    rows = []
    for density in DENSITIES:
        for algo in ALGORITHMS:
            name = f"{algo} {density}"
            alone, supervised = learned_cells(cells, name, algo, (f"env.density={density}",), console)
            rows += [[f"{density}: {algo}", *columns(alone)], [f"{density}: {algo}, supervised", *columns(supervised)]]
    return markdown_table(["policy", *COLUMNS], rows)


def ablation_table(cells: Cells, console: Console) -> str:
    """One factor at a time, MAPPO at hard."""
    rows = []
    for name, words in ABLATIONS.items():
        words = (*words, "env.density=hard", f"algo.total_steps={ABLATION_STEPS}")
        alone, supervised = learned_cells(cells, f"ablation {name}", "mappo", words, console)
        rows += [[name, *columns(alone)], [f"{name}, supervised", *columns(supervised)]]
    return markdown_table(["MAPPO, hard", *COLUMNS], rows)


def learned_cells(cells: Cells, name: str, algo: str, words: Sequence[str], console: Console) -> tuple[Figures, Figures]:
    """Trains five seeds in one program and plays their best parameters, without and with the supervisor."""
    words = ["env=merge", *words, f"seeds={SEEDS}", "eval.episodes=128", f"runs={RUNS}", f"name={name.replace(' ', '-')}"]

    def trained(safety: bool) -> Figures:
        run, folder = tables.train(algo, words, console)
        assert isinstance(run.env, Merge)
        env = dataclasses.replace(run.env, safety=safety)
        return tables.play_learned(run, folder, env, run.env_params, EPISODES)

    return cells.get(name, lambda: trained(False)), cells.get(f"{name} supervised", lambda: trained(True))


PARTS = ("scripted", "learned", "ablations")


def main(words: Sequence[str]) -> None:
    """Fills the tables asked for (default: all) and writes the page from every cell there is."""
    console = Console()
    unknown = set(words) - set(PARTS)
    if unknown:
        raise UserError(f"no part is called {' or '.join(sorted(unknown))}; choose among {', '.join(PARTS)}")
    cells = Cells(RESULTS / "merge", console)
    fill = {
        "scripted": lambda: scripted_table(cells),
        "learned": lambda: learned_table(cells, console),
        "ablations": lambda: ablation_table(cells, console),
    }
    sections = {part: fill[part]() for part in PARTS if part in words or not words}
    for part, text in sections.items():
        console.print(f"\n{part}\n{text}")
    if len(sections) == len(PARTS):
        tables.write_report(RESULTS / "merge.md", page(sections))
        console.print(f"written: {RESULTS / 'merge.md'}")


PAGE_TEXT = """# `merge`: results

Made by `python baselines/merge.py`; {versions}.

Physics preset `marl_cavs`, homogeneous human drivers, connected lanes; regional reward unless said otherwise. Every policy plays
the same {episodes:,} frozen scenarios per density. Return: sum over decisions of the mean over CAVs of their own rewards (±: 95 %
t interval, over episodes for scripted policies, over seeds for learned ones). Episodes with a crash: Wilson's 95 % interval over
all episodes of all seeds.

## Scripted policies

{scripted}

## Learned policies

{seeds} seeds each (0–{last_seed}), trained in one vmapped program with `configs/tuned/<algo>_merge.yaml`; greedy policies of the
best of 20 evaluations. *Supervised*: the priority-based safety supervisor corrects the trained policy's actions in evaluation.

{learned}

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
        published=markdown_table(["return", *DENSITIES], [[name, *figures] for name, figures in PUBLISHED.items()]),
        **sections,
    )


if __name__ == "__main__":
    from marljax.cli import enable_compilation_cache

    enable_compilation_cache()
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
