"""Scenarios of ``smax`` and their registry, and the numbers of its units."""

import textwrap

import jax
import numpy as np
import pytest

import marljax
from marljax.cli import app
from marljax.config import compose
from marljax.envs.smax import FIRST_ATTACK, MARINE, Scenario, Smax, SmaxParams, register_scenario, scenario_names
from marljax.envs.smax.units import PUBLISHED, UNIT_NAMES
from marljax.errors import UserError

PARAMS = SmaxParams()
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, "zealott"), 1, 1), "unknown unit type of a scenario 'zealott'; did you mean zealot"),
        (("marine", 1, 1), "unit_types of a scenario is 'marine'; give one type per unit, such as .'marine',."),
        (((0, 0, 0), 2, 2), "has 3 unit_types; give 4"),
        (((0,), 1, 0), "num_enemies .* at least 1"),
        (((), 0, 0), "num_allies .* at least 1"),
        (((0, 9), 1, 1), "unit type 9; there are 0 .marine., .* 5 .hydralisk."),
        (((0, -1), 1, 1), "unit type -1; there are"),
        (((0, 1.7), 1, 1), "unit type 1.7; there are 0 .marine."),
        ((3, 1, 1), "unit_types of a scenario is 3; give one type per unit"),
        (((0, 0), 1, 1, "yes"), "random_types of a scenario is 'yes'; give True or False"),
        (((0,), 10**9, 1), "has 1 unit_types; give 1000000001"),
        (((0, 0), 1.0, 1), "num_allies of a scenario is 1.0; give an integer"),
        (((0, 0), 1, True), "num_enemies of a scenario is True; give an integer"),
    ],
)
def test_wrong_scenarios_say_what_fits(arguments, message):
    with pytest.raises(UserError, match=message):
        Scenario(*arguments)


def test_sizes_and_types_may_be_numpys():
    scenario = Scenario(np.zeros(4, int), np.int64(3), np.int64(1))
    assert scenario == Scenario(("marine",) * 4, 3, 1)
    assert hash(scenario) == hash(Scenario((MARINE,) * 4, 3, 1))


def test_numbers_are_no_options():
    with pytest.raises(UserError, match=r"'duration' of smax is a number, .* env.default_params.replace\(duration=…\)"):
        marljax.make("smax", scenario="8m", duration=50)
    with pytest.raises(UserError, match="unknown option of smax 'scenari'; did you mean scenario"):
        marljax.make("smax", scenari="8m")


def test_scenarios_can_be_added_but_not_changed():
    register_scenario("one zealot", Scenario((0, 0, 3), 2, 1))
    env = marljax.make("smax", scenario="one zealot")
    assert (env.num_agents, env.action_space.n) == (2, FIRST_ATTACK + 1)
    register_scenario("one zealot", Scenario(("marine", MARINE, "zealot"), 2, 1))
    with pytest.raises(UserError, match="another name"):
        register_scenario("one zealot", Scenario((0, 3), 1, 1))
    for name in ("", 3):
        with pytest.raises(UserError, match="give a text as its name"):
            register_scenario(name, Scenario((0, 3), 1, 1))
    with pytest.raises(UserError, match=r"registered with a tuple; give a marljax\.envs\.smax\.Scenario"):
        register_scenario("a tuple", (0, 3))


def test_the_command_line_takes_scenarios_of_a_users_module(tmp_path, monkeypatch, capsys):
    """And trains there with the values that are tuned for smax."""
    source = """
        from marljax.envs.smax import Scenario, Smax, register_scenario
        register_scenario("2m_vs_1s", Scenario((0, 0, 2), 2, 1))
    """
    (tmp_path / "my_battles.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["env=custom", "env.target=my_battles:Smax", "env.scenario=2m_vs_1s"]
    run = compose.compose("ippo", words)
    assert run.env == Smax("2m_vs_1s")
    for more in ([], ["tuned=gru"]):
        assert compose.compose("ippo", [*words, *more]).config == marljax.tuned("ippo", "smax", *more).config
    with pytest.raises(SystemExit):
        app.main("ippo", [*words, "--help"])
    assert "ippo_smax.yaml" in capsys.readouterr().out


def test_sizes_of_the_published_scenarios():
    assert len(PUBLISHED) == 14
    assert set(PUBLISHED) <= set(scenario_names())
    for name, size, state in (("2s3z", 127, 120), ("27m_vs_30m", 738, 684)):
        env = Smax(name)
        assert env.observation_space.shape == (size,)
        assert jax.eval_shape(lambda env=env: env.global_state(env.reset(KEY)[0], PARAMS)).shape == (state,)


def test_wrong_numbers_are_refused():
    Smax().check_params(PARAMS)
    for changes, message in (
        ({"health": np.zeros(6)}, "above 0"),
        ({"speed": np.ones(5)}, "give 6 numbers"),
        ({"cooldown_noise_low": 3.0}, "lies above"),
        ({"duration": 0}, "above 0"),
        ({"duration": 1.5}, "it takes an integer"),
        ({"spawn_noise": 100}, "spawn_noise=100 of smax is out of range; it takes 0 to 8"),
        ({"time_step": 10}, "time_step=10 of smax is out of range; it takes a number above 0, up to 1"),
        ({"walls_kill": "x"}, "walls_kill=x of smax is out of range; it takes true or false"),
        ({"win_bonus": np.nan}, "win_bonus=nan of smax is out of range; it takes finite numbers"),
    ):
        with pytest.raises(UserError, match=message):
            Smax().check_params(PARAMS.replace(**changes))


def test_unit_names_match_the_tables():
    assert len(UNIT_NAMES) == len(PARAMS.speed) == 6
