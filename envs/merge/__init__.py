"""``merge``: connected vehicles learn to merge from a ramp into mixed traffic."""

from marljax.envs.merge.actions import IDLE, LEFT
from marljax.envs.merge.env import Merge
from marljax.envs.merge.params import NUM_CAVS

__all__ = ["IDLE", "LEFT", "NUM_CAVS", "Merge"]
