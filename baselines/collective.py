"""What a learned policy for ``collective`` must beat, and the tables that say whether it does.

    python baselines/collective.py                  # all of baselines/results/collective.md
    python baselines/collective.py uncontrolled     # one part: uncontrolled, scripted or learned

Every cell of a table is kept in ``baselines/results/collective/`` and every training in ``runs/tables/``: a command that was
stopped goes on where it was, and a finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marljax.baselines.harness import tables
from marljax.baselines.harness.result_cache import Cells, Figures, learned_cell, scripted_cell
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.policies.collective import UNCONTROLLED, scripted_policies
from marljax.core.types import EnvParams
from marljax.envs.collective import Collective

RUNS = Path(__file__).parents[1] / "runs" / "tables"
RESULTS = Path(__file__).parent / "results"
EPISODES = 128  # frozen scenarios of the scripted and the learned policies
AT_ONCE = 32  # in one program: a thousand particles each
SEEDS = 5
ALGORITHMS = ("mappo", "ippo")


ETAS = (0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
# Polarisation without control, mean of 800 steps after the first 800: reference values of another program, by N, for each η.
REFERENCE = {
    100: (1.00, 0.953, 0.817, 0.612, 0.343, 0.123, 0.091),
    400: (0.999, 0.944, 0.786, 0.553, 0.232, 0.063, 0.044),
}
STEPS = 1600
FLOCKS = 32  # episodes of a cell without control
COUPLINGS = (1.0, 2.5, 3.0, 4.0, 6.0)
OSCILLATORS = 2_000
# The settings that learned and scripted policies are compared in: name → options of the environment.
SETTINGS: dict[str, dict[str, Any]] = {
    "vicsek, N = 100": {"agents": 100},
    "vicsek, N = 1000": {"agents": 1000},
    "vicsek, N = 100, own frame": {"agents": 100, "absolute": False},
    "kuramoto, N = 100": {"task": "kuramoto"},
    "aggregation, N = 300": {"task": "aggregation"},
    "aggregation, N = 300, own frame": {"task": "aggregation", "absolute": False},
}


# --- tables -----------------------------------------------------------------------------------------------------------


def uncontrolled_table(cells: Cells) -> str:
    """Order without control against reference values and theory."""
    flocks = {(agents, eta): flock_cell(cells, agents, eta) for agents in REFERENCE for eta in ETAS}
    rows = []
    for agents, wanted in REFERENCE.items():
        done = [figures for eta in ETAS if (figures := flocks[agents, eta]) is not None]
        if len(done) == len(ETAS):
            rows.append([f"N = {agents}, here", *(mean_interval(figures["polarisation"], places=3) for figures in done)])
        rows.append([f"N = {agents}, reference", *(f"{value:.3f}" for value in wanted)])
    missing = [f"N = {agents} at η = {eta:g}" for (agents, eta), figures in flocks.items() if figures is None]
    flocking = markdown_table(["polarisation at η =", *(f"{eta:g}" for eta in ETAS)], rows)

    order = {coupling: order_cell(cells, coupling) for coupling in COUPLINGS}
    here = [mean_interval(figures["order"], places=3) for figures in order.values() if figures is not None]
    theory = [f"{math.sqrt(max(1.0 - 2.0 / coupling, 0.0)):.3f}" for coupling in COUPLINGS]
    rows = [["√(1 − 2/K)", *theory]]
    if len(here) == len(COUPLINGS):
        rows.insert(0, [f"N = {OSCILLATORS:,}, here", *here])
    missing += [f"K = {coupling:g}" for coupling, figures in order.items() if figures is None]
    synchrony = markdown_table(["order r at K =", *(f"{coupling:g}" for coupling in COUPLINGS)], rows)
    return tables.with_missing(missing, flocking, synchrony)


def flock_cell(cells: Cells, agents: int, eta: float) -> Figures | None:
    """Vicsek's model without control."""
    env = Collective(agents=agents, bins=0)
    return without_control(cells, f"flock {agents} {eta:g}", env, env.default_params.replace(noise=eta, duration=STEPS))


def order_cell(cells: Cells, coupling: float) -> Figures | None:
    """Kuramoto's model without control."""
    env = Collective(task="kuramoto", agents=OSCILLATORS)
    return without_control(cells, f"order {coupling:g}", env, env.default_params.replace(coupling=coupling, duration=800))


def without_control(cells: Cells, name: str, env: Collective, env_params: EnvParams) -> Figures | None:
    rival = scripted_policies(env, env_params)[UNCONTROLLED]
    return scripted_cell(cells, name, {}, rival, FLOCKS)


def scripted_table(cells: Cells) -> str:
    """Every rule in every setting."""
    rows = []
    for setting, options in SETTINGS.items():
        env = Collective(**options)
        for name, rival in scripted_policies(env, env.default_params).items():
            title = f"scripted {setting} {name}"
            cell = scripted_cell(cells, title, {"policy": name}, rival, EPISODES, AT_ONCE)
            rows.append((f"{setting}: {name}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


def learned_table(cells: Cells) -> str:
    """MAPPO and IPPO in every setting, five seeds in one program each."""
    rows = []
    for setting, options in SETTINGS.items():
        words = ["env=collective", *(f"env.{name}={str(value).lower()}" for name, value in options.items()), f"seeds={SEEDS}"]
        for algo in ALGORITHMS:
            cell = learned_cell(cells, f"{algo} {setting}", algo, words, RUNS, EPISODES, AT_ONCE)
            rows.append((f"{setting}: {algo}", cell))
    return tables.by_row("policy", COLUMNS, columns, rows)


COLUMNS = ("polarisation, order or distance", "at the end", "effort", "return")
JUDGED = ("polarisation", "order", "distance")


def columns(figures: Mapping[str, Any]) -> list[str]:
    """One policy's cells under ``COLUMNS``."""
    judged = next(name for name in JUDGED if name in figures)
    names = {judged: 3, f"{judged}_end": 3, "effort": 2, "return": 1}
    return [mean_interval(figures[name], places) for name, places in names.items()]


PARTS = {"uncontrolled": uncontrolled_table, "scripted": scripted_table, "learned": learned_table}


PAGE_TEXT = """# `collective`: results

Made by `python baselines/collective.py`; {versions}.

Means over the second half of an episode, ± a 95 % t interval (over episodes for scripted policies, over seeds for learned ones).

## Without control

Vicsek's model (speed 0.03, radius 1, 4 particles per unit of area, parallel update), {flocks} episodes of {steps} steps;
Kuramoto's with Lorentzian frequencies of width 1, {flocks} episodes of 800 steps of 0.1. Reference: the same model in another
program; theory: an infinite number of oscillators.

{uncontrolled}

## Scripted policies

{episodes} episodes with the default numbers: η = 4, 200 steps (aggregation: 100). With `absolute` (the default) a particle knows
the world's directions or its own place; *own frame* is without. *One direction* is an upper bound to what steering can do in
Vicsek's model: at noise η, headings that are all set to one direction have polarisation sin(η/2)/(η/2) = {bound:.3f} for N → ∞.
Lower distances are better.

{scripted}

## Learned policies

{seeds} seeds each (0–{last_seed}) with `configs/tuned/<algo>_collective.yaml`; greedy policies of the
best evaluation, on the same scenarios.

{learned}
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/collective.md``."""
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        flocks=FLOCKS,
        steps=STEPS,
        episodes=EPISODES,
        bound=math.sin(2.0) / 2.0,
        seeds=SEEDS,
        last_seed=SEEDS - 1,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "collective", PARTS, page)
