"""Training through the adapter beside JaxMARL's own way of training: MPE simple_spread with IPPO at JaxMARL's settings.

    python baselines/jaxmarl_compare.py              # all of baselines/results/jaxmarl.md
    python baselines/jaxmarl_compare.py speed        # one part: returns or speed

Every cell is kept in ``baselines/results/jaxmarl/`` and not computed again; delete its file to compute it anew.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import marljax
from marljax import parallel, registry, stats
from marljax.algos import ippo
from marljax.baselines import jaxmarl_ippo as rival
from marljax.baselines import tables
from marljax.baselines.tables import Cells, Figures, markdown_table, mean_interval
from marljax.environment import Environment, Outcome
from marljax.errors import UserError
from marljax.evaluate import Evaluator
from marljax.train import Trainer

RESULTS = Path(__file__).parent / "results"
NAME = "MPE_simple_spread_v3"
AGENTS = 3
EPISODES = 1_000  # frozen, for the greedy policies
OURS, TERMINAL, THEIRS = "marljax, through the adapter", "marljax, the limit as an end", "JaxMARL's loop"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to compute."""

    total_steps: int = 1_000_000
    seeds: int = 5
    tail: float = 0.05  # the last of training, whose episodes' returns are averaged
    repetitions: int = 5  # of each speed measurement
    updates: int = 20  # timed together


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
    )


def their_config(plan: Plan) -> rival.Config:
    return rival.Config(total_timesteps=plan.total_steps)


def their_env() -> Any:
    """JaxMARL's environment in its ``LogWrapper``."""
    from marljax.jaxmarl_library import quiet

    with quiet():
        import jaxmarl
        from jaxmarl.wrappers.baselines import LogWrapper

        return LogWrapper(jaxmarl.make(NAME))


def our_env(limit_ends: bool = False) -> Environment:
    """JaxMARL's environment as ours; with ``limit_ends`` its step limit terminates, as JaxMARL's loop takes it."""
    kind = registry.environment_class(f"jaxmarl/{NAME}")
    if not limit_ends:
        return kind()

    @dataclasses.dataclass(frozen=True)
    class LimitEnds(kind):  # type: ignore[misc, valid-type]
        def transition(self, key: jax.Array, state: Any, action: jax.Array, env_params: Any) -> tuple[Any, Outcome]:
            state, outcome = super().transition(key, state, action, env_params)
            ended = outcome.terminated | outcome.truncated
            return state, outcome._replace(terminated=ended, truncated=outcome.truncated & False)

    return LimitEnds()


def train_ours(plan: Plan, limit_ends: bool = False) -> Figures:
    """All seeds in one program."""
    env, config = our_env(limit_ends), our_config(plan)
    train = jax.jit(jax.vmap(marljax.make_train(ippo, env, config)))
    result = jax.device_get(train(seeds_of(plan)))
    if (result.diverged_at >= 0).any():
        raise UserError("a seed of ours diverged; nothing is kept")
    return figures(plan, ippo, config, result.metrics, result.state.learner.params)


def train_theirs(plan: Plan) -> Figures:
    """All seeds in one program."""
    env, config = their_env(), their_config(plan)

    @jax.jit
    @jax.vmap
    def train(key: jax.Array) -> tuple[rival.RunState, dict[str, jax.Array]]:
        state = rival.init(env, config, key)
        return jax.lax.scan(lambda state, _: rival.update(env, config, state), state, length=config.num_updates)

    state, metrics = jax.device_get(train(seeds_of(plan)))
    return figures(plan, rival, config, metrics, state.params)


def seeds_of(plan: Plan) -> jax.Array:
    return jax.vmap(jax.random.key)(np.arange(plan.seeds, dtype=np.uint32))


def figures(plan: Plan, algorithm: Any, config: Any, metrics: dict[str, np.ndarray], params: Any) -> Figures:
    """Per seed: the mean return of the episodes in the last of training, and of the greedy policy's frozen episodes."""
    tail = max(round(plan.tail * config.num_updates), 1)
    episodes, total = (metrics[name][:, -tail:].sum(-1) for name in ("episodes", "sum_return"))
    env = our_env()
    greedy = jax.device_get(Evaluator(env, EPISODES).learned(algorithm, config, params, env.default_params, tables.suite_key()))
    training = {"mean": (total / episodes).tolist(), "std": [0.0] * plan.seeds, "count": int(episodes.min())}
    return {"training": training, "greedy": tables.summarise(greedy)["return"]}


def returns_table(cells: Cells, plan: Plan = Plan()) -> str:
    """The trainings and their differences."""
    about = {
        "env": NAME,
        "config": dataclasses.asdict(their_config(plan)),
        "seeds": plan.seeds,
        "tail": plan.tail,
        "episodes": EPISODES,
    }
    mine = about | {"ours": dataclasses.asdict(our_config(plan))}
    done = {
        OURS: cells.get("returns ours", mine, lambda: train_ours(plan)),
        TERMINAL: cells.get("returns ours limit ends", mine, lambda: train_ours(plan, limit_ends=True)),
        THEIRS: cells.get("returns theirs", about, lambda: train_theirs(plan)),
    }
    rows = [
        [name, *(mean_interval(own[kind], scale=scale) for kind in ("training", "greedy") for scale in (1, AGENTS))]
        for name, own in done.items()
        if own is not None
    ]
    header = ["training", "return, end of training", f"× {AGENTS}", "return, greedy", f"× {AGENTS}"]
    missing = ", ".join(name for name, own in done.items() if own is None)
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


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Mean difference over seeds with its 95 % t interval."""
    gap = stats.mean(np.subtract(ours["mean"], theirs["mean"]))
    return f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


def measure_speed(plan: Plan) -> Figures:
    """Seconds of whole updates, in turns, one seed each; CPU seconds until the first ones were done."""
    their_env()  # imports JaxMARL before anything is timed
    runs: dict[str, Callable[[], None]] = {}
    first: dict[str, float] = {}
    for name, prepare in (("ours", our_updates), ("theirs", their_updates)):
        begun = time.process_time()
        runs[name] = prepare(plan)
        runs[name]()
        first[name] = time.process_time() - begun
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(plan.repetitions):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begun)
    steps = plan.updates * their_config(plan).steps_per_update
    return {
        name: {"steps_per_s": steps / statistics.median(times), "first_cpu_s": first[name], "seconds": times}
        for name, times in seconds.items()
    }


def our_updates(plan: Plan) -> Callable[[], None]:
    """A function that goes on with the training of one seed by ``plan.updates``."""
    env = our_env()
    trainer = Trainer(ippo, env, our_config(plan), parallel.make_mesh())
    held = [trainer.init(seeds_of(dataclasses.replace(plan, seeds=1)), env.default_params)]

    def run() -> None:
        held[0], _ = jax.block_until_ready(trainer.run(held[0], plan.updates))

    return run


def their_updates(plan: Plan) -> Callable[[], None]:
    """The same of JaxMARL's loop."""
    env, config = their_env(), their_config(plan)

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(state: rival.RunState) -> tuple[rival.RunState, dict[str, jax.Array]]:
        return jax.lax.scan(lambda state, _: rival.update(env, config, state), state, length=plan.updates)

    held = [jax.jit(functools.partial(rival.init, env, config))(jax.random.key(0))]

    def run() -> None:
        held[0], _ = jax.block_until_ready(advance(held[0]))

    return run


def speed_table(cells: Cells, plan: Plan = Plan()) -> str:
    """Training steps per second of both, measured in turns in one process."""
    about = {
        "env": NAME,
        "config": dataclasses.asdict(their_config(plan)),
        "updates": plan.updates,
        "repetitions": plan.repetitions,
    }
    done = cells.get("speed", about, lambda: measure_speed(plan))
    if done is None:
        return "Not computed yet."
    rows = []
    for title, name in ((OURS, "ours"), (THEIRS, "theirs")):
        ratio = done[name]["steps_per_s"] / done["theirs"]["steps_per_s"]
        rows.append([title, f"{done[name]['steps_per_s']:,.0f}", f"{ratio:.2f}×", f"{done[name]['first_cpu_s']:.1f}"])
    return markdown_table(["training", "env-steps/s", "× theirs", f"compile and first {plan.updates} updates, CPU s"], rows)


PARTS = {"returns": returns_table, "speed": speed_table}

PAGE_TEXT = """# JaxMARL's environments: results

Made by `python baselines/jaxmarl_compare.py`; {versions}.

MPE simple_spread (`jaxmarl/{name}`, three agents, 26 steps: JaxMARL tests its limit of 25 before it counts the step) with
IPPO at JaxMARL's settings: {envs} environments × {length} steps, {steps:,} steps, learning rate {rate:g} annealed to 0, 4 epochs
of 4 minibatches, γ 0.99, λ 0.95, clip 0.2 (values too), entropy 0.01, value 0.5, gradient norm 0.5, two tanh layers of {hidden}
(its configuration file has also had ten times as many steps at a tenth of the learning rate).
*JaxMARL's loop*: the algorithm of its script, written anew against its API (`baselines/jaxmarl_ippo.py`). *Through the
adapter*: `algos/ippo.py` on `marljax.make("jaxmarl/{name}")`; the time limit is bootstrapped, and one step in 27 restarts an
episode. *The limit as an end*: the same, but nothing is bootstrapped there, which is how JaxMARL's loop takes it.

## Returns

Sum of an agent's rewards over an episode, mean over agents; JaxMARL's log shows {agents} times that. {seeds} seeds
(0–{last_seed}) in one program each. *End of training*: the sampled policy's episodes in the last {tail:.0%} of training.
*Greedy*: the final parameters on {episodes:,} frozen episodes, the same for both. ±: 95 % t interval over seeds.

{returns}

## Speed

Whole updates, one seed, both in turns in one process; medians. Every step counts, ours that restart an episode too.

{speed}
"""


def page(sections: dict[str, str], plan: Plan = Plan()) -> str:
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
        episodes=EPISODES,
        **sections,
    )


if __name__ == "__main__":
    tables.main(__doc__, RESULTS / "jaxmarl", PARTS, page, cold=("speed",))
