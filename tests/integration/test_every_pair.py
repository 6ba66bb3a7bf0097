"""Every algorithm with every environment: it trains, or one line says why it cannot."""

import itertools
import re
from pathlib import Path

import chex
import jax
import pytest

from marljax.config import compose
from marljax.errors import UserError
from marljax.training import mesh
from marljax.training.trainer import Trainer

# Environments by name, with the overrides of a small one.
ENVIRONMENTS = {
    "merge": ("env=merge",),
    "smax": ("env=smax", "env.scenario=3m"),
    "ride_dispatch": ("env=ride_dispatch", "env.preset=demo", "env.view=candidates"),
    "swarm": ("env=swarm", "env.preset=static_same", "env.drones=3", "env.neighbours=1"),
    "collective": ("env=collective", "env.agents=8"),
    "pathfinding": ("env=pathfinding", "env.maps=small"),
    "jaxmarl/MPE_simple_spread_v3": ("env=jaxmarl/MPE_simple_spread_v3",),
    "gymnax/CartPole-v1": ("env=gymnax/CartPole-v1",),
}
ALGORITHMS = {
    **dict.fromkeys(("ppo", "ippo", "mappo"), ("algo.num_minibatches=2", "algo.num_epochs=1")),
    "qmix": ("algo.batch_size=4", "algo.buffer_size=64", "algo.learning_starts=0"),
    "pqn": ("algo.num_minibatches=2", "algo.num_epochs=1"),
    "ospo": ("algo.num_minibatches=2", "algo.num_epochs=1"),
    "values": ("algo.batch_size=16",),
}
VIEWS = {("values", "ride_dispatch"): "env.view=afterstates"}  # in place of candidates
SMALL = ("tuned=none", "algo.num_envs=2", "algo.rollout_length=4", "algo.total_steps=16", "algo.hidden=[8,8]")
IMPOSSIBLE = {
    ("qmix", "swarm"): "qmix needs discrete actions, and those of Swarm are Box",
    ("qmix", "collective"): "qmix needs discrete actions, and those of Collective are Box",
    ("pqn", "swarm"): "pqn needs discrete actions, and those of Swarm are Box",
    ("pqn", "collective"): "pqn needs discrete actions, and those of Collective are Box",
    ("ospo", "gymnax/CartPole-v1"): "ospo compares the agents of a step, and CartPole_v1 has one",
    **{("values", env): "values needs the afterstates of all actions" for env in ENVIRONMENTS if env != "ride_dispatch"},
}
# Each algorithm and each environment at least once.
COVER = [
    ("ppo", "gymnax/CartPole-v1"),
    ("ppo", "merge"),
    ("ippo", "swarm"),
    ("mappo", "collective"),
    ("qmix", "smax"),
    ("qmix", "pathfinding"),
    ("qmix", "jaxmarl/MPE_simple_spread_v3"),
    ("pqn", "smax"),
    ("ospo", "ride_dispatch"),
    ("values", "ride_dispatch"),
]
PAIRS = list(itertools.product(ALGORITHMS, ENVIRONMENTS))


def prepared(algo, env):
    """A function that trains two updates of a pair, and its arguments."""
    words = [VIEWS.get((algo, env), word) if word.startswith("env.view=") else word for word in ENVIRONMENTS[env]]
    run = compose.compose(algo, [*words, *SMALL, *ALGORITHMS[algo]])
    trainer = Trainer(run.algorithm, run.training_env, run.config, mesh.make_mesh())

    def train(keys, env_params):
        return trainer.run(trainer.init(keys, env_params), 2)

    return train, (jax.random.split(jax.random.key(0), 1), run.training_params)


@pytest.mark.parametrize(("algo", "env"), [pair for pair in PAIRS if pair not in COVER])
def test_every_pair_has_a_program_or_a_reason(algo, env):
    train, arguments = prepared(algo, env)
    if (algo, env) in IMPOSSIBLE:
        with pytest.raises(UserError, match=re.escape(IMPOSSIBLE[algo, env])) as caught:
            jax.eval_shape(train, *arguments)
        assert "\n" not in str(caught.value)
        return
    replicas, metrics = jax.eval_shape(train, *arguments)
    assert {"episodes", "sum_return", "sum_length"} <= set(metrics)
    assert replicas.state.learner.updates.shape == (1,)


@pytest.mark.parametrize(
    ("algo", "env"),
    [pair if pair in COVER else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS if pair not in IMPOSSIBLE],
)
def test_two_updates_are_finite(algo, env):
    train, arguments = prepared(algo, env)
    replicas, metrics = train(*arguments)
    assert {"episodes", "sum_return", "sum_length"} <= set(metrics)
    assert replicas.diverged_at.tolist() == [-1]
    chex.assert_tree_all_finite((replicas.state.learner.params, metrics))


def test_the_documentation_lists_the_same():
    """Its table has a row for every algorithm, with a tick for every possible pair."""
    text = (Path(__file__).parents[2] / "docs" / "algorithms" / "index.md").read_text(encoding="utf-8")
    table = text.split("<!-- every pair -->")[1].strip().split("\n\n")[0].splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    header, body = rows[0][1:], {row[0]: row[1:] for row in rows[2:]}
    assert [name.split("/")[0] for name in header] == [name.split("/")[0] for name in ENVIRONMENTS]
    assert list(body) == list(ALGORITHMS)
    for (algo, env), cell in zip(PAIRS, itertools.chain(*(body[algo] for algo in ALGORITHMS)), strict=True):
        assert ((algo, env) in IMPOSSIBLE) == (cell != "✓"), (algo, env)


def test_only_ospo_chooses_among_shared_items():
    with pytest.raises(UserError, match=r"env\.view=candidates"):
        compose.compose("ppo", ["env=ride_dispatch", "env.preset=demo"])
