"""Training can be traced for every registered environment, as ``jax.jit(make_train(…))(key)``."""

import jax
import pytest

import marljax
from marljax import registry
from marljax.algos import ippo
from marljax.errors import UserError
from marljax.wrappers import from_gymnax, jaxmarl_families

OPTIONS = {
    "ride_dispatch": {"preset": "demo", "view": "candidates"},
    "collective": {"agents": 8},
    "pathfinding": {"maps": "small"},
}
DOWNLOADS = ("gymnax/MNISTBandit-bsuite",)
NAMES = [
    *registry.ENVIRONMENTS,
    *(f"gymnax/{name}" for name in from_gymnax.names()),
    *(f"jaxmarl/{name}" for name in jaxmarl_families.names()),
]
CONFIG = ippo.Config(total_steps=8, num_envs=2, rollout_length=4, num_epochs=1, num_minibatches=1, hidden=(4,))


@pytest.mark.parametrize("name", NAMES)
def test_a_jitted_run_can_be_traced(name):
    if name in DOWNLOADS:
        pytest.skip("downloads its images")
    try:
        env = marljax.make(name, **OPTIONS.get(name, {}))
    except UserError as missing:  # optional dependencies of JaxMARL, and environments that do not follow its API
        pytest.skip(str(missing))
    result = jax.eval_shape(jax.jit(marljax.make_train(ippo, env, CONFIG)), jax.random.key(0))
    assert result.diverged_at.shape == ()
    assert result.state.learner.updates.shape == ()
