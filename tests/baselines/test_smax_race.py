"""Steps and seconds of the races on ``smax``, on made-up results, and JaxMARL's loop."""

import functools

import jax
import numpy as np
import pytest

from marljax.baselines import smax
from marljax.baselines import smax_race as race
from marljax.baselines.rivals import rnn_ppo


def test_win_rates_are_over_the_episodes_of_a_point():
    won, episodes = np.array([[1, 0, 3, 4, 9]]), np.array([[2, 2, 4, 4, 9]])
    np.testing.assert_allclose(race.win_rates(won, episodes, 1), [[0.5, 0.0, 0.75, 1.0, 1.0]])
    np.testing.assert_allclose(race.win_rates(won, episodes, 2), [[0.25, 0.875]])


def test_the_goal_is_a_mean_over_points():
    curves = [[0.95, 0.8, 0.9, 0.95, 0.96, 0.5], [0.99, 0.5, 0.99, 0.99, 0.99, 0.5]]
    assert race.steps_to_goal(curves, race.POINT // 2) == [5 * race.POINT, None]
    assert race.steps_to_goal([[1.0, 1.0, 1.0]], race.POINT) == [None]
    assert race.steps_to_goal([[0.8, 1.0, 0.8]], 2 * race.POINT) == [2 * 2 * race.POINT]


def side(rates, steps_per_update):
    """A side whose seeds win these shares of 100 episodes, update by update."""
    rates = np.asarray(rates)

    def advance(now):
        return now + 1, 100 * rates[:, now : now + 1], np.full((len(rates), 1), 100)

    return lambda keys: np.array(0), advance, steps_per_update


@pytest.fixture
def race_of_two(monkeypatch):
    monkeypatch.setattr(race, "SEEDS", 2)
    monkeypatch.setattr(race, "WINDOW", 2 * race.POINT)


RATES = [[0.2, 0.9, 0.9, 0.9, 0.0], [0.2, 0.5, 0.85, 0.96, 0.0]]


def test_a_race_ends_when_all_seeds_have_won_often_enough(tmp_path, race_of_two):
    found = race.train_to_goal(side(RATES, race.POINT), tmp_path, lambda line: None)
    assert np.shape(found["curves"]) == (2, 4)
    assert race.steps_to_goal(found["curves"], race.POINT) == [3 * race.POINT, 4 * race.POINT]
    stopped = race.train_to_goal(side(RATES, race.POINT), tmp_path, lambda line: None, limit=3 * race.POINT)
    assert race.steps_to_goal(stopped["curves"], race.POINT) == [3 * race.POINT, None]
    assert np.shape(
        race.train_to_goal(side(RATES, race.POINT), tmp_path, lambda line: None, 5 * race.POINT, False)["curves"]
    ) == (2, 5)


@pytest.mark.parametrize(("limit", "visits", "length"), [(race.LIMIT, [0, 1, 2, 2, 3], 4), (race.POINT, [0, 1, 2], 2)])
def test_a_race_goes_on_where_it_was_stopped(tmp_path, race_of_two, monkeypatch, limit, visits, length):
    """Beyond a lower limit it is over."""
    monkeypatch.setattr(race, "SAVE_EVERY", 0.0)
    start, advance, steps = side(RATES, race.POINT)
    visited = []

    def interrupted(state):
        visited.append(int(state))
        if visited == [0, 1, 2]:
            raise KeyboardInterrupt
        return advance(state)

    with pytest.raises(KeyboardInterrupt):
        race.train_to_goal((start, interrupted, steps), tmp_path, lambda line: None)
    found = race.train_to_goal((start, interrupted, steps), tmp_path, lambda line: None, limit=limit)
    assert visited == visits
    assert np.shape(found["curves"]) == (2, length)
    assert not tmp_path.exists()


SPEED = {
    side: {"first_update_s": [first] * 3, "steps_per_s": [rate] * 3}
    for side, first, rate in (("jaxmarl", 20, 5e3), ("marljax", 10, 2e4))
}


def result(reached, trained=16_384 * 200):
    """A result of five seeds that win every episode from ``reached`` steps on, and none before."""
    steps = np.arange(1, trained // 16_384 + 1) * 16_384
    return {"won": {"steps_per_update": 16_384, "curves": np.tile(np.where(steps > reached - 65_536, 1.0, 0.0), (5, 1))}}


def test_seconds_count_from_the_start_of_the_process():
    columns = smax.goal_columns(SPEED, result(61 * 16_384), result(31 * 16_384))
    assert columns == ["1.00 ± 0.00 M", "0.51 ± 0.00 M", "217 ± 0", "35 ± 0", "0.16"]


def test_a_stopped_race_gives_a_bound():
    never, reached = result(np.inf, 100 * 16_384), result(31 * 16_384)
    columns = smax.goal_columns(SPEED, never, reached)
    assert columns[0] == "> 1.64 M (5 of 5 stopped; 0 % won)"
    assert columns[2] == "> 344"
    assert columns[4] == "< 0.10"
    assert smax.goal_columns(SPEED, reached, never)[4] == "–"
    assert smax.goal_columns(None, None, reached) == ["–", "0.51 ± 0.00 M", "–", "–", "–"]


def test_a_ratio_of_speeds_is_of_the_same_round():
    rounds = {"jaxmarl": [10.0, 100.0, 50.0], "same": [20.0, 150.0, 50.0], "marljax": [40.0, 200.0, 150.0]}
    columns = smax.speed_columns({side: {"steps_per_s": values, "first_update_s": values} for side, values in rounds.items()})
    assert columns[:3] == ["50 (10–100)", "50 (1.50×; 20–150)", "150 (3.00×; 40–200)"]


def test_a_rate_is_compared_with_the_interval_of_jaxmarls():
    def rate(value, count):
        return {"mean": [value], "count": count}

    assert smax.within(rate(0.46, 40_000), rate(0.5, 1_000))
    assert not smax.within(rate(0.45, 40_000), rate(0.5, 1_000))
    assert not smax.within(rate(0.46, 40_000), rate(0.5, 4_000))


# --- JaxMARL's loop: slow, because it compiles JaxMARL's battles --------------------------------------------------------


def count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_same_networks_have_as_many_parameters(algo):
    theirs = rnn_ppo.Trainer(rnn_ppo.Settings("3m", **rnn_ppo.PUBLISHED[algo]))
    ours = race.ours(algo, "3m", race.overrides("same", algo))
    key = jax.random.key(0)
    rival = jax.eval_shape(theirs.init, key).params
    replicas = jax.eval_shape(ours[0], key[None])
    params = replicas.state.learner.params
    assert count(params.actor) + count(params.critic) == count(rival)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_their_loop_counts_episodes_and_clears_the_memory_of_the_dead(algo):
    settings = rnn_ppo.Settings("3m", num_envs=8, rollout_length=64, width=16, **rnn_ppo.PUBLISHED[algo])
    trainer = rnn_ppo.Trainer(settings)
    before = trainer.init(jax.random.key(0))
    step = functools.partial(trainer.step, before.params)
    carried, keys = (before.env, before.obs, before.done, before.carry), jax.random.split(jax.random.key(1), 64)
    _, (rollout, scores) = jax.jit(lambda carried: jax.lax.scan(step, carried, keys))(carried)
    over = rollout.done.reshape(64, 3, 8)
    assert over.any()
    np.testing.assert_array_equal(scores["episodes"], over[:, 0])
    # an episode is won where all of the other team's health is gone: the reward of that step holds the bonus
    np.testing.assert_array_equal(scores["won"] > 0, over[:, 0] & (rollout.reward.reshape(64, 3, 8)[:, 0] >= 1))
    dead = np.asarray(rollout.inputs.mask.reshape(64, 3, 8, -1)[..., :4].sum(-1) == 0)
    first = np.asarray(rollout.inputs.first.reshape(64, 3, 8))
    assert dead.any()
    assert first[dead].all()
    after, metrics = jax.jit(trainer.update)(before)
    assert metrics["episodes"] >= metrics["won"] >= 0
    moved = jax.tree.map(lambda old, new: float(np.abs(old - new).max()), before.params, after.params)
    assert all(change > 0 for change in jax.tree.leaves(moved))
