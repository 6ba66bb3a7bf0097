"""Programs compiled for accelerators that need not be there: ``python baselines/accelerator.py [table …]`` writes
baselines/results/accelerator.md. It needs their compilers: ``pip install -e ".[aot]"``.

Results are kept in baselines/results/accelerator; delete those that a change of the code concerns."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import marljax
from marljax.algos import ippo, ppo, qmix
from marljax.aot import runs, targets
from marljax.aot.targets import Compiled
from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, partial_table
from marljax.config import compose
from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import TimeStep
from marljax.core.vector import vectorize
from marljax.errors import UserError
from marljax.training.evaluation import RandomPolicy
from marljax.training.trainer import lean_tracing

STEPS = 32  # of a rollout; any number gives the same loop body
TARGET = "h100"


class EnvironmentSetting(NamedTuple):
    """A setting of an environment and the number of its instances."""

    title: str
    overrides: tuple[str, ...]
    num_envs: int


ENVIRONMENTS = (
    EnvironmentSetting("smax 3m", ("env=smax", "env.scenario=3m"), 8192),
    EnvironmentSetting("smax 3m, kernels=pallas", ("env=smax", "env.scenario=3m", "env.kernels=pallas"), 8192),
    EnvironmentSetting("smax 2s3z", ("env=smax", "env.scenario=2s3z"), 8192),
    EnvironmentSetting("smax 2s3z, kernels=pallas", ("env=smax", "env.scenario=2s3z", "env.kernels=pallas"), 8192),
    EnvironmentSetting("smax 27m_vs_30m", ("env=smax", "env.scenario=27m_vs_30m"), 8192),
    EnvironmentSetting("merge hard", ("env=merge", "env.density=hard"), 8192),
    EnvironmentSetting("swarm, obstacles", ("env=swarm", "env.preset=obstacles"), 4096),
    EnvironmentSetting("collective", ("env=collective",), 1024),
    EnvironmentSetting("ride_dispatch, 1000 vehicles", ("env=ride_dispatch", "env.preset=manhattan-1000"), 64),
)
JAXMARL = ("3m", "2s3z")  # scenarios of JaxMARL's SMAX
COMPARED = {  # training loops at equal settings, and whose the other is
    "PPO, CartPole": "PureJaxRL's",
    "IPPO, simple_spread": "JaxMARL's",
    "QMIX, simple_spread": "JaxMARL's",
    "recurrent IPPO, smax 3m": "JaxMARL's",
}
# Algorithm, overrides, targets. The environments per device are those of the tuned or default settings unless given.
RUNS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "ppo CartPole": ("ppo", ("env=gymnax/CartPole-v1",), ("h100", "v5e-1")),
    "ippo swarm": ("ippo", ("env=swarm",), ("h100", "v5e-1")),
    "ippo collective": ("ippo", ("env=collective",), ("h100", "v5e-1")),
    "mappo smax 3m": ("mappo", ("env=smax", "env.scenario=3m"), ("h100", "v5e-1")),
    "mappo smax 3m, kernels=pallas": ("mappo", ("env=smax", "env.scenario=3m", "env.kernels=pallas"), ("h100",)),
    "mappo merge": ("mappo", ("env=merge",), ("h100", "v5e-1")),
    "mappo merge, 4,096 environments": ("mappo", ("env=merge", "algo.num_envs=4096"), ("h100x8", "v5e-256")),
    "qmix smax 3m": ("qmix", ("env=smax", "env.scenario=3m"), ("h100", "v5e-1")),
    "ospo ride_dispatch": ("ospo", ("env=ride_dispatch", "algo.num_envs=8"), ("h100", "v5e-1")),
}


def learner_outputs(env: Environment, timestep: TimeStep) -> tuple[Any, ...]:
    """What a learner stores of a timestep; masks only of discrete actions."""
    mask = timestep.action_mask if isinstance(env.action_space, Discrete) else ()
    return timestep.obs, mask, timestep.reward, timestep.alive, timestep.terminated, timestep.last


def random_rollout(setting: EnvironmentSetting) -> tuple[Callable, tuple[Any, ...]]:
    """A rollout of random actions with its outputs stacked, and the shapes of its inputs."""
    run = compose.compose("ippo", setting.overrides)
    vec, policy = vectorize(run.env, setting.num_envs), RandomPolicy(run.env)

    def rollout(key: jax.Array, carry: Any, env_params: Any) -> tuple[Any, Any]:
        def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
            (state, timestep), (key_action, key_step) = carry, jax.random.split(key)
            action, _ = policy(key_action, state, timestep, ())
            state, timestep = vec.step(key_step, state, action, env_params)
            return (vec.carried(state), timestep), learner_outputs(run.env, timestep)

        return jax.lax.scan(step, carry, jax.random.split(key, STEPS))

    key = jax.eval_shape(lambda: jax.random.key(0))
    env_params = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, run.env_params))
    return rollout, (key, jax.eval_shape(vec.reset, key, env_params), env_params)


def jaxmarl_rollout(scenario: str, num_envs: int) -> tuple[Callable, tuple[Any, ...]]:
    """The same of JaxMARL's SMAX."""
    from marljax.baselines.rivals.smax import random_step
    from marljax.envs.smax import Smax

    start, advance = random_step(Smax(scenario=scenario), num_envs)

    def rollout(key: jax.Array, carry: Any) -> tuple[Any, Any]:
        def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
            carry, outputs, _ = advance(None, carry, key)
            return carry, (carry[0], *outputs)

        return jax.lax.scan(step, carry, jax.random.split(key, STEPS))

    key = jax.eval_shape(lambda: jax.random.key(0))
    return rollout, (key, jax.eval_shape(lambda key: start(key, None), key))


def compile_rollout(rollout: Callable, shapes: tuple[Any, ...]) -> tuple[Compiled, float]:
    """The compiled rollout and the seconds that took."""
    target, begun = targets.target_named(TARGET), time.monotonic()
    with lean_tracing():
        lowered = jax.jit(rollout, donate_argnums=1).lower(*targets.on_one_device(target, shapes))
    compiled = targets.compile_for(target, lowered)
    return compiled, time.monotonic() - begun


def step_result(cache: ResultCache, name: str, num_envs: int, make: Callable[[], tuple[Callable, tuple[Any, ...]]]) -> Any:
    """Work of a step of all instances, from the compiled rollout."""

    def compute() -> dict[str, Any]:
        compiled, seconds = compile_rollout(*make())
        loop = max((loop for loop in compiled.program.inner if loop.trip_count == STEPS), key=lambda loop: loop.work.seconds)
        return {"compile_seconds": seconds, **dataclasses.asdict(loop.work)}

    about = {"target": TARGET, "num_envs": num_envs, "jax": version("jax")}
    return cache.get(f"step {name}", about, compute)


def environment_table(cache: ResultCache) -> str:
    """Steps of environments, ours and JaxMARL's."""
    results = {
        (setting.title, setting.num_envs): step_result(
            cache, setting.title, setting.num_envs, functools.partial(random_rollout, setting)
        )
        for setting in ENVIRONMENTS
    }
    for scenario in JAXMARL:
        title = f"JaxMARL's SMAX {scenario}"
        results[title, 8192] = step_result(cache, title, 8192, functools.partial(jaxmarl_rollout, scenario, 8192))
    rows: list[list[str] | str] = []
    for (title, num_envs), work in results.items():
        if work is None:
            rows.append(title)
            continue
        rate = num_envs / work["seconds"] / 1e6
        measures = [f"{work['kernels']:,.0f}", f"{work['bytes'] / 1e6:,.0f}", f"{1e6 * work['seconds']:,.0f}", f"{rate:.1f}"]
        rows.append([title, f"{num_envs:,}", *measures, f"{work['compile_seconds']:.0f}"])
    header = ["environment", "instances", "kernels", "MB", "µs", "M steps/s, estimate", "compile, s"]
    return partial_table(header, rows)


def run_result(cache: ResultCache, name: str, algo: str, overrides: tuple[str, ...], target: str) -> Any:
    """The training program of a run, compiled for a target; what the compiler said where it gave up."""

    def compute() -> dict[str, Any]:
        settings, accelerator = compose.compose(algo, overrides), targets.target_named(target)
        try:
            report = runs.compile_run(settings, accelerator)
        except UserError as error:
            return {"error": str(error)}
        compiled = report.compiled
        return {
            "compile_seconds": report.compile_seconds,
            "memory": compiled.memory,
            "temporaries": compiled.temporaries,
            "steps_per_update": report.steps_per_update,
            "update": dataclasses.asdict(report.update),
            "rollout_step": dataclasses.asdict(report.rollout_step) if report.rollout_step else None,
            "minibatch": dataclasses.asdict(report.minibatch) if report.minibatch else None,
        }

    about = {"algo": algo, "overrides": list(overrides), "target": target, "jax": version("jax")}
    return cache.get(f"run {name} {target}", about, compute)


def training_table(cache: ResultCache) -> str:
    """Training programs of every algorithm and environment."""

    def work(part: dict[str, float] | None) -> list[str]:
        return [f"{part['kernels']:,.0f}", f"{part['bytes'] / 1e6:,.1f}"] if part else ["–", "–"]

    rows: list[list[str] | str] = []
    failed: list[str] = []
    for name, (algo, overrides, names) in RUNS.items():
        for target in names:
            result = run_result(cache, name, algo, overrides, target)
            if result is None:
                rows.append(f"{name} on {target}")
                continue
            if "error" in result:
                failed.append(f"{name} on {target}: {result['error']}.")
                continue
            update, minibatch = result["update"], result["minibatch"]
            rate = f"{result['steps_per_update'] / update['seconds'] / 1e6:.2f}" if targets.TARGETS[target].launch else "–"
            collectives = [f"{minibatch['collectives']:.0f}" if minibatch else "–", f"{update['collectives']:,.0f}"]
            memory = f"{result['memory'] / 1e6:,.0f}"
            compiling = f"{result['compile_seconds']:.0f}"
            rows.append([name, target, memory, *work(result["rollout_step"]), *work(minibatch), *collectives, rate, compiling])
    header = ["run", "target", "memory, MB", "kernels per step", "MB", "kernels per minibatch", "MB", "collectives", "per update"]
    return partial_table([*header, "M steps/s, estimate", "compile, s"], rows, *failed)


class Program(NamedTuple):
    """A training program, lowered for the target, and the environment steps of one of its updates."""

    lowered: jax.stages.Lowered
    steps: int


def our_program(algorithm: ModuleType, env: Environment, config: Any) -> Program:
    """An algorithm of ours."""
    lowered = runs.lower_training(algorithm, env, config, env.default_params, targets.target_named(TARGET))
    return Program(lowered, config.steps_per_update)


def their_program(init: Callable[[jax.Array], Any], update: Callable[[Any], Any], config: Any) -> Program:
    """Another library's loop, of ``init(key)`` and ``update(state)``."""

    @functools.partial(jax.jit, donate_argnums=0)
    def updates(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: update(state), state, length=2)

    state = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    return Program(updates.lower(targets.on_one_device(targets.target_named(TARGET), state)), config.steps_per_update)


def compared_programs(name: str) -> tuple[Callable[[], Program], Callable[[], Program]]:
    """Our loop and the other one of ``COMPARED``, at the settings of the pages that compare them."""
    import gymnax

    from marljax.baselines import cartpole, jaxmarl_compare, qmix_compare, smax_race
    from marljax.baselines.rivals import ippo as jaxmarl_ippo
    from marljax.baselines.rivals import ppo as purejaxrl
    from marljax.baselines.rivals import qmix as jaxmarl_qmix
    from marljax.baselines.rivals import rnn_ppo

    def of_module(module: ModuleType, env: Any, config: Any) -> Program:
        return their_program(functools.partial(module.init, env, config), functools.partial(module.update, env, config), config)

    ours: Any
    theirs: Any
    if name == "PPO, CartPole":
        ours, theirs = cartpole.configs(cartpole.PLAN)
        return (
            lambda: our_program(ppo, cartpole.our_env(), ours),
            lambda: of_module(purejaxrl, gymnax.make(cartpole.NAME)[0], theirs),
        )
    if name == "IPPO, simple_spread":
        ours, theirs = jaxmarl_compare.configs(jaxmarl_compare.PLAN)
        return (
            lambda: our_program(ippo, jaxmarl_compare.our_env(), ours),
            lambda: of_module(jaxmarl_ippo, jaxmarl_compare.their_env(), theirs),
        )
    if name == "QMIX, simple_spread":
        ours, theirs = qmix_compare.configs(qmix_compare.PLAN, "qmix")
        return (
            lambda: our_program(qmix, qmix_compare.our_env(), ours),
            lambda: of_module(jaxmarl_qmix, qmix_compare.their_env(), theirs),
        )
    run = marljax.tuned("ippo", "smax", "env.scenario=3m", *smax_race.overrides("same", "ippo"))
    trainer = rnn_ppo.Trainer(smax_race.their_settings("ippo", "3m"))
    return (
        lambda: our_program(ippo, run.env, run.config),
        lambda: their_program(trainer.init, trainer.update, trainer.settings),
    )


def compared_table(cache: ResultCache) -> str:
    """Updates of training loops at equal settings."""

    def compute(make: Callable[[], Program]) -> dict[str, Any]:
        begun, program = time.monotonic(), make()
        compiled = targets.compile_for(targets.target_named(TARGET), program.lowered)
        work = dataclasses.asdict(compiled.program.update.work)
        return {"compile_seconds": time.monotonic() - begun, "steps": program.steps, **work}

    rows: list[list[str] | str] = []
    about = {"target": TARGET, "jax": version("jax")}
    for name, owner in COMPARED.items():
        titles = ("marljax", f"{owner} loop")
        results: dict[str, Any] = {
            title: cache.get(f"compared {name} {title}", about, functools.partial(compute, make))
            for title, make in zip(titles, compared_programs(name), strict=True)
        }
        rates = [work["steps"] / work["seconds"] if work else math.nan for work in results.values()]
        for (title, work), rate in zip(results.items(), rates, strict=True):
            if work is None:
                rows.append(f"{name}, {title}")
                continue
            measures = [f"{work['kernels']:,.0f}", f"{work['bytes'] / 1e6:,.0f}", f"{1e3 * work['seconds']:,.1f}"]
            rows.append([name, title, *measures, f"{rate / 1e6:.2f}", f"{rate / rates[1]:.1f}", f"{work['compile_seconds']:.0f}"])
    header = ["training", "loop", "kernels per update", "MB", "ms", "M steps/s, estimate", "ratio", "compile, s"]
    return partial_table(header, rows)


PAGE = Page(
    name="accelerator",
    title="Programs compiled for accelerators",
    intro="""Apart from compile times, on two cores that did other work as well, nothing on this page was measured: XLA compiled
the programs for hardware that was not there, and the optimised HLO was counted. A kernel is one launch of a GPU; its bytes are
those of operands and results, with slices and updates in place by the part that moves. The estimate is the sum over kernels of
the larger of 2 µs, a launch, and their bytes at the memory's 3.35 TB/s; it leaves out arithmetic, the host and gaps between
kernels. TPUs launch nothing one by one: no estimate.""",
    sections=(
        Section(
            "Environments on an H100",
            f"""A step of all instances under random actions, in a rollout of {STEPS} steps that stacks observations, masks of
discrete actions, rewards and ends as a learner does.""",
            {"environments": environment_table},
        ),
        Section(
            "Training",
            """Tuned or default settings. Memory, kernels and bytes per device; a step of all its environments, policy included;
a minibatch, or a gradient step of QMIX; collectives of a minibatch and of a whole update. The estimate is for all devices.""",
            {"training": training_table},
        ),
        Section(
            "Training loops compared",
            """One update on an H100, at the settings of the pages that compare speed and returns on a CPU; the others' loops are
reimplemented on their own environments and APIs (`baselines/rivals`).""",
            {"compared": compared_table},
        ),
    ),
    uncached=("environments", "training", "compared"),
)

if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    PAGE.main()
