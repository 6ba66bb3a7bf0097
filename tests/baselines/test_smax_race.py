"""How the races of ``smax`` are counted, on made-up figures."""

import numpy as np
import pytest

from marljax.baselines import smax
from marljax.baselines import smax_race as race


def test_rates_are_of_the_episodes_of_the_last_updates():
    won, episodes = np.array([[1, 0, 3, 4]]), np.array([[2, 2, 4, 4]])
    np.testing.assert_allclose(race.recent_rates(won, episodes, 1), [[0.5, 0.0, 0.75, 1.0]])
    np.testing.assert_allclose(race.recent_rates(won, episodes, 2), [[0.0, 0.25, 0.5, 0.875]])


def side(rates, steps_per_update):
    """A side whose seeds win these shares of 100 episodes, update by update."""
    rates = np.asarray(rates)

    def advance(now):
        return now + 1, 100 * rates[:, now : now + 1], np.full((len(rates), 1), 100)

    return lambda keys: np.array(0), advance, steps_per_update


def test_a_race_ends_when_all_seeds_have_won_often_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(race, "SEEDS", 2)
    rates = [[0.2, 0.9, 0.9, 0.9, 0.0], [0.2, 0.5, 0.85, 0.95, 0.0]]
    found = race.climb(side(rates, race.WINDOW // 2), tmp_path, lambda line: None)
    assert found["steps"] == [3 * race.WINDOW // 2, 2 * race.WINDOW]
    assert np.shape(found["curves"]) == (2, 4)
    stopped = race.climb(side(rates, race.WINDOW), tmp_path, lambda line: None, limit=3 * race.WINDOW)
    assert stopped["steps"] == [2 * race.WINDOW, None]


def test_a_race_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(race, "SEEDS", 2)
    monkeypatch.setattr(race, "SAVE_EVERY", 0.0)
    start, advance, steps = side([[0.2, 0.5, 0.9, 0.95], [0.3, 0.4, 0.5, 0.9]], race.WINDOW)
    seen = []

    def interrupted(state):
        seen.append(int(state))
        if seen == [0, 1, 2]:
            raise KeyboardInterrupt
        return advance(state)

    with pytest.raises(KeyboardInterrupt):
        race.climb((start, interrupted, steps), tmp_path, lambda line: None)
    found = race.climb((start, interrupted, steps), tmp_path, lambda line: None)
    assert seen == [0, 1, 2, 2, 3]
    assert found["steps"] == [3 * race.WINDOW, 4 * race.WINDOW]
    assert not tmp_path.exists()


PACE = {
    side: {"first_update_s": [first] * 3, "steps_per_s": [rate] * 3}
    for side, first, rate in (("jaxmarl", 20, 5e3), ("marljax", 10, 2e4))
}


def figures(steps, updates=200):
    return {"won": {"steps": steps, "steps_per_update": 16_384, "curves": np.zeros((len(steps), updates))}}


def test_seconds_count_from_the_start_of_the_process():
    update = 16_384
    columns = smax.goal_columns(PACE, figures([update + 1_000_000] * 5), figures([update + 500_000] * 5))
    assert columns == ["1.02 ± 0.00 M", "0.52 ± 0.00 M", "220 ± 0", "35 ± 0", "0.16"]


def test_a_rival_that_was_stopped_gives_a_bound():
    columns = smax.goal_columns(PACE, figures([None] * 5, 100), figures([516_384] * 5))
    assert columns[0] == "> 1.64 M (5 of 5 stopped)"
    assert columns[2].startswith("> 344")
    assert columns[4] == "< 0.10"
    assert smax.goal_columns(PACE, figures([516_384] * 5), figures([None] * 5))[4] == "–"
    assert smax.goal_columns(None, None, figures([516_384] * 5)) == ["–", "0.52 ± 0.00 M", "–", "–", "–"]
