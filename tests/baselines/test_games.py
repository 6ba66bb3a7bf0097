"""The small games: payoffs and transitions of every joint action."""

import itertools

import jax
import numpy as np
import pytest

from marljax.baselines import games
from marljax.errors import UserError
from marljax.testing import conformance


@pytest.mark.parametrize("env", [games.Matrix("climbing"), games.TwoStep()], ids=repr)
def test_contract(env):
    conformance.check_env(env)


@pytest.mark.parametrize(
    ("game", "table"),
    [
        # Claus and Boutilier 1998, figures 2 and 3, with the names of the actions as numbers
        ("climbing", [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]),
        ("penalty", [[10, 0, -100], [0, 2, 0], [-100, 0, 10]]),
    ],
)
def test_payoffs_of_the_matrix_games(game, table):
    env = games.Matrix(game)
    state, _ = env.reset(jax.random.key(0))
    actions = np.array(list(itertools.product(range(3), repeat=2)))
    _, timestep = jax.vmap(env.step, in_axes=(None, None, 0))(jax.random.key(1), state, actions)
    np.testing.assert_array_equal(timestep.reward, np.repeat(np.ravel(table), 2).reshape(9, 2))
    assert timestep.terminated.all()
    assert np.max(table) == games.PLAYED[game][1]


def test_the_two_step_game_is_that_of_the_paper():
    """The first agent's first action chooses between 7 in any case, and 0, 1, 1 or 8."""
    env, found = games.TwoStep(), {}
    start, _ = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for first, other, *second in itertools.product(range(2), repeat=4):
        state, timestep = step(jax.random.key(1), start, np.array([first, other]))
        assert (timestep.reward == 0).all()
        assert not timestep.last
        np.testing.assert_array_equal(timestep.obs, [np.eye(3)[1 + first]] * 2)
        _, timestep = step(jax.random.key(1), state, np.array(second))
        assert timestep.terminated
        found[first, other, *second] = timestep.reward.tolist()
    for (first, _, *second), reward in found.items():
        assert reward == [7.0 if first == 0 else (0.0, 1.0, 8.0)[sum(second)]] * 2


def test_unknown_games_are_rejected():
    with pytest.raises(UserError, match=r"game.*climbing"):
        games.Matrix("climbin")
