"""QMIX and VDN on MPE simple_spread, compared with JaxMARL's recurrent loops at JaxMARL's settings."""

from importlib.metadata import version

from marljax.algos import qmix
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Comparison, Plan
from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, policy_table
from marljax.baselines.jaxmarl_compare import AGENTS, NAME, our_env, their_env
from marljax.baselines.rivals import qmix as jaxmarl_qmix

PLAN = Plan(updates=50)
MIXERS = {"qmix": "QMIX", "vdn": "VDN"}
LOOPS = {"ours": "marljax", "theirs": "JaxMARL's loop"}


def configs(plan: Plan, mixer: str) -> tuple[qmix.Config, jaxmarl_qmix.Config]:
    """Ours and theirs; our team's reward is the mean over its agents, theirs the sum."""
    theirs = jaxmarl_qmix.Config(mixer=mixer, total_timesteps=plan.total_steps)
    ours = qmix.Config(
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
    return ours, theirs


def comparison(plan: Plan, mixer: str) -> Comparison:
    """Both loops at the same settings; our environment bootstraps the value of a final observation."""
    ours, theirs = configs(plan, mixer)
    return Comparison(
        plan,
        {"env": NAME, "env_version": our_env().version, "jaxmarl": version("jaxmarl")},
        {"ours": ours, "theirs": theirs},
        {
            "ours": lambda config: loops.our_loop(qmix, our_env(), config),
            "theirs": lambda config: loops.their_loop(jaxmarl_qmix, their_env(), config),
        },
        our_env,
    )


def returns_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of both loops, and their differences."""
    results, lines = [], []
    for mixer, algorithm in MIXERS.items():
        compared = comparison(plan, mixer)
        ours, theirs = (compared.returns(cache, f"returns {mixer}", name) for name in LOOPS)
        results += [(f"{algorithm}, {title}", metrics) for title, metrics in zip(LOOPS.values(), (ours, theirs), strict=True)]
        if ours and theirs:
            lines.append(loops.difference_line(f"{algorithm}, ours − theirs", ours, theirs))
    return policy_table("training", loops.RETURN_COLUMNS, results, *lines)


def speed_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Training steps per second of both loops."""
    parts = []
    for mixer, algorithm in MIXERS.items():
        titles = {name: f"{algorithm}, {title}" for name, title in LOOPS.items()}
        parts.append(comparison(plan, mixer).speed_table(cache, f"speed {mixer}", titles))
    return "\n\n".join(parts)


_, _THEIRS = configs(PLAN, "qmix")
PAGE = Page(
    name="qmix",
    command="qmix_compare",
    title="QMIX and VDN: results",
    intro=f"""MPE simple_spread (`jaxmarl/{NAME}`, three agents, 26 steps) at the settings of JaxMARL's `qmix_rnn` and
`vdn_rnn`: {_THEIRS.num_envs} environments × {_THEIRS.num_steps} steps between gradient steps on {_THEIRS.buffer_batch_size}
rollouts, {PLAN.total_steps:,} steps, RAdam at {_THEIRS.lr:g} annealed to 0, γ {_THEIRS.gamma:g}, ε from 1 to 0.05 over a
tenth of training, a GRU of {_THEIRS.hidden}. *JaxMARL's loop*: the algorithm of its scripts, reimplemented on its API
(`baselines/rivals/qmix.py`). Four things differ: our mixing network starts near a sum of the agents' values, theirs near 0;
ours also trains on the last step of a rollout; ours bootstraps the value of a final observation (`limit="truncate"`), to
theirs the step limit is terminal; and replayed rollouts of ours start with the memory that the GRU had then, theirs with
none, because each starts with an episode.""",
    sections=(
        Section(
            "Returns",
            f"""Sum of an agent's rewards over an episode, mean over agents; JaxMARL's log shows {AGENTS} times that.
{PLAN.returns_text("exploring")}""",
            {"returns": returns_table},
        ),
        Section("Speed", PLAN.speed_text, {"speed": speed_table}),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
