"""Scripted and learned policies on ``collective``: ``python baselines/collective.py [table …]`` writes
baselines/results/collective.md."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, interval, mean_interval, policy_table, with_missing
from marljax.baselines.policies.collective import UNCONTROLLED, scripted_policies
from marljax.core.types import EnvParams
from marljax.envs.collective import Collective
from marljax.reporting.tables import markdown_table

EPISODES = 128  # frozen scenarios of the scripted and the learned policies
BATCH = 32  # episodes of one program: a thousand particles each
SEEDS = 5
ALGORITHMS = ("mappo", "ippo")
ETAS = (0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
# Polarisation without control, mean of 800 steps after the first 800, for each η: another program's values, by N.
REFERENCE = {
    100: (1.00, 0.953, 0.817, 0.612, 0.343, 0.123, 0.091),
    400: (0.999, 0.944, 0.786, 0.553, 0.232, 0.063, 0.044),
}
STEPS = 1600
FLOCKS = 32  # episodes without control
COUPLINGS = (1.0, 2.5, 3.0, 4.0, 6.0)
OSCILLATORS = 2_000
# The settings of scripted and learned policies: name → options of the environment.
SETTINGS: dict[str, dict[str, Any]] = {
    "vicsek, N = 100": {"agents": 100},
    "vicsek, N = 1000": {"agents": 1000},
    "vicsek, N = 100, own frame": {"agents": 100, "absolute": False},
    "kuramoto, N = 100": {"task": "kuramoto"},
    "aggregation, N = 300": {"task": "aggregation"},
    "aggregation, N = 300, own frame": {"task": "aggregation", "absolute": False},
}
COLUMNS = {
    "polarisation, order or distance": interval("polarisation", "order", "distance", places=3),
    "at the end": interval("polarisation_end", "order_end", "distance_end", places=3),
    "effort": interval("effort", places=2),
    "return": interval("return"),
}


def uncontrolled_table(cache: ResultCache) -> str:
    """Order without control, compared with reference values and theory."""
    missing = []

    def measured(env: Collective, metric: str, cases: Mapping[str, tuple[str, EnvParams]]) -> list[str]:
        """Cells of ``cases``, title → (name of the result, env_params); none while any is missing."""
        cells = []
        for title, (name, env_params) in cases.items():
            metrics = cache.scripted(name, {}, scripted_policies(env, env_params)[UNCONTROLLED], FLOCKS)
            if metrics is None:
                missing.append(title)
            else:
                cells.append(mean_interval(metrics[metric], places=3))
        return cells if len(cells) == len(cases) else []

    def table(title: str, header: Sequence[float], rows: Sequence[Sequence[str]]) -> str:
        return markdown_table([title, *(f"{value:g}" for value in header)], [row for row in rows if len(row) > 1])

    rows: list[list[str]] = []
    for agents, reference in REFERENCE.items():
        env = Collective(agents=agents, bins=0)
        cases = {
            f"N = {agents} at η = {eta:g}": (
                f"flock {agents} {eta:g}",
                env.default_params.replace(noise=eta, duration=STEPS),
            )
            for eta in ETAS
        }
        rows.append([f"N = {agents}, here", *measured(env, "polarisation", cases)])
        rows.append([f"N = {agents}, reference", *(f"{value:.3f}" for value in reference)])
    flocking = table("polarisation at η =", ETAS, rows)

    env = Collective(task="kuramoto", agents=OSCILLATORS)
    cases = {
        f"K = {coupling:g}": (f"order {coupling:g}", env.default_params.replace(coupling=coupling, duration=800))
        for coupling in COUPLINGS
    }
    theory = [f"{math.sqrt(max(1.0 - 2.0 / coupling, 0.0)):.3f}" for coupling in COUPLINGS]
    rows = [[f"N = {OSCILLATORS:,}, here", *measured(env, "order", cases)], ["√(1 − 2/K)", *theory]]
    return with_missing(missing, flocking, table("order r at K =", COUPLINGS, rows))


def scripted_table(cache: ResultCache) -> str:
    """Every rule in every setting."""
    envs = {setting: Collective(**options) for setting, options in SETTINGS.items()}
    return policy_table("policy", COLUMNS, cache.all_scripted(envs, scripted_policies, EPISODES, BATCH))


def learned_table(cache: ResultCache) -> str:
    """MAPPO and IPPO in every setting, five seeds in one program each."""
    results = []
    for setting, options in SETTINGS.items():
        overrides = ["env=collective", *(f"env.{name}={str(value).lower()}" for name, value in options.items()), f"seeds={SEEDS}"]
        for algo in ALGORITHMS:
            results.append((f"{setting}: {algo}", cache.learned(f"{algo} {setting}", algo, overrides, EPISODES, BATCH)))
    return policy_table("policy", COLUMNS, results)


PAGE = Page(
    name="collective",
    title="`collective`: results",
    intro="""Means over the second half of an episode, ± a 95 % t interval (over episodes for scripted policies, over seeds for
learned ones).""",
    sections=(
        Section(
            "Without control",
            f"""Vicsek's model (speed 0.03, radius 1, 4 particles per unit of area, parallel update), {FLOCKS} episodes of {STEPS}
steps; Kuramoto's with Lorentzian frequencies of width 1, {FLOCKS} episodes of 800 steps of 0.1. Reference: the same model in
another program; theory: an infinite number of oscillators.""",
            {"uncontrolled": uncontrolled_table},
        ),
        Section(
            "Scripted policies",
            f"""{EPISODES} episodes with the default parameters: η = 4, 200 steps (aggregation: 100). With `absolute` (the
default) a particle observes the world's directions or its own position; *own frame* is without. *One direction* is an upper
bound for steering in Vicsek's model: at noise η, headings that are all set to one direction have polarisation sin(η/2)/(η/2) =
{math.sin(2.0) / 2.0:.3f} for N → ∞. Lower distances are better.""",
            {"scripted": scripted_table},
        ),
        Section(
            "Learned policies",
            f"""{SEEDS} seeds each (0–{SEEDS - 1}) with `configs/tuned/<algo>_collective.yaml`; greedy policies of the best
evaluation, on the same scenarios.""",
            {"learned": learned_table},
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
