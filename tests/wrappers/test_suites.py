"""What the suites of gymnax's and JaxMARL's environments share: names, options, messages, lazy imports."""

import subprocess
import sys

import jax
import pytest

import marljax
from marljax.config import compose, settings
from marljax.errors import UserError
from marljax.wrappers import from_gymnax, jaxmarl_families
from marljax.wrappers.from_gymnax import Gymnax
from marljax.wrappers.from_jaxmarl import JaxMARL

DOWNLOADS = "MNISTBandit-bsuite"
MEMBERS = [("gymnax", name) for name in from_gymnax.names() if name != DOWNLOADS]
MEMBERS += [("jaxmarl", name) for name in jaxmarl_families.names()]


@pytest.mark.parametrize(("suite", "name"), MEMBERS)
def test_options_hide_no_attribute(suite, name):
    """An option with the name of an attribute of ``Environment`` would hide it, unless it means the same."""
    base, module = (Gymnax, from_gymnax) if suite == "gymnax" else (JaxMARL, jaxmarl_families)
    try:
        options = module.options_of(name)
    except UserError as missing:  # optional dependencies of JaxMARL, such as brax
        pytest.skip(str(missing))
    assert {option for option in options if hasattr(base, option)} <= {"num_agents"}


@pytest.mark.parametrize(
    ("suite", "name", "options", "arguments", "version"),
    [
        ("gymnax", "FrozenLake-misc", {"desc": ("SFF", "FHF", "FFG"), "is_slippery": False},
         ["env.desc=[SFF,FHF,FFG]", "env.is_slippery=false"], "1.0"),
        ("jaxmarl", "MPE_simple_spread_v3", {"num_agents": 5}, ["env.num_agents=5"], "0.2"),
    ],
)  # fmt: skip
def test_all_spellings_of_a_name_give_equal_environments(suite, name, options, arguments, version):
    env = marljax.make(f"{suite}/{name}", **options)
    assert env == marljax.make(suite, name=name, **options)
    assert env != marljax.make(f"{suite}/{name}")
    for spelling in ([f"env={suite}", f"env.name={name}"], [f"env={suite}/{name}"]):
        given = compose.compose("ippo", [*spelling, *arguments])
        assert (given.env, hash(given.env)) == (env, hash(env))
        assert (given.env_name, given.title) == (f"{suite}/{name}", f"ippo_{suite}-{name}")
        assert settings.from_tree(given.tree).env == env
    assert version in env.version


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("env=gymnax", "env=gymnax env.name=<name>; known: Acrobot-v1, "),
        ("env=gymnax env.name=CartPole-v2", "'CartPole-v2'; did you mean CartPole-v1"),
        ("env=gymax/CartPole-v1", "'gymax'; did you mean gymnax"),
        ("env=gymnax env.name=Catch-bsuite env.row=4", "'env.row'; did you mean env.rows"),
        ("env=gymnax env.name=Catch-bsuite env.rows=x", "env.rows=x "),
        ("env=gymnax env.name=MetaMaze-misc env.maze_size=4", "env.maze_size=4 "),
        ("env=gymnax env.name=CartPole-v1 env.gravty=9", "'env.gravty'; did you mean env.gravity"),
        ("env=gymnax env.name=CartPole-v1 env.max_steps_in_episode=0", "env.max_steps_in_episode=0 "),
        ("env=gymnax env.name=FrozenLake-misc env.map_name=9x9", "env.map_name=9x9 "),
        ("env=jaxmarl env.name=smax", "did you mean SMAX"),
        ("env=jaxmarl env.name=switch_riddle env.num_agent=4", "'env.num_agent'; did you mean env.num_agents"),
        ("env=jaxmarl env.name=switch_riddle env.num_agents=2", "env.num_agents=2 "),
        ("env=jaxmarl env.name=MPE_simple_spread_v3 env.num_agents=0", "env.num_agents=0 "),
        ("env=jaxmarl env.name=overcooked env.layout=cramped", "layout 'cramped'; did you mean"),
        ("env=jaxmarl env.name=HeuristicEnemySMAX env.scenario=3x", "env.scenario=3x "),
        ("env=jaxmarl env.name=LearnedPolicyEnemySMAX", "LearnedPolicyEnemySMAX"),
        ("env=jaxmarl env.name=storm_2p", "storm_2p does not follow JaxMARL's API"),
    ],
)
def test_wrong_arguments_are_user_errors(arguments, message):
    with pytest.raises(UserError) as raised:
        compose.compose("ippo", arguments.split())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gymnax/DeepSea-bsuite", {"action_mapping_key": jax.random.key(1)}, "'action_mapping_key'; known: size"),
        ("gymnax/CartPole-v1", {"gravity": 1.0}, "'gravity' .*default_params.replace"),
        ("jaxmarl/switch_riddle", {"num_agents": [3]}, r"num_agents=\[3\] .*an integer"),
        ("jaxmarl/switch_riddle", {"agent_id": 1}, "agent_id=1 .*True or False"),
        ("jaxmarl/HeuristicEnemySMAX", {"scenario": ["3m"]}, r"scenario=\['3m'\]"),
        ("jaxmarl/MPE_simple_facmac_3a_v1", {"num_landmarks": 3}, "'num_landmarks'"),
    ],
)
def test_wrong_options_in_python_are_user_errors(name, options, message):
    with pytest.raises(UserError, match=message):
        marljax.make(name, **options)


def test_importing_is_lazy_and_silent():
    code = """
import sys, marljax
assert not {"gymnax", "jaxmarl"} & {*sys.modules}
marljax.make("gymnax/CartPole-v1")
assert {"gymnax", "jaxmarl"} & {*sys.modules} == {"gymnax"}
marljax.make("jaxmarl/switch_riddle")
print("ready")"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("ready\n", "")
