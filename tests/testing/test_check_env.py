"""The conformance kit passes what keeps the contract, and names what each of a family of broken environments breaks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, CorridorParams, Crowd, Padded, Points

from marljax import UserError, joint
from marljax.core.environment import ScriptedPolicy
from marljax.core.spaces import Box, Discrete, Part
from marljax.core.types import Outcome
from marljax.testing import check_env
from marljax.testing.static import check_before_training, scene_fault


@pytest.mark.parametrize(
    "env", [Corridor(), Corridor(preset="slow", agents=1), Corridor(compete=True), Points(), Padded(), Crowd()], ids=repr
)
def test_correct_environments_pass(env):
    assert check_env(env, num_steps=40) is None


def test_other_numbers_are_checked_too():
    check_env(Corridor(), CorridorParams(slip=0.9), num_steps=40)
    with pytest.raises(AssertionError, match="env_params hold NaN in slip"):
        check_env(Corridor(), CorridorParams(slip=float("nan")))


@dataclasses.dataclass(frozen=True)
class Unhashable(Corridor):
    table: np.ndarray = dataclasses.field(default_factory=lambda: np.arange(3))


class Unequal(Corridor):
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Hidden(Corridor):
    def __init__(self, cells=4):
        super().__init__()
        object.__setattr__(self, "cells", cells)


class WrongNoop(Corridor):
    noop = 3


class WrongTeams(Corridor):
    teams = (0, 0)


class WideActions(Points):
    action_space = Box((2,), -2.0, 2.0)


class WrongSpace(Corridor):
    observation_space = Box((3,), 0.0, 1.0)


class ValueBranch(Corridor):
    def transition(self, key, state, action, env_params):
        if env_params.slip > 0.5:
            action = action * 0
        return super().transition(key, state, action, env_params)


class WeakReward(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(reward=jnp.where(state.alive, -0.1, 0.0))


class FloatTime(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after.replace(time=after.time * jnp.ones(())), outcome


class VectorMetric(Corridor):
    def observe(self, state, env_params):
        return super().observe(state, env_params)._replace(metrics={"alive": 1.0 * state.alive})


class HidingMetric(Corridor):
    def observe(self, state, env_params):
        return super().observe(state, env_params)._replace(metrics={"return": 1.0 * state.arrived})


class NoActions(Corridor):
    action_space = Discrete(0)


class EmptyTeam(Corridor):
    teams = (1, 1, 2)


class ScalarReward(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(reward=jnp.sum(outcome.reward))


class IntegerReward(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(reward=outcome.reward.astype(int))


class DonePerAgent(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(terminated=~after.alive)


class OtherTree(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return (after, key), outcome


class Stumbles(Corridor):
    def transition(self, key, state, action, env_params):
        return state, Outcome({}["reward"], jnp.array(False), jnp.array(False))


class NoDescription(Corridor):
    @property
    def teams(self):
        raise KeyError("teams")


class GlobalMatrix(Corridor):
    def global_state(self, state, env_params):
        return super().global_state(state, env_params)[None]


class PresetShapes(Corridor):
    def preset_params(self, preset):
        slip = 0.1 if preset == "quick" else jnp.full(self.agents, 0.5)
        return super().preset_params(preset).replace(slip=slip)


@dataclasses.dataclass(frozen=True)
class PresetSplits(Corridor):
    preset: str = "quick"  # compared, although it only chooses numbers


@dataclasses.dataclass(frozen=True)
class PresetReshapes(Corridor):
    agents: int = dataclasses.field(default=3, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "agents", 3 if self.preset == "quick" else 2)


class Overflowing(Corridor):
    def global_state(self, state, env_params):
        return super().global_state(state, env_params) / state.time


class NanState(Points):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after.replace(x=jnp.where(after.time == 5, jnp.nan, after.x)), outcome


class OutOfBounds(Corridor):
    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(obs=view.obs * 1.5)


class IgnoresMask(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(reward=outcome.reward - 0.1 * (action == 1) * state.alive)


class UsesPadding(Padded):
    def transition(self, key, state, action, env_params):
        return Points.transition(self, key, state, action, env_params)


class ActingGhost(Corridor):
    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(action_mask=jnp.ones_like(view.action_mask), metrics={"arrived": 1.0 * state.time})

    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after.replace(arrived=jnp.sum(action, dtype=jnp.int32)), outcome


class PaidGhost(Corridor):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after, outcome._replace(reward=outcome.reward - 0.1)


class EmptyMask(Corridor):
    def observe(self, state, env_params):
        view = super().observe(state, env_params)
        return view._replace(action_mask=view.action_mask & (state.time < 3))


class MaskedContinuous(Points):
    def observe(self, state, env_params):
        return super().observe(state, env_params)._replace(action_mask=(state.x > 0)[:, None])


class HostRandomness(Points):
    def initial(self, key, env_params):
        state = super().initial(key, env_params)
        return state.replace(x=state.x * np.random.default_rng().uniform())


class OwnStep(Corridor):
    def step(self, key, state, action, env_params=None):
        state, timestep = super().step(key, state, action, env_params)
        return state, timestep.replace(reward=timestep.reward * 2)


class Endless(Points):
    def transition(self, key, state, action, env_params):
        after, outcome = super().transition(key, state, action, env_params)
        return after.replace(time=after.time % env_params["limit"]), outcome._replace(truncated=jnp.array(False))


class RestartsItself(Corridor):
    def transition(self, key, state, action, env_params):
        key, key_fresh = jax.random.split(key)
        after, outcome = super().transition(key, state, action, env_params)
        fresh = self.initial(key_fresh, env_params)
        ended = outcome.terminated | outcome.truncated
        return jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after), outcome


class GarishScene(Corridor):
    def scene(self, state, env_params):
        scene = super().scene(state, env_params)
        return scene._replace(circles=scene.circles._replace(colour=scene.circles.colour * 255))


class LostScene(Corridor):
    def scene(self, state, env_params):
        scene = super().scene(state, env_params)
        return scene._replace(time=jnp.log(scene.time))


class WrongLayout(Crowd):
    obs_layout = (Part("own", 1, 2), Part("others", 3, 4))


class TornLayout(Crowd):
    obs_layout = (Part("own", 1, 2), Part("others", 3, 4), Part("others", 1, 3))


class SecondSelf(Crowd):
    obs_layout = (Part("own", 2, 1), Part("others", 3, 5))


BROKEN = {
    Unhashable: "it cannot be hashed .*ndarray.*; keep arrays in env_params",
    Unequal: "two environments made with the same options are not equal",
    Hidden: r"equality does not see \['cells'\]",
    WrongNoop: "noop is 3, which is no action",
    WrongTeams: r"teams is \(0, 0\), not a tuple of one integer for each of 3 agents",
    WideActions: r"continuous actions lie in \[-2.0, 2.0\]",
    WrongSpace: r"the timestep does not follow the spaces: obs is float32\[3, 2\], not float32\[3, 3\]",
    ValueBranch: "step cannot be compiled: Attempted boolean conversion of traced array",
    WeakReward: r"the timestep of step is not like that of reset: reward is weak float32\[3\], not float32\[3\] .*name a dtype",
    FloatTime: r"the state of step is not like that of reset: time is float32\[\], not int32\[\]",
    VectorMetric: "metrics is not a dictionary of scalars",
    HidingMetric: r"metrics named \['return'\] would hide those of vectorize",
    NoActions: "holds no action",
    EmptyTeam: r"teams is \(1, 1, 2\).*each has an agent",
    ScalarReward: r"reward is float32\[\], not float32\[3\]",
    IntegerReward: r"reward is int32\[3\], not float32\[3\]",
    DonePerAgent: r"terminated is bool\[3\], not bool\[\]",
    OtherTree: "step",
    Stumbles: r"step raised KeyError: 'reward' \(transition, line \d+ of test_check_env.py\)",
    NoDescription: r"teams raised KeyError: 'teams' \(teams, line",
    GlobalMatrix: r"global_state is float32\[1, 7\], not a vector",
    PresetShapes: r"the env_params of preset 'slow' need another program: slip is float32\[3\], not float32\[\]",
    PresetSplits: "preset='slow' changes equality, but no shape",
    PresetReshapes: "preset='slow' changes shapes, but not equality",
    Overflowing: "global_state is not finite",
    NanState: "the state holds NaN in x",
    OutOfBounds: r"obs spans \[.*\], outside of observation_space \[0, 1\]",
    IgnoresMask: "an unavailable action does not act as the noop: timestep.reward differs",
    UsesPadding: "an unavailable action does not act as the noop: state.y differs",
    ActingGhost: "the action of an agent that is not alive matters: state.arrived differs",
    PaidGhost: "an agent that was not alive got a reward",
    EmptyMask: "an agent that is alive has no available action",
    MaskedContinuous: "the action mask of a continuous action has to be all true",
    HostRandomness: "reset and its vectorised twin differ in obs.own for the same key",
    OwnStep: "step and its vectorised twin differ in reward",
    Endless: "no episode ended within 40 steps; raise num_steps",
    RestartsItself: "the final state of an episode is a fresh one .*: leave the restart to vectorize",
    GarishScene: r"a colour of the scene lies outside of \[0, 1\]",
    LostScene: "scene.time is not finite",
    WrongLayout: "obs_layout describes 14 columns of an observation of 17",
    TornLayout: r"obs_layout holds .*count=3.* and .*count=1.*; parts of one name are columns of the same entities",
    SecondSelf: r"obs_layout holds .*count=2.*; there is one agent that observes",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_broken_environments_are_named(broken):
    with pytest.raises(AssertionError, match=f"^{broken.__name__}: .*{BROKEN[broken]}"):
        check_env(broken(), num_steps=40)


def test_endless_environments_may_say_so():
    check_env(Endless(), num_steps=40, ends=False)


def always(value):
    """A method that gives ``value``."""
    return lambda self, *given: value


def leaves(self, *given):
    raise SystemExit(3)


def forth(key, state, timestep, carry):
    return jnp.full(timestep.alive.shape, 2), carry


def doing(action, carry=()):
    """The rivals of an environment, of which the one does this."""
    return always({"walker": ScriptedPolicy(Corridor(), CorridorParams(), lambda *given: (action, carry))})


# What an environment's class may say wrong beside its episodes: name → (value, what is told).
TOLD = [
    ({"limit_ends": always(True)}, "limit_ends is <bound method.*, not True or False"),
    ({"limit_ends": True, "max_episode_steps": always("12")}, "longest gives '12', not a number or None"),
    ({"limit_ends": True, "max_episode_steps": always(jnp.ones(3))}, r"longest gives Array\(.*, not a number or None"),
    ({"max_episode_steps": lambda self, env_params: int(env_params.limit)}, "longest cannot be compiled"),
    ({"max_episode_steps": leaves}, r"longest raised SystemExit: 3 \(leaves, line"),
    ({"figures": "arrived"}, "figures is 'arrived', not a tuple of names"),
    ({"units": ("m",)}, r"units is \('m',\), not a dictionary"),
    ({"alarms": ["arrived"]}, r"alarms is \['arrived'\], not a dictionary"),
    ({"alarms": {"nothing": "…"}}, r"alarms names \['nothing'\], which are no metrics; observe reports \['arrived', "),
    ({"alarms": property(always(None))}, "alarms is None, not a dictionary"),
    ({"scripted_policies": lambda self, env_params: {}["walker"]}, r"rivals raised KeyError: 'walker' \(<lambda>, line"),
    ({"scripted_policies": always([forth])}, r"rivals gives \[<function .*, not a dictionary of policies by name"),
    ({"scripted_policies": always({"walker": 3})}, "the scripted policy 'walker' is 3, not a function"),
    ({"scripted_policies": always({"walker": lambda *given: 3})}, r"'walker' does not give a pair \(action, carry\)"),
    ({"scripted_policies": doing(jnp.zeros((3, 7), int))}, r"'walker' gives the actions int32\[3, 7\], not int32\[3\]$"),
    ({"scripted_policies": doing(jnp.zeros(3))}, r"'walker' gives the actions float32\[3\], not int32\[3\]"),
    ({"scripted_policies": doing(jnp.zeros(3, int), 1)}, "'walker' gives another carry than it began with"),
    ({"scripted_policies": always({"walker": lambda *given: given[4]})}, r"'walker' raised IndexError: .* \(<lambda>, line"),
]


@pytest.mark.parametrize(("members", "message"), TOLD, ids=[message[:30] for _, message in TOLD])
def test_what_is_wrong_beside_the_episodes_is_told_before_training(members, message):
    env = type("Wrong", (Corridor,), {"__module__": __name__, **members})()
    with pytest.raises(UserError, match=f"^Wrong: .*{message}"):
        check_before_training(env)


def test_what_is_right_beside_the_episodes_passes():
    counting = ScriptedPolicy(Points(), Points().default_params, lambda *given: (jnp.zeros((2, 2)), given[3] + 1), 0)
    members = {
        "scripted_policies": always({"walker": forth, "counting": counting}),
        "max_episode_steps": lambda self, numbers: numbers.limit,
    }
    texts = {"alarms": {"arrived": "…"}, "units": {"arrived": "%"}, "figures": ("arrived",), "limit_ends": True}
    assert check_before_training(type("Right", (Corridor,), {"__module__": __name__, **members, **texts})()) is None


WITHOUT_RUNNING = [*[*BROKEN][: [*BROKEN].index(PresetShapes)], WrongLayout, TornLayout, SecondSelf]


@pytest.mark.parametrize("broken", WITHOUT_RUNNING, ids=lambda broken: broken.__name__)
def test_what_can_be_seen_without_running_is_told_before_training(broken):
    if broken is WeakReward:  # computes the right numbers
        check_before_training(broken())
        return
    with pytest.raises(UserError, match=f"^{broken.__name__}: .*{BROKEN[broken]}"):
        check_before_training(broken())


def test_a_wrapper_of_ours_is_checked_inside():
    with pytest.raises(UserError, match=r"^ScalarReward: "):
        check_before_training(joint(ScalarReward()))


class BrokenScene(Corridor):
    def scene(self, state, env_params):
        raise RuntimeError("no paint")


def test_a_scene_that_raises_spoils_the_pictures_only():
    env = BrokenScene()
    check_before_training(env)
    assert "BrokenScene: scene raised RuntimeError: no paint (scene, line" in scene_fault(env, env.default_params)
    assert scene_fault(Points(), Points().default_params) == "Points has no scene; implement scene(state, env_params)"
    assert scene_fault(Corridor(), CorridorParams()) == ""


@pytest.mark.parametrize("legend", [7, (3,), (("walker", (0.0, 1.0)),), property(always(None)), property(leaves)])
def test_a_legend_that_is_none_spoils_the_pictures_only(legend):
    env = type("Wrong", (Corridor,), {"__module__": __name__, "legend": legend})()
    check_before_training(env)
    assert "Wrong: legend " in scene_fault(env, env.default_params)


def test_a_scene_that_is_none_spoils_the_pictures_only():
    env = type("Wrong", (Corridor,), {"__module__": __name__, "scene": always({"time": jnp.zeros(())})})()
    assert scene_fault(env, env.default_params) == "Wrong: scene gives a dict, not a marljax.core.scene.Scene"
