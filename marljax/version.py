"""The version of marljax."""

__version__ = "0.1.0"
