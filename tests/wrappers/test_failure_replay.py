"""Episodes from shortly before a failure, against a model in plain Python, statistics, and the wrapped environment."""

import dataclasses
import functools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from toys import Bumps, BumpsParams, Corridor, CorridorParams, bump

import marljax
from marljax import registry
from marljax.config import compose
from marljax.core.environment import Display, Environment
from marljax.errors import UserError
from marljax.testing import check_env
from marljax.training import load, runner
from marljax.training.interrupts import Stopper
from marljax.utils.pytrees import strongly_typed
from marljax.wrappers.failure_replay import FailureReplay

SMALL = {"failures": ("bumps",), "size": 3, "ring": 3, "spacing": 2, "window": 4}
PARAMS = {"replay_probability": 0.6, "replay_grace": 3, "replay_back": 4, "replay_times": 2, "replay_below": 2.2}


@dataclasses.dataclass
class Model:
    """One instance of ``FailureReplay(Bumps())`` as lists; a state is (kind, step, bumps)."""

    gate: bool
    state: tuple
    clock: int = 0
    snapshots: list = dataclasses.field(default_factory=list)  # (clock, state)
    used: int = -1  # the clock of the last snapshot that was stored
    slots: list = dataclasses.field(default_factory=lambda: [None] * SMALL["size"])  # [state, order, replays]
    stored: int = 0
    past: list = dataclasses.field(default_factory=list)
    replayed: bool = False
    ended: bool = False

    def step(self, kind, draw):
        if self.ended:
            self.start(kind, draw)
            return
        if not self.replayed and self.clock % SMALL["spacing"] == 0:
            self.snapshots = [*self.snapshots, (self.clock, self.state)][-SMALL["ring"] :]
        kind, step, bumps = self.state
        failed = bump(kind, step + 1)
        self.state, self.clock = (kind, step + 1, bumps + failed), self.clock + 1
        if failed and not self.replayed and self.clock > PARAMS["replay_grace"]:
            self.store()
        self.ended = step + 1 >= BumpsParams().limit + kind % 5
        if self.ended:
            self.past = [*self.past, self.state[2]][-SMALL["window"] :]

    def store(self):
        old = [snapshot for snapshot in self.snapshots if self.clock - snapshot[0] >= PARAMS["replay_back"]]
        if not old or old[-1][0] <= self.used:
            return
        self.used, state = old[-1]
        self.stored += 1
        ages = [slot[1] if slot else 0 for slot in self.slots]
        self.slots[ages.index(min(ages))] = [state, self.stored, 0]

    def start(self, kind, draw):
        held = [slot for slot in self.slots if slot]
        is_open = not self.gate or sum(self.past) / len(self.past) < PARAMS["replay_below"]
        self.replayed = bool(held) and draw[0] < PARAMS["replay_probability"] and is_open
        self.state = (kind, 0, 0)
        if self.replayed:
            slot = held[min(int(draw[1] * len(held)), len(held) - 1)]
            self.state = (*slot[0][:2], 0)
            slot[2] += 1
            if slot[2] >= PARAMS["replay_times"]:
                self.slots[self.slots.index(slot)] = None
        self.clock, self.snapshots, self.used, self.ended = 0, [], -1, False


def draws(env, count, key):
    """The kinds of fresh episodes [E] and the random numbers [E, 2] that instances draw in a step with this key."""

    def one(key):
        key_fresh, key_choice = jax.random.split(jax.random.split(key)[0])
        return env.initial(key_fresh, env.default_params).kind, jax.random.uniform(key_choice, (2,))

    return jax.vmap(one)(jax.random.split(key, count))


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
def test_ring_evictions_and_gate_match_a_model_in_plain_python(gate):
    env, count, steps = FailureReplay(Bumps(), gate="bumps" if gate else "", **SMALL), 4, 400
    start, states, timesteps, keys = rollout(env, env.default_params.replace(**PARAMS), count, steps)
    kinds, random = jax.jit(jax.vmap(functools.partial(draws, Bumps(), count)))(keys)
    states = states.env.replace(env=states.env.env.replace(key=0), store=states.env.store.value.replace(key=0))
    states, kinds, random, start = jax.device_get((states, kinds, random, start.env.env.kind))
    models = [Model(gate, (int(kind), 0, 0)) for kind in start]
    for t in range(steps):
        for e, model in enumerate(models):
            model.step(int(kinds[t, e]), random[t, e])
            now = jax.tree.map(lambda leaf, t=t, e=e: leaf[t, e] if np.ndim(leaf) else leaf, states)
            assert (now.env.kind, now.env.step, now.env.bumps) == model.state
            assert (now.replayed, now.clock, now.ended) == (model.replayed, model.clock, model.ended)
            rows = now.index.rows[SMALL["ring"] :]
            for slot, row, order, replays in zip(model.slots, rows, now.index.order, now.index.replays, strict=True):
                assert bool(order) == (slot is not None)
                if slot:
                    stored = tuple(int(leaf[row]) for leaf in (now.store.kind, now.store.step, now.store.bumps))
                    assert (stored, order, replays) == tuple(slot)
        assert sorted(states.index.rows[t, 0]) == list(range(SMALL["ring"] + SMALL["size"]))
    np.testing.assert_array_equal(timesteps.metrics["replayed"], states.replayed)
    replays, stores = states.replayed[1:] & ~states.replayed[:-1], states.index.stored[-1]
    closed = [model for model in models if model.gate and sum(model.past) / len(model.past) >= PARAMS["replay_below"]]
    assert replays.sum() > 10
    assert stores.min() > 2 * SMALL["size"]
    assert closed or not gate


def test_replay_probability_and_uniform_choice():
    env = FailureReplay(Bumps(), **SMALL)
    env_params = env.default_params.replace(**PARAMS | {"replay_times": 100, "replay_probability": 0.3})
    _, states, timesteps, _ = jax.device_get(rollout(env, env_params, 1500, 60))
    state = states.env
    starts, held = timesteps.first[1:], (state.index.order[:-1] > 0).sum(-1)
    could = starts & (held > 0)
    share = state.replayed[1:][could].mean()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / could.sum())
    assert not state.replayed[1:][starts & (held == 0)].any()
    full = could & state.replayed[1:] & (held == 3)
    chosen = (state.index.replays[1:] - state.index.replays[:-1])[full]
    assert full.sum() > 300
    assert (chosen.sum(-1) == 1).all()
    np.testing.assert_allclose(chosen.mean(0), 1 / 3, atol=4 * np.sqrt(2 / 9 / full.sum()))


class Split(Corridor):
    """Starts later episodes with the key that ``FailureReplay`` uses for a fresh one."""

    def restart(self, key, state, env_params):
        return self.initial(jax.random.split(key)[0], env_params)


def test_without_replays_episodes_are_bitwise_those_of_the_environment():
    env = FailureReplay(Corridor(), failures=("arrived",), spacing=2)
    env_params = env.default_params.replace(replay_probability=0.0, replay_grace=0, replay_back=2)
    _, states, timesteps, _ = rollout(env, env_params, 3, 80)
    _, bare_states, bare, _ = rollout(Split(), env_params.env, 3, 80)
    assert int(timesteps.last.sum()) > 5
    assert int(states.env.index.stored.max()) == 0
    timesteps.metrics.pop("replayed")
    jax.tree.map(np.testing.assert_array_equal, (states.env.env, timesteps), (bare_states.env, bare))


def test_contract_and_forwarded_members():
    bare = Corridor(preset="slow", compete=True)
    env = FailureReplay(bare, failures=["arrived"], gate="arrived", spacing=3, ring=2, size=2, window=3)
    env_params = env.default_params.replace(replay_back=2, replay_grace=1, replay_below=9.0)
    check_env(env, env_params, num_steps=40)
    assert env.preset_params("quick").env == bare.preset_params("quick")
    assert env == FailureReplay(dataclasses.replace(bare, preset="quick"), ("arrived",), "arrived", 2, 2, 3, 3)
    state, timestep = env.reset(jax.random.key(0))
    inside, _ = bare.reset(jax.random.key(0))
    for one, two in ((env.scene, bare.scene), (env.global_state, bare.global_state)):
        jax.tree.map(np.testing.assert_array_equal, one(state, env_params), two(inside, env_params.env))
    assert timestep.metrics["replayed"] == 0


@dataclasses.dataclass(frozen=True)
class Charted(Corridor):
    display = Display(metrics=("arrived",), units={"time": "s"}, charts=lambda states, env_params: (states, env_params))


def test_every_property_is_that_of_the_wrapped_environment():
    """All that ``Environment`` has, so that none is forgotten."""
    bare = Charted(preset="slow", compete=True)
    env = FailureReplay(bare, failures=("arrived",))
    members = [name for name, value in vars(Environment).items() if isinstance(value, property) or name in ("version", "presets")]
    assert {"obs_layout", "items", "action_space", "teams", "presets"} <= {*members}
    for name in {*members} - {"default_params", "display"}:
        assert getattr(env, name) == getattr(bare, name), name
    display = env.display
    assert dataclasses.replace(display, charts=None, units=bare.display.units) == dataclasses.replace(bare.display, charts=None)
    assert display.units == {"time": "s", "replayed": "%"}
    state, _ = env.reset(jax.random.key(0))
    assert display.charts(state, env.default_params) == (state.env, bare.default_params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'collision'; known: arrived"),
        ({"failures": ("arrive",)}, "'arrive'; did you mean arrived"),
        ({"failures": ("arrived",), "gate": "cost"}, "'cost'; known: arrived"),
        ({"failures": "arrived"}, r"failures=arrived .*\[arrived\]"),
        ({"failures": ()}, r"failures=\[\]"),
        ({"failures": ("arrived",), "ring": 0}, "ring=0 .*at least 1"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        FailureReplay(Corridor(), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay_probability": 1.5}, "replay_probability=1.5 .*from 0 to 1"),
        ({"replay_grace": -1}, "replay_grace=-1 .*at least 0"),
        ({"replay_back": 300}, "replay_back=300 .*251 steps .*raise ring or spacing"),
        ({"replay_times": 0}, "replay_times=0 "),
        ({"env": CorridorParams(slip=float("nan"))}, "slip=nan"),
    ],
)
def test_params_are_checked(changes, message):
    env = FailureReplay(Corridor(), failures=("arrived",))
    env.check_params(env.default_params)
    with pytest.raises(UserError, match=message):
        env.check_params(env.default_params.replace(**changes))


def test_other_environments_and_params_are_refused():
    env = FailureReplay(Corridor(), failures=("arrived",))
    with pytest.raises(UserError, match="CorridorParams; give ReplayParams"):
        env.reset(jax.random.key(0), env.env.default_params)
    with pytest.raises(UserError, match="FailureReplay has persistent state"):
        FailureReplay(env, failures=("arrived",))
    short = FailureReplay(marljax.make("swarm", preset="coverage"))
    short.check_params(short.default_params)
    with pytest.raises(UserError, match="replay_grace=100 "):
        short.check_params(short.default_params.replace(replay_grace=100))


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_reports_fresh_episodes_and_the_share_of_others():
    from marljax.algos import ippo
    from marljax.io.metrics_log import summarise

    env = FailureReplay(Bumps(), **SMALL)
    env_params = env.default_params.replace(**PARAMS)
    config = ippo.Config(total_steps=8 * 100 * 2, num_envs=8, rollout_length=100, num_epochs=1, hidden=(4,))
    train = jax.jit(marljax.make_train(ippo, env, config, env_params))
    overrides = {"env.replay_probability": 0.5, "env.limit": 9}  # the second belongs to the environment inside
    metrics = jax.device_get(train(jax.random.key(0), overrides).metrics)
    row = summarise({name: value[None] for name, value in metrics.items()}, 0)
    # kinds are uniform over 0 … 12 in fresh episodes, which last 9 + kind mod 5 steps; replayed ones are shorter
    assert row["length"] == pytest.approx(9 + np.mean([kind % 5 for kind in range(13)]), abs=0.6)
    assert 0.2 < row["replayed"] < 0.5
    assert row["episodes"] == metrics["episodes"].sum() > 50
    with pytest.raises(UserError, match="'limt'; did you mean limit"):
        train(jax.random.key(0), {"env.limt": 9})


@pytest.fixture
def command_line(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "tiny", "tiny")
    monkeypatch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")


REPLAY = ["failures=[arrived]", "spacing=2", "ring=3", "size=2", "grace=0", "back=2", "probability=0.9"]
ARGUMENTS = ["env=corridor", "env.slip=0.3", "env.fewest=2", "algo.total_steps=800", "chunk=4", "checkpoint.every=0.25",
         "render=false", "eval.episodes=2", *(f"failure_replay.{argument}" for argument in REPLAY)]  # fmt: skip


def leaves(tree):
    return [np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
            for x in jax.tree.leaves(tree)]  # fmt: skip


def test_a_run_replays_resumes_bitwise_and_evaluates_the_bare_environment(tmp_path, command_line, monkeypatch):
    given = compose.compose("tiny", [*ARGUMENTS, f"runs={tmp_path}", "name=whole"])
    assert given.env == Corridor()
    assert given.training_env == FailureReplay(Corridor(), ("arrived",), size=2, ring=3, spacing=2)
    assert given.training_params.env.slip == np.float32(0.3)
    assert given.training_params.replay_back == 2
    whole = runner.train(given, Console(quiet=True)).run
    state = whole.replicas.state.actors[0].env
    assert int(state.index.stored.sum()) > 4
    assert int(state.index.replays.sum()) > 2

    cut = compose.compose("tiny", [*ARGUMENTS, f"runs={tmp_path}", "name=cut"])
    with monkeypatch.context() as patch:
        patch.setattr(Stopper, "agreed", lambda self: signal.SIGINT)
        assert runner.train(cut, Console(quiet=True)).status == "interrupted"
    folder = tmp_path / "tiny_corridor" / "cut"
    resumed = runner.train(compose.compose("tiny", [f"resume={folder}"]), Console(quiet=True)).run
    for one, two in zip(leaves((whole.replicas, whole.best)), leaves((resumed.replicas, resumed.best)), strict=True):
        np.testing.assert_array_equal(one, two)
    policy = load.load(folder)
    assert policy.env == Corridor()
    assert policy.env_params.slip == np.float32(0.3)


@pytest.mark.parametrize(
    ("arguments", "grace", "back"),
    [
        (["env=swarm"], 150, 150),  # as published: 1.5 of 15 s
        (["env=swarm", "env.preset=coverage"], 10, 10),
        (["env=swarm", "env.duration=6000"], 600, 251),  # limited by the ring
        (["env=swarm", "failure_replay.back=20"], 150, 20),
    ],
)
def test_by_default_a_replay_goes_back_a_tenth_of_an_episode(arguments, grace, back):
    params = compose.compose("ippo", arguments).training_params
    assert (params.replay_grace, params.replay_back) == (grace, back)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("failures=[crash]", "failure_replay.*'crash'; known: arrived"),
        ("back=30", "failure_replay.back=30 "),
        ("sizes=3", "'failure_replay.sizes'; did you mean failure_replay.size"),
        ("probability=often", "failure_replay.probability=often "),
        ("probability=2", "failure_replay.probability=2 .*from 0 to 1"),
    ],
)
def test_wrong_settings_are_user_errors(command_line, argument, message):
    with pytest.raises(UserError, match=message):
        compose.compose("tiny", [*ARGUMENTS, f"failure_replay.{argument}"])


def test_the_defaults_of_the_command_line_are_those_of_the_wrapper(command_line):
    settings = compose.compose("tiny", ["env=corridor", "failure_replay.failures=[arrived]"])
    expected = FailureReplay(Corridor(), failures=("arrived",))
    assert settings.training_env == expected
    jax.tree.map(np.testing.assert_array_equal, settings.training_params, strongly_typed(expected.default_params))
    bare = compose.compose("tiny", ["env=corridor"])
    assert bare.training_env is bare.env
    assert bare.training_params is bare.env_params


def test_a_replayed_episode_of_swarm_has_neither_failed_nor_arrived():
    env = marljax.make("swarm")
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    state = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state)
    metrics = env.observe(env.reset_episode_counters(state, env.default_params), env.default_params).metrics
    assert (metrics["collision"], metrics["crash"], metrics["success"], metrics["deadlock"]) == (0, 0, 0, 1)
