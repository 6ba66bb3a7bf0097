"""PPO on gymnax's CartPole, compared with PureJaxRL's loop at the same settings."""

from importlib.metadata import version

import gymnax
import numpy as np

import marljax
from marljax.algos import ppo
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Comparison, Plan
from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, policy_table
from marljax.baselines.rivals import ppo as purejaxrl
from marljax.core.environment import Environment

NAME = "CartPole-v1"
LOOPS = {"ours": "marljax", "theirs": "PureJaxRL's loop"}
PLAN = Plan(total_steps=500_000, seeds=10, updates=100)
SOLVED = 475.0  # of 500


def configs(plan: Plan) -> tuple[ppo.Config, purejaxrl.Config]:
    """Ours and theirs."""
    theirs = purejaxrl.Config(total_timesteps=plan.total_steps)
    return ppo.Config(**loops.ppo_settings(theirs)), theirs


def our_env() -> Environment:
    return marljax.make(f"gymnax/{NAME}")


def comparison(plan: Plan) -> Comparison:
    """Both loops at the same settings."""
    ours, theirs = configs(plan)
    return Comparison(
        plan,
        {"env": NAME, "env_version": our_env().version, "gymnax": version("gymnax")},
        {"ours": ours, "theirs": theirs},
        {
            "ours": lambda config: loops.our_loop(ppo, our_env(), config),
            "theirs": lambda config: loops.their_loop(purejaxrl, gymnax.make(NAME)[0], config),
        },
        our_env,
    )


def returns_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of both loops, and how many seeds solve the task."""
    columns = {
        **loops.RETURN_COLUMNS,
        f"seeds ≥ {SOLVED:g}": lambda metrics: f"{np.sum(np.array(metrics['greedy']['mean']) >= SOLVED)} of {plan.seeds}",
    }
    compared = comparison(plan)
    results = [(title, compared.returns(cache, "returns", loop)) for loop, title in LOOPS.items()]
    return policy_table("training", columns, results)


def speed_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Training steps per second of both loops."""
    return comparison(plan).speed_table(cache, "speed", LOOPS)


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
        Section("Speed", PLAN.speed_text, {"speed": speed_table}),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
