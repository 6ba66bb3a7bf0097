"""Writes tests/data/pogema_transitions.npz: which agents POGEMA moves in random states, for tests/envs/pathfinding.

POGEMA needs older packages than marljax, so it runs in a Python environment of its own::

    python -m venv pogema && pogema/bin/pip install pogema==1.4.0
    pogema/bin/python tests/campaigns/pogema_transitions.py
"""

import sys
from pathlib import Path

import numpy as np
from pogema import GridConfig, pogema_v0

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS / "support"))

from pathfinding_states import SIDE, random_states  # noqa: E402


def moved(collision: str, seed: int) -> np.ndarray:
    """[states] uint64: a bit for each agent that is in another cell after one step of POGEMA."""
    found = []
    for blocked, cells, actions in random_states(seed):
        places = [divmod(int(cell), SIDE) for cell in cells]
        goals = places[1:] + places[:1]
        config = GridConfig(
            map=blocked.astype(int).tolist(),
            agents_xy=places,
            targets_xy=goals,
            num_agents=len(places),
            collision_system=collision,
            on_target="nothing",
            obs_radius=1,
            max_episode_steps=4,
        )
        env = pogema_v0(config)
        env.reset()
        before = env.unwrapped.get_agents_xy()
        env.step(actions.tolist())
        after = env.unwrapped.get_agents_xy()
        found.append(
            sum(1 << agent for agent, (old, new) in enumerate(zip(before, after, strict=True)) if tuple(old) != tuple(new))
        )
    return np.array(found, np.uint64)


if __name__ == "__main__":
    systems = ("soft", "priority", "block_both")
    np.savez_compressed(TESTS / "data" / "pogema_transitions.npz", **{name: moved(name, k) for k, name in enumerate(systems)})
