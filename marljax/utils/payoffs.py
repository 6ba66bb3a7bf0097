"""Ratings and equilibria from the payoffs between players of a zero-sum game, on the host.

A payoff matrix M has one row per player: M[i, j] is what i earns against j, for battles the share won minus the share lost. With
both sides of every pair counted it is antisymmetric, M = −Mᵀ.

Axis letters: N players, K players of the other side (N where both sides are the same).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from marljax.errors import UserError

ELO_SCALE, ELO_MEAN = 400.0 / np.log(10.0), 1200.0
ROUNDS = 10_000  # of the fixed-point iteration of Bradley–Terry strengths
CLOSE = 1e-10
RESTARTS = 5


class NashAverage(NamedTuple):
    """Shares of the row players in the equilibrium of maximum entropy, and what every row earns against it."""

    shares: np.ndarray  # [N]
    values: np.ndarray  # [N]


class Davidson(NamedTuple):
    """Ratings with a rate of draws."""

    elo: np.ndarray  # [N]
    draw: float  # ν: 0 without draws; two equal players draw ν/(2 + ν) of their games


def elo(wins: ArrayLike, prior: float = 0.5) -> np.ndarray:
    """[N] Elo ratings with mean 1200: the most likely strengths of Bradley and Terry (1952), by the iteration of Hunter (2004).

    Args:
        wins: [N, N] games that the row won against the column, a draw as half a win for both.
        prior: wins added for each side of every pair, which keeps the ratings of unbeaten players finite.

    Raises:
        UserError: without prior, where a player has won or lost all its games, so that no finite rating is the most likely.
    """
    wins = _square(wins, "wins")
    if (wins < 0).any() or prior < 0:
        raise UserError("wins and prior count games; give numbers of at least 0")
    wins = wins + prior * (1.0 - np.eye(len(wins)))
    np.fill_diagonal(wins, 0.0)
    if len(wins) == 1:
        return np.full(1, ELO_MEAN)
    won, lost, games = wins.sum(1), wins.sum(0), wins + wins.T
    if (won == 0).any() or (lost == 0).any():
        raise UserError("a player won or lost all its games, so its rating is infinite; use prior=0.5")
    strength = np.ones(len(wins))
    for _ in range(ROUNDS):
        new = won / (games / (strength[:, None] + strength[None, :])).sum(1)
        new /= np.exp(np.log(new).mean())
        if np.abs(np.log(new / strength)).max() < CLOSE:
            break
        strength = new
    return ELO_MEAN + ELO_SCALE * np.log(strength)


def davidson(wins: ArrayLike, draws: ArrayLike, prior: float = 0.5) -> Davidson:
    """Ratings that take draws as outcomes of their own (Davidson 1970): i beats j with probability γᵢ/D and draws with
    ν√(γᵢγⱼ)/D, where D = γᵢ + γⱼ + ν√(γᵢγⱼ).

    Args:
        wins: [N, N] games that the row won against the column.
        draws: [N, N] games drawn, symmetric.
        prior: wins added for each side of every pair.
    """
    wins, draws = _square(wins, "wins"), _square(draws, "draws")
    if draws.shape != wins.shape or not np.allclose(draws, draws.T):
        raise UserError("draws must be a symmetric matrix of the shape of wins")
    if (wins < 0).any() or (draws < 0).any() or prior < 0:
        raise UserError("wins, draws and prior count games; give numbers of at least 0")
    size, others = len(wins), ~np.eye(len(wins), dtype=bool)
    wins, drawn = np.where(others, wins + prior, 0.0), np.where(others, draws, 0.0) / 2.0  # each draw stands in it twice

    def negative_likelihood(unknown: np.ndarray) -> float:
        log_strength, log_draw = unknown[:size], unknown[size]
        even = log_draw + (log_strength[:, None] + log_strength[None, :]) / 2.0
        total = np.logaddexp(np.logaddexp(log_strength[:, None], log_strength[None, :]), even)
        likely = wins * (log_strength[:, None] - total) + drawn * (even - total)
        # The mean of the strengths is free, and so is ν from below without draws.
        return float(-likely.sum() + log_strength.mean() ** 2 + 1e-6 * log_draw**2)

    found = optimize.minimize(negative_likelihood, np.zeros(size + 1), method="BFGS").x
    strength = found[:size] - found[:size].mean()
    return Davidson(ELO_MEAN + ELO_SCALE * strength, float(np.exp(found[size])))


def nash_average(payoff: ArrayLike) -> NashAverage:
    """The equilibrium of maximum entropy, and the players' values against it (Balduzzi et al. 2018): copies of a player change
    no values.

    Args:
        payoff: [N, K] earned by the row, lost by the column: players against each other, or agents × tasks.
    """
    payoff = np.asarray(payoff, float)
    if payoff.ndim != 2 or not payoff.size or not np.isfinite(payoff).all():
        raise UserError("payoff must be a matrix of finite numbers, one row per player")
    scale = max(np.abs(payoff).max(), np.finfo(float).tiny)
    rows = _max_entropy(payoff / scale)
    antisymmetric = payoff.shape[0] == payoff.shape[1] and np.allclose(payoff, -payoff.T)
    columns = rows if antisymmetric else _max_entropy(-payoff.T / scale)
    return NashAverage(rows, payoff @ columns)


def _max_entropy(payoff: np.ndarray) -> np.ndarray:
    """[N] among the mixtures of rows that earn most against the worst column, the one of maximum entropy."""
    size, columns = payoff.shape
    # The value v and a mixture p: maximise v subject to pᵀM ≥ v.
    found = optimize.linprog(
        np.append(np.zeros(size), -1.0),
        A_ub=np.column_stack([-payoff.T, np.ones(columns)]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(size), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * size + [(None, None)],
        method="highs",
    )
    best, value = found.x[:size], found.x[size]
    least = 1e-12  # inside the logarithm

    def negative_entropy(shares: np.ndarray) -> float:
        return float(np.sum(shares * np.log(np.maximum(shares, least))))

    for _ in range(RESTARTS):  # the solver may stop early where many mixtures are nearly as even
        even = optimize.minimize(
            negative_entropy,
            0.9 * best + 0.1 / size,
            jac=lambda shares: np.log(np.maximum(shares, least)) + 1.0,
            bounds=[(0.0, 1.0)] * size,
            constraints=(
                {"type": "eq", "fun": lambda shares: shares.sum() - 1.0, "jac": np.ones_like},
                {"type": "ineq", "fun": lambda shares: shares @ payoff - value, "jac": lambda shares: payoff.T},
            ),
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-12},
        )
        shares = np.clip(even.x, 0.0, 1.0)
        shares /= shares.sum()
        holds = (shares @ payoff).min() >= value - 1e-6
        if not (holds and negative_entropy(shares) < negative_entropy(best) - CLOSE):
            break  # no progress: a restart would repeat this one
        best = shares
    return best


def exploitability(payoff: ArrayLike, shares: ArrayLike) -> float:
    """What the best single player earns against a mixture of the players, beyond the value 0 of a symmetric game."""
    return float((_square(payoff, "payoff") @ np.asarray(shares, float)).max())


def cyclic_share(payoff: ArrayLike, variance: ArrayLike = 0.0) -> float:
    """Of an antisymmetric payoff matrix the share, in squares, that no ratings explain (Jiang et al. 2011): 0 where
    M[i, j] = rᵢ − rⱼ for some ratings r, 1 for rock–paper–scissors. Two players have no cycles.

    Args:
        payoff: [N, N].
        variance: [N, N] of the entries, if they were measured: noise looks cyclic, and its expected part is taken off.
    """
    payoff = _square(payoff, "payoff")
    if not np.allclose(payoff, -payoff.T):
        raise UserError("payoff must be antisymmetric; use (M − Mᵀ)/2")
    size, rating = len(payoff), payoff.mean(1)
    noise = float(np.broadcast_to(variance, payoff.shape)[~np.eye(size, dtype=bool)].sum())
    # Of N(N − 1)/2 free entries of noise ratings explain N − 1, so 1 − 2/N of its squares are left.
    cyclic = np.square(payoff - (rating[:, None] - rating[None, :])).sum() - (1.0 - 2.0 / size) * noise
    total = np.square(payoff).sum() - noise
    return float(np.clip(cyclic / total, 0.0, 1.0)) if total > 0 else 0.0


def risk_averse_equilibrium(
    payoff: ArrayLike, aversion: float, tremble: float = 0.01, rounds: int = 200, steps: int = 60
) -> np.ndarray:
    """[N] a mixture that is its own best reply where the variance of payoffs costs ``aversion`` (Slumbers et al. 2023): it
    maximises σᵀMς − γ σᵀΣ(ς)σ over mixtures with at least ``tremble`` of every player, Σ the covariance of the rows' payoffs
    against ς. By fictitious play over quadratic programs; with an aversion of 0 that of Brown (1951) and Robinson (1951).

    Args:
        payoff: [N, N] earned by the row; not necessarily zero-sum, the game is symmetric.
        aversion: γ.
        tremble: least share of every player, so that unlikely opponents stay in view.
        rounds: of fictitious play.
        steps: of projected gradient ascent for each reply.
    """
    payoff = _square(payoff, "payoff")
    size = len(payoff)
    if not 0.0 <= tremble * size < 1.0 or aversion < 0.0:
        raise UserError(f"tremble={tremble:g} and aversion={aversion:g}: use 0 <= tremble < 1/{size} and aversion >= 0")
    mixture = np.full(size, 1.0 / size)
    for number in range(rounds):
        earned = payoff @ mixture
        apart = payoff - earned[:, None]
        covariance = (apart * mixture) @ apart.T
        if aversion == 0.0:
            reply = np.full(size, tremble)
            reply[np.argmax(earned)] += 1.0 - tremble * size
        else:
            rate, reply = 1.0 / (2.0 * aversion * np.linalg.eigvalsh(covariance)[-1] + 1e-6), mixture
            for _ in range(steps):
                reply = _project(reply + rate * (earned - 2.0 * aversion * covariance @ reply), tremble)
        mixture = mixture + (reply - mixture) / (number + 2.0)
    return mixture


def _project(point: np.ndarray, least: float) -> np.ndarray:
    """The nearest mixture with at least ``least`` of each (Held et al. 1974)."""
    left = 1.0 - least * len(point)
    descending = np.sort(point - least)[::-1]
    excess = (np.cumsum(descending) - left) / np.arange(1, len(point) + 1)
    return np.maximum(point - least - excess[descending > excess][-1], 0.0) + least


def _square(matrix: ArrayLike, name: str) -> np.ndarray:
    found = np.asarray(matrix, float)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size or not np.isfinite(found).all():
        raise UserError(f"{name} must be a square matrix of finite numbers, one row and column per player")
    return found
