"""Self-play on ``smax``: one policy learns to control both teams; its checkpoints play against each other.

``python baselines/smax.py selfplay`` calls it. The left team is one checkpoint's policy, the enemies are another's, which
observes the mirrored board. Checkpoints are parameters, hence data: all battles of the matrix are one compiled program.

Axis letters: S seeds, K checkpoints (the first before any training).
"""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

import marljax
from marljax.baselines.harness.result_cache import Metrics, ResultCache, result_config, suite_key
from marljax.baselines.harness.tables import with_missing
from marljax.config.settings import Settings
from marljax.envs.smax import Opponent, Smax
from marljax.errors import UserError
from marljax.reporting.tables import markdown_table
from marljax.training import evaluation, mesh, runner
from marljax.training.evaluation import Evaluator, LearnedPolicy
from marljax.training.trainer import Trainer
from marljax.utils import stats
from marljax.wrappers.against import against

CONFIDENCE = 0.99  # of the interval that decides which side is stronger
OUTCOMES = ("won", "lost")  # of a battle, for the left team; a draw is neither


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is trained and played."""

    scenario: str = "3m"
    # Overrides of IPPO's tuned settings; on a smaller map the teams are in sight from the start and have to fight.
    overrides: tuple[str, ...] = ("algo.total_steps=409_600", "env.map_width=16", "env.map_height=16")
    seeds: int = 3
    checkpoints: int = 6  # K, evenly spaced
    battles: int = 512  # per seed, for each entry of the matrix

    @property
    def settings(self) -> Settings:
        """Of the training; raises ``UserError`` for a scenario whose teams differ: one policy cannot control both."""
        fixed = (f"env.scenario={self.scenario}", "env.mode=self_play", f"seeds={self.seeds}")
        run = marljax.tuned("ippo", "smax", *fixed, *self.overrides)
        battle = cast(Smax, run.env).battle
        if battle != battle.mirrored:
            raise UserError(f"the teams of {self.scenario} differ; self-play needs equal ones, such as 3m or 2s3z")
        return run


PLAN = Plan()


def table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """The matrix and its summary."""
    metrics = matrix(cache, plan)
    if metrics is None:
        return with_missing([f"self-play {plan.scenario}"])
    won, lost, script_won, script_lost = (np.array(metrics[side][name]) for side in ("learned", "script") for name in OUTCOMES)
    names = [f"{steps / 1e3:,.0f}k" for steps in metrics["checkpoints"]["steps"]]
    rates = [np.concatenate([own, script[..., None]], -1).mean(0) for own, script in ((won, script_won), (lost, script_lost))]
    rows = [
        [name, *(f"{100 * win:.0f} ({100 * loss:.0f})" for win, loss in zip(wins, losses, strict=True))]
        for name, wins, losses in zip(names, *rates, strict=True)
    ]
    return f"{markdown_table(['trained for (steps)', *names, 'scripted enemy'], rows)}\n\n{summary(won, lost, plan.battles)}"


def summary(won: np.ndarray, lost: np.ndarray, battles: int) -> str:
    """Whether a policy is its own equal, whether sides matter, whether later checkpoints beat earlier ones; rates [S, K, K]."""
    size, played = won.shape[-1], battles * len(won)
    wins, losses = (np.rint(rates * battles).sum(0).astype(int) for rates in (won, lost))

    def stronger(wins: int, losses: int) -> int:
        """1 where more than half of the decided battles were won, beyond chance; −1 where fewer; 0 otherwise."""
        share = stats.wilson(int(wins), int(wins + losses), CONFIDENCE)
        return int(share.low > 0.5) - int(share.high < 0.5)

    even = sum(stronger(wins[i, i], losses[i, i]) == 0 for i in range(size))
    both_sides = wins + losses.T  # [K, K] battles that the row's policy won against the column's, on the left and on the right
    pairs = [(later, earlier) for later in range(size) for earlier in range(later)]
    improved = sum(stronger(both_sides[pair], both_sides[pair[::-1]]) > 0 for pair in pairs)
    asymmetry = np.abs(wins - losses.T).max() / played
    before, after = (100 * (1 - won[:, i, i] - lost[:, i, i]).mean() for i in (0, -1))
    last = ", ".join(f"{100 * rate:.0f}" for rate in won[:, -1, 0])
    return (
        f"Against itself a checkpoint wins as often as it loses ({100 * CONFIDENCE:.0f} % interval): {even} of {size}. "
        f"A later checkpoint beats an earlier one, both sides counted: {improved} of {len(pairs)} pairs. "
        f"The side makes at most {100 * asymmetry:.1f} points of difference "
        f"(standard error up to {50 * (2 / played) ** 0.5:.1f}). "
        f"The last against the first, seed by seed: {last} % won. "
        f"Draws of a policy with itself: {before:.0f} % before training, {after:.0f} % after."
    )


def matrix(cache: ResultCache, plan: Plan) -> Metrics | None:
    """Rates of battles won and lost by the left team: ``learned`` [S, K, K], rows the left team, and ``script`` [S, K]; and the
    ``steps`` [K] that each checkpoint had trained for."""
    run = plan.settings

    def measure() -> Metrics:
        params, steps = train(run, plan.checkpoints)
        learned, script = play_battles(run, params, plan.battles)
        return {"checkpoints": {"steps": steps}, "learned": learned, "script": script}

    about = result_config(run) | {"checkpoints": plan.checkpoints, "battles": plan.battles}
    return cache.get(f"selfplay {plan.scenario}", about, measure)


def train(run: Settings, checkpoints: int) -> tuple[Any, list[int]]:
    """Parameters [S, K, …] on the host, and the steps [K] after which they were taken."""
    trainer = Trainer(run.algorithm, run.env, run.config, mesh.make_mesh())
    chunk, rest = divmod(trainer.num_updates, checkpoints - 1)
    if rest:
        raise UserError(f"{trainer.num_updates} updates do not divide by {checkpoints - 1}; change total_steps or checkpoints")
    replicas = trainer.init(*runner.replica_inputs(run))
    params = [jax.device_get(replicas.state.learner.params)]
    for _ in range(checkpoints - 1):
        replicas, _ = trainer.run(replicas, chunk)
        params.append(jax.device_get(replicas.state.learner.params))
    if (np.asarray(replicas.diverged_at) >= 0).any():
        raise UserError("a seed of self-play diverged; lower algo.learning_rate")
    steps = [index * chunk * trainer.steps_per_update for index in range(checkpoints)]
    return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *params), steps


def play_battles(run: Settings, params: Any, battles: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rates [S, K, K] of every checkpoint against every one of its seed, and rates [S, K] against the script; both sides sample
    their actions.

    The battles of a seed start alike in every entry, those of different seeds do not.
    """
    # the left team alone as agents; with equal teams the policies of self-play fit
    left = run.env.one_team
    env = against(run.env, Opponent.of(run.algorithm, run.env, run.config))
    keys = jax.random.split(suite_key(), run.run.seeds)

    def play(own: Any, other: Any, key: jax.Array) -> dict[str, jax.Array]:
        policy = LearnedPolicy(run.algorithm, env, run.config, own, greedy=False)
        env_params = run.env_params.replace(opponent=other)
        metrics = evaluation.play(env, env_params, policy, policy.initial_carry(), key, battles, evaluation.MAX_STEPS)
        return {name: metrics[name].mean() for name in OUTCOMES}

    def each_other(params: Any, key: jax.Array) -> dict[str, jax.Array]:
        return jax.lax.map(lambda own: jax.vmap(play, in_axes=(None, 0, None))(own, params, key), params)

    def script(params: Any, key: jax.Array) -> dict[str, jax.Array]:
        evaluator = Evaluator(left, battles)
        metrics = evaluator.learned(run.algorithm, run.config, params, run.env_params, key, greedy=False)
        return {name: metrics[name].mean(-1) for name in OUTCOMES}

    def rates(opponents: Any) -> dict[str, Any]:
        """Seed by seed, as lists."""
        by_seed = jax.jit(lambda seeds: jax.lax.map(lambda seed: opponents(*seed), seeds))((params, keys))
        return {name: np.round(np.asarray(rate, float), 6).tolist() for name, rate in by_seed.items()}

    return rates(each_other), rates(script)
