"""IPPO through the adapter on MPE simple_spread, compared with JaxMARL's own loop at JaxMARL's settings."""

from importlib.metadata import version
from typing import Any

import marljax
from marljax.algos import ippo
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Comparison, Plan
from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, mean_interval, partial_table
from marljax.baselines.rivals import ippo as jaxmarl_ippo
from marljax.core.environment import Environment

NAME = "MPE_simple_spread_v3"
AGENTS = 3
PLAN = Plan()
LOOPS = {
    "ours": "marljax, through the adapter",
    "ours limit ends": "marljax, terminal time limit",
    "ours time": "marljax, terminal time limit, observed by the critic",
    "theirs": "JaxMARL's loop",
}


def configs(plan: Plan) -> tuple[ippo.Config, jaxmarl_ippo.Config]:
    """Ours and theirs."""
    theirs = jaxmarl_ippo.Config(total_timesteps=plan.total_steps)
    return ippo.Config(**loops.ppo_settings(theirs)), theirs


def their_env(name: str = NAME, **options: Any) -> Any:
    """One of JaxMARL's environments in its ``LogWrapper``."""
    from marljax.wrappers.jaxmarl_families import quiet, wrapped_env

    env = wrapped_env(name, tuple(sorted(options.items()))).env
    with quiet():
        from jaxmarl.wrappers.baselines import LogWrapper
    return LogWrapper(env)


def our_env(limit: str = "truncate") -> Environment:
    """JaxMARL's environment through the adapter; its default is ``limit="end"``, a terminal step limit as in JaxMARL's loop."""
    return marljax.make(f"jaxmarl/{NAME}", limit=limit)


def comparison(plan: Plan) -> Comparison:
    """All trainings by the keys of ``LOOPS``; at the same settings but for the critic's view of the time."""
    ours, theirs = configs(plan)
    return Comparison(
        plan,
        {"env": NAME, "env_version": our_env().version, "jaxmarl": version("jaxmarl")},
        {"ours": ours, "ours limit ends": ours.replace(time_for_critic=False), "ours time": ours, "theirs": theirs},
        {
            "ours": lambda config: loops.our_loop(ippo, our_env(), config),
            **dict.fromkeys(("ours limit ends", "ours time"), lambda config: loops.our_loop(ippo, our_env("end"), config)),
            "theirs": lambda config: loops.their_loop(jaxmarl_ippo, their_env(), config),
        },
        our_env,
    )


def returns_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """The trainings and their differences."""
    compared = comparison(plan)
    results = {name: compared.returns(cache, "returns", name) for name in LOOPS}
    rows: list[list[str] | str] = []
    by_seed, differences = [], []
    for name, title in LOOPS.items():
        metrics = results[name]
        if metrics is None:
            rows.append(title)
            continue
        rows.append([title, *(mean_interval(metrics[kind], scale=scale) for kind in loops.KINDS for scale in (1, AGENTS))])
        values = ", ".join(f"{value:.1f}" for value in metrics["training"]["mean"])
        by_seed.append(f"{title}, end of training by seed: {values}.")
        if name != "theirs" and (base := results["theirs"]):
            differences.append(loops.difference_line(f"{title} − {LOOPS['theirs']}", metrics, base))
    header = ["training", "return, end of training", f"× {AGENTS}", "return, greedy", f"× {AGENTS}"]
    return partial_table(header, rows, *by_seed, *differences)


def speed_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Training steps per second of both libraries."""
    return comparison(plan).speed_table(cache, "speed", {name: LOOPS[name] for name in ("ours", "theirs")})


_, _THEIRS = configs(PLAN)
PAGE = Page(
    name="jaxmarl",
    command="jaxmarl_compare",
    title="JaxMARL's environments: results",
    intro=f"""MPE simple_spread (`jaxmarl/{NAME}`, three agents, 26 steps: JaxMARL tests its limit of 25 before it counts the
step) with IPPO at JaxMARL's settings: {_THEIRS.num_envs} environments × {_THEIRS.num_steps} steps, {PLAN.total_steps:,}
steps, learning rate {_THEIRS.lr:g} annealed to 0, 4 epochs of 4 minibatches, γ 0.99, λ 0.95, clip 0.2 (values too), entropy
0.01, value 0.5, gradient norm 0.5, two tanh layers of {_THEIRS.hidden} (its configuration file has also had ten times as
many steps at a tenth of the learning rate). *JaxMARL's loop*: the algorithm of its script, reimplemented on its API
(`baselines/rivals/ippo.py`). *Through the adapter*: `algos/ippo.py` on `marljax.make("jaxmarl/{NAME}", limit="truncate")`;
the time limit is bootstrapped, and one step in 27 resets an episode. *Terminal time limit*: the same with `limit="end"`,
the adapter's default: nothing is bootstrapped there, as in JaxMARL's loop, and the critic does not know the time
(`time_for_critic=false`). *Observed by the critic*: it does, as by default, because returns depend on it.""",
    sections=(
        Section(
            "Returns",
            f"""Sum of an agent's rewards over an episode, mean over agents; JaxMARL's log shows {AGENTS} times that.
{PLAN.returns_text("sampled")}""",
            {"returns": returns_table},
            """At equal settings no difference between the loops was found. A critic that knows how much time is left brings the
return a third nearer to 0: where the limit is terminal, returns depend on the time, and the agents' observations do not contain
it.""",
        ),
        Section("Speed", PLAN.speed_text, {"speed": speed_table}),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
