"""Populations in matrix games, whose equilibria are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Push

from marljax.algos import ippo, ppo
from marljax.baselines import league
from marljax.core.opponent import Opponent
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.testing.matrix_game import MatrixGame, blotto, rock_paper_scissors
from marljax.training import population
from marljax.training.best_response import Responder, exploit
from marljax.training.matches import Player
from marljax.utils.payoffs import nash_average

KEY = jax.random.key(0)
SIZE = 5
CONFIG = league.MATRIX_CONFIG


def always(weights, seen, carry, key):
    """The action that the weights name."""
    return jnp.full(seen.alive.shape, weights, jnp.int32), carry


def constant(game, *actions):
    return Player("constant", Opponent(game, always), jnp.array(actions), len(actions))


def plan(game, leagues):
    return league.MatrixPlan("", game, size=1, leagues=leagues)


@pytest.fixture(scope="module")
def cycle():
    """Rock, paper, scissors, and two policies that have learnt to beat rock."""
    game = rock_paper_scissors()
    return game, league.first_policies(plan(game, 2))


def grown(game, first, solver, size, **options):
    """A population, and how far each mixture of its first k policies can be exploited [L, K]."""
    found = population.grow(
        ippo, game, game.default_params, CONFIG, first, KEY, size=size, solver=solver, battles=64, fresh=True, **options
    )
    return found, league.exploitabilities(plan(game, 1), found, solver)


def test_iterated_best_responses_run_in_circles(cycle):
    game, first = cycle
    found, gaps = grown(game, first, "last", SIZE)
    assert (gaps > 0.9).all()
    np.testing.assert_array_equal(league.action_rates(plan(game, 1), found.params).argmax(-1), [[1, 2, 0, 1, 2]] * 2)
    np.testing.assert_array_equal(found.shares[:, 1:], np.broadcast_to(np.eye(5)[:4], (2, 4, 5)))


@pytest.mark.parametrize("solver", ["nash", "rae"])
def test_mixtures_in_equilibrium_end_the_circle(cycle, solver):
    """Three policies suffice, as rock, paper and scissors."""
    found, gaps = grown(*cycle, solver, SIZE)
    assert (gaps[:, 0] > 0.9).all()
    assert (gaps[:, 2:4] < 0.05).all()
    np.testing.assert_allclose(population.meta_solver(solver)(found.payoff[0, :3, :3]), 1 / 3, atol=0.05)
    np.testing.assert_array_equal(found.payoff, -found.payoff.swapaxes(1, 2))


def test_fictitious_self_play_closes_the_gap_slowly(cycle):
    """Exploitability falls as 1/k, not at once."""
    _, gaps = grown(*cycle, "uniform", SIZE)
    assert (gaps[:, 1] > 0.4).all()
    assert (gaps[:, 4] < 0.45).all()
    assert (gaps[:, 4] > 0.1).all()


@pytest.mark.slow
def test_blotto_is_solved():
    """Colonel Blotto with five soldiers: the value is 0, and the population's equilibrium earns it against every division."""
    game = blotto()
    np.testing.assert_allclose(nash_average(np.array(game.payoff)).values.max(), 0.0, atol=1e-6)
    first = league.first_policies(plan(game, 5))  # the mean of five: where a single league ends hangs on rounding
    assert grown(game, first, "nash", 12)[1][:, -1].mean() < 0.1
    assert grown(game, first, "last", 12)[1][:, -1].mean() > 0.5


def test_one_program_trains_a_population(cycle):
    """After the first chunk of updates nothing is compiled but the battles between the first policies."""
    game, first = cycle
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))

    def count():
        return sum("backend_compile" in event for event in compiled)

    seen = []
    config = CONFIG.replace(gamma=0.5, total_steps=4_096)  # a program of its own
    options = {"size": 3, "battles": 64, "fresh": True, "report": lambda progress: seen.append((progress.policies, count()))}
    population.grow(ippo, game, game.default_params, config, first, KEY, **options)
    of_first = [number for policies, number in seen if policies == 1]
    assert len(of_first) == 8
    assert of_first[0] == of_first[-1] > 0
    of_second = [number for policies, number in seen if policies == 2]
    assert of_second[0] == of_second[-1]
    before = count()
    population.grow(ippo, game, game.default_params, config, first, jax.random.key(1), **options)
    assert count() == before


@pytest.mark.slow
def test_own_parameters_among_the_opponents(cycle):
    """Half of the episodes against a policy that is beaten already, half against oneself: paper goes on to scissors, which beat
    it, but not to certainty, as scissors meet rock."""
    game, first = cycle
    oracles = {"size": 2, "solver": "window", "battles": 64, "fresh": False, "oracles": 2}
    found = population.grow(ippo, game, game.default_params, CONFIG, first, KEY, live=0.5, **oracles)
    np.testing.assert_allclose(found.shares[:, 1, 0], 0.5)
    assert (found.payoff[:, 1, 0] > -0.1).all()


def test_every_action_can_be_exploited(cycle):
    """By new networks and by those that have learnt to beat rock; each of three seeds by members of its own."""
    game, first = cycle
    actions = constant(game, 0, 1, 2)
    responder = Responder.of(ippo, game, CONFIG, actions.policy)
    members = exploit(responder, actions, game.default_params, KEY, fresh=1, warm=1, start=first, battles=200)
    assert members.kinds == ("fresh", "warm")
    assert members.payoff.shape == members.won.shape == (3, 2)
    assert ((members.won - members.lost).max(1) > 0.9).all()
    fresh = members.curve[:, 0]
    assert (fresh[:, -1] > fresh[:, 0]).all()
    assert members.curve[0, 1, 0] > 0.9  # the warm member against rock has nothing to learn
    assert members.first_side == 0.0


def test_warm_members_have_the_given_parameters(cycle):
    game, first = cycle
    responder = Responder.of(ippo, game, CONFIG, constant(game, 0).policy)
    new = responder.begin(jax.random.split(KEY, 2), game.default_params, jnp.zeros(2, jnp.int32))
    started = responder.start_from(new, np.array([False, True]), first).state.learner.params
    for own, old, given in zip(*map(jax.tree.leaves, (started, new.state.learner.params, first)), strict=True):
        np.testing.assert_array_equal(own, np.stack([old[0], given[1]]))
    other = responder.of(ippo, game, CONFIG.replace(hidden=(4,)), responder.opponent)
    smaller = other.begin(jax.random.split(KEY, 2), (), jnp.zeros(2, jnp.int32))
    with pytest.raises(UserError, match="networks differ"):
        other.start_from(smaller, np.ones(2, bool), first)


@pytest.mark.parametrize("solver", population.META_SOLVERS)
def test_solvers_agree_where_the_newest_beats_all(solver):
    """In a transitive game the population's strongest, its newest, has the largest share, or all are alike by definition."""
    order = np.arange(5)
    payoff = np.tanh(order[:, None] - order[None]).astype(float)
    shares = population.META_SOLVERS[solver](payoff)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    assert shares[-1] == shares.max()


def test_mistakes():
    game = rock_paper_scissors()
    check_env(game)
    for payoff in (((0.0, 1.0), (1.0, 0.0)), ((0.0,), (1.0, 0.0)), "rock", ()):
        with pytest.raises(UserError, match="antisymmetric"):
            MatrixGame(payoff)
    assert MatrixGame(np.zeros((2, 2))) == MatrixGame([[0, 0], [0, 0]])
    push = Push()
    with pytest.raises(UserError, match="ppo controls all agents as one"):
        Responder.of(ppo, push, ppo.Config(), Opponent(push, always))
    with pytest.raises(UserError, match="nash"):
        population.meta_solver("nahs")
    first = population.new_policies(ippo, game, (), CONFIG, KEY, leagues=2)
    for options in ({"live": 1.0}, {"oracles": 0}, {"battles": 0}, {"size": 0}):
        with pytest.raises(UserError, match=f"{next(iter(options))}=.* out of range"):
            population.grow(ippo, game, (), CONFIG, first, KEY, **options)
    with pytest.raises(UserError, match="first does not fit"):
        population.grow(ippo, game, (), CONFIG, jax.tree.map(lambda leaf: leaf[0], first), KEY)
    for shares in ([1.0], [1.0, -1.0], [np.nan, 1.0], [0.0, 0.0]):
        with pytest.raises(UserError, match="shares of at least 0"):
            population.meta_solver(lambda payoff, shares=shares: shares)(np.zeros((2, 2)))
    np.testing.assert_allclose(population.meta_solver(lambda payoff: [3.0, 1.0])(np.zeros((2, 2))), [0.75, 0.25])
    with pytest.raises(UserError, match="soldier"):
        blotto(-1)
