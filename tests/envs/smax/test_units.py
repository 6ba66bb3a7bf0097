"""Scenarios of ``smax`` and their registry, and the parameters of its units."""

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
        (((0, "zealott"), 1, 1), "did you mean zealot"),
        (("marine", 1, 1), "unit_types='marine'"),
        (((0, 0, 0), 2, 2), "unit_types has 3 entries.* give 4"),
        (((0, 9), 1, 1), "unit_types contains 9.* 5 .hydralisk."),
        (((0, 1.7), 1, 1), "unit_types contains 1.7"),
        (((0,), 1, 0), "num_enemies=0"),
    ],
)
def test_invalid_scenarios_are_rejected(arguments, message):
    with pytest.raises(UserError, match=message):
        Scenario(*arguments)


def test_sizes_and_types_may_be_numpys():
    scenario = Scenario(np.zeros(4, int), np.int64(3), np.int64(1))
    assert scenario == Scenario(("marine",) * 4, 3, 1)
    assert hash(scenario) == hash(Scenario((MARINE,) * 4, 3, 1))


def test_params_are_no_options():
    with pytest.raises(UserError, match=r"duration.*replace"):
        marljax.make("smax", scenario="8m", duration=50)


def test_scenarios_can_be_added_but_not_changed():
    register_scenario("one zealot", Scenario((0, 0, 3), 2, 1))
    env = marljax.make("smax", scenario="one zealot")
    assert (env.num_agents, env.action_space.n) == (2, FIRST_ATTACK + 1)
    register_scenario("one zealot", Scenario(("marine", MARINE, "zealot"), 2, 1))
    for name, scenario, message in (
        ("one zealot", Scenario((0, 3), 1, 1), "another name"),
        ("", Scenario((0, 3), 1, 1), "name=''"),
        ("a tuple", (0, 3), "a tuple.*Scenario"),
    ):
        with pytest.raises(UserError, match=message):
            register_scenario(name, scenario)


def test_the_command_line_takes_scenarios_of_a_users_module(tmp_path, monkeypatch, capsys):
    """And trains there with the values that are tuned for smax."""
    source = """
        from marljax.envs.smax import Scenario, Smax, register_scenario
        register_scenario("2m_vs_1s", Scenario((0, 0, 2), 2, 1))
    """
    (tmp_path / "my_battles.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    overrides = ["env=custom", "env.target=my_battles:Smax", "env.scenario=2m_vs_1s"]
    run = compose.compose("ippo", overrides)
    assert run.env == Smax("2m_vs_1s")
    for more in ([], ["tuned=gru"]):
        assert compose.compose("ippo", [*overrides, *more]).config == marljax.tuned("ippo", "smax", *more).config
    with pytest.raises(SystemExit):
        app.main("ippo", [*overrides, "--help"])
    assert "ippo_smax.yaml" in capsys.readouterr().out


def test_sizes_of_the_published_scenarios():
    assert len(PUBLISHED) == 14
    assert set(PUBLISHED) <= set(scenario_names())
    assert len(UNIT_NAMES) == len(PARAMS.speed) == 6
    for name, size, state in (("2s3z", 127, 120), ("27m_vs_30m", 738, 684)):
        env = Smax(name)
        assert env.observation_space.shape == (size,)
        assert jax.eval_shape(lambda env=env: env.global_state(env.reset(KEY)[0], PARAMS)).shape == (state,)


def test_invalid_params_are_rejected():
    Smax().check_params(PARAMS)
    for name, value, message in (
        ("health", np.zeros(6), r"health\[0\]=0"),
        ("cooldown_noise_low", 3.0, "cooldown_noise_high"),
        ("spawn_noise", 100, "spawn_noise=100.* 8"),
    ):
        with pytest.raises(UserError, match=message):
            Smax().check_params(PARAMS.replace(**{name: value}))
