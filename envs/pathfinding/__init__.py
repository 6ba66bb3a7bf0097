"""``pathfinding``: many agents find their ways on one grid, after POGEMA (Skrynnik et al. 2024)."""

from marljax.envs.pathfinding.env import Pathfinding, PathfindingParams, PathfindingState

__all__ = [
    "Pathfinding",
    "PathfindingParams",
    "PathfindingState",
]
