"""Draws the animations of the environments' pages, episodes of scripted policies: ``python docs/pictures.py [environment …]``."""

import sys
from pathlib import Path

import jax
import numpy as np

from marljax.cli.info import environment_settings
from marljax.reporting.report import scripted_policies
from marljax.training.evaluation import record, suite_key
from marljax.viz.animation import animate

ASSETS = Path(__file__).parent / "assets"
FPS = 10.0
# Options, the scripted policy, and decisions per frame and frames of an animation.
EPISODES = {
    "merge": ([], "human drivers (IDM + MOBIL)", 2, 50),
    "smax": (["env.scenario=2s3z"], "script (closest target)", 1, 60),
    "ride_dispatch": (["env.preset=demo"], "nearest pickup", 1, 31),
    "swarm": (["env.preset=swap", "env.drones=6"], "PD, with repulsion", 12, 32),
    "collective": (["env.agents=60", "env.noise=2"], "one direction", 4, 12),
}


def draw(name: str) -> None:
    """Writes ``docs/assets/<name>.gif``."""
    overrides, policy, stride, most = EPISODES[name]
    settings = environment_settings(name, overrides)
    player = scripted_policies(settings)[policy]
    (episode,) = record(player.env, player.env_params, player.policy, player.carry, suite_key(0))
    shown = np.arange(0, len(episode.actions) + 1, stride)[:most]
    states = jax.tree.map(lambda leaf: leaf[shown], episode.states)
    scenes = jax.jit(jax.vmap(player.env.scene, in_axes=(0, None)))(states, player.env_params)
    path = animate(player.env, scenes, ASSETS / f"{name}.gif", fps=FPS)
    print(f"{path.relative_to(Path.cwd())}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or EPISODES:
        draw(chosen)
