"""What a learned policy for ``smax`` must beat, and the tables that say whether it does.

    python baselines/smax.py                   # all of baselines/results/smax.md
    python baselines/smax.py scripted          # one part: scripted, training, values, options, large or selfplay

Every cell of a table is kept in ``baselines/results/smax/``: a command that was stopped goes on where it was, and a finished cell
is not computed again. Delete a cell's file to compute it anew.
"""

import functools
import itertools
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import marljax
from marljax.baselines import smax_race as race
from marljax.baselines import smax_selfplay as selfplay
from marljax.baselines.harness import result_cache, tables
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval, rate_interval, rate_spread
from marljax.baselines.policies.smax import scripted_policies
from marljax.envs.smax import Smax
from marljax.envs.smax.units import PUBLISHED
from marljax.utils import stats

RESULTS = Path(__file__).parent / "results"
RUNS = Path(__file__).parents[1] / "runs" / "baselines"  # checkpoints of races that are under way
VALUES_RUNS = RUNS.with_name("tables")
EPISODES = 10_000  # frozen scenarios per battle
COMPARED_EPISODES = 40_000  # of the script that is compared with JaxMARL's
RIVAL_EPISODES, RIVAL_AT_ONCE = 4_000, 1_000  # of JaxMARL's


def scripted_table(cells: Cells) -> str:
    """Every scripted policy in every battle, and JaxMARL's script in its own."""
    header = ["battle", "closest target: won", "JaxMARL's", "lost", "JaxMARL's", "random target: won", "random actions: won"]
    rows, missing, apart = [], [], []
    for scenario in PUBLISHED:
        own = {name: scripted_cell(cells, scenario, name) for name in RIVALS}
        theirs = jaxmarl_cell(cells, scenario)
        kept = [figures for figures in own.values() if figures is not None]
        if theirs is None or len(kept) < len(own):
            missing.append(scenario)
            continue
        played, *others = kept
        pairs = [rate_interval(figures[what]) for what in ("won", "lost") for figures in (played, theirs)]
        rows.append([scenario, *pairs, *(rate_interval(figures["won"]) for figures in others)])
        apart += [f"{scenario} ({what})" for what in ("won", "lost") if not within(played[what], theirs[what])]
    text = markdown_table(header, rows)
    verdict = f"Outside the 99 % interval of JaxMARL's rate: {', '.join(apart) or 'none'}, of {2 * len(rows)} rates."
    return tables.with_missing(missing, text, verdict if rows else "")


def within(own: Mapping[str, Any], theirs: Mapping[str, Any], confidence: float = 0.99) -> bool:
    """Whether our rate lies in the Wilson interval of theirs."""
    count = theirs["count"]
    estimate = stats.wilson(round(theirs["mean"][0] * count), count, confidence)
    return bool(estimate.low <= own["mean"][0] <= estimate.high)


SCRIPT = "script (closest target)"
RIVALS = (SCRIPT, "script (random target)", "random")


def scripted_cell(cells: Cells, scenario: str, name: str) -> Figures | None:
    """One scripted policy in one battle."""
    env = Smax(scenario)
    rival = scripted_policies(env, env.default_params)[name]
    episodes = COMPARED_EPISODES if name == SCRIPT else EPISODES
    about = {"scenario": scenario, "policy": name}
    return result_cache.scripted_cell(cells, f"scripted {scenario} {name}", about, rival, episodes)


def jaxmarl_cell(cells: Cells, scenario: str) -> Figures | None:
    """JaxMARL's script against itself in one battle."""

    def play() -> Figures:
        from marljax.baselines.rivals import smax

        return result_cache.in_parts(smax.script_against_script(scenario), RIVAL_EPISODES, RIVAL_AT_ONCE)

    about = {"scenario": scenario, "policy": "JaxMARL's script", "episodes": RIVAL_EPISODES, "jaxmarl": tables.version("jaxmarl")}
    return cells.get(f"jaxmarl {scenario} script", about, play)


def training_tables(cells: Cells) -> str:
    """Ours against JaxMARL's settings: how fast, and how long until nine in ten episodes are won."""
    paced, raced, missing = [], [], []
    for algo, scenario in itertools.product(("ippo", "mappo"), ("3m", "2s3z")):
        pair, pace = f"{algo} {scenario}", pace_cell(cells, algo, scenario)
        theirs, own, memory = (race_cell(cells, algo, scenario, side) for side in ("jaxmarl", "marljax", "gru"))
        if pace:
            paced.append([pair, *pace_columns(pace)])
        if own or theirs or memory:
            raced.append([pair, *goal_columns(pace, theirs, own), steps_until_goal(memory) if memory else "–"])
        found = (("pace", pace), ("JaxMARL", theirs), ("tuned", own), ("memory", memory))
        missing += [f"{pair}: {what}" for what, cell in found if not cell]
    sides = ("JaxMARL (GRU)", "same networks", "tuned (MLP)")
    header = ["", *(f"{side}: {what}" for what in ("steps/s", "first update, s") for side in sides)]
    goal = ["", "JaxMARL: steps", "tuned: steps", "JaxMARL: s", "tuned: s", "ratio of times", "with memory: steps"]
    return tables.with_missing(missing, markdown_table(header, paced), markdown_table(goal, raced))


def pace_cell(cells: Cells, algo: str, scenario: str) -> Figures | None:
    """Steps per second and time to the first update of every side."""
    about = race.settings("marljax", algo, scenario) | {
        "cores": os.cpu_count(),
        "rounds": race.ROUNDS,
        "updates": race.PACE_UPDATES,
        "same": race.words_of("same", algo),
        "rival": race.settings("jaxmarl", algo, scenario),
    }
    return cells.get(f"pace {algo} {scenario}", about, lambda: race.paces(algo, scenario))


def race_cell(cells: Cells, algo: str, scenario: str, side: str) -> Figures | None:
    """How soon a side of the race wins."""
    settings = race.settings(side, algo, scenario)
    limit = race.RIVAL_LIMITS[algo][scenario] if side == "jaxmarl" else race.LIMIT
    return run_race(cells, f"race {algo} {scenario} {side}", settings, lambda: race.make(side, algo, scenario), limit)


def run_race(
    cells: Cells, name: str, settings: Mapping[str, Any], side: Callable[[], race.Side], limit: int, early: bool = True
) -> Figures | None:
    """The cell of a race, which goes on where it was stopped."""
    digest = zlib.crc32(json.dumps(settings, sort_keys=True).encode())
    folder = RUNS / f"{result_cache.file_name(name)}-{digest:08x}"
    about = {**settings, **race.RULES, "limit": limit}
    return cells.get(name, about, lambda: {"won": race.climb(side(), folder, limit=limit, early=early)})


def pace_columns(pace: Figures) -> list[str]:
    """Medians of the rounds, their range, and what each round's is of JaxMARL's."""
    shown = []
    for what, places in (("steps_per_s", 0), ("first_update_s", 1)):
        base = np.array(pace["jaxmarl"][what])
        for side in race.PACED:
            values = np.array(pace[side][what])
            middle, low, high = (f"{value:,.{places}f}" for value in (np.median(values), values.min(), values.max()))
            ratio = "" if side == "jaxmarl" else f"{np.median(values / base):.2f}×; "
            shown.append(f"{middle} ({ratio}{low}–{high})")
    return shown


def goal_columns(pace: Figures | None, theirs: Figures | None, own: Figures | None) -> list[str]:
    """Steps until the goal over seeds, and the seconds they take one seed that trains alone, start and compilation included."""
    steps, seconds, means = ["–"] * 2, ["–"] * 2, [(np.nan, 0)] * 2
    for place, (side, figures) in enumerate((("jaxmarl", theirs), ("marljax", own))):
        if figures is None:
            continue
        steps[place] = steps_until_goal(figures)
        if pace is None:
            continue
        counts, late = counted(figures)
        per_update = figures["won"]["steps_per_update"]
        taken = np.median(pace[side]["first_update_s"]) + (counts - per_update) / np.median(pace[side]["steps_per_s"])
        seconds[place], means[place] = f"> {taken.mean():,.0f}" if late else spread(taken, 0, ""), (taken.mean(), late)
    (base, base_late), (value, late) = means
    bound = "< " if base_late else ""  # their seconds, counted to the limit, are too few
    known = np.isfinite([base, value]).all() and not late
    return [*steps, *seconds, f"{bound}{value / base:.2f}" if known else "–"]


def counted(figures: Figures) -> tuple[np.ndarray, int]:
    """Steps that each seed took [S], all that it trained where it was stopped, and how many were."""
    curves = np.array(figures["won"]["curves"])
    per_update = figures["won"]["steps_per_update"]
    reached = race.steps_to_goal(curves, per_update)
    trained = curves.shape[1] * race.updates_per_look(per_update) * per_update
    return np.array([trained if count is None else count for count in reached]), reached.count(None)


def steps_until_goal(figures: Figures) -> str:
    """Over seeds; where some were stopped, the lower bound of the mean and what they won when they were."""
    counts, late = counted(figures)
    if not late:
        return spread(counts / 1e6, 2, " M")
    looks = race.looks_per_window(figures["won"]["steps_per_update"])
    won = np.array(figures["won"]["curves"])[:, -looks:].mean()
    return f"> {counts.mean() / 1e6:.2f} M ({late} of {len(counts)} stopped; {100 * won:.0f} % won)"


def won_at_the_end(figures: Figures) -> str:
    """Share won in the last twentieth of training, over seeds."""
    curves = np.array(figures["won"]["curves"])
    return spread(100 * curves[:, -max(1, curves.shape[1] // 20) :].mean(axis=1), 1, " %")


def spread(values: np.ndarray, places: int, unit: str) -> str:
    """Mean with a 95 % t interval over seeds."""
    estimate = stats.mean(values)
    return f"{estimate.value:.{places}f} ± {estimate.high - estimate.value:.{places}f}{unit}"


VALUED = ("3m", "2s3z")
MIXERS = {"QMIX": "qmix", "VDN": "vdn"}
VALUED_SEEDS = 5
VALUED_EPISODES = 1_000


def values_table(cells: Cells) -> str:
    """Learners of values: what the greedy policies win after all of their training."""
    rows = [(f"{name}, {scenario}", valued_cell(cells, name, scenario)) for scenario in VALUED for name in MIXERS]
    return tables.by_row(
        "", ("won", "return"), lambda figures: [rate_spread(figures["won"]), mean_interval(figures["return"], 2)], rows
    )


def valued_cell(cells: Cells, name: str, scenario: str) -> Figures | None:
    """Five seeds of QMIX or VDN in one battle."""
    words = ["env=smax", f"env.scenario={scenario}", f"algo.mixer={MIXERS[name]}"]
    return result_cache.learned_apart(
        cells, f"{name} {scenario}", "qmix", words, VALUES_RUNS, VALUED_EPISODES, result_cache.AT_ONCE, VALUED_SEEDS, which="last"
    )


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


def options_table(cells: Cells) -> str:
    """What single options do to MAPPO on 2s3z."""
    rows, missing = [], []
    for name, words in OPTIONS.items():
        figures = option_cell(cells, name, words)
        if figures is None:
            missing.append(name)
            continue
        changed = f"`{' '.join(words)}`" if words else ""
        rows.append([name, changed, steps_until_goal(figures), won_at_the_end(figures)])
    return tables.with_missing(missing, markdown_table(["", "changed", "steps until 90 %", "won at the end"], rows))


def option_cell(cells: Cells, name: str, words: tuple[str, ...]) -> Figures | None:
    """MAPPO on 2s3z with some settings changed."""
    words = (f"algo.total_steps={OPTIONS_STEPS}", *words)
    settings = result_cache.matters(marljax.tuned("mappo", "smax", "env.scenario=2s3z", *words))
    return run_race(cells, f"option {name}", settings, lambda: race.ours("mappo", "2s3z", words), OPTIONS_STEPS, early=False)


LARGE = ("2s3z", "5m_vs_6m", "3s5z_vs_3s6z", "27m_vs_30m", "smacv2_10_units")
LARGE_STEPS = 10_000_000
LARGE_WORDS = (f"algo.total_steps={LARGE_STEPS}", "algo.num_envs=512")


def large_table(cells: Cells) -> str:
    """MAPPO in larger battles. Hours on a CPU: there, what is missing stays missing."""
    if jax.default_backend() == "cpu":
        cells = Cells(cells.folder, cells.console, compute_missing=False)
    rows, missing = [], []
    for scenario in LARGE:
        words = (f"env.scenario={scenario}", *LARGE_WORDS)
        settings = result_cache.matters(marljax.tuned("mappo", "smax", *words))
        side = functools.partial(race.ours, "mappo", scenario, LARGE_WORDS)
        figures = run_race(cells, f"large {scenario}", settings, side, LARGE_STEPS, early=False)
        if figures is None:
            missing.append(scenario)
            continue
        rows.append([scenario, steps_until_goal(figures), won_at_the_end(figures)])
    return tables.with_missing(missing, markdown_table(["battle", "steps until 90 %", "won at the end"], rows))


PARTS = {
    "scripted": scripted_table,
    "training": training_tables,
    "values": values_table,
    "options": options_table,
    "large": large_table,
    "selfplay": selfplay.section,
}


PAGE_TEXT = """# `smax`: results

Made by `python baselines/smax.py`; {versions}, jaxmarl {jaxmarl}.

## Scripted policies

Battles against the scripted enemy, with Wilson's 95 % interval: {compared_episodes:,} episodes of the script that shoots at the
closest target, which is the enemies' own, {rival_episodes:,} of JaxMARL's, which plays both sides there, too, and {episodes:,} of
the others. Equal scripts would differ by more than the 99 % interval of JaxMARL's rate, by chance, once in seventy rates. (With
10,000 and 1,000 episodes one of 3m's did; hence more of both.)

{scripted}

## Training

- JaxMARL: its published recurrent settings, one for all battles, on its own environment, in a loop written anew.
- Same networks: ours with JaxMARL's networks (GRU, as many parameters), epochs and minibatches, in our environment: what the
  engine gives.
- Tuned: `configs/tuned/<algo>_smax.yaml`, a smaller network without memory and settings found on these two battles: what a user
  gets. With memory: the same with `tuned=gru`.

First table: one seed, {cores} cores, each measurement in a process of its own from a cold start, the sides in turn, medians of
{rounds} rounds; in brackets the median of what each round's is of JaxMARL's in that round, and the range. A first update counts
from the start of the process; the one step in an episode of ours that only restarts it does not count.

Second table: until 90 % of episodes are won, as the mean over {window:,} steps, {seeds} seeds (mean ± 95 % t interval). Here the
restarts of ours, one step in an episode, count as steps. Seconds are those of a seed that trains alone at the pace above. A race
of JaxMARL's that has not got there is stopped after at least three times our time; its learning rate falls to 0 over the
published 10 M steps, ours over 3 M, where a race of ours ends.

{training}

## Values instead of policies

QMIX and VDN with `configs/tuned/qmix_smax.yaml`, 2 M steps, {valued_seeds} seeds (0–{valued_last}): the greedy policies of the
last parameters, not the best, in {valued_episodes:,} battles each. Won: Wilson's 95 % interval over the pooled battles of all
seeds, then the lowest and the highest of the seeds' rates. Return: ± 95 % t interval over seeds.

{values}

## Options

MAPPO on 2s3z, tuned but for one option and the {options_steps} M steps: steps until 90 % of episodes are won, as the mean over
{window:,} steps, and the share won in the last twentieth of training; {seeds} seeds, mean ± 95 % t interval.

{options}

## Large battles

MAPPO with the tuned settings but `{large_words}`, on a GPU: the same figures.

{large}

## Self-play

IPPO leads both teams of {selfplay_plan.scenario} (`env.mode=self_play`, +1 to the winners and −1 to the losers), and what it
had learned at several moments plays what it had learned at the others: per cent of battles that the left team (row) won, in
brackets lost, against the enemies (column), who see the board mirrored. Actions are sampled on both sides;
{selfplay_plan.battles} battles for each of {selfplay_plan.seeds} seeds. The training never met the script of the last column.
The map is 16 × 16, so that the teams see each other from the start: a draw costs nothing, and on the usual map they can keep
away.

{selfplay}
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/smax.md``."""
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        jaxmarl=tables.version("jaxmarl"),
        episodes=EPISODES,
        compared_episodes=COMPARED_EPISODES,
        rival_episodes=RIVAL_EPISODES,
        cores=os.cpu_count(),
        rounds=race.ROUNDS,
        seeds=race.SEEDS,
        window=race.WINDOW,
        valued_seeds=VALUED_SEEDS,
        valued_last=VALUED_SEEDS - 1,
        valued_episodes=VALUED_EPISODES,
        options_steps=OPTIONS_STEPS // 1_000_000,
        large_words=" ".join(LARGE_WORDS),
        selfplay_plan=selfplay.PLAN,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "smax", PARTS, page)
