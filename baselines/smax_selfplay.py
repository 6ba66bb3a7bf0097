"""Self-play on ``smax``: one policy learns to lead both teams; its checkpoints fight each other.

``python baselines/smax.py selfplay`` calls it. The left team is one checkpoint's policy, the enemies are another's, who sees the
board mirrored. Checkpoints are parameters, hence data: all battles of the matrix are one compiled program.

Axis letters: S seeds, K checkpoints (the first before any training).
"""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

import marljax
from marljax.baselines.harness import tables
from marljax.baselines.harness.result_cache import Cells, Figures, matters, suite_key
from marljax.baselines.harness.tables import markdown_table
from marljax.config.settings import Settings
from marljax.envs.smax import Opponent, Smax
from marljax.errors import UserError
from marljax.training import evaluation, mesh, runner
from marljax.training.evaluation import Evaluator, LearnedPolicy
from marljax.training.trainer import Trainer
from marljax.utils import stats

CONFIDENCE = 0.99  # of the interval that decides who is stronger
RESULTS = ("won", "lost")  # of a battle, by the left team; a draw is neither


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained and how much is played."""

    scenario: str = "3m"
    # Changes to the tuned settings of IPPO; on a smaller map the teams see each other from the start and have to fight.
    words: tuple[str, ...] = ("algo.total_steps=409_600", "env.map_width=16", "env.map_height=16")
    seeds: int = 3
    checkpoints: int = 6  # K, evenly spaced
    battles: int = 512  # per seed, for each entry of the matrix

    @property
    def settings(self) -> Settings:
        """Of the training; raises ``UserError`` for a scenario whose teams differ: one policy cannot lead both."""
        fixed = (f"env.scenario={self.scenario}", "env.mode=self_play", f"seeds={self.seeds}")
        run = marljax.tuned("ippo", "smax", *fixed, *self.words)
        battle = cast(Smax, run.env).battle
        if battle != battle.mirrored:
            raise UserError(f"the teams of {self.scenario} differ; a policy that leads both needs equal ones, such as 3m or 2s3z")
        return run


PLAN = Plan()


def section(cells: Cells, plan: Plan = PLAN) -> str:
    """The part of the page: the matrix and what it says."""
    figures = cell(cells, plan)
    if figures is None:
        return tables.with_missing([f"self-play {plan.scenario}"])
    won, lost, script_won, script_lost = (np.array(figures[side][name]) for side in ("learned", "script") for name in RESULTS)
    names = [f"{steps / 1e3:,.0f}k" for steps in figures["checkpoints"]["steps"]]
    shown = (np.concatenate([own, script[..., None]], -1).mean(0) for own, script in ((won, script_won), (lost, script_lost)))
    rows = [
        [name, *(f"{100 * rate:.0f} ({100 * other:.0f})" for rate, other in zip(*rates, strict=True))]
        for name, *rates in zip(names, *shown, strict=True)
    ]
    text = markdown_table(["trained for (steps)", *names, "scripted enemy"], rows)
    return f"{text}\n\n{verdict(won, lost, plan.battles)}"


def verdict(won: np.ndarray, lost: np.ndarray, battles: int) -> str:
    """Whether a policy is its own equal, whether sides matter, whether later checkpoints beat earlier ones; rates [S, K, K]."""
    size, played = won.shape[-1], battles * len(won)
    wins, losses = (np.rint(rates * battles).sum(0).astype(int) for rates in (won, lost))
    even = sum(stronger(wins[i, i], losses[i, i]) == 0 for i in range(size))
    by = wins + losses.T  # [K, K] battles that the row's policy won against the column's, on the left and on the right
    pairs = [(later, earlier) for later in range(size) for earlier in range(later)]
    grown = sum(stronger(by[pair], by[pair[::-1]]) > 0 for pair in pairs)
    turned = np.abs(wins - losses.T).max() / played
    before, after = (100 * (1 - won[:, i, i] - lost[:, i, i]).mean() for i in (0, -1))
    last = ", ".join(f"{100 * rate:.0f}" for rate in won[:, -1, 0])
    return (
        f"Against itself a checkpoint wins as often as it loses ({100 * CONFIDENCE:.0f} % interval): {even} of {size}. "
        f"A later checkpoint beats an earlier one, both sides counted: {grown} of {len(pairs)} pairs. "
        f"The side makes at most {100 * turned:.1f} points of difference (standard error up to {50 * (2 / played) ** 0.5:.1f}). "
        f"The last against the first, seed by seed: {last} % won. "
        f"Draws of a policy with itself: {before:.0f} % before training, {after:.0f} % after."
    )


def stronger(wins: int, losses: int) -> int:
    """1 where more than half of the decided battles were won, beyond chance; −1 where fewer; 0 where it may be half."""
    share = stats.wilson(int(wins), int(wins + losses), CONFIDENCE)
    return int(share.low > 0.5) - int(share.high < 0.5)


def cell(cells: Cells, plan: Plan) -> Figures | None:
    """Rates of battles won and lost by the left team: ``learned`` [S, K, K], rows the left team, and ``script`` [S, K]; and the
    ``steps`` [K] that each checkpoint had trained for."""
    run = plan.settings

    def measure() -> Figures:
        params, steps = train(run, plan.checkpoints)
        learned = against_each_other(run, params, plan.battles)
        return {"checkpoints": {"steps": steps}, "learned": learned, "script": against_the_script(run, params, plan.battles)}

    about = matters(run) | {"checkpoints": plan.checkpoints, "battles": plan.battles}
    return cells.get(f"selfplay {plan.scenario}", about, measure)


def train(run: Settings, checkpoints: int) -> tuple[Any, list[int]]:
    """Parameters [S, K, …] on the host, and the steps [K] after which they were taken."""
    trainer = Trainer(run.algorithm, run.env, run.config, mesh.make_mesh())
    chunk, rest = divmod(trainer.num_updates, checkpoints - 1)
    if rest:
        raise UserError(f"{trainer.num_updates} updates do not divide by {checkpoints - 1}; change total_steps or checkpoints")
    members = trainer.init(*runner.member_inputs(run))
    kept = [jax.device_get(members.state.learner.params)]
    for _ in range(checkpoints - 1):
        members, _ = trainer.run(members, chunk)
        kept.append(jax.device_get(members.state.learner.params))
    if (np.asarray(members.diverged_at) >= 0).any():
        raise UserError("a seed of self-play diverged; lower algo.learning_rate")
    steps = [index * chunk * trainer.steps_per_update for index in range(checkpoints)]
    return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *kept), steps


def against_each_other(run: Settings, params: Any, battles: int) -> dict[str, Any]:
    """Rates [S, K, K] of every checkpoint against every one of its seed; both sides sample their actions.

    The battles of a seed begin alike in every entry, those of different seeds do not.
    """
    left = left_team(run)
    env = dataclasses.replace(left, mode="learned", opponent=Opponent.of(run.algorithm, left, run.config))

    def play(own: Any, other: Any, key: jax.Array) -> dict[str, jax.Array]:
        policy = LearnedPolicy(run.algorithm, env, run.config, own, greedy=False)
        numbers = run.env_params.replace(opponent=other)
        ended = evaluation.play(env, numbers, policy, policy.initial_carry(), key, battles, evaluation.MAX_STEPS)
        return {name: ended[name].mean() for name in RESULTS}

    def of_seed(seed: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
        params, key = seed
        return jax.lax.map(lambda own: jax.vmap(play, in_axes=(None, 0, None))(own, params, key), params)

    return as_lists(jax.jit(lambda seeds: jax.lax.map(of_seed, seeds))((params, battle_keys(run))))


def against_the_script(run: Settings, params: Any, battles: int) -> dict[str, Any]:
    """Rates [S, K] of every checkpoint, in battles that begin like those of ``against_each_other``."""
    evaluator = Evaluator(left_team(run), battles)

    def of_seed(seed: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
        params, key = seed
        ended = evaluator.learned(run.algorithm, run.config, params, run.env_params, key, greedy=False)
        return {name: ended[name].mean(-1) for name in RESULTS}

    return as_lists(jax.jit(lambda seeds: jax.lax.map(of_seed, seeds))((params, battle_keys(run))))


def left_team(run: Settings) -> Smax:
    """The battle with the left team alone as agents; with equal teams the policies of self-play fit."""
    return dataclasses.replace(cast(Smax, run.env), mode="scripted")


def battle_keys(run: Settings) -> jax.Array:
    """[S] what fixes the battles of each seed."""
    return jax.random.split(suite_key(), run.run.seeds)


def as_lists(rates: dict[str, jax.Array]) -> dict[str, Any]:
    """For a cell."""
    return {name: np.round(np.asarray(rate, float), 6).tolist() for name, rate in rates.items()}
