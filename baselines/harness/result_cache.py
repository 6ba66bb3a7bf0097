"""Cells of result tables: computed once, kept in files."""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from numpy.typing import ArrayLike
from rich.console import Console

from marljax.config import compose, settings
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.errors import UserError
from marljax.io import run_folder
from marljax.io.files import replacing
from marljax.io.run_folder import Which
from marljax.training import load, runner
from marljax.training.evaluation import Evaluator, ScriptedPolicy
from marljax.training.progress import say

Figures = dict[
    str, dict[str, Any]
]  # metric → mean and std over episodes, [S] each (S = 1 for scripted policies), and their number
AT_ONCE = 10_000  # episodes of a scripted policy in one program
SUITE_SEED = 2_000_003  # scenarios of the tables: the same for every policy, unseen in training and in its evaluations


class Cells:
    """The cells of a page of tables, a file each in a folder."""

    def __init__(self, folder: Path, console: Console, compute_missing: bool = True) -> None:
        self.folder, self.console, self.compute_missing = folder, console, compute_missing
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, about: Mapping[str, Any], compute: Callable[[], Figures]) -> Figures | None:
        """The kept cell, or else a new one, or None where missing ones are not to be computed.

        ``about`` is what the figures depend on; it is kept with them, and a cell kept for something else raises ``UserError``.
        What was not a setting yet when the cell was made does not count: a new setting's default changes nothing, or else the
        environment's version does.
        """
        path = self.folder / f"{file_name(name)}.json"
        about = json.loads(json.dumps(about))
        if path.exists():
            cell = json.loads(path.read_text(encoding="utf-8"))
            if not agree(cell["about"], about):
                raise UserError(f"{path} was computed for other settings; delete it to compute it anew")
            return cell["figures"]
        if not self.compute_missing:
            return None
        say(self.console, f"cell {name}")
        figures = compute()
        with replacing(path) as draft:
            draft.write_text(json.dumps({"about": about, "figures": figures}, indent=1) + "\n", encoding="utf-8")
        return figures


Part = Callable[[Cells], str]  # the text of one part of a page


def agree(kept: Any, now: Any) -> bool:
    """Whether all that a kept cell depended on is still so; settings that came later are left out."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return all(name in now and agree(value, now[name]) for name, value in kept.items())
    if isinstance(kept, str) and isinstance(now, str) and kept != now:
        before, after = _arguments(kept), _arguments(now)
        return bool(before) and agree(before, after)
    return bool(kept == now)


def _arguments(text: str) -> dict[str, str]:
    """What is called and with which keywords, of an environment written as ``Name(option=value)``; {} for any other text."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return {}
    if not isinstance(call, ast.Call):
        return {}
    return {"": ast.unparse(call.func)} | {str(word.arg): ast.unparse(word.value) for word in call.keywords}


def file_name(title: str) -> str:
    """A title as part of a path: letters, digits and single dashes."""
    return re.sub("[^a-zA-Z0-9]+", "-", title).strip("-")


def suite_key() -> jax.Array:
    """Fixes the scenarios of a table."""
    return jax.random.key(SUITE_SEED)


def stands_for(rival: ScriptedPolicy, episodes: int) -> dict[str, Any]:
    """What a scripted policy's figures depend on besides its name."""
    numbers = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), serialization.to_state_dict(rival.env_params))
    return {"env": str(rival.env), "env_params": numbers, "episodes": episodes, "env_version": rival.env.version}


def in_parts(play: Callable[[jax.Array, int], Any], episodes: int, at_once: int, key: jax.Array | None = None) -> Figures:
    """Figures of more episodes than fit into memory: ``play(key, episodes)`` gives metrics [episodes]; default: of the suite."""
    suite = suite_key() if key is None else key
    parts = []
    for number, first in enumerate(range(0, episodes, at_once)):
        part = jax.random.fold_in(suite, number) if number else suite
        parts.append(jax.device_get(play(part, min(at_once, episodes - first))))
    return summarise({name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]})


def play_scripted(rival: ScriptedPolicy, episodes: int, at_once: int = AT_ONCE, key: jax.Array | None = None) -> Figures:
    """A scripted policy on the frozen scenarios, or on those that ``key`` fixes, ``at_once`` of them in one program."""

    def play(key: jax.Array, count: int) -> dict[str, jax.Array]:
        return Evaluator(rival.env, count).scripted(rival.policy, rival.env_params, key, rival.carry)

    return in_parts(play, episodes, at_once, key)


def matters(run: settings.Settings) -> dict[str, Any]:
    """The part of a run's configuration that its numbers depend on."""
    names = ("algo_name", "algo", "env_name", "env", "env_params", "seed", "seeds", "eval", "failure_replay")
    return {name: run.tree[name] for name in names} | {"env_version": run.env.version}


def train(algo: str, words: Sequence[str], console: Console) -> tuple[settings.Settings, Path]:
    """Trains as the command line would (``words`` give ``runs`` and ``name``), or goes on with what is there."""
    run = compose.compose(algo, [*words, "render=false"])
    folder = Path(run.run.runs) / run.title / str(run.run.name)
    if (folder / run_folder.CONFIG).exists():
        kept = compose.compose(algo, [f"resume={folder}"])
        if not agree(matters(kept), matters(run)):
            raise UserError(f"{folder} was made with other settings; move it away, or delete it with its cell")
        run = kept
    if runner.train(run, console).status == "interrupted":
        raise KeyboardInterrupt
    return run, folder


def play_learned(
    run: settings.Settings,
    folder: Path,
    env: Environment,
    env_params: EnvParams,
    episodes: int,
    at_once: int = AT_ONCE,
    which: Which = "best",
) -> Figures:
    """The best or last parameters of every seed on the frozen scenarios, ``at_once`` of them in one program."""
    params = load.load_members(folder, which).params

    def play(key: jax.Array, count: int) -> dict[str, jax.Array]:
        return Evaluator(env, count).learned(run.algorithm, run.config, params, env_params, key)

    return in_parts(play, episodes, at_once)


def scripted_cell(
    cells: Cells, name: str, about: Mapping[str, Any], rival: ScriptedPolicy, episodes: int, at_once: int = AT_ONCE
) -> Figures | None:
    """A scripted policy's cell; ``about`` is what its figures depend on besides what the rival itself says."""
    return cells.get(name, {**about, **stands_for(rival, episodes)}, lambda: play_scripted(rival, episodes, at_once))


def learned_cell(
    cells: Cells,
    name: str,
    algo: str,
    words: Sequence[str],
    runs: Path,
    episodes: int,
    at_once: int = AT_ONCE,
    which: Which = "best",
) -> Figures | None:
    """Trains as the command line would with ``words``, in a folder of ``runs``; plays every seed's best or last parameters."""
    words = [*words, f"runs={runs}", f"name={file_name(name)}"]
    about = matters(compose.compose(algo, words)) | {"episodes": episodes, "which": which}

    def play() -> Figures:
        run, folder = train(algo, words, cells.console)
        return play_learned(run, folder, run.env, run.env_params, episodes, at_once, which)

    return cells.get(name, about, play)


def learned_apart(
    cells: Cells,
    name: str,
    algo: str,
    words: Sequence[str],
    runs: Path,
    episodes: int,
    at_once: int,
    seeds: int,
    which: Which = "best",
) -> Figures | None:
    """``learned_cell`` with a run and a cell for each of seeds 0, 1, …: for long trainings, because under ``vmap`` over seeds the
    beginnings of episodes are computed in every step. ``seeds`` is their number; None while any is missing."""
    each = [
        learned_cell(cells, f"{name} seed {seed}", algo, [*words, f"seed={seed}"], runs, episodes, at_once, which)
        for seed in range(seeds)
    ]
    done = [figures for figures in each if figures is not None]
    return joined(done) if len(done) == seeds else None


def joined(parts: Sequence[Figures]) -> Figures:
    """Figures of several seeds from those of single ones."""
    return {
        metric: {
            "mean": [mean for part in parts for mean in part[metric]["mean"]],
            "std": [std for part in parts for std in part[metric]["std"]],
            "count": figures["count"],
        }
        for metric, figures in parts[0].items()
    }


def summarise(results: Mapping[str, ArrayLike]) -> Figures:
    """What a table needs of metrics [S, episodes] or [episodes]."""
    arrays = {name: np.atleast_2d(np.asarray(values, float)) for name, values in results.items()}
    return {
        name: {"mean": array.mean(1).tolist(), "std": array.std(1, ddof=1).tolist(), "count": array.shape[1]}
        for name, array in arrays.items()
    }
