"""``swarm``: quadrotors, or point masses, fly to goals without hitting one another, obstacles or walls."""

from marljax.envs.swarm.env import Swarm, SwarmState

__all__ = [
    "Swarm",
    "SwarmState",
]
