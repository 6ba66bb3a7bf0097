"""The commands: ``marljax train``, ``evaluate``, ``replay`` and ``plot``."""

from marljax.cli.app import console, main

__all__ = ["console", "main"]
