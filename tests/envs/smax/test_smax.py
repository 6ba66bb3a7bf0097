"""The ``smax`` environment: contract, spawns, actions, rewards, endings, learned enemies, and the differences from JaxMARL."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marljax
from marljax.algos import ippo
from marljax.config import compose
from marljax.core.vector import vectorize
from marljax.envs.smax import DOWN, FIRST_ATTACK, LEFT, RIGHT, STOP, UP, Opponent, Scenario, Smax, SmaxParams, SmaxState, spawn
from marljax.envs.smax import scene as smax_scene
from marljax.envs.smax.battle import Units, stats_of
from marljax.envs.smax.opponent import mirror
from marljax.envs.smax.script import Memory, act
from marljax.envs.smax.units import find_scenario
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Trainer
from marljax.viz import stage

ENV = Smax()
BOTH = Smax(mode="self_play")
PARAMS = ENV.default_params
KEY = jax.random.key(0)


def battle(positions, health=45.0, memory=True, **others) -> SmaxState:
    """A state of 3m with units at ``positions`` (six pairs, allies first) and other columns from ``others``."""
    x, y = jnp.array(positions, jnp.float32).T
    zero, none = jnp.zeros(6), jnp.zeros(6, jnp.int32)
    health = jnp.broadcast_to(jnp.asarray(health, jnp.float32), (6,))
    columns = {"health": health, "cooldown": zero, "shot": none, "fired": none > 0} | others
    units = Units(x=x, y=y, move_x=zero, move_y=zero, **columns)
    idle = Memory(jnp.zeros(3), jnp.zeros(3), jnp.full(3, -1, jnp.int32))
    return SmaxState(units, None, jnp.zeros((), jnp.int32), idle if memory else None)


APART = [(4, 4), (4, 12), (4, 20), (28, 4), (28, 12), (28, 20)]
FACING = [(10, 4), (10, 14), (10, 24), (14, 4), (14, 14), (14, 24)]  # each observes one opponent only, 4 apart
ONE_DEAD = [0, 45, 45, 45, 45, 45]


def still(weights, timestep, carry, key):
    """Every unit stops; no weights are needed."""
    return jnp.full(timestep.obs.shape[0], STOP), carry


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "3n"}, "did you mean 3m.*register_scenario"),
        ({"mode": "self_play", "enemy_target": "random"}, "enemy_target.*mode=scripted"),
        ({"mode": "learned"}, "mode=learned.*Opponent.of"),
        ({"mode": "learned", "opponent": "runs/ippo_smax"}, "Opponent.of.*runs/ippo_smax"),
        ({"opponent": Opponent(ENV, still)}, "opponent.*mode=learned"),
        ({"mode": "learned", "scenario": "5m_vs_6m", "opponent": Opponent(ENV, still)}, "3 against 3.* 6 against 5"),
        ({"mode": "learned", "opponent": Opponent(BOTH, still)}, "opponent.*mode=scripted"),
        ({"mode": "learned", "opponent": Opponent(marljax.make("merge"), still)}, "Merge.*smax"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        Smax(**options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.scenario=3n"], "scenario.*3m.*register_scenario"),
        (["env.mode=learned"], "env.mode=learned.*Python"),
        (["env.opponent=runs/ippo_smax"], "env.opponent.*mode=learned"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        compose.compose("ippo", ["env=smax", *overrides])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"scenario": "smacv2_5_units", "enemy_target": "random"},
                {"scenario": "3s_vs_5z", "mode": "self_play"},
                {"scenario": "5m_vs_6m", "action_type": "continuous"},
                {"scenario": "2s3z", "observation": "conic", "enemy_shoots": False},
                {"scenario": "3m", "mode": "self_play", "action_type": "continuous", "observation": "conic"},
                {"scenario": "3s5z_vs_3s6z", "dead": "leave"},
            )
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def test_contract(options):
    crowded = PARAMS.replace(map_width=16.0, map_height=16.0, duration=30)
    check_env(Smax(**options), crowded, num_steps=36)


observe = jax.jit(ENV.observe)


# --- spawns -----------------------------------------------------------------------------------------------------------


def spawns(scenario: Scenario, number: int = 4000):
    draws = jax.random.uniform(KEY, (number, spawn.num_draws(scenario)))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda one: spawn.spawn(one, scenario, PARAMS)))(draws))


def test_teams_start_face_to_face():
    x, y, kind = spawns(find_scenario("5m_vs_6m"))
    assert kind is None
    centre = np.where(np.arange(11) < 5, 8.0, 24.0)
    for position, middle in ((x, centre), (y, 16.0)):
        assert np.abs(position - middle).max() <= 2
        np.testing.assert_allclose((position - middle).std(axis=0), 4 / np.sqrt(12), rtol=0.05)


def test_drawn_types_are_uniform_and_shared():
    """Surplus enemies are drawn from all types; in JaxMARL they are always marines."""
    scenario = Scenario((0,) * 7, 3, 4, random_types=True, random_positions=True)
    _, _, kind = spawns(scenario)
    np.testing.assert_array_equal(kind[:, :3], kind[:, 3:6])
    for unit in (0, 2, 6):
        np.testing.assert_allclose(np.bincount(kind[:, unit], minlength=6) / len(kind), 1 / 6, atol=0.025)
    assert abs(np.corrcoef(kind[:, 0], kind[:, 6])[0, 1]) < 0.05


def test_random_positions_reflect_or_surround():
    x, y, _ = spawns(find_scenario("smacv2_5_units"))
    reflected = (np.abs(x[:, :5] + x[:, 5:] - 32) < 1e-4).all(axis=1) & (y[:, :5] == y[:, 5:]).all(axis=1)
    assert abs(reflected.mean() - 0.5) < 0.03
    assert (x[reflected, :5] <= 16).all()
    np.testing.assert_allclose(x[reflected, :5].mean(), 8.0, atol=0.2)
    x, y = x[~reflected], y[~reflected]
    central = (np.abs(x - 16) <= 2) & (np.abs(y - 16) <= 2)
    inside = np.stack([central[:, :5].all(axis=1), central[:, 5:].all(axis=1)])
    assert inside.any(axis=0).all()
    np.testing.assert_allclose(inside.mean(axis=1), 0.5, atol=0.05)
    outer = np.where(inside[0][:, None], x[:, 5:], x[:, :5])
    assert outer.min() < 0 < 14 < outer.max()
    np.testing.assert_allclose(outer.mean(), 16.0, atol=0.5)


# --- actions, rewards, endings ----------------------------------------------------------------------------------------


def test_moves_go_where_their_names_say():
    state = battle(APART)
    for action, dx, dy in ((UP, 0, 1), (RIGHT, 1, 0), (DOWN, 0, -1), (LEFT, -1, 0), (STOP, 0, 0)):
        after, _ = ENV.step(KEY, state, jnp.full(3, action))
        np.testing.assert_allclose(after.units.x[:3] - state.units.x[:3], dx * 3.15 / 2, atol=1e-5)
        np.testing.assert_allclose(after.units.y[:3] - state.units.y[:3], dy * 3.15 / 2, atol=1e-5)


def test_a_shot_takes_health_and_is_rewarded():
    state = battle(FACING)
    after, timestep = ENV.step(KEY, state, jnp.array([FIRST_ATTACK, STOP, FIRST_ATTACK + 2]))
    np.testing.assert_allclose(after.units.health[3:], [36, 45, 36])
    np.testing.assert_allclose(timestep.reward, 2 * 9 / 45 / 3, rtol=1e-6)
    np.testing.assert_allclose(after.units.health[:3], 36)  # the script shoots at the closest
    low, high = 0.61 - 1 / 16 - 7 / 16, 0.61 + 2 / 16 - 7 / 16
    cooldown = np.asarray(after.units.cooldown)[[0, 2, 3, 4, 5]]
    assert ((low - 1e-5 <= cooldown) & (cooldown <= high + 1e-5)).all()


def test_unavailable_actions_stop():
    """Opponents that come within range during the decision are not shot at; in JaxMARL they are."""
    positions = [(10, 4), (4, 12), (4, 20), (15.3, 4), (28, 12), (28, 20)]
    state = battle(positions, memory=False)
    assert not observe(battle(positions), PARAMS).action_mask[0, FIRST_ATTACK]
    after, _ = BOTH.step(KEY, state, jnp.array([FIRST_ATTACK, STOP, STOP, LEFT, STOP, STOP]))
    assert float(after.units.health[3]) == 45
    assert float(after.units.x[3] - after.units.x[0]) < 5
    assert int(after.units.shot[0]) == 0


def test_walls_kill_only_where_they_should():
    state = battle([(0.5, 4), *APART[1:]])
    for kills, health in ((True, 0.0), (False, 45.0)):
        params = PARAMS.replace(walls_kill=kills)
        after, _ = ENV.step(KEY, state, jnp.array([LEFT, STOP, STOP]), params)
        assert float(after.units.health[0]) == health


def test_the_dead_observe_zeros_may_only_stop_and_share_the_reward():
    state = battle(FACING, health=ONE_DEAD)
    view = observe(state, PARAMS)
    assert not np.any(view.obs[0])
    assert np.flatnonzero(view.action_mask[0]).tolist() == [STOP]
    assert view.alive.all()
    _, timestep = ENV.step(KEY, state, jnp.array([UP, FIRST_ATTACK + 1, STOP]))
    np.testing.assert_allclose(timestep.reward, 9 / 45 / 3, rtol=1e-6)


def test_the_dead_may_leave_the_game():
    env, state = Smax("3m", dead="leave"), battle(FACING, health=ONE_DEAD)
    _, timestep = env.step(KEY, state, jnp.array([UP, FIRST_ATTACK + 1, STOP]), PARAMS)
    assert timestep.alive.tolist() == [False, True, True]
    np.testing.assert_allclose(timestep.reward, [0.0, 9 / 45 / 3, 9 / 45 / 3], rtol=1e-6)


def test_winning_ends_the_episode_with_a_bonus():
    state = battle(FACING, health=[45, 45, 45, 9, 0, 0])
    _, timestep = ENV.step(KEY, state, jnp.array([FIRST_ATTACK, STOP, STOP]))
    assert bool(timestep.terminated)
    assert not bool(timestep.truncated)
    np.testing.assert_allclose(timestep.reward, 9 / 45 / 3 + 1, rtol=1e-6)
    assert [float(timestep.metrics[name]) for name in ("won", "lost", "enemies_dead")] == [1.0, 0.0, 1.0]


def test_self_play_is_zero_sum():
    mutual = jnp.array([FIRST_ATTACK, STOP, STOP, FIRST_ATTACK + 2, STOP, STOP])
    one_sided = jnp.array([FIRST_ATTACK, STOP, STOP, STOP, STOP, STOP])
    last = battle(FACING, health=[9, 0, 0, 9, 0, 0], memory=False)
    for action, expected in ((mutual, [0.0] * 6), (one_sided, [1.0] * 3 + [-1.0] * 3)):
        _, timestep = BOTH.step(KEY, last, action)
        assert bool(timestep.terminated)
        np.testing.assert_array_equal(timestep.reward, expected)
    _, timestep = BOTH.step(KEY, battle(FACING, memory=False), one_sided)
    assert not np.any(timestep.reward)


def test_episodes_are_cut_off_after_100_decisions():
    """In JaxMARL it is 101."""
    state = battle(APART, memory=False)
    for before, ends in ((98, False), (99, True)):
        _, timestep = BOTH.step(KEY, state.replace(step=jnp.int32(before)), jnp.full(6, STOP))
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (False, ends)


def test_opponents_actions_can_be_hidden():
    state = battle(FACING, shot=jnp.full(6, FIRST_ATTACK, jnp.int32))
    shown, hidden = (np.asarray(observe(state, PARAMS.replace(see_opponents_actions=see)).obs)[0] for see in (True, False))
    rows = np.arange(5) * 13 + 5
    np.testing.assert_allclose(shown[rows], [0, 0, 5 / 7, 0, 0], atol=1e-6)
    np.testing.assert_allclose(hidden[rows], 0)


def test_continuous_actions_are_mapped_to_unit_intervals():
    """[−1, 1] stands for JaxMARL's [0, 1]; the second number is the probability of moving."""
    env = Smax(action_type="continuous")
    move = jnp.tile(jnp.array([0.0, 1.0, 1.0, -0.5]), (3, 1))  # surely, one unit long, a quarter turn
    after, timestep = env.step(KEY, battle(APART), move)
    np.testing.assert_allclose(after.units.y[:3] - battle(APART).units.y[:3], 3.15 / 2, atol=1e-5)
    np.testing.assert_allclose(after.units.x[:3], 4, atol=1e-5)
    assert timestep.action_mask.shape == (3, 1)
    shoot = jnp.tile(jnp.array([1.0, -1.0, 1.0, -1.0]), (3, 1))  # surely, at a new target, the one next to the right
    after, _ = env.step(KEY, battle(FACING), shoot)
    assert after.units.shot[:3].tolist() == [FIRST_ATTACK, FIRST_ATTACK + 1, FIRST_ATTACK + 2]
    np.testing.assert_allclose(after.units.health[3:], 36)


def test_the_dead_give_no_orders():
    """In JaxMARL the conic view shows their continuous actions."""
    env = Smax(mode="self_play", action_type="continuous")
    move, shoot = [0.0, 1.0, 1.0, 0.0], [1.0, -1.0, 1.0, -1.0]
    state = battle(FACING, health=[0, 45, 45, 45, 0, 45], memory=False)
    after, _ = env.step(KEY, state, jnp.array([move, move, move, shoot, shoot, shoot]))
    np.testing.assert_allclose(after.units.move_x, [0, -1, -1, 0, 0, 0], atol=1e-6)
    assert (np.asarray(after.units.shot) > 0).tolist() == [False, False, False, True, False, True]


def test_the_noise_of_a_cooldown_is_drawn_once_per_decision():
    """A weapon that fires twice reloads alike both times; in JaxMARL each shot has its own noise.

    With four world steps of cooldown and one less to two more of noise, the remainder after eight is never between two and
    three nor between four and five.
    """
    params = PARAMS.replace(cooldown=np.full(6, 0.25, np.float32))
    mutual = FIRST_ATTACK + jnp.array([0, 1, 2, 2, 1, 0])  # the enemies number allies from the last one down
    state = battle(FACING, memory=False)
    units = jax.vmap(lambda key: BOTH.step(key, state, mutual, params)[0].units)(jax.random.split(KEY, 200))
    np.testing.assert_allclose(units.health, 45 - 2 * 9)
    left = np.asarray(units.cooldown) * 16
    assert np.unique(np.ceil(left)).tolist() == [2, 4, 6]


def test_the_conic_view_shows_unit_0():
    """JaxMARL's never does."""
    env = Smax(observation="conic")
    view = jax.jit(env.observe)(battle([(6, 4.1), (4, 4), *APART[2:]]), PARAMS)
    slots = np.asarray(view.obs)[1, : 64 * 13].reshape(32, 2, 13)
    shown = np.argwhere(slots[..., 0] > 0)
    assert shown.tolist() == [[16, 0]]  # just above +x
    np.testing.assert_allclose(slots[16, 0, 1:3], [2 / 9, 0.1 / 9], atol=1e-5)


# --- the enemies ------------------------------------------------------------------------------------------------------


def scripted(positions, last=(-1, -1, -1), health=45.0, **options):
    """Actions of the enemies of 3m."""
    env = Smax(**options)
    state = battle(positions, health=health)
    state = state.replace(memory=state.memory.replace(home_x=jnp.zeros(3), target=jnp.array(last, jnp.int32)))
    return env.step(KEY, state, jnp.full(3, STOP))[0]


def test_the_script_keeps_its_target_else_shoots_the_closest():
    positions = [(10, 11), (10, 12), (10, 13.5), (13, 12), (28, 4), (28, 20)]
    assert int(scripted(positions).units.shot[3]) == FIRST_ATTACK + 1
    kept = scripted(positions, last=(0, -1, -1))  # numbered from the last ally down
    assert int(kept.units.shot[3]) == FIRST_ATTACK
    assert kept.memory.target.tolist() == [0, -1, -1]
    moved = scripted([(10, 11), (10, 12), (10, 29), *positions[3:]], last=(0, -1, -1))
    assert int(moved.units.shot[3]) == FIRST_ATTACK + 1


def test_the_script_walks_home_when_nobody_is_in_sight_and_rests_when_dead():
    after = scripted(APART, health=[45, 45, 45, 45, 45, 0])
    assert after.units.move_x[3:].tolist() == [-1, -1, 0]
    quiet = scripted(FACING, enemy_shoots=False)
    assert not np.any(quiet.units.shot[3:])
    assert quiet.units.move_x[3:].tolist() == [-1, -1, -1]


def test_random_targets_are_uniform():
    own = jax.tree.map(lambda part: part[3:4], battle([(10, 11), (10, 12), (10, 13), (12, 12), (28, 4), (28, 20)]).units)
    opponents = jax.tree.map(lambda part: part[:3], battle([(10, 11), (10, 12), (30, 13), *APART[3:]]).units)
    stats = stats_of(jax.tree.map(jnp.asarray, PARAMS), jnp.zeros(1, jnp.int32))
    memory = Memory(jnp.zeros(1), jnp.zeros(1), jnp.full(1, -1, jnp.int32))
    shoot = jax.vmap(lambda draws: act(own, stats, opponents, memory, draws, True, "random")[0][0])
    shots = np.asarray(jax.jit(shoot)(jax.random.uniform(KEY, (4000, 2, 1))))
    assert set(shots) == {FIRST_ATTACK, FIRST_ATTACK + 1}
    assert abs(np.mean(shots == FIRST_ATTACK) - 0.5) < 0.03


def linear_policy(weights, timestep, carry, key):
    """Shoots whenever it can, and counts its decisions."""
    del key
    scores = timestep.obs @ weights["matrix"] + 100.0 * (jnp.arange(timestep.action_mask.shape[-1]) >= FIRST_ATTACK)
    return jnp.argmax(jnp.where(timestep.action_mask, scores, -jnp.inf), axis=-1), carry + 1


def continuous_policy(weights, timestep, carry, key):
    """Deterministic: even units shoot at the opponent nearest to a point, odd ones walk there."""
    del key
    length, angle = jnp.tanh(timestep.obs @ weights["matrix"][:, :2]).T
    surely = jnp.where(jnp.arange(len(angle)) % 2, 1.0, -1.0)
    return jnp.stack([-surely, surely, length, angle], axis=1), carry + 1


GRU = ippo.Config(core="gru", hidden=(8, 8), num_envs=4, num_minibatches=2)
START = functools.partial(jnp.zeros, ())
LINEAR = Opponent(ENV, linear_policy, START)
MATRICES = {"matrix": jax.random.normal(KEY, (3, 75, 8))}
MATRIX = {"matrix": MATRICES["matrix"][0]}


@functools.cache
def recurrent() -> tuple[Opponent, dict]:
    """A GRU with the conic view, and random weights for it."""
    env = Smax("3m", observation="conic")
    runs = jax.eval_shape(Trainer(ippo, env, GRU, make_mesh()).init, KEY[None], PARAMS)
    draw = np.random.default_rng(0).normal
    weights = jax.tree.map(lambda leaf: draw(size=leaf.shape[1:]).astype(leaf.dtype), runs.state.learner.params)
    return Opponent.of(ippo, env, GRU, greedy=True), weights


def symmetric(units: Units) -> Units:
    """The battle with the enemies set to the allies' mirror image."""
    return jax.tree.map(lambda own, twin: jnp.concatenate([own[:3], twin[3:]]), units, mirror(units, 3, 32.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (LINEAR, MATRIX),
        lambda: (Opponent(Smax("3m", action_type="continuous"), continuous_policy, START), MATRIX),
        recurrent,
    ],
    ids=["discrete", "continuous", "gru"],
)
def test_the_same_policy_on_both_sides_of_a_symmetric_battle_acts_symmetrically(make):
    opponent, weights = make()
    trained = opponent.env
    env = Smax("3m", "learned", trained.action_type, trained.observation, opponent=opponent)
    params = PARAMS.replace(opponent=weights, cooldown_noise_low=0.0, cooldown_noise_high=0.0)
    env.check_params(params)
    state = battle([(14, 14), (13, 16), (14.5, 19), (1, 1), (1, 1), (1, 1)]).replace(memory=opponent.initial_carry())
    state, own = state.replace(units=symmetric(state.units)), opponent.initial_carry()

    @jax.jit
    def decide(state, carry, first):
        _, timestep = env.reset(KEY, params)
        view = env.observe(state, params)
        timestep = timestep.replace(obs=view.obs, action_mask=view.action_mask, first=first)
        action, carry = opponent.act(weights, timestep, carry, KEY)
        return env.step(KEY, state, action, params)[0], carry

    orders, shots = set(), 0
    for time in range(12):
        after, own = decide(state, own, jnp.array(time == 0))
        for name, column in vars(mirror(after.units, 3, 32.0)).items():
            np.testing.assert_allclose(column, getattr(after.units, name), atol=1e-3, err_msg=name)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-3), own, after.memory)
        shots += int(jnp.sum(after.units.shot > 0))
        orders |= set(np.asarray(after.units.move_x).round(3).tolist())
        state = after.replace(units=symmetric(after.units))
    assert len(orders) > 2
    assert shots > 0 or trained.observation == "conic"  # nobody chose the GRU's weights


def test_opponents_must_return_actions_in_a_step():
    learned = Smax(mode="learned", opponent=Opponent(ENV, lambda weights, timestep, carry, key: (jnp.zeros(4, int), carry)))
    with pytest.raises(UserError, match=r"opponent.*return int32\[3\]"):
        jax.eval_shape(learned.step, KEY, battle(APART).replace(memory=()), jnp.full(3, STOP))


@pytest.mark.parametrize(
    ("opponent", "weights", "message"),
    [
        (Opponent(ENV, linear_policy), (), "no weights.*TypeError"),
        (Opponent(ENV, linear_policy), {"matrix": np.ones((80, 8))}, "does not fit.*75.*80"),
        (Opponent(Smax(action_type="continuous"), still), (), r"opponent.act.*float32\[3, 4\]"),
        (Opponent(ENV, lambda *args: (still(*args)[0], args[3])), (), "initial_carry"),
    ],
)
def test_invalid_weights_are_rejected(opponent, weights, message):
    with pytest.raises(UserError, match=message):
        Smax(mode="learned", opponent=opponent).check_params(PARAMS.replace(opponent=weights))


def test_policies_with_a_memory_and_another_view_control_the_enemies():
    """A GRU trained with the conic observation, against agents that observe a list."""
    opponent, weights = recurrent()
    env = Smax(mode="learned", opponent=opponent)
    assert env == Smax(mode="learned", opponent=Opponent.of(ippo, opponent.env, GRU, greedy=True))  # one program serves both
    params = PARAMS.replace(opponent=weights)
    env.check_params(params)
    state, _ = jax.eval_shape(env.reset, KEY, params)
    assert [leaf.shape for leaf in jax.tree.leaves(state.memory)] == [(3, 8)]
    after, _ = jax.eval_shape(env.step, KEY, state, jnp.full(3, STOP), params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    with pytest.raises(UserError, match="no weights"):
        jax.eval_shape(env.step, KEY, state, jnp.full(3, STOP), PARAMS)
    other = dataclasses.replace(GRU, hidden=(8, 16))
    with pytest.raises(UserError, match="does not fit"):
        Smax(mode="learned", opponent=Opponent.of(ippo, opponent.env, other)).check_params(params)
    with pytest.raises(UserError, match="algorithm='ippo'"):
        Opponent.of("ippo", opponent.env, GRU)


def test_populations_of_opponents_are_a_vmap():
    env = Smax("3m", mode="learned", opponent=LINEAR)
    axes = jax.tree.map(lambda _: None, PARAMS).replace(opponent={"matrix": 0})

    def play(params: SmaxParams):
        def decide(key):
            return env.transition(key, env.initial(key, params), jnp.full(3, STOP), params)[0].units

        return jax.vmap(decide)(jax.random.split(KEY, 2))

    units = jax.jit(jax.vmap(play, in_axes=(axes,)))(PARAMS.replace(opponent=MATRICES))
    assert units.x.shape == (3, 2, 6)
    moves = np.asarray(units.move_x[:, :, 3:] + 2 * units.move_y[:, :, 3:])
    assert len({move.tobytes() for move in moves}) > 1
    alone = jax.jit(play)(PARAMS.replace(opponent=MATRIX))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), alone, jax.tree.map(lambda part: part[0], units))


def test_one_program_trains_against_a_population_of_opponents():
    env = Smax("3m", mode="learned", opponent=LINEAR)
    config = ippo.Config(total_steps=16, num_envs=2, rollout_length=8, num_minibatches=1, hidden=(8,))
    train = marljax.make_train(ippo, env, config, PARAMS.replace(opponent=MATRIX))
    result = jax.eval_shape(jax.vmap(train), jax.random.split(KEY, 3), {"env.opponent": MATRICES})
    assert result.state.learner.env_params.opponent["matrix"].shape == (3, 75, 8)
    with pytest.raises(UserError, match=r"'env.opponent'.* matrix is missing"):
        train(KEY, {"env.opponent": {"vector": jnp.zeros(3)}})


def test_one_mapped_leaf_of_env_params_gives_the_results_of_single_runs():
    tables = jnp.stack([PARAMS.attack, 3 * PARAMS.attack])

    def health(attack: jax.Array):
        return ENV.step(KEY, battle(FACING), jnp.full(3, FIRST_ATTACK), PARAMS.replace(attack=attack))[0].units.health

    together = jax.jit(jax.vmap(health))(tables)
    np.testing.assert_array_equal(together, [health(table) for table in tables])
    lost = 45.0 - np.asarray(together)
    assert lost[0].max() > 0
    np.testing.assert_allclose(lost[1], 3 * lost[0])


def test_the_scene_shows_who_lives_and_who_shoots_at_whom():
    state = battle(FACING, health=[45, 0, 45, 45, 45, 45])
    state, _ = ENV.step(KEY, state, jnp.array([FIRST_ATTACK, FIRST_ATTACK + 1, STOP]))
    scene = jax.jit(ENV.scene)(state, PARAMS)
    alive = np.array([True, False, True, True, True, True])
    assert [float(part) for part in scene.status] == [2, 3, False, False]
    drawn = np.asarray(scene.circles.colour)[:, 3] > 0  # the dead, then the living
    assert drawn.tolist() == [*~alive, *alive]
    np.testing.assert_allclose(np.asarray(scene.circles.radius)[drawn], np.where(np.sort(alive), 0.375, 0.1875))
    assert (np.asarray(scene.labels.colour)[:, 3] > 0).tolist() == alive.tolist()
    shots = slice(-6, None)  # after the floor and the walls
    assert (np.asarray(scene.segments.colour)[shots, 3] > 0)[:3].tolist() == [True, False, False]
    position = np.stack([state.units.x, state.units.y], axis=1)
    np.testing.assert_allclose(np.asarray(scene.segments.end)[shots][0], position[3])
    assert np.asarray(scene.listed).tolist() == [True] + [False] * 5 + [True] * 2  # marines, enemies, the dead
    won = jax.jit(ENV.scene)(battle(FACING, health=[45, 0, 45, 0, 0, 0]), PARAMS)
    assert stage.status_texts(won.status) == ["allies 2", "enemies 0", "won"]


def test_the_view_holds_all_units_and_closes_in():
    """Of one proportion, on the map where that is large enough, and never closer than ``LEAST_VIEW``."""
    generator = np.random.default_rng(0)
    units = battle(FACING).units
    bounds = jax.jit(smax_scene.view)
    for reach in (0.2, 3.0, 10.0, 16.0):
        x, y = 16 + generator.uniform(-reach, reach, (2, 6)).astype(np.float32)
        left, right, low, high = bounds(units.replace(x=x, y=y), np.full(6, 0.4, np.float32), 32.0, 32.0)
        assert left <= x.min() - 0.4 < x.max() + 0.4 <= right
        assert low <= y.min() - 0.4 < y.max() + 0.4 <= high
        assert (right - left) / (high - low) == pytest.approx(smax_scene.ASPECT, rel=1e-5)
        assert right - left >= smax_scene.LEAST_VIEW - 1e-4
        assert min(low, 0.0) == pytest.approx(0.0, abs=smax_scene.MARGIN)
    far = bounds(units.replace(x=units.x * 0 + 31.0, y=units.y * 0 + 1.0), np.full(6, 0.4, np.float32), 32.0, 32.0)
    least = np.array([1.0, 1.0 / smax_scene.ASPECT]) * smax_scene.LEAST_VIEW
    np.testing.assert_allclose(far, [33 - least[0], 33, -1, least[1] - 1], rtol=1e-5)


def test_a_decision_is_one_kernel_in_a_training_program_for_a_gpu():
    """Lowered, not compiled; programs inside a mesh hold operations that others do not."""
    env = Smax(kernels="pallas")
    vec, everywhere = vectorize(env, 32), jax.sharding.PartitionSpec()

    def step(key, action):
        return vec.step(key, vec.reset(key, PARAMS)[0], action, PARAMS)[1].obs

    sharded = jax.shard_map(step, mesh=make_mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)
    lowered = jax.jit(sharded).trace(KEY, jnp.zeros((32, 3), jnp.int32)).lower(lowering_platforms=("cuda",))
    assert "triton" in lowered.as_text()
