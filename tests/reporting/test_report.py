"""Scripted policies of a report, and their cache."""

import jax
import numpy as np
import pytest
import toys
from jax.tree_util import Partial

from marljax import registry
from marljax.config import compose
from marljax.envs.smax import Scenario, units
from marljax.errors import UserError
from marljax.io import cache
from marljax.reporting import report
from marljax.training.evaluation import Evaluator, ScriptedPolicy

EPISODES = 40  # two parts


def walk(env_params, key, state, timestep, carry):
    """Forth as soon as agents make no more than ``fewest`` cells."""
    del key, state
    return jax.numpy.full(timestep.alive.shape, toys.FORTH) * (env_params.fewest > 0), carry


class Guided(toys.Corridor):
    """A user's own environment, which brings a policy."""

    def scripted_policies(self, env_params):
        return {"walker": Partial(walk, env_params)}


class Misguided(toys.Corridor):
    """Its policy does not run."""

    def scripted_policies(self, env_params):
        return {"broken": lambda key, state, timestep, carry: (bool(timestep.first) + 1, carry)}


@pytest.fixture(autouse=True)
def names(toys, monkeypatch, tmp_path):
    for name, cls in {"guided": Guided, "misguided": Misguided}.items():
        monkeypatch.setitem(registry.ENVIRONMENTS, name, f"{cls.__module__}:{cls.__name__}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def played(monkeypatch):
    """A call for each part of the episodes that a scripted policy has played."""
    calls = []
    play = Evaluator.scripted
    monkeypatch.setattr(Evaluator, "scripted", lambda *inputs: calls.append(inputs) or play(*inputs))
    return calls


def scripted(*arguments, env="corridor", episodes=EPISODES):
    return dict(report.scripted(compose.compose("tiny", [f"env={env}", *arguments]), 1, episodes, lambda line: None))


def assert_same(one, other):
    assert list(one) == list(other)
    for name, metrics in one.items():
        for metric, values in metrics.items():
            np.testing.assert_array_equal(values, other[name][metric], err_msg=metric)


def test_a_second_report_plays_nothing_again_until_something_changes(played):
    first = scripted()
    assert len(played) == 2
    assert_same(scripted(), first)
    assert len(played) == 2
    slipping = scripted("env.slip=0.5")
    assert len(played) == 4
    assert not np.array_equal(slipping["random"]["return"], first["random"]["return"])
    scripted("env.length=5")
    assert len(played) == 6
    assert scripted(episodes=8)["random"]["return"].shape == (8,)
    assert len(played) == 7


def test_code_that_changed_is_played(played, monkeypatch):
    first = scripted()
    observe = toys.Corridor.observe
    jax.clear_caches()  # as in another process
    monkeypatch.setattr(toys.Corridor, "observe", lambda self, *inputs: observe(self, *inputs)._replace(metrics={}))
    assert scripted()["random"].keys() < first["random"].keys()
    assert len(played) == 4
    monkeypatch.undo()
    jax.clear_caches()


def test_policies_of_the_library_are_known_by_its_source_and_settings_untraced(monkeypatch):
    calls = []

    def play(evaluator, *inputs):
        calls.append(evaluator)
        return {"return": jax.numpy.zeros(evaluator.episodes)}

    def newly_played(env, *arguments):
        calls.clear()
        report.scripted(compose.compose("mappo", [f"env={env}", *arguments]), 1, 8, lambda line: None)
        return len(calls)

    monkeypatch.setattr(Evaluator, "scripted", play)
    monkeypatch.setattr(Evaluator, "scripted_program", lambda *inputs: pytest.fail("traced"))
    assert [newly_played("merge"), newly_played("merge")] == [4, 0]
    assert newly_played("merge", "env.density=easy") == 4  # other numbers
    assert newly_played("merge", "env.connected_lanes=false") == 4  # another program
    for kind in ("marine", "zealot"):  # another battle of the same name
        monkeypatch.setitem(units._SCENARIOS, "mine", Scenario((kind,) * 6, 3, 3))
        assert newly_played("smax", "env.scenario=mine") > 0
    monkeypatch.setattr(cache, "JAX_OPTIONS", (*cache.JAX_OPTIONS, "disable_jit"))
    assert newly_played("merge") == 4
    monkeypatch.setattr(cache, "source_digest", lambda: "other source")
    assert newly_played("merge") == 4


@pytest.mark.parametrize("damage", [b"", b"PK", None])
def test_a_damaged_entry_is_played_and_written_again(played, tmp_path, damage):
    first = scripted()
    (entry,) = (tmp_path / "marljax" / "policies").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2] + b"!" + whole[len(whole) // 2 + 1 :] if damage is None else damage)
    assert_same(scripted(), first)
    assert len(played) == 4
    assert entry.read_bytes() == whole


def test_without_a_cache_folder_everything_is_played(played, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    first = scripted()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(cache.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    assert_same(scripted(), first)
    assert len(played) == 4


def test_every_environment_is_compared_with_random_actions_and_its_own_policies():
    found = scripted(env="guided", episodes=8)
    assert list(found) == ["walker", "random"]
    assert found["walker"]["return"].mean() > found["random"]["return"].mean()
    suite = compose.compose("ppo", ["env=gymnax/CartPole-v1"])
    assert list(report.scripted_policies(suite.base_env, suite.env_params)) == ["random"]
    merge = compose.compose("mappo", ["env=merge"])
    ours = report.scripted_policies(merge.base_env, merge.env_params)
    assert {"random", "human drivers (IDM + MOBIL)"} < set(ours)
    assert all(isinstance(rival, ScriptedPolicy) for rival in ours.values())


def test_a_policy_that_does_not_run_is_one_line():
    with pytest.raises(UserError, match=r"^Misguided: .*'broken'") as refused:
        scripted(env="misguided", episodes=8)
    assert "\n" not in str(refused.value)
