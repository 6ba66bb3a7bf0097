"""Populations, self-play and how far they can be exploited: ``python baselines/league.py [table …]`` writes
baselines/results/league.md.

Axis letters: L leagues, one per seed, K policies of each, N strategies.
"""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

import marljax
from marljax.algos import ippo
from marljax.baselines.harness.result_cache import RUNS, Metrics, ResultCache, file_name, result_config, suite_key
from marljax.baselines.harness.tables import Page, Section, partial_table
from marljax.config.settings import Settings
from marljax.core.environment import Environment
from marljax.core.opponent import Mixture, Opponent
from marljax.io.files import replacing
from marljax.reporting.tables import markdown_table
from marljax.testing.matrix_game import MatrixGame, blotto, rock_paper_scissors
from marljax.training import population
from marljax.training.best_response import Exploited, Responder, exploit
from marljax.training.matches import Player
from marljax.training.mesh import make_mesh
from marljax.training.population import Population
from marljax.training.trainer import Trainer
from marljax.utils import stats
from marljax.viz.payoff_matrix import payoff_picture
from marljax.wrappers.against import opponent_params

# Strategies in a battle, whose names are those of meta-solvers but for self-play's two
TRAINED = ("self-play", "window", "uniform", "nash")
STRATEGIES: Mapping[str, tuple[str, str]] = {  # title → how it was trained, the meta-solver that mixes its policies
    "self-play, its last policy": ("self-play", "last"),
    "self-play, its policies alike": ("self-play", "uniform"),
    "window, its policies alike": ("window", "uniform"),
    "uniform, its policies alike": ("uniform", "uniform"),
    "nash, their equilibrium": ("nash", "nash"),
}
LIVE = 0.5  # of window: the share of episodes against the learner itself


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is trained and played in a battle."""

    scenario: str
    overrides: tuple[str, ...] = ()
    leagues: int = 3
    size: int = 6  # K, with the first, a new network
    oracle_steps: int = 150_000
    member_steps: int = 200_000
    fresh: int = 2
    warm: int = 1
    battles: int = 256

    def config(self, steps: int) -> ippo.Config:
        """IPPO's tuned values with so many steps."""
        return self.settings.config.replace(total_steps=steps)

    @functools.cached_property
    def settings(self) -> Settings:
        """Of self-play, with as many steps as all oracles of a population."""
        steps = f"algo.total_steps={(self.size - 1) * self.oracle_steps}"
        return marljax.tuned("ippo", "smax", f"env.scenario={self.scenario}", "env.mode=self_play", *self.overrides, steps)


# On a smaller map the teams are in sight from the start and have to fight.
CLOSE = ("env.map_width=16", "env.map_height=16")
PLANS = {
    "2s3z": Plan("2s3z", CLOSE),
    "smacv2_5_units": Plan("smacv2_5_units"),
}


MATRIX_CONFIG = ippo.Config(
    total_steps=16_000,
    num_envs=32,
    rollout_length=16,
    num_minibatches=1,
    hidden=(8,),
    learning_rate=0.02,
    gamma=0.0,
    entropy_coef=0.0,
    agent_id=False,
)


MATRIX_SOLVERS = ("last", "uniform", "pfsp", "nash", "rae")  # with so few policies window is uniform


@dataclasses.dataclass(frozen=True)
class MatrixPlan:
    """How populations are trained in a matrix game."""

    title: str
    game: MatrixGame
    size: int
    leagues: int = 5
    battles: int = 256


MATRIX_GAMES = {
    "rock_paper_scissors": MatrixPlan("rock–paper–scissors", rock_paper_scissors(), 8),
    "blotto": MatrixPlan("Blotto, 5 soldiers on 3 fields", blotto(), 16),
}


def matrix_table(name: str, cache: ResultCache) -> str:
    """Exploitability of every meta-solver's mixture after so many policies in a matrix game, exact for the policies' actions."""
    plan, rows = MATRIX_GAMES[name], list[list[str] | str]()
    counts = [count for count in (1, 2, 3, 4, 6, 8, 12, 16) if count <= plan.size]
    for solver in MATRIX_SOLVERS:
        about = {"solver": solver, "plan": dataclasses.asdict(plan), "config": dataclasses.asdict(MATRIX_CONFIG)}
        metrics = cache.get(f"{name} {solver}", about, functools.partial(matrix_gaps, plan, solver))
        if metrics is None:
            rows.append(solver)
            continue
        gaps = np.array(metrics["exploitability"]["mean"])
        rows.append([solver, *(spread(gaps[:, count - 1]) for count in counts)])
    return partial_table([plan.title, *(f"{count} policies" if count > 1 else "the first" for count in counts)], rows)


def matrix_gaps(plan: MatrixPlan, solver: str) -> Metrics:
    """Exploitability [L, K] of the mixtures of the first policies."""
    game, key = plan.game, jax.random.key(0)
    first = first_policies(plan)
    grown = population.grow(
        ippo, game, (), MATRIX_CONFIG, first, key, size=plan.size, solver=solver, fresh=True, battles=plan.battles
    )
    return {"exploitability": {"mean": exploitabilities(plan, grown, solver).tolist()}}


def exploitabilities(plan: MatrixPlan, grown: Population, solver: str) -> np.ndarray:
    """[L, K] what the best action earns against the meta-solver's mixture of the first 1, 2, … policies of every league."""
    played, payoff, solve = action_rates(plan, grown.params), np.array(plan.game.payoff), population.META_SOLVERS[solver]
    counts = range(1, grown.payoff.shape[1] + 1)
    return np.array(
        [
            [(payoff @ (solve(own[:count, :count]) @ rates[:count])).max() for count in counts]
            for own, rates in zip(grown.payoff, played, strict=True)
        ]
    )


def first_policies(plan: MatrixPlan) -> Any:
    """[L, …] parameters of policies that have learnt to beat the first action, and so can be beaten."""
    weights = jnp.zeros(plan.leagues, jnp.int32)
    responder = Responder.of(ippo, plan.game, MATRIX_CONFIG, Opponent(plan.game, first_action))
    return responder.train(responder.begin(jax.random.split(jax.random.key(1), plan.leagues), (), weights)).params


def first_action(weights: Any, seen: Any, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    """An opponent that always takes action 0."""
    return jnp.zeros(seen.alive.shape, jnp.int32), carry


def action_rates(plan: MatrixPlan, params: Any, samples: int = 2_000) -> np.ndarray:
    """[L, K, actions] how often each policy takes each action."""
    policy = population.team_policy(ippo, plan.game, MATRIX_CONFIG)
    keys = jax.random.split(jax.random.key(2), samples)
    env = policy.env
    _, seen = env.reset(keys[0], opponent_params(env, plan.game.default_params, {"": np.zeros(1)}))

    @jax.jit
    @jax.vmap
    @jax.vmap
    def rates(weights: Any) -> jax.Array:
        action, _ = jax.vmap(lambda key: policy.act(weights, seen, policy.initial_carry(), key))(keys)
        return jax.nn.one_hot(action[:, 0], len(plan.game.payoff)).mean(0)

    return np.asarray(rates(params))


def trained(plan: Plan, how: str) -> Population:
    """Policies of self-play or of a population in a battle, from a file where they have been trained before."""
    path = RUNS.with_name("baselines") / f"{file_name(f'league {plan.scenario} {how}')}.msgpack"
    about = json.dumps(battle_about(plan) | {"trained": how}, sort_keys=True)
    if path.exists():
        kept = serialization.msgpack_restore(path.read_bytes())
        if kept["about"] == about:
            template = first_networks(plan)
            return Population(serialization.from_state_dict(template, kept["params"]), kept["payoff"], kept["shares"])
    found = self_play(plan) if how == "self-play" else league(plan, how)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"about": about, "params": serialization.to_state_dict(found.params)}
    with replacing(path) as draft:
        draft.write_bytes(serialization.msgpack_serialize(state | {"payoff": found.payoff, "shares": found.shares}))
    return found


def first_networks(plan: Plan) -> Any:
    """[L, …] parameters of new networks."""
    run, config, key = plan.settings, plan.config(plan.oracle_steps), jax.random.key(0)
    return population.new_policies(ippo, run.base_env, run.env_params, config, key, plan.leagues)


def league(plan: Plan, solver: str) -> Population:
    """A population in every league."""
    run, live = plan.settings, LIVE if solver == "window" else 0.0
    config, first = plan.config(plan.oracle_steps), first_networks(plan)
    game, params, key = run.base_env, run.env_params, jax.random.key(1)
    return population.grow(ippo, game, params, config, first, key, size=plan.size, solver=solver, live=live, battles=plan.battles)


def self_play(plan: Plan) -> Population:
    """Checkpoints of self-play as a population: as many policies, the first of them new networks, after as many steps."""
    run, config = plan.settings, plan.config((plan.size - 1) * plan.oracle_steps)
    trainer = Trainer(ippo, run.env, config, make_mesh())
    replicas = trainer.init(jax.random.split(jax.random.key(0), plan.leagues), run.env_params)
    params, ends = (
        [jax.device_get(replicas.state.learner.params)],
        np.linspace(0, trainer.num_updates, plan.size).round().astype(int),
    )
    for begin, end in itertools.pairwise(ends):
        replicas, _ = trainer.run(replicas, int(end - begin))
        params.append(jax.device_get(replicas.state.learner.params))
    policy = population.team_policy(ippo, run.base_env, config)
    payoff, _ = round_robin(plan, policy, params, jax.random.key(2))
    return Population(jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *params), payoff, np.zeros_like(payoff))


def round_robin(plan: Plan, policy: Opponent, params: Sequence[Any], key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """[L, N, N] antisymmetric payoffs between policies with N parameters [L, …], and shares drawn, also of each with itself."""
    run, size, keys = plan.settings, len(params), jax.random.split(key, plan.leagues)
    payoff, drawn = np.zeros((2, plan.leagues, size, size))
    for i, j in np.argwhere(np.tri(size)):
        found, draws = population.both_sides(run.base_env, policy, run.env_params, params[i], params[j], keys, plan.battles)
        drawn[:, i, j] = drawn[:, j, i] = draws
        if i != j:
            payoff[:, i, j], payoff[:, j, i] = found, -found
    return payoff, drawn


def strategy_player(plan: Plan, title: str) -> Player:
    """A strategy of every league as a player: a mixture of its policies, drawn for every battle."""
    how, solver = STRATEGIES[title]
    policy = population.team_policy(ippo, plan.settings.base_env, plan.config(plan.oracle_steps))
    return Player(title, policy.mixture(), trained(plan, how).mixture(solver), plan.leagues)


def exploited(plan: Plan, title: str) -> Metrics:
    """How far best responses beat a strategy; ``script`` is the environment's own."""
    run, config = plan.settings, plan.config(plan.member_steps)
    player = Player("script", None, (), plan.leagues) if title == "script" else strategy_player(plan, title)
    # Warm members start from self-play's last policies, the strongest single ones, whoever is to be beaten.
    start = jax.tree.map(lambda leaf: leaf[:, -1], trained(plan, "self-play").params)
    responder = Responder.of(ippo, run.base_env, config, player.policy)
    members = {"fresh": plan.fresh, "warm": plan.warm, "start": start, "battles": plan.battles}
    found: Exploited = exploit(responder, player, run.env_params, suite_key(), **members)
    groups = zip(("fresh", "warm"), np.split(found.payoff, [plan.fresh], axis=1), strict=True)
    payoff = np.take_along_axis(found.won - found.lost, found.best[:, None], axis=1)[:, 0]
    return {"payoff": {"mean": payoff.tolist()}, **{kind: {"mean": group.max(1).tolist()} for kind, group in groups}}


def battle_about(plan: Plan) -> dict[str, Any]:
    """Everything that the results of a battle depend on."""
    return result_config(plan.settings) | {"plan": dataclasses.asdict(plan) | {"live": LIVE}}


def exploit_table(battle: str, cache: ResultCache) -> str:
    """How far every strategy of a battle can be exploited."""
    plan, rows = PLANS[battle], list[list[str] | str]()
    for title in (*STRATEGIES, "script"):
        name = f"{battle} {title} exploited"
        metrics = cache.get(name, battle_about(plan) | {"strategy": title}, functools.partial(exploited, plan, title))
        if metrics is None:
            rows.append(f"{battle}, {title}")
        else:
            rows.append([title, *(spread(np.array(metrics[kind]["mean"])) for kind in ("payoff", "fresh", "warm"))])
    return partial_table([battle, "best member", "best fresh", "best warm"], rows)


def payoff_table(battle: str, cache: ResultCache) -> str:
    """Who beats whom among the strategies, and pictures of what is within and between them."""
    plan = PLANS[battle]

    def within(how: str) -> Metrics:
        found = trained(plan, how)
        return {"payoff": {"mean": found.payoff.tolist()}, "shares": {"mean": found.shares.tolist()}}

    pictures, missing = [], []
    for how in TRAINED:
        metrics = cache.get(f"{battle} {how} payoffs", battle_about(plan) | {"trained": how}, functools.partial(within, how))
        if metrics is None:
            missing.append(f"{battle}, {how}")
            continue
        names = ["new", *map(str, range(1, plan.size))]
        payoff = np.array(metrics["payoff"]["mean"]).mean(0)
        pictures.append(picture(cache.folder, f"{battle} {how}", names, payoff, f"{how} on {battle}"))
    metrics = cache.get(f"{battle} strategies", battle_about(plan) | {"between": [*STRATEGIES]}, lambda: between(plan))
    if metrics is None:
        return partial_table([battle], [*missing, f"{battle}, strategies"])
    payoff = np.array(metrics["payoff"]["mean"])  # [L, N, N]
    names = [*STRATEGIES]
    drawn = 100 * np.array(metrics["drawn"]["mean"]).mean(0)
    rows = [
        [name, *("" if i == j else spread(payoff[:, i, j]) for j in range(len(names))), f"{drawn[i, i]:.0f} %"]
        for i, name in enumerate(names)
    ]
    pictures.append(picture(cache.folder, f"{battle} strategies", names, payoff.mean(0), f"strategies on {battle}"))
    header = [battle, *(f"against {index + 1}" for index in range(len(names))), "drawn with itself"]
    return "\n\n".join([markdown_table(header, rows), *pictures])


def between(plan: Plan) -> Metrics:
    """Payoffs [L, N, N] between the strategies of each league, also of one with itself, and shares drawn."""
    players = [strategy_player(plan, title) for title in STRATEGIES]
    policy = players[0].policy  # of all: they differ in parameters alone
    assert policy is not None
    payoff, drawn = round_robin(plan, policy, [player.params for player in players], jax.random.key(3))
    return {"payoff": {"mean": payoff.tolist()}, "drawn": {"mean": drawn.tolist()}}


def picture(folder: Path, name: str, names: Sequence[str], payoff: np.ndarray, title: str) -> str:
    """Draws a payoff matrix beside the results, and links it."""
    path = folder / f"{file_name(name)}.png"
    payoff_picture(names, payoff, [path], title)
    return f"![Payoffs, {title}]({folder.name}/{path.name})"


def spread(values: np.ndarray) -> str:
    """Mean with a 95 % t interval over leagues."""
    found = stats.mean(values)
    return f"{found.value:+.2f} ± {found.high - found.value:.2f}"


def speed_table(cache: ResultCache) -> str:
    """Steps per second of the same training against one policy and against mixtures of several."""
    plan, opponents = PLANS["2s3z"], {"one policy": 0, "a mixture of 2": 2, "a mixture of 8": 8, "a mixture of 64": 64}

    def measure() -> Metrics:
        run, config = plan.settings, plan.config(plan.oracle_steps)
        policy = population.team_policy(ippo, run.base_env, config)
        one = jax.tree.map(lambda leaf: leaf[:1], first_networks(plan))
        programs: dict[str, Callable[[], None]] = {}
        for name, size in opponents.items():
            weights = one
            if size:
                stack = jax.tree.map(lambda leaf, size=size: jnp.repeat(leaf[:, None], size, axis=1), one)
                weights = Mixture(stack, jnp.full((1, size), 1 / size))
            responder = Responder.of(ippo, run.base_env, config, policy.mixture() if size else policy)
            programs[name] = advance(responder, run.base_env, weights, run.env_params)
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(5):
            for name, program in programs.items():
                start = time.perf_counter()
                program()
                seconds[name].append(time.perf_counter() - start)
        return {name: {"seconds": values, "steps": 4 * config.steps_per_update} for name, values in seconds.items()}

    metrics = cache.get("speed of mixtures", battle_about(plan) | {"opponents": opponents}, measure)
    if metrics is None:
        return "Not computed yet."
    speeds = {name: metrics[name]["steps"] / np.median(metrics[name]["seconds"]) for name in opponents}
    rows = [[name, f"{speed:,.0f}", f"{speed / speeds['one policy'] - 1:+.0%}"] for name, speed in speeds.items()]
    return markdown_table(["against", "steps/s", "difference"], rows)


def advance(responder: Responder, game: Environment, weights: Any, game_params: Any) -> Callable[[], None]:
    """Four updates of one member, whose state goes on from call to call; compiled."""
    state = [responder.begin(jax.random.split(jax.random.key(0), 1), game_params, weights)]

    def run() -> None:
        state[0], _ = jax.block_until_ready(responder.trainer.run(state[0], 4))

    run()
    return run


PAGE = Page(
    name="league",
    title="Populations: results",
    intro=f"""Policies of IPPO in games of two equal sides, trained in three ways:

- *self-play*: one policy leads both sides; its checkpoints at equal distances count as its policies;
- *populations* (`marljax.training.population`): each new policy starts from the newest, in matrix games as a new network, and is
  trained against a mixture of those before it: *window* the newest {population.WINDOW} alike, half of the episodes against the
  learner itself; *uniform* all alike (fictitious self-play); *nash* their equilibrium (policy-space response oracles); *last* the
  newest alone; *pfsp* those who are hard for the newest; *rae* their risk-averse equilibrium;
- *members*: best responses to a frozen strategy, as `marljax exploit` trains them.

A strategy that mixes policies draws one for every battle. Exploitability is what a best response earns against a strategy; that
of an equilibrium is 0. What members with a limited budget earn is a lower bound. Payoffs are shares of battles won minus shares
lost. ±: 95 % t interval over leagues, one per seed.""",
    sections=(
        Section(
            "Matrix games",
            f"""Exploitability of the meta-solver's mixture of the first policies, exact but for their action probabilities, which
are estimated from 2,000 samples. The first policy has learnt to beat the first action. {MATRIX_CONFIG.total_steps:,} steps for
every policy, {MatrixPlan.leagues} leagues.""",
            {name: functools.partial(matrix_table, name) for name in MATRIX_GAMES},
        ),
        *(
            Section(
                f"`smax` {battle}",
                f"""{plan.leagues} leagues of {plan.size} policies, the first of them new; {plan.oracle_steps:,} steps
for each later one, and {(plan.size - 1) * plan.oracle_steps:,} of self-play, in which both sides learn. Members against every
strategy in every league: {plan.fresh} fresh and {plan.warm} warm, which start from self-play's last policy, each
{plan.member_steps:,} steps. *Best fresh*, *best warm*: by {plan.battles} battles; *best member*: the best of all by these,
judged by as many others. Fresh members have had fewer steps than what they meet: a low figure may say no more than that they were
too few. Pictures: payoffs of rows against columns, blue where the row wins; of policies in the order in which they were trained,
and of strategies.""",
                {
                    f"{battle}_exploited": functools.partial(exploit_table, battle),
                    f"{battle}_payoffs": functools.partial(payoff_table, battle),
                },
            )
            for battle, plan in PLANS.items()
        ),
        Section(
            "The cost of a mixture",
            "The same training on 2s3z, one member, against one policy and against mixtures, in turn in one process; medians.",
            {"speed": speed_table},
        ),
    ),
    uncached=("speed",),
)


if __name__ == "__main__":
    PAGE.main()
