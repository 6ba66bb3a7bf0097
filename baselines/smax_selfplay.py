"""Self-play on ``smax``: one policy learns to lead both teams; its checkpoints fight each other.

``python baselines/smax.py selfplay`` calls it. The left team is a checkpoint's policy, and so are the enemies, who see the board
mirrored. Checkpoints are parameters, hence data: all battles of the matrix are one compiled program.

Axis letters: S seeds, K checkpoints (the first before any training).
"""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

import marljax
from marljax import driver, evaluate, parallel, stats
from marljax.baselines import tables
from marljax.baselines.tables import Cells, Figures, markdown_table
from marljax.envs.smax import Opponent, Smax
from marljax.errors import UserError
from marljax.evaluate import Evaluator, LearnedPolicy
from marljax.settings import Settings
from marljax.train import Trainer

CONFIDENCE = 0.99  # of the intervals that decide whether a rate differs from one half
RESULTS_OF_A_BATTLE = ("won", "lost")  # by the left team; a draw is neither


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained and how much is played."""

    scenario: str = "3m"
    words: tuple[str, ...] = ("algo.total_steps=409_600",)  # changes to the tuned settings of IPPO
    seeds: int = 3
    checkpoints: int = 6  # K, evenly spaced
    battles: int = 512  # for each entry of the matrix and seed

    @property
    def settings(self) -> Settings:
        """Of the training; raises ``UserError`` for a scenario whose teams differ: one policy cannot lead both."""
        fixed = (f"env.scenario={self.scenario}", "env.mode=self_play", f"seeds={self.seeds}")
        run = marljax.tuned("ippo", "smax", *fixed, *self.words)
        battle = cast(Smax, run.env).battle
        if battle != battle.mirrored:
            raise UserError(f"the teams of {self.scenario} differ; self-play of one policy takes a scenario of equal teams")
        return run


def cell(cells: Cells, plan: Plan) -> Figures | None:
    """The figures of ``measure``, kept."""
    run = plan.settings
    about = tables.matters(run) | {"checkpoints": plan.checkpoints, "battles": plan.battles}
    return cells.get(f"selfplay {plan.scenario}", about, lambda: measure(run, plan))


def measure(run: Settings, plan: Plan) -> Figures:
    """Rates of battles won and lost by the left team: ``learned`` [S, K, K] against checkpoints (rows: the left team),
    ``script`` [S, K] against the scripted enemy; and the ``steps`` [K] that each checkpoint was trained for."""
    params, steps = train(run, plan.checkpoints)
    return {
        "checkpoints": {"steps": steps},
        "learned": rounded(against_each_other(run, params, plan.battles)),
        "script": rounded(against_the_script(run, params, plan.battles)),
    }


def rounded(rates: dict[str, Any]) -> dict[str, Any]:
    """As lists, to six places."""
    return {name: np.round(np.asarray(rates[name], float), 6).tolist() for name in RESULTS_OF_A_BATTLE}


def train(run: Settings, checkpoints: int) -> tuple[Any, list[int]]:
    """Parameters [S, K, …] on the host, and the steps [K] after which they were taken."""
    trainer = Trainer(run.algorithm, run.env, run.config, parallel.make_mesh())
    members = trainer.init(driver.member_keys(run), run.env_params)
    chunk, rest = divmod(trainer.num_updates, checkpoints - 1)
    if rest:
        raise UserError(f"{trainer.num_updates} updates do not divide by {checkpoints - 1} for {checkpoints} checkpoints")
    kept = [jax.device_get(members.state.learner.params)]
    for _ in range(checkpoints - 1):
        members, _ = trainer.run(members, chunk)
        kept.append(jax.device_get(members.state.learner.params))
    if (np.asarray(members.diverged_at) >= 0).any():
        raise UserError("a seed diverged in self-play; choose a lower algo.learning_rate")
    steps = [index * chunk * trainer.steps_per_update for index in range(checkpoints)]
    return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *kept), steps


def against_each_other(run: Settings, params: Any, battles: int) -> dict[str, jax.Array]:
    """Rates [S, K, K] of every checkpoint of a seed against every one of the same seed, sampled actions on both sides.

    The battles of a seed begin alike in every entry, those of different seeds differ.
    """
    left = cast(Smax, as_left_team(run))
    env = dataclasses.replace(left, mode="learned", opponent=Opponent.of(run.algorithm, left, run.config))

    def play(own: Any, other: Any, key: jax.Array) -> dict[str, jax.Array]:
        policy = LearnedPolicy(run.algorithm, env, run.config, own, greedy=False)
        numbers = run.env_params.replace(opponent=other)
        ended = evaluate.play(env, numbers, policy, policy.initial_carry(), key, battles, evaluate.MAX_STEPS)
        return {name: ended[name].mean() for name in RESULTS_OF_A_BATTLE}

    def of_seed(params_and_key: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
        params, key = params_and_key
        return jax.lax.map(lambda own: jax.vmap(lambda other: play(own, other, key))(params), params)

    @jax.jit
    def of_all(params: Any, keys: jax.Array) -> dict[str, jax.Array]:
        return jax.lax.map(of_seed, (params, keys))

    return of_all(params, battle_keys(run))


def against_the_script(run: Settings, params: Any, battles: int) -> dict[str, list[jax.Array]]:
    """Rates [S, K], on the same battles."""
    evaluator = Evaluator(as_left_team(run), battles)
    rates: dict[str, list[jax.Array]] = {name: [] for name in RESULTS_OF_A_BATTLE}
    for seed, key in enumerate(battle_keys(run)):
        own = jax.tree.map(lambda leaf, seed=seed: leaf[seed], params)
        ended = evaluator.learned(run.algorithm, run.config, own, run.env_params, key, greedy=False)
        for name, kept in rates.items():
            kept.append(ended[name].mean(axis=-1))
    return rates


def as_left_team(run: Settings) -> Smax:
    """The battle with the left team alone as agents, where a policy of equal teams' self-play fits."""
    return dataclasses.replace(cast(Smax, run.env), mode="scripted")


def battle_keys(run: Settings) -> jax.Array:
    """[S] what fixes the battles of each seed."""
    return jax.random.split(tables.suite_key(), run.run.seeds)


# --- the page ---------------------------------------------------------------------------------------------------------------

PLAN = Plan()


def section(cells: Cells, plan: Plan = PLAN) -> str:
    """The matrix and what it says."""
    figures = cell(cells, plan)
    if figures is None:
        return f"Not computed yet: self-play {plan.scenario}."
    won, lost = (np.array(figures["learned"][name]) for name in RESULTS_OF_A_BATTLE)  # [S, K, K]
    scripted = (np.array(figures["script"][name])[..., None] for name in RESULTS_OF_A_BATTLE)  # [S, K, 1]
    shown = [np.concatenate(both, axis=-1).mean(0) for both in zip((won, lost), scripted, strict=True)]  # [K, K + 1]
    names = [f"{steps / 1e3:,.0f}k" for steps in figures["checkpoints"]["steps"]]
    rows = [[name, *map(entry, *rates)] for name, *rates in zip(names, *shown, strict=True)]
    text = markdown_table(["trained for (steps)", *names, "scripted enemy"], rows)
    return f"{text}\n\n{verdict(won, lost, plan.battles)}"


def entry(won: float, lost: float) -> str:
    """In per cent."""
    return f"{100 * won:.0f} ({100 * lost:.0f})"


def verdict(won: np.ndarray, lost: np.ndarray, battles: int) -> str:
    """Whether no policy beats itself, whether sides matter, and whether later checkpoints beat earlier ones; rates [S, K, K]."""
    size = won.shape[-1]
    wins, losses = (np.rint(rates * battles).sum(0).astype(int) for rates in (won, lost))
    alike = sum(beats(wins[i, i], losses[i, i]) == 0 for i in range(size))
    pairs = [(later, earlier) for later in range(size) for earlier in range(later)]
    both_sides = wins + losses.T  # [K, K] won by the row's policy, on the left and on the right
    stronger = sum(beats(both_sides[pair], both_sides[pair[::-1]]) > 0 for pair in pairs)
    turned = np.abs(wins - losses.T)[np.triu_indices(size, 1)].max() / (battles * len(won))
    last = ", ".join(f"{100 * rate:.0f}" for rate in won[:, -1, 0])
    return (
        f"Against itself, a checkpoint's wins and losses are even ({CONFIDENCE:.0%} interval) for {alike} of {size}. "
        f"Later checkpoints beat earlier ones, both sides counted, in {stronger} of {len(pairs)} pairs. "
        f"Changing sides changes a policy's rate by at most {100 * turned:.1f} points. "
        f"The last against the first, by seed: {last} % won."
    )


def beats(wins: int, losses: int) -> int:
    """1 where more than half of the decided battles were won, beyond chance; −1 where fewer; 0 where neither is sure."""
    share = stats.wilson(int(wins), int(wins + losses), CONFIDENCE)
    return int(share.low > 0.5) - int(share.high < 0.5)
