"""Tuned values of algorithms on environments, over the defaults of their classes."""
