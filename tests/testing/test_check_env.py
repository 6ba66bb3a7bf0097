"""``check_env`` passes what keeps the contract, and names the violation of each of a family of broken environments."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, CorridorParams, Crowd, Padded, Points

from marljax import UserError, joint
from marljax.core.environment import Display, ScriptedPolicy
from marljax.core.fields import option
from marljax.core.spaces import Box, Discrete, Part
from marljax.core.types import Outcome
from marljax.testing import check_env
from marljax.testing.static import check_before_training, scene_error

NUM_STEPS = 20  # enough for an episode of every toy


@pytest.mark.parametrize("env", [Corridor(compete=True), Points(), Padded(), Crowd()], ids=repr)
def test_correct_environments_pass(env):
    check_env(env, num_steps=NUM_STEPS)


def test_given_params_are_checked():
    with pytest.raises(AssertionError, match="NaN in slip"):
        check_env(Corridor(), CorridorParams(slip=float("nan")))


def subclass(name, base=Corridor, **members):
    """A class of this module, as a user would write it."""
    return type(name, (base,), {"__module__": __name__, **members})


def returning(value):
    """A method that returns ``value``."""
    return lambda self, *args: value


def with_reward(change):
    """A transition with another reward: ``change(state, action, reward)``."""

    def transition(self, key, state, action, env_params):
        after, outcome = Corridor.transition(self, key, state, action, env_params)
        return after, outcome._replace(reward=change(state, action, outcome.reward))

    return transition


def with_state(change, base=Corridor):
    """A transition to another state: ``change(after, action)``."""

    def transition(self, key, state, action, env_params):
        after, outcome = base.transition(self, key, state, action, env_params)
        return change(after, action), outcome

    return transition


def with_view(change, base=Corridor):
    """An observation with other fields: ``change(state, view)``."""

    def observe(self, state, env_params):
        view = base.observe(self, state, env_params)
        return view._replace(**change(state, view))

    return observe


def with_scene(change):
    return lambda self, state, env_params: change(Corridor.scene(self, state, env_params))


@dataclasses.dataclass(frozen=True)
class Unhashable(Corridor):
    table: np.ndarray = dataclasses.field(default_factory=lambda: np.arange(3))


class Hidden(Corridor):
    def __post_init__(self):
        object.__setattr__(self, "cells", 4)


class ValueBranch(Corridor):
    def transition(self, key, state, action, env_params):
        if env_params.slip > 0.5:
            action = action * 0
        return super().transition(key, state, action, env_params)


class Raises(Corridor):
    def transition(self, key, state, action, env_params):
        return state, Outcome({}["reward"], jnp.array(False), jnp.array(False))


class PresetShapes(Corridor):
    def preset_params(self, preset):
        slip = 0.1 if preset == "quick" else jnp.full(self.agents, 0.5)
        return super().preset_params(preset).replace(slip=slip)


@dataclasses.dataclass(frozen=True)
class PresetSplits(Corridor):
    preset: str = "quick"  # compared, although it only chooses params


@dataclasses.dataclass(frozen=True)
class PresetReshapes(Corridor):
    agents: int = option(3, preset=True)

    def __post_init__(self):
        object.__setattr__(self, "agents", 3 if self.preset == "quick" else 2)


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


def raise_key_error(self):
    raise KeyError("teams")


def global_state_over_time(self, state, env_params):
    return Corridor.global_state(self, state, env_params) / state.time


def global_matrix(self, state, env_params):
    return Corridor.global_state(self, state, env_params)[None]


# Violations that show without running anything.
STATIC = {
    Unhashable: "it cannot be hashed .*ndarray",
    subclass("Unequal", __eq__=object.__eq__, __hash__=object.__hash__): "equality or hash",
    Hidden: r"equality ignores \['cells'\]",
    subclass("WrongNoop", noop=3): "noop is 3",
    subclass("WrongTeams", teams=(0, 0)): r"teams is \(0, 0\).* 3 agents",
    subclass("EmptyTeam", teams=(1, 1, 2)): r"teams is \(1, 1, 2\)",
    subclass("NoTeams", teams=property(raise_key_error)): r"teams raised KeyError: 'teams' \(raise_key_error, line",
    subclass("NoActions", action_space=Discrete(0)): "action_space .*no action",
    subclass("WideActions", Points, action_space=Box((2,), -2.0, 2.0)): r"\[-2.0, 2.0\]",
    subclass("WrongSpace", observation_space=Box((3,), 0.0, 1.0)): r"obs is float32\[3, 2\], not float32\[3, 3\]",
    subclass("WrongLayout", Crowd, obs_layout=(Part("own", 1, 2), Part("others", 3, 4))): "14 columns .* of 17",
    subclass(
        "TornLayout", Crowd, obs_layout=(Part("own", 1, 2), Part("others", 3, 4), Part("others", 1, 3))
    ): "obs_layout .*count=3.* and .*count=1",
    subclass("SecondSelf", Crowd, obs_layout=(Part("own", 2, 1), Part("others", 3, 5))): "obs_layout .*count=2.*single",
    ValueBranch: "step cannot be compiled: Attempted boolean conversion of traced array",
    Raises: r"step raised KeyError: 'reward' \(transition, line \d+ of test_check_env.py\)",
    subclass(
        "ScalarReward", transition=with_reward(lambda state, action, reward: jnp.sum(reward))
    ): r"reward is float32\[\], not float32\[3\]",
    subclass(
        "FloatTime", transition=with_state(lambda after, action: after.replace(time=after.time * jnp.ones(())))
    ): r"the state .*time is float32\[\], not int32\[\]",
    subclass("OtherTree", transition=with_state(lambda after, action: (after, action))): "step",
    subclass("VectorMetric", observe=with_view(lambda state, view: {"metrics": {"alive": 1.0 * state.alive}})): "scalars",
    subclass(
        "HidingMetric", observe=with_view(lambda state, view: {"metrics": {"return_0": 1.0 * state.arrived}})
    ): r"\['return_0'\] would hide",
    subclass("GlobalMatrix", global_state=global_matrix): r"global_state is float32\[1, 7\]",
}
WeakReward = subclass("WeakReward", transition=with_reward(lambda state, *_: jnp.where(state.alive, -0.1, 0.0)))
# Those that only ``check_env`` finds: weak types, and what shows in the presets or in episodes.
DYNAMIC = {
    WeakReward: r"reward is weak float32\[3\], not float32\[3\] .*name a dtype",
    PresetShapes: r"preset 'slow' .*slip is float32\[3\], not float32\[\]",
    PresetSplits: "preset='slow' changes equality, but no shape",
    PresetReshapes: "preset='slow' changes shapes, but not equality",
    subclass("Overflowing", global_state=global_state_over_time): "global_state is not finite",
    subclass(
        "NanState", Points, transition=with_state(lambda s, _: s.replace(x=jnp.where(s.time == 5, jnp.nan, s.x)), Points)
    ): "NaN in x",
    subclass("OutOfBounds", observe=with_view(lambda state, view: {"obs": view.obs * 1.5})): r"obs is in .*\[0, 1\]",
    subclass(
        "IgnoresMask", transition=with_reward(lambda state, action, reward: reward - 0.1 * (action == 1) * state.alive)
    ): "does not act as the noop: timestep.reward differs",
    subclass("UsesPadding", Padded, transition=Points.transition): "does not act as the noop: state.y differs",
    subclass(
        "ActingGhost",
        observe=with_view(lambda state, view: {"action_mask": jnp.ones_like(view.action_mask)}),
        transition=with_state(lambda after, action: after.replace(arrived=jnp.sum(action, dtype=jnp.int32))),
    ): "not alive matters: state.arrived differs",
    subclass("PaidGhost", transition=with_reward(lambda state, action, reward: reward - 0.1)): "not alive got a reward",
    subclass(
        "EmptyMask", observe=with_view(lambda state, view: {"action_mask": view.action_mask & (state.time < 3)})
    ): "no available action",
    subclass(
        "MaskedContinuous", Points, observe=with_view(lambda state, view: {"action_mask": (state.x > 0)[:, None]}, Points)
    ): "mask of a continuous action",
    HostRandomness: "reset and its vectorised twin differ in obs.own",
    OwnStep: "step and its vectorised twin differ in reward",
    Endless: f"no episode ended within {NUM_STEPS} steps",
    RestartsItself: "leave the restart to vectorize",
    subclass(
        "GarishScene",
        scene=with_scene(lambda scene: scene._replace(circles=scene.circles._replace(colour=scene.circles.colour * 255))),
    ): "a colour of the scene",
}


def class_name(case):
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("broken", "message"), DYNAMIC.items(), ids=class_name)
def test_violations_are_named(broken, message):
    with pytest.raises(AssertionError, match=f"^{broken.__name__}: .*{message}"):
        check_env(broken(), num_steps=NUM_STEPS)


@pytest.mark.parametrize(("broken", "message"), STATIC.items(), ids=class_name)
def test_static_violations_are_user_errors_before_training(broken, message):
    with pytest.raises(UserError, match=f"^{broken.__name__}: .*{message}"):
        check_before_training(broken())


def test_check_env_includes_the_checks_before_training_and_these_accept_weak_types():
    with pytest.raises(AssertionError, match="WrongNoop: noop is 3"):
        check_env(subclass("WrongNoop", noop=3)())
    check_before_training(WeakReward())


def test_endless_environments_may_be_declared():
    check_env(Endless(), num_steps=NUM_STEPS, ends=False)


def exits(self, *args):
    raise SystemExit(3)


def forth(key, state, timestep, carry):
    return jnp.full(timestep.alive.shape, 2), carry


def walker(policy):
    """Scripted policies: one."""
    return {"scripted_policies": returning({"walker": policy})}


def walker_of(action, carry=()):
    """Scripted policies: one with this decision."""
    return walker(ScriptedPolicy(Corridor(), CorridorParams(), lambda *args: (action, carry)))


# Wrong members of an environment's class → message.
MEMBERS = [
    ({"limit_ends": returning(True)}, "limit_ends is <bound method"),
    ({"max_episode_steps": returning("12")}, "max_episode_steps returns '12'"),
    ({"max_episode_steps": lambda self, env_params: int(env_params.limit)}, "max_episode_steps cannot be compiled"),
    ({"max_episode_steps": exits}, r"max_episode_steps raised SystemExit: 3 \(exits, line"),
    ({"display": 3}, "display is 3"),
    ({"display": Display(metrics="arrived")}, "display.metrics is 'arrived'"),
    ({"display": Display(warnings=["arrived"])}, r"display.warnings is \['arrived'\]"),
    ({"display": Display(warnings={"nothing": "…"})}, r"display.warnings has \['nothing'\].*\['arrived', "),
    ({"scripted_policies": lambda self, env_params: {}["walker"]}, r"scripted_policies raised KeyError: .*\(<lambda>, line"),
    ({"scripted_policies": returning([forth])}, r"scripted_policies returns \["),
    (walker(3), "'walker' is 3, not a function"),
    (walker(lambda *args: 3), r"'walker' .*\(action, carry\)"),
    (walker_of(jnp.zeros(3)), r"'walker' .* float32\[3\], not int32\[3\]"),
    (walker_of(jnp.zeros(3, int), 1), "'walker' .*carry"),
]


@pytest.mark.parametrize(("members", "message"), MEMBERS, ids=[message[:30] for _, message in MEMBERS])
def test_wrong_members_are_user_errors_before_training(members, message):
    with pytest.raises(UserError, match=f"^Wrong: .*{message}"):
        check_before_training(subclass("Wrong", **members)())


def test_right_members_pass():
    counting = ScriptedPolicy(Points(), Points().default_params, lambda *args: (jnp.zeros((2, 2)), args[3] + 1), 0)
    right = subclass(
        "Right",
        scripted_policies=returning({"walker": forth, "counting": counting}),
        max_episode_steps=lambda self, env_params: env_params.limit,
        display=Display(metrics=("arrived",), warnings={"arrived": "…"}, units={"arrived": "%"}),
        limit_ends=True,
    )
    check_before_training(right())


def test_the_environment_inside_a_wrapper_is_checked():
    with pytest.raises(UserError, match=r"^Raises: "):
        check_before_training(joint(Raises()))


def no_paint(self, state, env_params):
    raise RuntimeError("no paint")


SCENES = [
    ({"scene": no_paint}, r"scene raised RuntimeError: no paint \(no_paint, line"),
    ({"scene": returning({"time": jnp.zeros(())})}, "scene returns a dict"),
    *(({"display": Display(legend=legend)}, "display.legend") for legend in (7, (("walker", (0.0, 1.0)),))),
]


@pytest.mark.parametrize(("members", "message"), SCENES, ids=[message[:30] for _, message in SCENES])
def test_a_broken_scene_affects_drawing_only(members, message):
    env = subclass("Wrong", **members)()
    check_before_training(env)
    assert re.search(message, scene_error(env, env.default_params))


def test_environments_may_have_no_scene():
    assert scene_error(Corridor(), CorridorParams()) == ""
    assert "has no scene" in scene_error(Points(), Points().default_params)
