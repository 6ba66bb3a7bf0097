"""Training through the adapter beside JaxMARL's own way of training: MPE simple_spread with IPPO at JaxMARL's settings.

    python baselines/jaxmarl_compare.py              # all of baselines/results/jaxmarl.md
    python baselines/jaxmarl_compare.py speed        # one part: returns or speed

Every cell is kept in ``baselines/results/jaxmarl/`` and not computed again; delete its file to compute it anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import marljax
from marljax.algos import ippo
from marljax.baselines.harness import tables, versus
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.harness.versus import Plan, Side, difference
from marljax.baselines.rivals import ippo as rival
from marljax.core.environment import Environment

RESULTS = Path(__file__).parent / "results"
NAME = "MPE_simple_spread_v3"
AGENTS = 3
PLAN = Plan()
OURS, TERMINAL, THEIRS = "marljax, through the adapter", "marljax, the limit as an end", "JaxMARL's loop"


def our_config(plan: Plan) -> ippo.Config:
    """JaxMARL's settings in our terms."""
    theirs = their_config(plan)
    return ippo.Config(
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


def their_config(plan: Plan) -> rival.Config:
    return rival.Config(total_timesteps=plan.total_steps)


def their_env(name: str = NAME) -> Any:
    """One of JaxMARL's environments in its ``LogWrapper``."""
    from marljax.wrappers.jaxmarl_families import quiet

    with quiet():
        import jaxmarl
        from jaxmarl.wrappers.baselines import LogWrapper

        return LogWrapper(jaxmarl.make(name))


def our_env(limit_ends: bool = False) -> Environment:
    """JaxMARL's environment as ours; with ``limit_ends``, the default, its step limit terminates, as JaxMARL's loop takes it."""
    return marljax.make(f"jaxmarl/{NAME}", limit="end" if limit_ends else "truncate")


def sides(plan: Plan) -> dict[str, Side]:
    """The trainings by title."""
    config = our_config(plan)
    return {
        OURS: versus.ours(ippo, our_env(), config),
        TERMINAL: versus.ours(ippo, our_env(limit_ends=True), config),
        THEIRS: versus.theirs(rival, their_env(), their_config(plan)),
    }


def returns_table(cells: Cells, plan: Plan = PLAN) -> str:
    """The trainings and their differences."""
    about = {
        "env": NAME,
        "config": dataclasses.asdict(their_config(plan)),
        "seeds": plan.seeds,
        "tail": plan.tail,
        "episodes": plan.episodes,
    }

    def found(title: str) -> Figures:
        return versus.returns(plan, sides(plan)[title], our_env())

    mine = about | {"ours": dataclasses.asdict(our_config(plan))}
    done = {
        OURS: cells.get("returns ours", mine, lambda: found(OURS)),
        TERMINAL: cells.get("returns ours limit ends", mine, lambda: found(TERMINAL)),
        THEIRS: cells.get("returns theirs", about, lambda: found(THEIRS)),
    }
    rows = [
        [name, *(mean_interval(own[kind], scale=scale) for kind in ("training", "greedy") for scale in (1, AGENTS))]
        for name, own in done.items()
        if own is not None
    ]
    header = ["training", "return, end of training", f"× {AGENTS}", "return, greedy", f"× {AGENTS}"]
    missing = "; ".join(name for name, own in done.items() if own is None)
    lines = [f"Not computed yet: {missing}."] if missing else []
    for name, own in done.items():
        if own is not None:
            lines.append(f"{name}, end of training by seed: {', '.join(f'{value:.1f}' for value in own['training']['mean'])}.")
    theirs = done.pop(THEIRS)
    for name, own in done.items():
        if own is not None and theirs is not None:
            gaps = [difference(own[kind], theirs[kind]) for kind in ("training", "greedy")]
            lines.append(f"{name} − {THEIRS}: {gaps[0]} at the end of training, {gaps[1]} greedy.")
    return "\n\n".join([markdown_table(header, rows), *lines])


def speed_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Training steps per second of both, measured in turns in one process."""
    about = {
        "env": NAME,
        "config": dataclasses.asdict(their_config(plan)),
        "updates": plan.updates,
        "repetitions": plan.repetitions,
    }
    done = cells.get("speed", about, lambda: measure(plan))
    return versus.speed_table(done, {"ours": OURS, "theirs": THEIRS}, "theirs")


def measure(plan: Plan) -> Figures:
    """Both in one process."""
    both = sides(plan)
    return versus.measure_speed(plan, {"ours": both[OURS], "theirs": both[THEIRS]})


PARTS = {"returns": returns_table, "speed": speed_table}

PAGE_TEXT = """# JaxMARL's environments: results

Made by `python baselines/jaxmarl_compare.py`; {versions}.

MPE simple_spread (`jaxmarl/{name}`, three agents, 26 steps: JaxMARL tests its limit of 25 before it counts the step) with
IPPO at JaxMARL's settings: {envs} environments × {length} steps, {steps:,} steps, learning rate {rate:g} annealed to 0, 4 epochs
of 4 minibatches, γ 0.99, λ 0.95, clip 0.2 (values too), entropy 0.01, value 0.5, gradient norm 0.5, two tanh layers of {hidden}
(its configuration file has also had ten times as many steps at a tenth of the learning rate).
*JaxMARL's loop*: the algorithm of its script, written anew against its API (`baselines/rivals/ippo.py`). *Through the
adapter*: `algos/ippo.py` on `marljax.make("jaxmarl/{name}", limit="truncate")`; the time limit is bootstrapped,
and one step in 27 restarts an episode. *The limit as an end*: the same with `limit="end"`, the adapter's default: nothing is
bootstrapped there, which is how JaxMARL's loop takes it.

## Returns

Sum of an agent's rewards over an episode, mean over agents; JaxMARL's log shows {agents} times that. {seeds} seeds
(0–{last_seed}) in one program each. *End of training*: the sampled policy's episodes in the last {tail:.0%} of training.
*Greedy*: the final parameters on {episodes:,} frozen episodes, the same for both. ±: 95 % t interval over seeds.

{returns}

## Speed

Whole updates, one seed, both in turns in one process; medians. Every step counts, ours that restart an episode too.

{speed}
"""


def page(sections: dict[str, str], plan: Plan = PLAN) -> str:
    """``baselines/results/jaxmarl.md``."""
    config = their_config(plan)
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        name=NAME,
        agents=AGENTS,
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
    tables.main(__doc__, RESULTS / "jaxmarl", PARTS, page, cold=("speed",))
