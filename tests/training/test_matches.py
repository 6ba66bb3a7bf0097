"""Matches, mixtures of opponents and one side of a game of two teams, where results are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import DuelParams, Push, RockPaperScissors

import marljax
from marljax.algos import ippo
from marljax.core.opponent import Mixture, Opponent
from marljax.errors import UserError
from marljax.reporting import versus
from marljax.testing import check_env
from marljax.training import matches
from marljax.training.evaluation import play
from marljax.training.matches import Player
from marljax.wrappers.against import Against, against, opponent_params

KEY = jax.random.key(0)
GAME = RockPaperScissors()
ROCK, PAPER, SCISSORS = range(3)


def constant(weights, seen, carry, key):
    """Always the action that the weights name; the memory counts decisions."""
    return jnp.full(seen.alive.shape, weights["action"], jnp.int32), jnp.where(seen.first, 0, carry) + 1


def player(env, name, *actions):
    policy = Opponent(env, constant, lambda: jnp.zeros((), jnp.int32))
    return Player(name, policy, {"action": jnp.array(actions)}, len(actions))


def test_rock_paper_scissors_is_a_cycle():
    players = [player(GAME, name, action) for action, name in enumerate(("rock", "paper", "scissors"))]
    results = matches.play_all(GAME, GAME.default_params, [*players, matches.random_player(GAME)], KEY, 600)
    found = versus.standing(["rock", "paper", "scissors", "random"], results)
    np.testing.assert_array_equal(found.payoff[:3, :3], [[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    assert np.abs(found.payoff[3]).max() < 0.2
    assert (found.low <= found.payoff).all()
    assert (found.payoff <= found.high).all()
    np.testing.assert_allclose(found.elo, 1200.0, atol=60)
    assert found.cyclic > 0.95
    assert np.abs(found.value).max() < 0.2
    assert found.battles == 600


def test_both_sides_count():
    """The first team's bonus wins half of the battles for everyone."""
    env, params = Push(), DuelParams(bonus=0.5)
    strong, weak = player(env, "strong", 1), player(env, "weak", 0)
    found = versus.standing(["strong", "weak"], matches.play_all(env, params, [strong, weak], KEY, 8))
    assert found.payoff[0, 1] == 1.0
    assert found.first_side == pytest.approx(0.5)  # between equals the first side always wins
    assert found.elo[0] > found.elo[1]
    even = versus.standing(["one", "other"], matches.play_all(env, params, [strong, player(env, "other", 1)], KEY, 8))
    assert even.payoff[0, 1] == 0.0


def test_seeds_are_averaged():
    mixed, rock = player(GAME, "mixed", PAPER, PAPER, SCISSORS), player(GAME, "rock", ROCK)
    found = versus.standing(["mixed", "rock"], matches.play_all(GAME, GAME.default_params, [mixed, rock], KEY, 60))
    assert found.payoff[0, 1] == pytest.approx(1 / 3)
    assert found.low[0, 1] < -0.9
    assert found.high[0, 1] == 1.0
    assert found.seeds == [3, 1]
    np.testing.assert_allclose(found.best, [1.0, -1 / 3], atol=1e-6)
    assert versus.headings(found)[3] == "best seed"


@pytest.mark.parametrize("team", [0, 1])
@pytest.mark.parametrize("every", [True, False], ids=["of all agents", "of its team"])
def test_one_side_of_a_game_has_its_rules(team, every):
    """Rewards, observations and results are those of the whole game with the other team's actions filled in."""
    whole = Push()
    led = whole if every else Against(whole, opponent=Opponent(whole, constant, lambda: jnp.zeros((), jnp.int32)))
    env = Against(whole, opponent=player(led, "", 1).policy, team=team)
    check_env(env, opponent_params(env, whole.default_params, {"action": jnp.array(1)}))
    params = opponent_params(env, whole.default_params, {"action": jnp.array(1)})
    for own, won, lost in ((1, 0.0, 0.0), (0, 0.0, 1.0)):
        state, seen = env.reset(KEY, params)
        np.testing.assert_array_equal(seen.obs[:, 0], np.full(2, team))
        for time in range(whole.steps):
            state, seen = env.step(KEY, state, jnp.full(2, own), params)
            assert int(state.memory) == time + 1
        assert seen.terminated
        np.testing.assert_allclose(seen.reward, np.full(2, 2.0 * whole.steps * (own - 1)))
        assert (float(seen.metrics["won"]), float(seen.metrics["lost"])) == (won, lost)


def test_mixtures_play_their_shares_and_keep_to_one_policy_in_an_episode():
    policy = player(GAME, "", ROCK).policy
    env = against(GAME, policy.mixture())
    weights = [{"action": jnp.array(action)} for action in (ROCK, PAPER, SCISSORS)]

    def paper(key, state, seen, carry):
        return jnp.full(1, PAPER), carry

    for shares in ((1.0, 0.0, 0.0), (0.25, 0.0, 0.75)):
        params = opponent_params(env, GAME.default_params, Mixture.of(weights, size=5, shares=shares))
        metrics = play(env, params, paper, (), KEY, 4_000, 10)
        assert float(metrics["won"].mean()) == pytest.approx(shares[ROCK], abs=0.03)
        assert float(metrics["lost"].mean()) == pytest.approx(shares[SCISSORS], abs=0.03)
    stone = Push()
    pushed = against(stone, player(stone, "", 1).policy.mixture())
    params = opponent_params(pushed, stone.default_params, Mixture.of([{"action": jnp.array(0)}, {"action": jnp.array(1)}]))
    drawn = play(pushed, params, lambda key, state, seen, carry: (jnp.ones(2, jnp.int32), carry), (), KEY, 400, 10)
    assert set(np.unique(drawn["return"]).tolist()) == {0.0, 8.0}  # all or nothing: nobody changes within an episode
    changed = params.opponent.with_policy(0, {"action": jnp.array(1)})
    np.testing.assert_array_equal(changed.stack["action"], [1, 1])


def test_smax_mirrors_the_board():
    """Whoever shoots at what is in range and else walks to the enemies beats, on either side, those who walk into a wall."""
    env = marljax.make("smax", scenario="3m")

    def march(weights, seen, carry, key):
        shots = seen.action_mask[:, 5:]
        return jnp.where(shots.any(-1), 5 + jnp.argmax(shots, -1), weights["walk"]).astype(jnp.int32), carry

    onward, up = (Player(name, Opponent(env, march), {"walk": jnp.array([walk])}) for name, walk in (("onward", 1), ("up", 0)))
    script = Player("script", None)
    results = matches.play_all(env, env.default_params, [onward, up, script], KEY, 64)
    found = versus.standing(["onward", "up", "script"], results)
    assert found.payoff[0, 1] > 0.9
    assert abs(found.first_side) < 0.15
    assert found.payoff[2, 1] > 0.9
    np.testing.assert_array_equal(results.won[2][0], results.lost[0][2].T)
    np.testing.assert_array_equal(results.both_sides, [[True, True, False], [True, True, False], [False, False, False]])
    assert -1.0 <= found.low[1, 2] <= found.payoff[1, 2] < found.high[1, 2] < -0.7


def test_policies_of_different_observations_and_actions_meet():
    """Nobody's result depends on how the other observes the same battle; one who walks ahead may also act by vectors."""
    lists, conic = (marljax.make("smax", scenario="3m", observation=each) for each in ("unit_list", "conic"))
    vectors = marljax.make("smax", scenario="3m", action_type="continuous")

    def walk(weights, seen, carry, key):
        return jnp.full(seen.alive.shape, weights["walk"], jnp.int32), carry

    def push(weights, seen, carry, key):
        return jnp.broadcast_to(weights["push"], (*seen.alive.shape, 4)), carry

    marching = [Player("", Opponent(env, walk), {"walk": jnp.array([1])}) for env in (lists, lists, conic)]
    pushing = Player("", Opponent(vectors, push), {"push": jnp.array([[1.0, 0.0, 0.0, 0.0]])})
    for pair in (marching[:2], marching[1:], [marching[0], pushing]):
        matches.check_same_game(pair[0].policy.env, lists.default_params, pair[1].policy.env, lists.default_params, "second")

    def rates(left, right):
        found = matches.play_rounds(
            lists, left.policy, right.policy, 16, lists.default_params, left.params, right.params, KEY[None]
        )
        return np.array(found)

    alike = rates(*marching[:2])
    for pair in (marching[1:], (marching[2], marching[0]), (marching[2], marching[2])):
        np.testing.assert_array_equal(alike, rates(*pair))
    for pair in ((marching[2], pushing), (pushing, marching[2]), (pushing, pushing)):
        assert 0.0 < rates(*pair).sum() <= 1.0


def test_policies_of_self_play_lead_one_team():
    both = marljax.make("smax", scenario="3m", mode="self_play")
    config = ippo.Config(num_envs=4, rollout_length=8, num_minibatches=1, hidden=(8,))
    opponent = Opponent.of(ippo, both, config)
    assert opponent.env.num_agents == 3
    assert against(both, opponent).num_agents == 3


def test_what_cannot_play_is_rejected():
    merge = marljax.make("merge")
    with pytest.raises(UserError, match="Merge has one team"):
        matches.play_all(merge, merge.default_params, [matches.random_player(merge)], KEY, 2)
    with pytest.raises(UserError, match="no script"):
        matches.play_all(GAME, GAME.default_params, [player(GAME, "", 0), Player("script", None)], KEY, 2)
    with pytest.raises(UserError, match="one team"):
        against(merge, player(GAME, "", 0).policy)
    with pytest.raises(UserError, match=r"Opponent\.of"):
        Against(GAME, opponent="runs/ippo")
    with pytest.raises(UserError, match="controls 4 agents"):
        Against(GAME, opponent=player(Push(), "", 0).policy)
    uneven = marljax.make("smax", scenario="5m_vs_6m")
    with pytest.raises(UserError, match="unequal teams"):
        matches.play_all(uneven, uneven.default_params, [matches.random_player(uneven)], KEY, 2)
    led = against(GAME, player(GAME, "", 0).policy)
    with pytest.raises(UserError, match="holds no weights"):
        led.check_params(led.default_params)
    with pytest.raises(UserError, match="mixture"):
        Mixture.of([], size=3)
    with pytest.raises(UserError, match="shares"):
        Mixture.of([{}, {}], shares=[1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda env, params: (marljax.make("merge"), params), "Merge.*Smax"),
        (lambda env, params: (dataclasses.replace(env, scenario="2s3z"), params), "2s3z.*3m"),
        (lambda env, params: (env, params.replace(map_width=16.0)), "env.map_width"),
    ],
    ids=["environment", "option", "param"],
)
def test_other_games_are_rejected(change, message):
    env = marljax.make("smax", scenario="3m")
    with pytest.raises(UserError, match=message):
        matches.check_same_game(env, env.default_params, *change(env, env.default_params), "second")
