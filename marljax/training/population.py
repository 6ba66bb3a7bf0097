"""Populations that grow by best responses to mixtures of themselves (Lanctot et al. 2017, policy-space response oracles).

A meta-solver turns the payoffs between the policies so far into the mixture that the next one is trained against. Shares and
weights are data: one compiled program trains the whole population, of several leagues at once.

Axis letters: L leagues, K policies of each, k of them so far, R oracles, n shares.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.opponent import Mixture, Opponent
from marljax.core.types import EnvParams
from marljax.errors import UserError, short_repr, unknown
from marljax.training.best_response import Responder, with_opponents
from marljax.training.matches import acting, play_rounds, random_player
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Replicas, Trainer
from marljax.utils import payoffs
from marljax.utils.validation import is_integer
from marljax.wrappers.against import against, opponent_params

MetaSolver = Callable[[np.ndarray], np.ndarray]  # antisymmetric payoffs [k, k] between −1 and 1, the oldest first → shares [k]
WINDOW = 20  # newest policies
AVERSION = 0.5


class Population(NamedTuple):
    """Policies in the order in which they were trained, and who beats whom."""

    params: Any  # [L, K, …]
    payoff: np.ndarray  # [L, K, K] of the row against the column, antisymmetric
    shares: np.ndarray  # [L, K, K] row k: of the policies that policy k was trained against; less than 1 with a live one

    def mixture(self, solver: "str | MetaSolver") -> Mixture:
        """The whole population as opponents [L, …], mixed by a meta-solver."""
        shares = np.stack([meta_solver(solver)(payoff) for payoff in self.payoff])
        return Mixture(self.params, jnp.asarray(shares, jnp.float32))


class Progress(NamedTuple):
    """Where the training of a population is."""

    policies: int  # that are complete, in each league
    steps: int  # of the oracles that are being trained
    payoff: np.ndarray  # [L R] against their mixtures, in the last chunk's battles; NaN where none ended


def last(payoff: np.ndarray) -> np.ndarray:
    """The newest policy alone: iterated best responses, which may run in circles."""
    return np.eye(len(payoff))[-1]


def uniform(payoff: np.ndarray) -> np.ndarray:
    """Equal shares: fictitious self-play (Heinrich et al. 2015)."""
    return np.full(len(payoff), 1.0 / len(payoff))


def window(payoff: np.ndarray) -> np.ndarray:
    """Equal shares of the newest 20."""
    shares = (np.arange(len(payoff)) >= len(payoff) - WINDOW).astype(float)
    return shares / shares.sum()


def pfsp(payoff: np.ndarray) -> np.ndarray:
    """Those who are hard for the newest: (1 − win rate)², draws half won (Vinyals et al. 2019)."""
    weights = np.square((1.0 - payoff[-1]) / 2.0)
    return weights / weights.sum() if weights.sum() > 0 else uniform(payoff)


def nash(payoff: np.ndarray) -> np.ndarray:
    """The equilibrium of maximum entropy, as in double oracle (McMahan et al. 2003)."""
    return payoffs.nash_average(payoff).shares


def risk_averse(payoff: np.ndarray) -> np.ndarray:
    """The risk-averse equilibrium with γ = 0.5 (Slumbers et al. 2023) among the policies so far. The next policy is trained for
    the mean against it: the variance is in the mixture alone."""
    return payoffs.risk_averse_equilibrium(payoff, AVERSION, tremble=min(0.01, 0.5 / len(payoff)))


META_SOLVERS: Mapping[str, MetaSolver] = {
    "last": last,
    "window": window,
    "uniform": uniform,
    "pfsp": pfsp,
    "nash": nash,
    "rae": risk_averse,
}


def meta_solver(solver: str | MetaSolver) -> MetaSolver:
    """A meta-solver by its name, or a user's own, whose shares are checked and add up to 1."""
    if not callable(solver):
        if not isinstance(solver, str) or solver not in META_SOLVERS:
            raise unknown("meta-solver", str(solver), META_SOLVERS)
        return META_SOLVERS[solver]

    def checked(payoff: np.ndarray) -> np.ndarray:
        shares = np.asarray(solver(payoff), float)
        if shares.shape != (len(payoff),) or not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
            raise UserError(f"the meta-solver returned {short_repr(shares)}; return {len(payoff)} shares of at least 0")
        return shares / shares.sum()

    return checked


def team_policy(algorithm: ModuleType, game: Environment, config: Any) -> Opponent:
    """The policies of an algorithm that lead one team of ``game`` and sample their actions."""
    return acting(algorithm, against(game, any_opponent(game)), config)


def any_opponent(game: Environment) -> Opponent:
    """An opponent, where it does not matter which."""
    policy = random_player(game).policy
    assert policy is not None
    return policy


def new_policies(
    algorithm: ModuleType, game: Environment, game_params: EnvParams, config: Any, key: jax.Array, leagues: int = 1
) -> Any:
    """[L, …] parameters of new networks that lead one team of ``game``, to begin populations with."""
    env = against(game, any_opponent(game))
    params = opponent_params(env, game_params, random_player(game).params)
    trainer = Trainer(algorithm, env, config, make_mesh())
    return trainer.init(jax.random.split(key, leagues), params).state.learner.params


def grow(
    algorithm: ModuleType,
    game: Environment,
    game_params: EnvParams,
    config: Any,
    first: Any,
    key: jax.Array,
    *,
    size: int = 8,
    solver: str | MetaSolver = "nash",
    oracles: int = 1,
    fresh: bool = False,
    live: float = 0.0,
    battles: int = 256,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Population:
    """Trains populations in several leagues, each from a policy of its own.

    Args:
        algorithm: module that trains the policies.
        game: an environment of two teams, whose sides look alike to the agents: a policy is trained on the first and plays both.
        game_params: its params.
        config: of the algorithm; ``total_steps`` are those of every oracle.
        first: [L, …] parameters of the first policy of every league, such as ``new_policies(…)``.
        key: of the training and of the battles.
        size: K, policies of each league in the end, the first included.
        solver: name in ``META_SOLVERS``, or a function of payoffs.
        oracles: R, trained at once for every league; the one with the highest payoff against the mixture joins it, and these
            battles, by which it was chosen, stand for its payoffs.
        fresh: oracles begin with new networks; false: with the newest policy.
        live: share of episodes against the oracle's own parameters, as they are at the start of a chunk of updates.
        battles: on either side, for each entry of the payoffs.
        report: called after every chunk of updates.

    Raises:
        UserError: for an unknown solver, arguments out of range, parameters of other networks, and what ``Responder.of`` rejects.
    """
    solve = meta_solver(solver)
    for name, value, least in (("size", size, 1), ("oracles", oracles, 1), ("battles", battles, 1)):
        if not is_integer(value) or value < least:
            raise UserError(f"{name}={short_repr(value)} is out of range; give an integer of at least {least}")
    if not 0.0 <= live < 1.0:
        raise UserError(f"live={live:g} is out of range; give a share of at least 0 and less than 1")
    needed = jax.eval_shape(lambda: new_policies(algorithm, game, game_params, config, key))
    if jax.tree.map(lambda leaf: leaf.shape[1:], needed) != jax.tree.map(lambda leaf: np.shape(leaf)[1:], first):
        raise UserError("first does not fit; give parameters [L, …] of L policies of this algorithm, such as new_policies(…)")
    policy = team_policy(algorithm, game, config)
    responder = Responder.of(algorithm, game, config, policy.mixture())
    leagues = len(jax.tree.leaves(first)[0])
    # One slot more than policies, for the live one.
    stack = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:, None], size + 1, axis=1), first)
    payoff, history = np.zeros((leagues, size, size)), np.zeros((leagues, size, size))
    for count in range(1, size):
        key, key_train, key_battles = jax.random.split(key, 3)
        shares = np.zeros((leagues, size + 1))
        shares[:, :count] = (1.0 - live) * np.stack([solve(each[:count, :count]) for each in payoff])
        shares[:, size] = live
        history[:, count] = shares[:, :size]
        opponents = repeated(Mixture(stack, jnp.asarray(shares, jnp.float32)), oracles)
        replicas = responder.begin(jax.random.split(key_train, leagues * oracles), game_params, opponents)
        if not fresh:
            newest = repeated(jax.tree.map(lambda leaf, slot=count - 1: leaf[:, slot], stack), oracles)
            replicas = responder.start_from(replicas, np.ones(leagues * oracles, bool), newest)

        def progress(steps: int, found: np.ndarray, count: int = count) -> None:
            report(Progress(count, steps, found))

        trained = responder.train(replicas, with_live_policy if live else lambda replicas: replicas, progress)
        keys = jnp.repeat(jax.random.split(key_battles, leagues), oracles)  # the same battles for oracles of one league
        rows = np.zeros((leagues, oracles, count))
        for index in range(count):
            others = repeated(jax.tree.map(lambda leaf, slot=index: leaf[:, slot], stack), oracles)
            found, _ = both_sides(game, policy, game_params, trained.params, others, keys, battles)
            rows[..., index] = found.reshape(leagues, oracles)
        chosen = np.einsum("lrk,lk->lr", rows, history[:, count, :count]).argmax(1)
        members = np.arange(leagues) * oracles + chosen
        for slots, new in zip(jax.tree.leaves(stack), jax.tree.leaves(trained.params), strict=True):
            slots[:, count] = new[members]
        payoff[:, count, :count] = rows[np.arange(leagues), chosen]
        payoff[:, :count, count] = -payoff[:, count, :count]
    return Population(jax.tree.map(lambda leaf: leaf[:, :size], stack), payoff, history)


def with_live_policy(replicas: Replicas) -> Replicas:
    """Members whose own parameters are the last policy of their opponents' mixture."""
    learner = replicas.state.learner
    opponents = learner.env_params.opponent
    stack = jax.tree.map(lambda leaf, own: leaf.at[:, -1].set(own), opponents.stack, learner.params)
    return with_opponents(replicas, opponents.replace(stack=stack))


def both_sides(
    game: Environment, policy: Opponent, game_params: EnvParams, params: Any, others: Any, keys: jax.Array, battles: int
) -> tuple[np.ndarray, np.ndarray]:
    """[P] payoffs of policies against others, params [P, …] each, in the same battles on either side, and [P] shares drawn."""
    won, lost = play_rounds(game, policy, policy, battles, game_params, params, others, keys)
    lost_back, won_back = play_rounds(game, policy, policy, battles, game_params, others, params, keys)
    won, lost = (np.asarray(won + won_back) / 2, np.asarray(lost + lost_back) / 2)
    return won - lost, 1.0 - won - lost


def repeated(tree: Any, times: int) -> Any:
    """Every entry of the leading axis several times."""
    return jax.tree.map(lambda leaf: np.repeat(leaf, times, axis=0), tree)
