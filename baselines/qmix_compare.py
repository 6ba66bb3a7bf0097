"""QMIX and VDN beside JaxMARL's recurrent loops: MPE simple_spread at JaxMARL's settings.

    python baselines/qmix_compare.py              # all of baselines/results/qmix.md
    python baselines/qmix_compare.py speed        # one part: returns or speed

Every cell is kept in ``baselines/results/qmix/`` and not computed again; delete its file to compute it anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import marljax
from marljax.algos import qmix
from marljax.baselines.harness import tables, versus
from marljax.baselines.harness.result_cache import Cells, Figures
from marljax.baselines.harness.tables import markdown_table, mean_interval
from marljax.baselines.harness.versus import Plan, Side
from marljax.baselines.jaxmarl_compare import their_env
from marljax.baselines.rivals import qmix as rival
from marljax.core.environment import Environment

RESULTS = Path(__file__).parent / "results"
NAME = "MPE_simple_spread_v3"
AGENTS = 3
PLAN = Plan(updates=50)
MIXERS = {"qmix": "QMIX", "vdn": "VDN"}


def their_config(plan: Plan, mixer: str) -> rival.Config:
    return rival.Config(mixer=mixer, total_timesteps=plan.total_steps)


def our_config(plan: Plan, mixer: str) -> qmix.Config:
    """JaxMARL's settings in our terms; the reward of our team is the mean over its agents, theirs the sum."""
    theirs = their_config(plan, mixer)
    return qmix.Config(
        mixer=mixer,
        core="gru",
        gradient_steps=1,
        td_lambda=0.0,
        mixer_slope=0.0,
        total_steps=theirs.num_updates * theirs.steps_per_update,
        num_envs=theirs.num_envs,
        rollout_length=theirs.num_steps,
        batch_size=theirs.buffer_batch_size,
        learning_starts=theirs.learning_starts,
        buffer_size=theirs.buffer_size * theirs.num_steps,
        hidden=(theirs.hidden, theirs.hidden),
        mixer_width=theirs.mixer_embedding,
        hypernet_width=theirs.hyper_hidden,
        mixer_scale=theirs.mixer_init_scale,
        epsilon_start=theirs.eps_start,
        epsilon_end=theirs.eps_finish,
        epsilon_decay=theirs.eps_decay,
        gamma=theirs.gamma,
        reward_scale=AGENTS,
        target_interval=theirs.target_update_interval,
        optimizer="radam",
        learning_rate=theirs.lr,
        adam_eps=1e-8,
        max_grad_norm=theirs.max_grad_norm,
    )


def our_env() -> Environment:
    """JaxMARL's environment as ours, as it was when the figures were made: the value of a final observation is bootstrapped."""
    return marljax.make(f"jaxmarl/{NAME}", limit="truncate")


def sides(plan: Plan, mixer: str) -> dict[str, Side]:
    """Both loops by name."""
    return {
        "ours": versus.ours(qmix, our_env(), our_config(plan, mixer)),
        "theirs": versus.theirs(rival, their_env(), their_config(plan, mixer)),
    }


def titles(mixer: str) -> dict[str, str]:
    return {"ours": f"{MIXERS[mixer]}, marljax", "theirs": f"{MIXERS[mixer]}, JaxMARL's loop"}


def about(plan: Plan, mixer: str) -> dict[str, Any]:
    """What figures depend on."""
    configs = {"theirs": dataclasses.asdict(their_config(plan, mixer)), "ours": dataclasses.asdict(our_config(plan, mixer))}
    return {"env": NAME, "plan": dataclasses.asdict(plan), **configs}


def returns_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Returns of both, and their differences."""
    rows, lines, missing = [], [], []
    for mixer in MIXERS:
        found: dict[str, Figures] = {}
        for name, title in titles(mixer).items():

            def compute(mixer: str = mixer, name: str = name) -> Figures:
                return versus.returns(plan, sides(plan, mixer)[name], our_env())

            done = cells.get(f"returns {mixer} {name}", about(plan, mixer), compute)
            if done is None:
                missing.append(title)
                continue
            found[name] = done
            rows.append([title, *(mean_interval(done[kind]) for kind in ("training", "greedy"))])
        if len(found) == len(titles(mixer)):
            gaps = [versus.difference(found["ours"][kind], found["theirs"][kind]) for kind in ("training", "greedy")]
            lines.append(f"{MIXERS[mixer]}, ours − theirs: {gaps[0]} at the end of training, {gaps[1]} greedy.")
    header = ["training", "return, end of training", "return, greedy"]
    return tables.with_missing(missing, markdown_table(header, rows), *lines)


def speed_table(cells: Cells, plan: Plan = PLAN) -> str:
    """Training steps per second of both, measured in turns in one process."""
    parts = []
    for mixer in MIXERS:

        def compute(mixer: str = mixer) -> Figures:
            return versus.measure_speed(plan, sides(plan, mixer))

        parts.append(versus.speed_table(cells.get(f"speed {mixer}", about(plan, mixer), compute), titles(mixer), "theirs"))
    return "\n\n".join(parts)


PARTS = {"returns": returns_table, "speed": speed_table}

PAGE_TEXT = """# QMIX and VDN: results

Made by `python baselines/qmix_compare.py`; {versions}.

MPE simple_spread (`jaxmarl/{name}`, three agents, 26 steps) at the settings of JaxMARL's `qmix_rnn` and `vdn_rnn`: {envs}
environments × {length} steps between gradient steps on {batch} rollouts, {steps:,} steps, RAdam at {rate:g} annealed to 0,
γ {gamma:g}, ε from 1 to 0.05 over a tenth of training, a GRU of {hidden}. *JaxMARL's loop*: the algorithm of its scripts, written
anew against its API (`baselines/rivals/qmix.py`). Four things differ: our mixing network begins near a sum of the agents'
values, theirs near 0; ours learns from the last step of a rollout too; ours bootstraps the value of a final observation
(`limit="truncate"`), theirs takes the step limit as an end; and replayed rollouts of ours begin with the memory that
the GRU had then, theirs with none, because each begins with an episode.

## Returns

Sum of an agent's rewards over an episode, mean over agents; JaxMARL's log shows {agents} times that. {seeds} seeds
(0–{last_seed}) in one program each. *End of training*: the exploring policy's episodes in the last {tail:.0%} of training.
*Greedy*: the final parameters on {episodes:,} frozen episodes, the same for both. ±: 95 % t interval over seeds.

{returns}

## Speed

Whole updates, one seed, both in turns in one process; medians. All steps are counted, also those of ours that only
restart an episode.

{speed}
"""


def page(sections: dict[str, str], plan: Plan = PLAN) -> str:
    """``baselines/results/qmix.md``."""
    config = their_config(plan, "qmix")
    return PAGE_TEXT.format(
        versions=tables.describe_versions(),
        name=NAME,
        agents=AGENTS,
        envs=config.num_envs,
        length=config.num_steps,
        batch=config.buffer_batch_size,
        steps=plan.total_steps,
        rate=config.lr,
        gamma=config.gamma,
        hidden=config.hidden,
        seeds=plan.seeds,
        last_seed=plan.seeds - 1,
        tail=plan.tail,
        episodes=plan.episodes,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "qmix", PARTS, page, cold=("speed",))
