"""Tables of results: cells that are computed once and kept, intervals, and Markdown.

A *cell* is one measurement with a name, kept as a JSON file; a command that fills a table computes only the cells that are
missing, and a training that was stopped goes on from its last checkpoint.
"""

import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from marljax import driver, runfolder, settings, stats, trained
from marljax.environment import Environment, EnvParams
from marljax.errors import UserError
from marljax.evaluate import Evaluator, Policy
from marljax.files import replacing
from marljax.progress import say

Figures = dict[str, list[Any]]  # metric → [episodes], or [S][episodes] for learned policies
SUITE_SEED = 2_000_003  # scenarios of the tables: the same for every policy, unseen in training and in its evaluations


class Cells:
    """The cells of one table, in a folder."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, compute: Callable[[], Figures]) -> Figures:
        """The kept cell, or a new one."""
        path = self.folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
        say(self.console, f"cell {name}")
        figures = compute()
        with replacing(path) as draft:
            draft.write_text(json.dumps(figures))
        return figures


def suite_key() -> jax.Array:
    """Fixes the scenarios of a table."""
    return jax.random.key(SUITE_SEED)


def play_scripted(env: Environment, env_params: EnvParams, policy: Policy, episodes: int) -> Figures:
    """Figures [episodes] of a scripted policy on the frozen scenarios."""
    return _plain(Evaluator(env, episodes).scripted(policy, env_params, suite_key()))


def train(algo: str, words: Sequence[str], console: Console) -> tuple[settings.Settings, Path]:
    """Trains as the command line would (``words`` give ``runs`` and ``name``), or goes on with what is there."""
    run = settings.compose(algo, [*words, "render=false"])
    folder = Path(run.run.runs) / run.title / str(run.run.name)
    if (folder / runfolder.CONFIG).exists():
        kept = settings.compose(algo, [f"resume={folder}"])
        if (kept.config, kept.env, kept.run.seeds) != (run.config, run.env, run.run.seeds):
            raise UserError(f"{folder} was made with other settings; move it away, or delete it with its cell")
        run = kept
    if driver.train(run, console).status == "interrupted":
        raise KeyboardInterrupt
    return run, folder


def play_learned(run: settings.Settings, folder: Path, env: Environment, env_params: EnvParams, episodes: int) -> Figures:
    """Figures [S][episodes] of the best parameters of every seed on the frozen scenarios."""
    params, _, _ = trained.load_members(folder, run, "best")
    results = Evaluator(env, episodes).learned(run.algorithm, run.config, params, env_params, suite_key())
    return _plain(results)


def _plain(results: Mapping[str, jax.Array]) -> Figures:
    return {name: np.asarray(values, float).round(5).tolist() for name, values in jax.device_get(results).items()}


def mean_interval(values: Any, places: int = 1) -> str:
    """Mean with a 95 % t interval: over episodes [N], or over seeds [S][N], each of which counts once."""
    array = np.asarray(values, float)
    estimate = stats.mean(array if array.ndim == 1 else array.mean(1))
    return f"{estimate.value:.{places}f} ± {(estimate.high - estimate.low) / 2:.{places}f}"


def rate_interval(values: Any) -> str:
    """A rate in per cent with Wilson's 95 % interval over all episodes (of all seeds)."""
    array = np.asarray(values, float).ravel()
    estimate = stats.wilson(int(array.sum()), array.size)
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([" --- ", *(" ---: " for _ in header[1:])]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def describe_versions() -> str:
    """Versions that figures depend on."""
    packages = ("marljax", "jax", "jaxlib", "flax", "optax")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"Python {platform.python_version()}, {versions}, {jax.devices()[0].device_kind} backend"


def write_report(path: Path, text: str) -> None:
    """Writes a page of results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text)
