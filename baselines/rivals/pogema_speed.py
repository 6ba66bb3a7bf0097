"""POGEMA's speed under random actions, for ``baselines/speed.py``: one simulator in one process, as it is used.

POGEMA needs older packages than marljax, so this file imports nothing of marljax's, and runs in a Python of its own. It takes
the arguments of ``GridConfig`` as JSON and the seconds to run, and prints steps per second.
"""

import json
import sys
import time


def rate(arguments: dict, seconds: float) -> float:
    """Steps per second of whole episodes, observations of all agents included, after a first one to warm up."""
    from pogema import GridConfig, pogema_v0  # here, so that this file can be imported where POGEMA is not installed

    env = pogema_v0(GridConfig(**arguments))

    def play() -> int:
        env.reset()
        steps, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.sample_actions())
            over, steps = all(terminated) or all(truncated), steps + 1
        return steps

    play()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        steps += play()
    return steps / (time.perf_counter() - begun)


if __name__ == "__main__":
    print(json.dumps(rate(json.loads(sys.argv[1]), float(sys.argv[2]))))
