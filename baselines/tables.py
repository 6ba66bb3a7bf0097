"""Tables of results: cells that are computed once and kept, intervals, and Markdown.

A *cell* is one measurement with a name, kept as a JSON file; a command that fills a table computes only the cells that are
missing, and a training that was stopped goes on from its last checkpoint.
"""

import ast
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from numpy.typing import ArrayLike
from rich.console import Console

from marljax import driver, runfolder, settings, stats, trained
from marljax.environment import Environment, EnvParams
from marljax.errors import UserError, unknown
from marljax.evaluate import Evaluator, Rival
from marljax.files import replacing
from marljax.progress import say
from marljax.runfolder import Which

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


def stands_for(rival: Rival, episodes: int) -> dict[str, Any]:
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


def play_scripted(rival: Rival, episodes: int, at_once: int = AT_ONCE, key: jax.Array | None = None) -> Figures:
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
    run = settings.compose(algo, [*words, "render=false"])
    folder = Path(run.run.runs) / run.title / str(run.run.name)
    if (folder / runfolder.CONFIG).exists():
        kept = settings.compose(algo, [f"resume={folder}"])
        if not agree(matters(kept), matters(run)):
            raise UserError(f"{folder} was made with other settings; move it away, or delete it with its cell")
        run = kept
    if driver.train(run, console).status == "interrupted":
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
    params = trained.load_members(folder, which).params

    def play(key: jax.Array, count: int) -> dict[str, jax.Array]:
        return Evaluator(env, count).learned(run.algorithm, run.config, params, env_params, key)

    return in_parts(play, episodes, at_once)


def scripted_cell(
    cells: Cells, name: str, about: Mapping[str, Any], rival: Rival, episodes: int, at_once: int = AT_ONCE
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
    about = matters(settings.compose(algo, words)) | {"episodes": episodes, "which": which}

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


def mean_interval(figure: Mapping[str, Any], places: int = 1, scale: float = 1.0) -> str:
    """Mean with a 95 % t interval: over seeds, each of which counts once, or over the episodes of a scripted policy."""
    means = scale * np.asarray(figure["mean"])
    if len(means) > 1:
        estimate = stats.mean(means)
        half = estimate.high - estimate.value
    else:
        half = stats.t_half_width(scale * figure["std"][0], figure["count"])
    return f"{means.mean():.{places}f} ± {half:.{places}f}"


def rate_interval(figure: Mapping[str, Any]) -> str:
    """A rate in per cent with Wilson's 95 % interval over all episodes, those of all seeds pooled."""
    count = figure["count"] * len(figure["mean"])
    estimate = stats.wilson(round(float(np.mean(figure["mean"])) * count), count)
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def rate_spread(figure: Mapping[str, Any]) -> str:
    """``rate_interval`` and, where there are several seeds, the lowest and highest of their rates."""
    rates = [f"{100 * rate:.1f}" for rate in (min(figure["mean"]), max(figure["mean"]))]
    return f"{rate_interval(figure)}; {rates[0]}–{rates[1]}" if len(figure["mean"]) > 1 else rate_interval(figure)


def main(
    text: str, folder: Path, parts: Mapping[str, Part], page: Callable[[dict[str, str]], str], cold: Sequence[str] = ()
) -> None:
    """The command of a page: computes the parts asked for (default: all) and writes the page from every cell there is.

    Args:
        text: its help.
        folder: of the cells; the page stands beside it.
        parts: what fills each part of the page.
        page: the page from its parts.
        cold: parts that measure compile times, for which the compilation cache stays off.
    """
    from marljax.cli import enable_compilation_cache

    words = sys.argv[1:]
    if any(word in ("-h", "--help") for word in words):
        print(text.strip())
        return
    try:
        for word in words:
            if word not in parts:
                raise unknown("part of the tables", word, parts)
        if not any(part in cold for part in words or parts):
            enable_compilation_cache()
        _fill(folder, parts, page, words or list(parts))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")


def _fill(folder: Path, parts: Mapping[str, Part], page: Callable[[dict[str, str]], str], wanted: Sequence[str]) -> None:
    console = Console()
    cells = Cells(folder, console)
    for part in wanted:
        console.print(f"\n{part}\n{parts[part](cells)}", markup=False)
    kept = Cells(folder, console, compute_missing=False)
    path = folder.with_suffix(".md")
    write_report(path, page({part: fill(kept) for part, fill in parts.items()}))
    console.print(f"written: {path}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned. Nothing without rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([" --- ", *(" ---: " for _ in header[1:])]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def by_row(
    what: str, header: Sequence[str], columns: Callable[[Figures], Sequence[str]], rows: Sequence[tuple[str, Figures | None]]
) -> str:
    """A table of titled cells, those that there are; says which are missing."""
    done = [[name, *columns(figures)] for name, figures in rows if figures is not None]
    missing = [name for name, figures in rows if figures is None]
    return with_missing(missing, markdown_table([what, *header], done))


def with_missing(missing: Sequence[str], *paragraphs: str) -> str:
    """Paragraphs of a part, and a last one that names what is not computed yet, if anything."""
    return "\n\n".join([*filter(None, paragraphs), *([f"Not computed yet: {', '.join(missing)}."] if missing else [])])


def version(package: str) -> str:
    """Of an installed package."""
    return importlib.metadata.version(package)


def describe_versions() -> str:
    """Versions that figures depend on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("marljax", "jax", "jaxlib", "flax", "optax"))
    return f"Python {platform.python_version()}, {versions}, {jax.devices()[0].device_kind} backend"


def write_report(path: Path, text: str) -> None:
    """Writes a page of results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
