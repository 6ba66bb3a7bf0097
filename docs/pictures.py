"""The pictures of the README, in ``docs/assets/``: ``python docs/pictures.py`` draws all, ``… smax swarm`` some.

MAPPO is trained on ``merge`` for its animation, the learning curve and the picture of a terminal; scripted policies play
elsewhere.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image
from rich.console import Console

import marljax
from marljax.cli import batches
from marljax.config import compose
from marljax.io import program_cache
from marljax.reporting import episodes, report
from marljax.training.evaluation import Recording, record, suite_key
from marljax.viz.animation import PAUSE, UNCHANGED, palette, trail_lines
from marljax.viz.learning_curve import EVALUATED, learning_curve
from marljax.viz.stage import AXIS, HEADER, Stage

ASSETS = Path(__file__).parent / "assets"
TRAINING = ["env=merge", "seeds=5", "algo.total_steps=6e5"]
CURVES = ("return", "crash")  # metrics of the learning curve
EPISODES = 8  # to choose from


class Picture(NamedTuple):
    """An animation of the README."""

    overrides: tuple[str, ...]  # of the environment
    policy: str  # that plays, a scripted one
    metric: str  # by which the best of some episodes is chosen
    frames: int  # at most
    width: int = 300  # pixels


PICTURES = {
    "smax": Picture(("env=smax", "env.scenario=2s3z"), "script (closest target)", "won", 150),
    "swarm": Picture(("env=swarm", "env.preset=obstacles_random", "env.duration=700"), "PD, with repulsion", "success", 100),
    "collective": Picture(
        ("env=collective", "env.agents=40", "env.control=replace", "env.noise=1.5", "env.duration=80"),
        "align with neighbours",
        "polarisation",
        41,
        230,
    ),
    "pathfinding": Picture(("env=pathfinding", "env.duration=60", "env.map=2"), "pibt", "throughput", 61, 300),
    "ride_dispatch": Picture(("env=ride_dispatch", "env.preset=demo"), "nearest pickup", "reward", 150),
}


def scripted(picture: Picture) -> tuple[Any, Recording]:
    """The settings and the best of some episodes of a scripted policy."""
    settings = compose.compose("ippo", [*picture.overrides, "tuned=none"])
    policy = episodes.scripted_policies(settings.base_env, settings.env_params)[picture.policy]
    key = suite_key(report.FINAL_PART)
    recorded = record(policy.env, policy.env_params, policy.policy, policy.carry, key, episodes=EPISODES)
    return settings, max(recorded, key=lambda episode: episode.metrics[picture.metric])


def draw(settings: Any, episode: Recording, path: Path, width: int, frames: int) -> None:
    """A small animation of an episode, without what is written above and below the world."""
    film = episodes.film(settings.env, settings.env_params, episode)
    stage, count = Stage(film.scenes, settings.env.display, 2 * width), len(film.steps)
    stride = -(-count // frames)
    images = []
    for index in np.append(np.arange(0, count - 1, stride), count - 1):
        stage.show(jax.tree.map(lambda leaf, index=index: leaf[index], film.scenes), trail_lines(film.scenes, index))
        image = stage.image()
        world = image.crop((0, HEADER, image.width, image.height - AXIS))
        images.append(world.resize((width, round(width * world.height / world.width)), Image.Resampling.LANCZOS))
    sample = Image.fromarray(np.concatenate([np.asarray(image) for image in images[:: len(images) // 6]]))
    colours = palette(film.scenes, sample)
    first, *others = (image.quantize(palette=colours, dither=Image.Dither.NONE) for image in images)
    tick = max(20, 10 * round(100 * stride / film.fps))
    durations = [tick] * len(others) + [round(1000 * PAUSE)]
    style = {"save_all": True, "duration": durations, "loop": 0, "optimize": True, "transparency": UNCHANGED, "disposal": 1}
    first.save(path, append_images=others, **style)


class Terminal(Console):
    """A console that wraps all long lines, as terminals do."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options | {"soft_wrap": False})


@contextlib.contextmanager
def trained() -> Iterator[tuple[Path, Console]]:
    """The folder of a run, and the console that it was shown on."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        console = Terminal(record=True, width=120, force_terminal=False)
        console.print(f"$ python algos/mappo.py {' '.join(TRAINING)}", highlight=False)
        ended = batches.train(compose.compose("mappo", TRAINING), console)
        report.finish(ended.run, console)
        yield ended.folder, console


def draw_run(folder: Path) -> None:
    """The learning curve of the trained policy, and its animation."""
    settings = compose.compose("mappo", TRAINING)
    shown = {"seed", "env_steps", *CURVES, *(EVALUATED + name for name in CURVES)}
    rows = [{name: value for name, value in row.items() if name in shown} for row in report.curve_rows(settings, folder)]
    scripted = {name: metrics for name, metrics in report.played(folder).items() if not name.startswith(settings.algo)}
    style = {"references": scripted, "title": settings.label, "units": settings.env.display.units}
    learning_curve(rows, ASSETS / "learning_curve.png", **style)
    policy = marljax.load(folder)
    key = suite_key(report.FINAL_PART)
    recorded = record(policy.env, policy.env_params, policy, policy.initial_carry(), key, episodes=EPISODES)
    draw(settings, max(recorded, key=lambda episode: episode.metrics["return"]), ASSETS / "merge.gif", 600, 100)


def main(names: list[str]) -> None:
    """Draws the pictures of these names."""
    known = ["merge", *PICTURES]
    if unknown := set(names) - set(known):
        sys.exit(f"unknown pictures: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    program_cache.enable()
    ASSETS.mkdir(exist_ok=True)
    for name in set(names) & set(PICTURES):
        draw(*scripted(PICTURES[name]), ASSETS / f"{name}.gif", PICTURES[name].width, PICTURES[name].frames)
    if "merge" in names:
        with trained() as (folder, console):
            console.save_svg(str(ASSETS / "terminal.svg"), title="marljax")
            draw_run(folder)
    for path in sorted(ASSETS.iterdir()):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:] or ["merge", *PICTURES])
