"""Run settings: their types and ranges; their defaults stand in ``configs/config.yaml``."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import marljax.configs
from marljax.config import convert
from marljax.config.sweep import Method
from marljax.core.fields import MAX_INT
from marljax.errors import UserError
from marljax.io.run_folder import check_name
from marljax.utils.distributed import Hosts

MOST = {"seeds": 2**16, "eval.episodes": 2**20, "eval.final_episodes": 2**20}  # what is held in memory at once


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """When and how much to evaluate."""

    every: float
    episodes: int
    final_episodes: int


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """When to save, and how many to keep."""

    every: float
    keep: int
    minutes: float | None = None  # runs of before there were any have none


@dataclasses.dataclass(frozen=True)
class FailureReplaySettings:
    """The options and numbers of ``marljax.wrappers.failure_replay``."""

    failures: tuple[str, ...]
    gate: str
    size: int
    ring: int
    spacing: int
    window: int
    probability: float
    grace: int | None
    back: int | None
    times: int
    below: float


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis of the mesh."""

    seed: int | None
    data: int | None


@dataclasses.dataclass(frozen=True)
class Search:
    """How a sweep looks for settings, and judges them."""

    method: Method = "grid"
    trials: int | None = None
    seed: int = 0
    metric: str = "return"
    lowest: bool = False
    judge: Literal["standard", "own"] = "standard"
    batches: int | None = None
    batch: int | None = None
    tried: tuple[dict, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Wandb:
    """Where a run appears on Weights & Biases."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    group: str | None
    tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The root of the configuration; ``configs/config.yaml`` says what each means and holds the defaults."""

    seed: int
    seeds: int
    sweep: dict[str, Any]
    runs: str
    name: str | None
    resume: str | None
    tuned: str
    chunk: int | None
    render: bool
    search: Search
    failure_replay: FailureReplaySettings
    devices: int | str | None
    distributed: bool
    hosts: Hosts
    eval: Evaluation
    checkpoint: Checkpointing
    mesh: Mesh
    wandb: Wandb
    trust: bool = False


def config_folder() -> Path:
    """Where ``config.yaml`` and the tuned values lie."""
    return Path(marljax.configs.__file__).parent


def run_defaults() -> dict[str, Any]:
    """The run settings of ``config.yaml``."""
    import yaml

    tree = yaml.safe_load((config_folder() / "config.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in tree.items() if key != "defaults"}


def check_run(run: RunSettings) -> RunSettings:
    at_least_one = {
        "seeds": run.seeds,
        "search.batches": run.search.batches,
        "chunk": run.chunk,
        "eval.episodes": run.eval.episodes,
        "eval.final_episodes": run.eval.final_episodes,
        "checkpoint.keep": run.checkpoint.keep,
        "mesh.seed": run.mesh.seed,
        "mesh.data": run.mesh.data,
    }
    for key, value in at_least_one.items():
        if value is not None and value < 1:
            raise UserError(f"{key}={value} is out of range; it takes integers of at least 1")
        if value is not None and value > MOST.get(key, MAX_INT):
            raise UserError(f"{key}={value} is out of range; it takes integers up to {MOST.get(key, MAX_INT)}")
    if not 0 <= (run.checkpoint.minutes or 0) < MAX_INT:
        raise UserError(f"checkpoint.minutes={run.checkpoint.minutes} is out of range; it takes minutes from 0 on")
    if run.name is not None:
        check_name(run.name)
    for key, fraction in {"eval.every": run.eval.every, "checkpoint.every": run.checkpoint.every}.items():
        if not 0 <= fraction <= 1:
            raise UserError(f"{key}={fraction} is out of range; it is a fraction of training, from 0 to 1")
    if run.seed < 0 or run.seed + run.seeds > 2**31:
        raise UserError(f"seed={run.seed} with seeds={run.seeds} is out of range; every seed lies between 0 and 2147483647")
    if run.devices not in ("all", None) and (not isinstance(run.devices, int) or not 1 <= run.devices <= MAX_INT):
        raise UserError(f"devices={convert.format_value(run.devices)} is out of range; it takes an integer of at least 1, or all")
    return run
