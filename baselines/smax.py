"""Scripted and learned policies on ``smax``: ``python baselines/smax.py [table …]`` writes baselines/results/smax.md."""

import itertools
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

import marljax
from marljax.baselines import smax_race as race
from marljax.baselines import smax_selfplay as selfplay
from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import BATCH, RUNS, Metrics, ResultCache
from marljax.baselines.harness.tables import (
    Page,
    Section,
    interval,
    markdown_table,
    partial_table,
    policy_table,
    rate_interval,
    with_missing,
)
from marljax.baselines.policies.smax import scripted_policies
from marljax.envs.smax import Smax
from marljax.envs.smax.units import PUBLISHED
from marljax.utils import stats

EPISODES = 10_000  # frozen scenarios per battle
COMPARED_EPISODES = 40_000  # of the script that is compared with JaxMARL's
JAXMARL_EPISODES, JAXMARL_BATCH = 4_000, 1_000
SCRIPT = "script (closest target)"
POLICIES = (SCRIPT, "script (random target)", "random")


def scripted_table(cache: ResultCache) -> str:
    """Every scripted policy in every battle, and JaxMARL's script in its own."""
    header = ["battle", "closest target: won", "JaxMARL's", "lost", "JaxMARL's", "random target: won", "random actions: won"]
    rows: list[list[str] | str] = []
    outside = []
    for scenario in PUBLISHED:
        ours = [scripted_result(cache, scenario, name) for name in POLICIES]
        theirs = jaxmarl_result(cache, scenario)
        kept = [metrics for metrics in ours if metrics]
        if theirs is None or len(kept) < len(ours):
            rows.append(scenario)
            continue
        script, *others = kept
        pairs = [rate_interval(metrics[metric]) for metric in ("won", "lost") for metrics in (script, theirs)]
        rows.append([scenario, *pairs, *(rate_interval(metrics["won"]) for metrics in others)])
        outside += [f"{scenario} ({metric})" for metric in ("won", "lost") if not within(script[metric], theirs[metric])]
    count = 2 * sum(not isinstance(row, str) for row in rows)
    verdict = f"Outside the 99 % interval of JaxMARL's rate: {', '.join(outside) or 'none'}, of {count} rates."
    return partial_table(header, rows, verdict if count else "")


def within(ours: Mapping[str, Any], theirs: Mapping[str, Any], confidence: float = 0.99) -> bool:
    """Whether our rate is in the Wilson interval of theirs."""
    count = theirs["count"]
    estimate = stats.wilson(round(theirs["mean"][0] * count), count, confidence)
    return bool(estimate.low <= ours["mean"][0] <= estimate.high)


def scripted_result(cache: ResultCache, scenario: str, name: str) -> Metrics | None:
    env = Smax(scenario)
    policy = scripted_policies(env, env.default_params)[name]
    about = {"scenario": scenario, "policy": name}
    return cache.scripted(f"scripted {scenario} {name}", about, policy, COMPARED_EPISODES if name == SCRIPT else EPISODES)


def jaxmarl_result(cache: ResultCache, scenario: str) -> Metrics | None:
    """JaxMARL's script against itself in one battle."""

    def play() -> Metrics:
        from marljax.baselines.rivals import smax

        return result_cache.in_batches(smax.script_against_script(scenario), JAXMARL_EPISODES, JAXMARL_BATCH)

    versions = {"episodes": JAXMARL_EPISODES, "jaxmarl": version("jaxmarl")}
    return cache.get(f"jaxmarl {scenario} script", {"scenario": scenario, "policy": "JaxMARL's script"} | versions, play)


def training_tables(cache: ResultCache) -> str:
    """Ours and JaxMARL's settings: speed, and the time until nine in ten episodes are won."""
    speeds, goals, missing = [], [], []
    for algo, scenario in itertools.product(("ippo", "mappo"), ("3m", "2s3z")):
        pair, speed = f"{algo} {scenario}", speed_result(cache, algo, scenario)
        theirs, ours, memory = (race_result(cache, algo, scenario, side) for side in ("jaxmarl", "marljax", "gru"))
        if speed:
            speeds.append([pair, *speed_columns(speed)])
        if ours or theirs or memory:
            goals.append([pair, *goal_columns(speed, theirs, ours), steps_until_goal(memory) if memory else "–"])
        results = {"pace": speed, "JaxMARL": theirs, "tuned": ours, "memory": memory}
        missing += [f"{pair}: {name}" for name, metrics in results.items() if not metrics]
    sides = ("JaxMARL (GRU)", "same networks", "tuned (MLP)")
    header = ["", *(f"{side}: {quantity}" for quantity in ("steps/s", "first update, s") for side in sides)]
    goal = ["", "JaxMARL: steps", "tuned: steps", "JaxMARL: s", "tuned: s", "ratio of times", "with memory: steps"]
    return with_missing(missing, markdown_table(header, speeds), markdown_table(goal, goals))


def speed_result(cache: ResultCache, algo: str, scenario: str) -> Metrics | None:
    """Steps per second and time to the first update of every side."""
    about = race.settings("marljax", algo, scenario) | {
        "cores": os.cpu_count(),
        "rounds": race.ROUNDS,
        "updates": race.TIMED_UPDATES,
        "same": race.overrides("same", algo),
        "rival": race.settings("jaxmarl", algo, scenario),
    }
    return cache.get(f"pace {algo} {scenario}", about, lambda: race.measure_speeds(algo, scenario))


def race_result(cache: ResultCache, algo: str, scenario: str, side: str) -> Metrics | None:
    """How soon a side of the race wins."""
    limit = race.JAXMARL_LIMITS[algo][scenario] if side == "jaxmarl" else race.LIMIT
    settings = race.settings(side, algo, scenario)
    return run_race(cache, f"race {algo} {scenario} {side}", settings, lambda: race.make(side, algo, scenario), limit)


def run_race(
    cache: ResultCache, name: str, settings: Mapping[str, Any], side: Callable[[], race.Side], limit: int, early: bool = True
) -> Metrics | None:
    """The result of a race, which resumes where it was stopped."""
    digest = zlib.crc32(json.dumps(settings, sort_keys=True).encode())
    folder = RUNS.with_name("baselines") / f"{result_cache.file_name(name)}-{digest:08x}"
    about = {**settings, **race.RULES, "limit": limit}
    return cache.get(name, about, lambda: {"won": race.train_to_goal(side(), folder, limit=limit, early=early)})


def our_race(cache: ResultCache, name: str, scenario: str, overrides: Sequence[str], limit: int) -> Metrics | None:
    """MAPPO with some settings changed, always to the limit."""
    settings = result_cache.result_config(marljax.tuned("mappo", "smax", f"env.scenario={scenario}", *overrides))
    return run_race(cache, name, settings, lambda: race.ours("mappo", scenario, overrides), limit, early=False)


def speed_columns(speed: Metrics) -> list[str]:
    """Medians of the rounds, their range, and the median of each round's ratio to JaxMARL's."""
    cells = []
    for quantity, places in (("steps_per_s", 0), ("first_update_s", 1)):
        base = np.array(speed["jaxmarl"][quantity])
        for side in race.TIMED_SIDES:
            values = np.array(speed[side][quantity])
            middle, low, high = (f"{value:,.{places}f}" for value in (np.median(values), values.min(), values.max()))
            ratio = "" if side == "jaxmarl" else f"{np.median(values / base):.2f}×; "
            cells.append(f"{middle} ({ratio}{low}–{high})")
    return cells


def goal_columns(speed: Metrics | None, theirs: Metrics | None, ours: Metrics | None) -> list[str]:
    """Steps until the goal over seeds, and the seconds they take one seed that trains alone, start and compilation included."""
    steps, seconds, means = ["–"] * 2, ["–"] * 2, [(np.nan, 0)] * 2
    for index, (side, metrics) in enumerate((("jaxmarl", theirs), ("marljax", ours))):
        if metrics is None:
            continue
        steps[index] = steps_until_goal(metrics)
        if speed is None:
            continue
        counts, stopped = steps_by_seed(metrics)
        per_update = metrics["won"]["steps_per_update"]
        times = np.median(speed[side]["first_update_s"]) + (counts - per_update) / np.median(speed[side]["steps_per_s"])
        seconds[index] = f"> {times.mean():,.0f}" if stopped else seed_interval(times, 0, "")
        means[index] = times.mean(), stopped
    (base, base_stopped), (value, stopped) = means
    bound = "< " if base_stopped else ""  # their seconds, counted to the limit, are too few
    known = np.isfinite([base, value]).all() and not stopped
    return [*steps, *seconds, f"{bound}{value / base:.2f}" if known else "–"]


def steps_by_seed(metrics: Metrics) -> tuple[np.ndarray, int]:
    """Steps until the goal of each seed [S], or all that it trained if it was stopped before, and how many were stopped."""
    curves = np.array(metrics["won"]["curves"])
    per_update = metrics["won"]["steps_per_update"]
    reached = race.steps_to_goal(curves, per_update)
    trained = curves.shape[1] * race.updates_per_point(per_update) * per_update
    return np.array([trained if count is None else count for count in reached]), reached.count(None)


def steps_until_goal(metrics: Metrics) -> str:
    """Over seeds; where some were stopped, the lower bound of the mean and the share that they won at the end."""
    counts, stopped = steps_by_seed(metrics)
    if not stopped:
        return seed_interval(counts / 1e6, 2, " M")
    points = race.points_per_window(metrics["won"]["steps_per_update"])
    won = np.array(metrics["won"]["curves"])[:, -points:].mean()
    return f"> {counts.mean() / 1e6:.2f} M ({stopped} of {len(counts)} stopped; {100 * won:.0f} % won)"


def won_at_the_end(metrics: Metrics) -> str:
    """Share won in the last twentieth of training, over seeds."""
    curves = np.array(metrics["won"]["curves"])
    return seed_interval(100 * curves[:, -max(1, curves.shape[1] // 20) :].mean(axis=1), 1, " %")


def seed_interval(values: np.ndarray, places: int, unit: str) -> str:
    """Mean with a 95 % t interval over seeds."""
    estimate = stats.mean(values)
    return f"{estimate.value:.{places}f} ± {estimate.high - estimate.value:.{places}f}{unit}"


VALUED = ("3m", "2s3z")
MIXERS = {"QMIX": "qmix", "VDN": "vdn"}
VALUED_SEEDS, VALUED_EPISODES = 5, 1_000


def values_table(cache: ResultCache) -> str:
    """Wins of the greedy policies of QMIX and VDN at the end of training."""
    results = []
    for scenario, (name, mixer) in itertools.product(VALUED, MIXERS.items()):
        overrides = ["env=smax", f"env.scenario={scenario}", f"algo.mixer={mixer}"]
        metrics = cache.learned_by_seed(f"{name} {scenario}", "qmix", overrides, VALUED_EPISODES, BATCH, VALUED_SEEDS, "last")
        results.append((f"{name}, {scenario}", metrics))
    columns = {"won": lambda metrics: rate_interval(metrics["won"]), "return": interval("return", places=2)}
    return policy_table("", columns, results)


OPTIONS: dict[str, tuple[str, ...]] = {
    "tuned": (),
    "agent id": ("algo.agent_id=true",),
    "the dead leave": ("env.dead=leave",),
    "the dead leave, masked": ("env.dead=leave", "algo.death=continue"),
    "memory": ("tuned=gru",),
    "values as they are": ("algo.normalize_values=false",),
    "normalised observations": ("algo.normalize_observations=true",),
}
OPTIONS_STEPS = 1_000_000


def options_table(cache: ResultCache) -> str:
    """The effect of single options on MAPPO on 2s3z."""
    rows: list[list[str] | str] = []
    for name, overrides in OPTIONS.items():
        changed = f"`{' '.join(overrides)}`" if overrides else ""
        metrics = our_race(cache, f"option {name}", "2s3z", (f"algo.total_steps={OPTIONS_STEPS}", *overrides), OPTIONS_STEPS)
        rows.append([name, changed, steps_until_goal(metrics), won_at_the_end(metrics)] if metrics else name)
    return partial_table(["", "changed", "steps until 90 %", "won at the end"], rows)


LARGE = ("2s3z", "5m_vs_6m", "3s5z_vs_3s6z", "27m_vs_30m", "smacv2_10_units")
LARGE_STEPS = 10_000_000
LARGE_OVERRIDES = (f"algo.total_steps={LARGE_STEPS}", "algo.num_envs=512")


def large_table(cache: ResultCache) -> str:
    """MAPPO in larger battles. Hours on a CPU: there, missing results are not computed."""
    rows: list[list[str] | str] = []
    for scenario in LARGE:
        metrics = our_race(cache.on_accelerator(), f"large {scenario}", scenario, LARGE_OVERRIDES, LARGE_STEPS)
        rows.append([scenario, steps_until_goal(metrics), won_at_the_end(metrics)] if metrics else scenario)
    return partial_table(["battle", "steps until 90 %", "won at the end"], rows)


PLAN = selfplay.PLAN
PAGE = Page(
    name="smax",
    title="`smax`: results",
    intro="",
    packages=("jaxmarl",),
    sections=(
        Section(
            "Scripted policies",
            f"""Battles against the scripted enemy, with Wilson's 95 % interval: {COMPARED_EPISODES:,} episodes of the script that
shoots at the closest target, which is the enemies' own, {JAXMARL_EPISODES:,} of JaxMARL's, which controls both sides there, and
{EPISODES:,} of the others. Rates of equal scripts would be outside the 99 % interval of JaxMARL's rate, by chance, once in
seventy rates. (With 10,000 and 1,000 episodes one of 3m's was; hence more of both.)""",
            {"scripted": scripted_table},
        ),
        Section(
            "Training",
            f"""- JaxMARL: its published recurrent settings, one for all battles, on its own environment, in a reimplemented loop.
- Same networks: ours with JaxMARL's networks (GRU, as many parameters), epochs and minibatches, in our environment: the gain of
  the engine alone.
- Tuned: `configs/tuned/<algo>_smax.yaml`, a smaller network without memory and settings found on these two battles: what users
  get. With memory: the same with `tuned=gru`.

First table: one seed, {os.cpu_count()} cores, each measurement in a process of its own from a cold start, the sides in turn,
medians of {race.ROUNDS} rounds; in brackets the median of the ratios to JaxMARL's in the same round, and the range. A first
update is timed from the start of the process; the one step in an episode of ours that only resets it is not counted.

Second table: until 90 % of episodes are won, as the mean over {race.WINDOW:,} steps, {race.SEEDS} seeds (mean ± 95 % t interval).
Here the resets of ours, one step in an episode, are counted as steps. Seconds are those of a seed that trains alone at the speed
above. A race of JaxMARL's that does not get there is stopped after at least three times our time; its learning rate falls to 0
over the published 10 M steps, ours over 3 M, where a race of ours ends.""",
            {"training": training_tables},
        ),
        Section(
            "Values instead of policies",
            f"""QMIX and VDN with `configs/tuned/qmix_smax.yaml`, 2 M steps, {VALUED_SEEDS} seeds (0–{VALUED_SEEDS - 1}): the
greedy policies of the last parameters, not the best, in {VALUED_EPISODES:,} battles each. ± 95 % t interval over seeds;
then the lowest and the highest of the rates.""",
            {"values": values_table},
        ),
        Section(
            "Options",
            f"""MAPPO on 2s3z, tuned except for one option and the {OPTIONS_STEPS // 1_000_000} M steps: steps until 90 % of
episodes are won, as the mean over {race.WINDOW:,} steps, and the share won in the last twentieth of training; {race.SEEDS}
seeds, mean ± 95 % t interval.""",
            {"options": options_table},
        ),
        Section(
            "Large battles",
            f"MAPPO with the tuned settings except for `{' '.join(LARGE_OVERRIDES)}`, on a GPU: the same metrics.",
            {"large": large_table},
        ),
        Section(
            "Self-play",
            f"""IPPO controls both teams of {PLAN.scenario} (`env.mode=self_play`, +1 to the winners and −1 to the losers), and
its checkpoints play against each other: per cent of battles that the left team (row) won, in brackets lost, against the enemies
(column), who observe the mirrored board. Actions are sampled on both sides; {PLAN.battles} battles for each of {PLAN.seeds}
seeds. The script of the last column never occurred in training. The map is 16 × 16, so that the teams are in sight from the
start: a draw costs nothing, and on the usual map they can keep away.""",
            {"selfplay": selfplay.table},
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
