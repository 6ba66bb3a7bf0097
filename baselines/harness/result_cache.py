"""Results of tables: computed once, kept in files."""

import ast
import functools
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

from marljax.config import compose
from marljax.config.convert import to_builtin
from marljax.config.settings import Settings
from marljax.core.environment import Environment
from marljax.errors import UserError
from marljax.io import run_folder
from marljax.io.files import replacing
from marljax.io.run_folder import Which
from marljax.training import load, runner
from marljax.training.evaluation import Evaluator, ScriptedPolicy
from marljax.training.progress import print_line

BASELINES = Path(__file__).resolve().parents[1]
RESULTS, RUNS = BASELINES / "results", BASELINES.parent / "runs" / "tables"
BATCH = 10_000  # episodes of one program
LARGEST_LIST = 1_000  # numbers of an array that are kept with a result; of a larger one its digest
SUITE_SEED = 2_000_003  # of the tables' scenarios: the same for every policy, unseen in training and in its evaluations

# metric → mean and std over episodes, [S] each (S = 1 for scripted policies), and the number of episodes
Metrics = dict[str, dict[str, Any]]


class ResultCache:
    """Results of a page's tables, one JSON file each in ``folder``. Methods return None for a missing result that is not to be
    computed."""

    def __init__(self, folder: Path, console: Console, compute_missing: bool = True) -> None:
        self.folder, self.console, self.compute_missing = folder, console, compute_missing
        folder.mkdir(parents=True, exist_ok=True)

    def on_accelerator(self) -> "ResultCache":
        """This cache, for results that take days on a CPU: there it computes nothing that is missing."""
        on_cpu = jax.default_backend() == "cpu"
        return ResultCache(self.folder, self.console, self.compute_missing and not on_cpu)

    def get(self, name: str, about: Mapping[str, Any], compute: Callable[[], Metrics]) -> Metrics | None:
        """The kept result, or else a new one. ``about`` is what it depends on, stored with it.

        Raises:
            UserError: for a kept result that depends on something else. Settings that did not exist when it was computed are
                ignored: the default of a new setting changes nothing, or else the environment's version does.
        """
        path = self.folder / f"{file_name(name)}.json"
        about = json.loads(json.dumps(about))
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if not is_compatible(kept["about"], about):
                raise UserError(f"{path} was computed for other settings; delete it to compute it again")
            return kept["figures"]
        if not self.compute_missing:
            return None
        print_line(self.console, f"computing {name}")
        metrics = compute()
        with replacing(path) as draft:
            draft.write_text(json.dumps({"about": about, "figures": metrics}, indent=1) + "\n", encoding="utf-8")
        return metrics

    def scripted(
        self, name: str, about: Mapping[str, Any], policy: ScriptedPolicy, episodes: int, batch: int = BATCH
    ) -> Metrics | None:
        """A scripted policy on the frozen scenarios; ``about`` is added to ``cache_key``."""
        about = {**about, **cache_key(policy, episodes)}
        return self.get(name, about, lambda: play_scripted(policy, episodes, batch))

    def all_scripted(
        self, settings: Mapping[str, Environment], scripted_policies: Callable, episodes: int, batch: int
    ) -> list[tuple[str, Metrics | None]]:
        """Every scripted policy in every setting, an environment with its default parameters, as "setting: policy"."""
        return [
            (f"{setting}: {name}", self.scripted(f"scripted {setting} {name}", {"policy": name}, policy, episodes, batch))
            for setting, env in settings.items()
            for name, policy in scripted_policies(env, env.default_params).items()
        ]

    def learned(
        self,
        name: str,
        algo: str,
        overrides: Sequence[str],
        episodes: int,
        batch: int = BATCH,
        which: Which = "best",
        adapt: Callable[[Settings], Settings] = lambda run: run,
        about: Mapping[str, Any] = {},
        run_name: str = "",
    ) -> Metrics | None:
        """Trains as the command line would and plays every seed's best or last parameters on the frozen scenarios.

        ``adapt`` changes the settings between training and play, and ``about`` describes the change. Results of one ``run_name``
        (default: ``name``) share its training.
        """

        def play(run: Settings, folder: Path) -> Metrics:
            return play_learned(adapt(run), folder, episodes, batch, which)

        return self.trained(name, algo, overrides, play, {"episodes": episodes, "which": which, **about}, run_name)

    def trained(
        self,
        name: str,
        algo: str,
        overrides: Sequence[str],
        measure: Callable[[Settings, Path], Metrics],
        about: Mapping[str, Any] = {},
        run_name: str = "",
    ) -> Metrics | None:
        """Trains as the command line would and measures the run, given its settings and folder; ``about`` describes how."""
        overrides = [*overrides, f"runs={RUNS}", f"name={file_name(run_name or name)}"]
        about = {**result_config(compose.compose(algo, overrides)), **about}
        return self.get(name, about, lambda: measure(*train(algo, overrides, self.console)))

    def learned_by_seed(
        self, name: str, algo: str, overrides: Sequence[str], episodes: int, batch: int, seeds: int, which: Which = "best"
    ) -> Metrics | None:
        """``learned`` with a run and a result for each of ``seeds`` seeds 0, 1, …: for long trainings, because under ``vmap``
        over seeds the first states of episodes are computed in every step."""
        play = functools.partial(play_learned, episodes=episodes, batch=batch, which=which)
        return self.trained_by_seed(name, algo, overrides, play, seeds, {"episodes": episodes, "which": which})

    def trained_by_seed(
        self,
        name: str,
        algo: str,
        overrides: Sequence[str],
        measure: Callable[[Settings, Path], Metrics],
        seeds: int,
        about: Mapping[str, Any] = {},
    ) -> Metrics | None:
        """``trained`` with a run and a result for each of ``seeds`` seeds 0, 1, …."""
        results = [
            self.trained(f"{name} seed {seed}", algo, [*overrides, f"seed={seed}"], measure, about) for seed in range(seeds)
        ]
        return join_seeds(results)


def is_compatible(kept: Any, current: Any) -> bool:
    """Whether everything that a kept result depended on is unchanged; later settings are ignored."""
    if isinstance(kept, dict) and isinstance(current, dict):
        return all(name in current and is_compatible(value, current[name]) for name, value in kept.items())
    if isinstance(kept, str) and isinstance(current, str) and kept != current:
        before, after = _call_arguments(kept), _call_arguments(current)
        return bool(before) and is_compatible(before, after)
    return bool(kept == current)


def _call_arguments(text: str) -> dict[str, str]:
    """Function and keyword arguments of an environment written as ``Name(option=value)``; {} for any other text."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return {}
    if not isinstance(call, ast.Call):
        return {}
    return {"": ast.unparse(call.func)} | {str(argument.arg): ast.unparse(argument.value) for argument in call.keywords}


def file_name(title: str) -> str:
    """A title as part of a path: letters, digits and single dashes."""
    return re.sub("[^a-zA-Z0-9]+", "-", title).strip("-")


def suite_key() -> jax.Array:
    """Fixes the scenarios of a table."""
    return jax.random.key(SUITE_SEED)


def cache_key(policy: ScriptedPolicy, episodes: int) -> dict[str, Any]:
    """Everything that a scripted policy's metrics depend on besides its name."""

    def plain(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return array.tolist() if array.size <= LARGEST_LIST else to_builtin(array)

    params = jax.tree.map(plain, serialization.to_state_dict(policy.env_params))
    return {"env": str(policy.env), "env_params": params, "episodes": episodes, "env_version": policy.env.version}


def result_config(run: Settings) -> dict[str, Any]:
    """The part of a run's configuration that its results depend on."""
    names = ("algo_name", "algo", "env_name", "env", "env_params", "seed", "seeds", "eval", "failure_replay")
    return {name: run.tree[name] for name in names} | {"env_version": run.env.version}


def train(algo: str, overrides: Sequence[str], console: Console) -> tuple[Settings, Path]:
    """Trains as the command line would (``overrides`` include ``runs`` and ``name``), or resumes the run; its settings and
    folder."""
    run = compose.compose(algo, [*overrides, "render=false"])
    folder = Path(run.run.runs) / run.title / str(run.run.name)
    if (folder / run_folder.CONFIG).exists():
        kept = compose.compose(algo, [f"resume={folder}"])
        if not is_compatible(result_config(kept), result_config(run)):
            raise UserError(f"{folder} was trained with other settings; move it away, or delete it with its result")
        run = kept
    if runner.train(run, console).status == "interrupted":
        raise KeyboardInterrupt
    return run, folder


def play_learned(run: Settings, folder: Path, episodes: int, batch: int = BATCH, which: Which = "best") -> Metrics:
    """The best or last parameters of every seed on the frozen scenarios, ``batch`` of them in one program."""
    params = load.load_replicas(folder, which).params

    def play(key: jax.Array, count: int) -> dict[str, jax.Array]:
        return Evaluator(run.env, count).learned(
            run.algorithm, run.config, params, run.env_params, key, greedy=run.run.eval.greedy
        )

    return in_batches(play, episodes, batch)


def play_scripted(policy: ScriptedPolicy, episodes: int, batch: int = BATCH, key: jax.Array | None = None) -> Metrics:
    """A scripted policy on the frozen scenarios, or on those that ``key`` fixes, ``batch`` of them in one program."""

    def play(key: jax.Array, count: int) -> dict[str, jax.Array]:
        return Evaluator(policy.env, count).scripted(policy.policy, policy.env_params, key, policy.carry)

    return in_batches(play, episodes, batch, key)


def in_batches(play: Callable[[jax.Array, int], Any], episodes: int, batch: int, key: jax.Array | None = None) -> Metrics:
    """Metrics of more episodes than fit into memory; ``play(key, episodes)`` returns metrics [..., episodes]."""
    key = suite_key() if key is None else key
    parts = []
    for number, first in enumerate(range(0, episodes, batch)):
        part = jax.random.fold_in(key, number) if number else key
        parts.append(jax.device_get(play(part, min(batch, episodes - first))))
    return summarise({name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]})


def join_seeds(results: Sequence[Metrics | None]) -> Metrics | None:
    """Metrics of several seeds from those of single ones; None while any is missing."""
    done = [metrics for metrics in results if metrics is not None]
    if len(done) < len(results):
        return None
    return {
        name: {key: [value for part in done for value in part[name][key]] for key in ("mean", "std")} | {"count": metric["count"]}
        for name, metric in done[0].items()
    }


def summarise(results: Mapping[str, ArrayLike]) -> Metrics:
    """Mean, standard deviation and count of metrics [S, episodes] or [episodes]."""
    arrays = {name: np.atleast_2d(np.asarray(values, float)) for name, values in results.items()}
    return {
        name: {"mean": array.mean(1).tolist(), "std": array.std(1, ddof=1).tolist(), "count": array.shape[1]}
        for name, array in arrays.items()
    }
