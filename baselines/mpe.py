"""What the defaults learn on JaxMARL's MPE, beside JaxMARL's loops at JaxMARL's settings.

    python baselines/mpe.py              # all of baselines/results/mpe.md
    python baselines/mpe.py ours         # one part: ours, untrained, random or theirs, which takes most of the time

Every cell is kept in ``baselines/results/mpe/`` and not computed again; delete its file to compute it anew.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import marljax
from marljax.algos import ippo, mappo, qmix
from marljax.baselines.harness import tables, versus
from marljax.baselines.harness.result_cache import Cells, Figures, joined, scripted_cell, suite_key, summarise
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.harness.versus import Plan, Side
from marljax.baselines.jaxmarl_compare import their_env
from marljax.baselines.rivals import ippo as jaxmarl_ippo
from marljax.baselines.rivals import qmix as jaxmarl_qmix
from marljax.baselines.rivals import rnn_ppo, simple_tag
from marljax.core.environment import Environment
from marljax.errors import UserError
from marljax.training import mesh
from marljax.training.evaluation import Evaluator, RandomPolicy, ScriptedPolicy
from marljax.training.trainer import Trainer
from marljax.utils import stats

RESULTS = Path(__file__).parent / "results"
PLAN = Plan()
POINTS = 50  # of a learning curve
ENVS = {"simple_spread": "MPE_simple_spread_v3", "simple_reference": "MPE_simple_reference_v3", "simple_tag": simple_tag.TAG}
KINDS = {"training": "end of training", "greedy": "greedy"}
LOOPS = {"ours": "marljax, defaults", "theirs": "JaxMARL's loop"}


class Pair(NamedTuple):
    """An algorithm in both libraries."""

    title: str
    module: Any
    config: Callable[[int], Any]  # total steps → the defaults
    their_module: Any
    their_config: Callable[[int], Any]  # total steps → JaxMARL's settings for MPE


PAIRS = {
    "ippo": Pair(
        "IPPO",
        ippo,
        lambda steps: ippo.Config(total_steps=steps),
        jaxmarl_ippo,
        lambda steps: jaxmarl_ippo.Config(total_timesteps=steps),
    ),
    "mappo": Pair(
        "MAPPO",
        mappo,
        lambda steps: mappo.Config(total_steps=steps),
        rnn_ppo,
        lambda steps: rnn_ppo.Settings(total_steps=steps, **rnn_ppo.PUBLISHED_MPE),
    ),
    "qmix": Pair(
        "QMIX",
        qmix,
        lambda steps: qmix.Config(total_steps=steps),
        jaxmarl_qmix,
        lambda steps: jaxmarl_qmix.Config(total_timesteps=steps),
    ),
    "vdn": Pair(
        "VDN",
        qmix,
        lambda steps: qmix.Config(mixer="vdn", total_steps=steps),
        jaxmarl_qmix,
        lambda steps: jaxmarl_qmix.Config(mixer="vdn", total_timesteps=steps),
    ),
}


@functools.cache
def our_env(name: str) -> Environment:
    """One of ``ENVS`` through the adapter."""
    return simple_tag.Chase() if name == "simple_tag" else marljax.make(f"jaxmarl/{ENVS[name]}")


def rival_env(name: str) -> Any:
    """The same in JaxMARL's ``LogWrapper``."""
    return simple_tag.logged() if name == "simple_tag" else their_env(ENVS[name])


@functools.lru_cache(maxsize=1)  # of all seeds, so that they share a compiled program
def side(plan: Plan, env: str, algo: str, loop: str) -> Side:
    """One of the two loops."""
    pair = PAIRS[algo]
    if loop == "ours":
        return versus.ours(pair.module, our_env(env), pair.config(plan.total_steps))
    return versus.theirs(pair.their_module, rival_env(env), pair.their_config(plan.total_steps))


def about(plan: Plan, env: str, algo: str, loop: str) -> dict[str, Any]:
    """What a training's figures depend on: those of JaxMARL's loops not on our adapter, which only plays their last policies."""
    pair = PAIRS[algo]
    config = pair.config(plan.total_steps) if loop == "ours" else pair.their_config(plan.total_steps)
    depends: dict[str, Any] = {"env": ENVS[env], "jaxmarl": tables.version("jaxmarl"), "config": dataclasses.asdict(config)}
    depends |= {"tail": plan.tail, "episodes": plan.episodes, "points": POINTS}
    if env == "simple_tag":
        depends["prey"] = {"ahead": simple_tag.AHEAD, "random": simple_tag.RANDOM}
    return depends | ({"adapter": f"{our_env(env)}, version {our_env(env).version}"} if loop == "ours" else {})


def trained(plan: Plan, env: str, loop: Side, seed: int) -> Figures:
    """Of one seed: the learning curve, the mean return of the episodes in the last of training, and the greedy policy's."""
    metrics, params = loop.train(plan.keys[seed : seed + 1])
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        raise UserError(f"seed {seed} of {loop.algorithm.__name__} diverged; nothing is kept")
    episodes, total = (np.asarray(metrics[name], np.float64) for name in ("episodes", "sum_return"))
    tail = max(round(plan.tail * loop.config.num_updates), 1)
    count = int(episodes[:, -tail:].sum())
    kept = {"std": [0.0], "count": count}
    own = our_env(env)
    greedy = Evaluator(own, plan.episodes).learned(loop.algorithm, loop.config, params, own.default_params, suite_key())
    return {
        "training": {"mean": [total[:, -tail:].sum() / count], **kept},
        "greedy": summarise(jax.device_get(greedy))["return"],
        "curve": {"mean": curve(episodes, total).tolist(), **kept},
    }


def curve(episodes: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Mean returns [S, points] of the episodes that end in each of equal parts of training; a part without any goes on with
    that of the one before.

    episodes, total [S, U]: numbers and summed returns by update.
    """
    parts = np.array_split(np.arange(episodes.shape[1]), min(POINTS, episodes.shape[1]))
    found: list[np.ndarray] = []
    for part in parts:
        count = episodes[:, part].sum(-1)
        before = found[-1] if found else np.full(len(episodes), np.nan)
        found.append(np.where(count > 0, total[:, part].sum(-1) / np.maximum(count, 1), before))
    return np.stack(found, axis=-1)


def training_cell(cells: Cells, plan: Plan, env: str, algo: str, loop: str) -> Figures | None:
    """All seeds of one algorithm of one library on one environment; None while any is missing. Each is a cell of its own, so
    that a command that is stopped loses little: side by side under ``vmap`` they take as long."""
    depends = about(plan, env, algo, loop)

    def one(seed: int) -> Figures | None:
        return cells.get(
            f"{env} {algo} {loop} seed {seed}", depends, lambda: trained(plan, env, side(plan, env, algo, loop), seed)
        )

    done = [figures for figures in map(one, range(plan.seeds)) if figures is not None]
    return joined(done) if len(done) == plan.seeds else None


def untrained_cell(cells: Cells, plan: Plan, env: str, algo: str) -> Figures | None:
    """Our networks before training, greedy on the frozen episodes."""

    def compute() -> Figures:
        pair, own = PAIRS[algo], our_env(env)
        config = pair.config(plan.total_steps)
        members = Trainer(pair.module, own, config, mesh.make_mesh()).init(plan.keys, own.default_params)
        given = pair.module, config, members.state.learner.params, own.default_params, suite_key()
        greedy = jax.device_get(Evaluator(own, plan.episodes).learned(*given))
        return {"greedy": summarise(greedy)["return"]}

    depends = about(plan, env, algo, "ours") | {"seeds": plan.seeds}
    return cells.get(f"{env} {algo} untrained", depends, compute)


def random_cell(cells: Cells, plan: Plan, env: str) -> Figures | None:
    """Uniform actions on the frozen episodes."""
    own = our_env(env)
    rival = ScriptedPolicy(own, own.default_params, RandomPolicy(own))
    return scripted_cell(cells, f"{env} random", {}, rival, plan.episodes)


# --- the tables ---------------------------------------------------------------------------------------------------------


def of_loop(loop: str, cells: Cells, plan: Plan = PLAN) -> str:
    """The trainings of one library, seed by seed."""
    rows, missing = [], []
    for env in ENVS:
        for algo, pair in PAIRS.items():
            done = training_cell(cells, plan, env, algo, loop)
            title = f"{env}, {pair.title}"
            if done is None:
                missing.append(title)
                continue
            rows.append([title, *(by_seed(done[kind]["mean"]) for kind in KINDS)])
    return tables.with_missing(missing, markdown_table([LOOPS[loop], *(f"{what}, by seed" for what in KINDS.values())], rows))


def by_seed(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def theirs_table(cells: Cells, plan: Plan = PLAN) -> str:
    """JaxMARL's loops by seed; nothing of ours is computed."""
    return of_loop("theirs", cells, plan)


def ours_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Our defaults by seed."""
    return of_loop("ours", cells, plan)


def untrained_table(cells: Cells, plan: Plan = PLAN) -> str:
    """What our networks reach before training, greedy."""
    rows, missing = [], []
    for env in ENVS:
        done = {algo: untrained_cell(cells, plan, env, algo) for algo in PAIRS}
        missing += [f"{env}, {PAIRS[algo].title}" for algo, own in done.items() if own is None]
        if any(done.values()):
            rows.append([env, *("–" if own is None else mean_interval(own["greedy"]) for own in done.values())])
    header = ["untrained, greedy", *(pair.title for pair in PAIRS.values())]
    return tables.with_missing(missing, markdown_table(header, rows))


def random_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Uniform actions."""
    done = {env: random_cell(cells, plan, env) for env in ENVS}
    return tables.by_row("random actions", ["return"], lambda own: [mean_interval(own["return"])], list(done.items()))


def verdict_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Both beside each other, where both are there, and where ours are surely lower."""
    rows, missing, lower = [], [], []
    for env in ENVS:
        for algo, pair in PAIRS.items():
            title = f"{env}, {pair.title}"
            mine, other = (training_cell(cells, plan, env, algo, loop) for loop in LOOPS)
            if mine is None or other is None:
                missing.append(title)
                continue
            columns = []
            for kind, what in KINDS.items():
                mean, rival = mine[kind], other[kind]
                columns += [mean_interval(mean), mean_interval(rival), versus.difference(mean, rival)]
                if stats.mean(np.subtract(mean["mean"], rival["mean"])).high < 0:
                    lower.append(f"{title} ({what})")
            rows.append([title, *columns])
    header = ["", *(f"{column}, {what}" for what in KINDS.values() for column in ("ours", "theirs", "ours − theirs"))]
    table = markdown_table(header, rows)
    found = f"Below JaxMARL's, with the whole interval, of these {len(rows)}: {'; '.join(lower) or 'none'}." if rows else ""
    return tables.with_missing(missing, table, found)


def steadiness_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Whether anything collapses: the best and the worst moments of the learning curves."""
    rows, missing = [], []
    for env in ENVS:
        random = random_cell(cells, plan, env)
        for algo, pair in PAIRS.items():
            for loop, title in LOOPS.items():
                done = training_cell(cells, plan, env, algo, loop)
                if done is None or random is None:
                    missing.append(f"{env}, {pair.title}, {title}")
                    continue
                rows.append([f"{env}, {pair.title}, {title}", *steadiness(done["curve"]["mean"], random["return"]["mean"][0])])
    header = ["training", "best", "lowest of the last half", "end", "kept by the worst seed"]
    return tables.with_missing(missing, markdown_table(header, rows))


def steadiness(curves: list[list[float]], random: float) -> list[str]:
    """The columns: means over seeds, and the smallest share over seeds of what was gained over random actions at best that was
    still there at the lowest of the last half."""
    values = np.asarray(curves)
    best, end = np.nanmax(values, axis=1), values[:, -1]
    lowest = np.nanmin(values[:, values.shape[1] // 2 :], axis=1)
    gain = best - random
    kept = "nothing gained" if (gain <= 0).any() else f"{((lowest - random) / gain).min():.0%}"
    return [*(f"{column.mean():.1f}" for column in (best, lowest, end)), kept]


PARTS = {
    "ours": ours_table,
    "untrained": untrained_table,
    "random": random_table,
    "theirs": theirs_table,
    "verdict": verdict_table,
    "steadiness": steadiness_table,
}

PAGE_TEXT = """# JaxMARL's MPE with the defaults: results

Made by `python baselines/mpe.py`; {versions}.

Four algorithms on three environments of JaxMARL through our adapter, with nothing set but the number of steps: the defaults of
`algos/`, one set per algorithm for all environments (VDN is `qmix` with `mixer=vdn`). Beside them JaxMARL's loops, written anew
against its API, with JaxMARL's own settings for MPE, and its recurrent networks in all but IPPO:

- IPPO: `ippo_ff_mpe`, {ippo.num_envs} environments × {ippo.num_steps} steps, learning rate {ippo.lr:g}
  (`baselines/rivals/ippo.py`)
- MAPPO: `mappo_homogenous_rnn_mpe`, {mappo.num_envs} × {mappo.rollout_length}, {mappo.learning_rate:g}, GRUs of {mappo.width}
  (`baselines/rivals/rnn_ppo.py`)
- QMIX and VDN: `ql_rnn_mpe`, {qmix.num_envs} × {qmix.num_steps}, {qmix.lr:g}, GRUs of {qmix.hidden}, γ {qmix.gamma:g}
  (`baselines/rivals/qmix.py`)

All take {steps:,} steps, over which learning rates and exploration fall. JaxMARL's files have changed: IPPO's has also had a
tenth of this learning rate for ten times the steps, MAPPO's 128 environments; for MAPPO, QMIX and VDN they ask for 2 to 20 times
as many steps. An episode has 26 steps; ours count one more, which restarts it.

- *simple_spread*: three agents cover three landmarks.
- *simple_reference*: two agents tell each other where to go; 50 actions, of which each is a move and a word.
- *simple_tag*: its cooperative side, three predators that share a reward of 10 for every touch of the prey. The prey follows a
  script in both libraries (`baselines/rivals/simple_tag.py`): it flees from the nearest predator inside the arena, but for
  {random_share:.0%} of its actions, which are random. JaxMARL's own environment with a scripted prey, `MPE_simple_facmac_v1`,
  takes continuous actions only, which Q-learners cannot give.

Returns are sums of an agent's rewards over an episode, means over agents. Seeds 0–{last_seed}; ±: 95 % t interval over seeds.
*End of training*: episodes of the sampled or exploring policy in the last {tail:.0%} of training. *Greedy*: the final
parameters on {episodes:,} frozen episodes, the same for all.

## Beside JaxMARL's loops

{verdict}

## Nothing collapses

Learning curves in {points} parts: means over seeds of the best part, of the lowest in the second half of training, and of the
last. *Kept*: of what the best part had gained over random actions, the share that is left in the lowest part of the second
half, for the seed with the smallest.

{steadiness}

## By seed

{ours}

{theirs}

## Before training

Greedy policies of fresh networks of ours, {seeds} seeds, and uniform actions, on the same frozen episodes.

{untrained}

{random}
"""


def page(sections: dict[str, str], plan: Plan = PLAN) -> str:
    """``baselines/results/mpe.md``."""
    settings = {algo: pair.their_config(plan.total_steps) for algo, pair in PAIRS.items()}
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        steps=plan.total_steps,
        seeds=plan.seeds,
        last_seed=plan.seeds - 1,
        tail=plan.tail,
        episodes=plan.episodes,
        points=POINTS,
        random_share=simple_tag.RANDOM,
        **{algo: settings[algo] for algo in ("ippo", "mappo", "qmix")},
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "mpe", PARTS, page)
