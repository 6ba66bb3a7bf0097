"""Training as the command line does it: the compiled program in chunks, everything else between them on the host.

The numbers depend neither on where a chunk ends nor on what is logged, evaluated or saved there. A run killed at any moment goes
on from its last checkpoint to the very same parameters.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from rich.console import Console

from marljax.config import convert, trust
from marljax.config.overrides import ENV
from marljax.config.schema import Wandb
from marljax.config.settings import CUSTOM, Settings
from marljax.core.types import persistent_parts
from marljax.errors import UserError
from marljax.io import checkpoint, metrics_log, provenance, run_folder
from marljax.io.checkpoint import Purpose
from marljax.io.metrics_log import MetricsFile, Row, summarise
from marljax.testing.static import check_before_training, is_ours, scene_fault
from marljax.training.evaluation import Evaluator, score_of, suite_key
from marljax.training.interrupts import Stopper
from marljax.training.mesh import layout, make_mesh
from marljax.training.progress import LiveProgress, headline, say
from marljax.training.trainer import LONGEST, Members, Trainer
from marljax.training.wandb import WandbRuns
from marljax.utils import collectives, distributed, memory

# Groups of a configuration.
ENV_PARAMS = "env_params"
NUMBERS_DEPEND_ON = ("seed", "seeds", "sweep", "search", "eval", "failure_replay", "algo", "env", ENV_PARAMS)
# Of training: an untrained critic's values mean nothing. And by how much a critic may miss the largest value that there is.
IMPOSSIBLE_AFTER, IMPOSSIBLE_BY = 0.05, 1.1
MINUTES_WITH_REPLAY = 5.0  # between two checkpoints that hold a replay

Status = Literal["finished", "interrupted", "diverged"]


class Best(NamedTuple):
    """The evaluated parameters with the highest score so far, per member; arrays on the host."""

    params: Any  # [S, …]
    score: Any  # [S] float32, mean evaluation return; -inf before the first
    update: Any  # [S] int32 after which they were evaluated


class Saved(NamedTuple):
    """What a checkpoint holds."""

    members: Members
    best: Best


@dataclasses.dataclass
class Run:
    """A run in progress."""

    settings: Settings
    folder: Path
    trainer: Trainer
    members: Members
    best: Best
    update: int  # updates done
    largest_reward: np.ndarray  # [S] absolute, since this process began; NaN of members that have been warned of

    @property
    def names(self) -> list[str]:
        """What each member is called."""
        return [member.name for member in self.settings.members]

    @property
    def diverged(self) -> np.ndarray:
        """[S] bool."""
        return distributed.fetched(self.members.diverged_at) >= 0


@dataclasses.dataclass(frozen=True)
class Ended:
    """How ``train`` came to its end."""

    run: Run
    status: Status
    folder: Path  # to be continued: of the run, or of the whole that it is a batch of
    signal: int = 0  # that interrupted it


def train(settings: Settings, console: Console, folder: Path | None = None) -> Ended:
    """Trains until all updates are done, every member has diverged, or a signal asks to stop.

    The run folder is a new one, that of ``resume``, or ``folder``, where one stands perhaps already; what has been saved there
    is continued.
    """
    trainer = make_trainer(settings)
    check_sizes(trainer, settings)
    with ExitStack() as stack:
        folder = entered(stack, settings, folder)
        run = start(settings, folder, trainer, console)
        trust.mark(folder, settings.tree, convert.to_builtin(Wandb()))
        session = stack.enter_context(provenance.recorded(folder, own_sources(settings)))
        wandb = distributed.together(lambda: WandbRuns(settings, folder, lambda line: say(console, line)))
        stack.callback(wandb.finish)
        announce(run, console)
        log = distributed.together(
            lambda: MetricsFile(folder, run.update or -1)
        )  # one that begins anew writes its first row again
        stopper = stack.enter_context(Stopper(console))
        steps = trainer.steps_per_update
        progress = stack.enter_context(LiveProgress(console, trainer.num_updates * steps, run.update * steps, many(settings)))

        def record(rows: list[Row]) -> None:
            distributed.together(lambda: log.append(rows))
            wandb.append(rows)

        status = session.status = run_chunks(run, progress, record, stopper)
        wandb.conclude(best_figures(run))
        return Ended(run, status, run.folder, stopper.agreed())


def check_environment(settings: Settings, console: Console) -> None:
    """Raises ``UserError`` where a user's environment breaks the contract; says where only its pictures do, or there are none."""
    env, env_params = settings.bare_env, settings.env_params
    check_before_training(env, env_params)
    if settings.run.render and not is_ours(env) and (fault := scene_fault(env, env_params)):
        say(console, f"no animation: {fault}")


def make_trainer(settings: Settings) -> Trainer:
    """The training program on the mesh that the settings ask for."""
    wanted, there = settings.run.mesh, jax.device_count()
    count: Any = there if settings.run.devices == "all" else settings.run.devices
    seed, data = layout(count, wanted.seed, wanted.data, len(settings.members))
    if seed * data > there:
        more = "; JAX_NUM_CPU_DEVICES=8 in front of the command makes eight of a CPU" if jax.default_backend() == "cpu" else ""
        raise UserError(f"{seed * data} devices are asked for (mesh.seed={seed} × mesh.data={data}), and there are {there}{more}")
    if jax.process_count() > 1 and seed * data < there:
        raise UserError(f"{seed * data} of {there} devices are asked for; a distributed run takes all of them, devices=all")
    return Trainer(settings.algorithm, settings.training_env, settings.config, make_mesh(seed, data))


def check_sizes(trainer: Trainer, settings: Settings) -> None:
    """Raises ``UserError`` for sizes that do not fit, before anything is written.

    It traces the program that ``run_chunks`` compiles, on the same shapes, so that the trace is made once.
    """

    def start_and_run(*given: Any) -> Any:
        return trainer.run(trainer.init(*given), chunk_of(settings, trainer))

    members, _ = jax.eval_shape(start_and_run, *member_inputs(settings))
    remedy = "lower algo.num_envs or seeds"
    if hasattr(settings.config, "buffer_size"):
        remedy = "lower algo.buffer_size or seeds, or take algo.buffer_dtype=bfloat16"
    memory.check(memory.size(members) * memory.sharing(trainer.mesh) // trainer.mesh.size, many(settings), remedy)


def many(settings: Settings) -> str:
    """How many runs train at once: ``4 seeds``, ``6 settings × 4 seeds``."""
    trials, seeds = settings.run.search.tried, convert.counted(settings.run.seeds, "seed")
    if settings.run.search.batch is not None:
        return convert.counted(len(settings.members), "member")
    return f"{convert.counted(len(trials), 'setting')} × {seeds}" if trials else seeds


def member_inputs(settings: Settings) -> tuple[jax.Array, Any, dict[str, np.ndarray]]:
    """What ``Trainer.init`` takes: keys [S], the environment's numbers, and in what members differ.

    A member with seed i is what a run of its own with that seed would be.
    """
    return jax.vmap(jax.random.key)(np.array(settings.seeds, np.uint32)), settings.training_params, settings.overrides


def own_sources(settings: Settings) -> dict[str, Path]:
    """The files of the modules that ``env.target`` and ``algo.target`` name, by these names."""
    modules = {key: sys.modules.get(target.partition(":")[0]) for key, target in trust.targets(settings.tree).items()}
    files = {key: getattr(module, "__file__", None) for key, module in modules.items()}
    return {key: Path(file) for key, file in files.items() if file}


def purpose_of(settings: Settings) -> Purpose:
    """What this run's checkpoints are for."""
    name = f"{CUSTOM} {settings.tree['env']['target']}" if settings.env_name == CUSTOM else settings.env_name
    return Purpose(settings.algo, name, settings.env.version)


def entered(stack: ExitStack, settings: Settings, folder: Path | None) -> Path:
    """The run folder, which the first process makes and locks."""
    return distributed.first_does(
        lambda: stack.enter_context(opened(settings) if folder is None else run_folder.locked(folder)),
    )


@contextmanager
def opened(settings: Settings) -> Iterator[Path]:
    """The folder to continue, or a new one, with its lock; a new one disappears if the run ends before it has saved anything."""
    if settings.run.resume is not None:
        with run_folder.locked(Path(settings.run.resume)) as folder:
            yield folder
        return
    root = Path(settings.run.runs)
    new = [path for path in (root / settings.title, root) if not path.exists()]
    folder = run_folder.create(root, settings.title, settings.run.name)
    try:
        with run_folder.locked(folder):
            yield folder
    except UserError:
        if not any(folder.rglob(f"{run_folder.CHECKPOINTS}/*/{checkpoint.MANIFEST}")):
            run_folder.remove(folder, *new)
        raise


def start(settings: Settings, folder: Path, trainer: Trainer, console: Console) -> Run:
    """Fresh members, or those of the newest good checkpoint."""
    saved = folder / run_folder.CHECKPOINTS
    found = checkpoint.checkpoints(saved)
    shapes = saved_shapes(trainer, settings)
    ahead = ahead_of(folder, settings, shapes.members, found)
    if not found:
        if ahead:
            raise UserError(f"{ahead}; put {saved} back, or start a new run")
        if (folder / run_folder.CONFIG).exists():
            check_unchanged(folder, {}, settings)
            say(console, "nothing was saved yet; starting from the beginning")
        distributed.first_writes(lambda: begin(folder, settings))
        members = trainer.init(*member_inputs(settings))
        return Run(settings, folder, trainer, members, no_best(members), 0, np.zeros(len(settings.members)))
    notes = checkpoint.newest_notes(saved)
    check_unchanged(folder, notes, settings)
    if (was := notes.get("devices", devices_of(trainer))) != devices_of(trainer):
        say(console, f"warning: going on on {devices_of(trainer)} instead of {was}; numbers may differ")
    restored = checkpoint.restore(saved, shapes, purpose_of(settings))
    rows = metrics_log.altered(folder, restored.notes.get("metrics"), restored.update)
    for warning in (*restored.warnings, ahead and f"{ahead}; going on from there", rows):
        if warning:
            say(console, f"warning: {warning}")
    best = distributed.fetched(restored.tree.best)
    unknown = np.zeros(len(settings.members))
    return Run(settings, folder, trainer, restored.tree.members, best, restored.update, unknown)


def begin(folder: Path, settings: Settings) -> None:
    """What stands in a run folder before its first row."""
    run_folder.write_config(folder, settings.tree)
    run_folder.note_saved(folder, 0)


def ahead_of(folder: Path, settings: Settings, members: Members, found: Sequence[Path]) -> str | None:
    """Where a run had got further than its newest checkpoint can be: what says so.

    A kill costs what came after the newest checkpoint, at most an interval and a chunk. More is missing where checkpoints were
    deleted, or where old ones were put in their place.
    """
    newest, saved = int(found[0].name) if found else 0, run_folder.last_saved(folder)
    there = f"the newest that is there is of update {newest}" if found else "there is none"
    if saved is not None and saved > newest:
        return f"{folder} had a checkpoint of update {saved}, and {there}"
    if not found and (folder / run_folder.RESULTS).exists():
        return f"{folder} has results of a run that has ended, but no checkpoint"
    if saved is not None or settings.run.checkpoint.minutes or persistent_parts(members.state):
        return None
    rows = max((row["update"] for row in metrics_log.read_rows(folder)), default=0)
    total = settings.config.num_updates
    interval = max(settings.run.checkpoint.every * total, 1) if settings.run.checkpoint.every else total
    chunk = settings.run.chunk or chunk_length(total)
    return f"{folder} has rows up to update {rows}, and of its checkpoints {there}" if rows - newest > interval + chunk else None


def devices_of(trainer: Trainer) -> str:
    """What a run computes on, as far as its numbers may depend on it."""
    mesh = trainer.mesh
    return f"{mesh.shape[collectives.SEED]} × {mesh.shape[collectives.DATA]} devices ({mesh.devices.flat[0].device_kind})"


def saved_shapes(trainer: Trainer, settings: Settings) -> Saved:
    """What a checkpoint holds, as ``jax.ShapeDtypeStruct``."""
    members = trainer.shapes(*member_inputs(settings))
    score, update = (jax.ShapeDtypeStruct((len(settings.members),), dtype) for dtype in (np.float32, np.int32))
    return Saved(members, Best(members.state.learner.params, score, update))


def check_unchanged(folder: Path, notes: dict[str, Any], settings: Settings) -> None:
    """Refuses a run whose ``config.yaml`` was edited: it would go on as another one."""
    for line in (edited(notes, settings) | changed(folder, notes, settings)).values():
        raise UserError(f"{folder}: {line}; set it back, or start a new run")


def changed(folder: Path, notes: dict[str, Any], settings: Settings) -> dict[str, str]:
    """By name, what was another setting when a checkpoint with these notes was saved, and what it was.

    What the checkpoint's configuration does not have was no setting then, and is not compared; only of the environment
    everything that is set stands there.
    """
    saved = notes.get("settings")
    saved = saved if isinstance(saved, dict) else {}
    groups = [group for group in NUMBERS_DEPEND_ON if group in saved]
    try:
        before, now = (convert.flatten({group: tree[group] for group in groups}) for tree in (saved, settings.tree))
    except RecursionError as error:
        raise UserError(f"{folder}: the settings in its checkpoints are not what marljax writes; they nest too deep") from error
    lines = {name: f"{name} was {was} and is {now.get(name)}" for name, was in before.items() if was != now.get(name)}
    added = [name for name in now if name.startswith(ENV) and name not in before and now[name] is not None]
    return {name: f"{name} was not set and is {now[name]}" for name in added} | lines


def edited(notes: dict[str, Any], settings: Settings) -> dict[str, str]:
    """By name, the numbers under ``env_params`` in ``config.yaml`` that are neither those of a checkpoint with these notes nor
    what the environment gives: nothing reads them there, so that such a change would go unnoticed."""
    saved = notes.get("settings")
    before = saved.get(ENV_PARAMS) if isinstance(saved, dict) else None
    now = settings.tree[ENV_PARAMS]
    before = before if isinstance(before, dict) else now
    other = {name: value for name, value in settings.written.items() if value not in (before.get(name), now.get(name))}
    return {f"{ENV_PARAMS}.{name}": f"{ENV_PARAMS}.{name} was {before.get(name)} and is {value}" for name, value in other.items()}


def no_best(members: Members) -> Best:
    """Before the first evaluation."""
    count = members.diverged_at.shape[0]
    params = distributed.fetched(members.state.learner.params)
    return Best(params, np.full(count, -np.inf, np.float32), np.zeros(count, np.int32))


def announce(run: Run, console: Console) -> None:
    """What is about to happen."""
    settings, trainer = run.settings, run.trainer
    steps, asked = trainer.num_updates * trainer.steps_per_update, settings.config.total_steps
    rounded = f" (total_steps={asked:,} rounded up to whole updates)" if steps != asked else ""
    members = f", {many(settings)}" if len(settings.members) > 1 else ""
    device = jax.devices()[0].device_kind + (f" × {trainer.mesh.size}" if trainer.mesh.size > 1 else "")
    updates = convert.counted(trainer.num_updates, "update")
    say(console, f"{settings.label}: {steps:,} steps in {updates}{rounded}{members}, on {device}")
    if replayed := sum(map(memory.size, persistent_parts(run.members.state))):
        each = memory.shown(replayed // len(settings.members))
        say(console, f"kept to be replayed: {each} per seed, in memory and in checkpoints")
    say(console, f"{'continuing' if settings.run.resume else 'run folder'}: {run.folder}")
    if run.update:
        say(console, f"{convert.counted(run.update, 'update')} done already")


def run_chunks(run: Run, progress: LiveProgress, record: Callable[[list[Row]], None], stopper: "Stopper") -> Status:
    """Advances ``run`` in place to its end; returns the status."""
    settings, trainer = run.settings, run.trainer
    total, evaluation = trainer.num_updates, settings.run.eval
    evaluator = Evaluator(settings.env, evaluation.episodes)
    chunk, minutes = chunk_of(settings, trainer), minutes_between_checkpoints(run)
    compiled: set[int] = set()  # lengths of chunks; the first of each says nothing about speed
    speed: float | None = None
    saved, wanted = time.monotonic(), False
    if run.update == 0 and evaluation.every:
        record(rows_of(run, {}, evaluate(run, evaluator)))
    while run.update < total:
        before, begun = run.update, time.monotonic()
        frozen = run.diverged
        run.members, metrics = trainer.run(run.members, min(chunk, total - before))
        metrics = distributed.fetched(metrics)
        seconds, run.update = time.monotonic() - begun, min(before + chunk, total)
        report_divergence(run, frozen, progress.say)
        report_impossible_values(run, metrics, progress.say)
        evaluated = due(before, run.update, evaluation.every, total)
        rows = rows_of(run, metrics, evaluate(run, evaluator) if evaluated else {})
        record(rows)
        if run.update - before in compiled:
            speed = (run.update - before) * trainer.steps_per_update / seconds
        compiled.add(run.update - before)
        figures = headline(mean_row(rows), trainer.env.display.metrics, trainer.env.display.units)
        progress.update(run.update * trainer.steps_per_update, speed, figures)
        if run.diverged.all():
            save(run)  # frozen members are the last good ones, perhaps of a run that has no checkpoint yet
            return "diverged"
        wanted |= due(before, run.update, settings.run.checkpoint.every, total)
        spaced = time.monotonic() - saved >= 60 * minutes
        stop = stopper.agreed()  # once: a signal that comes now waits for the next chunk and its checkpoint
        if stop or run.update == total or distributed.largest(wanted and spaced):
            save(run)
            saved, wanted = time.monotonic(), False
        if stop and run.update < total:
            return "interrupted"
    return "diverged" if run.diverged.all() else "finished"


def chunk_of(settings: Settings, trainer: Trainer) -> int:
    """Updates between two looks of the host."""
    return min(settings.run.chunk or chunk_length(trainer.num_updates), trainer.num_updates)


def minutes_between_checkpoints(run: Run) -> float:
    """At least so many; a replay is saved whole each time, and that takes long."""
    asked = run.settings.run.checkpoint.minutes
    if asked is None:
        return MINUTES_WITH_REPLAY if persistent_parts(run.members.state) else 0.0
    return asked


def chunk_length(total: int) -> int:
    """About 1 % of training, and if possible a divisor of it: a last chunk of another length would compile once more."""
    target = min(max(total // 100, 1), LONGEST)
    near = range(max(target // 4, 1), min(4 * target, LONGEST) + 1)
    divisors = [length for length in near if total % length == 0]
    return min(divisors, key=lambda length: max(length / target, target / length), default=target)


def due(before: int, after: int, every: float, total: int) -> bool:
    """Whether updates ``before + 1 … after`` hold a multiple of the fraction ``every`` of ``total``, or the end."""
    if after >= total:
        return True
    interval = max(every * total, 1)
    return bool(every) and after // interval > before // interval


def evaluate(run: Run, evaluator: Evaluator) -> dict[str, np.ndarray]:
    """Metrics [S, episodes] of the current greedy policies on the frozen suite; keeps the best parameters of every member.

    A policy that plays itself wins what it loses: where teams compete the newest parameters count as the best.
    """
    params = distributed.gathered(run.members.state.learner.params)
    results = play_suite(run.settings, evaluator, params, 0)
    score = score_of(results).mean(-1).astype(np.float32)
    better = ((score > run.best.score) | run.settings.env.competitive) & ~run.diverged
    if better.any():
        kept = choose(better, params, run.best.params)
        updates = np.where(better, run.update, run.best.update).astype(np.int32)
        run.best = Best(kept, np.where(better, score, run.best.score), updates)
    return results


def choose(first: np.ndarray, params: Any, others: Any) -> Any:
    """Parameters [S, …] on the host: member by member ``params`` where ``first`` [S] holds, ``others`` elsewhere."""

    def pick(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(first.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return jax.tree.map(pick, *jax.device_get((params, others)))


def best_figures(run: Run) -> list[Row]:
    """The best evaluation of each member that had one: its score and the update it came after."""
    return [
        member.place | {"best_eval_score": float(score), "best_update": int(update)}
        for member, score, update in zip(run.settings.members, run.best.score, run.best.update, strict=True)
        if np.isfinite(score)
    ]


def best_or_last(best: Best, last: Any) -> Any:
    """The best parameters [S, …]; a seed that was never evaluated has none, and its ``last`` ones stand in."""
    return choose(np.isfinite(best.score), best.params, last)


def best_updates(best: Best, last: int) -> np.ndarray:
    """[S] after which update the parameters of ``best_or_last`` were taken."""
    return np.where(np.isfinite(best.score), best.update, last)


def same_parameters(one: Any, other: Any) -> bool:
    """Whether two trees of parameters [S, …] agree for every member."""
    return all(np.array_equal(*leaves) for leaves in zip(*map(jax.tree.leaves, jax.device_get((one, other))), strict=True))


def play_suite(settings: Settings, evaluator: Evaluator, params: Any, part: int) -> dict[str, np.ndarray]:
    """Metrics [S, episodes] of greedy policies with parameters [S, …] in one part of the frozen suite."""
    results = evaluator.learned(
        settings.algorithm, settings.config, params, settings.env_params, suite_key(part), overrides=settings.evaluation_overrides
    )
    return jax.device_get(results)


def rows_of(run: Run, metrics: dict[str, np.ndarray], evaluated: dict[str, np.ndarray]) -> list[Row]:
    """One row per member with something to say."""
    rows, diverged = [], run.diverged
    for index, member in enumerate(run.settings.members):
        figures = summarise(metrics, index) if metrics else {}
        if not diverged[index]:
            figures |= {f"eval_{name}": float(np.mean(values[index])) for name, values in evaluated.items()}
        if figures:
            moment = {"update": run.update, "env_steps": run.update * run.trainer.steps_per_update}
            rows.append(member.place | moment | {"time": round(time.time(), 3)} | figures)
    return rows


def mean_row(rows: list[Row]) -> Row:
    """Figures averaged over seeds."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def report_divergence(run: Run, before: np.ndarray, tell: Callable[[str], None]) -> None:
    """Says of every member that diverged just now: when, in what, and what is kept."""
    at, which = distributed.fetched((run.members.diverged_at, run.members.diverged_in))
    for index in np.flatnonzero((at >= 0) & ~before):
        update, quantity = int(at[index]), run.trainer.quantities[int(which[index])]
        tell(
            f"{run.names[index]} diverged: {quantity} is not finite at update {update + 1}; "
            "it is frozen as it was before, and stands so in the checkpoints"
        )


def report_impossible_values(run: Run, metrics: dict[str, np.ndarray], tell: Callable[[str], None]) -> None:
    """Warns once of every member whose critic says more than any policy can earn: max |r| / (1 − γ).

    Such values feed on themselves, as where final observations, which no return is known of, are bootstrapped from.
    """
    if not {"max_value", "max_reward"} <= metrics.keys():
        return
    rewards = np.nan_to_num(metrics["max_reward"]).max(-1)  # NaN after a divergence
    run.largest_reward = np.maximum(run.largest_reward, rewards)
    if run.update < IMPOSSIBLE_AFTER * run.trainer.num_updates:
        return
    gamma = distributed.fetched(run.members.config.gamma)
    values = np.nan_to_num(metrics["max_value"][:, -1])
    for index in np.flatnonzero((1.0 - gamma) * values > IMPOSSIBLE_BY * run.largest_reward):
        reward, name = run.largest_reward[index], run.names[index]
        if not reward:
            continue
        tell(
            f"warning: {name} expects returns of {values[index]:.3g}, but no reward was larger than {reward:.3g}, which makes "
            f"{reward / (1.0 - gamma[index]):.3g} at most; its values feed on themselves: lower algo.learning_rate or "
            "algo.gamma, or take algo.bootstrap_limit=false"
        )
        run.largest_reward[index] = np.nan


def save(run: Run) -> None:
    """A checkpoint of everything that the rest of the run depends on."""
    notes = {
        "env_steps": run.update * run.trainer.steps_per_update,
        "best_score": [float(score) if np.isfinite(score) else None for score in run.best.score],
        "best_update": run.best.update.tolist(),
        "settings": run.settings.tree,
        "devices": devices_of(run.trainer),
        "metrics": metrics_log.fingerprint(run.folder),
    }
    keep = run.settings.run.checkpoint.keep
    checkpoint.save(
        run.folder / run_folder.CHECKPOINTS, run.update, Saved(run.members, run.best), purpose_of(run.settings), keep, notes
    )
    distributed.first_writes(lambda: run_folder.note_saved(run.folder, run.update))
