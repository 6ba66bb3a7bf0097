"""Layers, networks and distributions."""
