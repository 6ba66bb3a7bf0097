"""Whoever watches an episode of ``merge`` can tell where every CAV is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.envs.merge import NUM_CAVS, Merge, road
from marljax.envs.merge.actions import IDLE


@pytest.mark.parametrize(("env", "duration"), [(Merge(), 100), (Merge(open_inflow=True, continue_after_crash=True), 200)])
def test_every_cav_is_in_the_picture_or_accounted_for(env, duration):
    """The parts of the status add up to all CAVs; on the closed road all are in view to the end of a default episode."""
    env_params = env.default_params.replace(cavs_min=6, cavs_drive_as_humans=True, duration=duration)

    @jax.jit
    def run(key):
        def body(state, key):
            state, _ = env.step(key, state, jnp.full(NUM_CAVS, IDLE), env_params)
            return state, (env.scene(state, env_params), state)

        return jax.lax.scan(body, env.initial(key, env_params), jax.random.split(key, duration))[1]

    scenes, states = jax.tree.map(np.asarray, run(jax.random.key(4)))
    status, drawn = scenes.status, scenes.labels.colour[..., 3] > 0
    left, right = scenes.bounds[0, :2]
    in_view = (scenes.labels.position[..., 0] >= left) & (scenes.labels.position[..., 0] <= right)
    np.testing.assert_array_equal(sum(status[1:]), status.CAVs)
    np.testing.assert_array_equal(status.CAVs - status.out_of_view, (drawn & in_view).sum(-1))
    np.testing.assert_array_equal(status.crashed, (states.vehicles.crashed & states.vehicles.alive)[:, :NUM_CAVS].sum(-1))
    assert status.on_the_ramp[0] == (states.on_ramp & states.vehicles.alive[:, :NUM_CAVS])[0].sum() > 0
    assert status.merged[0] == 0 < status.merged.max()
    if env.open_inflow:
        assert status.out_of_view[-1] > 0
    else:
        np.testing.assert_array_equal(status.out_of_view, 0)


def test_the_status_tells_ramp_lane_wreck_and_absence_apart():
    env = Merge()
    state = env.initial(jax.random.key(0), env.default_params.replace(cavs_min=6))
    x, y = jnp.array([900.0, 100.0, 10.0, 400.0, 400.0, 50.0]), jnp.array([0.0, 10.5, 0.0, 4.0, 0.0, 0.0])
    vehicles = state.vehicles
    x, y = jnp.concatenate([x, vehicles.x[6:]]), jnp.concatenate([y, vehicles.y[6:]])
    vehicles = vehicles.replace(x=x, y=y, lane=road.nearest_lane(x, y, jnp.zeros(12)), crashed=jnp.arange(12) == 2)
    state = state.replace(vehicles=vehicles, on_ramp=jnp.array([False, True, False, True, True, False]))
    status = env.scene(state, env.default_params).status
    assert status._asdict() == {
        "CAVs": 6,
        "on_the_ramp": 2,
        "merged": 1,
        "on_the_through_lane": 1,
        "crashed": 1,
        "out_of_view": 1,
    }
