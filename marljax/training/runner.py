"""A training run: compiled chunks of updates, and between them logging, evaluation and checkpoints on the host.

Results depend neither on the chunk length nor on what is logged, evaluated or saved. A run that is killed at any time resumes
from its last checkpoint to bitwise the same parameters.

Axis letter: S replicas (runs of a batch, which train in one program).
"""

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console

from marljax.config import compose, convert, trust
from marljax.config.settings import Settings
from marljax.core.types import persistent_parts
from marljax.errors import UserError
from marljax.io import cache, checkpoint, metrics_log, provenance, run_folder
from marljax.io.files import discard
from marljax.io.metrics_log import MetricsFile, Row, summarise
from marljax.testing.static import check_before_training, is_builtin, scene_error
from marljax.training.best import Best, choose
from marljax.training.evaluation import Evaluator, score_of, suite_key
from marljax.training.interrupts import Stopper
from marljax.training.load import starting_params
from marljax.training.mesh import layout, make_mesh
from marljax.training.policy_file import is_policy_file
from marljax.training.progress import LiveProgress, headline, print_line
from marljax.training.resume import (
    Saved,
    changed_settings,
    chunk_of,
    edited_params,
    extension_line,
    lost_progress,
    purpose_of,
    replica_inputs,
    saved_shapes,
    shorter,
)
from marljax.training.trackers import TensorBoardRuns, Tracker, WandbRuns
from marljax.training.trainer import Replicas, Trainer
from marljax.utils import collectives, distributed, memory

# Values are compared with rewards after this share of training, since those of an untrained critic mean nothing, and warned of
# where they exceed the largest possible return by this factor.
IMPOSSIBLE_AFTER, IMPOSSIBLE_FACTOR = 0.05, 1.1
MINUTES_WITH_REPLAY = 5.0  # at least, between two checkpoints that hold a replay buffer

Status = Literal["finished", "interrupted", "diverged"]


@dataclasses.dataclass
class Run:
    """A run in progress."""

    settings: Settings
    folder: Path
    trainer: Trainer
    replicas: Replicas
    best: Best
    update: int  # updates done
    largest_reward: np.ndarray  # [S] absolute, since this process began; NaN of replicas that were warned of
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)  # for run.json: what it goes beyond or starts from

    @property
    def names(self) -> list[str]:
        return [replica.name for replica in self.settings.replicas]

    @property
    def diverged(self) -> np.ndarray:
        """[S] bool."""
        return distributed.fetch(self.replicas.diverged_at) >= 0


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of ``train``."""

    run: Run
    status: Status
    folder: Path  # to resume: of the run, or of the whole that it is a batch of
    signal: int = 0  # that interrupted it
    error: BaseException | None = None  # of ``Watcher.on_log``, which interrupted it


def terminal_progress(run: Run, console: Console) -> LiveProgress:
    """The progress of a run in the terminal."""
    steps = run.trainer.steps_per_update
    return LiveProgress(console, run.trainer.num_updates * steps, run.update * steps, describe_runs(run.settings))


@dataclasses.dataclass(frozen=True)
class Watcher:
    """What follows a run on the host, between compiled chunks."""

    on_log: Callable[[Row], None] | None = None  # a user's: gets every row of ``metrics.jsonl``, in the first process
    progress: Callable[[Run, Console], LiveProgress] = terminal_progress


TERMINAL = Watcher()


# --- the run ----------------------------------------------------------------------------------------------------------


def train(settings: Settings, console: Console, folder: Path | None = None, watcher: Watcher = TERMINAL) -> RunResult:
    """Trains until all updates are done, every replica has diverged, or a signal or an error of ``on_log`` asks to stop.

    Continues the run in ``folder``, or that of ``resume``, from its newest good checkpoint if it has one; else the run folder is
    new.
    """
    trainer = make_trainer(settings)
    check_sizes(trainer, settings)
    with ExitStack() as stack:
        folder = open_run_folder(stack, settings, folder)
        run = start(settings, folder, trainer, console)
        trust.mark(folder, settings.tree)
        session = stack.enter_context(provenance.recorded(folder, own_sources(settings), run.origin))
        log = distributed.on_all_processes(lambda: MetricsFile(folder, run.update or -1))  # a new run writes its first row again
        trackers: list[Tracker] = []
        for kind in (TensorBoardRuns, WandbRuns):
            start_tracker = functools.partial(kind, settings, folder, lambda line: print_line(console, line))
            trackers.append(distributed.on_all_processes(start_tracker))
            stack.callback(trackers[-1].finish)
        announce(run, console)
        stopper = stack.enter_context(Stopper(console))
        progress = stack.enter_context(watcher.progress(run, console))

        def record(rows: list[Row]) -> None:
            distributed.on_all_processes(lambda: log.append(rows))
            for tracker in trackers:
                tracker.append(rows)
            if watcher.on_log is not None and distributed.is_first():
                for row in rows:
                    stopper.guard(watcher.on_log, dict(row))

        status = session.status = run_chunks(run, progress, record, stopper)
        bests = zip(settings.replicas, run.best.score, run.best.update, strict=True)
        final = [
            replica.row_key | {"best_eval_score": float(score), "best_update": int(update)}
            for replica, score, update in bests
            if np.isfinite(score)
        ]
        for tracker in trackers:
            tracker.conclude(final)
        return RunResult(run, status, run.folder, stopper.agreed(), stopper.error)


def run_chunks(run: Run, progress: LiveProgress, record: Callable[[list[Row]], None], stopper: Stopper) -> Status:
    """Advances ``run`` to its end, in place."""
    settings, trainer = run.settings, run.trainer
    total, steps_per_update, chunk = trainer.num_updates, trainer.steps_per_update, chunk_of(settings)
    evaluator = Evaluator(settings.env, settings.run.eval.episodes)
    minutes = settings.run.checkpoint.minutes
    if minutes is None:  # a replay buffer is saved whole each time, which takes long
        minutes = MINUTES_WITH_REPLAY if persistent_parts(run.replicas.state) else 0.0
    compiled: set[int] = set()  # chunk lengths; the first chunk of each includes compilation
    speed: float | None = None
    saved_at, save_due = time.monotonic(), False
    if run.update == 0 and settings.run.eval.every:
        record(rows_of(run, {}, evaluate(run, evaluator)))
        if stopper.agreed():  # before anything is compiled
            save(run)
            return "interrupted"
    while run.update < total:
        before, frozen, begin = run.update, run.diverged, time.monotonic()
        count = min(chunk, total - before)
        run.replicas, metrics = trainer.run(run.replicas, count)
        metrics = distributed.fetch(metrics)
        seconds = time.monotonic() - begin
        run.update += count
        report_divergence(run, frozen, progress.print_line)
        report_impossible_values(run, metrics, progress.print_line)

        evaluated = crosses_interval(before, run.update, settings.run.eval.every, total)
        rows = rows_of(run, metrics, evaluate(run, evaluator) if evaluated else {})
        record(rows)
        if count in compiled:
            speed = count * steps_per_update / seconds
        compiled.add(count)
        display = trainer.env.display
        means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in set().union(*rows)}  # over seeds
        progress.update(run.update * steps_per_update, speed, headline(means, display.metrics, display.units))

        if run.diverged.all():
            save(run)  # the frozen replicas are the last good ones, and the run may have no checkpoint yet
            return "diverged"
        save_due |= crosses_interval(before, run.update, settings.run.checkpoint.every, total)
        stop = stopper.agreed()  # once per chunk: a signal that comes after it waits for the next chunk and its checkpoint
        spaced = time.monotonic() - saved_at >= 60 * minutes
        if stop or run.update == total or distributed.largest(save_due and spaced):
            save(run)
            saved_at, save_due = time.monotonic(), False
        if stop and (run.update < total or distributed.largest(stopper.error is not None)):
            return "interrupted"
    return "diverged" if run.diverged.all() else "finished"


def crosses_interval(before: int, after: int, every: float, total: int) -> bool:
    """Whether updates ``before + 1 … after`` include a multiple of ``every · total``, or the end."""
    if after >= total:
        return True
    interval = max(every * total, 1)
    return bool(every) and after // interval > before // interval


def evaluate(run: Run, evaluator: Evaluator) -> dict[str, np.ndarray]:
    """Metrics [S, episodes] of the policies on the frozen episodes; updates the best parameters of every replica.

    Where teams compete the newest parameters are the best: self-play returns are zero-sum.
    """
    # On the host, as in the final report, which then reuses the compiled program.
    params = distributed.fetch(run.replicas.state.learner.params)
    results = play_suite(run.settings, evaluator, params, 0)
    score = score_of(results).mean(-1).astype(np.float32)
    better = ((score > run.best.score) | run.settings.env.competitive) & ~run.diverged
    if better.any():
        updates = np.where(better, run.update, run.best.update).astype(np.int32)
        run.best = Best(choose(better, params, run.best.params), np.where(better, score, run.best.score), updates)
    return results


def play_suite(settings: Settings, evaluator: Evaluator, params: Any, part: int) -> dict[str, np.ndarray]:
    """Metrics [S, episodes] of policies with parameters [S, …] in one part of the frozen episodes."""
    results = evaluator.learned(
        settings.algorithm,
        settings.config,
        params,
        settings.env_params,
        suite_key(part),
        greedy=settings.run.eval.greedy,
        overrides=settings.evaluation_overrides,
    )
    return jax.device_get(results)


def save(run: Run) -> None:
    """Writes a checkpoint of everything that the rest of the run depends on."""
    notes = {
        "env_steps": run.update * run.trainer.steps_per_update,
        "best_score": [float(score) if np.isfinite(score) else None for score in run.best.score],
        "best_update": run.best.update.tolist(),
        "settings": run.settings.tree,
        "devices": devices_of(run.trainer),
        "metrics": metrics_log.fingerprint(run.folder),
    }
    folder, keep = run.folder / run_folder.CHECKPOINTS, run.settings.run.checkpoint.keep
    checkpoint.save(folder, run.update, Saved(run.replicas, run.best), purpose_of(run.settings), keep, notes)
    distributed.first_writes(lambda: run_folder.note_saved(run.folder, run.update))


# --- before it --------------------------------------------------------------------------------------------------------


def check_environment(settings: Settings, console: Console) -> None:
    """Raises ``UserError`` where a user's environment breaks the contract; only prints a line where its scenes do."""
    env, env_params = settings.base_env, settings.env_params
    check_before_training(env, env_params)
    cache.source_digest()  # of the files as they were imported
    env.check_backend(jax.default_backend())
    source = settings.run.init_from
    if source is not None and settings.run.resume is None and not is_policy_file(Path(source)):
        run_folder.read_config(Path(source))  # an error if it is none, before anything is compiled
    if settings.run.render and not is_builtin(env) and (fault := scene_error(env, env_params)):
        print_line(console, f"no animation: {fault}")


def make_trainer(settings: Settings) -> Trainer:
    """The training program on the mesh of the settings."""
    mesh, available = settings.run.mesh, jax.device_count()
    named = {"all": available, "auto": math.gcd(available, len(settings.replicas))}
    count: Any = named.get(settings.run.devices, settings.run.devices)  # type: ignore[arg-type]
    seed, data = layout(count, mesh.seed, mesh.data, len(settings.replicas))
    requested = f"{seed * data} devices are requested (mesh.seed={seed} × mesh.data={data})"
    if seed * data > available:
        more = "; JAX_NUM_CPU_DEVICES=8 in front of the command makes eight of a CPU" if jax.default_backend() == "cpu" else ""
        raise UserError(f"{requested}, and there are {available}{more}")
    if jax.process_count() > 1 and seed * data < available:
        raise UserError(f"{requested}; a distributed run takes all {available}, devices=all")
    return Trainer(settings.algorithm, settings.training_env, settings.config, make_mesh(seed, data))


def check_sizes(trainer: Trainer, settings: Settings) -> None:
    """Raises ``UserError`` for sizes that do not fit, before anything is written.

    Traces the program of ``run_chunks`` on the same shapes; JAX reuses the trace.
    """
    inputs = replica_inputs(settings)
    replicas, _ = jax.eval_shape(lambda *inputs: trainer.run(trainer.init(*inputs), chunk_of(settings)), *inputs)
    remedy = "lower algo.num_envs or seeds"
    if hasattr(settings.config, "buffer_size"):
        remedy = "lower algo.buffer_size or seeds, or take algo.buffer_dtype=bfloat16"
    memory.check(trainer.bytes_of(replicas) * memory.sharing(trainer.mesh), describe_runs(settings), remedy)


def describe_runs(settings: Settings) -> str:
    """The runs that train together: ``4 seeds``, ``6 settings × 4 seeds``."""
    trials, seeds = settings.run.search.tried, convert.pluralize(settings.run.seeds, "seed")
    if settings.run.search.batch is not None:
        return convert.pluralize(len(settings.replicas), "run")
    return f"{convert.pluralize(len(trials), 'setting')} × {seeds}" if trials else seeds


def own_sources(settings: Settings) -> dict[str, Path]:
    """The files of the modules that ``env.target`` and ``algo.target`` name."""
    modules = {key: sys.modules.get(target.partition(":")[0]) for key, target in trust.targets(settings.tree).items()}
    files = {key: getattr(module, "__file__", None) for key, module in modules.items()}
    return {key: Path(file) for key, file in files.items() if file}


def open_run_folder(stack: ExitStack, settings: Settings, folder: Path | None) -> Path:
    """The run folder, created and locked by the first process."""
    return distributed.on_first_process(
        lambda: stack.enter_context(new_or_resumed_folder(settings) if folder is None else run_folder.locked(folder))
    )


@contextmanager
def new_or_resumed_folder(settings: Settings) -> Iterator[Path]:
    """The folder of ``resume`` or a new one, locked; a new one is removed if the run fails before its first checkpoint."""
    if settings.run.resume is not None:
        with run_folder.locked(Path(settings.run.resume)) as folder:
            yield folder
        return
    root = Path(settings.run.runs)
    new_parents = [path for path in (root / settings.title, root) if not path.exists()]
    folder = run_folder.create(root, settings.title, settings.run.name)
    try:
        with run_folder.locked(folder):
            yield folder
    except UserError:
        if not any(folder.rglob(f"{run_folder.CHECKPOINTS}/*/{checkpoint.MANIFEST}")):
            run_folder.remove(folder, *new_parents)
        raise


def start(settings: Settings, folder: Path, trainer: Trainer, console: Console) -> Run:
    """A new run, or the one in ``folder`` with the state of its newest good checkpoint."""
    saved, count = folder / run_folder.CHECKPOINTS, len(settings.replicas)
    found = checkpoint.checkpoints(saved)
    shapes = saved_shapes(trainer, settings)
    lost = lost_progress(folder, settings, shapes.replicas, found)
    if lost and not found:
        raise UserError(f"{lost}; put {saved} back, or start a new run")
    notes = checkpoint.newest_notes(saved)
    if found or (folder / run_folder.CONFIG).exists():
        for line in (edited_params(notes, settings) | changed_settings(folder, notes, settings)).values():
            raise UserError(f"{folder}: {line}; set it back, or start a new run")

    if not found:
        if (folder / run_folder.CONFIG).exists():
            print_line(console, "nothing was saved yet; starting from the beginning")

        def write() -> None:
            run_folder.write_config(folder, settings.tree)
            run_folder.note_saved(folder, 0)

        distributed.first_writes(write)
        replicas, origin = trainer.init(*replica_inputs(settings)), dict[str, Any]()
        if settings.run.init_from is not None:
            given = starting_params(settings, replicas.state.learner.params)
            for line in (*(f"warning: {warning}" for warning in given.warnings), given.line):
                print_line(console, line)
            replicas, origin = trainer.with_params(replicas, given.params), {"init_from": given.record}
        params = distributed.fetch(replicas.state.learner.params)
        best = Best(params, np.full(count, -np.inf, np.float32), np.zeros(count, np.int32))
        return Run(settings, folder, trainer, replicas, best, 0, np.zeros(count), origin)

    devices = devices_of(trainer)
    if (before := notes.get("devices", devices)) != devices:
        print_line(console, f"warning: going on on {devices} instead of {before}; results may differ")
    restored = checkpoint.restore(saved, shapes, purpose_of(settings))
    rows = metrics_log.altered(folder, restored.notes.get("metrics"), restored.update)
    for warning in (*restored.warnings, lost and f"{lost}; going on from there", rows):
        if warning:
            print_line(console, f"warning: {warning}")
    best, origin = distributed.fetch(restored.tree.best), dict[str, Any]()
    if (steps := shorter(restored.notes, settings)) is not None:
        print_line(console, extension_line(settings, trainer, steps))
        distributed.first_writes(lambda: lengthen(folder, settings))
        origin = {"extended_from": steps}
    return Run(settings, folder, trainer, restored.tree.replicas, best, restored.update, np.zeros(count), origin)


def lengthen(folder: Path, settings: Settings) -> None:
    """Records more ``algo.total_steps`` in a run folder, and drops the results of the shorter run."""
    tree = run_folder.read_config(folder)
    tree["algo"]["total_steps"] = settings.config.total_steps
    run_folder.write_config(folder, tree)
    for whole in (folder, *[folder.parent] * (settings.run.search.batch is not None)):
        discard(whole / run_folder.RESULTS)


def devices_of(trainer: Trainer) -> str:
    """The devices, as far as results may depend on them."""
    mesh = trainer.mesh
    return f"{mesh.shape[collectives.SEED]} × {mesh.shape[collectives.DATA]} devices ({mesh.devices.flat[0].device_kind})"


# --- lines and rows ---------------------------------------------------------------------------------------------------


def announce(run: Run, console: Console) -> None:
    """Prints the run's size, device, folder and progress."""
    settings, trainer = run.settings, run.trainer
    steps, requested = trainer.num_updates * trainer.steps_per_update, settings.config.total_steps
    rounded = f" (total_steps={requested:,} rounded up to whole updates)" if steps != requested else ""
    runs = f", {describe_runs(settings)}" if len(settings.replicas) > 1 else ""
    device = jax.devices()[0].device_kind + (f" × {trainer.mesh.size}" if trainer.mesh.size > 1 else "")
    updates = convert.pluralize(trainer.num_updates, "update")
    print_line(console, f"{settings.label}: {steps:,} steps in {updates}{rounded}{runs}, on {device}")
    if size := sum(map(memory.size, persistent_parts(run.replicas.state))):
        per_seed = memory.format_bytes(size // len(settings.replicas))
        print_line(console, f"replay buffer: {per_seed} per seed, in memory and in checkpoints")
    tuned = compose.tuned_name(settings.algo, settings.env_name, type(settings.base_env), settings.run.tuned)
    if tuned and not settings.run.resume:
        print_line(console, f"tuned values: configs/tuned/{tuned}.yaml; tuned=none trains with the defaults")
    print_line(console, f"{'continuing' if settings.run.resume else 'run folder'}: {run.folder}")
    if run.update:
        print_line(console, f"{convert.pluralize(run.update, 'update')} done already")


def rows_of(run: Run, metrics: dict[str, np.ndarray], evaluated: dict[str, np.ndarray]) -> list[Row]:
    """One row per replica with metrics [S, chunk] of training or [S, episodes] of an evaluation."""
    rows, diverged = [], run.diverged
    for index, replica in enumerate(run.settings.replicas):
        values = summarise(metrics, index) if metrics else {}
        if not diverged[index]:
            values |= {f"eval_{name}": float(np.mean(results[index])) for name, results in evaluated.items()}
        if values:
            position = {"update": run.update, "env_steps": run.update * run.trainer.steps_per_update}
            rows.append(replica.row_key | position | {"time": round(time.time(), 3)} | values)
    return rows


def report_divergence(run: Run, before: np.ndarray, log: Callable[[str], None]) -> None:
    """Logs for every replica that diverged in this chunk when and in which quantity; ``before`` [S] had diverged earlier."""
    update, quantity = distributed.fetch((run.replicas.diverged_at, run.replicas.diverged_in))
    for index in np.flatnonzero((update >= 0) & ~before):
        name = run.trainer.quantities[int(quantity[index])]
        log(
            f"warning: {run.names[index]} diverged: {name} is not finite at update {int(update[index]) + 1}; "
            "its state before that update is kept in checkpoints"
        )


def report_impossible_values(run: Run, metrics: dict[str, np.ndarray], log: Callable[[str], None]) -> None:
    """Warns once of every replica whose critic exceeds the largest possible return, max |r| / (1 − γ).

    Such values reinforce themselves, as where the critic bootstraps from final observations, whose value no return corrects.
    """
    if not {"max_value", "max_reward"} <= metrics.keys():
        return
    rewards = np.nan_to_num(metrics["max_reward"]).max(-1)  # NaN after a divergence
    run.largest_reward = np.maximum(run.largest_reward, rewards)
    if run.update < IMPOSSIBLE_AFTER * run.trainer.num_updates:
        return
    gamma = distributed.fetch(run.replicas.config.gamma)
    values = np.nan_to_num(metrics["max_value"][:, -1])
    or_no_bootstrap = ", or set algo.bootstrap_limit=false" if hasattr(run.replicas.config, "bootstrap_limit") else ""
    for index in np.flatnonzero((1.0 - gamma) * values > IMPOSSIBLE_FACTOR * run.largest_reward):
        reward = run.largest_reward[index]
        if reward:
            log(
                f"warning: {run.names[index]} expects returns of {values[index]:.3g}, but with rewards of at most {reward:.3g} "
                f"{reward / (1.0 - gamma[index]):.3g} is the limit; lower algo.learning_rate or algo.gamma{or_no_bootstrap}"
            )
            run.largest_reward[index] = np.nan
