"""What a learned policy for ``ride_dispatch`` must beat, and the tables that say whether it does.

    python baselines/ride_dispatch.py                 # all of baselines/results/ride_dispatch.md
    python baselines/ride_dispatch.py scripted        # one part: scripted, prices, learned, candidates, verdict or matters

Every cell of a table is kept in ``baselines/results/ride_dispatch/``: a command that was stopped goes on where it was, and a
finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marljax.baselines.harness import result_cache, tables
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.policies.ride_dispatch import PRICED, PRICES, RULES, Worth, matching, price_of, rival
from marljax.config import compose, convert
from marljax.envs.ride_dispatch import RideDispatch

RESULTS = Path(__file__).parent / "results"
RUNS = Path(__file__).parents[1] / "runs" / "ride_dispatch"  # of trainings that are under way
SEEDS = 5
EPISODES = 20
AT_ONCE = 4  # episodes in one program: what scores every pair is large
PLAYED = ("manhattan-1000", "manhattan-400", "manhattan-300")
PRICE_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
PRICE_EPISODES = 8
TRAINING_SEED = 0  # of the half hours on which it is tuned
# OSPO's and Triple-BERT's own experiments
PUBLISHED = {
    "random matching, published": ("12,810–12,860", "92.7–92.9", "7.6", "12.3", "3.1", "0.8"),
    "GRPO, published": ("13,614", "96.9", "7.1", "12.0", "2.8", "0.03"),
    "OSPO, published": ("14,077", "98.7", "6.9", "11.8", "2.7", "0.02"),
    "Triple-BERT, published, at best": ("16,280", "–", "–", "–", "–", "–"),
}


def scripted_table(cells: Cells) -> str:
    """Every rule in every city."""
    rows, missing, overflows = [], [], []
    for preset in PLAYED:
        for name in RULES:
            figures = scripted_cell(cells, preset, name)
            if figures is None:
                missing.append(f"{preset}: {name}")
                continue
            rows.append([preset, name, *columns(figures)])
            if overflow := figures["overflow"]["mean"][0]:
                overflows.append(f"{preset}, {name}: {overflow:.2f}")
        rows += [[preset, f"*{name}*", *published] for name, published in PUBLISHED.items() if preset == "manhattan-1000"]
    full = f"Orders per half hour that found no place in the table: {'; '.join(overflows) or 'none'}."
    return tables.with_missing(missing, markdown_table(["", "policy", *COLUMNS], rows), full)


def scripted_cell(cells: Cells, preset: str, name: str) -> Figures | None:
    """One rule in one city."""
    env = RideDispatch(preset)
    plays = rival(env, env.default_params, name)
    about = {"policy": name, "price": price_of(name, preset), "episodes": EPISODES, **of_env(env)}
    return cells.get(f"scripted {preset} {name}", about, lambda: result_cache.play_scripted(plays, EPISODES, AT_ONCE))


def of_env(env: RideDispatch) -> dict[str, Any]:
    """What a cell depends on besides the policy."""
    numbers = convert.readable_leaves(env.default_params)
    return {"env": dataclasses.asdict(env), "env_params": numbers, "env_version": env.version}


COLUMNS = ("reward", "served, %", "pickup, min", "delivery, min", "detour, min", "confirmation, min")


def columns(figures: Figures) -> list[str]:
    """With intervals over episodes."""
    minutes = [mean_interval(figures[name], 2) for name in ("pickup", "delivery", "detour", "confirmation")]
    return [mean_interval(figures["reward"], 0), mean_interval(figures["service"], 1, 100), *minutes]


def price_table(cells: Cells) -> str:
    """The opportunity cost, tuned on scenarios of their own."""
    rows, missing = [], []
    for preset in PRICES:
        found = [price_cell(cells, preset, price) for price in PRICE_GRID]
        if any(figures is None for figures in found):
            missing.append(preset)
            continue
        rows.append([preset, *(mean_interval(figures["reward"], 0) for figures in found if figures)])
    return tables.with_missing(missing, markdown_table(["price per minute", *map(str, PRICE_GRID)], rows))


def price_cell(cells: Cells, preset: str, price: float) -> Figures | None:
    """A price on training scenarios."""
    env = RideDispatch(preset)
    plays = matching(env, env.default_params, Worth(reward=1.0, busy=-price))
    about = {"price": price, "episodes": PRICE_EPISODES, **of_env(env)}
    key = jax.random.key(TRAINING_SEED)
    return cells.get(f"price {preset} {price}", about, lambda: result_cache.play_scripted(plays, PRICE_EPISODES, AT_ONCE, key))


# variants of the tuned values, and where they are trained
LEARNED = {
    "OSPO": ("standard", PLAYED),
    "looking ahead": ("ahead", ("manhattan-400", "manhattan-300")),
    "GRPO": ("grpo", ("manhattan-1000",)),
    "OSPO, the papers' choices": ("papers", ("manhattan-1000",)),
}
WEIGHTS = ("logit", "probability")


def learned_table(cells: Cells) -> str:
    """Every learner where it was trained, by both weights of the matching, beside one-step matching."""
    rows, missing = [], []
    for preset in PLAYED:
        usual = scripted_cell(cells, preset, "one-step reward")
        for name, (variant, presets) in LEARNED.items():
            if preset not in presets:
                continue
            words = (f"env.preset={preset}", f"tuned={variant}")
            for weight in WEIGHTS:
                figures = learned_cell(cells, f"{name} {preset}", words, weight)
                if figures is None or usual is None:
                    missing.append(f"{preset}: {name}, {weight}")
                else:
                    rows.append([preset, name, weight, relative(figures, usual), *columns(figures)])
    header = ["", "learner", "weight", "of one-step reward's, %", *COLUMNS]
    return tables.with_missing(missing, markdown_table(header, rows))


def learned_cell(cells: Cells, name: str, words: tuple[str, ...], weight: str) -> Figures | None:
    """Trains five seeds in one program and plays their best parameters."""
    words = ("env=ride_dispatch", *words, f"seeds={SEEDS}", f"runs={RUNS}", f"name={result_cache.file_name(name)}")
    about = result_cache.matters(compose.compose("ospo", words)) | {"episodes": EPISODES, "weight": weight}

    def play() -> Figures:
        run, folder = result_cache.train("ospo", words, cells.console)
        run = dataclasses.replace(run, config=run.config.replace(matching_weight=weight))
        return result_cache.play_learned(run, folder, run.env, run.env_params, EPISODES, AT_ONCE)

    return cells.get(f"{name} {weight}", about, play)


def relative(figures: Figures, usual: Figures) -> str:
    """Rewards in per cent of a scripted policy's mean on the same episodes, with an interval over seeds."""
    return mean_interval(figures["reward"], 1, 100 / usual["reward"]["mean"][0])


# who trains where every vehicle is offered a few orders, on the small city
OFFERED = {
    "QMIX": ("qmix", ("algo.mixer=qmix",)),
    "VDN": ("qmix", ("algo.mixer=vdn",)),
    "independent Q-learning": ("qmix", ("algo.mixer=none",)),
    "IPPO": ("ippo", ()),
    "MAPPO": ("mappo", ()),
}


def candidates_table(cells: Cells) -> str:
    """Learners that need no list of all orders, beside the rules, which see it."""
    scripted = {name: scripted_cell(cells, "demo", name) for name in RULES}
    usual = scripted["one-step reward"]
    rows = [[f"*{name}*", "–", *columns(figures)] for name, figures in scripted.items() if figures]
    missing = []
    for name, (algo, words) in OFFERED.items():
        words = ("env=ride_dispatch", "env.view=candidates", *SMALL, *words, f"seeds={SEEDS}")
        figures = result_cache.learned_cell(cells, f"{name} demo candidates", algo, words, RUNS, EPISODES, AT_ONCE)
        if figures is None or usual is None:
            missing.append(name)
        else:
            rows.append([name, relative(figures, usual), *columns(figures)])
    return tables.with_missing(missing, markdown_table(["", "of one-step reward's, %", *COLUMNS], rows))


# what is changed of the tuned values, on the small city
CHANGES = {
    "as tuned": (),
    "two towers": ("algo.scorer=two_tower", "algo.hidden=[64,64]"),
    **{f"waiting {way}": (f"algo.waiting={way}",) for way in ("never", "ignored", "learnt")},
    "rewards until the end": ("algo.advantage=to_go",),
    "rewards until the end, waiting learnt": ("tuned=ahead",),
    "GRPO": ("tuned=grpo",),
    "compared over the buffer": ("algo.normalize=buffer",),
    "compared over each agent's steps": ("algo.normalize=agent",),
    "median as baseline": ("algo.baseline=median",),
    "equity penalty": ("algo.equity_coef=1",),
    "near the best snapshot": ("algo.stay_near_best=true",),
    "entropy bonus 0.05": ("algo.entropy_coef=0.05",),
    "exploring by huge weights": ("algo.explore=epsilon",),
    "the papers' choices": ("tuned=papers", "algo.total_steps=19_840"),
}
SMALL = ("env.preset=demo", "eval.episodes=32")


def change_table(cells: Cells) -> str:
    """One factor changed at a time, on the small city."""
    scripted = {name: scripted_cell(cells, "demo", name) for name in RULES}
    usual = scripted["one-step reward"]
    rows = [[f"*{name}*", mean_interval(figures["reward"], 0), "–"] for name, figures in scripted.items() if figures]
    missing = []
    for name, words in CHANGES.items():
        found = [learned_cell(cells, f"demo {name}", (*SMALL, *words), weight) for weight in WEIGHTS]
        if usual is None or any(figures is None for figures in found):
            missing.append(name)
        else:
            rows.append([name, *(mean_interval(figures["reward"], 0) for figures in found if figures)])
    return tables.with_missing(missing, markdown_table(["changed", *(f"by {weight}" for weight in WEIGHTS)], rows))


def verdict(cells: Cells) -> str:
    """When one step is enough, with the figures of the tables above."""
    shares: dict[str, str] = {}
    for preset in PLAYED:
        usual = scripted_cell(cells, preset, "one-step reward")
        found = {"price": scripted_cell(cells, preset, PRICED)}
        for name, (variant, presets) in LEARNED.items():
            if preset in presets:
                found[name] = learned_cell(cells, f"{name} {preset}", (f"env.preset={preset}", f"tuned={variant}"), "logit")
        for name, figures in found.items():
            if usual is None or figures is None:
                return "Not computed yet."
            share = np.mean(figures["reward"]["mean"]) / usual["reward"]["mean"][0]
            shares[f"{name} {preset.rpartition('-')[2]}"] = f"{100 * share:.1f}"
    return VERDICT.format_map(shares)


VERDICT = """In per cent of what one-step matching earns on the same half hours, learners matched by logits:

- **1000 vehicles: it is.** Whoever looks at the reward of the step serves everybody, so that nothing taken now is missed later.
  A price for a vehicle's time changes nothing ({price 1000} %). OSPO learns the matching from rewards alone ({OSPO 1000} %);
  GRPO, which adds up later rewards as well, learns it less well ({GRPO 1000} %), as do the papers' choices
  ({OSPO, the papers' choices 1000} %). Nothing that was learned beats a matching that nobody trained.
- **400 and 300 vehicles: it is not.** Orders outnumber vehicles, and a long way now is paid for with the orders that come
  meanwhile. OSPO, for which only the step counts, earns {OSPO 400} % and {OSPO 300} %; its pickups are shorter than those of
  one-step matching, which keeps vehicles free. With rewards until the end and the right to decline it earns
  {looking ahead 400} % and {looking ahead 300} %: what a price per minute earns ({price 400} % and {price 300} %), which is one
  number, found on eight half hours.

So count what a fleet turns away. Where that is nothing, one step is enough, and a matching by the reward needs no learning.
Where it is much, look ahead, and try a price per minute before a network."""


PARTS = {
    "scripted": scripted_table,
    "prices": price_table,
    "learned": learned_table,
    "candidates": candidates_table,
    "verdict": verdict,
    "matters": change_table,
}

PAGE_TEXT = """# `ride_dispatch`: results

Made by `python baselines/ride_dispatch.py`; {versions}.

## Scripted policies

All match free vehicles and open orders exactly, every minute. *Minus opportunity cost*: the reward of the assignment minus a
price per minute that the vehicle is kept busy (pickup and direct ride), and vehicles decline what is worth less than nothing.
{episodes} frozen half hours from 19:00, mean ± 95 % t interval; reward: sum over the fleet, discounted by 0.99 a minute. In
italics what the papers report of the setting that `manhattan-1000` follows.

{scripted}

Detours may be negative at `manhattan-1000`: every leg is rounded down to whole minutes, and a way with a stop has more legs.
Deliveries and detours of random matching, of those that ended within the half hour, lie below the published ones, for which no
reason was found.

## Learned policies

`python algos/ospo.py env=ride_dispatch env.preset=<preset> tuned=<variant>`, {seeds} seeds each (0–{last_seed}) in one vmapped
program; greedy policies of the best evaluation, on the same half hours. Whatever the training, vehicles and orders are matched
exactly, by logits (less that of waiting) or by probabilities, as in the papers. In training every vehicle samples from its own
softmax; of those that ask for the same order the best paid gets it, and what the others earn, nothing, is compared, too. *The
papers' choices* (`tuned=papers`): training plays matchings by probability, some of them made huge at random, and compares the
matched vehicles. *Looking ahead* (`tuned=ahead`): rewards until the end of the half hour are compared, and waiting is an action.
±: 95 % t interval over seeds.

{learned}

## A few orders for each vehicle

`env.view=candidates env.preset=demo`: each vehicle is offered a few orders, and by itself asks for one or waits; of those that
ask for the same order the best paid gets it. 32 vehicles, {seeds} seeds each in one vmapped program with
`configs/tuned/<algo>_ride_dispatch.yaml` (those of QMIX were searched for by hand on this city, those of IPPO and MAPPO were
not), greedy policies of the best evaluation, on the same half hours as the rules in italics, which match all vehicles and orders
at once. ±: 95 % t interval, over seeds where learned.

{candidates}

## When one step is enough

{verdict}

## What matters

One factor changed at a time of `configs/tuned/ospo_ride_dispatch.yaml`, with 32 vehicles (`env.preset=demo`), {seeds} seeds;
reward by both weights of the matching. In italics scripted policies, over episodes. What the table shows:

- **How training explores** matters most. Where matchings of perturbed weights are played, what is learned from is not what the
  softmax says, whose probabilities the loss compares, and policies fall far below one-step matching (*exploring by huge weights*,
  *the papers' choices*). So vehicles sample for themselves, and the environment settles conflicts.
- **Who is compared**: leaving out those that wait (*waiting ignored*) makes runs unsteady; to forbid waiting, to compare it, or
  to learn it makes no difference to rewards of one step.
- **Looking ahead** pays where vehicles are scarce, and with waiting as an action most.
- **The scorer**: an MLP of every pair learns what a product of two embeddings does not (*two towers*).
- **Staying near the best snapshot** holds policies back: what is best by chance early on stays the model.
- Baseline, group, equity penalty and entropy bonus matter little. GRPO's logits are worse than its probabilities.

{matters}

## Price of a minute

Reward by price on {price_episodes} half hours for training.

{prices}
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/ride_dispatch.md``."""
    numbers = {"episodes": EPISODES, "price_episodes": PRICE_EPISODES, "seeds": SEEDS, "last_seed": SEEDS - 1}
    return PAGE_TEXT.format(versions=tables.describe_versions(), **numbers, **sections)


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "ride_dispatch", PARTS, page)
