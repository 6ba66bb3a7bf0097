"""Run settings: each declared once, with its default, its range and its meaning."""

import dataclasses
from typing import Any, Literal, get_args

from marljax.config import convert
from marljax.config.sweep import Method
from marljax.core import fields
from marljax.core.fields import MAX_INT, option
from marljax.errors import UserError
from marljax.io.run_folder import Which, check_name
from marljax.wrappers.failure_replay import FailureReplay, ReplayParams

MAX_RUNS, MAX_EPISODES = 2**16, 2**20  # in memory at once


def same_as(record: type, name: str, default: Any = dataclasses.MISSING) -> Any:
    """A field declared as in another record, so that its default, range and meaning are in one place."""
    source = next(field for field in dataclasses.fields(record) if field.name == name)
    default = source.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata=source.metadata)


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of settings; raises ``UserError`` for a value that a field does not take."""

    def __post_init__(self) -> None:
        fields.check_options(self)


@dataclasses.dataclass(frozen=True)
class Search(Group):
    """How a sweep chooses and ranks settings."""

    method: Method = option("grid", choices=get_args(Method), help="every combination of lists, or draws, also from intervals")
    trials: int | None = option(None, low=1, help="settings to draw; null with a grid")
    seed: int = option(0, low=0, help="of the draws")
    metric: str = option("return", help="of the final evaluation, by which settings are ranked")
    lowest: bool = option(False, help="rank by the lowest value of the metric")
    judge: str = option("standard", choices=("standard", "own"), help="evaluate with the run's env.* or each setting's own")
    batches: int | None = option(None, low=1, help="equal batches trained one after another; null: as few as memory allows")
    batch: int | None = option(None, help="index of this run folder's batch; filled in")
    tried: tuple[dict, ...] | None = option(None, help="the settings, in order; filled in")


@dataclasses.dataclass(frozen=True)
class FailureReplaySettings(Group):
    """Training episodes that start shortly before an earlier failure: see ``marljax.wrappers.failure_replay``."""

    failures: tuple[str, ...] = option((), help="metrics whose increase is a failure, such as [collision,crash]; []: no replay")
    gate: str = same_as(FailureReplay, "gate")
    size: int = same_as(FailureReplay, "size")
    ring: int = same_as(FailureReplay, "ring")
    spacing: int = same_as(FailureReplay, "spacing")
    window: int = same_as(FailureReplay, "window")
    probability: float = same_as(ReplayParams, "replay_probability")
    grace: int | None = same_as(ReplayParams, "replay_grace", default=None)
    back: int | None = same_as(ReplayParams, "replay_back", default=None)
    times: int = same_as(ReplayParams, "replay_times")
    below: float = same_as(ReplayParams, "replay_below")


@dataclasses.dataclass(frozen=True)
class Evaluation(Group):
    """When and how much to evaluate."""

    every: float = option(0.05, low=0, high=1, help="fraction of training between evaluations; 0: only at the end")
    episodes: int = option(32, low=1, high=MAX_EPISODES, help="per evaluation and seed, with the same keys every time")
    final_episodes: int = option(320, low=1, high=MAX_EPISODES, help="of the best parameters at the end, with other keys")
    greedy: bool = option(
        True, help="take the likeliest actions; false: act as in training: sampled, or with the last share of random ones"
    )


@dataclasses.dataclass(frozen=True)
class Checkpointing(Group):
    """When to save checkpoints, and how many to keep."""

    every: float = option(0.05, low=0, high=1, help="fraction of training between checkpoints; 0: only at the end")
    minutes: float | None = option(None, low=0, help="at least this many in between; null: 5 with a replay buffer, else 0")
    keep: int = option(2, low=1, help="newest checkpoints to keep; each also holds every seed's best parameters")


@dataclasses.dataclass(frozen=True)
class Mesh(Group):
    """Devices along each axis of the mesh."""

    seed: int | None = option(
        None, low=1, help="devices that runs (seeds, settings) are sharded over; null: as many as divide them"
    )
    data: int | None = option(None, low=1, help="devices that each run's environments are sharded over; null: the remaining ones")


@dataclasses.dataclass(frozen=True)
class Hosts(Group):
    """Where the processes of a distributed run find each other; null on clusters that JAX detects, such as Slurm."""

    coordinator: str | None = option(None, help="address:port of the first process")
    count: int | None = option(None, low=1, help="number of processes")
    index: int | None = option(None, low=0, help="of this process, from 0")


@dataclasses.dataclass(frozen=True)
class Wandb(Group):
    """Where a run is logged on Weights & Biases."""

    mode: Literal["online", "offline", "disabled"] = option(
        "disabled", choices=("online", "offline", "disabled"), help="each seed is a run, a command is a group"
    )
    project: str = option("marljax")
    entity: str | None = option(None, help="user or team; null: the one that is logged in")
    group: str | None = option(None, help="null: <algo>_<env>/<run>")
    tags: tuple[str, ...] = option((), help="of every run")


@dataclasses.dataclass(frozen=True)
class RunSettings(Group):
    """Everything on the command line that is neither ``algo.*`` nor ``env.*``."""

    seed: int = option(0, low=0, help="the first seed")
    seeds: int = option(1, low=1, high=MAX_RUNS, help="number of seeds trained at once, in one program: seed, seed + 1, …")
    sweep: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "sweep.<hyperparameter>=[…], sweep.env.<param>=[…]: every combination with every seed, in one program"},
    )
    runs: str = option("runs", help="the folder of <algo>_<env>/<run>")
    name: str | None = option(None, help="the run's folder; null: the time of its start")
    tuned: str = option("standard", help="tuned values of the pair (standard), none, or configs/tuned/<algo>_<env>_<tuned>.yaml")
    resume: str | None = option(None, help="a run folder to continue, bit for bit; with a larger algo.total_steps, for longer")
    init_from: str | None = option(
        None, help="run folder or policy file whose networks a new run starts from, as in a curriculum"
    )
    init_which: Which = option("best", choices=get_args(Which), help="parameters of init_from: evaluated best, or the last")
    trust: bool = option(False, help="with resume or init_from: import the folder's env.target although it was not trained here")
    chunk: int | None = option(None, low=1, help="updates per compiled call (and log); null: about 1 % of training, at most 64")
    render: bool = option(True, help="draw the learning curve and an episode of the trained policy at the end")
    quiet: bool = option(False, help="print only warnings, errors and the last line, with the run folder")
    tensorboard: bool = option(False, help="event files for TensorBoard in the run folder, one run per seed")
    search: Search = dataclasses.field(default_factory=Search)
    failure_replay: FailureReplaySettings = dataclasses.field(default_factory=FailureReplaySettings)
    eval: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpoint: Checkpointing = dataclasses.field(default_factory=Checkpointing)
    devices: int | str | None = option(
        None,
        help="devices to train on; all; auto: what divides both them (a CPU's cores) and the runs; null: mesh.*, else one",
    )
    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    distributed: bool = option(False, help="one run of several processes, started with the same command on every machine")
    hosts: Hosts = dataclasses.field(default_factory=Hosts)
    wandb: Wandb = dataclasses.field(default_factory=Wandb)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            check_name(self.name)
        if self.seed + self.seeds > 2**31:
            raise UserError(f"seed={self.seed} with seeds={self.seeds} is out of range; every seed is from 0 to {MAX_INT}")
        if self.devices not in ("all", "auto", None) and (not isinstance(self.devices, int) or not 1 <= self.devices <= MAX_INT):
            raise UserError(
                f"devices={convert.format_value(self.devices)} is out of range; it takes an integer of at least 1, all or auto"
            )
