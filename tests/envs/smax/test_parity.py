"""``smax`` against the ``jaxmarl`` package, step by step, in float32, without the noise of cooldowns.

Both get the same actions from the same initial state: random among those that JaxMARL calls available, or continuous ones that
choose with probability 0 or 1, so that no draw matters. An episode is compared until it ends. Units that push each other make
rounding errors grow, most where two are almost in one position: once a position is off by ``DRIFT``, ours is set to theirs, and
outputs that contain positions may be off by ``PUSHED`` in that step, in at most one of a thousand steps per unit. In one episode
of each case the two may diverge before its end, if a unit is within ``TIE`` of a threshold (range, sight, wall, the middle
between two aims), so that rounding decides. ``pytest -m "" -n 0 -rP tests/envs/smax/test_parity.py`` prints both counts: with
jaxmarl 0.2.0 and jaxlib 0.10.2 none of 224 discrete, 96 continuous and 40 other episodes diverges, and positions drift in 46 of
25,436 steps.

Axis letters: T time, E episodes, N units, M enemies.
"""

import functools
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxmarl.environments.smax import SMAX, map_name_to_scenario
from jaxmarl.environments.smax.heuristic_enemy import create_heuristic_policy, get_heuristic_policy_initial_state

from marljax.baselines.policies.smax import Script
from marljax.envs.smax import FIRST_ATTACK, LEFT, RIGHT, STOP, Opponent, Scenario, Smax, SmaxParams, SmaxState, register_scenario
from marljax.envs.smax.actions import mirrored
from marljax.envs.smax.battle import Units
from marljax.envs.smax.script import remember
from marljax.envs.smax.units import PUBLISHED, find_scenario

TOLERANCE, TIE, DRIFT, PUSHED = 1e-4, 1e-4, 1e-5, 1e-3
# The older code generator of the tests (see ``conftest``) rounds differently, and crowds drift twice as often.
DEFAULT_COMPILER = {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters" in os.environ["XLA_FLAGS"] else None
WITH_POSITIONS = ("x", "y", "obs", "global_state")
PARAMS = SmaxParams(cooldown_noise_low=0.0, cooldown_noise_high=0.0)
draw_uniform = jax.random.uniform


def without_noise(key, shape=(), dtype=float, minval=0.0, maxval=1.0):
    """``jax.random.uniform``, but 0 for JaxMARL's noise of a cooldown."""
    is_noise = shape == () and isinstance(minval, float) and (minval, maxval) == (-1 / 16, 2 / 16)
    return jnp.zeros(()) if is_noise else draw_uniform(key, shape, dtype, minval, maxval)


@pytest.fixture(autouse=True)
def _no_noise():
    with mock.patch.object(jax.random, "uniform", without_noise):
        yield


def ours(state, random_types: bool) -> SmaxState:
    """JaxMARL's state as ours."""
    shot = state.prev_attack_actions.astype(jnp.int32)
    columns = *state.unit_positions.T, state.unit_health, state.unit_weapon_cooldowns, *state.prev_movement_actions.T
    units = Units(*columns, shot=shot, fired=shot < 0)
    return SmaxState(units, state.unit_types.astype(jnp.int32) if random_types else None, state.step, None)


def replay(scenario: Scenario, name: str, **options) -> Smax:
    """Our environment, whose enemies take the actions in ``env_params.opponent``."""
    register_scenario(f"mirrored {name}", scenario.mirrored)
    opponent = Opponent(Smax(f"mirrored {name}"), lambda weights, *_: (mirrored(weights, scenario.num_allies), ()))
    return Smax(name, mode="learned", opponent=opponent, **options)


def random_available(key, masks: dict, names: list[str]):
    keys = jax.random.split(key, len(names))
    return {name: jax.random.categorical(k, jnp.where(masks[name], 0.0, -jnp.inf)) for name, k in zip(names, keys, strict=True)}


def random_continuous(key, state):
    """[N, 4] actions whose first two entries are (about) 0 or 1; every other unit walks or aims towards the middle of the map.

    A few lie outside the action space, where both packages clip them.
    """
    keys = jax.random.split(key, 4)
    chance = jnp.array([0.6, 0.5])  # of a new target, of a move
    size = state.unit_health.shape[0]
    decided = jax.random.bernoulli(keys[0], chance, (size, 2)) * 1.2 - 0.1
    length, turns = jax.random.uniform(keys[1], (2, size), minval=-0.05, maxval=1.05)
    x, y = 16.0 - state.unit_positions.T
    inwards = (jnp.arctan2(y, x) / (2 * jnp.pi) + 0.15 * jax.random.normal(keys[2], (size,))) % 1.0
    turns = jnp.where(jax.random.bernoulli(keys[3], 0.5, (size,)), inwards, turns)
    return jnp.concatenate([decided, length[:, None], turns[:, None]], axis=1)


def plain_enemies(key, state, num_allies: int):
    """Random moves, stops and shots at the closest ally, if available: continuous [M, 4] and discrete [M]."""
    enemies, allies = state.unit_positions[num_allies:], state.unit_positions[:num_allies]
    distance = jnp.linalg.norm(allies - enemies[:, None], axis=-1)
    closest, reach = jnp.argmin(distance, axis=1), jnp.asarray(PARAMS.range)[state.unit_types[num_allies:]]
    legal = state.unit_alive[closest] & (distance.min(axis=1) < reach)
    drawn = jax.random.randint(key, enemies.shape[:1], 0, FIRST_ATTACK + 1)
    action = jnp.where(legal | (drawn < FIRST_ATTACK), drawn, STOP)
    moves = (action < FIRST_ATTACK) * 1.0
    entries = [jnp.ones_like(moves), moves, (action < STOP) * 1.0, (1 - action) % 4 / 4]
    return jnp.stack(entries, axis=1), jnp.where(action < FIRST_ATTACK, action, FIRST_ATTACK + num_allies - 1 - closest)


def stacked(of: dict, names: list[str]):
    return jnp.stack([of[name] for name in names])


class Pair:
    """One scenario in both packages, and a compiled episode that records the outputs of each."""

    def __init__(
        self,
        name: str,
        observation: str = "unit_list",
        self_play: bool = False,
        action_type: str = "discrete",
        params: SmaxParams = PARAMS,
    ):
        self.scenario, self.params = find_scenario(name), params
        options = {"observation_type": observation, "use_self_play_reward": self_play, "action_type": action_type}
        rules = {"walls_cause_death": params.walls_kill, "see_enemy_actions": params.see_opponents_actions}
        self.theirs = SMAX(scenario=map_name_to_scenario(name), **options, **rules)
        self.learned = replay(self.scenario, name, observation=observation, action_type=action_type)
        self.both = Smax(name, mode="self_play", observation=observation, action_type=action_type)
        self.self_play = self_play
        self.continuous = action_type == "continuous"
        self.episodes = jax.jit(jax.vmap(self._episode), compiler_options=DEFAULT_COMPILER)

    def _their_view(self, state, obs, reward):
        names, allies = self.theirs.agents, self.scenario.num_allies
        outputs = {
            "x": state.unit_positions[:, 0],
            "y": state.unit_positions[:, 1],
            "health": state.unit_health,
            "cooldown": state.unit_weapon_cooldowns,
            "obs": stacked(obs, names),
            "global_state": self.theirs.get_world_state(state),
            "reward": stacked(reward, names if self.self_play else names[:allies]),
        }
        if self.continuous:  # theirs has the mask of discrete actions
            return outputs
        masks = self.theirs.get_avail_actions(state)
        wide = FIRST_ATTACK + max(allies, self.scenario.num_enemies)
        padded = [jnp.pad(masks[name], (0, wide - masks[name].shape[0])) for name in names]
        return outputs | {"mask": jnp.stack(padded).astype(bool)}

    def _our_view(self, state, reward):
        view = self.both.observe(state, self.params)
        outputs = {"obs": view.obs, "mask": view.action_mask, "global_state": self.both.global_state(state, self.params)}
        return outputs | {name: getattr(state.units, name) for name in ("x", "y", "health", "cooldown")} | {"reward": reward}

    def _actions(self, key, state):
        """Theirs by name, ours of the allies, ours of the enemies."""
        names, allies = self.theirs.agents, self.scenario.num_allies
        if not self.continuous:
            action = random_available(key, self.theirs.get_avail_actions(state), names)
            taken = stacked(action, names)
            return action, taken[:allies], taken[allies:]
        key_allies, key_enemies = jax.random.split(key)
        action = random_continuous(key_allies, state)
        enemies = 2 * action[allies:] - 1
        if not self.self_play:  # our enemies are discrete
            plain, enemies = plain_enemies(key_enemies, state, allies)
            action = jnp.concatenate([action[:allies], plain])
        return dict(zip(names, action, strict=True)), 2 * action[:allies] - 1, enemies

    def _episode(self, key):
        key_reset, key_steps, key_health = jax.random.split(key, 3)
        _, start = self.theirs.reset(key_reset)
        start = self._weakened(key_health, start)

        def one_step(carry, key):
            key_action, key_step = jax.random.split(key)
            state, own = carry
            action, allies, enemies = self._actions(key_action, state)
            obs, after, reward, done, _ = self.theirs.step_env(key_step, state, action)
            if self.self_play:
                own, outcome = self.both.transition(key_step, own, jnp.concatenate([allies, enemies]), self.params)
            else:
                params = self.params.replace(opponent=enemies)
                own, outcome = self.learned.transition(key_step, own.replace(memory=()), allies, params)
                own = own.replace(memory=None)
            views = self._their_view(after, obs, reward), self._our_view(own, outcome.reward)
            drifts = jnp.any(jnp.abs(after.unit_positions.T - jnp.stack([own.units.x, own.units.y])) > DRIFT)
            theirs = ours(after, self.scenario.random_types)
            own = jax.tree.map(lambda new, old: jnp.where(drifts, new, old), theirs, own)
            return (after, own), (drifts, views, (state, action), done["__all__"], outcome.terminated)

        return jax.lax.scan(one_step, (start, ours(start, self.scenario.random_types)), jax.random.split(key_steps, 100))[1]

    def _weakened(self, key, start):
        """In half of the episodes one team has two units left that a hit kills, so that random actions decide them."""
        number, allies = np.arange(self.scenario.num_units), self.scenario.num_allies
        index = np.where(number < allies, number, number - allies)
        case = jax.random.randint(key, (), 0, 4)  # 0 and 1: this team is weak
        weak = (number >= allies) == case
        health = jnp.where(weak, jnp.where(index < 2, 1.0, 0.0), start.unit_health)
        return start.replace(unit_health=health, unit_alive=health > 0)

    def gap(self, state, action) -> float:
        """Smallest distance of a living unit from a threshold, in the world steps of one decision."""
        steps = jax.tree.map(lambda leaf: leaf[None], state), self.theirs.step_env(jax.random.key(0), state, action, True)
        gaps = [np.inf]
        for seen in steps:
            for position, alive, kind in zip(seen.unit_positions, seen.unit_alive, seen.unit_types, strict=True):
                place = np.asarray(position)[np.asarray(alive)]
                kind = np.asarray(kind)[np.asarray(alive)]
                team = np.flatnonzero(alive) < self.scenario.num_allies
                distance = np.linalg.norm(place[:, None] - place, axis=-1)
                shot_at = np.where(team[:, None] != team, distance, np.inf)
                for threshold, reached in ((PARAMS.range, shot_at), (PARAMS.sight, distance)):
                    gaps.append(np.min(np.abs(reached - threshold[kind][:, None]), initial=np.inf))
                gaps.append(np.min(np.abs(place[..., None] - np.array([0.0, 32.0])), initial=np.inf))
        if self.continuous:
            gaps.append(self._gap_of_aims(state, action))
        return float(min(gaps))

    def _gap_of_aims(self, state, action) -> float:
        """How much closer to where it aims a living unit has its closest opponent than the next one."""
        *_, length, turns = np.clip(np.stack([action[name] for name in self.theirs.agents]), 0.0, 1.0).T
        angle, allies = 2 * np.pi * turns, self.scenario.num_allies
        place = np.asarray(state.unit_positions) + (length * np.array([np.cos(angle), np.sin(angle)])).T
        gaps = [np.inf]
        for own, opponents in ((slice(allies), slice(allies, None)), (slice(allies, None), slice(allies))):
            distance = np.linalg.norm(place[own, None] - np.asarray(state.unit_positions)[opponents], axis=-1)
            nearest = np.sort(distance[np.asarray(state.unit_alive)[own]], axis=1)
            gaps.append(np.min(nearest[:, 1:2] - nearest[:, :1], initial=np.inf))
        return min(gaps)


def assert_alike(pair: Pair, num_episodes: int, skip=None, fewest_hits: int = 50) -> None:
    """Asserts the claims of the module's docstring; ``skip`` marks entries of ``obs`` to leave out."""
    keys = jax.random.split(jax.random.key(7), num_episodes)
    drifts, (theirs, own), before, done, ended = jax.tree.map(np.asarray, pair.episodes(keys))
    live = np.cumsum(done, axis=1) - done == 0  # [E, T], up to and with the step that ends the episode
    wrong = np.zeros(live.shape, bool)
    for name, value in theirs.items():
        off = np.abs(value.astype(np.float32) - own[name].astype(np.float32))
        pushed = PUSHED if name in WITH_POSITIONS else TOLERANCE
        apart = off > np.where(drifts, pushed, TOLERANCE).reshape(*drifts.shape, *[1] * (off.ndim - 2))
        if name == "obs" and skip is not None:
            apart &= ~skip(theirs)
        wrong |= apart.reshape(*live.shape, -1).any(axis=-1)
    wrong |= done[:, :100] != ended
    diverged = (wrong & live).any(axis=1)
    steps = {episode: np.argmax((wrong & live)[episode]) for episode in np.flatnonzero(diverged)}
    for episode, time in steps.items():
        state, action = jax.tree.map(lambda leaf, e=episode, t=time: leaf[e, t], before)
        assert pair.gap(state, action) < TIE, f"episode {episode} diverges at step {time} without a tie"
    assert len(steps) <= 1, f"these episodes diverge, at these steps: {steps}"
    drifted = (drifts & live).sum() / live.sum()
    most = 0.001 * pair.scenario.num_units  # any unit may be pushed
    assert drifted < most, f"rounding grew beyond {DRIFT} in {drifted:.2%} of the steps"
    assert live.sum() > 30 * num_episodes
    hits = ((np.diff(theirs["health"], axis=1) < 0).any(axis=-1) & live[:, 1:]).sum()
    allies = pair.scenario.num_allies
    wiped_out = np.stack([(theirs["health"][..., side] <= 0).all(axis=-1) for side in (slice(allies), slice(allies, None))])
    decided = ((wiped_out[0] != wiped_out[1]) & live).any(axis=1).sum()
    print(f"{num_episodes} episodes, {decided} decided, {live.sum()} steps, {hits} with hits: ", end="")
    print(f"{len(steps)} diverge, positions drift in {(drifts & live).sum()}")
    assert hits > fewest_hits
    assert decided > 0


def shows_unit_0(theirs: dict) -> np.ndarray:
    """[E, T, N, O] bool: entries of the conic view whose section contains unit 0, or a unit near a section's edge."""
    x, y = theirs["x"], theirs["y"]
    angle = np.arctan2(y[..., None, :] - y[..., None], x[..., None, :] - x[..., None])  # [E, T, observer, unit]
    position = (angle / (2 * np.pi) + 0.5) * 32
    section = np.arange(32)
    holds_0 = np.floor(position[..., 0])[..., None] == section
    edge = np.abs(position - np.round(position)) < 1e-3
    at_edge = (edge[..., None] & (np.abs(position[..., None] - section - 0.5) < 0.502)).any(axis=-2)
    hidden = np.repeat(holds_0 | at_edge, 2 * 13, axis=-1)
    return np.concatenate([hidden, np.zeros((*hidden.shape[:-1], 10), bool)], axis=-1)


QUICK, LARGE = "smacv2_5_units", ("10m_vs_11m", "25m", "27m_vs_30m", "smacv2_10_units", "smacv2_20_units")
HARMLESS = PARAMS.replace(walls_kill=False, see_opponents_actions=False)
CONTINUOUS = {"action_type": "continuous"}
PAIRS = {  # id → options of the pair, options of the comparison
    **{name: ((name, {}), {"num_episodes": 16}) for name in PUBLISHED},
    "self-play": (("3m", {"self_play": True}), {"num_episodes": 24}),
    "harmless walls, hidden actions": (("3s_vs_5z", {"params": HARMLESS}), {"num_episodes": 24}),
    "conic but for unit 0": (("2s3z", {"observation": "conic"}), {"num_episodes": 16, "skip": shows_unit_0}),
    "continuous allies": (("2s3z", CONTINUOUS), {"num_episodes": 24, "fewest_hits": 100}),
    **{
        f"continuous {name}": ((name, CONTINUOUS | {"self_play": True}), {"num_episodes": 24, "fewest_hits": 100})
        for name in ("3m", "2s3z", "smacv2_5_units")
    },
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case != QUICK) + [pytest.mark.exhaustive] * (case in LARGE))
        for case in PAIRS
    ],
)
def test_battles_run_alike(case):
    (name, options), comparison = PAIRS[case]
    assert_alike(Pair(name, **options), **comparison)


@pytest.mark.slow
def test_continuous_choices_are_as_probable():
    """In 400 decisions of six units: each moves with probability 0.6, else it chooses a new target with probability 0.3."""
    theirs = SMAX(scenario=map_name_to_scenario("3m"), action_type="continuous")
    env, keys = Smax("3m", mode="self_play", action_type="continuous"), jax.random.split(jax.random.key(3), 400)
    closest = np.array([0, 1, 2, 2, 1, 0])
    _, start = theirs.reset(keys[0])
    positions = jnp.array([(x, y) for x in (10.0, 14.0) for y in (4.0, 14.0, 24.0)])
    start = start.replace(unit_positions=positions, prev_attack_actions=jnp.array(FIRST_ATTACK + (closest + 1) % 3))
    chances = jnp.tile(jnp.array([0.3, 0.6, 0.5, 0.3]), (6, 1))
    action = dict(zip(theirs.agents, chances, strict=True))
    after = jax.jit(jax.vmap(lambda key: theirs.step_env(key, start, action)[1]))(keys)
    own = jax.jit(jax.vmap(lambda key: env.transition(key, ours(start, False), 2 * chances - 1, PARAMS)[0].units))(keys)
    for moved, shot in ((after.prev_movement_actions[..., 0] != 0, after.prev_attack_actions), (own.move_x != 0, own.shot)):
        new, kept = shot == FIRST_ATTACK + closest, shot == FIRST_ATTACK + (closest + 1) % 3
        np.testing.assert_allclose([moved.mean(), new.mean(), kept.mean()], [0.6, 0.12, 0.28], atol=0.04)


@pytest.mark.slow
def test_battles_run_alike_with_the_default_compiler_options():
    """The other tests turn optimisations off (see ``conftest``), which may round differently."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"{__file__}::test_battles_run_alike[{QUICK}]"]
    flags = os.environ["XLA_FLAGS"].replace("level=0", "level=3").replace("emitters=false", "emitters=true")
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout[-2000:]


# --- initial states ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["5m_vs_6m", "smacv2_5_units"])
def test_battles_begin_alike(name):
    """Distributions of positions, of distances and of types, by the Kolmogorov–Smirnov test."""
    theirs, env, keys = SMAX(scenario=map_name_to_scenario(name)), Smax(name), jax.random.split(jax.random.key(3), 5000)
    start = jax.jit(jax.vmap(lambda key: theirs.reset(key)[1]))(keys)
    own = jax.jit(jax.vmap(lambda key: env.initial(key, PARAMS)))(keys)
    last = find_scenario(name).num_units - 1

    def statistics(x, y, kind):
        x, y, kind = map(np.asarray, (x, y, kind))
        distances = [np.hypot(x[:, 0] - x[:, other], y[:, 0] - y[:, other]) for other in (1, last)]
        reflection = np.abs(x[:, 0] + x[:, last - 1] - 32)
        return x[:, 0], y[:, 1], x[:, last], *distances, reflection, kind[:, 0], (kind[:, 0] == kind[:, 1]).astype(int)

    expected = statistics(*np.moveaxis(start.unit_positions, -1, 0), start.unit_types)
    found = statistics(own.units.x, own.units.y, start.unit_types if own.kind is None else own.kind)
    for one, other in zip(expected, found, strict=True):
        assert scipy.stats.ks_2samp(one, other, method="asymp").pvalue > 1e-3


# --- the scripted enemy -----------------------------------------------------------------------------------------------


def enemy_actions(units: Units, num_allies: int):
    """Discrete actions [M] of the enemies, from their last orders."""
    x, y, shot = (part[num_allies:] for part in (units.move_x, units.move_y, units.shot))
    move = jnp.where(y > 0.5, 0, jnp.where(x > 0.5, RIGHT, jnp.where(y < -0.5, 2, jnp.where(x < -0.5, LEFT, 4))))
    return jnp.where(shot > 0, shot, move)


def scripted_episodes(name: str, num_episodes: int, shoots: bool, targets: str, team: int):
    """For every decision [E, T, M] of a scripted team: their and our action, their and our target after it, whether they kept
    their target, opponents in sight, alive; and the end of episodes [E, T]."""
    scenario = find_scenario(name)
    whole = SMAX(scenario=map_name_to_scenario(name))
    env, allies = Smax(name, enemy_shoots=shoots, enemy_target=targets), scenario.num_allies
    sides = whole.agents[:allies], whole.agents[allies:]
    names, opponents = sides[team], sides[1 - team]
    script = jax.vmap(create_heuristic_policy(whole, team, shoots, targets))

    def choose(key, state, memory, opponents_actions):
        if team == 0:
            first = state.step == 0
            memory = jax.tree.map(lambda kept: jnp.where(first, 0, kept), memory)  # overwritten at the first timestep
            action, memory = Script(env, targets)(PARAMS, key, state, SimpleNamespace(first=first), memory)
            return action, memory.target
        after, _ = env.transition(key, state.replace(memory=memory), opponents_actions, PARAMS)
        return enemy_actions(after.units, allies), after.memory.target

    def one_step(begun, carry, key):
        key_opponents, key_team, key_step, key_ours = jax.random.split(key, 4)
        state, policy = carry
        obs = stacked(whole.get_obs(state), names)
        chosen, policy_after = script(jax.random.split(key_team, len(names)), policy, obs)
        others = random_available(key_opponents, whole.get_avail_actions(state), opponents)
        memory = begun.replace(target=policy.last_attacked_enemy)
        own_chosen, own_target = choose(key_ours, ours(state, scenario.random_types), memory, stacked(others, opponents))
        actions = others | {name: chosen[index] for index, name in enumerate(names)}
        _, after, _, done, _ = whole.step_env(key_step, state, actions)
        first = (len(names) - 1) * 13
        in_sight = jnp.sum(obs[:, first : first + len(opponents) * 13 : 13] > 0, axis=1)
        alive = state.unit_alive[allies:] if team else state.unit_alive[:allies]
        pairs = (chosen, own_chosen), (policy_after.last_attacked_enemy, own_target)
        kept = policy_after.last_attacked_enemy == policy.last_attacked_enemy
        return (after, policy_after), (*pairs, kept, in_sight, alive, done["__all__"])

    def episode(key):
        key_reset, key_steps = jax.random.split(key)
        _, start = whole.reset(key_reset)
        policy = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * len(names)), get_heuristic_policy_initial_state())
        begun = remember(*(start.unit_positions[allies:] if team else start.unit_positions[:allies]).T, PARAMS)
        return jax.lax.scan(functools.partial(one_step, begun), (start, policy), jax.random.split(key_steps, 60))[1]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(5), num_episodes)))


UNEVEN = ("5m_vs_6m", "3s5z_vs_3s6z", "6h_vs_8z", "smacv2_10_units")  # teams, ranges and types that differ
ALLIES, ENEMIES = 0, 1


@pytest.mark.parametrize(
    ("name", "shoots", "targets", "team"),
    [
        ("3m", True, "closest", ENEMIES),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *((name, True, "closest", ENEMIES) for name in UNEVEN),
                ("2s3z", False, "closest", ENEMIES),
                ("2s3z", True, "random", ENEMIES),
                ("5m_vs_6m", True, "closest", ALLIES),
                ("smacv2_5_units", True, "random", ALLIES),
            )
        ),
    ],
)
def test_scripts_choose_alike(name, shoots, targets, team):
    found = scripted_episodes(name, 40, shoots, targets, team)
    (action, own_action), (target, own_target), kept, in_sight, alive, done = found
    alive = alive & (np.cumsum(done, axis=1) - done == 0)[..., None]
    reaches = target >= 0
    aims = reaches & (kept | (targets == "closest"))  # otherwise the target is drawn
    walks = ~reaches if shoots else np.ones_like(reaches)
    decided = alive & ((walks & (in_sight <= 1)) | (~walks & aims))  # otherwise the opponent to walk to is drawn
    assert decided.sum() > 1000
    assert (alive & aims).sum() > 50
    same = alive & (aims | ~reaches)
    assert np.mean(own_target[same] != target[same]) < 1e-3  # rounding at the edge of the range
    assert np.mean((own_target >= 0)[alive] != reaches[alive]) < 1e-3
    assert np.mean(own_action[decided] != action[decided]) < 1e-3
    assert (own_action[alive & walks & ~decided] < 4).all()
