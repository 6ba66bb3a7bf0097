"""Scripted policies for ``ride_dispatch``."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from marljax.core.types import TimeStep
from marljax.envs.ride_dispatch import RideDispatch, RideParams
from marljax.envs.ride_dispatch.afterstates import Densities
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


class Prices(NamedTuple):
    """Prices of an order, found for 300 vehicles by a cross-entropy search. Minutes after the end of the episode are free."""

    pickup: float = 0.06  # per minute until the pickup
    route: float = -0.20  # per minute that the last drop-off is later
    ride: float = -0.34  # per minute until the order would be dropped off if the vehicle were empty
    full: float = -0.24  # per minute until a seat is free again, if the order fills the vehicle
    # The rest falls to 0 until the end of the episode.
    to_demand: float = 0.20  # per demand at the drop-off
    from_demand: float = 0.21  # per demand at the pickup
    load: float = -0.23  # per order aboard


@dataclasses.dataclass(frozen=True)
class PricedMatcher:
    """Matching by the reward of an order and the prices of what it makes of the vehicle, which may decline."""

    env: RideDispatch

    def __call__(self, params: tuple[RideParams, Prices], key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> Any:
        del key
        env_params, price = params
        left, vehicles, trip = env_params.duration - state.minute, state.vehicles, state.orders.trip
        load = jnp.sum(vehicles.seated, axis=0)[:, None]
        route = jnp.max(jnp.where(vehicles.seated, vehicles.remaining, 0.0), axis=0)[:, None]
        near = Densities.of(vehicles, trip, env_params.demand)

        def plan(order: jax.Array) -> tuple[jax.Array, ...]:
            planned = self.env.plan(state, jnp.full(self.env.vehicles, order), env_params)
            until, seated = planned.pickup + planned.vehicles.remaining, planned.vehicles.seated
            first = jnp.min(jnp.where(seated, until, jnp.inf), axis=0)
            return planned.reward, planned.pickup, planned.ride, jnp.max(jnp.where(seated, until, 0.0), axis=0), first

        planned = self.env.for_open_orders(plan, state)
        reward, pickup, ride, last, first = (part[: self.env.orders].T for part in planned)  # [N, M] each
        worth = reward + price.pickup * jnp.minimum(pickup, left) + price.ride * jnp.minimum(pickup + ride, left)
        worth += price.route * (jnp.minimum(last, left) - jnp.minimum(route, left))
        worth += price.full * jnp.where(load == env_params.capacity - 1, jnp.minimum(first, left), 0.0)
        demand = price.to_demand * near.dropoff + price.from_demand * near.pickup
        worth += (demand + price.load * load) * left / env_params.duration
        return match(worth, timestep.action_mask[:, :-1], 0.0), carry


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


def seven_prices(env: RideDispatch, env_params: RideParams) -> ScriptedPolicy:
    """The rule of ``PricedMatcher``."""
    env = dataclasses.replace(env, view="pairs")
    params = jax.tree.map(jnp.asarray, (env_params, Prices()))
    return ScriptedPolicy(env, env_params, Partial(PricedMatcher(env), params))
