"""The package ride-gym, for comparison."""

from typing import Any

import numpy as np

from marljax.envs.ride_dispatch import FREE_FLOW, RideDispatch, RideParams
from marljax.envs.ride_dispatch.fleet import Travel

STEPS = 20
WARM_UP = 8  # minutes of one-step matching before a matching is timed


def ride_gym(env: RideDispatch, env_params: RideParams) -> Any:
    """The rival's environment; its demand is uniform over the city's rectangle, which costs no less to simulate than ours."""
    import ride_gym

    demand, minutes = env_params.demand, int(env_params.duration)
    first = int(env_params.start)
    orders = int(env_params.demand_scale * np.asarray(demand.rate)[first : first + minutes].sum())
    area = tuple(float(side) for side in (np.min(demand.up), np.min(demand.cross), np.max(demand.up), np.max(demand.cross)))
    return ride_gym.RidePoolEnv(
        area=area,
        num_drivers=int(env_params.fleet),
        driver_capacity=int(env_params.capacity),
        dt=1.0,
        horizon=float(minutes),
        order_timeout=float(env_params.patience),
        order_generator=ride_gym.RandomOrderGenerator(
            area=area, horizon=float(minutes), num_orders=orders, arrival="poisson", max_party_size=1, rng=0
        ),
        road_network=ride_gym.ManhattanNetwork(speed=FREE_FLOW / 60 / Travel.stretch),
    )


def ride_gym_episode(env: Any, rng: np.random.Generator) -> int:
    """Plays one episode and returns its steps; every waiting order goes to a random vehicle that has an empty seat and was given
    nothing else."""
    seen, _ = env.reset(seed=int(rng.integers(2**31)))
    done, steps = False, 0
    while not done:
        actions: dict[int, dict[str, list[int]]] = {number: {"orders": []} for number in seen}
        waiting = [order["order_id"] for order in next(iter(seen.values()))["pending_orders"]]
        room = [number for number, one in seen.items() if one["self"]["onboard_passengers"] < one["self"]["capacity"]]
        for number, order in zip(rng.permutation(room).tolist(), waiting, strict=False):
            actions[number]["orders"] = [order]
        seen, _, dones, _ = env.step(actions)
        done, steps = dones["__all__"], steps + 1
    return steps
