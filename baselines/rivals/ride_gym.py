"""The package ride-gym, for comparison."""

from typing import Any

import numpy as np

from marljax.envs.ride_dispatch import FREE_FLOW, RideDispatch, RideParams
from marljax.envs.ride_dispatch.fleet import Travel

STEPS = 20
WARM_UP = 8  # minutes of one-step matching before a matching is timed


def ride_gym(env: RideDispatch, env_params: RideParams) -> Any:
    """ride-gym's environment with uniform demand over the city's rectangle, which costs no less to simulate than ours."""
    import ride_gym

    demand, minutes, first = env_params.demand, int(env_params.duration), int(env_params.start)
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
    """Plays an episode and returns its steps; each waiting order goes to a random vehicle with an empty seat, one per vehicle."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    done, steps = False, 0
    while not done:
        actions: dict[int, dict[str, list[int]]] = {vehicle: {"orders": []} for vehicle in obs}
        waiting = [order["order_id"] for order in next(iter(obs.values()))["pending_orders"]]
        free = [vehicle for vehicle, own in obs.items() if own["self"]["onboard_passengers"] < own["self"]["capacity"]]
        for vehicle, order in zip(rng.permutation(free).tolist(), waiting, strict=False):
            actions[vehicle]["orders"] = [order]
        obs, _, dones, _ = env.step(actions)
        done, steps = dones["__all__"], steps + 1
    return steps
