"""Scripted policies for ``ride_dispatch``."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from marljax.core.types import TimeStep
from marljax.envs.ride_dispatch import RideDispatch, RideParams
from marljax.training.evaluation import ScriptedPolicy
from marljax.utils.assignment import match


class Worth(NamedTuple):
    """Weights of a pair's worth."""

    random: float = 0.0  # of a uniform draw
    pickup: float = 0.0  # of the minutes until the pickup
    reward: float = 0.0  # of the assignment
    busy: float = 0.0  # of the minutes of pickup and direct ride


@dataclasses.dataclass(frozen=True)
class Matcher:
    """Matching of all free vehicles and open orders: ``policy((env_params, worth), key, state, timestep, carry)``.

    Vehicles that cannot decline take as many orders as possible. ``method`` is that of ``assignment.match``.
    """

    env: RideDispatch
    declines: bool = False
    method: str = "exact"

    def __call__(self, params: tuple[RideParams, Worth], key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> Any:
        env_params, weight = params
        mask, pairs = timestep.action_mask[:, :-1], self.env.pairs(state, env_params)
        worth = weight.random * jax.random.uniform(key, mask.shape) + weight.pickup * pairs.pickup
        worth += weight.reward * pairs.reward + weight.busy * (pairs.pickup + pairs.ride)
        return match(worth, mask, 0.0 if self.declines else None, self.method), carry


# Reward per minute of a vehicle's time that maximises the reward on training seeds:
# ``python baselines/ride_dispatch.py prices``
PRICES = {"manhattan-1000": 0.1, "manhattan-400": 0.4, "manhattan-300": 0.5, "demo": 0.4}
PRICED = "minus opportunity cost"
RULES = {
    "random matching": Worth(random=1.0),
    "nearest pickup": Worth(pickup=-1.0),
    "one-step reward": Worth(reward=1.0),
    PRICED: Worth(reward=1.0),
}


def price_of(name: str, preset: str) -> float:
    """A policy's price of a minute of a vehicle's time."""
    return PRICES[preset] if name == PRICED else 0.0


def scripted_policies(env: RideDispatch, env_params: RideParams) -> dict[str, ScriptedPolicy]:
    """By name; they choose among all pairs, whatever view the agents have. Prices are the preset's."""
    prices = {name: price_of(name, env.preset) for name in RULES}
    return {
        f"{name} ({price:g}/min)" if price else name: scripted_policy(env, env_params, name) for name, price in prices.items()
    }


def scripted_policy(env: RideDispatch, env_params: RideParams, name: str) -> ScriptedPolicy:
    """One of ``RULES``."""
    env = dataclasses.replace(env, view="pairs")
    return matching(env, env_params, RULES[name]._replace(busy=-price_of(name, env.preset)))


def matching(env: RideDispatch, env_params: RideParams, worth: Worth, method: str = "exact") -> ScriptedPolicy:
    """A rule as a policy; with a price of time vehicles decline orders of negative worth."""
    params = jax.tree.map(jnp.asarray, (env_params, worth))
    return ScriptedPolicy(env, env_params, Partial(Matcher(env, worth.busy < 0, method), params))
