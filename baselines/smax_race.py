"""Training on ``smax`` against JaxMARL's own settings on JaxMARL's own SMAX: how fast, and how soon it wins.

``python baselines/smax.py training`` calls it. As a command it measures the speed of one side in a process of its own and prints
it as JSON.

Axis letters: S seeds, U updates, L points of a learning curve.
"""

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

SEEDS = 5
GOAL = 0.9  # share of episodes won, the mean over ``WINDOW`` steps
POINT = 16_384  # steps per point of a learning curve, an update of JaxMARL's: the same for both sides
WINDOW = 4 * POINT  # single points vary by 0.02
STEPS = 10_000_000  # after which JaxMARL's learning rate is 0
LIMIT = 3_000_000  # steps after which a race of ours ends, unless all seeds have reached the goal before
JAXMARL_LIMITS = {  # the same for JaxMARL's: at least three times as long as ours in seconds
    "ippo": {"3m": 2_400_000, "2s3z": 600_000},
    "mappo": {"3m": 1_600_000, "2s3z": 450_000},
}
RULES = {"seeds": SEEDS, "goal": GOAL, "window": WINDOW}
SAVE_EVERY = 120.0  # s between two checkpoints of a race
CHUNK = 4  # updates per compiled call
TIMED_SIDES = ("jaxmarl", "same", "marljax")
TIMED_UPDATES = 4
ROUNDS = 3
SAME_SIZES = (  # JaxMARL's networks, epochs and minibatches
    "algo.core=gru",
    "algo.hidden=[128,128]",
    "algo.head=[128]",
    "algo.activation=relu",
    "algo.num_envs=128",
    "algo.rollout_length=128",
    "algo.num_epochs=4",
    "algo.num_minibatches=4",
)
SAME_CRITIC = {"ippo": "algo.share_body=true", "mappo": "algo.critic_features=id"}

# (start(keys) -> state, advance(state) -> (state, won [S, U], episodes [S, U]), steps per update)
Side = tuple[Callable[[Any], Any], Callable[[Any], tuple[Any, np.ndarray, np.ndarray]], int]


def overrides(side: str, algo: str) -> tuple[str, ...]:
    """How a side of ours differs from the tuned settings."""
    return {"same": (*SAME_SIZES, SAME_CRITIC[algo]), "marljax": (), "gru": ("tuned=gru",)}[side]


def ours(algo: str, scenario: str, overrides: Sequence[str] = (), chunk: int = CHUNK) -> Side:
    """Our algorithm with its tuned settings and ``overrides``."""
    import marljax
    from marljax.training import mesh
    from marljax.training.trainer import Trainer

    run = marljax.tuned(algo, "smax", f"env.scenario={scenario}", *overrides)
    trainer = Trainer(run.algorithm, run.env, run.config, mesh.make_mesh())

    def advance(replicas: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        replicas, metrics = trainer.run(replicas, chunk)
        return replicas, np.asarray(metrics["sum_won"]), np.asarray(metrics["episodes"])

    return lambda keys: trainer.init(keys, run.env_params), advance, trainer.steps_per_update


def their_settings(algo: str, scenario: str) -> Any:
    from marljax.baselines.rivals import rnn_ppo

    return rnn_ppo.Settings(scenario, total_steps=STEPS, **rnn_ppo.PUBLISHED[algo])


def theirs(algo: str, scenario: str, chunk: int = CHUNK) -> Side:
    """JaxMARL's settings and environment."""
    from marljax.baselines.rivals import rnn_ppo

    trainer = rnn_ppo.Trainer(their_settings(algo, scenario))

    @jax.jit
    @jax.vmap
    def advance_all(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: trainer.update(state), state, None, chunk)

    def advance(states: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        states, metrics = advance_all(states)
        return states, np.asarray(metrics["won"]), np.asarray(metrics["episodes"])

    return jax.jit(jax.vmap(trainer.init)), advance, trainer.settings.steps_per_update


def make(side: str, algo: str, scenario: str, chunk: int = CHUNK) -> Side:
    """A side by its name: JaxMARL's ("jaxmarl"), ours with its sizes ("same"), as tuned ("marljax"), with memory ("gru")."""
    return theirs(algo, scenario, chunk) if side == "jaxmarl" else ours(algo, scenario, overrides(side, algo), chunk)


def settings(side: str, algo: str, scenario: str) -> dict[str, Any]:
    """Everything that a side's results depend on."""
    import marljax
    from marljax.baselines.harness import result_cache

    if side == "jaxmarl":
        return {"algo": algo, "jaxmarl": version("jaxmarl")} | dataclasses.asdict(their_settings(algo, scenario))
    return result_cache.result_config(marljax.tuned(algo, "smax", f"env.scenario={scenario}", *overrides(side, algo)))


def train_to_goal(
    side: Side,
    folder: Path,
    log: Callable[[str], None] = lambda line: print(line, flush=True),
    limit: int = LIMIT,
    early: bool = True,
) -> dict[str, Any]:
    """Trains until every seed has reached the goal, or else to the limit: curves [S, L] of the share won.

    Without ``early`` it always trains to the limit. ``folder`` holds checkpoints until it is finished.
    """
    from marljax.io import checkpoint

    start, advance, steps_per_update = side
    state = start(jax.random.split(jax.random.key(0), SEEDS))
    won, episodes = np.zeros((2, SEEDS, 0))
    purpose = checkpoint.CheckpointSpec("race", "smax", str(steps_per_update))
    if checkpoint.checkpoints(folder):
        found = checkpoint.restore(folder, state, purpose)
        state, (won, episodes) = found.tree, np.array(found.notes["counts"])
    saved = time.monotonic()
    while won.shape[1] * steps_per_update < limit:
        state, *counts = advance(state)
        won, episodes = (np.concatenate(parts, axis=1) for parts in zip((won, episodes), counts, strict=True))
        curves = win_rates(won, episodes, updates_per_point(steps_per_update))
        log(f"{won.shape[1] * steps_per_update:,} steps, won {np.round(curves[:, -1], 2)}")
        if early and None not in steps_to_goal(curves, steps_per_update):
            break
        if time.monotonic() - saved > SAVE_EVERY:
            checkpoint.save(folder, won.shape[1], state, purpose, 1, {"counts": [won.tolist(), episodes.tolist()]})
            saved = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    curves = win_rates(won, episodes, updates_per_point(steps_per_update))
    return {"curves": np.round(curves, 4).tolist(), "steps_per_update": steps_per_update}


def updates_per_point(steps_per_update: int) -> int:
    """Updates per point of a learning curve."""
    return max(1, POINT // steps_per_update)


def points_per_window(steps_per_update: int) -> int:
    """Points whose mean has to reach the goal."""
    return max(1, WINDOW // (updates_per_point(steps_per_update) * steps_per_update))


def win_rates(won: np.ndarray, episodes: np.ndarray, updates: int) -> np.ndarray:
    """[S, L] share of episodes won in every ``updates`` updates, from counts [S, U]; an incomplete last point is dropped."""
    points = won.shape[1] // updates
    sums = [counts[:, : points * updates].reshape(len(counts), points, updates).sum(axis=2) for counts in (won, episodes)]
    return sums[0] / np.maximum(sums[1], 1)


def steps_to_goal(curves: ArrayLike, steps_per_update: int) -> list[int | None]:
    """[S] steps until the goal, None where it was not reached; curves are [S, L]."""
    per_point = updates_per_point(steps_per_update) * steps_per_update
    curves, span = np.asarray(curves), points_per_window(steps_per_update)
    if curves.shape[1] < span:
        return [None] * len(curves)
    reached = np.lib.stride_tricks.sliding_window_view(curves, span, axis=1).mean(axis=-1) >= GOAL
    return [(int(seed.argmax()) + span) * per_point if seed.any() else None for seed in reached]


def measure_speed(side: str, algo: str, scenario: str, begun: float) -> dict[str, float]:
    """One seed: seconds from ``begun`` (of ``time.time``) to the end of the first update, and steps per second after it."""
    start, advance, steps_per_update = make(side, algo, scenario, chunk=1)
    state, *_ = advance(start(jax.random.split(jax.random.key(0), 1)))
    first = time.time() - begun
    rates = []
    for _ in range(TIMED_UPDATES):
        before = time.perf_counter()
        state, _, episodes = advance(state)
        # of ours, one step in an episode only resets it
        steps = steps_per_update - (0 if side == "jaxmarl" else float(episodes.sum()))
        rates.append(steps / (time.perf_counter() - before))
    return {"first_update_s": first, "steps_per_s": float(np.median(rates))}


def measure_speeds(algo: str, scenario: str) -> dict[str, dict[str, list[float]]]:
    """The speed of every side, in turn, for some rounds."""
    from marljax.baselines.harness.measure import run_in_process

    rows: dict[str, list[dict[str, float]]] = {side: [] for side in TIMED_SIDES}
    for _ in range(ROUNDS):
        for side, measured in rows.items():
            measured.append(run_in_process(__file__, side, algo, scenario, str(time.time())))
    return {side: {name: [row[name] for row in measured] for name in measured[0]} for side, measured in rows.items()}


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("this measures one side for another script; run python baselines/smax.py training")
    side, algo, scenario, begun = sys.argv[1:]
    print(json.dumps(measure_speed(side, algo, scenario, float(begun))))
