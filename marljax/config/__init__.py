"""Hyperparameters and settings: declared, composed from the command line, checked."""

from marljax.config.hyperparameters import Hyperparameters, Scalar, static, traced

__all__ = ["Hyperparameters", "Scalar", "static", "traced"]
