"""``collective``: self-propelled particles that act together, from a hundred to ten thousand."""

from marljax.envs.collective.env import Collective

__all__ = [
    "Collective",
]
