"""Scripted and learned policies on ``ride_dispatch``: ``python baselines/ride_dispatch.py [table …]`` writes
baselines/results/ride_dispatch.md."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import Metrics, ResultCache
from marljax.baselines.harness.tables import Page, Section, cells, interval, mean_interval, partial_table
from marljax.baselines.policies.ride_dispatch import (
    PRICED,
    PRICES,
    RULES,
    Prices,
    Worth,
    matching,
    price_of,
    scripted_policy,
    seven_prices,
)
from marljax.config import convert
from marljax.core.types import View
from marljax.envs.ride_dispatch import RideDispatch, afterstates
from marljax.envs.ride_dispatch.env import RideState
from marljax.envs.ride_dispatch.params import RideParams
from marljax.io.run_folder import Which

SEEDS = 5
EPISODES = 20
BATCH = 4  # episodes of one program: scores of every pair are large
PLENTY, SCARCE = "manhattan-1000", ("manhattan-400", "manhattan-300")  # of vehicles
PRESETS = (PLENTY, *SCARCE)
ONE_STEP = "one-step reward"
SEVEN = "seven prices"
PRICE_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
PRICE_EPISODES = 8
TRAINING_SEED = 0  # of the half hours on which the price is tuned
# OSPO's and Triple-BERT's own experiments
PUBLISHED = {
    "random matching, published": ("12,810–12,860", "92.7–92.9", "7.6", "12.3", "3.1", "0.8"),
    "GRPO, published": ("13,614", "96.9", "7.1", "12.0", "2.8", "0.03"),
    "OSPO, published": ("14,077", "98.7", "6.9", "11.8", "2.7", "0.02"),
    "Triple-BERT, published, at best": ("16,280", "–", "–", "–", "–", "–"),
}
# Variants of the tuned values, and where they are trained
LEARNED = {
    "OSPO": ("standard", PRESETS),
    "looking ahead": ("ahead", SCARCE),
    "GRPO": ("grpo", (PLENTY,)),
    "OSPO, the papers' choices": ("papers", (PLENTY,)),
}
WEIGHTS = ("logit", "probability")
# The tuned values of configs/tuned/values_ride_dispatch.yaml, for env=custom
AS_TUNED = ("algo.total_steps=4464", "eval.every=0.25", "eval.episodes=8", "eval.final_episodes=16")
# Values of afterstates: overrides, and where they are trained
VALUED_PRESETS = (*SCARCE, "demo", PLENTY)
VALUED = {
    "marginal values": (("env=ride_dispatch",), VALUED_PRESETS),
    "marginal values of place and time": (
        ("env=custom", "env.target=marljax.baselines.ride_dispatch:PlaceAndTime", "env.view=afterstates", *AS_TUNED),
        ("demo", "manhattan-300"),
    ),
    "own values": (("env=ride_dispatch", "algo.learn_from=own"), ("demo", "manhattan-300", PLENTY)),
}
SMALL = ("env.preset=demo", "eval.episodes=32")  # the small city
# Learners of vehicles that are offered a few orders each, on the small city
OFFERED = {
    "QMIX": ("qmix", ("algo.mixer=qmix",)),
    "VDN": ("qmix", ("algo.mixer=vdn",)),
    "independent Q-learning": ("qmix", ("algo.mixer=none",)),
    "IPPO": ("ippo", ()),
    "MAPPO": ("mappo", ()),
}
# Numbers of vehicles, with as many orders for each
FLEETS = (4, 8, 16, 32)
SUMMED = "QMIX, summed rewards"
OFFERED_FLEETS = {"QMIX": "qmix", SUMMED: "qmix", "independent Q-learning": "none"}  # and their mixers
TOWERS = ("algo.scorer=two_tower", "algo.hidden=[64,64]")
ATTENTION = ("algo.attention_layers=1", "algo.embedding=16", "algo.attention_heads=2", "algo.samples=0")
# Overrides of the tuned values, on the small city
CHANGES = {
    "as tuned": (),
    "two towers": TOWERS,
    "two towers, attention": (*TOWERS, "algo.attention_layers=3", "algo.samples=0", "algo.learning_rate=2e-3"),
    "attention": ATTENTION,
    **{f"waiting {way}": (f"algo.waiting={way}",) for way in ("never", "ignored", "learnt")},
    "rewards until the end": ("algo.advantage=to_go",),
    "rewards until the end, waiting learnt": ("tuned=ahead",),
    "rewards until the end, waiting learnt, attention": ("tuned=ahead", *ATTENTION),
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
COLUMNS = {"reward": interval("reward", places=0), "served, %": interval("service", scale=100)} | {
    f"{name}, min": interval(name, places=2) for name in ("pickup", "delivery", "detour", "confirmation")
}


class PlaceAndTime(RideDispatch):
    """``RideDispatch`` whose afterstates tell only where and when a vehicle's last passenger leaves, and the time: what tables of
    values know (Xu et al. 2018, Tang et al. 2019). Other columns are 0, and decisions count from then."""

    COLUMNS = ("until last drop-off", "last stop up", "last stop cross", "time")

    def observe(self, state: RideState, env_params: RideParams) -> View:
        view = super().observe(state, env_params)
        names, features = afterstates.names(self.seats), view.obs["features"]
        until_empty = jnp.maximum(jnp.ceil(10 * features[..., names.index(self.COLUMNS[0])]), 1.0)  # a decision a minute
        decisions = jnp.maximum(env_params.duration - state.minute - until_empty, 0.0)
        return view._replace(obs=view.obs | {"decisions": decisions, "features": features * np.isin(names, self.COLUMNS)})


def relative_reward(metrics: Metrics, one_step: Metrics) -> str:
    """In per cent of one-step matching's mean on the same episodes, with an interval over seeds."""
    return mean_interval(metrics["reward"], 1, 100 / one_step["reward"]["mean"][0])


def describe(env: RideDispatch) -> dict[str, Any]:
    """The part of ``about`` that is of the environment."""
    params = convert.readable_leaves(env.default_params)
    return {"env": dataclasses.asdict(env), "env_params": params, "env_version": env.version}


def scripted_result(cache: ResultCache, preset: str, name: str) -> Metrics | None:
    env = RideDispatch(preset)
    policy = scripted_policy(env, env.default_params, name)
    about = {"policy": name, "price": price_of(name, preset), "episodes": EPISODES, **describe(env)}
    return cache.get(f"scripted {preset} {name}", about, lambda: result_cache.play_scripted(policy, EPISODES, BATCH))


def prices_result(cache: ResultCache, preset: str) -> Metrics | None:
    """The rule of seven prices."""
    env = RideDispatch(preset)
    about = {"policy": SEVEN, "prices": Prices()._asdict(), "episodes": EPISODES, **describe(env)}
    policy = seven_prices(env, env.default_params)
    return cache.get(f"scripted {preset} {SEVEN}", about, lambda: result_cache.play_scripted(policy, EPISODES, BATCH))


def learned_result(cache: ResultCache, name: str, overrides: Sequence[str], weight: str) -> Metrics | None:
    """Trains five seeds in one program and plays their best parameters with a weight of the matching."""
    return cache.learned(
        f"{name} {weight}",
        "ospo",
        ("env=ride_dispatch", *overrides, f"seeds={SEEDS}"),
        EPISODES,
        BATCH,
        adapt=lambda run: dataclasses.replace(run, config=run.config.replace(matching_weight=weight)),
        about={"weight": weight},
        run_name=name,
    )


def variant_result(cache: ResultCache, name: str, preset: str, weight: str) -> Metrics | None:
    """One of ``LEARNED`` in one city."""
    return learned_result(cache, f"{name} {preset}", (f"env.preset={preset}", f"tuned={LEARNED[name][0]}"), weight)


def scripted_table(cache: ResultCache) -> str:
    """Every rule in every city."""
    rows: list[list[str] | str] = []
    overflows = []
    for preset in PRESETS:
        for name in RULES:
            metrics = scripted_result(cache, preset, name)
            rows.append([preset, name, *cells(COLUMNS, metrics)] if metrics else f"{preset}: {name}")
            if metrics and (overflow := metrics["overflow"]["mean"][0]):
                overflows.append(f"{preset}, {name}: {overflow:.2f}")
        rows += [[preset, f"*{name}*", *values] for name, values in PUBLISHED.items() if preset == "manhattan-1000"]
    full = f"Orders per half hour that did not fit into the order table: {'; '.join(overflows) or 'none'}."
    return partial_table(["", "policy", *COLUMNS], rows, full)


def learned_table(cache: ResultCache) -> str:
    """Every learner where it was trained, by both weights of the matching, compared with one-step matching."""
    rows: list[list[str] | str] = []
    for preset in PRESETS:
        one_step = scripted_result(cache, preset, ONE_STEP)
        for name, weight in ((name, weight) for name in LEARNED if preset in LEARNED[name][1] for weight in WEIGHTS):
            metrics = variant_result(cache, name, preset, weight)
            if metrics is None or one_step is None:
                rows.append(f"{preset}: {name}, {weight}")
            else:
                rows.append([preset, name, weight, relative_reward(metrics, one_step), *cells(COLUMNS, metrics)])
    return partial_table(["", "learner", "weight", "of one-step reward's, %", *COLUMNS], rows)


def valued_result(cache: ResultCache, name: str, preset: str) -> Metrics | None:
    """One of ``VALUED`` in one city, a run for each seed."""
    overrides = (*VALUED[name][0], f"env.preset={preset}")
    which: Which = "last" if preset == PLENTY else "best"  # the best there is the untrained network, one-step matching
    return cache.learned_by_seed(f"{name} {preset}", "values", overrides, EPISODES, BATCH, SEEDS, which)


def valued_table(cache: ResultCache) -> str:
    """Values of afterstates, compared with the rules and with OSPO."""
    rows: list[list[str] | str] = []
    for preset in VALUED_PRESETS:
        results = {f"*{name}*": scripted_result(cache, preset, name) for name in (ONE_STEP, PRICED)}
        one_step = results[f"*{ONE_STEP}*"]
        results[f"*{SEVEN}*"] = prices_result(cache, preset)
        if preset in LEARNED["looking ahead"][1]:
            results["OSPO, looking ahead"] = variant_result(cache, "looking ahead", preset, "logit")
        results |= {name: valued_result(cache, name, preset) for name, (_, presets) in VALUED.items() if preset in presets}
        for name, metrics in results.items():
            if metrics is None or one_step is None:
                rows.append(f"{preset}: {name}")
            else:
                rows.append([preset, name, relative_reward(metrics, one_step), *cells(COLUMNS, metrics)])
    return partial_table(["", "policy", "of one-step reward's, %", *COLUMNS], rows)


def offered_result(cache: ResultCache, name: str, algo: str, overrides: Sequence[str]) -> Metrics | None:
    """Five seeds of a learner of vehicles that are offered a few orders, on the small city or a part of its fleet."""
    overrides = ("env=ride_dispatch", "env.view=candidates", *SMALL, *overrides, f"seeds={SEEDS}")
    return cache.learned(f"{name} candidates", algo, overrides, EPISODES, BATCH)


def candidates_table(cache: ResultCache) -> str:
    """Learners that need no list of all orders, compared with the rules, which observe it."""
    scripted = {name: scripted_result(cache, "demo", name) for name in RULES}
    one_step = scripted[ONE_STEP]
    rows: list[list[str] | str] = [[f"*{name}*", "–", *cells(COLUMNS, metrics)] for name, metrics in scripted.items() if metrics]
    for name, (algo, overrides) in OFFERED.items():
        metrics = offered_result(cache, f"{name} demo", algo, overrides)
        if metrics is None or one_step is None:
            rows.append(name)
        else:
            rows.append([name, relative_reward(metrics, one_step), *cells(COLUMNS, metrics)])
    return partial_table(["", "of one-step reward's, %", *COLUMNS], rows)


def fleets_table(cache: ResultCache) -> str:
    """Rewards per vehicle of Q-learners by the size of the fleet."""
    rows: list[list[str] | str] = []
    size = RideDispatch("demo").vehicles
    for name, mixer in OFFERED_FLEETS.items():
        row = [name]
        for fleet in FLEETS:
            if fleet == size and name in OFFERED:
                found = offered_result(cache, f"{name} demo", *OFFERED[name])
            else:
                scaled = RideDispatch("demo").default_params.demand_scale * fleet / size
                sized = [f"env.vehicles={fleet}", f"env.demand_scale={scaled:g}", f"algo.mixer={mixer}"]
                sized += [f"algo.reward_scale={fleet}"] if name == SUMMED else []
                found = offered_result(cache, f"{name} fleet of {fleet}", "qmix", sized)
            row.append(mean_interval(found["reward"], 1, 1 / fleet) if found else "")
        rows.append(row if all(row) else name)
    return partial_table(["reward per vehicle", *(f"{fleet} vehicles" for fleet in FLEETS)], rows)


def change_table(cache: ResultCache) -> str:
    """One factor changed at a time, on the small city."""
    scripted = {name: scripted_result(cache, "demo", name) for name in RULES}
    rows: list[list[str] | str] = [
        [f"*{name}*", mean_interval(metrics["reward"], 0), "–"] for name, metrics in scripted.items() if metrics
    ]
    for name, overrides in CHANGES.items():
        results = [learned_result(cache, f"demo {name}", (*SMALL, *overrides), weight) for weight in WEIGHTS]
        rewards = [mean_interval(metrics["reward"], 0) for metrics in results if metrics]
        rows.append([name, *rewards] if len(rewards) == len(WEIGHTS) else name)
    return partial_table(["changed", *(f"by {weight}" for weight in WEIGHTS)], rows)


def price_table(cache: ResultCache) -> str:
    """The reward by opportunity cost, on scenarios for training."""
    rows: list[list[str] | str] = []
    key = jax.random.key(TRAINING_SEED)
    for preset in PRICES:
        env, rewards = RideDispatch(preset), []
        for price in PRICE_GRID:
            policy = matching(env, env.default_params, Worth(reward=1.0, busy=-price))
            play = functools.partial(result_cache.play_scripted, policy, PRICE_EPISODES, BATCH, key)
            about = {"price": price, "episodes": PRICE_EPISODES, **describe(env)}
            metrics = cache.get(f"price {preset} {price}", about, play)
            rewards += [mean_interval(metrics["reward"], 0)] if metrics else []
        rows.append([preset, *rewards] if len(rewards) == len(PRICE_GRID) else preset)
    return partial_table(["price per minute", *map(str, PRICE_GRID)], rows)


VERDICT = """In per cent of what one-step matching earns on the same half hours, learners matched by logits:

- **1000 vehicles: it is.** Every policy that follows the reward of the step serves all orders, so that nothing taken now is
  missed later. A price for a vehicle's time changes nothing ({price 1000} %). OSPO learns the matching from rewards alone
  ({OSPO 1000} %); GRPO, which adds up later rewards as well, learns it less well ({GRPO 1000} %), as do the papers' choices
  ({OSPO, the papers' choices 1000} %). Learned vehicle values cost a little ({marginal values 1000} %). Nothing that was learned
  beats a matching that nobody trained.
- **400 and 300 vehicles: it is not.** Orders outnumber vehicles, and a long way now is paid for with the orders that come
  meanwhile. OSPO, for which only the step counts, earns {OSPO 400} % and {OSPO 300} %; its pickups are shorter than those of
  one-step matching, which keeps vehicles free. With rewards until the end and the right to decline it earns
  {looking ahead 400} % and {looking ahead 300} %: what a price per minute earns ({price 400} % and {price 300} %), which is one
  number, found on eight half hours. Learned vehicle values earn {marginal values 400} % and {marginal values 300} %: they
  know who is aboard, how long the way still is, and when a seat will be free, which a price per minute does not.

So check how many orders a fleet leaves unserved. Where there are none, one step is enough, and a matching by the reward needs no
learning. Where there are many, learn what a vehicle is worth after each order; a price per minute is a first step."""


def verdict(cache: ResultCache) -> str:
    """When one step is enough, with the numbers of the tables above."""
    shares: dict[str, str] = {}
    for preset in PRESETS:
        one_step = scripted_result(cache, preset, ONE_STEP)
        results = {"price": scripted_result(cache, preset, PRICED)}
        results["marginal values"] = valued_result(cache, "marginal values", preset)
        results |= {name: variant_result(cache, name, preset, "logit") for name in LEARNED if preset in LEARNED[name][1]}
        for name, metrics in results.items():
            if one_step is None or metrics is None:
                return "Not computed yet."
            share = np.mean(metrics["reward"]["mean"]) / one_step["reward"]["mean"][0]
            shares[f"{name} {preset.rpartition('-')[2]}"] = f"{100 * share:.1f}"
    return VERDICT.format_map(shares)


PAGE = Page(
    name="ride_dispatch",
    title="`ride_dispatch`: results",
    intro="",
    sections=(
        Section(
            "Scripted policies",
            f"""All match free vehicles and open orders exactly, every minute. *Minus opportunity cost*: the reward of the
assignment minus a price per minute that the vehicle is kept busy (pickup and direct ride); vehicles decline what is worth less
than nothing. {EPISODES} frozen half hours from 19:00, mean ± 95 % t interval; reward: sum over the fleet, discounted by 0.99 a
minute. In italics the papers' values for the setting that `manhattan-1000` follows.""",
            {"scripted": scripted_table},
            """Detours may be negative at `manhattan-1000`: every leg is rounded down to whole minutes, and a route with a stop
has more legs. Deliveries and detours of random matching, of those that ended within the half hour, are below the published
ones, for which no reason was found.""",
        ),
        Section(
            "Learned policies",
            f"""`python algos/ospo.py env=ride_dispatch env.preset=<preset> tuned=<variant>`, {SEEDS} seeds each (0–{SEEDS - 1})
in one vmapped program; greedy policies of the best evaluation, on the same half hours. Whatever the training, vehicles and
orders are matched exactly, by logits (minus that of waiting) or by probabilities, as in the papers. In training every vehicle
samples from its own softmax; of those that request the same order the best paid gets it, and the others' reward, zero, is
compared, too. *The papers' choices* (`tuned=papers`): training plays matchings by probability, some of them made huge at
random, and compares the matched vehicles. *Looking ahead* (`tuned=ahead`): rewards until the end of the half hour are compared,
and waiting is an action. ±: 95 % t interval over seeds.""",
            {"learned": learned_table},
        ),
        Section(
            "Learned vehicle values",
            f"""`python algos/values.py env=ride_dispatch env.preset=<preset>`, {SEEDS} runs each (seeds 0–{SEEDS - 1}) of 144
half hours, the best of five evaluations, on the same half hours; with 1,000 vehicles the final parameters, because the best are
those of the untrained network, which matches by the reward of the step. A network values a vehicle after the decision by its
place, its passengers and the time that is left, and knows nothing of other vehicles; vehicles and orders are matched by the
reward plus the change of that value. *Marginal values* are learnt from rewards less the orders' prices, which the matching's dual
problem yields, so that a vehicle is credited with what the fleet would lose without it; *own values* (`algo.learn_from=own`) from
whole rewards. Those *of place and time* know only where and when a vehicle's last passenger leaves, as tables of values do (Xu et
al. 2018, Tang et al. 2019). In italics scripted policies: *seven prices* are those of the pickup, the detour of those aboard, the
ride, the last seat, demand nearby at both ends and orders aboard, found for 300 vehicles by a cross-entropy search that was not
kept. ±: 95 % t interval, over seeds where learned.""",
            {"values": valued_table},
            """In the small city own values earn a little more than marginal ones, and with 300 vehicles as much: where all
vehicles are busy, what one earns and what it adds differ little. With 1,000 vehicles, most of them idle, own values earn less.
Either earns far more than the tuned price per minute where vehicles are scarce, as marginal values do with 400 vehicles, so that
price is not near the optimum. How far the values are from the optimum is not known: no bound was computed.

Place and time alone are not enough: such values earn no more than the price per minute, with 300 vehicles and in the small city.
Who is aboard, how long the route still is and when a seat will be free make the difference; which of these was not
separated. The other candidate, attention among vehicles and orders in OSPO's scorer, gained nothing (*What matters*, below).""",
        ),
        Section(
            "A few orders for each vehicle",
            f"""`env.view=candidates env.preset=demo`: each vehicle is offered a few orders, and by itself requests one or
waits; of those that request the same order the best paid gets it. 32 vehicles, {SEEDS} seeds each in one vmapped program with
`configs/tuned/<algo>_ride_dispatch.yaml` (those of QMIX were searched for by hand on this city, those of IPPO and MAPPO were
not), greedy policies of the best evaluation, on the same half hours as the rules in italics, which match all vehicles and orders
at once. ±: 95 % t interval, over seeds where learned.""",
            {"candidates": candidates_table},
        ),
        Section(
            "A team's reward, by its size",
            f"""The Q-learners of the previous table with fewer vehicles and as many orders for each. QMIX learns from the mean of
the vehicles' rewards, or from their sum (`algo.reward_scale`), independent learners each from its own. {SEEDS} seeds; ±: 95 % t
interval over seeds.""",
            {"fleets": fleets_table},
            """Independent learners earn more at every size. QMIX, with summed rewards, earns an eighth less with four vehicles,
and a quarter less with 16 and 32: independent learners earn more for each vehicle up to 16, QMIX, with either reward, no more
from 8 on. The sum is a little better than the mean; with 32 vehicles the interval of the difference includes 0. All take settings
that were searched for with independent learners and 32 vehicles. On tasks like this one, where every agent has a reward of its
own, learn from that (`algo.mixer=none`), and keep QMIX for rewards that only a team has. Difference rewards were not tried with
it; the marginal values above are learnt from such rewards.""",
        ),
        Section("When one step is enough", "", {"verdict": verdict}),
        Section(
            "What matters",
            f"""One factor changed at a time of `configs/tuned/ospo_ride_dispatch.yaml`, with 32 vehicles (`env.preset=demo`),
{SEEDS} seeds; reward by both weights of the matching. In italics scripted policies, over episodes. The table shows:

- **How training explores** matters most. Where matchings of perturbed weights are played, the data does not come from the softmax
  whose probabilities the loss compares, and policies are far below one-step matching (*exploring by huge weights*, *the papers'
  choices*). So vehicles sample for themselves, and the environment settles conflicts.
- **Which agents are compared**: leaving out those that wait (*waiting ignored*) makes runs unsteady; to forbid waiting, to
  compare it, or to learn it makes no difference to rewards of one step.
- **Looking ahead** pays only together with waiting as an action; either by itself changes nothing.
- **The scorer**: an MLP of every pair learns what a product of two embeddings does not (*two towers*). Attention among
  vehicles and orders before it, as in Triple-BERT, earns less after as many steps, also where the learner looks ahead: one layer
  of width 16 before the MLP of pairs (*attention*), or three of width 64 before the product at a tenth of its learning rate (*two
  towers, attention*).
- **Staying near the best snapshot** holds policies back: a snapshot that is best by chance early on remains the model.
- Baseline, group, equity penalty and entropy bonus matter little. GRPO's logits are worse than its probabilities.""",
            {"matters": change_table},
        ),
        Section(
            "Price of a minute",
            f"Reward by price on {PRICE_EPISODES} half hours for training.",
            {"prices": price_table},
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
