"""PQN with VDN, compared with JaxMARL's recurrent loop at JaxMARL's settings, and with its own defaults."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import marljax
from marljax.algos import pqn
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Comparison, Plan
from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, policy_table
from marljax.baselines.jaxmarl_compare import AGENTS, NAME, our_env, their_env
from marljax.baselines.rivals import pqn as jaxmarl_pqn
from marljax.baselines.rivals.rnn_ppo import smax_env
from marljax.core.environment import Environment

PLAN = Plan(total_steps=500_000, updates=2, repetitions=3)
LOOPS = {"defaults": "marljax, defaults", "ours": "marljax, JaxMARL's settings", "theirs": "JaxMARL's loop"}


class Problem(NamedTuple):
    """An environment in both libraries, and JaxMARL's settings for it."""

    make: Callable[[], Environment]
    make_theirs: Callable[[], Any]
    settings: Mapping[str, Any]
    reward_factor: float  # theirs, the team's, over ours, the mean over agents


def smax(scenario: str) -> Problem:
    """A battle of SMAX."""
    return Problem(lambda: marljax.make("smax", scenario=scenario), lambda: smax_env(scenario), jaxmarl_pqn.SMAX, 1.0)


PROBLEMS = {"simple_spread": Problem(our_env, their_env, {}, AGENTS), "3m": smax("3m"), "2s3z": smax("2s3z")}


def configs(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Those of all ``LOOPS``."""
    theirs = jaxmarl_pqn.Config(total_timesteps=plan.total_steps, **problem.settings)
    total_steps = theirs.num_updates * theirs.steps_per_update
    ours = pqn.Config(
        total_steps=total_steps,
        num_envs=theirs.num_envs,
        rollout_length=theirs.num_steps,
        epsilon_start=theirs.eps_start,
        epsilon_end=theirs.eps_finish,
        epsilon_decay=theirs.eps_decay,
        hidden=(theirs.hidden,) * (theirs.num_layers + 1),
        normalize_observations=theirs.norm_inputs,
        gamma=theirs.gamma,
        td_lambda=theirs.td_lambda,
        reward_scale=theirs.reward_scale * problem.reward_factor,
        num_epochs=theirs.num_epochs,
        num_minibatches=theirs.num_minibatches,
        learning_rate=theirs.lr,
        anneal_learning_rate=theirs.lr_decay,
        max_grad_norm=theirs.max_grad_norm,
    )
    return {"defaults": pqn.Config(total_steps=total_steps), "ours": ours, "theirs": theirs}


def comparison(name: str, plan: Plan) -> Comparison:
    """All trainings on a problem."""
    problem = PROBLEMS[name]
    found = configs(problem, plan)
    own = {loop: lambda loop=loop: loops.our_loop(pqn, problem.make(), found[loop]) for loop in ("defaults", "ours")}
    return Comparison(
        plan,
        {"env": name, "plan": dataclasses.asdict(plan)} | {loop: dataclasses.asdict(config) for loop, config in found.items()},
        {**own, "theirs": lambda: loops.their_loop(jaxmarl_pqn, problem.make_theirs(), found["theirs"])},
        problem.make,
    )


def returns_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of all loops, and the differences to JaxMARL's."""
    compared = comparison("simple_spread", plan)
    results = {
        name: loops.train_seeds(cache, plan, f"simple_spread {name}", compared.about, make, compared.make_env())
        for name, make in compared.loops.items()
    }
    theirs = results["theirs"]
    lines = [
        loops.difference_line(f"{LOOPS[name]} − {LOOPS['theirs']}", ours, theirs)
        for name in ("defaults", "ours")
        if (ours := results[name]) and theirs
    ]
    return policy_table("training", loops.RETURN_COLUMNS, [(LOOPS[name], result) for name, result in results.items()], *lines)


def speed_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Training steps per second of both loops at JaxMARL's settings."""
    parts = []
    for problem in PROBLEMS:
        titles = {name: f"{problem}, {LOOPS[name]}" for name in ("ours", "theirs")}
        parts.append(comparison(problem, plan).speed_table(cache, f"speed {problem}", titles))
    return "\n\n".join(parts)


_MPE, _SMAX = jaxmarl_pqn.Config(), jaxmarl_pqn.Config(**jaxmarl_pqn.SMAX)
PAGE = Page(
    name="pqn",
    command="pqn_compare",
    title="PQN: results",
    intro=f"""*JaxMARL's loop*: the algorithm of its script `pqn_vdn_rnn`, PQN with VDN and a GRU, reimplemented on its API
(`baselines/rivals/pqn.py`) with its settings for MPE ({_MPE.num_envs} environments × {_MPE.num_steps} steps, layers of
{_MPE.hidden}, {_MPE.num_epochs} epochs of {_MPE.num_minibatches} minibatches, RAdam at {_MPE.lr:g}, γ {_MPE.gamma:g}, λ
{_MPE.td_lambda:g}) and SMAX ({_SMAX.num_envs} × {_SMAX.num_steps}, layers of {_SMAX.hidden} with batch normalisation, γ
{_SMAX.gamma:g}, λ {_SMAX.td_lambda:g}). At these settings ours differs in that it computes λ-returns once per rollout, and
not again in every minibatch; that it trains on the last step of a rollout, too; that it bootstraps the value of a final
observation (`limit="truncate"`), where the step limit is terminal to theirs; and in its initial weights, which are orthogonal.
On SMAX, besides, its sequences start with the rollout, not {_SMAX.memory_window} steps before; it normalises layers, and
observations by running statistics, where theirs normalises batches; and its learning rate falls per update.""",
    sections=(
        Section(
            "Returns on simple_spread",
            f"""`jaxmarl/{NAME}`, three agents, {PLAN.total_steps:,} steps, a quarter of JaxMARL's number. Sum of an agent's
rewards over an episode, mean over agents. {PLAN.returns_text("exploring")}""",
            {"returns": returns_table},
        ),
        Section("Speed", loops.SPEED_TEXT, {"speed": speed_table}),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
