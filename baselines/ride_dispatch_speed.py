"""More measurements of ``baselines/speed.py env=ride_dispatch``: fleets of other sizes, matchings."""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp

from marljax.baselines.harness.measure import Row, call_time, run_in_process
from marljax.baselines.policies.ride_dispatch import Worth, matching
from marljax.baselines.rivals.ride_gym import STEPS, WARM_UP
from marljax.envs.ride_dispatch import RideDispatch, RideParams
from marljax.reporting.tables import markdown_table
from marljax.training.evaluation import RandomPolicy
from marljax.utils.assignment import METHODS, match

FLEETS = (100, 300, 1000, 3000, 10_000)
ORDERS_PER_VEHICLE = 0.384  # slots of the order table, as with a thousand vehicles
MATCHED = ("manhattan-1000", "manhattan-300")
CALLS = 5  # of which the median is taken


def measure_fleet(vehicles: int) -> Row:
    """Milliseconds of a step of one environment of this size, of computing all its pairs, and its size in KiB."""
    env = RideDispatch(vehicles=vehicles, orders=max(32, round(ORDERS_PER_VEHICLE * vehicles / 32) * 32))
    env_params = env.default_params.replace(demand_scale=vehicles / 1000)
    policy = RandomPolicy(env)
    state, timestep = env.reset(jax.random.key(0), env_params)

    def steps(key: jax.Array, carried: Any, env_params: RideParams) -> Any:
        def one(carried: Any, key: jax.Array) -> tuple[Any, None]:
            key_policy, key_step = jax.random.split(key)
            state, timestep = carried
            action, _ = policy(key_policy, state, timestep, ())
            return env.step(key_step, state, action, env_params), None

        return jax.lax.scan(one, carried, jax.random.split(key, STEPS))[0]

    def kib(tree: Any) -> float:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / 1024

    sizes = {"orders": env.orders, "state_kib": kib(state), "timestep_kib": kib(timestep)}
    step_ms = 1e3 * call_time(steps, (jax.random.key(1), (state, timestep), env_params), CALLS) / STEPS
    return sizes | {"step_ms": step_ms, "pairs_ms": 1e3 * call_time(env.pairs, (state, env_params), CALLS)}


def measure_matching(preset: str) -> Row:
    """Milliseconds of each way of matching, and the share of the largest total it finds, on the rewards of a minute of play."""
    env = RideDispatch(preset)
    env_params = env.default_params
    policy = jax.jit(matching(env, env_params, Worth(reward=1.0)).policy)
    state, timestep = env.reset(jax.random.key(0), env_params)
    for minute in range(WARM_UP):
        action, _ = policy(jax.random.key(minute), state, timestep, ())
        state, timestep = env.step(jax.random.key(minute), state, action, env_params)
    weights, mask = env.pairs(state, env_params).reward, timestep.action_mask[:, :-1]
    metrics, totals = {"free": float(mask.any(1).sum()), "open": float(mask.any(0).sum())}, {}
    for method in METHODS:
        run = jax.jit(lambda weights, mask, method=method: match(weights, mask, method=method))
        found = run(weights, mask)
        chosen = found[:, None] == jnp.arange(env.orders)
        totals[method] = float(jnp.sum(jnp.where(chosen, weights, 0.0)))
        metrics[f"{method}_ms"] = 1e3 * call_time(run, (weights, mask), CALLS)
    return metrics | {f"{method}_share": total / totals["exact"] for method, total in totals.items()}


def sections() -> list[str]:
    """Paragraphs of the page; each row is measured in a process of its own."""
    fleets = [run_in_process(__file__, "fleet", str(vehicles)) for vehicles in FLEETS]
    return describe(fleets, [run_in_process(__file__, "matching", preset) for preset in MATCHED])


def describe(fleets: list[Row], matchings: list[Row]) -> list[str]:
    """Paragraphs from the rows of ``FLEETS`` and ``MATCHED``."""
    fleet_columns = {"step_ms": 2, "pairs_ms": 1, "state_kib": 0, "timestep_kib": 0}
    rows = [
        [f"{vehicles:,}", f"{row['orders']:.0f}", *(f"{row[name]:,.{places}f}" for name, places in fleet_columns.items())]
        for vehicles, row in zip(FLEETS, fleets, strict=True)
    ]
    matched = [
        [preset, f"{row['free']:.0f}", f"{row['open']:.0f}", *(f"{row[f'{way}_ms']:.1f}" for way in METHODS)]
        + [f"{100 * row[f'{way}_share']:.2f}" for way in METHODS]
        for preset, row in zip(MATCHED, matchings, strict=True)
    ]
    shares = [f"{way}'s total, %" for way in METHODS]
    return [
        "## Size of the fleet",
        f"One environment with as many orders a vehicle as `manhattan-1000`, and {ORDERS_PER_VEHICLE} slots for them a vehicle; "
        "random actions. All pairs: the outcome of assigning every order to every vehicle, which matchings by reward need.",
        markdown_table(["vehicles", "orders", "step, ms", "all pairs, ms", "state, KiB", "timestep, KiB"], rows),
        "## Matching",
        "One-step rewards of a minute of play, one instance at a time.",
        markdown_table(["", "free vehicles", "open orders", *(f"{way}, ms" for way in METHODS), *shares], matched),
    ]


if __name__ == "__main__":
    kind, size = sys.argv[1:]
    print(json.dumps(measure_fleet(int(size)) if kind == "fleet" else measure_matching(size)))
