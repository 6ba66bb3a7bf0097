"""Episodes from shortly before a failure: held to a model in plain Python, to statistics, and to the environment inside."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from toys import Bumps, BumpsParams, Corridor, bump

import marljax
from marljax import registry
from marljax.config import compose, settings
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.training import load, runner
from marljax.utils.pytrees import strongly_typed
from marljax.wrappers.failure_replay import FailureReplay

SMALL = {"failures": ("bumps",), "size": 3, "ring": 3, "spacing": 2, "window": 4}
NUMBERS = {"replay_probability": 0.6, "replay_grace": 3, "replay_back": 4, "replay_times": 2, "replay_below": 2.2}


@dataclasses.dataclass
class Model:
    """One instance of ``FailureReplay(Bumps())`` as lists; a state is (kind, step, bumps)."""

    gate: bool
    state: tuple
    clock: int = 0
    snapshots: list = dataclasses.field(default_factory=list)  # (clock, state)
    used: int = -1  # the clock of the last snapshot that was stored
    places: list = dataclasses.field(default_factory=lambda: [None] * SMALL["size"])  # [state, stored as number, played]
    stored: int = 0
    past: list = dataclasses.field(default_factory=list)
    replayed: bool = False
    ended: bool = False

    def step(self, kind, lot):
        if self.ended:
            self.begin(kind, lot)
            return
        if not self.replayed and self.clock % SMALL["spacing"] == 0:
            self.snapshots = [*self.snapshots, (self.clock, self.state)][-SMALL["ring"] :]
        kind, step, bumps = self.state
        failed = bump(kind, step + 1)
        self.state, self.clock = (kind, step + 1, bumps + failed), self.clock + 1
        if failed and not self.replayed and self.clock > NUMBERS["replay_grace"]:
            self.store()
        self.ended = step + 1 >= BumpsParams().limit + kind % 5
        if self.ended:
            self.past = [*self.past, self.state[2]][-SMALL["window"] :]

    def store(self):
        old = [snapshot for snapshot in self.snapshots if self.clock - snapshot[0] >= NUMBERS["replay_back"]]
        if not old or old[-1][0] <= self.used:
            return
        self.used, state = old[-1]
        self.stored += 1
        ages = [place[1] if place else 0 for place in self.places]
        self.places[ages.index(min(ages))] = [state, self.stored, 0]

    def begin(self, kind, lot):
        held = [place for place in self.places if place]
        is_open = not self.gate or sum(self.past) / len(self.past) < NUMBERS["replay_below"]
        self.replayed = bool(held) and lot[0] < NUMBERS["replay_probability"] and is_open
        self.state = (kind, 0, 0)
        if self.replayed:
            place = held[min(int(lot[1] * len(held)), len(held) - 1)]
            self.state = (*place[0][:2], 0)
            place[2] += 1
            if place[2] >= NUMBERS["replay_times"]:
                self.places[self.places.index(place)] = None
        self.clock, self.snapshots, self.used, self.ended = 0, [], -1, False


def draws(env, key, count):
    """The kinds of fresh episodes and the lots that instances draw in a step with this key."""
    fresh, lots = [], []
    for own in jax.random.split(key, count):
        key_fresh, key_choice = jax.random.split(jax.random.split(own)[0])
        fresh.append(env.initial(key_fresh, env.default_params).kind)
        lots.append(jax.random.uniform(key_choice, (2,)))
    return jnp.stack(fresh), jnp.stack(lots)


def rollout(env, env_params, count, steps, seed=0):
    """States and timesteps [T, E, …] after each step; and the keys [T]."""
    vec = marljax.vectorize(env, count)
    keys = jax.random.split(jax.random.key(seed), steps)
    action = jnp.zeros((count, env.num_agents), int)

    @jax.jit
    def play(env_params):
        def step(carry, key):
            state, timestep = vec.step(key, carry, action, env_params)
            return state, (state, timestep)

        start, _ = vec.reset(jax.random.key(seed + 1), env_params)
        return start, jax.lax.scan(step, start, keys)[1]

    start, (states, timesteps) = play(env_params)
    return start, states, timesteps, keys


@pytest.mark.parametrize("gate", [False, True])
def test_ring_buffer_evictions_and_gate_follow_a_model_in_plain_python(gate):
    env, count, steps = FailureReplay(Bumps(), gate="bumps" if gate else "", **SMALL), 4, 400
    start, states, timesteps, keys = rollout(env, env.default_params.replace(**NUMBERS), count, steps)
    kinds, lots = jax.jit(jax.vmap(functools.partial(draws, Bumps(), count=count)))(keys)
    states = states.env.replace(env=states.env.env.replace(key=0), store=states.env.store.value.replace(key=0))
    states, kinds, lots, start = jax.device_get((states, kinds, lots, start.env.env.kind))
    models = [Model(gate, (int(kind), 0, 0)) for kind in start]
    for t in range(steps):
        for e, model in enumerate(models):
            model.step(int(kinds[t, e]), lots[t, e])
            now = jax.tree.map(lambda leaf, t=t, e=e: leaf[t, e] if np.ndim(leaf) else leaf, states)
            assert (now.env.kind, now.env.step, now.env.bumps) == model.state
            assert (now.replayed, now.clock, now.ended) == (model.replayed, model.clock, model.ended)
            rows = now.shelf.rows[SMALL["ring"] :]
            for place, row, order, played in zip(model.places, rows, now.shelf.order, now.shelf.played, strict=True):
                assert bool(order) == (place is not None)
                if place:
                    kept = tuple(int(leaf[row]) for leaf in (now.store.kind, now.store.step, now.store.bumps))
                    assert (kept, order, played) == tuple(place)
        assert sorted(states.shelf.rows[t, 0]) == list(range(SMALL["ring"] + SMALL["size"]))
    np.testing.assert_array_equal(timesteps.metrics["replayed"], states.replayed)
    replays, stores = states.replayed[1:] & ~states.replayed[:-1], states.shelf.stored[-1]
    closed = [model for model in models if model.gate and sum(model.past) / len(model.past) >= NUMBERS["replay_below"]]
    assert replays.sum() > 10
    assert stores.min() > 2 * SMALL["size"]
    assert closed or not gate


def test_restarts_have_the_probability_and_the_stored_states_equal_chances():
    env = FailureReplay(Bumps(), **SMALL)
    env_params = env.default_params.replace(**NUMBERS | {"replay_times": 100, "replay_probability": 0.3})
    _, states, timesteps, _ = jax.device_get(rollout(env, env_params, 1500, 60))
    state = states.env
    begins, held = timesteps.first[1:], (state.shelf.order[:-1] > 0).sum(-1)
    could = begins & (held > 0)
    share = state.replayed[1:][could].mean()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / could.sum())
    assert not state.replayed[1:][begins & (held == 0)].any()
    full = could & state.replayed[1:] & (held == 3)
    chosen = (state.shelf.played[1:] - state.shelf.played[:-1])[full]
    assert full.sum() > 300
    assert (chosen.sum(-1) == 1).all()
    np.testing.assert_allclose(chosen.mean(0), 1 / 3, atol=4 * np.sqrt(2 / 9 / full.sum()))


class Split(Corridor):
    """Its later episodes start with the key that ``FailureReplay`` leaves for a fresh one."""

    def restart(self, key, state, env_params):
        return self.initial(jax.random.split(key)[0], env_params)


def test_with_probability_0_episodes_are_those_of_the_environment_to_the_bit():
    env = FailureReplay(Corridor(), failures=("arrived",), spacing=2)
    env_params = env.default_params.replace(replay_probability=0.0, replay_grace=0, replay_back=2)
    _, states, timesteps, _ = rollout(env, env_params, 3, 80)
    _, bare_states, bare, _ = rollout(Split(), env_params.env, 3, 80)
    assert int(timesteps.last.sum()) > 5
    assert int(states.env.shelf.stored.max()) == 0
    timesteps.metrics.pop("replayed")
    jax.tree.map(np.testing.assert_array_equal, (states.env.env, timesteps), (bare_states.env, bare))


def test_the_wrapper_keeps_the_contract_and_shows_what_is_inside():
    bare = Corridor(preset="slow", compete=True)
    env = FailureReplay(bare, failures=["arrived"], gate="arrived", spacing=3, ring=2, size=2, window=3)
    env_params = env.default_params.replace(replay_back=2, replay_grace=1, replay_below=9.0)
    check_env(env, env_params, num_steps=60)
    assert (env.teams, env.presets, env.legend, env.num_agents) == (bare.teams, bare.presets, bare.legend, bare.num_agents)
    assert (env.noop, env.items, env.figures, env.alarms, env.version) == (
        bare.noop, bare.items, bare.figures, bare.alarms, bare.version)  # fmt: skip
    assert env.units == {"replayed": "%"}
    assert env.preset_params("quick").env == bare.preset_params("quick")
    assert env == FailureReplay(dataclasses.replace(bare, preset="quick"), ("arrived",), "arrived", 2, 2, 3, 3)
    state, timestep = env.reset(jax.random.key(0))
    inside, _ = bare.reset(jax.random.key(0))
    for one, two in ((env.scene, bare.scene), (env.global_state, bare.global_state)):
        jax.tree.map(np.testing.assert_array_equal, one(state, env_params), two(inside, env_params.env))
    assert env.charts(state, env_params) is None
    assert timestep.metrics["replayed"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "unknown metric of Corridor 'collision'; known: arrived"),
        ({"failures": ("arrive",)}, "unknown metric of Corridor 'arrive'; did you mean arrived"),
        ({"failures": ("arrived",), "gate": "cost"}, "unknown metric of Corridor 'cost'; known: arrived"),
        ({"failures": "arrived"}, r"failures=arrived is one name; give a list of metrics, such as \[arrived\]"),
        ({"failures": ()}, r"failures=\[\] is empty"),
        ({"failures": ("arrived",), "ring": 0}, "ring=0 is out of range; it takes integers of at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        FailureReplay(Corridor(), **options)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"replay_probability": 1.5}, "replay_probability=1.5 is out of range"),
        ({"replay_back": 300}, "replay_back=300: the ring goes 251 steps back for certain; raise ring or spacing"),
        ({"replay_times": 0}, "replay_times=0 is out of range"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers, message):
    env = FailureReplay(Corridor(), failures=("arrived",))
    with pytest.raises(UserError, match=message):
        env.check_params(env.default_params.replace(**numbers))
    with pytest.raises(UserError, match="env_params are CorridorParams; give ReplayParams"):
        env.reset(jax.random.key(0), env.env.default_params)
    with pytest.raises(UserError, match="states of FailureReplay outlive their episodes"):
        FailureReplay(env, failures=("arrived",))


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_reports_fresh_episodes_and_the_share_of_others():
    from marljax.algos import ippo
    from marljax.io.metrics_log import summarise

    env = FailureReplay(Bumps(), **SMALL)
    env_params = env.default_params.replace(**NUMBERS)
    config = ippo.Config(total_steps=8 * 100 * 2, num_envs=8, rollout_length=100, num_epochs=1, hidden=(4,))
    train = jax.jit(marljax.make_train(ippo, env, config, env_params))
    overrides = {"env.replay_probability": 0.5, "env.limit": 9}  # the second belongs to the environment inside
    metrics = jax.device_get(train(jax.random.key(0), overrides).metrics)
    row = summarise({name: value[None] for name, value in metrics.items()}, 0)
    # kinds are uniform over 0 … 12 in fresh episodes, which last 9 + kind mod 5 steps; replayed ones are shorter
    assert row["length"] == pytest.approx(9 + np.mean([kind % 5 for kind in range(13)]), abs=0.6)
    assert 0.2 < row["replayed"] < 0.5
    assert row["episodes"] == metrics["episodes"].sum() > 50
    with pytest.raises(UserError, match="unknown number of the environment 'limt'; did you mean limit"):
        train(jax.random.key(0), {"env.limt": 9})


@pytest.fixture
def command_line(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "tiny", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")


REPLAY = ["failures=[arrived]", "spacing=2", "ring=3", "size=2", "grace=0", "back=2", "probability=0.9"]
WORDS = ["env=corridor", "env.slip=0.3", "env.fewest=2", "algo.total_steps=800", "chunk=4", "checkpoint.every=0.25",
         "render=false", "eval.episodes=2", *(f"failure_replay.{word}" for word in REPLAY)]  # fmt: skip


def leaves(tree):
    return [np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
            for x in jax.tree.leaves(tree)]  # fmt: skip


def test_a_run_replays_resumes_to_the_bit_and_evaluates_the_bare_environment(tmp_path, command_line, monkeypatch):
    given = compose.compose("tiny", [*WORDS, f"runs={tmp_path}", "name=whole"])
    assert given.env == Corridor()
    assert given.training_env == FailureReplay(Corridor(), ("arrived",), size=2, ring=3, spacing=2)
    assert given.training_params.env.slip == np.float32(0.3)
    assert given.training_params.replay_back == 2
    whole = runner.train(given, Console(quiet=True)).run
    state = whole.members.state.actors[0].env
    assert int(state.shelf.stored.sum()) > 4
    assert int(state.shelf.played.sum()) > 2

    original = runner.run_chunks

    def stopped(run, progress, record, stopper):
        stopper.asked = 2
        return original(run, progress, record, stopper)

    monkeypatch.setattr(runner, "run_chunks", stopped)
    cut = compose.compose("tiny", [*WORDS, f"runs={tmp_path}", "name=cut"])
    assert runner.train(cut, Console(quiet=True)).status == "interrupted"
    monkeypatch.setattr(runner, "run_chunks", original)
    folder = tmp_path / "tiny_corridor" / "cut"
    resumed = runner.train(compose.compose("tiny", [f"resume={folder}"]), Console(quiet=True)).run
    for one, two in zip(leaves((whole.members, whole.best)), leaves((resumed.members, resumed.best)), strict=True):
        np.testing.assert_array_equal(one, two)
    policy = load.load(folder)
    assert policy.env == Corridor()
    assert policy.env_params.slip == np.float32(0.3)


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["env=swarm"], 150),  # as published: 1.5 of 15 s
        (["env=swarm", "env.preset=coverage"], 10),
        (["env=swarm", "env.duration=6000"], (600, 251)),  # as far as the ring goes
        (["env=swarm", "failure_replay.back=20"], (150, 20)),
    ],
)
def test_without_numbers_a_replay_goes_back_a_tenth_of_an_episode(words, steps):
    given = compose.compose("ippo", words).training_params
    grace, back = steps if isinstance(steps, tuple) else (steps, steps)
    assert (given.replay_grace, given.replay_back) == (grace, back)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("failures=[crash]", "failure_replay: unknown metric of Corridor 'crash'; known: arrived"),
        ("back=30", "failure_replay.back=30: the ring goes 5 steps back for certain"),
        ("sizes=3", "unknown setting 'failure_replay.sizes'; did you mean failure_replay.size"),
        ("probability=often", "failure_replay.probability=often has the wrong type; it takes a number"),
    ],
)
def test_settings_that_cannot_be_are_one_line(command_line, word, message):
    with pytest.raises(UserError, match=message):
        compose.compose("tiny", [*WORDS, f"failure_replay.{word}"])


def test_the_command_lines_defaults_are_those_of_the_wrapper(command_line):
    given = compose.compose("tiny", ["env=corridor", "failure_replay.failures=[arrived]"])
    usual = FailureReplay(Corridor(), failures=("arrived",))
    assert given.training_env == usual
    jax.tree.map(np.testing.assert_array_equal, given.training_params, strongly_typed(usual.default_params))
    plain = compose.compose("tiny", ["env=corridor"])
    assert plain.training_env is plain.env
    assert plain.training_params is plain.env_params
    before = {name: value for name, value in plain.tree.items() if name != "failure_replay"}
    assert settings.from_tree(before).run == plain.run  # a run folder from before there was replay


def test_a_resumed_swarm_has_neither_failed_nor_arrived():
    from marljax.envs.swarm import Swarm

    env = FailureReplay(Swarm())
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    state = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state.env)
    metrics = env.env.observe(env.env.reset_episode_counters(state, env.env.default_params), env.env.default_params).metrics
    assert (metrics["collision"], metrics["crash"], metrics["success"], metrics["deadlock"]) == (0, 0, 0, 1)


def test_a_description_is_that_of_the_environment_inside():
    """Whatever an environment says of itself but its numbers, so that nothing new is forgotten."""
    from marljax.envs.swarm import Swarm

    inside = Swarm(preset="obstacles")
    wrapped = FailureReplay(inside)
    told = [
        name
        for name, value in vars(marljax.Environment).items()
        if not name.startswith("_") and (isinstance(value, property) or not callable(value)) and name != "default_params"
    ]
    assert {"pace", "obs_layout", "items", "action_space", "units", "teams"} <= {*told}
    units = {"replayed": "%"}
    for name in told:
        expected = getattr(inside, name)
        assert getattr(wrapped, name) == ({**expected, **units} if name == "units" else expected), name


def test_episodes_too_short_for_a_replay_are_one_clear_line():
    from marljax.envs.swarm import Swarm

    env = FailureReplay(Swarm(preset="coverage"))
    with pytest.raises(UserError, match="leaves nothing to replay of episodes of 100 steps"):
        env.check_params(env.default_params.replace(replay_grace=100))
    with pytest.raises(UserError, match="replay_grace=-1 is out of range; it takes numbers of at least 0"):
        env.check_params(env.default_params.replace(replay_grace=-1))
    env.check_params(env.default_params)
