"""PPO on gymnax's CartPole, compared with PureJaxRL's loop at the same settings."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import marljax
from marljax.algos import ppo
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Loop, Plan
from marljax.baselines.harness.result_cache import Metrics, ResultCache
from marljax.baselines.harness.tables import Page, Section, mean_interval, partial_table
from marljax.baselines.rivals import ppo as purejaxrl

NAME = "CartPole-v1"
OURS, THEIRS = "marljax", "PureJaxRL's loop"
PLAN = Plan(total_steps=500_000, seeds=10, updates=100)
SOLVED = 475.0  # of 500


def configs(plan: Plan) -> tuple[ppo.Config, purejaxrl.Config]:
    """Ours and theirs."""
    theirs = purejaxrl.Config(total_timesteps=plan.total_steps)
    return ppo.Config(**loops.ppo_settings(theirs)), theirs


def both_loops(plan: Plan) -> Mapping[str, Loop]:
    """Both loops by title."""
    import gymnax

    ours, theirs = configs(plan)
    return {
        OURS: loops.our_loop(ppo, marljax.make(f"gymnax/{NAME}"), ours),
        THEIRS: loops.their_loop(purejaxrl, gymnax.make(NAME)[0], theirs),
    }


def about(plan: Plan) -> dict[str, Any]:
    ours, theirs = (dataclasses.asdict(config) for config in configs(plan))
    return {"env": NAME, "plan": dataclasses.asdict(plan), "config": theirs, "ours": ours}


def returns_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of both loops, and how many seeds solve the task."""
    rows: list[list[str] | str] = []

    def measure(title: str) -> Metrics:
        return loops.measure_returns(plan, both_loops(plan)[title], marljax.make(f"gymnax/{NAME}"))

    for title in (OURS, THEIRS):
        metrics = cache.get(f"returns {title}", about(plan), functools.partial(measure, title))
        if metrics is None:
            rows.append(title)
        else:
            solved = np.sum(np.asarray(metrics["greedy"]["mean"]) >= SOLVED)
            rows.append([title, *(mean_interval(metrics[kind]) for kind in loops.KINDS), f"{solved} of {plan.seeds}"])
    return partial_table(["training", "return, end of training", "return, greedy", f"seeds ≥ {SOLVED:g}"], rows)


def speed_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Training steps per second of both loops."""
    metrics = cache.get("speed", about(plan), lambda: loops.measure_speed(plan, both_loops(plan)))
    return loops.speed_table(metrics, {OURS: OURS, THEIRS: THEIRS})


_, _THEIRS = configs(PLAN)
PAGE = Page(
    name="cartpole",
    title="CartPole: results",
    intro=f"""gymnax's `{NAME}` with PPO at PureJaxRL's settings: {_THEIRS.num_envs} environments × {_THEIRS.num_steps} steps,
{PLAN.total_steps:,} steps, learning rate {_THEIRS.lr:g} annealed to 0, 4 epochs of 4 minibatches, γ 0.99, λ 0.95, clip 0.2
(values too), entropy 0.01, value 0.5, gradient norm 0.5, two tanh layers of {_THEIRS.hidden} each for actor and critic.
*PureJaxRL's loop*: the algorithm of its script, reimplemented (`baselines/rivals/ppo.py`); the time limit of 500 steps is
terminal there, ours is bootstrapped.""",
    sections=(
        Section("Returns", PLAN.returns_text("sampled"), {"returns": returns_table}),
        Section("Speed", loops.SPEED_TEXT, {"speed": speed_table}),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
