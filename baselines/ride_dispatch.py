"""What a learned policy for ``ride_dispatch`` must beat, and the tables that say whether it does.

    python baselines/ride_dispatch.py                 # all of baselines/results/ride_dispatch.md
    python baselines/ride_dispatch.py scripted        # one part: prices or scripted

Every cell of a table is kept in ``baselines/results/ride_dispatch/``: a command that was stopped goes on where it was, and a
finished cell is not computed again. Delete a cell's file to compute it anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from marljax.baselines import tables
from marljax.baselines.tables import Cells, Figures, markdown_table, mean_interval
from marljax.environment import TimeStep
from marljax.envs.ride_dispatch import RideDispatch, RideParams
from marljax.evaluate import Evaluator, Rival
from marljax.matching import match

RESULTS = Path(__file__).parent / "results"
EPISODES = 20
AT_ONCE = 4  # episodes in one program: what scores every pair is large
PLAYED = ("manhattan-1000", "manhattan-400", "manhattan-300")
PRICE_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
PRICE_EPISODES = 8
# OSPO's and Triple-BERT's own experiments
PUBLISHED = {
    "random matching, published": ("12,810–12,860", "92.7–92.9", "7.6", "12.3", "3.1", "0.8"),
    "GRPO, published": ("13,614", "96.9", "7.1", "12.0", "2.8", "0.03"),
    "OSPO, published": ("14,077", "98.7", "6.9", "11.8", "2.7", "0.02"),
    "Triple-BERT, published, at best": ("16,280", "–", "–", "–", "–", "–"),
}


@dataclasses.dataclass(frozen=True)
class Matcher:
    """Matching of all free vehicles and open orders: ``policy(numbers, key, state, timestep, carry)``.

    ``rule`` says what a pair is worth: ``random``, ``nearest`` (minus the pickup time) or ``reward`` (of the assignment, minus a
    price per minute that the vehicle would be kept busy by pickup and direct ride). Vehicles that cannot decline take as many
    orders as possible. ``method`` is ``matching.match``'s.
    """

    env: RideDispatch
    rule: str
    declines: bool = False
    method: str = "exact"

    def __call__(self, numbers: tuple[RideParams, Any], key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> Any:
        env_params, price = numbers
        mask = timestep.action_mask[:, :-1]
        if self.rule == "random":
            worth = jax.random.uniform(key, mask.shape)
        else:
            pairs = self.env.pairs(state, env_params)
            worth = -pairs.pickup if self.rule == "nearest" else pairs.reward - price * (pairs.pickup + pairs.ride)
        return match(worth, mask, 0.0 if self.declines else None, self.method), carry


# Reward per minute of a vehicle's time, where it is highest on training seeds (demo: a guess):
# ``python baselines/ride_dispatch.py prices``
PRICES = {"manhattan-1000": 0.1, "manhattan-400": 0.4, "manhattan-300": 0.5, "demo": 0.2}
RULES = {
    "random matching": "random",
    "nearest pickup": "nearest",
    "one-step reward": "reward",
    "minus opportunity cost": "reward",
}
PRICED = "minus opportunity cost"


def price_of(name: str, preset: str) -> float:
    """What a policy charges for a minute of a vehicle's time."""
    return PRICES[preset] if name == PRICED else 0.0


def rivals(env: RideDispatch, env_params: RideParams) -> dict[str, Rival]:
    """By name; they choose among all pairs, whatever view the agents have."""
    env = dataclasses.replace(env, view="pairs")
    return {name: matching(env, env_params, rule, price_of(name, env.preset)) for name, rule in RULES.items()}


def matching(env: RideDispatch, env_params: RideParams, rule: str, price: float = 0.0, method: str = "exact") -> Rival:
    """A rule as a policy; with a ``price`` per minute of a vehicle's time vehicles decline what is worth less than nothing."""
    numbers = jax.tree.map(jnp.asarray, env_params), jnp.asarray(price)
    return Rival(env, env_params, Partial(Matcher(env, rule, price > 0, method), numbers))


def scripted_table(cells: Cells) -> str:
    """Every rule in every city."""
    rows, missing = [], []
    for preset in PLAYED:
        for name in RULES:
            figures = scripted_cell(cells, preset, name)
            if figures is None:
                missing.append(f"{preset}: {name}")
            else:
                rows.append([preset, name, *columns(figures)])
        rows += [[preset, f"*{name}*", *published] for name, published in PUBLISHED.items() if preset == "manhattan-1000"]
    return tables.with_missing(missing, markdown_table(["", "policy", *COLUMNS], rows))


def scripted_cell(cells: Cells, preset: str, name: str) -> Figures | None:
    """One rule in one city."""
    env = RideDispatch(preset)
    rival = rivals(env, env.default_params)[name]
    about = {"policy": name, "price": price_of(name, preset), "env": str(env), "episodes": EPISODES}
    return cells.get(f"scripted {preset} {name}", about, lambda: tables.play_scripted(rival, EPISODES, AT_ONCE))


COLUMNS = ("reward", "served, %", "pickup, min", "delivery, min", "detour, min", "confirmation, min")


def columns(figures: Figures) -> list[str]:
    """With intervals over episodes."""
    minutes = [mean_interval(figures[name], 2) for name in ("pickup", "delivery", "detour", "confirmation")]
    return [mean_interval(figures["reward"], 0), mean_interval(figures["service"], 1, 100), *minutes]


def price_table(cells: Cells) -> str:
    """The opportunity cost, tuned on scenarios of their own."""
    rows, missing = [], []
    for preset in PLAYED:
        found = [price_cell(cells, preset, price) for price in PRICE_GRID]
        if any(figures is None for figures in found):
            missing.append(preset)
            continue
        rows.append([preset, *(mean_interval(figures["reward"], 0) for figures in found if figures)])
    return tables.with_missing(missing, markdown_table(["price per minute", *map(str, PRICE_GRID)], rows))


def price_cell(cells: Cells, preset: str, price: float) -> Figures | None:
    """A price on training scenarios."""
    env = RideDispatch(preset)

    def train() -> Figures:
        rival = matching(env, env.default_params, "reward", price)
        evaluator = Evaluator(env, AT_ONCE)
        keys = jax.random.split(jax.random.key(0), PRICE_EPISODES // AT_ONCE)
        parts = [evaluator.scripted(rival.policy, rival.env_params, key) for key in keys]
        return tables.summarise({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    about = {"price": price, "env": str(env), "episodes": PRICE_EPISODES}
    return cells.get(f"price {preset} {price}", about, train)


PARTS = {"prices": price_table, "scripted": scripted_table}

PAGE_TEXT = """# `ride_dispatch`: results

Made by `python baselines/ride_dispatch.py`; {versions}.

## Scripted policies

All match free vehicles and open orders exactly, every minute. *Minus opportunity cost*: the reward of the assignment minus a
price per minute that the vehicle is kept busy (pickup and direct ride), and vehicles decline what is worth less than nothing.
{episodes} frozen half hours from 19:00, mean ± 95 % t interval; reward: sum over the fleet, discounted by 0.99 a minute. In
italics what the papers report of the setting that `manhattan-1000` follows.

{scripted}

## Price of a minute

Reward by price on {price_episodes} half hours for training.

{prices}
"""


def page(sections: dict[str, str]) -> str:
    """``baselines/results/ride_dispatch.md``."""
    return PAGE_TEXT.format(versions=tables.describe_versions(), episodes=EPISODES, price_episodes=PRICE_EPISODES, **sections)


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "ride_dispatch", PARTS, page)
