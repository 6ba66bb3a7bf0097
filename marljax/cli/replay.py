"""The command ``marljax replay``."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from marljax.cli.evaluate import PolicyOptions, folder_and_options, load_run, output_file
from marljax.cli.help import explained
from marljax.config.settings import Settings
from marljax.core.fields import option
from marljax.errors import UserError
from marljax.reporting import episodes, stored
from marljax.reporting.episodes import FORMATS, TOO_LARGE
from marljax.training import evaluation
from marljax.training.evaluation import Recording
from marljax.training.policy_file import is_policy_file

WORST_OF = 320  # episodes among which the worst are found
SIDE_BY_SIDE = 2  # runs that a page shows


@dataclasses.dataclass(frozen=True)
class ReplayOptions(PolicyOptions):
    """Options of ``marljax replay``, which plays episodes of a suite."""

    out: str | None = option(None, help="file to write: .html for a browser, .gif or .mp4; null: replay.html, in the run folder")
    episodes: int = option(1, low=1, high=20, help="the first of the suite; a page holds 3 MB, and later ones are left out")
    worst: int | None = option(None, low=1, high=20, help=f"instead those of lowest return among the first {WORST_OF}")
    seed: int | None = option(None, help="of the run; null: the one with the best evaluation")


class Replayed(NamedTuple):
    """A trained policy to play."""

    folder: Path
    settings: Settings
    params: Any
    seed: int
    untrained: bool  # the parameters are those of update 0


def replay(arguments: Sequence[str]) -> int:
    """Writes episodes of one or two trained policies as a page for a browser, or one as an animation."""
    meaning = "Writes episodes of the trained policy as a page for a browser, or one as an animation; of two runs side by side."
    if explained(arguments, "replay <run folder> [<run folder>] [key=value …]", meaning, ReplayOptions, "env.<key>=…"):
        return 0
    folders = list(itertools.takewhile(lambda word: "=" not in word or Path(word).is_dir(), arguments)) or arguments[:1]
    words = arguments[len(folders) :]
    parsed = [folder_and_options([folder, *words], ReplayOptions) for folder in folders]
    folder, options, changes = parsed[0]
    path = Path(options.out or (f"{folder.stem}.html" if is_policy_file(folder) else folder / "replay.html"))
    _check_output(path, options, folders)
    from marljax.reporting import report

    runs = [_load(each, options, changes) for each, _, _ in parsed]
    for other in runs[1:]:
        _check_same_environment(runs[0], other)
    part, count, first = evaluation.fresh_part(options.suite), options.worst or options.episodes, runs[0].settings
    indices = list(range(count))
    if options.worst:
        print(f"looking for the {count} worst of {WORST_OF} episodes of seed {runs[0].seed}")
        indices = report.worst_episodes(first, runs[0].params, part, WORST_OF, count)
    recorded = [report.record_episodes(run.settings, run.params, part, indices) for run in runs]
    names = [_name(run, len(runs)) for run in runs]
    if path.suffix.lower() == ".html":
        count = _write_page(runs, names, recorded, path)
        if count < len(indices):
            print(f"{path} holds {count} of {len(indices)} episodes: {TOO_LARGE}")
    else:
        episodes.animate(first.env, episodes.film(first.env, first.env_params, recorded[0][0]), path)
    if first.env.display.charts:
        episodes.draw_charts(first.env, first.env_params, recorded[0][0], path.with_suffix(".png"))
        print(f"charts of the first episode: {path.with_suffix('.png')}")
    for run, name, own in zip(runs, names, recorded, strict=True):
        if run.untrained:
            print(f"warning: {name}: the untrained network's parameters; which=last plays the trained ones")
        for index, episode in zip(indices[:count], own[:count], strict=True):
            metrics = "  ".join(f"{metric} {value:.3g}" for metric, value in episode.metrics.items())
            print(f"{path}, {name}, episode {index + 1}: {metrics}")
    return 0


def _write_page(runs: Sequence[Replayed], names: Sequence[str], recorded: Sequence[Sequence[Recording]], path: Path) -> int:
    """All episodes of all runs as a page; returns the number of episodes that it holds of each."""
    from marljax.viz import viewer

    players = []
    for run, name, own in zip(runs, names, recorded, strict=True):
        env, env_params = run.settings.env, run.settings.env_params
        players.append(episodes.player(env, name, [(episode, episodes.film(env, env_params, episode)) for episode in own]))
    algos = " and ".join(dict.fromkeys(run.settings.algo for run in runs))
    return viewer.write_page(players, path, f"{algos} on {runs[0].settings.env_name}")


def _check_output(path: Path, options: ReplayOptions, folders: Sequence[str]) -> None:
    """Refuses what cannot be written before anything is loaded."""
    output_file(str(path), FORMATS)
    if len(folders) > SIDE_BY_SIDE:
        raise UserError(f"a page shows {SIDE_BY_SIDE} runs side by side; leave out {' '.join(folders[SIDE_BY_SIDE:])}")
    if path.suffix.lower() != ".html" and (max(options.episodes, options.worst or 1) > 1 or len(folders) > 1):
        raise UserError(f"a {path.suffix} file shows one episode of one run; write an .html file to see more")
    if options.worst and options.episodes > 1:
        raise UserError("episodes and worst choose the episodes in two ways; leave one of them out")
    if path.suffix.lower() == ".mp4":
        from marljax.viz import animation

        animation.check_ffmpeg()


def _load(folder: Path, options: ReplayOptions, changes: Mapping[str, Any]) -> Replayed:
    import jax

    loaded = load_run(folder, options, dict(changes))
    index = loaded.index_of(options.seed, folder)
    params = jax.tree.map(lambda leaf: leaf[index], loaded.params)
    return Replayed(folder, loaded.settings, params, loaded.settings.seeds[index], loaded.update_of(index, options.which) == 0)


def _name(run: Replayed, runs: int) -> str:
    """Of a policy on the page: the algorithm and the run where there are several."""
    seed = f"seed {run.seed}"
    return seed if runs == 1 else f"{run.settings.algo} {run.folder.resolve().stem}, {seed}"


def _check_same_environment(one: Replayed, other: Replayed) -> None:
    """Refuses runs whose episodes would not begin alike."""
    tasks = [stored.task(run.settings.tree) for run in (one, other)]
    for key in tasks[0] | tasks[1]:
        before, after = (task.get(key) for task in tasks)
        if before != after:
            advice = "compare runs of one environment" if key == "env" else f"{key}=… sets both"
            raise UserError(f"{one.folder} and {other.folder} differ: {key} is {before} and {after}; {advice}")
