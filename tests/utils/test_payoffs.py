"""Ratings and equilibria against values computed by other people's code (open_spiel, FightLadder) or known by hand."""

import numpy as np
import pytest

from marljax.errors import UserError
from marljax.utils import payoffs

WINS = [[0, 4, 2], [1, 0, 2], [3, 3, 0]]
ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
WITH_TWO_SCISSORS = ROCK_PAPER_SCISSORS[np.ix_([0, 1, 2, 2], [0, 1, 2, 2])]


@pytest.mark.parametrize(("prior", "above_lowest"), [(0.0, (147.19, 0.0, 147.19)), (0.5, (120.41, 0.0, 120.41))])
def test_elo_matches_open_spiel(prior, above_lowest):
    found = payoffs.elo(WINS, prior)
    np.testing.assert_allclose(found - found.min(), above_lowest, atol=0.01)
    assert found.mean() == pytest.approx(1200.0)


def test_elo_of_an_unbeaten_player_needs_the_prior():
    unbeaten = [[0, 3], [0, 0]]
    assert payoffs.elo(unbeaten)[0] > 1200.0
    with pytest.raises(UserError, match="prior"):
        payoffs.elo(unbeaten, prior=0.0)


def test_davidson_is_elo_without_draws_and_finds_the_rate_of_draws():
    found = payoffs.davidson(WINS, np.zeros((3, 3)))
    np.testing.assert_allclose(found.elo, payoffs.elo(WINS), atol=0.5)
    assert found.draw < 0.01
    strength, draw = np.array([2.0, 1.0, 0.5]), 0.8
    even = draw * np.sqrt(np.outer(strength, strength))
    total = strength[:, None] + strength[None, :] + even
    recovered = payoffs.davidson(1e4 * strength[:, None] / total, 1e4 * even / total, prior=0.0)
    np.testing.assert_allclose(recovered.elo - 1200.0, 400.0 * np.log10(strength), atol=0.1)
    assert recovered.draw == pytest.approx(draw, rel=1e-3)


@pytest.mark.parametrize(
    ("payoff", "shares", "values"),
    [
        ([[0, -1, -1], [1, 0, -1], [1, 1, 0]], (0, 0, 1), (-1, -1, 0)),
        (ROCK_PAPER_SCISSORS, (1 / 3, 1 / 3, 1 / 3), (0, 0, 0)),
        (WITH_TWO_SCISSORS, (1 / 3, 1 / 3, 1 / 6, 1 / 6), (0, 0, 0, 0)),
        (
            [[0, 234, 34, -270], [-234, 0, -38, -464], [-34, 38, 0, -270], [270, 464, 270, 0]],
            (0, 0, 0, 1),
            (-270, -464, -270, 0),
        ),
        (np.zeros((3, 3)), (1 / 3, 1 / 3, 1 / 3), (0, 0, 0)),
    ],
    ids=["transitive", "rock paper scissors", "a copy", "FightLadder", "all equal"],
)
def test_nash_averaging(payoff, shares, values):
    found = payoffs.nash_average(payoff)
    np.testing.assert_allclose(found.shares, shares, atol=1e-4)
    np.testing.assert_allclose(found.values, values, atol=1e-3 * max(1.0, np.abs(payoff).max()))


def test_nash_averaging_of_agents_and_tasks():
    payoff = [[0, 0, 0], [1, 10, 100], [2, 20, 200], [3, 30, 300], [3, 30, 300]]
    np.testing.assert_allclose(payoffs.nash_average(payoff).shares, (0, 0, 0, 0.5, 0.5), atol=1e-4)


def test_nash_mixtures_of_random_games_cannot_be_exploited():
    random = np.random.default_rng(0)
    for size in (2, 5, 12, 30):
        payoff = random.normal(size=(size, size))
        payoff -= payoff.T
        assert payoffs.exploitability(payoff, payoffs.nash_average(payoff).shares) < 1e-4 * np.abs(payoff).max()


def test_copies_get_equal_shares_and_change_no_values():
    for seed in range(30):
        random = np.random.default_rng(seed)
        payoff = random.integers(-16, 17, (6, 6)) / 16
        payoff = np.triu(payoff, 1) - np.triu(payoff, 1).T
        copied = payoff[np.ix_([0, 1, 2, 3, 4, 5, 0, 0], [0, 1, 2, 3, 4, 5, 0, 0])]
        once, thrice = payoffs.nash_average(payoff), payoffs.nash_average(copied)
        np.testing.assert_allclose(thrice.shares[[6, 7]], thrice.shares[0], atol=2e-3, err_msg=str(seed))
        assert payoffs.exploitability(copied, thrice.shares) < 1e-4
        assert once.values.max() < 1e-4


def test_noise_is_not_taken_for_cycles():
    random, found = np.random.default_rng(0), []
    for _ in range(200):
        noise = np.triu(random.normal(0.0, 0.05, (5, 5)), 1)
        rating = np.linspace(-0.15, 0.15, 5)
        found.append(payoffs.cyclic_share(rating[:, None] - rating[None, :] + noise - noise.T, 0.05**2))
    assert np.mean(found) < 0.03


def test_cyclic_share():
    rating = np.array([3.0, 1.0, -2.0, 0.5])
    transitive = rating[:, None] - rating[None, :]
    assert payoffs.cyclic_share(transitive) == pytest.approx(0.0, abs=1e-12)
    assert payoffs.cyclic_share(ROCK_PAPER_SCISSORS) == pytest.approx(1.0)
    both = payoffs.cyclic_share(ROCK_PAPER_SCISSORS + 2.0 * transitive[:3, :3])
    assert 0.0 < both < 1.0
    with pytest.raises(UserError, match="antisymmetric"):
        payoffs.cyclic_share([[0, 1], [1, 0]])


@pytest.mark.parametrize(("aversion", "stag"), [(0.0, 0.988), (0.05, 0.012), (0.3, 0.012), (1.0, 0.012)])
def test_risk_aversion_hunts_the_hare(aversion, stag):
    """The stag pays more, and the hare never fails (Slumbers et al. 2023)."""
    found = payoffs.risk_averse_equilibrium([[8.0, -2.0], [3.0, 2.5]], aversion)
    np.testing.assert_allclose(found, (stag, 1.0 - stag), atol=2e-3)


@pytest.mark.parametrize("aversion", [0.0, 0.1, 1.0])
def test_risk_aversion_changes_nothing_where_all_is_even(aversion):
    found = payoffs.risk_averse_equilibrium(ROCK_PAPER_SCISSORS, aversion)
    np.testing.assert_allclose(found, np.full(3, 1 / 3), atol=0.05)


@pytest.mark.parametrize("call", [payoffs.elo, payoffs.cyclic_share, payoffs.nash_average])
@pytest.mark.parametrize("matrix", [[], [1.0, 2.0], [[0.0, np.nan], [0.0, 0.0]]], ids=["empty", "a vector", "not a number"])
def test_what_is_no_matrix_is_rejected(call, matrix):
    with pytest.raises(UserError, match="matrix"):
        call(matrix)
