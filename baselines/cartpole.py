"""PPO on gymnax's CartPole, beside the loop of PureJaxRL at the same settings.

    python baselines/cartpole.py              # all of baselines/results/cartpole.md
    python baselines/cartpole.py speed        # one part: returns or speed

Every cell is kept in ``baselines/results/cartpole/`` and not computed again; delete its file to compute it anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import marljax
from marljax.algos import ppo
from marljax.baselines.harness import tables, versus
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.harness.versus import Plan, Side
from marljax.baselines.rivals import ppo as rival

RESULTS = Path(__file__).parent / "results"
NAME = "CartPole-v1"
OURS, THEIRS = "marljax", "PureJaxRL's loop"
PLAN = Plan(total_steps=500_000, seeds=10, updates=100)
SOLVED = 475.0  # of 500


def their_config(plan: Plan) -> rival.Config:
    return rival.Config(total_timesteps=plan.total_steps)


def our_config(plan: Plan) -> ppo.Config:
    """PureJaxRL's settings in our terms."""
    theirs = their_config(plan)
    return ppo.Config(
        total_steps=theirs.num_updates * theirs.steps_per_update,
        num_envs=theirs.num_envs,
        rollout_length=theirs.num_steps,
        num_epochs=theirs.update_epochs,
        num_minibatches=theirs.num_minibatches,
        hidden=(theirs.hidden, theirs.hidden),
        activation="tanh",
        learning_rate=theirs.lr,
        max_grad_norm=theirs.max_grad_norm,
        gamma=theirs.gamma,
        gae_lambda=theirs.gae_lambda,
        clip_eps=theirs.clip_eps,
        entropy_coef=theirs.ent_coef,
        value_coef=theirs.vf_coef,
        normalize_values=False,
        clip_values=True,
        clip_actor_critic_separately=False,
    )


def sides(plan: Plan) -> dict[str, Side]:
    """Both loops by title."""
    import gymnax

    env, _ = gymnax.make(NAME)
    return {
        OURS: versus.ours(ppo, marljax.make(f"gymnax/{NAME}"), our_config(plan)),
        THEIRS: versus.theirs(rival, env, their_config(plan)),
    }


def about(plan: Plan) -> dict[str, Any]:
    """What figures depend on."""
    configs = {"config": dataclasses.asdict(their_config(plan)), "ours": dataclasses.asdict(our_config(plan))}
    return {"env": NAME, "plan": dataclasses.asdict(plan), **configs}


def returns_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Returns of both, and how many seeds solve the task."""
    rows, missing = [], []
    for title in (OURS, THEIRS):

        def found(title: str = title) -> Figures:
            return versus.returns(plan, sides(plan)[title], marljax.make(f"gymnax/{NAME}"))

        done = cells.get(f"returns {title}", about(plan), found)
        if done is None:
            missing.append(title)
            continue
        solved = np.sum(np.asarray(done["greedy"]["mean"]) >= SOLVED)
        rows.append([title, *(mean_interval(done[kind]) for kind in ("training", "greedy")), f"{solved} of {plan.seeds}"])
    header = ["training", "return, end of training", "return, greedy", f"seeds ≥ {SOLVED:g}"]
    return tables.with_missing(missing, markdown_table(header, rows))


def speed_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Training steps per second of both, measured in turns in one process."""
    done = cells.get("speed", about(plan), lambda: versus.measure_speed(plan, sides(plan)))
    return versus.speed_table(done, {OURS: OURS, THEIRS: THEIRS}, THEIRS)


PARTS = {"returns": returns_table, "speed": speed_table}

PAGE_TEXT = """# CartPole: results

Made by `python baselines/cartpole.py`; {versions}.

gymnax's `{name}` with PPO at PureJaxRL's settings: {envs} environments × {length} steps, {steps:,} steps, learning rate {rate:g}
annealed to 0, 4 epochs of 4 minibatches, γ 0.99, λ 0.95, clip 0.2 (values too), entropy 0.01, value 0.5, gradient norm 0.5, two
tanh layers of {hidden} each for actor and critic. *PureJaxRL's loop*: the algorithm of its script, written anew
(`baselines/rivals/ppo.py`); the time limit of 500 steps counts as an end there, ours is bootstrapped.

## Returns

{seeds} seeds (0–{last_seed}) in one program each. *End of training*: the sampled policy's episodes in the last {tail:.0%} of
training. *Greedy*: the final parameters on {episodes:,} frozen episodes, the same for both. ±: 95 % t interval over seeds.

{returns}

## Speed

Whole updates, one seed, both in turns in one process; medians. All steps are counted, also those of ours that only
restart an episode.

{speed}
"""


def page(sections: dict[str, str], plan: Plan = PLAN) -> str:
    """``baselines/results/cartpole.md``."""
    config = their_config(plan)
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        name=NAME,
        envs=config.num_envs,
        length=config.num_steps,
        steps=plan.total_steps,
        rate=config.lr,
        hidden=config.hidden,
        seeds=plan.seeds,
        last_seed=plan.seeds - 1,
        tail=plan.tail,
        episodes=plan.episodes,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "cartpole", PARTS, page, cold=("speed",))
