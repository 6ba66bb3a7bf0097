"""Training on ``smax`` against JaxMARL's own settings on JaxMARL's own SMAX: how fast, and how soon it wins.

``python baselines/smax.py training`` calls it. Run as a command itself, it measures the pace of one side in a process of its own
and prints it as JSON.

Axis letters: S seeds, U updates.
"""

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

SEEDS = 5
GOAL = 0.9  # share of episodes won, the mean of the looks of the last ``WINDOW`` steps
LOOK = 16_384  # steps over which episodes are counted, an update of JaxMARL's: both sides are looked at equally often
WINDOW = 4 * LOOK  # one look wavers by two points
STEPS = 10_000_000  # after which JaxMARL's learning rate is 0
LIMIT = 3_000_000  # steps after which a race of ours ends; before, when all seeds have reached the goal
RIVAL_LIMITS = {  # steps after which JaxMARL's ends: at least three times as long as ours by the clock
    "ippo": {"3m": 2_400_000, "2s3z": 600_000},
    "mappo": {"3m": 1_600_000, "2s3z": 450_000},
}
RULES = {"seeds": SEEDS, "goal": GOAL, "window": WINDOW}
SAVE_EVERY = 120.0  # s between two checkpoints of a race
CHUNK = 4  # updates between looks at the clock
PACED = ("jaxmarl", "same", "marljax")  # sides whose pace is measured
PACE_UPDATES = 4
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


def ours(algo: str, scenario: str, words: tuple[str, ...] = (), chunk: int = CHUNK) -> Side:
    """Our algorithm with its tuned settings, changed by ``words``."""
    import marljax
    from marljax.training import mesh
    from marljax.training.trainer import Trainer

    run = marljax.tuned(algo, "smax", f"env.scenario={scenario}", *words)
    trainer = Trainer(run.algorithm, run.env, run.config, mesh.make_mesh())

    def advance(members: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        members, metrics = trainer.run(members, chunk)
        return members, np.asarray(metrics["sum_won"]), np.asarray(metrics["episodes"])

    return lambda keys: trainer.init(keys, run.env_params), advance, trainer.steps_per_update


def their_settings(algo: str, scenario: str) -> dict[str, Any]:
    """What JaxMARL's figures depend on."""
    from marljax.baselines.rivals import rnn_ppo

    settings = rnn_ppo.Settings(scenario, total_steps=STEPS, **rnn_ppo.PUBLISHED[algo])
    return {"algo": algo, "jaxmarl": importlib.metadata.version("jaxmarl")} | dataclasses.asdict(settings)


def theirs(algo: str, scenario: str, chunk: int = CHUNK) -> Side:
    """JaxMARL's settings and environment."""
    import jax

    from marljax.baselines.rivals import rnn_ppo

    trainer = rnn_ppo.Trainer(rnn_ppo.Settings(scenario, total_steps=STEPS, **rnn_ppo.PUBLISHED[algo]))

    @jax.jit
    def advance_all(states: Any) -> Any:
        return jax.vmap(lambda state: jax.lax.scan(lambda state, _: trainer.update(state), state, None, chunk))(states)

    def advance(states: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        states, metrics = advance_all(states)
        return states, np.asarray(metrics["won"]), np.asarray(metrics["episodes"])

    return jax.jit(jax.vmap(trainer.init)), advance, trainer.settings.steps_per_update


def words_of(side: str, algo: str) -> tuple[str, ...]:
    """What a side of ours changes about the tuned settings."""
    if side == "same":
        return (*SAME_SIZES, SAME_CRITIC[algo])
    return {"marljax": (), "gru": ("tuned=gru",)}[side]


def make(side: str, algo: str, scenario: str, chunk: int = CHUNK) -> Side:
    """A side by its name: JaxMARL's ("jaxmarl"), ours with its sizes ("same"), as tuned ("marljax"), with memory ("gru")."""
    return theirs(algo, scenario, chunk) if side == "jaxmarl" else ours(algo, scenario, words_of(side, algo), chunk)


def settings(side: str, algo: str, scenario: str) -> dict[str, Any]:
    """What a side's figures depend on."""
    import marljax
    from marljax.baselines.harness import result_cache

    if side == "jaxmarl":
        return their_settings(algo, scenario)
    return result_cache.matters(marljax.tuned(algo, "smax", f"env.scenario={scenario}", *words_of(side, algo)))


def say_at_once(line: str) -> None:
    """A line of a long race, not kept back where it goes to a file."""
    print(line, flush=True)


def climb(
    side: Side, folder: Path, say: Callable[[str], None] = say_at_once, limit: int = LIMIT, early: bool = True
) -> dict[str, Any]:
    """Trains until every seed has reached the goal, or else to the limit: curves, the share won at every look.

    Without ``early`` it always trains to the limit. ``folder`` holds checkpoints until it is through.
    """
    import jax

    from marljax.io import checkpoint

    start, advance, steps_per_update = side
    state = start(jax.random.split(jax.random.key(0), SEEDS))
    won, episodes = np.zeros((2, SEEDS, 0))
    purpose = checkpoint.Purpose("race", "smax", str(steps_per_update))
    if checkpoint.checkpoints(folder):
        found = checkpoint.restore(folder, state, purpose)
        state, (won, episodes) = found.tree, np.array(found.notes["counts"])
    saved = time.monotonic()
    while won.shape[1] * steps_per_update < limit:
        state, *counted = advance(state)
        won, episodes = (np.concatenate(parts, axis=1) for parts in zip((won, episodes), counted, strict=True))
        curves = shares(won, episodes, updates_per_look(steps_per_update))
        say(f"{won.shape[1] * steps_per_update:,} steps, won {np.round(curves[:, -1], 2)}")
        if early and None not in steps_to_goal(curves, steps_per_update):
            break
        if time.monotonic() - saved > SAVE_EVERY:
            checkpoint.save(folder, won.shape[1], state, purpose, 1, {"counts": [won.tolist(), episodes.tolist()]})
            saved = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    curves = shares(won, episodes, updates_per_look(steps_per_update))
    return {"curves": np.round(curves, 4).tolist(), "steps_per_update": steps_per_update}


def updates_per_look(steps_per_update: int) -> int:
    """Updates between two looks at a race."""
    return max(1, LOOK // steps_per_update)


def looks_per_window(steps_per_update: int) -> int:
    """Looks whose mean has to reach the goal."""
    return max(1, WINDOW // (updates_per_look(steps_per_update) * steps_per_update))


def shares(won: np.ndarray, episodes: np.ndarray, updates: int) -> np.ndarray:
    """[S, L] share won of the episodes of every ``updates`` updates, both counts [S, U]; what is over at the end is left out."""
    looks = won.shape[1] // updates
    sums = [counts[:, : looks * updates].reshape(len(counts), looks, updates).sum(axis=2) for counts in (won, episodes)]
    return sums[0] / np.maximum(sums[1], 1)


def steps_to_goal(curves: ArrayLike, steps_per_update: int) -> list[int | None]:
    """[S] steps until the goal, None where it was not reached; curves are [S, L]."""
    look = updates_per_look(steps_per_update) * steps_per_update
    curves, span = np.asarray(curves), looks_per_window(steps_per_update)
    if curves.shape[1] < span:
        return [None] * len(curves)
    reached = np.lib.stride_tricks.sliding_window_view(curves, span, axis=1).mean(axis=-1) >= GOAL
    return [(int(seed.argmax()) + span) * look if seed.any() else None for seed in reached]


def pace(side: str, algo: str, scenario: str, begun: float) -> dict[str, float]:
    """One seed: seconds from ``begun`` (of ``time.time``) to the end of the first update, and steps per second after it."""
    import jax

    start, advance, steps_per_update = make(side, algo, scenario, chunk=1)
    state = start(jax.random.split(jax.random.key(0), 1))
    state, *_ = advance(state)
    first = time.time() - begun
    rates = []
    for _ in range(PACE_UPDATES):
        before = time.perf_counter()
        state, _, episodes = advance(state)
        # of ours, one step in an episode only restarts it
        steps = steps_per_update - (0 if side == "jaxmarl" else float(episodes.sum()))
        rates.append(steps / (time.perf_counter() - before))
    return {"first_update_s": first, "steps_per_s": float(np.median(rates))}


def paces(algo: str, scenario: str) -> dict[str, dict[str, list[float]]]:
    """The pace of every side, in turn, some rounds."""
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in PACED}
    for _ in range(ROUNDS):
        for side, measured in rows.items():
            command = [sys.executable, __file__, side, algo, scenario, str(time.time())]
            environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
            done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
            if done.returncode:
                sys.exit(f"the measurement of {side} {algo} {scenario} failed:\n{done.stderr[-2000:]}")
            measured.append(json.loads(done.stdout.splitlines()[-1]))
    return {side: {name: [row[name] for row in measured] for name in measured[0]} for side, measured in rows.items()}


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("this measures one side for another script; run python baselines/smax.py training")
    side, algo, scenario, begun = sys.argv[1:]
    print(json.dumps(pace(side, algo, scenario, float(begun))))
