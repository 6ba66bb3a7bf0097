"""Scripted and learned policies on ``swarm``: ``python baselines/swarm.py [table …]`` writes baselines/results/swarm.md."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marljax.baselines.harness import result_cache
from marljax.baselines.harness.result_cache import Metrics, ResultCache
from marljax.baselines.harness.tables import Page, Section, interval, mean_interval, policy_table
from marljax.baselines.policies.swarm import scripted_policies
from marljax.config.settings import Settings
from marljax.envs.swarm import Swarm
from marljax.io.metrics_log import read_rows
from marljax.viz.learning_curve import learning_curve

EPISODES = 256
BATCH = 256  # episodes of one program
SEEDS = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "same goal": {"preset": "static_same"},
    "own goals": {"preset": "static_different"},
    "swap": {"preset": "swap"},
    "the nine without obstacles": {"preset": "open"},
    "obstacles, own goals": {"preset": "obstacles_random"},
    "obstacles, same goal": {"preset": "obstacles_same"},
    "coverage": {"preset": "coverage"},
    "coverage in three dimensions": {"preset": "coverage", "dynamics": "point3d"},
}
LEARNED = {"same goal": (), "coverage": ("tuned=coverage",)}  # and more overrides
ALGORITHM = "ippo"
# A drone alone, one factor at a time: algorithm and overrides
HOVER = ("env=swarm", "tuned=alone", "eval.every=0.04")
NEAR = (0.3, 0.1)  # m to the goal
HOVERING: dict[str, tuple[str, tuple[str, ...]]] = {
    "32 environments": ("ippo", ()),
    "64 environments": ("ippo", ("algo.num_envs=64",)),
    "256 environments": ("ippo", ("algo.num_envs=256",)),
    "256 environments, twice the steps": ("ippo", ("algo.num_envs=256", "algo.total_steps=4_000_000")),
    "motors observed": ("ippo", ("env.motors=observed",)),
    "last 4 actions observed": ("ippo", ("env.history=4",)),
    "last 16 actions observed": ("ippo", ("env.history=16",)),
    "half of the starts near the goal": ("ippo", ("env.start_near=0.5",)),
    "MAPPO": ("mappo", ()),
    "MAPPO, motors in the global state": ("mappo", ("env.motors=critic",)),
}
# Two drones among pillars, with and without what the paper's ablation drops
PILLARS_STEPS = 3_000_000
EVERY = 0.05  # of the training, between two evaluations
PILLARS = ("env=swarm", "tuned=pillars", f"algo.total_steps={PILLARS_STEPS}", f"eval.every={EVERY}", "eval.episodes=128")
NO_REPLAY = ("failure_replay.failures=[]",)
MLP = ("algo.encoder=flat",)
AMONG: dict[str, tuple[str, ...]] = {
    "attention and replay": (),
    "attention": NO_REPLAY,
    "replay": MLP,
    "neither": (*MLP, *NO_REPLAY),
}
QUARTERS = (0.25, 0.5, 0.75, 1.0)  # ends of the parts of training over which success is shown
COLUMNS = {
    "return": interval("return", places=2),
    "success, %": interval("success", scale=100),
    "m to the goal": interval("distance", places=2),
    "collided, %": interval("collision", scale=100),
    "crashed, %": interval("crash", scale=100),
    "deadlock, %": interval("deadlock", scale=100),
}


def scripted_table(cache: ResultCache) -> str:
    """Every scripted policy in every setting."""
    envs = {setting: Swarm(**options) for setting, options in SETTINGS.items()}
    return policy_table("policy", COLUMNS, cache.all_scripted(envs, scripted_policies, EPISODES, BATCH))


def learned_table(cache: ResultCache) -> str:
    """Five seeds of IPPO."""
    results = []
    for setting, more in LEARNED.items():
        overrides = ["env=swarm", *(f"env.{name}={value}" for name, value in SETTINGS[setting].items()), *more]
        metrics = cache.learned_by_seed(f"{ALGORITHM} {setting}", ALGORITHM, overrides, EPISODES, BATCH, SEEDS)
        results.append((f"{setting}: {ALGORITHM}", metrics))
    return policy_table("policy", COLUMNS, results)


def steps_interval(name: str) -> Callable[[Metrics], str]:
    """A column of ``mean_interval``, unless a seed never got there."""

    def cell(metrics: Metrics) -> str:
        steps = np.array(metrics[name]["mean"])
        reached = steps[np.isfinite(steps)]
        if len(reached) == len(steps):
            return mean_interval(metrics[name], places=2)
        never = f"{len(steps) - len(reached)} of {len(steps)} seeds never"
        return f"{never}, others {reached.mean():.2f}" if len(reached) else never

    return cell


def steps_until_near(run: Settings, folder: Path) -> Metrics:
    """Of a run of one seed: millions of steps until the greedy policy is ``NEAR`` the goal in an evaluation, infinity if it never
    is; its distance in the last one."""
    del run
    rows = [row for row in read_rows(folder) if "eval_distance" in row]
    found = {"distance": rows[-1]["eval_distance"]}
    for near in NEAR:
        steps = next((row["env_steps"] for row in rows if row["eval_distance"] < near), np.inf)
        found[f"until {near}"] = steps / 1e6
    return of_one_seed(found)


def of_one_seed(values: Mapping[str, float]) -> Metrics:
    """Numbers that describe the run of one seed."""
    return {name: {"mean": [value], "std": [0.0], "count": 1} for name, value in values.items()}


def hovering_table(cache: ResultCache) -> str:
    """How soon a drone alone hovers."""
    results = []
    for title, (algo, overrides) in HOVERING.items():
        metrics = cache.trained_by_seed(f"hovering {title}", algo, [*HOVER, *overrides], steps_until_near, SEEDS)
        results.append((title, metrics))
    columns = {f"10⁶ steps until < {near} m": steps_interval(f"until {near}") for near in NEAR}
    return policy_table("", columns | {"m to the goal, at the end": interval("distance", places=2)}, results)


def success_over_training(run: Settings, folder: Path) -> Metrics:
    """Of a run of one seed: the greedy policy's success before each of ``QUARTERS``, a mean of four evaluations (5, 10, 15 and 20
    % of training for the first), and the last policy's metrics on the frozen scenarios."""
    rows = [row for row in read_rows(folder) if "eval_success" in row]
    found = {}
    for share in QUARTERS:
        before = [row["eval_success"] for row in rows if row["env_steps"] < share * run.config.total_steps]
        found[f"success {share}"] = float(np.mean(before[-4:]))
    return of_one_seed(found) | result_cache.play_learned(run, folder, EPISODES, BATCH, "last")


def pillars_table(cache: ResultCache) -> str:
    """What attention and collision replay add among pillars, over training and at its end."""
    results = []
    for title, overrides in AMONG.items():
        metrics = cache.trained_by_seed(f"pillars {title}", ALGORITHM, [*PILLARS, *overrides], success_over_training, SEEDS)
        results.append((title, metrics))
    columns = {
        f"success at {share - 4 * EVERY:.0%} to {share - EVERY:.0%}, %": interval(f"success {share}", scale=100)
        for share in QUARTERS
    }
    final = {f"at the end: {name}": column for name, column in COLUMNS.items() if name not in ("return", "deadlock, %")}
    table = policy_table("", columns | final, results)
    done = {title: metrics for title, metrics in results if metrics}
    return f"{table}\n\n{success_picture(cache.folder, done)}" if done else table


def success_picture(folder: Path, results: Mapping[str, Metrics]) -> str:
    """Draws success over training beside the results, and links it."""
    rows = [
        {"setting": title, "seed": seed, "env_steps": (share - 2.5 * EVERY) * PILLARS_STEPS, "eval_success": success}
        for title, metrics in results.items()
        for share in QUARTERS
        for seed, success in enumerate(metrics[f"success {share}"]["mean"])
    ]
    path = folder / "pillars.png"
    learning_curve(rows, path, title="Success among pillars, greedy", units={"success": "%"})
    return f"![Success over training]({folder.name}/{path.name})"


PAGE = Page(
    name="swarm",
    title="`swarm`: results",
    intro="""Eight quadrotors unless a section says otherwise (coverage: five point masses), 15 s (coverage: 5 s). Means over
drones, ± a 95 % t interval (over episodes for scripted policies, over seeds for learned ones). *Success*: reached the goal (mean
distance over some five steps below 0.5 m, or 1 m where it is the goal of all) and hit no drone and no obstacle after the first
1.5 s; coverage: landmarks with a drone within 0.5 m at the end. *m to the goal*: mean over the last second; coverage: from each
landmark to the nearest drone. *Deadlock*: hit nothing and did not arrive.""",
    sections=(
        Section(
            "Scripted policies",
            f"""{EPISODES} episodes. *PD* flies straight to the goal by the true state: position to acceleration, acceleration to
thrust axis, axis to body rates, rates to motors. *With repulsion* it is also pushed away from drones and obstacles within 0.5 m.
*Nearest landmark* does the same with a force, each drone towards the landmark nearest to it.""",
            {"scripted": scripted_table},
        ),
        Section(
            "Learned policies",
            f"""{SEEDS} seeds each (0–{SEEDS - 1}) of `python algos/{ALGORITHM}.py env=swarm env.preset=…` with its tuned values
(`configs/tuned/{ALGORITHM}_swarm.yaml`, coverage: `tuned=coverage`), greedy policies of the best evaluation, on the same
scenarios.""",
            {"learned": learned_table},
        ),
        Section(
            "Learning to hover",
            f"""One quadrotor, which starts within 2 m of its goal along each axis, with `tuned=alone`: 2 M steps, {SEEDS}
seeds each. Millions of steps until the greedy policy's mean distance over the last second of 32 frozen episodes, which are
played after every 25th of training, is small. The other rows change something: more environments in parallel, hence fewer
gradient steps (256 is what `tuned=standard` has for eight drones); observations that tell more of the current thrust, which
settles 0.15 s after an action; half of the starts within 0.2 m of the goal; a critic of the state without noise, and of the
motors.""",
            {"hovering": hovering_table},
            """Fewer environments, and so more gradient steps for as many environment steps, bring a drone within 0.3 m in a
third of the steps that 256 environments take in the longer training; within 2 M steps these never bring it within 0.1 m. For
eight drones nothing was gained: with one goal they came near it sooner with 64 environments than with 256, in single runs that
were not kept, but to hover they needed as long, so `tuned=standard` has kept 256. Policies that observe the motors, or that start
near the goal, hover about as soon as those that do not; a history of actions slows learning down, the more the longer it is,
although 16 tell nearly all about the thrust, and four two thirds. (A history begins with zeros, half thrust, while the motors are
off.) The critic of MAPPO, which knows the state without noise, does not make a drone hover sooner, nor does one that knows the
motors, too. "Learning to Fly in Seconds" (Eschmann et al. 2024) hovers after 0.3 M steps of an off-policy learner, TD3; its
curriculum of rewards was not tried.""",
        ),
        Section(
            "Learning among pillars",
            f"""Two quadrotors with goals of their own among pillars in a tenth of the cells, with `tuned=pillars`:
{PILLARS_STEPS / 1e6:g} M environment steps, twice as many of agents, {SEEDS} seeds each, ± a 95 % t interval. Rows differ in
what the paper's ablation drops: attention over neighbours and pillars (else `algo.encoder=flat`, an MLP), and collision replay
(`failure_replay.failures`). Success of the greedy policy in each quarter of training, the mean of four evaluations before its
end, and of the last policy on {EPISODES} frozen scenarios.""",
            {"pillars": pillars_table},
            """With attention over neighbours and pillars two drones succeed three times as often as without. Attention with
replay learns faster: in the second and third quarter of training the drones succeed twice as often. At the end the intervals
overlap, and without attention replay adds nothing. The eight drones of Huang et al. (2023; K = 2) among twice as many pillars
succeed in 95 %, without replay in 88 % and without attention as well in 79 %, after 10⁹ agent steps. Larger teams and denser
pillars were not trained.""",
        ),
    ),
)


if __name__ == "__main__":
    PAGE.main()
