"""The defaults on JaxMARL's MPE, compared with JaxMARL's loops at JaxMARL's settings: ``python baselines/mpe.py [table …]``
writes baselines/results/mpe.md; ``theirs`` takes most of the time."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
from jaxmarl.wrappers.baselines import LogWrapper

import marljax
from marljax.algos import ippo, mappo, qmix
from marljax.baselines.harness import loops
from marljax.baselines.harness.loops import Loop, Plan
from marljax.baselines.harness.result_cache import Metrics, ResultCache, suite_key, summarise
from marljax.baselines.harness.tables import Page, Section, interval, mean_interval, partial_table, policy_table
from marljax.baselines.jaxmarl_compare import their_env
from marljax.baselines.rivals import ippo as jaxmarl_ippo
from marljax.baselines.rivals import qmix as jaxmarl_qmix
from marljax.baselines.rivals import rnn_ppo, simple_tag
from marljax.core.environment import Environment
from marljax.training import mesh
from marljax.training.evaluation import Evaluator
from marljax.training.trainer import Trainer

PLAN = Plan()
ENVS = {"simple_spread": "MPE_simple_spread_v3", "simple_reference": "MPE_simple_reference_v3", "simple_tag": simple_tag.TAG}
LOOPS = {"ours": "marljax, defaults", "theirs": "JaxMARL's loop"}


class Pair(NamedTuple):
    """An algorithm in both libraries."""

    title: str
    module: Any
    settings: Mapping[str, Any]  # besides the defaults
    their_module: Any
    their_config: Callable[[int], Any]  # total steps → JaxMARL's settings for MPE

    def config(self, steps: int) -> Any:
        return self.module.Config(total_steps=steps, **self.settings)


PAIRS = {
    "ippo": Pair("IPPO", ippo, {}, jaxmarl_ippo, lambda steps: jaxmarl_ippo.Config(total_timesteps=steps)),
    "mappo": Pair("MAPPO", mappo, {}, rnn_ppo, lambda steps: rnn_ppo.Settings(total_steps=steps, **rnn_ppo.PUBLISHED_MPE)),
    "qmix": Pair("QMIX", qmix, {}, jaxmarl_qmix, lambda steps: jaxmarl_qmix.Config(total_timesteps=steps)),
    "vdn": Pair(
        "VDN", qmix, {"mixer": "vdn"}, jaxmarl_qmix, lambda steps: jaxmarl_qmix.Config(mixer="vdn", total_timesteps=steps)
    ),
}


@functools.cache
def our_env(name: str) -> Environment:
    """One of ``ENVS`` through the adapter."""
    return simple_tag.Chase() if name == "simple_tag" else marljax.make(f"jaxmarl/{ENVS[name]}")


def jaxmarl_env(name: str) -> Any:
    """The same in JaxMARL's ``LogWrapper``."""
    return LogWrapper(simple_tag.Predators()) if name == "simple_tag" else their_env(ENVS[name])


def make_loop(plan: Plan, env: str, algo: str, loop: str) -> Loop:
    pair = PAIRS[algo]
    if loop == "ours":
        return loops.our_loop(pair.module, our_env(env), pair.config(plan.total_steps))
    return loops.their_loop(pair.their_module, jaxmarl_env(env), pair.their_config(plan.total_steps))


def describe(plan: Plan, env: str, algo: str, loop: str) -> dict[str, Any]:
    """Everything that a training depends on: JaxMARL's loops not on our adapter, which only plays their last policies."""
    pair = PAIRS[algo]
    config = pair.config(plan.total_steps) if loop == "ours" else pair.their_config(plan.total_steps)
    about: dict[str, Any] = {"env": ENVS[env], "jaxmarl": version("jaxmarl"), "config": dataclasses.asdict(config)}
    about |= plan.about_returns
    if env == "simple_tag":
        about["prey"] = {"ahead": simple_tag.AHEAD, "random": simple_tag.RANDOM}
    return about | ({"adapter": f"{our_env(env)}, version {our_env(env).version}"} if loop == "ours" else {})


def training_result(cache: ResultCache, plan: Plan, env: str, algo: str, loop: str) -> Metrics | None:
    """All seeds of one algorithm of one library on one environment; None while any is missing."""
    make = functools.partial(make_loop, plan, env, algo, loop)
    return loops.train_seeds(cache, plan, f"{env} {algo} {loop}", describe(plan, env, algo, loop), make, our_env(env))


def untrained_result(cache: ResultCache, plan: Plan, env: str, algo: str) -> Metrics | None:
    """Our networks before training, greedy on the frozen episodes."""

    def compute() -> Metrics:
        module, own = PAIRS[algo].module, our_env(env)
        config = PAIRS[algo].config(plan.total_steps)
        params = Trainer(module, own, config, mesh.make_mesh()).init(plan.keys, own.default_params).state.learner.params
        greedy = Evaluator(own, plan.episodes).learned(module, config, params, own.default_params, suite_key())
        return {"greedy": summarise(jax.device_get(greedy))["return"]}

    return cache.get(f"{env} {algo} untrained", describe(plan, env, algo, "ours") | {"seeds": plan.seeds}, compute)


def seeds_table(loop: str, cache: ResultCache, plan: Plan = PLAN) -> str:
    """The trainings of one library, seed by seed; nothing of the other's is computed."""
    rows: list[list[str] | str] = []
    for env, (algo, pair) in itertools.product(ENVS, PAIRS.items()):
        title, metrics = f"{env}, {pair.title}", training_result(cache, plan, env, algo, loop)
        values = [", ".join(f"{value:.1f}" for value in metrics[kind]["mean"]) for kind in loops.KINDS] if metrics else []
        rows.append([title, *values] if metrics else title)
    return partial_table([LOOPS[loop], *(f"{kind}, by seed" for kind in loops.KINDS.values())], rows)


def untrained_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of our networks before training, greedy."""
    rows: list[list[str] | str] = []
    for env in ENVS:
        results = {pair.title: untrained_result(cache, plan, env, algo) for algo, pair in PAIRS.items()}
        if any(results.values()):
            rows.append([env, *(mean_interval(metrics["greedy"]) if metrics else "–" for metrics in results.values())])
        rows += [f"{env}, {title}" for title, metrics in results.items() if metrics is None]
    return partial_table(["untrained, greedy", *(pair.title for pair in PAIRS.values())], rows)


def random_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Returns of uniform actions."""
    results = [(env, loops.random_result(cache, plan, env, our_env(env))) for env in ENVS]
    return policy_table("random actions", {"return": interval("return")}, results)


def verdict_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Both libraries, where both are computed, and where ours is lower with the whole interval."""
    rows: list[list[str] | str] = []
    lower = []
    for env, (algo, pair) in itertools.product(ENVS, PAIRS.items()):
        title = f"{env}, {pair.title}"
        ours, theirs = (training_result(cache, plan, env, algo, loop) for loop in LOOPS)
        if ours is None or theirs is None:
            rows.append(title)
            continue
        cells, kinds = loops.compared(ours, theirs)
        lower += [f"{title} ({loops.KINDS[kind]})" for kind in kinds]
        rows.append([title, *cells])
    count = sum(not isinstance(row, str) for row in rows)
    found = f"Below JaxMARL's, with the whole interval, of these {count}: {'; '.join(lower) or 'none'}."
    return partial_table(["", *loops.COMPARED_COLUMNS], rows, found if count else "")


def steadiness_table(cache: ResultCache, plan: Plan = PLAN) -> str:
    """Whether anything collapses: the best and the worst points of the learning curves."""
    rows: list[list[str] | str] = []
    for env in ENVS:
        random = loops.random_result(cache, plan, env, our_env(env))
        for (algo, pair), (loop, name) in itertools.product(PAIRS.items(), LOOPS.items()):
            title, metrics = f"{env}, {pair.title}, {name}", training_result(cache, plan, env, algo, loop)
            if metrics is None or random is None:
                rows.append(title)
            else:
                rows.append([title, *loops.steadiness(metrics["curve"]["mean"], random["return"]["mean"][0])])
    return partial_table(["training", *loops.STEADINESS_COLUMNS], rows)


_IPPO, _MAPPO, _QMIX = (PAIRS[algo].their_config(PLAN.total_steps) for algo in ("ippo", "mappo", "qmix"))
PAGE = Page(
    name="mpe",
    title="JaxMARL's MPE with the defaults: results",
    intro=f"""Four algorithms on three environments of JaxMARL through our adapter, with nothing set but the number of steps: the
defaults of `algos/`, one set per algorithm for all environments (VDN is `qmix` with `mixer=vdn`). They are compared with
JaxMARL's loops, reimplemented on its API, with JaxMARL's own settings for MPE, and its recurrent networks in all but IPPO:

- IPPO: `ippo_ff_mpe`, {_IPPO.num_envs} environments × {_IPPO.num_steps} steps, learning rate {_IPPO.lr:g}
  (`baselines/rivals/ippo.py`)
- MAPPO: `mappo_homogenous_rnn_mpe`, {_MAPPO.num_envs} × {_MAPPO.rollout_length}, {_MAPPO.learning_rate:g}, GRUs of {_MAPPO.width}
  (`baselines/rivals/rnn_ppo.py`)
- QMIX and VDN: `ql_rnn_mpe`, {_QMIX.num_envs} × {_QMIX.num_steps}, {_QMIX.lr:g}, GRUs of {_QMIX.hidden}, γ {_QMIX.gamma:g}
  (`baselines/rivals/qmix.py`)

All take {PLAN.total_steps:,} steps, over which learning rates and exploration fall. JaxMARL's files have changed: IPPO's has also
had a tenth of this learning rate for ten times the steps, MAPPO's 128 environments; MAPPO, QMIX and VDN have 2 to 20 times as
many steps there. An episode has 26 steps; ours count one more, which resets it.

- *simple_spread*: three agents cover three landmarks.
- *simple_reference*: two agents tell each other where to go; 50 actions, each of which is a move and a word.
- *simple_tag*: its cooperative side, three predators that share a reward of 10 for every touch of the prey. The prey follows a
  script in both libraries (`baselines/rivals/simple_tag.py`): it flees from the nearest predator inside the arena, except for
  {simple_tag.RANDOM:.0%} of its actions, which are random. JaxMARL's own environment with a scripted prey,
  `MPE_simple_facmac_v1`, takes continuous actions only, which Q-learners do not support.

Returns are sums of an agent's rewards over an episode, means over agents. Seeds 0–{PLAN.seeds - 1}; ±: 95 % t interval over
seeds. *End of training*: episodes of the sampled or exploring policy in the last {PLAN.tail:.0%} of training. *Greedy*: the final
parameters on {PLAN.episodes:,} frozen episodes, the same for all.""",
    sections=(
        Section("Compared with JaxMARL's loops", "", {"verdict": verdict_table}),
        Section(
            "Steadiness",
            loops.STEADINESS_TEXT,
            {"steadiness": steadiness_table},
        ),
        Section("By seed", "", {loop: functools.partial(seeds_table, loop) for loop in LOOPS}),
        Section(
            "Before training",
            f"Greedy policies of our untrained networks, {PLAN.seeds} seeds, and uniform actions, on the same frozen episodes.",
            {"untrained": untrained_table, "random": random_table},
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
